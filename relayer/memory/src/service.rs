//! The only entry to memory. Handlers know this type and nothing below it. Requests carry outside names,
//! which this module resolves to internal ids for each request.

mod closing;
mod items;
mod places;
mod portability;
mod recall;
mod records;
mod removal;
mod settings;
mod turns;
mod view;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use baton_models::embed::{EmbedError, Embedder};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, OwnedRwLockReadGuard, RwLock};

use crate::{
    api::{MemoryError, Result},
    content::ContentStore,
    extraction::ModelWriter,
    ids::OwnerId,
    limits::{
        LARGE_OWNER_BYTES, MAX_ITEMS, MAX_OPEN_BYTES, MAX_OPEN_OWNERS, MAX_OPEN_OWNERS_WITH_ROWS,
        RECALL_DEADLINE,
    },
    owner::{COMMIT_TRIES, CommitOutcome, Owner, Plan, VectorKind, busy, joined},
    retry::Retries,
    search::Background,
    storage::{JobChange, StorageError},
    vault::{Marker, Vault, VaultError},
};

pub use records::RecordChanges;
pub(crate) use settings::OwnerWriter;

/// Time limit of the storage's answer to a readiness check.
const READINESS_TIMEOUT: Duration = Duration::from_secs(10);

/// The wall clock, in milliseconds since the Unix epoch.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The components of a memory.
pub struct Parts {
    /// Sealed records and keys.
    pub vault: Vault,
    /// The embedder of all vectors.
    pub embedder: Arc<dyn Embedder>,
    /// A model that judges and extracts; `None` for rules.
    pub writer: Option<ModelWriter>,
    /// A model on third-party nodes. It serves owners that allowed it, and only without a `writer`.
    pub node_writer: Option<ModelWriter>,
    /// The store of contents; without it, contents stay in the vault alone.
    pub contents: Option<Arc<dyn ContentStore>>,
    /// The clock.
    pub now_ms: Clock,
    /// Time limit of a recall, of which the embedder has half.
    pub recall_deadline: Duration,
}

impl Parts {
    /// Memory by rules, on a vault with an embedder.
    #[must_use]
    pub fn new(vault: Vault, embedder: Arc<dyn Embedder>, now_ms: Clock) -> Self {
        Self {
            vault,
            embedder,
            writer: None,
            node_writer: None,
            contents: None,
            now_ms,
            recall_deadline: RECALL_DEADLINE,
        }
    }
}

/// Memory of all owners. Clones share everything.
#[derive(Clone)]
pub struct Memory {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) parts: Parts,
    background: Background,
    kind: VectorKind,
    open: Mutex<HashMap<OwnerId, Arc<OwnerSlot>>>,
    /// Markers of closed owners, to be stored.
    closed: Mutex<Vec<Marker>>,
    /// Notified when there is work.
    pub(crate) work: Notify,
    /// Failed work, with the times of the next tries.
    pub(crate) retries: Mutex<Retries>,
    /// Owners whose jobs this relayer works on.
    pub(crate) working: Mutex<HashSet<OwnerId>>,
}

/// An owner that is open, or about to be opened.
struct OwnerSlot {
    owner: Arc<RwLock<Option<Owner>>>,
    used_ms: AtomicU64,
    /// Its approximate size.
    bytes: AtomicU64,
}

/// An open owner, for reading.
type OwnerReadGuard = OwnedRwLockReadGuard<Option<Owner>, Owner>;

/// Whether a request or a job uses the owner now.
fn is_held(slot: &Arc<OwnerSlot>) -> bool {
    Arc::strong_count(slot) > 1 || Arc::strong_count(&slot.owner) > 1
}

impl From<VaultError> for MemoryError {
    fn from(error: VaultError) -> Self {
        match error {
            VaultError::Storage(StorageError::Damaged(what)) => Self::Damaged(what),
            VaultError::Keys(error) => Self::Damaged(error.to_string()),
            error @ VaultError::Behind { .. } => Self::Lost(error.to_string()),
            error => Self::Unavailable(error.to_string()),
        }
    }
}

impl From<StorageError> for MemoryError {
    fn from(error: StorageError) -> Self {
        VaultError::from(error).into()
    }
}

