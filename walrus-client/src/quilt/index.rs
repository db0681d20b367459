//! The index of a quilt: the columns of each patch.

use std::collections::BTreeMap;

use super::{
    INDEX_PREFIX_BYTES, QuiltError, QuiltPatchId, VERSION,
    bcs::{self, BcsReader},
    body, check_identifier_of,
    layout::{Layout, max_patches, too_many},
    refused,
};
use crate::blob_id::{BlobId, ShardCount};

/// One patch in the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatchEntry {
    /// Its name.
    pub identifier: String,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// Its first column.
    pub start: u16,
    /// The column after its last column.
    pub end: u16,
}

impl PatchEntry {
    /// The ID of this patch in the quilt with that ID.
    #[must_use]
    pub const fn id(&self, quilt: BlobId) -> QuiltPatchId {
        QuiltPatchId { quilt, start: self.start, end: self.end }
    }
}

/// All patches of a quilt, in the byte order of their identifiers, which is also the order of their columns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QuiltIndex {
    /// The patches.
    pub entries: Vec<PatchEntry>,
}

fn malformed(what: &str) -> QuiltError {
    refused(format!("the index is malformed: {what}"))
}

impl QuiltIndex {
    /// Reads the index of a quilt and checks all of it: bounds, columns, order and identifiers.
    ///
    /// # Errors
    /// [`QuiltError::Refused`] names the first defect.
    pub fn decode(quilt: &[u8], shards: ShardCount) -> Result<Self, QuiltError> {
        let layout = Layout::of_length(quilt.len(), shards)?;
        let columns = layout.max_index_columns();
        let prefix = layout
            .read(quilt, 0, 1, 0, INDEX_PREFIX_BYTES)
            .ok_or_else(|| malformed("a column is too small for its length"))?;
        let mut reader = BcsReader::new(&prefix);
        let version = reader.byte().map_err(malformed)?;
        if version != VERSION {
            return Err(refused(format!("quilt version {version} is not known")));
        }
        let length = reader.u32().map_err(malformed)?;
        let too_long = || refused(format!("the index claims {length} bytes, more than its columns hold"));
        let length = usize::try_from(length).map_err(|_| too_long())?;
        let bytes = layout.read(quilt, 0, columns, INDEX_PREFIX_BYTES, length).ok_or_else(too_long)?;
        let first = layout.columns_for(INDEX_PREFIX_BYTES + length);
        Self::parse(&bytes, first, layout.columns(), max_patches(shards))
    }

    /// Reads the entries, whose columns start at `first` and end at or before `columns`.
    fn parse(bytes: &[u8], first: usize, columns: usize, limit: usize) -> Result<Self, QuiltError> {
        let mut reader = BcsReader::new(bytes);
        let count = reader.length().map_err(malformed)? as usize;
        if count > limit {
            return Err(too_many(count, limit));
        }
        let mut entries: Vec<PatchEntry> = Vec::new();
        let mut start = super::column_number(first);
        for patch in 0..count {
            let end = reader.u16().map_err(malformed)?;
            if end <= start || usize::from(end) > columns {
                return Err(refused(format!(
                    "the columns {start} to {end} of entry {patch} are empty, outside the quilt or overlap others"
                )));
            }
            let identifier = reader.text().map_err(malformed)?;
            check_identifier_of(patch, identifier)?;
            if entries.last().is_some_and(|last| last.identifier.as_bytes() >= identifier.as_bytes()) {
                let reason = format!("entry {patch} of the index does not come after the one before it");
                return Err(refused(reason));
            }
            let tags = reader.map().map_err(malformed)?;
            entries.push(PatchEntry { identifier: identifier.to_owned(), tags, start, end });
            start = end;
        }
        reader.finish().map_err(malformed)?;
        Ok(Self { entries })
    }

    /// The entry with this name.
    #[must_use]
    pub fn find(&self, identifier: &str) -> Option<&PatchEntry> {
        self.entries.iter().find(|entry| entry.identifier == identifier)
    }

    /// The data of one patch. The bytes before it must name the entry's identifier and tags. Its length must
    /// take exactly the entry's columns.
    ///
    /// # Errors
    /// [`QuiltError::UnknownPatch`] for columns outside the quilt, and [`QuiltError::Refused`].
    pub fn patch(&self, quilt: &[u8], entry: &PatchEntry, shards: ShardCount) -> Result<Vec<u8>, QuiltError> {
        let layout = Layout::of_length(quilt.len(), shards)?;
        let PatchEntry { start, end, .. } = *entry;
        if start >= end || usize::from(end) > layout.columns() {
            return Err(QuiltError::UnknownPatch);
        }
        body::read(&layout, quilt, entry)
    }

    /// The bytes as in the quilt's first columns.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut entries = Vec::new();
        bcs::put_length(&mut entries, self.entries.len());
        for entry in &self.entries {
            entries.extend(entry.end.to_le_bytes());
            bcs::put_text(&mut entries, &entry.identifier);
            bcs::put_map(&mut entries, &entry.tags);
        }
        let length = u32::try_from(entries.len()).expect("at most 1365 entries of some 131 kB");
        let mut out = Vec::with_capacity(INDEX_PREFIX_BYTES + entries.len());
        out.push(VERSION);
        out.extend(length.to_le_bytes());
        out.append(&mut entries);
        out
    }

    /// Bytes of [`Self::encode`].
    pub(super) fn encoded_length(&self) -> usize {
        self.encode().len()
    }
}
