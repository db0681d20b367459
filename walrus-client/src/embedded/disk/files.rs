//! The bytes of blobs, one file each, and the only code that touches those files.
//!
//! A file is written under a name that ends in `.part`, and renamed once it is whole and synced: a `.part` file is an
//! unfinished upload, and no other file is. Its final name is a number that no other file ever gets. It is then only
//! read or removed, so an index entry that names it switches from one content to another atomically.
//!
//! Layout: the blob, the BLAKE3 hash of each of its chunks, then the [`Trailer`]. The record in the trailer and in the
//! index has a hash over all chunk hashes ([`Root`]), so every chunk can be verified alone, with memory for one chunk.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;

use super::{
    health::Health,
    place,
    trailer::{FOOT_BYTES, Trailer},
};

/// Bytes that are written, verified and sent at a time.
pub(in crate::embedded) const CHUNK_BYTES: usize = 256 * 1024;
const HASH_BYTES: usize = 32;
/// The end of the names of unfinished uploads.
const PART: &str = "part";

/// A hash over the length of a blob and the hashes of its chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::embedded) struct Root(pub(super) [u8; HASH_BYTES]);

impl Root {
    pub(super) fn of(length: u64, hashes: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"baton store file").update(&length.to_le_bytes()).update(hashes);
        Self(hasher.finalize().into())
    }
}

/// Which file, and what must be in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::embedded) struct FileKey {
    /// The file's name: a rising serial, then 64 random bits.
    pub(super) number: u128,
    pub(in crate::embedded) length: u64,
    pub(super) root: Root,
}

/// The serial in a file's number: of two files of a blob, the newer one has the higher serial.
pub(super) fn serial_of(number: u128) -> u64 {
    u64::try_from(number >> 64).expect("64 bits are left")
}

/// The name of the file of this number.
pub(super) fn name_of(number: u128) -> String {
    format!("{number:032x}")
}

/// What a name in the folder stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    /// A whole file.
    Blob(u128),
    /// An unfinished upload, with its serial.
    Part(u64),
    /// Nothing of the store's.
    Foreign,
}

impl Name {
    pub(super) fn parse(name: &str) -> Self {
        let is_hex = |digits: &str| digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        let number = |digits: &str| u128::from_str_radix(digits, 16).ok().filter(|_| is_hex(digits));
        match name.split_once('.') {
            None if name.len() == 32 => number(name).map_or(Self::Foreign, Self::Blob),
            Some((digits, PART)) if digits.len() == 16 => number(digits)
                .map_or(Self::Foreign, |number| Self::Part(number.try_into().unwrap_or(u64::MAX))),
            _ => Self::Foreign,
        }
    }
}

/// The folder of the files.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Where folders can be opened and synced.
    handle: Option<File>,
    /// Whether a file was made since the folder itself was last synced.
    changed: Arc<AtomicBool>,
}

