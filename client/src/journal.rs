//! A session's file: append-only, every entry sealed, flushed before anybody is told.
//!
//! Layout: 16 bytes of magic, then frames of `u32le(length) ‖ sealed bytes`. The first frame is the session root,
//! sealed under the device key; the others are entries sealed under the session's journal key, with session id
//! and position as associated data, so that none can be moved or left out. The last frame may be torn by a
//! crash: then it never happened. Anything else that does not open is damage, and said so.
//!
//! Only [`crate::session`] calls this. It must never see an entry's meaning.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

use baton_keys::{
    files::{FileSecret, replace_private},
    session::{JournalKey, SessionRoot},
};
use baton_proto::ids::SessionId;
use zeroize::Zeroizing;

use crate::error::ClientError;

/// First bytes of a journal, with its version.
const MAGIC: &[u8; 16] = b"baton-journal-1\n";
/// Largest frame: an accepted turn with the largest record, and room.
const MAX_FRAME_BYTES: usize = 4 * 1024 * 1024;
/// What the root is sealed for.
const ROOT_PURPOSE: &[u8] = b"baton client session root";
/// Extension of journals.
pub(crate) const EXTENSION: &str = "journal";

/// An open journal.
pub(crate) struct Journal {
    /// None for a session that lives in memory only.
    file: Option<OpenFile>,
    key: JournalKey,
    session: SessionId,
    /// Entries written, the root not counted.
    entries: u64,
}

struct OpenFile {
    file: File,
    path: PathBuf,
    /// Length up to which everything is whole.
    length: u64,
    /// An append failed and could not be undone: nothing more may be written after the torn frame.
    broken: bool,
}

/// What a journal held.
pub(crate) struct Contents {
    /// The session's root.
    pub(crate) root: SessionRoot,
    /// The entries, oldest first.
    pub(crate) entries: Vec<Zeroizing<Vec<u8>>>,
    /// Bytes that are whole; what follows is torn.
    whole: usize,
}

impl Journal {
    /// Starts a journal: the file appears whole, with its first entries, or not at all. Without a folder it
    /// is in memory only. The file's name is random, so that it tells nothing of the session.
    pub(crate) fn create(
        folder: Option<(&Path, &FileSecret)>,
        root: &SessionRoot,
        first: &[Zeroizing<Vec<u8>>],
    ) -> Result<Self, ClientError> {
        let session = root.session_id();
        let key = root.journal_key();
        let mut journal = Self { file: None, key, session, entries: 0 };
        let Some((folder, secret)) = folder else {
            journal.entries = first.len() as u64;
            return Ok(journal);
        };
        let mut bytes = MAGIC.to_vec();
        push_frame(&mut bytes, &secret.seal(ROOT_PURPOSE, root.expose()));
        for entry in first {
            let sealed = journal.key.seal(&associated(&session, journal.entries), entry);
            push_frame(&mut bytes, &sealed);
            journal.entries += 1;
        }
        let name = hex::encode(baton_keys::secret::random_bytes::<16>());
        let path = folder.join(name).with_extension(EXTENSION);
        replace_private(&path, &bytes).map_err(|source| file_error("create", &path, source))?;
        let file = lock(&path, &session)?;
        journal.file = Some(OpenFile { file, path, length: bytes.len() as u64, broken: false });
        journal.seek_end()?;
        Ok(journal)
    }

    /// Opens a journal for writing, and cuts off what a crash tore.
    pub(crate) fn open(path: &Path, secret: &FileSecret) -> Result<(Self, Contents), ClientError> {
        // The root is read once without the lock, to name the session in a refusal.
        let session = read(path, secret)?.root.session_id();
        let file = lock(path, &session)?;
        let contents = read(path, secret)?;
        let length = contents.whole as u64;
        file.set_len(length)
            .and_then(|()| file.sync_all())
            .map_err(|source| file_error("repair", path, source))?;
        let mut journal = Self {
            file: Some(OpenFile { file, path: path.to_owned(), length, broken: false }),
            key: contents.root.journal_key(),
            session,
            entries: contents.entries.len() as u64,
        };
        journal.seek_end()?;
        Ok((journal, contents))
    }

    fn seek_end(&mut self) -> Result<(), ClientError> {
        let Some(open) = &mut self.file else { return Ok(()) };
        let sought = open.file.seek(SeekFrom::Start(open.length));
        sought.map(|_| ()).map_err(|source| file_error("open", &open.path, source))
    }

