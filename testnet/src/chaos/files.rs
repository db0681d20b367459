//! Files under a folder: listing, damage, copies and comparison.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

use crate::draws::Draws;

/// Bytes zeroed at once: a sector.
const ZEROED_BYTES: usize = 512;

/// All non-empty files under a folder, in order of their paths.
pub(crate) fn list(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let about = entry.metadata()?;
            if about.is_dir() {
                folders.push(entry.path());
            } else if about.is_file() && about.len() > 0 {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// A change of a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileChange {
    /// One flipped bit; a draw selects it.
    Flip { at: u64 },
    /// A truncation to `kept` thousandths.
    Cut { kept: u64 },
    /// A stretch of zeros; a draw selects its start.
    Zero { at: u64 },
    /// A truncation to zero bytes.
    Empty,
}

/// Damages one file under a folder, and returns its path with the change. Every folder is equally likely, so that an index
/// beside many blobs is hit too.
pub(super) fn damage(folder: &Path, draws: &mut Draws) -> anyhow::Result<(PathBuf, FileChange)> {
    let mut folders: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
    for file in list(folder)? {
        folders.entry(file.parent().unwrap_or(folder).to_owned()).or_default().push(file);
    }
    let folders: Vec<&[PathBuf]> = folders.values().map(Vec::as_slice).collect();
    let files = draws.one_of(&folders).with_context(|| format!("{} is empty", folder.display()))?;
    let files: Vec<&PathBuf> = files.iter().collect();
    let file = draws.one_of(&files).context("a folder with files has one")?;
    let (at, kept) = (draws.next(), draws.below(1000));
    let changes =
        [FileChange::Flip { at }, FileChange::Cut { kept }, FileChange::Zero { at }, FileChange::Empty];
    let change = draws.one_of(&changes).context("there are changes")?;
    change_file(file, change)?;
    Ok((file.clone(), change))
}

/// Applies a change to bytes.
fn changed(mut bytes: Vec<u8>, change: FileChange) -> Vec<u8> {
    let at = |draw: u64, limit: usize| {
        usize::try_from(draw.checked_rem(limit as u64).unwrap_or_default()).unwrap_or_default()
    };
    match change {
        FileChange::Flip { at: draw } => {
            let bit = at(draw, bytes.len() * 8);
            if let Some(byte) = bytes.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
        }
        FileChange::Cut { kept } => {
            let kept = bytes.len() as u64 * kept.min(1000) / 1000;
            bytes.truncate(usize::try_from(kept).unwrap_or(usize::MAX));
        }
        FileChange::Zero { at: draw } => {
            let from = at(draw, bytes.len());
            bytes.iter_mut().skip(from).take(ZEROED_BYTES).for_each(|byte| *byte = 0);
        }
        FileChange::Empty => bytes.clear(),
    }
    bytes
}

/// Changes a file's bytes.
pub(super) fn change_file(file: &Path, change: FileChange) -> anyhow::Result<()> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    fs::write(file, changed(bytes, change)).with_context(|| format!("cannot damage {}", file.display()))
}

/// Copies a folder to a new path, with the modes of its files and folders.
pub(super) fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir(to).with_context(|| format!("cannot create {}", to.display()))?;
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target).with_context(|| format!("cannot write {}", target.display()))?;
        }
    }
    Ok(())
}

/// Replaces a folder with a copy.
pub(super) fn put_back(copy_of: &Path, folder: &Path) -> anyhow::Result<()> {
    fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    copy(copy_of, folder)
}

/// The contents of all files under a folder, without their paths.
pub(super) fn contents(folder: &Path) -> anyhow::Result<BTreeSet<Vec<u8>>> {
    let read = |file: &PathBuf| fs::read(file).with_context(|| format!("cannot read {}", file.display()));
    list(folder)?.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_what_they_are_called() {
        let bytes = || vec![0xff; 2000];
        let flipped = changed(bytes(), FileChange::Flip { at: 2000 * 8 + 17 });
        assert_eq!((flipped.len(), flipped[2]), (2000, 0xfd));
        assert_eq!(flipped.iter().filter(|byte| **byte != 0xff).count(), 1);
        assert_eq!(changed(bytes(), FileChange::Cut { kept: 250 }).len(), 500);
        let zeroed = changed(bytes(), FileChange::Zero { at: 1800 });
        assert_eq!((zeroed.len(), zeroed.iter().filter(|byte| **byte == 0).count()), (2000, 200));
        assert!(changed(bytes(), FileChange::Empty).is_empty());
        for change in [FileChange::Flip { at: 3 }, FileChange::Zero { at: 3 }, FileChange::Cut { kept: 1 }] {
            assert!(changed(Vec::new(), change).is_empty());
        }
    }

    #[test]
    fn a_damaged_file_is_one_of_the_folder_and_a_copy_is_put_back_whole() {
        let root = tempfile::tempdir().unwrap();
        let (home, older) = (root.path().join("home"), root.path().join("older"));
        fs::create_dir_all(home.join("sessions")).unwrap();
        for (name, text) in [("key", "1111"), ("sessions/a", "2222"), ("sessions/b", "3333"), ("empty", "")] {
            fs::write(home.join(name), text).unwrap();
        }
        copy(&home, &older).unwrap();
        let before = contents(&home).unwrap();
        assert_eq!(before.len(), 3);
        for seed in 0..20 {
            let (file, _) = damage(&home, &mut Draws::of(seed, 0)).unwrap();
            assert!(file.starts_with(&home));
            assert_ne!(contents(&home).unwrap(), before);
            put_back(&older, &home).unwrap();
            assert_eq!(contents(&home).unwrap(), before);
        }
        assert!(damage(&home.join("none"), &mut Draws::of(0, 0)).is_err());
    }
}