impl Memory {
    /// Memory of these parts.
    ///
    /// # Errors
    /// The embedder's error when its background cannot be measured: a broken embedder is refused (D4).
    pub async fn open(parts: Parts) -> Result<Self, EmbedError> {
        let background = Background::measure(&*parts.embedder).await?;
        let kind =
            VectorKind { embedder: parts.embedder.id().to_owned(), dimensions: parts.embedder.dimensions() };
        let inner = Inner {
            parts,
            background,
            kind,
            open: Mutex::default(),
            closed: Mutex::default(),
            work: Notify::new(),
            retries: Mutex::default(),
            working: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Owners that are open in memory now.
    #[must_use]
    pub fn open_owners(&self) -> usize {
        self.slots().len()
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<OwnerId, Arc<OwnerSlot>>> {
        self.inner.open.lock()
    }

    pub(crate) fn now_ms(&self) -> u64 {
        (self.inner.parts.now_ms)()
    }

    fn slot(&self, owner: OwnerId) -> Arc<OwnerSlot> {
        let now_ms = self.now_ms();
        let mut slots = self.slots();
        let most = if self.is_shared() { MAX_OPEN_OWNERS_WITH_ROWS } else { MAX_OPEN_OWNERS };
        let bytes_of = |slot: &OwnerSlot| slot.bytes.load(Ordering::Relaxed);
        let is_small = |slot: &OwnerSlot| bytes_of(slot) < LARGE_OWNER_BYTES;
        let mut bytes: u64 = slots.values().map(|slot| bytes_of(slot)).sum();
        let mut small = slots.iter().filter(|(id, slot)| **id != owner && is_small(slot)).count();
        while small >= most || bytes > MAX_OPEN_BYTES {
            // An owner without holders; if all are held, the limit is exceeded for a while.
            let idle = slots
                .iter()
                .filter(|(id, slot)| **id != owner && !is_held(slot))
                .filter(|(_, slot)| is_small(slot) || bytes > MAX_OPEN_BYTES)
                .min_by_key(|(_, slot)| slot.used_ms.load(Ordering::Relaxed))
                .map(|(owner, _)| *owner);
            let Some(closed) = idle.and_then(|idle| slots.remove(&idle)) else { break };
            bytes = bytes.saturating_sub(bytes_of(&closed));
            small -= usize::from(is_small(&closed));
            self.note_closed(&closed);
        }
        let slot = slots.entry(owner).or_insert_with(|| {
            Arc::new(OwnerSlot {
                owner: Arc::default(),
                used_ms: AtomicU64::new(now_ms),
                bytes: AtomicU64::new(0),
            })
        });
        slot.used_ms.store(now_ms, Ordering::Relaxed);
        slot.clone()
    }

    /// Opens a closed owner; an open one catches up with other relayers' writes.
    async fn fill<'a>(
        &self,
        slot: &OwnerSlot,
        owner: OwnerId,
        guard: &'a mut Option<Owner>,
    ) -> Result<&'a mut Owner> {
        let open = match guard.take() {
            Some(mut open) => {
                // After an error its state may be half applied: it stays closed.
                if self.is_shared() {
                    open.catch_up().await?;
                }
                open
            }
            None => {
                let vault = self.inner.parts.vault.open(owner).await?;
                Owner::open(vault, self.inner.kind.clone()).await?
            }
        };
        slot.bytes.store(open.bytes(), Ordering::Relaxed);
        Ok(guard.insert(open))
    }

    /// Whether other relayers may write to the storage.
    fn is_shared(&self) -> bool {
        self.inner.parts.vault.storage().rows().is_some()
    }

    /// An owner for reading, with other relayers' writes applied.
    async fn open_to_read(&self, owner: OwnerId) -> Result<OwnerReadGuard> {
        let slot = self.slot(owner);
        if !self.is_shared() {
            let guard = slot.owner.clone().read_owned().await;
            if let Ok(open) = OwnedRwLockReadGuard::try_map(guard, Option::as_ref) {
                return Ok(open);
            }
        }
        // A task of its own: a caller with a deadline may give up, and the next one finds a large owner open.
        let memory = self.clone();
        let opening = tokio::spawn(async move {
            let mut guard = slot.owner.clone().write_owned().await;
            memory.fill(&slot, owner, &mut guard).await?;
            let is_open = "it was opened just now, and the lock was held since";
            Ok(OwnedRwLockReadGuard::map(guard.downgrade(), |open| open.as_ref().expect(is_open)))
        });
        joined(opening.await)?
    }

    /// Runs `read` on an owner's state; opens the owner if needed.
    pub(crate) async fn read<T>(&self, owner: OwnerId, read: impl FnOnce(&Owner) -> Result<T>) -> Result<T> {
        read(&*self.open_to_read(owner).await?)
    }

    /// Plans a change on an owner's state and makes it durable; plans again if another relayer was faster.
    /// Returns the second result of `plan` once the plan is durable.
    pub(crate) async fn write<T>(
        &self,
        owner: OwnerId,
        mut plan: impl FnMut(&Owner) -> Result<(Plan, T)>,
    ) -> Result<T> {
        let slot = self.slot(owner);
        let mut guard = slot.owner.write().await;
        let open = self.fill(&slot, owner, &mut guard).await?;
        for _ in 0..COMMIT_TRIES {
            let (mut plan, answer) = plan(open)?;
            if !plan.events.is_empty() && !plan.is_quiet {
                plan.job = plan.job.or(Some(JobChange::Due(self.now_ms())));
            }
            match open.commit(plan).await {
                Ok(CommitOutcome::Done) => {
                    self.inner.work.notify_one();
                    return Ok(answer);
                }
                Ok(CommitOutcome::Conflict) => {}
                Err(error) => {
                    // The commit's result is unknown: the next open reads the truth from the disk.
                    *guard = None;
                    return Err(error);
                }
            }
        }
        Err(busy())
    }

    /// Holds the owner for several steps in a row.
    pub(crate) async fn hold<T>(
        &self,
        owner: OwnerId,
        steps: impl AsyncFnOnce(&mut Owner) -> Result<T>,
    ) -> Result<T> {
        let slot = self.slot(owner);
        let mut guard = slot.owner.write().await;
        let outcome = steps(self.fill(&slot, owner, &mut guard).await?).await;
        if outcome.is_err() {
            *guard = None;
        }
        outcome
    }

    /// Refuses items beyond the owner's limit.
    pub(crate) fn check_room(&self, owner: &Owner, more: usize) -> Result<()> {
        if owner.state.entries.len() as u64 + more as u64 > MAX_ITEMS {
            return Err(MemoryError::Full(format!(
                "it holds {MAX_ITEMS} items; delete some or ask the operator"
            )));
        }
        Ok(())
    }

    /// Stores a request's nonce until a time; false for a nonce that was used before. Durable on return.
    ///
    /// # Errors
    /// [`MemoryError::Unavailable`].
    pub async fn take_nonce(&self, nonce: [u8; 32], now_ms: u64, until_ms: u64) -> Result<bool> {
        Ok(self.inner.parts.vault.storage().take_nonce(nonce, now_ms, until_ms).await?)
    }

    /// As [`Memory::take_nonce`], for a request that changes nothing. While the disk takes no writes, the nonce is held
    /// in memory: reading goes on.
    ///
    /// # Errors
    /// [`MemoryError::Unavailable`].
    pub async fn take_nonce_to_read(&self, nonce: [u8; 32], now_ms: u64, until_ms: u64) -> Result<bool> {
        let storage = self.inner.parts.vault.storage();
        match storage.take_nonce(nonce, now_ms, until_ms).await {
            Err(refused) => match storage.hold_nonce(nonce, now_ms, until_ms).await {
                Err(_) => Err(refused.into()),
                held => Ok(held?),
            },
            taken => Ok(taken?),
        }
    }

    /// Whether a nonce was used before. It writes nothing, so it may be asked before a caller's rate is taken.
    ///
    /// # Errors
    /// [`MemoryError::Unavailable`].
    pub async fn has_nonce(&self, nonce: [u8; 32], now_ms: u64) -> Result<bool> {
        Ok(self.inner.parts.vault.storage().has_nonce(nonce, now_ms).await?)
    }

    /// Whether memory can be read and written now, by a query to its storage. The error says why not, and the
    /// next step. Its text is for any caller: it names no path, no address and no owner.
    ///
    /// # Errors
    /// The text.
    pub async fn readiness(&self) -> std::result::Result<(), String> {
        let storage = self.inner.parts.vault.storage();
        match tokio::time::timeout(READINESS_TIMEOUT, storage.ready()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(StorageError::Unavailable(why) | StorageError::Damaged(why))) if !self.is_shared() => {
                Err(why)
            }
            failed => {
                if let Ok(Err(error)) = failed {
                    tracing::warn!(%error, "the database of memory does not answer");
                }
                Err("the database of memory does not answer: check that it runs and can be reached; the relayer's log says \
                     more"
                    .into())
            }
        }
    }

    /// Writes a snapshot of an owner's state, so that the owner opens faster. Memory does this by itself as
    /// the log grows.
    ///
    /// # Errors
    /// [`MemoryError::Unavailable`], [`MemoryError::Damaged`].
    pub async fn write_snapshot(&self, owner: OwnerId) -> Result<()> {
        self.hold(owner, async |owner| owner.write_snapshot().await).await
    }

    /// Deletes an owner with its keys: every copy of its data is noise from then on.
    ///
    /// # Errors
    /// [`MemoryError::Unavailable`]; the next start finishes an incomplete deletion.
    pub async fn erase_owner(&self, owner: OwnerId) -> Result<()> {
        let slot = self.slot(owner);
        let mut guard = slot.owner.write().await;
        *guard = None;
        self.inner.parts.vault.open(owner).await?.erase().await?;
        drop(guard);
        self.close(owner);
        Ok(())
    }
}

/// Passes on a task's panic: it is a fault in the program, and ends it.
pub(crate) fn propagate_panic(ended: std::result::Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
}

#[cfg(test)]
mod tests;
