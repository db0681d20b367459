//! The source rows of the matrix and their extension from k2 to n symbols.

use std::{io, ops::Range};

use reed_solomon_simd::ReedSolomonEncoder;

use super::{
    BlobSource, ShardCount,
    strip::{Lanes, SLACK, Strip},
};

/// Sizes of the matrix.
#[derive(Debug, Clone, Copy)]
pub(super) struct MatrixShape {
    /// n.
    pub(super) n: usize,
    /// k1: source rows.
    pub(super) k1: usize,
    /// k2: source columns.
    pub(super) k2: usize,
    /// s: bytes of a symbol.
    pub(super) symbol: usize,
    /// Source rows, counted from the first, that hold any of the blob. The others are zero, and so are their
    /// extensions.
    pub(super) filled: usize,
}

impl MatrixShape {
    /// The shape for a blob of this length and symbol size.
    pub(super) fn new(length: u64, shards: ShardCount, symbol: usize) -> Self {
        let (n, k1, k2) = (shards.n(), shards.rows(), shards.columns());
        let filled = length.div_ceil((k2 * symbol) as u64);
        let filled = usize::try_from(filled).expect("a blob that fits has at most k1 rows");
        Self { n, k1, k2, symbol, filled }
    }

    /// The whole of every symbol.
    pub(super) fn whole(&self) -> Strip {
        Strip { start: 0, end: self.symbol }
    }
}

/// An encoder for counts within the bounds of [`ShardCount`]. Its shard size is set before each use.
pub(super) struct Encoder {
    inner: ReedSolomonEncoder,
    originals: usize,
    recovery: usize,
    shard_bytes: usize,
}

/// The reason why the encoder accepts its input.
pub(super) const ENCODES: &str = "at most 2048 shards, all of them of the declared whole chunks";

impl Encoder {
    pub(super) fn new(originals: usize, recovery: usize, shard_bytes: usize) -> Self {
        let inner = ReedSolomonEncoder::new(originals, recovery, shard_bytes).expect(ENCODES);
        Self { inner, originals, recovery, shard_bytes }
    }

    /// Prepares for shards of this size, in whole chunks.
    pub(super) fn for_shards_of(&mut self, shard_bytes: usize) -> &mut ReedSolomonEncoder {
        if shard_bytes != self.shard_bytes {
            self.inner.reset(self.originals, self.recovery, shard_bytes).expect(ENCODES);
            self.shard_bytes = shard_bytes;
        }
        &mut self.inner
    }
}

/// The filled source rows: a blob, then zeros.
#[derive(Clone, Copy)]
pub(super) struct SymbolRows<'a> {
    pub(super) shape: MatrixShape,
    pub(super) blob: &'a dyn BlobSource,
}

impl SymbolRows<'_> {
    /// Reads the strip of some symbols of a row, in order.
    pub(super) fn read(
        &self,
        row: usize,
        columns: Range<usize>,
        strip: Strip,
        out: &mut [u8],
    ) -> io::Result<()> {
        let symbol = self.shape.symbol as u64;
        let first = (row * self.shape.k2 + columns.start) as u64 * symbol;
        if strip == self.shape.whole() {
            return self.read_padded(first, out);
        }
        for (number, out) in out.chunks_exact_mut(strip.len()).enumerate() {
            self.read_padded(first + number as u64 * symbol + strip.start as u64, out)?;
        }
        Ok(())
    }

    fn read_padded(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let left = self.blob.len().saturating_sub(offset);
        let (bytes, padding) = match usize::try_from(left) {
            Ok(left) if left < out.len() => out.split_at_mut(left),
            _ => (out, &mut [][..]),
        };
        padding.fill(0);
        if bytes.is_empty() { Ok(()) } else { self.blob.read_at(offset, bytes) }
    }
}

/// A strip of the symbols that extend the rows: columns k2 to n of the filled rows.
pub(super) struct Extension {
    /// The part of each symbol that is here.
    pub(super) strip: Strip,
    /// Bytes of a row.
    row_bytes: usize,
    /// Row by row, symbol by symbol.
    data: Vec<u8>,
}

