//! The whole computation: cuts a blob into batches and strips.
//!
//! The steps:
//! 1. Extend the source rows.
//! 2. Process batches of columns, each on its own.
//! 3. Complete the rows' trees over all batches.
//!
//! When the extended symbols of all rows exceed the limit, they are processed strip by strip. The batches
//! that need them keep their hash states between strips. So memory depends on the number of shards only.

use std::io;

use super::{
    BlobSource,
    columns::{BatchRoots, ColumnBatch, ColumnScratch, EncodingJob},
    kernel::{BLOCK_BYTES, HashKernel, LANES, Nodes},
    rows::{Extension, MatrixShape, RowEncoder, SymbolRows},
    strip::{CHUNK, Strip},
    tree::{ColumnTrees, TreeHash, lane, pair_root, reduce},
};

/// Limits on the work in progress.
#[derive(Debug, Clone, Copy)]
pub(super) struct ComputeLimits {
    /// Bytes of work space of one encoder call.
    encoder: usize,
    /// Most bytes of extended rows in memory.
    extension: usize,
    /// Most bytes of source rows that a batch reads.
    stage: usize,
}

impl ComputeLimits {
    /// An encoder's work fits the cache of a core. The other limits suit a machine's memory for a large blob.
    pub(super) const DEFAULT: Self = Self { encoder: 2 << 20, extension: 64 << 20, stage: 16 << 20 };
}

/// Shortest shard worth an encoder call, in bytes: one hash block for each of eight strips.
const MIN_SHARD_BYTES: usize = LANES * BLOCK_BYTES;
/// Most columns of a batch: with more, the leaves of eight rows no longer fit the innermost cache.
const MAX_WIDTH: usize = 128;

/// Roots of the trees over the rows (primary slivers) and columns (secondary slivers) of the extended matrix.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Roots {
    pub(super) primary: Vec<TreeHash>,
    pub(super) secondary: Vec<TreeHash>,
}

impl Roots {
    /// Root of the tree over all sliver pairs.
    pub(super) fn pairs(&self) -> TreeHash {
        pair_root(&self.primary, &self.secondary)
    }
}

/// The batches and strips of the work.
struct EncodingPlan {
    job: EncodingJob,
    /// Rows extended in one encoder call, and the most bytes of each symbol in it.
    rows_at_once: usize,
    row_strip: usize,
    /// Bytes of each extended symbol held at once; a multiple of the job's strip, or the symbol size.
    extension: usize,
}

impl EncodingPlan {
    fn new(shape: MatrixShape, limits: ComputeLimits) -> Self {
        let MatrixShape { n, k1, k2, symbol, .. } = shape;
        let shard = (limits.encoder / n.next_power_of_two()).max(MIN_SHARD_BYTES);
        // Several strips are multiples of the hash's block, so that each leaves exactly one byte.
        let strip = (shard / LANES) / BLOCK_BYTES * BLOCK_BYTES;
        let width = (shard / symbol.min(strip)).min(MAX_WIDTH).min(n.next_power_of_two()).max(LANES);
        let width = 1 << width.ilog2();
        let stage = (limits.stage / (k1 * LANES) / strip).max(1) * strip;
        let extension = (limits.extension / (k1 * (n - k2)) / strip).max(1) * strip;
        let job = EncodingJob::new(shape, HashKernel::fastest(), width, strip, stage);
        let row_strip = shard / CHUNK * CHUNK;
        let rows_at_once = (shard / symbol.min(row_strip)).max(1);
        Self { job, rows_at_once, row_strip, extension }
    }
}