impl Folder {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            handle: place::open_folder(path)?,
            path: path.to_owned(),
            changed: Arc::new(AtomicBool::new(true)),
        })
    }

    pub(super) fn path_of(&self, number: u128) -> PathBuf {
        self.path.join(name_of(number))
    }

    pub(super) fn part_path(&self, serial: u64) -> PathBuf {
        self.path.join(format!("{serial:016x}.{PART}"))
    }

    /// A new file. The serial must never have been given before.
    pub(super) fn create(&self, serial: u64, health: Arc<Health>) -> io::Result<Writer> {
        let path = self.part_path(serial);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        let (folder, changed) = (self.path.clone(), self.changed.clone());
        Ok(Writer { file, path, folder, changed, health, length: 0, hashes: Vec::new(), kept: false })
    }

    /// Waits until the names of all files made so far are on disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        if let Some(handle) = &self.handle
            && self.changed.swap(false, Ordering::AcqRel)
        {
            handle.sync_all().inspect_err(|_| self.changed.store(true, Ordering::Release))?;
        }
        Ok(())
    }

    /// The names in the folder.
    pub(super) fn names(&self) -> io::Result<impl Iterator<Item = io::Result<String>>> {
        // A name that is no text is none of the store's.
        let names = fs::read_dir(&self.path)?;
        Ok(names.map(|entry| Ok(entry?.file_name().into_string().unwrap_or_default())))
    }

    /// Opens a file and verifies the hashes in it, or says `None` when they are not those of the key.
    pub(super) fn read(&self, key: FileKey) -> io::Result<Option<BlobFile>> {
        let file = File::open(self.path_of(key.number))?;
        let Some(hashes) = read_hashes(&file, key.length)? else { return Ok(None) };
        let right = Root::of(key.length, &hashes) == key.root;
        Ok(right.then_some(BlobFile { file, length: key.length, hashes }))
    }

    /// What a file says of itself, or `None` when it says nothing whole.
    pub(super) fn trailer(&self, number: u128) -> io::Result<Option<Trailer>> {
        let file = File::open(self.path_of(number))?;
        let end = file.metadata()?.len();
        let Some(foot_at) = end.checked_sub(FOOT_BYTES as u64) else { return Ok(None) };
        let mut foot = [0; FOOT_BYTES];
        place::read(&file, &mut foot, foot_at)?;
        let Some(length) = Trailer::content_length(&foot) else { return Ok(None) };
        let Some(content_at) = foot_at.checked_sub(length as u64) else { return Ok(None) };
        let mut bytes = vec![0; length + FOOT_BYTES];
        place::read(&file, &mut bytes, content_at)?;
        let trailer = Trailer::decode(&bytes).filter(|trailer| {
            let key = trailer.record.file;
            key.number == number && trailer_at(key.length) == Some(content_at)
        });
        Ok(trailer)
    }

    /// Reads a whole file and verifies it against its key.
    pub(super) fn verify(&self, key: FileKey) -> io::Result<Verdict> {
        let file = File::open(self.path_of(key.number))?;
        let Some(stored) = read_hashes(&file, key.length)? else { return Ok(Verdict::Changed) };
        let mut hashes = Vec::with_capacity(stored.len());
        let mut chunk = vec![0; CHUNK_BYTES];
        for number in 0..key.length.div_ceil(CHUNK_BYTES as u64) {
            let start = number * CHUNK_BYTES as u64;
            let length =
                usize::try_from((key.length - start).min(CHUNK_BYTES as u64)).expect("a chunk at most");
            let Some(bytes) = chunk.get_mut(..length) else { return Ok(Verdict::Changed) };
            place::read(&file, bytes, start)?;
            hashes.extend_from_slice(blake3::hash(bytes).as_bytes());
        }
        Ok(match Root::of(key.length, &hashes) == key.root {
            false => Verdict::Changed,
            true if hashes == stored => Verdict::Whole,
            true => Verdict::HashesChanged(hashes),
        })
    }

    /// Writes the hashes of a blob's chunks anew, where a damage changed them.
    pub(super) fn restore_hashes(&self, key: FileKey, hashes: &[u8]) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.path_of(key.number))?;
        place::write(&file, hashes, key.length)?;
        file.sync_data()
    }

    /// Writes the trailer of a blob's file anew, where a damage changed it.
    pub(super) fn restore_trailer(&self, trailer: &Trailer) -> io::Result<()> {
        let key = trailer.record.file;
        let file = OpenOptions::new().write(true).open(self.path_of(key.number))?;
        let at = trailer_at(key.length).ok_or(io::ErrorKind::InvalidData)?;
        let bytes = trailer.encode();
        place::write(&file, &bytes, at)?;
        file.set_len(at + bytes.len() as u64)?;
        file.sync_data()
    }

    /// Removes a file. One that is gone already is no error; readers that have it open keep it.
    pub(super) fn remove(&self, path: &Path) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Moves a file to another folder, under its name or one that is free there.
    pub(super) fn set_aside(&self, number: u128, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let name = name_of(number);
        let mut target = folder.join(&name);
        // Each earlier one took one name: the first free one ends the search.
        for count in 1.. {
            if !target.try_exists()? {
                break;
            }
            target = folder.join(format!("{name}.{count}"));
        }
        fs::rename(self.path_of(number), target)
    }

    /// Whether a file of a chunk's length can be written now. It does not stay.
    pub(super) fn probe(&self, serial: u64) -> io::Result<()> {
        let path = self.part_path(serial);
        let written = File::create(&path).and_then(|file| {
            place::write(&file, &[0x5a; CHUNK_BYTES], 0)?;
            file.sync_data()
        });
        // After a failure too: nothing of it is to stay.
        let removed = self.remove(&path);
        written.and(removed)
    }
}

/// What a file's bytes turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Whole,
    /// The blob is what it was, and the list of hashes in the file is not: this is the right one.
    HashesChanged(Vec<u8>),
    /// Bytes of the blob are missing or not what they were.
    Changed,
}

