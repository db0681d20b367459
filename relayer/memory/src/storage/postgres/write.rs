//! Commits, erasure, jobs and nonces.

use std::{collections::BTreeMap, fmt::Write as _};

use pgvector::Vector;
use sqlx::{PgConnection, Postgres, Row as _, Transaction};

use super::{PostgresStorage, QueryError, count, pseudonym, time, to_db};
use crate::storage::{Batch, DueJob, IndexRow, Pseudonym, Space, StorageError, first_version};

/// Approximate bytes of records in one statement.
const STATEMENT_BYTES: usize = 8 * 1024 * 1024;
/// Index rows of one statement; a row has about ten kilobytes as text.
const STATEMENT_ROWS: usize = 256;
/// Expired nonces that one request removes.
const EXPIRED_AT_ONCE: i64 = 16;

/// A batch in the form of columns; the last change to a row wins.
pub(super) struct Rows<'a> {
    put: Vec<(i16, i64, &'a [u8])>,
    remove: (Vec<i16>, Vec<i64>),
    index: Vec<&'a IndexRow>,
    unindex: Vec<i64>,
    clear_index: bool,
    jobs: (Vec<i64>, Vec<i64>),
    done: Vec<i64>,
}

impl<'a> Rows<'a> {
    pub(super) fn of(batch: &'a Batch) -> Self {
        let put: BTreeMap<(Space, u64), &[u8]> =
            batch.put.iter().map(|record| ((record.space, record.number), record.bytes.as_slice())).collect();
        let index: BTreeMap<u64, &IndexRow> = batch.index.iter().map(|row| (row.number, row)).collect();
        let jobs: BTreeMap<u64, u64> = batch.jobs.iter().copied().collect();
        Self {
            put: put
                .into_iter()
                .map(|((space, number), bytes)| (space as i16, to_db(number), bytes))
                .collect(),
            remove: batch.remove.iter().map(|(space, number)| (*space as i16, to_db(*number))).unzip(),
            index: index.into_values().collect(),
            unindex: batch.unindex.iter().map(|number| to_db(*number)).collect(),
            clear_index: batch.clear_index,
            jobs: jobs.into_iter().map(|(job, due)| (to_db(job), time(due))).unzip(),
            done: batch.done.iter().map(|job| to_db(*job)).collect(),
        }
    }
}

pub(super) async fn commit(
    storage: &PostgresStorage,
    owner: Pseudonym,
    expected: u64,
    rows: &Rows<'_>,
) -> Result<u64, QueryError> {
    let mut transaction = storage.begin(owner).await?;
    let version = raise_version(&mut transaction, owner, expected).await?;
    write_records(&mut transaction, owner, rows).await?;
    write_index(&mut transaction, owner, rows).await?;
    write_jobs(&mut transaction, owner, rows).await?;
    end(transaction).await?;
    Ok(version)
}

async fn end(transaction: Transaction<'static, Postgres>) -> Result<(), QueryError> {
    transaction.commit().await.map_err(QueryError::At)
}

/// Locks the owner's row; other writers then wait for it.
async fn raise_version(
    connection: &mut PgConnection,
    owner: Pseudonym,
    expected: u64,
) -> Result<u64, QueryError> {
    let raised: Option<i64> = if expected == 0 {
        sqlx::query_scalar(
            "insert into baton.owner (owner, version) values ($1, $2) on conflict do nothing returning version",
        )
        .bind(&owner.0[..])
        .bind(time(first_version()))
        .fetch_optional(connection)
        .await?
    } else {
        sqlx::query_scalar(
            "update baton.owner set version = version + 1 where owner = $1 and version = $2 returning version",
        )
        .bind(&owner.0[..])
        .bind(time(expected))
        .fetch_optional(connection)
        .await?
    };
    Ok(count(raised.ok_or(StorageError::Conflict)?)?)
}

