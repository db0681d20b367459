//! The storage without a database server: one sled database, for one relayer.
//!
//! All data is in one tree; the first byte of a key names its table. So a commit is one batch: whole on the
//! disk or absent. A write returns after a flush, which concurrent writers share. Values are cut into small
//! chunks, so that sled never puts a page into a separate file, which it would not flush. It stores no index
//! rows, since this storage does not search.
//!
//! All work blocks, and runs off the reactor.

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

/// Longest time of one operation: far longer than a slow disk needs, and short enough for an answer within 30
/// s. After a failed write sled may wait for ever.
const MAX_DISK_WAIT: Duration = Duration::from_secs(20);
/// Time limit for closing a failed database.
const MAX_CLOSE_WAIT: Duration = Duration::from_secs(5);
/// Shortest interval between tries to open a failed database again.
const REOPEN_EVERY: Duration = Duration::from_secs(1);
/// Bytes that are written to test for space: a few of sled's segments, which have half a MiB each.
const PROBE_BYTES: usize = 2 * 1024 * 1024;
/// A part of them. Not zeros, because some file systems do not store zeros.
const PROBE_PART: [u8; 4096] = [0x5a; 4096];

thread_local! {
    static CATCHES: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread comes from the database. It is caught and returned as an error, so a panic
/// hook that ends the process must ignore it.
#[must_use]
pub fn catches_panics() -> bool {
    CATCHES.get()
}

/// Marks panics of this thread as the database's, until dropped.
struct PanicScope(bool);

impl PanicScope {
    fn begin() -> Self {
        Self(CATCHES.replace(true))
    }
}

impl Drop for PanicScope {
    fn drop(&mut self) {
        CATCHES.set(self.0);
    }
}

/// The place and the settings of the database.
#[derive(Clone, Debug)]
pub struct EmbeddedConfig {
    /// Its folder, which is created if missing.
    pub path: PathBuf,
    /// Memory for sled's page cache, in bytes.
    pub cache_bytes: u64,
}

impl EmbeddedConfig {
    /// A database in a folder, with 64 MiB of cache: an open owner stays in memory above, so pages are read
    /// once.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, cache_bytes: 64 * 1024 * 1024 }
    }
}

/// A [`Storage`] in one folder, which one process opens at a time. Clones share it.
///
/// After a disk failure, the storage neither reads nor writes: sled refuses later writes, and holds data in
/// memory that is not on the disk. The database is closed, and opened again once a file can be written beside
/// it. So the storage recovers by itself when there is space again. All acknowledged writes were flushed
/// before, and are intact.
#[derive(Clone)]
pub struct EmbeddedStorage(Arc<Inner>);

struct Inner {
    config: EmbeddedConfig,
    state: Mutex<DatabaseState>,
}

enum DatabaseState {
    Open(Arc<Tables>),
    Failed(FailedDatabase),
}

/// A database whose disk failed.
struct FailedDatabase {
    /// The error for callers meanwhile.
    cause: Cause,
    /// Its tables, and a handle that keeps the last user from closing them. Closing flushes, and after some
    /// failures sled waits for that for ever. `None` once closed.
    closing: Option<(Arc<Tables>, ManuallyDrop<sled::Db>)>,
    /// When it may be opened again; `None` during a try, and if a try is useless.
    retry_at: Option<Instant>,
}

