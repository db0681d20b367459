//! The bounded table of known peers, and the checks on their claims.
//!
//! The swarm task writes it; [`crate::MeshHandle::peers`] reads it. Every entry is a hint: each connection
//! proves the peer's identity anew, so a false address costs one failed dial.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use baton_proto::{SignedObject, ids::NodeId, node_record::NodeRecord};
use libp2p::{Multiaddr, StreamProtocol};
use tokio::time::Instant;

use crate::{
    address_scope::{Reach, reach_of_address},
    limits::{
        LONG_KNOWN, MAX_ADDR_BYTES, MAX_ADDRS_PER_PEER, MAX_AGENT_BYTES, MAX_DEPARTED, MAX_PROTOCOL_BYTES,
        MAX_PROTOCOLS, PEER_SILENCE,
    },
};

/// A known peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its identity.
    pub node: NodeId,
    /// Addresses without `/p2p/`, the last learned first; 16 at most.
    pub addrs: Vec<Multiaddr>,
    /// Its agent string, once it has sent one: at most 128 bytes of printable text, unverified.
    pub agent: Option<String>,
    /// Whether it claims to serve turns in a version that this mesh speaks.
    pub serves_turns: bool,
    /// Whether a connection is open now.
    pub connected: bool,
    /// Whether all open connections go through a relay.
    pub relayed: bool,
    /// The time of its last ping reply, on any connection.
    pub round_trip: Option<Duration>,
    /// Its latest signed record that arrived by gossip or through the DHT.
    pub record: Option<Arc<SignedObject<NodeRecord>>>,
}

/// A change in the table of peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerEvent {
    /// A new peer was discovered.
    Discovered(NodeId),
    /// The first connection with it is open.
    Connected(NodeId),
    /// It sent its identity and protocols.
    Identified(NodeId),
    /// The last connection with it ended.
    Disconnected(NodeId),
    /// Its first record arrived, or one with other keys, models or addresses than the last.
    Recorded(NodeId),
    /// It left the table: it is gone, was silent for 30 s, or was evicted.
    Expired(NodeId),
}

#[derive(Debug)]
struct PeerEntry {
    info: PeerInfo,
    /// Value of the table's clock when the peer was last heard of.
    touched: u64,
    /// When the peer last gave a sign of life.
    sign: Instant,
    /// When it entered the table.
    since: Instant,
    /// Whether it was connected since then.
    met: bool,
    /// Addresses announced by multicast and not yet withdrawn. While there are any, the peer does not expire.
    present: usize,
}

impl PeerEntry {
    /// Eviction rank; the lowest is evicted first.
    ///
    /// New identities and new node records cost an attacker nothing, but a connection does. Recency decides
    /// only among equal ranks.
    fn rank(&self, now: Instant) -> (u8, u64) {
        let long = now.saturating_duration_since(self.since) >= LONG_KNOWN;
        let rank = match self.info.serves_turns {
            false => 0,
            true if self.met => 3,
            true if long => 2,
            true => 1,
        };
        (rank, self.touched)
    }
}

/// The table. Its clock counts changes, so that the order of eviction needs no wall clock.
#[derive(Debug)]
pub(crate) struct PeerTable {
    limit: usize,
    clock: u64,
    peers: HashMap<NodeId, PeerEntry>,
    /// Last record sequences of departed peers, the oldest departure first.
    departed: VecDeque<(NodeId, u64)>,
}

