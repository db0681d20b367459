//! Garbage collection of expired objects, and of blobs without objects.

use std::sync::PoisonError;

use baton_proto::ids::BlobId;

use super::{super::error::OperationError, Disk, FileKey};

/// Blobs whose files are removed after one flush.
const BATCH: usize = 256;

/// The amount that a collection removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct CollectionReport {
    /// Blobs whose last object expired.
    pub blobs: u64,
    /// Their bytes, returned to the quota.
    pub bytes: u64,
    /// Expired objects of these and other blobs.
    pub objects: u64,
}

/// The sum of all collections since the store was opened.
#[derive(Debug, Default)]
pub(super) struct Collections {
    sum: CollectionReport,
    /// The epoch of the last collection.
    epoch: Option<u64>,
}

impl std::ops::AddAssign for CollectionReport {
    fn add_assign(&mut self, other: Self) {
        self.blobs += other.blobs;
        self.bytes += other.bytes;
        self.objects += other.objects;
    }
}

impl Disk {
    /// The amount removed since the store was opened.
    pub(crate) fn collected(&self) -> CollectionReport {
        self.collections.lock().unwrap_or_else(PoisonError::into_inner).sum
    }

    /// Whether everything expired in this epoch was removed.
    pub(crate) fn is_collected(&self, epoch: u64) -> bool {
        self.collections.lock().unwrap_or_else(PoisonError::into_inner).epoch == Some(epoch)
    }

    /// Removes every object that has expired in this epoch, and every blob without another object.
    ///
    /// Other writers continue meanwhile. A blob that is bought again just now stays.
    pub(crate) fn collect(&self) -> Result<CollectionReport, OperationError> {
        let epoch = self.epoch().epoch;
        let mut collected = CollectionReport::default();
        let mut files = Vec::new();
        let over: Vec<[u8; 32]> = {
            let state = self.state();
            let over = state.table.blobs.iter().filter(|(_, slot)| slot.first_end <= epoch);
            over.map(|(id, _)| *id).collect()
        };
        for id in over {
            let id = BlobId(id);
            files.extend(self.collect_one(id, epoch, &mut collected)?.map(|file| (id, file)));
            if files.len() >= BATCH {
                self.flush()?;
                files.drain(..).for_each(|(id, file)| self.forget_removed(id, file));
            }
        }
        if collected != CollectionReport::default() {
            self.flush()?;
            files.into_iter().for_each(|(id, file)| self.forget_removed(id, file));
        }
        let mut collections = self.collections.lock().unwrap_or_else(PoisonError::into_inner);
        collections.sum += collected;
        collections.epoch = Some(epoch);
        Ok(collected)
    }

    /// Collects one blob, and checks it again under its lock. The returned file must be removed after a
    /// flush.
    fn collect_one(
        &self,
        id: BlobId,
        epoch: u64,
        collected: &mut CollectionReport,
    ) -> Result<Option<FileKey>, OperationError> {
        let _lock = self.blob_locks.lock(id);
        let Some(slot) = self.slot(id) else { return Ok(None) };
        let mut record = self.record(id)?;
        let objects = record.as_mut().map_or_else(Vec::new, |record| {
            record.objects.extract_if(.., |object| object.end <= epoch).collect()
        });
        let index = self.writable()?;
        // A blob with an unreadable record still ends with its last object.
        let file = if slot.last_end <= epoch {
            let removed = self.remove_blob(&index, id).or_else(|error| {
                if !matches!(error, OperationError::NoRoom(_)) {
                    return Err(error);
                }
                // If the index has no room for the removal, the expired file makes room first.
                self.folder.remove(&self.folder.path_of(slot.file.number))?;
                self.remove_blob(&index, id)
            });
            collected.blobs += 1;
            collected.bytes += slot.file.length;
            removed?
        } else {
            if let Some(record) = record.filter(|_| !objects.is_empty()) {
                self.put_blob(&index, id, record)?;
            }
            None
        };
        collected.objects += objects.len() as u64;
        self.state().table.forget_objects(id, &objects);
        Ok(file)
    }
}
