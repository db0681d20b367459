//! The storage without a database server: one SQLite file, for one relayer.
//!
//! The file has a write-ahead log. A commit returns after the log is flushed; commits that wait together
//! share the flush. One thread writes (`writer`), and a few connections read beside it. It stores no index
//! rows, since this storage does not search.
//!
//! Damage of a page concerns the owners with records on it. They get an error; the others are served.
//! All work blocks, and runs off the reactor.

pub(crate) mod check;
pub(crate) mod database;
mod tables;
mod writer;

use std::{
    collections::HashMap,
    fs::{File, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::{Batch, Pseudonym, Space, Storage, StorageError, StorageFuture, check_sizes};
use crate::locks::lock_file;
pub use check::CheckReport;
use tables::TableResult;
use writer::DatabaseWriter;

/// Longest time of one operation: far longer than a slow disk needs, and short enough for an answer within 30
/// s.
const MAX_DISK_WAIT: Duration = Duration::from_secs(20);
/// Connections that read; a further reader waits.
const READERS: usize = 4;
/// Most nonces that are held in memory while the disk takes no writes: about a megabyte.
const MAX_HELD_NONCES: usize = 10_000;
/// Time limit for a lock that is held elsewhere: a closed database releases it a moment later.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// Time limit of the check after a start. SQLite's log grows while the check reads.
const CHECK_TIME: Duration = Duration::from_secs(120);

/// The place and the settings of the database.
#[derive(Clone, Debug)]
pub struct EmbeddedConfig {
    /// Its folder, which is created if missing.
    pub path: PathBuf,
}

impl EmbeddedConfig {
    /// A database in a folder.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// The database's file. SQLite adds `-wal` and `-shm` for the log and its index.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.path.join("memory.sqlite")
    }

    fn lock_file(&self) -> PathBuf {
        self.path.join("memory.lock")
    }
}

/// A [`Storage`] in one file, which one process opens at a time. Clones share it.
///
/// A write that fails on a full disk changes nothing. Reads continue meanwhile, and writes succeed again once
/// there is space.
#[derive(Clone)]
pub struct EmbeddedStorage(Arc<Inner>);

struct Inner {
    config: EmbeddedConfig,
    writer: DatabaseWriter,
    readers: Mutex<Vec<Connection>>,
    reader_permits: Arc<Semaphore>,
    nonce_count: Arc<AtomicU64>,
    /// Nonces of reads since the disk refuses writes, with their ends.
    held_nonces: Mutex<HashMap<[u8; 32], u64>>,
    is_closing: Arc<AtomicBool>,
    check: Mutex<Option<JoinHandle<()>>>,
}

impl EmbeddedStorage {
    /// Opens or creates the database. Blocking.
    ///
    /// # Errors
    /// [`StorageError::Unavailable`] if the folder is unusable or open in another process,
    /// [`StorageError::Damaged`] if it holds other data, [`StorageError::OtherVersion`].
    pub fn open(config: &EmbeddedConfig) -> Result<Self, StorageError> {
        let path = config.path.display();
        let unusable = |error: io::Error| {
            StorageError::Unavailable(format!("the folder {path} cannot be used: {error}"))
        };
        baton_keys::files::create_private_folder(&config.path).map_err(unusable)?;
        let lock = lock(config)?;
        let file = config.file();
        if !file.exists() && log_of(&file).exists() {
            return Err(StorageError::Damaged(format!(
                "{} is missing, and its log is there: put the file back beside it, or restore a backup with \
                 `baton-relayer restore`",
                file.display()
            )));
        }
        if database::carries_keys(&file) {
            return Err(StorageError::Unavailable(format!(
                "a restore of {} was cut off: `baton-relayer run` finishes it",
                file.display()
            )));
        }
        database::create_file(&file).map_err(unusable)?;
        let connection = database::open_writer(&file)?;
        unless_damaged("the jobs", tables::release_taken(&connection))?;
        let nonces = unless_damaged("the nonces", tables::count_nonces(&connection))?;
        Ok(Self(Arc::new(Inner {
            config: config.clone(),
            writer: DatabaseWriter::start(connection, lock)?,
            readers: Mutex::default(),
            reader_permits: Arc::new(Semaphore::new(READERS)),
            nonce_count: Arc::new(AtomicU64::new(nonces)),
            held_nonces: Mutex::default(),
            is_closing: Arc::default(),
            check: Mutex::default(),
        })))
    }

    /// Whether another process, or another handle, has the database open now. It changes nothing.
    #[must_use]
    pub fn is_in_use(config: &EmbeddedConfig) -> bool {
        let Ok(file) = File::open(config.lock_file()) else { return false };
        matches!(file.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Checks the whole database in a thread of its own, for two minutes at most, and logs all damage.
    /// Closing the database ends it.
    pub fn check_in_background(&self) {
        let (file, is_closing) = (self.0.config.file(), self.0.is_closing.clone());
        let checking = std::thread::Builder::new().name("memory check".into()).spawn(move || {
            match check::check_file(&file, Instant::now() + CHECK_TIME, is_closing) {
                Ok(report) => report.log(),
                Err(error) => tracing::error!(%error, "memory cannot be checked"),
            }
        });
        match checking {
            Ok(thread) => *self.0.check.lock() = Some(thread),
            Err(error) => tracing::warn!(%error, "memory is not checked: no thread can be started"),
        }
    }

    /// Checks a database file for `limit` at most: pages, indexes, and the hash of every record. Blocking.
    ///
    /// # Errors
    /// The file cannot be opened as a database of memories.
    pub fn check(config: &EmbeddedConfig, limit: Duration) -> Result<CheckReport, StorageError> {
        check::check_file(&config.file(), Instant::now() + limit, Arc::default())
    }

    async fn read_with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> TableResult<T> + Send + 'static,
    ) -> Result<T, StorageError> {
        let stopped = || StorageError::Unavailable("the storage's worker was stopped".into());
        let reading = async {
            let permit = self.0.reader_permits.clone().acquire_owned().await.map_err(|_| stopped())?;
            let inner = self.0.clone();
            let reading = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                Ok(inner.read_with(work)?)
            });
            reading.await.map_err(|_| stopped())?
        };
        in_time(reading).await
    }

    async fn write<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnMut(&Connection) -> TableResult<T> + Send + 'static,
    ) -> Result<T, StorageError> {
        in_time(self.0.writer.write(bytes, work)).await
    }
}

