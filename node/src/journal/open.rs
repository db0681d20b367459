//! Opens the journal's database, and verifies all its contents before use.
//!
//! sled cuts its log at the first unreadable place, and silently drops the rest; the mark reveals it. Each entry
//! and blob has a checksum, and each index is compared with them. After any damage of the database,
//! [`super::rebuild`] makes a new one from the intact entries and blobs. [`super::trees`] calls this at start.
//! Blocking throughout.

use std::{
    fs::{self, File},
    io,
    ops::Bound,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use baton_keys::files::create_private_folder;
use baton_proto::link::blob_digest;
use sled::{IVec, Tree};

use super::{
    EntryState, JOURNAL_VERSION, JournalError, JournalLimits, TurnKey,
    damage::JournalDamage,
    rebuild::{self, RebuildRequest},
    trees::{CHANGES_KEY, age_key, decode, parse_age},
};
use crate::mark::{LastMark, Mark};

/// Name of the thread that opens the journal. The database may panic on damaged files.
pub(crate) const JOURNAL_OPENING: &str = "journal-opening";
/// File of the mark, in the journal's folder.
pub(super) const MARK_FILE: &str = "mark";
/// sled's settings. They are the same for every journal, so a new file is equally good.
const CONF_FILE: &str = "conf";
/// sled's log.
const DB_FILE: &str = "db";
/// Maximum time of sled's last writes after closing.
const MAX_CLOSING: Duration = Duration::from_secs(10);

/// The readable contents of a journal.
pub(super) struct JournalContents {
    /// Keys of the intact entries, ascending.
    pub(super) known: Vec<IVec>,
    pub(super) blob_bytes: u64,
    pub(super) untaken: u64,
    /// Start of the journal, in milliseconds since the Unix epoch.
    pub(super) begins_ms: u64,
    /// Number of the last change found.
    pub(super) changes: u64,
    /// Number of entries and blobs with a wrong checksum.
    pub(super) damaged: u64,
    /// Number of entries that an index names, and that are not there.
    pub(super) missing: u64,
    /// Number of entries and blobs that an index lacks.
    pub(super) unindexed: u64,
    /// Whether every page could be read.
    pub(super) is_whole: bool,
}

impl JournalContents {
    /// Whether the entries, the blobs and the indexes belong together.
    pub(super) fn is_consistent(&self) -> bool {
        self.is_whole && self.damaged == 0 && self.missing == 0 && self.unindexed == 0
    }
}

/// The trees of a journal's database.
#[derive(Clone)]
pub(super) struct JournalTrees {
    /// Turn key to entry.
    pub(super) turns: Tree,
    /// Blob digest to blob bytes.
    pub(super) blobs: Tree,
    /// Blob digest to turn key.
    pub(super) by_digest: Tree,
    /// `u64be(created) ‖ turn key`, for pruning entries from the oldest.
    pub(super) by_age: Tree,
    /// `u64be(created) ‖ turn key` to blob digest, for entries with a local blob; for pruning blobs from the
    /// oldest.
    pub(super) blob_age: Tree,
}

impl JournalTrees {
    pub(super) fn open(db: &sled::Db) -> Result<Self, JournalError> {
        Ok(Self {
            turns: db.open_tree("turns")?,
            blobs: db.open_tree("blobs")?,
            by_digest: db.open_tree("by_digest")?,
            by_age: db.open_tree("by_age")?,
            blob_age: db.open_tree("blob_age")?,
        })
    }
}

/// An open journal with verified contents.
pub(super) struct VerifiedJournal {
    pub(super) db: sled::Db,
    pub(super) contents: JournalContents,
    pub(super) mark: Mark,
    pub(super) damage: Option<JournalDamage>,
}

/// Opens the journal of a folder. Rebuilds its database if that is damaged.
pub(super) fn open_verified(
    folder: &Path,
    limits: JournalLimits,
    now_ms: u64,
) -> Result<VerifiedJournal, JournalError> {
    rebuild::finish(folder, now_ms).map_err(JournalError::Files)?;
    let mark_path = folder.join(MARK_FILE);
    let last = Mark::read(&mark_path).map_err(JournalError::Files)?;
    let mut unreadable = None;
    let (mut db, mut contents) = match open_and_read(folder, limits, now_ms) {
        Err(error) if is_damage(&error) => {
            // Not even the journal's version can be read. A new journal refuses earlier authorisations.
            unreadable = Some(rebuild::quarantine(folder, now_ms).map_err(JournalError::Files)?);
            create_private_folder(folder).map_err(JournalError::Files)?;
            open_and_read(folder, limits, now_ms)?
        }
        opened => opened?,
    };
    let mut damage = assess(folder, last, &contents, unreadable);
    let begins_before = contents.begins_ms;
    if !damage.files.is_empty() && damage.may_miss_entries() {
        // Missing entries may have been served, and must not be signed twice.
        contents.begins_ms = contents.begins_ms.max(now_ms);
    }
    // From now on the mark counts from the journal's own number.
    let changes_before = contents.changes;
    if let LastMark::Counts([changes, _]) = last {
        contents.changes = contents.changes.max(changes);
    }
    if damage.is_rebuilt {
        let request = RebuildRequest { folder, limits, now_ms, contents: &contents };
        let (rebuilt, replaced) = request.rebuild(db)?;
        (contents, damage.quarantine) = (rebuilt, Some(replaced));
        db = open_sled(folder, limits)?;
    } else if (begins_before, changes_before) != (contents.begins_ms, contents.changes) {
        db.insert("begins_ms", &contents.begins_ms.to_be_bytes())?;
        db.open_tree("by_digest")?.insert(CHANGES_KEY, &contents.changes.to_be_bytes())?;
        db.flush()?;
    }
    let mark = Mark::create(&mark_path, [contents.changes, contents.untaken]).map_err(JournalError::Files)?;
    let damage = (!damage.files.is_empty()).then_some(damage);
    Ok(VerifiedJournal { db, contents, mark, damage })
}

/// The damage of the contents, by the mark too. `unreadable` is the place of a database that was replaced by an
/// empty one; any other damaged database must be rebuilt.
fn assess(
    folder: &Path,
    last: LastMark,
    contents: &JournalContents,
    unreadable: Option<PathBuf>,
) -> JournalDamage {
    let is_mark_damaged = match last {
        LastMark::Counts(_) => false,
        LastMark::Missing => contents.changes > 0,
        LastMark::Damaged => true,
    };
    let lost_changes = match last {
        // An unreadable page may have held entries that no index names.
        _ if !contents.is_whole || is_mark_damaged => None,
        LastMark::Counts([changes, _]) => Some(changes.saturating_sub(contents.changes)),
        _ => unreadable.is_none().then_some(0),
    };
    let must_rebuild =
        unreadable.is_none() && (!contents.is_consistent() || lost_changes.is_some_and(|lost| lost > 0));
    let mut files = Vec::new();
    files.extend(is_mark_damaged.then(|| folder.join(MARK_FILE)));
    files.extend((must_rebuild || unreadable.is_some()).then(|| folder.join(DB_FILE)));
    JournalDamage {
        files,
        lost_changes,
        damaged_entries: contents.damaged,
        missing_entries: contents.missing,
        index_errors: contents.unindexed,
        kept_entries: contents.known.len() as u64,
        untaken_blobs: if let LastMark::Counts([_, untaken]) = last { untaken } else { contents.untaken },
        is_rebuilt: must_rebuild,
        quarantine: unreadable,
    }
}

/// Opens sled and reads everything. Removes settings that sled refuses, so that sled writes them again.
fn open_and_read(
    folder: &Path,
    limits: JournalLimits,
    now_ms: u64,
) -> Result<(sled::Db, JournalContents), JournalError> {
    let db = match open_sled(folder, limits) {
        Err(error) if is_damage(&error) && fs::remove_file(folder.join(CONF_FILE)).is_ok() => {
            tracing::warn!("the journal's settings could not be read, and are written again");
            open_sled(folder, limits)?
        }
        opened => opened?,
    };
    let contents = unpanicked(|| read_all(&db, now_ms))?;
    Ok((db, contents))
}

pub(super) fn open_sled(folder: &Path, limits: JournalLimits) -> Result<sled::Db, JournalError> {
    wait_until_closed(folder)?;
    let config = sled::Config::new().path(folder).cache_capacity(limits.cache_bytes);
    unpanicked(|| Ok(config.open()?))
}

/// Waits for sled's lock on its file, which sled holds until its last write.
pub(super) fn wait_until_closed(folder: &Path) -> Result<(), JournalError> {
    let file = match File::open(folder.join(DB_FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file.map_err(JournalError::Files)?,
    };
    let until = Instant::now() + MAX_CLOSING;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(fs::TryLockError::WouldBlock) if Instant::now() < until => {
                thread::sleep(Duration::from_millis(10));
            }
            Err(error) => return Err(JournalError::Files(error.into())),
        }
    }
}

