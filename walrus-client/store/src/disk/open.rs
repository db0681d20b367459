//! Opens the store: takes its lock, loads the index, checks every file, and fixes damage where possible.
//!
//! Every start checks every file and builds the index in memory from database and files. It makes no difference
//! whether the store was closed properly.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::{Duration, Instant},
};

use baton_kit::{
    entries::{Change, EntryDatabase},
    group_commit::GroupCommit,
};
use baton_proto::ids::BlobId;

use super::{
    super::config::{EmbeddedConfig, OpenError},
    Damage, Disk, Epochs,
    blob_locks::BlobLocks,
    damage::{DamageKind, Damages},
    files::{FileKey, Folder},
    health::WriteHealth,
    load::{INDEX_FILES, Index, LAYOUT, load},
    record::{Entry, EntryKey, Record},
    state::{IndexState, IndexTable},
    survey::{Survey, survey},
    trailer::Trailer,
};

/// The folder of the blobs' files within the store's folder.
const FILES: &str = "files";
/// The folder of the index.
const INDEX: &str = "index";
/// The folder for files that cannot be used.
const QUARANTINE: &str = "quarantine";
/// Locked while a process has the store open. The file is empty; its presence means nothing.
const LOCK: &str = "lock";
/// How long to wait for a held lock: work of a store that was just closed may still hold it.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The result of checking a store's folder: see [`check`].
#[derive(Debug, Clone, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckReport {
    /// Listed blobs, damaged ones included.
    pub blobs: u64,
    /// Sum of their bytes.
    pub bytes: u64,
    /// Head records.
    pub heads: u64,
    /// Number of damages.
    pub damaged: u64,
    /// Number of damages with a loss.
    pub lost: u64,
    /// The damages: at most 10,000.
    pub damages: Vec<Damage>,
    /// Blobs that only their files name, not the index.
    pub found: u64,
    /// Unfinished uploads and older files of blobs.
    pub removable: u64,
    /// Files in the quarantine.
    pub quarantined: u64,
    /// Names among the files that are not the store's.
    pub foreign: u64,
    /// Whether the possible fixes were made.
    pub fixed: bool,
}

impl CheckReport {
    /// Whether the store is sound, or was fixed without loss.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.lost == 0 && (self.damaged == 0 || self.fixed)
    }
}

/// A locked store folder.
struct LockedFolder {
    path: PathBuf,
    lock: File,
}

impl LockedFolder {
    fn index(&self) -> PathBuf {
        self.path.join(INDEX)
    }

    fn quarantine(&self) -> PathBuf {
        self.path.join(QUARANTINE)
    }

    /// Locks an existing folder.
    fn lock(path: &Path) -> Result<Self, OpenError> {
        let no_path = |source: io::Error| OpenError::path(path, source);
        for (found, file) in [("2", "conf"), ("3", "index/a.log")] {
            if path.join(file).exists() {
                return Err(OpenError::Layout {
                    path: path.to_owned(),
                    found: found.to_owned(),
                    wanted: LAYOUT,
                });
            }
        }
        let options =
            File::options().read(true).write(true).create(true).truncate(false).open(path.join(LOCK));
        let lock = options.map_err(no_path)?;
        let begin = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Self { path: path.to_owned(), lock }),
                Err(TryLockError::WouldBlock) if begin.elapsed() < LOCK_PATIENCE => {
                    std::thread::sleep(LOCK_PAUSE);
                }
                Err(TryLockError::WouldBlock) => return Err(OpenError::Locked { path: path.to_owned() }),
                Err(TryLockError::Error(error)) => return Err(no_path(error)),
            }
        }
    }
}

/// The state on disk before any change.
struct Findings {
    index: Index,
    survey: Survey,
    damages: Damages,
}

