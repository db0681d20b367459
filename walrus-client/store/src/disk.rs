//! The embedded store's data on disk, and the only code that touches it.
//!
//! The folder holds three things:
//! - files with the blobs' bytes, each of which describes itself ([`files`]),
//! - the index, a database with a copy ([`load`]),
//! - quarantined files.
//!
//! Every start builds the index in memory from database and files ([`open`]). Checksums cover everything.
//! So torn, altered or misplaced bytes are found at open and at every read, reported, and never served. A
//! damaged index costs no blob. All functions block on the disk: callers run them off the reactor. A write
//! returns only once it is on disk; concurrent writers share a sync.
//!
//! The order of a PUT:
//! 1. Write and sync the file.
//! 2. Rename it to its final name.
//! 3. Sync the folder.
//! 4. Write an entry of the index.
//! 5. Remove a replaced file.
//!
//! A crash leaves the old file, the new one or both; the newest whole file counts.

mod blob_locks;
mod collect;
mod damage;
mod files;
mod heads;
mod health;
mod load;
mod open;
mod record;
mod state;
mod survey;
mod tokens;
mod trailer;

use std::{
    fs::File,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use baton_kit::{
    entries::{Change, EntryDatabase},
    group_commit::GroupCommit,
};
use baton_proto::ids::BlobId;

use super::{
    clock::{Clock, EpochInfo, Epochs},
    config::{MAX_BLOBS, MAX_OBJECTS, MAX_OBJECTS_PER_BLOB},
    error::OperationError,
};
use blob_locks::BlobLocks;
pub use collect::CollectionReport;
use collect::Collections;
pub use damage::{Damage, DamageKind};
use files::Folder;
pub(super) use files::{BlobFile, CHUNK_BYTES, FileKey, Writer};
use health::WriteHealth;
use load::INDEX_FILES;
pub use open::{CheckReport, check};
use record::{Entry, EntryKey, Record};
pub(super) use record::{Object, made_up_id};
use state::{BlobSlot, IndexState};
use trailer::Trailer;

/// Tries of a read whose file is replaced after the index lookup.
const READ_ATTEMPTS: u32 = 5;

/// The conditions of a PUT.
#[derive(Debug, Clone, Copy)]
pub(super) struct Term {
    pub(super) permanent: bool,
    pub(super) force: bool,
    /// Whether the object becomes shared.
    pub(super) share: bool,
    /// Number of epochs.
    pub(super) epochs: u32,
}

/// The result of a PUT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PurchaseOutcome {
    /// It bought a new object.
    New(Object),
    /// This permanent object already lives long enough.
    AlreadyCertified(Object),
}

/// The folder's files, and the index of them.
pub(super) struct Disk {
    /// Held over read-decide-write, but never over a sync for one caller. Locked before `state`.
    index: Mutex<EntryDatabase>,
    /// Held for moments.
    state: Mutex<IndexState>,
    /// The next number for an entry, a file or an object. No number is used twice.
    next: AtomicU64,
    index_path: PathBuf,
    folder: Folder,
    blob_locks: BlobLocks,
    /// Syncs of the folder, which precede index entries for new files.
    names: GroupCommit,
    /// Syncs of the index.
    records: GroupCommit,
    health: Arc<WriteHealth>,
    clock: Clock,
    epochs: Mutex<Epochs>,
    /// The highest epoch so far: setting the clock back does not repeat an epoch.
    epoch_reached: AtomicU64,
    collections: Mutex<Collections>,
    shards: u16,
    quota: Option<u64>,
    max_heads: usize,
    _lock: File,
}

/// The stored amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Usage {
    /// Number of blobs.
    pub blobs: u64,
    /// Sum of their bytes.
    pub bytes: u64,
}

impl Disk {
    /// The current epoch, and the time to the next.
    pub(super) fn epoch(&self) -> EpochInfo {
        let now = self.epochs().at(self.clock.now_ms());
        let reached = self.epoch_reached.fetch_max(now.epoch, Ordering::Relaxed);
        EpochInfo { epoch: now.epoch.max(reached), ..now }
    }

