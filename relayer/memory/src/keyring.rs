//! Owners' keys: one sealed file for each owner, in a folder outside the database.
//!
//! A file holds:
//!
//! - the owner's address;
//! - a random secret from which the keys of hashes derive;
//! - a random key for each segment of records;
//! - the database's progress at the file's last write.
//!
//! Its wrapping key derives from the relayer's master key and the owner's pseudonym, so that no file can
//! replace another. A destroyed key makes every copy of its records noise. The database's own pages and logs
//! are never relied on to forget. The vault is the only caller. All calls block.

mod folder;
mod ring;

use std::path::PathBuf;

use baton_keys::{
    files::KeyFileError,
    master::{OwnerSecret, OwnerUse},
    sign::SecretSigningKey,
};
use zeroize::Zeroizing;

pub(crate) use folder::KeyFolder;
pub use ring::Mark;
pub(crate) use ring::{KEY_ID_LEN, KeyId, Keyring, NUMBERS_PER_SEGMENT, Redaction, Segment, SegmentKey};

/// Why owners' keys are unusable. No error destroys any key.
#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    /// The file system reported an error.
    #[error("the owners' keys cannot be read or written at {path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file must not be read.
    #[error(transparent)]
    File(#[from] KeyFileError),
    /// The file does not open.
    #[error(
        "key file {path} is damaged, or belongs to another owner or master key: put the right one back from a backup"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// The key file of an owner with records is missing.
    #[error(
        "key file {path} is missing, and its owner's records cannot be read without it: put it back from a backup, or \
         erase the owner"
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The folder belongs to another master key.
    #[error("the key files in {folder} were made with another master key: configure the one that made them")]
    WrongMaster {
        /// The folder.
        folder: PathBuf,
    },
    /// Another process holds the owner's lock.
    #[error("{path} is locked by another relayer for too long")]
    Locked {
        /// The lock's file.
        path: PathBuf,
    },
    /// More segments than a key file can hold.
    #[error("the owner has more records than one key file has keys for")]
    Full,
}

/// The keys of an owner's hashes, which derive from the owner's secret.
pub struct OwnerKeys {
    content_hash: Zeroizing<[u8; 32]>,
    term_hash: Zeroizing<[u8; 32]>,
    record_name: Zeroizing<[u8; 32]>,
    export_sign: Zeroizing<[u8; 32]>,
}

impl OwnerKeys {
    pub(crate) fn of(secret: &OwnerSecret) -> Self {
        Self {
            content_hash: secret.derive(OwnerUse::ContentHash),
            term_hash: secret.derive(OwnerUse::TermHash),
            record_name: secret.derive(OwnerUse::RecordName),
            export_sign: secret.derive(OwnerUse::ExportSign),
        }
    }

    /// Keyed hash of a canonical content: equal for equal contents of one owner; an outsider cannot guess it
    /// (C6).
    #[must_use]
    pub fn content_hash(&self, content: &[u8]) -> [u8; 32] {
        blake3::keyed_hash(&self.content_hash, content).into()
    }

    /// The key of term hashes.
    #[must_use]
    pub fn term_key(&self) -> &[u8; 32] {
        &self.term_hash
    }

    /// The number of a named record.
    #[must_use]
    pub fn record_number(&self, name: &str) -> u64 {
        let hash = blake3::keyed_hash(&self.record_name, name.as_bytes());
        u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes"))
    }

    /// The key that signs the owner's exports.
    #[must_use]
    pub fn export_key(&self) -> SecretSigningKey {
        SecretSigningKey::from_seed(&self.export_sign)
    }
}

impl std::fmt::Debug for OwnerKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OwnerKeys(redacted)")
    }
}
