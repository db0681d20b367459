//! A database of small entries in two SQLite files, for the embedded store's index and a node's receipts.
//!
//! A change is one transaction of both files, so damage of one costs nothing. SQLite syncs no log at a commit:
//! [`EntryDatabase::sync`] syncs the log of the first file, so that concurrent writers can share it. Each entry has a
//! checksum. A caller reads the files ([`FoundEntries`]), writes damaged ones again, and then opens both. All calls
//! block, and one process writes at a time; the caller has a lock for it.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use rusqlite::{
    Connection, ErrorCode, OpenFlags, Row,
    config::DbConfig,
    params,
    types::{ToSqlOutput, ValueRef},
};

/// The names of both files in SQL.
const SCHEMAS: [&str; 2] = ["main", "copy"];
/// The end of the name of a file's log, after the file's own.
const LOG: &str = "-wal";
/// `number` rises with each entry written.
const TABLE: &str = "
    CREATE TABLE entry (
        kind INTEGER NOT NULL,
        id BLOB NOT NULL,
        number INTEGER NOT NULL,
        value BLOB NOT NULL,
        sum INTEGER NOT NULL,
        UNIQUE (kind, id)
    ) STRICT;
";

/// A kind of entry, and an id of that kind.
pub type EntryKey = (u32, [u8; 32]);

/// The files of a database in a folder.
#[derive(Debug, Clone, Copy)]
pub struct EntryFiles {
    /// Their names.
    pub names: [&'static str; 2],
    /// The layout of the values.
    pub layout: u32,
    /// The kind of the entries that only the first file has, since the caller has them elsewhere too.
    pub kind_of_first: Option<u32>,
    /// Whether other processes read too. If not, the database can be opened on a full disk.
    pub is_shared: bool,
}

/// An entry, as read. Its checksum was right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: EntryKey,
    /// Its number, which rises with each entry written.
    pub number: u64,
    /// Its value.
    pub value: Vec<u8>,
}

impl Entry {
    /// `None` if the row is damaged.
    fn read(row: &Row<'_>) -> Option<Self> {
        let key = (row.get(0).ok()?, row.get(1).ok()?);
        let (number, value) = (row.get::<_, i64>(2).ok()?.cast_unsigned(), row.get::<_, Vec<u8>>(3).ok()?);
        let entry = Self { key, number, value };
        (row.get::<_, i64>(4).ok()? == sum(key, number, &entry.value)).then_some(entry)
    }
}

fn sum((kind, id): EntryKey, number: u64, value: &[u8]) -> i64 {
    let mut hasher = blake3::Hasher::new_derive_key("baton entry");
    hasher.update(&kind.to_le_bytes()).update(&id).update(&number.to_le_bytes()).update(value);
    i64::from_le_bytes(*hasher.finalize().as_bytes().first_chunk().expect("a hash is longer"))
}

/// A change of the database.
#[derive(Debug)]
pub enum Change {
    /// Replaces an entry with the same key. The number is higher than all before.
    Put(Entry),
    /// Removes an entry.
    Remove(EntryKey),
    /// Removes all entries of a kind.
    RemoveKind(u32),
}

/// A kind of damage of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileDamage {
    /// It cannot be read, and the other file can.
    Unreadable,
    /// Entries are damaged or missing, and the other file has them.
    Restorable,
    /// Entries are damaged, and the other file may lack them.
    Lost,
}

/// Whether an error of SQLite means damage, and not a file that cannot be used.
fn is_damage(error: &rusqlite::Error) -> bool {
    use ErrorCode as Code;
    !matches!(
        error.sqlite_error_code(),
        Some(
            Code::CannotOpen | Code::DiskFull | Code::OutOfMemory | Code::DatabaseBusy | Code::DatabaseLocked
        )
    )
}

/// The error for callers, which tells a full disk from others.
fn io_error(error: rusqlite::Error) -> io::Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => io::Error::new(io::ErrorKind::StorageFull, error),
        _ => io::Error::other(error),
    }
}

fn connect(path: &Path, is_shared: bool) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    let mode = if is_shared { "NORMAL" } else { "EXCLUSIVE" };
    connection.execute_batch(&format!(
        "PRAGMA locking_mode = {mode}; PRAGMA cell_size_check = ON; PRAGMA trusted_schema = OFF; \
         PRAGMA temp_store = MEMORY"
    ))?;
    Ok(connection)
}

