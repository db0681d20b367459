//! Reads the index's log: both copies together, in the order of their serials.

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io,
    path::Path,
    sync::Arc,
};

use super::{
    super::config::OpenError,
    damage::{DamageKind, Damages},
    file_io,
    files::serial_of,
    frame::{Framing, HEADER_BYTES, Header, HeaderError, LAYOUT, Scanner, Stretch},
    journal::{COPIES, Location, View},
    record::Entry,
    state::IndexTable,
};

/// The log's content and its state.
#[derive(Debug)]
pub(super) struct Index {
    /// The header and both copies, unless no copy can be read.
    pub(super) log: Option<(Header, View)>,
    pub(super) table: IndexTable,
    /// Removed blobs, with the serial of the removal.
    pub(super) removed: HashMap<[u8; 32], u64>,
    /// A number above all used numbers.
    pub(super) next: u64,
    /// The end of both copies.
    pub(super) end: u64,
    /// The copies differ or are damaged: they must be rewritten.
    pub(super) is_stale: bool,
    /// Copies exist, but none can be read.
    pub(super) is_lost: bool,
}

/// A stretch of one copy without a whole entry.
#[derive(Debug)]
struct Gap {
    from: u64,
    to: u64,
    /// The serial of the entry before it.
    after: u64,
    is_filled: bool,
}

/// One copy, read entry by entry.
struct Side<'a> {
    scanner: Scanner<'a>,
    copy: u8,
    /// The last entry that was read and not taken yet.
    entry: Option<(Location, Vec<u8>)>,
    serial: u64,
    /// The serial of the entry before it.
    before: u64,
    gaps: Vec<Gap>,
    /// Entries that only the other copy has, where this copy has no gap.
    missing: u64,
}

impl<'a> Side<'a> {
    fn new(file: &'a File, framing: Framing, copy: u8) -> io::Result<Self> {
        let scanner = Scanner::new(file, framing)?;
        let mut side =
            Self { scanner, copy, entry: None, serial: 0, before: 0, gaps: Vec::new(), missing: 0 };
        side.advance();
        Ok(side)
    }

    /// Reads up to the next entry.
    #[expect(clippy::indexing_slicing, reason = "there are two copies")]
    fn advance(&mut self) {
        self.entry = None;
        self.before = self.serial;
        loop {
            match self.scanner.next() {
                Ok(None) => return,
                // A read error counts as damage up to the end.
                Err(error) => {
                    tracing::error!(%error, copy = COPIES[usize::from(self.copy)], "the index cannot be read on");
                    self.gap(self.scanner.offset(), self.scanner.end());
                    return;
                }
                Ok(Some(Stretch::Damaged { from, to })) => self.gap(from, to),
                Ok(Some(Stretch::Frame { serial, payload, offset, length })) => {
                    // Skips entries out of order: remains of a failed write.
                    if serial > self.serial {
                        self.serial = serial;
                        self.entry = Some((Location { serial, offset, length, copy: self.copy }, payload));
                        return;
                    }
                }
            }
        }
    }

    fn gap(&mut self, from: u64, to: u64) {
        self.gaps.push(Gap { from, to, after: self.serial, is_filled: false });
    }

    /// Notes an entry that only the other copy has.
    fn lacks(&mut self) {
        let before = self.before;
        match self.gaps.last_mut().filter(|gap| gap.after == before) {
            Some(gap) => gap.is_filled = true,
            None => self.missing += 1,
        }
    }

    fn next_serial(&self) -> u64 {
        self.entry.as_ref().map_or(u64::MAX, |(location, _)| location.serial)
    }
}

/// The path of a copy within the store's folder.
#[expect(clippy::indexing_slicing, reason = "there are two copies")]
fn path_in_store(copy: usize) -> String {
    format!("index/{}", COPIES[copy])
}

