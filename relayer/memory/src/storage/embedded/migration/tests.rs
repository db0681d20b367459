//! A database of an earlier version becomes one of SQLite, whole or not at all.

use super::*;
use crate::storage::{Space, Storage as _, embedded::EmbeddedStorage};

const CHUNK_BYTES: usize = 4096;

fn owner(number: u8) -> Pseudonym {
    Pseudonym([number; 16])
}

fn bytes_of(owner: u8, number: u64) -> Vec<u8> {
    let lengths = [0, 1, 600, 4095, 4096, 4097, 20_000];
    let index = usize::try_from(number % 7).unwrap();
    vec![owner; lengths[index]]
}

fn numbers() -> impl Iterator<Item = u64> {
    (0..14).chain([u64::MAX - 1])
}

/// Writes as earlier versions did: three owners with records of all spaces, jobs of which one is taken, and
/// nonces.
fn fill_sled(folder: &Path) {
    let db = sled::open(folder).unwrap();
    db.insert(keys::LAYOUT, keys::LAYOUT_VERSION).unwrap();
    for name in 1..=3u8 {
        let owner = owner(name).0;
        let version = (1u64 << 40) | u64::from(name);
        db.insert([&b"o"[..], &owner].concat(), &version.to_be_bytes()).unwrap();
        for space in Space::ALL {
            for number in numbers() {
                let bytes = bytes_of(name, number);
                let chunks = bytes.chunks(CHUNK_BYTES).chain(bytes.is_empty().then_some(&[][..]));
                for (chunk, part) in (0u32..).zip(chunks) {
                    let place = [&[space as u8][..], &number.to_be_bytes(), &chunk.to_be_bytes()].concat();
                    db.insert([&b"r"[..], &owner, &place].concat(), part).unwrap();
                }
            }
        }
        for (job, due_ms, before) in [(1u64, 50u64, None), (2, 120_000, Some(70u64))] {
            db.insert([&b"j"[..], &owner, &job.to_be_bytes()].concat(), &due_ms.to_be_bytes()).unwrap();
            let due = keys::due(DueJob { owner: Pseudonym(owner), job, due_ms });
            let before = before.map_or(Vec::new(), |before| before.to_be_bytes().to_vec());
            db.insert(due, before).unwrap();
        }
    }
    for nonce in 0..40u8 {
        let until = (1_000 + u64::from(nonce)).to_be_bytes();
        db.insert([&b"n"[..], &[nonce; 32]].concat(), &until).unwrap();
        db.insert([&b"x"[..], &until, &[nonce; 32]].concat(), b"").unwrap();
    }
    db.flush().unwrap();
}

fn config(folder: &tempfile::TempDir) -> EmbeddedConfig {
    EmbeddedConfig::new(folder.path().join("data"))
}

/// Opens the database and compares everything with [`fill_sled`].
async fn assert_taken_over(config: &EmbeddedConfig) {
    let storage = EmbeddedStorage::open(config).unwrap();
    assert_eq!(storage.owners(None, 10).await.unwrap(), [owner(1), owner(2), owner(3)]);
    for name in 1..=3 {
        assert_eq!(storage.version(owner(name)).await.unwrap(), (1 << 40) | u64::from(name));
        for space in Space::ALL {
            let rows = storage.read(owner(name), space, 0, usize::MAX).await.unwrap();
            let wanted: Vec<_> = numbers().map(|number| (number, bytes_of(name, number))).collect();
            assert!(rows == wanted, "owner {name}, {space:?}");
        }
    }
    assert!(!storage.take_nonce([7; 32], 1_000, 2_000).await.unwrap());
    assert!(storage.take_nonce([99; 32], 1_000, 2_000).await.unwrap());
    let due = storage.take_due(100, 500, 100).await.unwrap();
    let due: Vec<_> = due.into_iter().map(|due| (due.owner.0[0], due.job, due.due_ms)).collect();
    // The taken job is due at its own time: its taker is gone.
    assert_eq!(due, [(1, 1, 50), (2, 1, 50), (3, 1, 50), (1, 2, 70), (2, 2, 70), (3, 2, 70)]);
    assert!(!config.sled_folder().exists() && is_sled(&config.path.join("memory.migrated")));
    assert!(!config.path.join("memory.sqlite.new").exists());
}

#[tokio::test]
async fn every_row_of_sled_is_taken_over_once_and_the_old_folder_stays() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder);
    fill_sled(&config.sled_folder());
    assert!(config.is_in_sled());
    assert_taken_over(&config).await;
    assert!(!config.is_in_sled());
    // The next start changes nothing.
    let storage = EmbeddedStorage::open(&config).unwrap();
    assert_eq!(storage.owners(None, 10).await.unwrap().len(), 3);
}

/// The files at each point of a takeover at which a process may die.
#[tokio::test]
async fn a_crash_at_any_point_leaves_one_valid_database() {
    // With a part of the copy, of any content.
    for part in [&b""[..], b"SQLite format 3\0 and no more"] {
        let folder = tempfile::tempdir().unwrap();
        let config = config(&folder);
        fill_sled(&config.sled_folder());
        std::fs::write(config.path.join("memory.sqlite.new"), part).unwrap();
        assert_taken_over(&config).await;
    }
    // With a whole copy under its temporary name.
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder);
    fill_sled(&config.sled_folder());
    let part = config.path.join("memory.sqlite.new");
    let counts = copy_all(&config.sled_folder(), &part).unwrap();
    assert_eq!(counts, RowCounts { owners: 3, records: 3 * 5 * 15, jobs: 6, nonces: 40 });
    // And after the copy got its name, with sled's folder still there.
    std::fs::rename(&part, config.file()).unwrap();
    assert!(!config.is_in_sled());
    assert_taken_over(&config).await;
}

#[tokio::test]
async fn a_copy_that_differs_in_one_row_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder);
    fill_sled(&config.sled_folder());
    let part = config.path.join("memory.sqlite.new");
    copy_all(&config.sled_folder(), &part).unwrap();
    let source = SledReader::open(&config.sled_folder()).unwrap();
    for change in [
        "UPDATE owner SET version = version + 1 WHERE id = 2",
        "UPDATE record SET bytes = zeroblob(600) WHERE length(bytes) = 600 AND owner = 2 AND space = 1",
        "UPDATE record SET hash = hash + 1 WHERE owner = 3 AND space = 4 AND length(bytes) = 0",
        "UPDATE job SET due_ms = due_ms + 1 WHERE owner = 1 AND number = (SELECT min(number) FROM job)",
        "DELETE FROM nonce WHERE nonce = (SELECT max(nonce) FROM nonce)",
        "DELETE FROM record WHERE number = (SELECT max(number) FROM record) AND owner = 3 AND space = 4",
    ] {
        let copy = folder.path().join("copy");
        std::fs::copy(&part, &copy).unwrap();
        let target = Connection::open(&copy).unwrap();
        assert!(compare(&source, &target).is_ok());
        assert!(target.execute(change, []).unwrap() > 0, "{change}");
        assert!(matches!(compare(&source, &target), Err(StorageError::Unavailable(_))), "{change}");
    }
}

#[tokio::test]
async fn a_foreign_sled_database_is_named_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder);
    let db = sled::open(config.sled_folder()).unwrap();
    db.insert(b"something", b"else").unwrap();
    drop(db);
    let refused = EmbeddedStorage::open(&config).err().expect("it is another program's");
    assert!(refused.to_string().contains("another program"), "{refused}");
    assert!(is_sled(&config.sled_folder()) && !config.file().exists());
}
