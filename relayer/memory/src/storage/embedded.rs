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
    io::Write as _,
    mem::ManuallyDrop,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{Batch, DueJob, Pseudonym, Scan, ScanQuery, Space, Storage, StorageError, StorageFuture};
use tables::Tables;

/// Longest time of one piece of work: far above what a slow disk takes, and short enough for an answer within 30 s. After a
/// failed write sled may wait for ever.
const MAX_DISK_WAIT: Duration = Duration::from_secs(20);
/// Longest time in which a failed database is closed.
const MAX_CLOSE_WAIT: Duration = Duration::from_secs(5);
/// How often a failed database is tried to be opened again, at most.
const REOPEN_EVERY: Duration = Duration::from_secs(1);
/// Bytes that are written to find out whether there is room: some of sled's segments, which have half a MiB.
const PROBE_BYTES: usize = 2 * 1024 * 1024;
/// A part of them. Not zeros, which some file systems do not store.
const PROBE_PART: [u8; 4096] = [0x5a; 4096];

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
///
/// After a failure of the disk nothing is read or written: sled refuses every later write, and holds in memory what is not on
/// the disk. The database is then closed and opened again once a file can be written beside it, so that the storage recovers by
/// itself when there is room again. Everything that was acknowledged was flushed before, and is there.
#[derive(Clone)]
pub struct EmbeddedStorage(Arc<Inner>);

struct Inner {
    config: EmbeddedConfig,
    state: Mutex<State>,
}

enum State {
    Open(Arc<Tables>),
    Failed(FailedDatabase),
}

/// A database that the disk failed.
struct FailedDatabase {
    /// What to tell whoever asks meanwhile.
    cause: Cause,
    /// Its tables, and a handle that keeps them from being closed by whoever lets go of them last: closing flushes, and after
    /// some failures sled waits for that for ever. None once it is closed.
    closing: Option<(Arc<Tables>, ManuallyDrop<sled::Db>)>,
    /// When it may be opened again; none while somebody tries, and where that is of no use.
    retry_at: Option<Instant>,
}

/// Why nothing is read or written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    DiskFull,
    DiskFailed,
    Damaged,
    /// It cannot be closed, so that it cannot be opened again.
    Stuck,
}

impl Cause {
    fn of(error: &sled::Error) -> Self {
        use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match error {
            sled::Error::Io(io) if matches!(io.kind(), StorageFull | FileTooLarge | QuotaExceeded) => {
                Self::DiskFull
            }
            sled::Error::Io(_) => Self::DiskFailed,
            _ => Self::Damaged,
        }
    }

    /// Without a path: the text goes to whoever asks the relayer how it is.
    fn error(self) -> StorageError {
        match self {
            Self::DiskFull => StorageError::Unavailable(
                "the disk failed earlier: it is full. Make space; memory is there again by itself a moment later".into(),
            ),
            Self::DiskFailed => StorageError::Unavailable(
                "the disk failed earlier. Check it; memory is there again by itself once it can be written".into(),
            ),
            Self::Stuck => StorageError::Unavailable(
                "the disk failed earlier, and the database cannot be closed. Check the disk, then start the relayer again"
                    .into(),
            ),
            Self::Damaged => StorageError::Damaged(
                "the database cannot be read; put the folder back from a backup, then start the relayer again".into(),
            ),
        }
    }

    fn recovers(self) -> bool {
        matches!(self, Self::DiskFull | Self::DiskFailed)
    }
}

impl EmbeddedStorage {
    /// Opens or makes the database. Blocking.
    ///
    /// # Errors
    /// [`StorageError::Unavailable`] when the folder cannot be used or another process has it open,
    /// [`StorageError::Damaged`] when it holds something else.
    pub fn open(config: &EmbeddedConfig) -> Result<Self, StorageError> {
        let tables = Arc::new(Tables::open(config)?);
        Ok(Self(Arc::new(Inner { config: config.clone(), state: Mutex::new(State::Open(tables)) })))
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tables) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, StorageError> {
        let tables = self.tables().await?;
        let (inner, used) = (self.0.clone(), tables.clone());
        let working = tokio::task::spawn_blocking(move || {
            let _catching = Catching::begin();
            let done = work(&used);
            if let Err(Failure::Disk(error)) = &done {
                inner.fail(&used, Cause::of(error));
            }
            done
        });
        match tokio::time::timeout(MAX_DISK_WAIT, working).await {
            Ok(Ok(Ok(value))) => Ok(value),
            Ok(Ok(Err(failure))) => Err(failure.into()),
            Ok(Err(stopped)) if stopped.is_panic() => {
                // sled tells some damage by a panic.
                self.0.fail(&tables, Cause::Damaged);
                Err(Cause::Damaged.error())
            }
            Ok(Err(_)) => Err(StorageError::Unavailable("the storage's worker was stopped".into())),
            Err(_) => {
                self.0.fail(&tables, Cause::DiskFailed);
                Err(Cause::DiskFailed.error())
            }
        }
    }

