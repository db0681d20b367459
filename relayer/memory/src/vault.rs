//! Sealed records of owners: the storage below sees only sealed records, whose keys lie elsewhere.
//!
//! The vault joins a [`Storage`] with the folder of key files. By these rules, a crash at any point loses no
//! acknowledged write:
//!
//! - A key is on disk in the owner's key file before the storage gets a record under it.
//! - All records of a segment are sealed under one key.
//! - A redaction first stores the new keys beside the old ones. It then re-seals the remaining records of the
//!   touched segments in one commit. Only then does it destroy the old keys. After a crash, the records show
//!   how far it came.
//! - After a crash in a redaction, an empty commit comes first. It raises the owner's version, so a commit that is
//!   still under way is refused, and cannot change what we then find.
//! - A handle reads a newer version before the key file, so that its keys are never older than the version.
//! - The key file stores how far the database had come at the file's last write. A database that is behind
//!   has lost data. It stays unused until it is restored or the loss is accepted.
//!
//! The memory service is its only caller. It never logs plain texts.

mod loss;
mod seal;
#[cfg(test)]
mod tests;
mod write;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use baton_keys::master::MasterKey;
use parking_lot::Mutex;

pub use loss::{Loss, Marker, RefusedOwners};
use seal::RecordOpenError;
pub use seal::Secret;

use crate::{
    ids::OwnerId,
    keyring::{KeyFolder, Keyring, KeyringError, Mark, OwnerKeys},
    search::RowKey,
    storage::{
        JobChange, Pseudonym, RowQuery, RowScan, RowSearch, Space, Storage, StorageError, StorageFuture,
    },
};

/// Approximate sealed bytes of a page of [`OwnerVault::read`]: small, so that an owner is opened in steps.
const PAGE_BYTES: usize = 4 * 1024 * 1024;
/// Tries of a read that collides with another relayer's changes.
const ATTEMPTS: u32 = 5;

/// Why a vault operation failed.
#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    /// The storage failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The keys are unusable.
    #[error(transparent)]
    Keys(#[from] KeyringError),
    /// The database holds less of an owner than before.
    #[error(
        "the database holds {found} of this owner, and its key file says that it had reached {reached}: the database was \
         damaged or emptied, or put back from a backup that is older than the key files. Put the latest backup of the \
         database back; or, if there is none, stop the relayer and give up what is missing with `baton-relayer owners \
         accept-loss {owner} --yes`"
    )]
    Behind {
        /// The owner.
        owner: OwnerId,
        /// The database's present contents, in words.
        found: String,
        /// The least contents at the key file's last write.
        reached: String,
    },
    /// The runtime is shutting down.
    #[error("the vault's worker was stopped")]
    Stopped,
}

impl VaultError {
    /// Whether another writer was first: call [`OwnerVault::refresh`], read the new records, and try again.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Storage(StorageError::Conflict))
    }
}

/// The result of a vault operation.
pub type Result<T, E = VaultError> = std::result::Result<T, E>;

/// Changes to an owner's records, all or none.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Plain records to write; existing ones are replaced.
    pub put: Vec<(Space, u64, Secret)>,
    /// Records to remove.
    pub remove: Vec<(Space, u64)>,
    /// The change of the owner's job.
    pub job: Option<JobChange>,
}

/// Sealed records of all owners. Clones share everything.
#[derive(Clone)]
pub struct Vault {
    storage: Arc<dyn Storage>,
    folder: Arc<KeyFolder>,
}

#[derive(Clone)]
struct Ring {
    keys: Arc<Keyring>,
    owner_keys: Arc<OwnerKeys>,
    /// Whether a file exists. Without a file, the keys are new, and are saved before the first write.
    saved: bool,
    /// The database's progress through this process's commits. The next write of the key file includes it.
    seen: Mark,
}

impl Ring {
    fn new(keys: Keyring, saved: bool) -> Self {
        Self { owner_keys: Arc::new(keys.owner_keys()), keys: Arc::new(keys), saved, seen: Mark::default() }
    }
}

