//! Files under a folder: listing, damage, copies and comparison.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

use super::plan::{FileChange, FileDamage};

/// Bytes zeroed at once: a sector.
const ZEROED_BYTES: usize = 512;

/// All non-empty files under a folder, in order of their paths.
pub(super) fn list(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
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

/// Damages one file under a folder, and returns its path. Every folder is equally likely, so that an index
/// beside many blobs is hit too.
pub(super) fn damage(folder: &Path, damage: &FileDamage) -> anyhow::Result<PathBuf> {
    let mut folders: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
    for file in list(folder)? {
        folders.entry(file.parent().unwrap_or(folder).to_owned()).or_default().push(file);
    }
    let folders: Vec<Vec<PathBuf>> = folders.into_values().collect();
    let files = pick(&folders, damage.folder).with_context(|| format!("{} is empty", folder.display()))?;
    let file = pick(files, damage.file).context("a folder with files has one")?;
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    fs::write(file, changed(bytes, damage.change))
        .with_context(|| format!("cannot damage {}", file.display()))?;
    Ok(file.clone())
}

fn pick<T>(choices: &[T], draw: u64) -> Option<&T> {
    choices.get(usize::try_from(draw.checked_rem(choices.len() as u64)?).ok()?)
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
        FileChange::Cut { kept } => bytes.truncate(share(bytes.len(), kept)),
        FileChange::Zero { at: draw } => {
            let from = at(draw, bytes.len());
            bytes.iter_mut().skip(from).take(ZEROED_BYTES).for_each(|byte| *byte = 0);
        }
        FileChange::Empty => bytes.clear(),
    }
    bytes
}

/// A share of a length, in thousandths.
fn share(length: usize, thousandths: u64) -> usize {
    let length = length as u64;
    usize::try_from(length * thousandths.min(1000) / 1000).unwrap_or_default()
}

/// Truncates a file to a share in thousandths.
pub(super) fn cut(file: &Path, kept: u64) -> anyhow::Result<()> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    fs::write(file, changed(bytes, FileChange::Cut { kept }))
        .with_context(|| format!("cannot cut {}", file.display()))
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
        let file = damage(&home, &FileDamage { folder: 1, file: 1, change: FileChange::Empty }).unwrap();
        assert_eq!(file, home.join("sessions/b"));
        assert_eq!(contents(&home).unwrap().len(), 2);
        put_back(&older, &home).unwrap();
        assert_eq!(contents(&home).unwrap(), before);
        assert!(
            damage(&home.join("none"), &FileDamage { folder: 0, file: 0, change: FileChange::Empty })
                .is_err()
        );
    }
}
