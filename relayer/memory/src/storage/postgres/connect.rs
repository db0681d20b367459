//! Connects: migrations, the role, and the checks before the first write.

use std::{borrow::Cow, str::FromStr as _, time::Duration};

use sqlx::{
    Connection as _, Executor as _, PgConnection, PgPool, Row as _, SqlSafeStr as _,
    migrate::{Migration, MigrationType, Migrator},
    postgres::{PgConnectOptions, PgPoolOptions},
};

use super::{describe, is_transient};
use crate::storage::StorageError;

/// The role that a more privileged session takes on. It cannot log in by itself.
const ROLE: &str = "baton_relayer";
/// Time limit for a new or free connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Time limit for migrations, including the wait for another relayer's.
const MIGRATE_TIMEOUT: Duration = Duration::from_secs(600);
/// Pauses between connection tries at start, while the server is starting too.
const START_PAUSES_MS: [u64; 5] = [100, 300, 1000, 2000, 4000];
/// Most connections at once: they keep a server of eight cores busy. Further operations wait for one.
const MAX_CONNECTIONS: u32 = 16;
/// Tables on which row-level security must be forced.
const TABLES: [&str; 4] = ["owner", "record", "item", "job"];

/// Settings of every session:
///
/// - no statement, lock or idle transaction lasts for ever;
/// - a commit is on the disk when it returns;
/// - queries are not compiled, which costs more than it gains here;
/// - searches of a large owner's rows need no temporary files.
const SETTINGS: [(&str, &str); 6] = [
    ("statement_timeout", "30s"),
    ("lock_timeout", "15s"),
    ("idle_in_transaction_session_timeout", "60s"),
    ("synchronous_commit", "on"),
    ("jit", "off"),
    ("work_mem", "64MB"),
];

fn options(url: &str) -> Result<PgConnectOptions, StorageError> {
    let options = PgConnectOptions::from_str(url).map_err(|_| {
        unavailable("the database's URL cannot be read: postgres://user:password@host:port/name is wanted")
    })?;
    Ok(options.application_name("baton-relayer"))
}

pub(super) async fn probe(url: &str) -> Result<(String, bool), StorageError> {
    let options = options(url)?;
    let connecting = PgConnection::connect_with(&options);
    let mut connection = match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return Err(describe(&error)),
        Err(_) => {
            return Err(unavailable(
                "the Postgres database cannot be reached; is it up, and is its URL right?",
            ));
        }
    };
    let found = sqlx::query_as(
        "select current_setting('server_version'),
                exists (select from pg_available_extensions where name = 'vector')",
    )
    .fetch_one(&mut connection)
    .await
    .map_err(|error| describe(&error))?;
    // The answer is there; a failure to part from the server changes nothing.
    let _ = connection.close().await;
    Ok(found)
}

pub(super) async fn open(url: &str) -> Result<PgPool, StorageError> {
    let options = options(url)?;
    let mut connection = connect(&options).await?;
    let migrating = tokio::time::timeout(MIGRATE_TIMEOUT, prepare(&mut connection));
    let take_role =
        migrating.await.map_err(|_| unavailable("the database's tables were not ready in time"))??;
    connection.close().await.map_err(|error| describe(&error))?;
    let pool = PgPoolOptions::new()
        .max_connections(MAX_CONNECTIONS)
        .acquire_timeout(CONNECT_TIMEOUT)
        .after_connect(move |connection, _| {
            Box::pin(async move {
                if take_role {
                    connection.execute("set role baton_relayer").await?;
                }
                Ok(())
            })
        })
        .connect_with(options.options(SETTINGS))
        .await
        .map_err(|error| describe(&error))?;
    check(&pool).await?;
    Ok(pool)
}

async fn connect(options: &PgConnectOptions) -> Result<PgConnection, StorageError> {
    for pause_ms in START_PAUSES_MS {
        match tokio::time::timeout(CONNECT_TIMEOUT, PgConnection::connect_with(options)).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) if is_transient(&error) => {
                tokio::time::sleep(Duration::from_millis(pause_ms)).await
            }
            Ok(Err(error)) => return Err(describe(&error)),
            Err(_) => break,
        }
    }
    Err(unavailable("the Postgres database cannot be reached; is it up, and is its URL right?"))
}

