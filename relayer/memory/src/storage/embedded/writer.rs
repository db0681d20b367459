//! The only thread that writes. Writes that wait together share a transaction, and so a flush.

use std::{
    collections::VecDeque,
    fs::File,
    sync::{Arc, Mutex, PoisonError, mpsc as std_mpsc},
    time::Duration,
};

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::{
    database::{disk_error, is_damage},
    tables::{TableError, TableResult},
};
use crate::storage::StorageError;

/// Writes that wait; a further caller waits for a place.
const MAX_QUEUE: usize = 256;
/// Most writes of one transaction, and the bytes at which no further write joins it.
const MAX_GROUP: usize = 64;
const MAX_GROUP_BYTES: usize = 8 * 1024 * 1024;
/// Time limit for closing the database.
const MAX_CLOSE_WAIT: Duration = Duration::from_secs(5);

/// A write that may run more than once: a failed transaction is repeated with each write on its own.
trait WriteOperation: Send {
    fn bytes(&self) -> usize;
    fn run(&mut self, connection: &Connection) -> TableResult<()>;
    fn answer(self: Box<Self>, outcome: Result<(), StorageError>);
}

struct Task<T, F> {
    bytes: usize,
    work: F,
    value: Option<T>,
    reply: oneshot::Sender<Result<T, StorageError>>,
}

impl<T: Send, F: FnMut(&Connection) -> TableResult<T> + Send> WriteOperation for Task<T, F> {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn run(&mut self, connection: &Connection) -> TableResult<()> {
        self.value = Some((self.work)(connection)?);
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<(), StorageError>) {
        let Self { value, reply, .. } = *self;
        let outcome = outcome.map(|()| value.expect("a write that succeeded has run"));
        // A caller that no longer waits does not need the answer.
        let _ = reply.send(outcome);
    }
}

/// A handle on the thread. Dropping it ends the thread after the waiting writes, and closes the database.
pub(super) struct DatabaseWriter {
    queue: Option<mpsc::Sender<Box<dyn WriteOperation>>>,
    closed: Mutex<std_mpsc::Receiver<()>>,
    failure: Arc<Mutex<Option<String>>>,
}

impl DatabaseWriter {
    /// Starts the thread. It holds the folder's lock until the database is closed.
    pub(super) fn start(connection: Connection, lock: File) -> Result<Self, StorageError> {
        let (queue, waiting) = mpsc::channel(MAX_QUEUE);
        let (closing, closed) = std_mpsc::channel();
        let failure = Arc::<Mutex<Option<String>>>::default();
        let loop_ = WriteLoop { connection, failure: failure.clone() };
        let thread = std::thread::Builder::new().name("memory writer".into()).spawn(move || {
            loop_.run(waiting);
            drop(lock);
            drop(closing);
        });
        thread.map_err(|error| StorageError::Unavailable(format!("no thread can be started: {error}")))?;
        Ok(Self { queue: Some(queue), closed: Mutex::new(closed), failure })
    }

    /// Runs a write of about `bytes` bytes in a transaction, which is on the disk on return.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnMut(&Connection) -> TableResult<T> + Send + 'static,
    ) -> Result<T, StorageError> {
        let (reply, answer) = oneshot::channel();
        let stopped = || StorageError::Unavailable("the storage's writer was stopped".into());
        let queue = self.queue.as_ref().ok_or_else(stopped)?;
        queue.send(Box::new(Task { bytes, work, value: None, reply })).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    /// Why the last write failed, if the disk failed and nothing was written since.
    pub(super) fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for DatabaseWriter {
    fn drop(&mut self) {
        self.queue = None;
        // It ends with the disconnection. A disk that does not answer is left alone after the limit.
        let _ = self.closed.get_mut().unwrap_or_else(PoisonError::into_inner).recv_timeout(MAX_CLOSE_WAIT);
    }
}

struct WriteLoop {
    connection: Connection,
    failure: Arc<Mutex<Option<String>>>,
}

impl WriteLoop {
    fn run(self, mut queue: mpsc::Receiver<Box<dyn WriteOperation>>) {
        while let Some(first) = queue.blocking_recv() {
            let mut bytes = first.bytes();
            let mut group = VecDeque::from([first]);
            while group.len() < MAX_GROUP && bytes < MAX_GROUP_BYTES {
                let Ok(next) = queue.try_recv() else { break };
                bytes += next.bytes();
                group.push_back(next);
            }
            self.commit(group);
        }
    }

    /// Runs and answers all writes of a group. If the transaction fails, each write gets one of its own.
    fn commit(&self, mut group: VecDeque<Box<dyn WriteOperation>>) {
        let changes = self.connection.total_changes();
        let outcomes = match self.try_commit(&mut group) {
            Ok(outcomes) => {
                if self.connection.total_changes() > changes {
                    self.note(None);
                }
                outcomes
            }
            Err(_) if group.len() > 1 => {
                group.into_iter().for_each(|work| self.commit(VecDeque::from([work])));
                return;
            }
            Err(error) => match self.make_room().then(|| self.try_commit(&mut group)) {
                Some(Ok(outcomes)) => outcomes,
                _ => {
                    self.note(Some(&error));
                    vec![Err(disk_error(&error))]
                }
            },
        };
        group.into_iter().zip(outcomes).for_each(|(work, outcome)| work.answer(outcome));
    }

    /// Moves the log's contents into the database, so that the log has space for the next write.
    fn make_room(&self) -> bool {
        let moved =
            self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
        moved.is_ok_and(|busy| busy == 0)
    }

    /// Runs all writes in one transaction. A refused write changes nothing; its error is its outcome.
    fn try_commit(
        &self,
        group: &mut VecDeque<Box<dyn WriteOperation>>,
    ) -> rusqlite::Result<Vec<Result<(), StorageError>>> {
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        let outcomes: rusqlite::Result<Vec<_>> =
            group.iter_mut().map(|work| self.run_one(&mut **work)).collect();
        let committed = outcomes.and_then(|outcomes| {
            self.connection.execute_batch("COMMIT")?;
            Ok(outcomes)
        });
        committed.inspect_err(|_| {
            if !self.connection.is_autocommit() {
                let _ = self.connection.execute_batch("ROLLBACK");
            }
        })
    }

    fn run_one(&self, work: &mut dyn WriteOperation) -> rusqlite::Result<Result<(), StorageError>> {
        self.connection.execute_batch("SAVEPOINT one")?;
        let refused = match work.run(&self.connection) {
            Ok(()) => {
                self.connection.execute_batch("RELEASE one")?;
                return Ok(Ok(()));
            }
            Err(TableError::Refused(refused)) => refused,
            Err(TableError::Disk(error)) if is_damage(&error) => disk_error(&error),
            Err(TableError::Disk(error)) => return Err(error),
        };
        self.connection.execute_batch("ROLLBACK TO one; RELEASE one")?;
        Ok(Err(refused))
    }

    fn note(&self, error: Option<&rusqlite::Error>) {
        let failure = error.map(|error| disk_error(error).to_string());
        let mut known = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*known, &failure) {
            (None, Some(why)) => tracing::error!(why, "memory cannot be written"),
            (Some(_), None) => tracing::info!("memory can be written again"),
            _ => {}
        }
        *known = failure;
    }
}