    /// The open database; one that failed is opened again if it is time for that.
    async fn tables(&self) -> Result<Arc<Tables>, StorageError> {
        let inner = self.0.clone();
        {
            let mut state = inner.lock();
            match &mut *state {
                State::Open(tables) => return Ok(tables.clone()),
                State::Failed(failed) if failed.retry_at.is_some_and(|at| at <= Instant::now()) => {
                    failed.retry_at = None
                }
                State::Failed(failed) => return Err(failed.cause.error()),
            }
        }
        let reopening = tokio::task::spawn_blocking(move || inner.reopen());
        reopening.await.map_err(|_| StorageError::Unavailable("the storage's worker was stopped".into()))?
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Values are replaced whole: a panic leaves them usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing is read or written from now on, until it is opened again.
    fn fail(&self, tables: &Arc<Tables>, cause: Cause) {
        let mut state = self.lock();
        match &mut *state {
            State::Open(open) if Arc::ptr_eq(open, tables) => {
                let closing = Some((tables.clone(), ManuallyDrop::new(tables.handle())));
                let retry_at = cause.recovers().then(|| Instant::now() + REOPEN_EVERY);
                *state = State::Failed(FailedDatabase { cause, closing, retry_at });
            }
            // Damage outweighs: what cannot be read is not opened again and again.
            State::Failed(failed) if cause == Cause::Damaged => {
                (failed.cause, failed.retry_at) = (cause, None);
            }
            State::Open(_) | State::Failed(_) => {}
        }
    }

    /// Closes the failed database and opens it again. Blocking; one at a time, since whoever tries has taken `retry_at`.
    fn reopen(&self) -> Result<Arc<Tables>, StorageError> {
        let _catching = Catching::begin();
        let outcome = self.try_reopen();
        let mut state = self.lock();
        match (outcome, &mut *state) {
            (Ok(tables), _) => {
                *state = State::Open(tables.clone());
                tracing::info!("the disk can be written again: memory is open");
                Ok(tables)
            }
            (Err(cause), State::Failed(failed)) => {
                failed.cause = cause;
                failed.retry_at = cause.recovers().then(|| Instant::now() + REOPEN_EVERY);
                Err(cause.error())
            }
            // Only this call opens it.
            (Err(cause), State::Open(_)) => Err(cause.error()),
        }
    }

    fn try_reopen(&self) -> Result<Arc<Tables>, Cause> {
        let known = match &*self.lock() {
            State::Open(tables) => return Ok(tables.clone()),
            State::Failed(failed) => failed.cause,
        };
        // Before anything is closed: sled cleans up as it opens, which needs room.
        if let Err(error) = probe(&self.config.path) {
            tracing::debug!(%error, "the disk cannot be written yet");
            return Err(Cause::of(&sled::Error::Io(error)));
        }
        let closing = match &mut *self.lock() {
            State::Failed(failed) => failed.closing.take(),
            State::Open(_) => None,
        };
        if let Some((tables, handle)) = closing {
            match Arc::try_unwrap(tables) {
                Ok(tables) => drop(tables),
                Err(tables) => {
                    // Somebody still waits for the disk.
                    if let State::Failed(failed) = &mut *self.lock() {
                        failed.closing = Some((tables, handle));
                    }
                    return Err(known);
                }
            }
            if !close(ManuallyDrop::into_inner(handle)) {
                return Err(Cause::Stuck);
            }
        }
        match Tables::open(&self.config) {
            Ok(tables) => Ok(Arc::new(tables)),
            Err(error) => {
                tracing::warn!(%error, "the database cannot be opened again yet");
                Err(if matches!(error, StorageError::Damaged(_)) { Cause::Damaged } else { known })
            }
        }
    }
}

/// Writes and removes a file in the folder: whether there is room.
fn probe(folder: &Path) -> std::io::Result<()> {
    let path = folder.join("room.probe");
    let written = std::fs::File::create(&path).and_then(|mut file| {
        for _ in 0..PROBE_BYTES / PROBE_PART.len() {
            file.write_all(&PROBE_PART)?;
        }
        file.sync_all()
    });
    let removed = std::fs::remove_file(&path);
    written.and(removed)
}

/// Closes a database, in a thread that is left alone if it takes too long; whether it is closed.
fn close(database: sled::Db) -> bool {
    let (closed, waiting) = std::sync::mpsc::channel();
    let closing = std::thread::Builder::new().name("close database".into()).spawn(move || {
        let _catching = Catching::begin();
        drop(database);
        // Nobody listens any more where it took too long.
        let _ = closed.send(());
    });
    closing.is_ok() && waiting.recv_timeout(MAX_CLOSE_WAIT).is_ok()
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
    match (Cause::of(error), error) {
        (Cause::DiskFull, _) => StorageError::Unavailable(format!(
            "the disk is full ({error}); make space, and memory is there again by itself a moment later"
        )),
        (_, sled::Error::Io(io)) => StorageError::Unavailable(format!("the disk failed: {io}")),
        _ => StorageError::Damaged(format!("{error}; put the folder back from a backup")),
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
