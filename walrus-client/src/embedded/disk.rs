//! What the embedded store keeps in sled, and the only code that touches it.
//!
//! Every entry starts with a BLAKE3 checksum over its tree, its key and the rest, so a torn, altered or misplaced
//! one is found at open and at every read, reported, and never served. All functions block (disk): callers
//! run them off the reactor. A write returns only after a flush.

use std::sync::{Mutex, MutexGuard, PoisonError};

use baton_proto::ids::{BlobId, HeadIndexKey};
use bytes::Bytes;

use super::config::{EmbeddedConfig, HeadIdentity, OpenError, PURGE_INTERVAL_MS};

const CHECKSUM: usize = 32;
/// Checksum, end epoch as a permanent blob (0: it is none), end epoch as a deletable one; then the bytes.
const BLOB_HEADER: usize = CHECKSUM + 16;
/// Checksum, sequence, expiry in ms; then the record.
const HEAD_HEADER: usize = CHECKSUM + 16;

const BLOBS: &str = "blobs";
const HEADS: &str = "heads";
const SETTINGS: &str = "settings";
const SHARDS_KEY: &str = "shards";

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
    #[error("the head index is full")]
    HeadsFull,
    #[error("a head record with this or a higher sequence number is stored")]
    Superseded,
    #[error("the database failed: {0}")]
    Database(#[from] sled::Error),
}

/// For how long a blob is to be kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Term {
    pub(super) permanent: bool,
    pub(super) force: bool,
    /// First epoch in which it is no longer kept.
    pub(super) end_epoch: u64,
}

/// What a PUT did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    /// A new object, with a number that no other has.
    New { object: u64 },
    /// It was permanent until this epoch already.
    AlreadyCertified { end_epoch: u64 },
}

/// Bytes and lifetime of a stored blob.
#[derive(Debug, Clone)]
pub(super) struct StoredBlob {
    pub(super) bytes: Bytes,
    permanent_end: u64,
    deletable_end: u64,
}

/// The database, with the sums that its limits need.
pub(super) struct Disk {
    db: sled::Db,
    blobs: sled::Tree,
    heads: sled::Tree,
    quota: Option<u64>,
    max_heads: usize,
    /// Held over read-decide-insert, never over a flush.
    totals: Mutex<Totals>,
}

#[derive(Debug, Default)]
struct Totals {
    blob_bytes: u64,
    heads: usize,
    next_purge_ms: u64,
}

impl Disk {
    /// Opens or makes the database and checks every entry.
    pub(super) fn open(config: &EmbeddedConfig) -> Result<(Self, Vec<CorruptEntry>), OpenError> {
        let path = &config.path;
        std::fs::create_dir_all(path).map_err(|source| OpenError::Path { path: path.clone(), source })?;
        let failed = |error: sled::Error| match error {
            // sled has no variant for a held lock.
            sled::Error::Io(io) if io.to_string().contains("could not acquire lock") => {
                OpenError::Locked { path: path.clone() }
            }
            sled::Error::Io(source) => OpenError::Path { path: path.clone(), source },
            source => OpenError::Damaged { path: path.clone(), source },
        };
        let db = sled::Config::new().path(path).cache_capacity(config.cache_bytes).open().map_err(failed)?;
        check_shards(&db, config, failed)?;
        let disk = Self {
            blobs: db.open_tree(BLOBS).map_err(failed)?,
            heads: db.open_tree(HEADS).map_err(failed)?,
            db,
            quota: config.quota_bytes,
            max_heads: config.max_heads,
            totals: Mutex::default(),
        };
        let corrupt = disk.check_entries().map_err(failed)?;
        Ok((disk, corrupt))
    }

    /// Counts and verifies everything.
    fn check_entries(&self) -> Result<Vec<CorruptEntry>, sled::Error> {
        let mut corrupt = Vec::new();
        let mut totals = self.totals();
        for (tree, name, header) in [(&self.blobs, BLOBS, BLOB_HEADER), (&self.heads, HEADS, HEAD_HEADER)] {
            for entry in tree {
                let (key, value) = entry?;
                if verify(name, &key, &value, header).is_none() {
                    corrupt.push(CorruptEntry { tree: name, key: hex::encode(&key) });
                }
                if name == BLOBS {
                    totals.blob_bytes += content_length(&value);
                } else {
                    totals.heads += 1;
                }
            }
        }
        Ok(corrupt)
    }

    /// Stores a blob under its ID (the caller has computed it).
    pub(super) fn put(&self, id: BlobId, bytes: &[u8], term: Term) -> Result<Stored, DiskError> {
        let stored = self.insert(id, bytes, term)?;
        self.flush()?;
        Ok(stored)
    }

