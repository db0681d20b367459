//! The nodes that a client knows: their verified records, their presence, their turns under way, and this
//! client's experience with them ([`crate::network::reputation`]).
//!
//! Records come from the nodes themselves, over a connection that proves their identity, and are kept until
//! shortly before they expire. [`crate::network::choose`] decides which node serves. [`maintenance`] checks the nodes'
//! presence in the background while the client is in use.

mod explain;
pub(crate) mod maintenance;
mod presence;
mod records;

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use baton_mesh::{MeshHandle, Multiaddr, PeerInfo};
use baton_proto::{
    ErrorCode, SignedObject,
    ids::{ModelId, NodeId},
    limits::MAX_CLOCK_SKEW_MS,
    node_record::NodeRecord,
    receipt::Receipt,
    store::BlobStore,
};
use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::Notify, time::Instant};

pub use explain::NodeExplanation;

use crate::{
    clock::Clock,
    clocks::{ClockDifference, NodeTime, judge},
    network::{
        choose::{Candidate, Choice, NoChoice, Wish, choose, output_cap},
        reputation::{MAX_NODES, NodeFailure, Reputation, SpeedSample, file::ReputationFile},
        retry::AnswerPrefix,
    },
    timeouts::Timeouts,
};
use presence::Presence;

/// A record is requested again when less than this is left of it.
const RENEW_BEFORE_MS: u64 = 60_000;
/// How long to wait for the stores' clocks, if nodes' times do not fit this machine's.
const ASK_CLOCKS: Duration = Duration::from_secs(3);
/// Just after a client's start, a turn that finds no node waits this long for nodes that the network reports.
const JOIN_WAIT: Duration = Duration::from_secs(4);
/// The same for a model that no named node serves, and that never served here: most often a typing error.
const UNHEARD_MODEL_WAIT: Duration = Duration::from_millis(700);

/// How long a turn waits for a first answer if no node was heard of for a while. The attempt itself then asks them.
const QUICK_LOOK: Duration = Duration::from_secs(1);

/// A node with its verified record.
#[derive(Debug, Clone)]
pub struct NodeInfo {
    /// The record.
    pub record: SignedObject<NodeRecord>,
    /// Addresses at which it was found.
    pub addrs: Vec<Multiaddr>,
    /// Whether a connection is open.
    pub connected: bool,
}

#[derive(Debug, Clone, Default)]
struct NodeEntry {
    record: Option<SignedObject<NodeRecord>>,
    /// Whether the node itself just gave that record although it is out of time.
    out_of_time: bool,
    addrs: Vec<Multiaddr>,
    presence: Presence,
    in_flight: u32,
}

/// The settings of a directory.
pub(crate) struct Setup {
    pub(crate) clock: Clock,
    /// Its dates are compared with our clock.
    pub(crate) store: Arc<dyn BlobStore>,
    pub(crate) timeouts: Timeouts,
    /// Peers that discovery waits for at first: those in the configuration, but at least one.
    pub(crate) expected: usize,
    /// Whether nodes can appear at all: without addresses and multicast, none can.
    pub(crate) may_find: bool,
    /// Whether only the bootstrap nodes may serve.
    pub(crate) only_named: bool,
    /// Whether each session dials nodes itself: a node whose addresses it may not dial is of no use.
    pub(crate) by_session: bool,
}

