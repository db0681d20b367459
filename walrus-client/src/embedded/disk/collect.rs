//! Garbage collection: objects whose epochs are over, and blobs that no object keeps.

use std::sync::PoisonError;

use baton_proto::ids::BlobId;

use super::{Disk, DiskError, FileKey, Record};

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
        for entry in &self.blobs {
            let (key, value) = entry?;
            let is_over = |record: &Record| record.objects.iter().any(|object| object.end <= epoch);
            if !Record::decode(&key, &value).is_some_and(|record| is_over(&record)) {
                continue;
            }
            if let Ok(id) = key[..].try_into() {
                files.extend(self.collect_one(BlobId(id), epoch, &mut collected)?);
            }
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

    /// The same for one blob, looked at again under the lock. The file is to be removed after a flush.
    fn collect_one(
        &self,
        id: BlobId,
        epoch: u64,
        collected: &mut Collected,
    ) -> Result<Option<FileKey>, DiskError> {
        let mut totals = self.totals();
        let Some(mut record) = self.record(id)? else { return Ok(None) };
        let over: Vec<_> = record.objects.extract_if(.., |object| object.end <= epoch).collect();
        collected.objects += over.len() as u64;
        if record.objects.is_empty() {
            self.remove_record(&mut totals, id, Some(&record))?;
            collected.blobs += 1;
            collected.bytes += record.file.length;
        } else {
            self.blobs.insert(id.0, record.encode(id))?;
        }
        self.remove_objects(id, &over)?;
        Ok(record.objects.is_empty().then_some(record.file))
    }
}