    fn insert(&self, id: BlobId, bytes: &[u8], term: Term) -> Result<Stored, DiskError> {
        let mut totals = self.totals();
        let old_value = self.blobs.get(id.0)?;
        let old = old_value.as_ref().and_then(|value| read_blob(id, value));
        let (mut permanent_end, mut deletable_end) = (0, 0);
        if let Some(old) = old.filter(|old| old.bytes == bytes) {
            (permanent_end, deletable_end) = (old.permanent_end, old.deletable_end);
            if term.permanent && !term.force && permanent_end >= term.end_epoch {
                return Ok(Stored::AlreadyCertified { end_epoch: permanent_end });
            }
        }
        let end = if term.permanent { &mut permanent_end } else { &mut deletable_end };
        *end = term.end_epoch.max(*end);
        let object = self.db.generate_id()?;
        let header = [permanent_end.to_le_bytes(), deletable_end.to_le_bytes()].concat();
        let replaced = old_value.as_deref().map_or(0, content_length);
        self.write_blob(&mut totals, id, &header, bytes, replaced)?;
        Ok(Stored::New { object })
    }

    /// Writes a blob entry within the quota.
    fn write_blob(
        &self,
        totals: &mut Totals,
        id: BlobId,
        header: &[u8],
        bytes: &[u8],
        replaced: u64,
    ) -> Result<(), DiskError> {
        let total = totals.blob_bytes - replaced + bytes.len() as u64;
        if let Some(quota) = self.quota.filter(|quota| total > *quota) {
            return Err(DiskError::Full { quota });
        }
        self.blobs.insert(id.0, seal(BLOBS, &id.0, &[header, bytes]))?;
        totals.blob_bytes = total;
        Ok(())
    }

    /// A blob, or `None` when it is absent or corrupt.
    pub(super) fn get(&self, id: BlobId) -> Result<Option<StoredBlob>, DiskError> {
        let Some(value) = self.blobs.get(id.0)? else { return Ok(None) };
        let blob = read_blob(id, &value);
        if blob.is_none() {
            tracing::warn!(tree = BLOBS, key = %hex::encode(id.0), "a corrupt entry is treated as absent");
        }
        Ok(blob)
    }

    /// Stores a head record. With `force` the sequence rule is not applied.
    pub(super) fn put_head(
        &self,
        head: HeadIdentity,
        record: &[u8],
        now_ms: u64,
        force: bool,
    ) -> Result<(), DiskError> {
        {
            let mut totals = self.totals();
            let old = self.heads.get(head.key.0)?;
            let known = old.as_deref().and_then(|value| read_head(head.key, value));
            if let Some((sequence, _, stored)) = known.filter(|_| !force)
                && (sequence > head.sequence || (sequence == head.sequence && stored != record))
            {
                return Err(DiskError::Superseded);
            }
            if old.is_none() {
                self.make_room(&mut totals, now_ms)?;
                totals.heads += 1;
            }
            let header = [head.sequence.to_le_bytes(), head.expires_ms.to_le_bytes()].concat();
            self.heads.insert(head.key.0, seal(HEADS, &head.key.0, &[&header, record]))?;
        }
        self.flush()
    }

    /// Drops expired heads when the index is full, at most once a minute.
    fn make_room(&self, totals: &mut Totals, now_ms: u64) -> Result<(), DiskError> {
        if totals.heads < self.max_heads {
            return Ok(());
        }
        if now_ms < totals.next_purge_ms {
            return Err(DiskError::HeadsFull);
        }
        totals.next_purge_ms = now_ms.saturating_add(PURGE_INTERVAL_MS);
        for entry in &self.heads {
            let (key, value) = entry?;
            let live =
                verify(HEADS, &key, &value, HEAD_HEADER).is_some_and(|(numbers, _)| numbers[1] > now_ms);
            if !live && self.heads.remove(&key)?.is_some() {
                totals.heads -= 1;
            }
        }
        if totals.heads < self.max_heads { Ok(()) } else { Err(DiskError::HeadsFull) }
    }

    /// A head record that has not expired.
    pub(super) fn head(&self, key: HeadIndexKey, now_ms: u64) -> Result<Option<Vec<u8>>, DiskError> {
        let Some(value) = self.heads.get(key.0)? else { return Ok(None) };
        let Some((_, expires_ms, record)) = read_head(key, &value) else {
            tracing::warn!(tree = HEADS, key = %key, "a corrupt entry is treated as absent");
            return Ok(None);
        };
        Ok((expires_ms > now_ms).then(|| record.to_vec()))
    }

    /// Waits until everything written so far is on disk.
    pub(super) fn flush(&self) -> Result<(), DiskError> {
        self.db.flush()?;
        Ok(())
    }

