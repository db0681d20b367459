//! The log of the index, in two copies: every entry goes to both, and the first is synced.
//!
//! Damage in one copy costs nothing: the other has the same entry at the same place. Reads verify entries,
//! from either copy. The log is rewritten when most of it is outdated.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    file_io,
    frame::{Framing, Header},
};

/// The names of the copies in the index's folder.
pub(super) const COPIES: [&str; 2] = ["a.log", "b.log"];
/// Their names during a rewrite.
const NEW_COPIES: [&str; 2] = ["a.new", "b.new"];
/// Outdated bytes that a small log may keep.
const SLACK_BYTES: u64 = 8 * 1024 * 1024;

/// The position of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) serial: u64,
    pub(super) offset: u64,
    pub(super) length: u32,
    /// A copy that has it.
    pub(super) copy: u8,
}

/// Both copies, for reading. A view stays valid after a rewrite of the log.
#[derive(Debug, Clone)]
pub(super) struct View {
    pub(super) copies: [Arc<File>; 2],
    pub(super) framing: Framing,
}

impl View {
    /// The payload of an entry, or `None` when no copy has it whole.
    pub(super) fn read(&self, location: Location) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; usize::try_from(location.length).expect("a frame at most")];
        let [first, second] = &self.copies;
        let copies = if location.copy == 0 { [first, second] } else { [second, first] };
        let mut failed = None;
        for (tried, copy) in copies.into_iter().enumerate() {
            match file_io::read(copy, &mut bytes, location.offset) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => continue,
                Err(error) => {
                    failed = Some(error);
                    continue;
                }
            }
            let decoded = self.framing.decode(&bytes).filter(|(serial, ..)| *serial == location.serial);
            if let Some((_, payload, _)) = decoded {
                if tried > 0 {
                    tracing::warn!(
                        offset = location.offset,
                        "an entry is damaged in one copy of the index and whole in the other; a restart restores it"
                    );
                }
                return Ok(Some(payload.to_vec()));
            }
        }
        failed.map_or(Ok(None), Err)
    }
}

/// The log during writing.
#[derive(Debug)]
pub(super) struct Journal {
    folder: PathBuf,
    header: Header,
    view: View,
    end: u64,
    /// Bytes that were not outdated at the last count.
    base: u64,
    /// A sync failed: the files' content is uncertain, and they are rewritten before any other write.
    broken: bool,
}

impl Journal {
    /// The log as found on disk. `live` bytes of it are not outdated.
    pub(super) fn found(folder: &Path, header: Header, view: View, end: u64, live: u64) -> Self {
        Self { folder: folder.to_owned(), header, view, end, base: live, broken: false }
    }

    /// Rewrites both copies from the first byte: into new files, synced, which then take the names.
    ///
    /// The second value has the position of each entry. An error leaves the old copies unchanged.
    pub(super) fn write_anew(
        folder: &Path,
        header: Header,
        entries: impl Iterator<Item = (u64, Vec<u8>)>,
    ) -> io::Result<(Self, Vec<Location>)> {
        let written = Self::write_copies(folder, &header, entries);
        if written.is_err() {
            for name in NEW_COPIES {
                // Nothing in them is needed, and the next attempt starts them again.
                let _ = fs::remove_file(folder.join(name));
            }
        }
        let (view, end, locations) = written?;
        let base = end;
        Ok((Self { folder: folder.to_owned(), header, view, end, base, broken: false }, locations))
    }

