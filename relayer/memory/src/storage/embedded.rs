//! The storage that needs nothing: one sled database, for one relayer.
//!
//! Everything is in one tree, told apart by the first byte of its keys, so that a commit is one batch: whole on the disk
//! or not there at all. A write returns after a flush, which writers at about the same time share. Values are cut into
//! chunks so small that sled never puts a page into a file of its own, which it would not flush. Index rows are not kept:
//! this storage does not search.
//!
//! All work blocks, and runs off the reactor.

mod flush;
mod keys;
mod tables;

use std::{
    cell::Cell,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{Batch, DueJob, Pseudonym, Scan, ScanQuery, Space, Storage, StorageError, StorageFuture};
use tables::Tables;

/// Longest time of one piece of work: far above what a slow disk takes. After a failed write sled may wait for ever.
const MAX_DISK_WAIT: Duration = Duration::from_secs(30);

thread_local! {
    static CATCHES: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread is the database's, which is caught and told as an error: a panic hook that ends the
/// process lets it pass.
#[must_use]
pub fn catches_panics() -> bool {
    CATCHES.get()
}

/// Marks panics of this thread as the database's, until it is dropped.
struct Catching(bool);

impl Catching {
    fn begin() -> Self {
        Self(CATCHES.replace(true))
    }
}

impl Drop for Catching {
    fn drop(&mut self) {
        CATCHES.set(self.0);
    }
}

/// Where and how the database is kept.
#[derive(Clone, Debug)]
pub struct EmbeddedConfig {
    /// Its folder, which is made if there is none.
    pub path: PathBuf,
    /// Memory for sled's page cache, in bytes.
    pub cache_bytes: u64,
}

impl EmbeddedConfig {
    /// In a folder, with 64 MiB of cache: an owner is held open in memory above, so pages are read once.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, cache_bytes: 64 * 1024 * 1024 }
    }
}

/// A [`Storage`] in one folder, which one process opens at a time. Clones share it.
#[derive(Clone)]
pub struct EmbeddedStorage(Arc<Inner>);

struct Inner {
    tables: Tables,
    /// Set by the first failure of the disk. What is in memory is not on the disk from then on, and sled refuses every
    /// later write, so it stays set.
    failed: AtomicBool,
}

impl EmbeddedStorage {
    /// Opens or makes the database. Blocking.
    ///
    /// # Errors
    /// [`StorageError::Unavailable`] when the folder cannot be used or another process has it open,
    /// [`StorageError::Damaged`] when it holds something else.
    pub fn open(config: &EmbeddedConfig) -> Result<Self, StorageError> {
        let tables = Tables::open(config)?;
        Ok(Self(Arc::new(Inner { tables, failed: AtomicBool::new(false) })))
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tables) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, StorageError> {
        if self.0.failed.load(Ordering::Acquire) {
            return Err(failed_before());
        }
        let inner = self.0.clone();
        let working = tokio::task::spawn_blocking(move || {
            let _catching = Catching::begin();
            let done = work(&inner.tables);
            if let Err(Failure::Disk(_)) = &done {
                inner.fail();
            }
            done
        });
        match tokio::time::timeout(MAX_DISK_WAIT, working).await {
            Ok(Ok(Ok(value))) => Ok(value),
            Ok(Ok(Err(failure))) => Err(failure.into()),
            Ok(Err(stopped)) if stopped.is_panic() => {
                // sled tells some damage by a panic.
                self.0.fail();
                Err(StorageError::Damaged(
                    "the database cannot be read; put the folder back from a backup".into(),
                ))
            }
            Ok(Err(_)) => Err(StorageError::Unavailable("the storage's worker was stopped".into())),
            Err(_) => {
                self.0.fail();
                Err(failed_before())
            }
        }
    }
}

fn failed_before() -> StorageError {
    StorageError::Unavailable(
        "the disk failed earlier; check it and make space, then start the relayer again".into(),
    )
}

impl Inner {
    /// Nothing is read or written from now on.
    fn fail(&self) {
        if !self.failed.swap(true, Ordering::AcqRel) {
            // Dropping a database flushes it, and after some failures sled waits for that for ever: the process could
            // not end. What could be flushed is on the disk already.
            std::mem::forget(self.tables.handle());
        }
    }
}

/// Why work failed, inside.
enum Failure {
    /// sled or the file system; nothing can be relied on any more.
    Disk(sled::Error),
    /// Nothing is wrong with the disk.
    Refused(StorageError),
}

impl From<sled::Error> for Failure {
    fn from(error: sled::Error) -> Self {
        Self::Disk(error)
    }
}

impl From<StorageError> for Failure {
    fn from(error: StorageError) -> Self {
        Self::Refused(error)
    }
}

impl From<Failure> for StorageError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Disk(error) => disk_error(&error),
            Failure::Refused(error) => error,
        }
    }
}

fn disk_error(error: &sled::Error) -> StorageError {
    match error {
        sled::Error::Io(io) if io.kind() == std::io::ErrorKind::StorageFull => StorageError::Unavailable(
            format!("the disk is full ({io}); make space, then start the relayer again"),
        ),
        sled::Error::Io(io) => StorageError::Unavailable(format!("the disk failed: {io}")),
        other => StorageError::Damaged(format!("{other}; put the folder back from a backup")),
    }
}

impl Storage for EmbeddedStorage {
    fn version<'a>(&'a self, owner: Pseudonym) -> StorageFuture<'a, u64> {
        Box::pin(self.run(move |tables| tables.version(owner)))
    }

    fn read<'a>(
        &'a self,
        owner: Pseudonym,
        space: Space,
        from: u64,
        max_bytes: usize,
    ) -> StorageFuture<'a, Vec<(u64, Vec<u8>)>> {
        Box::pin(self.run(move |tables| tables.read(owner, space, from, max_bytes)))
    }

    fn commit<'a>(&'a self, owner: Pseudonym, expected: u64, batch: Batch) -> StorageFuture<'a, u64> {
        Box::pin(self.run(move |tables| tables.commit(owner, expected, &batch)))
    }

    fn erase<'a>(&'a self, owner: Pseudonym) -> StorageFuture<'a, ()> {
        Box::pin(self.run(move |tables| tables.erase(owner)))
    }

    fn owners<'a>(&'a self, after: Option<Pseudonym>, limit: usize) -> StorageFuture<'a, Vec<Pseudonym>> {
        Box::pin(self.run(move |tables| tables.owners(after, limit)))
    }

    fn take_due<'a>(&'a self, now_ms: u64, again_ms: u64, limit: usize) -> StorageFuture<'a, Vec<DueJob>> {
        Box::pin(self.run(move |tables| tables.take_due(now_ms, again_ms, limit)))
    }

    fn take_nonce<'a>(&'a self, nonce: [u8; 32], now_ms: u64, until_ms: u64) -> StorageFuture<'a, bool> {
        Box::pin(self.run(move |tables| tables.take_nonce(nonce, now_ms, until_ms)))
    }

    fn scan<'a>(&'a self, _owner: Pseudonym, _query: ScanQuery) -> StorageFuture<'a, Option<Scan>> {
        Box::pin(async { Ok(None) })
    }

    fn searches(&self) -> bool {
        false
    }
}
