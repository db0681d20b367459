//! Files beside a journal: torn ends and quarantined journals. Their bytes are sealed like the journal's. The
//! client never reads them, and deleting the session removes them.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use baton_keys::{files, secret::random_bytes};

use super::snapshot;

/// Extension of a journal's torn end.
const TORN: &str = "torn";
/// Extension of a damaged journal that was replaced.
const DAMAGED: &str = "damaged";

/// Keeps the torn end of a journal in a new file beside it: `<journal's stem>.<random>.torn`.
pub(crate) fn keep_torn(journal: &Path, bytes: &[u8]) -> io::Result<()> {
    files::write_private(&beside(journal, TORN), bytes)
}

/// Moves a journal to `<its stem>.<random>.damaged`, where no listing finds it; returns the new path.
pub(crate) fn isolate(journal: &Path) -> io::Result<PathBuf> {
    let target = beside(journal, DAMAGED);
    snapshot::remove(journal)?;
    fs::rename(journal, &target)?;
    sync_folder(journal)?;
    Ok(target)
}

/// Undoes [`isolate`].
pub(crate) fn restore(quarantined: &Path, journal: &Path) -> io::Result<()> {
    fs::rename(quarantined, journal)?;
    sync_folder(journal)
}

/// Removes a journal, or a quarantined one, with its torn ends and its snapshot, and flushes the folder.
pub(crate) fn remove(journal: &Path) -> io::Result<()> {
    snapshot::remove(journal)?;
    for torn in torn_files(journal)? {
        fs::remove_file(torn)?;
    }
    fs::remove_file(journal)?;
    sync_folder(journal)
}

/// Quarantined journals in a folder.
pub(crate) fn damaged_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    with_extension(folder, DAMAGED)
}

/// Torn ends of a journal, or of a quarantined one.
pub(crate) fn torn_files(journal: &Path) -> io::Result<Vec<PathBuf>> {
    let Some(folder) = journal.parent() else { return Ok(Vec::new()) };
    let mut files = with_extension(folder, TORN)?;
    files.retain(|file| first_part(file).is_some_and(|part| Some(part) == first_part(journal)));
    Ok(files)
}

fn with_extension(folder: &Path, extension: &str) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|found| found == extension) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The first part of a file's name: the random name of its journal.
fn first_part(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()?.split('.').next()
}

fn beside(journal: &Path, extension: &str) -> PathBuf {
    journal.with_extension(format!("{}.{extension}", hex::encode(random_bytes::<4>())))
}

fn sync_folder(file: &Path) -> io::Result<()> {
    file.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}
