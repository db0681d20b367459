//! The records that the keys on disk can still open, and the effects of a crash at each step.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU8, Ordering},
};

use baton_keys::secret::random_bytes;
use zeroize::Zeroizing;

use super::*;
use crate::storage::{Batch, RowSearch, StorageFuture};

const CANARY: &[u8] = b"the canary sings at dawn in Lisbon";
const SPACES: [Space; 5] = Space::ALL;

/// The next fault to inject.
#[derive(Clone, Copy, PartialEq)]
#[repr(u8)]
enum Fault {
    None,
    BeforeCommit,
    AfterCommit,
    Erase,
}

/// A storage that fails on demand.
struct Faulty {
    inner: Arc<dyn Storage>,
    fault: AtomicU8,
}

impl Faulty {
    fn next(&self, fault: Fault) {
        self.fault.store(fault as u8, Ordering::SeqCst);
    }

    fn strikes(&self, fault: Fault) -> bool {
        self.fault
            .compare_exchange(fault as u8, Fault::None as u8, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }
}

fn lost<T>() -> Result<T, StorageError> {
    Err(StorageError::Unavailable("the connection was lost".into()))
}

impl Storage for Faulty {
    fn version<'a>(&'a self, owner: Pseudonym) -> StorageFuture<'a, u64> {
        self.inner.version(owner)
    }

    fn read<'a>(
        &'a self,
        owner: Pseudonym,
        space: Space,
        from: u64,
        max_bytes: usize,
    ) -> StorageFuture<'a, Vec<(u64, Vec<u8>)>> {
        self.inner.read(owner, space, from, max_bytes)
    }

    fn commit<'a>(&'a self, owner: Pseudonym, expected: u64, batch: Batch) -> StorageFuture<'a, u64> {
        Box::pin(async move {
            if self.strikes(Fault::BeforeCommit) {
                return lost();
            }
            let version = self.inner.commit(owner, expected, batch).await?;
            if self.strikes(Fault::AfterCommit) { lost() } else { Ok(version) }
        })
    }

    fn erase<'a>(&'a self, owner: Pseudonym) -> StorageFuture<'a, ()> {
        if self.strikes(Fault::Erase) { Box::pin(async { lost() }) } else { self.inner.erase(owner) }
    }

    fn owners<'a>(&'a self, after: Option<Pseudonym>, limit: usize) -> StorageFuture<'a, Vec<Pseudonym>> {
        self.inner.owners(after, limit)
    }

    fn take_due<'a>(&'a self, now_ms: u64, again_ms: u64, limit: usize) -> StorageFuture<'a, Vec<Pseudonym>> {
        self.inner.take_due(now_ms, again_ms, limit)
    }

    fn take_nonce<'a>(&'a self, nonce: [u8; 32], now_ms: u64, until_ms: u64) -> StorageFuture<'a, bool> {
        self.inner.take_nonce(nonce, now_ms, until_ms)
    }

    fn rows(&self) -> Option<&dyn RowSearch> {
        self.inner.rows()
    }
}

/// A storage, its folder of keys, and the folder of its bytes.
struct Place {
    storage: Arc<Faulty>,
    folder: tempfile::TempDir,
    data: PathBuf,
}

/// The embedded storage, and Postgres if a test server is configured.
async fn places() -> Vec<Place> {
    let postgres = std::env::var("BATON_TEST_POSTGRES_FOLDER").map(|data| Path::new(&data).join("data")).ok();
    let place = |((inner, folder), postgres): ((Arc<dyn Storage>, tempfile::TempDir), Option<PathBuf>)| {
        let storage = Arc::new(Faulty { inner, fault: AtomicU8::new(Fault::None as u8) });
        let data = postgres.unwrap_or_else(|| folder.path().join("database"));
        Place { storage, folder, data }
    };
    crate::testing::storages().await.into_iter().zip([None, postgres]).map(place).collect()
}

impl Place {
    fn keys(&self) -> PathBuf {
        self.folder.path().join("keys")
    }

    async fn vault(&self) -> Vault {
        self.vault_of(5).await.unwrap()
    }

    async fn vault_of(&self, master: u8) -> Result<Vault> {
        Vault::new(self.storage.clone(), &self.keys(), MasterKey::from_bytes([master; 32])).await
    }

