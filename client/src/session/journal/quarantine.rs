//! Quarantined journals. Their bytes are sealed like a journal's, and deleting the session removes them.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use baton_keys::secret::random_bytes;

use super::snapshot;

/// Extension of a damaged journal that was replaced.
const DAMAGED: &str = "damaged";

/// Moves a journal to `<its stem>.<random>.damaged`, where no listing finds it; returns the new path.
pub(crate) fn isolate(journal: &Path) -> io::Result<PathBuf> {
    let name = hex::encode(random_bytes::<4>());
    let target = journal.with_extension(format!("{name}.{DAMAGED}"));
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

/// Removes a journal, or a quarantined one, with its snapshot, and flushes the folder.
pub(crate) fn remove(journal: &Path) -> io::Result<()> {
    snapshot::remove(journal)?;
    fs::remove_file(journal)?;
    sync_folder(journal)
}

/// Quarantined journals in a folder.
pub(crate) fn damaged_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|found| found == DAMAGED) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn sync_folder(file: &Path) -> io::Result<()> {
    file.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}
