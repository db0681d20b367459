//! Garbage collection: objects whose epochs are over, and blobs that no object keeps.

use super::{Disk, DiskError, Record};

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

impl Disk {
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
                files.extend(self.collect_one(baton_proto::ids::BlobId(id), epoch, &mut collected)?);
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
        Ok(collected)
    }

    /// The same for one blob, looked at again under the lock. The file is to be removed after a flush.
    fn collect_one(
        &self,
        id: baton_proto::ids::BlobId,
        epoch: u64,
        collected: &mut Collected,
    ) -> Result<Option<super::FileKey>, DiskError> {
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
