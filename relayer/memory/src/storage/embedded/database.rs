//! The database file: its settings, its layout, and the meaning of SQLite's errors. All calls block.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};

use crate::storage::StorageError;

/// Marks a file as a database of memories: "BTNM".
pub(crate) const APPLICATION_ID: i32 = 0x4254_4e4d;
/// The layout that this version reads and writes.
pub(super) const LAYOUT_VERSION: i32 = 1;
/// Time limit for a lock of another process, such as a backup that opens or closes the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Memory for pages of a connection, and of the one that writes.
const CACHE_KIB: i64 = 8 * 1024;
const WRITER_CACHE_KIB: i64 = 32 * 1024;
/// Prepared statements of a connection; each operation has a few.
const STATEMENTS: usize = 32;
/// Bytes to which the write-ahead log is cut once its contents are in the database.
const LOG_BYTES: i64 = 64 * 1024 * 1024;

/// Numbers and times are stored by [`ordered`](crate::storage::ordered). A record's hash covers its owner,
/// place and bytes, so that a check without keys names a damaged one.
const LAYOUT: &str = "
    CREATE TABLE owner (
        id INTEGER PRIMARY KEY,
        pseudonym BLOB NOT NULL UNIQUE,
        version INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE record (
        owner INTEGER NOT NULL REFERENCES owner (id) ON DELETE CASCADE,
        space INTEGER NOT NULL,
        number INTEGER NOT NULL,
        bytes BLOB NOT NULL,
        hash INTEGER NOT NULL,
        UNIQUE (owner, space, number)
    ) STRICT;
    CREATE TABLE job (
        owner INTEGER NOT NULL REFERENCES owner (id) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        due_ms INTEGER NOT NULL,
        taken_from_ms INTEGER,
        PRIMARY KEY (owner, number)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX job_by_due ON job (due_ms);
    CREATE TABLE nonce (
        nonce BLOB PRIMARY KEY,
        until_ms INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX nonce_by_until ON nonce (until_ms);
";

/// Creates an empty private file for a database, unless the file exists, and flushes its folder.
pub(crate) fn create_file(path: &Path) -> io::Result<()> {
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match created {
        Ok(_) => sync_folder(path),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Flushes the folder of a file, so that the file's name is on the disk.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

/// Opens an existing file without looking at its contents.
fn connect(path: &Path, access: OpenFlags) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    // SQLite then checks each page that it reads.
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "temp_store", "memory")?;
    Ok(connection)
}

/// The writer's connection to a file that exists. An empty file gets the layout.
pub(super) fn open_writer(path: &Path) -> Result<Connection, StorageError> {
    let opened = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE);
    let connection = opened.map_err(|error| disk_error(&error))?;
    let is_empty = layout_of(&connection).map_err(|error| disk_error(&error))? == (0, 0, 0);
    if !is_empty {
        check_layout(&connection)?;
    }
    prepare_writer(&connection, is_empty).map_err(|error| disk_error(&error))?;
    Ok(connection)
}

fn prepare_writer(connection: &Connection, is_empty: bool) -> rusqlite::Result<()> {
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    if mode != "wal" {
        return Err(rusqlite::Error::SqliteFailure(
            ffi::Error::new(ffi::SQLITE_CANTOPEN),
            Some("this file system has no write-ahead log".to_owned()),
        ));
    }
    connection.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
    connection.pragma_update(None, "synchronous", "full")?;
    // Matters on macOS, whose ordinary flush leaves bytes in the disk's cache.
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "secure_delete", true)?;
    connection.pragma_update(None, "journal_size_limit", LOG_BYTES)?;
    if is_empty { create_layout(connection) } else { Ok(()) }
}

fn create_layout(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(&format!(
        "BEGIN IMMEDIATE; {LAYOUT} PRAGMA application_id = {APPLICATION_ID}; \
         PRAGMA user_version = {LAYOUT_VERSION}; COMMIT"
    ))
}

/// Flushes a closed copy.
pub(crate) fn finish_copy(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// A connection that only reads.
pub(crate) fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    // A reader of a write-ahead log writes the log's index.
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

/// A connection to a backup, which has no log and may lie on a disk that cannot be written.
pub(crate) fn open_backup(path: &Path) -> rusqlite::Result<Connection> {
    connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
}

/// The table with the key files of a backup.
pub(crate) const KEY_TABLE: &str = "key_file";
/// Places in the header of a SQLite file: the version for readers, 2 with a write-ahead log, and the
/// application's id.
const READ_VERSION_AT: usize = 19;
const APPLICATION_ID_AT: usize = 68;

/// Whether a file begins like a backup: a database of memories that has no write-ahead log.
pub(crate) fn has_header_of_copy(path: &Path) -> bool {
    let mut header = [0; APPLICATION_ID_AT + 4];
    let read = File::open(path).and_then(|mut file| io::Read::read_exact(&mut file, &mut header));
    let is_of_memory = header.ends_with(&APPLICATION_ID.to_be_bytes());
    read.is_ok() && is_of_memory && header[READ_VERSION_AT] == 1
}

/// Whether a restored database still carries the key files of its backup.
pub(crate) fn carries_keys(path: &Path) -> bool {
    has_header_of_copy(path)
        && open_backup(path).is_ok_and(|copy| copy.table_exists(None, KEY_TABLE).unwrap_or(false))
}

/// A connection to an empty file that becomes the copy of a database.
pub(crate) fn open_empty(path: &Path) -> rusqlite::Result<Connection> {
    connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)
}

fn layout_of(connection: &Connection) -> rusqlite::Result<(i32, i32, i64)> {
    let one = "SELECT (SELECT application_id FROM pragma_application_id), \
               (SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)";
    connection.query_row(one, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
}

/// Refuses another program's database, and one of a newer version.
pub(crate) fn check_layout(connection: &Connection) -> Result<(), StorageError> {
    match layout_of(connection).map_err(|error| disk_error(&error))? {
        (APPLICATION_ID, LAYOUT_VERSION, _) => Ok(()),
        (APPLICATION_ID, found, _) => Err(StorageError::OtherVersion { found, supported: LAYOUT_VERSION }),
        _ => Err(StorageError::Damaged(
            "the file is the database of another program: configure an empty folder, or put it back from a backup".into(),
        )),
    }
}

/// Whether SQLite cannot read part of the file, while the rest may be intact.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    match error.sqlite_error_code() {
        // No statement violates a constraint of an intact database.
        Some(code) => matches!(
            code,
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::ConstraintViolation
        ),
        // A value of another type or length, or a row that must exist.
        None => true,
    }
}