impl Vault {
    /// Joins a storage with a folder of key files, which is created if missing. Finishes erasures that a
    /// crash interrupted.
    ///
    /// # Errors
    /// [`KeyringError::WrongMaster`] and other failures to read the folder; the storage's.
    pub async fn new(storage: Arc<dyn Storage>, keys_folder: &Path, master: MasterKey) -> Result<Self> {
        let path = keys_folder.to_owned();
        let folder = Arc::new(blocking(move || Ok(KeyFolder::open(&path, master)?)).await?);
        let vault = Self { storage, folder: folder.clone() };
        for owner in blocking(move || Ok(folder.erasures()?)).await? {
            finish_erasure(&vault.storage, &vault.folder, owner).await?;
        }
        Ok(vault)
    }

    /// Whether a folder of key files belongs to a master key; `None` for a folder that was never used. It
    /// changes nothing. Blocking.
    ///
    /// # Errors
    /// The file system's.
    pub fn has_master(keys_folder: &Path, master: &MasterKey) -> std::io::Result<Option<bool>> {
        KeyFolder::has_master(keys_folder, master)
    }

    /// Why key files of a folder do not open under a master key. Blocking.
    ///
    /// # Errors
    /// [`KeyringError`] for an unreadable folder.
    pub fn unreadable_keys(
        keys_folder: &Path,
        master: MasterKey,
    ) -> std::result::Result<Vec<KeyringError>, KeyringError> {
        KeyFolder::unopened(keys_folder, master).unreadable()
    }

    /// The storage below, for jobs, nonces and searches.
    #[must_use]
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// The name by which the storage knows an owner.
    #[must_use]
    pub fn pseudonym(&self, owner: OwnerId) -> Pseudonym {
        self.folder.pseudonym(owner)
    }

    /// A handle on an owner's records. An unknown owner is empty; its keys are saved with its first write.
    ///
    /// # Errors
    /// [`KeyringError`] when the owner's key file is missing or damaged; the storage's.
    pub async fn open(&self, owner: OwnerId) -> Result<Arc<OwnerVault>> {
        let handle = self.handle(owner);
        handle.refresh().await?;
        Ok(Arc::new(handle))
    }

    fn handle(&self, owner: OwnerId) -> OwnerVault {
        OwnerVault {
            owner,
            pseudonym: self.folder.pseudonym(owner),
            storage: self.storage.clone(),
            folder: self.folder.clone(),
            version: AtomicU64::new(0),
            ring: Mutex::new(Ring::new(Keyring::generate(owner), false)),
            writing: tokio::sync::Mutex::default(),
        }
    }

    /// Owners with records, ascending by pseudonym, after one pseudonym. An owner whose key file is missing or
    /// does not open is left out: [`Self::refused`] names it. A page shorter than `limit` is not the end: continue from the returned pseudonym until it is
    /// `None`.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub async fn owners(
        &self,
        after: Option<Pseudonym>,
        limit: usize,
    ) -> Result<(Vec<OwnerId>, Option<Pseudonym>)> {
        let pseudonyms = self.storage.owners(after, limit).await?;
        let mut owners = Vec::new();
        for pseudonym in &pseudonyms {
            match self.resolve(*pseudonym).await {
                Ok(owner) => owners.extend(owner),
                Err(VaultError::Keys(error)) => tracing::warn!(%error, "an owner is refused"),
                Err(error) => return Err(error),
            }
        }
        Ok((owners, pseudonyms.last().copied()))
    }

    /// The owner behind a pseudonym, from the key file; `None` without a file, as for an erased owner.
    ///
    /// # Errors
    /// [`KeyringError`] when the file cannot be read.
    pub async fn resolve(&self, pseudonym: Pseudonym) -> Result<Option<OwnerId>> {
        let folder = self.folder.clone();
        blocking(move || Ok(folder.load(pseudonym)?.map(|ring| ring.owner))).await
    }
}

/// A handle on one owner's records, with its own version. Several handles act as those of several relayers.
pub struct OwnerVault {
    owner: OwnerId,
    pseudonym: Pseudonym,
    storage: Arc<dyn Storage>,
    folder: Arc<KeyFolder>,
    version: AtomicU64,
    ring: Mutex<Ring>,
    /// Held during a write: an owner's writes are sequential anyway, by their versions.
    writing: tokio::sync::Mutex<()>,
}