impl Findings {
    /// `is_logged` logs the damage.
    fn gather(locked: &LockedFolder, folder: &Folder, is_logged: bool) -> Result<Self, OpenError> {
        let no_path = |source: io::Error| OpenError::path(&locked.path, source);
        let mut damages = Damages { is_logged, ..Damages::default() };
        let mut index = load(&locked.index(), &locked.path, &mut damages)?;
        let survey = survey(folder, &index, &mut damages).map_err(no_path)?;
        // A store with blobs must have had an index.
        if index.found.is_lost() || (index.found.is_empty() && !survey.found.is_empty()) {
            damages.add(DamageKind::IndexLost, INDEX.to_owned(), None);
        }
        if is_logged && !survey.found.is_empty() {
            tracing::warn!(
                blobs = survey.found.len(),
                "blobs that the index did not name were found by their own files and are listed again"
            );
        }
        for (id, record) in &survey.found {
            index.table.put_blob(BlobId(*id), record);
        }
        Ok(Self { index, survey, damages })
    }

    /// The store's shard count, if the index or a file names it.
    fn shards(&self) -> Option<u16> {
        self.index.shards.or(self.survey.newest.map(|(shards, _)| shards))
    }

    fn epochs(&self) -> Option<Epochs> {
        self.index.table.epochs.or(self.survey.newest.map(|(_, epochs)| epochs))
    }
}

impl Folder {
    /// A blob's record by its file's trailer.
    pub(super) fn record(&self, id: BlobId, file: FileKey) -> Option<Record> {
        let trailer = self.trailer(file.number).ok()??;
        (trailer.id == id && trailer.record.file == file).then_some(trailer.record)
    }
}

/// Makes the fixes. A failed fix is logged, changes nothing, and is retried at the next start.
fn fix(locked: &LockedFolder, folder: &Folder, findings: &Findings, epochs: Epochs, shards: u16) {
    let log_failure = |what: &str, done: io::Result<()>| {
        if let Err(error) = done {
            tracing::warn!(%error, "{what} failed; the next start tries again");
        }
    };
    let survey = &findings.survey;
    for serial in &survey.parts {
        log_failure("removing an unfinished upload", folder.remove(&folder.part_path(*serial)));
    }
    for number in &survey.leftovers {
        log_failure("removing a replaced file", folder.remove(&folder.path_of(*number)));
    }
    if !survey.parts.is_empty() || !survey.leftovers.is_empty() {
        let (unfinished, replaced) = (survey.parts.len(), survey.leftovers.len());
        tracing::info!(
            unfinished,
            replaced,
            "files of unfinished uploads and of replaced blobs were removed"
        );
    }
    let quarantine = locked.quarantine();
    for number in &survey.unusable {
        log_failure("setting a file aside", folder.quarantine(*number, &quarantine));
    }
    if !survey.unusable.is_empty() {
        let files = survey.unusable.len();
        tracing::warn!(files, folder = %quarantine.display(), "files that cannot be used were set aside; none was removed");
    }
    for (file, hashes) in &survey.hashes {
        log_failure("writing hashes again", folder.restore_hashes(*file, hashes));
    }
    for (id, file) in &survey.trailers {
        if let Some(record) = findings.index.record(*id).filter(|record| record.file == *file) {
            let trailer = Trailer { shards, epochs, id: *id, record };
            log_failure("writing a trailer again", folder.restore_trailer(&trailer));
        }
    }
}

/// An open index: in memory, on disk, and the next number.
type OpenIndex = (IndexTable, EntryDatabase, u64);

