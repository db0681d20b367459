//! The swarm task's upkeep of the network: known and connected peers, departures, relays and reachability.

use std::{collections::HashMap, sync::PoisonError, time::Duration};

use baton_limits::Subnet;
use baton_proto::ids::NodeId;
use libp2p::{
    Multiaddr, PeerId, gossipsub, kad,
    multiaddr::Protocol,
    relay,
    swarm::{
        ConnectionId,
        dial_opts::{DialOpts, PeerCondition},
    },
};
use tokio::time::Instant;

use super::Actor;
use crate::{
    address_scope::is_circuit,
    behaviour::SILENCE,
    error::OpenError,
    gossip::{Message, Verdict},
    ids::{node_id_of, peer_id_of},
    limits::{
        EXPLORE_CONNECTIONS, HOLE_PUNCH_WAIT, MAX_PENDING_OPENS, MIN_CIRCUIT_BYTES, MIN_CIRCUIT_TIME,
        UNCONFIRMED,
    },
    origin::Origin,
    records::check_node,
    relays::{CircuitLimits, relay_of},
    status::{NetworkStatus, Reachability},
    turn_protocol::OpenReply,
};

/// How often the upkeep runs.
pub(super) const TICK: Duration = Duration::from_millis(500);
/// Pause before an unreachable peer is dialled again.
const EXPLORE_PAUSE: Duration = Duration::from_secs(60);
/// Peers whose pause is remembered.
const MAX_EXPLORED: usize = 1024;
/// Peers dialled in one round.
const EXPLORE_BATCH: usize = 4;
/// How often expired records are swept.
const SWEEP: Duration = Duration::from_secs(60);

/// A connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Connection {
    id: ConnectionId,
    /// The relay that it passes through.
    via: Option<PeerId>,
    /// When the peer last answered a ping on it.
    answered: Option<Instant>,
}

/// How a turn with a peer can be opened now.
pub(super) enum Path {
    /// On this connection.
    Open(ConnectionId),
    /// Only through a relay whose limits do not fit a turn.
    TooSmall(CircuitLimits),
    /// No connection exists.
    None,
}

/// The swarm task's state of the network.
pub(crate) struct Network {
    connections: HashMap<PeerId, Vec<Connection>>,
    /// Opens that wait for hole punching, each with its deadline.
    waiting: Vec<(PeerId, Instant, OpenReply)>,
    explored: HashMap<PeerId, Instant>,
    explore_due: Instant,
    sweep_due: Instant,
    began: Instant,
    /// Whether an external address was configured.
    configured_external: bool,
    /// Whether an AutoNAT server failed to dial back.
    pub(super) unreachable: bool,
}

impl Network {
    pub(crate) fn new(configured_external: bool, now: Instant) -> Self {
        Self {
            connections: HashMap::new(),
            waiting: Vec::new(),
            explored: HashMap::new(),
            explore_due: now,
            sweep_due: now + SWEEP,
            began: now,
            configured_external,
            unreachable: false,
        }
    }

    pub(super) fn add_connection(&mut self, peer: PeerId, id: ConnectionId, via: Option<PeerId>) {
        self.connections.entry(peer).or_default().push(Connection { id, via, answered: None });
    }

    pub(super) fn remove_connection(&mut self, peer: PeerId, id: ConnectionId) {
        if let Some(connections) = self.connections.get_mut(&peer) {
            connections.retain(|connection| connection.id != id);
            if connections.is_empty() {
                self.connections.remove(&peer);
            }
        }
    }

    /// A ping on this connection was answered.
    pub(super) fn answered(&mut self, peer: PeerId, id: ConnectionId, now: Instant) {
        let mut connections = self.connections.get_mut(&peer).into_iter().flatten();
        if let Some(connection) = connections.find(|connection| connection.id == id) {
            connection.answered = Some(now);
        }
    }

    /// Connections whose pings are no longer answered.
    fn silent(&self, now: Instant) -> Vec<ConnectionId> {
        let silent = |connection: &&Connection| {
            connection.answered.is_some_and(|last| now.saturating_duration_since(last) >= SILENCE)
        };
        self.connections.values().flatten().filter(silent).map(|connection| connection.id).collect()
    }

    /// Whether all connections with a peer go through relays.
    pub(super) fn is_relayed(&self, peer: &PeerId) -> bool {
        self.connections
            .get(peer)
            .is_some_and(|connections| connections.iter().all(|connection| connection.via.is_some()))
    }
}

