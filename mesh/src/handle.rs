//! Entry point of the mesh: its start, and the handle that all other code holds.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use baton_limits::Subnet;
use baton_proto::{SignedObject, ids::NodeId, node_record::NodeRecord};
use libp2p::{Multiaddr, StreamProtocol, Swarm, identity::Keypair, multiaddr::Protocol, relay, swarm};
use tokio::{
    sync::{broadcast, mpsc, oneshot, watch},
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use crate::{
    actor::{Actor, Command, Dht, Network, local_node},
    address_scope::DialScope,
    behaviour::Behaviour,
    bootstrap::Bootstrap,
    config::MeshConfig,
    dht::{DhtError, LookupResult},
    error::{MeshError, OpenError},
    gate::SharedGate,
    gossip::GossipValidator,
    ids::peer_id_of,
    incoming::Incoming,
    limits::{
        COMMAND_QUEUE, INCOMING_QUEUE, MAX_AGENT_BYTES, MAX_BOOTSTRAP, MAX_DIAL_ADDRS,
        MAX_NEGOTIATING_STREAMS, PEER_EVENT_QUEUE,
    },
    peers::{PeerEvent, PeerInfo, PeerTable},
    pending_dials::PendingDials,
    probes::Probes,
    records::DhtKey,
    relays::Relays,
    stats::{Counters, MeshStats},
    status::NetworkStatus,
    transport::{can_dial, prepared, probe_listen, split_identity, transport},
    turn_protocol::{NegotiatedStream, OpenReply},
    turn_stream::TurnStream,
};

/// Starts meshes.
#[derive(Debug, Clone, Copy)]
pub struct Mesh;

/// How a mesh ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MeshExit {
    /// Shutdown was requested, or no handle was left.
    Stopped,
    /// Its task panicked, for this reason; the process should end.
    Panicked(String),
}

/// The state that all handles of a mesh share.
struct HandleState {
    node: NodeId,
    commands: mpsc::Sender<Command>,
    peers: Arc<RwLock<PeerTable>>,
    peer_events: broadcast::Sender<PeerEvent>,
    listen_addrs: watch::Receiver<Vec<Multiaddr>>,
    status: watch::Receiver<NetworkStatus>,
    exit: watch::Receiver<Option<MeshExit>>,
    counters: Arc<Counters>,
    cancel: CancellationToken,
    gate: SharedGate,
    scope: Arc<DialScope>,
}

/// A handle of a running mesh. Clones are cheap; the mesh stops when the last one is dropped.
#[derive(Clone)]
pub struct MeshHandle(Arc<HandleState>);

impl std::fmt::Debug for MeshHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MeshHandle").field("node", &self.0.node).finish_non_exhaustive()
    }
}

impl Mesh {
    /// Starts a mesh whose identity is an Ed25519 seed (RFC 8032 secret key). Call it within a tokio runtime.
    ///
    /// When this returns, the mesh listens on every configured address.
    ///
    /// # Errors
    /// [`MeshError`] when the configuration is wrong or an address cannot be listened on. Nothing is left
    /// running then.
    pub async fn spawn(
        identity: Zeroizing<[u8; 32]>,
        config: MeshConfig,
    ) -> Result<(MeshHandle, Incoming), MeshError> {
        check(&config)?;
        let config = prepared(config)?;
        // `ed25519_from_bytes` wipes its input copy.
        let keypair = Keypair::ed25519_from_bytes(*identity)
            .map_err(|error| MeshError::Config(format!("the identity is not a key: {error}")))?;
        drop(identity);
        config.listen.iter().try_for_each(probe_listen)?;

        let counters = Arc::new(Counters::default());
        let named = config.bootstrap.iter().chain(&config.relays);
        let scope = Arc::new(DialScope::new(config.nearest(), named));
        let swarm = swarm(&keypair, &config, &scope, counters.clone())?;
        let node = local_node(&swarm)
            .ok_or_else(|| MeshError::Config("the identity is not an Ed25519 key".to_owned()))?;

        let (exit_sender, exit) = watch::channel(None);
        let (listen, alone) = (config.listen.clone(), config.is_alone());
        let (mut actor, state, incoming) =
            assemble(swarm, node, config, MeshShared { counters, scope, exit });
        Box::pin(actor.listen(listen)).await?;
        if alone {
            actor.reachable_where_bound();
        }

        let task = tokio::spawn(actor.run());
        // Joins the task and publishes its result to every handle.
        tokio::spawn(async move {
            let ended = match task.await {
                Ok(()) => MeshExit::Stopped,
                Err(error) => MeshExit::Panicked(error.to_string()),
            };
            exit_sender.send_replace(Some(ended));
        });
        Ok((MeshHandle(Arc::new(state)), incoming))
    }
}

