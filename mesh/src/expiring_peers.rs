//! Sets of peers whose entries expire: peers that are shut out, and known peers. The handles, the swarm task
//! and the connections' tasks share them; their owner defines the meaning.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use libp2p::PeerId;
use tokio::time::Instant;

use crate::limits::MAX_EXPIRING_PEERS;

/// Peers with their expiry times; at most [`MAX_EXPIRING_PEERS`].
#[derive(Debug, Clone, Default)]
pub(crate) struct ExpiringPeers(Arc<Mutex<HashMap<PeerId, Instant>>>);

impl ExpiringPeers {
    fn table(&self) -> MutexGuard<'_, HashMap<PeerId, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a peer until a time. When the table is full of unexpired peers, a new peer is not added:
    /// identities are free, so existing entries stay.
    pub(crate) fn insert(&self, peer: PeerId, until: Instant) {
        let mut table = self.table();
        if table.len() >= MAX_EXPIRING_PEERS {
            let now = Instant::now();
            table.retain(|_, until| *until > now);
        }
        if table.len() < MAX_EXPIRING_PEERS || table.contains_key(&peer) {
            table.insert(peer, until);
        }
    }

    /// The number of unexpired peers.
    pub(crate) fn count(&self, now: Instant) -> u64 {
        self.table().values().filter(|until| **until > now).count() as u64
    }

    /// Whether the set holds a peer, unexpired.
    pub(crate) fn has(&self, peer: &PeerId, now: Instant) -> bool {
        self.table().get(peer).is_some_and(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_holds_for_its_time_and_the_table_is_bounded() {
        let (peers, now) = (ExpiringPeers::default(), Instant::now());
        let peer = PeerId::random();
        peers.insert(peer, now + Duration::from_secs(60));
        assert!(peers.has(&peer, now) && !peers.has(&PeerId::random(), now));
        assert_eq!((peers.count(now), peers.count(now + Duration::from_secs(61))), (1, 0));
        assert!(!peers.has(&peer, now + Duration::from_secs(61)));
        for _ in 0..MAX_EXPIRING_PEERS + 10 {
            peers.insert(PeerId::random(), now + Duration::from_secs(60));
        }
        assert!(peers.table().len() <= MAX_EXPIRING_PEERS && peers.has(&peer, now));
    }
}
