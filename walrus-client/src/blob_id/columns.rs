//! One batch of columns: extends it from k1 to n symbols, hashes every symbol, and begins the trees.
//!
//! One encoder call gives all n symbols of a column, strip by strip. So a batch needs only its own columns of
//! the source rows. Its result is small: the columns' roots, and for each row the node over the batch.

use std::{io, ops::Range, sync::OnceLock};

use super::{
    kernel::{
        BLOCK_BYTES, HashBlock, HashKernel, HashState, HashWords, LANES, Nodes, Position, START, ZERO,
        ZERO_NODES,
    },
    rows::{ENCODES, Encoder, Extension, MatrixShape, SymbolRows},
    strip::{CHUNK, Lanes, SLACK, Strip},
    tree::{ColumnTrees, TreeHash, lane, reduce},
};

/// Number of symbols from which the table of all 2-byte leaves is worth its 65,536 hashes.
const TABLE_FROM_SYMBOLS: usize = 65_536;

/// The settings that all batches of a blob share.
pub(super) struct EncodingJob {
    pub(super) shape: MatrixShape,
    pub(super) kernel: HashKernel,
    /// Columns of a batch: a power of two, and a multiple of eight. The last batch may have fewer.
    pub(super) width: usize,
    /// Strip size for one encoder call, in bytes; a multiple of 128.
    pub(super) strip: usize,
    /// Strip size for one read of the source, in bytes; a multiple of `strip`.
    pub(super) stage: usize,
    /// The leaf of a symbol of zeros.
    pub(super) zero_leaf: Nodes,
    /// Leaves of all 2-byte symbols, for symbols of that size.
    table: Option<&'static [[u64; 4]]>,
}

impl EncodingJob {
    pub(super) fn new(
        shape: MatrixShape,
        kernel: HashKernel,
        width: usize,
        strip: usize,
        stage: usize,
    ) -> Self {
        let zero_leaf = zero_leaf(kernel, shape.symbol);
        let table =
            (shape.symbol == 2 && shape.n * shape.n >= TABLE_FROM_SYMBOLS).then(|| leaf_table(kernel));
        Self { shape, kernel, width, strip, stage, zero_leaf, table }
    }

    /// The columns of a batch.
    pub(super) fn columns(&self, batch: usize) -> Range<usize> {
        batch * self.width..self.shape.n.min((batch + 1) * self.width)
    }

    pub(super) fn batches(&self) -> usize {
        self.shape.n.div_ceil(self.width)
    }

    /// Rows that are not known to be zero.
    pub(super) fn active_rows(&self) -> usize {
        self.shape.filled + self.shape.n - self.shape.k1
    }

    /// Levels of a row's tree that lie within one batch; `None` for the whole tree.
    fn levels(&self) -> Option<u32> {
        (self.batches() > 1).then_some(self.width.ilog2())
    }
}

/// The leaf of a symbol of zeros, in every lane.
fn zero_leaf(kernel: HashKernel, symbol: usize) -> Nodes {
    let mut state = START;
    let message = symbol + 1;
    for end in (0..message).step_by(BLOCK_BYTES).map(|start| message.min(start + BLOCK_BYTES)) {
        let position = Position { counter: end as u64, last: end == message, words: 0 };
        kernel.compress(&mut state, &[ZERO; 16], position);
    }
    first_half(&state)
}

/// Leaves of every 2-byte symbol, by little-endian index. Computed once per process (2 MiB).
#[expect(clippy::indexing_slicing, reason = "a hot loop over arrays of this many lanes")]
fn leaf_table(kernel: HashKernel) -> &'static [[u64; 4]] {
    static TABLE: OnceLock<Vec<[u64; 4]>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = Vec::with_capacity(1 << 16);
        for first in (0..1 << 16).step_by(LANES) {
            let mut block = [ZERO; 16];
            block[0] = HashWords(std::array::from_fn(|lane| (first + lane as u64) << 8));
            let mut state = START;
            kernel.compress(&mut state, &block, Position { counter: 3, last: true, words: 1 });
            table.extend(
                (0..LANES).map(|lane| -> [u64; 4] { std::array::from_fn(|word| state[word].0[lane]) }),
            );
        }
        table
    })
}