impl Actor {
    /// Runs the periodic upkeep: probes, expiry of peers, relay reservations and DHT puts.
    pub(super) fn on_tick(&mut self) {
        let now = Instant::now();
        for peer in self.probes.due(now) {
            let known = node_id_of(&peer).map(|node| self.table().addrs(node)).unwrap_or_default();
            if self.swarm.is_connected(&peer) || known.is_empty() {
                self.probes.answered(peer);
            } else if !self.dials.is_dialing(peer) {
                self.dial(peer, known);
            }
        }
        for connection in self.network.silent(now) {
            self.swarm.close_connection(connection);
        }
        self.update_peers(|table| table.expire(now));
        self.reserve(now);
        self.end_waiting(now);
        self.put_own(now);
        self.introduce(now);
        if now >= self.network.explore_due {
            self.explore(now);
        }
        if now >= self.network.sweep_due {
            self.network.sweep_due = now + SWEEP;
            let now_ms = self.clock.now_ms();
            self.sweep_dht(now_ms);
        }
        self.publish_network();
    }

    /// The subnet that counts a connected peer; `None` for the operator's own networks.
    pub(super) fn subnet_of(&self, peer: &PeerId) -> Option<Subnet> {
        let connection = self.network.connections.get(peer)?.first()?;
        let remote = self.remote_addrs.get(&connection.id)?;
        Origin::of(remote, remote).counted(&self.own_networks)
    }

    /// The best connection with a peer: a direct one, else one through a relay that fits a turn.
    pub(super) fn path(&self, peer: &PeerId) -> Path {
        let Some(connections) = self.network.connections.get(peer) else { return Path::None };
        if let Some(direct) = connections.iter().find(|connection| connection.via.is_none()) {
            return Path::Open(direct.id);
        }
        let limits = |connection: &Connection| {
            connection.via.map(|via| self.relays.limits_of(&via)).unwrap_or_default()
        };
        match connections.iter().find(|connection| limits(connection).fit_a_turn()) {
            Some(connection) => Path::Open(connection.id),
            None => connections.first().map_or(Path::None, |connection| Path::TooSmall(limits(connection))),
        }
    }

    /// Opens a turn on the best connection, or waits for a better one.
    pub(super) fn open_on_best(&mut self, peer: PeerId, reply: OpenReply) {
        // A subnet with which this mesh opens turns is trusted.
        if let Some(subnet) = self.subnet_of(&peer) {
            self.gate.trust(subnet);
        }
        match self.path(&peer) {
            Path::Open(id) => self.swarm.behaviour_mut().turn.open(peer, id, reply),
            Path::TooSmall(_) if self.network.waiting.len() < MAX_PENDING_OPENS => {
                self.network.waiting.push((peer, Instant::now() + HOLE_PUNCH_WAIT, reply));
            }
            Path::TooSmall(_) => reply.send(Err(OpenError::Busy)),
            Path::None => drop(reply),
        }
    }

    /// Resumes the opens that waited for a direct connection with a peer.
    pub(super) fn end_waiting_for(&mut self, peer: PeerId) {
        let waiting = std::mem::take(&mut self.network.waiting);
        for (waited_for, until, reply) in waiting {
            if waited_for == peer {
                self.open_on_best(peer, reply);
            } else {
                self.network.waiting.push((waited_for, until, reply));
            }
        }
    }

    fn end_waiting(&mut self, now: Instant) {
        let waiting = std::mem::take(&mut self.network.waiting);
        for (peer, until, reply) in waiting {
            if reply.is_closed() {
                continue;
            }
            match self.path(&peer) {
                Path::Open(id) => self.swarm.behaviour_mut().turn.open(peer, id, reply),
                Path::TooSmall(limits) if until <= now => {
                    let reason = format!(
                        "only a relay leads to it, which lets {limits} through; a turn may need {} KiB and {} s, and no \
                         direct connection came about",
                        MIN_CIRCUIT_BYTES / 1024,
                        MIN_CIRCUIT_TIME.as_secs()
                    );
                    reply.send(Err(OpenError::Unreachable { reason }));
                }
                Path::TooSmall(_) => self.network.waiting.push((peer, until, reply)),
                Path::None => drop(reply),
            }
        }
    }

