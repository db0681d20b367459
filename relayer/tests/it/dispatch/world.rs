//! A test world: memory on a disk, nodes, a store, and relayers.

use std::{
    io,
    path::Path,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use baton_client::{Client, ClientConfig};
use baton_keys::{SecretSigningKey, account::AccountKey, master::MasterKey};
use baton_memory::{
    Memory, Parts,
    api::{ItemView, Place, Recall, RecallMode, RecallRequest, RememberRequest, Result, TurnRecord},
    ids::OwnerId,
    model::{Author, Layer, Text},
    storage::embedded::{EmbeddedConfig, EmbeddedStorage},
    vault::Vault,
};
use baton_mesh::{Mesh, MeshConfig, MeshHandle, Multiaddr, Networks};
use baton_models::embed::Hashing;
use baton_proto::receipt::EngineKind;
use baton_relayer::{
    Recollection, Relayer, SealedLimits,
    chat::{Chat, ChatAnswer, ChatError, ChatEvent, ChatRequest},
    delegation::registry::{Change, Records},
    owners::{OwnerPolicy, Owners},
};
use baton_walrus_client::ShardCount;
use futures::future::BoxFuture;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use baton_testkit::{
    fake::{FakeNode, now_ms},
    store::MemoryStore,
};

/// Memory that fails or hangs on demand.
pub(super) struct FaultyMemory {
    pub memory: Memory,
    pub recall_fails: AtomicBool,
    pub record_fails: AtomicBool,
    /// Recording waits for ever, and reports it.
    pub record_hangs: AtomicBool,
    pub hanging: watch::Sender<u32>,
    pub recorded: Mutex<Vec<(u64, String)>>,
}

impl FaultyMemory {
    pub(super) fn turns(&self) -> Vec<u64> {
        self.recorded.lock().unwrap().iter().map(|(turn, _)| *turn).collect()
    }

    pub(super) async fn hangs(&self) {
        self.hanging.subscribe().wait_for(|count| *count > 0).await.unwrap();
    }
}

impl Records for FaultyMemory {
    fn take_nonce(&self, nonce: [u8; 32], now_ms: u64, until_ms: u64) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move { self.memory.take_nonce(nonce, now_ms, until_ms).await })
    }

    fn take_nonce_to_read(&self, nonce: [u8; 32], now_ms: u64, until_ms: u64) -> BoxFuture<'_, Result<bool>> {
        Records::take_nonce(self, nonce, now_ms, until_ms)
    }

    fn has_nonce(&self, nonce: [u8; 32], now_ms: u64) -> BoxFuture<'_, Result<bool>> {
        Records::has_nonce(&self.memory, nonce, now_ms)
    }

    fn get(&self, owner: OwnerId, name: String) -> BoxFuture<'_, Result<Option<Vec<u8>>>> {
        Box::pin(async move { self.memory.get_record(owner, &name).await })
    }

    fn put(&self, owner: OwnerId, name: String, bytes: Option<Vec<u8>>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.memory.put_record(owner, &name, bytes).await })
    }

    fn change<'a>(
        &'a self,
        owner: OwnerId,
        names: Vec<String>,
        change: Change<'a>,
    ) -> BoxFuture<'a, Result<()>> {
        Records::change(&self.memory, owner, names, change)
    }
}

impl Recollection for FaultyMemory {
    fn recall(&self, owner: OwnerId, request: RecallRequest) -> BoxFuture<'_, Recall> {
        Box::pin(async move {
            if self.recall_fails.load(Ordering::SeqCst) {
                let degraded = Some("memory is unavailable".to_owned());
                let (hits, dropped, mode) = (vec![], vec![], RecallMode::None);
                return Recall { hits, dropped, mode, degraded, took_us: 0 };
            }
            self.memory.recall(owner, request).await
        })
    }

    fn profile(&self, owner: OwnerId, place: Place) -> BoxFuture<'_, Result<Vec<ItemView>>> {
        Box::pin(async move { self.memory.profile(owner, place).await })
    }

    fn begin_session(&self, owner: OwnerId, place: Place) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.memory.create_session(owner, place).await.map(drop) })
    }

    fn knows_session(&self, owner: OwnerId, name: String) -> BoxFuture<'_, Result<bool>> {
        Recollection::knows_session(&self.memory, owner, name)
    }

    fn record_turn(&self, owner: OwnerId, turn: TurnRecord) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            if self.record_hangs.load(Ordering::SeqCst) {
                self.hanging.send_modify(|count| *count += 1);
                std::future::pending::<()>().await;
            }
            if self.record_fails.load(Ordering::SeqCst) {
                return Err(baton_memory::api::MemoryError::Unavailable("switched off".to_owned()));
            }
            let told = (turn.turn, turn.user.to_string());
            self.memory.record_turn(owner, turn).await?;
            self.recorded.lock().unwrap().push(told);
            Ok(())
        })
    }
}

