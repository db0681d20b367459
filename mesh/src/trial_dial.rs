//! One dial of an address that an operator configured, for the doctors of programs.

use std::time::Duration;

use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::{
    MeshConfig, Multiaddr, OpenError, Reach, TurnStream, handle::Mesh, ids::node_id_of,
    transport::split_identity,
};

/// Outcome of a trial dial.
#[derive(Debug)]
pub enum DialOutcome<T> {
    /// The peer answered in this time. Its own answer is absent where it serves no turns, or the address names no peer.
    Answered(Duration, Option<T>),
    /// Another peer than the named one answered.
    Other,
    /// Nobody answered, for this reason.
    Silent(String),
}

impl Mesh {
    /// Dials an address under the identity of `seed`, hands the turn stream to `ask`, and stops again.
    ///
    /// The operator named the address, so any range is allowed, even loopback.
    pub async fn try_dial<T>(
        seed: Zeroizing<[u8; 32]>,
        agent: &str,
        address: &Multiaddr,
        timeout: Duration,
        ask: impl AsyncFnOnce(TurnStream, Instant) -> T,
    ) -> DialOutcome<T> {
        let (place, peer) = split_identity(address.clone());
        let bootstrap = if peer.is_none() { vec![place.clone()] } else { Vec::new() };
        let config = MeshConfig { reach: Some(Reach::Loopback), bootstrap, ..MeshConfig::dialer(agent) };
        let (mesh, _incoming) = match Box::pin(Self::spawn(seed, config)).await {
            Ok(mesh) => mesh,
            Err(error) => return DialOutcome::Silent(error.to_string()),
        };
        let begin = Instant::now();
        let deadline = begin + timeout;
        let outcome = match peer.map(|peer| node_id_of(&peer)) {
            Some(Some(node)) => match mesh.open(node, &[place], deadline).await {
                Ok(stream) => {
                    let took = begin.elapsed();
                    DialOutcome::Answered(took, Some(ask(stream, deadline).await))
                }
                // Without the turn protocol, it is a relay or only a bootstrap peer.
                Err(OpenError::ProtocolUnsupported) => DialOutcome::Answered(begin.elapsed(), None),
                Err(OpenError::WrongIdentity { .. }) => DialOutcome::Other,
                Err(error) => DialOutcome::Silent(error.to_string()),
            },
            Some(None) => DialOutcome::Silent("its name is not that of an Ed25519 key".to_owned()),
            None => {
                let connected =
                    mesh.wait_for_peers(deadline, |peers| peers.iter().any(|peer| peer.connected));
                match connected.await {
                    Some(_) => DialOutcome::Answered(begin.elapsed(), None),
                    None => DialOutcome::Silent(format!("no connection within {} s", timeout.as_secs())),
                }
            }
        };
        mesh.shutdown().await;
        outcome
    }
}
