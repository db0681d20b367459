//! The bytes of blobs, one file each, and the only code that touches those files.
//!
//! Not in sled: it keeps values above 128 KiB in files that it never syncs, writes up to sixteen values again
//! whenever one beside them changes, and holds what it writes in memory (200 MB of chunks took 216 MB of memory with
//! a cache of 16 MB, and up to 500 MB of disk). A blob's file has a number that no other ever gets, is
//! written once and then only read or removed, so a record in sled that names it switches from one content to another
//! atomically.
//!
//! Layout: the blob, then the BLAKE3 hash of each of its chunks. The record has a hash over all of it ([`Root`]), so
//! every chunk can be verified alone, with memory for one chunk.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;

use super::place;

/// Bytes that are written, verified and sent at a time.
pub(in crate::embedded) const CHUNK_BYTES: usize = 256 * 1024;
const HASH_BYTES: usize = 32;

/// A hash over the length of a blob and the hashes of its chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::embedded) struct Root(pub(super) [u8; HASH_BYTES]);

impl Root {
    fn of(length: u64, hashes: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"baton store file").update(&length.to_le_bytes()).update(hashes);
        Self(hasher.finalize().into())
    }
}

/// The folder of the files.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Where folders can be opened and synced.
    handle: Option<File>,
    /// Whether a file was made since the folder itself was last synced.
    changed: AtomicBool,
}

/// Which file, and what must be in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::embedded) struct FileKey {
    pub(super) number: u64,
    pub(in crate::embedded) length: u64,
    pub(super) root: Root,
}

