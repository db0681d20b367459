//! Storages and memories for tests inside the crate.

use std::{path::Path, sync::Arc, time::Duration};

use baton_keys::master::MasterKey;
use baton_models::embed::Hashing;
use tempfile::TempDir;

use crate::{
    Memory, Parts,
    storage::{
        Storage,
        embedded::{EmbeddedConfig, EmbeddedStorage},
        postgres::PostgresStorage,
    },
    vault::Vault,
};

/// The embedded storage, with its folder.
pub(crate) fn embedded() -> (Arc<dyn Storage>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let storage = EmbeddedStorage::open(&EmbeddedConfig::new(folder.path().join("database"))).unwrap();
    (Arc::new(storage), folder)
}

/// Postgres, if `BATON_TEST_POSTGRES` names a server.
pub(crate) async fn postgres() -> Option<PostgresStorage> {
    let url = std::env::var("BATON_TEST_POSTGRES").ok()?;
    Some(PostgresStorage::open(&url).await.unwrap())
}

/// Each storage, with a folder for its keys.
pub(crate) async fn storages() -> Vec<(Arc<dyn Storage>, TempDir)> {
    let mut all = vec![embedded()];
    if let Some(storage) = postgres().await {
        all.push((Arc::new(storage), tempfile::tempdir().unwrap()));
    }
    all
}

/// A memory on a storage, with its keys in a folder.
pub(crate) async fn memory(storage: Arc<dyn Storage>, folder: &Path) -> Memory {
    let vault = Vault::new(storage, &folder.join("keys"), MasterKey::from_bytes([5; 32])).await.unwrap();
    let mut parts = Parts::new(vault, Arc::new(Hashing), Arc::new(|| 1_772_323_200_000));
    // A busy machine may not cut a search short.
    parts.recall_deadline = Duration::from_secs(10);
    Memory::open(parts).await.unwrap()
}
