//! The index in memory. Every change is written to the database before it is made here.
//!
//! Each blob takes some 300 bytes of memory, objects included. Records and heads themselves stay on disk.

use std::collections::{BTreeMap, HashMap};

use baton_proto::ids::BlobId;

use super::{
    Epochs,
    files::FileKey,
    record::{Entry, EntryKey, Object, Record},
};

/// A blob in the index.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlobSlot {
    pub(super) file: FileKey,
    /// First end of its objects.
    pub(super) first_end: u64,
    /// Last end of its objects.
    pub(super) last_end: u64,
}

/// A head in the index.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadSlot {
    pub(super) sequence: u64,
    pub(super) expires_ms: u64,
}

/// The index's content in memory.
#[derive(Debug, Default)]
pub(super) struct IndexTable {
    pub(super) blobs: BTreeMap<[u8; 32], BlobSlot>,
    /// Object ID to blob ID. An ID that the blob's record lacks means nothing.
    pub(super) objects: HashMap<[u8; 32], [u8; 32]>,
    pub(super) heads: HashMap<[u8; 32], HeadSlot>,
    /// Used tokens, with the second in which each expires.
    pub(super) tokens: HashMap<[u8; 32], u64>,
    /// Sum of the blobs' lengths.
    pub(super) bytes: u64,
    pub(super) epochs: Option<Epochs>,
}

impl IndexTable {
    /// Takes an entry.
    pub(super) fn apply(&mut self, entry: &Entry<'_>) {
        match entry {
            Entry::Blob(id, record) => drop(self.put_blob(*id, record)),
            Entry::Removed(_) => {}
            Entry::Head { key, sequence, expires_ms, .. } => {
                self.heads.insert(key.0, HeadSlot { sequence: *sequence, expires_ms: *expires_ms });
            }
            Entry::Token { key, expires_s } => drop(self.tokens.insert(*key, *expires_s)),
            Entry::Store { epochs, .. } => self.epochs = Some(*epochs),
        }
    }

    /// Returns the blob's previous file.
    pub(super) fn put_blob(&mut self, id: BlobId, record: &Record) -> Option<FileKey> {
        let ends = || record.objects.iter().map(|object| object.end);
        let (first_end, last_end) = (ends().min().unwrap_or(0), ends().max().unwrap_or(0));
        for object in &record.objects {
            self.objects.insert(object.id(id), id.0);
            if let Some(shared) = object.shared_id(id) {
                self.objects.insert(shared, id.0);
            }
        }
        let old = self.blobs.insert(id.0, BlobSlot { file: record.file, first_end, last_end });
        self.bytes = self.bytes - old.map_or(0, |old| old.file.length) + record.file.length;
        old.map(|old| old.file)
    }

    /// Returns the blob's file.
    pub(super) fn remove_blob(&mut self, id: BlobId) -> Option<FileKey> {
        let old = self.blobs.remove(&id.0)?;
        self.bytes -= old.file.length;
        Some(old.file)
    }

    pub(super) fn forget_objects(&mut self, id: BlobId, objects: &[Object]) {
        for object in objects {
            self.objects.remove(&object.id(id));
            if let Some(shared) = object.shared_id(id) {
                self.objects.remove(&shared);
            }
        }
    }

    /// The heads that have expired.
    pub(super) fn expired_heads(&self, now_ms: u64) -> Vec<EntryKey> {
        let heads = self.heads.iter().filter(|(_, slot)| slot.expires_ms <= now_ms);
        heads.map(|(key, _)| EntryKey::Head(baton_proto::ids::HeadIndexKey(*key))).collect()
    }

    /// The tokens that have expired.
    pub(super) fn expired_tokens(&self, now_s: u64) -> Vec<EntryKey> {
        let tokens = self.tokens.iter().filter(|(_, expires_s)| **expires_s < now_s);
        tokens.map(|(key, _)| EntryKey::Token(*key)).collect()
    }

    /// Forgets heads and tokens.
    pub(super) fn forget(&mut self, keys: &[EntryKey]) {
        for key in keys {
            match key {
                EntryKey::Head(key) => drop(self.heads.remove(&key.0)),
                EntryKey::Token(key) => drop(self.tokens.remove(key)),
                EntryKey::Blob(_) | EntryKey::Removed(_) | EntryKey::Store => {}
            }
        }
    }
}

/// The index in memory, and the room that running PUTs take.
#[derive(Debug, Default)]
pub(super) struct IndexState {
    pub(super) table: IndexTable,
    /// Bytes and number of blobs with running PUTs.
    pub(super) reserved_bytes: u64,
    pub(super) reserved_blobs: usize,
    pub(super) next_purge_ms: u64,
}
