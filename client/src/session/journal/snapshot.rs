//! The snapshot beside a journal: entries that stand for the journal's entries up to a position, so that an opening reads
//! only those after it.
//!
//! It is a shortcut and never the only copy: the journal has every entry. A snapshot that does not open, or is not of
//! this file, counts as none. It is written after the entries before its position are flushed, and replaced whole.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

use baton_keys::{files::replace_private, session::JournalKey};
use baton_proto::{codec, ids::SessionId, limits::MAX_OBJECT_BYTES};
use serde::{Deserialize, Serialize};
use serde_bytes::{ByteBuf, Bytes};
use zeroize::Zeroizing;

use super::Entries;

/// Extension of snapshots.
const EXTENSION: &str = "snapshot";

/// A position between two frames of a journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JournalPosition {
    /// Bytes of the file before it.
    pub(super) offset: u64,
    /// Entries before it.
    pub(super) entries: u64,
    /// The tag of the last frame before it, which no other journal has there.
    tag: [u8; 16],
}

impl JournalPosition {
    /// A position of this file, after its first frame.
    pub(super) fn of(file: &mut File, offset: u64, entries: u64) -> io::Result<Self> {
        let mut tag = [0; 16];
        file.seek(SeekFrom::Start(offset.saturating_sub(tag.len() as u64)))?;
        file.read_exact(&mut tag)?;
        Ok(Self { offset, entries, tag })
    }
}

/// The position and the entries of a journal's snapshot, if it is of this file.
pub(super) fn read(
    path: &Path,
    journal: &mut File,
    key: &JournalKey,
    session: &SessionId,
) -> Option<(JournalPosition, Entries)> {
    let sealed = fs::read(path_of(path)).ok()?;
    let opened = key.open(&associated(session), &sealed).ok()?;
    let (position, entries): (JournalPosition, Vec<ByteBuf>) =
        codec::decode(&opened, MAX_OBJECT_BYTES).ok()?;
    let here = JournalPosition::of(journal, position.offset, position.entries).ok()?;
    let entries = entries.into_iter().map(|entry| Zeroizing::new(entry.into_vec()));
    (here == position).then(|| (position, entries.collect()))
}

/// Replaces the snapshot of a journal. The entries before the position must be on the disk.
pub(super) fn write(
    path: &Path,
    key: &JournalKey,
    session: &SessionId,
    position: JournalPosition,
    entries: &[Zeroizing<Vec<u8>>],
) -> io::Result<()> {
    let entries: Vec<&Bytes> = entries.iter().map(|entry| Bytes::new(entry)).collect();
    let bytes = codec::encode_secret(&(position, entries));
    replace_private(&path_of(path), &key.seal(&associated(session), &bytes))
}

/// Removes the snapshot of a journal, if there is one.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path_of(path)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn path_of(journal: &Path) -> PathBuf {
    journal.with_extension(EXTENSION)
}

/// `session id(32) ‖ "journal snapshot"`, longer than that of a frame.
fn associated(session: &SessionId) -> Vec<u8> {
    [&session.0[..], b"journal snapshot"].concat()
}