    /// Dials a few members by itself, until there are enough connections.
    pub(super) fn explore(&mut self, now: Instant) {
        self.network.explore_due = now + Duration::from_secs(5);
        if !self.discovery {
            return;
        }
        let known = self.table().list();
        let met = known.iter().filter(|peer| peer.connected && peer.serves_turns).count();
        let Some(missing) = EXPLORE_CONNECTIONS.checked_sub(met).filter(|missing| *missing > 0) else {
            return;
        };
        self.network.explored.retain(|_, until| *until > now);
        let listed = known.into_iter().filter(|peer| peer.serves_turns && !peer.connected);
        let listed = listed.filter_map(|peer| Some((peer_id_of(peer.node)?, peer.addrs)));
        let mut candidates: Vec<_> = listed.chain(self.dht_members()).collect();
        let local = *self.swarm.local_peer_id();
        candidates.retain(|(peer, addrs)| {
            *peer != local
                && !addrs.is_empty()
                && !self.network.explored.contains_key(peer)
                && !self.swarm.is_connected(peer)
                && !self.dials.is_dialing(*peer)
        });
        // A random start, so that no peer can predict the first dial.
        let offset = usize::try_from(rand::random::<u32>()).unwrap_or(0) % candidates.len().max(1);
        candidates.rotate_left(offset);
        for (peer, addrs) in candidates.into_iter().take(missing.min(EXPLORE_BATCH)) {
            if self.network.explored.len() < MAX_EXPLORED {
                self.network.explored.insert(peer, now + EXPLORE_PAUSE);
            }
            let options = DialOpts::peer_id(peer)
                .condition(PeerCondition::DisconnectedAndNotDialing)
                .addresses(addrs)
                .build();
            let _ = self.swarm.dial(options);
        }
    }

    /// Adds the listen addresses as external ones, for a mesh whose peers are all on this machine.
    pub(crate) fn reachable_where_bound(&mut self) {
        let bound: Vec<_> = self.listeners.values().flat_map(|(_, bound)| bound.iter().cloned()).collect();
        bound.into_iter().for_each(|address| self.swarm.add_external_address(address));
    }

    /// Reserves a relay, if one is wanted.
    fn reserve(&mut self, now: Instant) {
        let unreachable = match self.reachability() {
            Reachability::Public => false,
            Reachability::Private => true,
            Reachability::Unknown => self.nat && self.serves && now - self.network.began > UNCONFIRMED,
        };
        let Some((relay, address)) = self.relays.next(unreachable, now, rand::random()) else { return };
        match self.swarm.listen_on(address) {
            Ok(listener) => self.relays.requested(listener, relay),
            Err(error) => {
                tracing::debug!(%relay, %error, "a relay could not be asked");
                self.relays.pause(relay, now + crate::limits::RELAY_PAUSE);
            }
        }
    }

    pub(super) fn reachability(&self) -> Reachability {
        let direct = self.swarm.external_addresses().any(|address| !is_circuit(address));
        if direct || self.network.configured_external {
            Reachability::Public
        } else if self.network.unreachable {
            Reachability::Private
        } else {
            Reachability::Unknown
        }
    }

    /// Sets the DHT mode: an unreachable mesh stores no records for others.
    pub(super) fn settle_dht_mode(&mut self) {
        let serve = self.serves && self.reachability() != Reachability::Private;
        let wanted = if serve { kad::Mode::Server } else { kad::Mode::Client };
        if let Some(dht) = self.swarm.behaviour_mut().dht.as_mut()
            && dht.mode() != wanted
        {
            dht.set_mode(Some(wanted));
        }
    }

