//! A mark: a small file with counts of another file's contents at its last flush. If the other file loses its
//! end, it has fewer items than the mark says. Without the mark it would look complete.
//!
//! The mark is written after the flush of the counted file, and is not flushed itself. So it may be behind
//! that file, never ahead of it. It has two slots with checksums, written in turn, so a crash leaves at least
//! one of them whole.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt as _,
    path::Path,
};

use baton_keys::files::replace_private;

/// Counts in a mark.
pub(crate) const MARK_COUNTS: usize = 2;
const MAGIC: &[u8; 8] = b"bmark-1\n";
const CHECKSUM_BYTES: usize = 16;
/// Layout: magic, number of the write, counts, checksum.
const SLOT_BYTES: usize = 8 + 8 + 8 * MARK_COUNTS + CHECKSUM_BYTES;

/// The counts; the owner defines their order.
pub(crate) type Counts = [u64; MARK_COUNTS];

/// Content of a mark at opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastMark {
    /// There is no mark.
    Missing,
    /// The mark itself is damaged.
    Damaged,
    /// Minimum counts of the file.
    Counts(Counts),
}

/// An open mark.
#[derive(Debug)]
pub(crate) struct Mark {
    file: File,
    writes: u64,
}

impl Mark {
    /// Reads a mark. Blocking.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn read(path: &Path) -> io::Result<LastMark> {
        match fs::read(path) {
            Ok(bytes) => Ok(parse(&bytes).map_or(LastMark::Damaged, |(_, counts)| LastMark::Counts(counts))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(LastMark::Missing),
            Err(error) => Err(error),
        }
    }

    /// Creates a mark with these counts and replaces an existing one; flushed. Blocking.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn create(path: &Path, counts: Counts) -> io::Result<Self> {
        replace_private(path, &[slot(0, counts), slot(1, counts)].concat())?;
        let file = OpenOptions::new().write(true).open(path)?;
        Ok(Self { file, writes: 2 })
    }

    /// Writes the counts, unflushed. Blocking, but only for a write to memory.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn set(&mut self, counts: Counts) -> io::Result<()> {
        let offset = (self.writes % 2) * SLOT_BYTES as u64;
        self.file.write_all_at(&slot(self.writes, counts), offset)?;
        self.writes += 1;
        Ok(())
    }
}

fn slot(write: u64, counts: Counts) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(write.to_le_bytes());
    bytes.extend(counts.iter().flat_map(|count| count.to_le_bytes()));
    let checksum = blake3::hash(&bytes);
    bytes.extend(checksum.as_bytes().iter().take(CHECKSUM_BYTES));
    bytes
}

/// The latest whole slot: the number of its write, and its counts.
fn parse(bytes: &[u8]) -> Option<(u64, Counts)> {
    bytes.chunks(SLOT_BYTES).take(2).filter_map(parse_slot).max_by_key(|(write, _)| *write)
}

fn parse_slot(bytes: &[u8]) -> Option<(u64, Counts)> {
    let numbers = bytes.strip_prefix(MAGIC)?;
    let number =
        |index: usize| Some(u64::from_le_bytes(numbers.chunks_exact(8).nth(index)?.try_into().ok()?));
    let (write, mut counts) = (number(0)?, [0; MARK_COUNTS]);
    for (index, count) in counts.iter_mut().enumerate() {
        *count = number(index + 1)?;
    }
    (slot(write, counts) == bytes).then_some((write, counts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_was_written_last_and_survives_a_torn_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mark");
        assert_eq!(Mark::read(&path).unwrap(), LastMark::Missing);
        let mut mark = Mark::create(&path, [1, 2]).unwrap();
        for count in 4..9 {
            mark.set([count, 5]).unwrap();
            assert_eq!(Mark::read(&path).unwrap(), LastMark::Counts([count, 5]));
        }
        let whole = fs::read(&path).unwrap();
        // A crash may tear either slot. The other slot still has the counts before it.
        for byte in 0..whole.len() {
            let mut torn = whole.clone();
            torn[byte] ^= 1;
            fs::write(&path, &torn).unwrap();
            let LastMark::Counts([count, 5]) = Mark::read(&path).unwrap() else { panic!("byte {byte}") };
            assert!(count == 8 || count == 7);
        }
        for nothing in [&b""[..], &whole[..SLOT_BYTES - 1], &vec![0; whole.len()]] {
            fs::write(&path, nothing).unwrap();
            assert_eq!(Mark::read(&path).unwrap(), LastMark::Damaged);
        }
    }
}