/// Damage of one table must not keep the others from being served.
fn unless_damaged<T: Default>(part: &str, done: rusqlite::Result<T>) -> Result<T, StorageError> {
    done.or_else(|error| {
        if !database::is_damage(&error) {
            return Err(database::disk_error(&error));
        }
        tracing::error!(%error, "memory is damaged: {part} cannot be read. Its other parts are served");
        Ok(T::default())
    })
}

async fn in_time<T>(work: impl Future<Output = Result<T, StorageError>>) -> Result<T, StorageError> {
    let late = || StorageError::Unavailable("the disk does not answer: check it".into());
    tokio::time::timeout(MAX_DISK_WAIT, work).await.unwrap_or_else(|_| Err(late()))
}

/// The name of a file with an ending more.
pub(crate) fn beside(file: &Path, ending: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// The name of a database's log.
pub(crate) fn log_of(file: &Path) -> PathBuf {
    beside(file, "-wal")
}

/// Locks the folder for this process.
pub(crate) fn lock(config: &EmbeddedConfig) -> Result<File, StorageError> {
    let path = config.lock_file();
    let failed =
        |error: io::Error| StorageError::Unavailable(format!("{} cannot be used: {error}", path.display()));
    lock_file(&path, LOCK_PATIENCE).map_err(failed)?.ok_or_else(|| {
        StorageError::Unavailable(format!(
            "another process has the memory in {} open: end it, or configure another folder",
            config.path.display()
        ))
    })
}

impl Inner {
    fn holds(&self, nonce: &[u8; 32], now_ms: u64) -> bool {
        let held = self.held_nonces.lock();
        held.get(nonce).is_some_and(|until_ms| *until_ms >= now_ms)
    }

    fn free_readers(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.readers.lock()
    }

    fn read_with<T>(&self, work: impl FnOnce(&Connection) -> TableResult<T>) -> TableResult<T> {
        let free = self.free_readers().pop();
        let connection = match free {
            Some(connection) => connection,
            None => database::open_reader(&self.config.file())?,
        };
        let done = work(&connection);
        self.free_readers().push(connection);
        done
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.is_closing.store(true, Ordering::Relaxed);
        // The writer's connection closes last, and moves the log into the database.
        self.free_readers().clear();
        if let Some(check) = self.check.get_mut().take() {
            // A panic in it has ended it, which is all that matters here.
            let _ = check.join();
        }
    }
}

impl Storage for EmbeddedStorage {
    fn version<'a>(&'a self, owner: Pseudonym) -> StorageFuture<'a, u64> {
        Box::pin(self.read_with(move |connection| tables::version(connection, owner)))
    }

    fn read<'a>(
        &'a self,
        owner: Pseudonym,
        space: Space,
        from: u64,
        max_bytes: usize,
    ) -> StorageFuture<'a, Vec<(u64, Vec<u8>)>> {
        Box::pin(self.read_with(move |connection| tables::read(connection, owner, space, from, max_bytes)))
    }

    fn commit<'a>(&'a self, owner: Pseudonym, expected: u64, batch: Batch) -> StorageFuture<'a, u64> {
        Box::pin(async move {
            check_sizes(&batch)?;
            let bytes = batch.put.iter().map(|record| record.bytes.len()).sum();
            self.write(bytes, move |connection| tables::commit(connection, owner, expected, &batch)).await
        })
    }

    fn erase<'a>(&'a self, owner: Pseudonym) -> StorageFuture<'a, ()> {
        Box::pin(self.write(0, move |connection| tables::erase(connection, owner)))
    }

    fn owners<'a>(&'a self, after: Option<Pseudonym>, limit: usize) -> StorageFuture<'a, Vec<Pseudonym>> {
        Box::pin(self.read_with(move |connection| tables::owners(connection, after, limit)))
    }

    fn take_due<'a>(&'a self, now_ms: u64, again_ms: u64, limit: usize) -> StorageFuture<'a, Vec<Pseudonym>> {
        Box::pin(self.write(0, move |connection| tables::take_due(connection, now_ms, again_ms, limit)))
    }

    fn take_nonce<'a>(&'a self, nonce: [u8; 32], now_ms: u64, until_ms: u64) -> StorageFuture<'a, bool> {
        Box::pin(async move {
            if self.0.holds(&nonce, now_ms) {
                return Ok(false);
            }
            let known = self.0.nonce_count.clone();
            let take = move |connection: &Connection| {
                let count = known.load(Ordering::Relaxed);
                tables::take_nonce(connection, count, nonce, now_ms, until_ms)
            };
            let outcome = self.write(nonce.len(), take).await?;
            // After the commit, so that a failed one is not counted. Concurrent calls may exceed the limit by
            // a transaction's writes.
            let _ = self.0.nonce_count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
                Some(count.saturating_add_signed(outcome.added))
            });
            Ok(outcome.is_new)
        })
    }

    fn has_nonce<'a>(&'a self, nonce: [u8; 32], now_ms: u64) -> StorageFuture<'a, bool> {
        Box::pin(async move {
            let stored = self.read_with(move |connection| tables::nonce_until(connection, nonce)).await?;
            Ok(stored.is_some_and(|until_ms| until_ms >= now_ms) || self.0.holds(&nonce, now_ms))
        })
    }

    fn hold_nonce<'a>(&'a self, nonce: [u8; 32], now_ms: u64, until_ms: u64) -> StorageFuture<'a, bool> {
        Box::pin(async move {
            if self.0.writer.refused_bytes().is_none() {
                return Err(StorageError::Unavailable("the disk takes writes".into()));
            }
            if self.has_nonce(nonce, now_ms).await? {
                return Ok(false);
            }
            let mut held = self.0.held_nonces.lock();
            if held.len() >= MAX_HELD_NONCES {
                held.retain(|_, until_ms| *until_ms >= now_ms);
            }
            if held.len() >= MAX_HELD_NONCES {
                return Err(StorageError::Unavailable("too many requests in the last minutes".into()));
            }
            // Of two requests at the same time, the second finds the first here.
            Ok(held.insert(nonce, until_ms).is_none_or(|until_ms| until_ms < now_ms))
        })
    }

    fn stored_bytes<'a>(&'a self) -> StorageFuture<'a, Option<u64>> {
        Box::pin(async { self.read_with(tables::used_bytes).await.map(Some) })
    }

    fn ready<'a>(&'a self) -> StorageFuture<'a, ()> {
        Box::pin(async {
            match self.0.writer.refused_bytes() {
                None => self.version(Pseudonym([0; 16])).await.map(drop),
                // Nobody may write meanwhile, so only this call notices that the disk works again.
                Some(bytes) => self.write(bytes, tables::probe(bytes)).await,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reading goes on while the disk takes no writes, and a request is still admitted once.
    #[tokio::test]
    async fn a_nonce_of_a_read_is_held_while_the_disk_takes_no_writes() {
        let folder = tempfile::tempdir().unwrap();
        let storage = EmbeddedStorage::open(&EmbeddedConfig::new(folder.path().join("memory"))).unwrap();
        assert!(storage.hold_nonce([1; 32], 5, 9).await.is_err(), "it is stored instead");
        assert!(storage.take_nonce([1; 32], 5, 9).await.unwrap());
        let pages = |pages: u32| {
            move |connection: &Connection| {
                let statement = format!("PRAGMA max_page_count = {pages}");
                connection.query_row(&statement, [], |_| Ok(())).map_err(tables::TableError::from)
            }
        };
        storage.write(0, pages(1)).await.unwrap();
        storage.write(1 << 20, tables::probe(1 << 20)).await.unwrap_err();
        assert!(!storage.hold_nonce([1; 32], 5, 9).await.unwrap(), "it was stored before");
        assert!(storage.hold_nonce([2; 32], 5, 9).await.unwrap());
        assert!(!storage.hold_nonce([2; 32], 5, 9).await.unwrap(), "a replay");
        assert!(
            storage.has_nonce([2; 32], 9).await.unwrap() && !storage.has_nonce([2; 32], 10).await.unwrap()
        );
        for number in 0..MAX_HELD_NONCES {
            let mut nonce = [3; 32];
            nonce[..8].copy_from_slice(&number.to_le_bytes());
            storage.0.held_nonces.lock().insert(nonce, 9);
        }
        assert!(storage.hold_nonce([4; 32], 5, 9).await.is_err(), "the number is bounded");
        assert!(storage.hold_nonce([4; 32], 10, 19).await.unwrap(), "ended ones make room");
        storage.write(0, pages(1 << 20)).await.unwrap();
        assert!(!storage.take_nonce([4; 32], 11, 19).await.unwrap(), "held ones count afterwards, too");
    }
}