/// Runs the work on a thread whose panics do not end the process: some damage triggers sled's own assertions.
pub(super) fn unpanicked<T: Send>(
    work: impl FnOnce() -> Result<T, JournalError> + Send,
) -> Result<T, JournalError> {
    thread::scope(|scope| {
        let opening = thread::Builder::new().name(JOURNAL_OPENING.to_owned()).spawn_scoped(scope, work);
        let done = opening.map_err(JournalError::Files)?.join();
        done.unwrap_or(Err(JournalError::Unreadable))
    })
}

/// Whether an error means damaged files, as opposed to files that cannot be read.
fn is_damage(error: &JournalError) -> bool {
    match error {
        JournalError::Unreadable => true,
        JournalError::Disk(error) => is_sled_damage(error),
        _ => false,
    }
}

fn is_sled_damage(error: &sled::Error) -> bool {
    use std::io::ErrorKind;
    match error {
        sled::Error::Io(error) => {
            matches!(
                error.kind(),
                ErrorKind::InvalidData | ErrorKind::InvalidInput | ErrorKind::UnexpectedEof
            )
        }
        _ => true,
    }
}

/// A row, or `None` if it is absent or on an unreadable page.
pub(super) fn readable<T>(row: sled::Result<Option<T>>) -> sled::Result<Option<T>> {
    match row {
        Err(error) if is_sled_damage(&error) => Ok(None),
        row => row,
    }
}

