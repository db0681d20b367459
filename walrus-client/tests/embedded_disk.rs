//! The embedded store as a library: durability, damage, quota, heads, and what it says when it cannot open.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test, in helpers too")]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};

use baton_proto::{
    ids::{BlobId, HeadIndexKey},
    store::{BlobStore as _, HeadIndex as _, PutOptions, StoreError},
};
use baton_walrus_client::{
    ShardCount, blob_id,
    embedded::{Clock, EmbeddedConfig, EmbeddedStore, OpenError},
};
use common::{NOW_MS, Running, config, head, open, validate};
use tempfile::TempDir;

const LIMIT: usize = 1 << 20;

fn id_of(bytes: &[u8]) -> BlobId {
    blob_id(bytes, ShardCount::TESTBED).unwrap()
}

async fn put(store: &EmbeddedStore, bytes: &[u8]) -> Result<BlobId, StoreError> {
    store.put(bytes.to_vec(), PutOptions::default()).await.map(|outcome| outcome.blob_id)
}

#[tokio::test]
async fn blobs_and_heads_outlive_a_restart() {
    let folder = TempDir::new().unwrap();
    let running = Running::start(open(&folder)).await;
    let client = running.client();
    let id = client.put(b"durable".to_vec(), PutOptions::default()).await.unwrap().blob_id;
    let record = head(1, 1, NOW_MS + 1, "");
    client.publish(record.clone()).await.unwrap();
    drop(running.stop().await);

    let store = open(&folder);
    assert_eq!(store.corrupt_entries(), []);
    assert_eq!(store.get(id, LIMIT).await.unwrap(), b"durable");
    assert_eq!(store.resolve(HeadIndexKey([1; 32])).await.unwrap(), Some(record));
}

#[tokio::test]
async fn an_acknowledged_put_is_on_disk_before_the_store_is_closed() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder);
    let id = put(&store, b"acknowledged").await.unwrap();
    // A copy of the files as they are now is what a crash would leave.
    let copy = TempDir::new().unwrap();
    copy_folder(&folder.path().join("store"), &copy.path().join("store"));
    let survivor = open(&copy);
    assert_eq!(survivor.get(id, LIMIT).await.unwrap(), b"acknowledged");
}

fn copy_folder(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// The database behind the store's back. It lets go of its lock a moment after it is dropped.
fn open_sled(folder: &TempDir) -> sled::Db {
    loop {
        match sled::open(folder.path().join("store")) {
            Ok(db) => return db,
            Err(error) => assert!(error.to_string().contains("lock"), "{error}"),
        }
        std::thread::yield_now();
    }
}

/// Changes a stored entry behind the store's back.
fn damage(folder: &TempDir, tree: &str, key: [u8; 32], change: impl Fn(&mut Vec<u8>)) {
    let db = open_sled(folder);
    let tree = db.open_tree(tree).unwrap();
    let mut value = tree.get(key).unwrap().unwrap().to_vec();
    change(&mut value);
    tree.insert(key, value).unwrap();
    db.flush().unwrap();
}

#[tokio::test]
async fn a_damaged_entry_is_reported_and_never_served() {
    for change in [
        |value: &mut Vec<u8>| *value.last_mut().unwrap() ^= 1,
        |value: &mut Vec<u8>| value[0] ^= 1,
        |value: &mut Vec<u8>| value[33] ^= 1,
        |value: &mut Vec<u8>| value.truncate(40),
        Vec::clear,
    ] {
        let folder = TempDir::new().unwrap();
        let store = open(&folder);
        let (id, whole) = (put(&store, b"torn").await.unwrap(), put(&store, b"whole").await.unwrap());
        store.publish(head(1, 1, NOW_MS + 1, "")).await.unwrap();
        drop(store);
        damage(&folder, "blobs", id.0, change);
        damage(&folder, "heads", [1; 32], change);

        let store = open(&folder);
        let mut reported: Vec<_> =
            store.corrupt_entries().iter().map(|entry| (entry.tree, entry.key.clone())).collect();
        reported.sort();
        assert_eq!(reported, [("blobs", hex::encode(id.0)), ("heads", "01".repeat(32))]);
        assert_eq!(store.get(id, LIMIT).await, Err(StoreError::NotFound));
        assert!(!store.exists(id).await.unwrap());
        assert_eq!(store.resolve(HeadIndexKey([1; 32])).await, Ok(None));
        assert_eq!(store.get(whole, LIMIT).await.unwrap(), b"whole");
        // The same bytes again heal it.
        put(&store, b"torn").await.unwrap();
        assert_eq!(store.get(id, LIMIT).await.unwrap(), b"torn");
    }
}

/// The files of blobs, of which there must be so many.
fn files(folder: &TempDir, count: usize) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder.path().join("store/files")).unwrap();
    let files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), count, "{files:?}");
    files
}

