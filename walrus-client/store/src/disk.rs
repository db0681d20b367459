//! The embedded store's data on disk, and the only code that touches it.
//!
//! The folder holds three things:
//! - files with the blobs' bytes, each of which describes itself ([`files`]),
//! - the log of the index, in two copies ([`journal`]),
//! - quarantined files.
//!
//! Every start builds the index in memory from the log and the files ([`open`]). Checksums cover everything.
//! So torn, altered or misplaced bytes are found at open and at every read, reported, and never served. A
//! damaged index costs no blob. All functions block on the disk: callers run them off the reactor. A write
//! returns only once it is on disk; concurrent writers share a sync.
//!
//! The order of a PUT:
//! 1. Write and sync the file.
//! 2. Rename it to its final name.
//! 3. Sync the folder.
//! 4. Append an entry to the log.
//! 5. Remove a replaced file.
//!
//! A crash leaves the old file, the new one or both; the newest whole file counts.

mod blob_locks;
mod collect;
mod damage;
mod file_io;
mod files;
mod frame;
mod heads;
mod health;
mod journal;
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
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use baton_kit::group_commit::GroupCommit;
use baton_proto::ids::BlobId;

use super::{
    clock::{Clock, EpochInfo, Epochs},
    config::{MAX_BLOBS, MAX_OBJECTS, MAX_OBJECTS_PER_BLOB},
};
use blob_locks::BlobLocks;
pub use collect::CollectionReport;
use collect::Collections;
pub use damage::{Damage, DamageKind};
use files::Folder;
pub(super) use files::{BlobFile, CHUNK_BYTES, FileKey, Writer};
use health::{WriteHealth, is_no_room};
pub use open::{CheckReport, check};
use record::{Entry, Record};
pub(super) use record::{Object, made_up_id};
use state::{BlobSlot, IndexState, Records as _};
pub(super) use tokens::TokenError;
use trailer::Trailer;

/// Tries of a read whose file is replaced after the index lookup.
const READ_ATTEMPTS: u32 = 5;

/// The reason why a disk operation failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum DiskError {
    #[error("the storage quota of {quota} bytes is exhausted")]
    Full { quota: u64 },
    #[error("the store lists {MAX_BLOBS} blobs or {MAX_OBJECTS} objects already")]
    BlobsFull,
    #[error("a blob has {MAX_OBJECTS_PER_BLOB} objects already")]
    ObjectsFull,
    #[error("the head index is full")]
    HeadsFull,
    #[error("a head record with this or a higher sequence number is stored")]
    Superseded,
    #[error("the store's disk has no room: {0}; free some, and the store goes on by itself")]
    NoRoom(io::Error),
    #[error("the store's files failed: {0}")]
    File(io::Error),
}

