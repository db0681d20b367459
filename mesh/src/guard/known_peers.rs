//! Peers that were served before. Pure.

use std::collections::HashMap;

use baton_proto::ids::NodeId;

use crate::subnet::Subnet;

/// How long a peer counts as known after a served turn.
const KNOWN_MS: u64 = 3_600_000;
/// How long a peer queues as an unknown one after its first served turn. This exceeds the life of
/// throwaway identities.
pub(super) const SETTLING_MS: u64 = 30_000;
/// Maximum known peers of one subnet. An active peer stays known, so a flood of peers that were served once
/// displaces none.
pub(super) const MAX_OF_SUBNET: usize = 16;
/// Maximum known peers.
pub(super) const MAX_KNOWN: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct KnownPeers {
    peers: HashMap<NodeId, KnownPeer>,
}

#[derive(Debug, Clone, Copy)]
struct KnownPeer {
    subnet: Subnet,
    first_ms: u64,
    last_ms: u64,
}

impl KnownPeer {
    fn holds(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.last_ms) < KNOWN_MS
    }
}

impl KnownPeers {
    pub(super) fn has(&self, peer: &NodeId, now_ms: u64) -> bool {
        self.peers.get(peer).is_some_and(|known| known.holds(now_ms))
    }

    /// Whether a peer has been known for a while.
    pub(super) fn has_settled(&self, peer: &NodeId, now_ms: u64) -> bool {
        let settled = |known: &KnownPeer| now_ms.saturating_sub(known.first_ms) >= SETTLING_MS;
        self.peers.get(peer).is_some_and(|known| known.holds(now_ms) && settled(known))
    }

    /// A turn of this peer was served.
    pub(super) fn note(&mut self, peer: NodeId, subnet: Subnet, now_ms: u64) {
        let before = self.peers.get(&peer).filter(|known| known.holds(now_ms)).map(|known| known.first_ms);
        if before.is_none() {
            // This scan runs only for an unknown peer's served turn, which took far longer.
            self.peers.retain(|_, known| known.holds(now_ms));
            let of_subnet = self.peers.values().filter(|other| other.subnet == subnet).count();
            if self.peers.len() >= MAX_KNOWN || of_subnet >= MAX_OF_SUBNET {
                return;
            }
        }
        let first_ms = before.unwrap_or(now_ms);
        self.peers.insert(peer, KnownPeer { subnet, first_ms, last_ms: now_ms });
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.peers.len()
    }
}
