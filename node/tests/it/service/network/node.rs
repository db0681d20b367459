//! A node: a real mesh, a real journal, the echo engine.

use std::{
    ops::Deref,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use baton_keys::{SecretSigningKey, exchange::ExchangeSecret};
use baton_mesh::{EMBED_PROTOCOL, Mesh, MeshConfig, MeshHandle, Multiaddr, Networks};
use baton_node::{
    engine::{
        Engine, EngineError, EngineInfo, GenerateHandle, GenerateJob,
        echo::{EchoConfig, EchoEngine},
    },
    journal::{Journal, JournalLimits},
    ledger::Ledger,
    prompt::Prompt,
    service::{
        BlobContent, BlobSource, EmbeddingModel, LogKey, NodeIdentity, NodeService, PausePoints, ServiceDeps,
        ServiceError, ServiceLimits, ServiceObserver, TurnSummary,
    },
};
use baton_proto::{
    ErrorCode, SignedBytes, SignedObject,
    ids::ExchangeKeyId,
    limits::NODE_RECORD_VERSION,
    node_record::{KeyWindow, NodeLimits, NodeRecord, StorageOffer},
    wire::StoreState,
};
use tempfile::TempDir;
use tokio::{runtime::Handle, sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::{client::Recipient, now_ms, store::MemoryStore};

pub(crate) struct TestIdentity {
    signing: SecretSigningKey,
    exchange: ExchangeSecret,
}

impl NodeIdentity for TestIdentity {
    fn signing_key(&self) -> &SecretSigningKey {
        &self.signing
    }

    fn exchange_secret(&self, key: &ExchangeKeyId, _now_ms: u64) -> Option<ExchangeSecret> {
        (self.exchange.public_key().id() == *key).then(|| self.exchange.clone())
    }

    fn record(&self) -> SignedBytes {
        let now = now_ms();
        let key = KeyWindow { key: self.exchange.public_key(), from_ms: now, until_ms: now + 3_600_000 };
        let record = NodeRecord {
            version: NODE_RECORD_VERSION,
            node: self.signing.node_id(),
            sequence: 1,
            addresses: Vec::new(),
            keys: vec![key],
            models: Vec::new(),
            limits: NodeLimits { slots: 1, queue: 1, turns_per_minute: 1, max_output_tokens: 1 },
            storage: StorageOffer::default(),
            versions: vec![1],
            software: "test".to_owned(),
            issued_ms: now,
            expires_ms: now + 3_600_000,
        };
        SignedObject::sign(record, &self.signing).bytes().clone()
    }
}

/// Counts jobs, and stores the last rendered prompt.
pub(crate) struct WatchedEngine {
    inner: EchoEngine,
    pub jobs: AtomicUsize,
    pub last_prompt: Mutex<String>,
}

impl Engine for WatchedEngine {
    fn info(&self) -> &EngineInfo {
        self.inner.info()
    }

    fn count(&self, prompt: &Prompt) -> Result<u32, EngineError> {
        self.inner.count(prompt)
    }

    fn generate(&self, job: GenerateJob) -> Result<GenerateHandle, EngineError> {
        self.jobs.fetch_add(1, SeqCst);
        let rendered: Vec<String> = job.prompt.rendered().map(|(_, text)| text.to_string()).collect();
        *self.last_prompt.lock().unwrap() = rendered.join("\n");
        self.inner.generate(job)
    }

    fn shutdown(&self) {
        self.inner.shutdown();
    }
}

/// Counts of the service's reports. Tests can wait for each change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub started: usize,
    pub attached: usize,
    pub finished: usize,
    pub failed: Vec<ErrorCode>,
    pub refused: Vec<ErrorCode>,
    pub abandoned: usize,
    pub used: Vec<BlobSource>,
    pub wrong: Vec<BlobSource>,
    pub stored: Vec<StoreState>,
}

pub(crate) struct Watcher(pub watch::Sender<Counts>);

impl Watcher {
    fn note(&self, change: impl FnOnce(&mut Counts)) {
        self.0.send_modify(change);
    }
}

impl ServiceObserver for Watcher {
    fn turn_started(&self) {
        self.note(|counts| counts.started += 1);
    }
    fn turn_attached(&self) {
        self.note(|counts| counts.attached += 1);
    }
    fn refused(&self, code: ErrorCode) {
        self.note(|counts| counts.refused.push(code));
    }
    fn failed(&self, code: ErrorCode) {
        self.note(|counts| counts.failed.push(code));
    }
    fn finished(&self, _turn: &TurnSummary) {
        self.note(|counts| counts.finished += 1);
    }
    fn abandoned(&self) {
        self.note(|counts| counts.abandoned += 1);
    }
    fn blob(&self, source: BlobSource, content: BlobContent) {
        match content {
            BlobContent::Right => self.note(|counts| counts.used.push(source)),
            BlobContent::Wrong => self.note(|counts| counts.wrong.push(source)),
            BlobContent::Missing | BlobContent::Failed => {}
        }
    }
    fn stored(&self, state: &StoreState, _after: Duration) {
        self.note(|counts| counts.stored.push(*state));
    }
}

/// Deviations from the default node.
pub(crate) struct Setup {
    pub seed: u8,
    pub limits: ServiceLimits,
    pub echo: EchoConfig,
    pub pause: PausePoints,
    /// Milliseconds from its start to the journal's reported beginning.
    pub journal_begins_later_ms: u64,
    pub bootstrap: Vec<Multiaddr>,
    /// Folder for acknowledged receipts, if any.
    pub ledger: Option<std::path::PathBuf>,
    /// An additional engine.
    pub beside: Option<Arc<dyn Engine>>,
    /// The embedding model, if any.
    pub embeddings: Option<EmbeddingModel>,
}

impl Default for Setup {
    fn default() -> Self {
        let limits = ServiceLimits {
            slots: 2,
            turns_per_minute: 6000,
            store_backoff: Duration::from_millis(20),
            attach_grace: Duration::from_millis(300),
            drain_grace: Duration::from_secs(5),
            own_networks: Networks::loopback(),
            ..ServiceLimits::default()
        };
        Self {
            seed: 1,
            limits,
            echo: EchoConfig::default(),
            pause: PausePoints::default(),
            journal_begins_later_ms: 0,
            bootstrap: Vec::new(),
            ledger: None,
            beside: None,
            embeddings: None,
        }
    }
}

impl Setup {
    /// A node whose engine takes this many milliseconds for each token.
    pub(crate) fn slow(token_ms: u64) -> Self {
        let token_delay = Duration::from_millis(token_ms);
        Self { echo: EchoConfig { token_delay, ..EchoConfig::default() }, ..Self::default() }
    }
}

pub(crate) struct TestNode {
    pub place: Recipient,
    pub mesh: MeshHandle,
    pub engine: Arc<WatchedEngine>,
    pub counts: watch::Receiver<Counts>,
    pub service: NodeService,
    pub folder: Option<TempDir>,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), ServiceError>>,
}