    /// Admin: other bytes under an ID, with whatever lifetime the entry had. True when it existed.
    pub(super) fn replace(&self, id: BlobId, bytes: &[u8]) -> Result<bool, DiskError> {
        let existed = {
            let mut totals = self.totals();
            let old = self.blobs.get(id.0)?;
            let ends = old.as_ref().and_then(|value| read_blob(id, value));
            let (permanent, deletable) = ends.map_or((0, 0), |old| (old.permanent_end, old.deletable_end));
            let header = [permanent.to_le_bytes(), deletable.to_le_bytes()].concat();
            let replaced = old.as_deref().map_or(0, content_length);
            self.write_blob(&mut totals, id, &header, bytes, replaced)?;
            old.is_some()
        };
        self.flush()?;
        Ok(existed)
    }

    /// Admin: forgets a blob. True when it existed.
    pub(super) fn remove(&self, id: BlobId) -> Result<bool, DiskError> {
        let existed = {
            let mut totals = self.totals();
            let old = self.blobs.remove(id.0)?;
            totals.blob_bytes -= old.as_deref().map_or(0, content_length);
            old.is_some()
        };
        self.flush()?;
        Ok(existed)
    }

    /// Admin: at most `limit` IDs and lengths, in the order of their bytes.
    pub(super) fn list(&self, limit: usize) -> Result<Vec<(BlobId, u64)>, DiskError> {
        let entries = self.blobs.iter().take(limit).filter_map(|entry| match entry {
            Ok((key, value)) => {
                <[u8; 32]>::try_from(&key[..]).ok().map(|id| Ok((BlobId(id), content_length(&value))))
            }
            Err(error) => Some(Err(error.into())),
        });
        entries.collect()
    }

    fn totals(&self) -> MutexGuard<'_, Totals> {
        // The sums are only changed after what they count, by plain additions: a panic leaves them usable.
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Compares the shard count with the one the store was made for, or notes it in a new store.
fn check_shards(
    db: &sled::Db,
    config: &EmbeddedConfig,
    failed: impl Fn(sled::Error) -> OpenError + Copy,
) -> Result<(), OpenError> {
    let settings = db.open_tree(SETTINGS).map_err(failed)?;
    let wanted = config.shards.to_string();
    match settings.get(SHARDS_KEY).map_err(failed)? {
        Some(found) if found == wanted.as_bytes() => Ok(()),
        Some(found) => Err(OpenError::Shards {
            path: config.path.clone(),
            found: String::from_utf8_lossy(&found).into_owned(),
            wanted: config.shards,
        }),
        None => {
            settings.insert(SHARDS_KEY, wanted.as_bytes()).map_err(failed)?;
            settings.flush().map(|_| ()).map_err(failed)
        }
    }
}

fn checksum(tree: &str, key: &[u8], parts: &[&[u8]]) -> [u8; CHECKSUM] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(tree.as_bytes()).update(key);
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize().into()
}

/// An entry's value: checksum, then the parts.
fn seal(tree: &str, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut value = Vec::with_capacity(CHECKSUM + parts.iter().map(|part| part.len()).sum::<usize>());
    value.extend_from_slice(&checksum(tree, key, parts));
    parts.iter().for_each(|part| value.extend_from_slice(part));
    value
}

/// The two numbers of an entry's header and where its content starts, if its checksum is right.
fn verify<'a>(tree: &str, key: &[u8], value: &'a [u8], header: usize) -> Option<([u64; 2], &'a [u8])> {
    let (found, rest) = value.split_at_checked(CHECKSUM)?;
    if checksum(tree, key, &[rest]) != found {
        return None;
    }
    let (numbers, content) = rest.split_at_checked(header - CHECKSUM)?;
    let (first, second) = numbers.split_at_checked(8)?;
    let number = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_le_bytes);
    Some(([number(first)?, number(second)?], content))
}

fn read_blob(id: BlobId, value: &sled::IVec) -> Option<StoredBlob> {
    let ([permanent_end, deletable_end], _) = verify(BLOBS, &id.0, value, BLOB_HEADER)?;
    // Shares sled's buffer instead of copying up to 10 MiB.
    let bytes = Bytes::from_owner(value.clone()).slice(BLOB_HEADER..);
    Some(StoredBlob { bytes, permanent_end, deletable_end })
}

/// Sequence, expiry and bytes of a head record.
fn read_head(key: HeadIndexKey, value: &[u8]) -> Option<(u64, u64, &[u8])> {
    let ([sequence, expires_ms], record) = verify(HEADS, &key.0, value, HEAD_HEADER)?;
    Some((sequence, expires_ms, record))
}

/// Length of a blob entry's content, also of a corrupt one.
fn content_length(value: &[u8]) -> u64 {
    value.len().saturating_sub(BLOB_HEADER) as u64
}