impl PeerTable {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, clock: 0, peers: HashMap::new(), departed: VecDeque::new() }
    }

    /// The known peers, in no particular order.
    pub(crate) fn list(&self) -> Vec<PeerInfo> {
        self.peers.values().map(|entry| entry.info.clone()).collect()
    }

    /// Whether a peer is known to serve turns.
    pub(crate) fn serves(&self, node: &NodeId) -> bool {
        self.peers.get(node).is_some_and(|entry| entry.info.serves_turns)
    }

    /// Whether a peer's record is known.
    pub(crate) fn has_record(&self, node: &NodeId) -> bool {
        self.peers.get(node).is_some_and(|entry| entry.info.record.is_some())
    }

    pub(crate) fn addrs(&self, node: NodeId) -> Vec<Multiaddr> {
        self.peers.get(&node).map(|entry| entry.info.addrs.clone()).unwrap_or_default()
    }

    /// Adds an address of a peer, and the peer if it is new and fits.
    pub(crate) fn learn(&mut self, node: NodeId, address: Multiaddr) -> Vec<PeerEvent> {
        let events = self.touch(node);
        if let Some(entry) = self.peers.get_mut(&node)
            && address.len() <= MAX_ADDR_BYTES
        {
            let addrs = &mut entry.info.addrs;
            addrs.retain(|known| *known != address);
            addrs.insert(0, address);
            addrs.truncate(MAX_ADDRS_PER_PEER);
        }
        events
    }

    /// Multicast announced a peer at an address.
    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn appeared(&mut self, node: NodeId, address: Multiaddr) -> Vec<PeerEvent> {
        let events = self.learn(node, address);
        if let Some(entry) = self.peers.get_mut(&node) {
            entry.present = entry.present.saturating_add(1);
        }
        events
    }

    /// Multicast withdrew a peer's address.
    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn disappeared(&mut self, node: NodeId, address: &Multiaddr) -> Vec<PeerEvent> {
        if let Some(entry) = self.peers.get_mut(&node) {
            entry.present = entry.present.saturating_sub(1);
        }
        self.forget_address(node, address)
    }

    /// Stores a verified record from gossip or the DHT, with its addresses up to the scope `nearest`. Returns
    /// the changes, or `None` unless it is newer than the known one.
    pub(crate) fn recorded(
        &mut self,
        record: Arc<SignedObject<NodeRecord>>,
        nearest: Reach,
    ) -> Option<Vec<PeerEvent>> {
        let node = record.node;
        let known = self.peers.get(&node).and_then(|entry| entry.info.record.as_ref());
        let least = known.map(|known| known.sequence);
        let least =
            least.or_else(|| self.departed.iter().find(|(peer, _)| *peer == node).map(|(_, last)| *last));
        if least.is_some_and(|least| record.sequence <= least) {
            return None;
        }
        let same_content = |old: &NodeRecord| {
            old.keys == record.keys && old.models == record.models && old.addresses == record.addresses
        };
        let same = known.is_some_and(|known| same_content(known));
        let addrs: Vec<Multiaddr> = record
            .addresses
            .iter()
            .filter_map(|text| text.parse().ok())
            .filter(|address| reach_of_address(address).is_some_and(|reach| reach <= nearest))
            .collect();
        let mut events = self.touch(node);
        for address in addrs.into_iter().rev() {
            // The announced addresses come first, but do not evict those of open connections.
            events.extend(self.learn(node, address));
        }
        let entry = self.peers.get_mut(&node)?;
        entry.info.serves_turns = true;
        entry.info.record = Some(record);
        self.departed.retain(|(peer, _)| *peer != node);
        if !same {
            events.push(PeerEvent::Recorded(node));
        }
        Some(events)
    }

    /// Several dials of a peer failed: it has departed.
    pub(crate) fn departed(&mut self, node: NodeId) -> Vec<PeerEvent> {
        if self.peers.get(&node).is_none_or(|entry| entry.info.connected) {
            return Vec::new();
        }
        self.remove(node);
        vec![PeerEvent::Expired(node)]
    }

    /// Drops disconnected peers that were silent for too long.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<PeerEvent> {
        let silent = |entry: &&PeerEntry| {
            !entry.info.connected
                && entry.present == 0
                && now.saturating_duration_since(entry.sign) > PEER_SILENCE
        };
        let nodes: Vec<_> = self.peers.values().filter(silent).map(|entry| entry.info.node).collect();
        nodes.iter().for_each(|node| self.remove(*node));
        nodes.into_iter().map(PeerEvent::Expired).collect()
    }

    fn remove(&mut self, node: NodeId) {
        let removed = self.peers.remove(&node);
        if let Some(record) = removed.and_then(|entry| entry.info.record) {
            if self.departed.len() >= MAX_DEPARTED {
                self.departed.pop_front();
            }
            self.departed.push_back((node, record.sequence));
        }
    }

    /// Drops an address, and the peer if it has no other address and no connection.
    pub(crate) fn forget_address(&mut self, node: NodeId, address: &Multiaddr) -> Vec<PeerEvent> {
        let Some(entry) = self.peers.get_mut(&node) else { return Vec::new() };
        entry.info.addrs.retain(|known| known != address);
        if entry.info.addrs.is_empty() && !entry.info.connected {
            self.remove(node);
            return vec![PeerEvent::Expired(node)];
        }
        Vec::new()
    }

    /// A connection is open; `relayed` tells whether all connections of the peer go through a relay.
    pub(crate) fn connected(&mut self, node: NodeId, relayed: bool) -> Vec<PeerEvent> {
        let mut events = self.touch(node);
        if let Some(entry) = self.peers.get_mut(&node) {
            entry.info.relayed = relayed;
            entry.met = true;
            if !std::mem::replace(&mut entry.info.connected, true) {
                events.push(PeerEvent::Connected(node));
            }
        }
        events
    }

    pub(crate) fn disconnected(&mut self, node: NodeId) -> Vec<PeerEvent> {
        let Some(entry) = self.peers.get_mut(&node) else { return Vec::new() };
        entry.info.connected = false;
        entry.info.relayed = false;
        entry.sign = Instant::now();
        vec![PeerEvent::Disconnected(node)]
    }

    /// Stores the round-trip time of a peer's ping. This raises no event.
    pub(crate) fn answered(&mut self, node: NodeId, took: Duration) -> Vec<PeerEvent> {
        if let Some(entry) = self.peers.get_mut(&node) {
            entry.info.round_trip = Some(took);
        }
        Vec::new()
    }

    /// Stores a connected peer's claims about itself, [filtered](Claims::plausible).
    pub(crate) fn identified(&mut self, node: NodeId, claims: Claims) -> Vec<PeerEvent> {
        let mut events = Vec::new();
        for address in claims.addrs.into_iter().rev() {
            events.extend(self.learn(node, address));
        }
        if let Some(entry) = self.peers.get_mut(&node) {
            entry.info.agent = claims.agent;
            entry.info.serves_turns = claims.serves_turns || entry.info.record.is_some();
            events.push(PeerEvent::Identified(node));
        }
        events
    }

    /// Ensures that a peer has an entry. When the table is full, this evicts the disconnected peer of
    /// [lowest rank](PeerEntry::rank). If all are connected, the new peer gets no entry.
    fn touch(&mut self, node: NodeId) -> Vec<PeerEvent> {
        self.clock += 1;
        let now = Instant::now();
        if let Some(entry) = self.peers.get_mut(&node) {
            entry.touched = self.clock;
            entry.sign = now;
            return Vec::new();
        }
        let mut events = Vec::new();
        if self.peers.len() >= self.limit {
            let idle = self.peers.values().filter(|entry| !entry.info.connected);
            let Some(least) = idle.min_by_key(|entry| entry.rank(now)).map(|entry| entry.info.node) else {
                return events;
            };
            self.remove(least);
            events.push(PeerEvent::Expired(least));
        }
        let info = PeerInfo {
            node,
            addrs: Vec::new(),
            agent: None,
            serves_turns: false,
            connected: false,
            relayed: false,
            round_trip: None,
            record: None,
        };
        let entry = PeerEntry { info, touched: self.clock, sign: now, since: now, met: false, present: 0 };
        self.peers.insert(node, entry);
        events.push(PeerEvent::Discovered(node));
        events
    }
}