/// The path of a file's log.
fn log_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}{LOG}"))
}

/// A path in a folder that nothing has, under a name or a variant of it.
///
/// # Errors
/// The file system's.
pub fn free_path(folder: &Path, name: &str) -> io::Result<PathBuf> {
    let mut path = folder.join(name);
    // Each earlier file took one name: the first free name ends the search.
    for count in 1.. {
        if !path.try_exists()? {
            break;
        }
        path = folder.join(format!("{name}.{count}"));
    }
    Ok(path)
}

/// A file as found.
#[derive(Debug, Default)]
struct FoundFile {
    /// Present if the file can be read as a database of this layout.
    connection: Option<Connection>,
    exists: bool,
    /// The first damage.
    damage: Option<String>,
    other_layout: Option<u32>,
    /// The highest number of an entry that both files have, and the count of these.
    newest: (u64, u64),
}

impl FoundFile {
    fn open(path: &Path, files: EntryFiles) -> io::Result<Self> {
        let mut found = Self { exists: path.try_exists()?, ..Self::default() };
        if found.exists
            && let Err(error) = found.read(path, files)
        {
            if !is_damage(&error) {
                return Err(io_error(error));
            }
            found.damage = Some(error.to_string());
        }
        Ok(found)
    }

    fn read(&mut self, path: &Path, files: EntryFiles) -> rusqlite::Result<()> {
        let connection = connect(path, files.is_shared)?;
        // The log stays as it is until both files are compared.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        let layout = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        if layout != files.layout {
            // An emptied file has none.
            self.other_layout = Some(layout).filter(|layout| *layout > 0);
            self.damage = Some(format!("layout {layout}"));
            return Ok(());
        }
        connection.prepare("SELECT 1 FROM entry")?;
        let checked = connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get::<_, String>(0));
        let checked = checked.unwrap_or_else(|error| error.to_string());
        self.damage = Some(checked).filter(|checked| checked != "ok");
        if self.damage.is_none() && connection.is_readonly("main")? {
            self.damage = Some("it claims to be of a newer SQLite".to_owned());
        }
        self.connection = Some(connection);
        let (mut newest, mut count) = (0, 0);
        let bad = self.entries(&mut |entry| {
            if Some(entry.key.0) != files.kind_of_first {
                (newest, count) = (entry.number.max(newest), count + 1);
            }
            Ok(())
        })?;
        (self.newest, self.damage) = ((newest, count), self.damage.take().or(bad));
        Ok(())
    }

    /// Visits every intact entry: from the first one, and from the last one too if a page between cannot be read.
    /// Returns the first damage.
    fn entries(
        &self,
        visit: &mut dyn FnMut(Entry) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<Option<String>> {
        let Some(connection) = &self.connection else { return Ok(None) };
        let mut damage = None;
        for order in ["ASC", "DESC"] {
            let select = "SELECT kind, id, number, value, sum, rowid FROM entry NOT INDEXED ORDER BY rowid";
            let mut select = connection.prepare(&format!("{select} {order}"))?;
            let mut rows = select.query([])?;
            loop {
                let row = match rows.next() {
                    Ok(None) => return Ok(damage),
                    Ok(Some(row)) => row,
                    Err(error) if is_damage(&error) => {
                        damage.get_or_insert(error.to_string());
                        break;
                    }
                    Err(error) => return Err(error),
                };
                match Entry::read(row) {
                    Some(entry) => visit(entry)?,
                    None => drop(damage.get_or_insert(format!("entry {}", row.get::<_, i64>(5)?))),
                }
            }
        }
        Ok(damage)
    }
}

/// Both files as found, and closed again when this is dropped.
#[derive(Debug)]
pub struct FoundEntries {
    folder: PathBuf,
    files: EntryFiles,
    found: [FoundFile; 2],
    /// Whether the second file's entries count too, since the first is damaged or older.
    is_merged: bool,
    /// Then, the numbers of the entries that count, except those of the first file alone.
    numbers: HashMap<EntryKey, u64>,
}

