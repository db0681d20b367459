//! Slivers, the parts of a blob that storage nodes hold, and the hashes that prove them.

use std::num::NonZeroUsize;

use super::{
    BlobId, BlobIdError, BlobSource, ShardCount,
    compute::{self, ComputeLimits, Roots},
    id_from_root,
    rows::{ENCODES, Encoder, Extension, MatrixShape, RowEncoder, SymbolRows},
    strip::{CHUNK, Lanes, SLACK},
    symbol_size,
};

/// Root of a Merkle tree over the symbols of a sliver, or over all sliver pairs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreeRoot(pub [u8; 32]);

impl std::fmt::Display for TreeRoot {
    /// Hexadecimal digits.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl std::fmt::Debug for TreeRoot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TreeRoot({self})")
    }
}

/// The hashes of the two slivers that belong to one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SliverPair {
    /// Hash of primary sliver i.
    pub primary: TreeRoot,
    /// Hash of secondary sliver n-1-i.
    pub secondary: TreeRoot,
}

/// A blob with all its slivers.
///
/// A sliver's hash is the root over all n symbols of its row or column. The sliver itself holds only as many
/// symbols as the others can be computed from.
pub struct Encoding {
    shape: MatrixShape,
    blob_id: BlobId,
    root: TreeRoot,
    roots: Roots,
    /// All n rows of k2 symbols: the primary slivers.
    rows: Vec<u8>,
    /// The extension symbols of the source rows.
    extension: Extension,
}

impl Encoding {
    /// Encodes a blob.
    ///
    /// Blocks for somewhat longer than [`super::blob_id()`]. Needs some 3.5 times the blob in memory, and
    /// holds it.
    ///
    /// # Errors
    /// [`BlobIdError::TooLarge`], found before any work or allocation.
    #[expect(clippy::indexing_slicing, reason = "the rows hold every blob of this shape")]
    pub fn new(bytes: &[u8], shards: ShardCount) -> Result<Self, BlobIdError> {
        let length = bytes.len() as u64;
        let shape = MatrixShape::new(length, shards, symbol_size(length, shards)?);
        let blob: &dyn BlobSource = &bytes;
        let readable = "a slice is read within its bounds";
        let roots = compute::roots(blob, shape, NonZeroUsize::MIN, ComputeLimits::DEFAULT).expect(readable);
        let source = SymbolRows { shape, blob };
        let mut extension = Extension::new(&shape, shape.symbol);
        let mut encoder = RowEncoder::new(&shape);
        for (first, batch) in extension.batches(&shape, shape.whole(), 1) {
            encoder.extend(source, first, shape.whole(), STRIP, batch).expect(readable);
        }
        let row_bytes = shape.k2 * shape.symbol;
        let mut rows = vec![0; shape.n * row_bytes];
        rows[..bytes.len()].copy_from_slice(bytes);
        let root = TreeRoot(roots.pairs());
        let mut encoding =
            Self { shape, blob_id: id_from_root(length, &root.0), root, roots, rows, extension };
        encoding.extend_columns();
        Ok(encoding)
    }

    /// Fills the rows from k1 on, eight columns at a time.
    #[expect(clippy::indexing_slicing, reason = "a hot loop within the shape of the matrix")]
    fn extend_columns(&mut self) {
        let MatrixShape { n, k1, k2, symbol, .. } = self.shape;
        let row_bytes = k2 * symbol;
        let (source, recovery) = self.rows.split_at_mut(k1 * row_bytes);
        let mut encoder = Encoder::new(k1, n - k1, CHUNK);
        let (mut run, mut shard) = (Vec::new(), Vec::new());
        for first in (0..k2).step_by(COLUMNS) {
            let columns = COLUMNS.min(k2 - first);
            for part in self.shape.whole().split(STRIP) {
                let lanes = Lanes::new(columns, part.len());
                shard.resize(lanes.bytes(), 0);
                run.resize(columns * symbol + SLACK, 0);
                let encoder = encoder.for_shards_of(lanes.bytes());
                for row in source.chunks_exact(row_bytes) {
                    run[..columns * symbol].copy_from_slice(&row[first * symbol..][..columns * symbol]);
                    lanes.pack(&run[part.start..], symbol, &mut shard);
                    encoder.add_original_shard(&shard).expect(ENCODES);
                }
                let recovered = encoder.encode().expect(ENCODES);
                for (row, shard) in recovery.chunks_exact_mut(row_bytes).zip(recovered.recovery_iter()) {
                    let symbols = row[first * symbol..].chunks_exact_mut(symbol).take(columns);
                    for (number, target) in symbols.enumerate() {
                        lanes.unpack(shard, number, &mut target[part.start..part.end]);
                    }
                }
            }
        }
    }

    /// The blob's ID.
    #[must_use]
    pub const fn blob_id(&self) -> BlobId {
        self.blob_id
    }

    /// Root of the tree over all sliver pairs, which the ID hashes.
    #[must_use]
    pub const fn root(&self) -> TreeRoot {
        self.root
    }

    /// s: bytes of a symbol.
    #[must_use]
    pub const fn symbol_size(&self) -> usize {
        self.shape.symbol
    }

    /// The first k2 symbols of row i; `None` from n on.
    #[must_use]
    pub fn primary_sliver(&self, i: usize) -> Option<&[u8]> {
        self.rows.chunks_exact(self.shape.k2 * self.shape.symbol).nth(i)
    }

    /// The first k1 symbols of column j; `None` from n on.
    #[expect(clippy::indexing_slicing, reason = "a source row has k2 symbols")]
    #[must_use]
    pub fn secondary_sliver(&self, j: usize) -> Option<Vec<u8>> {
        let MatrixShape { n, k1, k2, symbol, filled } = self.shape;
        if j >= n {
            return None;
        }
        let mut sliver = vec![0; k1 * symbol];
        let rows = self.rows.chunks_exact(k2 * symbol).take(filled).enumerate();
        for ((row, source), target) in rows.zip(sliver.chunks_exact_mut(symbol)) {
            match j.checked_sub(k2) {
                None => target.copy_from_slice(&source[j * symbol..][..symbol]),
                Some(column) => self.extension.read(row, column..column + 1, self.shape.whole(), target),
            }
        }
        Some(sliver)
    }

    /// The hashes of pair i: primary sliver i and secondary sliver n-1-i; `None` from n on.
    #[must_use]
    pub fn sliver_pair(&self, i: usize) -> Option<SliverPair> {
        let primary = TreeRoot(*self.roots.primary.get(i)?);
        let secondary = TreeRoot(*self.roots.secondary.get(self.shape.n - 1 - i)?);
        Some(SliverPair { primary, secondary })
    }
}

impl std::fmt::Debug for Encoding {
    /// Without the blob's bytes.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoding")
            .field("blob_id", &self.blob_id)
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

/// Columns of a batch, and strip bytes of each symbol: this bounds the encoder's work to 2 MB.
const COLUMNS: usize = 8;
const STRIP: usize = 256;