/// The 32 bytes of the hashes.
fn first_half(state: &HashState) -> Nodes {
    [state[0], state[1], state[2], state[3]]
}

/// The result of a batch.
pub(super) struct BatchRoots {
    /// Root of each of its columns.
    pub(super) columns: Vec<TreeHash>,
    /// For every eight active rows, the nodes over their part in the batch.
    pub(super) rows: Vec<Nodes>,
}

/// Hash states of one batch between strips.
pub(super) struct ColumnBatch {
    columns: Range<usize>,
    /// For each active row and eight columns; empty when a single strip holds the symbols.
    states: Vec<HashState>,
    /// Last byte of the strip before, beside each state. The leaf's prefix shifts it into the next block.
    carries: Vec<[u8; LANES]>,
}

/// Buffers for batches.
pub(super) struct ColumnScratch {
    encoder: Encoder,
    /// A strip of the batch's symbols in every filled row.
    stage: Vec<u8>,
    /// The lane shards of the filled rows.
    packed: Vec<u8>,
    zeros: Vec<u8>,
    hasher: LeafHasher,
    /// Leaves of eight rows.
    leaves: Vec<Nodes>,
    /// The leaves transposed, with a row in each lane.
    turned: Vec<Nodes>,
}

impl ColumnScratch {
    pub(super) fn new(job: &EncodingJob) -> Self {
        Self {
            encoder: Encoder::new(job.shape.k1, job.shape.n - job.shape.k1, CHUNK),
            stage: Vec::new(),
            packed: Vec::new(),
            zeros: Vec::new(),
            hasher: LeafHasher::default(),
            leaves: Vec::new(),
            turned: Vec::new(),
        }
    }
}

impl ColumnBatch {
    pub(super) fn new(job: &EncodingJob, number: usize) -> Self {
        let columns = job.columns(number);
        let states =
            if job.shape.symbol > job.strip { job.active_rows() * columns.len().div_ceil(LANES) } else { 0 };
        Self { columns, states: vec![START; states], carries: vec![[0; LANES]; states] }
    }

    /// Takes a strip of the source symbols. `extension` is their extension, if the batch needs it. The last
    /// strip returns the result.
    #[expect(clippy::indexing_slicing, reason = "the buffer has just been resized")]
    pub(super) fn absorb(
        &mut self,
        job: &EncodingJob,
        scratch: &mut ColumnScratch,
        rows: SymbolRows<'_>,
        extension: &Extension,
        strip: Strip,
    ) -> io::Result<Option<BatchRoots>> {
        let (width, k2) = (self.columns.len(), job.shape.k2);
        let from_source = self.columns.start.min(k2)..self.columns.end.min(k2);
        let extended = self.columns.start.max(k2) - k2..self.columns.end.max(k2) - k2;
        let mut roots = None;
        for stage in strip.split(job.stage) {
            let row_bytes = width * stage.len();
            scratch.stage.resize(row_bytes * job.shape.filled + SLACK, 0);
            let staged = scratch.stage[..row_bytes * job.shape.filled].chunks_exact_mut(row_bytes);
            for (row, out) in staged.enumerate() {
                let (left, right) = out.split_at_mut(from_source.len() * stage.len());
                if !from_source.is_empty() {
                    rows.read(row, from_source.clone(), stage, left)?;
                }
                if !extended.is_empty() {
                    extension.read(row, extended.clone(), stage, right);
                }
            }
            for part in stage.split(job.strip) {
                roots = self.encode(job, scratch, stage, part);
            }
        }
        Ok(roots)
    }

