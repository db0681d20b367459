//! A test world: a memory on either store, a clock under the test's control, and an embedder and a Walrus
//! that fail on demand.

use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use baton_keys::master::MasterKey;
use baton_memory::{
    Memory, Parts,
    api::{
        Filters, ItemView, ListRequest, Place, Recall, RecallRequest, RememberOutcome, RememberRequest,
        RemovalOptions, TurnRecord,
    },
    content::{ContentFuture, ContentStore},
    extraction::ModelWriter,
    ids::{ItemId, OwnerId},
    model::Consent,
    storage::{
        Pseudonym, Storage, StorageError,
        embedded::{EmbeddedConfig, EmbeddedStorage},
        postgres::PostgresStorage,
    },
    vault::Vault,
};
use baton_models::embed::{EmbedError, EmbedFuture, EmbedRole, Embedder};
use baton_proto::{ids::BlobId, store::StoreError};
use baton_walrus_client::quilt::QuiltPatchId;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tempfile::TempDir;

use crate::storage::support::{embedded, new_database};

const DIMENSIONS: usize = 384;
pub(super) const DAY_MS: u64 = 86_400_000;
/// Long enough for a busy machine; the default is for people who wait.
pub(super) const RECALL_DEADLINE: Duration = Duration::from_secs(6);
/// 2026-03-01.
pub(super) const START_MS: u64 = 1_772_323_200_000;

pub(super) const ANA: OwnerId = OwnerId([1; 32]);
pub(super) const BEN: OwnerId = OwnerId([2; 32]);

/// Runs a test on each store; on Postgres if `BATON_TEST_POSTGRES` names a server.
pub(super) fn on_every_store<F: Future<Output = ()>>(test: impl Fn(World) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        test(World::new(None).await).await;
        if let Some(database) = new_database().await {
            test(World::new(Some(database)).await).await;
        }
    });
}

/// Maps the words of a text to 384 dimensions; fails and hangs on demand.
pub(super) struct TestEmbedder {
    id: String,
    pub down: AtomicBool,
    pub hangs: AtomicBool,
    pub queries: AtomicU64,
    pub documents: AtomicU64,
}

impl TestEmbedder {
    pub(super) fn new(id: &str) -> Arc<Self> {
        Arc::new(Self {
            id: id.to_owned(),
            down: AtomicBool::new(false),
            hangs: AtomicBool::new(false),
            queries: AtomicU64::new(0),
            documents: AtomicU64::new(0),
        })
    }

    fn vector(&self, text: &str) -> Vec<f32> {
        let mut vector = vec![0.0_f32; DIMENSIONS];
        for word in text.to_lowercase().split(|c: char| !c.is_alphanumeric()).filter(|word| word.len() > 3) {
            // Words with the same meaning here, so that meaning finds texts that words do not.
            let word = if word.starts_with("physician") { "doctor" } else { word };
            let hash = blake3::hash(format!("{}{word}", self.id).as_bytes());
            let at = usize::from(u16::from_le_bytes([hash.as_bytes()[2], hash.as_bytes()[3]])) % DIMENSIONS;
            vector[at] += if hash.as_bytes()[1].is_multiple_of(2) { 1.0 } else { -1.0 };
        }
        let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
        if length > 0.0 {
            vector.iter_mut().for_each(|x| *x /= length);
        }
        vector
    }
}

impl Embedder for TestEmbedder {
    fn id(&self) -> &str {
        &self.id
    }

    fn dimensions(&self) -> usize {
        DIMENSIONS
    }

    fn embed<'a>(&'a self, role: EmbedRole, texts: &'a [&'a str]) -> EmbedFuture<'a> {
        let counter = if role == EmbedRole::Query { &self.queries } else { &self.documents };
        counter.fetch_add(texts.len() as u64, Ordering::Relaxed);
        Box::pin(async move {
            if self.hangs.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            if self.down.load(Ordering::Relaxed) {
                return Err(EmbedError::Unavailable("switched off by the test".into()));
            }
            Ok(texts.iter().map(|text| self.vector(text)).collect())
        })
    }
}

