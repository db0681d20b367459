//! The running node: start, service and shutdown.
//!
//! [`run`] follows the life of a node: open the data directory, bind the admin port, load the engine, join
//! the mesh, serve, drain. This module joins every task that it starts. It holds no part of a turn.

pub(crate) mod data_dir;
pub(crate) mod engines;
mod events;
mod models;
mod upkeep;
mod view;
mod webrtc;

use std::{io, sync::Arc, time::Duration};

use baton_kit::{
    signals::StopSignals,
    stores::{StoreOptions, token_file},
};
use baton_mesh::{
    EMBED_PROTOCOL, Incoming, Mesh, MeshClock, MeshConfig, MeshError, MeshExit, MeshHandle, MeshLimits,
};
use baton_proto::{
    node_record::{ModelOffer, NodeLimits, StorageOffer},
    store::{BlobStore, HeadIndex},
};
use baton_walrus_client::{HttpStore, http_store::RetryPolicy};
use tokio::{net::TcpListener, runtime, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    admin,
    config::{AdminSetting, HeadsSetting, Settings},
    engine::Engine,
    failure::{Exit, Failure},
    identity::{Identity, Profile, load_node_key, peer_id},
    journal::Journal,
    ledger::{LEDGER_FOLDER, Ledger},
    metrics::{Metrics, WatchedStore},
    service::{
        ClockMs, EmbeddingModel, LogKey, NodeService, PausePoints, Price, QuotaPolicy, ServiceDeps,
        ServiceError, ServiceLimits,
    },
};
use data_dir::DataDir;
use events::EventPrinter;
use view::{ServingNode, View};

/// Folder of the journal in the data directory.
const JOURNAL_FOLDER: &str = "journal";
/// The software name in the node's record and towards peers.
const SOFTWARE: &str = concat!("baton-node/", env!("CARGO_PKG_VERSION"));
/// How long the runtime waits at the end for abandoned blocking work, such as a download.
const RUNTIME_GRACE: Duration = Duration::from_millis(500);

/// Runs a node until a signal or a failure.
///
/// # Errors
/// [`Failure`], with the exit code of its kind.
pub(crate) fn run(settings: Settings) -> Result<(), Failure> {
    engines::limit_threads(&settings)?;
    let home = DataDir::open_or_prepare(&settings)?;
    let runtime = runtime::Builder::new_multi_thread().enable_all().build()?;
    let events = EventPrinter::new(settings.json());
    let pause = settings.pause_at.map_or_else(PausePoints::default, |step| events.pause_at(step));
    let result = runtime.block_on(Box::pin(live(settings, home, pause, events)));
    runtime.shutdown_timeout(RUNTIME_GRACE);
    result
}

async fn live(
    settings: Settings,
    home: DataDir,
    pause: PausePoints,
    events: EventPrinter,
) -> Result<(), Failure> {
    let mut signals = StopSignals::listen()?;
    let key = load_node_key(home.path())?;
    let metrics = Arc::new(Metrics::new(settings.slots(), settings.queue()));
    let view = Arc::new(View::new(settings.clone(), key.node_id(), metrics.clone()));
    let admin = AdminPort::open(settings.admin(), view.clone()).await?;
    if let Some(admin) = &admin {
        home.note_admin(admin.address);
    }
    tracing::info!(node = %key.node_id(), data_dir = %home.path().display(), "starting");

    let loading = async {
        let engines = engines::load(&settings, metrics.clone()).await?;
        Ok::<_, Failure>((engines, engines::load_embeddings(&settings).await?))
    };
    let models = tokio::select! {
        models = loading => models?,
        () = signals.next() => {
            events.stopped();
            return Ok(());
        }
    };
    let node = Box::pin(Node::start(&settings, &home, models, metrics, pause)).await?;
    view.running(node.running.clone());
    events.ready(&node.running, admin.as_ref().map(|admin| admin.address));
    let running = &node.running;
    let addresses: Vec<_> = running.mesh.listen_addrs().iter().map(ToString::to_string).collect();
    tracing::info!(listen = addresses.join(" "), peer_id = %running.peer_id, model = running.models[0].name, "listening; ready when the store answers");

    let result = node.serve(&settings, &mut signals, &view).await;
    if let Some(admin) = admin {
        admin.close().await?;
    }
    result?;
    tracing::info!("stopped");
    events.stopped();
    drop(home);
    Ok(())
}

