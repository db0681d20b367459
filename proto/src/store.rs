//! The traits of the stores: blobs by Walrus ID, and signed session heads.
//!
//! They live here, in the terms of their consumers, so that node and client depend on no single
//! implementation. Implementations are in `baton-walrus-client`, and a client's own disk.

use std::{future::Future, pin::Pin, time::Duration};

use crate::ids::{BlobDigest, BlobId, HeadIndexKey, SuiAddress};

/// A boxed store operation, so that the traits can be used as `dyn`.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Storage options for a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PutOptions {
    /// Number of epochs, at least 1.
    pub epochs: u32,
    /// Whether deletion is impossible before the blob expires.
    pub permanent: bool,
    /// The owner of the blob object, if not the publisher.
    pub send_object_to: Option<SuiAddress>,
}

impl Default for PutOptions {
    fn default() -> Self {
        Self { epochs: 1, permanent: false, send_object_to: None }
    }
}

/// A store's answer to a PUT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PutOutcome {
    /// The ID of the stored bytes; the implementation has compared it with its own computation.
    pub blob_id: BlobId,
    /// False when the store already had the blob certified.
    pub newly_created: bool,
    /// The first epoch without the blob, if the store named it.
    pub end_epoch: Option<u64>,
}

/// A failure of a store operation, classed by the caller's next step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The store does not have the blob. A single such answer is never a reason to forget a blob.
    #[error("not found in the store")]
    NotFound,
    /// Nothing was stored or read; a later try may work.
    #[error("the store is unavailable: {reason}")]
    Unavailable {
        /// The cause, without any content of the blob.
        reason: String,
        /// The wait that the store asked for, if any.
        retry_after: Option<Duration>,
    },
    /// A PUT was sent and its answer lost: the blob may or may not be stored. Probe before the next try.
    #[error("the store's answer was lost: {reason}")]
    OutcomeUnknown {
        /// The cause.
        reason: String,
    },
    /// The blob, or the store's answer, exceeds a limit.
    #[error("{length} bytes exceed the limit of {limit} bytes")]
    TooLarge {
        /// Bytes offered or announced.
        length: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The bytes do not match the ID, or the store named another ID for the sent bytes.
    #[error("the store returned other content than asked for")]
    WrongContent,
    /// The store refused; another try will not help.
    #[error("the store refused: {reason}")]
    Refused {
        /// The store's reason code or text.
        reason: String,
    },
    /// A head record whose sequence number is not above the stored one.
    #[error("the head index holds a newer record")]
    HeadSuperseded,
}

impl StoreError {
    /// Whether the same call may succeed later without any other action first.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

/// A Walrus-compatible blob store.
pub trait BlobStore: Send + Sync {
    /// Stores the bytes, once. An implementation never simply repeats a PUT that may have arrived: a repeated
    /// PUT buys a second object.
    fn put<'a>(&'a self, bytes: Vec<u8>, options: PutOptions) -> StoreFuture<'a, PutOutcome>;
    /// Reads a whole blob of at most `limit` bytes. The caller checks the content against its own hash.
    fn get<'a>(&'a self, id: BlobId, limit: usize) -> StoreFuture<'a, Vec<u8>>;
    /// As [`Self::get`], for a caller that knows the BLAKE3 of the bytes: never returns other bytes. A store
    /// with several sources tries the next source after wrong bytes; this default has only one.
    ///
    /// # Errors
    /// [`StoreError::WrongContent`] when every source gives other bytes.
    fn get_checked<'a>(&'a self, id: BlobId, limit: usize, digest: BlobDigest) -> StoreFuture<'a, Vec<u8>> {
        let get = self.get(id, limit);
        Box::pin(async move {
            let bytes = get.await?;
            if blake3::hash(&bytes) == digest.0 { Ok(bytes) } else { Err(StoreError::WrongContent) }
        })
    }
    /// Whether the store has the blob.
    fn exists<'a>(&'a self, id: BlobId) -> StoreFuture<'a, bool>;
    /// The number of shards that the store announces: its blob IDs depend on it. Asks now, and waits no longer than this;
    /// none by default.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] with the names of the servers, when none answers in time.
    fn announced_shards<'a>(&'a self, wait: Duration) -> StoreFuture<'a, Option<u16>> {
        let _ = wait;
        Box::pin(async { Ok(None) })
    }
    /// Notes that another process stored the blob a moment ago. A store that lacks it may then be asked again
    /// for some seconds, as after the caller's own PUT. Does nothing by default.
    fn note_stored(&self, id: BlobId) {
        let _ = id;
    }
    /// Fresh clock readings of the servers behind the store; none by default. A hint like every answer of a
    /// store: it shows users which clock to check.
    fn times<'a>(&'a self) -> StoreFuture<'a, Vec<StoreTime>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

/// A server's clock reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreTime {
    /// The server's name, for users.
    pub name: String,
    /// Its time at the request, in milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// The error margin of that time, in milliseconds.
    pub margin_ms: u64,
}

/// An index for publishing and finding signed head records. Its answers are hints until signature and content
/// are checked: a false answer costs liveness, never integrity.
pub trait HeadIndex: Send + Sync {
    /// Publishes an encoded, signed head record. An index refuses a lower sequence number than the stored one
    /// with [`StoreError::HeadSuperseded`].
    fn publish<'a>(&'a self, record: Vec<u8>) -> StoreFuture<'a, ()>;
    /// The latest record under a key, or `None`.
    fn resolve<'a>(&'a self, key: HeadIndexKey) -> StoreFuture<'a, Option<Vec<u8>>>;
}
