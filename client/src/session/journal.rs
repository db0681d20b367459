//! A session's file: append-only, every entry sealed, and flushed before its success is reported.
//!
//! Layout: 16 bytes of magic, the session's root sealed under the device key (72 bytes), then frames of
//! `sealed length(44) ‖ sealed entry(length)`. Length and entry are sealed under the session's journal key.
//! Their associated data is session id and position (`‖ "length"` for the length), so no frame can be
//! changed, moved or removed unnoticed.
//!
//! Lengths are as authentic as entries, so the end that a crash tore differs from damage. Only the end of the
//! file can be torn, and in two ways:
//! - It has fewer bytes than a frame's head, or than the frame's authentic length.
//! - It is zeros from within the frame to the end of the file: a file system extended the file before its
//!   bytes came.
//!
//! No success was reported for a torn end, so it is cut off. Any other part that does not open is damage: it is
//! reported, and left as it is.
//!
//! Only [`crate::session::open_session`] calls this. It must never see an entry's meaning.

pub(crate) mod quarantine;
mod snapshot;
#[cfg(test)]
mod tests;

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use baton_keys::{
    files::{FileSecret, replace_private},
    session::{JournalKey, SessionRoot},
};
use baton_proto::ids::SessionId;
use zeroize::Zeroizing;

use crate::error::ClientError;

use snapshot::JournalPosition;

/// First bytes of a journal, with its version.
const MAGIC: &[u8; 16] = b"baton-journal-5\n";
/// First bytes of earlier formats, whose last byte but one is this digit.
const OLD_VERSIONS: std::ops::RangeInclusive<u8> = b'1'..=b'4';
/// First bytes of a log: frames as in a file follow, and no root.
const LOG_MAGIC: &[u8; 16] = b"baton-chat-log4\n";
/// Bytes that may wait before a log is written: in larger pieces than a file.
const MAX_WAITING_BYTES: usize = 256 * 1024;
/// The root as sealed under the device key: nonce, root and tag.
const ROOT_BYTES: usize = 24 + 32 + 16;
/// Length of a file's beginning, before its frames.
const START: usize = MAGIC.len() + ROOT_BYTES;
/// A frame's length as sealed: nonce, `u32le` and tag.
const HEAD_BYTES: usize = 24 + 4 + 16;
/// Zeros at the end of a frame that are surely not sealed bytes; fewer may be chance or damage.
const TORN_ZEROS: usize = 8;
/// Largest sealed entry: an accepted turn with the largest record, and room.
const MAX_ENTRY_BYTES: usize = 4 * 1024 * 1024;
/// Entries after a snapshot from which on a new one is worth its write: those of some sixteen turns.
const SNAPSHOT_FROM: u64 = 128;
/// Purpose of the root's seal.
const ROOT_PURPOSE: &[u8] = b"baton client session root";
/// Extension of journals.
pub(crate) const EXTENSION: &str = "journal";

/// A session's journal outside a folder: one log of sealed bytes. Its methods may block.
pub trait JournalLog: Send + Sync {
    /// The whole log; empty if there is none.
    ///
    /// # Errors
    /// The log's own.
    fn read(&self) -> io::Result<Vec<u8>>;

    /// Replaces everything from this offset on with `bytes`. On success they are durable; after an error any
    /// prefix of them may be.
    ///
    /// # Errors
    /// The log's own.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
}

/// Location of the journals.
#[derive(Clone)]
pub(crate) enum JournalLocation {
    /// No place on a disk: sessions live in memory only.
    Memory,
    /// A folder of files.
    Folder(PathBuf),
    /// A log for one session.
    Log(Arc<dyn JournalLog>),
}

/// The journals of a client.
pub(crate) struct Journals {
    pub(crate) location: JournalLocation,
    /// Seals the session roots on the disk.
    pub(crate) secret: FileSecret,
}

impl Journals {
    /// Journals without files, which need no lasting secret.
    pub(crate) fn without_files(location: JournalLocation) -> Self {
        Self { location, secret: FileSecret::generate() }
    }

    /// The folder of the files, if there are files.
    pub(crate) fn folder(&self) -> Option<&PathBuf> {
        match &self.location {
            JournalLocation::Folder(folder) => Some(folder),
            JournalLocation::Memory | JournalLocation::Log(_) => None,
        }
    }
}

/// Target of an open journal.
enum JournalSink {
    Memory,
    /// A file that is not made yet.
    Deferred(DeferredFile),
    File(OpenFile),
    Log(OpenLog),
}

