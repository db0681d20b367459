//! One flipped bit anywhere in a store's folder: no intact blob is lost, no head goes back, and the damage is
//! named, unless the bit is in a part of the index that SQLite does not use.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use baton_proto::{
    ids::{BlobId, HeadIndexKey},
    store::{BlobStore as _, HeadIndex as _, PutOptions, StoreError},
};
use baton_walrus_store::{DamageKind, EmbeddedStore, check};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tempfile::TempDir;

use crate::common::{NOW_MS, head, open};

const LIMIT: usize = 1 << 20;
const HEADS: u8 = 6;
/// Places in an ordinary run, and in one with `BATON_FULL`.
const SAMPLE: usize = 40;
const ALL: usize = 1_000;

/// The content of a store, on disk and as served.
struct Original {
    files: BTreeMap<PathBuf, Vec<u8>>,
    blobs: Vec<(BlobId, Vec<u8>)>,
}

fn read_folder(folder: &Path, into: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_folder(&path, into);
        } else {
            into.insert(path.clone(), std::fs::read(&path).unwrap());
        }
    }
}

/// A store with blobs of several lengths, some bought twice, and heads that were replaced.
async fn fill(folder: &TempDir) -> Original {
    let store = open(folder);
    let mut blobs = Vec::new();
    for number in 0..24_u8 {
        let length = match number {
            0 => 0,
            1 => 300_000,
            _ => 40 + usize::from(number) * 97,
        };
        let bytes = vec![number; length];
        let options = PutOptions { epochs: 5, permanent: number % 3 == 0, send_object_to: None };
        for _ in 0..=number % 2 {
            store.put(bytes.clone(), options).await.unwrap();
        }
        let id = store.put(bytes.clone(), options).await.unwrap().blob_id;
        blobs.push((id, bytes));
        for key in 1..=HEADS {
            store.publish(head(key, u64::from(number), NOW_MS + 1, "a head")).await.unwrap();
        }
    }
    drop(store);
    let mut files = BTreeMap::new();
    read_folder(&folder.path().join("store"), &mut files);
    Original { files, blobs }
}

/// Restores the folder, except for one bit.
fn restore(folder: &Path, original: &Original, damaged: &Path, bit: usize) {
    std::fs::remove_dir_all(folder).unwrap();
    for (path, bytes) in &original.files {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut bytes = bytes.clone();
        if path == damaged {
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        std::fs::write(path, bytes).unwrap();
    }
}

/// Checks that each served blob has the right bytes. Returns the number of blobs that are not served.
async fn missing(store: &EmbeddedStore, original: &Original) -> usize {
    let mut missing = 0;
    for (id, bytes) in &original.blobs {
        match store.get(*id, LIMIT).await {
            Ok(served) => assert_eq!(served, *bytes, "{id}"),
            Err(StoreError::NotFound) => missing += 1,
            Err(error) => panic!("{id}: {error}"),
        }
    }
    missing
}

#[tokio::test]
async fn one_flipped_bit_anywhere_loses_no_intact_blob_and_is_named() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let original = fill(&folder).await;
    let kinds = |prefix: &str| {
        let prefix = path.join(prefix);
        let files =
            original.files.iter().filter(move |(path, bytes)| path.starts_with(&prefix) && !bytes.is_empty());
        files.map(|(path, bytes)| (path.clone(), bytes.len())).collect::<Vec<_>>()
    };
    // As many places in the index as in the blobs' files; half of the latter near the file's end.
    let (index, blobs) = (kinds("index"), kinds("files"));
    assert_eq!((index.len(), blobs.len()), (2, original.blobs.len()));
    let mut random = StdRng::seed_from_u64(21);
    let (mut served_less, mut restored, mut unused) = (0, 0, 0);
    let places = if std::env::var_os("BATON_FULL").is_some() { ALL } else { SAMPLE };
    for place in 0..places {
        let files = if place % 2 == 0 { &index } else { &blobs };
        let (file, length) = &files[random.random_range(0..files.len())];
        let first = if place % 4 == 3 { length.saturating_sub(300) } else { 0 };
        let bit = random.random_range(first * 8..length * 8);
        restore(&path, &original, file, bit);
        let named = file.strip_prefix(&path).unwrap().to_str().unwrap().to_owned();

        let report = check(&path, false).unwrap();
        let store = open(&folder);
        let damages = store.damages().to_vec();
        assert_eq!(damages, report.damages, "{named} {bit}");
        match &damages[..] {
            [damage] => assert!(damage.place.contains(&named), "{named} {bit}: {damage}"),
            [] if place % 2 == 0 => unused += 1,
            damages => panic!("{named} {bit}: {damages:?}"),
        }
        let missing = missing(&store, &original).await;
        let lost = damages.iter().any(|damage| matches!(damage.kind, DamageKind::BlobBytes));
        assert_eq!(missing, usize::from(lost), "{named} {bit}: {damages:?}");
        assert!(!lost || file.starts_with(path.join("files")), "{named} {bit}");
        (served_less, restored) = (served_less + missing, restored + usize::from(!lost));
        for key in 1..=HEADS {
            let newest = head(key, 23, NOW_MS + 1, "a head");
            assert_eq!(store.resolve(HeadIndexKey([key; 32])).await, Ok(Some(newest)), "{named} {bit}");
        }
        drop(store);
        // No file of any kind is gone.
        let mut left = BTreeMap::new();
        read_folder(&path, &mut left);
        assert_eq!(left.len(), original.files.len(), "{named} {bit}");
        assert_eq!(open(&folder).damages().len(), usize::from(lost), "the rest is fixed: {named} {bit}");
    }
    println!(
        "{places} flipped bits: {unused} in unused parts of the index, all others named, {restored} fixed without \
         loss, {served_less} blobs whose own bytes were changed not served, 0 others lost"
    );
    assert!(restored >= places / 2 && served_less > 0);
}
