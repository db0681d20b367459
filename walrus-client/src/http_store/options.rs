//! The check of a read, and the result of a PUT.

use baton_proto::ids::{BlobDigest, BlobId};

/// The check of received content. Content that fails is discarded, and the next aggregator is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verification {
    /// Against the known BLAKE3 digest of the whole blob. Costs least.
    Digest(BlobDigest),
    /// Against the blob ID, computed again: 0.1 s of CPU and more at a thousand shards.
    BlobId,
    /// No check: the aggregator can answer with anything.
    Off,
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
