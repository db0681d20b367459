//! Walrus blob IDs (RedStuff, encoding type RS2), computed locally.
//!
//! Owns the whole computation:
//! - the two-dimensional Reed-Solomon extension (`rows`, `columns`, on symbols laid out by `strip`),
//! - the hash (`kernel`) and the Merkle trees (`tree`),
//! - the schedule of the work (`compute`).
//!
//! Everything here is pure CPU work, 50 ms and more for a thousand shards. Async callers must run it on a
//! blocking thread. It must never allocate in proportion to an input that it is going to refuse.
//!
//! With n shards, f = ⌊(n-1)/3⌋. A matrix of k1 = n-2f rows and k2 = n-f columns holds the blob row by row,
//! zero padded, in symbols of s bytes. Rows are extended from k2 to n symbols, then columns from k1 to n.
//! Each row and column of the n × n result gets a Merkle root. The ID is a BLAKE2b hash over the tree of
//! those roots.

mod columns;
mod compute;
mod kernel;
mod rows;
mod source;
mod strip;
mod tree;

pub use baton_proto::ids::BlobId;
pub use source::{BlobSource, BlobSourceError, blob_id_of};

/// Largest symbol that the encoding can express, in bytes: the largest even number in 16 bits.
pub(crate) const MAX_SYMBOL_SIZE: usize = 65_534;
/// Encoding type RS2, the first byte of the hashed input of an ID.
const ENCODING_TYPE_RS2: u8 = 1;
/// Metadata bytes per shard for each of the n sliver pairs: two hashes. Every shard adds 32 bytes.
const HASHES_PER_PAIR_BYTES: u64 = 64;

/// The number of shards of a Walrus network: 1000 on its mainnet and testnet, 10 on its local testbed. It
/// must be configured; HTTP never reveals it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShardCount(u16);

/// A shard count that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the number of shards must be from {} to {}, not {given}", ShardCount::MIN, ShardCount::MAX)]
pub struct ShardCountError {
    /// The requested count.
    pub given: u16,
}

impl ShardCount {
    /// Fewest shards: with fewer than 4 there is no repair symbol.
    pub const MIN: u16 = 4;
    /// Most shards accepted here. The work grows with the square: 4 million leaves at this bound. No network
    /// has more than 1000.
    pub const MAX: u16 = 2048;
    /// Walrus's mainnet and testnet.
    pub const MAINNET: Self = Self(1000);
    /// Walrus's own local testbed, and this project's quick tests.
    pub const TESTBED: Self = Self(10);

    /// Checks the bounds.
    ///
    /// # Errors
    /// [`ShardCountError`] outside [`Self::MIN`]..=[`Self::MAX`].
    pub const fn new(count: u16) -> Result<Self, ShardCountError> {
        if count < Self::MIN || count > Self::MAX {
            return Err(ShardCountError { given: count });
        }
        Ok(Self(count))
    }

    /// The number itself.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// n, as a size.
    const fn n(self) -> usize {
        self.0 as usize
    }

    /// f, the number of shards that may be faulty.
    const fn faulty(self) -> usize {
        (self.n() - 1) / 3
    }

    /// k1: rows of source symbols, n - 2f.
    pub(crate) const fn rows(self) -> usize {
        self.n() - 2 * self.faulty()
    }

    /// k2: columns of source symbols, n - f.
    pub(crate) const fn columns(self) -> usize {
        self.n() - self.faulty()
    }

    /// The largest blob, in bytes, that can be encoded for this many shards.
    #[must_use]
    pub const fn max_blob_length(self) -> u64 {
        (self.rows() * self.columns()) as u64 * MAX_SYMBOL_SIZE as u64
    }
}

impl TryFrom<u16> for ShardCount {
    type Error = ShardCountError;
    fn try_from(count: u16) -> Result<Self, ShardCountError> {
        Self::new(count)
    }
}

impl std::fmt::Display for ShardCount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A blob without an ID: its symbols would be larger than 65,534 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes are too large for {shards} shards, which hold at most {limit} bytes")]
pub struct BlobIdError {
    /// Bytes offered.
    pub length: u64,
    /// Bytes that can be encoded.
    pub limit: u64,
    /// The shard count.
    pub shards: ShardCount,
}

/// Symbol size s in bytes: even, at least 2.
fn symbol_size(length: u64, shards: ShardCount) -> Result<usize, BlobIdError> {
    let limit = shards.max_blob_length();
    if length > limit {
        return Err(BlobIdError { length, limit, shards });
    }
    let symbols = (shards.rows() * shards.columns()) as u64;
    let size = length.max(1).div_ceil(symbols).next_multiple_of(2);
    Ok(usize::try_from(size).expect("at most 65,534, by the check above"))
}

/// Bytes that a blob of `length` bytes takes on the network, metadata included: n(64n+32) + (k1+k2)·s·n.
/// Walrus bills this number.
///
/// # Errors
/// [`BlobIdError`] when it cannot be encoded.
pub fn encoded_length(length: u64, shards: ShardCount) -> Result<u64, BlobIdError> {
    let symbol = symbol_size(length, shards)? as u64;
    let n = u64::from(shards.get());
    let sources = (shards.rows() + shards.columns()) as u64;
    Ok(n * (HASHES_PER_PAIR_BYTES * n + 32) + sources * symbol * n)
}

/// The Walrus blob ID of these bytes, for this many shards. The empty blob has one.
///
/// It blocks the calling thread. On a machine with AVX-512 and at
/// 1000 shards, small blobs take some 50 ms and 10 MiB take 150 ms. Small blobs at 10 shards take well below
/// a millisecond. It needs as much memory as [`blob_id_of`].
///
/// # Errors
/// [`BlobIdError`], found before any work or allocation.
pub fn blob_id(bytes: &[u8], shards: ShardCount) -> Result<BlobId, BlobIdError> {
    blob_id_of(&bytes, shards).map_err(|error| match error {
        BlobSourceError::TooLarge(error) => error,
        BlobSourceError::Read(error) => unreachable!("a slice is read within its bounds: {error}"),
    })
}

/// The ID of a blob of this length, by the root of the tree over its sliver pairs.
fn id_from_root(length: u64, root: &tree::TreeHash) -> BlobId {
    BlobId(tree::hash(&[&[ENCODING_TYPE_RS2], &length.to_le_bytes(), root]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_shard_counts_without_repair_symbols() {
        for count in [0, 1, 2, 3, ShardCount::MAX + 1] {
            assert_eq!(ShardCount::new(count), Err(ShardCountError { given: count }));
        }
        assert!(ShardCount::new(ShardCount::MIN).is_ok() && ShardCount::new(ShardCount::MAX).is_ok());
    }

    #[test]
    fn symbol_size_steps_where_the_source_matrix_is_full() {
        for (length, size) in [(0, 2), (1, 2), (445_556, 2), (445_557, 4), (891_112, 4), (891_113, 6)] {
            assert_eq!(symbol_size(length, ShardCount::MAINNET), Ok(size), "{length}");
        }
    }

    #[test]
    fn encoded_length_is_what_walrus_bills() {
        assert_eq!(encoded_length(17, ShardCount::MAINNET), Ok(66_034_000));
        let limit = ShardCount::TESTBED.max_blob_length();
        assert!(encoded_length(limit, ShardCount::TESTBED).is_ok());
        assert!(encoded_length(limit + 1, ShardCount::TESTBED).is_err());
        assert!(encoded_length(u64::MAX, ShardCount::MAINNET).is_err());
    }
}
