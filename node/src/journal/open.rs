//! Opens the journal's database, and verifies all its contents before use.
//!
//! [`super::trees`] calls this at start. Blocking throughout.

use std::{path::Path, thread};

use baton_proto::link::blob_digest;
use sled::IVec;

use super::{
    EntryState, JOURNAL_VERSION, JournalError, JournalLimits,
    integrity::Inspection,
    trees::{CHANGES_KEY, decode},
};

/// Name of the thread that opens the journal. The database may panic on damaged files.
pub(crate) const JOURNAL_OPENING: &str = "journal-opening";

/// The readable contents of a journal.
pub(super) struct Contents {
    /// Keys of the entries.
    pub(super) known: Vec<IVec>,
    pub(super) blob_bytes: u64,
    pub(super) untaken: u64,
    /// Start of the journal, in milliseconds since the Unix epoch.
    pub(super) begins_ms: u64,
    /// Number of the last change found.
    pub(super) changes: u64,
    /// Number of removed entries and blobs.
    pub(super) damaged: u64,
}

/// Opens sled and reads everything. Replaces settings that sled refuses, since they are the same for every
/// journal.
pub(super) fn open_and_read(
    folder: &Path,
    inspection: &mut Inspection,
    (limits, now_ms): (JournalLimits, u64),
) -> Result<(sled::Db, Contents), JournalError> {
    let db = match open_sled(folder, limits) {
        Err(error) if is_damage(&error) && inspection.renew_settings().map_err(JournalError::Files)? => {
            open_sled(folder, limits)?
        }
        opened => opened?,
    };
    let read = unpanicked(|| read_all(&db, inspection, now_ms))?;
    Ok((db, read))
}

fn open_sled(folder: &Path, limits: JournalLimits) -> Result<sled::Db, JournalError> {
    let config = sled::Config::new().path(folder).cache_capacity(limits.cache_bytes);
    unpanicked(|| Ok(config.open()?))
}

/// Runs the work on a thread whose panics do not end the process: some damage triggers sled's own assertions.
fn unpanicked<T: Send>(work: impl FnOnce() -> Result<T, JournalError> + Send) -> Result<T, JournalError> {
    thread::scope(|scope| {
        let opening = thread::Builder::new().name(JOURNAL_OPENING.to_owned()).spawn_scoped(scope, work);
        let done = opening.map_err(JournalError::Files)?.join();
        done.unwrap_or(Err(JournalError::Unreadable))
    })
}

/// Whether an error means damaged files, as opposed to files that cannot be read.
pub(super) fn is_damage(error: &JournalError) -> bool {
    use std::io::ErrorKind;
    match error {
        JournalError::Unreadable => true,
        JournalError::Disk(sled::Error::Io(error)) => {
            matches!(
                error.kind(),
                ErrorKind::InvalidData | ErrorKind::InvalidInput | ErrorKind::UnexpectedEof
            )
        }
        JournalError::Disk(_) => true,
        _ => false,
    }
}

/// Start of the journal; an empty one starts now.
fn begins_ms(db: &sled::Db, now_ms: u64) -> Result<u64, JournalError> {
    match (db.get("version")?, db.get("begins_ms")?) {
        (None, None) => {
            db.insert("version", &[JOURNAL_VERSION])?;
            db.insert("begins_ms", &now_ms.to_be_bytes())?;
            db.flush()?;
            Ok(now_ms)
        }
        (Some(version), Some(begins)) if version.as_ref() == [JOURNAL_VERSION] => {
            Ok(u64::from_be_bytes(begins.as_ref().try_into().map_err(|_| JournalError::Unreadable)?))
        }
        (Some(version), _) if version.as_ref() != [JOURNAL_VERSION] => Err(JournalError::Version),
        _ => Err(JournalError::Unreadable),
    }
}

/// Reads and verifies every entry and blob. Entries with a wrong checksum are copied to a file, and removed.
fn read_all(db: &sled::Db, inspection: &mut Inspection, now_ms: u64) -> Result<Contents, JournalError> {
    // First, because another version makes the whole folder refused, not each entry.
    let begins_ms = begins_ms(db, now_ms)?;
    let (turns, blobs, by_digest) =
        (db.open_tree("turns")?, db.open_tree("blobs")?, db.open_tree("by_digest")?);
    let mut read =
        Contents { known: Vec::new(), begins_ms, blob_bytes: 0, untaken: 0, changes: 0, damaged: 0 };
    for item in &blobs {
        let (digest, bytes) = item?;
        if blob_digest(&bytes).0[..] == digest[..] {
            read.blob_bytes += bytes.len() as u64;
        } else {
            inspection.keep_entry(&format!("blob-{}", hex::encode(&digest)), &bytes);
            blobs.remove(&digest)?;
            read.damaged += 1;
        }
    }
    for item in &turns {
        let (key, bytes) = item?;
        let Ok(entry) = decode(&key, &bytes) else {
            inspection.keep_entry(&format!("entry-{}", hex::encode(&key)), &bytes);
            turns.remove(&key)?;
            read.damaged += 1;
            continue;
        };
        if let EntryState::Sealed(sealed) = &entry.state
            && entry.is_untaken()
            && blobs.contains_key(sealed.committed.blob_digest.0)?
        {
            read.untaken += 1;
        }
        read.known.push(key);
    }
    if let Some(changes) = by_digest.get(CHANGES_KEY)? {
        read.changes = changes.as_ref().try_into().map(u64::from_be_bytes).unwrap_or(0);
    }
    Ok(read)
}