/// Visits the rows of a tree from both ends up to an unreadable page; false if there is such a page. The rows
/// behind the page come in descending order.
fn scan(
    tree: &Tree,
    mut visit: impl FnMut(IVec, IVec) -> Result<(), JournalError>,
) -> Result<bool, JournalError> {
    let mut last: Option<IVec> = None;
    for row in tree {
        match row {
            Ok((key, value)) => {
                last = Some(key.clone());
                visit(key, value)?;
            }
            Err(error) if is_sled_damage(&error) => {
                let begin = last.map_or(Bound::Unbounded, Bound::Excluded);
                for row in tree.range((begin, Bound::Unbounded)).rev() {
                    match row {
                        Ok((key, value)) => visit(key, value)?,
                        Err(error) if is_sled_damage(&error) => break,
                        Err(error) => return Err(error.into()),
                    }
                }
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

/// Start of the journal; an empty one starts now.
fn begins_ms(db: &sled::Db, now_ms: u64) -> Result<u64, JournalError> {
    match (db.get("version")?, db.get("begins_ms")?) {
        (None, None) => {
            db.insert("version", &[JOURNAL_VERSION])?;
            db.insert("begins_ms", &now_ms.to_be_bytes())?;
            db.flush()?;
            Ok(now_ms)
        }
        (Some(version), Some(begins)) if version.as_ref() == [JOURNAL_VERSION] => {
            Ok(u64::from_be_bytes(begins.as_ref().try_into().map_err(|_| JournalError::Unreadable)?))
        }
        (Some(version), _) if version.as_ref() != [JOURNAL_VERSION] => Err(JournalError::Version),
        _ => Err(JournalError::Unreadable),
    }
}

/// Reads and verifies every entry, blob and index.
pub(super) fn read_all(db: &sled::Db, now_ms: u64) -> Result<JournalContents, JournalError> {
    // First, because another version makes the whole folder refused, not each entry.
    let begins_ms = begins_ms(db, now_ms)?;
    let trees = JournalTrees::open(db)?;
    let (mut known, mut blob_bytes, mut untaken) = (Vec::new(), 0, 0);
    let (mut damaged, mut missing, mut unindexed) = (0, 0, 0);
    let are_blobs_whole = scan(&trees.blobs, |digest, bytes| {
        if blob_digest(&bytes).0[..] == digest[..] {
            blob_bytes += bytes.len() as u64;
            unindexed += u64::from(!is_blob_indexed(&trees, &digest)?);
        } else {
            damaged += 1;
        }
        Ok(())
    })?;
    let are_turns_whole = scan(&trees.turns, |key, bytes| {
        let (Some(turn), Ok(entry)) = (TurnKey::from_bytes(&key), decode(&key, &bytes)) else {
            damaged += 1;
            return Ok(());
        };
        if let EntryState::Sealed(sealed) = &entry.state
            && entry.is_untaken()
            && readable(trees.blobs.get(sealed.committed.blob_digest.0))?.is_some()
        {
            untaken += 1;
        }
        let age = age_key(&turn, entry.created_ms);
        unindexed += u64::from(readable(trees.by_age.get(age))?.is_none());
        known.push(key);
        Ok(())
    })?;
    known.sort_unstable();
    let are_ages_whole = scan(&trees.by_age, |age, _| {
        match parse_age(age) {
            Ok((_, _, key)) => {
                missing += u64::from(readable(trees.turns.get(key.to_bytes()))?.is_none());
            }
            Err(_) => unindexed += 1,
        }
        Ok(())
    })?;
    let changes = readable(trees.by_digest.get(CHANGES_KEY))?;
    let changes = changes.and_then(|changes| changes.as_ref().try_into().ok()).map_or(0, u64::from_be_bytes);
    let is_whole = are_blobs_whole && are_turns_whole && are_ages_whole;
    Ok(JournalContents {
        known,
        blob_bytes,
        untaken,
        begins_ms,
        changes,
        damaged,
        missing,
        unindexed,
        is_whole,
    })
}

/// Whether a blob can be found by its digest, and removed by its age.
fn is_blob_indexed(trees: &JournalTrees, digest: &IVec) -> Result<bool, JournalError> {
    let Some(key) = readable(trees.by_digest.get(digest))? else { return Ok(false) };
    let Some(bytes) = readable(trees.turns.get(&key))? else { return Ok(false) };
    let (Some(turn), Ok(entry)) = (TurnKey::from_bytes(&key), decode(&key, &bytes)) else { return Ok(false) };
    let EntryState::Sealed(sealed) = &entry.state else { return Ok(false) };
    let age = readable(trees.blob_age.get(age_key(&turn, entry.created_ms)))?;
    Ok(sealed.committed.blob_digest.0[..] == digest[..] && age.is_some_and(|found| found == *digest))
}
