//! Sealed records of owners: the storage below sees only what was sealed here, under keys that lie elsewhere.
//!
//! The vault joins a [`Storage`] with the folder of key files. Its rules, by which a crash at any point loses nothing
//! that was acknowledged:
//!
//! - A key is on disk in the owner's key file before a record that it sealed is offered to the storage.
//! - All records of a segment are sealed under one key.
//! - A redaction first notes the new keys beside the old ones, then re-seals all that stays of the touched segments in
//!   one commit, and only then destroys the old keys. What it was in the middle of is told by the records themselves.
//! - Before an unfinished redaction is judged, an empty commit raises the owner's version: a commit that is still under
//!   way somewhere is then refused, so the judgement stays true.
//! - Whoever takes over a newer version reads the key file after it, so that keys are never older than the version.
//! - The key file says how far the database had come when it was last written. A database that is behind has lost
//!   something, and is not used before it is restored or the loss accepted.
//!
//! The memory service is its only caller. It never logs what it seals.

mod loss;
mod seal;
#[cfg(test)]
mod tests;
mod write;

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use baton_keys::master::MasterKey;

pub use loss::{Loss, Marker};
pub use seal::Secret;
use seal::Unopened;

use crate::{
    ids::OwnerId,
    keyring::{IndexKeys, KeyFolder, Keyring, KeyringError, Mark, OwnerKeys},
    storage::{IndexRow, Pseudonym, Space, Storage, StorageError},
};

/// About how many sealed bytes a page of [`OwnerVault::read`] has: few enough that an owner is opened in steps.
const PAGE_BYTES: usize = 4 * 1024 * 1024;
/// How often something is read again that another relayer changes meanwhile.
const ATTEMPTS: u32 = 5;

/// Why the vault cannot do something.
#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    /// The storage cannot.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The keys cannot be used.
    #[error(transparent)]
    Keys(#[from] KeyringError),
    /// The database holds less of an owner than it once did.
    #[error(
        "the database holds {found} of this owner, and its key file says that it had reached {reached}: the database was \
         damaged or emptied, or put back from a backup that is older than the key files. Put the latest backup of the \
         database back; or, if there is none, stop the relayer and give up what is missing with `baton-relayer owners \
         accept-loss {owner} --yes`"
    )]
    Behind {
        /// Whose.
        owner: OwnerId,
        /// What the database holds, in words.
        found: String,
        /// What it held when the key file was last written, at least.
        reached: String,
    },
    /// The runtime is shutting down.
    #[error("the vault's worker was stopped")]
    Stopped,
}

impl VaultError {
    /// Whether somebody else wrote first: call [`OwnerVault::refresh`], read what is new, and try again.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Storage(StorageError::Conflict))
    }
}

/// A vault operation's outcome.
pub type Result<T, E = VaultError> = std::result::Result<T, E>;

/// Changes to an owner's records that happen all or not at all.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Records to write, in the clear; one that is there is replaced.
    pub put: Vec<(Space, u64, Secret)>,
    /// Records to remove.
    pub remove: Vec<(Space, u64)>,
    /// Index rows to write, for a storage that [searches](Storage::searches).
    pub index: Vec<IndexRow>,
    /// Index rows to remove.
    pub unindex: Vec<u64>,
    /// From when on index rows of something deleted may be left on old pages; noted by [`OwnerVault::redact`] only.
    pub stale_index_ms: Option<u64>,
    /// Jobs to write, number and due time.
    pub jobs: Vec<(u64, u64)>,
    /// Jobs that are done.
    pub done: Vec<u64>,
}

/// Sealed records of all owners. Clones share everything.
#[derive(Clone)]
pub struct Vault {
    storage: Arc<dyn Storage>,
    folder: Arc<KeyFolder>,
    open: Arc<Mutex<HashMap<Pseudonym, Weak<Shared>>>>,
}

