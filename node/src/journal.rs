//! The journal: promises and signatures of this node, flushed before any signature leaves the process.
//!
//! It is also the seen-set: the node serves each authorisation once, across restarts. Only the turn service
//! calls it. It holds sealed bytes, signatures, hashes and times; never text, never a key.
//!
//! Flushes:
//! - An Accepted entry is written but not flushed, because nothing is signed yet. If a crash loses it, the
//!   same request runs again.
//! - Sealed and Aborted entries are flushed before any peer learns of them.
//!
//! A new journal may replace a lost one. It cannot know which authorisations were served, so it refuses every
//! authorisation issued before its creation ([`Journal::begins_ms`]).

mod damage;
mod open;
mod rebuild;
mod trees;

use std::{path::Path, sync::Arc, time::Duration};

use baton_proto::{
    ErrorCode, SignedBytes,
    ids::{AuthHash, BlobDigest, FetchProof, LinkHash, ReceiptHash, SessionId, SuiAddress, TurnId},
    limits::{MAX_AUTH_LIFETIME_MS, MAX_CLOCK_SKEW_MS},
    wire::{Committed, StoreState},
};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::ledger::{Ledger, ReceiptKind};
pub use damage::JournalDamage;
pub(crate) use open::JOURNAL_OPENING;
use trees::Trees;

/// Version of the entries' layout. The node refuses a folder with another version.
const JOURNAL_VERSION: u8 = 3;
/// Longest wait for one operation: far above the time of a slow disk, and short enough for an answer within
/// 30 s. After a failed write, sled may wait for ever.
const MAX_DISK_WAIT: Duration = Duration::from_secs(20);
/// Authorisation hash in an abort mark whose request has not arrived.
const UNKNOWN_AUTH: AuthHash = AuthHash([0; 32]);

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The files cannot be read or written.
    #[error("the journal cannot be read or written: {0}; check the disk and the folder's permissions")]
    Disk(#[from] sled::Error),
    /// An earlier write failed. Later data may be missing on the disk, so the journal reveals none of it.
    #[error(
        "the journal could not be written earlier; check the disk and make space, then start the node again"
    )]
    Failed,
    /// The files cannot be read, moved or marked.
    #[error(
        "the journal's files cannot be read, moved or marked: {0}; check the disk and the folder's permissions"
    )]
    Files(std::io::Error),
    /// sled cannot read the files.
    #[error(
        "the journal's files are damaged, and cannot be read even after they were made anew: check the disk"
    )]
    Unreadable,
    /// The journal has another version.
    #[error("the journal is of another version of the node: move its folder away, and a new one is made")]
    Version,
    /// An entry is damaged.
    #[error("the journal holds a damaged entry: start the node again, which sets it aside")]
    Damaged,
    /// The receipts that clients acknowledge cannot be stored.
    #[error("a receipt cannot be kept: {0}; check the disk and the folder's permissions")]
    Receipts(std::io::Error),
    /// The runtime is shutting down.
    #[error("the journal's worker was stopped")]
    Stopped,
}

/// Limits of the journal. They never remove blobs that are not stored or entries that are not expired.
#[derive(Debug, Clone, Copy)]
pub struct JournalLimits {
    /// Bytes of blobs. The oldest stored blobs go first.
    pub max_blob_bytes: u64,
    /// How long entries answer status requests.
    pub retention: Duration,
    /// Number of entries. Beyond it, the oldest go early.
    pub max_entries: u64,
    /// Memory of sled's page cache.
    pub cache_bytes: u64,
}

impl Default for JournalLimits {
    /// 512 MiB of blobs, three days, a million entries (some hundred bytes to two kilobytes each), and 8 MiB
    /// of cache. The cache is small because reads follow soon after the write.
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

/// Storage options of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutPlan {
    /// Storage time in epochs.
    pub epochs: u32,
    /// The receiver of the blob object.
    pub send_object_to: Option<SuiAddress>,
    /// Number of shards in the session's blob ID computations.
    pub n_shards: u16,
}

/// A sealed and signed turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedEntry {
    /// The answer to the client, sent or not.
    pub committed: Committed,
    /// The proof that a fetch of the blob must present.
    pub fetch_proof: FetchProof,
    /// Hash of the link, for acknowledgements.
    pub link_hash: LinkHash,
    /// Hash of the receipt, for acknowledgements.
    pub receipt_hash: ReceiptHash,
    /// Storage state of the blob.
    pub store: StoreState,
    /// Storage options of the blob.
    pub plan: PutPlan,
    /// The file of the ledger for the receipt.
    pub receipt_kind: ReceiptKind,
    /// The client's acknowledgement, once received.
    pub ack: Option<SignedBytes>,
}

