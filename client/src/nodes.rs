//! The nodes that a client knows: their verified records, what failed lately, and how many turns are under way.
//!
//! Records come from the nodes themselves, over a connection that proves their identity, and are kept until shortly
//! before they expire. Which node serves is [`crate::choose`]'s decision.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use baton_mesh::{MeshHandle, Multiaddr, PeerInfo};
use baton_proto::{
    Signed,
    ids::NodeId,
    node_record::NodeRecord,
    wire::{ClientFrame, NodeFrame},
};
use futures::{StreamExt as _, stream};
use tokio::time::{Instant, timeout_at};

use crate::{
    choose::{Candidate, Choice, NoChoice, Wish, choose, output_cap},
    config::{Clock, Timeouts},
    exchange,
    retry::Begun,
};

/// Nodes asked for their record at once.
const PARALLEL_ASKS: usize = 8;
/// Nodes kept and asked: far more than one turn needs, and a bound on what strangers can make a client hold.
const MAX_NODES: usize = 256;
/// A record is asked for again when less than this is left of it.
const RENEW_BEFORE_MS: u64 = 60_000;
/// After the first record arrived, others are waited for only so long.
const GATHER: Duration = Duration::from_millis(1500);
/// First pause of a node that failed; doubled by each further failure.
const AVOID_MS: u64 = 5_000;
/// Longest pause of a node that failed.
const MAX_AVOID_MS: u64 = 120_000;

/// A node with its verified record.
#[derive(Debug, Clone)]
pub struct NodeInfo {
    /// The record.
    pub record: Signed<NodeRecord>,
    /// Addresses at which it was found.
    pub addrs: Vec<Multiaddr>,
    /// Whether a connection is open.
    pub connected: bool,
}

#[derive(Debug, Clone, Default)]
struct Known {
    record: Option<Signed<NodeRecord>>,
    addrs: Vec<Multiaddr>,
    connected: bool,
    failures: u32,
    avoid_until_ms: u64,
    in_flight: u32,
}

/// The table of nodes.
pub(crate) struct Directory {
    mesh: MeshHandle,
    clock: Clock,
    timeouts: Timeouts,
    /// Peers that discovery waits for, at first: those named in the configuration.
    expected: usize,
    /// Whether nodes can appear at all: without addresses and multicast there is nobody to wait for.
    may_find: bool,
    known: Mutex<HashMap<NodeId, Known>>,
}

/// Counts a turn under way at a node while it lives.
pub(crate) struct InFlight {
    directory: Arc<Directory>,
    node: NodeId,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(known) = self.directory.lock().get_mut(&self.node) {
            known.in_flight = known.in_flight.saturating_sub(1);
        }
    }
}