/// What handles on one owner share.
struct Shared {
    owner: OwnerId,
    pseudonym: Pseudonym,
    storage: Arc<dyn Storage>,
    folder: Arc<KeyFolder>,
    ring: Mutex<Ring>,
    /// Held over a write: an owner's writes come one after another anyway, by their versions.
    writing: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Ring {
    keys: Arc<Keyring>,
    owner_keys: Arc<OwnerKeys>,
    index_keys: Arc<[IndexKeys]>,
    /// Whether there is a file. Without one the keys are made up, and saved before the first write.
    saved: bool,
    /// How far the database came by commits of this process. It goes into the file when that is written anyway.
    seen: Mark,
}

impl Ring {
    fn new(keys: Keyring, saved: bool) -> Self {
        Self {
            owner_keys: Arc::new(keys.owner_keys()),
            index_keys: keys.index_keys().into(),
            keys: Arc::new(keys),
            saved,
            seen: Mark::default(),
        }
    }
}

impl Vault {
    /// Joins a storage with a folder of key files, which is made if there is none, and finishes erasures that a crash
    /// interrupted.
    ///
    /// # Errors
    /// [`KeyringError::WrongMaster`] and what else hinders reading the folder; the storage's.
    pub async fn new(storage: Arc<dyn Storage>, keys_folder: &Path, master: MasterKey) -> Result<Self> {
        let path = keys_folder.to_owned();
        let folder = Arc::new(blocking(move || Ok(KeyFolder::open(&path, master)?)).await?);
        let vault = Self { storage, folder: folder.clone(), open: Arc::default() };
        for owner in blocking(move || Ok(folder.erased()?)).await? {
            finish_erasure(&vault.storage, &vault.folder, owner).await?;
        }
        Ok(vault)
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
    pub async fn open(&self, owner: OwnerId) -> Result<OwnerVault> {
        let pseudonym = self.folder.pseudonym(owner);
        let handle = OwnerVault { shared: self.shared(owner, pseudonym), version: AtomicU64::new(0) };
        handle.refresh().await?;
        Ok(handle)
    }

    fn shared(&self, owner: OwnerId, pseudonym: Pseudonym) -> Arc<Shared> {
        let mut open = locked(&self.open);
        if let Some(shared) = open.get(&pseudonym).and_then(Weak::upgrade) {
            return shared;
        }
        open.retain(|_, shared| shared.strong_count() > 0);
        let shared = Arc::new(Shared {
            owner,
            pseudonym,
            storage: self.storage.clone(),
            folder: self.folder.clone(),
            ring: Mutex::new(Ring::new(Keyring::generate(owner), false)),
            writing: tokio::sync::Mutex::default(),
        });
        open.insert(pseudonym, Arc::downgrade(&shared));
        shared
    }

    /// Owners that have records, ascending by pseudonym, after one; an owner whose key file is gone is left out.
    /// Less than `limit` does not mean that these were the last: go on from the returned pseudonym until there is none.
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
            owners.extend(self.resolve(*pseudonym).await?);
        }
        Ok((owners, pseudonyms.last().copied()))
    }

    /// The owner behind a pseudonym, told by the key file; `None` where there is none, as for an erased owner.
    ///
    /// # Errors
    /// [`KeyringError`] when the file cannot be read.
    pub async fn resolve(&self, pseudonym: Pseudonym) -> Result<Option<OwnerId>> {
        if let Some(shared) = locked(&self.open).get(&pseudonym).and_then(Weak::upgrade) {
            return Ok(Some(shared.owner));
        }
        let folder = self.folder.clone();
        blocking(move || Ok(folder.load(pseudonym)?.map(|ring| ring.owner))).await
    }
}

/// A handle on one owner's records. Handles on the same owner share keys, and each has its own version.
pub struct OwnerVault {
    shared: Arc<Shared>,
    version: AtomicU64,
}

impl OwnerVault {
    /// The owner.
    #[must_use]
    pub fn owner(&self) -> OwnerId {
        self.shared.owner
    }

    /// The owner as the storage knows it.
    #[must_use]
    pub fn pseudonym(&self) -> Pseudonym {
        self.shared.pseudonym
    }

    /// The version that this handle builds on: the one of its opening, of its last write, or of its last
    /// [`Self::refresh`].
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The keys of the owner's hashes. Ask again after a refresh: an owner that was erased has new ones.
    #[must_use]
    pub fn keys(&self) -> Arc<OwnerKeys> {
        self.shared.ring().owner_keys
    }

