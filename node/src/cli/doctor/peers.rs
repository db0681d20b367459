//! Checks bootstrap peers: dials each as the node would, under a temporary identity, and requests its record.

use std::time::Duration;

use baton_keys::secret::random_bytes;
use baton_mesh::{DialOutcome, Mesh, TurnStream};
use baton_proto::{
    SignedObject, codec,
    limits::MAX_NODE_FRAME_BYTES,
    node_record::NodeRecord,
    wire::{ClientFrame, NodeFrame},
};
use futures::future::join_all;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::{Check, Subject, codes};
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

pub(super) async fn check(subject: &Subject) -> (Check, Vec<PeerRecord>) {
    let settings = &subject.settings;
    let mut check = Check::new("peers");
    if let Some(status) = &subject.running {
        check.saw(format!("{} connected, {} known", status.peers.connected, status.peers.known));
        if status.peers.connected == 0 && !settings.bootstrap().is_empty() {
            check.found(
                codes::PEERS_NONE,
                format!("{} bootstrap peers are configured", settings.bootstrap().len()),
            );
        }
    }
    if settings.bootstrap().is_empty() {
        if settings.mdns() {
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
    let bootstrap = settings.bootstrap();
    let dialled = join_all(bootstrap.iter().map(|address| {
        let seed = Zeroizing::new(random_bytes());
        Box::pin(Mesh::try_dial(seed, SOFTWARE, address, DIAL_TIMEOUT, ask))
    }));
    let (mut records, mut answered) = (Vec::new(), 0);
    for (address, dialled) in bootstrap.iter().zip(dialled.await) {
        if !address.to_string().contains("/p2p/") {
            check.found(codes::BOOTSTRAP_ANONYMOUS, address.to_string());
        }
        match dialled {
            DialOutcome::Answered(took, record) => {
                answered += 1;
                check.saw(format!("{address} answers in {}", short(took)));
                records.extend(record.flatten());
            }
            DialOutcome::Other => check.found(codes::BOOTSTRAP_OTHER, address.to_string()),
            DialOutcome::Silent(reason) => {
                check.found(codes::BOOTSTRAP_SILENT, format!("{address}: {reason}"))
            }
        }
    }
    if answered == 0 {
        check.found(codes::BOOTSTRAP_ALL_SILENT, format!("none of {}", settings.bootstrap().len()));
    }
    (check, records)
}

/// The peer's record; `None` without a valid one.
async fn ask(mut stream: TurnStream, deadline: Instant) -> Option<PeerRecord> {
    let asked_ms = now_ms();
    stream.send_by(&codec::encode(&ClientFrame::NodeRecord), deadline).await.ok()?;
    let frame = stream.recv_by(MAX_NODE_FRAME_BYTES, deadline).await.ok()??;
    let NodeFrame::NodeRecord(bytes) = codec::decode(&frame, MAX_NODE_FRAME_BYTES).ok()? else { return None };
    let record = SignedObject::<NodeRecord>::verify(bytes).ok()?;
    let name = stream.remote().to_string();
    let peer = format!("{}...", name.get(..16).unwrap_or(&name));
    Some(PeerRecord { peer, issued_ms: record.issued_ms, expires_ms: record.expires_ms, asked_ms })
}