/// Why no operation works.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    DiskFull,
    DiskFailed,
    Damaged,
    /// It cannot be closed, so it cannot be opened again.
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

    /// Without a path: the relayer shows the text to callers.
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
    /// Opens or creates the database. Blocking.
    ///
    /// # Errors
    /// [`StorageError::Unavailable`] if the folder is unusable or open in another process,
    /// [`StorageError::Damaged`] if it holds other data.
    pub fn open(config: &EmbeddedConfig) -> Result<Self, StorageError> {
        let tables = Arc::new(Tables::open(config)?);
        Ok(Self(Arc::new(Inner { config: config.clone(), state: Mutex::new(DatabaseState::Open(tables)) })))
    }

    /// Whether another process, or another handle, has the database open now. It changes nothing.
    #[must_use]
    pub fn is_in_use(config: &EmbeddedConfig) -> bool {
        // sled locks its log.
        let Ok(log) = std::fs::File::open(config.path.join("db")) else { return false };
        matches!(log.try_lock(), Err(std::fs::TryLockError::WouldBlock))
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tables) -> Result<T, TableError> + Send + 'static,
    ) -> Result<T, StorageError> {
        let tables = self.tables().await?;
        let (inner, used) = (self.0.clone(), tables.clone());
        let working = tokio::task::spawn_blocking(move || {
            let _catching = PanicScope::begin();
            let done = work(&used);
            if let Err(TableError::Disk(error)) = &done {
                inner.fail(&used, Cause::of(error));
            }
            done
        });
        match tokio::time::timeout(MAX_DISK_WAIT, working).await {
            Ok(Ok(Ok(value))) => Ok(value),
            Ok(Ok(Err(failure))) => Err(failure.into()),
            Ok(Err(stopped)) if stopped.is_panic() => {
                // sled reports some damage by a panic.
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

    /// The open database; a failed one is opened again once it is time.
    async fn tables(&self) -> Result<Arc<Tables>, StorageError> {
        let inner = self.0.clone();
        {
            let mut state = inner.lock();
            match &mut *state {
                DatabaseState::Open(tables) => return Ok(tables.clone()),
                DatabaseState::Failed(failed) if failed.retry_at.is_some_and(|at| at <= Instant::now()) => {
                    failed.retry_at = None
                }
                DatabaseState::Failed(failed) => return Err(failed.cause.error()),
            }
        }
        let reopening = tokio::task::spawn_blocking(move || inner.reopen());
        reopening.await.map_err(|_| StorageError::Unavailable("the storage's worker was stopped".into()))?
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, DatabaseState> {
        // Values are replaced whole, so a panic leaves them usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops all operations until the database is opened again.
    fn fail(&self, tables: &Arc<Tables>, cause: Cause) {
        let mut state = self.lock();
        match &mut *state {
            DatabaseState::Open(open) if Arc::ptr_eq(open, tables) => {
                let closing = Some((tables.clone(), ManuallyDrop::new(tables.handle())));
                let retry_at = cause.recovers().then(|| Instant::now() + REOPEN_EVERY);
                *state = DatabaseState::Failed(FailedDatabase { cause, closing, retry_at });
            }
            // Damage takes precedence: an unreadable database is not opened again and again.
            DatabaseState::Failed(failed) if cause == Cause::Damaged => {
                (failed.cause, failed.retry_at) = (cause, None);
            }
            DatabaseState::Open(_) | DatabaseState::Failed(_) => {}
        }
    }

    /// Closes the failed database and opens it again. Blocking. Tries are sequential, since a try takes
    /// `retry_at`.
    fn reopen(&self) -> Result<Arc<Tables>, StorageError> {
        let _catching = PanicScope::begin();
        let outcome = self.try_reopen();
        let mut state = self.lock();
        match (outcome, &mut *state) {
            (Ok(tables), _) => {
                *state = DatabaseState::Open(tables.clone());
                tracing::info!("the disk can be written again: memory is open");
                Ok(tables)
            }
            (Err(cause), DatabaseState::Failed(failed)) => {
                failed.cause = cause;
                failed.retry_at = cause.recovers().then(|| Instant::now() + REOPEN_EVERY);
                Err(cause.error())
            }
            // Only this call opens it.
            (Err(cause), DatabaseState::Open(_)) => Err(cause.error()),
        }
    }

    fn try_reopen(&self) -> Result<Arc<Tables>, Cause> {
        let known = match &*self.lock() {
            DatabaseState::Open(tables) => return Ok(tables.clone()),
            DatabaseState::Failed(failed) => failed.cause,
        };
        // Before the close: sled cleans up as it opens, which needs space.
        if let Err(error) = probe(&self.config.path) {
            tracing::debug!(%error, "the disk cannot be written yet");
            return Err(Cause::of(&sled::Error::Io(error)));
        }
        let closing = match &mut *self.lock() {
            DatabaseState::Failed(failed) => failed.closing.take(),
            DatabaseState::Open(_) => None,
        };
        if let Some((tables, handle)) = closing {
            match Arc::try_unwrap(tables) {
                Ok(tables) => drop(tables),
                Err(tables) => {
                    // A caller still waits for the disk.
                    if let DatabaseState::Failed(failed) = &mut *self.lock() {
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

/// Tests for space: writes a file in the folder and removes it.
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

/// Closes a database, in a thread that is abandoned if it takes too long; returns whether it is closed.
fn close(database: sled::Db) -> bool {
    let (closed, waiting) = std::sync::mpsc::channel();
    let closing = std::thread::Builder::new().name("close database".into()).spawn(move || {
        let _catching = PanicScope::begin();
        drop(database);
        // After the time limit, the receiver is gone.
        let _ = closed.send(());
    });
    closing.is_ok() && waiting.recv_timeout(MAX_CLOSE_WAIT).is_ok()
}

/// Why internal work failed.
enum TableError {
    /// sled or the file system failed; nothing is reliable any more.
    Disk(sled::Error),
    /// The disk is intact.
    Refused(StorageError),
}

impl From<sled::Error> for TableError {
    fn from(error: sled::Error) -> Self {
        Self::Disk(error)
    }
}

impl From<StorageError> for TableError {
    fn from(error: StorageError) -> Self {
        Self::Refused(error)
    }
}

impl From<TableError> for StorageError {
    fn from(failure: TableError) -> Self {
        match failure {
            TableError::Disk(error) => disk_error(&error),
            TableError::Refused(error) => error,
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
