//! The journal: what this node promised and signed, flushed before any signature leaves the process.
//!
//! It is also the seen-set: an authorisation is served once, across restarts. Called by the turn service only. It
//! holds sealed bytes, signatures, hashes and times; never text, never a key.
//!
//! What is flushed when: an Accepted entry is written but not flushed, because nothing was signed yet: if a crash
//! loses it, the same request simply runs again. Sealed and Aborted entries are flushed before anybody hears of
//! them. A journal that is new, because there was none or its disk was lost, refuses every authorisation issued
//! before it was made ([`Journal::begins_ms`]), since it cannot know whether that was served.

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use baton_proto::{
    ErrorCode, SignedBytes, codec,
    ids::{AuthHash, BlobDigest, LinkHash, ReceiptHash, SessionId, SuiAddress, TurnId},
    limits::MAX_CLOCK_SKEW_MS,
    wire::{Committed, StoreState},
};
use serde::{Deserialize, Serialize};
use sled::Tree;

/// Layout of the entries; another one in the folder is refused.
const JOURNAL_VERSION: u8 = 1;
/// Largest encoded entry: a link, a receipt and an acknowledgement, each a signed object of some hundred bytes.
const MAX_ENTRY_BYTES: usize = 64 * 1024;
/// Entries looked at in one round of pruning, so that no single turn pays for a long one.
const PRUNE_BATCH: usize = 256;

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The files cannot be read or written.
    #[error("the journal cannot be read or written: {0}; check the disk and the folder's permissions")]
    Disk(#[from] sled::Error),
    /// An entry is damaged, or of another version.
    #[error("the journal holds an entry that is damaged or of another version: move the folder away")]
    Damaged,
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
    /// Memory for sled's page cache.
    pub cache_bytes: u64,
}

impl Default for JournalLimits {
    /// 512 MiB of blobs, three days, 32 MiB of cache.
    fn default() -> Self {
        Self {
            max_blob_bytes: 512 * 1024 * 1024,
            retention: Duration::from_secs(3 * 24 * 3600),
            cache_bytes: 32 * 1024 * 1024,
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

struct Trees {
    db: sled::Db,
    turns: Tree,
    /// Blob digest to blob bytes.
    blobs: Tree,
    /// Blob digest to turn key.
    by_digest: Tree,
    /// `u64be(created) ‖ turn key`, for pruning entries from the oldest.
    by_age: Tree,
    /// `u64be(created) ‖ turn key` of the entries whose blob is here, for pruning blobs from the oldest.
    blob_age: Tree,
    limits: JournalLimits,
    begins_ms: u64,
    blob_bytes: AtomicU64,
    /// Set by the first failure of the disk. sled refuses every later write, so it stays set.
    failed: AtomicBool,
    /// Held over every read-modify-write; only ever on a blocking thread.
    writing: Mutex<()>,
}

/// A handle on the journal; clones share it.
#[derive(Clone)]
pub struct Journal(Arc<Trees>);

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("begins_ms", &self.0.begins_ms).finish_non_exhaustive()
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
        let db = sled::Config::new().path(folder).cache_capacity(limits.cache_bytes).open()?;
        let begins_ms = match (db.get("version")?, db.get("begins_ms")?) {
            (None, None) => {
                db.insert("version", &[JOURNAL_VERSION])?;
                db.insert("begins_ms", &now_ms.to_be_bytes())?;
                db.flush()?;
                now_ms
            }
            (Some(version), Some(begins)) if version.as_ref() == [JOURNAL_VERSION] => {
                u64::from_be_bytes(begins.as_ref().try_into().map_err(|_| JournalError::Damaged)?)
            }
            _ => return Err(JournalError::Damaged),
        };
        let blobs = db.open_tree("blobs")?;
        let mut blob_bytes = 0;
        for blob in &blobs {
            blob_bytes += blob?.1.len() as u64;
        }
        Ok(Self(Arc::new(Trees {
            turns: db.open_tree("turns")?,
            by_digest: db.open_tree("by_digest")?,
            by_age: db.open_tree("by_age")?,
            blob_age: db.open_tree("blob_age")?,
            blobs,
            db,
            limits,
            begins_ms,
            blob_bytes: AtomicU64::new(blob_bytes),
            failed: AtomicBool::new(false),
            writing: Mutex::new(()),
        })))
    }

    /// Authorisations issued before this are refused unless they are known: the journal may have been lost.
    #[must_use]
    pub fn begins_ms(&self) -> u64 {
        self.0.begins_ms
    }

    /// Whether the disk has failed: the node must be started again once the disk has space and can be written.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.0.failed.load(Ordering::Relaxed)
    }

