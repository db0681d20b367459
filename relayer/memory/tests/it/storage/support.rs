//! Storages to test against.

use std::{path::Path, sync::Arc};

use baton_keys::secret::random_bytes;
use baton_memory::storage::{
    Batch, Pseudonym, Record, Space, Storage,
    embedded::{EmbeddedConfig, EmbeddedStorage},
    postgres::PostgresStorage,
};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

/// A storage with its folder.
pub(super) struct TestStorage {
    pub name: &'static str,
    pub storage: Arc<dyn Storage>,
    pub folder: tempfile::TempDir,
}

/// All storages to test.
pub(super) async fn storages() -> Vec<TestStorage> {
    let folder = tempfile::tempdir().unwrap();
    let storage = Arc::new(embedded(&folder.path().join("database")));
    let mut storages = vec![TestStorage { name: "embedded", storage, folder }];
    if let Some(url) = new_database().await {
        let storage = Arc::new(PostgresStorage::open(&url).await.unwrap());
        storages.push(TestStorage { name: "postgres", storage, folder: tempfile::tempdir().unwrap() });
    }
    storages
}

/// The URL of a superuser of a new database; `None` without a test server.
pub(crate) async fn new_database() -> Option<String> {
    let url = server()?;
    let name = format!("test_{}", hex::encode(random_bytes::<8>()));
    let mut connection = PgConnection::connect(&url).await.unwrap();
    connection.execute(AssertSqlSafe(format!("create database {name}"))).await.unwrap();
    connection.close().await.unwrap();
    let (server, _) = url.rsplit_once('/').unwrap();
    Some(format!("{server}/{name}"))
}

/// The URL of the test server.
pub(super) fn server() -> Option<String> {
    std::env::var("BATON_TEST_POSTGRES").ok()
}

pub(crate) fn embedded(path: &Path) -> EmbeddedStorage {
    EmbeddedStorage::open(&EmbeddedConfig::new(path.to_owned())).unwrap()
}

/// A number that looks random and is the same in each run. `BATON_SEED` gives other numbers.
pub(super) fn draw(step: u64, lane: u64) -> u64 {
    let seed = std::env::var("BATON_SEED").unwrap_or_default();
    let hash = blake3::hash(format!("{seed}/{step}/{lane}").as_bytes());
    u64::from_le_bytes(*hash.as_bytes().first_chunk().unwrap())
}

/// An owner that no other test has.
pub(super) fn somebody() -> Pseudonym {
    Pseudonym(random_bytes())
}

pub(super) fn record(space: Space, number: u64, bytes: &[u8]) -> Record {
    Record { space, number, bytes: bytes.to_vec() }
}

pub(super) fn puts(records: Vec<Record>) -> Batch {
    Batch { put: records, ..Batch::default() }
}

/// All records of a space, in pages of about `max_bytes`.
pub(super) async fn read_all(
    storage: &dyn Storage,
    owner: Pseudonym,
    space: Space,
    max_bytes: usize,
) -> Vec<(u64, Vec<u8>)> {
    let (mut all, mut from) = (Vec::new(), 0);
    loop {
        let page = storage.read(owner, space, from, max_bytes).await.unwrap();
        let Some((last, _)) = page.last() else { return all };
        from = last + 1;
        all.extend(page);
    }
}
