//! The embedded store as a library: durability, damage, quota, heads, and the errors of opening it.

use std::sync::atomic::{AtomicU64, Ordering};

use baton_proto::{
    ids::{BlobId, HeadIndexKey},
    store::{BlobStore as _, HeadIndex as _, PutOptions, StoreError},
};
use baton_walrus_client::ShardCount;
use baton_walrus_store::{Clock, DamageKind, EmbeddedConfig, EmbeddedStore, OpenError, check};
use tempfile::TempDir;

use crate::common::{NOW_MS, Running, config, head, id_of, open, opened, validate};

const LIMIT: usize = 1 << 20;

async fn put(store: &EmbeddedStore, bytes: &[u8]) -> Result<BlobId, StoreError> {
    store.put(bytes.to_vec(), PutOptions::default()).await.map(|outcome| outcome.blob_id)
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

/// The index: a database and a copy.
fn copies(folder: &TempDir) -> [std::path::PathBuf; 2] {
    ["a.sqlite", "b.sqlite"].map(|name| folder.path().join("store/index").join(name))
}

/// Changes one bit of a file.
fn flip(path: &std::path::Path, place: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[place / 8] ^= 1 << (place % 8);
    std::fs::write(path, bytes).unwrap();
}

/// The place of bytes in a file.
fn place_of(path: &std::path::Path, wanted: &[u8]) -> usize {
    std::fs::read(path).unwrap().windows(wanted.len()).position(|bytes| bytes == wanted).unwrap()
}

fn kinds(store: &EmbeddedStore) -> Vec<DamageKind> {
    store.damages().iter().map(|damage| damage.kind).collect()
}

#[tokio::test]
async fn a_damaged_copy_of_the_index_costs_nothing_and_is_written_again() {
    for copy in 0..2 {
        for change in [
            |bytes: &mut Vec<u8>, head: usize| bytes[head] ^= 1,
            |bytes: &mut Vec<u8>, _| bytes[0] ^= 1,
            // The number of pages in the header.
            |bytes: &mut Vec<u8>, _| bytes[28] ^= 1,
            // The kind of the first page.
            |bytes: &mut Vec<u8>, _| bytes[100] ^= 1,
            |bytes: &mut Vec<u8>, _| bytes.truncate(40),
            |bytes: &mut Vec<u8>, _| bytes.truncate(5_000),
            |bytes: &mut Vec<u8>, _| bytes.clear(),
        ] {
            let (folder, store) = opened();
            let (id, whole) = (put(&store, b"one").await.unwrap(), put(&store, b"two").await.unwrap());
            store.publish(head(1, 1, NOW_MS + 1, "")).await.unwrap();
            store.publish(head(1, 2, NOW_MS + 1, "")).await.unwrap();
            drop(store);
            let path = &copies(&folder)[copy];
            let mut bytes = std::fs::read(path).unwrap();
            change(&mut bytes, place_of(path, &head(1, 2, NOW_MS + 1, "")));
            std::fs::write(path, bytes).unwrap();

            let store = open(&folder);
            let kinds = kinds(&store);
            assert!(matches!(kinds[..], [DamageKind::IndexHeader | DamageKind::IndexEntry]), "{kinds:?}");
            assert!(store.damages()[0].place.contains("index/"), "{:?}", store.damages());
            assert_eq!(store.get(id, LIMIT).await.unwrap(), b"one");
            assert_eq!(store.get(whole, LIMIT).await.unwrap(), b"two");
            let newest = store.resolve(HeadIndexKey([1; 32])).await.unwrap();
            assert_eq!(newest, Some(head(1, 2, NOW_MS + 1, "")), "no head goes back");
            drop(store);
            assert_eq!(open(&folder).damages(), [], "written again");
        }
    }
}

#[tokio::test]
async fn the_index_stays_small_when_its_entries_are_replaced() {
    const MIB: u64 = 1024 * 1024;
    let (folder, store) = opened();
    let id = put(&store, b"stays").await.unwrap();
    let rest = "x".repeat(8_000);
    let index_bytes = || -> u64 {
        let files = std::fs::read_dir(folder.path().join("store/index")).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    };
    let mut most = 0;
    for round in 0..100 {
        let publish = |key| store.publish(head(key, round, NOW_MS + 1, &rest));
        for published in futures::future::join_all((1..=20).map(publish)).await {
            published.unwrap();
        }
        most = index_bytes().max(most);
    }
    assert!(most < 12 * MIB, "{most} bytes of 32 MB that were written");
    let check_all = async |store: &EmbeddedStore| {
        for key in 1..=20 {
            let newest = Some(head(key, 99, NOW_MS + 1, &rest));
            assert_eq!(store.resolve(HeadIndexKey([key; 32])).await.unwrap(), newest);
        }
        let again = put(store, b"stays").await.unwrap();
        assert_eq!((again, store.get(id, LIMIT).await.unwrap()), (id, b"stays".to_vec()));
    };
    check_all(&store).await;
    drop(store);
    let store = open(&folder);
    assert_eq!(store.damages(), []);
    check_all(&store).await;
}

#[tokio::test]
async fn a_lost_index_is_quarantined_and_rebuilt_from_the_files() {
    for lost in ["damaged", "gone"] {
        let (folder, store) = opened();
        let options = PutOptions { epochs: 3, permanent: true, send_object_to: None };
        let id = store.put(b"permanent".to_vec(), options).await.unwrap().blob_id;
        store.admin().move_clock(std::time::Duration::from_secs(14 * 24 * 3600)).await.unwrap();
        put(&store, b"later").await.unwrap();
        store.publish(head(1, 1, NOW_MS + 1, "")).await.unwrap();
        drop(store);
        for path in copies(&folder) {
            match lost {
                "damaged" => flip(&path, 100),
                _ => std::fs::remove_file(path).unwrap(),
            }
        }
        let store = open(&folder);
        assert_eq!(kinds(&store), [DamageKind::IndexLost], "{lost}");
        assert_eq!(store.epoch().epoch, 2, "the files know the epochs");
        assert_eq!(store.get(id, LIMIT).await.unwrap(), b"permanent");
        assert_eq!(store.get(id_of(b"later"), LIMIT).await.unwrap(), b"later");
        assert_eq!(store.resolve(HeadIndexKey([1; 32])).await, Ok(None));
        let again = PutOptions { epochs: 2, ..options };
        let again = store.put(b"permanent".to_vec(), again).await.unwrap();
        assert_eq!((again.newly_created, again.end_epoch), (false, Some(4)), "and what was bought");
        drop(store);
        let shards = EmbeddedConfig { shards: ShardCount::MAINNET, ..config(&folder) };
        assert!(matches!(EmbeddedStore::open(shards, validate), Err(OpenError::Shards { .. })));
        assert_eq!(open(&folder).damages(), []);
        let quarantined =
            std::fs::read_dir(folder.path().join("store/quarantine")).map_or(0, Iterator::count);
        assert_eq!(quarantined, if lost == "damaged" { 2 } else { 0 });
    }
}

#[tokio::test]
async fn a_damaged_entry_costs_no_blob_and_a_head_only_in_both_copies() {
    let (folder, store) = opened();
    let id = put(&store, b"one").await.unwrap();
    let records = [1, 2].map(|key| head(key, 1, NOW_MS + 1, "a head"));
    for record in &records {
        store.publish(record.clone()).await.unwrap();
    }
    drop(store);
    let [first, second] = copies(&folder);
    for path in [&first, &second] {
        flip(path, place_of(path, &records[0]) * 8);
    }
    flip(&first, place_of(&first, &id.0) * 8);
    let store = open(&folder);
    assert_eq!(kinds(&store), [DamageKind::IndexEntryLost; 2]);
    assert_eq!(store.get(id, LIMIT).await.unwrap(), b"one");
    assert_eq!(store.resolve(HeadIndexKey([1; 32])).await, Ok(None));
    assert_eq!(store.resolve(HeadIndexKey([2; 32])).await, Ok(Some(records[1].clone())));
    drop(store);
    assert_eq!(open(&folder).damages(), []);
}

/// The log of a database that was not closed, with a damaged frame: SQLite drops it and all behind it.
#[tokio::test]
async fn damage_of_a_log_after_a_kill_takes_no_head_back() {
    for (name, kinds_expected) in [("a.sqlite-wal", &[DamageKind::IndexEntry][..]), ("b.sqlite-wal", &[])] {
        let (folder, copy) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let store = open(&folder);
        let id = put(&store, b"one").await.unwrap();
        for sequence in 1..9 {
            store.publish(head(1, sequence, NOW_MS + 1, "")).await.unwrap();
        }
        // A copy of the present files is the state after a kill.
        copy_folder(&folder.path().join("store"), &copy.path().join("store"));
        flip(&copy.path().join("store/index").join(name), 20_000 * 8);
        let store = open(&copy);
        assert_eq!(kinds(&store), kinds_expected, "{name}");
        assert_eq!(store.resolve(HeadIndexKey([1; 32])).await, Ok(Some(head(1, 8, NOW_MS + 1, ""))));
        assert_eq!(store.get(id, LIMIT).await.unwrap(), b"one");
        drop(store);
        assert_eq!(open(&copy).damages(), []);
    }
}

#[tokio::test]
async fn a_store_of_another_layout_is_refused_by_name() {
    // Files of a sled store, and of a store with a log of its own.
    for (layout, name) in [("2", "conf"), ("3", "index/a.log")] {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("store");
        std::fs::create_dir_all(path.join("index")).unwrap();
        std::fs::write(path.join(name), b"old").unwrap();
        for refused in
            [EmbeddedStore::open(config(&folder), validate).map(drop), check(&path, true).map(drop)]
        {
            let refused = refused.unwrap_err();
            assert!(matches!(&refused, OpenError::Layout { found, .. } if found == layout), "{refused}");
            assert!(refused.to_string().contains("move it away to start empty"));
        }
    }
}

/// The files of blobs; asserts their number.
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
        let (folder, store) = opened();
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
        let found = kinds(&store);
        if place == 600_001 {
            // The bytes are unchanged.
            assert_eq!(found, [DamageKind::BlobHashes]);
            assert_eq!(store.get(id, LIMIT).await.unwrap(), blob);
            drop(store);
            assert_eq!(open(&folder).damages(), []);
            continue;
        }
        let kind = if change == "gone" { DamageKind::BlobMissing } else { DamageKind::BlobBytes };
        assert_eq!(found, [kind], "{change} {place}");
        assert_eq!(store.damages()[0].blob_id, Some(id.to_string()));
        assert_eq!(store.get(id, LIMIT).await, Err(StoreError::NotFound), "{change} {place}");
        // Over HTTP, whole chunks before the damage may have been sent: never a wrong byte, never the whole
        // blob.
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
        // Storing the same bytes again heals it, even if nothing is bought.
        put(&store, &blob).await.unwrap();
        assert_eq!(store.get(id, LIMIT).await.unwrap(), blob);
        drop(store);
        assert_eq!(open(&folder).damages(), []);
        files(&folder, 1);
    }
}

