//! The traits behind which stores live: blobs by Walrus ID, and signed session heads.
//!
//! They stand here, with their consumers' vocabulary, so that node and client do not depend on any one
//! implementation. Implementations are in `baton-walrus-client`, and a client's own disk.

use std::{future::Future, pin::Pin, time::Duration};

use crate::ids::{BlobDigest, BlobId, HeadIndexKey, SuiAddress};

/// A boxed store operation, so that the traits can be used as `dyn`.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// How a blob is to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PutOptions {
    /// For how many epochs, at least 1.
    pub epochs: u32,
    /// Whether nobody may delete it before it runs out.
    pub permanent: bool,
    /// Who gets the blob object, if not the publisher.
    pub send_object_to: Option<SuiAddress>,
}

impl Default for PutOptions {
    fn default() -> Self {
        Self { epochs: 1, permanent: false, send_object_to: None }
    }
}

/// What a store said of a PUT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PutOutcome {
    /// The ID under which the bytes are stored; the implementation has compared it with its own computation.
    pub blob_id: BlobId,
    /// False when the store already had the blob certified.
    pub newly_created: bool,
    /// The first epoch in which the blob is no longer kept, where the store said.
    pub end_epoch: Option<u64>,
}

/// Why a store operation failed, by what the caller can do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The store does not have it (a lone answer of this kind is never a reason to forget a blob).
    #[error("not found in the store")]
    NotFound,
    /// Nothing was stored or read; trying again later may work.
    #[error("the store is unavailable: {reason}")]
    Unavailable {
        /// The cause, without any content of the blob.
        reason: String,
        /// How long the store asked to wait, if it said.
        retry_after: Option<Duration>,
    },
    /// A PUT was sent and its answer lost: it may or may not be stored. Probe before trying again.
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
    /// The bytes read are not those of the ID, or the store named another ID for the bytes sent.
    #[error("the store returned other content than asked for")]
    WrongContent,
    /// The store refused, and trying again will not help.
    #[error("the store refused: {reason}")]
    Refused {
        /// The store's reason code or text.
        reason: String,
    },
    /// A head record with a sequence number that is not above the stored one.
    #[error("the head index holds a newer record")]
    HeadSuperseded,
}

impl StoreError {
    /// Whether the same call may succeed later without anything else being done first.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

/// A Walrus-compatible blob store.
pub trait BlobStore: Send + Sync {
    /// Stores the bytes, once: a PUT that may have arrived is never simply repeated, since a repeated PUT buys a
    /// second object.
    fn put<'a>(&'a self, bytes: Vec<u8>, options: PutOptions) -> StoreFuture<'a, PutOutcome>;
    /// Reads a whole blob of at most `limit` bytes. The caller checks the content against its own hash.
    fn get<'a>(&'a self, id: BlobId, limit: usize) -> StoreFuture<'a, Vec<u8>>;
    /// As [`Self::get`], for a caller that knows the BLAKE3 of the bytes: others are never returned. A store with
    /// several sources goes on to the next one when one gives wrong bytes; this default has but one.
    ///
    /// # Errors
    /// [`StoreError::WrongContent`] when there are only other bytes.
    fn get_checked<'a>(&'a self, id: BlobId, limit: usize, digest: BlobDigest) -> StoreFuture<'a, Vec<u8>> {
        let get = self.get(id, limit);
        Box::pin(async move {
            let bytes = get.await?;
            if blake3::hash(&bytes) == digest.0 { Ok(bytes) } else { Err(StoreError::WrongContent) }
        })
    }
    /// Whether the store has the blob.
    fn exists<'a>(&'a self, id: BlobId) -> StoreFuture<'a, bool>;
    /// Told by a caller that somebody else stored the blob a moment ago: a store that says it has none may then be
    /// asked again for some seconds, as after a PUT of one's own. Does nothing by default.
    fn note_stored(&self, id: BlobId) {
        let _ = id;
    }
    /// What time it is at the servers behind it, as far as they say; asked anew. Nothing by default. A hint, like all that a
    /// store says: it tells a person whose clock to look at.
    fn times<'a>(&'a self) -> StoreFuture<'a, Vec<StoreTime>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

/// What time it is at a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreTime {
    /// Which server, for people.
    pub name: String,
    /// Its time when it was asked, in milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// How exact that is.
    pub margin_ms: u64,
}

/// Where signed head records are published and found. What it returns is a hint until its signature and
/// content are checked: a lie costs liveness, never integrity.
pub trait HeadIndex: Send + Sync {
    /// Publishes an encoded, signed head record; one with a lower sequence number than the stored one is
    /// refused with [`StoreError::HeadSuperseded`].
    fn publish<'a>(&'a self, record: Vec<u8>) -> StoreFuture<'a, ()>;
    /// The latest record under a key, or `None`.
    fn resolve<'a>(&'a self, key: HeadIndexKey) -> StoreFuture<'a, Option<Vec<u8>>>;
}