/// An open journal.
pub(crate) struct Journal {
    sink: JournalSink,
    key: JournalKey,
    session: SessionId,
    /// Entries written, without the root.
    entries: u64,
    /// Entries for which a snapshot stands.
    in_snapshot: u64,
}

/// The bytes of a file that is made later, with its folder.
struct DeferredFile {
    folder: PathBuf,
    bytes: Zeroizing<Vec<u8>>,
}

struct OpenFile {
    file: File,
    path: PathBuf,
    /// Length of the whole frames.
    length: u64,
    /// An append failed and could not be undone: nothing more may be written after the torn frame.
    broken: bool,
}

struct OpenLog {
    log: Arc<dyn JournalLog>,
    /// Length of the whole frames.
    length: u64,
    /// Frames that may be lost; written with the next frames that must not be.
    waiting: Vec<u8>,
}

/// Opened entries of a journal.
type Entries = Vec<Zeroizing<Vec<u8>>>;

/// The contents of a journal.
pub(crate) struct Contents {
    /// Its file, or another name.
    pub(crate) path: PathBuf,
    /// The session's root.
    pub(crate) root: SessionRoot,
    /// The entries, oldest first; those of a snapshot in place of the entries for which it stands.
    pub(crate) entries: Entries,
    /// Entries for which those of a snapshot stand; 0 if all are here.
    pub(crate) in_snapshot: u64,
    /// Entries in the file, and the length of its whole part; the rest is torn.
    count: u64,
    end: u64,
    /// Torn bytes at the end.
    pub(crate) torn: Vec<u8>,
}

impl Journal {
    /// Creates a journal. A file appears whole, with its first entries, or not at all; its random name
    /// reveals nothing about the session. A log is overwritten.
    pub(crate) fn create(
        journals: &Journals,
        root: &SessionRoot,
        first: &[Zeroizing<Vec<u8>>],
    ) -> Result<Self, ClientError> {
        let mut journal = Self::create_deferred(journals, root, first)?;
        journal.make_file()?;
        Ok(journal)
    }

    /// As [`Journal::create`], but a file is not made before [`Journal::make_file`].
    pub(crate) fn create_deferred(
        journals: &Journals,
        root: &SessionRoot,
        first: &[Zeroizing<Vec<u8>>],
    ) -> Result<Self, ClientError> {
        let (session, key) = (root.session_id(), root.journal_key());
        let mut journal = Self { sink: JournalSink::Memory, key, session, entries: 0, in_snapshot: 0 };
        let mut bytes = match &journals.location {
            JournalLocation::Memory => Vec::new(),
            JournalLocation::Folder(_) => {
                [&MAGIC[..], &journals.secret.seal(ROOT_PURPOSE, root.expose())].concat()
            }
            JournalLocation::Log(_) => LOG_MAGIC.to_vec(),
        };
        for entry in first {
            journal.push_frame(&mut bytes, journal.entries, entry);
            journal.entries += 1;
        }
        let folder = match &journals.location {
            JournalLocation::Memory => return Ok(journal),
            JournalLocation::Log(log) => {
                log.write(0, &bytes).map_err(|source| log_error("written", source))?;
                let length = bytes.len() as u64;
                journal.sink = JournalSink::Log(OpenLog { log: log.clone(), length, waiting: Vec::new() });
                return Ok(journal);
            }
            JournalLocation::Folder(folder) => folder,
        };
        let bytes = Zeroizing::new(bytes);
        journal.sink = JournalSink::Deferred(DeferredFile { folder: folder.clone(), bytes });
        Ok(journal)
    }

    /// Makes the file of a journal that has none yet, with all entries so far. Blocking.
    pub(crate) fn make_file(&mut self) -> Result<(), ClientError> {
        let JournalSink::Deferred(DeferredFile { folder, bytes }) = &self.sink else { return Ok(()) };
        let name = hex::encode(baton_keys::secret::random_bytes::<16>());
        let path = folder.join(name).with_extension(EXTENSION);
        replace_private(&path, bytes).map_err(|source| file_error("create", &path, source))?;
        let length = bytes.len() as u64;
        let opened = lock(&path, &self.session).and_then(|mut file| {
            file.seek(SeekFrom::Start(length)).map_err(|source| file_error("open", &path, source))?;
            Ok(file)
        });
        // A second try makes a file of another name: there must not be two of one session.
        let file = opened.inspect_err(|_| drop(std::fs::remove_file(&path)))?;
        self.sink = JournalSink::File(OpenFile { file, path, length, broken: false });
        Ok(())
    }