/// A Walrus that the test can inspect.
#[derive(Default)]
pub(super) struct TestContents {
    pub down: AtomicBool,
    /// Whether reads without verification get other bytes.
    pub lies: AtomicBool,
    /// Number of attempts to store.
    pub tries: AtomicU64,
    /// Number of quilts read.
    pub reads: AtomicU64,
    pub blobs: Mutex<BTreeMap<(u8, u16), Vec<u8>>>,
    next: AtomicU64,
}

impl ContentStore for TestContents {
    fn put<'a>(&'a self, contents: &'a [(String, Vec<u8>)]) -> ContentFuture<'a, Vec<QuiltPatchId>> {
        Box::pin(async move {
            self.tries.fetch_add(1, Ordering::Relaxed);
            if self.down.load(Ordering::Relaxed) {
                return Err(StoreError::Unavailable {
                    reason: "switched off by the test".into(),
                    retry_after: None,
                });
            }
            let quilt = u8::try_from(self.next.fetch_add(1, Ordering::Relaxed)).unwrap();
            let mut blobs = self.blobs.lock().unwrap();
            let ids = contents.iter().enumerate().map(|(at, (_, bytes))| {
                let start = u16::try_from(at).unwrap();
                blobs.insert((quilt, start), bytes.clone());
                QuiltPatchId { quilt: BlobId([quilt; 32]), start, end: start + 1 }
            });
            Ok(ids.collect())
        })
    }

    fn get(&self, quilt: BlobId, verified: bool) -> ContentFuture<'_, HashMap<QuiltPatchId, Vec<u8>>> {
        Box::pin(async move {
            self.reads.fetch_add(1, Ordering::Relaxed);
            let blobs = self.blobs.lock().unwrap();
            let patches = blobs.iter().filter(|((number, _), _)| *number == quilt.0[0]);
            let patch = |start: u16| QuiltPatchId { quilt, start, end: start + 1 };
            let right = verified || !self.lies.load(Ordering::Relaxed);
            let bytes = |bytes: &Vec<u8>| if right { bytes.clone() } else { vec![0; bytes.len()] };
            Ok(patches.map(|((_, start), stored)| (patch(*start), bytes(stored))).collect())
        })
    }
}

pub(super) struct World {
    pub folder: TempDir,
    pub clock: Arc<AtomicU64>,
    pub embedder: Arc<TestEmbedder>,
    pub contents: Option<Arc<TestContents>>,
    pub writer: Option<ModelWriter>,
    /// A model on third-party nodes.
    pub node_writer: Option<ModelWriter>,
    pub memory: Memory,
    database: Option<String>,
}

impl World {
    /// A world on a Postgres database, or on the embedded one.
    pub(super) async fn new(database: Option<String>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(AtomicU64::new(START_MS));
        let embedder = TestEmbedder::new("test-384-v1");
        let contents = Some(Arc::new(TestContents::default()));
        let memory = nowhere(&embedder).await;
        let (writer, node_writer) = (None, None);
        let mut world = Self { folder, clock, embedder, contents, writer, node_writer, memory, database };
        world.memory = world.open().await;
        world
    }

    async fn open(&self) -> Memory {
        let clock = self.clock.clone();
        let clock = Arc::new(move || clock.load(Ordering::Relaxed));
        let mut parts = Parts::new(self.vault().await, self.embedder.clone(), clock);
        parts.contents = self.contents.clone().map(|contents| contents as Arc<dyn ContentStore>);
        parts.writer = self.writer.clone();
        parts.node_writer = self.node_writer.clone();
        parts.recall_deadline = RECALL_DEADLINE;
        Memory::open(parts).await.unwrap()
    }

    async fn vault(&self) -> Vault {
        let storage: Arc<dyn Storage> = match &self.database {
            None => Arc::new(embedded(&self.folder.path().join("memory"))),
            Some(url) => Arc::new(PostgresStorage::open(url).await.unwrap()),
        };
        vault(storage, &self.folder).await
    }

    /// Closes everything. The folder of the embedded store is locked until the last handle is gone.
    async fn close(&mut self) {
        self.memory = nowhere(&self.embedder).await;
    }

