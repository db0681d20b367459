//! The extended matrix of symbols, and the leaf hash of each.
//!
//! Owns the Reed-Solomon part of the blob ID. The code works on 16-bit field elements, each column of elements on
//! its own, so whole rows of symbols go through one encoder call as a single long shard: a call for each row
//! and column would spend nearly all its time on the padding of 2-byte symbols to 64 bytes.
//!
//! A symbol's elements follow `reed-solomon-simd`: in each 64-byte chunk (the last may be shorter) of c bytes,
//! element i is the byte pair (i, c/2 + i). A *lane shard* is a list of elements in whole 64-byte chunks.

use std::sync::OnceLock;

use reed_solomon_simd::ReedSolomonEncoder;

use super::{
    ShardCount,
    merkle::{Digest, hash_leaves},
};

/// Chunk of `reed-solomon-simd`, in bytes.
const CHUNK: usize = 64;
/// Elements in a chunk.
const CHUNK_ELEMENTS: usize = CHUNK / 2;
/// Longest lane shard for one encoder call: with about a thousand shards the encoder's work space is then
/// some 2 MB, which stays in a core's cache.
const BATCH_BYTES: usize = 2048;
/// From how many leaves on the table of all 2-byte leaves is worth the 65,536 hashes that fill it.
const TABLE_FROM_LEAVES: usize = 65_536;
/// All values of a 2-byte symbol.
const TABLE_LEN: usize = 65_536;

/// The leaf hashes of the extended matrix, n × n.
pub(super) struct Leaves {
    /// n.
    pub(super) n: usize,
    /// Rows from here up to `zero_end` hold nothing but zeros; such rows need no hashing of their own.
    pub(super) zero_start: usize,
    /// First row after the zero rows; k1, or `zero_start` when there is none.
    pub(super) zero_end: usize,
    /// Hash of an all-zero symbol.
    pub(super) zero_leaf: Digest,
    cells: Cells,
}

/// The hashes themselves, row by row.
enum Cells {
    /// 2-byte symbols, hashed through a table.
    Symbols(Vec<u16>, &'static [Digest]),
    /// Any symbols, already hashed.
    Hashes(Vec<Digest>),
}

impl Leaves {
    /// The leaf in a row and column, both below n.
    pub(super) fn get(&self, row: usize, column: usize) -> &Digest {
        let cell = row * self.n + column;
        match &self.cells {
            Cells::Symbols(symbols, table) => &table[usize::from(symbols[cell])],
            Cells::Hashes(hashes) => &hashes[cell],
        }
    }
}

/// Leaf hashes of every 2-byte symbol (little-endian index), computed once in the life of the process (2 MiB).
fn symbol_table() -> &'static [Digest] {
    static TABLE: OnceLock<Vec<Digest>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let symbols: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let mut table = vec![[0; 32]; TABLE_LEN];
        hash_leaves(&symbols, 2, &mut table);
        table
    })
}

/// Extends the blob in both directions and hashes every symbol. `symbol` is its size in bytes, for which the
/// blob fits (the caller has checked both).
pub(super) fn leaves(bytes: &[u8], shards: ShardCount, symbol: usize) -> Leaves {
    let n = shards.n();
    // Rows after the blob's last non-zero byte are zero, and so are their extensions.
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let filled_rows = used.div_ceil(shards.columns() * symbol);
    let source = extend_rows(&bytes[..used], shards, symbol, filled_rows);

    let mut zero_leaf = [[0; 32]];
    hash_leaves(&vec![0; symbol], symbol, &mut zero_leaf);
    let mut cells = if symbol == 2 && n * n >= TABLE_FROM_LEAVES {
        Cells::Symbols(vec![0; n * n], symbol_table())
    } else {
        Cells::Hashes(vec![[0; 32]; n * n])
    };
    extend_columns(&source, shards, symbol, filled_rows, &mut cells);
    Leaves { n, zero_start: filled_rows, zero_end: shards.rows(), zero_leaf: zero_leaf[0], cells }
}

/// The first `filled` rows, each extended to n symbols: `filled * n * symbol` bytes.
fn extend_rows(bytes: &[u8], shards: ShardCount, symbol: usize, filled: usize) -> Vec<u8> {
    let (n, k2) = (shards.n(), shards.columns());
    let (row_in, row_out) = (k2 * symbol, n * symbol);
    let mut out = vec![0; filled * row_out];
    for (source, target) in bytes.chunks(row_in).zip(out.chunks_exact_mut(row_out)) {
        target[..source.len()].copy_from_slice(source);
    }
    if filled == 0 {
        return out;
    }
    // Shard number c of a call is column c, over a batch of rows.
    let batch = (BATCH_BYTES / symbol).clamp(1, filled);
    let mut shard = vec![0; lane_bytes(batch * symbol)];
    let mut encoder = new_encoder(k2, n - k2, shard.len());
    for first in (0..filled).step_by(batch) {
        let rows = first..filled.min(first + batch);
        for column in 0..k2 {
            let cells = rows.clone().map(|row| &out[row * row_out + column * symbol..][..symbol]);
            pack(cells, &mut shard);
            encoder.add_original_shard(&shard).expect("k2 shards of the declared size");
        }
        let recovered = encoder.encode().expect("all k2 shards were added");
        for (column, lanes) in (k2..n).zip(recovered.recovery_iter()) {
            let mut element = 0;
            for row in rows.clone() {
                unpack(lanes, element, &mut out[row * row_out + column * symbol..][..symbol]);
                element += symbol / 2;
            }
        }
    }
    out
}