#[tokio::test]
async fn a_damaged_file_is_reported_and_never_served() {
    let blob: Vec<u8> = (0..=250).cycle().take(600_000).collect();
    for (change, place) in
        [("flip", 0), ("flip", 300_000), ("flip", 600_001), ("cut", 599_999), ("cut", 0), ("gone", 0)]
    {
        let folder = TempDir::new().unwrap();
        let store = open(&folder);
        let id = put(&store, &blob).await.unwrap();
        drop(store);
        let file = &files(&folder, 1)[0];
        let mut bytes = std::fs::read(file).unwrap();
        match change {
            "flip" => bytes[place] ^= 1,
            _ => bytes.truncate(place),
        }
        std::fs::write(file, &bytes).unwrap();
        if change == "gone" {
            std::fs::remove_file(file).unwrap();
        }
        let store = open(&folder);
        assert_eq!(store.corrupt_entries().len(), 1, "{change} {place}");
        assert_eq!(store.get(id, LIMIT).await, Err(StoreError::NotFound), "{change} {place}");
        // Over HTTP, what is whole before the damage may have been sent: never a wrong byte, never all of it.
        let running = Running::start(store).await;
        match reqwest::get(format!("{}/v1/blobs/{id}", running.url)).await {
            Ok(answer) if answer.status() == 200 => {
                assert!(answer.bytes().await.is_err(), "{change} {place}");
            }
            Ok(answer) => assert_eq!(answer.status(), 404),
            // Cut before the head was sent.
            Err(error) => assert!(error.is_request(), "{error}"),
        }
        let store = running.stop().await;
        // The same bytes again heal it, also where nothing is bought.
        put(&store, &blob).await.unwrap();
        assert_eq!(store.get(id, LIMIT).await.unwrap(), blob);
        drop(store);
        assert_eq!(open(&folder).corrupt_entries(), []);
        files(&folder, 1);
    }
}

#[tokio::test]
async fn a_certified_blob_is_healed_by_its_bytes_without_a_purchase() {
    let folder = TempDir::new().unwrap();
    let options = PutOptions { permanent: true, ..PutOptions::default() };
    let store = open(&folder);
    let id = store.put(b"certified".to_vec(), options).await.unwrap().blob_id;
    std::fs::write(&files(&folder, 1)[0], b"scribbled").unwrap();
    assert_eq!(store.get(id, LIMIT).await, Err(StoreError::NotFound));
    assert!(!store.put(b"certified".to_vec(), options).await.unwrap().newly_created);
    assert_eq!(store.get(id, LIMIT).await.unwrap(), b"certified");
    files(&folder, 1);
}

#[tokio::test]
async fn what_a_crash_left_is_removed_at_the_start() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder);
    put(&store, b"kept").await.unwrap();
    drop(store);
    let kept = files(&folder, 1).remove(0);
    std::fs::write(kept.with_file_name("00000000deadbeef"), b"an upload that never ended").unwrap();
    files(&folder, 2);
    let store = open(&folder);
    assert_eq!(files(&folder, 1), [kept]);
    assert_eq!(store.get(id_of(b"kept"), LIMIT).await.unwrap(), b"kept");
}

#[tokio::test]
async fn an_upload_that_is_given_up_leaves_nothing() {
    use tokio::io::AsyncWriteExt as _;
    let folder = TempDir::new().unwrap();
    let running = Running::start(open(&folder)).await;
    let address = running.url.trim_start_matches("http://");
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(b"PUT /v1/blobs HTTP/1.1\r\nhost: x\r\ncontent-length: 900000\r\n\r\n").await.unwrap();
    stream.write_all(&vec![7; 600_000]).await.unwrap();
    let folder_is = |count| std::fs::read_dir(folder.path().join("store/files")).unwrap().count() == count;
    while !folder_is(1) {
        tokio::task::yield_now().await;
    }
    drop(stream);
    while !folder_is(0) {
        tokio::task::yield_now().await;
    }
    running.stop().await;
}