    fn epochs(&self) -> Epochs {
        *self.epochs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the epochs' clock forward for good.
    pub(super) fn move_clock(&self, forward: Duration) -> Result<EpochInfo, OperationError> {
        {
            let mut epochs = self.epochs.lock().unwrap_or_else(PoisonError::into_inner);
            let moved = epochs.moved(forward);
            let entry = Entry::Store { shards: self.shards, epochs: moved };
            self.write(&*self.writable()?, &[entry.put(self.next_number())])?;
            *epochs = moved;
        }
        self.flush()?;
        Ok(self.epoch())
    }

    /// A file for the bytes of a blob. It is removed again unless [`Self::put`] takes it.
    pub(super) fn create_file(&self) -> Result<Writer, OperationError> {
        Ok(self.health.note(self.folder.create(self.next_number(), self.health.clone()))?)
    }

    /// Stores the written bytes under their ID, which the caller has computed.
    pub(super) fn put(
        &self,
        id: BlobId,
        writer: Writer,
        term: Term,
    ) -> Result<PurchaseOutcome, OperationError> {
        let _lock = self.blob_locks.lock(id);
        let EpochInfo { epoch, .. } = self.epoch();
        let (mut objects, bought) = self.objects(id)?;
        let end = epoch.saturating_add(u64::from(term.epochs));
        let certified = objects.iter().filter(|object| object.permanent && object.end >= end);
        let certified = certified.max_by_key(|object| object.end).copied();
        if let Some(object) = certified.filter(|_| term.permanent && !term.force) {
            self.switch(id, writer, objects, bought, &[])?;
            return Ok(PurchaseOutcome::AlreadyCertified(object));
        }
        let over: Vec<Object> = objects.extract_if(.., |object| object.end <= epoch).collect();
        if objects.len() >= MAX_OBJECTS_PER_BLOB {
            return Err(OperationError::ObjectsFull);
        }
        let number = self.next_number();
        let Term { permanent, share: shared, .. } = term;
        let object = Object { number, registered: epoch, end, permanent, shared };
        objects.push(object);
        self.switch(id, writer, objects, bought + 1, &over)?;
        Ok(PurchaseOutcome::New(object))
    }

    /// The objects of a blob, and the number ever bought.
    fn objects(&self, id: BlobId) -> Result<(Vec<Object>, u64), OperationError> {
        Ok(self.record(id)?.map_or_else(Default::default, |record| (record.objects, record.bought)))
    }

    /// Makes the written bytes the content of a blob; the caller holds the blob's lock. True when it replaced
    /// other content.
    fn switch(
        &self,
        id: BlobId,
        mut writer: Writer,
        objects: Vec<Object>,
        bought: u64,
        over: &[Object],
    ) -> Result<bool, OperationError> {
        let reserved = self.reserve(id, writer.length())?;
        let number = u128::from(self.next_number()) << 64 | u128::from(rand::random::<u64>());
        let file = writer.key(number);
        let record = Record { file, bought, objects };
        let trailer = Trailer { shards: self.shards, epochs: self.epochs(), id, record };
        writer.finish(&trailer)?;
        self.health.note(self.names.commit(|| self.folder.sync()))?;
        let old = {
            let index = self.writable()?;
            let old = self.put_blob(&index, id, trailer.record)?;
            self.state().table.forget_objects(id, over);
            old
        };
        writer.keep();
        drop(reserved);
        if let Some(old) = old {
            self.forget_file(old);
        }
        self.health.works();
        Ok(old.is_some())
    }

    /// Reserves room for a blob within the limits, until the result is dropped.
    fn reserve(&self, id: BlobId, length: u64) -> Result<Reservation<'_>, OperationError> {
        let mut state = self.state();
        let old = state.table.blobs.get(&id.0).map(|slot| slot.file.length);
        let (bytes, blobs) = (length.saturating_sub(old.unwrap_or(0)), usize::from(old.is_none()));
        let total = state.table.bytes + state.reserved_bytes + bytes;
        if let Some(quota) = self.quota.filter(|quota| total > *quota) {
            return Err(OperationError::Full { quota });
        }
        let listed = state.table.blobs.len() + state.reserved_blobs + blobs;
        if listed > MAX_BLOBS || state.table.objects.len() >= MAX_OBJECTS {
            return Err(OperationError::BlobsFull);
        }
        state.reserved_bytes += bytes;
        state.reserved_blobs += blobs;
        Ok(Reservation { disk: self, bytes, blobs })
    }