impl FoundEntries {
    /// Reads every byte of both files, and changes nothing.
    ///
    /// # Errors
    /// When a file can be used neither as intact nor as damaged.
    pub fn read(folder: &Path, files: EntryFiles) -> io::Result<Self> {
        let [first, second] = files.names.map(|name| FoundFile::open(&folder.join(name), files));
        let found = [first?, second?];
        let [first, second] = &found;
        let is_merged =
            first.damage.is_some() || first.connection.is_none() || first.newest.0 < second.newest.0;
        let mut numbers = HashMap::new();
        if is_merged {
            for file in &found {
                let noted = file.entries(&mut |entry| {
                    if Some(entry.key.0) != files.kind_of_first {
                        let newest = numbers.entry(entry.key).or_insert(entry.number);
                        *newest = entry.number.max(*newest);
                    }
                    Ok(())
                });
                noted.map_err(io_error)?;
            }
        }
        Ok(Self { folder: folder.to_owned(), files, found, is_merged, numbers })
    }

    /// Whether no file can be read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.found.iter().all(|file| file.connection.is_none())
    }

    /// Whether files exist, but none can be read.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_empty() && self.found.iter().any(|file| file.exists)
    }

    /// Another layout, if no file of this one can be read.
    #[must_use]
    pub fn other_layout(&self) -> Option<u32> {
        self.found.iter().find_map(|file| file.other_layout).filter(|_| self.is_empty())
    }

    /// The damage of each file, if the other can be read: its name, with the damaged part.
    #[must_use]
    pub fn damages(&self) -> Vec<(FileDamage, String)> {
        let [first, second] = &self.found;
        let mut damages = Vec::new();
        for ((file, other), name) in [(first, second), (second, first)].into_iter().zip(self.files.names) {
            let is_older = file.newest.0 < other.newest.0;
            let damage = match &file.damage {
                _ if other.connection.is_none() && file.connection.is_none() => continue,
                _ if file.connection.is_none() => FileDamage::Unreadable,
                Some(_)
                    if other.damage.is_none()
                        && other.connection.is_some()
                        && other.newest >= file.newest =>
                {
                    FileDamage::Restorable
                }
                Some(_) => FileDamage::Lost,
                None if is_older && std::ptr::eq(file, first) => FileDamage::Restorable,
                None if is_older => {
                    // Expected after a power loss, or a kill between the commits of both.
                    tracing::info!(name, "entries that this copy lacks are written again");
                    continue;
                }
                None => continue,
            };
            let part = file.damage.as_ref().map(|part| format!(" ({})", part.trim())).unwrap_or_default();
            damages.push((damage, format!("{name}{part}")));
        }
        damages
    }

    /// Visits every entry that counts, some of them twice.
    ///
    /// # Errors
    /// When a file cannot be read any more.
    pub fn for_each(&self, mut visit: impl FnMut(Entry)) -> io::Result<()> {
        let visited = self.try_for_each(&mut |entry| {
            visit(entry);
            Ok(())
        });
        visited.map_err(io_error)
    }

    fn try_for_each(&self, visit: &mut dyn FnMut(Entry) -> rusqlite::Result<()>) -> rusqlite::Result<()> {
        let count = if self.is_merged { 2 } else { 1 };
        self.found.iter().take(count).try_for_each(|file| {
            let visited = file.entries(&mut |entry| match self.numbers.get(&entry.key) {
                Some(newest) if *newest > entry.number => Ok(()),
                _ => visit(entry),
            });
            visited.map(drop)
        })
    }

    /// The value of an entry of the first file.
    #[must_use]
    pub fn value(&self, key: EntryKey) -> Option<Vec<u8>> {
        let [first, _] = &self.found;
        select(first.connection.as_ref()?, "main", key).ok()?
    }

    /// Writes each file again that is missing, damaged or older. An error leaves it as it is.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn renew(&self) -> io::Result<()> {
        let [first, second] = &self.found;
        let is_second_stale =
            second.damage.is_some() || second.connection.is_none() || first.newest != second.newest;
        let is_stale = [self.is_merged, is_second_stale];
        for ((name, is_stale), skipped) in
            self.files.names.into_iter().zip(is_stale).zip([None, self.files.kind_of_first])
        {
            if is_stale {
                self.write_anew(name, skipped)?;
            }
        }
        Ok(())
    }

    /// Writes a file beside the old one, whose name it then takes.
    fn write_anew(&self, name: &str, skipped_kind: Option<u32>) -> io::Result<()> {
        let new = self.folder.join(format!("{name}.new"));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(&new)?;
        let written =
            self.fill(&new, skipped_kind).map_err(io_error).and_then(|()| File::open(&new)?.sync_all());
        if written.is_err() {
            // Nothing in it is needed, and the next attempt starts it again.
            let _ = fs::remove_file(&new);
        }
        written?;
        // A log of the old file must never meet the new one.
        match fs::remove_file(log_of(&self.folder, name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::rename(new, self.folder.join(name))?;
        // Windows cannot sync folders.
        if cfg!(unix) { File::open(&self.folder)?.sync_all() } else { Ok(()) }
    }

    fn fill(&self, path: &Path, skipped_kind: Option<u32>) -> rusqlite::Result<()> {
        let connection = connect(path, false)?;
        let layout = self.files.layout;
        connection.execute_batch(&format!(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA user_version = {layout}; BEGIN; {TABLE}"
        ))?;
        self.try_for_each(&mut |entry| {
            if Some(entry.key.0) == skipped_kind { Ok(()) } else { insert(&connection, "main", &entry) }
        })?;
        connection.execute_batch("COMMIT")
    }

    /// Moves both files and their logs to a folder, under free names that begin so.
    ///
    /// # Errors
    /// The file system's.
    pub fn quarantine(&self, folder: &Path, prefix: &str) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        for name in self.files.names.into_iter().flat_map(|name| ["", LOG].map(|end| format!("{name}{end}")))
        {
            let path = self.folder.join(&name);
            if path.try_exists()? {
                fs::rename(path, free_path(folder, &format!("{prefix}{name}"))?)?;
            }
        }
        Ok(())
    }
}

