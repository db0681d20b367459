//! The only thread that writes. Writes that wait together share a transaction, and so a flush.

use std::{
    fs::File,
    sync::{Arc, mpsc as std_mpsc},
    time::Duration,
};

use parking_lot::Mutex;
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

type WriteWork = Box<dyn FnMut(&Connection) -> TableResult<()> + Send>;

/// A write. Its work may run more than once: a failed transaction is repeated with each write on its own.
struct Write {
    bytes: usize,
    work: WriteWork,
    reply: oneshot::Sender<Result<(), StorageError>>,
}

/// A handle on the thread. Dropping it ends the thread after the waiting writes, and closes the database.
pub(super) struct DatabaseWriter {
    queue: Option<mpsc::Sender<Write>>,
    closed: Mutex<std_mpsc::Receiver<()>>,
    refused_bytes: Arc<Mutex<Option<usize>>>,
}

impl DatabaseWriter {
    /// Starts the thread. It holds the folder's lock until the database is closed.
    pub(super) fn start(connection: Connection, lock: File) -> Result<Self, StorageError> {
        let (queue, waiting) = mpsc::channel(MAX_QUEUE);
        let (closing, closed) = std_mpsc::channel();
        let refused_bytes = Arc::<Mutex<Option<usize>>>::default();
        let loop_ = WriteLoop { connection, refused_bytes: refused_bytes.clone() };
        let thread = std::thread::Builder::new().name("memory writer".into()).spawn(move || {
            loop_.run(waiting);
            drop(lock);
            drop(closing);
        });
        thread.map_err(|error| StorageError::Unavailable(format!("no thread can be started: {error}")))?;
        Ok(Self { queue: Some(queue), closed: Mutex::new(closed), refused_bytes })
    }

    /// Runs a write of about `bytes` bytes in a transaction, which is on the disk on return.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        bytes: usize,
        mut work: impl FnMut(&Connection) -> TableResult<T> + Send + 'static,
    ) -> Result<T, StorageError> {
        let (reply, answer) = oneshot::channel();
        let found = Arc::<Mutex<Option<T>>>::default();
        let value = found.clone();
        let work = Box::new(move |connection: &Connection| -> TableResult<()> {
            *found.lock() = Some(work(connection)?);
            Ok(())
        });
        let stopped = || StorageError::Unavailable("the storage's writer was stopped".into());
        let queue = self.queue.as_ref().ok_or_else(stopped)?;
        queue.send(Write { bytes, work, reply }).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())??;
        let value = value.lock().take();
        value.ok_or_else(stopped)
    }

    /// Bytes of the largest write that the disk refused, until a write of that size succeeds. A nearly full
    /// disk still takes smaller writes.
    pub(super) fn refused_bytes(&self) -> Option<usize> {
        *self.refused_bytes.lock()
    }
}

impl Drop for DatabaseWriter {
    fn drop(&mut self) {
        self.queue = None;
        // It ends with the disconnection. A disk that does not answer is left alone after the limit.
        let _ = self.closed.get_mut().recv_timeout(MAX_CLOSE_WAIT);
    }
}

struct WriteLoop {
    connection: Connection,
    refused_bytes: Arc<Mutex<Option<usize>>>,
}

impl WriteLoop {
    fn run(self, mut queue: mpsc::Receiver<Write>) {
        while let Some(first) = queue.blocking_recv() {
            let mut bytes = first.bytes;
            let mut group = vec![first];
            while group.len() < MAX_GROUP && bytes < MAX_GROUP_BYTES {
                let Ok(next) = queue.try_recv() else { break };
                bytes += next.bytes;
                group.push(next);
            }
            self.commit(group);
        }
    }

    /// Runs and answers all writes of a group. If the transaction fails, each write gets one of its own.
    fn commit(&self, mut group: Vec<Write>) {
        let changes = self.connection.total_changes();
        let bytes = group.iter().map(|write| write.bytes).sum();
        let outcomes = match self.try_commit(&mut group) {
            Ok(outcomes) => {
                if self.connection.total_changes() > changes {
                    self.note_success(bytes);
                }
                outcomes
            }
            Err(_) if group.len() > 1 => {
                group.into_iter().for_each(|write| self.commit(vec![write]));
                return;
            }
            Err(error) => match self.make_room().then(|| self.try_commit(&mut group)) {
                Some(Ok(outcomes)) => {
                    self.note_success(bytes);
                    outcomes
                }
                _ => {
                    self.note_failure(bytes, &error);
                    vec![Err(disk_error(&error))]
                }
            },
        };
        for (write, outcome) in group.into_iter().zip(outcomes) {
            // A caller that no longer waits does not need the answer.
            let _ = write.reply.send(outcome);
        }
    }

    /// Moves the log's contents into the database, so that the log has space for the next write.
    fn make_room(&self) -> bool {
        let moved =
            self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
        moved.is_ok_and(|busy| busy == 0)
    }

    /// Runs all writes in one transaction. A refused write changes nothing; its error is its outcome.
    fn try_commit(&self, group: &mut [Write]) -> rusqlite::Result<Vec<Result<(), StorageError>>> {
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        let outcomes: rusqlite::Result<Vec<_>> = group.iter_mut().map(|write| self.run_one(write)).collect();
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

    fn run_one(&self, write: &mut Write) -> rusqlite::Result<Result<(), StorageError>> {
        self.connection.execute_batch("SAVEPOINT one")?;
        let refused = match (write.work)(&self.connection) {
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

    fn note_failure(&self, bytes: usize, error: &rusqlite::Error) {
        let mut refused = self.refused_bytes.lock();
        if refused.is_none() {
            tracing::error!(why = disk_error(error).to_string(), "memory cannot be written");
        }
        *refused = (*refused).max(Some(bytes));
    }

    fn note_success(&self, bytes: usize) {
        let mut refused = self.refused_bytes.lock();
        if refused.take_if(|refused| bytes >= *refused).is_some() {
            tracing::info!("memory can be written again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::embedded::{database, tables};

    /// A nearly full disk takes small writes. It counts as full until it takes a write of the refused size.
    #[tokio::test]
    async fn only_a_write_of_the_refused_size_ends_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("memory.sqlite");
        database::create_file(&file).unwrap();
        let connection = database::open_writer(&file).unwrap();
        let lock = File::create(folder.path().join("lock")).unwrap();
        let writer = DatabaseWriter::start(connection, lock).unwrap();
        let max_pages = |pages: u32| {
            move |connection: &Connection| {
                let statement = format!("PRAGMA max_page_count = {pages}");
                connection.query_row(&statement, [], |_| Ok(())).map_err(TableError::from)
            }
        };
        let take_nonce = |connection: &Connection| tables::take_nonce(connection, 0, [1; 32], 0, 1).map(drop);

        writer.write(0, max_pages(60)).await.unwrap();
        let refused = writer.write(1 << 20, tables::probe(1 << 20)).await.unwrap_err();
        assert!(refused.to_string().contains("full"), "{refused}");
        assert_eq!(writer.refused_bytes(), Some(1 << 20));
        writer.write(32, take_nonce).await.unwrap();
        assert_eq!(writer.refused_bytes(), Some(1 << 20));

        writer.write(0, max_pages(1 << 20)).await.unwrap();
        writer.write(1 << 20, tables::probe(1 << 20)).await.unwrap();
        assert_eq!(writer.refused_bytes(), None);
    }
}
