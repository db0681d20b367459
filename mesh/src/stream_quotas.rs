//! Quotas of inbound streams: in total, by peer and by subnet. The swarm task checks them for each stream.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use baton_proto::ids::NodeId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    limits::MeshLimits,
    subnet::{Networks, Origin, Subnet},
};

/// Why an inbound stream was not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamRefusal {
    /// All peers together have too many.
    Total,
    /// This peer has too many.
    PerPeer,
    /// Its subnet has too many.
    PerSubnet,
}

/// An inbound stream's share of the quotas, given back when the stream is dropped.
#[derive(Debug)]
pub(crate) struct StreamPermit {
    _total: OwnedSemaphorePermit,
    _shares: [Option<Share>; 2],
}

/// A stream's share of its peer's or subnet's quota.
#[derive(Debug)]
struct Share {
    _permit: OwnedSemaphorePermit,
    /// Keeps the quota alive, across reconnections, while any stream of the key is open.
    _quota: Arc<Semaphore>,
}

/// Quotas of one kind. Only keys with open streams keep an entry, so the limit on all streams bounds the
/// table.
#[derive(Debug)]
struct Quotas<K> {
    limit: usize,
    open: HashMap<K, Weak<Semaphore>>,
}

impl<K: Eq + std::hash::Hash> Quotas<K> {
    fn new(limit: usize) -> Self {
        Self { limit, open: HashMap::new() }
    }

    fn take(&mut self, key: K) -> Option<Share> {
        let quota = match self.open.get(&key).and_then(Weak::upgrade) {
            Some(quota) => quota,
            None => {
                // Swept only once the table has grown, so that an ordinary stream does not pay for it.
                if self.open.len() >= self.limit.max(64) {
                    self.open.retain(|_, quota| quota.strong_count() > 0);
                }
                let quota = Arc::new(Semaphore::new(self.limit));
                self.open.insert(key, Arc::downgrade(&quota));
                quota
            }
        };
        let permit = quota.clone().try_acquire_owned().ok()?;
        Some(Share { _permit: permit, _quota: quota })
    }
}

/// Counts inbound streams, in total, by peer and by subnet. Owned by the swarm task.
#[derive(Debug)]
pub(crate) struct StreamQuotas {
    total: Arc<Semaphore>,
    peers: Quotas<NodeId>,
    subnets: Quotas<Subnet>,
    own_networks: Networks,
}

impl StreamQuotas {
    pub(crate) fn new(limits: &MeshLimits) -> Self {
        Self {
            total: Arc::new(Semaphore::new(limits.max_streams_in)),
            peers: Quotas::new(limits.max_streams_per_peer),
            subnets: Quotas::new(limits.max_streams_per_subnet),
            own_networks: limits.own_networks.clone(),
        }
    }

    /// Whether a peer has streams open.
    pub(crate) fn is_open(&self, node: &NodeId) -> bool {
        self.peers.open.get(node).is_some_and(|quota| quota.strong_count() > 0)
    }

    pub(crate) fn admit(&mut self, node: NodeId, origin: Origin) -> Result<StreamPermit, StreamRefusal> {
        let peer = self.peers.take(node).ok_or(StreamRefusal::PerPeer)?;
        let subnet = match origin.counted(&self.own_networks) {
            Some(subnet) => Some(self.subnets.take(subnet).ok_or(StreamRefusal::PerSubnet)?),
            None => None,
        };
        let total = self.total.clone().try_acquire_owned().map_err(|_| StreamRefusal::Total)?;
        Ok(StreamPermit { _total: total, _shares: [Some(peer), subnet] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quotas(total: usize, peer: usize, subnet: usize) -> StreamQuotas {
        StreamQuotas::new(&MeshLimits {
            max_streams_in: total,
            max_streams_per_peer: peer,
            max_streams_per_subnet: subnet,
            own_networks: vec!["192.168.0.0/24".parse().unwrap()].into(),
            ..MeshLimits::default()
        })
    }

    #[test]
    fn quotas_hold_per_peer_and_in_total_and_come_back() {
        let (alice, bob) = (NodeId([1; 32]), NodeId([2; 32]));
        let mut quotas = quotas(3, 2, 9);
        let mut admit = |node| quotas.admit(node, Origin::Inside);
        let first = admit(alice).unwrap();
        let _second = admit(alice).unwrap();
        assert_eq!(admit(alice).unwrap_err(), StreamRefusal::PerPeer);
        let third = admit(bob).unwrap();
        assert_eq!(admit(bob).unwrap_err(), StreamRefusal::Total);
        drop(first);
        let _fourth = admit(alice).unwrap();
        drop(third);
        assert!(admit(bob).is_ok());
    }

    #[test]
    fn many_identities_of_one_subnet_share_its_quota() {
        let mut quotas = quotas(10, 2, 3);
        let at = |last: u8| Origin::Direct([203, 0, 113, last].into());
        let held: Vec<_> = (0..3).map(|peer| quotas.admit(NodeId([peer; 32]), at(peer)).unwrap()).collect();
        assert_eq!(quotas.admit(NodeId([9; 32]), at(9)).unwrap_err(), StreamRefusal::PerSubnet);
        let elsewhere = Origin::Direct([198, 51, 100, 1].into());
        assert!(quotas.admit(NodeId([9; 32]), elsewhere).is_ok());
        let home = Origin::Direct([192, 168, 0, 1].into());
        let local: Vec<_> = (10..16).map(|peer| quotas.admit(NodeId([peer; 32]), home).unwrap()).collect();
        assert_eq!(local.len(), 6, "a listed network is not counted");
        drop(held);
        assert!(quotas.admit(NodeId([9; 32]), at(9)).is_ok());
    }

    #[test]
    fn peers_without_streams_are_forgotten() {
        let mut quotas = quotas(10, 2, 9);
        for number in 0..100_000u32 {
            let mut name = [0; 32];
            name[..4].copy_from_slice(&number.to_le_bytes());
            let [_, a, b, c] = number.to_be_bytes();
            let origin = Origin::Direct([100 + a, b, c, 1].into());
            drop(quotas.admit(NodeId(name), origin).unwrap());
        }
        let sizes = (quotas.peers.open.len(), quotas.subnets.open.len());
        assert!(sizes.0 <= 64 && sizes.1 <= 64, "{sizes:?}");
    }
}