    /// The keys under which index rows may be, that of new rows last. Ask again after a refresh.
    #[must_use]
    pub fn index_keys(&self) -> Arc<[IndexKeys]> {
        self.shared.ring().index_keys
    }

    /// From when on the index rows have to be written under a new key; `None` if nothing calls for it.
    #[must_use]
    pub fn reindex_from_ms(&self) -> Option<u64> {
        self.shared.ring().keys.reindex_from_ms()
    }

    /// Makes a new key of index rows, or goes on with one under which not all rows are yet. The last of
    /// [`Self::index_keys`] from then on; other relayers have it once the owner's version is raised.
    ///
    /// # Errors
    /// The key folder's; a conflict when another relayer erased the owner.
    pub async fn begin_reindex(&self) -> Result<()> {
        let _alone = self.shared.writing.lock().await;
        let begin = |ring: &mut Keyring| {
            ring.begin_reindex();
            Ok(())
        };
        self.shared.change_ring(begin).await
    }

    /// Destroys all keys of index rows but that of a generation, under which all rows are now.
    ///
    /// # Errors
    /// As [`Self::begin_reindex`].
    pub async fn end_reindex(&self, generation: u64) -> Result<()> {
        let _alone = self.shared.writing.lock().await;
        let end = move |ring: &mut Keyring| {
            ring.end_reindex(generation);
            Ok(())
        };
        self.shared.change_ring(end).await
    }

    /// How far the database had come, at least, when the key file was read: what is read of it now is no less, or it has
    /// lost something.
    #[must_use]
    pub fn reached(&self) -> Mark {
        self.shared.ring().keys.mark()
    }

    /// Takes over the storage's version and the keys that go with it. If it differs from [`Self::version`] before, what
    /// was read of the owner is no longer all: read again what may have changed. Finishes what a crash interrupted.
    ///
    /// # Errors
    /// As [`Vault::open`].
    pub async fn refresh(&self) -> Result<u64> {
        let version = self.shared.refresh().await?;
        self.version.store(version, Ordering::Release);
        Ok(version)
    }

    /// A page of a space's records from a number on, ascending. Go on from the last number + 1 until nothing comes.
    ///
    /// # Errors
    /// [`StorageError::Damaged`] for a record that does not open.
    pub async fn read(&self, space: Space, from: u64) -> Result<Vec<(u64, Secret)>> {
        self.shared.read(space, from, PAGE_BYTES).await
    }

    /// One record.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn get(&self, space: Space, number: u64) -> Result<Option<Secret>> {
        let page = self.shared.read(space, number, 1).await?;
        Ok(page.into_iter().find(|(found, _)| *found == number).map(|(_, text)| text))
    }

    /// Makes all changes, durable when it returns; returns the new version.
    ///
    /// # Errors
    /// A [conflict](VaultError::is_conflict) when somebody else wrote since [`Self::version`]; nothing is changed then.
    /// After any other error the changes may have been made or not: [`Self::refresh`] tells.
    pub async fn commit(&self, changes: Changes) -> Result<u64> {
        let version = self.shared.commit(self.version(), changes).await?;
        self.version.store(version, Ordering::Release);
        Ok(version)
    }

    /// As [`Self::commit`], and when it returns, the former bytes of every record that it replaced or removed are
    /// unreadable for good, wherever copies of them are: what else shares a key with them was sealed anew and the old
    /// key is destroyed. The snapshot is removed, unless the changes put one, since it may hold what is to go; all
    /// former snapshots become unreadable.
    ///
    /// # Errors
    /// As [`Self::commit`]. After any other error than a conflict, refresh and repeat: it is idempotent.
    pub async fn redact(&self, changes: Changes) -> Result<u64> {
        let version = self.shared.redact(self.version(), changes).await?;
        self.version.store(version, Ordering::Release);
        Ok(version)
    }

    /// Destroys the owner's keys, then removes everything of the owner. Works without a key file, too. Once the keys are
    /// gone, the rest is finished at the next start if it fails.
    ///
    /// # Errors
    /// The key folder's and the storage's.
    pub async fn erase(&self) -> Result<()> {
        self.shared.erase().await?;
        self.version.store(0, Ordering::Release);
        Ok(())
    }
}