/// State of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryState {
    /// Admitted; nothing signed.
    Accepted,
    /// Sealed and signed.
    Sealed(Box<SealedEntry>),
    /// The client gave it up.
    Aborted,
}

/// A journal entry for one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnEntry {
    version: u8,
    /// Hash of the authorisation. It covers the payload's hash, so it identifies the whole request.
    pub(crate) auth_hash: AuthHash,
    /// When the authorisation expires.
    pub(crate) expires_ms: u64,
    /// When the entry was created.
    pub(crate) created_ms: u64,
    /// State of the attempt.
    pub state: EntryState,
}

impl TurnEntry {
    fn new(auth_hash: AuthHash, expires_ms: u64, created_ms: u64, state: EntryState) -> Self {
        Self { version: JOURNAL_VERSION, auth_hash, expires_ms, created_ms, state }
    }

    /// Whether this entry belongs to that authorisation. An abort without an authorisation matches every one.
    #[must_use]
    pub fn is_of(&self, auth_hash: &AuthHash) -> bool {
        self.auth_hash == *auth_hash || (self.auth_hash == UNKNOWN_AUTH && self.state == EntryState::Aborted)
    }
}

impl TurnEntry {
    /// Whether the entry has a blob that is not confirmed in the store.
    fn is_untaken(&self) -> bool {
        matches!(&self.state, EntryState::Sealed(sealed) if !matches!(sealed.store, StoreState::Stored { .. }))
    }
}

/// A handle on the journal; clones share it.
#[derive(Clone)]
pub struct Journal {
    trees: Arc<Trees>,
    /// The ledger for acknowledged receipts.
    ledger: Option<Arc<Ledger>>,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("begins_ms", &self.begins_ms()).finish_non_exhaustive()
    }
}

/// Result of a change of an entry.
type ChangeResult<T> = Result<Result<T, ErrorCode>, JournalError>;

