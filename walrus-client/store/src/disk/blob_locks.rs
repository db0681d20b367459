//! One writer of a blob at a time: a PUT reads the blob's record, and writes a new one some syncs later.

use std::{
    collections::HashSet,
    sync::{Condvar, Mutex, PoisonError},
};

use baton_proto::ids::BlobId;

/// The blobs with a writer. Writers block; callers run them off the reactor.
#[derive(Debug, Default)]
pub(super) struct BlobLocks {
    busy: Mutex<HashSet<[u8; 32]>>,
    freed: Condvar,
}

impl BlobLocks {
    /// Waits until the blob has no other writer.
    pub(super) fn lock(&self, id: BlobId) -> BlobLock<'_> {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        while !busy.insert(id.0) {
            busy = self.freed.wait(busy).unwrap_or_else(PoisonError::into_inner);
        }
        BlobLock { locks: self, id }
    }
}

/// The right to write a blob, until this is dropped.
pub(super) struct BlobLock<'a> {
    locks: &'a BlobLocks,
    id: BlobId,
}

impl Drop for BlobLock<'_> {
    fn drop(&mut self) {
        self.locks.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id.0);
        self.locks.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn writers_of_a_blob_exclude_each_other() {
        let (locks, inside, done) = (BlobLocks::default(), AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let _lock = locks.lock(BlobId([1; 32]));
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            let _other = locks.lock(BlobId([2; 32]));
        });
        assert_eq!(done.into_inner(), 400);
    }
}