/// The table of nodes.
pub(crate) struct Directory {
    mesh: MeshHandle,
    setup: Setup,
    known: Mutex<HashMap<NodeId, NodeEntry>>,
    reputation: Mutex<Reputation>,
    /// File of the reputation; none for a client without a home.
    reputation_file: Option<ReputationFile>,
    started: Instant,
    /// Whether the reputation changed since it was last written.
    unsaved: AtomicBool,
    /// When a node was last wanted, in milliseconds since the Unix epoch.
    used_ms: AtomicU64,
    /// Wakes the maintenance task.
    wake: Arc<Notify>,
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
        setup: Setup,
        reputation: Reputation,
        reputation_file: Option<ReputationFile>,
    ) -> Self {
        Self {
            mesh,
            setup,
            known: Mutex::default(),
            reputation: Mutex::new(reputation),
            reputation_file,
            started: Instant::now(),
            unsaved: AtomicBool::new(false),
            used_ms: AtomicU64::new(0),
            wake: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, NodeEntry>> {
        self.known.lock()
    }

    /// Locked after the table of nodes, if both are held.
    fn reputation(&self) -> MutexGuard<'_, Reputation> {
        self.reputation.lock()
    }

    pub(crate) fn now_ms(&self) -> u64 {
        (self.setup.clock)()
    }

    pub(crate) fn mesh(&self) -> &MeshHandle {
        &self.mesh
    }

    /// Records that a node is wanted, so that the maintenance task checks nodes for a while.
    fn note_use(&self) {
        self.used_ms.store(self.now_ms(), Ordering::Relaxed);
        self.wake.notify_one();
    }

    /// The known addresses of a node that may be dialled, those that the client's own network dials first.
    pub(crate) fn addrs(&self, node: NodeId) -> Vec<Multiaddr> {
        let peer = self.mesh.peers().into_iter().find(|peer| peer.node == node);
        let mut addrs = peer.map_or_else(Vec::new, |peer| peer.addrs);
        let known = self.lock();
        if let Some(known) = known.get(&node) {
            let named = known.record.iter().flat_map(|record| &record.addresses);
            let more = known.addrs.iter().cloned().chain(named.filter_map(|text| text.parse().ok()));
            for address in more {
                if !addrs.contains(&address) {
                    addrs.push(address);
                }
            }
        }
        // A record names addresses that nobody checked.
        addrs.retain(|address| self.mesh.may_dial(address));
        addrs
    }

    /// Whether a session can dial a peer: at one of its addresses, or because none is known yet.
    fn is_dialable(&self, peer: &PeerInfo) -> bool {
        !self.setup.by_session
            || peer.addrs.is_empty()
            || peer.addrs.iter().any(|address| self.mesh.may_dial(address))
    }

    /// Those of the network's peers that may serve: nodes at addresses that are dialled, and only named ones if others
    /// are not wanted.
    pub(crate) fn serving<'a>(&'a self, peers: &'a [PeerInfo]) -> impl Iterator<Item = NodeId> + 'a {
        let named: Option<HashSet<NodeId>> = self
            .setup
            .only_named
            .then(|| self.mesh.network().bootstrap.iter().filter_map(|bootstrap| bootstrap.node).collect());
        let may_serve = |peer: &&PeerInfo| peer.serves_turns && !is_relayer(peer) && self.is_dialable(peer);
        let serving = peers.iter().filter(may_serve).map(|peer| peer.node);
        serving.filter(move |node| named.as_ref().is_none_or(|named| named.contains(node)))
    }

    /// The failure when no node is known: there may be some at addresses that this client does not dial.
    pub(crate) fn no_nodes(&self) -> NoChoice {
        let peers = self.mesh.peers();
        match peers.iter().filter(|peer| peer.serves_turns && !self.is_dialable(peer)).count() {
            0 => NoChoice::NoNodes,
            nodes => NoChoice::NotDialable { nodes },
        }
    }

    /// The addresses at which a session's own network can dial a node. If none is known, the client's network,
    /// which can search the DHT, asks the node for its record first.
    pub(crate) async fn addrs_to_dial(&self, node: NodeId) -> Vec<Multiaddr> {
        let mut known = self.addrs(node);
        if known.is_empty() && self.setup.may_find {
            // Just after the start, the network is not connected yet: it knows nothing, and can search nowhere.
            let connected = |peers: &[PeerInfo]| peers.iter().any(|peer| peer.connected);
            let _ = self.mesh.wait_for_peers(self.started + self.setup.timeouts.discovery, connected).await;
            known = self.addrs(node);
        }
        if known.is_empty() {
            self.renew(node).await;
            known = self.addrs(node);
        }
        known
    }

    /// Whether a node is known without a record.
    fn lacks_record(&self, node: NodeId) -> bool {
        self.lock().get(&node).is_some_and(|known| known.record.is_none())
    }

    /// Nodes with a current record and a recent sign of life.
    pub(crate) fn usable(&self) -> Vec<NodeInfo> {
        let now = self.now_ms();
        let known = self.lock();
        let usable = known.values().filter(|known| !known.presence.is_gone(now)).filter_map(|known| {
            let record = known.record.clone().filter(|record| record.current_key(now).is_ok())?;
            let connected = known.presence.is_connected();
            Some(NodeInfo { record, addrs: known.addrs.clone(), connected })
        });
        usable.collect()
    }

    /// All known nodes but this, those heard last first, also those that count as gone.
    pub(crate) fn others(&self, node: NodeId) -> Vec<NodeId> {
        let known = self.lock();
        let mut others: Vec<_> = known.iter().filter(|(other, _)| **other != node).collect();
        others.sort_unstable_by_key(|(other, known)| (Reverse(known.presence.heard_ms()), **other));
        others.into_iter().map(|(other, _)| *other).collect()
    }

    /// Whether a refresh of records is worthwhile before choosing.
    fn wants_refresh(&self) -> bool {
        let now = self.now_ms();
        let known = self.lock();
        let peers = self.mesh.peers();
        let unknown = self.serving(&peers).any(|node| {
            known
                .get(&node)
                .is_none_or(|known| known.presence.may_ask(now) && !is_fresh(known.record.as_ref(), now))
        });
        let has_current =
            |known: &NodeEntry| known.record.as_ref().is_some_and(|record| record.current_key(now).is_ok());
        unknown || !known.values().any(has_current)
    }

    /// Chooses a node for an attempt, after a search if worthwhile.
    pub(crate) async fn choose(self: &Arc<Self>, wish: &Wish<'_>) -> Result<(Choice, InFlight), NoChoice> {
        self.note_use();
        self.sync_peers();
        // Both searches together take no longer than one.
        let deadline = Instant::now() + self.setup.timeouts.discovery;
        if self.wants_refresh() {
            self.refresh_until(deadline).await;
        } else if self.usable().is_empty() {
            // No node was heard of for a while, as after a pause. This is no search: a node that does not
            // answer now is only asked last.
            self.ask_stale(Instant::now() + QUICK_LOOK).await;
        }
        match self.choose_now(wish) {
            // A suitable node may have appeared since; look once more before giving up.
            Err(_) => {
                self.refresh_until(deadline).await;
                // The named node may be slower than those that answered.
                if let Some(node) = wish.node.filter(|node| self.lacks_record(*node)) {
                    self.renew(node).await;
                }
                let mut chosen = self.choose_now(wish);
                // Just after the start the network is still reporting nodes.
                let until = self.started + self.join_wait(chosen.as_ref().err());
                while chosen.is_err()
                    && !self.are_out_of_time()
                    && self.mesh.peers().iter().any(|peer| peer.connected)
                    && self.wait_for_node(until).await
                {
                    self.ask_stale(until).await;
                    chosen = self.choose_now(wish);
                }
                match chosen {
                    Err(why @ (NoChoice::NoNodes | NoChoice::NodeUnknown(_) | NoChoice::NoneCurrent)) => {
                        let why = if why == NoChoice::NoNodes { self.no_nodes() } else { why };
                        Err(self.clock_difference(wish.node).await.map_or(why, NoChoice::ClocksDiffer))
                    }
                    chosen => chosen,
                }
            }
            chosen => chosen,
        }
    }

    /// How long after the start a turn waits for other nodes, when none suits it so far.
    fn join_wait(&self, why: Option<&NoChoice>) -> Duration {
        match why {
            Some(NoChoice::ModelUnavailable { wanted, .. })
                if self.usable().len() >= self.setup.expected && !self.reputation().has_model(wanted) =>
            {
                UNHEARD_MODEL_WAIT
            }
            _ => JOIN_WAIT,
        }
    }

    /// Whether there are nodes, and all of them gave records that are out of time here.
    fn are_out_of_time(&self) -> bool {
        let known = self.lock();
        !known.is_empty() && known.values().all(|known| known.out_of_time)
    }

    /// The clock difference shown by the times that nodes sign, if none of them fits, or not the named
    /// node's.
    pub(crate) async fn clock_difference(&self, node: Option<NodeId>) -> Option<ClockDifference> {
        let now = self.now_ms();
        let time_of = |(id, known): (&NodeId, &NodeEntry)| {
            let record = known.record.as_ref().filter(|_| known.out_of_time)?;
            Some(NodeTime { node: *id, out: record.out_of_time(now)? })
        };
        let of_nodes: Vec<NodeTime> = {
            let known = self.lock();
            known.iter().filter(|(id, _)| node.is_none_or(|node| node == **id)).filter_map(time_of).collect()
        };
        self.compare_clocks(&of_nodes).await
    }

    /// The clock difference shown by a node's refusal of an authorisation, if the refusal is about time.
    pub(crate) async fn refused_by_clock(&self, node: NodeId, code: ErrorCode) -> Option<ClockDifference> {
        self.compare_clocks(&[NodeTime::of_refusal(node, code)?]).await
    }

    async fn compare_clocks(&self, of_nodes: &[NodeTime]) -> Option<ClockDifference> {
        if of_nodes.is_empty() {
            return None;
        }
        // A store that does not answer is no evidence about clocks.
        let asked = tokio::time::timeout(ASK_CLOCKS, self.setup.store.times()).await;
        let of_stores = asked.ok().and_then(Result::ok).unwrap_or_default();
        judge(self.now_ms(), &of_stores, of_nodes)
    }

    /// The node that continues an answer: at once, among known nodes, with the same model. A node that failed
    /// in this turn is taken only if there is no other.
    pub(crate) fn choose_to_continue(
        self: &Arc<Self>,
        wish: &Wish<'_>,
        begun: &AnswerPrefix,
    ) -> Option<(Choice, InFlight)> {
        let model = begun.model.to_string();
        let same = Wish { model: Some(&model), ..*wish };
        let chosen = self.choose_now(&same).ok()?;
        let limit = output_cap(wish.output_tokens, chosen.0.max_output_tokens) as usize;
        if begun.partial.ids.len() > limit {
            return None;
        }
        let again = wish.tried.contains(&chosen.0.node);
        let other =
            again && self.choose_now(wish).is_ok_and(|(choice, _)| !wish.tried.contains(&choice.node));
        (!other).then_some(chosen)
    }

    /// Whether a node that has not failed in this turn could continue the chosen node's answer.
    pub(crate) fn has_substitute(self: &Arc<Self>, wish: &Wish<'_>, choice: &Choice) -> bool {
        let model = choice.offer.model.to_string();
        let tried = [wish.tried, &[choice.node]].concat();
        let other = Wish { model: Some(&model), tried: &tried, ..*wish };
        self.choose_now(&other).is_ok_and(|(other, _)| !tried.contains(&other.node))
    }

    fn choose_now(self: &Arc<Self>, wish: &Wish<'_>) -> Result<(Choice, InFlight), NoChoice> {
        let random = u64::from_le_bytes(baton_keys::secret::random_bytes());
        let mut known = self.lock();
        let choice = choose(&self.candidates(&known, wish.now_ms), wish, random)?;
        if let Some(known) = known.get_mut(&choice.node) {
            known.in_flight += 1;
        }
        drop(known);
        let in_flight = InFlight { directory: self.clone(), node: choice.node };
        Ok((choice, in_flight))
    }

    fn candidates<'a>(&self, known: &'a HashMap<NodeId, NodeEntry>, now_ms: u64) -> Vec<Candidate<'a>> {
        let reputation = self.reputation();
        let candidate = |(node, known): (&NodeId, &'a NodeEntry)| {
            Some(Candidate {
                record: known.record.as_ref()?,
                in_flight: known.in_flight,
                gone: known.presence.is_gone(now_ms),
                evidence: reputation.evidence(*node, now_ms),
            })
        };
        known.iter().filter_map(candidate).collect()
    }

    /// Records a node's failure in a turn. The node is avoided for a while that depends on the fault, and at
    /// least as long as it asked for.
    pub(crate) fn failed(&self, node: NodeId, fault: NodeFailure, at_least_ms: u64) {
        let now = self.now_ms();
        if let Some(known) = self.lock().get_mut(&node) {
            match fault {
                NodeFailure::Unreachable => known.presence.unanswered(now),
                NodeFailure::CutOff | NodeFailure::Stalled => known.presence.doubt(),
                NodeFailure::Busy
                | NodeFailure::Refused
                | NodeFailure::Lied
                | NodeFailure::Equivocated
                | NodeFailure::Contradicted => known.presence.heard(now),
                NodeFailure::Unclear => {}
            }
        }
        self.reputation().failed(node, fault, at_least_ms, now);
        self.changed();
    }

    /// Records an answer that earns no credit.
    pub(crate) fn answered(&self, node: NodeId) {
        let now = self.now_ms();
        if let Some(known) = self.lock().get_mut(&node) {
            known.presence.heard(now);
        }
    }

    /// Records a served turn with its verified receipt; `warm_tag` marks the node as likely to have the
    /// session's prompt cached.
    pub(crate) fn served(&self, receipt: &Receipt, measured: Option<SpeedSample>, warm_tag: [u8; 32]) {
        let (now, node) = (self.now_ms(), receipt.node);
        let mut offered = None;
        if let Some(known) = self.lock().get_mut(&node) {
            known.presence.heard(now);
            let mut offers = known.record.iter().flat_map(|record| &record.models);
            offered = offers.find(|offer| offer.model == receipt.model).cloned();
        }
        let mut reputation = self.reputation();
        reputation.served(node, measured, now);
        reputation.note_warm(warm_tag, now);
        if let Some(offered) = offered {
            reputation.note_model(receipt.model, &offered.name);
            // It signed both: a preferred kind of engine, and then another.
            if offered.engine != receipt.engine {
                reputation.failed(node, NodeFailure::Lied, 0, now);
            }
        }
        drop(reputation);
        self.changed();
    }

    /// The average time to a node's first text, if this client measured it.
    pub(crate) fn first_token_of(&self, node: NodeId) -> Option<Duration> {
        let speed = self.reputation().evidence(node, self.now_ms()).speed?;
        Duration::try_from_secs_f64(speed.first_token_ms / 1000.0).ok()
    }

    /// The longest of these averages among the nodes that offer a model.
    pub(crate) fn slowest_first_token(&self, model: ModelId) -> Option<Duration> {
        let offers = |known: &NodeEntry| {
            known.record.iter().flat_map(|record| &record.models).any(|offer| offer.model == model)
        };
        let nodes: Vec<NodeId> = {
            let known = self.lock();
            known.iter().filter(|(_, known)| offers(known)).map(|(node, _)| *node).collect()
        };
        nodes.into_iter().filter_map(|node| self.first_token_of(node)).max()
    }

    /// Whether the node of a tag is likely to have a session's prompt cached.
    pub(crate) fn is_warm(&self, tag: &[u8; 32]) -> bool {
        self.reputation().is_warm(tag, self.now_ms())
    }

    /// The name of a model that served a turn here.
    pub(crate) fn model_name(&self, model: ModelId) -> Option<String> {
        self.reputation().model_name(model).map(str::to_owned)
    }

    /// Schedules a write of the reputation.
    fn changed(&self) {
        self.unsaved.store(true, Ordering::Release);
        self.wake.notify_one();
    }
}

