//! The relayer's master key, the secrets of a memory owner, and the random keys that seal the owner's
//! records.
//!
//! The master key wraps the owners' key files and gives owners their pseudonyms; it seals no memory itself.
//!
//! A random key seals an owner's records. It lies in the owner's key file only, so its destruction there
//! turns every copy of the sealed bytes into noise. Called by `baton-memory`.

use std::{io, path::Path};

use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::{
    contexts::{
        Context, OWNER_CONTENT_HASH, OWNER_EXPORT_SIGN, OWNER_RECORD_NAME, OWNER_ROWS, OWNER_TERM_HASH,
    },
    files::{self, FileSecret, KeyFileError},
    seal::{OpenError, open_random, seal_random},
    secret::{kdf, random_bytes, secret_key},
};

/// The kind of the master key's file.
pub const MASTER_KEY_KIND: &str = "relayer-master";
/// Bytes that sealing adds to a text: nonce and tag.
pub const DATA_OVERHEAD: usize = 24 + 16;
/// Salt of the extraction: it separates this key from other keys of the same bytes.
const SALT: &[u8] = b"baton relayer master key v1";

/// The use of a key derived from the master key: all labels of HKDF-SHA256 (RFC 5869).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MasterUse {
    /// An owner's pseudonym in a database.
    Pseudonym,
    /// Wraps an owner's key file.
    OwnerKeys,
    /// Shows that this master key made a folder of key files.
    FolderCheck,
}

impl MasterUse {
    /// All uses.
    pub const ALL: &[Self] = &[Self::Pseudonym, Self::OwnerKeys, Self::FolderCheck];

    /// The label, the first part of HKDF's info.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Pseudonym => "owner pseudonym",
            Self::OwnerKeys => "owner key file",
            Self::FolderCheck => "key folder check",
        }
    }
}

secret_key!(
    /// The relayer's master key: 32 random bytes from a key file.
    MasterKey
);

impl MasterKey {
    /// Reads the master key's file.
    ///
    /// # Errors
    /// [`KeyFileError`], by cause.
    pub fn load(path: &Path, passphrase: Option<&str>) -> Result<Self, KeyFileError> {
        files::load(path, MASTER_KEY_KIND, passphrase).map(|secret| Self(*secret.expose()))
    }

    /// Reads the master key's file, or makes it (mode 0600) if it does not exist.
    ///
    /// # Errors
    /// [`KeyFileError`], by cause.
    pub fn load_or_create(path: &Path, passphrase: Option<&str>) -> Result<Self, KeyFileError> {
        match files::create(path, MASTER_KEY_KIND, &FileSecret::generate(), passphrase) {
            Ok(()) => {}
            Err(KeyFileError::Io { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        Self::load(path, passphrase)
    }

    /// An owner's pseudonym, 16 bytes. It reveals nothing of the address without this key.
    #[must_use]
    pub fn pseudonym(&self, owner: &[u8; 32]) -> [u8; 16] {
        self.derive(MasterUse::Pseudonym, owner)
    }

    /// The key that wraps the key file of the owner with this pseudonym.
    #[must_use]
    pub fn owner_wrap(&self, pseudonym: &[u8; 16]) -> DataKey {
        DataKey(self.derive(MasterUse::OwnerKeys, pseudonym))
    }

    /// A value that only this master key gives, to be stored beside the key files.
    #[must_use]
    pub fn folder_check(&self) -> [u8; 32] {
        self.derive(MasterUse::FolderCheck, &[])
    }

    /// HKDF-SHA256 with `info = label ‖ 0x00 ‖ bytes`. Labels have no zero byte, so info is unambiguous.
    fn derive<const N: usize>(&self, purpose: MasterUse, bytes: &[u8]) -> [u8; N] {
        let mut out = [0; N];
        Hkdf::<Sha256>::new(Some(SALT), &self.0)
            .expand_multi_info(&[purpose.label().as_bytes(), &[0], bytes], &mut out)
            .expect("HKDF-SHA256 gives up to 8160 bytes");
        out
    }
}

secret_key!(
    /// The random secret of one owner, from which the keys of the owner's hashes and signatures derive.
    OwnerSecret
);

/// The use of a key derived from an owner's secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerUse {
    /// Hashes of canonical contents.
    ContentHash,
    /// Hashes of stemmed terms.
    TermHash,
    /// Numbers of named records.
    RecordName,
    /// Seed of the Ed25519 key that signs exports.
    ExportSign,
}

impl OwnerUse {
    fn context(self) -> Context {
        match self {
            Self::ContentHash => OWNER_CONTENT_HASH,
            Self::TermHash => OWNER_TERM_HASH,
            Self::RecordName => OWNER_RECORD_NAME,
            Self::ExportSign => OWNER_EXPORT_SIGN,
        }
    }
}

impl OwnerSecret {
    /// A fresh random secret.
    #[must_use]
    pub fn generate() -> Self {
        Self(random_bytes())
    }

    /// The key for one use.
    #[must_use]
    pub fn derive(&self, purpose: OwnerUse) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(kdf(purpose.context(), &[&self.0]))
    }
}

secret_key!(
    /// A key that seals data at rest: records of a segment, the content of one blob, or an owner's key file.
    /// Its destruction turns every copy of the sealed bytes into noise.
    DataKey
);

impl DataKey {
    /// A fresh random key.
    #[must_use]
    pub fn generate() -> Self {
        Self(random_bytes())
    }

