//! The task that owns the swarm, started by [`crate::Mesh::spawn`].
//!
//! It turns commands into libp2p calls, and libp2p events into replies, table entries and inbound turns. No
//! handler here ever awaits.

mod dht;
mod network;
#[cfg(not(target_family = "wasm"))]
mod sockets;

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use baton_limits::Networks;
use baton_proto::{SignedObject, ids::NodeId, node_record::NodeRecord};
use futures::StreamExt as _;
use libp2p::{
    Multiaddr, PeerId, StreamProtocol, Swarm,
    core::{ConnectedPoint, transport::ListenerId},
    identify, ping,
    swarm::{
        ConnectionError, ConnectionId, DialError, SwarmEvent,
        dial_opts::{DialOpts, PeerCondition},
    },
};
use tokio::{
    sync::{broadcast, mpsc, watch},
    time::{Instant, Interval, MissedTickBehavior, interval, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    address_scope::{DialScope, Reach, is_circuit},
    behaviour::{Behaviour, BehaviourEvent, DHT_PROTOCOL, RELAY_PROTOCOL},
    bootstrap::Bootstrap,
    config::MeshClock,
    dial_error::{dial_reason, open_error},
    error::{MeshError, OpenError},
    gate::{EvictionRequest, SharedGate},
    gossip::GossipValidator,
    ids::node_id_of,
    limits::{LISTEN_TIMEOUT, SHUTDOWN_GRACE},
    peers::{Claims, PeerEvent, PeerTable},
    pending_dials::PendingDials,
    probes::Probes,
    records::DhtKey,
    relays::{Relays, relay_of},
    stats::Counters,
    status::NetworkStatus,
    transport::{listen_error, listen_on_error, split_identity},
    turn_protocol::{InboundStream, OpenReply},
    turn_stream::TurnStream,
};
pub(crate) use dht::{Dht, GetReply, ProvidersReply, PutReply};
pub(crate) use network::Network;

/// A command from a handle to the swarm task.
pub(crate) enum Command {
    /// Open a turn with a peer, dialling the addresses if there is no connection.
    Open { peer: PeerId, addrs: Vec<Multiaddr>, reply: OpenReply },
    /// Announce this mesh's own record to the network.
    Announce(Arc<SignedObject<NodeRecord>>),
    /// Find the newest record under a key of the DHT.
    Get { key: DhtKey, reply: GetReply },
    /// Put a record into the DHT.
    Put { key: DhtKey, value: Vec<u8>, expires_ms: u64, reply: PutReply },
    /// Find nodes that serve a model, by its name or the hex of its id.
    Providers { model: String, reply: ProvidersReply },
    /// Close every connection with a peer.
    Disconnect { peer: PeerId },
}

/// The swarm and all state that only its task touches.
pub(crate) struct Actor {
    pub(crate) swarm: Swarm<Behaviour>,
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) incoming: mpsc::Sender<TurnStream>,
    pub(crate) turn_protocols: Vec<StreamProtocol>,
    pub(crate) gate: SharedGate,
    pub(crate) peers: Arc<RwLock<PeerTable>>,
    pub(crate) peer_events: broadcast::Sender<PeerEvent>,
    pub(crate) listen_addrs: watch::Sender<Vec<Multiaddr>>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) cancel: CancellationToken,
    pub(crate) bootstrap: Bootstrap,
    pub(crate) dials: PendingDials,
    /// The configured listeners and their bound addresses.
    pub(crate) listeners: HashMap<ListenerId, (Multiaddr, Vec<Multiaddr>)>,
    /// The remote address of each connection.
    pub(crate) remote_addrs: HashMap<ConnectionId, Multiaddr>,
    pub(crate) dht: Dht,
    pub(crate) gossip_validator: GossipValidator,
    pub(crate) relays: Relays,
    pub(crate) probes: Probes,
    pub(crate) network: Network,
    pub(crate) status: watch::Sender<NetworkStatus>,
    pub(crate) clock: MeshClock,
    /// The narrowest address scope that is accepted.
    pub(crate) nearest: Reach,
    /// The addresses that may be dialled.
    pub(crate) scope: Arc<DialScope>,
    /// Whether this mesh discovers peers.
    pub(crate) discovery: bool,
    /// Whether this mesh uses NAT traversal.
    pub(crate) nat: bool,
    /// Whether this mesh accepts turns.
    pub(crate) serves: bool,
    /// Networks whose peers are not counted by subnet.
    pub(crate) own_networks: Networks,
}