/// The error for a caller, without a path: the relayer shows the text to others.
pub(crate) fn disk_error(error: &rusqlite::Error) -> StorageError {
    match error.sqlite_error_code() {
        _ if is_damage(error) => damaged("the database"),
        Some(ErrorCode::DiskFull) => StorageError::Unavailable(FULL.into()),
        Some(ErrorCode::SystemIoFailure) if writes(error) => StorageError::Unavailable(format!(
            "the disk cannot be written ({error}): it is full, or failed. Make space, or check it; memory can be written \
             again by itself a moment later"
        )),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StorageError::Unavailable(
            "another program locks the database for too long: end it; memory is there again by itself".into(),
        ),
        _ => StorageError::Unavailable(format!("the disk failed ({error}): check it")),
    }
}

const FULL: &str = "the disk is full: make space, and memory can be written again by itself a moment later";

/// Whether a write failed, and not a read. SQLite tells a full disk by the one errno `ENOSPC`; a quota and a
/// limit on file sizes have others.
fn writes(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    matches!(
        code,
        Some(
            ffi::SQLITE_IOERR_WRITE
                | ffi::SQLITE_IOERR_TRUNCATE
                | ffi::SQLITE_IOERR_FSYNC
                | ffi::SQLITE_IOERR_SHMSIZE
                | ffi::SQLITE_IOERR_DIR_FSYNC
        )
    )
}

/// The error for a part of the database that cannot be read.
pub(super) fn damaged(part: &str) -> StorageError {
    StorageError::Damaged(format!(
        "{part} cannot be read; put back the latest backup with `baton-relayer restore`, or the whole folder"
    ))
}
