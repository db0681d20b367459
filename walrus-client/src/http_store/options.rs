//! The check of a read, its limit, and the result of a PUT.

use baton_proto::ids::{BlobDigest, BlobId};

/// The check of received content. Content that fails is discarded, and the next aggregator is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verification {
    /// Against the known BLAKE3 digest of the whole blob, or of the patch when a patch is read. Costs least.
    Digest(BlobDigest),
    /// Against the blob ID, computed again: 0.1 s of CPU and more at a thousand shards.
    #[default]
    BlobId,
    /// No check: the aggregator can answer with anything.
    Off,
}

/// Options of a read. Start from [`ReadOptions::new`].
#[derive(Debug, Clone, Copy)]
pub struct ReadOptions {
    /// Most bytes of one answer. A hedged read may hold several answers of this size at once.
    pub limit: u64,
    /// The check of the bytes; against the blob ID when not set.
    pub verification: Verification,
}

impl ReadOptions {
    /// A whole blob of at most `limit` bytes, checked against its ID.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self { limit, verification: Verification::default() }
    }

    /// Sets another check.
    #[must_use]
    pub fn verify(self, verification: Verification) -> Self {
        Self { verification, ..self }
    }
}

/// The evidence that a blob is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredHow {
    /// The publisher newly stored it.
    Created,
    /// The publisher already had it certified for at least as long.
    AlreadyCertified,
    /// The publisher's answer was lost or wrong, but an aggregator has the blob. This PUT or an earlier one
    /// stored it; the end of its lifetime is unknown.
    Found,
}

/// The known facts of a stored blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredBlob {
    /// Its ID, computed by this client.
    pub blob_id: BlobId,
    /// The evidence.
    pub how: StoredHow,
    /// The first epoch without it, if the publisher said.
    pub end_epoch: Option<u64>,
}