/// Migrates the tables; returns whether the session's role must be replaced.
async fn prepare(connection: &mut PgConnection) -> Result<bool, StorageError> {
    let mighty: bool =
        sqlx::query_scalar("select rolsuper or rolbypassrls from pg_roles where rolname = current_user")
            .fetch_one(&mut *connection)
            .await
            .map_err(|error| describe(&error))?;
    // Relayers that start together wait for each other here; the later ones find the work done.
    let lock = sqlx::query("select pg_advisory_lock(hashtext('baton-memory'))");
    lock.execute(&mut *connection).await.map_err(|error| describe(&error))?;
    let extension = connection.execute("create extension if not exists vector").await;
    extension.map_err(|error| {
        unavailable(&format!(
            "the database lacks pgvector ({}): install it, or run \"create extension vector\" as its administrator",
            message(&error)
        ))
    })?;
    migrate(connection).await?;
    if mighty {
        take_role(connection).await.map_err(|error| {
            unavailable(&format!(
                "the database's role bypasses row-level security, and {ROLE} cannot be made to work as instead ({}): use \
                 a role that is no superuser and has no BYPASSRLS",
                message(&error)
            ))
        })?;
    }
    let unlock = sqlx::query("select pg_advisory_unlock(hashtext('baton-memory'))");
    unlock.execute(connection).await.map_err(|error| describe(&error))?;
    Ok(mighty)
}

async fn migrate(connection: &mut PgConnection) -> Result<(), StorageError> {
    let migration = |version, name, sql: &'static str| {
        Migration::new(version, Cow::Borrowed(name), MigrationType::Simple, sql.into_sql_str(), false)
    };
    let mut migrator = Migrator::with_migrations(vec![migration(
        1,
        "memory",
        include_str!("../../../migrations/0001_memory.sql"),
    )]);
    migrator.create_schema("baton");
    migrator.dangerous_set_table_name("baton.migration");
    migrator.run_direct(None, connection, false).await.map_err(|error| {
        unavailable(&format!(
            "the database's tables cannot be made or brought up to date: {error}; its role needs the right to create a \
             schema, and the relayer must not be older than the tables"
        ))
    })
}

/// Creates the role if it is missing, and grants its privileges.
async fn take_role(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    // Roles belong to the whole server: another database's relayer may create it at the same moment.
    connection
        .execute(
            "do $$ begin
                create role baton_relayer nologin nosuperuser nobypassrls nocreatedb nocreaterole;
            exception when duplicate_object or unique_violation then null; end $$;
            grant usage on schema baton to baton_relayer;
            grant select, insert, update, delete on baton.owner, baton.record, baton.item, baton.job, baton.nonce
                to baton_relayer;
            set role baton_relayer;
            reset role",
        )
        .await
        .map(drop)
}

/// Refuses a role that row-level security does not bind.
async fn check(pool: &PgPool) -> Result<(), StorageError> {
    let role = sqlx::query(
        "select current_user::text, rolsuper or rolbypassrls from pg_roles where rolname = current_user",
    )
    .fetch_one(pool)
    .await
    .map_err(|error| describe(&error))?;
    if role.get::<bool, _>(1) {
        return Err(unavailable(&format!(
            "the database's role {} bypasses row-level security: run \"alter role {0} nosuperuser nobypassrls\"",
            role.get::<String, _>(0)
        )));
    }
    let forced: i64 = sqlx::query_scalar(
        "select count(*) from pg_class c join pg_namespace n on n.oid = c.relnamespace
         where n.nspname = 'baton' and c.relname = any($1) and c.relrowsecurity and c.relforcerowsecurity",
    )
    .bind(TABLES.as_slice())
    .fetch_one(pool)
    .await
    .map_err(|error| describe(&error))?;
    if usize::try_from(forced) == Ok(TABLES.len()) {
        Ok(())
    } else {
        Err(unavailable(
            "row-level security is not forced on all tables: run \"alter table baton.… force row level security\"",
        ))
    }
}

fn unavailable(text: &str) -> StorageError {
    StorageError::Unavailable(text.to_owned())
}

fn message(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(error) => error.message().to_owned(),
        error => error.to_string(),
    }
}