    /// Appends entries; when it returns they are on the disk, if `flush`. On an error none of them counts.
    /// Blocking.
    pub(crate) fn append(&mut self, entries: &[Zeroizing<Vec<u8>>], flush: bool) -> Result<(), ClientError> {
        let mut bytes = Vec::new();
        for (position, entry) in (self.entries..).zip(entries) {
            push_frame(&mut bytes, &self.key.seal(&associated(&self.session, position), entry));
        }
        if let Some(open) = &mut self.file {
            open.append(&bytes, flush)?;
        }
        self.entries += entries.len() as u64;
        Ok(())
    }

    /// Removes the file.
    pub(crate) fn remove(self) -> Result<(), ClientError> {
        let Some(open) = self.file else { return Ok(()) };
        std::fs::remove_file(&open.path).map_err(|source| file_error("remove", &open.path, source))
    }
}

impl OpenFile {
    fn append(&mut self, bytes: &[u8], flush: bool) -> Result<(), ClientError> {
        if self.broken {
            let source = io::Error::other("an earlier write failed midway; open the session again");
            return Err(file_error("write", &self.path, source));
        }
        let write = |file: &mut File| -> io::Result<()> {
            file.write_all(bytes)?;
            if flush { file.sync_data() } else { Ok(()) }
        };
        if let Err(source) = write(&mut self.file) {
            let undone =
                self.file.set_len(self.length).and_then(|()| self.file.seek(SeekFrom::Start(self.length)));
            self.broken = undone.is_err();
            return Err(file_error("write", &self.path, source));
        }
        self.length += bytes.len() as u64;
        Ok(())
    }
}

/// Reads a journal without locking or changing it.
pub(crate) fn read(path: &Path, secret: &FileSecret) -> Result<Contents, ClientError> {
    let bytes = std::fs::read(path).map_err(|source| file_error("read", path, source))?;
    parse(&bytes, secret).map_err(|entry| ClientError::JournalDamaged { path: path.to_owned(), entry })
}

/// Reads only as far as the root.
pub(crate) fn read_root(path: &Path, secret: &FileSecret) -> Result<SessionRoot, ClientError> {
    use std::io::Read as _;
    let damaged = || ClientError::JournalDamaged { path: path.to_owned(), entry: 0 };
    let file = File::open(path).map_err(|source| file_error("open", path, source))?;
    let mut start = Vec::new();
    // Magic, length, nonce, root and tag: 108 bytes.
    file.take(256).read_to_end(&mut start).map_err(|source| file_error("read", path, source))?;
    let rest = start.strip_prefix(MAGIC).ok_or_else(damaged)?;
    let (frame, _) = split_frame(rest).ok_or_else(damaged)?;
    open_root(frame, secret).ok_or_else(damaged)
}

/// The whole entries, or the position of the damaged one (0 is the root).
fn parse(bytes: &[u8], secret: &FileSecret) -> Result<Contents, u64> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(0u64)?;
    let (frame, mut rest) = split_frame(rest).ok_or(0u64)?;
    let root = open_root(frame, secret).ok_or(0u64)?;
    let (session, key) = (root.session_id(), root.journal_key());
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let position = entries.len() as u64;
        let Some((frame, after)) = split_frame(rest) else {
            // The announced length runs past the end: torn, unless the length itself cannot be one.
            if is_torn(rest) { break } else { return Err(position + 1) }
        };
        match key.open(&associated(&session, position), frame) {
            Ok(entry) => entries.push(entry),
            // Some file systems extend a file before its bytes arrive, so a torn last frame may be full length.
            Err(_) if after.is_empty() || rest.iter().all(|byte| *byte == 0) => break,
            Err(_) => return Err(position + 1),
        }
        rest = after;
    }
    Ok(Contents { root, entries, whole: bytes.len() - rest.len() })
}

fn open_root(frame: &[u8], secret: &FileSecret) -> Option<SessionRoot> {
    let opened = secret.open(ROOT_PURPOSE, frame).ok()?;
    Some(SessionRoot::from_bytes(opened.as_slice().try_into().ok()?))
}

/// The first frame and what follows it; none if it is not there whole.
fn split_frame(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length) as usize;
    if length > MAX_FRAME_BYTES { None } else { rest.split_at_checked(length) }
}

/// Whether the rest of a file looks like a frame that was cut off: shorter than a length, or a possible length with
/// too few bytes behind it.
fn is_torn(rest: &[u8]) -> bool {
    match rest.split_first_chunk::<4>() {
        None => true,
        Some((length, _)) => u32::from_le_bytes(*length) as usize <= MAX_FRAME_BYTES,
    }
}

fn push_frame(bytes: &mut Vec<u8>, sealed: &[u8]) {
    let length = u32::try_from(sealed.len()).expect("entries are far below 4 GiB");
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(sealed);
}