    /// The old records that an attacker with all bytes of the disks can open, with every key of the owner's
    /// file.
    fn attack(&self, owner: OwnerId, old: &[(Space, u64, Vec<u8>)]) -> Vec<(Space, u64)> {
        let folder = KeyFolder::open(&self.keys(), MasterKey::from_bytes([5; 32])).unwrap();
        let Some(ring) = folder.load(folder.pseudonym(owner)).unwrap() else { return Vec::new() };
        let mut opened = Vec::new();
        for (space, number, bytes) in old {
            if ring.all_keys().any(|key| seal::try_key(owner, key, *space, *number, bytes).is_some()) {
                opened.push((*space, *number));
            }
        }
        opened
    }

    /// All sealed records of an owner, as stored in the database.
    async fn sealed(&self, owner: Pseudonym) -> Vec<(Space, u64, Vec<u8>)> {
        let mut all = Vec::new();
        for space in SPACES {
            let mut from = 0;
            loop {
                let page = self.storage.read(owner, space, from, 1 << 20).await.unwrap();
                let Some((last, _)) = page.last() else { break };
                from = last + 1;
                all.extend(page.into_iter().map(|(number, bytes)| (space, number, bytes)));
            }
        }
        all
    }

    /// Key and database files that contain some bytes, logs included.
    fn files_with(&self, needle: &[u8]) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.keys(), self.data.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if let Ok(bytes) = std::fs::read(&path)
                    && memchr::memmem::find(&bytes, needle).is_some()
                {
                    found.push(path);
                }
            }
        }
        found
    }
}

fn put(records: &[(Space, u64, &[u8])]) -> Changes {
    let put = records
        .iter()
        .map(|(space, number, text)| (*space, *number, Zeroizing::new(text.to_vec())))
        .collect();
    Changes { put, ..Changes::default() }
}

fn someone() -> OwnerId {
    OwnerId(random_bytes())
}

async fn texts(owner: &OwnerVault, space: Space) -> Vec<(u64, Vec<u8>)> {
    let page = owner.read(space, 0).await.unwrap();
    page.into_iter().map(|(number, text)| (number, text.to_vec())).collect()
}

/// An owner with 300 events, with the canary in some records of every space, and harmless records beside
/// them.
async fn with_canary(vault: &Vault, who: OwnerId) -> Arc<OwnerVault> {
    let owner = vault.open(who).await.unwrap();
    let events: Vec<_> = (0..300).map(|number| (Space::Log, number, &b"harmless"[..])).collect();
    owner.commit(put(&events)).await.unwrap();
    owner.commit(put(&[(Space::Snapshot, 0, CANARY)])).await.unwrap();
    owner
        .commit(put(&[
            (Space::Log, 7, CANARY),
            (Space::Features, 7, CANARY),
            (Space::Features, 8, b"harmless"),
            (Space::Sessions, 1 << 60, CANARY),
            (Space::Packs, 0, CANARY),
            // A later snapshot without the canary.
            (Space::Snapshot, 0, b"harmless"),
        ]))
        .await
        .unwrap();
    owner
}

fn deletion() -> Changes {
    Changes {
        remove: vec![(Space::Features, 7), (Space::Sessions, 1 << 60)],
        ..put(&[(Space::Log, 7, b"deleted"), (Space::Packs, 0, b"harmless")])
    }
}

#[tokio::test]
async fn f1_a_canary_is_in_no_byte_at_rest() {
    for place in places().await {
        let who = someone();
        let owner = with_canary(&place.vault().await, who).await;
        assert_eq!(place.files_with(CANARY), Vec::<PathBuf>::new());
        assert!(place.files_with(&who.0).is_empty());
        // The search finds existing bytes.
        assert!(!place.files_with(&owner.pseudonym().0).is_empty());
    }
}

#[tokio::test]
async fn f1_old_copies_of_the_database_are_noise_under_every_key_after_a_redaction() {
    for place in places().await {
        let who = someone();
        let vault = place.vault().await;
        let owner = with_canary(&vault, who).await;
        let old = place.sealed(owner.pseudonym()).await;
        // The attack works as long as the keys exist.
        assert_eq!(place.attack(who, &old).len(), old.len());
        owner.redact(deletion()).await.unwrap();
        let opened = place.attack(who, &old);
        // Only untouched segments are left: events 256 to 299.
        assert!(opened.iter().all(|(space, number)| *space == Space::Log && *number >= 256), "{opened:?}");
        assert_eq!(opened.len(), 44);
        // The remaining records are readable as before.
        let owner = place.vault().await.open(who).await.unwrap();
        assert_eq!(texts(&owner, Space::Log).await.len(), 300);
        assert_eq!(texts(&owner, Space::Features).await, [(8, b"harmless".to_vec())]);
        assert!(texts(&owner, Space::Snapshot).await.is_empty());
        assert!(texts(&owner, Space::Sessions).await.is_empty());
        let new = place.sealed(owner.pseudonym()).await;
        assert_eq!(place.attack(who, &new).len(), new.len());
        assert!(place.files_with(CANARY).is_empty());
    }
}