/// Where the trailer begins in the file of a blob of this length.
fn trailer_at(length: u64) -> Option<u64> {
    length.checked_add(length.div_ceil(CHUNK_BYTES as u64).checked_mul(HASH_BYTES as u64)?)
}

/// The hashes in a file, or `None` when the file ends before them.
fn read_hashes(file: &File, length: u64) -> io::Result<Option<Vec<u8>>> {
    let whole = trailer_at(length).is_some_and(|end| file.metadata().is_ok_and(|data| data.len() >= end));
    if !whole {
        return Ok(None);
    }
    let count = usize::try_from(length.div_ceil(CHUNK_BYTES as u64)).expect("the file is longer than that");
    let mut hashes = vec![0; count * HASH_BYTES];
    place::read(file, &mut hashes, length)?;
    Ok(Some(hashes))
}

/// A file that is being written. It is removed when this is dropped, unless it was kept.
#[derive(Debug)]
pub(in crate::embedded) struct Writer {
    file: File,
    path: PathBuf,
    folder: PathBuf,
    changed: Arc<AtomicBool>,
    health: Arc<Health>,
    length: u64,
    hashes: Vec<u8>,
    kept: bool,
}

impl Writer {
    /// Appends a chunk: of [`CHUNK_BYTES`], but for the last one.
    pub(in crate::embedded) fn write(&mut self, chunk: &[u8]) -> io::Result<()> {
        debug_assert!(self.length.is_multiple_of(CHUNK_BYTES as u64), "only the last chunk may be short");
        self.health.note(place::write(&self.file, chunk, self.length))?;
        self.length += chunk.len() as u64;
        self.hashes.extend_from_slice(blake3::hash(chunk).as_bytes());
        Ok(())
    }

    /// Which file this becomes under a number.
    pub(super) fn key(&self, number: u128) -> FileKey {
        FileKey { number, length: self.length, root: Root::of(self.length, &self.hashes) }
    }

    /// Writes hashes and trailer, waits until everything is on disk, and gives the file its final name. That the name
    /// lasts is another step: see [`Folder::sync`].
    pub(super) fn finish(&mut self, trailer: &Trailer) -> io::Result<()> {
        let tail = [&self.hashes[..], &trailer.encode()].concat();
        let written = place::write(&self.file, &tail, self.length).and_then(|()| self.file.sync_data());
        self.health.note(written)?;
        let path = self.folder.join(name_of(trailer.record.file.number));
        self.health.note(fs::rename(&self.path, &path))?;
        self.path = path;
        self.changed.store(true, Ordering::Release);
        Ok(())
    }

    /// From now on the file stays.
    pub(super) fn keep(mut self) {
        self.kept = true;
    }

    /// Bytes written.
    pub(in crate::embedded) fn length(&self) -> u64 {
        self.length
    }

    /// Reads back what was written, for computing its ID.
    pub(in crate::embedded) fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= self.length);
        end.ok_or(io::ErrorKind::UnexpectedEof)?;
        place::read(&self.file, buffer, offset)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.kept
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(%error, "an unfinished upload could not be removed; the next start does it");
        }
    }
}

/// The file of a blob, whose hashes are verified and whose chunks are verified as they are read.
#[derive(Debug)]
pub(in crate::embedded) struct BlobFile {
    file: File,
    pub(in crate::embedded) length: u64,
    hashes: Vec<u8>,
}

impl BlobFile {
    /// Number of chunks.
    pub(in crate::embedded) fn chunks(&self) -> u64 {
        (self.hashes.len() / HASH_BYTES) as u64
    }

    /// A chunk whose hash is right, or `None`.
    pub(in crate::embedded) fn chunk(&self, number: u64) -> io::Result<Option<Bytes>> {
        let start = number * CHUNK_BYTES as u64;
        let length = (self.length - start).min(CHUNK_BYTES as u64);
        let mut bytes = vec![0; usize::try_from(length).expect("a chunk at most")];
        match place::read(&self.file, &mut bytes, start) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let hashes = self.hashes.as_chunks::<HASH_BYTES>().0;
        let expected = usize::try_from(number).ok().and_then(|number| hashes.get(number));
        let right = expected.is_some_and(|hash| blake3::hash(&bytes) == *hash);
        Ok(right.then(|| bytes.into()))
    }
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
