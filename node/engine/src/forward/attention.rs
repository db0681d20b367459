//! A layer's attention: keys and values into the cache, queries against them.

use std::ops::Range;

use super::{Context, Run, Source, Turns, block_runs, product::gather, room};
use crate::{
    config::Config,
    kernels::{
        LANES,
        attention::{Attend, score_width},
        rows::{PrepareHead, ToHalf},
    },
    kv::{KV_BLOCK, KvBlock},
    model::Chunk,
    weights::Layer,
};

/// Queries that are computed together, so that a key is loaded once for all of them.
const QUERIES: usize = 12;

/// Computes cosines and sines of all rows' positions.
pub(super) fn turns(
    context: &mut Context<'_>,
    config: &Config,
    runs: &[Run],
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
    pub runs: &'a [Run],
}

/// Rows whose keys and values go into one block.
struct Remember<'a> {
    rows: Range<usize>,
    /// The first one's place in the block.
    within: usize,
    block: &'a mut KvBlock,
    queries: &'a mut [f32],
}

/// Rows of one sequence and heads that share keys, computed together.
struct Attending<'a> {
    run: usize,
    rows: Range<usize>,
    heads: Range<usize>,
    out: &'a mut [f32],
}

/// Where attention's results are: for each group of rows, for each set of heads, for each of the rows.
pub(super) struct Plan<'a> {
    data: &'a [f32],
    sets: Vec<Range<usize>>,
    /// For each row, the first row of its group and how many it has.
    groups: Vec<(usize, usize)>,
    head_dim: usize,
    query_width: usize,
}

impl Source for Plan<'_> {
    fn copy(&self, row: usize, out: &mut [f32]) {
        let (first, count) = self.groups[row];
        for set in &self.sets {
            let length = set.len() * self.head_dim;
            let at = first * self.query_width + count * set.start * self.head_dim + (row - first) * length;
            out[set.start * self.head_dim..][..length].copy_from_slice(&self.data[at..at + length]);
        }
    }
}

impl Step<'_> {
    /// Turns queries and keys, and puts keys and values into the sequences' blocks.
    pub fn remember(
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
        for (start, bias) in layer.qkv.starts.iter().zip(&layer.qkv_bias) {
            for (value, bias) in all[*start..].iter_mut().zip(bias) {
                *value += bias;
            }
        }
        let [_, key_start, value_start] = [0, layer.qkv.starts[1], layer.qkv.starts[2]];
        let (queries, rest) = all.split_at_mut(key_start);
        let (keys, values) = rest.split_at_mut(value_start - key_start);
        let norms = layer.head_norms.as_ref();
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
            let value = &values[head * head_dim..][..head_dim];
            isa.run(ToHalf { from: value, to: &mut block_values[within * head_dim..][..head_dim] });
        }
    }

    /// Computes attention of all rows, and says where the results are.
    pub fn attend<'a>(
        &self,
        context: &mut Context<'_>,
        queries: &[f32],
        attended: &'a mut Vec<f32>,
        chunks: &[Chunk<'_>],
    ) -> Plan<'a> {
        let config = self.config;
        let (head_dim, width) = (config.head_dim, config.query_width());
        let shared = config.heads / config.kv_heads;
        let at_once = (QUERIES / shared).max(1);
        let groups: Vec<(usize, Range<usize>)> = self
            .runs
            .iter()
            .enumerate()
            .flat_map(|(run, of)| {
                let rows = of.rows.clone();
                rows.clone().step_by(at_once).map(move |row| (run, row..(row + at_once).min(rows.end)))
            })
            .collect();
        // With few parts, heads that share keys are computed apart, so that no thread waits long for another.
        let few = context.threads.count() > 1 && groups.len() * config.kv_heads < 4 * context.threads.count();
        let set = if few { shared.div_ceil(2) } else { shared };
        let sets: Vec<Range<usize>> = (0..config.kv_heads)
            .flat_map(|head| {
                let (start, end) = (head * shared, (head + 1) * shared);
                (start..end).step_by(set).map(move |first| first..(first + set).min(end))
            })
            .collect();
        let mut places = vec![(0, 0); self.rows];
        let attended = room(attended, self.rows * width, 0.0);
        let mut rest = &mut *attended;
        let mut parts = Vec::with_capacity(groups.len() * sets.len());
        for (run, rows) in groups {
            places[rows.clone()].fill((rows.start, rows.len()));
            for heads in &sets {
                let out = rest.split_off_mut(..rows.len() * heads.len() * head_dim).unwrap_or_default();
                parts.push(Attending { run, rows: rows.clone(), heads: heads.clone(), out });
            }
        }
        // The longest last: parts are taken from the end.
        let isa = context.isa;
        let window = config.window(self.number);
        context.each(&mut parts, |own, part| {
            let run = &self.runs[part.run];
            let blocks = chunks[part.run].sequence.blocks();
            let position = run.position + part.rows.start - run.rows.start;
            let mut slices = [&[][..]; 2 * QUERIES];
            let mut many = Vec::new();
            let count = part.rows.len() * part.heads.len();
            let slices = if count <= slices.len() {
                &mut slices[..count]
            } else {
                many.resize(count, &[][..]);
                &mut many[..]
            };
            let pairs = part.rows.clone().flat_map(|row| part.heads.clone().map(move |head| (row, head)));
            for (slice, (row, head)) in slices.iter_mut().zip(pairs) {
                *slice = &queries[row * width + head * head_dim..][..head_dim];
            }
            let head = part.heads.start / shared;
            let scores = score_width(position, part.rows.len(), window) * count;
            isa.run(Attend {
                queries: slices,
                heads: part.heads.len(),
                position,
                window,
                head_dim,
                block: |block: usize| blocks[block].parts(self.number, head),
                scores: room(&mut own.scores, scores, 0.0),
                out: part.out,
            });
        });
        Plan { data: attended, sets, groups: places, head_dim, query_width: width }
    }
}

const _: () = assert!(KV_BLOCK.is_multiple_of(LANES));