/// Extends every column from k1 to n symbols and writes the cells of all rows but the zero ones (their cells
/// are never read: see [`Leaves::zero_start`]).
fn extend_columns(source: &[u8], shards: ShardCount, symbol: usize, filled: usize, cells: &mut Cells) {
    let (n, k1) = (shards.n(), shards.rows());
    let row_bytes = n * symbol;
    // Shard number r of a call is row r, over a batch of columns.
    let batch = (BATCH_BYTES / symbol).clamp(1, n);
    let mut shard = vec![0; lane_bytes(batch * symbol)];
    let zero_shard = shard.clone();
    let mut symbols = vec![0; batch * symbol];
    let mut encoder = new_encoder(k1, n - k1, shard.len());
    for first in (0..n).step_by(batch) {
        let width = batch.min(n - first);
        for row in 0..filled {
            let run = &source[row * row_bytes + first * symbol..][..width * symbol];
            cells.write(row * n + first, run, symbol);
            pack(run.chunks_exact(symbol), &mut shard);
            encoder.add_original_shard(&shard).expect("k1 shards of the declared size");
        }
        for _ in filled..k1 {
            encoder.add_original_shard(&zero_shard).expect("k1 shards of the declared size");
        }
        let recovered = encoder.encode().expect("all k1 shards were added");
        for (row, lanes) in (k1..n).zip(recovered.recovery_iter()) {
            let run = &mut symbols[..width * symbol];
            for (at, target) in run.chunks_exact_mut(symbol).enumerate() {
                unpack(lanes, at * symbol / 2, target);
            }
            cells.write(row * n + first, run, symbol);
        }
    }
}

impl Cells {
    /// Takes a run of symbols that lie side by side in a row.
    fn write(&mut self, first: usize, run: &[u8], symbol: usize) {
        let count = run.len() / symbol;
        match self {
            Self::Symbols(symbols, _) => {
                for (cell, pair) in symbols[first..first + count].iter_mut().zip(run.chunks_exact(2)) {
                    *cell = u16::from_le_bytes([pair[0], pair[1]]);
                }
            }
            Self::Hashes(hashes) => hash_leaves(run, symbol, &mut hashes[first..first + count]),
        }
    }
}

/// An encoder for counts that [`ShardCount`] has bounded and an even shard size.
fn new_encoder(originals: usize, recovery: usize, shard_bytes: usize) -> ReedSolomonEncoder {
    ReedSolomonEncoder::new(originals, recovery, shard_bytes)
        .expect("at most 2048 shards in all, and whole chunks of 64 bytes")
}

/// Bytes of the lane shard that holds this many bytes of symbols.
fn lane_bytes(symbol_bytes: usize) -> usize {
    symbol_bytes.next_multiple_of(CHUNK)
}

/// Lays the elements of the symbols one after another into a lane shard; what lies after them is arbitrary,
/// since no element depends on another.
fn pack<'a>(symbols: impl Iterator<Item = &'a [u8]>, shard: &mut [u8]) {
    let mut element = 0;
    for symbol in symbols {
        for chunk in symbol.chunks(CHUNK) {
            let (low, high) = chunk.split_at(chunk.len() / 2);
            for (low, high) in low.iter().zip(high) {
                let at = lane_offset(element);
                shard[at] = *low;
                shard[at + CHUNK_ELEMENTS] = *high;
                element += 1;
            }
        }
    }
}

/// Takes one symbol, whose first element is number `element`, out of a lane shard.
fn unpack(shard: &[u8], mut element: usize, symbol: &mut [u8]) {
    for chunk in symbol.chunks_mut(CHUNK) {
        let half = chunk.len() / 2;
        let (low, high) = chunk.split_at_mut(half);
        for (low, high) in low.iter_mut().zip(high) {
            let at = lane_offset(element);
            *low = shard[at];
            *high = shard[at + CHUNK_ELEMENTS];
            element += 1;
        }
    }
}

/// Where an element's low byte lies in a lane shard.
fn lane_offset(element: usize) -> usize {
    element / CHUNK_ELEMENTS * CHUNK + element % CHUNK_ELEMENTS
}