#[tokio::test]
async fn a_certified_blob_is_healed_by_its_bytes_without_a_purchase() {
    let (folder, store) = opened();
    let options = PutOptions { permanent: true, ..PutOptions::default() };
    let id = store.put(b"certified".to_vec(), options).await.unwrap().blob_id;
    std::fs::write(&files(&folder, 1)[0], b"scribbled").unwrap();
    assert_eq!(store.get(id, LIMIT).await, Err(StoreError::NotFound));
    assert!(!store.put(b"certified".to_vec(), options).await.unwrap().newly_created);
    assert_eq!(store.get(id, LIMIT).await.unwrap(), b"certified");
    files(&folder, 1);
}

#[tokio::test]
async fn a_start_removes_unfinished_uploads_and_quarantines_unnamed_files() {
    let (folder, store) = opened();
    put(&store, b"kept").await.unwrap();
    drop(store);
    let kept = files(&folder, 1).remove(0);
    let unnamed = "0".repeat(31) + "7";
    let names = ["00000000deadbeef.part", &unnamed, "notes.txt"];
    names.iter().for_each(|name| std::fs::write(kept.with_file_name(name), b"bytes").unwrap());
    let store = open(&folder);
    assert_eq!(kinds(&store), [DamageKind::BlobUnnamed]);
    let mut left = files(&folder, 2);
    left.sort();
    assert_eq!(left, [kept.clone(), kept.with_file_name("notes.txt")]);
    assert_eq!(std::fs::read(folder.path().join("store/quarantine").join(unnamed)).unwrap(), b"bytes");
    assert_eq!(store.get(id_of(b"kept"), LIMIT).await.unwrap(), b"kept");
}