impl From<io::Error> for DiskError {
    fn from(error: io::Error) -> Self {
        if is_no_room(&error) { Self::NoRoom(error) } else { Self::File(error) }
    }
}

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
    /// Held over read-decide-append and over a rewrite of the log, but otherwise never over a sync.
    state: Mutex<IndexState>,
    folder: Folder,
    blob_locks: BlobLocks,
    /// Syncs of the folder, which precede index entries for new files.
    names: GroupCommit,
    /// Syncs of the log.
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
    pub(super) fn move_clock(&self, forward: Duration) -> Result<EpochInfo, DiskError> {
        {
            let mut epochs = self.epochs.lock().unwrap_or_else(PoisonError::into_inner);
            let moved = epochs.moved(forward);
            self.health.note(self.writable()?.put_epochs(moved))?;
            *epochs = moved;
        }
        self.flush()?;
        Ok(self.epoch())
    }

    /// A file for the bytes of a blob. It is removed again unless [`Self::put`] takes it.
    pub(super) fn create_file(&self) -> Result<Writer, DiskError> {
        let serial = self.state().next_number();
        Ok(self.health.note(self.folder.create(serial, self.health.clone()))?)
    }

    /// Stores the written bytes under their ID, which the caller has computed.
    pub(super) fn put(&self, id: BlobId, writer: Writer, term: Term) -> Result<PurchaseOutcome, DiskError> {
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
            return Err(DiskError::ObjectsFull);
        }
        let number = self.state().next_number();
        let Term { permanent, share: shared, .. } = term;
        let object = Object { number, registered: epoch, end, permanent, shared };
        objects.push(object);
        self.switch(id, writer, objects, bought + 1, &over)?;
        Ok(PurchaseOutcome::New(object))
    }

    /// The objects of a blob, and the number ever bought.
    fn objects(&self, id: BlobId) -> Result<(Vec<Object>, u64), DiskError> {
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
    ) -> Result<bool, DiskError> {
        let reserved = self.reserve(id, writer.length())?;
        let file = writer.key(self.state().next_file());
        let record = Record { file, bought, objects };
        let trailer = Trailer { shards: self.shards, epochs: self.epochs(), id, record };
        writer.finish(&trailer)?;
        self.health.note(self.names.commit(|| self.folder.sync()))?;
        let old = {
            let mut state = self.writable()?;
            let old = self.health.note(state.put_blob(id, trailer.record))?;
            state.table.forget_objects(id, over);
            self.tidy(&mut state);
            old
        };
        writer.keep();
        drop(reserved);
        self.forget_file(old);
        self.health.works();
        Ok(old.is_some())
    }

    /// Reserves room for a blob within the limits, until the result is dropped.
    fn reserve(&self, id: BlobId, length: u64) -> Result<Reservation<'_>, DiskError> {
        let mut state = self.state();
        let old = state.table.blobs.get(&id.0).map(|slot| slot.file.length);
        let (bytes, blobs) = (length.saturating_sub(old.unwrap_or(0)), usize::from(old.is_none()));
        let total = state.table.bytes + state.reserved_bytes + bytes;
        if let Some(quota) = self.quota.filter(|quota| total > *quota) {
            return Err(DiskError::Full { quota });
        }
        let listed = state.table.blobs.len() + state.reserved_blobs + blobs;
        if listed > MAX_BLOBS || state.table.objects.len() >= MAX_OBJECTS {
            return Err(DiskError::BlobsFull);
        }
        state.reserved_bytes += bytes;
        state.reserved_blobs += blobs;
        Ok(Reservation { disk: self, bytes, blobs })
    }

    /// The index's entry of a blob.
    fn slot(&self, id: BlobId) -> Option<BlobSlot> {
        self.state().table.blobs.get(&id.0).copied()
    }

    /// A blob's record, or `None` when there is none or neither log nor file has it whole.
    fn record(&self, id: BlobId) -> Result<Option<Record>, DiskError> {
        let (slot, view) = {
            let state = self.state();
            (state.table.blobs.get(&id.0).copied(), state.journal.view())
        };
        let Some(slot) = slot else { return Ok(None) };
        if let Some(payload) = slot.location.map(|location| view.read(location)).transpose()?.flatten()
            && let Some(Entry::Blob(found, record)) = Entry::decode(&payload)
            && found == id
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
    pub(super) fn open_blob(&self, id: BlobId) -> Result<Option<BlobFile>, DiskError> {
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
    pub(super) fn length(&self, id: BlobId) -> Result<Option<u64>, DiskError> {
        let epoch = self.epoch().epoch;
        Ok(self.slot(id).filter(|slot| slot.last_end > epoch).map(|slot| slot.file.length))
    }

    /// The blob of an object, or of the shared object made from one, that is alive in this epoch.
    pub(super) fn resolve_object(&self, object: [u8; 32]) -> Result<Option<BlobId>, DiskError> {
        let id = self.state().table.objects.get(&object).copied();
        let Some(id) = id.map(BlobId) else { return Ok(None) };
        let Some(record) = self.record(id)? else { return Ok(None) };
        let mut live = record.live(self.epoch().epoch);
        Ok(live.any(|live| live.id(id) == object || live.shared_id(id) == Some(object)).then_some(id))
    }

    /// Waits until every entry written so far is on disk.
    pub(super) fn flush(&self) -> Result<(), DiskError> {
        let synced = self.records.commit(|| {
            let [first, _] = self.state().journal.view().copies;
            first.sync_data().inspect_err(|_| self.state().journal.broke())
        });
        Ok(self.health.note(synced)?)
    }

    /// Removes a file that the index no longer names.
    fn forget_file(&self, file: Option<FileKey>) {
        let Some(file) = file else { return };
        match self.folder.remove(&self.folder.path_of(file.number)) {
            Ok(()) => self.state().removed(file.number),
            Err(error) => {
                tracing::warn!(%error, "a replaced file could not be removed; the next start does it")
            }
        }
    }

    /// Admin: puts other bytes under an ID. Its objects stay; without any, it gets one that never ends. True
    /// when it existed.
    pub(super) fn replace(&self, id: BlobId, writer: Writer) -> Result<bool, DiskError> {
        let _lock = self.blob_locks.lock(id);
        let (mut objects, bought) = self.objects(id)?;
        if objects.is_empty() {
            let (number, registered) = (self.state().next_number(), self.epoch().epoch);
            objects.push(Object { number, registered, end: u64::MAX, permanent: false, shared: false });
        }
        self.switch(id, writer, objects, bought, &[])
    }

    /// Admin: removes a blob. True when it existed.
    pub(super) fn remove(&self, id: BlobId) -> Result<bool, DiskError> {
        let file = {
            let _lock = self.blob_locks.lock(id);
            let (objects, _) = self.objects(id)?;
            if self.slot(id).is_none() {
                return Ok(false);
            }
            let mut state = self.writable()?;
            let file = self.health.note(state.remove_blob(id))?;
            state.table.forget_objects(id, &objects);
            file
        };
        self.flush()?;
        self.forget_file(file);
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
        if self.health.is_probe_due() {
            let serial = self.state().next_number();
            let written = self.health.note(self.folder.probe(serial));
            if written.is_ok() && self.writable().is_ok() {
                self.health.works();
            }
        }
        self.health.failure()
    }

    fn state(&self) -> MutexGuard<'_, IndexState> {
        // The index changes only after the log, by plain insertions: a panic leaves it usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The index, with a log that accepts entries.
    fn writable(&self) -> Result<MutexGuard<'_, IndexState>, DiskError> {
        let mut state = self.state();
        if state.journal.is_broken() {
            self.health.note(state.rewrite(&self.folder))?;
        }
        Ok(state)
    }

    /// Rewrites the log when most of it is outdated.
    fn tidy(&self, state: &mut IndexState) {
        if !state.journal.is_broken()
            && state.journal.is_rewrite_due()
            && let Err(error) = state.rewrite(&self.folder)
        {
            tracing::warn!(%error, "the index could not be written anew; it grows on");
            state.journal.postpone_rewrite();
        }
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
