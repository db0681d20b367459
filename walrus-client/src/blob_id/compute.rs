//! The whole computation: cuts a blob into batches and strips, and spreads them over threads.
//!
//! The steps:
//! 1. Extend the source rows.
//! 2. Process batches of columns, each on its own.
//! 3. Complete the rows' trees over all batches.
//!
//! When the extended symbols of all rows exceed the limit, they are processed strip by strip. The batches
//! that need them keep their hash states between strips. So memory depends on the number of shards only.

use std::{io, num::NonZeroUsize};

use parking_lot::Mutex;

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
/// Most threads: even at the highest shard count, more would only wait for memory.
const MAX_THREADS: usize = 64;
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
    fn new(shape: MatrixShape, threads: usize, limits: ComputeLimits) -> Self {
        let MatrixShape { n, k1, k2, symbol, .. } = shape;
        let shard = (limits.encoder / n.next_power_of_two()).max(MIN_SHARD_BYTES);
        // Several strips are multiples of the hash's block, so that each leaves exactly one byte.
        let strip = (shard / LANES) / BLOCK_BYTES * BLOCK_BYTES;
        // Every thread gets several batches, so that no thread waits long for the last batch.
        let share = if threads == 1 { MAX_WIDTH } else { n / (2 * threads) };
        let width =
            (shard / symbol.min(strip)).min(share).min(MAX_WIDTH).min(n.next_power_of_two()).max(LANES);
        let width = 1 << width.ilog2();
        let stage = (limits.stage / (k1 * LANES) / strip).max(1) * strip;
        let extension = (limits.extension / (k1 * (n - k2)) / strip).max(1) * strip;
        let job = EncodingJob::new(shape, HashKernel::fastest(), width, strip, stage);
        let row_strip = shard / CHUNK * CHUNK;
        let rows_at_once = (shard / symbol.min(row_strip)).max(1);
        Self { job, rows_at_once, row_strip, extension }
    }
}

/// Computes the roots on this many threads, including the caller's; on fewer when the system refuses some.
pub(super) fn roots(
    blob: &dyn BlobSource,
    shape: MatrixShape,
    threads: NonZeroUsize,
    limits: ComputeLimits,
) -> io::Result<Roots> {
    let threads = threads.get().min(MAX_THREADS);
    let plan = EncodingPlan::new(shape, threads, limits);
    let job = &plan.job;
    let rows = SymbolRows { shape, blob };
    let mut workers: Vec<EncodingWorker> = (0..threads).map(|_| EncodingWorker::default()).collect();
    let mut done: Vec<Option<BatchRoots>> = (0..job.batches()).map(|_| None).collect();

    let strips: Vec<_> = shape.whole().split(plan.extension).collect();
    let mut extension = Extension::new(&shape, plan.extension.min(shape.symbol));
    // With one strip, every batch begins and ends at once. With several strips, only batches of source
    // columns do. The other batches live from the first strip to the last.
    let lasting = if strips.len() == 1 { job.batches() } else { shape.k2 / job.width };
    if let [strip] = strips[..] {
        extend(&plan, &mut workers, rows, &mut extension, strip)?;
    }
    let (early, late) = done.split_at_mut(lasting);
    for_each(&mut workers, early.iter_mut().enumerate(), |worker, (number, done)| {
        let mut batch = ColumnBatch::new(job, number);
        *done = batch.absorb(job, worker.scratch(job), rows, &extension, shape.whole())?;
        Ok(())
    })?;
    if !late.is_empty() {
        let mut batches: Vec<ColumnBatch> =
            (lasting..job.batches()).map(|number| ColumnBatch::new(job, number)).collect();
        for strip in strips {
            extend(&plan, &mut workers, rows, &mut extension, strip)?;
            for_each(&mut workers, batches.iter_mut().zip(late.iter_mut()), |worker, (batch, done)| {
                *done = batch.absorb(job, worker.scratch(job), rows, &extension, strip)?;
                Ok(())
            })?;
        }
    }
    let done: Vec<BatchRoots> =
        done.into_iter().map(|roots| roots.expect("the last strip ends every batch")).collect();
    Ok(complete(job, &done))
}

/// Extends a strip of all filled rows.
fn extend(
    plan: &EncodingPlan,
    workers: &mut [EncodingWorker],
    rows: SymbolRows<'_>,
    extension: &mut Extension,
    strip: Strip,
) -> io::Result<()> {
    let batches = extension.batches(&rows.shape, strip, plan.rows_at_once);
    for_each(workers, batches, |worker, (first, batch)| {
        let encoder = worker.rows.get_or_insert_with(|| RowEncoder::new(&rows.shape));
        encoder.extend(rows, first, strip, plan.row_strip, batch)
    })
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

/// Buffers of a thread, made at first use.
#[derive(Default)]
struct EncodingWorker {
    rows: Option<RowEncoder>,
    columns: Option<ColumnScratch>,
}

impl EncodingWorker {
    fn scratch(&mut self, job: &EncodingJob) -> &mut ColumnScratch {
        self.columns.get_or_insert_with(|| ColumnScratch::new(job))
    }
}

/// Runs the tasks, each on the next free worker, and stops at the first error.
fn for_each<T: Send>(
    workers: &mut [EncodingWorker],
    tasks: impl Iterator<Item = T> + Send,
    work: impl Fn(&mut EncodingWorker, T) -> io::Result<()> + Sync,
) -> io::Result<()> {
    if let [worker] = workers {
        return tasks.into_iter().try_for_each(|task| work(worker, task));
    }
    let tasks = Mutex::new(tasks);
    let next = || tasks.lock().next();
    let run = |worker: &mut EncodingWorker| -> io::Result<()> {
        while let Some(task) = next() {
            work(worker, task)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let (own, others) = workers.split_last_mut().expect("there is at least one thread");
        let run = &run;
        // If the system refuses a thread, the others take its share.
        let spawn = |worker| std::thread::Builder::new().spawn_scoped(scope, move || run(worker)).ok();
        let others: Vec<_> = others.iter_mut().filter_map(spawn).collect();
        let mut result = run(own);
        for other in others {
            let theirs = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(theirs);
        }
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob_id::{ShardCount, symbol_size};

    fn roots_of(length: usize, shards: u16, threads: usize, limits: ComputeLimits) -> Roots {
        let mut blob = vec![0; length];
        blake3::Hasher::new().update(&length.to_le_bytes()).finalize_xof().fill(&mut blob);
        let shards = ShardCount::new(shards).unwrap();
        let symbol = symbol_size(length as u64, shards).unwrap();
        let shape = MatrixShape::new(length as u64, shards, symbol);
        roots(&&blob[..], shape, NonZeroUsize::new(threads).unwrap(), limits).unwrap()
    }

    #[test]
    fn strips_batches_and_threads_do_not_change_the_roots() {
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
                let expected = roots_of(length, shards, 1, ComputeLimits::DEFAULT);
                for (threads, limits) in [
                    (1, least),
                    (3, least),
                    (1, some),
                    (2, some),
                    (5, ComputeLimits::DEFAULT),
                    (usize::MAX, some),
                ] {
                    let case = format!("{length} bytes, {shards} shards, {threads} threads, {limits:?}");
                    assert_eq!(roots_of(length, shards, threads, limits), expected, "{case}");
                }
            }
        }
    }
}