/// The parts of a mesh that its handles share with the swarm.
struct MeshShared {
    counters: Arc<Counters>,
    scope: Arc<DialScope>,
    exit: watch::Receiver<Option<MeshExit>>,
}

/// The swarm's task, the state of its handles, and the queue of inbound turns.
fn assemble(
    swarm: Swarm<Behaviour>,
    node: NodeId,
    config: MeshConfig,
    shared: MeshShared,
) -> (Box<Actor>, HandleState, Incoming) {
    let MeshShared { counters, scope, exit } = shared;
    let local = *swarm.local_peer_id();
    let gate = swarm.behaviour().gate.shared();
    let others = |address: &Multiaddr| split_identity(address.clone()).1 != Some(local);
    let (commands, command_queue) = mpsc::channel(COMMAND_QUEUE);
    let (turns, queue) = mpsc::channel(INCOMING_QUEUE);
    let (peer_events, _) = broadcast::channel(PEER_EVENT_QUEUE);
    let (listen_sender, listen_addrs) = watch::channel(Vec::new());
    let peers = Arc::new(RwLock::new(PeerTable::new(config.limits.max_peers)));
    let cancel = CancellationToken::new();
    let (nearest, now) = (config.nearest(), Instant::now());
    let bootstrap = Bootstrap::new(config.bootstrap.into_iter().filter(others).collect(), now);
    let known = NetworkStatus { bootstrap: bootstrap.statuses(), ..NetworkStatus::default() };
    let (status_sender, status) = watch::channel(known);
    let actor = Box::new(Actor {
        swarm,
        commands: command_queue,
        incoming: turns,
        turn_protocols: config.turn_protocols,
        gate: gate.clone(),
        peers: peers.clone(),
        peer_events: peer_events.clone(),
        listen_addrs: listen_sender,
        counters: counters.clone(),
        cancel: cancel.clone(),
        bootstrap,
        dials: PendingDials::default(),
        listeners: HashMap::new(),
        remote_addrs: HashMap::new(),
        dht: Dht::new(local, now),
        gossip_validator: GossipValidator::default(),
        relays: Relays::new(config.relays),
        probes: Probes::default(),
        network: Network::new(!config.external.is_empty(), now),
        status: status_sender,
        clock: config.clock,
        nearest,
        scope: scope.clone(),
        discovery: config.discovery,
        nat: config.nat,
        serves: config.accept_turns,
        own_networks: config.limits.own_networks,
    });
    let state = HandleState {
        node,
        commands,
        peers,
        peer_events,
        listen_addrs,
        status,
        exit,
        counters,
        cancel,
        gate,
        scope,
    };
    (actor, state, Incoming { queue })
}

fn check(config: &MeshConfig) -> Result<(), MeshError> {
    let agent_is_sane = config.agent.len() <= MAX_AGENT_BYTES && !config.agent.chars().any(char::is_control);
    let fault = if config.bootstrap.len() > MAX_BOOTSTRAP {
        format!("{} bootstrap addresses; name {MAX_BOOTSTRAP} at the most", config.bootstrap.len())
    } else if !agent_is_sane {
        format!("the agent must be printable text of at most {MAX_AGENT_BYTES} bytes")
    } else if config.turn_protocols.is_empty() {
        "name at least one version of the turn protocol".to_owned()
    } else if config.limits.max_peers == 0 {
        "max_peers must be at least 1".to_owned()
    } else {
        return Ok(());
    };
    Err(MeshError::Config(fault))
}

fn swarm(
    keypair: &Keypair,
    config: &MeshConfig,
    scope: &Arc<DialScope>,
    counters: Arc<Counters>,
) -> Result<Swarm<Behaviour>, MeshError> {
    #[cfg(not(target_family = "wasm"))]
    let settings = swarm::Config::with_tokio_executor();
    #[cfg(target_family = "wasm")]
    let settings = swarm::Config::with_wasm_executor();
    let settings = settings
        .with_idle_connection_timeout(config.limits.idle_timeout)
        .with_max_negotiating_inbound_streams(MAX_NEGOTIATING_STREAMS);
    let local = keypair.public().to_peer_id();
    let (circuits, relay_client) = relay::client::new(local);
    let behaviour = Behaviour::new(keypair, config, relay_client, counters.clone())?;
    let gate = behaviour.gate.shared();
    let transport = transport(keypair, config, circuits, scope, &gate, &counters)?;
    let mut swarm = Swarm::new(transport, behaviour, local, settings);
    for address in &config.external {
        swarm.add_external_address(address.clone());
    }
    Ok(swarm)
}