    /// Extends and hashes part of the staged strip.
    #[expect(clippy::indexing_slicing, reason = "a hot loop within the shape of the matrix")]
    fn encode(
        &mut self,
        job: &EncodingJob,
        scratch: &mut ColumnScratch,
        stage: Strip,
        part: Strip,
    ) -> Option<BatchRoots> {
        let ColumnScratch { encoder, stage: staged, packed, zeros, hasher, leaves, turned } = scratch;
        let MatrixShape { k1, filled, symbol, .. } = job.shape;
        let (width, groups) = (self.columns.len(), self.columns.len().div_ceil(LANES));
        let lanes = Lanes::new(width, part.len());
        let shard_bytes = lanes.bytes();
        packed.resize(filled * shard_bytes, 0);
        zeros.resize(shard_bytes, 0);

        let encoder = encoder.for_shards_of(shard_bytes);
        for (row, shard) in packed.chunks_exact_mut(shard_bytes).enumerate() {
            let symbols = &staged[row * width * stage.len() + part.within(stage).start..];
            lanes.pack(symbols, stage.len(), shard);
            encoder.add_original_shard(shard).expect(ENCODES);
        }
        for _ in filled..k1 {
            encoder.add_original_shard(&*zeros).expect(ENCODES);
        }
        let recovered = encoder.encode().expect(ENCODES);
        // Added and recovered shards share one loop: the last strip hashes eight rows together.
        let shard = |active: usize| match active.checked_sub(filled) {
            None => &packed[active * shard_bytes..][..shard_bytes],
            Some(number) => recovered.recovery(number).expect("as many as there are rows to recover"),
        };

        hasher.prepare(part, symbol);
        leaves.resize(LANES * groups, ZERO_NODES);
        let last = part.end == symbol;
        let mut trees = BatchTrees::new(job, groups, width);
        for first in (0..job.active_rows()).step_by(LANES) {
            let eight = first..job.active_rows().min(first + LANES);
            for (active, leaves) in eight.clone().zip(leaves.chunks_exact_mut(groups)) {
                let shard = shard(active);
                for (group, leaf) in leaves.iter_mut().enumerate() {
                    if let Some(table) = job.table {
                        *leaf = look_up(table, lanes.pairs(shard, group * LANES));
                        continue;
                    }
                    let count = LANES.min(width - group * LANES);
                    let mut fresh = (START, [0; LANES]);
                    let at = active * groups + group;
                    let (state, carry) = match (self.states.get_mut(at), self.carries.get_mut(at)) {
                        (Some(state), Some(carry)) => (state, carry),
                        _ => (&mut fresh.0, &mut fresh.1),
                    };
                    hasher.take(
                        job.kernel,
                        &lanes,
                        shard,
                        group * LANES..group * LANES + count,
                        state,
                        carry,
                    );
                    *leaf = first_half(state);
                }
            }
            if last {
                trees.push(job, eight, leaves, turned);
            }
        }
        last.then(|| trees.finish(width))
    }
}

/// Eight leaves of 2-byte symbols.
#[expect(clippy::indexing_slicing, reason = "the table has an entry for each 2-byte symbol")]
fn look_up(table: &[[u64; 4]], symbols: [u16; LANES]) -> Nodes {
    let mut nodes = ZERO_NODES;
    for (lane, symbol) in symbols.into_iter().enumerate() {
        let leaf = &table[usize::from(symbol)];
        for (word, value) in nodes.iter_mut().zip(leaf) {
            word.0[lane] = *value;
        }
    }
    nodes
}

/// The trees of a batch in its last strip.
struct BatchTrees {
    columns: ColumnTrees,
    rows: Vec<Nodes>,
    groups: usize,
    width: usize,
}

impl BatchTrees {
    fn new(job: &EncodingJob, groups: usize, width: usize) -> Self {
        Self { columns: ColumnTrees::new(job.kernel), rows: Vec::new(), groups, width }
    }

