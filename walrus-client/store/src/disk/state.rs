//! The index in memory and its log. Every change is appended to the log before it is made here.
//!
//! Each blob takes some 300 bytes of memory, objects included. Records and heads themselves stay on disk.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    path::Path,
};

use baton_proto::ids::{BlobId, HeadIndexKey};

use super::{
    Epochs,
    files::FileKey,
    frame::Header,
    journal::{Journal, Location},
    record::{Entry, Object, Record},
};

/// A blob in the index.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlobSlot {
    pub(super) file: FileKey,
    /// First end of its objects.
    pub(super) first_end: u64,
    /// Last end of its objects.
    pub(super) last_end: u64,
    /// Its record in the log. Without it, the file's trailer has the record.
    pub(super) location: Option<Location>,
}

/// A head in the index.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadSlot {
    pub(super) sequence: u64,
    pub(super) expires_ms: u64,
    pub(super) location: Location,
}

/// A used token in the index.
#[derive(Debug, Clone, Copy)]
pub(super) struct TokenSlot {
    pub(super) expires_s: u64,
    pub(super) location: Location,
}

/// The log's content in memory.
#[derive(Debug, Default)]
pub(super) struct IndexTable {
    pub(super) blobs: BTreeMap<[u8; 32], BlobSlot>,
    /// Object ID to blob ID. An ID that the blob's record lacks means nothing.
    pub(super) objects: HashMap<[u8; 32], [u8; 32]>,
    pub(super) heads: HashMap<[u8; 32], HeadSlot>,
    pub(super) tokens: HashMap<[u8; 32], TokenSlot>,
    /// Sum of the blobs' lengths.
    pub(super) bytes: u64,
    pub(super) epochs: Option<Epochs>,
}

impl IndexTable {
    /// Takes the next entry in order.
    pub(super) fn apply(&mut self, entry: &Entry<'_>, location: Location) {
        match entry {
            Entry::Blob(id, record) => {
                self.put_blob(*id, record, Some(location));
            }
            Entry::BlobRemoved(id) => {
                self.remove_blob(*id);
            }
            Entry::Head { key, sequence, expires_ms, .. } => {
                let slot = HeadSlot { sequence: *sequence, expires_ms: *expires_ms, location };
                self.heads.insert(key.0, slot);
            }
            Entry::Token { key, expires_s } => {
                self.tokens.insert(*key, TokenSlot { expires_s: *expires_s, location });
            }
            Entry::TokenReleased { key } => {
                self.tokens.remove(key);
            }
            Entry::Epochs(epochs) => self.epochs = Some(*epochs),
        }
    }

    /// Returns the blob's previous file.
    pub(super) fn put_blob(
        &mut self,
        id: BlobId,
        record: &Record,
        location: Option<Location>,
    ) -> Option<FileKey> {
        let ends = || record.objects.iter().map(|object| object.end);
        let (first_end, last_end) = (ends().min().unwrap_or(0), ends().max().unwrap_or(0));
        for object in &record.objects {
            self.objects.insert(object.id(id), id.0);
            if let Some(shared) = object.shared_id(id) {
                self.objects.insert(shared, id.0);
            }
        }
        let old = self.blobs.insert(id.0, BlobSlot { file: record.file, first_end, last_end, location });
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

    /// Notes an entry's new position in the log. Without one, a blob's record stays in its file; other
    /// entries are removed.
    fn move_entry(&mut self, key: Key, to: Option<Location>) {
        match (key, to) {
            (Key::Blob(key), to) => {
                if let Some(slot) = self.blobs.get_mut(&key) {
                    slot.location = to;
                }
            }
            (Key::Head(key), Some(to)) => {
                if let Some(slot) = self.heads.get_mut(&key) {
                    slot.location = to;
                }
            }
            (Key::Token(key), Some(to)) => {
                if let Some(slot) = self.tokens.get_mut(&key) {
                    slot.location = to;
                }
            }
            (Key::Head(key), None) => drop(self.heads.remove(&key)),
            (Key::Token(key), None) => drop(self.tokens.remove(&key)),
        }
    }

    /// Bytes of the log that are not outdated.
    pub(super) fn live_bytes(&self) -> u64 {
        let blobs = self.blobs.values().filter_map(|slot| slot.location);
        let heads = self.heads.values().map(|slot| slot.location);
        let tokens = self.tokens.values().map(|slot| slot.location);
        blobs.chain(heads).chain(tokens).map(|location| u64::from(location.length)).sum()
    }
}

/// The subject of a log entry.
#[derive(Debug, Clone, Copy)]
enum Key {
    Blob([u8; 32]),
    Head([u8; 32]),
    Token([u8; 32]),
}

/// The index and its log, which change together.
#[derive(Debug)]
pub(super) struct IndexState {
    pub(super) table: IndexTable,
    pub(super) journal: Journal,
    /// The next number for an entry, a file or an object. No number is used twice.
    next: u64,
    /// Bytes and number of blobs with running PUTs.
    pub(super) reserved_bytes: u64,
    pub(super) reserved_blobs: usize,
    pub(super) next_purge_ms: u64,
    /// Removed blobs whose files may still exist.
    removing: HashMap<u128, BlobId>,
}

/// Reads a blob's record that the log lacks: from memory or its file.
pub(super) trait Records {
    fn record(&self, id: BlobId, file: FileKey) -> Option<Record>;
}

impl IndexState {
    pub(super) fn new(table: IndexTable, journal: Journal, next: u64) -> Self {
        Self {
            table,
            journal,
            next,
            reserved_bytes: 0,
            reserved_blobs: 0,
            next_purge_ms: 0,
            removing: HashMap::new(),
        }
    }

