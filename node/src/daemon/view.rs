//! The admin port's view of the node, available from the start, even before the engine is loaded.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use baton_keys::ids::NodeId;
use baton_mesh::{MeshHandle, PeerId, Reachability};
use baton_proto::node_record::ModelOffer;

use crate::{
    admin::{ModelInfo, NetworkStatus, Status, StatusSource, StoreStatus, network::Nat},
    config::Settings,
    engine::{Engine, Load},
    identity::{Identity, peer_id},
    journal::Journal,
    metrics::{Metrics, PeerCounts, Snapshot, WatchedStore, resident_bytes},
};

/// A store with an answer in this time counts as reachable; a few probes may be lost.
pub(super) const STORE_FRESH: Duration = Duration::from_secs(100);

/// The parts of a serving node.
pub(super) struct ServingNode {
    pub(super) mesh: MeshHandle,
    pub(super) identity: Arc<Identity>,
    pub(super) store: Arc<WatchedStore>,
    pub(super) journal: Journal,
    pub(super) models: Vec<ModelInfo>,
    pub(super) engines: Vec<Arc<dyn Engine>>,
    pub(super) peer_id: PeerId,
}

impl ServingNode {
    pub(super) fn store_answers(&self) -> bool {
        self.store.answered_ago().is_some_and(|ago| ago < STORE_FRESH)
    }
}

pub(super) fn model_info(offer: &ModelOffer) -> ModelInfo {
    ModelInfo {
        name: offer.name.clone(),
        model: offer.model.to_string(),
        engine: offer.engine.name().to_owned(),
        context_tokens: offer.context_tokens,
    }
}

/// The load of all engines together.
fn load(engines: &[Arc<dyn Engine>]) -> Load {
    engines.iter().map(|engine| engine.load()).fold(Load::default(), |sum, load| Load {
        running: sum.running + load.running,
        waiting: sum.waiting + load.waiting,
        kv_bytes: sum.kv_bytes + load.kv_bytes,
        cached_bytes: sum.cached_bytes + load.cached_bytes,
        kv_budget: sum.kv_budget + load.kv_budget,
    })
}

/// The data behind the admin port.
pub(super) struct View {
    node: NodeId,
    settings: Settings,
    started: Instant,
    metrics: Arc<Metrics>,
    running: OnceLock<Arc<ServingNode>>,
    draining: AtomicBool,
}

impl View {
    pub(super) fn new(settings: Settings, node: NodeId, metrics: Arc<Metrics>) -> Self {
        Self {
            node,
            settings,
            started: Instant::now(),
            metrics,
            running: OnceLock::new(),
            draining: AtomicBool::new(false),
        }
    }

    /// Sets the serving node.
    pub(super) fn running(&self, running: Arc<ServingNode>) {
        // A process has one node, started once.
        let _ = self.running.set(running);
    }

    /// The node refuses new turns from now on.
    pub(super) fn draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// The number of running turns.
    pub(super) fn turns_running(&self) -> u64 {
        self.metrics.turn_counts().running
    }

    /// Reasons why the node cannot serve and store turns yet.
    fn not_ready(&self) -> Vec<String> {
        let Some(running) = self.running.get() else {
            return vec!["the model is being fetched or loaded".to_owned()];
        };
        let mut missing = Vec::new();
        if self.draining.load(Ordering::Relaxed) {
            missing.push("the node is stopping".to_owned());
        }
        if running.mesh.listen_addrs().is_empty() {
            missing.push("no address is listened on".to_owned());
        }
        if running.journal.failed() {
            missing.push(
                "the journal cannot be written: make space on the disk, then start the node again".to_owned(),
            );
        }
        if !running.store_answers() {
            missing.push(match running.store.was_probed() {
                true => "the store does not answer".to_owned(),
                false => "waiting for the store's first answer".to_owned(),
            });
        }
        missing
    }

    /// The node's view of the network.
    fn network(&self) -> Option<NetworkStatus> {
        let running = self.running.get()?;
        let network = running.mesh.network();
        let mut external = self.settings.external();
        external.extend(
            network
                .external
                .iter()
                .filter(|address| !external.contains(address))
                .cloned()
                .collect::<Vec<_>>(),
        );
        Some(NetworkStatus {
            nat: match network.reachability {
                Reachability::Unknown => Nat::Unknown,
                Reachability::Public => Nat::Public,
                Reachability::Private => Nat::Private,
            },
            external_addrs: external.iter().map(ToString::to_string).collect(),
            relayed_via: network
                .relays
                .iter()
                .filter(|relay| relay.limits.is_some())
                .map(|relay| relay.relay.to_string())
                .collect(),
        })
    }

    fn peers(&self) -> PeerCounts {
        let peers = self.running.get().map(|running| running.mesh.peers()).unwrap_or_default();
        PeerCounts { connected: peers.iter().filter(|peer| peer.connected).count(), known: peers.len() }
    }
}

impl StatusSource for View {
    fn status(&self) -> Status {
        let running = self.running.get();
        let not_ready = self.not_ready();
        let listen = running.map(|node| node.mesh.bootstrap_addrs()).unwrap_or_default();
        let answered = running.and_then(|node| node.store.answered_ago());
        Status {
            healthy: true,
            ready: not_ready.is_empty(),
            not_ready,
            draining: self.draining.load(Ordering::Relaxed),
            node: self.node.to_string(),
            peer_id: peer_id(self.node).to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.started.elapsed().as_secs(),
            listen: listen.iter().map(ToString::to_string).collect(),
            peers: self.peers(),
            models: running.map(|node| node.models.clone()).unwrap_or_default(),
            slots: self.settings.slots(),
            queue: self.settings.queue(),
            turns: self.metrics.turn_counts(),
            speed: self.metrics.speed(),
            store: StoreStatus {
                publishers: self.settings.publisher(),
                aggregators: self.settings.aggregator(),
                reachable: running.is_some_and(|node| node.store_answers()),
                answered_seconds_ago: answered.map(|ago| ago.as_secs()),
            },
            resident_bytes: resident_bytes(),
            network: self.network(),
        }
    }

    fn settings(&self) -> String {
        self.settings.running_text()
    }

    fn metrics(&self) -> String {
        let running = self.running.get();
        let snapshot = Snapshot {
            mesh: running.map(|node| node.mesh.stats()).unwrap_or_default(),
            peers: self.peers(),
            store_up: running.is_some_and(|node| node.store_answers()),
            ready: self.not_ready().is_empty(),
            engine: running.map(|node| load(&node.engines)).unwrap_or_default(),
        };
        self.metrics.render(&snapshot, self.started.elapsed())
    }
}