/// A peer's plausible claims about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claims {
    pub(crate) agent: Option<String>,
    pub(crate) serves_turns: bool,
    pub(crate) addrs: Vec<Multiaddr>,
}

impl Claims {
    /// Filters an identify message. `seen_at` is the address of the peer's connection.
    pub(crate) fn plausible(
        agent: String,
        protocols: &[StreamProtocol],
        addrs: Vec<Multiaddr>,
        spoken: &[StreamProtocol],
        seen_at: Option<&Multiaddr>,
    ) -> Self {
        let printable = |text: &str| !text.is_empty() && !text.chars().any(char::is_control);
        let agent = (agent.len() <= MAX_AGENT_BYTES && printable(&agent)).then_some(agent);
        let sane = protocols.len() <= MAX_PROTOCOLS
            && protocols.iter().all(|name| name.as_ref().len() <= MAX_PROTOCOL_BYTES);
        let serves_turns = sane && protocols.iter().any(|name| spoken.contains(name));
        let reach = seen_at.and_then(reach_of_address).unwrap_or(Reach::Public);
        let mut addrs: Vec<_> = addrs
            .into_iter()
            .filter(|address| address.len() <= MAX_ADDR_BYTES)
            .map(|address| crate::transport::split_identity(address).0)
            .filter(|address| reach_of_address(address).is_some_and(|claimed| claimed <= reach))
            .collect();
        addrs.truncate(MAX_ADDRS_PER_PEER);
        Self { agent, serves_turns, addrs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TURN_PROTOCOL;

    fn node(low: u8) -> NodeId {
        NodeId([low; 32])
    }

    fn addr(text: &str) -> Multiaddr {
        text.parse().unwrap()
    }

    #[test]
    fn evicts_the_longest_unseen_peer_without_connection() {
        let mut table = PeerTable::new(3);
        for low in 1..=3 {
            assert_eq!(table.connected(node(low), false).last(), Some(&PeerEvent::Connected(node(low))));
        }
        assert_eq!(table.learn(node(4), addr("/ip4/1.2.3.4/tcp/1")), vec![], "no room beside connected ones");
        table.disconnected(node(2));
        table.disconnected(node(1));
        table.learn(node(1), addr("/ip4/1.2.3.4/tcp/1"));
        assert_eq!(
            table.learn(node(4), addr("/ip4/1.2.3.4/tcp/1")),
            vec![PeerEvent::Expired(node(2)), PeerEvent::Discovered(node(4))]
        );
        assert_eq!(table.list().len(), 3);
    }

    #[test]
    fn a_hundred_thousand_passing_identities_evict_no_node_and_leave_a_bounded_table() {
        let mut table = PeerTable::new(64);
        table.learn(node(1), addr("/ip4/1.2.3.4/tcp/1"));
        table.peers.get_mut(&node(1)).unwrap().info.serves_turns = true;
        for number in 2..100_000u32 {
            let mut name = [0; 32];
            name[..4].copy_from_slice(&number.to_le_bytes());
            table.connected(NodeId(name), false);
            table.disconnected(NodeId(name));
        }
        assert_eq!(table.peers.len(), 64);
        assert!(table.serves(&node(1)) && !table.serves(&node(2)));
    }

    #[test]
    fn a_flood_of_fresh_records_evicts_no_node_that_was_met_or_known_for_long() {
        use crate::records::tests::node_record;
        use baton_keys::sign::SecretSigningKey;

        const LIMIT: usize = 16;
        let mut table = PeerTable::new(LIMIT);
        let record = |table: &mut PeerTable| {
            let record = Arc::new(node_record(&SecretSigningKey::generate(), 1, &["/ip4/1.2.3.4/tcp/1"]));
            let node = record.node;
            (node, table.recorded(record, Reach::Public).is_some())
        };
        let honest: Vec<_> = (0..LIMIT - 1).map(|_| record(&mut table).0).collect();
        for (number, node) in honest.iter().enumerate() {
            if number % 2 == 0 {
                table.connected(*node, false);
                table.disconnected(*node);
            } else {
                table.peers.get_mut(node).unwrap().since -= LONG_KNOWN;
            }
        }
        for _ in 0..1000 {
            assert!(record(&mut table).1, "a new node gets an entry");
        }
        assert_eq!(table.peers.len(), LIMIT);
        assert!(honest.iter().all(|node| table.has_record(node)));
    }

    #[test]
    fn keeps_a_bounded_number_of_addresses_newest_first() {
        let mut table = PeerTable::new(1);
        for port in 1..=100 {
            table.learn(node(1), addr(&format!("/ip4/1.2.3.4/tcp/{port}")));
        }
        let addrs = table.addrs(node(1));
        assert_eq!(addrs.len(), MAX_ADDRS_PER_PEER);
        assert_eq!(addrs[0], addr("/ip4/1.2.3.4/tcp/100"));
    }

    #[test]
    fn a_peer_without_address_and_connection_expires() {
        let mut table = PeerTable::new(2);
        let address = addr("/ip4/1.2.3.4/tcp/1");
        table.learn(node(1), address.clone());
        assert_eq!(table.forget_address(node(1), &address), vec![PeerEvent::Expired(node(1))]);
        table.learn(node(2), address.clone());
        table.connected(node(2), false);
        assert_eq!(table.forget_address(node(2), &address), vec![]);
    }

    #[test]
    fn refuses_overlong_and_unprintable_claims() {
        let plausible = |agent: &str, protocols: Vec<StreamProtocol>| {
            Claims::plausible(agent.to_owned(), &protocols, vec![], &[TURN_PROTOCOL], None)
        };
        assert_eq!(plausible("baton/0.1.0", vec![]).agent.as_deref(), Some("baton/0.1.0"));
        assert_eq!(plausible(&"x".repeat(MAX_AGENT_BYTES + 1), vec![]).agent, None);
        assert_eq!(plausible("a\u{1b}[31mb", vec![]).agent, None);
        assert!(plausible("a", vec![TURN_PROTOCOL]).serves_turns);
        let long = StreamProtocol::try_from_owned(format!("/{}", "x".repeat(MAX_PROTOCOL_BYTES))).unwrap();
        assert!(!plausible("a", vec![TURN_PROTOCOL, long]).serves_turns);
        assert!(!plausible("a", vec![TURN_PROTOCOL; MAX_PROTOCOLS + 1]).serves_turns);
    }

    #[test]
    fn a_peer_names_no_address_nearer_than_itself() {
        let claimed =
            ["/ip4/127.0.0.1/tcp/1", "/ip4/10.0.0.1/tcp/1", "/ip4/9.9.9.9/tcp/1", "/dns4/x.org/tcp/1"];
        let plausible = |seen_at: &str| {
            let addrs = claimed.iter().map(|text| addr(text)).collect();
            Claims::plausible(String::new(), &[], addrs, &[], Some(&addr(seen_at))).addrs.len()
        };
        assert_eq!(plausible("/ip4/127.0.0.1/tcp/9"), 3, "all but the name");
        assert_eq!(plausible("/ip4/192.168.1.1/tcp/9"), 2);
        assert_eq!(plausible("/ip4/8.8.8.8/tcp/9"), 1);
        assert_eq!(plausible("/ip6/::ffff:7f00:1/tcp/9"), 3, "mapped loopback is loopback");
    }
}