    /// Runs blocking work on the journal off the reactor.
    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Trees) -> Result<T, JournalError> + Send + 'static,
    ) -> Result<T, JournalError> {
        let trees = self.0.clone();
        let done =
            tokio::task::spawn_blocking(move || work(&trees)).await.map_err(|_| JournalError::Stopped)?;
        if matches!(done, Err(JournalError::Disk(_))) {
            self.0.failed.store(true, Ordering::Relaxed);
        }
        done
    }

    /// What is known of an attempt.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn look_up(&self, key: TurnKey) -> Result<Option<TurnEntry>, JournalError> {
        self.on_disk(move |trees| trees.entry(&key)).await
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
            let _writing = crate::service::lock(&trees.writing);
            let Some(entry) = trees.entry(&key)? else {
                trees.prune(now_ms)?;
                let state = EntryState::Accepted;
                let entry =
                    TurnEntry { version: JOURNAL_VERSION, auth_hash, expires_ms, created_ms: now_ms, state };
                trees.by_age.insert(age_key(&key, now_ms), &[])?;
                trees.write(&key, &entry)?;
                return Ok(Ok(None));
            };
            Ok(match entry.state {
                _ if entry.auth_hash != auth_hash => Err(ErrorCode::IdempotencyConflict),
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
            {
                let _writing = crate::service::lock(&trees.writing);
                let Some(mut entry) = trees.entry(&key)? else { return Ok(Err(ErrorCode::Internal)) };
                match entry.state {
                    EntryState::Accepted if entry.auth_hash == auth_hash => {}
                    EntryState::Aborted => return Ok(Err(ErrorCode::Aborted)),
                    _ => return Ok(Err(ErrorCode::IdempotencyConflict)),
                }
                let digest = sealed.committed.blob_digest.0;
                let length = blob.len() as u64;
                if trees.blobs.insert(digest, blob)?.is_none() {
                    trees.blob_bytes.fetch_add(length, Ordering::Relaxed);
                }
                trees.by_digest.insert(digest, key.to_bytes().to_vec())?;
                trees.blob_age.insert(age_key(&key, entry.created_ms), &[])?;
                entry.state = EntryState::Sealed(Box::new(sealed));
                trees.write(&key, &entry)?;
            }
            trees.db.flush()?;
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
            let _writing = crate::service::lock(&trees.writing);
            let Some(mut entry) = trees.entry(&key)? else { return Ok(()) };
            let EntryState::Sealed(sealed) = &mut entry.state else { return Ok(()) };
            sealed.store = store;
            trees.write(&key, &entry)
        })
        .await
    }

    /// Marks an attempt as given up, flushed when this returns. A known attempt only; one that was acknowledged
    /// stays.
    ///
    /// # Errors
    /// Inside: [`ErrorCode::IdempotencyConflict`] when it was acknowledged. Outside: [`JournalError`].
    pub async fn abort(&self, key: TurnKey) -> Decided<()> {
        self.on_disk(move |trees| {
            {
                let _writing = crate::service::lock(&trees.writing);
                let Some(mut entry) = trees.entry(&key)? else { return Ok(Ok(())) };
                if let EntryState::Sealed(sealed) = &entry.state {
                    if sealed.ack.is_some() {
                        return Ok(Err(ErrorCode::IdempotencyConflict));
                    }
                    trees.remove_blob(&sealed.committed.blob_digest)?;
                    trees.blob_age.remove(age_key(&key, entry.created_ms))?;
                }
                entry.state = EntryState::Aborted;
                trees.write(&key, &entry)?;
            }
            trees.db.flush()?;
            Ok(Ok(()))
        })
        .await
    }

    /// Keeps a client's acknowledgement. The same one again changes nothing.
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
            let _writing = crate::service::lock(&trees.writing);
            let key = trees.by_digest.get(digest.0)?.and_then(|key| TurnKey::from_bytes(&key));
            let Some(key) = key.filter(|key| key.session_id == session) else {
                return Ok(Err(ErrorCode::StatusUnknown));
            };
            let Some(mut entry) = trees.entry(&key)? else { return Ok(Err(ErrorCode::StatusUnknown)) };
            let EntryState::Sealed(sealed) = &mut entry.state else { return Ok(Err(ErrorCode::Aborted)) };
            if sealed.link_hash != link || sealed.receipt_hash != receipt {
                return Ok(Err(ErrorCode::ReceiptMismatch));
            }
            if sealed.ack.is_none() {
                sealed.ack = Some(ack);
                trees.write(&key, &entry)?;
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
        self.on_disk(move |trees| Ok(trees.blobs.get(digest.0)?.map(|bytes| bytes.to_vec()))).await
    }

    /// Sealed turns whose blob is not known to be stored: what to store again after a restart.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn unstored(&self) -> Result<Vec<(TurnKey, Box<SealedEntry>)>, JournalError> {
        self.on_disk(|trees| {
            let mut found = Vec::new();
            for item in &trees.turns {
                let (key, bytes) = item?;
                let key = TurnKey::from_bytes(&key).ok_or(JournalError::Damaged)?;
                if let EntryState::Sealed(sealed) = decode(&bytes)?.state
                    && sealed.store == StoreState::Pending
                {
                    found.push((key, sealed));
                }
            }
            Ok(found)
        })
        .await
    }

    /// Writes everything to the disk.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn flush(&self) -> Result<(), JournalError> {
        self.on_disk(|trees| Ok(trees.db.flush().map(drop)?)).await
    }
}

