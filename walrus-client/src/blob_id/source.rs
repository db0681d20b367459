//! Blobs that are not one slice in memory: sources with random access.

use std::io;

use super::{
    BlobId, BlobIdError, ShardCount,
    compute::{self, ComputeLimits},
    id_from_root,
    rows::MatrixShape,
    symbol_size,
};

/// Bytes that can be read at any offset, in any order. They must not change meanwhile.
pub trait BlobSource: Sync {
    /// The number of bytes.
    fn len(&self) -> u64;

    /// Whether the source has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills the whole buffer with the bytes from `offset` on.
    ///
    /// # Errors
    /// Any read error; [`io::ErrorKind::UnexpectedEof`] when the source ends before the buffer is full.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

impl BlobSource for &[u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).ok();
        let part = start.and_then(|start| self.get(start..)?.get(..buffer.len()));
        buffer.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// The reason why a source has no blob ID.
#[derive(Debug, thiserror::Error)]
pub enum BlobSourceError {
    /// The blob exceeds the encoding; found before anything is read.
    #[error(transparent)]
    TooLarge(#[from] BlobIdError),
    /// The source could not be read.
    #[error("cannot read the blob")]
    Read(#[from] io::Error),
}

/// The Walrus blob ID of a source. Memory depends on the number of shards, not on the length.
///
/// The memory at 1000 shards is some 105 MB in all:
/// - up to 64 MiB for the symbols that extend the rows,
/// - 16 MiB for one read,
/// - 22 MB for the hash states of the extending columns.
///
/// Measured: 23 MB for a blob of 10 MiB, 56 MB for 64 MiB, 102 MB for 512 MiB. At 10 shards it is 15 MB at
/// most. Every byte is read twice: for the rows' extension and for the columns. For blobs
/// above some 110 MB at 1000 shards, reads are in pieces of 512 bytes and more.
///
/// # Errors
/// [`BlobSourceError::TooLarge`] before any read, or [`BlobSourceError::Read`].
pub fn blob_id_of(source: &dyn BlobSource, shards: ShardCount) -> Result<BlobId, BlobSourceError> {
    let length = source.len();
    let shape = MatrixShape::new(length, shards, symbol_size(length, shards)?);
    let roots = compute::roots(source, shape, ComputeLimits::DEFAULT)?;
    Ok(id_from_root(length, &roots.pairs()))
}