/// Opens the index, with a database and a copy that have all of it.
fn build(
    locked: &LockedFolder,
    findings: Findings,
    epochs: Epochs,
    shards: u16,
    now_s: u64,
) -> io::Result<OpenIndex> {
    let Findings { index, survey, .. } = findings;
    let path = locked.index();
    let Index { found, mut table, removed, shards: known, next } = index;
    let mut next = next.max(survey.next);
    if found.is_lost() {
        found.quarantine(&locked.quarantine(), "index-")?;
    }
    let renewed = found.renew();
    drop(found);
    let database = match (renewed, EntryDatabase::open(&path, INDEX_FILES)) {
        (Ok(()), opened) => opened?,
        (Err(error), Err(_)) => return Err(error),
        (Err(error), Ok(opened)) => {
            tracing::warn!(%error, "a copy of the index could not be written again; the next start tries again");
            opened
        }
    };
    let mut changes: Vec<Change> = table.expired_tokens(now_s).into_iter().map(EntryKey::removal).collect();
    table.tokens.retain(|_, expires_s| *expires_s >= now_s);
    if survey.leftovers.is_empty() {
        changes.extend(removed.keys().map(|id| EntryKey::Removed(BlobId(*id)).removal()));
    }
    let is_new = known.is_none();
    let mut put = |entry: Entry<'_>| {
        changes.push(entry.put(next));
        next += 1;
    };
    if is_new || table.epochs != Some(epochs) {
        put(Entry::Store { shards, epochs });
    }
    for (id, record) in survey.found {
        put(Entry::Blob(BlobId(id), record));
    }
    table.epochs = Some(epochs);
    let write = || database.write(&changes).and_then(|()| EntryDatabase::sync(&path, INDEX_FILES));
    if !changes.is_empty()
        && let Err(error) = write()
    {
        if is_new {
            return Err(error);
        }
        tracing::warn!(%error, "the index could not be written; the next start tries again");
    }
    Ok((table, database, next))
}

impl Disk {
    /// Opens or creates the store, checks every file, and fixes damage where possible.
    pub(crate) fn open(config: &EmbeddedConfig) -> Result<(Self, Vec<Damage>), OpenError> {
        let path = &config.path;
        let no_path = |source: io::Error| OpenError::path(path, source);
        for folder in [path.clone(), path.join(FILES), path.join(INDEX)] {
            make_folder(&folder).map_err(no_path)?;
        }
        let locked = LockedFolder::lock(path)?;
        let folder = Folder::open(&path.join(FILES)).map_err(no_path)?;
        let mut findings = Findings::gather(&locked, &folder, true)?;
        let shards = config.shards.get();
        if let Some(found) = findings.shards().filter(|found| *found != shards) {
            let (path, found) = (path.clone(), found.to_string());
            return Err(OpenError::Shards { path, found, wanted: config.shards });
        }
        let epochs = load_epochs(findings.epochs(), config);
        fix(&locked, &folder, &findings, epochs, shards);
        let damages = std::mem::take(&mut findings.damages.listed);
        let now_s = config.clock.now_ms() / 1000;
        let health = Arc::new(WriteHealth::default());
        let can_write = health.note(folder.probe(findings.index.next.max(findings.survey.next)));
        findings.index.next += 1;
        let built = build(&locked, findings, epochs, shards, now_s);
        // SQLite tells a full disk only sometimes.
        let (table, database, next) = match (built, can_write) {
            (Ok(built), can_write) => {
                if can_write.is_ok() {
                    health.works();
                }
                built
            }
            (Err(_), Err(error)) | (Err(error), Ok(())) => return Err(no_path(error)),
        };
        let disk = Self {
            index: Mutex::new(database),
            state: Mutex::new(IndexState { table, ..IndexState::default() }),
            next: AtomicU64::new(next),
            index_path: locked.index(),
            folder,
            blob_locks: BlobLocks::default(),
            names: GroupCommit::default(),
            records: GroupCommit::default(),
            health,
            clock: config.clock.clone(),
            epochs: Mutex::new(epochs),
            epoch_reached: AtomicU64::new(0),
            collections: Mutex::default(),
            shards,
            quota: config.quota_bytes,
            max_heads: config.max_heads,
            _lock: locked.lock,
        };
        Ok((disk, damages))
    }
}

