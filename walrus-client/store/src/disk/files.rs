//! The bytes of blobs, one file each, and the only code that touches those files.
//!
//! A new file's name ends in `.part`. It is renamed once it is whole and synced, so only unfinished uploads
//! are `.part` files. The final name is a number that no other file ever gets. The file is then only read or
//! removed. So an index entry that names it switches from one content to another atomically.
//!
//! Layout: the blob, the BLAKE3 hash of each of its chunks, then the [`Trailer`]. The record in the trailer
//! and in the index has a hash over all chunk hashes ([`Root`]). So every chunk can be verified alone, in
//! memory for one chunk.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use baton_kit::entries::free_path;
use bytes::Bytes;

use super::{
    health::WriteHealth,
    trailer::{FOOT_BYTES, Trailer},
};

/// Bytes per write, check and send.
pub(crate) const CHUNK_BYTES: usize = 256 * 1024;
const HASH_BYTES: usize = 32;
/// The extension of unfinished uploads.
const PART: &str = "part";

/// A hash over the length of a blob and the hashes of its chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Root(pub(super) [u8; HASH_BYTES]);

impl Root {
    pub(super) fn of(length: u64, hashes: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"baton store file").update(&length.to_le_bytes()).update(hashes);
        Self(hasher.finalize().into())
    }
}

/// The name of a file, and its required content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileKey {
    /// The file's name: a rising serial, then 64 random bits.
    pub(super) number: u128,
    pub(crate) length: u64,
    pub(super) root: Root,
}

/// The serial in a file's number: a blob's newer file has the higher serial.
pub(super) fn serial_of(number: u128) -> u64 {
    u64::try_from(number >> 64).expect("64 bits are left")
}

/// The name of the file with this number.
pub(super) fn name_of(number: u128) -> String {
    format!("{number:032x}")
}

/// The meaning of a name in the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    /// A whole file.
    Blob(u128),
    /// An unfinished upload, with its serial.
    Part(u64),
    /// Not a file of the store.
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
    /// For syncs of its names.
    handle: File,
    /// Whether a file was made since the folder's last sync.
    changed: Arc<AtomicBool>,
}

impl Folder {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            handle: File::open(path)?,
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

    /// A new file. Each serial may be used only once.
    pub(super) fn create(&self, serial: u64, health: Arc<WriteHealth>) -> io::Result<Writer> {
        let path = self.part_path(serial);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        let (folder, changed) = (self.path.clone(), self.changed.clone());
        Ok(Writer { file, path, folder, changed, health, length: 0, hashes: Vec::new(), kept: false })
    }

    /// Waits until the names of all files so far are on disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        if self.changed.swap(false, Ordering::AcqRel) {
            self.handle.sync_all().inspect_err(|_| self.changed.store(true, Ordering::Release))?;
        }
        Ok(())
    }

    /// The names in the folder.
    pub(super) fn names(&self) -> io::Result<impl Iterator<Item = io::Result<String>>> {
        // A name that is not UTF-8 is not the store's.
        let names = fs::read_dir(&self.path)?;
        Ok(names.map(|entry| Ok(entry?.file_name().into_string().unwrap_or_default())))
    }

    /// Opens a file and verifies its hashes; `None` when they do not match the key.
    pub(super) fn read(&self, key: FileKey) -> io::Result<Option<BlobFile>> {
        let file = File::open(self.path_of(key.number))?;
        let Some(hashes) = read_hashes(&file, key.length)? else { return Ok(None) };
        let right = Root::of(key.length, &hashes) == key.root;
        Ok(right.then_some(BlobFile { file, length: key.length, hashes }))
    }

    /// A file's description of itself, or `None` when it is damaged.
    pub(super) fn trailer(&self, number: u128) -> io::Result<Option<Trailer>> {
        let file = File::open(self.path_of(number))?;
        let end = file.metadata()?.len();
        let Some(foot_at) = end.checked_sub(FOOT_BYTES as u64) else { return Ok(None) };
        let mut foot = [0; FOOT_BYTES];
        file.read_exact_at(&mut foot, foot_at)?;
        let Some(length) = Trailer::content_length(&foot) else { return Ok(None) };
        let Some(content_at) = foot_at.checked_sub(length as u64) else { return Ok(None) };
        let mut bytes = vec![0; length + FOOT_BYTES];
        file.read_exact_at(&mut bytes, content_at)?;
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
            file.read_exact_at(bytes, start)?;
            hashes.extend_from_slice(blake3::hash(bytes).as_bytes());
        }
        Ok(match Root::of(key.length, &hashes) == key.root {
            false => Verdict::Changed,
            true if hashes == stored => Verdict::Whole,
            true => Verdict::HashesChanged(hashes),
        })
    }

    /// Rewrites the hashes of a blob's chunks after damage.
    pub(super) fn restore_hashes(&self, key: FileKey, hashes: &[u8]) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.path_of(key.number))?;
        file.write_all_at(hashes, key.length)?;
        file.sync_data()
    }

    /// Rewrites the trailer of a blob's file after damage.
    pub(super) fn restore_trailer(&self, trailer: &Trailer) -> io::Result<()> {
        let key = trailer.record.file;
        let file = OpenOptions::new().write(true).open(self.path_of(key.number))?;
        let at = trailer_at(key.length).ok_or(io::ErrorKind::InvalidData)?;
        let bytes = trailer.encode();
        file.write_all_at(&bytes, at)?;
        file.set_len(at + bytes.len() as u64)?;
        file.sync_data()
    }

    /// Removes a file. A missing file is no error; readers that have it open can still read it.
    pub(super) fn remove(&self, path: &Path) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Moves a file to another folder, under its name or a free variant of it.
    pub(super) fn quarantine(&self, number: u128, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let target = free_path(folder, &name_of(number))?;
        fs::rename(self.path_of(number), target)
    }

    /// Whether a file of a chunk's length can be written now. Removes it again.
    pub(super) fn probe(&self, serial: u64) -> io::Result<()> {
        let path = self.part_path(serial);
        let written = File::create(&path).and_then(|file| {
            file.write_all_at(&[0x5a; CHUNK_BYTES], 0)?;
            file.sync_data()
        });
        // Also after a failure: no part may stay.
        let removed = self.remove(&path);
        written.and(removed)
    }
}

