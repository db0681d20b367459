//! Checks a whole database without keys: SQLite's own check of the pages, then the hash of every record. It
//! changes nothing. All calls block.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use rusqlite::{Connection, ErrorCode, params};

use super::{database, tables::record_hash};
use crate::storage::{Pseudonym, StorageError, unordered};

/// Places of damage that a report names.
const MAX_DAMAGE: usize = 20;
/// SQLite's steps between two looks at the time.
const STEPS: i32 = 10_000;

/// The outcome of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Owners whose records were read.
    pub owners: u64,
    /// Intact records.
    pub records: u64,
    /// Damaged places, the first twenty of them, in words. Owners have the name of their key file.
    pub damage: Vec<String>,
    /// Whether the whole file was read, and not only as much as the time allowed.
    pub is_complete: bool,
}

impl CheckReport {
    /// Writes the outcome to the log.
    pub(super) fn log(&self) {
        for damage in &self.damage {
            tracing::error!(
                "memory is damaged: {damage}. Its other parts are served; `baton-relayer restore` puts back a backup"
            );
        }
        if self.damage.is_empty() && self.is_complete {
            tracing::info!(
                owners = self.owners,
                records = self.records,
                "memory is checked: every record is intact"
            );
        }
    }

    fn name(&mut self, damage: String) {
        if self.damage.len() < MAX_DAMAGE {
            self.damage.push(damage);
        }
    }
}

/// Checks a file until a time, or until it is stopped.
pub(super) fn check_file(
    path: &Path,
    until: Instant,
    stop: Arc<AtomicBool>,
) -> Result<CheckReport, StorageError> {
    let connection = database::open_reader(path).map_err(|error| database::disk_error(&error))?;
    database::check_layout(&connection)?;
    check_until(&connection, until, stop)
}

/// Checks an open database until a time, or until it is stopped.
pub(crate) fn check_until(
    connection: &Connection,
    until: Instant,
    stop: Arc<AtomicBool>,
) -> Result<CheckReport, StorageError> {
    let is_over = move || stop.load(Ordering::Relaxed) || Instant::now() >= until;
    let handler = connection.progress_handler(STEPS, Some(is_over));
    handler.map_err(|error| database::disk_error(&error))?;
    let mut report = CheckReport::default();
    match check(connection, &mut report) {
        Ok(()) => report.is_complete = true,
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => {}
        Err(error) if database::is_damage(&error) => report.name(format!("the list of owners ({error})")),
        Err(error) => return Err(database::disk_error(&error)),
    }
    connection.progress_handler(0, None::<fn() -> bool>).map_err(|error| database::disk_error(&error))?;
    Ok(report)
}

/// Fails with the interruption, and with damage that leaves nothing to continue with.
fn check(connection: &Connection, report: &mut CheckReport) -> rusqlite::Result<()> {
    check_pages(connection, report)?;
    let mut select = connection.prepare("SELECT id, pseudonym FROM owner ORDER BY id")?;
    let mut owners = select.query([])?;
    while let Some(row) = owners.next()? {
        let (id, owner) = (row.get(0)?, Pseudonym(row.get(1)?));
        report.owners += 1;
        match check_owner(connection, id, owner, report) {
            Err(error) if database::is_damage(&error) => {
                report.name(format!("records of owner {} ({error})", hex::encode(owner.0)));
            }
            checked => checked?,
        }
    }
    // A row outside the index, or of no owner, is in no owner's records.
    let all: i64 = connection.query_row("SELECT count(*) FROM record NOT INDEXED", [], |row| row.get(0))?;
    if report.damage.is_empty() && all.cast_unsigned() != report.records {
        report.name(format!("{} records belong to owners, and {all} are there", report.records));
    }
    Ok(())
}

fn check_pages(connection: &Connection, report: &mut CheckReport) -> rusqlite::Result<()> {
    // The table-valued form of the pragma takes its argument for the name of a table.
    let mut select = connection.prepare(&format!("PRAGMA quick_check({MAX_DAMAGE})"))?;
    let mut lines = select.query([])?;
    loop {
        let line = match lines.next() {
            Ok(None) => return Ok(()),
            Ok(Some(row)) => row.get::<_, String>(0)?,
            Err(error) if database::is_damage(&error) => {
                report.name(format!("the pages ({error})"));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if line != "ok" {
            line.lines().for_each(|line| report.name(line.to_owned()));
        }
    }
}

fn check_owner(
    connection: &Connection,
    id: i64,
    owner: Pseudonym,
    report: &mut CheckReport,
) -> rusqlite::Result<()> {
    let mut select = connection.prepare_cached(
        "SELECT space, number, bytes, hash FROM record WHERE owner = ?1 ORDER BY space, number",
    )?;
    let mut records = select.query(params![id])?;
    while let Some(row) = records.next()? {
        let (space, number): (i64, i64) = (row.get(0)?, row.get(1)?);
        let bytes = row.get_ref(2)?.as_blob()?;
        if row.get::<_, i64>(3)? == record_hash(owner, space, number, bytes) {
            report.records += 1;
        } else {
            let (owner, number) = (hex::encode(owner.0), unordered(number));
            report.name(format!("record {number} of space {space} of owner {owner}"));
        }
    }
    Ok(())
}
