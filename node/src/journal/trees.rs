//! The journal on disk: its trees, and their pruning. Blocking throughout.

use std::{
    collections::HashSet,
    hash::{BuildHasher as _, RandomState},
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use baton_proto::{codec, ids::BlobDigest, limits::MAX_CLOCK_SKEW_MS, link::blob_digest, wire::StoreState};
use parking_lot::{Mutex, MutexGuard};
use sled::{
    IVec, Transactional as _,
    transaction::{ConflictableTransactionResult, TransactionError, TransactionalTree},
};

use super::{
    EntryState, JOURNAL_VERSION, JournalError, JournalLimits, SealedEntry, TurnEntry, TurnKey,
    damage::JournalDamage,
    open::{JournalTrees, VerifiedJournal, open_verified},
};
use crate::mark::Mark;

/// Largest encoded entry: a link, a receipt and an acknowledgement, each a signed object of some hundred
/// bytes.
const MAX_ENTRY_BYTES: usize = 64 * 1024;
/// Bytes of an entry's checksum, which also covers its key.
const CHECKSUM_BYTES: usize = 8;
/// Key of the last change's number in `by_digest`; the digests there are longer.
pub(super) const CHANGES_KEY: &[u8] = b"changes";
/// Key of the saved accounts of peers in the default tree.
pub(super) const ACCOUNTS_KEY: &str = "accounts";
/// Entries or blobs examined in one round of pruning, so that no single turn pays for a long round (about ten
/// milliseconds).
const PRUNE_BATCH: usize = 1024;

pub(super) struct Trees {
    db: sled::Db,
    trees: JournalTrees,
    damage: Option<JournalDamage>,
    limits: JournalLimits,
    begins_ms: u64,
    blob_bytes: AtomicU64,
    entries: AtomicU64,
    /// Entries with a local blob that is not confirmed in the store.
    untaken: AtomicU64,
    /// Number of changes.
    changes: AtomicU64,
    /// The mark, and the number of changes it counts as flushed.
    mark: Mutex<(Mark, u64)>,
    /// Hashes of the keys of all entries. A key outside this set has no entry on the disk.
    known: Mutex<HashSet<u64>>,
    hasher: RandomState,
    /// Set by the first disk failure. From then on memory and disk differ, and sled refuses every later
    /// write, so it stays set.
    failed: AtomicBool,
    /// Sealed in memory, perhaps not flushed.
    unflushed: Mutex<HashSet<TurnKey>>,
    /// Locked during every read-modify-write; only ever on a blocking thread.
    writing: Mutex<()>,
}

/// The trees in one atomic change: turns, blobs, by digest, by age, blobs by age.
type Change<'a> = [&'a TransactionalTree; 5];

impl Trees {
    /// Opens the journal of a folder.
    pub(super) fn open(folder: &Path, limits: JournalLimits, now_ms: u64) -> Result<Self, JournalError> {
        let VerifiedJournal { db, contents: read, mark, damage } = open_verified(folder, limits, now_ms)?;
        let trees = JournalTrees::open(&db)?;
        let (hasher, entries) = (RandomState::new(), read.known.len() as u64);
        Ok(Self {
            trees,
            db,
            damage,
            limits,
            begins_ms: read.begins_ms,
            blob_bytes: AtomicU64::new(read.blob_bytes),
            entries: AtomicU64::new(entries),
            untaken: AtomicU64::new(read.untaken),
            changes: AtomicU64::new(read.changes),
            mark: Mutex::new((mark, read.changes)),
            known: Mutex::new(read.known.iter().map(|key| hasher.hash_one(key.as_ref())).collect()),
            hasher,
            failed: AtomicBool::new(false),
            unflushed: Mutex::default(),
            writing: Mutex::new(()),
        })
    }

    /// Flushes, and marks the change with this number as flushed.
    pub(super) fn flush_change(&self, change: u64) -> Result<(), JournalError> {
        self.flush()?;
        let counts = [change, self.untaken.load(Ordering::Relaxed)];
        let mut mark = self.mark.lock();
        let (mark, marked) = &mut *mark;
        if change > *marked {
            // An outdated mark only detects less, so it does not fail a flushed change.
            match mark.set(counts) {
                Ok(()) => *marked = change,
                Err(error) => tracing::warn!(%error, "the journal's mark was not written"),
            }
        }
        Ok(())
    }

    pub(super) fn damage(&self) -> Option<&JournalDamage> {
        self.damage.as_ref()
    }

    pub(super) fn begins_ms(&self) -> u64 {
        self.begins_ms
    }

