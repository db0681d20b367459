//! A layer's attention: stores keys and values in the cache, and computes queries against them.

use std::ops::Range;

use super::{Context, RowRun, RowSource, Turns, block_runs, product::gather, room};
use crate::{
    config::Config,
    kernels::{
        LANES,
        attention::{Attend, Rows, SLICE, Score, Weigh},
        dot::DIRECT_ROWS,
        rows::{PrepareHead, ToHalf},
    },
    kv::{KV_BLOCK, KvBlock},
    model::Chunk,
    weights::Layer,
};

/// Queries computed together, so that each key is loaded once for all of them.
const QUERIES: usize = 12;

/// Computes cosines and sines of all rows' positions.
pub(super) fn turns(
    context: &mut Context<'_>,
    config: &Config,
    runs: &[RowRun],
    rows: usize,
    turns: &mut [Turns; 2],
) {
    let positions: Vec<usize> =
        runs.iter().flat_map(|run| (0..run.rows.len()).map(|at| run.position + at)).collect();
    let ropes = [&config.rope, &config.local_rope];
    let used = if config.sliding.is_some() { 2 } else { 1 };
    for (rope, turns) in ropes.into_iter().zip(turns).take(used) {
        let pairs = rope.frequencies.len();
        let at_once = context.rows_at_once(rows);
        let cosines = room(&mut turns.cosines, rows * pairs, 0.0).chunks_mut(at_once * pairs);
        let sines = room(&mut turns.sines, rows * pairs, 0.0).chunks_mut(at_once * pairs);
        let mut parts: Vec<_> = positions.chunks(at_once).zip(cosines.zip(sines)).collect();
        context.each(&mut parts, |_, (positions, (cosines, sines))| {
            let rows = cosines.chunks_exact_mut(pairs).zip(sines.chunks_exact_mut(pairs));
            for (position, (cosines, sines)) in positions.iter().zip(rows) {
                rope.turns(*position, cosines, sines);
            }
        });
    }
}

/// A layer in a step.
pub(super) struct Step<'a> {
    pub config: &'a Config,
    pub layer: &'a Layer,
    pub number: usize,
    pub rows: usize,
    pub runs: &'a [RowRun],
}

/// Rows whose keys and values go into the same block.
struct Remember<'a> {
    rows: Range<usize>,
    /// The first row's position in the block.
    within: usize,
    block: &'a mut KvBlock,
    queries: &'a mut [f32],
}

/// Rows of one sequence that are computed together.
struct Group {
    run: usize,
    rows: Range<usize>,
}

/// Rows of one sequence, and a head of keys and values.
struct Attending<'a> {
    group: &'a Group,
    head: usize,
    out: &'a mut [f32],
}

/// As [`Attending`], for some groups of 16 positions.
struct Scoring<'a> {
    group: &'a Group,
    head: usize,
    positions: Range<usize>,
    scores: &'a mut [f32],
}

/// As [`Attending`], for some dimensions of the values. `scores` covers all positions: for each range of
/// positions, for each query.
struct Weighing<'a> {
    group: &'a Group,
    head: usize,
    dims: Range<usize>,
    scores: &'a [f32],
    out: &'a mut [f32],
}

/// The layout of attention's results. The levels, outermost first: groups of rows, heads of keys and values,
/// ranges of dimensions, rows, heads that share those keys.
pub(super) struct Plan<'a> {
    data: &'a [f32],
    /// For each row, the first row of its group and the group's size.
    groups: Vec<(usize, usize)>,
    heads: usize,
    shared: usize,
    head_dim: usize,
    /// Dimensions in a range; the last range may have fewer.
    dims: usize,
}

impl RowSource for Plan<'_> {
    fn copy(&self, row: usize, out: &mut [f32]) {
        let (first, count) = self.groups[row];
        let mut before = first * self.heads * self.head_dim;
        for out in out.chunks_exact_mut(self.shared * self.head_dim) {
            for dims in ranges(self.head_dim, self.dims) {
                let at = before + (row - first) * self.shared * dims.len();
                let numbers = self.data[at..][..self.shared * dims.len()].chunks_exact(dims.len());
                for (head, numbers) in out.chunks_exact_mut(self.head_dim).zip(numbers) {
                    head[dims.clone()].copy_from_slice(numbers);
                }
                before += count * self.shared * dims.len();
            }
        }
    }
}