#[tokio::test]
async fn a_store_of_another_layout_is_refused_by_name() {
    let folder = TempDir::new().unwrap();
    drop(open(&folder));
    for (layout, found) in [(None, "1"), (Some("3"), "3")] {
        let db = open_sled(&folder);
        let settings = db.open_tree("settings").unwrap();
        match layout {
            Some(layout) => settings.insert("layout", layout).unwrap(),
            None => settings.remove("layout").unwrap(),
        };
        db.flush().unwrap();
        drop((settings, db));
        let refused = EmbeddedStore::open(config(&folder), validate).unwrap_err();
        assert!(matches!(&refused, OpenError::Layout { found: is, .. } if is == found), "{refused}");
        assert!(refused.to_string().contains("move it away to start empty"));
    }
}

#[tokio::test]
async fn an_entry_moved_to_another_key_is_damaged() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder);
    let (a, b) = (put(&store, b"aaaa").await.unwrap(), put(&store, b"bbbb").await.unwrap());
    drop(store);
    let db = open_sled(&folder);
    let tree = db.open_tree("blobs").unwrap();
    let value = tree.get(b.0).unwrap().unwrap();
    tree.insert(a.0, value).unwrap();
    db.flush().unwrap();
    drop((tree, db));
    let store = open(&folder);
    assert_eq!(store.corrupt_entries().len(), 1);
    assert_eq!(store.get(a, LIMIT).await, Err(StoreError::NotFound));
}

#[tokio::test]
async fn the_quota_counts_blobs_once_and_frees_removed_ones() {
    let folder = TempDir::new().unwrap();
    let config = EmbeddedConfig { quota_bytes: Some(10), ..config(&folder) };
    let store = EmbeddedStore::open(config.clone(), validate).unwrap();
    put(&store, b"123456").await.unwrap();
    put(&store, b"123456").await.unwrap();
    put(&store, b"1234").await.unwrap();
    assert!(matches!(put(&store, b"x").await, Err(StoreError::Unavailable { .. })));
    drop(store);
    let store = EmbeddedStore::open(config, validate).unwrap();
    assert!(matches!(put(&store, b"x").await, Err(StoreError::Unavailable { .. })), "after a restart too");
    assert!(store.admin().remove_blob(id_of(b"1234")).await.unwrap());
    put(&store, b"x").await.unwrap();

    let running = Running::start(store).await;
    let full = reqwest::Client::new().put(format!("{}/v1/blobs", running.url)).body("12345").send();
    let answer = full.await.unwrap();
    assert_eq!(answer.status().as_u16(), 500);
    assert!(answer.text().await.unwrap().contains("INTERNAL_ERROR"));
    running.stop().await;
}

#[tokio::test]
async fn put_and_get_keep_their_limits() {
    let folder = TempDir::new().unwrap();
    let config = EmbeddedConfig { max_put_bytes: 8, ..config(&folder) };
    let store = EmbeddedStore::open(config, validate).unwrap();
    assert_eq!(put(&store, &[0; 9]).await, Err(StoreError::TooLarge { length: 9, limit: 8 }));
    let id = put(&store, &[1; 8]).await.unwrap();
    assert_eq!(store.get(id, 7).await, Err(StoreError::TooLarge { length: 8, limit: 7 }));
    assert_eq!(store.get(id, 8).await, Ok(vec![1; 8]));
    for epochs in [0, 54] {
        let refused = store.put(vec![1], PutOptions { epochs, ..PutOptions::default() }).await;
        assert!(matches!(refused, Err(StoreError::Refused { .. })));
    }
    assert_eq!(put(&store, b"").await.unwrap(), id_of(b""));
    assert_eq!(store.get(id_of(b""), 0).await, Ok(vec![]));
}

#[tokio::test]
async fn permanent_puts_are_not_repeated() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder);
    let options = PutOptions { epochs: 2, permanent: true, send_object_to: None };
    let first = store.put(b"p".to_vec(), options).await.unwrap();
    let second = store.put(b"p".to_vec(), options).await.unwrap();
    assert_eq!((first.newly_created, second.newly_created), (true, false));
    assert_eq!((first.end_epoch, second.end_epoch), (Some(3), Some(3)));
}