#[tokio::test]
async fn f1_after_an_erasure_nothing_opens_and_nothing_is_left() {
    for place in places().await {
        let (who, other) = (someone(), someone());
        let vault = place.vault().await;
        let owner = with_canary(&vault, who).await;
        with_canary(&vault, other).await;
        let old = place.sealed(owner.pseudonym()).await;
        owner.erase().await.unwrap();
        assert!(place.attack(who, &old).is_empty());
        assert!(place.sealed(owner.pseudonym()).await.is_empty());
        assert_eq!(vault.folder.erasures().unwrap(), []);
        // The same person later: new keys, which open no old record.
        let owner = place.vault().await.open(who).await.unwrap();
        owner.commit(put(&[(Space::Log, 7, b"new")])).await.unwrap();
        assert!(place.attack(who, &old).is_empty());
        assert_eq!(texts(&vault.open(other).await.unwrap(), Space::Log).await.len(), 300);
    }
}

#[tokio::test]
async fn a_redaction_of_unknown_outcome_is_settled_with_and_without_a_restart_and_loses_nothing() {
    for (fault, done) in [(Fault::BeforeCommit, false), (Fault::AfterCommit, true)] {
        for (place, restarts) in places().await.iter().flat_map(|place| [(place, false), (place, true)]) {
            let who = someone();
            let mut owner = with_canary(&place.vault().await, who).await;
            let old = place.sealed(owner.pseudonym()).await;
            let keys = |owner: &OwnerVault| owner.ring().keys.all_keys().count();
            let before = keys(&owner);
            place.storage.next(fault);
            assert!(!owner.redact(deletion()).await.unwrap_err().is_conflict());
            assert!(keys(&owner) > before);
            assert_eq!(place.attack(who, &old).len(), old.len(), "the old keys are still there");
            if restarts {
                drop(owner);
                owner = place.vault().await.open(who).await.unwrap();
                assert!(owner.ring().keys.redactions.is_empty() && (done || keys(&owner) == before));
                let found = owner.get(Space::Log, 7).await.unwrap().unwrap();
                assert_eq!(found.as_slice(), if done { &b"deleted"[..] } else { CANARY });
            } else if done {
                // The version has moved on, so a repetition is refused until a refresh.
                assert!(owner.redact(deletion()).await.unwrap_err().is_conflict());
                owner.refresh().await.unwrap();
            }
            assert_eq!(texts(&owner, Space::Log).await.len(), 300);
            assert!(!(done && restarts) || place.attack(who, &old).len() == 44, "the open settles it");
            owner.redact(deletion()).await.unwrap();
            assert_eq!(place.attack(who, &old).len(), 44);
            owner.commit(put(&[(Space::Log, 300, b"more")])).await.unwrap();
            assert_eq!(texts(&owner, Space::Log).await.len(), 301);
        }
    }
}

#[tokio::test]
async fn a_crash_around_an_owners_first_write_loses_nothing() {
    for place in places().await {
        for (fault, left) in [(Fault::BeforeCommit, 0), (Fault::AfterCommit, 1)] {
            let who = someone();
            let owner = place.vault().await.open(who).await.unwrap();
            place.storage.next(fault);
            assert!(owner.commit(put(&[(Space::Log, 0, b"first")])).await.is_err());
            drop(owner);
            let owner = place.vault().await.open(who).await.unwrap();
            assert_eq!(texts(&owner, Space::Log).await.len(), left);
            owner.commit(put(&[(Space::Log, 1, b"second")])).await.unwrap();
            assert_eq!(texts(&owner, Space::Log).await.len(), left + 1);
        }
    }
}