/// An entry's value, or `None` when there is no intact one.
fn select(connection: &Connection, schema: &str, key: EntryKey) -> rusqlite::Result<Option<Vec<u8>>> {
    let sql = format!("SELECT kind, id, number, value, sum FROM {schema}.entry WHERE kind = ?1 AND id = ?2");
    let mut select = connection.prepare_cached(&sql)?;
    let mut rows = select.query(params![key.0, key.1])?;
    Ok(rows.next()?.and_then(Entry::read).map(|entry| entry.value))
}

fn insert(connection: &Connection, schema: &str, entry: &Entry) -> rusqlite::Result<()> {
    let sql = format!(
        "INSERT INTO {schema}.entry (kind, id, number, value, sum) VALUES (?1, ?2, ?3, ?4, ?5) \
         ON CONFLICT (kind, id) DO UPDATE SET number = ?3, value = ?4, sum = ?5"
    );
    let Entry { key, number, value } = entry;
    let row = params![key.0, key.1, number.cast_signed(), value, sum(*key, *number, value)];
    connection.prepare_cached(&sql)?.execute(row).map(drop)
}

/// Both files, open for reading and writing.
#[derive(Debug)]
pub struct EntryDatabase {
    connection: Connection,
    files: EntryFiles,
    /// A sync of the log failed: the log's content is uncertain, and the database takes it before any other write.
    is_broken: bool,
}

impl EntryDatabase {
    /// Opens both files, which exist.
    ///
    /// # Errors
    /// When they cannot be used.
    pub fn open(folder: &Path, files: EntryFiles) -> io::Result<Self> {
        let open = || {
            let [first, second] = files.names.map(|name| folder.join(name));
            let connection = connect(&first, files.is_shared)?;
            // A path need not be text.
            let second = ValueRef::Text(second.as_os_str().as_encoded_bytes());
            connection.execute("ATTACH ?1 AS copy", [ToSqlOutput::Borrowed(second)])?;
            for schema in SCHEMAS {
                connection.execute_batch(&format!(
                    "PRAGMA {schema}.journal_mode = WAL; PRAGMA {schema}.synchronous = NORMAL; \
                     SELECT 1 FROM {schema}.entry LIMIT 1"
                ))?;
            }
            Ok(Self { connection, files, is_broken: false })
        };
        open().map_err(io_error)
    }