impl NodeEntry {
    /// Takes a record that the mesh has from others, if it is newer.
    fn adopt_gossip(&mut self, record: &SignedObject<NodeRecord>, now_ms: u64) {
        let old = self.record.as_ref();
        let usable = || old.is_some_and(|old| old.keys == record.keys) || records::has_usable_keys(record);
        if old.is_none_or(|old| old.sequence < record.sequence) && usable() {
            self.record = Some(record.clone());
            self.out_of_time = false;
            self.presence.note_gossip(record.issued_ms, now_ms);
        }
    }

    /// Whether to ask for its record: for a fresh one, or as a presence check.
    fn is_stale(&self, now_ms: u64) -> bool {
        !is_fresh(self.record.as_ref(), now_ms) || self.presence.is_gone(now_ms)
    }
}

/// Removes nodes that are gone, so that a full table still learns new ones. If it is still full, also removes
/// nodes that were asked and never gave a record. Returns the removed nodes.
fn make_room(known: &mut HashMap<NodeId, NodeEntry>, peers: &[PeerInfo]) -> HashSet<NodeId> {
    let before: HashSet<NodeId> = known.keys().copied().collect();
    let present: HashSet<NodeId> = peers.iter().map(|peer| peer.node).collect();
    known.retain(|node, entry| entry.in_flight > 0 || present.contains(node));
    if known.len() >= MAX_NODES {
        known.retain(|_, entry| {
            entry.in_flight > 0 || entry.record.is_some() || !entry.presence.was_asked_in_vain()
        });
    }
    before.into_iter().filter(|node| !known.contains_key(node)).collect()
}