    /// Opens a log and cuts off its torn end; none if the log is empty.
    pub(crate) fn open_log(
        log: &Arc<dyn JournalLog>,
        root: &SessionRoot,
    ) -> Result<Option<(Self, Contents)>, ClientError> {
        let bytes = log.read().map_err(|source| log_error("read", source))?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let damaged = |entry| ClientError::JournalDamaged { path: PathBuf::from("log"), entry };
        let frames = bytes.strip_prefix(LOG_MAGIC).ok_or_else(|| damaged(0))?;
        let (entries, torn) = parse_frames(frames, root, 0).map_err(damaged)?;
        let (count, length) = (entries.len() as u64, (bytes.len() - torn.len()) as u64);
        if !torn.is_empty() {
            tracing::warn!(bytes = torn.len(), "a write that a crash cut off is taken from a log");
            log.write(length, &[]).map_err(|source| log_error("repaired", source))?;
        }
        let journal = Self {
            sink: JournalSink::Log(OpenLog { log: log.clone(), length, waiting: Vec::new() }),
            key: root.journal_key(),
            session: root.session_id(),
            entries: count,
            in_snapshot: 0,
        };
        let (root, torn) = (root.clone(), torn.to_vec());
        let path = PathBuf::from("log");
        Ok(Some((journal, Contents { path, root, entries, in_snapshot: 0, count, end: length, torn })))
    }

    /// Opens a journal for writing; if `shortly`, reads it from its snapshot on. Cuts off its torn end.
    pub(crate) fn open(
        path: &Path,
        secret: &FileSecret,
        shortly: bool,
    ) -> Result<(Self, Contents), ClientError> {
        // The root is read without the lock, to name the session in a refusal.
        let root = read_root(path, secret)?;
        let (session, key) = (root.session_id(), root.journal_key());
        let mut file = lock(path, &session)?;
        let contents = read_contents(path, &mut file, root, shortly)?;
        let length = contents.end;
        if !contents.torn.is_empty() {
            tracing::warn!(
                bytes = contents.torn.len(),
                "a write that a crash cut off is taken from a journal"
            );
            file.set_len(length)
                .and_then(|()| file.sync_all())
                .map_err(|source| file_error("repair", path, source))?;
        }
        let mut journal = Self {
            sink: JournalSink::File(OpenFile { file, path: path.to_owned(), length, broken: false }),
            key,
            session,
            entries: contents.count,
            in_snapshot: contents.in_snapshot,
        };
        journal.seek_end()?;
        Ok((journal, contents))
    }

    /// All entries of a file; none of another sink. The snapshot then has served, and is written anew.
    pub(crate) fn read_all(&mut self, root: SessionRoot) -> Result<Option<Contents>, ClientError> {
        self.in_snapshot = 0;
        let JournalSink::File(open) = &mut self.sink else { return Ok(None) };
        let contents = read_contents(&open.path, &mut open.file, root, false);
        self.seek_end()?;
        contents.map(Some)
    }

    /// Whether many entries have been written since the snapshot.
    pub(crate) fn wants_snapshot(&self) -> bool {
        let is_broken = matches!(&self.sink, JournalSink::File(open) if open.broken);
        self.is_file() && !is_broken && self.entries - self.in_snapshot >= SNAPSHOT_FROM
    }

    /// Closes the file, and replaces its snapshot by these entries, which stand for all that it has. Blocking.
    pub(crate) fn close_with_snapshot(self, entries: &[Zeroizing<Vec<u8>>]) -> Result<(), ClientError> {
        let JournalSink::File(mut open) = self.sink else { return Ok(()) };
        // Before it: no crash leaves a snapshot of entries that are not in the file.
        let position = open
            .file
            .sync_data()
            .and_then(|()| JournalPosition::of(&mut open.file, open.length, self.entries));
        let written = position
            .and_then(|position| snapshot::write(&open.path, &self.key, &self.session, position, entries));
        written.map_err(|source| file_error("write the snapshot of", &open.path, source))
    }

    /// Appends an entry's frame to `bytes`.
    fn push_frame(&self, bytes: &mut Vec<u8>, position: u64, entry: &[u8]) {
        let sealed = self.key.seal(&associated(&self.session, position), entry);
        let length = u32::try_from(sealed.len()).expect("entries are far below 4 GiB");
        bytes.extend_from_slice(
            &self.key.seal(&associated_length(&self.session, position), &length.to_le_bytes()),
        );
        bytes.extend_from_slice(&sealed);
    }

