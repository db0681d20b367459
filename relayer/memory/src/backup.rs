//! Backups of the embedded database with the owners' key files, in one file. All calls block.
//!
//! A backup is a database of memories without a log, and two tables more. One has the key files as they are,
//! sealed under the master key; the other has the mark of that key. A backup lacks the master key, and is
//! useless without it.
//!
//! A backup runs beside a relayer. For a moment it locks all key files, begins a transaction of the database,
//! and reads the key files. The vault writes keys before records, and destroys old keys after their last
//! record. So the key files of that moment open all records of that moment. The copy of the database then
//! takes its time, in that transaction.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use baton_keys::master::MasterKey;
use rusqlite::{
    Connection,
    backup::{Backup, StepResult},
    params,
};
use zeroize::Zeroizing;

use crate::{
    keyring::{KeyFolder, KeyringError},
    storage::{
        Pseudonym, StorageError,
        embedded::{self, EmbeddedConfig, beside, check, database, log_of},
    },
};

#[cfg(test)]
mod tests;

/// Pages between two reports of progress.
const STEP_PAGES: i32 = 1_024;
/// Time limit of a check: none that matters.
const CHECK_TIME: Duration = Duration::from_secs(24 * 3_600);
/// Longest time for which key files stay locked. A relayer waits ten seconds for its lock.
const MAX_LOCKED: Duration = Duration::from_secs(8);
/// Names that are tried for a replaced file.
const MAX_NAMES: u32 = 1_000;

const KEY_TABLES: &str = "
    CREATE TABLE master (mark BLOB NOT NULL) STRICT;
    CREATE TABLE key_file (pseudonym BLOB PRIMARY KEY, bytes BLOB NOT NULL) STRICT;
";

/// Why a backup was not made, or not put back.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The database failed, or another process has it open.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The key files failed.
    #[error(transparent)]
    Keys(#[from] KeyringError),
    /// The file system failed.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// There is a file of this name.
    #[error("{0} exists, and a backup replaces no file: name another, or remove it")]
    Exists(PathBuf),
    /// There is nothing to back up.
    #[error("there is no memory in {0}: `baton-relayer run` makes it")]
    NoMemory(PathBuf),
    /// The file is no backup of a relayer's memory.
    #[error("{0} is no backup of memory: name a file that `baton-relayer backup` made")]
    NotBackup(PathBuf),
    /// The backup belongs to another master key.
    #[error(
        "{0} was made under another master key: put that relayer's master.key into the data folder first"
    )]
    OtherMaster(PathBuf),
    /// A check found damage.
    #[error("{path} is damaged: {damage}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damaged places.
        damage: String,
    },
    /// The key files were locked too long.
    #[error("the key files cannot be read within 8 seconds: stop the relayer, and try again")]
    Slow,
}

/// The contents of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupReport {
    /// Owners with records.
    pub owners: u64,
    /// Their records.
    pub records: u64,
    /// Key files.
    pub key_files: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// The outcome of putting a backup back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreReport {
    /// The backup.
    pub backup: BackupReport,
    /// The database that was there before, under its new name.
    pub replaced: Option<PathBuf>,
    /// Whether the key files are those of the backup now.
    pub are_keys_restored: bool,
    /// The folder of key files that was there before, under its new name.
    pub replaced_keys: Option<PathBuf>,
}

/// A caller that is told pages done, and all pages.
pub type CopyProgress<'a> = &'a mut dyn FnMut(u64, u64);