    pub(super) fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Runs the work, unless the disk failed earlier. Records a new disk failure.
    pub(super) fn guarded<T>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        if self.failed() {
            return Err(JournalError::Failed);
        }
        let done = work(self);
        if matches!(done, Err(JournalError::Disk(_))) {
            self.fail();
        }
        done
    }

    /// Stops all reads and writes.
    pub(super) fn fail(&self) {
        if !self.failed.swap(true, Ordering::AcqRel) {
            // Dropping a tree flushes it. After some failures sled waits for that flush for ever, and the
            // process could not end. All flushable data is on the disk already, so the trees are leaked.
            std::mem::forget((self.trees.clone(), self.db.clone()));
        }
    }

    /// Whether an entry with this key may exist. False positives are rare. Reads memory only.
    pub(super) fn may_have(&self, key: &TurnKey) -> bool {
        self.known.lock().contains(&self.hash(key))
    }

    fn hash(&self, key: &TurnKey) -> u64 {
        self.hasher.hash_one(key.to_bytes().as_slice())
    }

    pub(super) fn write_lock(&self) -> MutexGuard<'_, ()> {
        self.writing.lock()
    }

    pub(super) fn flush(&self) -> Result<(), JournalError> {
        Ok(self.db.flush().map(drop)?)
    }

    pub(super) fn save_accounts(&self, accounts: Vec<u8>) -> Result<(), JournalError> {
        self.db.insert(ACCOUNTS_KEY, accounts)?;
        self.flush()
    }

    pub(super) fn accounts(&self) -> Result<Option<Vec<u8>>, JournalError> {
        Ok(self.db.get(ACCOUNTS_KEY)?.map(|bytes| bytes.to_vec()))
    }

    pub(super) fn entry(&self, key: &TurnKey) -> Result<Option<TurnEntry>, JournalError> {
        self.trees.turns.get(key.to_bytes())?.map(|bytes| decode(&key.to_bytes(), &bytes)).transpose()
    }

    /// The entry as on the disk: a seal that could still be lost stays hidden.
    pub(super) fn flushed_entry(&self, key: &TurnKey) -> Result<Option<TurnEntry>, JournalError> {
        // The order matters: a key that has left the set was flushed before.
        let entry = self.entry(key)?;
        let unflushed = self.unflushed.lock().contains(key);
        Ok(match entry {
            Some(mut entry) if unflushed && matches!(entry.state, EntryState::Sealed(_)) => {
                entry.state = EntryState::Accepted;
                Some(entry)
            }
            entry => entry,
        })
    }

    /// Notes that an attempt is being sealed, before its entry is written.
    pub(super) fn unflushed(&self, key: TurnKey) -> TurnKey {
        self.unflushed.lock().insert(key);
        key
    }

    /// Notes that the seal is on the disk.
    pub(super) fn is_flushed(&self, key: TurnKey) {
        self.unflushed.lock().remove(&key);
    }

    /// Updates an existing entry; returns the change's number.
    pub(super) fn write(&self, key: &TurnKey, entry: &TurnEntry) -> Result<u64, JournalError> {
        let encoded = encode(key, entry);
        let (change, _) =
            self.change(|[turns, ..]| Ok(turns.insert(&key.to_bytes()[..], encoded.as_slice())?))?;
        Ok(change)
    }

    /// Records the storage state of an existing entry's blob.
    pub(super) fn write_store(
        &self,
        key: &TurnKey,
        mut entry: TurnEntry,
        store: StoreState,
    ) -> Result<(), JournalError> {
        let before = entry.is_untaken();
        let EntryState::Sealed(sealed) = &mut entry.state else { return Ok(()) };
        sealed.store = store;
        self.write(key, &entry)?;
        self.count_untaken(before, entry.is_untaken());
        Ok(())
    }

    fn count_untaken(&self, before: bool, after: bool) {
        match (before, after) {
            (false, true) => drop(self.untaken.fetch_add(1, Ordering::Relaxed)),
            // Never below zero: the number only serves a message.
            (true, false) => {
                let less = |count: u64| Some(count.saturating_sub(1));
                let _ = self.untaken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            }
            _ => {}
        }
    }

    /// Adds an entry; returns the change's number.
    pub(super) fn insert(&self, key: &TurnKey, entry: &TurnEntry) -> Result<u64, JournalError> {
        let (age, encoded) = (age_key(key, entry.created_ms), encode(key, entry));
        // Before the insert, so that no reader misses it.
        self.known.lock().insert(self.hash(key));
        let (change, _) = self.change(|[turns, _, _, by_age, _]| {
            by_age.insert(age.as_slice(), &[])?;
            Ok(turns.insert(&key.to_bytes()[..], encoded.as_slice())?)
        })?;
        self.entries.fetch_add(1, Ordering::Relaxed);
        Ok(change)
    }

    /// Turns an entry into a sealed one, with its blob; returns the change's number.
    pub(super) fn insert_sealed(
        &self,
        key: &TurnKey,
        entry: &TurnEntry,
        digest: &BlobDigest,
        blob: Vec<u8>,
    ) -> Result<u64, JournalError> {
        let (age, encoded) = (age_key(key, entry.created_ms), encode(key, entry));
        let blob = IVec::from(blob);
        let (change, before) = self.change(|[turns, blobs, by_digest, _, blob_age]| {
            let before = blobs.insert(&digest.0, &blob)?;
            by_digest.insert(&digest.0, &key.to_bytes()[..])?;
            blob_age.insert(age.as_slice(), &digest.0)?;
            turns.insert(&key.to_bytes()[..], encoded.as_slice())?;
            Ok(before)
        })?;
        if before.is_none() {
            self.blob_bytes.fetch_add(blob.len() as u64, Ordering::Relaxed);
        }
        self.count_untaken(false, entry.is_untaken());
        Ok(change)
    }

    /// Turns an entry into an aborted one, and removes its blob; returns the change's number.
    pub(super) fn abort(&self, key: &TurnKey, mut entry: TurnEntry) -> Result<u64, JournalError> {
        let before = entry.is_untaken();
        let digest = match &entry.state {
            EntryState::Sealed(sealed) => Some(sealed.committed.blob_digest),
            EntryState::Accepted | EntryState::Aborted => None,
        };
        entry.state = EntryState::Aborted;
        let (age, encoded) = (age_key(key, entry.created_ms), encode(key, &entry));
        let (change, removed) = self.change(|[turns, blobs, by_digest, _, blob_age]| {
            turns.insert(&key.to_bytes()[..], encoded.as_slice())?;
            let Some(digest) = digest else { return Ok(None) };
            by_digest.remove(&digest.0)?;
            blob_age.remove(age.as_slice())?;
            Ok(blobs.remove(&digest.0)?)
        })?;
        self.forget_bytes(removed);
        self.count_untaken(before, false);
        Ok(change)
    }

    /// Makes a change with the next number. A change that a peer learns of must be flushed before. The caller holds the
    /// write lock.
    fn change<T>(
        &self,
        work: impl Fn(Change<'_>) -> ConflictableTransactionResult<T, std::convert::Infallible>,
    ) -> Result<(u64, T), JournalError> {
        let number = self.changes.fetch_add(1, Ordering::Relaxed) + 1;
        let JournalTrees { turns, blobs, by_digest, by_age, blob_age } = &self.trees;
        let trees = (turns, blobs, by_digest, by_age, blob_age);
        let done = trees.transaction(|(turns, blobs, by_digest, by_age, blob_age)| {
            by_digest.insert(CHANGES_KEY, &number.to_be_bytes())?;
            Ok((number, work([turns, blobs, by_digest, by_age, blob_age])?))
        });
        done.map_err(|error| match error {
            TransactionError::Abort(never) => match never {},
            TransactionError::Storage(error) => JournalError::Disk(error),
        })
    }

    fn forget_bytes(&self, removed: Option<IVec>) {
        if let Some(bytes) = removed {
            self.blob_bytes.fetch_sub(bytes.len() as u64, Ordering::Relaxed);
        }
    }

    pub(super) fn blob(&self, digest: &BlobDigest) -> Result<Option<Vec<u8>>, JournalError> {
        let found = self.trees.blobs.get(digest.0)?;
        // Altered bytes are useless.
        Ok(found.filter(|bytes| blob_digest(bytes) == *digest).map(|bytes| bytes.to_vec()))
    }

    /// The turn of a blob.
    pub(super) fn author_of(&self, digest: &BlobDigest) -> Result<Option<TurnKey>, JournalError> {
        Ok(self.trees.by_digest.get(digest.0)?.and_then(|key| TurnKey::from_bytes(&key)))
    }

    pub(super) fn unstored(&self) -> Result<Vec<(TurnKey, Box<SealedEntry>)>, JournalError> {
        let mut found = Vec::new();
        for item in &self.trees.turns {
            let (key, bytes) = item?;
            let key = TurnKey::from_bytes(&key).ok_or(JournalError::Damaged)?;
            if let EntryState::Sealed(sealed) = decode(&key.to_bytes(), &bytes)?.state
                && !matches!(sealed.store, StoreState::Stored { .. })
                && self.trees.blobs.contains_key(sealed.committed.blob_digest.0)?
            {
                found.push((key, sealed));
            }
        }
        Ok(found)
    }

    /// Removes blobs beyond the limit of bytes, and entries beyond their time or number.
    pub(super) fn prune(&self, now_ms: u64) -> Result<(), JournalError> {
        // An unconfirmed blob may be the only copy, so it goes after the stored ones.
        self.prune_blobs(|store| matches!(store, StoreState::Stored { .. }))?;
        self.prune_blobs(|store| *store != StoreState::Pending)?;
        self.prune_entries(now_ms)
    }

    fn prune_blobs(&self, may_go: impl Fn(&StoreState) -> bool) -> Result<(), JournalError> {
        for item in self.trees.blob_age.iter().take(PRUNE_BATCH) {
            if self.blob_bytes.load(Ordering::Relaxed) <= self.limits.max_blob_bytes {
                break;
            }
            let (age, digest) = item?;
            let (age, _, key) = parse_age(age)?;
            match self.entry(&key)?.map(|entry| entry.state) {
                Some(EntryState::Sealed(sealed)) if !may_go(&sealed.store) => continue,
                Some(EntryState::Sealed(sealed)) => {
                    self.forget_bytes(self.trees.blobs.remove(sealed.committed.blob_digest.0)?);
                    self.count_untaken(!matches!(sealed.store, StoreState::Stored { .. }), false);
                }
                // No entry needs it.
                _ => self.forget_bytes(self.trees.blobs.remove(digest)?),
            }
            self.trees.blob_age.remove(age)?;
        }
        Ok(())
    }

    fn prune_entries(&self, now_ms: u64) -> Result<(), JournalError> {
        let retention = u64::try_from(self.limits.retention.as_millis()).unwrap_or(u64::MAX);
        for item in self.trees.by_age.iter().take(PRUNE_BATCH) {
            let (age, created_ms, key) = parse_age(item?.0)?;
            let crowded = self.entries.load(Ordering::Relaxed) >= self.limits.max_entries;
            if !crowded && now_ms.saturating_sub(created_ms) <= retention {
                break;
            }
            let Some(entry) = self.entry(&key)? else {
                self.trees.by_age.remove(age)?;
                continue;
            };
            // An entry that could still be replayed stays: it is the seen-set.
            if now_ms <= entry.expires_ms.saturating_add(MAX_CLOCK_SKEW_MS) {
                continue;
            }
            let digest = match &entry.state {
                EntryState::Sealed(sealed) if sealed.store == StoreState::Pending => continue,
                EntryState::Sealed(sealed) => Some(sealed.committed.blob_digest),
                EntryState::Accepted | EntryState::Aborted => None,
            };
            let (_, removed) = self.change(|[turns, blobs, by_digest, by_age, blob_age]| {
                turns.remove(&key.to_bytes()[..])?;
                by_age.remove(&age)?;
                blob_age.remove(&age)?;
                let Some(digest) = digest else { return Ok(None) };
                by_digest.remove(&digest.0)?;
                Ok(blobs.remove(&digest.0)?)
            })?;
            self.known.lock().remove(&self.hash(&key));
            self.count_untaken(removed.is_some() && entry.is_untaken(), false);
            self.forget_bytes(removed);
            self.entries.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

pub(super) fn age_key(key: &TurnKey, created_ms: u64) -> Vec<u8> {
    [&created_ms.to_be_bytes()[..], &key.to_bytes()].concat()
}

/// A checksum, and the entry.
fn encode(key: &TurnKey, entry: &TurnEntry) -> Vec<u8> {
    let encoded = codec::encode(entry);
    [&checksum(&key.to_bytes(), &encoded)[..], &encoded].concat()
}

fn checksum(key: &[u8], encoded: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"baton journal entry").update(key).update(encoded);
    let mut checksum = [0; CHECKSUM_BYTES];
    hasher.finalize_xof().fill(&mut checksum);
    checksum
}

pub(super) fn decode(key: &[u8], bytes: &[u8]) -> Result<TurnEntry, JournalError> {
    let (sum, bytes) = bytes.split_first_chunk::<CHECKSUM_BYTES>().ok_or(JournalError::Damaged)?;
    if checksum(key, bytes) != *sum {
        return Err(JournalError::Damaged);
    }
    let entry: TurnEntry = codec::decode(bytes, MAX_ENTRY_BYTES).map_err(|_| JournalError::Damaged)?;
    if entry.version == JOURNAL_VERSION { Ok(entry) } else { Err(JournalError::Damaged) }
}

pub(super) fn parse_age(bytes: IVec) -> Result<(IVec, u64, TurnKey), JournalError> {
    let (created, key) = bytes.split_first_chunk::<8>().ok_or(JournalError::Damaged)?;
    let (created, key) = (u64::from_be_bytes(*created), TurnKey::from_bytes(key));
    Ok((bytes, created, key.ok_or(JournalError::Damaged)?))
}
