//! What the embedded store keeps on disk, and the only code that touches it: records in sled, bytes in files.
//!
//! A record is switched in one write once the file it names is whole and synced, so a crash leaves either the old
//! blob or the new one; what no record names is removed at the next start. Every record and every chunk of a file
//! carries a checksum, so a torn, altered or misplaced one is found at open and at every read, reported, and never
//! served. All functions block (disk): callers run them off the reactor. A write returns only after a flush, which
//! writers at about the same time share.

mod collect;
mod commit;
mod files;
mod heads;
mod open;
mod place;
mod record;
mod tokens;

use std::{
    fs::File,
    io,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use baton_proto::ids::BlobId;

use super::{
    clock::{Clock, EpochInfo, Epochs},
    config::MAX_OBJECTS_PER_BLOB,
};
pub use collect::Collected;
use collect::Collections;
use commit::Committer;
use files::Folder;
pub(super) use files::{BlobFile, CHUNK_BYTES, FileKey, Writer};
use record::Record;
pub(super) use record::{Object, made_up_id};
pub(super) use tokens::TokenError;

/// Blob ID to [`Record`].
const BLOBS: &str = "blobs";
/// Object ID to blob ID. An entry without such an object in the blob's record means nothing.
const OBJECTS: &str = "objects";
/// Head index key to head record.
const HEADS: &str = "heads";
/// Hash of a used token's ID to when it expires.
const TOKENS: &str = "tokens";
const SETTINGS: &str = "settings";
const EPOCHS_KEY: &str = "epochs";

/// How often a read looks again when the file that its record named was replaced in between.
const READ_ATTEMPTS: u32 = 5;

/// An entry whose checksum does not match. It is kept as it is, and treated as absent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorruptEntry {
    /// `blobs` or `heads`.
    pub tree: &'static str,
    /// Its key in hex: the raw bytes of the blob ID or head index key.
    pub key: String,
}

/// Why a disk operation failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum DiskError {
    #[error("the storage quota of {quota} bytes is exhausted")]
    Full { quota: u64 },
    #[error("a blob has {MAX_OBJECTS_PER_BLOB} objects already")]
    ObjectsFull,
    #[error("the head index is full")]
    HeadsFull,
    #[error("a head record with this or a higher sequence number is stored")]
    Superseded,
    #[error("the database failed: {0}")]
    Database(#[from] sled::Error),
    #[error("the store's files failed: {0}")]
    File(#[from] io::Error),
}

/// For how long a blob is to be kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Term {
    pub(super) permanent: bool,
    pub(super) force: bool,
    /// Whether the object is to be shared.
    pub(super) share: bool,
    /// Number of epochs.
    pub(super) epochs: u32,
}

/// What a PUT did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    /// It bought a new object.
    New(Object),
    /// This permanent object keeps it for long enough already.
    AlreadyCertified(Object),
}

/// The database, with the sums that its limits need.
pub(super) struct Disk {
    db: sled::Db,
    blobs: sled::Tree,
    objects: sled::Tree,
    heads: sled::Tree,
    tokens: sled::Tree,
    settings: sled::Tree,
    folder: Folder,
    /// sled's log. Its own flush starts the writing and waits, but leaves the file's length and the disk's cache alone.
    log: File,
    /// Syncs of the folder, before records name what is new in it.
    names: Committer,
    /// Flushes of sled.
    records: Committer,
    clock: Clock,
    epochs: Mutex<Epochs>,
    /// The highest epoch seen: a clock that is set back does not bring one back.
    epoch_reached: AtomicU64,
    collections: Mutex<Collections>,
    quota: Option<u64>,
    max_heads: usize,
    /// Held over read-decide-insert, never over a flush.
    totals: Mutex<Totals>,
}

#[derive(Debug, Default)]
struct Totals {
    blobs: u64,
    blob_bytes: u64,
    heads: usize,
    next_purge_ms: u64,
    tokens: usize,
}

