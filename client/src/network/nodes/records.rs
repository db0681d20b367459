//! Asks nodes for their records: the first time, before the records expire, and as a presence check.

use std::{collections::HashSet, time::Duration};

use baton_mesh::{Multiaddr, OpenError, PeerEvent, PeerInfo};
use baton_proto::{
    SignedObject,
    ids::NodeId,
    node_record::NodeRecord,
    wire::{ClientFrame, NodeFrame},
};
use futures::{StreamExt as _, stream};
use parking_lot::Mutex;
use tokio::{
    sync::broadcast::error::RecvError,
    time::{Instant, timeout_at},
};

use super::{Directory, MAX_NODES, NodeInfo, make_room};
use crate::network::exchange::{self, ExchangeError};

/// Nodes asked for their record at once.
pub(super) const PARALLEL_ASKS: usize = 8;
/// Time to wait for other records after the first.
const GATHER: Duration = Duration::from_millis(1500);

/// The outcome of asking a node for its record.
pub(super) enum RecordAnswer {
    /// It gave a valid record.
    Record(Box<SignedObject<NodeRecord>>),
    /// It gave a record that is out of time by this machine's clock.
    OutOfTime(Box<SignedObject<NodeRecord>>),
    /// It gave another answer.
    Otherwise,
    /// It did not answer.
    Nothing,
    /// It was not asked: this process is at a limit, or is ending.
    Never,
}

/// Whether something can be sealed to each key of a record. A node that offers another key is no candidate.
pub(super) fn has_usable_keys(record: &NodeRecord) -> bool {
    record
        .check_keys()
        .inspect_err(|error| tracing::warn!(node = %record.node, %error, "a node record is passed over"))
        .is_ok()
}

impl Directory {
    /// Verified nodes that answer. Searches if none is known: waits for the first until the discovery
    /// timeout.
    pub(crate) async fn refresh(&self) -> Vec<NodeInfo> {
        self.refresh_until(Instant::now() + self.setup.timeouts.discovery).await
    }

    /// As [`Directory::refresh`], until this deadline.
    pub(super) async fn refresh_until(&self, deadline: Instant) -> Vec<NodeInfo> {
        self.note_use();
        if !self.setup.may_find && self.mesh.peers().is_empty() {
            return Vec::new();
        }
        loop {
            let expected = self.setup.expected;
            let some_expected =
                |peers: &[PeerInfo]| peers.iter().filter(|peer| peer.serves_turns).count() >= expected;
            // All the nodes named in the configuration, or after a moment those that are there.
            let soon = deadline.min(Instant::now() + GATHER);
            if self.mesh.wait_for_peers(soon, some_expected).await.is_none() {
                let any = |peers: &[PeerInfo]| peers.iter().any(|peer| peer.serves_turns);
                let _ = self.mesh.wait_for_peers(deadline, any).await;
            }
            self.ask_stale(deadline).await;
            let found = self.usable();
            // A peer without a record yet may still give one; without any record, look again until the
            // deadline.
            if !found.is_empty() || Instant::now() >= deadline {
                return found;
            }
            // Waiting does not cure records that are out of time.
            if self.are_out_of_time() && some_expected(&self.mesh.peers()) {
                return found;
            }
            if !self.wait_for_change(deadline).await {
                return self.usable();
            }
        }
    }

    /// Waits until the mesh reports a node; false at the deadline.
    pub(super) async fn wait_for_node(&self, deadline: Instant) -> bool {
        let mut events = self.mesh.peer_events();
        let heard = async {
            loop {
                match events.recv().await {
                    Ok(PeerEvent::Recorded(_)) | Err(RecvError::Lagged(_)) => return true,
                    Ok(_) => {}
                    Err(RecvError::Closed) => return false,
                }
            }
        };
        timeout_at(deadline, heard).await.unwrap_or(false)
    }

    /// Waits for any event among the peers; false at the deadline.
    async fn wait_for_change(&self, deadline: Instant) -> bool {
        let mut events = self.mesh.peer_events();
        let retry = deadline.min(Instant::now() + GATHER);
        // Looks again at a quiet network too: a node may refuse its record at first.
        let _ = timeout_at(retry, events.recv()).await;
        Instant::now() < deadline
    }

    pub(super) fn sync_peers(&self) {
        let now = self.now_ms();
        let mut known = self.lock();
        let peers = self.mesh.peers();
        let connected: HashSet<NodeId> =
            peers.iter().filter(|peer| peer.connected).map(|peer| peer.node).collect();
        for (node, entry) in known.iter_mut() {
            entry.presence.set_connected(connected.contains(node), now);
        }
        let serving: HashSet<NodeId> = self.serving(&peers).collect();
        let is_new = |peer: &PeerInfo| serving.contains(&peer.node) && !known.contains_key(&peer.node);
        let mut forgotten = HashSet::new();
        if known.len() >= MAX_NODES && peers.iter().any(is_new) {
            forgotten = make_room(&mut known, &peers);
        }
        for peer in peers {
            let fits = known.contains_key(&peer.node) || known.len() < MAX_NODES;
            // A node removed just now would only take the place of a new one.
            if !serving.contains(&peer.node) || !fits || forgotten.contains(&peer.node) {
                continue;
            }
            let entry = known.entry(peer.node).or_default();
            entry.addrs = peer.addrs;
            entry.presence.set_connected(peer.connected, now);
            if let Some(record) = peer.record {
                entry.adopt_gossip(&record, now);
            }
        }
    }

