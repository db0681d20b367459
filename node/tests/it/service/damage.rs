//! A journal with damaged files reports it, keeps the readable entries, and signs nothing twice.

use std::{
    fs,
    path::{Path, PathBuf},
};

use baton_node::journal::{Journal, JournalLimits};
use tempfile::{TempDir, tempdir};

use crate::service::journal::{STORED, hash, key, seal};

const TURNS: u32 = 60;
const UNTAKEN: u64 = 3;
const LATER_MS: u64 = 50_000;

/// Damage to a file's bytes.
type Harm = Box<dyn Fn(&mut Vec<u8>)>;

struct JournalFolder {
    _parent: TempDir,
    folder: PathBuf,
}

/// A journal of sixty turns; the store has all but three of their blobs.
async fn journaled() -> JournalFolder {
    let parent = tempdir().unwrap();
    let folder = parent.path().join("journal");
    let journal = Journal::open(&folder, JournalLimits::default(), 1000).unwrap();
    assert_eq!(journal.damage(), None);
    for turn in 0..TURNS {
        let blob = vec![u8::try_from(turn).unwrap(); 3000];
        seal(&journal, turn, blob, baton_proto::wire::StoreState::Pending, 2000).await;
        if u64::from(turn) >= UNTAKEN {
            journal.set_store(key(turn), STORED).await.unwrap();
        }
    }
    close(journal, &folder);
    JournalFolder { _parent: parent, folder }
}

impl JournalFolder {
    fn open(&self) -> Journal {
        Journal::open(&self.folder, JournalLimits::default(), LATER_MS).unwrap()
    }

    fn harm(&self, file: &str, harm: &dyn Fn(&mut Vec<u8>)) {
        let path = self.folder.join(file);
        let mut bytes = fs::read(&path).unwrap();
        harm(&mut bytes);
        fs::write(&path, bytes).unwrap();
    }

    fn copies(&self) -> usize {
        let beside = fs::read_dir(self.folder.parent().unwrap()).unwrap();
        beside
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains(".damaged-"))
            .count()
    }
}

/// The end of the non-zero bytes: sled makes its file longer than necessary.
fn used(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1
}

fn harms() -> Vec<(String, Harm)> {
    let mut harms: Vec<(String, Harm)> = Vec::new();
    for part in 1..7 {
        harms.push((
            format!("a bit flipped at {part}/7"),
            Box::new(move |bytes| {
                let at = used(bytes) * part / 7;
                bytes[at] ^= 0x10;
            }),
        ));
        harms.push((
            format!("cut at {part}/7"),
            Box::new(move |bytes| bytes.truncate(used(bytes) * part / 7)),
        ));
        harms.push((
            format!("zeroed from {part}/7"),
            Box::new(move |bytes| {
                let from = used(bytes) * part / 7;
                bytes[from..].fill(0);
            }),
        ));
    }
    harms.push(("emptied".to_owned(), Box::new(Vec::clear)));
    harms.push(("all zeros".to_owned(), Box::new(|bytes| bytes.fill(0))));
    harms
}