/// `session id(32) ‖ u64le(position)`.
fn associated(session: &SessionId, position: u64) -> Vec<u8> {
    [&session.0[..], &position.to_le_bytes()].concat()
}

fn lock(path: &Path, session: &SessionId) -> Result<File, ClientError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|source| file_error("open", path, source))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(ClientError::InUse(*session)),
        Err(TryLockError::Error(source)) => Err(file_error("lock", path, source)),
    }
}

pub(crate) fn file_error(action: &'static str, path: &Path, source: io::Error) -> ClientError {
    ClientError::File { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    fn entry(text: &str) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(text.as_bytes().to_vec())
    }

    fn texts(contents: &Contents) -> Vec<String> {
        contents.entries.iter().map(|entry| String::from_utf8(entry.to_vec()).unwrap()).collect()
    }

    /// A journal with three entries: its bytes and the offset where the last one begins.
    fn written(folder: &Path, secret: &FileSecret) -> (PathBuf, Vec<u8>, usize) {
        let root = SessionRoot::generate();
        let mut journal = Journal::create(Some((folder, secret)), &root, &[entry("opened")]).unwrap();
        journal.append(&[entry("second")], true).unwrap();
        let path = journal.file.as_ref().unwrap().path.clone();
        let before = fs::read(&path).unwrap().len();
        journal.append(&[entry("the last one")], true).unwrap();
        drop(journal);
        let bytes = fs::read(&path).unwrap();
        (path, bytes, before)
    }

    #[test]
    fn a_cut_at_every_byte_of_the_last_entry_leaves_the_state_before_or_after() {
        let folder = tempfile::tempdir().unwrap();
        let secret = FileSecret::generate();
        let (path, bytes, last) = written(folder.path(), &secret);
        for cut in last..=bytes.len() {
            fs::write(&path, &bytes[..cut]).unwrap();
            let (mut journal, contents) = Journal::open(&path, &secret).unwrap();
            let mut expected = vec!["opened", "second"];
            if cut == bytes.len() {
                expected.push("the last one");
            }
            assert_eq!(texts(&contents), expected, "cut at {cut}");
            journal.append(&[entry("after the crash")], true).unwrap();
            drop(journal);
            expected.push("after the crash");
            assert_eq!(texts(&read(&path, &secret).unwrap()), expected, "cut at {cut}");
        }
    }

    #[test]
    fn a_last_entry_of_zeros_is_torn() {
        let folder = tempfile::tempdir().unwrap();
        let secret = FileSecret::generate();
        let (path, bytes, last) = written(folder.path(), &secret);
        for zeros_from in [last, last + 4, last + 20] {
            let mut torn = bytes.clone();
            torn[zeros_from..].fill(0);
            fs::write(&path, &torn).unwrap();
            assert_eq!(texts(&read(&path, &secret).unwrap()), ["opened", "second"]);
        }
    }

    #[test]
    fn damage_before_the_last_entry_is_refused_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let secret = FileSecret::generate();
        let (path, bytes, last) = written(folder.path(), &secret);
        for (offset, entry) in [(0, 0), (MAGIC.len() + 10, 0), (last - 1, 2)] {
            let mut changed = bytes.clone();
            changed[offset] ^= 1;
            fs::write(&path, &changed).unwrap();
            let refused = read(&path, &secret).map(|_| ()).unwrap_err();
            assert!(
                matches!(refused, ClientError::JournalDamaged { entry: at, .. } if at == entry),
                "{refused}"
            );
        }
    }

    #[test]
    fn nothing_of_an_entry_or_the_root_is_on_the_disk_in_the_clear() {
        let folder = tempfile::tempdir().unwrap();
        let secret = FileSecret::generate();
        let root = SessionRoot::generate();
        let mut journal = Journal::create(Some((folder.path(), &secret)), &root, &[]).unwrap();
        journal.append(&[entry("a very private sentence")], true).unwrap();
        let path = journal.file.as_ref().unwrap().path.clone();
        let bytes = fs::read(&path).unwrap();
        let holds = |needle: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
        assert!(!holds(b"private") && !holds(root.expose()) && !holds(&root.session_id().0));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(read_root(&path, &FileSecret::generate()), Err(ClientError::JournalDamaged { .. })));
        assert_eq!(read_root(&path, &secret).unwrap(), root);
    }

    #[test]
    fn a_second_writer_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let secret = FileSecret::generate();
        let root = SessionRoot::generate();
        let journal = Journal::create(Some((folder.path(), &secret)), &root, &[]).unwrap();
        let path = journal.file.as_ref().unwrap().path.clone();
        assert!(matches!(Journal::open(&path, &secret), Err(ClientError::InUse(_))));
        drop(journal);
        assert!(Journal::open(&path, &secret).is_ok());
    }
}
