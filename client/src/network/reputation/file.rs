//! The file of a client's reputation table, sealed and replaced whole. It is a convenience: a file that is unreadable, or
//! of another version, is quarantined with a warning, and the client starts over.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use baton_keys::{
    files::{FileSecret, replace_private},
    secret::random_bytes,
};
use baton_proto::codec;

use super::Reputation;

/// Name of the file in the home folder.
pub(crate) const FILE: &str = "reputation";
/// Purpose of the file's seal.
const PURPOSE: &[u8] = b"baton client reputation 2";
/// Largest file to read: several times a full table.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Path and secret of the table's file.
#[derive(Clone)]
pub(crate) struct ReputationFile {
    path: PathBuf,
    secret: FileSecret,
}

impl ReputationFile {
    pub(crate) fn new(home: &Path, secret: &FileSecret) -> Self {
        Self { path: home.join(FILE), secret: secret.clone() }
    }

    /// The table, empty if there is no file; a file that does not open is quarantined. Blocking.
    pub(crate) fn load(&self, now_ms: u64) -> Reputation {
        match self.read(now_ms) {
            Ok(found) => found.unwrap_or_default(),
            Err(error) => {
                self.quarantine(&error);
                Reputation::default()
            }
        }
    }

    /// The file's current table, which another process of this home may have written; none if it is missing
    /// or unreadable. Blocking.
    pub(crate) fn reread(&self, now_ms: u64) -> Option<Reputation> {
        self.read(now_ms).ok().flatten()
    }

    /// Writes the table. Blocking.
    ///
    /// # Errors
    /// The file system's; the old file then stays.
    pub(crate) fn write(&self, table: &Reputation, now_ms: u64) -> io::Result<()> {
        let mut kept = table.clone();
        kept.nodes.retain(|_, entry| entry.tells(now_ms));
        kept.warm.retain(|_, until_ms| *until_ms > now_ms);
        replace_private(&self.path, &self.secret.seal(PURPOSE, &codec::encode(&kept)))
    }

    fn read(&self, now_ms: u64) -> io::Result<Option<Reputation>> {
        match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
            Ok(metadata) if metadata.len() > MAX_FILE_BYTES => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too large"));
            }
            Ok(_) => {}
        }
        let sealed = fs::read(&self.path)?;
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "it does not open");
        let text = self.secret.open(PURPOSE, &sealed).map_err(|_| damaged())?;
        let mut table: Reputation = codec::decode(&text, text.len()).map_err(|_| damaged())?;
        table.tame(now_ms);
        Ok(Some(table))
    }

    /// Quarantines an unreadable file. A file that this user may not read stays.
    fn quarantine(&self, error: &io::Error) {
        let name = format!("{FILE}.{}.damaged", hex::encode(random_bytes::<4>()));
        let quarantined = self.path.with_file_name(name);
        match fs::rename(&self.path, &quarantined) {
            Ok(()) => tracing::warn!(
                %error,
                path = %quarantined.display(),
                "what was known of nodes cannot be read; it is set aside, and the client begins anew"
            ),
            Err(moved) => tracing::warn!(%error, %moved, "what was known of nodes cannot be read"),
        }
    }
}
