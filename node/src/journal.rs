//! The journal: what this node promised and signed, flushed before any signature leaves the process.
//!
//! It is also the seen-set: an authorisation is served once, across restarts. Called by the turn service only. It
//! holds sealed bytes, signatures, hashes and times; never text, never a key.
//!
//! What is flushed when: an Accepted entry is written but not flushed, because nothing was signed yet: if a crash
//! loses it, the same request simply runs again. Sealed and Aborted entries are flushed before anybody hears of
//! them. A journal that is new, because there was none or its disk was lost, refuses every authorisation issued
//! before it was made ([`Journal::begins_ms`]), since it cannot know whether that was served.

mod intact;
mod open;
mod trees;

use std::{
    ops::Deref,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use baton_proto::{
    ErrorCode, SignedBytes,
    ids::{AuthHash, BlobDigest, FetchProof, LinkHash, ReceiptHash, SessionId, SuiAddress, TurnId},
    limits::{MAX_AUTH_LIFETIME_MS, MAX_CLOCK_SKEW_MS},
    wire::{Committed, StoreState},
};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::ledger::Ledger;
pub use intact::JournalDamage;
pub(crate) use open::JOURNAL_OPENING;
use trees::Trees;

/// Layout of the entries; another one in the folder is refused.
const JOURNAL_VERSION: u8 = 2;
/// Longest time of one piece of work: far above what a slow disk takes, and short enough for an answer within 30 s. After a
/// failed write sled may wait for ever.
const MAX_DISK_WAIT: Duration = Duration::from_secs(20);
/// Stands in a mark for the authorisation of an attempt that was given up before it came.
const UNKNOWN_AUTH: AuthHash = AuthHash([0; 32]);

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The files cannot be read or written.
    #[error("the journal cannot be read or written: {0}; check the disk and the folder's permissions")]
    Disk(#[from] sled::Error),
    /// An earlier write failed. What is in memory since then may not be on the disk, so nothing of it is told.
    #[error(
        "the journal could not be written earlier; check the disk and make space, then start the node again"
    )]
    Failed,
    /// Its files cannot be compared, copied or marked.
    #[error("the journal's files cannot be looked after: {0}; check the disk and the folder's permissions")]
    Files(std::io::Error),
    /// sled cannot make sense of the files.
    #[error(
        "the journal's files are damaged, and cannot be read even after they were made anew: check the disk"
    )]
    Unreadable,
    /// It was written by another version.
    #[error("the journal is of another version of the node: move its folder away, and a new one is made")]
    Version,
    /// An entry is damaged.
    #[error("the journal holds a damaged entry: start the node again, which sets it aside")]
    Damaged,
    /// The receipts that clients acknowledge cannot be kept.
    #[error("a receipt cannot be kept: {0}; check the disk and the folder's permissions")]
    Receipts(std::io::Error),
    /// The runtime is shutting down.
    #[error("the journal's worker was stopped")]
    Stopped,
}

/// How much is kept. What is not yet stored or not yet expired is kept in any case.
#[derive(Debug, Clone, Copy)]
pub struct JournalLimits {
    /// Bytes of blobs; the oldest stored ones go first.
    pub max_blob_bytes: u64,
    /// How long entries are kept for status questions.
    pub retention: Duration,
    /// Entries; beyond it the oldest go before their time.
    pub max_entries: u64,
    /// Memory for sled's page cache.
    pub cache_bytes: u64,
}

impl Default for JournalLimits {
    /// 512 MiB of blobs, three days, a million entries (some hundred bytes to two kilobytes each), 8 MiB of cache: what is
    /// read again is what was written just now.
    fn default() -> Self {
        Self {
            max_blob_bytes: 512 * 1024 * 1024,
            retention: Duration::from_secs(3 * 24 * 3600),
            max_entries: 1_000_000,
            cache_bytes: 8 * 1024 * 1024,
        }
    }
}

/// The idempotency key of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TurnKey {
    /// The session.
    pub session_id: SessionId,
    /// The turn.
    pub turn_id: TurnId,
    /// The attempt.
    pub attempt: u32,
}