impl OwnerVault {
    /// The owner.
    #[must_use]
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// The owner's pseudonym in the storage.
    #[must_use]
    pub fn pseudonym(&self) -> Pseudonym {
        self.pseudonym
    }

    /// The version that this handle builds on, from its opening, its last write, or its last
    /// [`Self::refresh`].
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn set_version(&self, version: u64) {
        self.version.store(version, Ordering::Release);
    }

    /// The keys of the owner's hashes. Read them again after a refresh: an erased owner gets new ones.
    #[must_use]
    pub fn keys(&self) -> Arc<OwnerKeys> {
        self.ring().owner_keys
    }

    /// The database's least progress when the key file was read. A smaller value in the database now means
    /// lost data.
    #[must_use]
    pub fn reached(&self) -> Mark {
        self.ring().keys.mark
    }

    /// Takes over the storage's version and its keys. If [`Self::version`] was different before, earlier
    /// reads are incomplete: read again all records that may have changed. Finishes work that a crash
    /// interrupted.
    ///
    /// # Errors
    /// As [`Vault::open`].
    pub async fn refresh(&self) -> Result<u64> {
        let _alone = self.writing.lock().await;
        let version = self.read_version().await?;
        self.set_version(version);
        Ok(version)
    }

    /// A page of a space's records from a number on, ascending. Continue from the last number + 1 until a
    /// page is empty.
    ///
    /// # Errors
    /// [`StorageError::Damaged`] for a record that does not open.
    pub async fn read(&self, space: Space, from: u64) -> Result<Vec<(u64, Secret)>> {
        self.read_page(space, from, PAGE_BYTES).await
    }

