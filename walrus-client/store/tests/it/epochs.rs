//! Lifetimes in the embedded store: epochs on a settable clock, objects, expiry, collection and quota.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use baton_proto::store::{BlobStore as _, PutOptions, StoreError};
use baton_walrus_store::{
    Clock, CollectionReport, EmbeddedConfig, EmbeddedStore, MAX_OBJECTS_PER_BLOB, PutCounts, Usage,
};
use reqwest::Client;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Running, config, id_of, validate};

const EPOCH: Duration = Duration::from_secs(3600);

struct Bench {
    folder: TempDir,
    now_ms: Arc<AtomicU64>,
}

impl Bench {
    fn new() -> Self {
        Self { folder: TempDir::new().unwrap(), now_ms: Arc::new(AtomicU64::new(1_000_000)) }
    }

    fn config(&self) -> EmbeddedConfig {
        let now_ms = self.now_ms.clone();
        EmbeddedConfig {
            clock: Clock::new(move || now_ms.load(Ordering::Relaxed)),
            first_epoch: 30,
            epoch_duration: EPOCH,
            ..config(&self.folder)
        }
    }

    fn open(&self) -> EmbeddedStore {
        EmbeddedStore::open(self.config(), validate).unwrap()
    }

    fn pass(&self, epochs: u64) {
        self.now_ms.fetch_add(epochs * 3_600_000, Ordering::Relaxed);
    }
}

async fn put(store: &EmbeddedStore, bytes: &[u8], epochs: u32) -> Option<u64> {
    let options = PutOptions { epochs, ..PutOptions::default() };
    store.put(bytes.to_vec(), options).await.unwrap().end_epoch
}

#[tokio::test]
async fn a_blob_ends_with_its_last_object() {
    let bench = Bench::new();
    let store = bench.open();
    assert_eq!(put(&store, b"short", 1).await, Some(31));
    assert_eq!(put(&store, b"long", 3).await, Some(33));
    // A shorter object after a longer one does not shorten the lifetime.
    assert_eq!(put(&store, b"long", 1).await, Some(31));
    for (epoch, short, long) in [(30, true, true), (31, false, true), (32, false, true), (33, false, false)] {
        assert_eq!(store.epoch().epoch, epoch);
        assert_eq!(store.exists(id_of(b"short")).await, Ok(short), "{epoch}");
        assert_eq!(store.exists(id_of(b"long")).await, Ok(long), "{epoch}");
        bench.pass(1);
    }
    assert_eq!(store.get(id_of(b"long"), 100).await, Err(StoreError::NotFound));
    // Bought again, it is back.
    assert_eq!(put(&store, b"long", 2).await, Some(36));
    assert!(store.exists(id_of(b"long")).await.unwrap());
}

#[tokio::test]
async fn collection_gives_the_quota_back_and_leaves_what_lives() {
    let bench = Bench::new();
    let config = EmbeddedConfig { quota_bytes: Some(20), ..bench.config() };
    let store = EmbeddedStore::open(config, validate).unwrap();
    put(&store, b"0123456789", 1).await;
    put(&store, b"abcdef", 1).await;
    put(&store, b"abcdef", 5).await;
    assert_eq!(store.collect_expired().await, Ok(CollectionReport::default()));
    let full = store.put(b"12345".to_vec(), PutOptions::default()).await;
    assert!(matches!(full, Err(StoreError::Unavailable { .. })));
    bench.pass(1);
    let collected = store.collect_expired().await;
    assert_eq!(collected, Ok(CollectionReport { blobs: 1, bytes: 10, objects: 2 }));
    assert_eq!(store.usage(), Usage { blobs: 1, bytes: 6 });
    put(&store, b"12345", 1).await;
    assert_eq!(store.get(id_of(b"abcdef"), 100).await.unwrap(), b"abcdef");
    drop(store);
    let files = std::fs::read_dir(bench.folder.path().join("store/files")).unwrap();
    assert_eq!(files.count(), 2);
    // Also at the next start.
    bench.pass(1);
    let store = bench.open();
    assert_eq!(store.usage(), Usage { blobs: 1, bytes: 6 });
}