impl Actor {
    /// Starts the listeners and waits until each is bound or one has failed.
    pub(crate) async fn listen(&mut self, addresses: Vec<Multiaddr>) -> Result<(), MeshError> {
        for address in addresses {
            let id =
                self.swarm.listen_on(address.clone()).map_err(|error| listen_on_error(&address, &error))?;
            self.listeners.insert(id, (address, Vec::new()));
        }
        let bound = async {
            while self.listeners.values().any(|(_, bound)| bound.is_empty()) {
                match self.swarm.select_next_some().await {
                    SwarmEvent::ListenerClosed { listener_id, reason: Err(error), .. }
                    | SwarmEvent::ListenerError { listener_id, error } => {
                        if let Some((address, _)) = self.listeners.get(&listener_id) {
                            return Err(listen_error(address, &error));
                        }
                    }
                    event => self.on_swarm_event(event),
                }
            }
            Ok(())
        };
        if let Ok(result) = timeout(LISTEN_TIMEOUT, bound).await {
            return result;
        }
        let silent = self.listeners.values().find(|(_, bound)| bound.is_empty());
        silent.map_or(Ok(()), |(address, _)| {
            Err(listen_error(address, &std::io::Error::other("no interface has such an address")))
        })
    }

    /// Runs until it is cancelled or the last handle is dropped, then closes all connections.
    pub(crate) async fn run(mut self: Box<Self>) {
        let mut ticks = ticks();
        loop {
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => break,
                command = self.commands.recv() => match command {
                    Some(command) => self.on_command(command),
                    None => break,
                },
                () = until(self.bootstrap.next_due()) => self.dial_bootstrap(),
                due = ticks.tick() => {
                    self.gate.late_by(due.elapsed());
                    self.on_tick();
                }
                event = self.swarm.select_next_some() => self.on_swarm_event(event),
            }
        }
        self.close_connections().await;
    }

    /// Closes the connections, so that peers notice at once and not after a timeout.
    async fn close_connections(&mut self) {
        self.commands.close();
        let connected: Vec<_> = self.swarm.connected_peers().copied().collect();
        for peer in connected {
            let _ = self.swarm.disconnect_peer_id(peer);
        }
        let closed = async {
            while self.swarm.connected_peers().next().is_some() {
                let event = self.swarm.select_next_some().await;
                self.on_swarm_event(event);
            }
        };
        if timeout(SHUTDOWN_GRACE, closed).await.is_err() {
            tracing::debug!("some connections did not close in time and were dropped");
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Open { peer, addrs, reply } => self.open(peer, addrs, reply),
            Command::Announce(record) => self.announce(record),
            Command::Get { key, reply } => self.dht_get(&key, reply),
            Command::Put { key, value, expires_ms, reply } => self.dht_put(&key, value, expires_ms, reply),
            Command::Providers { model, reply } => self.dht_providers(model, reply),
            Command::Disconnect { peer } => {
                // An error only means that there was no connection.
                let _ = self.swarm.disconnect_peer_id(peer);
            }
        }
    }

    fn open(&mut self, peer: PeerId, addrs: Vec<Multiaddr>, reply: OpenReply) {
        if peer == *self.swarm.local_peer_id() {
            let reason = "it is this process itself".to_owned();
            reply.send(Err(OpenError::Unreachable { reason }));
        } else if self.swarm.is_connected(&peer) {
            self.open_on_best(peer, reply);
        } else {
            self.dials.wait(peer, reply);
            let addrs = self.dialable(peer, addrs);
            // If no address is known, ask the DHT.
            if !addrs.is_empty() || self.dials.is_dialing(peer) || !self.locate(peer) {
                self.dial(peer, addrs);
            }
        }
    }

    /// Addresses to dial: the caller's first, then known ones. Addresses with another identity are dropped.
    fn dialable(&self, peer: PeerId, given: Vec<Multiaddr>) -> Vec<Multiaddr> {
        let known = node_id_of(&peer).map(|node| self.table().addrs(node)).unwrap_or_default();
        let split = given.into_iter().map(split_identity);
        let ours = split.filter(|(_, named)| named.is_none_or(|named| named == peer));
        ours.map(|(address, _)| address).inspect(|address| self.scope.name(address)).chain(known).collect()
    }

    /// Dials the addresses that this dial has not tried yet, and ends the dial if no attempt is left.
    fn dial(&mut self, peer: PeerId, addrs: Vec<Multiaddr>) {
        let fresh = self.dials.untried(peer, addrs);
        if !fresh.is_empty() {
            self.attempt(peer, fresh);
        }
        self.dials.settle(peer);
    }

    fn attempt(&mut self, peer: PeerId, addrs: Vec<Multiaddr>) -> Option<ConnectionId> {
        let options =
            DialOpts::peer_id(peer).condition(PeerCondition::Always).addresses(addrs.clone()).build();
        let connection = options.connection_id();
        self.dials.started(peer, connection, addrs);
        let Err(error) = self.swarm.dial(options) else { return Some(connection) };
        self.counters.count(|stats| stats.dials_failed.count(&error));
        self.dials.failed(peer, connection, open_error(&error));
        None
    }

    fn dial_bootstrap(&mut self) {
        let now = Instant::now();
        for (index, address, peer) in self.bootstrap.due(now) {
            let begun = match peer {
                Some(peer) => self.attempt(peer, vec![address]),
                None => {
                    let options = DialOpts::unknown_peer_id().address(address).build();
                    let connection = options.connection_id();
                    self.swarm.dial(options).is_ok().then_some(connection)
                }
            };
            match begun {
                Some(connection) => self.bootstrap.on_dialing(index, connection),
                None => self.bootstrap.on_refused(index, now, rand::random()),
            }
            if let Some(peer) = peer {
                self.dials.settle(peer);
            }
        }
    }

    fn on_swarm_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::Behaviour(event) => self.on_behaviour_event(event),
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                self.on_connected(peer_id, connection_id, &endpoint);
            }
            SwarmEvent::ConnectionClosed { peer_id, connection_id, endpoint, num_established, cause } => {
                let over = transport_of(&endpoint);
                self.counters.count(|stats| {
                    stats.connections -= 1;
                    *stats.transports.of(over) -= 1;
                });
                self.on_connection_closed(peer_id, connection_id, num_established, cause.as_ref());
            }
            SwarmEvent::OutgoingConnectionError { connection_id, peer_id, error } => {
                self.on_dial_failed(connection_id, peer_id, &error);
            }
            SwarmEvent::IncomingConnectionError { error, .. } => {
                self.counters.count(|stats| stats.inbound_refused.count(&error));
                tracing::debug!(%error, "inbound connection failed");
            }
            SwarmEvent::NewListenAddr { listener_id, address } => self.on_bound(listener_id, address),
            SwarmEvent::ExpiredListenAddr { listener_id, address } => {
                self.on_unbound(listener_id, &address);
            }
            SwarmEvent::ListenerClosed { listener_id, reason, .. } => {
                self.on_listener_closed(listener_id, reason);
            }
            SwarmEvent::ExternalAddrConfirmed { .. } | SwarmEvent::ExternalAddrExpired { .. } => {
                self.on_external_changed();
            }
            SwarmEvent::ListenerError { error, .. } => tracing::warn!(%error, "a listener reported an error"),
            _ => {}
        }
    }

    fn on_behaviour_event(&mut self, event: BehaviourEvent) {
        match event {
            BehaviourEvent::Gate(EvictionRequest) => self.evict_idle_peer(),
            BehaviourEvent::Turn(inbound) => self.on_inbound(inbound),
            BehaviourEvent::Identify(identify::Event::Received { connection_id, peer_id, info }) => {
                self.on_identified(connection_id, peer_id, info);
            }
            // A peer without ping support is closed too: with no pings, its silence would go unnoticed.
            BehaviourEvent::Ping(ping::Event { connection, result: Err(_), .. }) => {
                self.swarm.close_connection(connection);
            }
            BehaviourEvent::Ping(ping::Event { peer, connection, result: Ok(took) }) => {
                self.network.answered(peer, connection, Instant::now());
                let Some(node) = node_id_of(&peer) else { return };
                self.update_peers(|table| table.answered(node, took));
            }
            BehaviourEvent::Dht(event) => self.on_dht_event(event),
            BehaviourEvent::Gossip(event) => self.on_gossip(event),
            BehaviourEvent::Relay(event) => self.counters.count(|stats| stats.relay.count(&event)),
            BehaviourEvent::Circuits(event) => self.on_relay_client(event),
            #[cfg(not(target_family = "wasm"))]
            other => self.on_socket_event(other),
            #[cfg(target_family = "wasm")]
            _ => {}
        }
    }

    /// Closes the connection of an idle peer, to leave room for the next connection.
    fn evict_idle_peer(&mut self) {
        if let Some((peer, connection)) = self.gate.eviction_candidate() {
            tracing::debug!(%peer, "an idle connection is closed to make room");
            self.swarm.close_connection(connection);
        }
    }

    fn on_inbound(&mut self, inbound: InboundStream) {
        let Some(node) = node_id_of(&inbound.peer) else { return };
        let (stream, protocol) = inbound.negotiated;
        let Some(permit) = self.gate.admit_stream(inbound.peer, inbound.origin) else {
            self.counters.count(|stats| stats.turns_refused_quota += 1);
            tracing::debug!(%node, "inbound turn refused: too many are open");
            return;
        };
        let turn = TurnStream::with_permit(node, protocol.as_ref(), stream, Some(permit))
            .with_origin(inbound.origin);
        if self.incoming.try_send(turn).is_ok() {
            self.counters.count(|stats| stats.turns_accepted += 1);
        } else {
            self.counters.count(|stats| stats.turns_refused_queue += 1);
            tracing::debug!(%node, "inbound turn refused: nobody takes them");
        }
    }

    fn on_connected(&mut self, peer: PeerId, connection: ConnectionId, endpoint: &ConnectedPoint) {
        let over = transport_of(endpoint);
        self.counters.count(|stats| {
            stats.connections += 1;
            *stats.transports.of(over) += 1;
        });
        if self.bootstrap.on_connected(connection, peer) {
            self.publish_network();
        }
        self.probes.answered(peer);
        self.network.add_connection(peer, connection, relay_of(over));
        let (address, _) = split_identity(endpoint.get_remote_address().clone());
        self.remote_addrs.insert(connection, address.clone());
        for reply in self.dials.connected(peer) {
            self.open_on_best(peer, reply);
        }
        self.end_waiting_for(peer);
        let Some(node) = node_id_of(&peer) else {
            tracing::debug!(%peer, "disconnecting a peer without an Ed25519 identity");
            self.swarm.close_connection(connection);
            return;
        };
        // The port of an inbound connection is ephemeral, and the peer does not listen on it.
        if endpoint.is_dialer() {
            self.update_peers(|table| table.learn(node, address));
        }
        let relayed = self.network.is_relayed(&peer);
        self.update_peers(|table| table.connected(node, relayed));
    }

    fn on_connection_closed(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        remaining: u32,
        cause: Option<&ConnectionError>,
    ) {
        self.remote_addrs.remove(&connection);
        self.network.remove_connection(peer, connection);
        let node = node_id_of(&peer);
        if remaining > 0 {
            let relayed = self.network.is_relayed(&peer);
            if let Some(node) = node {
                self.update_peers(|table| table.connected(node, relayed));
            }
            return;
        }
        self.bootstrap.on_disconnected(peer, Instant::now(), rand::random());
        self.relays.withdrawn(peer);
        let Some(node) = node else { return };
        self.update_peers(|table| table.disconnected(node));
        // A connection that closed only because it was idle does not mean that the peer is gone.
        let serves = self.table().serves(&node);
        if serves && !matches!(cause, None | Some(ConnectionError::KeepAliveTimeout)) {
            self.probes.suspect(peer, Instant::now());
        }
    }

    fn on_dial_failed(&mut self, connection: ConnectionId, peer: Option<PeerId>, error: &DialError) {
        self.counters.count(|stats| stats.dials_failed.count(error));
        let failure = open_error(error);
        if self.bootstrap.on_failed(connection, &dial_reason(error), Instant::now(), rand::random()) {
            self.publish_network();
        }
        let Some(peer) = peer else { return };
        if let (OpenError::WrongIdentity { address }, Some(node)) = (&failure, node_id_of(&peer)) {
            self.update_peers(|table| table.forget_address(node, address));
        }
        let again = self.dials.failed(peer, connection, failure);
        if !again.is_empty() {
            self.attempt(peer, again);
        }
        if !self.dials.is_dialing(peer) && !self.swarm.is_connected(&peer) {
            self.missed(peer);
        }
        self.dials.settle(peer);
    }

    /// Handles a peer that answered at none of the tried addresses.
    fn missed(&mut self, peer: PeerId) {
        let Some(node) = node_id_of(&peer) else { return };
        let now = Instant::now();
        if self.probes.failed(peer, now) {
            tracing::debug!(%node, "a peer is gone");
            self.remove_departed(node);
        } else if !self.table().addrs(node).is_empty() {
            self.probes.suspect(peer, now);
        }
    }

    fn on_identified(&mut self, connection: ConnectionId, peer: PeerId, info: identify::Info) {
        let Some(node) = node_id_of(&peer) else { return };
        let in_dht = info.protocols.contains(&DHT_PROTOCOL);
        let relays = info.protocols.contains(&RELAY_PROTOCOL);
        let claims = Claims::plausible(
            info.agent_version,
            &info.protocols,
            info.listen_addrs,
            &self.turn_protocols,
            self.remote_addrs.get(&connection),
        );
        self.update_peers(|table| table.identified(node, claims));
        self.dht_member(node, in_dht);
        match self.remote_addrs.get(&connection).filter(|_| relays && !self.network.is_relayed(&peer)) {
            Some(remote) => {
                // Its listen address if it announced one, else the address that was dialled.
                let listens = self.table().addrs(node).into_iter().find(|address| !is_circuit(address));
                self.relays.offered(peer, listens.unwrap_or_else(|| remote.clone()));
            }
            None => self.relays.withdrawn(peer),
        }
    }

    fn on_bound(&mut self, listener: ListenerId, address: Multiaddr) {
        if let Some((_, bound)) = self.listeners.get_mut(&listener) {
            bound.push(address);
        }
        self.publish_listen_addrs();
    }

    fn on_unbound(&mut self, listener: ListenerId, address: &Multiaddr) {
        if let Some((_, bound)) = self.listeners.get_mut(&listener) {
            bound.retain(|known| known != address);
        }
        self.publish_listen_addrs();
    }

    fn on_listener_closed(&mut self, listener: ListenerId, reason: Result<(), std::io::Error>) {
        if self.relays.ended(listener, Instant::now()) {
            tracing::debug!(?reason, "a relay no longer leads here");
            return;
        }
        if let Some((address, _)) = self.listeners.remove(&listener) {
            tracing::error!(%address, ?reason, "a listener closed; restart to listen there again");
        }
        self.publish_listen_addrs();
    }

    fn publish_listen_addrs(&self) {
        let all = self.listeners.values().flat_map(|(_, bound)| bound.iter().cloned()).collect();
        self.listen_addrs.send_replace(all);
    }

    fn table(&self) -> std::sync::RwLockReadGuard<'_, PeerTable> {
        self.peers.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the table and sends the events to the subscribers, if there are any.
    fn update_peers(&self, change: impl FnOnce(&mut PeerTable) -> Vec<PeerEvent>) {
        let events = change(&mut self.peers.write().unwrap_or_else(PoisonError::into_inner));
        for event in events {
            let _ = self.peer_events.send(event);
        }
    }
}

fn ticks() -> Interval {
    let mut ticks = interval(network::TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// The address that shows the transport of a connection.
///
/// For an inbound connection this is the local address: through a relay, the remote address names only the
/// peer.
fn transport_of(endpoint: &ConnectedPoint) -> &Multiaddr {
    match endpoint {
        ConnectedPoint::Dialer { address, .. } => address,
        ConnectedPoint::Listener { local_addr, .. } => local_addr,
    }
}

/// The node ID of the swarm's local peer.
pub(crate) fn local_node(swarm: &Swarm<Behaviour>) -> Option<NodeId> {
    node_id_of(swarm.local_peer_id())
}