async fn missing(journal: &Journal) -> u64 {
    let mut missing = 0;
    for turn in 0..TURNS {
        missing += u64::from(journal.look_up(key(turn)).await.unwrap().is_none());
    }
    missing
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_database_is_named_and_nothing_missing_is_signed_again() {
    for (name, harm) in harms() {
        let journaled = journaled().await;
        let db = journaled.folder.join("db");
        journaled.harm("db", &*harm);
        let journal = journaled.open();
        let missing = missing(&journal).await;
        let Some(damage) = journal.damage().cloned() else {
            assert_eq!(missing, 0, "{name}: {missing} entries are missing without a word");
            continue;
        };
        assert!(damage.files.contains(&db), "{name}: {damage}");
        assert!(damage.to_string().contains(&*db.to_string_lossy()), "{name}: {damage}");
        assert!(
            damage.quarantine.as_ref().is_some_and(|folder| folder.join("db").exists()),
            "{name}: {damage}"
        );
        if missing > 0 {
            assert!(damage.may_miss_entries(), "{name}: {missing} are missing, and it says {damage}");
            assert_eq!(damage.kept_entries, u64::from(TURNS) - missing, "{name}");
            assert_eq!(journal.begins_ms(), LATER_MS, "{name}: what is missing could be signed again");
            assert!(damage.to_string().contains("store had not taken"), "{name}");
        }
        assert!(damage.is_rebuilt || damage.kept_entries == 0, "{name}: {damage}");
        // It continues, and the next start, which compares entries, blobs and indexes, reports nothing.
        seal(&journal, TURNS, vec![9; 100], STORED, LATER_MS).await;
        drop(journal);
        assert_eq!(journaled.open().damage(), None, "{name}: told twice");
        assert_eq!(journaled.copies(), 1, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_settings_are_written_anew_and_nothing_is_lost() {
    for (name, harm) in harms() {
        let journaled = journaled().await;
        let good = fs::read(journaled.folder.join("conf")).unwrap();
        journaled.harm("conf", &*harm);
        let journal = journaled.open();
        assert_eq!((missing(&journal).await, journal.begins_ms()), (0, 1000), "{name}");
        assert_eq!(journal.damage(), None, "{name}");
        assert_eq!(fs::read(journaled.folder.join("conf")).unwrap(), good, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_mark_is_named() {
    for is_gone in [false, true] {
        let journaled = journaled().await;
        let path = journaled.folder.join("mark");
        match is_gone {
            false => fs::write(&path, "").unwrap(),
            true => fs::remove_file(&path).unwrap(),
        }
        let journal = journaled.open();
        let damage = journal.damage().unwrap();
        assert_eq!(damage.files, [path]);
        assert_eq!((damage.lost_changes, damage.untaken_blobs), (None, UNTAKEN));
        assert_eq!((missing(&journal).await, journal.begins_ms()), (0, LATER_MS));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_or_blob_with_a_wrong_checksum_is_taken_out() {
    let journaled = journaled().await;
    let digest = {
        let db = sled::open(&journaled.folder).unwrap();
        let turns = db.open_tree("turns").unwrap();
        let (key, mut entry) =
            turns.iter().next().unwrap().map(|(key, entry)| (key, entry.to_vec())).unwrap();
        *entry.last_mut().unwrap() ^= 1;
        turns.insert(key, entry).unwrap();
        let blobs = db.open_tree("blobs").unwrap();
        let (digest, _) = blobs.iter().next().unwrap().unwrap();
        blobs.insert(&digest, b"other bytes").unwrap();
        digest
    };
    let journal = journaled.open();
    let damage = journal.damage().unwrap();
    assert_eq!((damage.damaged_entries, damage.kept_entries), (2, u64::from(TURNS) - 1), "{damage}");
    let digest = baton_proto::ids::BlobDigest(digest.as_ref().try_into().unwrap());
    assert_eq!(journal.blob(digest).await.unwrap(), None);
    assert!(damage.quarantine.as_ref().unwrap().join("db").exists());
    assert_eq!(journal.accept(key(900), hash(1), 90_000, LATER_MS).await.unwrap(), Ok(None));
}

/// Waits until sled has released its lock, which it holds until its last write.
fn close(db: impl Sized, folder: &Path) {
    drop(db);
    fs::File::open(folder.join("db")).unwrap().lock().unwrap();
}

/// Changes rows of a closed journal, as after a kill.
fn change_rows(journaled: &JournalFolder, change: impl FnOnce(&sled::Db)) {
    let db = sled::open(&journaled.folder).unwrap();
    change(&db);
    db.flush().unwrap();
    close(db, &journaled.folder);
}

fn rows(folder: &Path, tree: &str) -> usize {
    let db = sled::open(folder).unwrap();
    let count = db.open_tree(tree).unwrap().len();
    close(db, folder);
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_entry_is_noticed_by_the_indexes_and_nothing_from_before_is_signed() {
    let journaled = journaled().await;
    change_rows(&journaled, |db| {
        let turns = db.open_tree("turns").unwrap();
        let (key, _) = turns.first().unwrap().unwrap();
        turns.remove(key).unwrap();
    });
    let journal = journaled.open();
    let damage = journal.damage().unwrap();
    assert_eq!((damage.lost_changes, damage.missing_entries), (Some(0), 1), "{damage}");
    assert!(damage.may_miss_entries() && damage.is_rebuilt, "{damage}");
    assert!(damage.to_string().contains("names 1 entries that are not there"), "{damage}");
    assert_eq!((damage.kept_entries, journal.begins_ms()), (u64::from(TURNS) - 1, LATER_MS));
    drop(journal);
    assert_eq!(journaled.open().damage(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_indexes_are_rebuilt_and_no_entry_is_lost() {
    for tree in ["by_age", "blob_age", "by_digest"] {
        let journaled = journaled().await;
        let whole = rows(&journaled.folder, tree);
        change_rows(&journaled, |db| {
            let tree = db.open_tree(tree).unwrap();
            let keys: Vec<_> = tree.iter().keys().map(Result::unwrap).collect();
            // The number of changes is a row of one of the indexes.
            let keys = keys.iter().filter(|key| key.as_ref() != b"changes");
            keys.step_by(2).for_each(|key| drop(tree.remove(key).unwrap()));
        });
        let journal = journaled.open();
        let damage = journal.damage().unwrap_or_else(|| panic!("{tree}")).clone();
        assert_eq!(damage.index_errors, u64::from(TURNS) / 2, "{tree}: {damage}");
        assert!(!damage.may_miss_entries() && damage.is_rebuilt, "{tree}: {damage}");
        assert_eq!((damage.kept_entries, journal.begins_ms()), (u64::from(TURNS), 1000), "{tree}");
        let unstored = journal.unstored().await.unwrap().len() as u64;
        assert_eq!(unstored, UNTAKEN, "{tree}");
        drop(journal);
        assert_eq!(rows(&journaled.folder, tree), whole, "{tree}");
        assert_eq!(journaled.copies(), 1, "{tree}: the files as found");
    }
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => copy_folder(&entry.path(), &to.join(entry.file_name())),
            false => drop(fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

/// The folders at each point of a rebuild at which the process may die.
#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_that_was_cut_off_begins_again_or_is_finished() {
    for point in ["copying", "compared", "renamed"] {
        let journaled = journaled().await;
        let beside = |suffix: &str| journaled.folder.with_file_name(format!("journal.{suffix}"));
        let rebuilt = beside(if point == "copying" { "rebuilding" } else { "rebuilt" });
        copy_folder(&journaled.folder, &rebuilt);
        match point {
            "copying" => fs::write(rebuilt.join("db"), "half a database").unwrap(),
            "compared" => journaled.harm("db", &|bytes| bytes.truncate(5_000)),
            _ => fs::rename(&journaled.folder, beside("damaged-1")).unwrap(),
        }
        let journal = journaled.open();
        assert_eq!(journal.damage(), None, "{point}");
        assert_eq!(missing(&journal).await, 0, "{point}");
        assert!(!beside("rebuilding").exists() && !beside("rebuilt").exists(), "{point}");
    }
}