    /// Asks every known node without a fresh record or sign of life, until all answered, a moment after the
    /// first answer, or the deadline.
    pub(super) async fn ask_stale(&self, deadline: Instant) {
        self.sync_peers();
        let now = self.now_ms();
        let stale: Vec<NodeId> = self
            .lock()
            .iter()
            .filter(|(_, known)| known.presence.may_ask(now) && known.is_stale(now))
            .map(|(node, _)| *node)
            .collect();
        let mut have_some = !self.usable().is_empty();
        // Nodes with an open request.
        let asked = Mutex::new(HashSet::new());
        let mut asks = stream::iter(stale)
            .map(|node| {
                asked.lock().insert(node);
                let addrs = self.addrs(node);
                async move { (node, self.fetch_record(node, &addrs, self.setup.timeouts.open).await) }
            })
            .buffer_unordered(PARALLEL_ASKS);
        let wait = if have_some { GATHER } else { self.setup.timeouts.open };
        let mut until = deadline.min(Instant::now() + wait);
        while let Ok(Some((node, answer))) = timeout_at(until, asks.next()).await {
            asked.lock().remove(&node);
            self.record_answer(node, answer);
            if !have_some && !self.usable().is_empty() {
                have_some = true;
                until = until.min(Instant::now() + GATHER);
            }
        }
        drop(asks);
        // A silent node is asked again later, so that not every turn waits for it.
        for node in asked.lock().drain() {
            self.record_answer(node, RecordAnswer::Nothing);
        }
    }

    async fn fetch_record(&self, node: NodeId, addrs: &[Multiaddr], wait: Duration) -> RecordAnswer {
        let answer = exchange::ask(&self.mesh, node, addrs, &ClientFrame::NodeRecord, wait).await;
        let bytes = match answer {
            Ok(NodeFrame::NodeRecord(bytes)) => bytes,
            Ok(_) | Err(ExchangeError::Refused { .. } | ExchangeError::Broken(_)) => {
                return RecordAnswer::Otherwise;
            }
            Err(ExchangeError::Open(OpenError::Busy | OpenError::Closed)) => return RecordAnswer::Never,
            Err(_) => return RecordAnswer::Nothing,
        };
        let Ok(record) = SignedObject::<NodeRecord>::verify(bytes) else { return RecordAnswer::Otherwise };
        // A record is about its signer, which must be the asked peer.
        if record.node != node || !has_usable_keys(&record) {
            return RecordAnswer::Otherwise;
        }
        let now = self.now_ms();
        if record.current_key(now).is_ok() {
            RecordAnswer::Record(Box::new(record))
        } else if record.out_of_time(now).is_some() {
            RecordAnswer::OutOfTime(Box::new(record))
        } else {
            RecordAnswer::Otherwise
        }
    }

    fn record_answer(&self, node: NodeId, answer: RecordAnswer) {
        let now = self.now_ms();
        let mut known = self.lock();
        let entry = known.entry(node).or_default();
        match answer {
            RecordAnswer::Record(record) => {
                entry.presence.heard(now);
                // A record older than the known one is a replay and changes nothing, unless the known one is
                // of a wrong clock.
                if entry.out_of_time
                    || entry.record.as_ref().is_none_or(|old| old.sequence <= record.sequence)
                {
                    entry.record = Some(*record);
                }
                entry.out_of_time = false;
            }
            RecordAnswer::OutOfTime(record) => {
                entry.presence.answered_otherwise(now);
                // A known current record is better than one out of time.
                if entry.record.as_ref().is_none_or(|old| old.current_key(now).is_err()) {
                    entry.record = Some(*record);
                    entry.out_of_time = true;
                }
            }
            RecordAnswer::Otherwise => entry.presence.answered_otherwise(now),
            RecordAnswer::Nothing => entry.presence.unanswered(now),
            RecordAnswer::Never => entry.presence.not_asked(),
        }
    }

    /// Asks a node for its record now, whatever is known, because it called ours outdated.
    pub(crate) async fn renew(&self, node: NodeId) {
        self.answers(node, self.setup.timeouts.open).await;
    }

    /// Asks a node for its record; whether it gave any answer, or this process could not ask it.
    pub(crate) async fn answers(&self, node: NodeId, wait: Duration) -> bool {
        let addrs = self.addrs(node);
        let asked = timeout_at(Instant::now() + wait, self.fetch_record(node, &addrs, wait)).await;
        let answer = asked.unwrap_or(RecordAnswer::Nothing);
        let is_silent = matches!(answer, RecordAnswer::Nothing);
        self.record_answer(node, answer);
        !is_silent
    }
}