/// The parts of a node that serve.
struct Node {
    running: Arc<ServingNode>,
    service: NodeService,
    incoming: Incoming,
    engines: Vec<Arc<dyn Engine>>,
}

impl Node {
    async fn start(
        settings: &Settings,
        home: &DataDir,
        (engines, embeddings): (Vec<Arc<dyn Engine>>, Option<EmbeddingModel>),
        metrics: Arc<Metrics>,
        pause: PausePoints,
    ) -> Result<Self, Failure> {
        let mesh_clock = MeshClock::shifted(settings.clock_offset());
        let of_service = mesh_clock.clone();
        let clock: ClockMs = Arc::new(move || of_service.now_ms());
        let offers: Vec<ModelOffer> = engines
            .iter()
            .map(|engine| offer(settings, engine.as_ref()))
            .chain(embeddings.iter().map(|embeddings| embeddings.offer.clone()))
            .collect();
        let (identity, journal) = open_state(settings, home, offers.clone(), clock.clone()).await?;
        let identity = Arc::new(identity);
        let http = http_store(settings).await?;
        let heads =
            (settings.heads() != HeadsSetting::Off).then(|| Arc::new(http.clone()) as Arc<dyn HeadIndex>);
        let store = Arc::new(WatchedStore::new(Arc::new(http), metrics.clone()));
        let (mesh, incoming) = join_mesh(settings, &identity, embeddings.is_some(), mesh_clock).await?;
        upkeep::refresh(identity.clone(), upkeep::addresses(&settings.external(), &mesh)).await;

        let deps = ServiceDeps {
            engines: engines.clone(),
            store: store.clone() as Arc<dyn BlobStore>,
            heads,
            identity: identity.clone(),
            journal: journal.clone(),
            limits: service_limits(settings),
            clock,
            observer: metrics,
            peers: Some(mesh.clone()),
            log_key: LogKey::random(),
            pause,
            embeddings,
        };
        let service = NodeService::new(deps);
        let models = offers.iter().map(view::model_info).collect();
        let peer_id = peer_id(identity.node_id());
        let running =
            ServingNode { mesh, identity, store, journal, models, engines: engines.clone(), peer_id };
        Ok(Self { running: Arc::new(running), service, incoming, engines })
    }

    /// Serves until a signal, then drains. A second signal ends it at once.
    async fn serve(self, settings: &Settings, signals: &mut StopSignals, view: &View) -> Result<(), Failure> {
        let Self { running, service, incoming, engines } = self;
        let stop = CancellationToken::new();
        let mut service = tokio::spawn(service.run(incoming, stop.clone()));
        let mut upkeep = tokio::spawn(upkeep::run(running.clone(), settings.external(), stop.clone()));
        let early = tokio::select! {
            result = &mut service => Some(service_result(result)),
            exit = running.mesh.closed() => Some(Err(mesh_ended(&exit))),
            Err(error) = &mut upkeep => Some(Err(error.into())),
            () = signals.next() => None,
        };
        let result = match early {
            Some(Ok(())) => Err(Failure::text(Exit::Failure, "the turn service ended by itself")),
            Some(failed) => failed,
            None => drain(settings, signals, view, &stop, &mut service).await,
        };
        stop.cancel();
        close(&running.mesh, engines, upkeep).await;
        result
    }
}