#[tokio::test]
async fn an_interrupted_erasure_is_finished_at_the_next_start() {
    for place in places().await {
        let who = someone();
        let vault = place.vault().await;
        let owner = with_canary(&vault, who).await;
        let old = place.sealed(owner.pseudonym()).await;
        place.storage.next(Fault::Erase);
        assert!(owner.erase().await.is_err());
        assert!(place.attack(who, &old).is_empty(), "the keys go first");
        assert!(!place.sealed(owner.pseudonym()).await.is_empty());
        let vault = place.vault().await;
        assert!(place.sealed(owner.pseudonym()).await.is_empty());
        assert_eq!(vault.open(who).await.unwrap().version(), 0);
        assert_eq!(vault.folder.erasures().unwrap(), []);
        // A crash between the mark and the destruction of the keys.
        let owner = with_canary(&vault, who).await;
        std::fs::write(place.keys().join(format!("{}.erased", hex::encode(owner.pseudonym().0))), b"")
            .unwrap();
        drop(owner);
        let owner = vault.open(who).await.unwrap();
        assert_eq!(owner.version(), 0);
        assert!(place.sealed(owner.pseudonym()).await.is_empty());
    }
}

#[tokio::test]
async fn a_damaged_missing_or_foreign_key_file_is_an_error_and_nothing_is_destroyed() {
    for place in places().await {
        let (who, other) = (someone(), someone());
        let vault = place.vault().await;
        let pseudonym = with_canary(&vault, who).await.pseudonym();
        let foreign = with_canary(&vault, other).await.pseudonym();
        drop(vault);
        let path = vault_file(&place, pseudonym);
        let right = std::fs::read(&path).unwrap();
        let sealed = place.sealed(pseudonym).await;
        let fails = async |wanted: fn(&KeyringError) -> bool| {
            let failed = place.vault().await.open(who).await.err().expect("it must not open");
            assert!(matches!(&failed, VaultError::Keys(error) if wanted(error)), "{failed}");
            assert_eq!(place.sealed(pseudonym).await, sealed);
        };
        for byte in (0..right.len()).step_by(right.len() / 20) {
            let mut changed = right.clone();
            changed[byte] ^= 1;
            std::fs::write(&path, &changed).unwrap();
            fails(|error| matches!(error, KeyringError::Damaged { .. })).await;
            assert_eq!(std::fs::read(&path).unwrap(), changed);
        }
        std::fs::write(&path, std::fs::read(vault_file(&place, foreign)).unwrap()).unwrap();
        fails(|error| matches!(error, KeyringError::Damaged { .. })).await;
        std::fs::remove_file(&path).unwrap();
        fails(|error| matches!(error, KeyringError::Missing { .. })).await;
        assert_eq!(place.vault().await.resolve(pseudonym).await.unwrap(), None);
        baton_keys::files::write_private(&path, &right).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        fails(|error| matches!(error, KeyringError::File(_))).await;
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let wrong = place.vault_of(6).await.err().expect("another master key is refused");
        assert!(matches!(wrong, VaultError::Keys(KeyringError::WrongMaster { .. })));
        // A half-written file of a crash is removed; the owner is intact.
        std::fs::write(path.with_extension("keys.new"), b"half").unwrap();
        let owner = place.vault().await.open(who).await.unwrap();
        assert_eq!(texts(&owner, Space::Log).await.len(), 300);
        assert!(!path.with_extension("keys.new").exists());
        // Without its keys, an owner can only be erased.
        drop(owner);
        let owner = place.vault().await.open(who).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        owner.erase().await.unwrap();
        assert!(place.sealed(pseudonym).await.is_empty());
    }
}

fn vault_file(place: &Place, owner: Pseudonym) -> PathBuf {
    place.keys().join(format!("{}.keys", hex::encode(owner.0)))
}

#[tokio::test]
async fn a_record_moved_by_whoever_holds_the_database_is_refused() {
    for place in places().await {
        let (who, other) = (someone(), someone());
        let vault = place.vault().await;
        let (owner, victim) = (with_canary(&vault, who).await, vault.open(other).await.unwrap());
        victim.commit(put(&[(Space::Log, 0, b"mine")])).await.unwrap();
        let sealed = place.sealed(owner.pseudonym()).await;
        let (_, _, bytes) =
            sealed.iter().find(|(space, number, _)| (*space, *number) == (Space::Log, 7)).unwrap();
        let record = |number| crate::storage::Record { space: Space::Log, number, bytes: bytes.clone() };
        let batch = |number| Batch { put: vec![record(number)], ..Batch::default() };
        place.storage.commit(owner.pseudonym(), owner.version(), batch(8)).await.unwrap();
        let moved = owner.get(Space::Log, 8).await.unwrap_err();
        assert!(matches!(moved, VaultError::Storage(StorageError::Damaged(_))), "{moved}");
        place.storage.commit(victim.pseudonym(), victim.version(), batch(7)).await.unwrap();
        assert!(matches!(
            victim.get(Space::Log, 7).await,
            Err(VaultError::Storage(StorageError::Damaged(_)))
        ));
    }
}

