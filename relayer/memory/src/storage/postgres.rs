//! The storage for several relayers on one database: PostgreSQL with pgvector.
//!
//! Each transaction names its owner (`app.owner`), and so does each statement. Row-level security is forced
//! for this storage's role, which cannot bypass it. The relayers also share the folder of key files.
//!
//! A commit is a transaction on the row of the owner's version. So writers of one owner wait for each other,
//! and the later one conflicts. A failure before the end of a transaction is retried if only the connection
//! was lost, as after a restart of the database. A failure at its end may have taken effect, and is reported.

mod connect;
mod read;
mod scan;
mod write;

use std::{future::Future, time::Duration};

use sqlx::{PgConnection, PgPool, Postgres, Transaction};

use super::{Batch, Pseudonym, RowQuery, RowScan, RowSearch, Space, Storage, StorageError, StorageFuture};

/// Longest time of one operation: longer than any statement's limit, to detect a database that does not
/// answer.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(60);
/// Pauses before an operation is retried after a lost connection. A restarted server is back within seconds;
/// longer waits are not the caller's burden.
const RETRY_PAUSES_MS: [u64; 4] = [50, 200, 500, 1000];

/// A [`Storage`] in PostgreSQL. Clones share its connections.
#[derive(Clone, Debug)]
pub struct PostgresStorage {
    pool: PgPool,
}

impl PostgresStorage {
    /// Connects to `postgres://user:password@host:port/database`, migrates the tables (one relayer at a time), and ensures that row-level security binds its
    /// role. If the role bypasses it, as a superuser's does, the session switches to `baton_relayer`, which
    /// is created if missing.
    ///
    /// # Errors
    /// [`StorageError::Unavailable`] without a connection, or if the database lacks a requirement; the text
    /// names the next step.
    pub async fn open(url: &str) -> Result<Self, StorageError> {
        Ok(Self { pool: connect::open(url).await? })
    }

    /// Connects once and changes nothing. Returns the server's version, and whether pgvector is available.
    ///
    /// # Errors
    /// [`StorageError::Unavailable`]; the text names the next step.
    pub async fn probe(url: &str) -> Result<(String, bool), StorageError> {
        connect::probe(url).await
    }

    /// The connections, for tests of the database's own refusals.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Closes all connections.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    /// Runs an operation until it succeeds, fails for good, or may have taken effect.
    async fn run<T, F: Future<Output = Result<T, QueryError>>>(
        &self,
        work: impl Fn() -> F,
    ) -> Result<T, StorageError> {
        let tries = async {
            for pause_ms in RETRY_PAUSES_MS {
                match work().await {
                    Err(QueryError::Before(error)) if is_transient(&error) => {
                        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
                    }
                    done => return done,
                }
            }
            work().await
        };
        match tokio::time::timeout(OPERATION_TIMEOUT, tries).await {
            Ok(done) => done.map_err(StorageError::from),
            Err(_) => Err(StorageError::Unavailable("the database does not answer".into())),
        }
    }

    /// A transaction on one owner's rows.
    async fn begin(&self, owner: Pseudonym) -> Result<Transaction<'static, Postgres>, QueryError> {
        let mut transaction = self.pool.begin().await?;
        set(&mut transaction, "app.owner", &hex::encode(owner.0)).await?;
        Ok(transaction)
    }

    /// A transaction on one consistent state of one owner's rows.
    async fn begin_reading(&self, owner: Pseudonym) -> Result<Transaction<'static, Postgres>, QueryError> {
        let mut transaction =
            self.pool.begin_with("begin transaction isolation level repeatable read read only").await?;
        set(&mut transaction, "app.owner", &hex::encode(owner.0)).await?;
        Ok(transaction)
    }

    /// A transaction that sees all owners' due jobs.
    async fn begin_running(&self) -> Result<Transaction<'static, Postgres>, QueryError> {
        let mut transaction = self.pool.begin().await?;
        set(&mut transaction, "app.runner", "on").await?;
        Ok(transaction)
    }
}

/// Sets a parameter for the rest of the transaction.
async fn set(connection: &mut PgConnection, name: &str, value: &str) -> Result<(), sqlx::Error> {
    sqlx::query("select set_config($1, $2, true)").bind(name).bind(value).execute(connection).await.map(drop)
}

/// Why an operation failed, by whether it may have taken effect.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum QueryError {
    /// Before the transaction's end: nothing has changed.
    Before(#[from] sqlx::Error),
    /// At its end: it may have taken effect.
    At(sqlx::Error),
    /// Refused.
    Refused(#[from] StorageError),
}

impl From<QueryError> for StorageError {
    fn from(failure: QueryError) -> Self {
        match failure {
            QueryError::Before(error) | QueryError::At(error) => describe(&error),
            QueryError::Refused(error) => error,
        }
    }
}

/// Whether a retry may help: the connection was lost, the server is stopping or starting, or other
/// transactions interfered.
fn is_transient(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed | sqlx::Error::Protocol(_) => true,
        sqlx::Error::Database(error) => {
            let code = error.code().unwrap_or_default();
            // Connection exceptions; serialisation failure and deadlock; shutdown, crash, starting up.
            code.starts_with("08") || ["40001", "40P01", "57P01", "57P02", "57P03"].contains(&&*code)
        }
        _ => false,
    }
}