async fn drain(
    settings: &Settings,
    signals: &mut StopSignals,
    view: &View,
    stop: &CancellationToken,
    service: &mut JoinHandle<Result<(), ServiceError>>,
) -> Result<(), Failure> {
    view.draining();
    let turns = view.turns_running();
    tracing::info!(
        turns,
        seconds = settings.drain_seconds(),
        "stopping: running turns may finish; a second signal cuts them off"
    );
    stop.cancel();
    tokio::select! {
        result = service => service_result(result),
        () = signals.next() => Err(Failure::text(Exit::Failure, "ended at once by a second signal; running turns were cut off")),
    }
}

async fn close(mesh: &MeshHandle, engines: Vec<Arc<dyn Engine>>, upkeep: JoinHandle<()>) {
    mesh.shutdown().await;
    // After a panic it was joined above.
    if !upkeep.is_finished() {
        let _ = upkeep.await;
    }
    // Blocks until the engines' threads end: within a token, or after a model load in progress.
    let _ = tokio::task::spawn_blocking(move || engines.iter().for_each(|engine| engine.shutdown())).await;
}

fn service_result(result: Result<Result<(), ServiceError>, tokio::task::JoinError>) -> Result<(), Failure> {
    match result? {
        Err(ServiceError::Journal(error)) => Err(error.into()),
        ended => Ok(ended?),
    }
}

fn mesh_ended(exit: &MeshExit) -> Failure {
    match exit {
        MeshExit::Stopped => Failure::text(Exit::Failure, "the mesh ended by itself"),
        MeshExit::Panicked(reason) => Failure::text(Exit::Failure, format!("the mesh failed: {reason}")),
    }
}

async fn open_state(
    settings: &Settings,
    home: &DataDir,
    offers: Vec<ModelOffer>,
    clock: ClockMs,
) -> Result<(Identity, Journal), Failure> {
    let profile = profile(settings, offers);
    let (folder, limits) = (home.path().to_owned(), settings.journal_limits());
    let opened = tokio::task::spawn_blocking(move || {
        let identity = Identity::open(&folder, profile, clock.clone())?;
        let journal = Journal::open(&folder.join(JOURNAL_FOLDER), limits, clock())?;
        let receipts = folder.join(LEDGER_FOLDER);
        let ledger = Ledger::open(&receipts).map_err(|error| {
            let text = format!("cannot use the folder of receipts {}: {error}", receipts.display());
            Failure::text(Exit::Storage, text)
        })?;
        tell_damage(&journal, &ledger);
        Ok((identity, journal.with_ledger(ledger)))
    });
    opened.await?
}

/// Logs which files of the node are damaged.
fn tell_damage(journal: &Journal, ledger: &Ledger) {
    if let Some(damage) = journal.damage() {
        if damage.may_miss_entries() {
            tracing::error!("the journal is damaged: {damage}");
        } else {
            tracing::warn!("the journal was damaged: {damage}");
        }
    }
    for damage in ledger.damages() {
        tracing::error!("receipts are damaged: {damage}");
    }
}

fn offer(settings: &Settings, engine: &dyn Engine) -> ModelOffer {
    let info = engine.info();
    ModelOffer {
        model: info.model_id,
        name: info.name.clone(),
        engine: info.kind,
        context_tokens: info.context_tokens,
        input_price: settings.input_price(),
        output_price: settings.output_price(),
    }
}

fn profile(settings: &Settings, models: Vec<ModelOffer>) -> Profile {
    let limits = NodeLimits {
        slots: settings.slots(),
        queue: settings.queue(),
        turns_per_minute: settings.turns_per_minute(),
        max_output_tokens: settings.max_output_tokens(),
    };
    Profile { models, limits, storage: storage_offer(settings), software: SOFTWARE.to_owned() }
}

fn storage_offer(settings: &Settings) -> StorageOffer {
    StorageOffer {
        price: settings.storage_price(),
        max_epochs: settings.max_epochs().max(1),
        unknown_max_epochs: settings.unknown_max_epochs().clamp(1, settings.max_epochs().max(1)),
    }
}