pub(super) struct World {
    pub store: MemoryStore,
    pub nodes: Vec<FakeNode>,
    pub folder: TempDir,
    pub memory: Arc<FaultyMemory>,
    pub account: AccountKey,
    /// Added to the clock of relayers.
    pub later_ms: Arc<AtomicU64>,
}

pub(super) async fn memory_at(folder: &Path) -> Memory {
    Memory::open(parts_at(folder, Arc::new(now_ms)).await).await.unwrap()
}

pub(super) async fn parts_at(folder: &Path, clock: Arc<dyn Fn() -> u64 + Send + Sync>) -> Parts {
    let storage = EmbeddedStorage::open(&EmbeddedConfig::new(folder.join("database"))).unwrap();
    let vault =
        Vault::new(Arc::new(storage), &folder.join("keys"), MasterKey::from_bytes([5; 32])).await.unwrap();
    Parts::new(vault, Arc::new(Hashing), clock)
}

pub(super) fn faulty(memory: Memory) -> Arc<FaultyMemory> {
    Arc::new(FaultyMemory {
        memory,
        recall_fails: AtomicBool::new(false),
        record_fails: AtomicBool::new(false),
        record_hangs: AtomicBool::new(false),
        hanging: watch::channel(0).0,
        recorded: Mutex::default(),
    })
}

impl World {
    pub(super) async fn new() -> Self {
        logs();
        let store = MemoryStore::default();
        let nodes = vec![FakeNode::start(&store, EngineKind::Native).await];
        let folder = tempfile::tempdir().unwrap();
        let memory = faulty(memory_at(folder.path()).await);
        let (account, later_ms) = (AccountKey::generate(), Arc::new(AtomicU64::new(0)));
        Self { store, nodes, folder, memory, account, later_ms }
    }

    pub(super) fn owner(&self) -> OwnerId {
        OwnerId::of(&self.account.public_key())
    }

    pub(super) async fn remember(&self, text: &str) {
        let fact = RememberRequest {
            place: Place::default(),
            text: Text::from(text),
            layer: Layer::Profile,
            author: Author::Owner,
            time_ms: None,
            intimate: None,
            salience: None,
        };
        self.memory.memory.remember(self.owner(), vec![fact]).await.unwrap();
    }

    pub(super) fn client_config(&self, home: Option<&Path>) -> ClientConfig {
        let store = Arc::new(self.store.clone());
        let mut config = ClientConfig::new(home, store.clone(), store, ShardCount::TESTBED);
        config.bootstrap = self.nodes.iter().flat_map(FakeNode::addrs).collect();
        config.timeouts.open = Duration::from_secs(5);
        config.timeouts.author_stores = Duration::from_millis(100);
        config.timeouts.second_look = Duration::from_millis(50);
        config.timeouts.store_retry = Duration::from_millis(100);
        config
    }

    pub(super) fn clock(&self) -> Arc<dyn Fn() -> u64 + Send + Sync> {
        let later = self.later_ms.clone();
        Arc::new(move || now_ms() + later.load(Ordering::SeqCst))
    }

    /// A relayer in plain mode on this memory.
    pub(super) async fn plain(&self) -> PlainRelayer {
        self.plain_on(self.memory.clone()).await
    }

