//! The statements on the database. Each function takes a connection; the caller decides about transactions.
//! All calls block.

use rusqlite::{CachedStatement, Connection, OptionalExtension as _, params};

use super::database::{damaged, disk_error, is_damage};
use crate::storage::{
    Batch, JOB_NUMBER, JobChange, Pseudonym, Space, StorageError, first_version, ordered, unordered,
};

/// Most stored nonces: a thousand requests a second for ten minutes. Beyond it, requests are refused.
const MAX_NONCES: u64 = 600_000;
/// Expired nonces that one request removes, so that no request pays for many.
const EXPIRED_AT_ONCE: u32 = 16;
/// Space of a write's pages and indexes over its bytes, and the bounds of a probe of that space.
const PROBE_FACTOR: usize = 4;
const MIN_PROBE_BYTES: usize = 256 * 1024;
const MAX_PROBE_BYTES: usize = 8 * 1024 * 1024;

/// Why a statement failed.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) enum TableError {
    /// SQLite or the disk failed.
    Disk(#[from] rusqlite::Error),
    /// The database is intact, or only the named part of it is damaged.
    Refused(#[from] StorageError),
}

impl From<TableError> for StorageError {
    fn from(failure: TableError) -> Self {
        match failure {
            TableError::Disk(error) => disk_error(&error),
            TableError::Refused(error) => error,
        }
    }
}

pub(super) type TableResult<T> = Result<T, TableError>;

/// Hash of a record with its place.
pub(super) fn record_hash(owner: Pseudonym, space: i64, number: i64, bytes: &[u8]) -> i64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&owner.0).update(&space.to_le_bytes()).update(&number.to_le_bytes()).update(bytes);
    i64::from_le_bytes(*hasher.finalize().as_bytes().first_chunk().expect("a hash has 32 bytes"))
}

/// Names the owner in an error about damage. The error of a failed disk stays unchanged.
fn of_owner(owner: Pseudonym, part: &'static str) -> impl Fn(rusqlite::Error) -> TableError {
    move |error| match is_damage(&error) {
        true => damaged(&format!("{part} of owner {}", hex::encode(owner.0))).into(),
        false => error.into(),
    }
}

struct OwnerRow {
    id: i64,
    version: u64,
}

fn owner_row(connection: &Connection, owner: Pseudonym) -> TableResult<Option<OwnerRow>> {
    let mut select = connection.prepare_cached("SELECT id, version FROM owner WHERE pseudonym = ?1")?;
    let row = select
        .query_row([owner.0.as_slice()], |row| {
            Ok(OwnerRow { id: row.get(0)?, version: row.get::<_, i64>(1)?.cast_unsigned() })
        })
        .optional();
    row.map_err(of_owner(owner, "the version"))
}

pub(super) fn version(connection: &Connection, owner: Pseudonym) -> TableResult<u64> {
    Ok(owner_row(connection, owner)?.map_or(0, |row| row.version))
}

/// One statement, so that it sees no half of a commit. The hash is not compared: the seal says more.
pub(super) fn read(
    connection: &Connection,
    owner: Pseudonym,
    space: Space,
    from: u64,
    max_bytes: usize,
) -> TableResult<Vec<(u64, Vec<u8>)>> {
    let mut select = connection.prepare_cached(
        "SELECT number, bytes FROM record WHERE owner = (SELECT id FROM owner WHERE pseudonym = ?1) \
         AND space = ?2 AND number >= ?3 ORDER BY number",
    )?;
    let named = of_owner(owner, records_of(space));
    let mut found = select.query(params![owner.0.as_slice(), space as u8, ordered(from)])?;
    let (mut rows, mut length) = (Vec::new(), 0);
    while length < max_bytes || rows.is_empty() {
        let Some(row) = found.next().map_err(&named)? else { break };
        let bytes: Vec<u8> = row.get(1).map_err(&named)?;
        length += bytes.len();
        rows.push((unordered(row.get(0).map_err(&named)?), bytes));
    }
    Ok(rows)
}

/// The name of a space's records in messages.
pub(super) fn records_of(space: Space) -> &'static str {
    match space {
        Space::Log => "the log",
        Space::Features => "the search features",
        Space::Snapshot => "the snapshot",
        Space::Sessions => "the data of sessions",
        Space::Packs => "the packs of search features",
    }
}