async fn write_records(
    connection: &mut PgConnection,
    owner: Pseudonym,
    rows: &Rows<'_>,
) -> Result<(), QueryError> {
    if !rows.remove.0.is_empty() {
        sqlx::query(
            "delete from baton.record r using unnest($2::smallint[], $3::bigint[]) as gone (space, number)
             where r.owner = $1 and r.space = gone.space and r.number = gone.number",
        )
        .bind(&owner.0[..])
        .bind(&rows.remove.0)
        .bind(&rows.remove.1)
        .execute(&mut *connection)
        .await?;
    }
    let mut rest = rows.put.as_slice();
    while !rest.is_empty() {
        let mut length = 0;
        let end = rest.iter().position(|(.., bytes)| {
            let full = length > 0 && length + bytes.len() > STATEMENT_BYTES;
            length += bytes.len().max(1);
            full
        });
        let (now, later) = rest.split_at(end.unwrap_or(rest.len()));
        rest = later;
        let spaces: Vec<i16> = now.iter().map(|(space, ..)| *space).collect();
        let numbers: Vec<i64> = now.iter().map(|(_, number, _)| *number).collect();
        let bytes: Vec<&[u8]> = now.iter().map(|(.., bytes)| *bytes).collect();
        sqlx::query(
            "insert into baton.record (owner, space, number, bytes)
             select $1, * from unnest($2::smallint[], $3::bigint[], $4::bytea[])
             on conflict (owner, space, number) do update set bytes = excluded.bytes",
        )
        .bind(&owner.0[..])
        .bind(spaces)
        .bind(numbers)
        .bind(bytes)
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

async fn write_index(
    connection: &mut PgConnection,
    owner: Pseudonym,
    rows: &Rows<'_>,
) -> Result<(), QueryError> {
    if rows.clear_index {
        let cleared = sqlx::query("delete from baton.item where owner = $1").bind(&owner.0[..]);
        cleared.execute(&mut *connection).await?;
    }
    if !rows.unindex.is_empty() {
        sqlx::query("delete from baton.item where owner = $1 and number = any($2)")
            .bind(&owner.0[..])
            .bind(&rows.unindex)
            .execute(&mut *connection)
            .await?;
    }
    for rows in rows.index.chunks(STATEMENT_ROWS) {
        let numbers: Vec<i64> = rows.iter().map(|row| to_db(row.number)).collect();
        let classes: Vec<&[u8]> = rows.iter().map(|row| &row.class[..]).collect();
        let lengths: Vec<i64> = rows.iter().map(|row| i64::from(row.length)).collect();
        // Arrays of different lengths do not form one array, so they are sent as text.
        let terms: Vec<String> =
            rows.iter().map(|row| list(row.terms.iter().map(|(term, _)| term.cast_signed()))).collect();
        let counts: Vec<String> =
            rows.iter().map(|row| list(row.terms.iter().map(|(_, count)| *count))).collect();
        let vectors: Vec<Option<Vector>> =
            rows.iter().map(|row| row.vector.clone().map(Vector::from)).collect();
        sqlx::query(
            "insert into baton.item (owner, number, class, length, terms, counts, embedding)
             select $1, number, class, length, terms::bigint[], counts::integer[], embedding
             from unnest($2::bigint[], $3::bytea[], $4::bigint[], $5::text[], $6::text[], $7::vector[])
                 as new (number, class, length, terms, counts, embedding)
             on conflict (owner, number) do update set class = excluded.class, length = excluded.length,
                 terms = excluded.terms, counts = excluded.counts, embedding = excluded.embedding",
        )
        .persistent(false)
        .bind(&owner.0[..])
        .bind(numbers)
        .bind(classes)
        .bind(lengths)
        .bind(terms)
        .bind(counts)
        .bind(vectors)
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

/// An array as PostgreSQL writes it.
fn list<T: std::fmt::Display>(values: impl Iterator<Item = T>) -> String {
    let mut text = String::from('{');
    for (index, value) in values.enumerate() {
        let comma = if index > 0 { "," } else { "" };
        write!(text, "{comma}{value}").expect("a string takes everything");
    }
    text.push('}');
    text
}

async fn write_jobs(
    connection: &mut PgConnection,
    owner: Pseudonym,
    rows: &Rows<'_>,
) -> Result<(), QueryError> {
    if !rows.done.is_empty() {
        sqlx::query("delete from baton.job where owner = $1 and job = any($2)")
            .bind(&owner.0[..])
            .bind(&rows.done)
            .execute(&mut *connection)
            .await?;
    }
    if !rows.jobs.0.is_empty() {
        sqlx::query(
            "insert into baton.job (owner, job, due_ms) select $1, * from unnest($2::bigint[], $3::bigint[])
             on conflict (owner, job) do update set due_ms = excluded.due_ms",
        )
        .bind(&owner.0[..])
        .bind(&rows.jobs.0)
        .bind(&rows.jobs.1)
        .execute(connection)
        .await?;
    }
    Ok(())
}

pub(super) async fn erase(storage: &PostgresStorage, owner: Pseudonym) -> Result<(), QueryError> {
    let mut transaction = storage.begin(owner).await?;
    // The version first: this waits for a commit that is under way, so that the later statements see its
    // rows.
    for statement in [
        "delete from baton.owner where owner = $1",
        "delete from baton.record where owner = $1",
        "delete from baton.item where owner = $1",
        "delete from baton.job where owner = $1",
    ] {
        sqlx::query(statement).bind(&owner.0[..]).execute(&mut *transaction).await?;
    }
    // The call may be repeated, whether it took effect or not.
    transaction.commit().await?;
    Ok(())
}

pub(super) async fn take_due(
    storage: &PostgresStorage,
    now_ms: u64,
    again_ms: u64,
    limit: usize,
) -> Result<Vec<DueJob>, QueryError> {
    let mut transaction = storage.begin_running().await?;
    let rows = sqlx::query(
        "with due as (
             select owner, job, due_ms from baton.job where due_ms <= $1
             order by due_ms, owner, job limit $3 for update skip locked
         )
         update baton.job j set due_ms = $2 from due where j.owner = due.owner and j.job = due.job
         returning due.owner, due.job, due.due_ms",
    )
    .bind(time(now_ms))
    .bind(time(again_ms))
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .fetch_all(&mut *transaction)
    .await?;
    let mut taken = Vec::with_capacity(rows.len());
    for row in rows {
        let job = super::from_db(row.try_get(1)?);
        taken.push(DueJob { owner: pseudonym(row.try_get(0)?)?, job, due_ms: count(row.try_get(2)?)? });
    }
    taken.sort_by_key(|job| (job.due_ms, job.owner, job.job));
    // A job that is taken twice only costs time: a taken job whose answer is lost comes again.
    transaction.commit().await?;
    Ok(taken)
}

pub(super) async fn take_nonce(
    storage: &PostgresStorage,
    nonce: [u8; 32],
    now_ms: u64,
    until_ms: u64,
) -> Result<bool, QueryError> {
    let mut transaction = storage.pool.begin().await?;
    sqlx::query(
        "delete from baton.nonce where nonce in (
             select nonce from baton.nonce where until_ms < $1 and nonce <> $2 limit $3 for update skip locked
         )",
    )
    .bind(time(now_ms))
    .bind(&nonce[..])
    .bind(EXPIRED_AT_ONCE)
    .execute(&mut *transaction)
    .await?;
    let taken = sqlx::query(
        "insert into baton.nonce as known (nonce, until_ms) values ($1, $2)
         on conflict (nonce) do update set until_ms = excluded.until_ms where known.until_ms < $3",
    )
    .bind(&nonce[..])
    .bind(time(until_ms))
    .bind(time(now_ms))
    .execute(&mut *transaction)
    .await?;
    end(transaction).await?;
    Ok(taken.rows_affected() == 1)
}