    /// Closes everything and opens it again from the disk.
    pub(super) async fn reopen(&mut self) {
        self.close().await;
        self.memory = self.open().await;
    }

    /// The memory of another relayer on the same database and keys; `None` if the storage allows one relayer
    /// only.
    pub(super) async fn another_relayer(&self) -> Option<Memory> {
        if self.is_embedded() { None } else { Some(self.open().await) }
    }

    /// The storage of the records, while no memory uses it.
    pub(super) async fn while_closed<T>(
        &mut self,
        work: impl AsyncFnOnce(Arc<dyn Storage>, Pseudonym) -> T,
    ) -> T {
        self.memory.close_all().await;
        self.close().await;
        let vault = self.vault().await;
        let done = work(vault.storage().clone(), vault.pseudonym(ANA)).await;
        drop(vault);
        self.reopen().await;
        done
    }

    /// Damages the files of an embedded database and opens it again; returns the result of the opening.
    pub(super) async fn damaged(&mut self, damage: impl FnOnce(&Path)) -> Result<(), StorageError> {
        self.close().await;
        drop(self.vault().await);
        let data = self.folder.path().join("memory");
        damage(&data);
        drop(EmbeddedStorage::open(&EmbeddedConfig::new(data))?);
        self.reopen().await;
        Ok(())
    }

    /// The whole database: a folder, or the names of table copies.
    pub(super) async fn back_up(&mut self) -> Backup {
        match &self.database {
            None => {
                let copy = tempfile::tempdir().unwrap();
                self.close().await;
                // It is flushed once the last handle is gone.
                drop(self.vault().await);
                copy_files(&self.folder.path().join("memory"), copy.path());
                self.reopen().await;
                Backup(Some(copy))
            }
            Some(url) => {
                let mut server = PgConnection::connect(url).await.unwrap();
                for table in TABLES {
                    let copy = format!(
                        "drop table if exists copy_{table}; create table copy_{table} as select * from baton.{table}"
                    );
                    sqlx::raw_sql(AssertSqlSafe(copy)).execute(&mut server).await.unwrap();
                }
                Backup(None)
            }
        }
    }