    fn seek_end(&mut self) -> Result<(), ClientError> {
        let JournalSink::File(open) = &mut self.sink else { return Ok(()) };
        let sought = open.file.seek(SeekFrom::Start(open.length));
        sought.map(|_| ()).map_err(|source| file_error("open", &open.path, source))
    }

    /// Appends entries; with `flush` they are on the disk on success. After an error none of them counts.
    /// Blocking.
    pub(crate) fn append(&mut self, entries: &[Zeroizing<Vec<u8>>], flush: bool) -> Result<(), ClientError> {
        let mut bytes = Vec::new();
        for (position, entry) in (self.entries..).zip(entries) {
            self.push_frame(&mut bytes, position, entry);
        }
        match &mut self.sink {
            JournalSink::Memory => {}
            JournalSink::Deferred(deferred) => deferred.bytes.extend_from_slice(&bytes),
            JournalSink::File(open) => open.append(&bytes, flush)?,
            JournalSink::Log(open) => open.append(&bytes, flush)?,
        }
        self.entries += entries.len() as u64;
        Ok(())
    }

    /// Whether its place is a file, which was made.
    pub(crate) fn is_file(&self) -> bool {
        matches!(self.sink, JournalSink::File(_))
    }

    /// Removes the file and the files beside it; on success they are gone from the disk's folder too.
    pub(crate) fn remove(self) -> Result<(), ClientError> {
        let open = match self.sink {
            JournalSink::Memory | JournalSink::Deferred(_) => return Ok(()),
            JournalSink::Log(open) => {
                return open.log.write(0, &[]).map_err(|source| log_error("removed", source));
            }
            JournalSink::File(open) => open,
        };
        quarantine::remove(&open.path).map_err(|source| file_error("remove", &open.path, source))
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

impl OpenLog {
    fn append(&mut self, bytes: &[u8], flush: bool) -> Result<(), ClientError> {
        let before = self.waiting.len();
        self.waiting.extend_from_slice(bytes);
        if !flush && self.waiting.len() < MAX_WAITING_BYTES {
            return Ok(());
        }
        if let Err(source) = self.log.write(self.length, &self.waiting) {
            // The next write, at the same offset, overwrites the part that was written.
            self.waiting.truncate(before);
            return Err(log_error("written", source));
        }
        self.length += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }
}

fn log_error(action: &'static str, source: io::Error) -> ClientError {
    ClientError::Log { action, source }
}

/// Reads a journal without locking or changing it; if `shortly`, from its snapshot on.
pub(crate) fn read(path: &Path, secret: &FileSecret, shortly: bool) -> Result<Contents, ClientError> {
    let root = read_root(path, secret)?;
    read_contents(path, &mut open_file(path)?, root, shortly)
}

fn open_file(path: &Path) -> Result<File, ClientError> {
    File::open(path).map_err(|source| file_error("open", path, source))
}

/// Reads a journal from its snapshot on, if `shortly` and it has one.
fn read_contents(
    path: &Path,
    file: &mut File,
    root: SessionRoot,
    shortly: bool,
) -> Result<Contents, ClientError> {
    let (session, key) = (root.session_id(), root.journal_key());
    let found = if shortly { snapshot::read(path, file, &key, &session) } else { None };
    let (from, mut entries) = found.unwrap_or_default();
    let frames = read_frames(path, file, from)?;
    let damaged = |entry| ClientError::JournalDamaged { path: path.to_owned(), entry };
    let (later, torn) = parse_frames(&frames, &root, from.entries).map_err(damaged)?;
    let count = from.entries + later.len() as u64;
    entries.extend(later);
    let end = from.offset.max(START as u64) + (frames.len() - torn.len()) as u64;
    let torn = torn.to_vec();
    Ok(Contents { path: path.to_owned(), root, entries, in_snapshot: from.entries, count, end, torn })
}

/// The frames of a file after a position.
fn read_frames(path: &Path, file: &mut File, from: JournalPosition) -> Result<Vec<u8>, ClientError> {
    let mut bytes = Vec::new();
    let read = file.seek(SeekFrom::Start(from.offset)).and_then(|_| file.read_to_end(&mut bytes));
    read.map_err(|source| file_error("read", path, source))?;
    if from.offset == 0 {
        if !bytes.starts_with(MAGIC) || bytes.len() < START {
            return Err(ClientError::JournalDamaged { path: path.to_owned(), entry: 0 });
        }
        bytes.drain(..START);
    }
    Ok(bytes)
}

fn check_format(path: &Path, bytes: &[u8]) -> Result<(), ClientError> {
    let version = bytes.strip_prefix(&MAGIC[..MAGIC.len() - 2]).and_then(<[u8]>::first);
    if version.is_some_and(|version| OLD_VERSIONS.contains(version)) {
        let source = io::Error::other("it is of an older format, which only an earlier baton reads");
        return Err(file_error("read", path, source));
    }
    Ok(())
}

/// Reads only the root, which identifies the session even if the rest is damaged.
pub(crate) fn read_root(path: &Path, secret: &FileSecret) -> Result<SessionRoot, ClientError> {
    let damaged = || ClientError::JournalDamaged { path: path.to_owned(), entry: 0 };
    let mut start = Vec::new();
    open_file(path)?
        .take(START as u64)
        .read_to_end(&mut start)
        .map_err(|source| file_error("read", path, source))?;
    check_format(path, &start)?;
    let sealed = start.get(MAGIC.len()..).ok_or_else(damaged)?;
    open_root(sealed, secret).ok_or_else(damaged)
}

/// The entries of frames from this position on and the torn end after them, or the position of the damaged entry.
fn parse_frames<'a>(frames: &'a [u8], root: &SessionRoot, first: u64) -> Result<(Entries, &'a [u8]), u64> {
    let (session, key) = (root.session_id(), root.journal_key());
    let (mut entries, mut rest) = (Vec::new(), frames);
    while !rest.is_empty() {
        let position = first + entries.len() as u64;
        match next_frame(rest, &key, &session, position) {
            JournalFrame::Whole(sealed, after) => {
                match key.open(&associated(&session, position), sealed) {
                    Ok(entry) => entries.push(entry),
                    Err(_) if is_zero_from(rest, HEAD_BYTES + sealed.len()) => break,
                    Err(_) => return Err(position + 1),
                }
                rest = after;
            }
            JournalFrame::Torn => break,
            JournalFrame::Damaged => return Err(position + 1),
        }
    }
    Ok((entries, rest))
}

/// The first frame of the rest of a file.
enum JournalFrame<'a> {
    /// A sealed entry and the bytes after it.
    Whole(&'a [u8], &'a [u8]),
    /// The torn end of a file after a crash.
    Torn,
    /// Bytes that differ from the written ones.
    Damaged,
}