impl Directory {
    pub(crate) fn new(
        mesh: MeshHandle,
        clock: Clock,
        timeouts: Timeouts,
        expected: usize,
        may_find: bool,
    ) -> Self {
        let known = Mutex::new(HashMap::new());
        Self { mesh, clock, timeouts, expected: expected.max(1), may_find, known }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Known>> {
        lock(&self.known)
    }

    pub(crate) fn mesh(&self) -> &MeshHandle {
        &self.mesh
    }

    /// Where a node was found.
    pub(crate) fn addrs(&self, node: NodeId) -> Vec<Multiaddr> {
        let known = self.lock();
        let Some(known) = known.get(&node) else { return Vec::new() };
        let named =
            known.record.iter().flat_map(|record| &record.addresses).filter_map(|text| text.parse().ok());
        known.addrs.iter().cloned().chain(named).collect()
    }

    /// Verified nodes, found anew where none is known: waits for the first until the discovery timeout.
    pub(crate) async fn refresh(&self) -> Vec<NodeInfo> {
        if !self.may_find && self.mesh.peers().is_empty() {
            return Vec::new();
        }
        let deadline = Instant::now() + self.timeouts.discovery;
        loop {
            let expected = self.expected;
            let some_expected =
                |peers: &[PeerInfo]| peers.iter().filter(|peer| peer.serves_turns).count() >= expected;
            // All the nodes named in the configuration, or after a moment those that are there.
            let soon = deadline.min(Instant::now() + GATHER);
            if self.mesh.wait_for_peers(soon, some_expected).await.is_none() {
                let any = |peers: &[PeerInfo]| peers.iter().any(|peer| peer.serves_turns);
                let _ = self.mesh.wait_for_peers(deadline, any).await;
            }
            self.take_peers();
            self.ask_stale().await;
            let found = self.current();
            // A peer whose record could not be had yet may still come; without any, look again until the deadline.
            if !found.is_empty() || Instant::now() >= deadline {
                return found;
            }
            if !self.wait_for_change(deadline).await {
                return self.current();
            }
        }
    }

    /// Waits for any event among the peers; false at the deadline.
    async fn wait_for_change(&self, deadline: Instant) -> bool {
        let mut events = self.mesh.peer_events();
        let retry = deadline.min(Instant::now() + GATHER);
        // A quiet network is looked at again too: a node may refuse its record at first.
        let _ = timeout_at(retry, events.recv()).await;
        Instant::now() < deadline
    }

    fn take_peers(&self) {
        let mut known = self.lock();
        for entry in known.values_mut() {
            entry.connected = false;
        }
        let peers = self.mesh.peers();
        let is_new = |peer: &PeerInfo| peer.serves_turns && !known.contains_key(&peer.node);
        let mut forgotten = HashSet::new();
        if known.len() >= MAX_NODES && peers.iter().any(is_new) {
            forgotten = make_room(&mut known, &peers);
        }
        for peer in peers {
            let fits = known.contains_key(&peer.node) || known.len() < MAX_NODES;
            // Who was forgotten just now would only take the place of a new one.
            if !peer.serves_turns || !fits || forgotten.contains(&peer.node) {
                continue;
            }
            let entry = known.entry(peer.node).or_default();
            entry.addrs = peer.addrs;
            entry.connected = peer.connected;
        }
    }

    /// Asks every known node without a fresh record, until all answered or a moment after the first did.
    async fn ask_stale(&self) {
        let now = (self.clock)();
        let stale: Vec<(NodeId, Vec<Multiaddr>)> = self
            .lock()
            .iter()
            .filter(|(_, known)| known.avoid_until_ms <= now && !is_fresh(known.record.as_ref(), now))
            .map(|(node, known)| (*node, known.addrs.clone()))
            .collect();
        let mut have_some = !self.current().is_empty();
        // Nodes that were asked and have not answered.
        let asked = Mutex::new(HashSet::new());
        let mut asks = stream::iter(stale)
            .map(|(node, addrs)| {
                lock(&asked).insert(node);
                async move { (node, self.fetch_record(node, &addrs).await) }
            })
            .buffer_unordered(PARALLEL_ASKS);
        let mut until = Instant::now() + if have_some { GATHER } else { self.timeouts.open };
        while let Ok(Some((node, record))) = timeout_at(until, asks.next()).await {
            lock(&asked).remove(&node);
            match record {
                Some(record) => self.set_record(node, record),
                None => self.failed(node, 0),
            }
            if !have_some && !self.current().is_empty() {
                have_some = true;
                until = until.min(Instant::now() + GATHER);
            }
        }
        drop(asks);
        // Who stays silent is asked again later, or every turn would wait for it.
        for node in lock(&asked).drain() {
            self.failed(node, 0);
        }
    }

    async fn fetch_record(&self, node: NodeId, addrs: &[Multiaddr]) -> Option<Signed<NodeRecord>> {
        let answer =
            exchange::ask(&self.mesh, node, addrs, &ClientFrame::NodeRecord, self.timeouts.open).await;
        let NodeFrame::NodeRecord(bytes) = answer.ok()? else { return None };
        let record = Signed::<NodeRecord>::verify(bytes).ok()?;
        // A record is about its signer; it must be the peer that was asked.
        (record.node == node && record.current_key((self.clock)()).is_ok()).then_some(record)
    }

    fn set_record(&self, node: NodeId, record: Signed<NodeRecord>) {
        let mut known = self.lock();
        let entry = known.entry(node).or_default();
        // An older record than the one known is a replay and changes nothing.
        if entry.record.as_ref().is_none_or(|old| old.sequence <= record.sequence) {
            entry.record = Some(record);
        }
    }

    /// Asks a node for its record now, whatever is known, because it said that ours is out of date.
    pub(crate) async fn renew(&self, node: NodeId) {
        let addrs = self.addrs(node);
        if let Some(record) = self.fetch_record(node, &addrs).await {
            self.set_record(node, record);
        }
    }

    /// Whether a node is known but its record is not.
    fn lacks_record(&self, node: NodeId) -> bool {
        self.lock().get(&node).is_some_and(|known| known.record.is_none())
    }

    /// Nodes with a record that holds now.
    pub(crate) fn current(&self) -> Vec<NodeInfo> {
        let now = (self.clock)();
        let known = self.lock();
        let usable = known.values().filter_map(|known| {
            let record = known.record.clone().filter(|record| record.current_key(now).is_ok())?;
            Some(NodeInfo { record, addrs: known.addrs.clone(), connected: known.connected })
        });
        usable.collect()
    }

    /// Whether somebody's record is worth asking for before choosing.
    fn wants_refresh(&self) -> bool {
        let now = (self.clock)();
        let unknown = self.mesh.peers().into_iter().filter(|peer| peer.serves_turns).any(|peer| {
            let known = self.lock();
            known
                .get(&peer.node)
                .is_none_or(|known| known.avoid_until_ms <= now && !is_fresh(known.record.as_ref(), now))
        });
        unknown || self.current().is_empty()
    }

    /// Chooses a node for an attempt, after looking for nodes where that is worth it.
    pub(crate) async fn choose(self: &Arc<Self>, wish: &Wish<'_>) -> Result<(Choice, InFlight), NoChoice> {
        if self.wants_refresh() {
            self.refresh().await;
        }
        match self.choose_now(wish) {
            // What is wanted may have appeared since; look once more before giving up.
            Err(_) => {
                self.refresh().await;
                // The one node that was named may be slower than those that answered.
                if let Some(node) = wish.node.filter(|node| self.lacks_record(*node)) {
                    self.renew(node).await;
                }
                self.choose_now(wish)
            }
            chosen => chosen,
        }
    }

    /// The node that continues an answer: at once, among those that are known, with the same model, and not one that failed
    /// in this turn while there is another that did not.
    pub(crate) fn choose_to_continue(
        self: &Arc<Self>,
        wish: &Wish<'_>,
        begun: &Begun,
    ) -> Option<(Choice, InFlight)> {
        let model = begun.model.to_string();
        let same = Wish { model: Some(&model), ..*wish };
        let chosen = self.choose_now(&same).ok()?;
        let limit = output_cap(wish.output_tokens, chosen.0.max_output_tokens) as usize;
        if begun.shown.ids.len() > limit {
            return None;
        }
        let again = wish.tried.contains(&chosen.0.node);
        let other =
            again && self.choose_now(wish).is_ok_and(|(choice, _)| !wish.tried.contains(&choice.node));
        (!other).then_some(chosen)
    }

    /// Whether a node that has not failed in this turn could continue what the chosen one begins.
    pub(crate) fn has_substitute(self: &Arc<Self>, wish: &Wish<'_>, choice: &Choice) -> bool {
        let model = choice.offer.model.to_string();
        let tried = [wish.tried, &[choice.node]].concat();
        let other = Wish { model: Some(&model), tried: &tried, ..*wish };
        self.choose_now(&other).is_ok_and(|(other, _)| !tried.contains(&other.node))
    }

    fn choose_now(self: &Arc<Self>, wish: &Wish<'_>) -> Result<(Choice, InFlight), NoChoice> {
        let mut known = self.lock();
        let candidates: Vec<Candidate<'_>> = known
            .values()
            .filter_map(|known| {
                let record = known.record.as_ref()?;
                Some(Candidate { record, avoid_until_ms: known.avoid_until_ms, in_flight: known.in_flight })
            })
            .collect();
        let random = u64::from_le_bytes(baton_keys::secret::random_bytes());
        let choice = choose(&candidates, wish, random)?;
        if let Some(known) = known.get_mut(&choice.node) {
            known.in_flight += 1;
        }
        drop(known);
        let in_flight = InFlight { directory: self.clone(), node: choice.node };
        Ok((choice, in_flight))
    }

    /// A node failed: it is avoided for a while, longer each time, and at least as long as it asked for.
    pub(crate) fn failed(&self, node: NodeId, at_least_ms: u64) {
        let now = (self.clock)();
        if let Some(known) = self.lock().get_mut(&node) {
            let pause = (AVOID_MS << known.failures.min(5)).max(at_least_ms).min(MAX_AVOID_MS);
            known.failures = known.failures.saturating_add(1);
            known.avoid_until_ms = now.saturating_add(pause);
        }
    }

    /// A node served a turn.
    pub(crate) fn served(&self, node: NodeId) {
        if let Some(known) = self.lock().get_mut(&node) {
            known.failures = 0;
            known.avoid_until_ms = 0;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Entries are changed in single steps, so a panic elsewhere leaves a table usable.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forgets nodes that are gone, so that a full table still learns new ones; where all are there, those that never gave
/// a record. Returns whom it forgot.
fn make_room(known: &mut HashMap<NodeId, Known>, peers: &[PeerInfo]) -> HashSet<NodeId> {
    let before: HashSet<NodeId> = known.keys().copied().collect();
    let present: HashSet<NodeId> = peers.iter().map(|peer| peer.node).collect();
    known.retain(|node, entry| entry.in_flight > 0 || present.contains(node));
    if known.len() >= MAX_NODES {
        known.retain(|_, entry| entry.in_flight > 0 || entry.record.is_some() || entry.failures == 0);
    }
    before.into_iter().filter(|node| !known.contains_key(node)).collect()
}

fn is_fresh(record: Option<&Signed<NodeRecord>>, now: u64) -> bool {
    record.is_some_and(|record| record.current_key(now.saturating_add(RENEW_BEFORE_MS)).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: usize) -> NodeId {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
        NodeId(bytes)
    }

    fn peer(number: usize) -> PeerInfo {
        PeerInfo {
            node: node(number),
            addrs: Vec::new(),
            connected: true,
            serves_turns: true,
            agent: None,
            relayed: false,
            record: None,
        }
    }

    #[test]
    fn a_full_table_forgets_who_is_gone_and_then_who_never_answered() {
        let mut known: HashMap<_, _> =
            (0..MAX_NODES).map(|number| (node(number), Known::default())).collect();
        known.get_mut(&node(0)).unwrap().in_flight = 1;
        let peers: Vec<_> = (2..MAX_NODES + 9).map(peer).collect();
        assert_eq!(make_room(&mut known, &peers), HashSet::from([node(1)]));
        assert_eq!(known.len(), MAX_NODES - 1, "only the one that is gone and idle");

        known.insert(node(MAX_NODES), Known::default());
        known.get_mut(&node(5)).unwrap().failures = 1;
        assert_eq!(make_room(&mut known, &peers), HashSet::from([node(5)]));
    }
}