    pub(super) async fn plain_on(&self, memory: Arc<FaultyMemory>) -> PlainRelayer {
        let client = Client::open(self.client_config(None)).await.unwrap();
        let key = SecretSigningKey::generate();
        let owner = self.owner();
        let chat = Chat::new(client.clone(), memory, key.clone(), false, self.clock());
        PlainRelayer { chat, client, key, owner }
    }

    /// A relayer for sealed turns on this memory.
    pub(super) async fn sealed(&self) -> SealedRelayer {
        self.sealed_as(SecretSigningKey::generate()).await
    }

    /// A relayer with this key.
    pub(super) async fn sealed_as(&self, key: SecretSigningKey) -> SealedRelayer {
        self.sealed_with(key, SealedLimits::new(Networks::default())).await
    }

    /// A relayer with this key and these limits.
    pub(super) async fn sealed_with(&self, key: SecretSigningKey, limits: SealedLimits) -> SealedRelayer {
        let listen: Vec<Multiaddr> = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
        let mut config = MeshConfig::server("relayer", listen);
        config.bootstrap = self.nodes.iter().flat_map(FakeNode::addrs).collect();
        config.limits.own_networks = Networks::loopback();
        let (mesh, incoming) = Mesh::spawn(key.expose_seed(), config).await.unwrap();
        let owners = Arc::new(Owners::new(OwnerPolicy::default()));
        let (memory, clock) = (self.memory.clone(), self.clock());
        let relayer = Relayer::new(key.clone(), mesh.clone(), memory, owners, limits, clock);
        tokio::spawn(relayer.run(incoming, CancellationToken::new(), Duration::from_secs(1)));
        SealedRelayer { mesh, key }
    }
}

pub(super) struct SealedRelayer {
    pub mesh: MeshHandle,
    pub key: SecretSigningKey,
}

impl SealedRelayer {
    pub(super) fn named(&self) -> baton_client::Relayer {
        baton_client::Relayer { node: self.mesh.node_id(), addrs: self.mesh.listen_addrs() }
    }
}

pub(super) struct PlainRelayer {
    pub chat: Chat,
    pub client: Client,
    pub key: SecretSigningKey,
    pub owner: OwnerId,
}

impl PlainRelayer {
    pub(super) fn ask(&self, request: ChatRequest) -> mpsc::Receiver<ChatEvent> {
        self.chat.turn(self.owner, request).unwrap()
    }

    pub(super) async fn try_say(&self, request: ChatRequest) -> std::result::Result<ChatAnswer, ChatError> {
        let mut events = self.ask(request);
        while let Some(event) = events.recv().await {
            match event {
                ChatEvent::Done(answer) => return Ok(*answer),
                ChatEvent::Failed(error) => return Err(error),
                _ => {}
            }
        }
        panic!("a turn ends with an answer or an error")
    }

    pub(super) async fn say(&self, request: ChatRequest) -> ChatAnswer {
        self.try_say(request).await.unwrap()
    }
}

/// A first message.
pub(super) fn hello(text: &str) -> ChatRequest {
    let messages = json!([{ "role": "user", "content": text }]);
    serde_json::from_value(json!({ "messages": messages, "temperature": 0.0, "seed": 1 })).unwrap()
}

/// The next message after an answer.
pub(super) fn next(answer: &ChatAnswer, text: &str) -> ChatRequest {
    ChatRequest {
        session_id: Some(answer.session_id),
        session_key: Some(answer.session_key.clone()),
        head: Some(answer.head.clone()),
        ..hello(text)
    }
}

/// Every file below a folder.
pub(super) fn files(folder: &Path) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(std::fs::read(path).unwrap()) }
    }
    found
}

pub(super) fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

static LOG: OnceLock<Log> = OnceLock::new();

/// All log output of this process so far, at the highest detail.
pub(super) fn logs() -> Vec<u8> {
    let log = LOG.get_or_init(|| {
        let log = Log::default();
        let writer = log.clone();
        let filter = tracing_subscriber::EnvFilter::new(
            "info,baton_relayer=trace,baton_client=trace,baton_memory=trace",
        );
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(move || writer.clone()).init();
        log
    });
    log.0.lock().unwrap().clone()
}
