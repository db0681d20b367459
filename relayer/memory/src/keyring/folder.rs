//! The folder of key files: reads and writes them, and locks them between relayers that share it.
//!
//! Layout:
//!
//! - `check` identifies the master key.
//! - `<pseudonym>.keys` is `magic(8) ‖ sealed`.
//! - `<pseudonym>.erased` marks an unfinished erasure: its rows may still be in the database.
//! - `locks/00` to `locks/ff` are the locks.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use baton_keys::{
    files::{
        create_private_folder, discard_leftover, read_secret, remove_secret, replace_private, replace_secret,
        write_private,
    },
    master::{DATA_OVERHEAD, MasterKey},
};

use zeroize::Zeroizing;

use super::{
    KeyringError,
    ring::{Keyring, MAX_KEYRING_BYTES},
};
use crate::{ids::OwnerId, locks::lock_file, storage::Pseudonym};

const MAGIC: &[u8; 8] = b"BTNKEYS3";
const KIND: &str = "an owner of memories";
/// The file that shows the folder's master key.
const CHECK_FILE: &str = "check";
/// Time limit for another relayer's lock, which is held while one file is read and written.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// The folder, with the key that wraps its files.
pub(crate) struct KeyFolder {
    path: PathBuf,
    master: MasterKey,
}

/// Proves that only this thread may change the owner's file.
pub(crate) struct OwnerLock {
    _file: File,
}

impl KeyFolder {
    /// Opens or creates the folder, and checks its master key.
    pub(crate) fn open(path: &Path, master: MasterKey) -> Result<Self, KeyringError> {
        let failed = |source| KeyringError::Io { path: path.to_owned(), source };
        create_private_folder(&path.join("locks")).map_err(failed)?;
        match Self::has_master(path, &master).map_err(failed)? {
            Some(true) => {}
            Some(false) => return Err(KeyringError::WrongMaster { folder: path.to_owned() }),
            None => {
                let mark = format!("{}\n", hex::encode(master.folder_check()));
                replace_private(&path.join(CHECK_FILE), mark.as_bytes()).map_err(failed)?;
            }
        }
        Ok(Self { path: path.to_owned(), master })
    }