fn age_key(key: &TurnKey, created_ms: u64) -> Vec<u8> {
    [&created_ms.to_be_bytes()[..], &key.to_bytes()].concat()
}

fn decode(bytes: &[u8]) -> Result<TurnEntry, JournalError> {
    let entry: TurnEntry = codec::decode(bytes, MAX_ENTRY_BYTES).map_err(|_| JournalError::Damaged)?;
    if entry.version == JOURNAL_VERSION { Ok(entry) } else { Err(JournalError::Damaged) }
}

impl Trees {
    fn entry(&self, key: &TurnKey) -> Result<Option<TurnEntry>, JournalError> {
        self.turns.get(key.to_bytes())?.map(|bytes| decode(&bytes)).transpose()
    }

    fn write(&self, key: &TurnKey, entry: &TurnEntry) -> Result<(), JournalError> {
        self.turns.insert(key.to_bytes(), codec::encode(entry))?;
        Ok(())
    }

    fn remove_blob(&self, digest: &BlobDigest) -> Result<(), JournalError> {
        if let Some(bytes) = self.blobs.remove(digest.0)? {
            self.blob_bytes.fetch_sub(bytes.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Removes the oldest stored blobs beyond the bytes allowed, and entries past their time.
    fn prune(&self, now_ms: u64) -> Result<(), JournalError> {
        for item in self.blob_age.iter().take(PRUNE_BATCH) {
            if self.blob_bytes.load(Ordering::Relaxed) <= self.limits.max_blob_bytes {
                break;
            }
            let (age, _, key) = parse_age(item?.0)?;
            match self.entry(&key)?.map(|entry| entry.state) {
                Some(EntryState::Sealed(sealed)) if sealed.store == StoreState::Pending => continue,
                Some(EntryState::Sealed(sealed)) => self.remove_blob(&sealed.committed.blob_digest)?,
                _ => {}
            }
            self.blob_age.remove(age)?;
        }
        let retention = u64::try_from(self.limits.retention.as_millis()).unwrap_or(u64::MAX);
        for item in self.by_age.iter().take(PRUNE_BATCH) {
            let (age, created_ms, key) = parse_age(item?.0)?;
            if now_ms.saturating_sub(created_ms) <= retention {
                break;
            }
            if let Some(entry) = self.entry(&key)? {
                // An entry that could still be replayed stays: it is the seen-set.
                if now_ms <= entry.expires_ms.saturating_add(MAX_CLOCK_SKEW_MS) {
                    continue;
                }
                if let EntryState::Sealed(sealed) = &entry.state {
                    if sealed.store == StoreState::Pending {
                        continue;
                    }
                    self.remove_blob(&sealed.committed.blob_digest)?;
                    self.by_digest.remove(sealed.committed.blob_digest.0)?;
                }
                self.turns.remove(key.to_bytes())?;
            }
            self.blob_age.remove(&age)?;
            self.by_age.remove(age)?;
        }
        Ok(())
    }
}

fn parse_age(bytes: sled::IVec) -> Result<(sled::IVec, u64, TurnKey), JournalError> {
    let (created, key) = bytes.split_first_chunk::<8>().ok_or(JournalError::Damaged)?;
    let (created, key) = (u64::from_be_bytes(*created), TurnKey::from_bytes(key));
    Ok((bytes, created, key.ok_or(JournalError::Damaged)?))
}