pub(super) fn commit(
    connection: &Connection,
    owner: Pseudonym,
    expected: u64,
    batch: &Batch,
) -> TableResult<u64> {
    let row = owner_row(connection, owner)?;
    let found = row.as_ref().map_or(0, |row| row.version);
    if found != expected {
        return Err(StorageError::Conflict.into());
    }
    let version = if found == 0 { first_version() } else { found + 1 };
    let named = of_owner(owner, "the records");
    change(connection, owner, row.map(|row| row.id), version, batch).map_err(named)?;
    Ok(version)
}

fn change(
    connection: &Connection,
    owner: Pseudonym,
    id: Option<i64>,
    version: u64,
    batch: &Batch,
) -> rusqlite::Result<()> {
    let id = match id {
        Some(id) => {
            let mut update = connection.prepare_cached("UPDATE owner SET version = ?2 WHERE id = ?1")?;
            update.execute([id, version.cast_signed()])?;
            id
        }
        None => insert_owner(connection, owner, version)?,
    };
    let mut delete =
        connection.prepare_cached("DELETE FROM record WHERE owner = ?1 AND space = ?2 AND number = ?3")?;
    for (space, number) in &batch.remove {
        delete.execute(params![id, *space as u8, ordered(*number)])?;
    }
    let mut insert = insert_record(connection)?;
    for record in &batch.put {
        put_record(
            &mut insert,
            owner,
            id,
            (record.space as u8).into(),
            ordered(record.number),
            &record.bytes,
        )?;
    }
    match batch.job {
        Some(JobChange::Due(due_ms)) => {
            let mut insert = connection
                .prepare_cached("INSERT OR REPLACE INTO job (owner, number, due_ms) VALUES (?1, ?2, ?3)")?;
            insert.execute([id, JOB_NUMBER, ordered(due_ms)])?;
        }
        Some(JobChange::Done) => {
            connection.prepare_cached("DELETE FROM job WHERE owner = ?1")?.execute([id])?;
        }
        None => {}
    }
    Ok(())
}

fn insert_owner(connection: &Connection, owner: Pseudonym, version: u64) -> rusqlite::Result<i64> {
    let mut insert = connection.prepare_cached("INSERT INTO owner (pseudonym, version) VALUES (?1, ?2)")?;
    insert.insert(params![owner.0.as_slice(), version.cast_signed()])
}

fn insert_record(connection: &Connection) -> rusqlite::Result<CachedStatement<'_>> {
    connection.prepare_cached(
        "INSERT INTO record (owner, space, number, bytes, hash) VALUES (?1, ?2, ?3, ?4, ?5) \
         ON CONFLICT (owner, space, number) DO UPDATE SET bytes = excluded.bytes, hash = excluded.hash",
    )
}

/// Writes a record by a statement of [`insert_record`].
fn put_record(
    insert: &mut CachedStatement<'_>,
    owner: Pseudonym,
    id: i64,
    space: i64,
    number: i64,
    bytes: &[u8],
) -> rusqlite::Result<()> {
    insert.execute(params![id, space, number, bytes, record_hash(owner, space, number, bytes)]).map(drop)
}

/// Removes the owner; the records and jobs go with the owner's row.
pub(super) fn erase(connection: &Connection, owner: Pseudonym) -> TableResult<()> {
    let mut delete = connection.prepare_cached("DELETE FROM owner WHERE pseudonym = ?1")?;
    delete.execute([owner.0.as_slice()]).map_err(of_owner(owner, "the records"))?;
    Ok(())
}

pub(super) fn owners(
    connection: &Connection,
    after: Option<Pseudonym>,
    limit: usize,
) -> TableResult<Vec<Pseudonym>> {
    let mut select = connection.prepare_cached(
        "SELECT pseudonym FROM owner WHERE pseudonym > ?1 AND version <> 0 ORDER BY pseudonym LIMIT ?2",
    )?;
    let after = after.as_ref().map_or(&[][..], |after| &after.0);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let owners = select.query_map(params![after, limit], |row| Ok(Pseudonym(row.get(0)?)))?;
    Ok(owners.collect::<Result<_, _>>()?)
}