/// Cuts `0..end` into ranges of `at_once`.
fn ranges(end: usize, at_once: usize) -> impl Iterator<Item = Range<usize>> {
    (0..end).step_by(at_once.max(1)).map(move |start| start..(start + at_once).min(end))
}

impl Step<'_> {
    /// Rotates queries and keys, and stores keys and values in the sequences' blocks.
    pub(super) fn remember(
        &self,
        context: &mut Context<'_>,
        qkv: &[f32],
        queries: &mut Vec<f32>,
        turns: &Turns,
        chunks: &mut [Chunk<'_>],
    ) {
        let width = self.config.query_width();
        let mut queries = room(queries, self.rows * width, 0.0);
        let mut parts = Vec::new();
        for (run, chunk) in self.runs.iter().zip(chunks) {
            for ((rows, within), block) in block_runs(run).zip(chunk.sequence.open_blocks()) {
                let queries = queries.split_off_mut(..rows.len() * width).unwrap_or_default();
                parts.push(Remember { rows, within, block, queries });
            }
        }
        let isa = context.isa;
        context.each(&mut parts, |own, part| {
            let all = room(&mut own.row, self.layer.qkv.width(), 0.0);
            let half = room(&mut own.half, self.config.head_dim, 0);
            for (at, row) in part.rows.clone().enumerate() {
                gather(qkv, self.rows, 2 * LANES, row, all);
                self.remember_row(isa, row, all, half, turns, part, at);
            }
        });
    }

    #[expect(clippy::too_many_arguments, reason = "one caller, right above")]
    fn remember_row(
        &self,
        isa: crate::kernels::Isa,
        row: usize,
        all: &mut [f32],
        half: &mut [u16],
        turns: &Turns,
        part: &mut Remember<'_>,
        at: usize,
    ) {
        let (config, layer) = (self.config, self.layer);
        let head_dim = config.head_dim;
        let rope = if config.is_local(self.number) { &config.local_rope } else { &config.rope };
        let pairs = rope.frequencies.len();
        let (cosines, sines) = (&turns.cosines[row * pairs..][..pairs], &turns.sines[row * pairs..][..pairs]);
        for (start, bias) in layer.qkv.starts.iter().zip(&layer.vectors.qkv_bias) {
            for (value, bias) in all[*start..].iter_mut().zip(bias) {
                *value += bias;
            }
        }
        let [_, key_start, value_start] = [0, layer.qkv.starts[1], layer.qkv.starts[2]];
        let (queries, rest) = all.split_at_mut(key_start);
        let (keys, values) = rest.split_at_mut(value_start - key_start);
        let norms = layer.vectors.head_norms.as_ref();
        let prepare = |head: &mut [f32], norm: Option<&Vec<f32>>, factor| {
            let norm = norm.map(|weight| (weight.as_slice(), config.epsilon));
            isa.run(PrepareHead { head, norm, cosines, sines, pairing: rope.pairing, factor });
        };
        let to = &mut part.queries[at * config.query_width()..][..config.query_width()];
        to.copy_from_slice(&queries[..config.query_width()]);
        for head in to.chunks_exact_mut(head_dim) {
            prepare(head, norms.map(|[query, _]| query), config.query_scale);
        }
        let within = part.within + at;
        for head in 0..config.kv_heads {
            let key = &mut keys[head * head_dim..][..head_dim];
            prepare(key, norms.map(|[_, key]| key), 1.0);
            let (block_keys, block_values) = part.block.parts_mut(self.number, head);
            isa.run(ToHalf { from: key, to: half });
            let group = &mut block_keys[within / LANES * LANES * head_dim..][..LANES * head_dim];
            for (dimension, value) in group.chunks_exact_mut(LANES).zip(&*half) {
                dimension[within % LANES] = *value;
            }
            isa.run(ToHalf { from: &values[head * head_dim..][..head_dim], to: half });
            for (slice, values) in block_values.chunks_mut(SLICE * KV_BLOCK).zip(half.chunks(SLICE)) {
                slice[within * values.len()..][..values.len()].copy_from_slice(values);
            }
        }
    }

    /// Computes attention of all rows, and returns the layout of the results.
    pub(super) fn attend<'a>(
        &self,
        context: &mut Context<'_>,
        queries: &[f32],
        buffers: (&'a mut Vec<f32>, &mut Vec<f32>),
        chunks: &[Chunk<'_>],
    ) -> Plan<'a> {
        let config = self.config;
        let (heads, head_dim) = (config.heads, config.head_dim);
        let shared = heads / config.kv_heads;
        let at_once = (QUERIES / shared).max(1);
        let groups: Vec<Group> = self
            .runs
            .iter()
            .enumerate()
            .flat_map(|(run, of)| {
                let rows = of.rows.clone();
                rows.clone().step_by(at_once).map(move |row| (run, row..(row + at_once).min(rows.end)))
            })
            .map(|(run, rows)| Group { run, rows })
            .collect();
        let mut places = vec![(0, 0); self.rows];
        for Group { rows, .. } in &groups {
            places[rows.clone()].fill((rows.start, rows.len()));
        }
        let (attended, scores) = buffers;
        let out = room(attended, self.rows * config.query_width(), 0.0);
        let attending = Attention { step: self, queries, chunks, shared };
        // With few parts, cut each part again, so that the threads share the work and none reads another's
        // data. This keeps the scores of all rows at once.
        let (parts, wanted) = (groups.len() * config.kv_heads, 4 * context.threads.count());
        let dims = if context.threads.count() > 1 && parts < wanted && self.rows <= DIRECT_ROWS {
            let pieces = wanted.div_ceil(parts);
            attending.pieces(context, &groups, pieces, scores, out)
        } else {
            attending.whole(context, &groups, out);
            head_dim
        };
        Plan { data: attended, groups: places, heads, shared, head_dim, dims }
    }
}