impl Extension {
    /// Allocates for strips of up to this many bytes.
    pub(super) fn new(shape: &MatrixShape, most: usize) -> Self {
        let row_bytes = (shape.n - shape.k2) * most;
        Self { strip: Strip { start: 0, end: 0 }, row_bytes, data: vec![0; row_bytes * shape.filled] }
    }

    /// Copies part of the strip of some symbols of a row; columns count from k2.
    #[expect(clippy::indexing_slicing, reason = "a hot loop within the shape of the matrix")]
    pub(super) fn read(&self, row: usize, columns: Range<usize>, strip: Strip, out: &mut [u8]) {
        let data = &self.data[row * self.row_bytes..];
        let symbols = data.chunks_exact(self.strip.len()).skip(columns.start);
        for (symbol, out) in symbols.zip(out.chunks_exact_mut(strip.len())) {
            out.copy_from_slice(&symbol[strip.within(self.strip)]);
        }
    }

    /// Prepares for a strip and cuts it into batches of rows. Each item is a
    /// batch's first row and its bytes.
    #[expect(clippy::indexing_slicing, reason = "the strip is at most as long as those allocated for")]
    pub(super) fn batches(
        &mut self,
        shape: &MatrixShape,
        strip: Strip,
        rows: usize,
    ) -> impl Iterator<Item = (usize, &mut [u8])> {
        self.strip = strip;
        self.row_bytes = (shape.n - shape.k2) * strip.len();
        let bytes = self.row_bytes * shape.filled;
        let batches = self.data[..bytes].chunks_mut(self.row_bytes * rows);
        batches.enumerate().map(move |(number, batch)| (number * rows, batch))
    }
}

/// Extends rows.
pub(super) struct RowEncoder {
    encoder: Encoder,
    /// Symbols of a batch of rows, in source order.
    source: Vec<u8>,
    shard: Vec<u8>,
}

impl RowEncoder {
    pub(super) fn new(shape: &MatrixShape) -> Self {
        let encoder = Encoder::new(shape.k2, shape.n - shape.k2, super::strip::CHUNK);
        Self { encoder, source: Vec::new(), shard: Vec::new() }
    }

    /// Extends the strip of a batch of rows into `batch`. It works in parts of up to `most` bytes, which fit
    /// a core's cache.
    #[expect(clippy::indexing_slicing, reason = "a hot loop within the shape of the matrix")]
    pub(super) fn extend(
        &mut self,
        rows: SymbolRows<'_>,
        first: usize,
        strip: Strip,
        most: usize,
        batch: &mut [u8],
    ) -> io::Result<()> {
        let MatrixShape { n, k2, .. } = rows.shape;
        let row_bytes = (n - k2) * strip.len();
        let count = batch.len() / row_bytes;
        for part in strip.split(most) {
            let length = part.len();
            let source_row = k2 * length;
            self.source.resize(count * source_row + SLACK, 0);
            for (number, out) in self.source[..count * source_row].chunks_exact_mut(source_row).enumerate() {
                rows.read(first + number, 0..k2, part, out)?;
            }
            let lanes = Lanes::new(count, length);
            self.shard.resize(lanes.bytes(), 0);
            let encoder = self.encoder.for_shards_of(lanes.bytes());
            for column in 0..k2 {
                lanes.pack(&self.source[column * length..], source_row, &mut self.shard);
                encoder.add_original_shard(&self.shard).expect(ENCODES);
            }
            let recovered = encoder.encode().expect(ENCODES);
            for (column, shard) in recovered.recovery_iter().enumerate() {
                for (number, row) in batch.chunks_exact_mut(row_bytes).enumerate() {
                    let symbol = &mut row[column * strip.len()..][part.within(strip)];
                    lanes.unpack(shard, number, symbol);
                }
            }
        }
        Ok(())
    }
}