/// Computes the roots.
pub(super) fn roots(blob: &dyn BlobSource, shape: MatrixShape, limits: ComputeLimits) -> io::Result<Roots> {
    let plan = EncodingPlan::new(shape, limits);
    let job = &plan.job;
    let rows = SymbolRows { shape, blob };
    let (mut encoder, mut scratch) = (RowEncoder::new(&shape), ColumnScratch::new(job));
    let mut done: Vec<BatchRoots> = Vec::with_capacity(job.batches());

    let strips: Vec<_> = shape.whole().split(plan.extension).collect();
    let mut extension = Extension::new(&shape, plan.extension.min(shape.symbol));
    // With one strip, every batch begins and ends at once. With several strips, only batches of source
    // columns do. The other batches live from the first strip to the last.
    let lasting = if strips.len() == 1 { job.batches() } else { shape.k2 / job.width };
    if let [strip] = strips[..] {
        extend(&plan, &mut encoder, rows, &mut extension, strip)?;
    }
    for number in 0..lasting {
        let mut batch = ColumnBatch::new(job, number);
        done.extend(batch.absorb(job, &mut scratch, rows, &extension, shape.whole())?);
    }
    let mut batches: Vec<ColumnBatch> =
        (lasting..job.batches()).map(|number| ColumnBatch::new(job, number)).collect();
    let strips = if batches.is_empty() { Vec::new() } else { strips };
    for strip in strips {
        extend(&plan, &mut encoder, rows, &mut extension, strip)?;
        for batch in &mut batches {
            done.extend(batch.absorb(job, &mut scratch, rows, &extension, strip)?);
        }
    }
    Ok(complete(job, &done))
}

/// Extends a strip of all filled rows.
fn extend(
    plan: &EncodingPlan,
    encoder: &mut RowEncoder,
    rows: SymbolRows<'_>,
    extension: &mut Extension,
    strip: Strip,
) -> io::Result<()> {
    let mut batches = extension.batches(&rows.shape, strip, plan.rows_at_once);
    batches.try_for_each(|(first, batch)| encoder.extend(rows, first, strip, plan.row_strip, batch))
}

/// Completes the trees of the rows over all batches.
#[expect(
    clippy::indexing_slicing,
    reason = "each batch has nodes for all active rows, and a tree has a root"
)]
fn complete(job: &EncodingJob, batches: &[BatchRoots]) -> Roots {
    let MatrixShape { n, k1, filled, .. } = job.shape;
    let secondary = batches.iter().flat_map(|batch| batch.columns.iter().copied()).collect();
    let mut active = Vec::with_capacity(job.active_rows() + LANES);
    for eight in 0..job.active_rows().div_ceil(LANES) {
        let mut nodes: Vec<Nodes> = batches.iter().map(|batch| batch.rows[eight]).collect();
        let roots = reduce(job.kernel, &mut nodes, None);
        active.extend((0..LANES).map(|place| lane(&roots, place)));
    }
    active.truncate(job.active_rows());
    let mut zeros = ColumnTrees::new(job.kernel);
    zeros.push_equal(n, &job.zero_leaf, 1);
    let zero_root = lane(&zeros.finish()[0], 0);
    let recovered = active.split_off(filled);
    let mut primary = active;
    primary.resize(k1, zero_root);
    primary.extend(recovered);
    Roots { primary, secondary }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob_id::{ShardCount, symbol_size};

    fn roots_of(length: usize, shards: u16, limits: ComputeLimits) -> Roots {
        let mut blob = vec![0; length];
        blake3::Hasher::new().update(&length.to_le_bytes()).finalize_xof().fill(&mut blob);
        let shards = ShardCount::new(shards).unwrap();
        let symbol = symbol_size(length as u64, shards).unwrap();
        let shape = MatrixShape::new(length as u64, shards, symbol);
        roots(&&blob[..], shape, limits).unwrap()
    }

    #[test]
    fn strips_and_batches_do_not_change_the_roots() {
        // The default limits give these blobs one strip; the least limits give strips of 128 bytes.
        let least = ComputeLimits { encoder: 0, extension: 0, stage: 0 };
        let some = ComputeLimits { encoder: 1 << 16, extension: 100_000, stage: 40_000 };
        for (shards, symbols) in [
            (4, 500),
            (7, 300),
            (10, 1100),
            (31, 128),
            (31, 130),
            (31, 520),
            (40, 256),
            (40, 258),
            (100, 200),
        ] {
            let count = ShardCount::new(shards).unwrap();
            let full = count.rows() * count.columns() * symbols;
            for length in [full, full - 1, full / 2 + full / 5] {
                let expected = roots_of(length, shards, ComputeLimits::DEFAULT);
                for limits in [least, some] {
                    let case = format!("{length} bytes, {shards} shards, {limits:?}");
                    assert_eq!(roots_of(length, shards, limits), expected, "{case}");
                }
            }
        }
    }
}