impl Folder {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        let handle = place::open_folder(path)?;
        // The folder's own name is to last as well.
        if let Some(parent) = path.parent().map(place::open_folder).transpose()?.flatten() {
            parent.sync_all()?;
        }
        Ok(Self { handle, path: path.to_owned(), changed: AtomicBool::new(true) })
    }

    fn path(&self, number: u64) -> PathBuf {
        self.path.join(format!("{number:016x}"))
    }

    /// A new file. The number must never have been given before.
    pub(super) fn create(&self, number: u64) -> io::Result<Writer> {
        let path = self.path(number);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        self.changed.store(true, Ordering::Release);
        Ok(Writer { file, path, number, length: 0, hashes: Vec::new(), kept: false })
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

    /// Opens a file and verifies the hashes in it, or says `None` when they are not those of the key.
    pub(super) fn read(&self, key: FileKey) -> io::Result<Option<BlobFile>> {
        let file = File::open(self.path(key.number))?;
        let chunks = key.length.div_ceil(CHUNK_BYTES as u64);
        // A record is checked before its key is used, so the length is one that was written here.
        let Ok(chunks) = usize::try_from(chunks) else { return Ok(None) };
        let mut hashes = vec![0; chunks * HASH_BYTES];
        match place::read(&file, &mut hashes, key.length) {
            Ok(()) if Root::of(key.length, &hashes) == key.root => {}
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
            _ => return Ok(None),
        }
        Ok(Some(BlobFile { file, length: key.length, hashes }))
    }

    /// Removes a file. One that is gone already is no error; readers that have it open keep it.
    pub(super) fn remove(&self, number: u64) -> io::Result<()> {
        match fs::remove_file(self.path(number)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes every file that is not kept: uploads that a crash cut short, and what a removal left. Their number.
    pub(super) fn remove_others(&self, kept: impl Fn(u64) -> bool) -> io::Result<u64> {
        let mut removed = 0;
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            let number = name.to_str().filter(|name| name.len() == 16);
            let number = number.and_then(|name| u64::from_str_radix(name, 16).ok());
            // What is no file of the store stays.
            if let Some(number) = number.filter(|number| !kept(*number)) {
                self.remove(number)?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

/// A file that is being written. It is removed when this is dropped, unless it was kept.
#[derive(Debug)]
pub(in crate::embedded) struct Writer {
    file: File,
    path: PathBuf,
    number: u64,
    length: u64,
    hashes: Vec<u8>,
    kept: bool,
}

impl Writer {
    /// Appends a chunk: of [`CHUNK_BYTES`], but for the last one.
    pub(in crate::embedded) fn write(&mut self, chunk: &[u8]) -> io::Result<()> {
        debug_assert!(self.length.is_multiple_of(CHUNK_BYTES as u64), "only the last chunk may be short");
        place::write(&self.file, chunk, self.length)?;
        self.length += chunk.len() as u64;
        self.hashes.extend_from_slice(blake3::hash(chunk).as_bytes());
        Ok(())
    }

    /// Writes the hashes and waits until everything is on disk, except the file's name: see [`Folder::sync`].
    pub(in crate::embedded) fn finish(&mut self) -> io::Result<FileKey> {
        place::write(&self.file, &self.hashes, self.length)?;
        self.file.sync_data()?;
        let root = Root::of(self.length, &self.hashes);
        Ok(FileKey { number: self.number, length: self.length, root })
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
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn write(folder: &Folder, number: u64, bytes: &[u8]) -> FileKey {
        let mut writer = folder.create(number).unwrap();
        bytes.chunks(CHUNK_BYTES).for_each(|chunk| writer.write(chunk).unwrap());
        let key = writer.finish().unwrap();
        writer.keep();
        key
    }

    fn read(folder: &Folder, key: FileKey) -> Option<Vec<u8>> {
        let file = folder.read(key).unwrap()?;
        let mut bytes = Vec::new();
        for number in 0..file.chunks() {
            bytes.extend_from_slice(&file.chunk(number).unwrap()?);
        }
        Some(bytes)
    }

    #[test]
    fn what_is_written_is_read_whatever_its_length() {
        let path = TempDir::new().unwrap();
        let folder = Folder::open(path.path()).unwrap();
        for (length, number) in
            [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES].iter().zip(0..)
        {
            let bytes: Vec<u8> = (0..=250).cycle().take(*length).collect();
            let key = write(&folder, number, &bytes);
            assert_eq!(read(&folder, key), Some(bytes), "{length}");
        }
        folder.sync().unwrap();
    }

    #[test]
    fn any_changed_missing_or_misplaced_byte_is_found() {
        let path = TempDir::new().unwrap();
        let folder = Folder::open(path.path()).unwrap();
        let bytes = vec![7; CHUNK_BYTES + 10];
        let key = write(&folder, 1, &bytes);
        let whole = fs::read(folder.path(1)).unwrap();
        for place in [0, CHUNK_BYTES - 1, CHUNK_BYTES, bytes.len() - 1, bytes.len(), whole.len() - 1] {
            let mut changed = whole.clone();
            changed[place] ^= 1;
            fs::write(folder.path(1), &changed).unwrap();
            assert_eq!(read(&folder, key), None, "{place}");
        }
        for length in [0, CHUNK_BYTES, bytes.len(), whole.len() - 1] {
            fs::write(folder.path(1), &whole[..length]).unwrap();
            assert_eq!(read(&folder, key), None, "{length}");
        }
        fs::write(folder.path(1), &whole).unwrap();
        assert_eq!(read(&folder, key), Some(bytes));
        let other = write(&folder, 2, &[8; CHUNK_BYTES + 10]);
        assert_eq!(read(&folder, FileKey { number: 1, ..other }), None);
    }

    #[test]
    fn only_kept_files_stay() {
        let path = TempDir::new().unwrap();
        let folder = Folder::open(path.path()).unwrap();
        folder.create(1).unwrap().write(b"given up").unwrap();
        assert!(!folder.path(1).exists());
        write(&folder, 2, b"kept");
        write(&folder, 3, b"orphan");
        fs::write(path.path().join("notes.txt"), b"not the store's").unwrap();
        assert_eq!(folder.remove_others(|number| number == 2).unwrap(), 1);
        assert!(folder.path(2).exists() && !folder.path(3).exists());
        assert!(path.path().join("notes.txt").exists());
        folder.remove(2).unwrap();
        folder.remove(2).unwrap();
    }
}
