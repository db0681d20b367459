//! Checks that a folder can be written, and that its disk has space.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{Check, Code};

/// Free space below which writes soon fail: each database rewrites its log.
const FULL_BYTES: u64 = 256 << 20;
/// Free space below which a doctor warns.
const LOW_BYTES: u64 = 2 << 30;

/// A disk.
#[derive(Clone, Debug)]
pub struct Disk {
    /// An existing folder on it.
    folder: PathBuf,
    /// The disk's ID.
    pub id: u64,
    /// Free bytes for users other than root.
    free: u64,
}

impl Disk {
    /// The disk of a folder, or of its nearest existing ancestor.
    #[must_use]
    pub fn of(place: &Path) -> Option<Self> {
        let folder = place.ancestors().find(|folder| folder.is_dir())?;
        let stat = rustix::fs::statvfs(folder).ok()?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        Some(Self { folder: folder.to_owned(), id: stat.f_fsid, free })
    }
}

/// Writes a file into a folder, and removes it.
///
/// # Errors
/// Those of the file system.
pub fn try_to_write(folder: &Path) -> io::Result<()> {
    let path = folder.join(format!(".doctor-{}", std::process::id()));
    let written = fs::write(&path, b"a test by Baton's doctor\n");
    // A failed write leaves no file.
    let removed = fs::remove_file(&path);
    written.and(removed)
}

/// Checks the free space of a disk for daily work, and for a model of `needed` bytes.
pub fn check_space(check: &mut Check, (full, low): (Code, Code), disk: &Disk, needed: u64) {
    let detail = format!("{} MB free at {}", disk.free / 1_000_000, disk.folder.display());
    if disk.free < FULL_BYTES.saturating_add(needed) {
        let detail = match needed {
            0 => detail,
            needed => format!("{detail}, and the model needs {} MB", needed / 1_000_000),
        };
        check.found(full, detail);
    } else if disk.free < LOW_BYTES {
        check.found(low, detail);
    } else {
        check.saw(detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_low_and_then_full() {
        let codes = (Code::problem("K1", "full", "make room"), Code::warning("K2", "low", "make room"));
        for (free, needed, expected) in [
            (LOW_BYTES, 0, &[][..]),
            (LOW_BYTES - 1, 0, &["K2"]),
            (FULL_BYTES - 1, 0, &["K1"]),
            (LOW_BYTES, LOW_BYTES, &["K1"]),
        ] {
            let (mut check, disk) = (Check::new("disk"), Disk { folder: "/d".into(), id: 0, free });
            check_space(&mut check, codes, &disk, needed);
            assert_eq!(check.codes(), expected, "{free} {needed}");
        }
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("a/b");
        assert_eq!(Disk::of(&missing).unwrap().folder, folder.path());
        assert!(try_to_write(folder.path()).is_ok() && try_to_write(&missing).is_err());
        assert!(fs::read_dir(folder.path()).unwrap().next().is_none());
    }
}