    /// The key of the search rows beside the records that this key seals.
    #[must_use]
    pub fn row_key(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(kdf(OWNER_ROWS, &[&self.0]))
    }

    /// Seals under a random nonce: `nonce(24) ‖ XChaCha20-Poly1305`, [`DATA_OVERHEAD`] bytes longer than the
    /// text. The same text never gives the same bytes.
    #[must_use]
    pub fn seal(&self, associated: &[u8], text: &[u8]) -> Vec<u8> {
        seal_random(&self.0, associated, text)
    }

    /// Opens bytes sealed by [`Self::seal`].
    ///
    /// # Errors
    /// [`OpenError`] when key, associated data and bytes do not belong together.
    pub fn open(&self, associated: &[u8], sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, OpenError> {
        open_random(&self.0, associated, sealed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Known answers from an HKDF written with Python's `hmac` module.
    #[test]
    fn derives_known_values() {
        let master = MasterKey::from_bytes([7; 32]);
        assert_eq!(hex::encode(master.pseudonym(&[1; 32])), "c98121b5946e6ad2a41a53bf0e14b41c");
        assert_eq!(
            hex::encode(master.owner_wrap(&[2; 16]).expose()),
            "c18530f7338eb7e82885759aa78cdff00ee7c86f0acec45739975fb9c589fa5a"
        );
        assert_eq!(
            hex::encode(master.folder_check()),
            "be13b00958a0764eb62a4443a2d6e978205e67814f71fffff95b9ab0d353e4e2"
        );
    }

    #[test]
    fn labels_are_distinct_and_hold_no_separator() {
        let labels: HashSet<_> = MasterUse::ALL.iter().map(|purpose| purpose.label()).collect();
        assert_eq!(labels.len(), MasterUse::ALL.len());
        assert!(labels.iter().all(|label| !label.contains('\0')));
    }

    #[test]
    fn the_key_file_is_made_once_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("master.key");
        let made = MasterKey::load_or_create(&path, None).unwrap();
        assert_eq!(MasterKey::load_or_create(&path, None).unwrap(), made);
        assert_eq!(MasterKey::load(&path, None).unwrap(), made);
        assert!(files::load(&path, "node", None).is_err());
    }

    #[test]
    fn a_data_key_opens_only_its_own_with_the_same_associated_data() {
        let key = DataKey::generate();
        let sealed = key.seal(b"place", b"text");
        assert_eq!(sealed.len(), 4 + DATA_OVERHEAD);
        assert_eq!(key.open(b"place", &sealed).unwrap().as_slice(), b"text");
        assert_ne!(key.seal(b"place", b"text"), sealed, "the same text encrypts differently each time");
        assert_eq!(key.open(b"place", &sealed[..20]), Err(OpenError));
        assert_eq!(key.open(b"elsewhere", &sealed), Err(OpenError));
        assert_eq!(DataKey::generate().open(b"place", &sealed), Err(OpenError));
    }

    #[test]
    fn owner_keys_differ_by_use() {
        let secret = OwnerSecret::from_bytes([3; 32]);
        let uses = [OwnerUse::ContentHash, OwnerUse::TermHash, OwnerUse::RecordName, OwnerUse::ExportSign];
        let keys: HashSet<_> = uses.iter().map(|purpose| *secret.derive(*purpose)).collect();
        assert_eq!(keys.len(), uses.len());
    }
}