/// The result of checking a file's bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Whole,
    /// The blob is intact, but the list of hashes in the file is not: this is the right list.
    HashesChanged(Vec<u8>),
    /// Bytes of the blob are missing or changed.
    Changed,
}

/// The position of the trailer in the file of a blob of this length.
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
    file.read_exact_at(&mut hashes, length)?;
    Ok(Some(hashes))
}

/// A file in the making. It is removed on drop, unless it was kept.
#[derive(Debug)]
pub(crate) struct Writer {
    file: File,
    path: PathBuf,
    folder: PathBuf,
    changed: Arc<AtomicBool>,
    health: Arc<WriteHealth>,
    length: u64,
    hashes: Vec<u8>,
    kept: bool,
}

impl Writer {
    /// Appends a chunk of [`CHUNK_BYTES`]; only the last may be shorter.
    pub(crate) fn write(&mut self, chunk: &[u8]) -> io::Result<()> {
        debug_assert!(self.length.is_multiple_of(CHUNK_BYTES as u64), "only the last chunk may be short");
        self.health.note(self.file.write_all_at(chunk, self.length))?;
        self.length += chunk.len() as u64;
        self.hashes.extend_from_slice(blake3::hash(chunk).as_bytes());
        Ok(())
    }

    /// The key of this file under a number.
    pub(super) fn key(&self, number: u128) -> FileKey {
        FileKey { number, length: self.length, root: Root::of(self.length, &self.hashes) }
    }

    /// Writes hashes and trailer, syncs the file, and gives it its final name. [`Folder::sync`] makes the
    /// name durable.
    pub(super) fn finish(&mut self, trailer: &Trailer) -> io::Result<()> {
        let tail = [&self.hashes[..], &trailer.encode()].concat();
        let written = self.file.write_all_at(&tail, self.length).and_then(|()| self.file.sync_data());
        self.health.note(written)?;
        let path = self.folder.join(name_of(trailer.record.file.number));
        self.health.note(fs::rename(&self.path, &path))?;
        self.path = path;
        self.changed.store(true, Ordering::Release);
        Ok(())
    }

    /// Makes the file permanent.
    pub(super) fn keep(mut self) {
        self.kept = true;
    }

    /// Bytes written.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Reads written bytes back, to compute their ID.
    pub(crate) fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= self.length);
        end.ok_or(io::ErrorKind::UnexpectedEof)?;
        self.file.read_exact_at(buffer, offset)
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

/// The file of a blob with verified hashes; reads verify the chunks.
#[derive(Debug)]
pub(crate) struct BlobFile {
    file: File,
    pub(crate) length: u64,
    hashes: Vec<u8>,
}

impl BlobFile {
    /// Number of chunks.
    pub(crate) fn chunks(&self) -> u64 {
        (self.hashes.len() / HASH_BYTES) as u64
    }

    /// A chunk with the right hash, or `None`.
    pub(crate) fn chunk(&self, number: u64) -> io::Result<Option<Bytes>> {
        let start = number * CHUNK_BYTES as u64;
        let length = (self.length - start).min(CHUNK_BYTES as u64);
        let mut bytes = vec![0; usize::try_from(length).expect("a chunk at most")];
        match self.file.read_exact_at(&mut bytes, start) {
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
mod tests;