impl From<rusqlite::Error> for BackupError {
    fn from(error: rusqlite::Error) -> Self {
        database::disk_error(&error).into()
    }
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> BackupError {
    move |source| BackupError::Io { path: path.to_owned(), source }
}

/// Writes a backup, also while a relayer runs, and checks it before it gets its name.
///
/// # Errors
/// [`BackupError`]; nothing is left under the name.
pub fn back_up(
    config: &EmbeddedConfig,
    keys: &Path,
    master: MasterKey,
    to: &Path,
    progress: CopyProgress<'_>,
) -> Result<BackupReport, BackupError> {
    if !config.file().exists() {
        return Err(BackupError::NoMemory(config.path.clone()));
    }
    if fs::symlink_metadata(to).is_ok() {
        return Err(BackupError::Exists(to.to_owned()));
    }
    let part = beside(to, ".part");
    if fs::symlink_metadata(&part).is_ok() {
        return Err(BackupError::Exists(part));
    }
    database::create_file(&part).map_err(io_error(&part))?;
    let written = write(config, keys, master, &part, progress).and_then(|report| {
        let named = give_name(&part, to).and_then(|()| database::sync_folder(to));
        named.map_err(io_error(to))?;
        Ok(report)
    });
    // After a hard link it is a second name.
    let _ = fs::remove_file(&part);
    written
}

/// A hard link never replaces a file. Some file systems have none.
fn give_name(part: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(part, to) {
        Err(_) if fs::symlink_metadata(to).is_ok() => Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => fs::rename(part, to),
        Ok(()) => Ok(()),
    }
}

/// The key files of one moment.
struct KeyFiles {
    mark: [u8; 32],
    files: Vec<(Pseudonym, Zeroizing<Vec<u8>>)>,
    /// Owners whose rows an erasure has yet to remove.
    erased: Vec<Pseudonym>,
}

fn write(
    config: &EmbeddedConfig,
    keys: &Path,
    master: MasterKey,
    part: &Path,
    progress: CopyProgress<'_>,
) -> Result<BackupReport, BackupError> {
    let source = database::open_reader(&config.file())?;
    database::check_layout(&source)?;
    let folder = KeyFolder::open(keys, master)?;
    let key_files = at_one_moment(&source, &folder)?;
    let mut target = database::open_empty(part)?;
    copy_pages(&source, &mut target, progress)?;
    // The copied header names a log, which only a new connection notices.
    target.close().map_err(|(_, error)| error)?;
    let target = database::open_empty(part)?;
    add_keys(&target, &key_files)?;
    target.close().map_err(|(_, error)| error)?;
    database::finish_copy(part).map_err(io_error(part))?;
    verify(part, &folder)
}

/// Begins the transaction of the copy, and reads the key files meanwhile.
fn at_one_moment(source: &Connection, folder: &KeyFolder) -> Result<KeyFiles, BackupError> {
    let locks = folder.lock_all()?;
    let begin = Instant::now();
    source.execute_batch("BEGIN; SELECT count(*) FROM sqlite_schema")?;
    let mut files = Vec::new();
    for owner in folder.owners()? {
        files.extend(folder.read_sealed(owner)?.map(|bytes| (owner, bytes)));
        if begin.elapsed() > MAX_LOCKED {
            return Err(BackupError::Slow);
        }
    }
    let erased = folder.erasures()?;
    drop(locks);
    Ok(KeyFiles { mark: folder.check_mark(), files, erased })
}

fn copy_pages(
    source: &Connection,
    target: &mut Connection,
    progress: CopyProgress<'_>,
) -> rusqlite::Result<()> {
    let copy = Backup::new(source, target)?;
    loop {
        let step = copy.step(STEP_PAGES)?;
        let at = copy.progress();
        let pages = |pages: i32| u64::try_from(pages).unwrap_or_default();
        progress(pages(at.pagecount - at.remaining), pages(at.pagecount));
        match step {
            StepResult::Done => return Ok(()),
            StepResult::More => {}
            // The caller's own transaction reads the source, and nobody else knows the target.
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn add_keys(target: &Connection, keys: &KeyFiles) -> rusqlite::Result<()> {
    let _: String = target.pragma_update_and_check(None, "journal_mode", "delete", |row| row.get(0))?;
    target.pragma_update(None, "secure_delete", true)?;
    target.execute_batch("BEGIN")?;
    target.execute_batch(KEY_TABLES)?;
    target.execute("INSERT INTO master (mark) VALUES (?1)", [keys.mark])?;
    for (owner, bytes) in &keys.files {
        let row = params![owner.0, bytes.as_slice()];
        target.execute("INSERT INTO key_file (pseudonym, bytes) VALUES (?1, ?2)", row)?;
    }
    for owner in &keys.erased {
        target.execute("DELETE FROM owner WHERE pseudonym = ?1", [owner.0])?;
    }
    target.execute_batch("COMMIT")
}

/// Checks all of a backup: its pages, the hash of every record, and that its key files open.
fn verify(path: &Path, folder: &KeyFolder) -> Result<BackupReport, BackupError> {
    if !database::has_header_of_copy(path) {
        return Err(BackupError::NotBackup(path.to_owned()));
    }
    let damaged = |damage| BackupError::Damaged { path: path.to_owned(), damage };
    let unreadable = |error: StorageError| match error {
        StorageError::Damaged(_) => damaged("its pages cannot be read".into()),
        error => error.into(),
    };
    let failed = |error: rusqlite::Error| unreadable(database::disk_error(&error));
    let backup = database::open_backup(path).map_err(failed)?;
    database::check_layout(&backup).map_err(unreadable)?;
    let has_keys = backup.table_exists(None, database::KEY_TABLE).map_err(failed)?;
    if !has_keys {
        return Err(BackupError::NotBackup(path.to_owned()));
    }
    let mark: [u8; 32] = backup.query_row("SELECT mark FROM master", [], |row| row.get(0)).map_err(failed)?;
    if mark != folder.check_mark() {
        return Err(BackupError::OtherMaster(path.to_owned()));
    }
    let report =
        check::check_until(&backup, Instant::now() + CHECK_TIME, Arc::default()).map_err(unreadable)?;
    if !report.damage.is_empty() || !report.is_complete {
        return Err(damaged(report.damage.join("; ")));
    }
    let mut key_files = 0;
    for_each_key(&backup, |owner, bytes| {
        key_files += 1;
        match folder.opens(owner, bytes) {
            true => Ok(()),
            false => Err(damaged(format!("key file {}", hex::encode(owner.0)))),
        }
    })?;
    let bytes = fs::metadata(path).map_err(io_error(path))?.len();
    Ok(BackupReport { owners: report.owners, records: report.records, key_files, bytes })
}

fn for_each_key(
    backup: &Connection,
    mut work: impl FnMut(Pseudonym, &[u8]) -> Result<(), BackupError>,
) -> Result<(), BackupError> {
    let mut select = backup.prepare("SELECT pseudonym, bytes FROM key_file")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let owner = Pseudonym(row.get(0)?);
        let bytes: Zeroizing<Vec<u8>> = Zeroizing::new(row.get(1)?);
        work(owner, &bytes)?;
    }
    Ok(())
}

/// Puts a backup back, while no relayer runs. The replaced database stays beside it under another name.
///
/// Key files that exist stay as they are, unless `with_keys`: they forget data that was deleted since the
/// backup. Without any key file, the backup's are written.
///
/// # Errors
/// [`BackupError`]. The call can be repeated after any error. After a crash in it, memory is as before, or
/// [`finish_restore`] makes it that of the backup.
pub fn restore(
    config: &EmbeddedConfig,
    keys: &Path,
    master: MasterKey,
    from: &Path,
    with_keys: bool,
    progress: CopyProgress<'_>,
) -> Result<RestoreReport, BackupError> {
    fs::metadata(from).map_err(io_error(from))?;
    baton_keys::files::create_private_folder(&config.path).map_err(io_error(&config.path))?;
    let _lock = embedded::lock(config)?;
    // Nothing is written before the backup has been checked under this master key.
    let folder = KeyFolder::unopened(keys, master);
    let backup = verify(from, &folder)?;
    let folder = folder.reopen()?;
    let are_keys_restored = with_keys || folder.owners()?.is_empty();
    let part = part_of(config);
    copy_back(from, &part, are_keys_restored, progress)?;
    // The one switch: the database carries its key files until they are in their folder.
    let replaced = replace(config, &part).map_err(io_error(&part))?;
    let replaced_keys = take_keys(config, folder, keys)?;
    Ok(RestoreReport { backup, replaced, are_keys_restored, replaced_keys })
}

/// Finishes a restore that was cut off after its switch, and removes the copy of one that was cut off before it. Blocking.
/// The relayer calls it before it opens the database.
///
/// # Errors
/// [`BackupError`].
pub fn finish_restore(config: &EmbeddedConfig, keys: &Path, master: MasterKey) -> Result<(), BackupError> {
    let (file, part) = (config.file(), part_of(config));
    if !part.exists() && !database::carries_keys(&file) {
        return Ok(());
    }
    let _lock = embedded::lock(config)?;
    if part.exists() {
        let ended = if file.exists() { fs::remove_file(&part) } else { replace(config, &part).map(drop) };
        ended.map_err(io_error(&part))?;
    }
    if database::carries_keys(&file) {
        take_keys(config, KeyFolder::open(keys, master)?, keys)?;
    }
    Ok(())
}

/// The complete copy of a backup, before it replaces the database.
fn part_of(config: &EmbeddedConfig) -> PathBuf {
    config.path.join("memory.sqlite.restored")
}

/// Copies the backup, with its key files if the database is to carry them.
fn copy_back(
    from: &Path,
    part: &Path,
    with_keys: bool,
    progress: CopyProgress<'_>,
) -> Result<(), BackupError> {
    let copying = part.with_extension("copying");
    for file in [part, &copying] {
        remove_if_there(file).map_err(io_error(file))?;
    }
    database::create_file(&copying).map_err(io_error(&copying))?;
    let source = database::open_backup(from)?;
    let mut target = database::open_empty(&copying)?;
    copy_pages(&source, &mut target, progress)?;
    if !with_keys {
        drop_keys(&target)?;
    }
    target.close().map_err(|(_, error)| error)?;
    database::finish_copy(&copying).map_err(io_error(&copying))?;
    fs::rename(&copying, part).and_then(|()| database::sync_folder(part)).map_err(io_error(part))
}

fn drop_keys(database: &Connection) -> rusqlite::Result<()> {
    database.pragma_update(None, "secure_delete", true)?;
    database.execute_batch("BEGIN; DROP TABLE key_file; DROP TABLE master; COMMIT")
}

/// Moves the key files that a restored database carries into their folder, if it carries some. The folder before goes aside;
/// returns its new name. After a crash in it, the call is repeated.
fn take_keys(
    config: &EmbeddedConfig,
    folder: KeyFolder,
    keys: &Path,
) -> Result<Option<PathBuf>, BackupError> {
    let file = config.file();
    if !database::carries_keys(&file) {
        return Ok(None);
    }
    let database = database::open_backup(&file)?;
    let has_keys = !folder.owners()?.is_empty();
    let restored = beside(keys, ".restored");
    let fresh = folder.begin_at(&restored)?;
    for_each_key(&database, |owner, bytes| Ok(fresh.write_sealed(owner, bytes)?))?;
    drop(database);
    let replaced = match has_keys {
        true => Some(archive(keys).map_err(io_error(keys))?),
        false => fs::remove_dir_all(keys).map(|()| None).map_err(io_error(keys))?,
    };
    fs::rename(&restored, keys).and_then(|()| database::sync_folder(keys)).map_err(io_error(keys))?;
    let database = database::open_empty(&file)?;
    drop_keys(&database)?;
    database.close().map_err(|(_, error)| error)?;
    database::finish_copy(&file).map_err(io_error(&file))?;
    Ok(replaced)
}

/// Replaces the database; returns the new name of the old one.
fn replace(config: &EmbeddedConfig, part: &Path) -> io::Result<Option<PathBuf>> {
    let file = config.file();
    let log = log_of(&file);
    let replaced = match file.exists() {
        true => Some(archive(&file)?),
        false => None,
    };
    if log.exists() {
        // The old database needs its log under its new name, and the new one must not get it.
        let last = replaced.clone().or_else(|| names_of(&file).take_while(|name| name.exists()).last());
        let aside = last.map(|replaced| log_of(&replaced)).filter(|aside| !aside.exists());
        let aside = aside.map_or_else(|| free_name(&log), Ok)?;
        fs::rename(&log, aside)?;
    }
    remove_if_there(&beside(&file, "-shm"))?;
    fs::rename(part, &file)?;
    database::sync_folder(&file)?;
    Ok(replaced)
}

/// The names for replaced files, in their order.
fn names_of(path: &Path) -> impl Iterator<Item = PathBuf> {
    (1..MAX_NAMES).map(|number| match number {
        1 => beside(path, ".replaced"),
        _ => beside(path, &format!(".replaced-{number}")),
    })
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn free_name(path: &Path) -> io::Result<PathBuf> {
    let free = names_of(path).find(|name| fs::symlink_metadata(name).is_err());
    free.ok_or_else(|| io::ErrorKind::AlreadyExists.into())
}

fn archive(path: &Path) -> io::Result<PathBuf> {
    let aside = free_name(path)?;
    fs::rename(path, &aside)?;
    Ok(aside)
}
