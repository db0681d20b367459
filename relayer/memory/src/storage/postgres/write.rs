//! Commits, erasure, jobs and nonces.

use std::collections::BTreeMap;

use sqlx::{PgConnection, Postgres, Row as _, Transaction};

use super::{
    PostgresStorage, QueryError, count, pseudonym,
    scan::{bits_text, terms_text},
    time,
};
use crate::storage::{
    Batch, JOB_NUMBER, JobChange, Pseudonym, SearchRow, Space, StorageError, first_version, ordered,
};

/// Approximate bytes of records in one statement.
const STATEMENT_BYTES: usize = 8 * 1024 * 1024;
/// Search rows of one statement; a row has about half a kilobyte as text, and at most 100 kilobytes.
const STATEMENT_ROWS: usize = 256;
/// Expired nonces that one request removes.
const EXPIRED_AT_ONCE: i64 = 16;

/// A batch in the form of columns; the last change to a row wins.
pub(super) struct Rows<'a> {
    put: Vec<(i16, i64, &'a [u8])>,
    remove: (Vec<i16>, Vec<i64>),
    search: Vec<&'a SearchRow>,
    job: Option<JobChange>,
}

impl<'a> Rows<'a> {
    pub(super) fn of(batch: &'a Batch) -> Self {
        let put: BTreeMap<(Space, u64), &[u8]> =
            batch.put.iter().map(|record| ((record.space, record.number), record.bytes.as_slice())).collect();
        let search: BTreeMap<u64, &SearchRow> = batch.rows.iter().map(|row| (row.number, row)).collect();
        Self {
            put: put
                .into_iter()
                .map(|((space, number), bytes)| (space as i16, ordered(number), bytes))
                .collect(),
            remove: batch.remove.iter().map(|(space, number)| (*space as i16, ordered(*number))).unzip(),
            search: search.into_values().collect(),
            job: batch.job,
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
    write_search(&mut transaction, owner, rows).await?;
    write_job(&mut transaction, owner, rows.job).await?;
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
        let removed = rows.remove.0.iter().zip(&rows.remove.1);
        let items: Vec<i64> = removed
            .filter(|(space, _)| **space == Space::Features as i16)
            .map(|(_, number)| *number)
            .collect();
        sqlx::query("delete from baton.item where owner = $1 and number = any($2)")
            .bind(&owner.0[..])
            .bind(items)
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

async fn write_search(
    connection: &mut PgConnection,
    owner: Pseudonym,
    rows: &Rows<'_>,
) -> Result<(), QueryError> {
    for rows in rows.search.chunks(STATEMENT_ROWS) {
        let numbers: Vec<i64> = rows.iter().map(|row| ordered(row.number)).collect();
        let keys: Vec<i64> = rows.iter().map(|row| row.key.cast_signed()).collect();
        let lengths: Vec<i32> =
            rows.iter().map(|row| i32::try_from(row.length).unwrap_or(i32::MAX)).collect();
        // Sparse vectors and bits of many lengths are sent as text.
        let terms: Vec<String> =
            rows.iter().map(|row| terms_text(row.terms.iter().map(|term| (*term, 1)).collect())).collect();
        let embedders: Vec<Option<i64>> =
            rows.iter().map(|row| row.signs.as_ref().map(|signs| signs.embedder.cast_signed())).collect();
        let signs: Vec<Option<String>> = rows.iter().map(|row| row.signs.as_ref().map(bits_text)).collect();
        sqlx::query(
            "insert into baton.item (owner, number, key, length, terms, embedder, signs)
             select $1, number, key, length, terms::sparsevec, embedder, signs::bit varying
             from unnest($2::bigint[], $3::bigint[], $4::integer[], $5::text[], $6::bigint[], $7::text[])
                 as new (number, key, length, terms, embedder, signs)
             on conflict (owner, number) do update set key = excluded.key, length = excluded.length,
                 terms = excluded.terms, embedder = excluded.embedder, signs = excluded.signs",
        )
        .bind(&owner.0[..])
        .bind(numbers)
        .bind(keys)
        .bind(lengths)
        .bind(terms)
        .bind(embedders)
        .bind(signs)
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

async fn write_job(
    connection: &mut PgConnection,
    owner: Pseudonym,
    job: Option<JobChange>,
) -> Result<(), QueryError> {
    let change = match job {
        Some(JobChange::Due(due_ms)) => sqlx::query(
            "insert into baton.job (owner, job, due_ms) values ($1, $2, $3)
             on conflict (owner, job) do update set due_ms = excluded.due_ms",
        )
        .bind(&owner.0[..])
        .bind(JOB_NUMBER)
        .bind(time(due_ms)),
        Some(JobChange::Done) => sqlx::query("delete from baton.job where owner = $1").bind(&owner.0[..]),
        None => return Ok(()),
    };
    change.execute(connection).await?;
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
) -> Result<Vec<Pseudonym>, QueryError> {
    let mut transaction = storage.begin_running().await?;
    let rows = sqlx::query(
        "with due as (
             select owner, due_ms from baton.job where due_ms <= $1
             order by due_ms, owner limit $3 for update skip locked
         )
         update baton.job j set due_ms = $2 from due where j.owner = due.owner
         returning due.owner, due.due_ms",
    )
    .bind(time(now_ms))
    .bind(time(again_ms))
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .fetch_all(&mut *transaction)
    .await?;
    let mut taken = Vec::with_capacity(rows.len());
    for row in rows {
        taken.push((row.try_get::<i64, _>(1)?, pseudonym(row.try_get(0)?)?));
    }
    taken.sort_unstable();
    // A job that is taken twice only costs time: a taken job whose answer is lost comes again.
    transaction.commit().await?;
    Ok(taken.into_iter().map(|(_, owner)| owner).collect())
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
