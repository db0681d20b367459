//! Reads the index: a database of entries, with a copy of all that no blob's file repeats.

use std::{collections::HashMap, io, path::Path};

use baton_kit::entries::{self, EntryFiles, FileDamage, FoundEntries};
use baton_proto::ids::BlobId;

use super::{
    super::config::OpenError,
    damage::{DamageKind, Damages},
    files::serial_of,
    record::{BLOB_KIND, Entry, EntryKey, Record},
    state::IndexTable,
};

/// The folder layout that this version reads and writes. Version 3 kept a log of its own, and version 2 sled's.
pub(super) const LAYOUT: u32 = 4;
/// The database, in the index's folder.
pub(super) const INDEX_FILES: EntryFiles = EntryFiles {
    names: ["a.sqlite", "b.sqlite"],
    layout: LAYOUT,
    kind_of_first: Some(BLOB_KIND),
    is_shared: false,
};

/// The index's content, and its files as found.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) found: FoundEntries,
    pub(super) table: IndexTable,
    /// Removed blobs, with the number of the removal.
    pub(super) removed: HashMap<[u8; 32], u64>,
    /// The shards that the index names.
    pub(super) shards: Option<u16>,
    /// A number above all used numbers.
    pub(super) next: u64,
}

/// Reads the index in a folder of a store.
pub(super) fn load(folder: &Path, store: &Path, damages: &mut Damages) -> Result<Index, OpenError> {
    let no_path = |source: io::Error| OpenError::path(store, source);
    let found = FoundEntries::read(folder, INDEX_FILES).map_err(no_path)?;
    if let Some(layout) = found.other_layout() {
        return Err(OpenError::Layout { path: store.to_owned(), found: layout.to_string(), wanted: LAYOUT });
    }
    for (damage, place) in found.damages() {
        let kind = match damage {
            FileDamage::Unreadable => DamageKind::IndexHeader,
            FileDamage::Restorable => DamageKind::IndexEntry,
            FileDamage::Lost => DamageKind::IndexEntryLost,
        };
        damages.add(kind, format!("index/{place}"), None);
    }
    let (mut table, mut removed, mut shards, mut next) = (IndexTable::default(), HashMap::new(), None, 1);
    let taken = found.for_each(|row| {
        let entries::Entry { key, number, value } = row;
        next = number.saturating_add(1).max(next);
        let entry = EntryKey::parse(key).and_then(|key| Entry::decode(key, &value));
        let Some(entry) = entry else {
            tracing::error!(number, "an entry of the index is of an unknown form and left out");
            return;
        };
        match &entry {
            Entry::Blob(_, record) => {
                let numbers = record.objects.iter().map(|object| object.number);
                let highest = numbers.chain([serial_of(record.file.number)]).max().unwrap_or(0);
                next = highest.saturating_add(1).max(next);
            }
            Entry::Removed(id) => drop(removed.insert(id.0, number)),
            Entry::Store { shards: found, .. } => shards = Some(*found),
            _ => {}
        }
        table.apply(&entry);
    });
    taken.map_err(no_path)?;
    Ok(Index { found, table, removed, shards, next })
}

impl Index {
    /// The record of a blob in the database.
    pub(super) fn record(&self, id: BlobId) -> Option<Record> {
        let key = EntryKey::Blob(id);
        match Entry::decode(key, &self.found.value(key.parts())?)? {
            Entry::Blob(_, record) => Some(record),
            _ => None,
        }
    }
}