pub(super) fn take_due(
    connection: &Connection,
    now_ms: u64,
    again_ms: u64,
    limit: usize,
) -> TableResult<Vec<Pseudonym>> {
    let mut select = connection.prepare_cached(
        "SELECT owner, pseudonym FROM job JOIN owner ON id = owner WHERE due_ms <= ?1 \
         ORDER BY due_ms, pseudonym LIMIT ?2",
    )?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let due = select.query_map([ordered(now_ms), limit], |row| Ok((row.get(0)?, Pseudonym(row.get(1)?))))?;
    let due: Vec<(i64, Pseudonym)> = due.collect::<Result<_, _>>()?;
    let mut take =
        connection.prepare_cached("UPDATE job SET taken_from_ms = due_ms, due_ms = ?2 WHERE owner = ?1")?;
    for (id, _) in &due {
        take.execute([*id, ordered(again_ms)])?;
    }
    Ok(due.into_iter().map(|(_, owner)| owner).collect())
}

/// Makes taken jobs due again. Only one process at a time has the database, so their former taker is gone.
pub(super) fn release_taken(connection: &Connection) -> rusqlite::Result<()> {
    let release =
        "UPDATE job SET due_ms = taken_from_ms, taken_from_ms = NULL WHERE taken_from_ms IS NOT NULL";
    connection.execute(release, []).map(drop)
}

pub(super) fn count_nonces(connection: &Connection) -> rusqlite::Result<u64> {
    connection.query_row("SELECT count(*) FROM nonce", [], |row| row.get(0)).map(i64::cast_unsigned)
}

/// The outcome of [`take_nonce`].
pub(super) struct NonceOutcome {
    /// Whether the nonce was new.
    pub(super) is_new: bool,
    /// The change of the number of stored nonces.
    pub(super) added: i64,
}

/// Stores a nonce beside `count` others.
pub(super) fn take_nonce(
    connection: &Connection,
    count: u64,
    nonce: [u8; 32],
    now_ms: u64,
    until_ms: u64,
) -> TableResult<NonceOutcome> {
    let mut expire = connection.prepare_cached(
        "DELETE FROM nonce WHERE nonce IN \
         (SELECT nonce FROM nonce WHERE until_ms < ?1 ORDER BY until_ms LIMIT ?2)",
    )?;
    let expired =
        i64::try_from(expire.execute(params![ordered(now_ms), EXPIRED_AT_ONCE])?).unwrap_or(i64::MAX);
    let known = nonce_until(connection, nonce)?;
    if known.is_some_and(|until_ms| until_ms >= now_ms) {
        return Ok(NonceOutcome { is_new: false, added: -expired });
    }
    if count.saturating_sub(expired.cast_unsigned()) >= MAX_NONCES {
        return Err(StorageError::Unavailable("too many requests in the last minutes".into()).into());
    }
    let mut insert =
        connection.prepare_cached("INSERT OR REPLACE INTO nonce (nonce, until_ms) VALUES (?1, ?2)")?;
    insert.execute(params![nonce.as_slice(), ordered(until_ms)])?;
    Ok(NonceOutcome { is_new: true, added: i64::from(known.is_none()) - expired })
}

/// The end of a stored nonce.
pub(super) fn nonce_until(connection: &Connection, nonce: [u8; 32]) -> TableResult<Option<u64>> {
    let mut select = connection.prepare_cached("SELECT until_ms FROM nonce WHERE nonce = ?1")?;
    let known: Option<i64> = select.query_row([nonce.as_slice()], |row| row.get(0)).optional()?;
    Ok(known.map(unordered))
}

/// Bytes of the pages in use. Pages that a deletion freed stay in the file, and later writes use them again.
pub(super) fn used_bytes(connection: &Connection) -> TableResult<u64> {
    let used = "SELECT (page_count - freelist_count) * page_size \
                FROM pragma_page_count, pragma_freelist_count, pragma_page_size";
    Ok(connection.query_row(used, [], |row| row.get(0)).map(i64::cast_unsigned)?)
}

/// A write that leaves the contents as they are, and takes at least the space of a write of `bytes` bytes.
pub(super) fn probe(bytes: usize) -> impl FnMut(&Connection) -> TableResult<()> {
    let size = bytes.saturating_mul(PROBE_FACTOR).clamp(MIN_PROBE_BYTES, MAX_PROBE_BYTES);
    move |connection| {
        // The pages of a deleted row are overwritten (`secure_delete`), so they are part of the transaction.
        let probe = vec![0u8; size];
        connection.execute(
            "INSERT OR REPLACE INTO nonce (nonce, until_ms) VALUES (?1, ?2)",
            params![probe, ordered(0)],
        )?;
        connection.execute("DELETE FROM nonce WHERE nonce = ?1", [probe])?;
        Ok(())
    }
}