fn next_frame<'a>(rest: &'a [u8], key: &JournalKey, session: &SessionId, position: u64) -> JournalFrame<'a> {
    let Some((head, body)) = rest.split_at_checked(HEAD_BYTES) else { return JournalFrame::Torn };
    let length = key.open(&associated_length(session, position), head).ok();
    let length = length.and_then(|length| Some(u32::from_le_bytes(length.as_slice().try_into().ok()?)));
    let Some(length) = length.map(|length| length as usize) else {
        return if is_zero_from(rest, HEAD_BYTES) { JournalFrame::Torn } else { JournalFrame::Damaged };
    };
    if length > MAX_ENTRY_BYTES {
        return JournalFrame::Damaged;
    }
    body.split_at_checked(length)
        .map_or(JournalFrame::Torn, |(sealed, after)| JournalFrame::Whole(sealed, after))
}

/// Whether zeros reach from shortly before `end` to the end of the file.
fn is_zero_from(rest: &[u8], end: usize) -> bool {
    end.checked_sub(TORN_ZEROS)
        .and_then(|from| rest.get(from..))
        .is_some_and(|tail| tail.iter().all(|byte| *byte == 0))
}

fn open_root(sealed: &[u8], secret: &FileSecret) -> Option<SessionRoot> {
    let opened = secret.open(ROOT_PURPOSE, sealed).ok()?;
    Some(SessionRoot::from_bytes(opened.as_slice().try_into().ok()?))
}

/// `session id(32) ‖ u64le(position)`.
fn associated(session: &SessionId, position: u64) -> Vec<u8> {
    [&session.0[..], &position.to_le_bytes()].concat()
}

/// `session id(32) ‖ u64le(position) ‖ "length"`.
fn associated_length(session: &SessionId, position: u64) -> Vec<u8> {
    [&session.0[..], &position.to_le_bytes(), b"length"].concat()
}

/// Opens a journal and locks it against other processes, until the file is dropped.
pub(crate) fn lock(path: &Path, session: &SessionId) -> Result<File, ClientError> {
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