    /// The names in SQL of the files that have entries of a kind.
    fn schemas(&self, kind: u32) -> &'static [&'static str] {
        if self.files.kind_of_first == Some(kind) { &["main"] } else { &SCHEMAS }
    }

    /// The value of an entry, or `None` when neither file has it whole.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn read(&self, key: EntryKey) -> io::Result<Option<Vec<u8>>> {
        for schema in self.schemas(key.0) {
            match select(&self.connection, schema, key) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(error) if is_damage(&error) => tracing::warn!(%error, "a page of a database is damaged"),
                Err(error) => return Err(io_error(error)),
            }
        }
        Ok(None)
    }

    /// Makes all changes, or none. They are on disk after the next sync.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn write(&self, changes: &[Change]) -> io::Result<()> {
        self.try_write(changes).map_err(io_error)
    }

    fn try_write(&self, changes: &[Change]) -> rusqlite::Result<()> {
        let transaction = self.connection.unchecked_transaction()?;
        for change in changes {
            let (Change::Put(Entry { key: (kind, _), .. })
            | Change::Remove((kind, _))
            | Change::RemoveKind(kind)) = change;
            for schema in self.schemas(*kind) {
                let remove = format!("DELETE FROM {schema}.entry WHERE kind = ?1");
                match change {
                    Change::Put(entry) => insert(&transaction, schema, entry)?,
                    Change::Remove((kind, id)) => {
                        let remove = format!("{remove} AND id = ?2");
                        transaction.prepare_cached(&remove)?.execute(params![kind, id])?;
                    }
                    Change::RemoveKind(kind) => {
                        transaction.prepare_cached(&remove)?.execute([kind])?;
                    }
                }
            }
        }
        transaction.commit()
    }

    /// Syncs the log of a database in a folder. It may be open, and written to. After a failure, the caller calls
    /// [`Self::note_failed_sync`].
    ///
    /// # Errors
    /// The file system's.
    pub fn sync(folder: &Path, files: EntryFiles) -> io::Result<()> {
        let [first, _] = files.names;
        OpenOptions::new().write(true).open(log_of(folder, first))?.sync_data()
    }

    /// Notes a failed sync.
    pub fn note_failed_sync(&mut self) {
        self.is_broken = true;
    }

    /// After a failed sync, moves the log's content into the database, which is synced. Called before each write.
    ///
    /// # Errors
    /// When the disk still fails.
    pub fn settle(&mut self) -> io::Result<()> {
        if self.is_broken {
            let busy = |row: &Row<'_>| row.get::<_, i64>(0);
            let settled = self.connection.query_row("PRAGMA main.wal_checkpoint(TRUNCATE)", [], busy);
            if settled.map_err(io_error)? != 0 {
                return Err(io::Error::other(
                    "the log cannot be moved into its database: another program reads it",
                ));
            }
            self.is_broken = false;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: EntryFiles =
        EntryFiles { names: ["a", "b"], layout: 1, kind_of_first: Some(0), is_shared: true };
    const COUNT: u64 = 200;

    fn entry(number: u64) -> Entry {
        let id = *blake3::hash(&number.to_le_bytes()).as_bytes();
        let kind = u32::try_from(number % 4).unwrap();
        Entry { key: (kind, id), number, value: format!("value {number:04} ").repeat(20).into_bytes() }
    }

    fn open(folder: &Path) -> (Vec<FileDamage>, EntryDatabase) {
        let found = FoundEntries::read(folder, FILES).unwrap();
        let damages = found.damages().into_iter().map(|(damage, _)| damage).collect();
        found.renew().unwrap();
        drop(found);
        (damages, EntryDatabase::open(folder, FILES).unwrap())
    }

    /// Changes a bit wherever a text is: SQLite leaves old bytes in free parts of pages.
    fn flip(bytes: &mut [u8], text: &[u8]) {
        let places = 0..=bytes.len() - text.len();
        let places: Vec<_> = places.filter(|place| bytes[*place..].starts_with(text)).collect();
        places.into_iter().for_each(|place| bytes[place] ^= 1);
    }

    /// The numbers of all entries.
    fn numbers(folder: &Path) -> Vec<u64> {
        let mut numbers = Vec::new();
        let read = FoundEntries::read(folder, FILES).unwrap().for_each(|found| {
            assert_eq!(found, entry(found.number));
            numbers.push(found.number);
        });
        read.unwrap();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    fn written(folder: &Path) {
        let (damages, database) = open(folder);
        assert_eq!(damages, []);
        for number in 0..COUNT {
            database.write(&[Change::Put(entry(number))]).unwrap();
            EntryDatabase::sync(folder, FILES).unwrap();
        }
    }

    #[test]
    fn entries_are_read_as_written_also_beside_a_writer() {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path());
        let (_, mut database) = open(folder.path());
        assert_eq!(numbers(folder.path()).len() as u64, COUNT);
        assert_eq!(database.read(entry(7).key).unwrap(), Some(entry(7).value));
        database.write(&[Change::Remove(entry(7).key), Change::RemoveKind(1)]).unwrap();
        assert_eq!(database.read(entry(7).key).unwrap(), None);
        database.note_failed_sync();
        database.settle().unwrap();
        drop(database);
        assert_eq!(numbers(folder.path()).len() as u64, COUNT * 3 / 4 - 1);
    }

    #[test]
    fn damage_of_one_file_is_named_and_costs_nothing_that_both_have() {
        use FileDamage as Damage;
        type Harm = fn(&mut Vec<u8>);
        let cases: [(&str, Harm, Damage); 7] = [
            (
                "an entry",
                |bytes| {
                    flip(bytes, b"value 0003");
                },
                Damage::Restorable,
            ),
            ("the kind of a page", |bytes| bytes[2 * 4096] ^= 1, Damage::Restorable),
            ("a page", |bytes| bytes[3 * 4096..4 * 4096].fill(0), Damage::Restorable),
            ("half of it", |bytes| bytes.truncate(6 * 4096), Damage::Unreadable),
            ("the header", |bytes| bytes[3] ^= 1, Damage::Unreadable),
            ("the layout", |bytes| bytes[63] ^= 2, Damage::Unreadable),
            ("all of it", Vec::clear, Damage::Unreadable),
        ];
        for (name, harm, expected) in cases {
            for file in FILES.names {
                let folder = tempfile::tempdir().unwrap();
                written(folder.path());
                let path = folder.path().join(file);
                let mut bytes = fs::read(&path).unwrap();
                harm(&mut bytes);
                fs::write(&path, bytes).unwrap();
                let (damages, _) = open(folder.path());
                assert_eq!(damages, [expected], "{name} of {file}");
                let left = numbers(folder.path());
                let has_all =
                    (0..COUNT).filter(|number| number % 4 != 0).all(|number| left.contains(&number));
                assert!(has_all && (file == "a" || left.len() as u64 == COUNT), "{name} of {file}: {left:?}");
                assert_eq!(open(folder.path()).0, [], "{name} of {file}: written again");
            }
        }
    }

    #[test]
    fn damage_of_both_files_or_of_a_log_is_named_and_the_rest_is_kept() {
        let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        written(folder.path());
        let (_, database) = open(folder.path());
        let fresh = (COUNT..2 * COUNT).map(entry);
        fresh.for_each(|entry| database.write(&[Change::Put(entry)]).unwrap());
        let before = numbers(folder.path());
        // A copy of the present files is the state after a kill.
        for name in ["a", "a-wal", "b", "b-wal"] {
            fs::copy(folder.path().join(name), copy.path().join(name)).unwrap();
        }
        let log = copy.path().join("a-wal");
        let mut bytes = fs::read(&log).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&log, bytes).unwrap();
        assert_eq!(open(copy.path()).0, [FileDamage::Restorable]);
        let kept = numbers(copy.path());
        assert!(before.iter().filter(|number| *number % 4 != 0).all(|number| kept.contains(number)));

        for name in FILES.names {
            let mut bytes = fs::read(copy.path().join(name)).unwrap();
            flip(&mut bytes, b"value 0001");
            fs::write(copy.path().join(name), bytes).unwrap();
        }
        assert_eq!(open(copy.path()).0, [FileDamage::Lost; 2]);
        assert_eq!(numbers(copy.path()).len(), kept.len() - 1);
        for name in FILES.names {
            fs::write(copy.path().join(name), b"garbage").unwrap();
        }
        let found = FoundEntries::read(copy.path(), FILES).unwrap();
        assert!(found.is_lost() && found.damages().is_empty());
        found.quarantine(&copy.path().join("aside"), "old-").unwrap();
        assert_eq!(fs::read(copy.path().join("aside/old-a")).unwrap(), b"garbage");
    }
}