    /// One record.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn get(&self, space: Space, number: u64) -> Result<Option<Secret>> {
        let page = self.read_page(space, number, 1).await?;
        Ok(page.into_iter().find(|(found, _)| *found == number).map(|(_, text)| text))
    }

    /// Records with these numbers, as far as there are any, ascending.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn read_some(&self, space: Space, numbers: Vec<u64>) -> Result<Vec<(u64, Secret)>> {
        let rows = self.rows()?;
        self.opened(space, || rows.read_some(self.pseudonym, space, numbers.clone())).await
    }

    /// Whether the storage searches.
    #[must_use]
    pub fn has_rows(&self) -> bool {
        self.storage.rows().is_some()
    }

    /// Compares the owner's search rows with a question, which `ask` asks under each key; `None` if another relayer
    /// wrote since [`Self::version`].
    ///
    /// # Errors
    /// The storage's.
    pub async fn scan_rows(&self, ask: impl Fn(&[RowKey]) -> RowQuery) -> Result<Option<RowScan>> {
        let query = ask(&self.ring().keys.row_keys());
        let scan = self.rows()?.scan(self.pseudonym, query).await?;
        Ok(Some(scan).filter(|scan| scan.version == self.version()))
    }

    /// The keys of the search rows, for tests that try each of them.
    #[cfg(test)]
    pub(crate) fn row_keys(&self) -> Vec<RowKey> {
        self.ring().keys.row_keys()
    }

    /// The items from a number on that have a vector of an embedder in the search rows.
    ///
    /// # Errors
    /// The storage's.
    pub async fn embedded_rows(&self, embedder: u64, from: u64) -> Result<Vec<u64>> {
        Ok(self.rows()?.embedded(self.pseudonym, embedder, from).await?)
    }

    fn ring(&self) -> Ring {
        self.ring.lock().clone()
    }

    fn set_ring(&self, ring: Ring) {
        *self.ring.lock() = ring;
    }

    /// Reads version and keys, in this order, and finishes unfinished work.
    async fn read_version(&self) -> Result<u64> {
        let mut behind = None;
        for _ in 0..ATTEMPTS {
            if self.folder.is_erased(self.pseudonym) {
                finish_erasure(&self.storage, &self.folder, self.pseudonym).await?;
            }
            let version = self.storage.version(self.pseudonym).await?;
            match self.load().await? {
                // Another relayer may have written between the two reads: then the version has changed by
                // now.
                Some(ring) if version < ring.mark.version => {
                    behind = Some(VaultError::Behind {
                        owner: self.owner,
                        found: format!("version {version}"),
                        reached: format!("version {}", ring.mark.version),
                    });
                    tokio::task::yield_now().await;
                }
                Some(ring) => {
                    let open = !ring.redactions.is_empty();
                    self.adopt(ring);
                    return if open { self.settle().await } else { Ok(version) };
                }
                None if version == 0 => {
                    if self.ring().saved {
                        self.set_ring(Ring::new(Keyring::generate(self.owner), false));
                    }
                    return Ok(0);
                }
                // Another relayer may be erasing the owner: then the version has changed by now.
                None => tokio::task::yield_now().await,
            }
        }
        Err(behind.unwrap_or_else(|| KeyringError::Missing { path: self.folder.file(self.pseudonym) }.into()))
    }

    fn adopt(&self, keys: Keyring) {
        let ring = self.ring();
        // New keys from here are saved with the first write; their derived keys stay.
        let same = ring.keys.same_secret(&keys);
        self.set_ring(if same {
            Ring { keys: Arc::new(keys), saved: true, ..ring }
        } else {
            Ring::new(keys, true)
        });
    }

    /// Records the progress of a durable commit.
    fn saw(&self, seen: Mark) {
        self.ring.lock().seen.raise(seen);
    }

    async fn load(&self) -> Result<Option<Keyring>> {
        let (folder, pseudonym) = (self.folder.clone(), self.pseudonym);
        blocking(move || Ok(folder.load(pseudonym)?)).await
    }

    async fn read_page(&self, space: Space, from: u64, max_bytes: usize) -> Result<Vec<(u64, Secret)>> {
        self.opened(space, || self.storage.read(self.pseudonym, space, from, max_bytes)).await
    }

    fn rows(&self) -> Result<&dyn RowSearch, StorageError> {
        self.storage.rows().ok_or_else(|| StorageError::Unavailable("the storage has no search".into()))
    }

    /// Reads records and opens them; reads again what another relayer seals anew meanwhile.
    async fn opened<'a>(
        &self,
        space: Space,
        read: impl Fn() -> StorageFuture<'a, Vec<(u64, Vec<u8>)>>,
    ) -> Result<Vec<(u64, Secret)>> {
        let mut failed = 0;
        for _ in 0..ATTEMPTS {
            let rows = read().await?;
            if rows.is_empty() {
                return Ok(Vec::new());
            }
            let ring = self.ring().keys;
            match blocking(move || Ok(seal::open_all(&ring, space, &rows))).await? {
                Ok(page) => return Ok(page),
                Err(RecordOpenError::Damaged(number)) => return Err(damaged(space, number)),
                // Another relayer sealed it anew: its key is in the file, or the record is out of date.
                Err(RecordOpenError::UnknownKey(number)) => {
                    failed = number;
                    if let Some(ring) = self.load().await? {
                        self.adopt(ring);
                    }
                }
            }
        }
        Err(damaged(space, failed))
    }
}

fn damaged(space: Space, number: u64) -> VaultError {
    StorageError::Damaged(format!("record {number} of {space:?} does not open with its owner's keys")).into()
}

/// Removes the rows of an owner with destroyed keys.
async fn finish_erasure(storage: &Arc<dyn Storage>, folder: &Arc<KeyFolder>, owner: Pseudonym) -> Result<()> {
    // Repeated: a crash may have come between the mark and the destruction of the keys.
    let keys = folder.clone();
    blocking(move || {
        let locked = keys.lock(owner)?;
        // Another relayer may have finished it, and the owner may have returned.
        if keys.is_erased(owner) {
            keys.destroy(&locked, owner)?
        }
        Ok(())
    })
    .await?;
    storage.erase(owner).await?;
    let keys = folder.clone();
    blocking(move || Ok(keys.end_erasure(&keys.lock(owner)?, owner)?)).await
}

/// Runs disk work or sealing off the reactor.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| VaultError::Stopped)?
}