impl TurnKey {
    fn to_bytes(self) -> [u8; 52] {
        let mut bytes = [0; 52];
        bytes[..32].copy_from_slice(&self.session_id.0);
        bytes[32..48].copy_from_slice(&self.turn_id.0);
        bytes[48..].copy_from_slice(&self.attempt.to_be_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (session, rest) = bytes.split_first_chunk::<32>()?;
        let (turn, rest) = rest.split_first_chunk::<16>()?;
        let attempt = u32::from_be_bytes(rest.try_into().ok()?);
        Some(Self { session_id: SessionId(*session), turn_id: TurnId(*turn), attempt })
    }
}

/// How a blob is to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutPlan {
    /// For how many epochs.
    pub epochs: u32,
    /// Who gets the blob object.
    pub send_object_to: Option<SuiAddress>,
    /// Shards that the session's blob IDs are computed for.
    pub n_shards: u16,
}

/// A turn that was sealed and signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedEntry {
    /// What the client was sent, or would have been.
    pub committed: Committed,
    /// What whoever fetches the blob must prove.
    pub fetch_proof: FetchProof,
    /// Hash of the link, for acknowledgements.
    pub link_hash: LinkHash,
    /// Hash of the receipt, for acknowledgements.
    pub receipt_hash: ReceiptHash,
    /// Whether the blob is stored.
    pub store: StoreState,
    /// How it is to be stored.
    pub plan: PutPlan,
    /// The client's acknowledgement, once it came.
    pub ack: Option<SignedBytes>,
}

/// What is known of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryState {
    /// Admitted; nothing signed.
    Accepted,
    /// Sealed and signed.
    Sealed(Box<SealedEntry>),
    /// Given up by the client.
    Aborted,
}

/// An entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnEntry {
    version: u8,
    /// The authorisation; it covers the payload's hash, so it stands for the whole request.
    pub auth_hash: AuthHash,
    /// When the authorisation expires.
    pub expires_ms: u64,
    /// When the entry was made.
    pub created_ms: u64,
    /// What is known.
    pub state: EntryState,
}

impl TurnEntry {
    fn new(auth_hash: AuthHash, expires_ms: u64, created_ms: u64, state: EntryState) -> Self {
        Self { version: JOURNAL_VERSION, auth_hash, expires_ms, created_ms, state }
    }

    /// Whether this stands for that authorisation. One that was given up before it came stands for every one.
    #[must_use]
    pub fn is_of(&self, auth_hash: &AuthHash) -> bool {
        self.auth_hash == *auth_hash || (self.auth_hash == UNKNOWN_AUTH && self.state == EntryState::Aborted)
    }
}

impl TurnEntry {
    /// Whether the entry has a blob that the store is not known to have.
    fn is_untaken(&self) -> bool {
        matches!(&self.state, EntryState::Sealed(sealed) if !matches!(sealed.store, StoreState::Stored { .. }))
    }
}

/// A handle on the journal; clones share it.
#[derive(Clone)]
pub struct Journal(Arc<OpenJournal>);

/// The trees while they are open. The last handle closes them, and writes the checksums of their files.
struct OpenJournal {
    trees: Option<Trees>,
    folder: PathBuf,
    damage: Option<JournalDamage>,
}

impl Deref for OpenJournal {
    type Target = Trees;

    fn deref(&self) -> &Trees {
        self.trees.as_ref().expect("only dropping takes them")
    }
}

impl Drop for OpenJournal {
    fn drop(&mut self) {
        let Some(trees) = self.trees.take() else { return };
        // What is in memory after a failure is not on the disk, so the files are not vouched for.
        let whole = !trees.failed();
        if whole {
            trees.mark_end();
        }
        drop(trees);
        if whole {
            intact::close(&self.folder);
        }
    }
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("begins_ms", &self.begins_ms()).finish_non_exhaustive()
    }
}

/// What an attempt to change an entry came to.
type Decided<T> = Result<Result<T, ErrorCode>, JournalError>;