/// Two relayers with the same folder of keys; each redacts and writes, and reports acknowledged writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_relayers_on_one_owner_lose_nothing_and_leave_one_key_for_each_segment() {
    const EACH: u64 = 25;
    for place in places().await {
        let who = someone();
        place.vault().await.open(who).await.unwrap().commit(put(&[(Space::Log, 5000, b"x")])).await.unwrap();
        let mut relayers = tokio::task::JoinSet::new();
        for relayer in 0..2u64 {
            let vault = place.vault().await;
            relayers.spawn(async move {
                let owner = vault.open(who).await.unwrap();
                for index in 0..EACH {
                    let number = index * 2 + relayer;
                    loop {
                        let mut changes =
                            put(&[(Space::Log, number, b"event"), (Space::Sessions, index << 59, b"s")]);
                        let done = if index % 3 == 0 {
                            changes.remove.push((Space::Features, 1));
                            owner.redact(changes).await
                        } else {
                            changes.put.push((Space::Features, 1, Zeroizing::new(b"f".to_vec())));
                            owner.commit(changes).await
                        };
                        match done {
                            Ok(_) => break,
                            Err(error) if error.is_conflict() => {
                                owner
                                    .refresh()
                                    .await
                                    .map(drop)
                                    .or_else(|error| if error.is_conflict() { Ok(()) } else { Err(error) })
                                    .unwrap();
                                // Reads continue while the other relayer re-seals.
                                owner.read(Space::Log, 0).await.unwrap();
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
        relayers.join_all().await;
        let owner = place.vault().await.open(who).await.unwrap();
        let numbers: Vec<_> = texts(&owner, Space::Log).await.into_iter().map(|(number, _)| number).collect();
        assert_eq!(numbers, (0..2 * EACH).chain([5000]).collect::<Vec<_>>());
        assert!(owner.ring().keys.redactions.is_empty());
        let sealed = place.sealed(owner.pseudonym()).await;
        assert_eq!(place.attack(who, &sealed).len(), sealed.len());
    }
}

#[tokio::test]
async fn another_relayers_erasure_is_noticed_and_the_owner_begins_anew() {
    for place in places().await {
        let who = someone();
        let (here, there) = (place.vault().await, place.vault().await);
        let ours = with_canary(&here, who).await;
        let theirs = there.open(who).await.unwrap();
        let keys = theirs.keys().content_hash(b"x");
        ours.erase().await.unwrap();
        assert!(theirs.commit(put(&[(Space::Log, 1, b"late")])).await.unwrap_err().is_conflict());
        assert_eq!(theirs.refresh().await.unwrap(), 0);
        assert_ne!(theirs.keys().content_hash(b"x"), keys);
        ours.commit(put(&[(Space::Log, 1, b"anew")])).await.unwrap();
        // Its keys are older than the other relayer's saved ones, so they are not used.
        assert!(theirs.commit(put(&[(Space::Log, 1, b"late")])).await.unwrap_err().is_conflict());
        theirs.refresh().await.unwrap();
        assert_eq!(texts(&theirs, Space::Log).await, [(1, b"anew".to_vec())]);
        assert_eq!(theirs.keys().content_hash(b"x"), ours.keys().content_hash(b"x"));
    }
}

#[tokio::test]
async fn a_key_file_says_how_far_the_database_came_and_one_that_is_behind_is_refused() {
    for place in places().await {
        let who = someone();
        let vault = place.vault().await;
        let owner = vault.open(who).await.unwrap();
        // Nothing was acknowledged at the creation of the first key.
        owner.commit(put(&[(Space::Log, 0, b"x")])).await.unwrap();
        assert_eq!(owner.reached(), Mark::default());
        let first = owner.version();
        let events: Vec<_> = (1..256).map(|number| (Space::Log, number, &b"x"[..])).collect();
        owner.commit(put(&events)).await.unwrap();
        let sealed = place.sealed(owner.pseudonym()).await;
        // The next segment's key is written when the segment before is full.
        owner.commit(put(&[(Space::Log, 256, b"x")])).await.unwrap();
        assert_eq!(owner.reached(), Mark { version: first + 1, events: 256 });
        owner.commit(put(&[(Space::Log, 257, b"x")])).await.unwrap();
        let marker = owner.marker().expect("it came further than the file says");
        marker.write().await.unwrap();
        assert!(owner.marker().is_none());
        assert_eq!(
            place.vault().await.open(who).await.unwrap().reached(),
            Mark { version: first + 3, events: 258 }
        );
        // An older state of the database, with the newer key file.
        let pseudonym = owner.pseudonym();
        place.storage.erase(pseudonym).await.unwrap();
        drop((owner, vault));
        let refused = async || place.vault().await.open(who).await.err().expect("it is behind").to_string();
        assert!(refused().await.contains("accept-loss"), "{}", refused().await);
        let records =
            sealed.into_iter().map(|(space, number, bytes)| crate::storage::Record { space, number, bytes });
        let batch = Batch { put: records.collect(), ..Batch::default() };
        // A recreated owner has a random version: whether it is behind or not, the loss is found.
        let version = place.storage.commit(pseudonym, 0, batch).await.unwrap();
        let vault = place.vault().await;
        assert_eq!(vault.open(who).await.is_err(), version < first + 3);
        assert_eq!(vault.refused().await.unwrap().behind.contains(&who), version < first + 3);
        let loss = vault.accept_loss(who, b"filler", 5).await.unwrap();
        assert_eq!(loss, Loss { events: 256, lost_events: 2, removed: 0 });
        let owner = vault.open(who).await.unwrap();
        assert_eq!((owner.reached().events, texts(&owner, Space::Log).await.len()), (256, 256));
        owner.commit(put(&[(Space::Log, 256, b"again")])).await.unwrap();
        assert!(!vault.refused().await.unwrap().behind.contains(&who));
    }
}

#[tokio::test]
async fn accepting_a_loss_fills_holes_and_removes_what_no_key_opens() {
    for place in places().await {
        let who = someone();
        let vault = place.vault().await;
        let owner = with_canary(&vault, who).await;
        let old = place.sealed(owner.pseudonym()).await;
        owner.redact(deletion()).await.unwrap();
        let (pseudonym, version) = (owner.pseudonym(), owner.version());
        // Records from before the deletion come back, and some are missing.
        let remove = vec![(Space::Log, 270), (Space::Log, 271)];
        let there = old.into_iter().filter(|(space, number, _)| !remove.contains(&(*space, *number)));
        let back = there.map(|(space, number, bytes)| crate::storage::Record { space, number, bytes });
        place
            .storage
            .commit(pseudonym, version, Batch { put: back.collect(), remove, ..Batch::default() })
            .await
            .unwrap();
        drop((owner, vault));
        let vault = place.vault().await;
        let loss = vault.accept_loss(who, b"filler", 5).await.unwrap();
        assert_eq!((loss.events, loss.lost_events), (42, 258));
        let owner = vault.open(who).await.unwrap();
        let log = texts(&owner, Space::Log).await;
        assert_eq!(log.len(), 300);
        assert_eq!(log.iter().filter(|(_, text)| text == b"filler").count(), 258);
        for space in [Space::Features, Space::Snapshot, Space::Sessions, Space::Packs] {
            assert_eq!(texts(&owner, space).await, [], "{space:?}");
        }
        let sealed = place.sealed(pseudonym).await;
        assert_eq!(place.attack(who, &sealed).len(), sealed.len());
    }
}

#[tokio::test]
async fn a_damaged_key_file_stops_its_owner_alone() {
    for place in places().await {
        let (who, other) = (someone(), someone());
        let vault = place.vault().await;
        for owner in [who, other] {
            with_canary(&vault, owner).await;
        }
        let file = vault.folder.file(vault.pseudonym(who));
        drop(vault);
        let mut bytes = std::fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        let vault = place.vault().await;
        let owners = vault.owners(None, 1_000).await.unwrap().0;
        assert!(owners.contains(&other) && !owners.contains(&who));
        let refused = vault.refused().await.unwrap();
        assert!(refused.unreadable.iter().any(|error| error.to_string().contains(file.to_str().unwrap())));
        assert!(vault.open(who).await.is_err() && vault.open(other).await.is_ok());
    }
}