    /// Whether a folder belongs to a master key; `None` without a mark of any.
    pub(crate) fn has_master(path: &Path, master: &MasterKey) -> io::Result<Option<bool>> {
        match std::fs::read_to_string(path.join(CHECK_FILE)) {
            Ok(found) => Ok(Some(found.trim_end() == hex::encode(master.folder_check()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn pseudonym(&self, owner: OwnerId) -> Pseudonym {
        Pseudonym(self.master.pseudonym(&owner.0))
    }

    pub(crate) fn file(&self, owner: Pseudonym) -> PathBuf {
        self.path.join(format!("{}.keys", hex::encode(owner.0)))
    }

    fn mark(&self, owner: Pseudonym) -> PathBuf {
        self.path.join(format!("{}.erased", hex::encode(owner.0)))
    }

    /// Prevents other threads and relayers from changing the owner's file.
    pub(crate) fn lock(&self, owner: Pseudonym) -> Result<OwnerLock, KeyringError> {
        let path = self.path.join("locks").join(hex::encode(&owner.0[..1]));
        match lock_file(&path, LOCK_PATIENCE) {
            Ok(Some(file)) => Ok(OwnerLock { _file: file }),
            Ok(None) => Err(KeyringError::Locked { path }),
            Err(source) => Err(KeyringError::Io { path, source }),
        }
    }

    /// Reads an owner's keys; `None` without a file. Removes leftovers of a crash beside the file.
    pub(crate) fn load(&self, owner: Pseudonym) -> Result<Option<Keyring>, KeyringError> {
        let path = self.file(owner);
        if path.with_extension("keys.new").exists() {
            let _lock = self.lock(owner)?;
            discard_leftover(&path).map_err(|source| KeyringError::Io { path: path.clone(), source })?;
        }
        match self.read(owner) {
            // A replaced file is wiped, even while a reader has it open.
            Err(KeyringError::Damaged { .. }) => {
                let _lock = self.lock(owner)?;
                self.read(owner)
            }
            read => read,
        }
    }

    /// As [`Self::load`], for a caller with the lock.
    pub(crate) fn load_locked(
        &self,
        _lock: &OwnerLock,
        owner: Pseudonym,
    ) -> Result<Option<Keyring>, KeyringError> {
        self.read(owner)
    }

    fn read(&self, owner: Pseudonym) -> Result<Option<Keyring>, KeyringError> {
        let path = self.file(owner);
        let Some(bytes) = self.read_sealed(owner)? else { return Ok(None) };
        self.decode(owner, &bytes).map(Some).ok_or(KeyringError::Damaged { path })
    }

    /// The bytes of an owner's file, sealed under the master key.
    pub(crate) fn read_sealed(&self, owner: Pseudonym) -> Result<Option<Zeroizing<Vec<u8>>>, KeyringError> {
        let limit = (MAGIC.len() + DATA_OVERHEAD + MAX_KEYRING_BYTES) as u64;
        Ok(read_secret(&self.file(owner), KIND, limit)?)
    }

    /// The value that identifies the master key.
    pub(crate) fn check_mark(&self) -> [u8; 32] {
        self.master.folder_check()
    }

    /// A folder that no file of is read or written yet.
    pub(crate) fn unopened(path: &Path, master: MasterKey) -> Self {
        Self { path: path.to_owned(), master }
    }

    /// As [`Self::open`], for the first time or after the folder got another name.
    pub(crate) fn reopen(self) -> Result<Self, KeyringError> {
        let Self { path, master } = self;
        Self::open(&path, master)
    }

    /// The folder with the same master key at another path, which is made anew.
    pub(crate) fn begin_at(self, path: &Path) -> Result<Self, KeyringError> {
        let failed = |source| KeyringError::Io { path: path.to_owned(), source };
        match std::fs::remove_dir_all(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        Self::open(path, self.master)
    }

    /// Whether bytes are an owner's file under this master key.
    pub(crate) fn opens(&self, owner: Pseudonym, bytes: &[u8]) -> bool {
        self.decode(owner, bytes).is_some()
    }

    /// Writes the bytes of an owner's file, which must not exist.
    pub(crate) fn write_sealed(&self, owner: Pseudonym, bytes: &[u8]) -> Result<(), KeyringError> {
        let path = self.file(owner);
        write_private(&path, bytes).map_err(|source| KeyringError::Io { path, source })
    }

    fn decode(&self, owner: Pseudonym, bytes: &[u8]) -> Option<Keyring> {
        let sealed = bytes.strip_prefix(MAGIC)?;
        let ring = self.master.owner_wrap(&owner.0).open(&associated(owner), sealed).ok()?;
        Keyring::decode(&ring).filter(|ring| self.pseudonym(ring.owner) == owner)
    }

    /// Prevents other threads and relayers from changing any file. They wait ten seconds at most.
    pub(crate) fn lock_all(&self) -> Result<Vec<OwnerLock>, KeyringError> {
        (0..=u8::MAX).map(|first| self.lock(Pseudonym([first; 16]))).collect()
    }

    /// Replaces an owner's file. The new file is on disk on return; the old bytes are wiped as far as
    /// possible.
    pub(crate) fn save(&self, _lock: &OwnerLock, ring: &Keyring) -> Result<(), KeyringError> {
        let owner = self.pseudonym(ring.owner);
        let encoded = ring.encode();
        if encoded.len() > MAX_KEYRING_BYTES {
            return Err(KeyringError::Full);
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&self.master.owner_wrap(&owner.0).seal(&associated(owner), &encoded));
        let path = self.file(owner);
        replace_secret(&path, &bytes).map_err(|source| KeyringError::Io { path, source })
    }

    /// Marks an owner for erasure, then destroys the owner's keys.
    pub(crate) fn destroy(&self, _lock: &OwnerLock, owner: Pseudonym) -> Result<(), KeyringError> {
        let (mark, path) = (self.mark(owner), self.file(owner));
        replace_private(&mark, b"").map_err(|source| KeyringError::Io { path: mark, source })?;
        discard_leftover(&path)
            .and_then(|()| remove_secret(&path))
            .map_err(|source| KeyringError::Io { path, source })
    }

    /// Whether the owner's erasure has begun and not ended.
    pub(crate) fn is_erased(&self, owner: Pseudonym) -> bool {
        self.mark(owner).exists()
    }

    /// Ends an erasure, once the owner's rows are gone.
    pub(crate) fn end_erasure(&self, _lock: &OwnerLock, owner: Pseudonym) -> Result<(), KeyringError> {
        let mark = self.mark(owner);
        remove_secret(&mark).map_err(|source| KeyringError::Io { path: mark, source })
    }

    /// Owners whose erasure has not ended.
    pub(crate) fn erasures(&self) -> Result<Vec<Pseudonym>, KeyringError> {
        self.listed(".erased")
    }

    /// Why some owners' files do not open. A reader may meet a file that is being replaced, so each bad file
    /// is read again under its lock.
    pub(crate) fn unreadable(&self) -> Result<Vec<KeyringError>, KeyringError> {
        Ok(self.owners()?.into_iter().filter_map(|owner| self.load(owner).err()).collect())
    }

    /// Owners with a key file.
    pub(crate) fn owners(&self) -> Result<Vec<Pseudonym>, KeyringError> {
        self.listed(".keys")
    }

    fn listed(&self, suffix: &str) -> Result<Vec<Pseudonym>, KeyringError> {
        let failed = |source| KeyringError::Io { path: self.path.clone(), source };
        let mut owners = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let mut bytes = [0; 16];
            let stem = name.to_str().and_then(|name| name.strip_suffix(suffix));
            if stem.is_some_and(|stem| hex::decode_to_slice(stem, &mut bytes).is_ok()) {
                owners.push(Pseudonym(bytes));
            }
        }
        Ok(owners)
    }
}

fn associated(owner: Pseudonym) -> Vec<u8> {
    [MAGIC.as_slice(), &owner.0].concat()
}