#[tokio::test]
async fn epochs_go_on_after_a_restart() {
    let bench = Bench::new();
    let store = bench.open();
    put(&store, b"kept", 2).await;
    bench.pass(1);
    drop(store);
    let store = bench.open();
    assert_eq!(store.epoch().epoch, 31);
    assert!(store.exists(id_of(b"kept")).await.unwrap());
    let moved = store.admin().move_clock(EPOCH).await.unwrap();
    assert_eq!(moved.epoch, 32);
    assert_eq!(store.usage().blobs, 0, "moving the clock collects");
    drop(store);
    assert_eq!(bench.open().epoch().epoch, 32, "a move is for good");
    let other = EmbeddedConfig { first_epoch: 7, epoch_duration: EPOCH * 2, ..bench.config() };
    let store = EmbeddedStore::open(other, validate).unwrap();
    assert_eq!(store.epoch().epoch, 32, "a store keeps its own first epoch");
    bench.pass(1);
    assert_eq!(store.epoch().epoch, 32, "and takes another duration from now on");
    bench.pass(1);
    assert_eq!(store.epoch().epoch, 33);
    // Setting the clock back does not bring an epoch back.
    bench.now_ms.store(0, Ordering::Relaxed);
    assert_eq!(store.epoch().epoch, 33);
}

#[tokio::test]
async fn answers_name_the_epochs_and_objects_end_one_by_one() {
    let bench = Bench::new();
    let running = Running::start(bench.open()).await;
    let store = running.store.clone();
    let listener = EmbeddedStore::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let admin = format!("http://{}/admin", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move { store.serve_admin(listener, std::future::pending()).await });
    let client = Client::new();
    let put = async |query: &str| -> Value {
        let request = client.put(format!("{}/v1/blobs{query}", running.url)).body("blob").send();
        request.await.unwrap().json().await.unwrap()
    };
    let move_clock = async |query: &str| -> Value {
        client.put(format!("{admin}/clock?{query}")).send().await.unwrap().json().await.unwrap()
    };
    let ends = |answer: &Value| answer["newlyCreated"]["blobObject"]["storage"]["endEpoch"].as_u64();
    let permanent = put("?permanent=true&epochs=3").await;
    assert_eq!(permanent["newlyCreated"]["blobObject"]["registeredEpoch"], 30);
    assert_eq!(ends(&permanent), Some(33));
    assert_eq!(move_clock("epochs=1").await["epoch"], 31);
    // It has two epochs left: enough for two, not for three.
    assert_eq!(put("?permanent=true&epochs=2").await["alreadyCertified"]["endEpoch"], 33);
    assert_eq!(ends(&put("?permanent=true&epochs=3").await), Some(34));
    assert_eq!(ends(&put("?epochs=1").await), Some(32));
    let object = permanent["newlyCreated"]["blobObject"]["id"].as_str().unwrap().to_owned();
    let by_object = async || {
        client.get(format!("{}/v1/blobs/by-object-id/{object}", running.url)).send().await.unwrap().status()
    };
    assert_eq!(by_object().await, 200);
    assert_eq!(move_clock("epochs=2").await["epoch"], 33);
    assert_eq!(by_object().await, 404, "the object is over, the blob is not");
    let url = format!("{}/v1/blobs/{}", running.url, id_of(b"blob"));
    assert_eq!(client.get(&url).send().await.unwrap().status(), 200);
    assert_eq!(move_clock("seconds=3600").await["epoch"], 34);
    let gone = client.get(&url).send().await.unwrap();
    assert_eq!(gone.status(), 404);
    assert!(gone.text().await.unwrap().contains("BLOB_NOT_FOUND"));
    let usage: Value = client.get(format!("{admin}/usage")).send().await.unwrap().json().await.unwrap();
    let collected = serde_json::json!({"blobs": 1, "bytes": 4, "objects": 3});
    assert_eq!(usage, serde_json::json!({"blobs": 0, "bytes": 0, "collected": collected}));
    assert_eq!(running.store.admin().put_counts(id_of(b"blob")), PutCounts { puts: 4, bought: 3 });

    serving.abort();
    running.stop().await;
}

#[tokio::test]
async fn a_served_store_collects_when_an_epoch_ends() {
    let folder = TempDir::new().unwrap();
    let config = EmbeddedConfig {
        clock: Clock::system(),
        epoch_duration: Duration::from_millis(300),
        ..config(&folder)
    };
    let running = Running::start(EmbeddedStore::open(config, validate).unwrap()).await;
    put(&running.store, b"over soon", 1).await;
    put(&running.store, b"over later", 53).await;
    // No request asks for the collection.
    while running.store.collected().blobs == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(running.store.collected(), CollectionReport { blobs: 1, bytes: 9, objects: 1 });
    assert_eq!(running.store.usage().blobs, 1);
    running.stop().await;
}

#[tokio::test]
async fn objects_of_a_blob_are_bounded_until_they_are_over() {
    let bench = Bench::new();
    let store = bench.open();
    let puts = (0..MAX_OBJECTS_PER_BLOB).map(|_| put(&store, b"often", 1));
    futures::future::join_all(puts).await;
    let refused = store.put(b"often".to_vec(), PutOptions::default()).await;
    assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "{refused:?}");
    bench.pass(1);
    assert_eq!(put(&store, b"often", 1).await, Some(32));
}