    /// Takes the leaves of the next active rows, at most eight.
    #[expect(clippy::indexing_slicing, reason = "a hot loop within the shape of the matrix")]
    fn push(
        &mut self,
        job: &EncodingJob,
        eight: Range<usize>,
        leaves: &mut [Nodes],
        turned: &mut Vec<Nodes>,
    ) {
        turned.clear();
        for column in 0..self.width {
            let (group, place) = (column / LANES, column % LANES);
            turned.push(std::array::from_fn(|word| {
                HashWords(std::array::from_fn(|row| leaves[row * self.groups + group][word].0[place]))
            }));
        }
        self.rows.push(reduce(job.kernel, turned, job.levels()));
        for (active, leaves) in eight.zip(leaves.chunks_exact_mut(self.groups)) {
            if active == job.shape.filled {
                self.columns.push_equal(job.shape.k1 - job.shape.filled, &job.zero_leaf, self.groups);
            }
            self.columns.push(leaves);
        }
    }

    #[expect(clippy::indexing_slicing, reason = "a root for each group of columns")]
    fn finish(self, width: usize) -> BatchRoots {
        let roots = self.columns.finish();
        let columns = (0..width).map(|column| lane(&roots[column / LANES], column % LANES)).collect();
        BatchRoots { columns, rows: self.rows }
    }
}

/// Hashes leaves, eight at a time: H(0x00 ‖ symbol).
#[derive(Default)]
struct LeafHasher {
    /// For each of eight symbols: a byte for the prefix or carry, the strip, and zeros up to whole blocks.
    messages: Vec<u8>,
    stride: usize,
    /// Bytes of the message before this strip, the prefix included.
    before: usize,
    /// Bytes of the strip and the byte before it.
    length: usize,
    /// Whether this strip is the symbol's last.
    last: bool,
}

impl LeafHasher {
    /// Prepares for a strip of symbols of this size.
    fn prepare(&mut self, part: Strip, symbol: usize) {
        self.length = part.len() + 1;
        self.before = part.start;
        self.last = part.end == symbol;
        self.stride = self.length.next_multiple_of(BLOCK_BYTES);
        self.messages.clear();
        self.messages.resize(LANES * self.stride + SLACK, 0);
    }

    /// Hashes the strip of some symbols of a lane shard, at most eight, into their states.
    #[expect(clippy::indexing_slicing, reason = "the messages were prepared for these symbols")]
    fn take(
        &mut self,
        kernel: HashKernel,
        lanes: &Lanes,
        shard: &[u8],
        symbols: Range<usize>,
        state: &mut HashState,
        carry: &mut [u8; LANES],
    ) {
        for (place, symbol) in symbols.enumerate() {
            let message = &mut self.messages[place * self.stride..];
            message[0] = carry[place];
            lanes.unpack_loosely(shard, symbol, &mut message[1..]);
            carry[place] = message[self.length - 1];
        }
        // Before the last strip, one byte remains and is carried to the next.
        let length = if self.last { self.length } else { self.length - 1 };
        for start in (0..length).step_by(BLOCK_BYTES) {
            let end = length.min(start + BLOCK_BYTES);
            let words = (end - start).div_ceil(8);
            let mut block: HashBlock = [ZERO; 16];
            self.load(start, words, &mut block);
            let position =
                Position { counter: (self.before + end) as u64, last: self.last && end == length, words };
            kernel.compress(state, &block, position);
        }
    }

    /// Loads a block of each message, so that equal words lie side by side.
    #[expect(clippy::indexing_slicing, reason = "the messages were prepared for these symbols")]
    fn load(&self, start: usize, words: usize, block: &mut HashBlock) {
        for place in 0..LANES {
            let bytes = &self.messages[place * self.stride + start..][..BLOCK_BYTES];
            for (word, bytes) in block.iter_mut().zip(bytes.chunks_exact(8)).take(words) {
                word.0[place] = u64::from_le_bytes(bytes.try_into().expect("chunks of eight bytes"));
            }
        }
    }
}