/// What the store holds.
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
        let now = self.epochs.lock().unwrap_or_else(PoisonError::into_inner).at(self.clock.now_ms());
        let reached = self.epoch_reached.fetch_max(now.epoch, Ordering::Relaxed);
        EpochInfo { epoch: now.epoch.max(reached), ..now }
    }

    /// Moves the clock that epochs run by forward, for good.
    pub(super) fn move_clock(&self, forward: Duration) -> Result<EpochInfo, DiskError> {
        {
            let mut epochs = self.epochs.lock().unwrap_or_else(PoisonError::into_inner);
            let moved = epochs.moved(forward);
            self.settings.insert(EPOCHS_KEY, moved.encode())?;
            *epochs = moved;
        }
        self.flush()?;
        Ok(self.epoch())
    }

    /// A file for the bytes of a blob. Unless it is given to [`Self::put`], it is removed again.
    pub(super) fn create_file(&self) -> Result<Writer, DiskError> {
        Ok(self.folder.create(self.db.generate_id()?)?)
    }

    /// Stores what was written under its ID (the caller has computed it).
    pub(super) fn put(&self, id: BlobId, mut writer: Writer, term: Term) -> Result<Stored, DiskError> {
        let file = self.finish(&mut writer)?;
        let (stored, replaced) = self.insert(id, file, term)?;
        writer.keep();
        self.flush()?;
        self.forget_file(replaced);
        Ok(stored)
    }

    /// Waits until a file and its name are on disk. Only then may a record name it: after a loss of power, the record
    /// may be there without the flush that its writer waits for, and what it replaced is then removed at the start.
    fn finish(&self, writer: &mut Writer) -> Result<FileKey, DiskError> {
        let file = writer.finish()?;
        self.names.commit(|| self.folder.sync())?;
        Ok(file)
    }

    /// Switches the record to the new file, and adds an object unless the blob has one that is long enough.
    fn insert(&self, id: BlobId, file: FileKey, term: Term) -> Result<(Stored, Option<FileKey>), DiskError> {
        let EpochInfo { epoch, .. } = self.epoch();
        let mut totals = self.totals();
        let old = self.record(id)?;
        let replaced = old.as_ref().map(|old| old.file);
        let (mut objects, bought) = old.map_or_else(Default::default, |old| (old.objects, old.bought));
        let end = epoch.saturating_add(u64::from(term.epochs));
        let mut over = Vec::new();
        let certified = objects.iter().filter(|object| object.permanent && object.end >= end);
        let certified = certified.max_by_key(|object| object.end).copied();
        let (stored, bought) = match certified.filter(|_| term.permanent && !term.force) {
            Some(object) => (Stored::AlreadyCertified(object), bought),
            None => {
                over.extend(objects.extract_if(.., |object| object.end <= epoch));
                if objects.len() >= MAX_OBJECTS_PER_BLOB {
                    return Err(DiskError::ObjectsFull);
                }
                let number = self.db.generate_id()?;
                let Term { permanent, share: shared, .. } = term;
                let object = Object { number, registered: epoch, end, permanent, shared };
                objects.push(object);
                (Stored::New(object), bought + 1)
            }
        };
        // Before the record: a failure must not come after it, when its file is not yet kept.
        self.remove_objects(id, &over)?;
        self.write(&mut totals, id, &Record { file, bought, objects }, replaced)?;
        Ok((stored, replaced))
    }

    /// Writes a record within the quota, and the index of its newest object before it.
    fn write(
        &self,
        totals: &mut Totals,
        id: BlobId,
        record: &Record,
        replaced: Option<FileKey>,
    ) -> Result<(), DiskError> {
        let total = totals.blob_bytes - replaced.map_or(0, |old| old.length) + record.file.length;
        if let Some(quota) = self.quota.filter(|quota| total > *quota) {
            return Err(DiskError::Full { quota });
        }
        if let Some(object) = record.objects.last() {
            self.objects.insert(object.id(id), &id.0)?;
            if let Some(shared) = object.shared_id(id) {
                self.objects.insert(shared, &id.0)?;
            }
        }
        let old = self.blobs.insert(id.0, record.encode(id))?;
        totals.blob_bytes = total;
        totals.blobs += u64::from(old.is_none());
        Ok(())
    }

    /// A record, or `None` when it is absent or corrupt.
    fn record(&self, id: BlobId) -> Result<Option<Record>, DiskError> {
        let Some(value) = self.blobs.get(id.0)? else { return Ok(None) };
        let record = Record::decode(&id.0, &value);
        if record.is_none() {
            warn_corrupt(BLOBS, &id.0);
        }
        Ok(record)
    }

    /// A blob that is kept in this epoch, or `None` when it is absent, over or corrupt. Of its bytes, only the
    /// hashes are verified here.
    pub(super) fn open_blob(&self, id: BlobId) -> Result<Option<BlobFile>, DiskError> {
        for _ in 0..READ_ATTEMPTS {
            let Some(record) = self.record(id)?.filter(|record| record.is_live(self.epoch().epoch)) else {
                return Ok(None);
            };
            match self.folder.read(record.file) {
                Ok(Some(file)) => return Ok(Some(file)),
                Ok(None) => break,
                // Replaced or removed after the record was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        warn_corrupt(BLOBS, &id.0);
        Ok(None)
    }

    /// Length of a blob that is kept in this epoch.
    pub(super) fn length(&self, id: BlobId) -> Result<Option<u64>, DiskError> {
        let record = self.record(id)?.filter(|record| record.is_live(self.epoch().epoch));
        Ok(record.map(|record| record.file.length))
    }

    /// The blob that an object, or the shared object made of one, keeps in this epoch.
    pub(super) fn resolve_object(&self, object: [u8; 32]) -> Result<Option<BlobId>, DiskError> {
        let Some(value) = self.objects.get(object)? else { return Ok(None) };
        let Ok(id) = <[u8; 32]>::try_from(&value[..]) else { return Ok(None) };
        let id = BlobId(id);
        let Some(record) = self.record(id)? else { return Ok(None) };
        let mut live = record.live(self.epoch().epoch);
        Ok(live.any(|live| live.id(id) == object || live.shared_id(id) == Some(object)).then_some(id))
    }

    /// Waits until every record written so far is on disk.
    pub(super) fn flush(&self) -> Result<(), DiskError> {
        self.records.commit(|| {
            self.db.flush()?;
            self.log.sync_data()?;
            Ok(())
        })
    }

    /// Removes a file that no record names any more, on disk as well.
    fn forget_file(&self, file: Option<FileKey>) {
        if let Some(file) = file
            && let Err(error) = self.folder.remove(file.number)
        {
            tracing::warn!(%error, "a replaced file could not be removed; the next start does it");
        }
    }

    /// Admin: other bytes under an ID, with whatever objects it had; without any, one that never ends. True when it
    /// existed.
    pub(super) fn replace(&self, id: BlobId, mut writer: Writer) -> Result<bool, DiskError> {
        let file = self.finish(&mut writer)?;
        let old = {
            let mut totals = self.totals();
            let old = self.record(id)?;
            let (mut objects, bought) =
                old.as_ref().map_or_else(Default::default, |old| (old.objects.clone(), old.bought));
            if objects.is_empty() {
                let (number, registered) = (self.db.generate_id()?, self.epoch().epoch);
                objects.push(Object { number, registered, end: u64::MAX, permanent: false, shared: false });
            }
            let replaced = old.map(|old| old.file);
            self.write(&mut totals, id, &Record { file, bought, objects }, replaced)?;
            replaced
        };
        writer.keep();
        self.flush()?;
        self.forget_file(old);
        Ok(old.is_some())
    }

    /// Admin: forgets a blob. True when it existed.
    pub(super) fn remove(&self, id: BlobId) -> Result<bool, DiskError> {
        let (existed, record) = {
            let mut totals = self.totals();
            let record = self.record(id)?;
            (self.remove_record(&mut totals, id, record.as_ref())?, record)
        };
        self.flush()?;
        self.forget_file(record.map(|record| record.file));
        Ok(existed)
    }

    /// Takes a blob out of sled. True when it was there, if only corrupt.
    fn remove_record(
        &self,
        totals: &mut Totals,
        id: BlobId,
        record: Option<&Record>,
    ) -> Result<bool, DiskError> {
        let existed = self.blobs.remove(id.0)?.is_some();
        totals.blobs -= u64::from(existed);
        if let Some(record) = record {
            totals.blob_bytes -= record.file.length;
            self.remove_objects(id, &record.objects)?;
        }
        Ok(existed)
    }

    fn remove_objects(&self, id: BlobId, objects: &[Object]) -> Result<(), DiskError> {
        for object in objects {
            self.objects.remove(object.id(id))?;
            if let Some(shared) = object.shared_id(id) {
                self.objects.remove(shared)?;
            }
        }
        Ok(())
    }

    /// Admin: at most `limit` IDs and lengths, in the order of their bytes. A corrupt record has length 0.
    pub(super) fn list(&self, limit: usize) -> Result<Vec<(BlobId, u64)>, DiskError> {
        let entries = self.blobs.iter().take(limit).filter_map(|entry| match entry {
            Ok((key, value)) => {
                let length = Record::decode(&key, &value).map_or(0, |record| record.file.length);
                <[u8; 32]>::try_from(&key[..]).ok().map(|id| Ok((BlobId(id), length)))
            }
            Err(error) => Some(Err(error.into())),
        });
        entries.collect()
    }

    /// What the store holds now, blobs that are over included until they are collected.
    pub(super) fn usage(&self) -> Usage {
        let totals = self.totals();
        Usage { blobs: totals.blobs, bytes: totals.blob_bytes }
    }

    fn totals(&self) -> MutexGuard<'_, Totals> {
        // The sums are only changed after what they count, by plain additions: a panic leaves them usable.
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn warn_corrupt(tree: &'static str, key: &[u8]) {
    tracing::warn!(tree, key = %hex::encode(key), "a corrupt entry is treated as absent");
}