/// Inputs shared by all parts of a layer's attention.
struct Attention<'a> {
    step: &'a Step<'a>,
    queries: &'a [f32],
    chunks: &'a [Chunk<'a>],
    /// Heads that share keys and values.
    shared: usize,
}

impl<'a> Attention<'a> {
    /// The positions of a group's rows.
    fn rows(&self, group: &Group) -> Rows {
        let run = &self.step.runs[group.run];
        Rows {
            position: run.position + group.rows.start - run.rows.start,
            count: group.rows.len(),
            window: self.step.config.window(self.step.number),
        }
    }

    /// The keys and values of a sequence's blocks.
    fn block(&self, group: &Group, head: usize) -> impl Fn(usize) -> (&'a [u16], &'a [u16]) {
        let (blocks, layer) = (self.chunks[group.run].sequence.blocks(), self.step.number);
        move |block| blocks[block].parts(layer, head)
    }

    /// Calls `work` with the queries of a group's rows and the heads that share a head of keys.
    fn with_queries(&self, group: &Group, head: usize, work: impl FnOnce(&[&[f32]])) {
        let (width, head_dim) = (self.step.config.query_width(), self.step.config.head_dim);
        let mut slices = [&[][..]; 2 * QUERIES];
        let mut many = Vec::new();
        let count = group.rows.len() * self.shared;
        let slices = if count <= slices.len() {
            &mut slices[..count]
        } else {
            many.resize(count, &[][..]);
            &mut many[..]
        };
        let of_head = head * self.shared..(head + 1) * self.shared;
        let pairs = group.rows.clone().flat_map(|row| of_head.clone().map(move |head| (row, head)));
        for (slice, (row, head)) in slices.iter_mut().zip(pairs) {
            *slice = &self.queries[row * width + head * head_dim..][..head_dim];
        }
        work(slices);
    }

