//! Checks bootstrap peers: dials each as the node would, under a temporary identity, and requests its record.

use std::time::Duration;

use baton_keys::secret::random_bytes;
use baton_mesh::{Mesh, MeshConfig, MeshHandle, Multiaddr, OpenError, PeerId, Reach, node_id_of};
use baton_proto::{
    SignedObject, codec,
    limits::MAX_NODE_FRAME_BYTES,
    node_record::NodeRecord,
    wire::{ClientFrame, NodeFrame},
};
use futures::future::join_all;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::{Subject, codes, report::Check};
use crate::cli::time::{now_ms, short};

/// Timeout of one peer.
const DIAL_TIMEOUT: Duration = Duration::from_secs(15);
/// The software name of this command towards peers.
const SOFTWARE: &str = concat!("baton-node/", env!("CARGO_PKG_VERSION"), " (doctor)");

/// Clock information from a peer's record.
#[derive(Clone, Debug)]
pub(super) struct PeerRecord {
    pub(super) peer: String,
    pub(super) issued_ms: u64,
    pub(super) expires_ms: u64,
    /// This machine's time of the request.
    pub(super) asked_ms: u64,
}

/// Outcome of one dial.
#[derive(Debug)]
enum DialOutcome {
    Answered { took: Duration, record: Option<PeerRecord> },
    Other,
    Silent(String),
}

pub(super) async fn check(subject: &Subject) -> (Check, Vec<PeerRecord>) {
    let settings = &subject.settings;
    let mut check = Check::new("peers");
    if let Some(status) = &subject.running {
        check.saw(format!("{} connected, {} known", status.peers.connected, status.peers.known));
        if status.peers.connected == 0 && !settings.bootstrap.is_empty() {
            check.found(
                codes::PEERS_NONE,
                format!("{} bootstrap peers are configured", settings.bootstrap.len()),
            );
        }
    }
    if settings.bootstrap.is_empty() {
        if settings.mdns {
            check.saw("no bootstrap peer is configured; peers of the local network are found by multicast");
        } else {
            check.found(codes::BOOTSTRAP_NONE, "bootstrap is empty and mdns is off");
        }
        return (check, Vec::new());
    }
    if subject.offline {
        check.saw("offline: bootstrap peers were not dialled");
        return (check, Vec::new());
    }
    let dialled = join_all(settings.bootstrap.iter().map(|address| Box::pin(dial(address)))).await;
    let (mut records, mut answered) = (Vec::new(), 0);
    for (address, dialled) in settings.bootstrap.iter().zip(dialled) {
        if !address.to_string().contains("/p2p/") {
            check.found(codes::BOOTSTRAP_ANONYMOUS, address.to_string());
        }
        match dialled {
            DialOutcome::Answered { took, record } => {
                answered += 1;
                check.saw(format!("{address} answers in {}", short(took)));
                records.extend(record);
            }
            DialOutcome::Other => check.found(codes::BOOTSTRAP_OTHER, address.to_string()),
            DialOutcome::Silent(reason) => {
                check.found(codes::BOOTSTRAP_SILENT, format!("{address}: {reason}"))
            }
        }
    }
    if answered == 0 {
        check.found(codes::BOOTSTRAP_ALL_SILENT, format!("none of {}", settings.bootstrap.len()));
    }
    (check, records)
}

/// The address without its last part, and the peer in that part.
fn named_peer(address: &Multiaddr) -> Option<(Multiaddr, PeerId)> {
    let text = address.to_string();
    let (place, peer) = text.rsplit_once("/p2p/")?;
    Some((place.parse().ok()?, peer.parse().ok()?))
}

async fn dial(address: &Multiaddr) -> DialOutcome {
    let named = named_peer(address);
    // The operator named the address, so any range is allowed, even loopback.
    let mut config = MeshConfig { reach: Some(Reach::Loopback), ..MeshConfig::dialer(SOFTWARE) };
    if named.is_none() {
        config.bootstrap = vec![address.clone()];
    }
    let (mesh, _incoming) = match Box::pin(Mesh::spawn(Zeroizing::new(random_bytes()), config)).await {
        Ok(mesh) => mesh,
        Err(error) => return DialOutcome::Silent(error.to_string()),
    };
    let begin = Instant::now();
    let deadline = begin + DIAL_TIMEOUT;
    let dialled = match named {
        Some((place, peer)) => match node_id_of(&peer) {
            Some(node) => match mesh.open(node, &[place], deadline).await {
                Ok(stream) => {
                    let took = begin.elapsed();
                    DialOutcome::Answered { took, record: ask(stream, deadline).await }
                }
                // The peer answers but serves no turns: a relay, or only a bootstrap peer.
                Err(OpenError::ProtocolUnsupported) => {
                    DialOutcome::Answered { took: begin.elapsed(), record: None }
                }
                Err(OpenError::WrongIdentity { .. }) => DialOutcome::Other,
                Err(error) => DialOutcome::Silent(error.to_string()),
            },
            None => DialOutcome::Silent("its name is not that of an Ed25519 key".to_owned()),
        },
        None => wait_for_anyone(&mesh, begin, deadline).await,
    };
    mesh.shutdown().await;
    dialled
}

async fn wait_for_anyone(mesh: &MeshHandle, begin: Instant, deadline: Instant) -> DialOutcome {
    match mesh.wait_for_peers(deadline, |peers| peers.iter().any(|peer| peer.connected)).await {
        Some(_) => DialOutcome::Answered { took: begin.elapsed(), record: None },
        None => DialOutcome::Silent(format!("no connection within {}", short(DIAL_TIMEOUT))),
    }
}

/// The peer's record; `None` without a valid one.
async fn ask(mut stream: baton_mesh::TurnStream, deadline: Instant) -> Option<PeerRecord> {
    let asked_ms = now_ms();
    stream.send_by(&codec::encode(&ClientFrame::NodeRecord), deadline).await.ok()?;
    let frame = stream.recv_by(MAX_NODE_FRAME_BYTES, deadline).await.ok()??;
    let NodeFrame::NodeRecord(bytes) = codec::decode(&frame, MAX_NODE_FRAME_BYTES).ok()? else { return None };
    let record = SignedObject::<NodeRecord>::verify(bytes).ok()?;
    let name = stream.remote().to_string();
    let peer = format!("{}...", name.get(..16).unwrap_or(&name));
    Some(PeerRecord { peer, issued_ms: record.issued_ms, expires_ms: record.expires_ms, asked_ms })
}

#[cfg(test)]
mod tests {
    use baton_keys::SecretSigningKey;

    use super::*;

    #[test]
    fn the_peer_is_the_last_one_that_an_address_names() {
        let [relay, peer] = [1, 2]
            .map(|fill| baton_mesh::peer_id_of(SecretSigningKey::from_seed(&[fill; 32]).node_id()).unwrap());
        for place in
            ["/ip4/192.0.2.1/tcp/4001".to_owned(), format!("/ip4/192.0.2.1/tcp/1/p2p/{relay}/p2p-circuit")]
        {
            let found = named_peer(&format!("{place}/p2p/{peer}").parse().unwrap()).unwrap();
            assert_eq!((found.0.to_string(), found.1), (place, peer));
        }
        assert!(named_peer(&"/ip4/192.0.2.1/tcp/4001".parse().unwrap()).is_none());
    }
}
