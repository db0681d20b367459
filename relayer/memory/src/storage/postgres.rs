//! The storage for several relayers on one database: PostgreSQL with pgvector.
//!
//! Each transaction names its owner (`app.owner`) and each statement says so again; row-level security is forced for the
//! role that this storage works as, which can bypass nothing. The relayers share the folder of key files, too.
//!
//! A commit is a transaction on the row of the owner's version, so writers of one owner wait for each other and the later
//! one conflicts. What fails before the end of a transaction is tried again when only the connection was lost, as after a
//! restart of the database; what fails at its end may have happened, and is reported.

mod connect;
mod read;
mod scan;
mod write;

use std::{future::Future, time::Duration};

use sqlx::{PgConnection, PgPool, Postgres, Transaction};

use super::{Batch, DueJob, Pseudonym, Scan, ScanQuery, Space, Storage, StorageError, StorageFuture};

/// Longest time of one operation: more than any statement may take, so that a database that does not answer is noticed.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(60);
/// Pauses before an operation whose connection was lost is tried again. A restarted server is back within seconds; longer
/// than that the caller is not kept waiting.
const RETRY_PAUSES_MS: [u64; 4] = [50, 200, 500, 1000];

/// Which database, and how many connections to it.
#[derive(Clone)]
pub struct PostgresConfig {
    /// `postgres://user:password@host:port/database`.
    pub url: String,
    /// Most connections at once; further operations wait for one.
    pub max_connections: u32,
}

impl PostgresConfig {
    /// A database with 16 connections, which keep a server of eight cores busy.
    #[must_use]
    pub fn new(url: String) -> Self {
        Self { url, max_connections: 16 }
    }
}

impl std::fmt::Debug for PostgresConfig {
    /// Without the URL, which has a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("max_connections", &self.max_connections)
            .finish_non_exhaustive()
    }
}

/// A [`Storage`] in PostgreSQL. Clones share its connections.
#[derive(Clone, Debug)]
pub struct PostgresStorage {
    pool: PgPool,
}

impl PostgresStorage {
    /// Connects, brings the tables up to date (one relayer at a time), and makes sure that row-level security binds the
    /// role that it works as. A superuser's or another role's that bypasses it is put aside for `baton_relayer`, which is
    /// made if it is missing.
    ///
    /// # Errors
    /// [`StorageError::Unavailable`] when there is no connection or the database lacks something; the text says what to
    /// do.
    pub async fn open(config: &PostgresConfig) -> Result<Self, StorageError> {
        Ok(Self { pool: connect::open(config).await? })
    }

    /// The connections, for tests of what the database itself refuses.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Lets go of all connections.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    /// Does something until it succeeds, fails for good, or may have happened.
    async fn run<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        work: impl Fn() -> F,
    ) -> Result<T, StorageError> {
        let tries = async {
            for pause_ms in RETRY_PAUSES_MS {
                match work().await {
                    Err(Failure::Before(error)) if is_passing(&error) => {
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
    async fn begin(&self, owner: Pseudonym) -> Result<Transaction<'static, Postgres>, Failure> {
        let mut transaction = self.pool.begin().await?;
        set(&mut transaction, "app.owner", &hex::encode(owner.0)).await?;
        Ok(transaction)
    }

    /// A transaction that sees one state of one owner's rows.
    async fn begin_reading(&self, owner: Pseudonym) -> Result<Transaction<'static, Postgres>, Failure> {
        let mut transaction =
            self.pool.begin_with("begin transaction isolation level repeatable read read only").await?;
        set(&mut transaction, "app.owner", &hex::encode(owner.0)).await?;
        Ok(transaction)
    }

    /// A transaction that sees whose jobs are due.
    async fn begin_running(&self) -> Result<Transaction<'static, Postgres>, Failure> {
        let mut transaction = self.pool.begin().await?;
        set(&mut transaction, "app.runner", "on").await?;
        Ok(transaction)
    }
}

/// Sets something for the length of the transaction.
async fn set(connection: &mut PgConnection, name: &str, value: &str) -> Result<(), sqlx::Error> {
    sqlx::query("select set_config($1, $2, true)").bind(name).bind(value).execute(connection).await.map(drop)
}

/// Why something failed, by whether it may have happened all the same.
enum Failure {
    /// Before its transaction's end: nothing has changed.
    Before(sqlx::Error),
    /// At its end: it may have happened.
    At(sqlx::Error),
    /// Refused.
    Refused(StorageError),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Before(error)
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
            Failure::Before(error) | Failure::At(error) => describe(&error),
            Failure::Refused(error) => error,
        }
    }
}

/// Whether trying again may help: the connection was lost, the server is stopping or starting, or others were in the way.
fn is_passing(error: &sqlx::Error) -> bool {
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

/// What to tell an operator. Statements and values are never part of it.
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

/// An unsigned number as the database sorts it.
fn to_db(number: u64) -> i64 {
    (number ^ (1 << 63)).cast_signed()
}

fn from_db(number: i64) -> u64 {
    number.cast_unsigned() ^ (1 << 63)
}

/// A time or a version, which stay below 2^63; a larger one is as good as never.
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

    fn take_due<'a>(&'a self, now_ms: u64, again_ms: u64, limit: usize) -> StorageFuture<'a, Vec<DueJob>> {
        Box::pin(self.run(move || write::take_due(self, now_ms, again_ms, limit)))
    }

    fn take_nonce<'a>(&'a self, nonce: [u8; 32], now_ms: u64, until_ms: u64) -> StorageFuture<'a, bool> {
        Box::pin(self.run(move || write::take_nonce(self, nonce, now_ms, until_ms)))
    }

    fn scan<'a>(&'a self, owner: Pseudonym, query: ScanQuery) -> StorageFuture<'a, Option<Scan>> {
        Box::pin(async move { self.run(|| scan::scan(self, owner, &query)).await.map(Some) })
    }

    fn searches(&self) -> bool {
        true
    }
}
