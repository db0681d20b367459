//! Peers that were served before. Pure.

use std::collections::HashMap;

use baton_mesh::Subnet;
use baton_proto::ids::NodeId;

/// How long a served turn gives its peer standing.
const STANDING_MS: u64 = 3_600_000;
/// Peers of one subnet with standing. Whoever has it keeps it while it comes back: a flood of newcomers that are served
/// takes it from nobody.
pub(super) const MAX_OF_SUBNET: usize = 16;
/// Peers with standing.
pub(super) const MAX_STANDING: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Standing {
    peers: HashMap<NodeId, (Subnet, u64)>,
}

impl Standing {
    pub(super) fn has(&self, peer: &NodeId, now_ms: u64) -> bool {
        self.peers.get(peer).is_some_and(|(_, at_ms)| now_ms.saturating_sub(*at_ms) < STANDING_MS)
    }

    /// A turn of this peer was served.
    pub(super) fn note(&mut self, peer: NodeId, subnet: Subnet, now_ms: u64) {
        if !self.has(&peer, now_ms) {
            // Looked through only for a newcomer whose turn was served, which took far longer.
            self.peers.retain(|_, (_, at_ms)| now_ms.saturating_sub(*at_ms) < STANDING_MS);
            let of_subnet = self.peers.values().filter(|(other, _)| *other == subnet).count();
            if self.peers.len() >= MAX_STANDING || of_subnet >= MAX_OF_SUBNET {
                return;
            }
        }
        self.peers.insert(peer, (subnet, now_ms));
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.peers.len()
    }
}