    pub(super) fn next_number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// The number of a new file.
    pub(super) fn next_file(&mut self) -> u128 {
        u128::from(self.next_number()) << 64 | u128::from(rand::random::<u64>())
    }

    /// Appends an entry to the log.
    fn append(&mut self, entry: &Entry<'_>) -> io::Result<Location> {
        let serial = self.next_number();
        self.journal.append(serial, &entry.encode())
    }

    /// Returns the blob's previous file.
    pub(super) fn put_blob(&mut self, id: BlobId, record: Record) -> io::Result<Option<FileKey>> {
        let entry = Entry::Blob(id, record);
        let location = self.append(&entry)?;
        let Entry::Blob(_, record) = entry else { unreachable!("made above") };
        Ok(self.table.put_blob(id, &record, Some(location)))
    }

    /// Returns the blob's file. The caller must remove it after a flush, then call [`Self::removed`].
    pub(super) fn remove_blob(&mut self, id: BlobId) -> io::Result<Option<FileKey>> {
        self.append(&Entry::BlobRemoved(id))?;
        let file = self.table.remove_blob(id);
        if let Some(file) = file {
            self.removing.insert(file.number, id);
        }
        Ok(file)
    }

    /// Notes that the file of a removed blob is gone.
    pub(super) fn removed(&mut self, number: u128) {
        self.removing.remove(&number);
    }

    pub(super) fn put_head(
        &mut self,
        key: HeadIndexKey,
        sequence: u64,
        expires_ms: u64,
        record: &[u8],
    ) -> io::Result<()> {
        let location = self.append(&Entry::Head { key, sequence, expires_ms, record })?;
        self.table.heads.insert(key.0, HeadSlot { sequence, expires_ms, location });
        Ok(())
    }

    pub(super) fn put_token(&mut self, key: [u8; 32], expires_s: u64) -> io::Result<()> {
        let location = self.append(&Entry::Token { key, expires_s })?;
        self.table.tokens.insert(key, TokenSlot { expires_s, location });
        Ok(())
    }

    pub(super) fn release_token(&mut self, key: [u8; 32]) -> io::Result<()> {
        if self.table.tokens.contains_key(&key) {
            self.append(&Entry::TokenReleased { key })?;
            self.table.tokens.remove(&key);
        }
        Ok(())
    }

    pub(super) fn put_epochs(&mut self, epochs: Epochs) -> io::Result<()> {
        self.append(&Entry::Epochs(epochs))?;
        self.table.epochs = Some(epochs);
        Ok(())
    }

    /// Rewrites the log without outdated entries. An error changes nothing.
    pub(super) fn rewrite(&mut self, records: &impl Records) -> io::Result<()> {
        let (view, header) = (self.journal.view(), self.journal.next_header());
        if !self.journal.is_broken() {
            // The second copy keeps its name longest, and must not lack any entry that the new log leaves
            // out.
            view.copies.iter().try_for_each(|copy| copy.sync_data())?;
        }
        let read = |location: Location| view.read(location).ok().flatten();
        let folder = self.journal.folder().to_owned();
        let journal =
            write_log(&folder, header, &mut self.table, &mut self.next, &self.removing, &read, records)?;
        self.journal = journal;
        Ok(())
    }
}

/// Writes a table's log, in place of the log that `read` reads. Then updates the entries' positions in the
/// table.
pub(super) fn write_log(
    folder: &Path,
    header: Header,
    table: &mut IndexTable,
    next: &mut u64,
    removing: &HashMap<u128, BlobId>,
    read: &dyn Fn(Location) -> Option<Vec<u8>>,
    records: &impl Records,
) -> io::Result<Journal> {
    let mut keys: Vec<(Option<Location>, Key)> = Vec::new();
    keys.extend(table.blobs.iter().map(|(key, slot)| (slot.location, Key::Blob(*key))));
    keys.extend(table.heads.iter().map(|(key, slot)| (Some(slot.location), Key::Head(*key))));
    keys.extend(table.tokens.iter().map(|(key, slot)| (Some(slot.location), Key::Token(*key))));
    // Serials rise within a log: first entries with a serial, then entries that get one, then the closing
    // entries.
    keys.sort_by_key(|(location, _)| location.map_or(u64::MAX, |location| location.serial));
    let first_new = *next;
    *next += keys.len() as u64;
    let mut closing: Vec<(u64, Vec<u8>)> = Vec::new();
    let removed = removing.values().map(|id| Entry::BlobRemoved(*id));
    for entry in removed.chain(table.epochs.map(Entry::Epochs)) {
        closing.push((*next, entry.encode()));
        *next += 1;
    }
    let (mut written, mut unreadable) = (Vec::with_capacity(keys.len()), Vec::new());
    let entries = keys.into_iter().zip(first_new..).filter_map(|((location, key), new)| {
        let serial = location.map_or(new, |location| location.serial);
        let payload = location.and_then(read).or_else(|| {
            let Key::Blob(id) = key else { return None };
            let file = table.blobs.get(&id)?.file;
            Some(Entry::Blob(BlobId(id), records.record(BlobId(id), file)?).encode())
        });
        if payload.is_some() {
            written.push(key)
        } else {
            unreadable.push(key)
        }
        Some((serial, payload?))
    });
    let (journal, locations) = Journal::write_anew(folder, header, entries.chain(closing))?;
    for (key, location) in written.into_iter().zip(locations) {
        table.move_entry(key, Some(location));
    }
    for key in unreadable {
        tracing::error!(?key, "an entry of the index cannot be read from any copy");
        table.move_entry(key, None);
    }
    Ok(journal)
}