impl Shared {
    fn ring(&self) -> Ring {
        locked(&self.ring).clone()
    }

    fn set_ring(&self, ring: Ring) {
        *locked(&self.ring) = ring;
    }

    /// Reads version and keys, in this order, and finishes what is unfinished.
    async fn refresh(&self) -> Result<u64> {
        let _alone = self.writing.lock().await;
        let mut behind = None;
        for _ in 0..ATTEMPTS {
            if self.folder.is_erased(self.pseudonym) {
                finish_erasure(&self.storage, &self.folder, self.pseudonym).await?;
            }
            let version = self.storage.version(self.pseudonym).await?;
            match self.load().await? {
                // Another relayer may have written between the two: then the version is another by now.
                Some(ring) if version < ring.mark().version => {
                    behind = Some(VaultError::Behind {
                        owner: self.owner,
                        found: format!("version {version}"),
                        reached: format!("version {}", ring.mark().version),
                    });
                    tokio::task::yield_now().await;
                }
                Some(ring) => {
                    let open = !ring.redactions().is_empty();
                    self.adopt(ring);
                    return if open { self.settle().await } else { Ok(version) };
                }
                None if version == 0 => {
                    if self.ring().saved {
                        self.set_ring(Ring::new(Keyring::generate(self.owner), false));
                    }
                    return Ok(0);
                }
                // Another relayer may be erasing the owner: then the version is another by now.
                None => tokio::task::yield_now().await,
            }
        }
        Err(behind.unwrap_or_else(|| KeyringError::Missing { path: self.folder.file(self.pseudonym) }.into()))
    }

    fn adopt(&self, keys: Keyring) {
        let ring = self.ring();
        // Keys that were made up here are saved with the first write; what was derived of them stays.
        let same = ring.keys.same_secret(&keys);
        self.set_ring(if same {
            let index_keys = if ring.index_keys.last().map(IndexKeys::generation) == keys.index_generation()
                && ring.index_keys.len() == keys.index_count()
            {
                ring.index_keys
            } else {
                keys.index_keys().into()
            };
            Ring { keys: Arc::new(keys), index_keys, saved: true, ..ring }
        } else {
            Ring::new(keys, true)
        });
    }

    /// Notes what a commit made durable.
    fn saw(&self, seen: Mark) {
        locked(&self.ring).seen.raise(seen);
    }

    async fn load(&self) -> Result<Option<Keyring>> {
        let (folder, pseudonym) = (self.folder.clone(), self.pseudonym);
        blocking(move || Ok(folder.load(pseudonym)?)).await
    }

    async fn read(&self, space: Space, from: u64, max_bytes: usize) -> Result<Vec<(u64, Secret)>> {
        let mut failed = None;
        for _ in 0..ATTEMPTS {
            let rows = self.storage.read(self.pseudonym, space, from, max_bytes).await?;
            if rows.is_empty() {
                return Ok(Vec::new());
            }
            let ring = self.ring().keys;
            match blocking(move || Ok(seal::open_all(&ring, space, &rows))).await? {
                Ok(page) => return Ok(page),
                Err(Unopened::Damaged(number)) => return Err(damaged(space, number)),
                // Another relayer sealed it anew: its key is in the file, or the record is an old one by now.
                Err(Unopened::UnknownKey(number)) => {
                    failed = Some(number);
                    if let Some(ring) = self.load().await? {
                        self.adopt(ring);
                    }
                }
            }
        }
        Err(damaged(space, failed.unwrap_or(from)))
    }
}

fn damaged(space: Space, number: u64) -> VaultError {
    StorageError::Damaged(format!("record {number} of {space:?} does not open with its owner's keys")).into()
}

/// Removes the rows of an owner whose keys are destroyed.
async fn finish_erasure(storage: &Arc<dyn Storage>, folder: &Arc<KeyFolder>, owner: Pseudonym) -> Result<()> {
    // Once more: a crash may have come between the mark and the end of the keys.
    let keys = folder.clone();
    blocking(move || {
        let locked = keys.lock(owner)?;
        // Another relayer may have finished it, and the owner may be there again.
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

/// Does disk work or sealing off the reactor.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| VaultError::Stopped)?
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Values are replaced whole: a panic leaves them usable.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