    fn write_copies(
        folder: &Path,
        header: &Header,
        entries: impl Iterator<Item = (u64, Vec<u8>)>,
    ) -> io::Result<(View, u64, Vec<Location>)> {
        let framing = Framing::new(&header.salt);
        let create = |name: &str| {
            let mut options = OpenOptions::new();
            options
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(folder.join(name))
                .map(BufWriter::new)
        };
        let [first, second] = NEW_COPIES;
        let mut copies = [create(first)?, create(second)?];
        let bytes = header.encode();
        copies.iter_mut().try_for_each(|copy| copy.write_all(&bytes))?;
        let (mut offset, mut locations) = (bytes.len() as u64, Vec::new());
        for (serial, payload) in entries {
            let frame = framing.encode(serial, &payload);
            copies.iter_mut().try_for_each(|copy| copy.write_all(&frame))?;
            let length = u32::try_from(frame.len()).expect("a frame at most");
            locations.push(Location { serial, offset, length, copy: 0 });
            offset += u64::from(length);
        }
        let mut done = Vec::with_capacity(2);
        for copy in copies {
            let file = copy.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.sync_all()?;
            done.push(Arc::new(file));
        }
        // The second copy takes its name only when the first copy's name is durable.
        for (from, to) in NEW_COPIES.into_iter().zip(COPIES) {
            fs::rename(folder.join(from), folder.join(to))?;
            if let Some(handle) = file_io::open_folder(folder)? {
                handle.sync_all()?;
            }
        }
        let copies = <[Arc<File>; 2]>::try_from(done).expect("two were made");
        Ok((View { copies, framing }, offset, locations))
    }

    pub(super) fn view(&self) -> View {
        self.view.clone()
    }

    /// The header of the next log.
    pub(super) fn next_header(&self) -> Header {
        Header { generation: self.header.generation.saturating_add(1), ..self.header }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Appends an entry to both copies, or to neither. The next sync of the first copy makes it durable.
    pub(super) fn append(&mut self, serial: u64, payload: &[u8]) -> io::Result<Location> {
        let frame = self.view.framing.encode(serial, payload);
        let length = u32::try_from(frame.len()).expect("a frame at most");
        let written = self.view.copies.iter().try_for_each(|copy| file_io::write(copy, &frame, self.end));
        if let Err(error) = written {
            for copy in &self.view.copies {
                // The next entry overwrites any bytes after the end; until then they are only untidy.
                let _ = copy.set_len(self.end);
            }
            return Err(error);
        }
        let location = Location { serial, offset: self.end, length, copy: 0 };
        self.end += u64::from(length);
        Ok(location)
    }

    /// Whether more than half of the log is outdated, or its files are uncertain.
    pub(super) fn is_rewrite_due(&self) -> bool {
        self.broken || self.end > self.base.saturating_mul(2).saturating_add(SLACK_BYTES)
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Notes a failed sync.
    pub(super) fn broke(&mut self) {
        self.broken = true;
    }

    /// Notes a failed rewrite: the next attempt comes once the log has doubled again.
    pub(super) fn postpone_rewrite(&mut self) {
        self.base = self.end;
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn entries_are_read_from_either_copy_and_not_when_both_are_damaged() {
        let folder = TempDir::new().unwrap();
        let header = Header { shards: 10, generation: 0, salt: [1; 32] };
        let first = std::iter::once((1, b"first".to_vec()));
        let (mut journal, mut locations) = Journal::write_anew(folder.path(), header, first).unwrap();
        locations.push(journal.append(2, b"second").unwrap());
        let [a, b] = COPIES.map(|name| folder.path().join(name));
        assert_eq!(fs::read(&a).unwrap(), fs::read(&b).unwrap());
        let flip = |path: &Path, location: Location| {
            let mut bytes = fs::read(path).unwrap();
            bytes[usize::try_from(location.offset).unwrap() + 22] ^= 4;
            // In place: the journal has the files open.
            file_io::write(&OpenOptions::new().write(true).open(path).unwrap(), &bytes, 0).unwrap();
        };
        for (path, location, payload) in
            [(&a, locations[0], &b"first"[..]), (&b, locations[1], &b"second"[..])]
        {
            flip(path, location);
            assert_eq!(journal.view().read(location).unwrap().unwrap(), payload);
        }
        flip(&b, locations[0]);
        assert_eq!(journal.view().read(locations[0]).unwrap(), None);
        assert_eq!(journal.view().read(Location { serial: 9, ..locations[1] }).unwrap(), None);
    }
}