/// Reads the log in a folder. `writable` opens the copies for writing too.
pub(super) fn load(
    folder: &Path,
    store: &Path,
    writable: bool,
    damages: &mut Damages,
) -> Result<Index, OpenError> {
    let no_path = |source: io::Error| OpenError::path(store, source);
    let mut files = Vec::with_capacity(2);
    for name in COPIES {
        match OpenOptions::new().read(true).write(writable).open(folder.join(name)) {
            Ok(file) => files.push(Some(Arc::new(file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => files.push(None),
            Err(error) => return Err(no_path(error)),
        }
    }
    let headers: Vec<_> = files.iter().map(|file| file.as_deref().map(read_header)).collect();
    let mut best: Option<Header> = None;
    for header in headers.iter().flatten() {
        match header {
            Ok(header) if best.is_none_or(|best| best.generation < header.generation) => best = Some(*header),
            _ => {}
        }
    }
    if best.is_none()
        && let Some(found) = headers.iter().flatten().find_map(|header| match header {
            Err(HeaderError::Layout(found)) => Some(*found),
            _ => None,
        })
    {
        return Err(OpenError::Layout { path: store.to_owned(), found: found.to_string(), wanted: LAYOUT });
    }
    let mut index = Index {
        log: None,
        table: IndexTable::default(),
        removed: HashMap::new(),
        next: 1,
        end: 0,
        is_stale: true,
        is_lost: best.is_none() && files.iter().any(Option::is_some),
    };
    let Some(header) = best else { return Ok(index) };
    let framing = Framing::new(&header.salt);
    let (mut sides, mut is_whole) = (Vec::new(), true);
    for (copy, (file, found)) in files.iter().zip(&headers).enumerate() {
        match (file, found) {
            (Some(file), Some(Ok(found))) if found.salt == header.salt => {
                is_whole &= found.generation == header.generation;
                let number = u8::try_from(copy).expect("there are two");
                sides.push(Side::new(file, framing, number).map_err(no_path)?);
            }
            _ => {
                damages.add(DamageKind::IndexHeader, path_in_store(copy), None);
                is_whole = false;
                // A damaged header does not affect the entries after it.
                if let Some(file) = file {
                    let number = u8::try_from(copy).expect("there are two");
                    sides.push(Side::new(file, framing, number).map_err(no_path)?);
                }
            }
        }
    }
    merge(&mut sides, &mut index, damages);
    let ends: Vec<u64> = sides.iter().map(|side| side.scanner.end()).collect();
    let is_even = sides.iter().all(|side| side.gaps.is_empty() && side.missing == 0);
    index.end = ends.iter().copied().max().unwrap_or(HEADER_BYTES as u64);
    index.is_stale = !(is_whole && is_even && ends.windows(2).all(|ends| ends.first() == ends.last()));
    let mut readable = files.into_iter().flatten();
    if let Some(first) = readable.next() {
        let second = readable.next().unwrap_or_else(|| first.clone());
        index.log = Some((header, View { copies: [first, second], framing }));
    }
    Ok(index)
}

fn read_header(file: &File) -> Result<Header, HeaderError> {
    let mut bytes = [0; HEADER_BYTES];
    file_io::read(file, &mut bytes, 0).map_err(|_| HeaderError::Damaged)?;
    Header::decode(&bytes)
}

/// Takes the entries of both copies in the order of their serials, and reports damage.
fn merge(sides: &mut [Side<'_>], index: &mut Index, damages: &mut Damages) {
    loop {
        let serial = sides.iter().map(Side::next_serial).min().unwrap_or(u64::MAX);
        if serial == u64::MAX {
            break;
        }
        let mut taken = None;
        for side in sides.iter_mut() {
            if side.next_serial() == serial {
                let entry = side.entry.take();
                taken = taken.or(entry);
                side.advance();
            } else {
                side.lacks();
            }
        }
        if let Some((location, payload)) = taken {
            index.take(location, &payload);
        }
    }
    for side in sides {
        let name = path_in_store(usize::from(side.copy));
        for gap in &side.gaps {
            let kind = if gap.is_filled { DamageKind::IndexEntry } else { DamageKind::IndexEntryLost };
            damages.add(kind, format!("{name} (bytes {} to {})", gap.from, gap.to), None);
        }
        if side.missing > 0 {
            // Expected after a power loss or a kill between two writes.
            tracing::info!(
                copy = name,
                entries = side.missing,
                "entries that only the other copy had are written again"
            );
        }
    }
}

impl Index {
    fn take(&mut self, location: Location, payload: &[u8]) {
        self.next = self.next.max(location.serial.saturating_add(1));
        let Some(entry) = Entry::decode(payload) else {
            tracing::error!(
                serial = location.serial,
                "an entry of the index is of an unknown kind and left out"
            );
            return;
        };
        match &entry {
            Entry::Blob(id, record) => {
                self.removed.remove(&id.0);
                let numbers = record.objects.iter().map(|object| object.number);
                let highest = numbers.chain([serial_of(record.file.number)]).max().unwrap_or(0);
                self.next = self.next.max(highest.saturating_add(1));
            }
            Entry::BlobRemoved(id) => {
                self.removed.insert(id.0, location.serial);
            }
            _ => {}
        }
        self.table.apply(&entry, location);
    }
}
