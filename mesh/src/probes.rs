//! Detection of departed peers: after a connection breaks, the peer is dialled again, twice. Pure bookkeeping
//! of the swarm task.

use std::collections::HashMap;

use libp2p::PeerId;
use tokio::time::Instant;

use crate::limits::{MAX_PROBES, PROBE_DELAYS};

#[derive(Debug, Clone, Copy)]
struct Probe {
    due: Option<Instant>,
    failed: usize,
}

/// The peers being probed.
#[derive(Debug, Default)]
pub(crate) struct Probes(HashMap<PeerId, Probe>);

impl Probes {
    /// A connection broke or a dial failed: schedules a dial of the peer.
    pub(crate) fn suspect(&mut self, peer: PeerId, now: Instant) {
        if self.0.len() < MAX_PROBES {
            self.0.entry(peer).or_insert(Probe { due: Some(now + PROBE_DELAYS[0]), failed: 0 });
        }
    }

    /// The peer is connected.
    pub(crate) fn answered(&mut self, peer: PeerId) {
        self.0.remove(&peer);
    }

    /// Peers to dial now.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<PeerId> {
        let due = |probe: &Probe| probe.due.is_some_and(|due| due <= now);
        let mut peers = Vec::new();
        for (peer, probe) in &mut self.0 {
            if due(probe) {
                probe.due = None;
                peers.push(*peer);
            }
        }
        peers
    }

    /// A dial of the peer failed. Returns whether the peer is gone.
    pub(crate) fn failed(&mut self, peer: PeerId, now: Instant) -> bool {
        let Some(probe) = self.0.get_mut(&peer) else { return false };
        if probe.due.is_some() {
            return false; // another dial than ours, just before it
        }
        probe.failed += 1;
        match PROBE_DELAYS.get(probe.failed) {
            Some(delay) => {
                probe.due = Some(now + *delay);
                false
            }
            None => {
                self.0.remove(&peer);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_gone_after_two_failures_and_not_after_one() {
        let (peer, now) = (PeerId::random(), Instant::now());
        let mut probes = Probes::default();
        assert!(!probes.failed(peer, now), "no connection of it broke");
        probes.suspect(peer, now);
        assert_eq!(probes.due(now), vec![]);
        let first = now + PROBE_DELAYS[0];
        assert_eq!(probes.due(first), vec![peer]);
        assert_eq!(probes.due(first), vec![], "once");
        assert!(!probes.failed(peer, first));
        assert_eq!(probes.due(first), vec![]);
        let second = first + PROBE_DELAYS[1];
        assert_eq!(probes.due(second), vec![peer]);
        assert!(probes.failed(peer, second));
        assert!(!probes.failed(peer, second));
    }

    #[test]
    fn a_peer_that_answers_is_no_longer_suspected() {
        let (peer, now) = (PeerId::random(), Instant::now());
        let mut probes = Probes::default();
        probes.suspect(peer, now);
        probes.due(now + PROBE_DELAYS[0]);
        probes.failed(peer, now);
        probes.answered(peer);
        assert!(!probes.failed(peer, now));
        assert_eq!(probes.due(now + PROBE_DELAYS[1] * 9), vec![]);
    }
}
