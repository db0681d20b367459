//! Blobs that are not one slice in memory: sources with random access, and an incremental hasher.

use std::{io, num::NonZeroUsize};

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
    blob_id_of_threads(source, shards, NonZeroUsize::MIN)
}

/// [`blob_id_of`] on several threads: see [`super::blob_id_threads`].
///
/// # Errors
/// As [`blob_id_of`].
pub fn blob_id_of_threads(
    source: &dyn BlobSource,
    shards: ShardCount,
    threads: NonZeroUsize,
) -> Result<BlobId, BlobSourceError> {
    let length = source.len();
    let shape = MatrixShape::new(length, shards, symbol_size(length, shards)?);
    let roots = compute::roots(source, shape, threads, ComputeLimits::DEFAULT)?;
    Ok(id_from_root(length, &roots.pairs()))
}

/// More or fewer bytes were given to a [`BlobIdHasher`] than announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{given} bytes came, but {announced} were announced")]
pub struct BlobLengthError {
    /// The length given to [`BlobIdHasher::new`].
    pub announced: u64,
    /// Bytes received, including refused bytes.
    pub given: u64,
}

/// Bytes of one segment of the hasher.
const SEGMENT_BYTES: usize = 1 << 20;

/// Computes the blob ID of bytes that arrive in pieces. The whole encoding depends on the length, so it must
/// be known from the start.
///
/// It holds the bytes, since every column of symbols contains some of the blob's first and last bytes. Memory
/// is the bytes so far, rounded up to whole MiB. The end needs as much as [`blob_id_of`] on top.
#[derive(Debug)]
pub struct BlobIdHasher {
    shards: ShardCount,
    announced: u64,
    segments: Segments,
}

impl BlobIdHasher {
    /// Expects this many bytes. Allocates nothing in proportion to them before they arrive.
    ///
    /// # Errors
    /// [`BlobIdError::TooLarge`].
    pub fn new(length: u64, shards: ShardCount) -> Result<Self, BlobIdError> {
        symbol_size(length, shards)?;
        Ok(Self { shards, announced: length, segments: Segments::default() })
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// [`BlobLengthError`] when the total exceeds the announced length; the call then takes no byte.
    pub fn update(&mut self, mut bytes: &[u8]) -> Result<(), BlobLengthError> {
        let given = self.segments.length + bytes.len() as u64;
        if given > self.announced {
            return Err(BlobLengthError { announced: self.announced, given });
        }
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(self.segments.room()));
            self.segments.push(now);
            bytes = later;
        }
        Ok(())
    }

    /// The ID. Does all the work and blocks, as [`super::blob_id()`] does.
    ///
    /// # Errors
    /// [`BlobLengthError`] when fewer bytes came than announced.
    pub fn finish(self) -> Result<BlobId, BlobLengthError> {
        let given = self.segments.length;
        if given != self.announced {
            return Err(BlobLengthError { announced: self.announced, given });
        }
        Ok(blob_id_of(&self.segments, self.shards)
            .expect("the length was checked at the start, and segments in memory can be read"))
    }
}

/// Bytes in memory that grow without moves.
#[derive(Debug, Default)]
struct Segments {
    full: Vec<Vec<u8>>,
    length: u64,
}

impl Segments {
    /// Bytes that fit before a new segment starts.
    fn room(&self) -> usize {
        let used = self.full.last().map_or(0, Vec::len) % SEGMENT_BYTES;
        SEGMENT_BYTES - used
    }

    /// Appends bytes, no more than [`Self::room`].
    fn push(&mut self, bytes: &[u8]) {
        match self.full.last_mut() {
            Some(last) if last.len() < SEGMENT_BYTES => last.extend_from_slice(bytes),
            _ => {
                let mut segment = Vec::with_capacity(SEGMENT_BYTES);
                segment.extend_from_slice(bytes);
                self.full.push(segment);
            }
        }
        self.length += bytes.len() as u64;
    }
}

impl BlobSource for Segments {
    fn len(&self) -> u64 {
        self.length
    }

    fn read_at(&self, offset: u64, mut buffer: &mut [u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let (mut number, mut inside) = (offset / SEGMENT_BYTES, offset % SEGMENT_BYTES);
        while !buffer.is_empty() {
            let segment = self.full.get(number).and_then(|segment| segment.get(inside..));
            let segment = segment.filter(|bytes| !bytes.is_empty()).ok_or(io::ErrorKind::UnexpectedEof)?;
            let length = buffer.len().min(segment.len());
            let (now, later) = buffer.split_at_mut(length);
            now.copy_from_slice(segment.split_at(length).0);
            buffer = later;
            (number, inside) = (number + 1, 0);
        }
        Ok(())
    }
}
