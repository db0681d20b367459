//! Garbage collection: objects whose epochs are over, and blobs that no object keeps.

use std::sync::PoisonError;

use baton_proto::ids::BlobId;

use super::{Disk, DiskError, FileKey, health::is_no_room};

/// Blobs whose files are removed after one flush.
const BATCH: usize = 256;

/// What a collection removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Collected {
    /// Blobs that no object kept any longer.
    pub blobs: u64,
    /// Their bytes, given back to the quota.
    pub bytes: u64,
    /// Objects whose epochs were over, of these and of other blobs.
    pub objects: u64,
}

/// What collections came to since the store was opened.
#[derive(Debug, Default)]
pub(super) struct Collections {
    sum: Collected,
    /// The epoch of the last one.
    epoch: Option<u64>,
}

impl std::ops::AddAssign for Collected {
    fn add_assign(&mut self, other: Self) {
        self.blobs += other.blobs;
        self.bytes += other.bytes;
        self.objects += other.objects;
    }
}

impl Disk {
    /// What was removed since the store was opened.
    pub(in crate::embedded) fn collected(&self) -> Collected {
        self.collections.lock().unwrap_or_else(PoisonError::into_inner).sum
    }

    /// Whether everything that is over in this epoch was removed.
    pub(in crate::embedded) fn is_collected(&self, epoch: u64) -> bool {
        self.collections.lock().unwrap_or_else(PoisonError::into_inner).epoch == Some(epoch)
    }

    /// Removes every object that is over in this epoch, and every blob that has no other.
    ///
    /// Other writers go on meanwhile. A blob that is bought again just now stays.
    pub(in crate::embedded) fn collect(&self) -> Result<Collected, DiskError> {
        let epoch = self.epoch().epoch;
        let mut collected = Collected::default();
        let mut files = Vec::new();
        let over: Vec<[u8; 32]> = {
            let state = self.state();
            let over = state.table.blobs.iter().filter(|(_, slot)| slot.first_end <= epoch);
            over.map(|(id, _)| *id).collect()
        };
        for id in over {
            files.extend(self.collect_one(BlobId(id), epoch, &mut collected)?);
            if files.len() >= BATCH {
                self.flush()?;
                files.drain(..).for_each(|file| self.forget_file(Some(file)));
            }
        }
        if collected != Collected::default() {
            self.flush()?;
            files.into_iter().for_each(|file| self.forget_file(Some(file)));
        }
        let mut collections = self.collections.lock().unwrap_or_else(PoisonError::into_inner);
        collections.sum += collected;
        collections.epoch = Some(epoch);
        Ok(collected)
    }

    /// The same for one blob, looked at again in its turn. The file is to be removed after a flush.
    fn collect_one(
        &self,
        id: BlobId,
        epoch: u64,
        collected: &mut Collected,
    ) -> Result<Option<FileKey>, DiskError> {
        let _turn = self.turns.enter(id);
        let Some(slot) = self.slot(id) else { return Ok(None) };
        let mut record = self.record(id)?;
        let objects = record.as_mut().map_or_else(Vec::new, |record| {
            record.objects.extract_if(.., |object| object.end <= epoch).collect()
        });
        let mut state = self.writable()?;
        // A blob whose record cannot be read ends with its last object all the same.
        let file = if slot.last_end <= epoch {
            let removed = state.remove_blob(id).or_else(|error| {
                if !is_no_room(&error) {
                    return Err(error);
                }
                // What is over makes the room for saying so.
                self.folder.remove(&self.folder.path_of(slot.file.number))?;
                state.remove_blob(id)
            });
            collected.blobs += 1;
            collected.bytes += slot.file.length;
            self.health.note(removed)?
        } else {
            if let Some(record) = record.filter(|_| !objects.is_empty()) {
                self.health.note(state.put_blob(id, record))?;
            }
            None
        };
        collected.objects += objects.len() as u64;
        state.table.forget_objects(id, &objects);
        self.tidy(&mut state);
        Ok(file)
    }
}
