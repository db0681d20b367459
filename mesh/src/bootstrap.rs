//! Dial schedule of the bootstrap peers: a table of addresses with backoff.
//!
//! This module is pure: the swarm task dials, and passes in the time and the randomness.

use std::time::Duration;

use libp2p::{Multiaddr, PeerId, multiaddr::Protocol, swarm::ConnectionId};
use tokio::time::Instant;

use crate::{ids::node_id_of, status::BootstrapStatus, transport::split_identity};

/// Wait after the first failure; it doubles with each further failure.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// Longest wait.
const LAST_DELAY: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DialState {
    Waiting { due: Instant },
    Dialing(ConnectionId),
    Connected(PeerId),
}

#[derive(Debug)]
struct BootstrapEntry {
    address: Multiaddr,
    peer: Option<PeerId>,
    failures: u32,
    /// Why the last dial failed.
    failure: Option<String>,
    state: DialState,
}

/// The bootstrap peers of one mesh.
#[derive(Debug)]
pub(crate) struct Bootstrap(Vec<BootstrapEntry>);

/// The wait before the next dial after `failures` failures.
///
/// It grows exponentially up to a cap. `jitter` (0 to 255) picks a point between half and all of it, so that
/// peers that restart together do not dial together.
fn delay(failures: u32, jitter: u8) -> Duration {
    let full = FIRST_DELAY.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(LAST_DELAY);
    full / 2 + full * u32::from(jitter) / 510
}

impl Bootstrap {
    /// A table with every address due at once.
    pub(crate) fn new(addresses: Vec<Multiaddr>, now: Instant) -> Self {
        let entry = |address| {
            let (address, peer) = split_identity(address);
            BootstrapEntry {
                address,
                peer,
                failures: 0,
                failure: None,
                state: DialState::Waiting { due: now },
            }
        };
        Self(addresses.into_iter().map(entry).collect())
    }

    /// When the next dial is due, if any is.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let due = |entry: &BootstrapEntry| match entry.state {
            DialState::Waiting { due } => Some(due),
            _ => None,
        };
        self.0.iter().filter_map(due).min()
    }

    /// The addresses to dial now, with their indexes. The caller answers each with one of the `on_` methods.
    pub(crate) fn due(&self, now: Instant) -> Vec<(usize, Multiaddr, Option<PeerId>)> {
        let is_due = |entry: &BootstrapEntry| matches!(entry.state, DialState::Waiting { due } if due <= now);
        let item = |(index, entry): (usize, &BootstrapEntry)| (index, entry.address.clone(), entry.peer);
        self.0.iter().enumerate().filter(|(_, entry)| is_due(entry)).map(item).collect()
    }

    /// The dial has begun.
    pub(crate) fn on_dialing(&mut self, index: usize, connection: ConnectionId) {
        if let Some(entry) = self.0.get_mut(index) {
            entry.state = DialState::Dialing(connection);
        }
    }

    /// The dial could not begin.
    pub(crate) fn on_refused(&mut self, index: usize, now: Instant, jitter: u8) {
        if let Some(entry) = self.0.get_mut(index) {
            entry.fail(now, jitter);
        }
    }

    /// A dial failed, for this reason; connections that this table did not dial are ignored. Returns whether it
    /// dialled this one.
    pub(crate) fn on_failed(
        &mut self,
        connection: ConnectionId,
        reason: &str,
        now: Instant,
        jitter: u8,
    ) -> bool {
        let ours = |entry: &&mut BootstrapEntry| entry.state == DialState::Dialing(connection);
        let mut any = false;
        for entry in self.0.iter_mut().filter(ours) {
            entry.fail(now, jitter);
            entry.failure = Some(reason.to_owned());
            any = true;
        }
        any
    }

    /// The state of each bootstrap peer.
    pub(crate) fn statuses(&self) -> Vec<BootstrapStatus> {
        let status = |entry: &BootstrapEntry| {
            let met = match entry.state {
                DialState::Connected(peer) => Some(peer),
                _ => None,
            };
            BootstrapStatus {
                address: entry.peer.map_or_else(
                    || entry.address.clone(),
                    |peer| entry.address.clone().with(Protocol::P2p(peer)),
                ),
                node: entry.peer.or(met).as_ref().and_then(node_id_of),
                connected: met.is_some(),
                failure: entry.failure.clone(),
            }
        };
        self.0.iter().map(status).collect()
    }

    /// A peer is connected, no matter which side or dial began it. Returns whether it is one of these.
    pub(crate) fn on_connected(&mut self, connection: ConnectionId, peer: PeerId) -> bool {
        let mut any = false;
        for entry in &mut self.0 {
            if entry.state == DialState::Dialing(connection) || entry.peer == Some(peer) {
                entry.failures = 0;
                entry.failure = None;
                entry.state = DialState::Connected(peer);
                any = true;
            }
        }
        any
    }

    /// The last connection with a peer ended.
    pub(crate) fn on_disconnected(&mut self, peer: PeerId, now: Instant, jitter: u8) {
        let ours = |entry: &&mut BootstrapEntry| entry.state == DialState::Connected(peer);
        self.0.iter_mut().filter(ours).for_each(|entry| entry.fail(now, jitter));
    }
}

impl BootstrapEntry {
    fn fail(&mut self, now: Instant, jitter: u8) {
        self.failures = self.failures.saturating_add(1);
        self.state = DialState::Waiting { due: now + delay(self.failures, jitter) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libp2p::identity::Keypair;

    #[test]
    fn delays_grow_jittered_up_to_the_cap() {
        assert_eq!(delay(1, 0), Duration::from_millis(500));
        assert_eq!(delay(1, 255), Duration::from_secs(1));
        assert_eq!(delay(3, 255), Duration::from_secs(4));
        for failures in [7, 20, u32::MAX] {
            assert_eq!(delay(failures, 255), LAST_DELAY);
            assert_eq!(delay(failures, 0), LAST_DELAY / 2);
        }
    }

    #[test]
    fn a_failed_dial_waits_longer_and_a_connection_resets_the_wait() {
        let now = Instant::now();
        let peer = Keypair::generate_ed25519().public().to_peer_id();
        let address: Multiaddr = "/ip4/127.0.0.1/tcp/1".parse().unwrap();
        let mut bootstrap = Bootstrap::new(vec![address.clone().with(Protocol::P2p(peer))], now);
        assert_eq!(bootstrap.due(now), vec![(0, address, Some(peer))]);

        let dial = ConnectionId::new_unchecked(7);
        bootstrap.on_dialing(0, dial);
        assert_eq!(bootstrap.next_due(), None, "no second dial beside a running one");
        assert!(!bootstrap.on_failed(ConnectionId::new_unchecked(8), "refused", now, 255));
        assert_eq!(bootstrap.next_due(), None, "another dial's failure is not ours");
        assert!(bootstrap.on_failed(dial, "refused", now, 255));
        assert_eq!(bootstrap.statuses()[0].failure.as_deref(), Some("refused"));
        assert_eq!(bootstrap.next_due(), Some(now + Duration::from_secs(1)));
        bootstrap.on_refused(0, now, 255);
        assert_eq!(bootstrap.next_due(), Some(now + Duration::from_secs(2)));

        bootstrap.on_connected(ConnectionId::new_unchecked(9), peer);
        assert_eq!(bootstrap.next_due(), None);
        bootstrap.on_disconnected(peer, now, 255);
        assert_eq!(bootstrap.next_due(), Some(now + Duration::from_secs(1)));
    }
}
