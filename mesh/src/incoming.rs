//! Inbound turns: their quotas, and the bounded queue from the swarm task to whoever serves them.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use baton_proto::ids::NodeId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::turn_stream::TurnStream;

/// The turns that others open with this mesh, in order of arrival.
///
/// Up to 64 wait here; further ones are reset and counted until some are taken. Dropping it makes the
/// mesh reset every inbound turn.
#[derive(Debug)]
pub struct Incoming {
    pub(crate) queue: mpsc::Receiver<TurnStream>,
}

impl Incoming {
    /// The next turn and the authenticated node that opened it; `None` once the mesh has shut down.
    ///
    /// Cancel safe.
    pub async fn next(&mut self) -> Option<(NodeId, TurnStream)> {
        let turn = self.queue.recv().await?;
        Some((turn.remote(), turn))
    }
}

/// Why an inbound stream was not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// All peers together have too many.
    Total,
    /// This peer has too many.
    PerPeer,
}

/// An inbound stream's share of the quotas, given back when the stream is dropped.
#[derive(Debug)]
pub(crate) struct StreamPermit {
    _total: OwnedSemaphorePermit,
    _peer: OwnedSemaphorePermit,
    /// Keeps the peer's quota alive, also over a reconnection, while any of its streams is.
    _quota: Arc<Semaphore>,
}

/// Counts inbound streams, in total and by peer. Owned by the swarm task.
#[derive(Debug)]
pub(crate) struct StreamQuotas {
    total: Arc<Semaphore>,
    per_peer_limit: usize,
    per_peer: HashMap<NodeId, Weak<Semaphore>>,
}

impl StreamQuotas {
    pub(crate) fn new(total: usize, per_peer: usize) -> Self {
        Self { total: Arc::new(Semaphore::new(total)), per_peer_limit: per_peer, per_peer: HashMap::new() }
    }

    pub(crate) fn admit(&mut self, node: NodeId) -> Result<StreamPermit, Refusal> {
        let quota = match self.per_peer.get(&node).and_then(Weak::upgrade) {
            Some(quota) => quota,
            None => {
                // Only peers with open streams keep an entry, so `total` bounds the table.
                self.per_peer.retain(|_, quota| quota.strong_count() > 0);
                let quota = Arc::new(Semaphore::new(self.per_peer_limit));
                self.per_peer.insert(node, Arc::downgrade(&quota));
                quota
            }
        };
        let peer = quota.clone().try_acquire_owned().map_err(|_| Refusal::PerPeer)?;
        let total = self.total.clone().try_acquire_owned().map_err(|_| Refusal::Total)?;
        Ok(StreamPermit { _total: total, _peer: peer, _quota: quota })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_hold_per_peer_and_in_total_and_come_back() {
        let (alice, bob) = (NodeId([1; 32]), NodeId([2; 32]));
        let mut quotas = StreamQuotas::new(3, 2);
        let first = quotas.admit(alice).unwrap();
        let _second = quotas.admit(alice).unwrap();
        assert_eq!(quotas.admit(alice).unwrap_err(), Refusal::PerPeer);
        let third = quotas.admit(bob).unwrap();
        assert_eq!(quotas.admit(bob).unwrap_err(), Refusal::Total);
        drop(first);
        let _fourth = quotas.admit(alice).unwrap();
        drop(third);
        assert!(quotas.admit(bob).is_ok());
    }

    #[test]
    fn peers_without_streams_are_forgotten() {
        let mut quotas = StreamQuotas::new(10, 2);
        for low in 0..100 {
            drop(quotas.admit(NodeId([low; 32])).unwrap());
        }
        assert_eq!(quotas.per_peer.len(), 1);
    }
}