    /// One part for each group and each head of keys.
    fn whole(&self, context: &mut Context<'_>, groups: &[Group], mut out: &mut [f32]) {
        let config = self.step.config;
        let head_dim = config.head_dim;
        let mut parts = Vec::with_capacity(groups.len() * config.kv_heads);
        // The longest part comes last: threads take parts from the end.
        for group in groups {
            for head in 0..config.kv_heads {
                let length = group.rows.len() * self.shared * head_dim;
                let out = out.split_off_mut(..length).unwrap_or_default();
                parts.push(Attending { group, head, out });
            }
        }
        let isa = context.isa;
        context.each(&mut parts, |own, Attending { group, head, out }| {
            let (rows, block) = (self.rows(group), self.block(group, *head));
            self.with_queries(group, *head, |queries| {
                let scores = room(&mut own.scores, queries.len() * rows.groups().len() * LANES, 0.0);
                isa.run(Attend { rows, queries, head_dim, block, scores, out });
            });
        });
    }

    /// Cuts each group and head of keys into several parts. The scores use ranges of positions, then the
    /// values use ranges of dimensions. Returns the dimensions per range.
    fn pieces(
        &self,
        context: &mut Context<'_>,
        groups: &[Group],
        pieces: usize,
        scores: &mut Vec<f32>,
        mut out: &mut [f32],
    ) -> usize {
        let config = self.step.config;
        let (isa, head_dim) = (context.isa, config.head_dim);
        let count = |group: &Group| group.rows.len() * self.shared;
        let length = |group: &Group| count(group) * self.rows(group).groups().len() * LANES;
        let all: usize = groups.iter().map(|group| config.kv_heads * length(group)).sum();
        let scores = room(scores, all, 0.0);
        let mut rest = &mut *scores;
        let mut parts = Vec::with_capacity(groups.len() * config.kv_heads * pieces);
        for group in groups {
            for head in 0..config.kv_heads {
                let groups = self.rows(group).groups();
                for range in ranges(groups.len(), at_once(groups.len(), pieces)) {
                    let length = count(group) * range.len() * LANES;
                    let positions = groups.start + range.start..groups.start + range.end;
                    let scores = rest.split_off_mut(..length).unwrap_or_default();
                    parts.push(Scoring { group, head, positions, scores });
                }
            }
        }
        context.each(&mut parts, |_, Scoring { group, head, positions, scores }| {
            let block = self.block(group, *head);
            self.with_queries(group, *head, |queries| {
                isa.run(Score { queries, groups: positions.clone(), head_dim, block, scores });
            });
        });
        drop(parts);

        let dims_at_once = head_dim.div_ceil(pieces).next_multiple_of(SLICE);
        let mut parts = Vec::with_capacity(groups.len() * config.kv_heads * pieces);
        let mut rest = &*scores;
        for group in groups {
            for head in 0..config.kv_heads {
                let scores = rest.split_off(..length(group)).unwrap_or_default();
                for dims in ranges(head_dim, dims_at_once) {
                    let out = out.split_off_mut(..count(group) * dims.len()).unwrap_or_default();
                    parts.push(Weighing { group, head, dims, scores, out });
                }
            }
        }
        context.each(&mut parts, |own, Weighing { group, head, dims, scores, out }| {
            let (rows, heads) = (self.rows(group), self.shared);
            let width = rows.groups().len() * LANES;
            let all = room(&mut own.scores, scores.len(), 0.0);
            let mut rest = *scores;
            for range in ranges(rows.groups().len(), at_once(rows.groups().len(), pieces)) {
                let (start, length) = (range.start * LANES, range.len() * LANES);
                let part = rest.split_off(..count(group) * length).unwrap_or_default();
                for (all, part) in all.chunks_exact_mut(width).zip(part.chunks_exact(length)) {
                    all[start..start + length].copy_from_slice(part);
                }
            }
            let block = self.block(group, *head);
            isa.run(Weigh { rows, heads, head_dim, dims: dims.clone(), block, scores: all, out });
        });
        dims_at_once
    }
}

/// How many groups of 16 positions to score together, so that `groups` fall into `pieces`: a multiple of the
/// kernel's four.
fn at_once(groups: usize, pieces: usize) -> usize {
    groups.div_ceil(pieces).next_multiple_of(4)
}

const _: () = assert!(KV_BLOCK.is_multiple_of(LANES));