impl Journal {
    /// Opens or creates the journal in a folder. Blocking.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn open(folder: &Path, limits: JournalLimits, now_ms: u64) -> Result<Self, JournalError> {
        Ok(Self { trees: Arc::new(Trees::open(folder, limits, now_ms)?), ledger: None })
    }

    /// Damage found at opening. The caller reports it to the operator.
    #[must_use]
    pub fn damage(&self) -> Option<&JournalDamage> {
        self.trees.damage()
    }

    /// The same journal, which also stores the receipts of acknowledged turns in a ledger.
    #[must_use]
    pub fn with_ledger(self, ledger: Ledger) -> Self {
        Self { ledger: Some(Arc::new(ledger)), ..self }
    }

    /// Unknown authorisations issued before this time are refused: an earlier journal may have been lost.
    #[must_use]
    pub fn begins_ms(&self) -> u64 {
        self.trees.begins_ms()
    }

    /// Whether a disk write failed. The node must restart once the disk is writable and has space.
    #[must_use]
    pub(crate) fn failed(&self) -> bool {
        self.trees.failed()
    }

    /// Runs blocking work on the journal off the reactor.
    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Trees) -> Result<T, JournalError> + Send + 'static,
    ) -> Result<T, JournalError> {
        let trees = self.trees.clone();
        let working = trees.clone();
        let (began, begun) = oneshot::channel();
        let done = tokio::task::spawn_blocking(move || {
            // The receiver is gone if the caller gave up.
            let _ = began.send(());
            working.guarded(work)
        });
        // The wait for a thread says nothing about the disk, so the timeout starts after it.
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

    /// The entry of an attempt. An attempt stays Accepted until its sealed entry is on the disk.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn look_up(&self, key: TurnKey) -> Result<Option<TurnEntry>, JournalError> {
        // Most keys in requests are new. They need no disk thread.
        if !self.trees.may_have(&key) {
            return Ok(None);
        }
        self.on_disk(move |trees| trees.flushed_entry(&key)).await
    }

    /// Admits an attempt: creates an entry, or takes the Accepted entry of an earlier run that ended before
    /// it sealed. Returns the sealed entry if there is one. Not flushed.
    ///
    /// # Errors
    /// Inside: [`ErrorCode::IdempotencyConflict`], [`ErrorCode::Aborted`]. Outside: [`JournalError`].
    pub async fn accept(
        &self,
        key: TurnKey,
        auth_hash: AuthHash,
        expires_ms: u64,
        now_ms: u64,
    ) -> ChangeResult<Option<Box<SealedEntry>>> {
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

    /// Stores a sealed turn and its blob, flushed on return. Only an Accepted entry of the same authorisation
    /// can be sealed, so the node never signs twice.
    ///
    /// # Errors
    /// Inside: [`ErrorCode::Aborted`] when the client gave it up meanwhile,
    /// [`ErrorCode::IdempotencyConflict`]. Outside: [`JournalError`].
    pub async fn seal(
        &self,
        key: TurnKey,
        auth_hash: AuthHash,
        sealed: SealedEntry,
        blob: Vec<u8>,
    ) -> ChangeResult<()> {
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

    /// Records the storage state of a blob. Not flushed: after a crash the node queries the store again.
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

    /// Marks an attempt as aborted, flushed on return. Marks an unknown attempt as well, so that a later
    /// request for it is refused. An acknowledged turn stays.
    ///
    /// # Errors
    /// Inside: [`ErrorCode::IdempotencyConflict`] when it was acknowledged. Outside: [`JournalError`].
    pub async fn abort(&self, key: TurnKey, now_ms: u64) -> ChangeResult<()> {
        self.on_disk(move |trees| {
            let change = {
                let _writing = trees.write_lock();
                match trees.entry(&key)? {
                    None => {
                        trees.prune(now_ms)?;
                        // No authorisation signed before the abort lives longer.
                        let expires_ms = now_ms.saturating_add(MAX_AUTH_LIFETIME_MS + MAX_CLOCK_SKEW_MS);
                        let entry = TurnEntry::new(UNKNOWN_AUTH, expires_ms, now_ms, EntryState::Aborted);
                        trees.insert(&key, &entry)?
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

    /// Stores a client's acknowledgement, flushed on return. A repetition changes nothing.
    ///
    /// # Errors
    /// Inside: [`ErrorCode::StatusUnknown`] for a blob that this node did not author,
    /// [`ErrorCode::IdempotencyConflict`] when it names another link or receipt. Outside: [`JournalError`].
    pub async fn acknowledge(
        &self,
        session: SessionId,
        digest: BlobDigest,
        (link, receipt): (LinkHash, ReceiptHash),
        ack: SignedBytes,
    ) -> ChangeResult<()> {
        let ledger = self.ledger.clone();
        self.on_disk(move |trees| {
            let writing = trees.write_lock();
            let key = trees.author_of(&digest)?.filter(|key| key.session_id == session);
            let Some(key) = key else { return Ok(Err(ErrorCode::StatusUnknown)) };
            let Some(mut entry) = trees.entry(&key)? else { return Ok(Err(ErrorCode::StatusUnknown)) };
            let EntryState::Sealed(sealed) = &mut entry.state else { return Ok(Err(ErrorCode::Aborted)) };
            if sealed.link_hash != link || sealed.receipt_hash != receipt {
                return Ok(Err(ErrorCode::IdempotencyConflict));
            }
            if sealed.ack.is_none() {
                // The order matters. After a crash between the two writes the ack comes again, and the
                // ledger's reader counts it once.
                if let Some(ledger) = ledger {
                    let kept = ledger.append(&sealed.committed.receipt, &ack, sealed.receipt_kind);
                    kept.map_err(JournalError::Receipts)?;
                }
                sealed.ack = Some(ack);
                let change = trees.write(&key, &entry)?;
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

    /// As [`Journal::blob`], for a peer: requires the proof that the peer knows the blob's key.
    ///
    /// # Errors
    /// [`JournalError`].
    pub(crate) async fn fetch(
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

    /// Sealed turns whose blob is not confirmed in the store, even if the node gave up storing it. A restart
    /// stores them again.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn unstored(&self) -> Result<Vec<(TurnKey, Box<SealedEntry>)>, JournalError> {
        self.on_disk(Trees::unstored).await
    }

    /// Saves the accounts of peers, flushed on return.
    ///
    /// # Errors
    /// [`JournalError`].
    pub(crate) async fn save_accounts(&self, accounts: Vec<u8>) -> Result<(), JournalError> {
        self.on_disk(move |trees| trees.save_accounts(accounts)).await
    }

    /// The saved accounts of peers.
    ///
    /// # Errors
    /// [`JournalError`].
    pub(crate) async fn accounts(&self) -> Result<Option<Vec<u8>>, JournalError> {
        self.on_disk(Trees::accounts).await
    }

    /// Writes everything to the disk.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn flush(&self) -> Result<(), JournalError> {
        self.on_disk(Trees::flush).await
    }
}