    /// Restores the whole database; without a backup, it is empty. The key files stay unchanged.
    pub(super) async fn put_back(&mut self, backup: Option<&Backup>) {
        self.memory.close_all().await;
        self.close().await;
        match &self.database {
            None => {
                let data = self.folder.path().join("memory");
                // Once it opens, or is too damaged to open, no other user has it open.
                drop(EmbeddedStorage::open(&EmbeddedConfig::new(data.clone())));
                std::fs::remove_dir_all(&data).unwrap();
                if let Some(Backup(Some(copy))) = backup {
                    std::fs::create_dir(&data).unwrap();
                    copy_files(copy.path(), &data);
                }
            }
            Some(url) => {
                let mut server = PgConnection::connect(url).await.unwrap();
                for table in TABLES {
                    let mut sql = format!("delete from baton.{table};");
                    if backup.is_some() {
                        sql += &format!("insert into baton.{table} select * from copy_{table}");
                    }
                    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut server).await.unwrap();
                }
            }
        }
        self.reopen().await;
    }

    pub(super) fn is_embedded(&self) -> bool {
        self.database.is_none()
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    pub(super) fn pass(&self, ms: u64) {
        self.clock.fetch_add(ms, Ordering::Relaxed);
    }

    /// Runs all due work.
    pub(super) async fn settle(&self) {
        for _ in 0..50 {
            if self.memory.run_due().await == 0 {
                return;
            }
        }
        panic!("the jobs never end");
    }

    pub(super) async fn say(&self, owner: OwnerId, place: &Place, turn: u64, user: &str, assistant: &str) {
        let turn = TurnRecord {
            place: place.clone(),
            turn,
            user: user.into(),
            assistant: assistant.into(),
            time_ms: self.now_ms(),
        };
        self.memory.record_turn(owner, turn).await.unwrap();
    }

    pub(super) async fn remember(&self, owner: OwnerId, place: &Place, text: &str) -> RememberOutcome {
        self.memory.remember(owner, vec![fact(place, text)]).await.unwrap().remove(0)
    }

    pub(super) async fn recall(&self, owner: OwnerId, place: &Place, query: &str) -> Recall {
        self.memory.recall(owner, request(place, query)).await
    }

    pub(super) async fn recalls(&self, owner: OwnerId, place: &Place, query: &str) -> Vec<String> {
        texts(&self.recall(owner, place, query).await)
    }

    /// Whether a recall finds a text with some words.
    pub(super) async fn finds(&self, owner: OwnerId, place: &Place, query: &str, words: &str) -> bool {
        self.recalls(owner, place, query).await.iter().any(|text| text.contains(words))
    }

    /// Items of an owner that wait for consent.
    pub(super) async fn waiting(&self, owner: OwnerId) -> Vec<ItemView> {
        let consent = Some(Consent::Pending);
        let request = ListRequest { everything: true, consent, limit: 50, ..ListRequest::default() };
        self.memory.list(owner, request).await.unwrap().items
    }

    /// Deletes items with the default options; returns how many existed.
    pub(super) async fn delete(&self, owner: OwnerId, ids: Vec<ItemId>) -> u64 {
        self.memory.delete_with(owner, ids, RemovalOptions::default()).await.unwrap().count
    }

    pub(super) async fn decide(&self, owner: OwnerId, ids: Vec<ItemId>, consent: Consent) -> u64 {
        self.memory.decide_with(owner, ids, consent, RemovalOptions::default()).await.unwrap().count
    }

    pub(super) async fn edit(&self, owner: OwnerId, id: ItemId, text: &str) -> ItemView {
        self.memory.edit_with(owner, id, text.into(), RemovalOptions::default()).await.unwrap().0
    }

    /// All items of an owner, in any place.
    pub(super) async fn everything(&self, owner: OwnerId) -> Vec<ItemView> {
        let filters = Filters { include_ended: true, ..Filters::default() };
        let request = ListRequest {
            everything: true,
            include_archived: true,
            filters,
            limit: 200,
            ..ListRequest::default()
        };
        self.memory.list(owner, request).await.unwrap().items
    }
}

/// Tables of a database that belong to owners.
const TABLES: [&str; 4] = ["owner", "record", "item", "job"];

/// A copy of a database.
pub(super) struct Backup(pub Option<TempDir>);

pub(super) fn copy_files(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            std::fs::create_dir_all(&to).unwrap();
            copy_files(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

pub(super) fn texts(recall: &Recall) -> Vec<String> {
    recall.hits.iter().map(|hit| hit.view.text.to_string()).collect()
}

pub(super) fn request(place: &Place, query: &str) -> RecallRequest {
    RecallRequest { place: place.clone(), query: query.into(), limit: 10, ..RecallRequest::default() }
}

pub(super) fn fact(place: &Place, text: &str) -> RememberRequest {
    RememberRequest::new(place.clone(), text)
}

pub(super) fn pool() -> Place {
    Place::default()
}

pub(super) fn session(name: &str) -> Place {
    Place { session: Some(name.into()), ..Place::default() }
}

pub(super) fn project(name: &str) -> Place {
    Place { project: Some(name.into()), ..Place::default() }
}

pub(super) fn session_in(name: &str, project: &str) -> Place {
    Place { session: Some(name.into()), project: Some(project.into()), persona: None }
}

pub(super) fn with_persona(name: &str, persona: &str) -> Place {
    Place { session: Some(name.into()), project: None, persona: Some(persona.into()) }
}

async fn vault(storage: Arc<dyn Storage>, folder: &TempDir) -> Vault {
    let master = MasterKey::from_bytes([9; 32]);
    Vault::new(storage, &folder.path().join("keys"), master).await.unwrap()
}

async fn nowhere(embedder: &Arc<TestEmbedder>) -> Memory {
    let folder = tempfile::tempdir().unwrap();
    let storage = Arc::new(embedded(&folder.path().join("memory")));
    Memory::open(Parts::new(vault(storage, &folder).await, embedder.clone(), Arc::new(|| 0))).await.unwrap()
}