/// Whether a peer says that it is a relayer: it takes turns to pass them on, and has no record.
fn is_relayer(peer: &PeerInfo) -> bool {
    peer.record.is_none() && peer.agent.as_ref().is_some_and(|agent| agent.ends_with(" (relayer)"))
}

fn is_fresh(record: Option<&SignedObject<NodeRecord>>, now: u64) -> bool {
    // In addition to the clock skew, which is an allowance for wrong clocks.
    let soon = now.saturating_add(RENEW_BEFORE_MS + MAX_CLOCK_SKEW_MS);
    record.is_some_and(|record| record.current_key(soon).is_ok())
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
            round_trip: None,
            record: None,
        }
    }

    #[test]
    fn a_relayer_is_no_node() {
        for (agent, expected) in
            [(None, false), (Some("baton/0.1.0 (node)"), false), (Some("baton/0.1.0 (relayer)"), true)]
        {
            let peer = PeerInfo { agent: agent.map(str::to_owned), ..peer(0) };
            assert_eq!(is_relayer(&peer), expected, "{agent:?}");
        }
    }

    #[test]
    fn a_full_table_forgets_who_is_gone_and_then_who_never_answered() {
        let mut known: HashMap<_, _> =
            (0..MAX_NODES).map(|number| (node(number), NodeEntry::default())).collect();
        known.get_mut(&node(0)).unwrap().in_flight = 1;
        let peers: Vec<_> = (2..MAX_NODES + 9).map(peer).collect();
        assert_eq!(make_room(&mut known, &peers), HashSet::from([node(1)]));
        assert_eq!(known.len(), MAX_NODES - 1, "only the one that is gone and idle");

        known.insert(node(MAX_NODES), NodeEntry::default());
        known.get_mut(&node(5)).unwrap().presence.unanswered(1);
        assert_eq!(make_room(&mut known, &peers), HashSet::from([node(5)]));
    }
}