impl Journal {
    /// Opens or makes the journal in a folder. Blocking.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn open(folder: &Path, limits: JournalLimits, now_ms: u64) -> Result<Self, JournalError> {
        let (trees, damage) = Trees::open(folder, limits, now_ms)?;
        Ok(Self(Arc::new(OpenJournal { trees: Some(trees), folder: folder.to_owned(), damage })))
    }

    /// What was found wrong when it was opened. The caller tells the operator.
    #[must_use]
    pub fn damage(&self) -> Option<&JournalDamage> {
        self.0.damage.as_ref()
    }

    /// Keeps the receipts of acknowledged turns in a ledger from now on. Only the first call counts.
    #[must_use]
    pub fn with_ledger(self, ledger: Ledger) -> Self {
        self.0.keep_receipts(ledger);
        self
    }

    /// Authorisations issued before this are refused unless they are known: the journal may have been lost.
    #[must_use]
    pub fn begins_ms(&self) -> u64 {
        self.0.begins_ms()
    }

    /// Whether the disk has failed: the node must be started again once the disk has space and can be written.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.0.failed()
    }

    /// Runs blocking work on the journal off the reactor.
    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Trees) -> Result<T, JournalError> + Send + 'static,
    ) -> Result<T, JournalError> {
        let trees = self.0.clone();
        let working = trees.clone();
        let (began, begun) = oneshot::channel();
        let done = tokio::task::spawn_blocking(move || {
            // Nobody hears it where the wait was given up.
            let _ = began.send(());
            working.guarded(work)
        });
        // Time in line for a thread says nothing about the disk.
        if begun.await.is_err() {
            return Err(JournalError::Stopped);
        }
        match tokio::time::timeout(MAX_DISK_WAIT, done).await {
            Ok(done) => done.map_err(|_| JournalError::Stopped)?,
            Err(_) => {
                trees.fail();
                Err(JournalError::Failed)
            }
        }
    }

    /// What is known of an attempt. One that is being sealed is still Accepted until that is on the disk.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn look_up(&self, key: TurnKey) -> Result<Option<TurnEntry>, JournalError> {
        // Most keys that are asked about are new, and nobody has signed for them yet: those cost no thread.
        if !self.0.may_have(&key) {
            return Ok(None);
        }
        self.on_disk(move |trees| trees.flushed_entry(&key)).await
    }

    /// Admits an attempt: a new entry, or the Accepted one of an earlier run that ended before it sealed. Gives
    /// the sealed entry instead if it was sealed. Not flushed.
    ///
    /// # Errors
    /// Inside: [`ErrorCode::IdempotencyConflict`], [`ErrorCode::Aborted`]. Outside: [`JournalError`].
    pub async fn accept(
        &self,
        key: TurnKey,
        auth_hash: AuthHash,
        expires_ms: u64,
        now_ms: u64,
    ) -> Decided<Option<Box<SealedEntry>>> {
        self.on_disk(move |trees| {
            let _writing = trees.write_lock();
            let Some(entry) = trees.entry(&key)? else {
                trees.prune(now_ms)?;
                let entry = TurnEntry::new(auth_hash, expires_ms, now_ms, EntryState::Accepted);
                trees.insert(&key, &entry)?;
                return Ok(Ok(None));
            };
            let known = entry.is_of(&auth_hash);
            Ok(match entry.state {
                _ if !known => Err(ErrorCode::IdempotencyConflict),
                EntryState::Accepted => Ok(None),
                EntryState::Sealed(sealed) => Ok(Some(sealed)),
                EntryState::Aborted => Err(ErrorCode::Aborted),
            })
        })
        .await
    }

    /// Keeps a sealed turn and its blob, flushed when this returns. Only an Accepted entry of the same
    /// authorisation can be sealed, so nothing is ever signed twice.
    ///
    /// # Errors
    /// Inside: [`ErrorCode::Aborted`] when the client gave it up meanwhile, [`ErrorCode::IdempotencyConflict`].
    /// Outside: [`JournalError`].
    pub async fn seal(
        &self,
        key: TurnKey,
        auth_hash: AuthHash,
        sealed: SealedEntry,
        blob: Vec<u8>,
    ) -> Decided<()> {
        self.on_disk(move |trees| {
            let (unflushed, change) = {
                let _writing = trees.write_lock();
                let Some(mut entry) = trees.entry(&key)? else { return Ok(Err(ErrorCode::Internal)) };
                match entry.state {
                    EntryState::Accepted if entry.auth_hash == auth_hash => {}
                    EntryState::Aborted => return Ok(Err(ErrorCode::Aborted)),
                    _ => return Ok(Err(ErrorCode::IdempotencyConflict)),
                }
                let digest = sealed.committed.blob_digest;
                entry.state = EntryState::Sealed(Box::new(sealed));
                let unflushed = trees.unflushed(key);
                (unflushed, trees.insert_sealed(&key, &entry, &digest, blob)?)
            };
            trees.flush_change(change)?;
            trees.is_flushed(unflushed);
            Ok(Ok(()))
        })
        .await
    }

    /// Notes what became of storing a blob. Not flushed: after a crash the store is asked again.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn set_store(&self, key: TurnKey, store: StoreState) -> Result<(), JournalError> {
        self.on_disk(move |trees| {
            let _writing = trees.write_lock();
            let Some(entry) = trees.entry(&key)? else { return Ok(()) };
            trees.write_store(&key, entry, store)
        })
        .await
    }

    /// Marks an attempt as given up, flushed when this returns. One that is not known is marked as well, so that its
    /// request is refused should it come later; one that was acknowledged stays.
    ///
    /// # Errors
    /// Inside: [`ErrorCode::IdempotencyConflict`] when it was acknowledged. Outside: [`JournalError`].
    pub async fn abort(&self, key: TurnKey, now_ms: u64) -> Decided<()> {
        self.on_disk(move |trees| {
            let change = {
                let _writing = trees.write_lock();
                match trees.entry(&key)? {
                    None => {
                        trees.prune(now_ms)?;
                        // No authorisation that was signed before the abort lives longer.
                        let expires_ms = now_ms.saturating_add(MAX_AUTH_LIFETIME_MS + MAX_CLOCK_SKEW_MS);
                        let entry = TurnEntry::new(UNKNOWN_AUTH, expires_ms, now_ms, EntryState::Aborted);
                        trees.insert_counted(&key, &entry)?
                    }
                    Some(TurnEntry { state: EntryState::Sealed(sealed), .. }) if sealed.ack.is_some() => {
                        return Ok(Err(ErrorCode::IdempotencyConflict));
                    }
                    Some(entry) => trees.abort(&key, entry)?,
                }
            };
            trees.flush_change(change)?;
            Ok(Ok(()))
        })
        .await
    }

    /// Keeps a client's acknowledgement, flushed when this returns. The same one again changes nothing.
    ///
    /// # Errors
    /// Inside: [`ErrorCode::StatusUnknown`] for a blob that this node did not author,
    /// [`ErrorCode::ReceiptMismatch`] when it names another link or receipt. Outside: [`JournalError`].
    pub async fn acknowledge(
        &self,
        session: SessionId,
        digest: BlobDigest,
        (link, receipt): (LinkHash, ReceiptHash),
        ack: SignedBytes,
    ) -> Decided<()> {
        self.on_disk(move |trees| {
            let writing = trees.write_lock();
            let key = trees.author_of(&digest)?.filter(|key| key.session_id == session);
            let Some(key) = key else { return Ok(Err(ErrorCode::StatusUnknown)) };
            let Some(mut entry) = trees.entry(&key)? else { return Ok(Err(ErrorCode::StatusUnknown)) };
            let EntryState::Sealed(sealed) = &mut entry.state else { return Ok(Err(ErrorCode::Aborted)) };
            if sealed.link_hash != link || sealed.receipt_hash != receipt {
                return Ok(Err(ErrorCode::ReceiptMismatch));
            }
            if sealed.ack.is_none() {
                // In this order: after a crash between the two the ack comes again, and the ledger's reader counts it once.
                trees.keep_receipt(&sealed.committed.receipt, &ack)?;
                sealed.ack = Some(ack);
                let change = trees.write_counted(&key, &entry)?;
                drop(writing);
                trees.flush_change(change)?;
            } else {
                drop(writing);
                trees.flush()?;
            }
            Ok(Ok(()))
        })
        .await
    }

    /// The bytes of a blob that this node sealed.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn blob(&self, digest: BlobDigest) -> Result<Option<Vec<u8>>, JournalError> {
        self.on_disk(move |trees| trees.blob(&digest)).await
    }

    /// As [`Journal::blob`], for somebody else: only with the proof that the blob's key is known.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn fetch(
        &self,
        digest: BlobDigest,
        proof: FetchProof,
    ) -> Result<Option<Vec<u8>>, JournalError> {
        self.on_disk(move |trees| {
            let Some(key) = trees.author_of(&digest)? else { return Ok(None) };
            match trees.flushed_entry(&key)?.map(|entry| entry.state) {
                // Hashes compare in constant time.
                Some(EntryState::Sealed(sealed))
                    if blake3::Hash::from(sealed.fetch_proof.0) == blake3::Hash::from(proof.0) =>
                {
                    trees.blob(&digest)
                }
                _ => Ok(None),
            }
        })
        .await
    }

    /// Sealed turns whose blob is not known to be stored, given up or not: what to store again after a restart.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn unstored(&self) -> Result<Vec<(TurnKey, Box<SealedEntry>)>, JournalError> {
        self.on_disk(Trees::unstored).await
    }

    /// Writes everything to the disk.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn flush(&self) -> Result<(), JournalError> {
        self.on_disk(Trees::flush).await
    }
}