impl Deref for TestNode {
    type Target = Recipient;

    fn deref(&self) -> &Recipient {
        &self.place
    }
}

impl TestNode {
    pub(crate) async fn start(folder: &Path, store: &Arc<MemoryStore>, setup: Setup) -> Self {
        let identity = TestIdentity {
            signing: SecretSigningKey::from_seed(&[setup.seed; 32]),
            exchange: ExchangeSecret::from_bytes(&[setup.seed ^ 0x55; 32]),
        };
        let (node, exchange) = (identity.signing.node_id(), identity.exchange.public_key());
        let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
        let mut config = MeshConfig::server("baton/test (node)", listen);
        config.bootstrap = setup.bootstrap;
        config.limits.own_networks = Networks::loopback();
        config.side_protocols.extend(setup.embeddings.as_ref().map(|_| EMBED_PROTOCOL));
        let (mesh, incoming) = Mesh::spawn(identity.signing.expose_seed(), config).await.unwrap();
        let engine = Arc::new(WatchedEngine {
            inner: EchoEngine::new(&setup.echo, Handle::current()),
            jobs: AtomicUsize::new(0),
            last_prompt: Mutex::default(),
        });
        let begins = now_ms() - 1 + setup.journal_begins_later_ms;
        let journal = Journal::open(folder, JournalLimits::default(), begins).unwrap();
        let journal = match &setup.ledger {
            Some(folder) => journal.with_ledger(Ledger::open(folder).unwrap()),
            None => journal,
        };
        let (sender, counts) = watch::channel(Counts::default());
        let mut engines: Vec<Arc<dyn Engine>> = vec![engine.clone()];
        engines.extend(setup.beside);
        let deps = ServiceDeps {
            engines,
            store: store.clone(),
            heads: Some(store.clone()),
            identity: Arc::new(identity),
            journal,
            limits: setup.limits,
            clock: Arc::new(now_ms),
            observer: Arc::new(Watcher(sender)),
            peers: Some(mesh.clone()),
            log_key: LogKey::random(),
            pause: setup.pause,
            embeddings: setup.embeddings,
        };
        let service = NodeService::new(deps);
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(service.clone().run(incoming, shutdown.clone()));
        let (model, addresses) = (engine.info().model_id, mesh.listen_addrs());
        let place = Recipient { node, model, exchange, addresses };
        Self { place, mesh, engine, counts, service, folder: None, shutdown, task }
    }

    /// Starts its shutdown, without waiting.
    pub(crate) fn drain(&self) {
        self.shutdown.cancel();
    }

    /// Drains it, and waits until every task has ended and its journal is free.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        drop(self.service);
        self.task.await.unwrap().unwrap();
        self.mesh.shutdown().await;
        let engine = self.engine.clone();
        tokio::task::spawn_blocking(move || engine.shutdown()).await.unwrap();
        drop(self.folder);
    }

    /// Waits until the counts satisfy a condition.
    pub(crate) async fn until(&self, condition: impl FnMut(&Counts) -> bool) {
        let mut counts = self.counts.clone();
        tokio::time::timeout(Duration::from_secs(20), counts.wait_for(condition))
            .await
            .expect("the node gets there")
            .unwrap();
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts.borrow().clone()
    }

    pub(crate) fn jobs(&self) -> usize {
        self.engine.jobs.load(SeqCst)
    }
}