#[tokio::test]
async fn the_head_index_keeps_the_highest_sequence() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder);
    let later = NOW_MS + 1;
    store.publish(head(1, 5, later, "a")).await.unwrap();
    store.publish(head(1, 5, later, "a")).await.unwrap();
    assert_eq!(store.publish(head(1, 4, later, "a")).await, Err(StoreError::HeadSuperseded));
    assert_eq!(store.publish(head(1, 5, later, "b")).await, Err(StoreError::HeadSuperseded));
    assert!(matches!(store.publish(b"short".to_vec()).await, Err(StoreError::Refused { .. })));
    assert!(matches!(store.publish(head(2, 1, NOW_MS, "")).await, Err(StoreError::Refused { .. })));
    assert!(matches!(store.publish(vec![0; 8193]).await, Err(StoreError::TooLarge { .. })));
    assert_eq!(store.resolve(HeadIndexKey([1; 32])).await, Ok(Some(head(1, 5, later, "a"))));
    assert_eq!(store.resolve(HeadIndexKey([2; 32])).await, Ok(None));
}

#[tokio::test]
async fn expired_heads_are_not_served_and_make_room() {
    static CLOCK: AtomicU64 = AtomicU64::new(0);
    let folder = TempDir::new().unwrap();
    let config = EmbeddedConfig {
        max_heads: 2,
        clock: Clock::new(|| CLOCK.load(Ordering::Relaxed)),
        ..config(&folder)
    };
    let store = EmbeddedStore::open(config, validate).unwrap();
    store.publish(head(1, 1, 100_000, "")).await.unwrap();
    store.publish(head(2, 1, 900_000, "")).await.unwrap();
    assert!(matches!(store.publish(head(3, 1, 900_000, "")).await, Err(StoreError::Unavailable { .. })));
    store.publish(head(2, 2, 900_000, "")).await.unwrap();
    CLOCK.store(100_000, Ordering::Relaxed);
    assert_eq!(store.resolve(HeadIndexKey([1; 32])).await, Ok(None));
    store.publish(head(3, 1, 900_000, "")).await.unwrap();
    assert!(store.resolve(HeadIndexKey([2; 32])).await.unwrap().is_some());
}

#[tokio::test]
async fn admin_hooks_change_what_lies_under_an_id() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder);
    let (a, b) = (put(&store, b"aaaa").await.unwrap(), put(&store, b"bb").await.unwrap());
    let admin = store.admin();
    admin.alias_blob(a, b).await.unwrap();
    assert_eq!(store.get(a, LIMIT).await.unwrap(), b"bb");
    assert!(admin.replace_blob(a, b"forged".to_vec()).await.unwrap());
    assert_eq!(store.get(a, LIMIT).await.unwrap(), b"forged");
    assert!(admin.remove_blob(b).await.unwrap());
    assert!(!admin.remove_blob(b).await.unwrap());
    assert_eq!(admin.alias_blob(a, b).await, Err(StoreError::NotFound));
    assert_eq!(admin.list_blobs().await.unwrap(), [(a, 6)]);
    store.publish(head(1, 9, NOW_MS + 1, "")).await.unwrap();
    admin.force_head(head(1, 3, NOW_MS + 1, ""), None).await.unwrap();
    assert_eq!(store.resolve(HeadIndexKey([1; 32])).await, Ok(Some(head(1, 3, NOW_MS + 1, ""))));
}

#[test]
fn says_what_to_do_when_it_cannot_open() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder);
    let locked = EmbeddedStore::open(config(&folder), validate).unwrap_err();
    assert!(matches!(locked, OpenError::Locked { .. }), "{locked}");
    assert!(locked.to_string().contains("stop that process or choose another folder"));
    drop(store);

    let shards = EmbeddedConfig { shards: ShardCount::MAINNET, ..config(&folder) };
    let other = EmbeddedStore::open(shards, validate).unwrap_err();
    assert!(matches!(&other, OpenError::Shards { found, .. } if found == "10"), "{other}");

    // A file where the folder should be: no user may make a folder there, whoever runs this test.
    let file = folder.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let path = EmbeddedConfig { path: file.join("store"), ..config(&folder) };
    let unwritable = EmbeddedStore::open(path, validate).unwrap_err();
    assert!(matches!(unwritable, OpenError::Path { .. }), "{unwritable}");
    assert!(unwritable.to_string().contains("choose a folder this user can write"));
}
