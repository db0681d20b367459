//! A running embedded store on a loopback port, and head records that its validator accepts.
#![allow(dead_code, reason = "not every test binary uses all of it")]

use baton_proto::ids::{BlobId, HeadIndexKey};
use baton_walrus_client::{HttpStore, ShardCount, blob_id};
use baton_walrus_store::{Clock, EmbeddedConfig, EmbeddedStore, HeadIdentity};
use tempfile::TempDir;
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};

/// The time in the stores of these tests.
pub(crate) const NOW_MS: u64 = 1_000_000;

/// key ‖ sequence ‖ expiry ‖ anything.
pub(crate) fn head(key: u8, sequence: u64, expires_ms: u64, rest: &str) -> Vec<u8> {
    [&[key; 32][..], &sequence.to_le_bytes(), &expires_ms.to_le_bytes(), rest.as_bytes()].concat()
}

pub(crate) fn validate(record: &[u8]) -> Result<HeadIdentity, String> {
    let number = |range: std::ops::Range<usize>| {
        record.get(range).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
    };
    match (record.get(..32), number(32..40), number(40..48)) {
        (Some(key), Some(sequence), Some(expires_ms)) => {
            Ok(HeadIdentity { key: HeadIndexKey(key.try_into().unwrap()), sequence, expires_ms })
        }
        _ => Err("too short".to_owned()),
    }
}

pub(crate) fn id_of(bytes: &[u8]) -> BlobId {
    blob_id(bytes, ShardCount::TESTBED).unwrap()
}

/// Small limits, ten shards and a stopped clock.
pub(crate) fn config(folder: &TempDir) -> EmbeddedConfig {
    EmbeddedConfig {
        shards: ShardCount::TESTBED,
        clock: Clock::fixed(NOW_MS),
        ..EmbeddedConfig::new(folder.path().join("store"))
    }
}

pub(crate) fn open(folder: &TempDir) -> EmbeddedStore {
    EmbeddedStore::open(config(folder), validate).unwrap()
}

/// A new store, and its folder.
pub(crate) fn opened() -> (TempDir, EmbeddedStore) {
    let folder = TempDir::new().unwrap();
    let store = open(&folder);
    (folder, store)
}

pub(crate) struct Running {
    pub store: EmbeddedStore,
    pub url: String,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    pub(crate) async fn start(store: EmbeddedStore) -> Self {
        let router = store.router();
        Self::start_as(store, router).await
    }

    /// Starts it with other routes: its own ones below layers.
    pub(crate) async fn start_as(store: EmbeddedStore, router: axum::Router) -> Self {
        let listener = EmbeddedStore::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel();
        let serving = store.clone();
        let task = tokio::spawn(async move {
            let shutdown = async { stopped.await.unwrap_or(()) };
            serving.serve_as(listener, router, shutdown).await.unwrap();
        });
        Self { store, url, stop, task }
    }

    pub(crate) fn client(&self) -> HttpStore {
        HttpStore::builder(&self.url, &self.url, ShardCount::TESTBED).build().unwrap()
    }

    /// Ends the server and waits for it; the store itself stays open.
    pub(crate) async fn stop(self) -> EmbeddedStore {
        self.stop.send(()).unwrap();
        self.task.await.unwrap();
        self.store
    }
}

/// A loopback port without a listener.
pub(crate) async fn closed_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}
