//! Takes over the database that earlier versions kept with sled. It runs before the database opens, and is
//! the only code of memory that uses sled.
//!
//! 1. All rows are copied into a file under a temporary name.
//! 2. The file is closed, flushed, opened again, and compared with sled row by row.
//! 3. The file gets its name. From then on, it is the database.
//! 4. sled's folder is renamed. Nothing removes it.
//!
//! After a crash before step 3, the next start begins again. After a crash before step 4, it continues there.

use std::{
    cell::Cell,
    io,
    iter::Peekable,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rusqlite::{Connection, OptionalExtension as _};

use super::{EmbeddedConfig, database, sled_keys as keys, tables};
use crate::storage::{DueJob, Pseudonym, StorageError};

#[cfg(test)]
mod tests;

/// Memory for each database during the copy.
const CACHE_BYTES: u64 = 64 * 1024 * 1024;
/// Records between two lines of the log.
const LOG_EVERY: u64 = 100_000;
/// Time for another holder of sled's folder to end: sled's threads keep its lock for a moment after a database is
/// closed, in this process too.
const LOCK_WAIT: Duration = Duration::from_secs(3);
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// Names that are tried for sled's folder afterwards.
const MAX_NAMES: u32 = 100;

thread_local! {
    static CATCHES: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread comes from sled, which reports some damage by a panic. It is caught and
/// returned as an error, so a panic hook that ends the process must ignore it.
#[must_use]
pub fn catches_panics() -> bool {
    CATCHES.get()
}

/// Whether a folder holds sled's files.
pub(super) fn is_sled(folder: &Path) -> bool {
    folder.join("db").exists()
}

/// Whether a program of an earlier version has the database open; `held` looks at a file's lock.
pub(super) fn is_sled_in_use(config: &EmbeddedConfig, held: impl Fn(&Path) -> bool) -> bool {
    config.is_in_sled() && held(&config.sled_folder().join("db"))
}

/// Takes over sled's database, if there is one.
pub(super) fn take_over(config: &EmbeddedConfig) -> Result<(), StorageError> {
    let (folder, file) = (config.sled_folder(), config.file());
    if !is_sled(&folder) {
        return Ok(());
    }
    if !file.exists() {
        tracing::info!(
            "memory moves from sled to SQLite; this happens once, and its time grows with the memory"
        );
        let part = config.path.join("memory.sqlite.new");
        let copied = remove(&part).map_err(|error| not_moved(&error)).and_then(|()| copy_all(&folder, &part));
        let counts = copied.inspect_err(|_| {
            // The next start begins again in any case.
            let _ = remove(&part);
        })?;
        let named = std::fs::rename(&part, &file).and_then(|()| database::sync_folder(&file));
        named.map_err(|error| not_moved(&error))?;
        tracing::info!(?counts, "memory is in SQLite now, compared row by row");
    }
    let aside = archive(&folder).map_err(|error| not_moved(&error))?;
    let aside = aside.display();
    tracing::info!("the sled database stays in {aside}; make a backup, then remove it with `rm -r {aside}`");
    Ok(())
}

fn remove(part: &Path) -> io::Result<()> {
    match std::fs::remove_file(part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn not_moved(error: &dyn std::fmt::Display) -> StorageError {
    StorageError::Unavailable(format!(
        "memory cannot move from sled to SQLite: {error}. The sled database is unchanged; start the relayer again once \
         the cause is gone"
    ))
}

/// Renames sled's folder; returns its new name.
fn archive(folder: &Path) -> io::Result<PathBuf> {
    let name = |number: u32| {
        let suffix = if number == 1 { "migrated".to_owned() } else { format!("migrated-{number}") };
        folder.with_extension(suffix)
    };
    let free = (1..MAX_NAMES).map(name).find(|name| !name.exists());
    let aside = free.ok_or_else(|| io::Error::from(io::ErrorKind::AlreadyExists))?;
    std::fs::rename(folder, &aside)?;
    database::sync_folder(&aside)?;
    Ok(aside)
}

/// Rows of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RowCounts {
    pub(super) owners: u64,
    pub(super) records: u64,
    pub(super) jobs: u64,
    pub(super) nonces: u64,
}

fn copy_all(folder: &Path, part: &Path) -> Result<RowCounts, StorageError> {
    CATCHES.set(true);
    let copied = catch_unwind(AssertUnwindSafe(|| copy_and_compare(folder, part)));
    CATCHES.set(false);
    copied.unwrap_or_else(|_| Err(unreadable("sled's files")))
}

fn copy_and_compare(folder: &Path, part: &Path) -> Result<RowCounts, StorageError> {
    let source = SledReader::open(folder)?;
    let failed = |error: rusqlite::Error| not_moved(&database::disk_error(&error));
    let io_failed = |error: io::Error| not_moved(&error);
    database::create_file(part).map_err(io_failed)?;
    let target = database::open_copy(part, CACHE_BYTES).map_err(failed)?;
    let copied = copy(&source, &target)?;
    target.close().map_err(|(_, error)| failed(error))?;
    database::finish_copy(part).map_err(io_failed)?;
    let target = database::open_reader(part, CACHE_BYTES).map_err(failed)?;
    let compared = compare(&source, &target)?;
    if copied != compared {
        return Err(not_moved(&format!("{copied:?} were written, and {compared:?} are there")));
    }
    Ok(copied)
}

fn copy(source: &SledReader, target: &Connection) -> Result<RowCounts, StorageError> {
    let mut counts = RowCounts::default();
    let written = |done: rusqlite::Result<()>| done.map_err(|error| not_moved(&database::disk_error(&error)));
    written(target.execute_batch("BEGIN"))?;
    for owner in source.owners() {
        let (owner, version) = owner?;
        written(tables::insert_owner(target, owner, version).map(drop))?;
        counts.owners += 1;
    }
    let mut insert =
        tables::insert_record(target).map_err(|error| not_moved(&database::disk_error(&error)))?;
    for record in source.records() {
        let record = record?;
        let put = id_of(target, record.owner).and_then(|id| {
            tables::put_record(&mut insert, record.owner, id, record.space, record.number, &record.bytes)
        });
        written(put)?;
        counts.records += 1;
        if counts.records.is_multiple_of(LOG_EVERY) {
            tracing::info!(records = counts.records, "memory moves from sled to SQLite");
        }
    }
    drop(insert);
    for job in source.jobs() {
        let job = job?;
        let put = id_of(target, job.owner).and_then(|id| {
            tables::put_job(target, id, tables::ordered(job.job), tables::ordered(job.due_ms))
        });
        written(put)?;
        counts.jobs += 1;
    }
    for nonce in source.nonces() {
        let (nonce, until_ms) = nonce?;
        let row = (nonce.as_slice(), tables::ordered(until_ms));
        written(target.execute("INSERT INTO nonce (nonce, until_ms) VALUES (?1, ?2)", row).map(drop))?;
        counts.nonces += 1;
    }
    written(target.execute_batch("COMMIT"))?;
    Ok(counts)
}

/// The number of an owner's row. sled may have lost the row of an owner with records: such an owner gets
/// version 0, which the vault refuses as a loss.
fn id_of(target: &Connection, owner: Pseudonym) -> rusqlite::Result<i64> {
    let mut select = target.prepare_cached("SELECT id FROM owner WHERE pseudonym = ?1")?;
    match select.query_row([owner.0], |row| row.get(0)).optional()? {
        Some(id) => Ok(id),
        None => tables::insert_owner(target, owner, 0),
    }
}

/// Compares both databases row by row, and returns the numbers of equal rows.
fn compare(source: &SledReader, target: &Connection) -> Result<RowCounts, StorageError> {
    let owners = "SELECT pseudonym, version FROM owner WHERE version <> 0 ORDER BY pseudonym";
    let owners = same(target, owners, source.owners(), |row, (owner, version)| {
        Ok(row.get::<_, [u8; 16]>(0)? == owner.0 && row.get::<_, i64>(1)? == version.cast_signed())
    })?;
    let records = "SELECT pseudonym, space, number, bytes, hash FROM record JOIN owner ON id = owner \
                   ORDER BY pseudonym, space, number";
    let records = same(target, records, source.records(), |row, record| {
        let SledRecord { owner, space, number, bytes } = record;
        Ok(row.get::<_, [u8; 16]>(0)? == owner.0
            && (row.get::<_, i64>(1)?, row.get::<_, i64>(2)?) == (*space, *number)
            && row.get_ref(3)?.as_blob().is_ok_and(|found| found == bytes)
            && row.get::<_, i64>(4)? == tables::record_hash(*owner, *space, *number, bytes))
    })?;
    let jobs =
        "SELECT pseudonym, number, due_ms FROM job JOIN owner ON id = owner ORDER BY pseudonym, number";
    let jobs = same(target, jobs, source.jobs(), |row, job| {
        let (number, due) = (tables::ordered(job.job), tables::ordered(job.due_ms));
        let place = (row.get::<_, i64>(1)?, row.get::<_, i64>(2)?);
        Ok(row.get::<_, [u8; 16]>(0)? == job.owner.0 && place == (number, due))
    })?;
    let nonces = "SELECT nonce, until_ms FROM nonce ORDER BY nonce";
    let nonces = same(target, nonces, source.nonces(), |row, (nonce, until_ms)| {
        Ok(row.get::<_, [u8; 32]>(0)? == *nonce && row.get::<_, i64>(1)? == tables::ordered(*until_ms))
    })?;
    Ok(RowCounts { owners, records, jobs, nonces })
}

fn same<T>(
    target: &Connection,
    sql: &str,
    mut wanted: impl Iterator<Item = Result<T, StorageError>>,
    equal: impl Fn(&rusqlite::Row<'_>, &T) -> rusqlite::Result<bool>,
) -> Result<u64, StorageError> {
    let failed = |error: rusqlite::Error| not_moved(&database::disk_error(&error));
    let mut select = target.prepare(sql).map_err(failed)?;
    let mut found = select.query([]).map_err(failed)?;
    let mut count = 0;
    loop {
        match (found.next().map_err(failed)?, wanted.next().transpose()?) {
            (Some(row), Some(wanted)) if equal(row, &wanted).map_err(failed)? => count += 1,
            (None, None) => return Ok(count),
            _ => return Err(not_moved(&format!("row {count} of `{sql}` is not the same in the copy"))),
        }
    }
}

struct SledRecord {
    owner: Pseudonym,
    space: i64,
    number: i64,
    bytes: Vec<u8>,
}

/// Whether another holder has the lock of sled's folder. sled has no variant for it.
fn is_locked(error: &io::Error) -> bool {
    error.to_string().contains("could not acquire lock")
}

/// sled's database, for reading.
struct SledReader(sled::Db);

impl SledReader {
    fn open(folder: &Path) -> Result<Self, StorageError> {
        let until = Instant::now() + LOCK_WAIT;
        let db = loop {
            match sled::Config::new().path(folder).cache_capacity(CACHE_BYTES).open() {
                Ok(db) => break db,
                Err(sled::Error::Io(io)) if is_locked(&io) && Instant::now() < until => {
                    std::thread::sleep(LOCK_PAUSE);
                }
                Err(sled::Error::Io(io)) if is_locked(&io) => {
                    let message = format!("another process has {} open: end it", folder.display());
                    return Err(StorageError::Unavailable(message));
                }
                Err(sled::Error::Io(io)) => return Err(not_moved(&io)),
                Err(_) => return Err(unreadable("sled's log")),
            }
        };
        match db.get(keys::LAYOUT) {
            Ok(Some(version)) if version == keys::LAYOUT_VERSION => Ok(Self(db)),
            // The first start of an earlier version was cut off.
            Ok(None) if db.is_empty() => Ok(Self(db)),
            Ok(_) => Err(StorageError::Damaged(format!(
                "{} is the database of another program, or lost its beginning: put it back from a backup, or move it away",
                folder.display()
            ))),
            Err(_) => Err(unreadable("the layout")),
        }
    }

    fn table(&self, table: u8) -> impl Iterator<Item = Result<(sled::IVec, sled::IVec), StorageError>> {
        self.0.scan_prefix([table]).map(|row| row.map_err(|_| unreadable("a page")))
    }

    fn owners(&self) -> impl Iterator<Item = Result<(Pseudonym, u64), StorageError>> {
        self.table(keys::OWNERS).map(|row| {
            let (key, value) = row?;
            Ok((keys::owner_of(&key).ok_or_else(|| unreadable("an owner's key"))?, number(&value)?))
        })
    }

    fn records(&self) -> impl Iterator<Item = Result<SledRecord, StorageError>> {
        SledRecords(self.table(keys::RECORDS).peekable())
    }

    /// Jobs, those that a dead process had taken with the due time before.
    fn jobs(&self) -> impl Iterator<Item = Result<DueJob, StorageError>> {
        self.table(keys::JOBS).map(|row| {
            let (key, value) = row?;
            let (owner, job) = keys::job_of(&key).ok_or_else(|| unreadable("a job's key"))?;
            let job = DueJob { owner, job, due_ms: number(&value)? };
            match self.0.get(keys::due(job)).map_err(|_| unreadable("a job's time"))? {
                Some(before) if !before.is_empty() => Ok(DueJob { due_ms: number(&before)?, ..job }),
                _ => Ok(job),
            }
        })
    }

    fn nonces(&self) -> impl Iterator<Item = Result<([u8; 32], u64), StorageError>> {
        self.table(keys::NONCES).map(|row| {
            let (key, value) = row?;
            Ok((keys::nonce_of(&key).ok_or_else(|| unreadable("a nonce"))?, number(&value)?))
        })
    }
}

/// Joins the chunks of records.
struct SledRecords<I: Iterator>(Peekable<I>);

impl<I: Iterator<Item = Result<(sled::IVec, sled::IVec), StorageError>>> SledRecords<I> {
    fn read(
        &mut self,
        first: Result<(sled::IVec, sled::IVec), StorageError>,
    ) -> Result<SledRecord, StorageError> {
        let (key, value) = first?;
        let damaged = || unreadable("a record");
        let (owner, space, number, chunk) = keys::record_of(&key).ok_or_else(damaged)?;
        if chunk != 0 {
            return Err(damaged());
        }
        let mut bytes = value.to_vec();
        let of_same = |next: &I::Item| {
            let place = next.as_ref().ok().and_then(|(key, _)| keys::record_of(key));
            place.is_some_and(|place| (place.0, place.1, place.2) == (owner, space, number))
        };
        while let Some(next) = self.0.next_if(of_same) {
            bytes.extend_from_slice(&next?.1);
        }
        Ok(SledRecord { owner, space: space.into(), number: tables::ordered(number), bytes })
    }
}

impl<I: Iterator<Item = Result<(sled::IVec, sled::IVec), StorageError>>> Iterator for SledRecords<I> {
    type Item = Result<SledRecord, StorageError>;

    fn next(&mut self) -> Option<Self::Item> {
        let first = self.0.next()?;
        Some(self.read(first))
    }
}

fn number(bytes: &[u8]) -> Result<u64, StorageError> {
    bytes.try_into().map(u64::from_be_bytes).map_err(|_| unreadable("a number"))
}

fn unreadable(part: &str) -> StorageError {
    StorageError::Damaged(format!(
        "{part} of the sled database cannot be read, so memory cannot move to SQLite: put its folder back from a backup, \
         then start the relayer again"
    ))
}