pub(crate) fn service_limits(settings: &Settings) -> ServiceLimits {
    ServiceLimits {
        slots: settings.slots() as usize,
        queue: settings.queue() as usize,
        turns_per_minute: settings.turns_per_minute(),
        max_output_tokens: settings.max_output_tokens(),
        tokens_per_hour: settings.tokens_per_hour(),
        storage_per_hour: settings.storage_per_hour(),
        own_networks: settings.own_networks().into(),
        quotas: QuotaPolicy {
            issuers: settings.grant_issuers(),
            required: settings.grants_required(),
            revoked: settings.grants_revoked(),
        },
        storage: storage_offer(settings),
        price: Price { input: settings.input_price(), output: settings.output_price() },
        drain_grace: Duration::from_secs(settings.drain_seconds().into()),
        cache_bytes: settings.cache_bytes(),
        ..ServiceLimits::default()
    }
}

/// The store client for these settings.
async fn http_store(settings: &Settings) -> Result<HttpStore, Failure> {
    let store = store_options(settings).open_asking(RetryPolicy::default()).await;
    store.map_err(|error| Failure { exit: Exit::Usage, error: anyhow::Error::from_boxed(error) })
}

/// The stores that the settings name.
pub(crate) fn store_options(settings: &Settings) -> StoreOptions {
    StoreOptions {
        publishers: settings.publisher(),
        aggregators: settings.aggregator(),
        heads: match settings.heads() {
            HeadsSetting::Off => Vec::new(),
            HeadsSetting::At(url) => vec![url],
        },
        shards: settings.shards,
        token: token_file(settings.publisher_token_file.clone(), settings.publisher_secret_file.clone()),
    }
}

async fn join_mesh(
    settings: &Settings,
    identity: &Identity,
    embeds: bool,
    clock: MeshClock,
) -> Result<(MeshHandle, Incoming), Failure> {
    let limits = MeshLimits { own_networks: settings.own_networks().into(), ..settings.mesh_limits() };
    let for_browsers = settings.listen().iter().any(|address| address.to_string().contains("/webrtc-direct"));
    let certificate = for_browsers.then(|| webrtc::load_or_create(&settings.data_dir())).transpose()?;
    let config = MeshConfig {
        side_protocols: embeds.then_some(EMBED_PROTOCOL).into_iter().collect(),
        limits,
        bootstrap: settings.bootstrap(),
        external: settings.external(),
        mdns: settings.mdns(),
        discovery: settings.discovery(),
        nat: settings.nat(),
        upnp: settings.upnp(),
        relay: settings.relay(),
        relays: settings.relays(),
        proxies: settings.proxies().into(),
        clock,
        webrtc_certificate: certificate,
        ..MeshConfig::server(SOFTWARE, settings.listen())
    };
    Box::pin(Mesh::spawn(identity.seed(), config)).await.map_err(|error| {
        let exit = match &error {
            MeshError::Listen { .. } => Exit::Address,
            MeshError::Config(_) => Exit::Usage,
            MeshError::Transport(_) | MeshError::Mdns(_) => Exit::Failure,
        };
        Failure::new(exit, error)
    })
}

/// The open admin port.
struct AdminPort {
    address: std::net::SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<io::Result<()>>,
}

impl AdminPort {
    async fn open(setting: AdminSetting, view: Arc<View>) -> Result<Option<Self>, Failure> {
        let AdminSetting::At(address) = setting else { return Ok(None) };
        let refused = |error: io::Error| {
            let hint = match error.kind() {
                io::ErrorKind::AddrInUse => "another process listens there, perhaps another node",
                _ => "the system refuses it",
            };
            let text = format!(
                "cannot open the admin port {address}: {error}; {hint}: choose another with --admin 127.0.0.1:PORT \
                 (0 lets the system choose), or switch it off with --admin none"
            );
            Failure::text(Exit::Address, text)
        };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let stop = CancellationToken::new();
        let task = tokio::spawn(admin::serve(listener, view, stop.clone()));
        Ok(Some(Self { address, stop, task }))
    }

    async fn close(self) -> Result<(), Failure> {
        self.stop.cancel();
        Ok(self.task.await??)
    }
}