#[tokio::test]
async fn of_two_files_of_a_blob_the_newest_whole_one_counts() {
    let (folder, store) = opened();
    put(&store, b"twice").await.unwrap();
    let old = files(&folder, 1).remove(0);
    let bytes = std::fs::read(&old).unwrap();
    put(&store, b"twice").await.unwrap();
    drop(store);
    let new = files(&folder, 1).remove(0);
    // The state after a crash before the removal.
    std::fs::write(&old, &bytes).unwrap();
    drop(open(&folder));
    assert_eq!(files(&folder, 1)[0], new);
    std::fs::write(&old, &bytes).unwrap();
    flip(&new, 3);
    let store = open(&folder);
    assert_eq!(kinds(&store), [DamageKind::BlobBytes]);
    assert_eq!(store.get(id_of(b"twice"), LIMIT).await.unwrap(), b"twice");
    assert_eq!(files(&folder, 1), [old]);
}

#[tokio::test]
async fn a_check_reports_and_fixes_damage_and_names_a_missing_store() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    assert!(matches!(check(&path, false), Err(OpenError::NoStore { .. })));
    let store = open(&folder);
    put(&store, b"checked").await.unwrap();
    assert!(matches!(check(&path, false), Err(OpenError::Locked { .. })), "the store has it open");
    drop(store);
    let sound = check(&path, false).unwrap();
    assert!(sound.is_sound() && (sound.blobs, sound.bytes, sound.damaged) == (1, 7, 0), "{sound:?}");
    // The last byte: the trailer's checksum.
    let file = files(&folder, 1).remove(0);
    let length = std::fs::read(&file).unwrap().len();
    flip(&file, length * 8 - 1);
    flip(&copies(&folder)[1], 5);
    for fix in [false, false, true] {
        let report = check(&path, fix).unwrap();
        assert_eq!((report.damaged, report.lost, report.fixed), (2, 0, fix), "{report:?}");
        assert_eq!(report.is_sound(), fix);
    }
    assert_eq!(check(&path, false).unwrap().damages, []);
    flip(&file, 0);
    let lost = check(&path, true).unwrap();
    assert!(!lost.is_sound() && lost.lost == 1, "{lost:?}");
    std::fs::write(&file, b"").unwrap();
    assert_eq!(check(&path, true).unwrap().damages[0].kind, DamageKind::BlobBytes);
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

#[test]
fn says_what_to_do_when_it_cannot_open() {
    let (folder, store) = opened();
    let locked = EmbeddedStore::open(config(&folder), validate).unwrap_err();
    assert!(matches!(locked, OpenError::Locked { .. }), "{locked}");
    assert!(locked.to_string().contains("stop that process or choose another folder"));
    drop(store);

    let shards = EmbeddedConfig { shards: ShardCount::MAINNET, ..config(&folder) };
    let other = EmbeddedStore::open(shards, validate).unwrap_err();
    assert!(matches!(&other, OpenError::Shards { found, .. } if found == "10"), "{other}");

    // A file where the folder should be: no user can create a folder there, not even root.
    let file = folder.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let path = EmbeddedConfig { path: file.join("store"), ..config(&folder) };
    let unwritable = EmbeddedStore::open(path, validate).unwrap_err();
    assert!(matches!(unwritable, OpenError::Path { .. }), "{unwritable}");
    assert!(unwritable.to_string().contains("choose a folder this user can write"));
}