    pub(super) fn on_gossip(&mut self, event: gossipsub::Event) {
        let gossipsub::Event::Message { propagation_source, message_id, message } = event else { return };
        let (now, now_ms) = (Instant::now(), self.clock.now_ms());
        let heard = Message {
            author: message.source,
            subnet: self.subnet_of(&propagation_source),
            data: &message.data,
        };
        let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
        let verdict = self.gossip_validator.validate(heard, |author| peers.has_record(author), now, now_ms);
        drop(peers);
        let acceptance = match verdict {
            Verdict::Valid(record) => {
                if self.take_verified(*record) {
                    self.counters.count(|stats| stats.gossip.taken += 1);
                    gossipsub::MessageAcceptance::Accept
                } else {
                    self.counters.count(|stats| stats.gossip.known += 1);
                    gossipsub::MessageAcceptance::Ignore
                }
            }
            Verdict::TooOften => {
                self.counters.count(|stats| stats.gossip.too_often += 1);
                gossipsub::MessageAcceptance::Ignore
            }
            Verdict::OutOfTime => {
                self.counters.count(|stats| stats.gossip.out_of_time += 1);
                gossipsub::MessageAcceptance::Ignore
            }
            Verdict::Reject => {
                self.counters.count(|stats| stats.gossip.invalid += 1);
                gossipsub::MessageAcceptance::Reject
            }
        };
        if let Some(gossip) = self.swarm.behaviour_mut().gossip.as_mut() {
            gossip.report_message_validation_result(&message_id, &propagation_source, acceptance);
        }
    }

    /// Stores a node record from any source.
    pub(super) fn take_record(&mut self, value: &[u8], now_ms: u64) {
        if let Ok(record) = check_node(value, now_ms) {
            self.take_verified(record);
        }
    }

    /// Stores a verified record and returns whether it is new.
    fn take_verified(
        &mut self,
        record: baton_proto::SignedObject<baton_proto::node_record::NodeRecord>,
    ) -> bool {
        if Some(record.node) == node_id_of(self.swarm.local_peer_id()) {
            return false;
        }
        let (nearest, mut news) = (self.nearest, false);
        self.update_peers(|table| {
            let events = table.recorded(std::sync::Arc::new(record), nearest);
            news = events.is_some();
            events.unwrap_or_default()
        });
        news
    }

    pub(super) fn on_relay_client(&mut self, event: relay::client::Event) {
        // In the protocol, zero means no limit.
        let circuit = |bytes: Option<u64>, time: Option<Duration>| CircuitLimits {
            bytes: bytes.filter(|bytes| *bytes > 0),
            time: time.filter(|time| !time.is_zero()),
        };
        match event {
            relay::client::Event::ReservationReqAccepted { relay_peer_id, limit, .. } => {
                let bytes = limit.as_ref().and_then(|limit| limit.data_in_bytes());
                let limits = circuit(bytes, limit.as_ref().and_then(|limit| limit.duration()));
                for listener in self.relays.granted(relay_peer_id, limits, Instant::now()) {
                    tracing::warn!(relay = %relay_peer_id, %limits, "this relay lets too little through for a turn; another one is asked");
                    self.swarm.remove_listener(listener);
                }
                self.publish_network();
            }
            relay::client::Event::OutboundCircuitEstablished { relay_peer_id, limit } => {
                let bytes = limit.as_ref().and_then(|limit| limit.data_in_bytes());
                let time = limit.as_ref().and_then(|limit| limit.duration());
                self.relays.learned(relay_peer_id, circuit(bytes, time));
            }
            relay::client::Event::InboundCircuitEstablished { .. } => {}
        }
    }

    /// The external addresses of this mesh have changed.
    pub(super) fn on_external_changed(&mut self) {
        self.settle_dht_mode();
        self.publish_network();
    }

    /// Publishes the network status to the handles.
    pub(super) fn publish_network(&mut self) {
        let members = self.dht_members().len();
        let own = Protocol::P2p(*self.swarm.local_peer_id());
        let strip = |address: &Multiaddr| {
            let mut address = address.clone();
            if address.iter().last() == Some(own.clone()) {
                address.pop();
            }
            address
        };
        // A relay address is announced only once the relay's limits are known to fit a turn.
        let usable = |address: &&Multiaddr| {
            relay_of(address).is_none_or(|relay| self.relays.limits_of(&relay).fit_a_turn())
        };
        let status = NetworkStatus {
            reachability: self.reachability(),
            external: self.swarm.external_addresses().filter(usable).map(strip).collect(),
            relays: self.relays.list(),
            dht_members: members,
            bootstrap: self.bootstrap.statuses(),
        };
        self.status.send_if_modified(|known| {
            let changed = *known != status;
            *known = status;
            changed
        });
    }

    /// Removes a departed peer from all tables.
    pub(super) fn remove_departed(&mut self, node: NodeId) {
        self.dht_member(node, false);
        if let Some(peer) = peer_id_of(node) {
            self.relays.withdrawn(peer);
        }
        self.update_peers(|table| table.departed(node));
    }
}
