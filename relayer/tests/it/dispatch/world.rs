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
    Clock, Memory, Parts,
    api::{Filters, ListRequest, Place, RememberRequest},
    ids::OwnerId,
    limits::RECALL_DEADLINE,
    model::{Author, Kind},
    storage::{
        Batch, Pseudonym, Space, Storage, StorageError, StorageFuture,
        embedded::{EmbeddedConfig, EmbeddedStorage},
    },
    vault::Vault,
};
use baton_mesh::{Mesh, MeshConfig, MeshHandle, Multiaddr, Networks};
use baton_proto::receipt::EngineKind;
use baton_relayer::{
    Relayer, SealedLimits,
    chat::{Chat, ChatAnswer, ChatError, ChatEvent, ChatRequest},
    owners::{OwnerPolicy, Owners},
};
use baton_walrus_client::ShardCount;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::http::harness::GatedEmbedder;
use baton_client::testkit::{
    fake::{FakeNode, now_ms},
    store::MemoryStore,
};

/// The storage of memory, whose writes of events fail or wait on demand.
#[derive(Clone)]
pub(super) struct FaultyStorage {
    storage: EmbeddedStorage,
    pub fails: Arc<AtomicBool>,
    /// Writing waits for ever, and reports it.
    pub hangs: Arc<AtomicBool>,
    hanging: watch::Sender<u32>,
}

impl FaultyStorage {
    fn open(folder: &Path) -> Self {
        let storage = EmbeddedStorage::open(&EmbeddedConfig::new(folder.join("database"))).unwrap();
        Self { storage, fails: Arc::default(), hangs: Arc::default(), hanging: watch::channel(0).0 }
    }

    pub(super) async fn hang(&self) {
        self.hanging.subscribe().wait_for(|count| *count > 0).await.unwrap();
    }
}

impl Storage for FaultyStorage {
    fn version<'a>(&'a self, owner: Pseudonym) -> StorageFuture<'a, u64> {
        self.storage.version(owner)
    }

    fn read<'a>(
        &'a self,
        owner: Pseudonym,
        space: Space,
        from: u64,
        max_bytes: usize,
    ) -> StorageFuture<'a, Vec<(u64, Vec<u8>)>> {
        self.storage.read(owner, space, from, max_bytes)
    }

    fn commit<'a>(&'a self, owner: Pseudonym, expected: u64, batch: Batch) -> StorageFuture<'a, u64> {
        Box::pin(async move {
            let has_events = batch.put.iter().any(|record| record.space == Space::Log);
            if has_events && self.hangs.load(Ordering::SeqCst) {
                self.hanging.send_modify(|count| *count += 1);
                std::future::pending::<()>().await;
            }
            if has_events && self.fails.load(Ordering::SeqCst) {
                return Err(StorageError::Unavailable("switched off".to_owned()));
            }
            self.storage.commit(owner, expected, batch).await
        })
    }

    fn erase<'a>(&'a self, owner: Pseudonym) -> StorageFuture<'a, ()> {
        self.storage.erase(owner)
    }

    fn owners<'a>(&'a self, after: Option<Pseudonym>, limit: usize) -> StorageFuture<'a, Vec<Pseudonym>> {
        self.storage.owners(after, limit)
    }

    fn take_due<'a>(&'a self, now_ms: u64, again_ms: u64, limit: usize) -> StorageFuture<'a, Vec<Pseudonym>> {
        self.storage.take_due(now_ms, again_ms, limit)
    }

    fn take_nonce<'a>(&'a self, nonce: [u8; 32], now_ms: u64, until_ms: u64) -> StorageFuture<'a, bool> {
        self.storage.take_nonce(nonce, now_ms, until_ms)
    }
}

pub(super) struct World {
    pub store: MemoryStore,
    pub nodes: Vec<FakeNode>,
    pub folder: TempDir,
    pub memory: Memory,
    pub storage: FaultyStorage,
    pub account: AccountKey,
    /// Added to the clock of relayers.
    pub later_ms: Arc<AtomicU64>,
}

pub(super) async fn memory_at(folder: &Path) -> Memory {
    Memory::open(parts_at(folder, Arc::new(now_ms)).await).await.unwrap()
}

pub(super) async fn parts_at(folder: &Path, clock: Clock) -> Parts {
    parts_on(FaultyStorage::open(folder), folder, clock).await
}

async fn parts_on(storage: FaultyStorage, folder: &Path, clock: Clock) -> Parts {
    let (keys, master) = (folder.join("keys"), MasterKey::from_bytes([5; 32]));
    let vault = Vault::new(Arc::new(storage), &keys, master).await.unwrap();
    Parts::new(vault, Arc::new(GatedEmbedder { gate: Arc::new(Semaphore::new(0)) }), clock)
}

impl World {
    pub(super) async fn new() -> Self {
        Self::with(RECALL_DEADLINE).await
    }

    /// A world whose memory has this time for a recall.
    pub(super) async fn with(recall_deadline: Duration) -> Self {
        logs();
        let store = MemoryStore::default();
        let nodes = vec![FakeNode::start(&store, EngineKind::Native).await];
        let folder = tempfile::tempdir().unwrap();
        let storage = FaultyStorage::open(folder.path());
        let parts = parts_on(storage.clone(), folder.path(), Arc::new(now_ms)).await;
        let memory = Memory::open(Parts { recall_deadline, ..parts }).await.unwrap();
        let (account, later_ms) = (AccountKey::generate(), Arc::new(AtomicU64::new(0)));
        Self { store, nodes, folder, memory, storage, account, later_ms }
    }

    /// The recorded turns in their order, each with the user's message.
    pub(super) async fn recorded(&self) -> Vec<(u64, String)> {
        let (kinds, authors) = (vec![Kind::Episode], vec![Author::User]);
        let filters = Filters { kinds, authors, ..Filters::default() };
        let request = ListRequest { everything: true, limit: 200, filters, ..ListRequest::default() };
        let items = self.memory.list(self.owner(), request).await.unwrap().items.into_iter().rev();
        items.map(|item| (item.turn.unwrap(), item.text.to_string())).collect()
    }

    pub(super) async fn turns(&self) -> Vec<u64> {
        self.recorded().await.into_iter().map(|(turn, _)| turn).collect()
    }

    pub(super) fn owner(&self) -> OwnerId {
        OwnerId::of(&self.account.public_key())
    }

    pub(super) async fn remember(&self, text: &str) {
        let fact = RememberRequest::new(Place::default(), text);
        self.memory.remember(self.owner(), vec![fact]).await.unwrap();
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

    pub(super) fn clock(&self) -> Clock {
        let later = self.later_ms.clone();
        Arc::new(move || now_ms() + later.load(Ordering::SeqCst))
    }

    /// A relayer in plain mode on this memory.
    pub(super) async fn plain(&self) -> PlainRelayer {
        self.plain_on(self.memory.clone()).await
    }

    pub(super) async fn plain_on(&self, memory: Memory) -> PlainRelayer {
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
