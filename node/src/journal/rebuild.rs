//! Rebuilds a damaged journal: a new database with the intact entries and blobs of the old one.
//!
//! sled would go on in a file of which it read a part, with indexes that may contradict the entries. So:
//!
//! 1. The intact entries and blobs are copied into a new database beside the journal. The indexes are made
//!    from them.
//! 2. The new database is closed, opened again, read whole, and compared with the intact entries.
//! 3. It takes the journal's place. The old one stays beside it, in quarantine.
//!
//! After a crash within step 1 or 2 the next start begins again. After one within step 3, it continues there.
//! Only [`super::open`] calls this. Blocking throughout.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use baton_keys::files::create_private_folder;
use baton_proto::link::blob_digest;

use super::{
    EntryState, JOURNAL_VERSION, JournalError, JournalLimits, TurnKey,
    open::{
        JournalContents, JournalTrees, MARK_FILE, open_sled, read_all, readable, unpanicked,
        wait_until_closed,
    },
    trees::{ACCOUNTS_KEY, CHANGES_KEY, age_key, decode},
};
use crate::mark::Mark;

/// A damaged journal, and what is known about it.
pub(super) struct RebuildRequest<'a> {
    pub(super) folder: &'a Path,
    pub(super) limits: JournalLimits,
    pub(super) now_ms: u64,
    /// The intact entries, and the start and the number of changes for the new database.
    pub(super) contents: &'a JournalContents,
}

impl RebuildRequest<'_> {
    /// Replaces the database. Returns the contents of the new one, which is closed, and the place of the old one.
    pub(super) fn rebuild(&self, old: sled::Db) -> Result<(JournalContents, PathBuf), JournalError> {
        let part = beside(self.folder, "rebuilding");
        remove(&part).and_then(|()| create_private_folder(&part)).map_err(JournalError::Files)?;
        let new = open_sled(&part, self.limits)?;
        let copied = unpanicked(|| self.copy(&old, &new));
        drop(new);
        let contents = copied.and_then(|blob_bytes| self.compare(&part, blob_bytes)).inspect_err(|_| {
            // It takes space that the node needs. The next start begins again in any case.
            let _ = remove(&part);
        })?;
        drop(old);
        wait_until_closed(self.folder)?;
        let replaced = self.replace(&part).map_err(JournalError::Files)?;
        Ok((contents, replaced))
    }

    /// Copies the intact entries and blobs, and makes the indexes; returns the bytes of the blobs. Flushed.
    fn copy(&self, old: &sled::Db, new: &sled::Db) -> Result<u64, JournalError> {
        new.insert("version", &[JOURNAL_VERSION])?;
        new.insert("begins_ms", &self.contents.begins_ms.to_be_bytes())?;
        if let Some(accounts) = readable(old.get(ACCOUNTS_KEY))? {
            new.insert(ACCOUNTS_KEY, accounts)?;
        }
        let (from, to) = (JournalTrees::open(old)?, JournalTrees::open(new)?);
        to.by_digest.insert(CHANGES_KEY, &self.contents.changes.to_be_bytes())?;
        let mut blob_bytes = 0;
        for key in &self.contents.known {
            let bytes = from.turns.get(key)?.ok_or(JournalError::Unreadable)?;
            let (turn, entry) =
                (TurnKey::from_bytes(key).ok_or(JournalError::Damaged)?, decode(key, &bytes)?);
            let age = age_key(&turn, entry.created_ms);
            to.turns.insert(key, bytes)?;
            to.by_age.insert(age.as_slice(), &[])?;
            let EntryState::Sealed(sealed) = entry.state else { continue };
            let digest = sealed.committed.blob_digest;
            let blob = readable(from.blobs.get(digest.0))?.filter(|blob| blob_digest(blob) == digest);
            let Some(blob) = blob else { continue };
            to.blob_age.insert(age, &digest.0)?;
            // Two attempts may have the same blob; the index names the later one.
            let author = readable(from.by_digest.get(digest.0))?;
            if author.is_some_and(|author| author == *key) || !to.by_digest.contains_key(digest.0)? {
                to.by_digest.insert(digest.0, key)?;
            }
            let length = blob.len() as u64;
            if to.blobs.insert(digest.0, blob)?.is_none() {
                blob_bytes += length;
            }
        }
        new.flush()?;
        Ok(blob_bytes)
    }

    /// Opens the new database again and compares it with the intact entries. Writes its mark.
    fn compare(&self, part: &Path, blob_bytes: u64) -> Result<JournalContents, JournalError> {
        let new = open_sled(part, self.limits)?;
        let found = unpanicked(|| read_all(&new, self.now_ms))?;
        drop(new);
        wait_until_closed(part)?;
        let is_same = found.is_consistent()
            && found.known == self.contents.known
            && (found.blob_bytes, found.begins_ms, found.changes)
                == (blob_bytes, self.contents.begins_ms, self.contents.changes);
        if !is_same {
            let reason = "the journal was rebuilt, and the new database differs from the intact entries";
            return Err(JournalError::Files(io::Error::other(reason)));
        }
        Mark::create(&part.join(MARK_FILE), [found.changes, found.untaken]).map_err(JournalError::Files)?;
        Ok(found)
    }

    fn replace(&self, part: &Path) -> io::Result<PathBuf> {
        File::open(part)?.sync_all()?;
        fs::rename(part, beside(self.folder, "rebuilt"))?;
        sync_parent(self.folder)?;
        put_in_place(self.folder, self.now_ms)
    }
}

/// Continues a replacement that a crash cut off.
pub(super) fn finish(folder: &Path, now_ms: u64) -> io::Result<()> {
    remove(&beside(folder, "rebuilding"))?;
    if beside(folder, "rebuilt").exists() {
        let damaged = put_in_place(folder, now_ms)?;
        let damaged = damaged.display();
        tracing::warn!(%damaged, "the rebuild of the damaged journal, which was cut off, is finished");
    }
    Ok(())
}

/// Gives the journal's name to the rebuilt one. Returns the damaged one's new name.
fn put_in_place(folder: &Path, now_ms: u64) -> io::Result<PathBuf> {
    let damaged = quarantine(folder, now_ms)?;
    fs::rename(beside(folder, "rebuilt"), folder)?;
    sync_parent(folder)?;
    Ok(damaged)
}

/// Moves a journal, if it is there, to a free name beside it, with the time in the name.
pub(super) fn quarantine(folder: &Path, mut now_ms: u64) -> io::Result<PathBuf> {
    let mut target = beside(folder, &format!("damaged-{now_ms}"));
    while target.exists() {
        now_ms += 1;
        target = beside(folder, &format!("damaged-{now_ms}"));
    }
    if folder.exists() {
        fs::rename(folder, &target)?;
    }
    Ok(target)
}

/// The name of a folder beside the journal.
fn beside(folder: &Path, suffix: &str) -> PathBuf {
    let mut name = folder.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{suffix}"));
    folder.with_file_name(name)
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}