impl MeshHandle {
    /// This mesh's own identity.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        self.0.node
    }

    /// Opens a turn with a node on an existing connection, or dials it.
    ///
    /// It dials known addresses and the first eight of `addrs`. The remote peer must prove that it holds the
    /// node's key. The caller vouches for `addrs`: they may lie in any scope, and their names may point anywhere. An
    /// unknown peer's address passes [`may_dial`](Self::may_dial) first.
    ///
    /// Cancel safe: a dropped call leaves at most a connection behind.
    ///
    /// # Errors
    /// [`OpenError`]; each variant names the next step. If the node refuses the stream for its own limits,
    /// the open succeeds and the first `recv` fails.
    pub async fn open(
        &self,
        node: NodeId,
        addrs: &[Multiaddr],
        deadline: Instant,
    ) -> Result<TurnStream, OpenError> {
        self.open_any(node, addrs, None, deadline).await
    }

    /// As [`MeshHandle::open`], in another protocol than the turn protocol.
    ///
    /// # Errors
    /// As [`MeshHandle::open`]; [`OpenError::ProtocolUnsupported`] if the node does not speak the protocol.
    pub async fn open_side(
        &self,
        node: NodeId,
        addrs: &[Multiaddr],
        protocol: &StreamProtocol,
        deadline: Instant,
    ) -> Result<TurnStream, OpenError> {
        self.open_any(node, addrs, Some(protocol), deadline).await
    }

    async fn open_any(
        &self,
        node: NodeId,
        addrs: &[Multiaddr],
        protocol: Option<&StreamProtocol>,
        deadline: Instant,
    ) -> Result<TurnStream, OpenError> {
        let attempts = async {
            // A connection may close just as it is chosen; the second try then dials.
            for _ in 0..2 {
                if let Some((stream, protocol)) = self.try_open(node, addrs, protocol).await? {
                    return Ok(TurnStream::from_io(node, protocol.as_ref(), stream));
                }
            }
            Err(OpenError::Unreachable { reason: "the connection ended while opening".to_owned() })
        };
        timeout_at(deadline, attempts).await.unwrap_or(Err(OpenError::Timeout))
    }

    /// One attempt; `None` when the chosen connection closed meanwhile.
    async fn try_open(
        &self,
        node: NodeId,
        addrs: &[Multiaddr],
        protocol: Option<&StreamProtocol>,
    ) -> Result<Option<NegotiatedStream>, OpenError> {
        let peer = peer_id_of(node).ok_or_else(|| OpenError::Unreachable {
            reason: "its identifier is not an Ed25519 key".to_owned(),
        })?;
        let (reply, answer) = oneshot::channel();
        let addrs = addrs.iter().take(MAX_DIAL_ADDRS).cloned().collect();
        let reply = OpenReply::new(reply, protocol.cloned());
        let command = Command::Open { peer, addrs, reply };
        self.0.commands.send(command).await.map_err(|_| OpenError::Closed)?;
        match answer.await {
            Ok(result) => result.map(Some),
            Err(_) if self.0.cancel.is_cancelled() || self.0.commands.is_closed() => Err(OpenError::Closed),
            Err(_) => Ok(None),
        }
    }

    /// Whether this mesh dials an address that it did not get from its configuration or a caller of
    /// [`open`](Self::open): such an address has no name, and lies no nearer than the configured ones.
    #[must_use]
    pub fn may_dial(&self, address: &Multiaddr) -> bool {
        can_dial(address, &self.0.scope)
    }

    /// Closes the connections with a peer and accepts none from it for `span`. Outbound connections are
    /// unaffected.
    ///
    /// The list is bounded; when it is full, no further peers are added. A new identity is free, so this
    /// saves work but is no barrier.
    pub fn shut_out(&self, node: NodeId, span: Duration) {
        let Some(peer) = peer_id_of(node) else { return };
        self.0.gate.shut_out(peer, span);
        // A full queue means that the swarm is busy; the peer's next stream leads here again.
        let _ = self.0.commands.try_send(Command::Disconnect { peer });
    }

    /// Records that a turn of a subnet was served. Call it each time.
    ///
    /// For a day, the subnet is trusted: it has reserved connections, and its idle ones are evicted last.
    pub fn trust(&self, subnet: Subnet) {
        self.0.gate.trust(subnet);
    }

    /// The known peers, in no particular order.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerInfo> {
        self.0.peers.read().unwrap_or_else(PoisonError::into_inner).list()
    }

    /// Changes of the peer table from now on.
    ///
    /// A subscriber that falls 256 events behind learns how many it missed, and should read
    /// [`peers`](Self::peers) again.
    #[must_use]
    pub fn peer_events(&self) -> broadcast::Receiver<PeerEvent> {
        self.0.peer_events.subscribe()
    }

    /// Waits until the peer table satisfies a condition, and returns it. Cancel safe.
    ///
    /// Returns `None` at the deadline or when the mesh stops.
    pub async fn wait_for_peers(
        &self,
        deadline: Instant,
        condition: impl Fn(&[PeerInfo]) -> bool,
    ) -> Option<Vec<PeerInfo>> {
        let mut events = self.peer_events();
        loop {
            let peers = self.peers();
            if condition(&peers) {
                return Some(peers);
            }
            let event = async {
                tokio::select! {
                    event = events.recv() => !matches!(event, Err(broadcast::error::RecvError::Closed)),
                    _ = self.closed() => false,
                }
            };
            if !timeout_at(deadline, event).await.unwrap_or(false) {
                return None;
            }
        }
    }

    /// The network status of this mesh, updated twice a second.
    #[must_use]
    pub fn network(&self) -> NetworkStatus {
        self.0.status.borrow().clone()
    }

    /// Changes of [`network`](Self::network).
    #[must_use]
    pub fn network_changes(&self) -> watch::Receiver<NetworkStatus> {
        self.0.status.clone()
    }

    /// Announces this mesh's own record. Call it every few seconds with a newly signed record.
    ///
    /// Gossip sends it at once, which also proves that this mesh is alive. The DHT receives it from time to
    /// time.
    pub async fn announce(&self, record: Arc<SignedObject<NodeRecord>>) {
        // A stopped mesh has nothing to announce.
        let _ = self.0.commands.send(Command::Announce(record)).await;
    }

    /// Nodes that claim to serve a model, by its name or the hex of its ID.
    ///
    /// # Errors
    /// [`DhtError`].
    pub async fn providers(&self, model: &str) -> Result<Vec<NodeId>, DhtError> {
        let (reply, answer) = oneshot::channel();
        self.ask_dht(Command::Providers { model: model.to_owned(), reply }, answer).await
    }

    pub(crate) async fn dht_get(&self, key: DhtKey) -> Result<Option<LookupResult>, DhtError> {
        let (reply, answer) = oneshot::channel();
        self.ask_dht(Command::Get { key, reply }, answer).await
    }

    pub(crate) async fn dht_put(&self, key: DhtKey, value: Vec<u8>, expires_ms: u64) -> Result<(), DhtError> {
        let (reply, answer) = oneshot::channel();
        self.ask_dht(Command::Put { key, value, expires_ms, reply }, answer).await
    }

    async fn ask_dht<T>(
        &self,
        command: Command,
        answer: oneshot::Receiver<Result<T, DhtError>>,
    ) -> Result<T, DhtError> {
        self.0.commands.send(command).await.map_err(|_| DhtError::Closed)?;
        answer.await.unwrap_or(Err(DhtError::Closed))
    }

    /// The current listen addresses, with their real ports, without `/p2p/`.
    #[must_use]
    pub fn listen_addrs(&self) -> Vec<Multiaddr> {
        self.0.listen_addrs.borrow().clone()
    }

    /// [`listen_addrs`](Self::listen_addrs) with this mesh's identity, for other meshes' bootstrap lists.
    #[must_use]
    pub fn bootstrap_addrs(&self) -> Vec<Multiaddr> {
        let peer = peer_id_of(self.0.node).expect("our own identity was checked at the start");
        self.listen_addrs().into_iter().map(|address| address.with(Protocol::P2p(peer))).collect()
    }

    /// The mesh's counters.
    #[must_use]
    pub fn stats(&self) -> MeshStats {
        MeshStats { shut_out: self.0.gate.shut_out_count(), ..self.0.counters.read() }
    }

    /// Waits until the mesh has stopped, for any reason. Cancel safe.
    pub async fn closed(&self) -> MeshExit {
        let mut exit = self.0.exit.clone();
        match exit.wait_for(Option::is_some).await {
            Ok(ended) => ended.clone().unwrap_or(MeshExit::Stopped),
            Err(_) => MeshExit::Panicked("the runtime ended before the mesh".to_owned()),
        }
    }

    /// Stops the mesh: closes connections (within two seconds), ends open turns and joins the task.
    ///
    /// Callers that want their turns to finish wait for them first. On return the TCP ports are free. QUIC
    /// ports follow a moment later, once every turn of this mesh is dropped.
    pub async fn shutdown(&self) -> MeshExit {
        self.0.cancel.cancel();
        self.closed().await
    }
}