/// The text for an operator. It never contains statements or values.
fn describe(error: &sqlx::Error) -> StorageError {
    match error {
        sqlx::Error::Database(error) => {
            let code = error.code().unwrap_or_default();
            match &*code {
                "53100" => StorageError::Unavailable("the database's disk is full: make space".into()),
                "53300" => StorageError::Unavailable(
                    "the database has no connection left: allow it more, or configure fewer".into(),
                ),
                "55P03" | "57014" => StorageError::Unavailable("the database took too long".into()),
                "XX001" | "XX002" => StorageError::Damaged(error.message().to_owned()),
                _ => StorageError::Unavailable(format!("the database says: {} ({code})", error.message())),
            }
        }
        sqlx::Error::PoolTimedOut => StorageError::Unavailable(
            "no connection to the database came free in time; is it up, and are there enough?".into(),
        ),
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => {
            StorageError::Damaged("the database holds a value of another form".into())
        }
        error => StorageError::Unavailable(format!("the database cannot be reached: {error}")),
    }
}

/// A time or a version, which stay below 2^63; a larger one means never.
fn time(milliseconds: u64) -> i64 {
    i64::try_from(milliseconds).unwrap_or(i64::MAX)
}

fn count(number: i64) -> Result<u64, StorageError> {
    u64::try_from(number).map_err(|_| StorageError::Damaged("the database holds a negative count".into()))
}

fn pseudonym(bytes: &[u8]) -> Result<Pseudonym, StorageError> {
    let bytes =
        bytes.try_into().map_err(|_| StorageError::Damaged("the database holds no pseudonym".into()))?;
    Ok(Pseudonym(bytes))
}

impl Storage for PostgresStorage {
    fn version<'a>(&'a self, owner: Pseudonym) -> StorageFuture<'a, u64> {
        Box::pin(self.run(move || read::version(self, owner)))
    }

    fn read<'a>(
        &'a self,
        owner: Pseudonym,
        space: Space,
        from: u64,
        max_bytes: usize,
    ) -> StorageFuture<'a, Vec<(u64, Vec<u8>)>> {
        Box::pin(self.run(move || read::read(self, owner, space, from, max_bytes)))
    }

    fn commit<'a>(&'a self, owner: Pseudonym, expected: u64, batch: Batch) -> StorageFuture<'a, u64> {
        Box::pin(async move {
            super::check_sizes(&batch)?;
            let rows = write::Rows::of(&batch);
            self.run(|| write::commit(self, owner, expected, &rows)).await
        })
    }

    fn erase<'a>(&'a self, owner: Pseudonym) -> StorageFuture<'a, ()> {
        Box::pin(self.run(move || write::erase(self, owner)))
    }

    fn owners<'a>(&'a self, after: Option<Pseudonym>, limit: usize) -> StorageFuture<'a, Vec<Pseudonym>> {
        Box::pin(self.run(move || read::owners(self, after, limit)))
    }

    fn take_due<'a>(&'a self, now_ms: u64, again_ms: u64, limit: usize) -> StorageFuture<'a, Vec<Pseudonym>> {
        Box::pin(self.run(move || write::take_due(self, now_ms, again_ms, limit)))
    }

    fn take_nonce<'a>(&'a self, nonce: [u8; 32], now_ms: u64, until_ms: u64) -> StorageFuture<'a, bool> {
        Box::pin(self.run(move || write::take_nonce(self, nonce, now_ms, until_ms)))
    }

    fn has_nonce<'a>(&'a self, nonce: [u8; 32], now_ms: u64) -> StorageFuture<'a, bool> {
        Box::pin(self.run(move || read::has_nonce(self, nonce, now_ms)))
    }

    fn rows(&self) -> Option<&dyn RowSearch> {
        Some(self)
    }
}

impl RowSearch for PostgresStorage {
    fn scan<'a>(&'a self, owner: Pseudonym, query: RowQuery) -> StorageFuture<'a, RowScan> {
        Box::pin(async move { self.run(|| scan::scan(self, owner, &query)).await })
    }

    fn embedded<'a>(&'a self, owner: Pseudonym, embedder: u64, from: u64) -> StorageFuture<'a, Vec<u64>> {
        Box::pin(self.run(move || scan::embedded(self, owner, embedder, from)))
    }

    fn read_some<'a>(
        &'a self,
        owner: Pseudonym,
        space: Space,
        numbers: Vec<u64>,
    ) -> StorageFuture<'a, Vec<(u64, Vec<u8>)>> {
        Box::pin(async move { self.run(|| scan::read_some(self, owner, space, &numbers)).await })
    }
}