/// Checks every byte of the store in a folder, which no process may have open. `fix_too` also fixes
/// damage, as every start does. Blocking; it reads everything.
///
/// # Errors
/// [`OpenError`] when there is no store, when it is open elsewhere, or when its folder cannot be read (or
/// written, for fixes).
pub fn check(path: &Path, fix_too: bool) -> Result<CheckReport, OpenError> {
    let no_path = |source: io::Error| OpenError::path(path, source);
    if !path.join(FILES).is_dir() && !path.join(INDEX).is_dir() {
        let locked = path.is_dir().then(|| LockedFolder::lock(path)).transpose();
        // A store of another version gets its own error.
        locked?;
        return Err(OpenError::NoStore { path: path.to_owned() });
    }
    let locked = LockedFolder::lock(path)?;
    if fix_too {
        for folder in [path.join(FILES), path.join(INDEX)] {
            make_folder(&folder).map_err(no_path)?;
        }
    }
    let folder = Folder::open(&path.join(FILES)).map_err(no_path)?;
    let findings = Findings::gather(&locked, &folder, false)?;
    let (survey, table) = (&findings.survey, &findings.index.table);
    let mut report = CheckReport {
        blobs: table.blobs.len() as u64,
        bytes: table.bytes,
        heads: table.heads.len() as u64,
        damaged: findings.damages.count,
        lost: findings.damages.lost,
        damages: findings.damages.listed.clone(),
        found: survey.found.len() as u64,
        removable: (survey.parts.len() + survey.leftovers.len()) as u64,
        quarantined: 0,
        foreign: survey.foreign,
        fixed: false,
    };
    // Without both, no index can be made.
    if let (true, Some(epochs), Some(shards)) = (fix_too, findings.epochs(), findings.shards()) {
        fix(&locked, &folder, &findings, epochs, shards);
        // No token expires by this.
        build(&locked, findings, epochs, shards, 0).map_err(no_path)?;
        report.fixed = true;
    }
    report.quarantined = fs::read_dir(locked.quarantine()).map_or(0, |entries| entries.count() as u64);
    Ok(report)
}

/// Creates a folder, and makes its name durable.
fn make_folder(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)?;
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        File::open(parent)?.sync_all()?;
    }
    Ok(())
}

/// The epochs of the store: its existing ones, or new ones that begin now.
fn load_epochs(known: Option<Epochs>, config: &EmbeddedConfig) -> Epochs {
    let now_ms = config.clock.now_ms();
    match known {
        Some(known) => known.with_duration(config.epoch_duration, now_ms),
        None => Epochs::new(config.first_epoch, config.epoch_duration, now_ms),
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::ids::HeadIndexKey;
    use tempfile::TempDir;

    use super::{
        super::{super::config::HeadIdentity, Term},
        *,
    };

    #[test]
    fn after_a_failed_sync_the_database_takes_the_log_before_anything_else() {
        let path = TempDir::new().unwrap();
        let config = EmbeddedConfig::new(path.path().join("store"));
        let (disk, damages) = Disk::open(&config).unwrap();
        assert_eq!(damages, []);
        let head = |sequence| HeadIdentity { key: HeadIndexKey([1; 32]), sequence, expires_ms: u64::MAX };
        let put = |bytes: &[u8]| {
            let mut writer = disk.create_file().unwrap();
            writer.write(bytes).unwrap();
            let term = Term { permanent: false, force: false, share: false, epochs: 1 };
            disk.put(BlobId([bytes[0]; 32]), writer, term).unwrap();
        };
        put(b"a");
        disk.put_head(head(1), b"first", 0, false).unwrap();
        for round in 0..2 {
            disk.index().note_failed_sync();
            match round {
                0 => put(b"b"),
                _ => disk.put_head(head(2), b"second", 0, false).unwrap(),
            }
            // The database took the log.
            let log = path.path().join("store/index/a.sqlite-wal");
            assert!(fs::metadata(log).unwrap().len() < 20_000);
        }
        assert_eq!(disk.head(head(0).key, 0).unwrap().unwrap(), b"second");
        drop(disk);
        let (disk, damages) = Disk::open(&config).unwrap();
        assert_eq!((damages, disk.usage().blobs), (Vec::new(), 2));
        assert_eq!(disk.head(head(0).key, 0).unwrap().unwrap(), b"second");
    }
}