    /// The index's entry of a blob.
    fn slot(&self, id: BlobId) -> Option<BlobSlot> {
        self.state().table.blobs.get(&id.0).copied()
    }

    /// A blob's record, or `None` when there is none or neither index nor file has it whole.
    fn record(&self, id: BlobId) -> Result<Option<Record>, OperationError> {
        let Some(slot) = self.slot(id) else { return Ok(None) };
        let key = EntryKey::Blob(id);
        if let Some(value) = self.index().read(key.parts())?
            && let Some(Entry::Blob(_, record)) = Entry::decode(key, &value)
        {
            return Ok(Some(record));
        }
        let record = self.folder.record(id, slot.file);
        if record.is_none() {
            warn_corrupt(id);
        }
        Ok(record)
    }

    /// A blob that is alive in this epoch, or `None` when it is absent, expired or corrupt. This verifies
    /// only the hashes of its bytes.
    pub(super) fn open_blob(&self, id: BlobId) -> Result<Option<BlobFile>, OperationError> {
        for _ in 0..READ_ATTEMPTS {
            let epoch = self.epoch().epoch;
            let Some(slot) = self.slot(id).filter(|slot| slot.last_end > epoch) else { return Ok(None) };
            match self.folder.read(slot.file) {
                Ok(Some(file)) => return Ok(Some(file)),
                Ok(None) => break,
                // Replaced or removed after the index lookup.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        warn_corrupt(id);
        Ok(None)
    }

    /// Length of a blob that is alive in this epoch.
    pub(super) fn length(&self, id: BlobId) -> Result<Option<u64>, OperationError> {
        let epoch = self.epoch().epoch;
        Ok(self.slot(id).filter(|slot| slot.last_end > epoch).map(|slot| slot.file.length))
    }

    /// The blob of an object, or of the shared object made from one, that is alive in this epoch.
    pub(super) fn resolve_object(&self, object: [u8; 32]) -> Result<Option<BlobId>, OperationError> {
        let id = self.state().table.objects.get(&object).copied();
        let Some(id) = id.map(BlobId) else { return Ok(None) };
        let Some(record) = self.record(id)? else { return Ok(None) };
        let mut live = record.live(self.epoch().epoch);
        Ok(live.any(|live| live.id(id) == object || live.shared_id(id) == Some(object)).then_some(id))
    }

    /// Waits until every entry written so far is on disk.
    pub(super) fn flush(&self) -> Result<(), OperationError> {
        let synced = self.records.commit(|| {
            EntryDatabase::sync(&self.index_path, INDEX_FILES)
                .inspect_err(|_| self.index().note_failed_sync())
        });
        Ok(self.health.note(synced)?)
    }

    /// Writes an entry of a blob. Returns the blob's previous file.
    fn put_blob(
        &self,
        index: &EntryDatabase,
        id: BlobId,
        record: Record,
    ) -> Result<Option<FileKey>, OperationError> {
        let entry = Entry::Blob(id, record);
        self.write(index, &[entry.put(self.next_number())])?;
        let Entry::Blob(_, record) = entry else { unreachable!("made above") };
        Ok(self.state().table.put_blob(id, &record))
    }

    /// Removes a blob from the index. Returns its file, for [`Self::forget_removed`] after a flush.
    fn remove_blob(&self, index: &EntryDatabase, id: BlobId) -> Result<Option<FileKey>, OperationError> {
        let removed = Entry::Removed(id).put(self.next_number());
        self.write(index, &[EntryKey::Blob(id).removal(), removed])?;
        Ok(self.state().table.remove_blob(id))
    }

    /// Removes heads or tokens from the index.
    fn forget(&self, index: &EntryDatabase, keys: &[EntryKey]) -> Result<(), OperationError> {
        if !keys.is_empty() {
            let changes: Vec<_> = keys.iter().map(|key| key.removal()).collect();
            self.write(index, &changes)?;
            self.state().table.forget(keys);
        }
        Ok(())
    }

    fn write(&self, index: &EntryDatabase, changes: &[Change]) -> Result<(), OperationError> {
        // SQLite tells a full disk by the one errno `ENOSPC`; a quota and a limit on file sizes have others.
        let written = index.write(changes).map_err(|error| self.probe().err().unwrap_or(error));
        Ok(self.health.note(written)?)
    }

    /// Whether a file can be written now.
    fn probe(&self) -> io::Result<()> {
        self.folder.probe(self.next_number())
    }

    /// Removes a file that the index no longer names. True when it is gone.
    fn forget_file(&self, file: FileKey) -> bool {
        let removed = self.folder.remove(&self.folder.path_of(file.number));
        if let Err(error) = &removed {
            tracing::warn!(%error, "a replaced file could not be removed; the next start does it");
        }
        removed.is_ok()
    }

    /// Removes the file of a removed blob, and then the note of the removal.
    fn forget_removed(&self, id: BlobId, file: FileKey) {
        if self.forget_file(file)
            && let Err(error) = self.write(&self.index(), &[EntryKey::Removed(id).removal()])
        {
            tracing::warn!(%error, "the note of a removal stays; the next start drops it");
        }
    }

    /// Admin: puts other bytes under an ID. Its objects stay; without any, it gets one that never ends. True
    /// when it existed.
    pub(super) fn replace(&self, id: BlobId, writer: Writer) -> Result<bool, OperationError> {
        let _lock = self.blob_locks.lock(id);
        let (mut objects, bought) = self.objects(id)?;
        if objects.is_empty() {
            let (number, registered) = (self.next_number(), self.epoch().epoch);
            objects.push(Object { number, registered, end: u64::MAX, permanent: false, shared: false });
        }
        self.switch(id, writer, objects, bought, &[])
    }

    /// Admin: removes a blob. True when it existed.
    pub(super) fn remove(&self, id: BlobId) -> Result<bool, OperationError> {
        let file = {
            let _lock = self.blob_locks.lock(id);
            let (objects, _) = self.objects(id)?;
            if self.slot(id).is_none() {
                return Ok(false);
            }
            let file = self.remove_blob(&*self.writable()?, id)?;
            self.state().table.forget_objects(id, &objects);
            file
        };
        self.flush()?;
        if let Some(file) = file {
            self.forget_removed(id, file);
        }
        Ok(file.is_some())
    }

    /// Admin: at most `limit` IDs and lengths, in byte order.
    pub(super) fn list(&self, limit: usize) -> Vec<(BlobId, u64)> {
        let state = self.state();
        state.table.blobs.iter().take(limit).map(|(id, slot)| (BlobId(*id), slot.file.length)).collect()
    }

    /// The stored amount, including expired blobs until they are collected.
    pub(super) fn usage(&self) -> Usage {
        let state = self.state();
        Usage { blobs: state.table.blobs.len() as u64, bytes: state.table.bytes }
    }

    /// The reason why nothing can be stored now, if any. While it lasts, this tries a write once a second.
    pub(super) fn write_failure(&self) -> Option<String> {
        if self.health.is_probe_due() && self.health.note(self.probe()).is_ok() && self.writable().is_ok() {
            self.health.works();
        }
        self.health.failure()
    }

    fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, IndexState> {
        // It changes only after the database, by plain insertions: a panic leaves it usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn index(&self) -> MutexGuard<'_, EntryDatabase> {
        // A panic rolls its transaction back.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The index, in a state that accepts entries.
    fn writable(&self) -> Result<MutexGuard<'_, EntryDatabase>, OperationError> {
        let mut index = self.index();
        self.health.note(index.settle())?;
        Ok(index)
    }
}

/// Room within the limits for a running PUT. Released on drop: by then the blob counts itself, or failed.
struct Reservation<'a> {
    disk: &'a Disk,
    bytes: u64,
    blobs: usize,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        state.reserved_bytes -= self.bytes;
        state.reserved_blobs -= self.blobs;
    }
}

fn warn_corrupt(id: BlobId) {
    tracing::warn!(blob = %id, "a damaged blob is treated as absent; store it again");
}
