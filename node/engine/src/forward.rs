//! The forward pass: a step's rows through the layers.
//!
//! A step has a row for each of its tokens. Each phase is cut into parts that write to separate places, and
//! the threads compute the parts. The next phase begins when all are done. The cut depends on the rows and
//! the threads; the computation of a row never does.

mod attention;
mod product;

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use product::{Product, gather};
use zeroize::Zeroize;

use crate::{
    config::Config,
    kernels::{
        Isa,
        attention::KV_BLOCK,
        dot::{Acts, SpreadBlock},
        rows::{ActBlock, AddNormed, BLOCK, NormQuantise},
    },
    model::{Chunk, Logits, Model},
    threads::Threads,
    weights::{Linear, Weights},
};

/// Up to this many rows, a row-by-row phase stays in one part.
const ALONE: usize = 4;

/// Rows whose logits are computed together.
const HEAD_ROWS: usize = 64;

/// Buffers of a step, reused by the next step, and overwritten at the end.
#[derive(Default)]
pub(crate) struct Scratch {
    /// The residual stream: `hidden` numbers for each row.
    stream: Vec<f32>,
    /// Activations as bytes, and as numbers for floating-point weights.
    blocks: Vec<ActBlock>,
    floats: Vec<f32>,
    /// Products, by panels: queries, keys and values; the increment of the stream; the feed-forward layer's
    /// middle.
    qkv: Vec<f32>,
    added: Vec<f32>,
    middle: Vec<f32>,
    /// Rotated queries, `query_width` for each row.
    queries: Vec<f32>,
    /// Attention's results, by parts.
    attended: Vec<f32>,
    /// Attention's scores, by parts, where other parts continue with them.
    scores: Vec<f32>,
    /// Cosines and sines for each row: for layers that see all positions, and for the others.
    turns: [Turns; 2],
    /// Each thread's own buffers.
    own: Vec<Mutex<Own>>,
}

#[derive(Default)]
struct Turns {
    cosines: Vec<f32>,
    sines: Vec<f32>,
}

/// A thread's own buffers.
#[derive(Default)]
pub(crate) struct Own {
    row: Vec<f32>,
    normed: Vec<f32>,
    half: Vec<u16>,
    scores: Vec<f32>,
    spread: Vec<SpreadBlock>,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Scratch {
    /// Overwrites the remains of a conversation.
    fn clear(&mut self) {
        for buffer in [
            &mut self.stream,
            &mut self.floats,
            &mut self.qkv,
            &mut self.added,
            &mut self.middle,
            &mut self.queries,
            &mut self.attended,
            &mut self.scores,
        ] {
            buffer.zeroize();
        }
        self.blocks.fill(ActBlock::default());
        std::hint::black_box(&self.blocks);
    }
}

/// A buffer of at least `length` numbers, with arbitrary contents.
pub(crate) fn room<T: Clone>(buffer: &mut Vec<T>, length: usize, fill: T) -> &mut [T] {
    if buffer.len() < length {
        buffer.resize(length, fill);
    }
    &mut buffer[..length]
}

/// Rows of one sequence in a step.
pub(crate) struct RowRun {
    /// The run's rows within the step.
    pub rows: Range<usize>,
    /// The first row's position.
    pub position: usize,
}

/// State shared by the phases.
pub(crate) struct Context<'a> {
    pub isa: Isa,
    pub threads: &'a mut Threads,
    pub own: &'a [Mutex<Own>],
}

impl Context<'_> {
    /// Runs `work` on each part.
    pub(crate) fn each<P: Send>(&mut self, parts: &mut [P], work: impl Fn(&mut Own, &mut P) + Sync) {
        let own = self.own;
        self.threads.each(parts, |thread, part| {
            let mut own = own[thread].lock().unwrap_or_else(PoisonError::into_inner);
            work(&mut own, part);
        });
    }

    /// Runs `work` on each part; each thread begins with its own parts: see [`Threads::each_near`].
    pub(crate) fn each_near<P: Send>(
        &mut self,
        parts: &mut [P],
        starts: &[usize],
        work: impl Fn(&mut Own, &mut P) + Sync,
    ) {
        let own = self.own;
        self.threads.each_near(parts, starts, |thread, part| {
            let mut own = own[thread].lock().unwrap_or_else(PoisonError::into_inner);
            work(&mut own, part);
        });
    }

    /// Rows in one part of a row-by-row phase.
    pub(crate) fn rows_at_once(&self, rows: usize) -> usize {
        if rows <= ALONE { rows.max(1) } else { rows.div_ceil(4 * self.threads.count()).max(2) }
    }
}

/// Buffers for a product's activations.
struct ActBuffers<'a> {
    blocks: &'a mut Vec<ActBlock>,
    floats: &'a mut Vec<f32>,
}

/// A part of a row-by-row phase.
struct RowPart<'a> {
    rows: Range<usize>,
    stream: &'a mut [f32],
    blocks: &'a mut [ActBlock],
    floats: &'a mut [f32],
}

/// The source of a row's numbers.
trait RowSource: Sync {
    /// Copies a row.
    fn copy(&self, row: usize, out: &mut [f32]);
}

/// Rows in panels.
struct Panels<'a> {
    data: &'a [f32],
    rows: usize,
    width: usize,
}

impl RowSource for Panels<'_> {
    fn copy(&self, row: usize, out: &mut [f32]) {
        gather(self.data, self.rows, self.width, row, out);
    }
}

/// Attention's results, of all rows or of some.
struct AttentionRows<'a> {
    plan: &'a attention::Plan<'a>,
    rows: Option<&'a [usize]>,
}

impl RowSource for AttentionRows<'_> {
    fn copy(&self, row: usize, out: &mut [f32]) {
        self.plan.copy(self.rows.map_or(row, |rows| rows[row]), out);
    }
}

/// Cuts rows into parts, each with its section of `stream` (if given) and of the activations for `linear`.
fn row_parts<'a>(
    context: &Context<'_>,
    rows: usize,
    stream: Option<(&'a mut [f32], usize)>,
    acts: Option<(ActBuffers<'a>, &Linear)>,
) -> Vec<RowPart<'a>> {
    let at_once = context.rows_at_once(rows);
    let (stream, hidden) = stream.unwrap_or((&mut [], 0));
    let (mut blocks, mut floats): (&mut [ActBlock], &mut [f32]) = (&mut [], &mut []);
    let (mut row_blocks, mut row_floats) = (0, 0);
    if let Some((buffers, linear)) = acts {
        let (wants_floats, wants_blocks) = linear.wants();
        if wants_blocks {
            row_blocks = linear.columns / BLOCK;
            blocks = room(buffers.blocks, rows * row_blocks, ActBlock::default());
        }
        if wants_floats {
            row_floats = linear.columns;
            floats = room(buffers.floats, rows * row_floats, 0.0);
        }
    }
    let mut stream = stream;
    let mut parts = Vec::with_capacity(rows.div_ceil(at_once));
    for start in (0..rows).step_by(at_once) {
        let count = at_once.min(rows - start);
        parts.push(RowPart {
            rows: start..start + count,
            stream: stream.split_off_mut(..count * hidden).unwrap_or_default(),
            blocks: blocks.split_off_mut(..count * row_blocks).unwrap_or_default(),
            floats: floats.split_off_mut(..count * row_floats).unwrap_or_default(),
        });
    }
    parts
}

/// Adds `added` to the stream, after its norm if it has one. Then computes the next norm and the next
/// product's activations.
fn add_and_norm(
    context: &mut Context<'_>,
    rows: usize,
    stream: (&mut [f32], usize),
    added: Option<(&[f32], Option<&[f32]>)>,
    next: Option<(ActBuffers<'_>, &Linear, &[f32])>,
    epsilon: f32,
) {
    let (isa, hidden) = (context.isa, stream.1);
    let (acts, weight) = match next {
        Some((buffers, linear, weight)) => (Some((buffers, linear)), Some(weight)),
        None => (None, None),
    };
    let mut parts = row_parts(context, rows, Some(stream), acts);
    context.each(&mut parts, |own, part| {
        if let Some((data, norm)) = added {
            let other = room(&mut own.row, hidden, 0.0);
            for (row, stream) in part.rows.clone().zip(part.stream.chunks_exact_mut(hidden)) {
                gather(data, rows, 2 * crate::kernels::LANES, row, other);
                isa.run(AddNormed { row: stream, other, norm: norm.map(|weight| (weight, epsilon)) });
            }
        }
        if let Some(weight) = weight {
            isa.run(NormQuantise {
                rows: part.stream,
                width: hidden,
                norm: Some((weight, epsilon)),
                scratch: room(&mut own.normed, hidden, 0.0),
                blocks: part.blocks,
                floats: part.floats,
            });
        }
    });
}

/// Computes the activations of rows from `source`.
fn quantise_rows(
    context: &mut Context<'_>,
    rows: usize,
    source: &dyn RowSource,
    buffers: ActBuffers<'_>,
    linear: &Linear,
) {
    let (isa, width) = (context.isa, linear.columns);
    let mut parts = row_parts(context, rows, None, Some((buffers, linear)));
    context.each(&mut parts, |own, part| {
        let values = room(&mut own.row, width, 0.0);
        let (row_blocks, row_floats) =
            (part.blocks.len() / part.rows.len(), part.floats.len() / part.rows.len());
        for (at, row) in part.rows.clone().enumerate() {
            source.copy(row, values);
            isa.run(NormQuantise {
                rows: values,
                width,
                norm: None,
                scratch: &mut [],
                blocks: &mut part.blocks[at * row_blocks..][..row_blocks],
                floats: &mut part.floats[at * row_floats..][..row_floats],
            });
        }
    });
}

/// The rows of each chunk in a step.
fn row_runs(chunks: &[Chunk<'_>]) -> Vec<RowRun> {
    let mut rows = 0;
    let run = |chunk: &Chunk<'_>| {
        let begin = rows;
        rows += chunk.tokens.len();
        RowRun { rows: begin..rows, position: chunk.sequence.len() }
    };
    chunks.iter().map(run).collect()
}

/// The rows of a step whose logits are wanted.
fn wanted_rows(runs: &[RowRun], chunks: &[Chunk<'_>]) -> Vec<usize> {
    let wanted = |(run, chunk): (&RowRun, &Chunk<'_>)| {
        let begin = run.rows.start;
        chunk.rows().map(move |row| begin + row)
    };
    runs.iter().zip(chunks).flat_map(wanted).collect()
}

/// Writes the embeddings of the tokens, a row for each.
fn embed(context: &mut Context<'_>, weights: &Weights, config: &Config, tokens: &[u32], stream: &mut [f32]) {
    let mut parts = row_parts(context, tokens.len(), Some((stream, config.hidden)), None);
    context.each(&mut parts, |_, part| {
        for (row, stream) in part.rows.clone().zip(part.stream.chunks_exact_mut(config.hidden)) {
            weights.embed(tokens[row] as usize, stream);
            stream.iter_mut().for_each(|value| *value *= config.embedding_scale);
        }
    });
}

impl Model {
    /// Computes all layers for a step that was checked and has room in its sequences.
    pub(crate) fn forward(&mut self, chunks: &mut [Chunk<'_>]) -> Logits {
        let Self { config, weights, threads, isa, scratch, .. } = self;
        let runs = row_runs(chunks);
        let rows = runs.last().map_or(0, |run| run.rows.end);
        if scratch.own.len() < threads.count() {
            scratch.own.resize_with(threads.count(), Mutex::default);
        }
        let own = std::mem::take(&mut scratch.own);
        let mut context = Context { isa: *isa, threads, own: &own };
        let hidden = config.hidden;

        room(&mut scratch.stream, rows * hidden, 0.0);
        let tokens: Vec<u32> = chunks.iter().flat_map(|chunk| chunk.tokens).copied().collect();
        embed(&mut context, weights, config, &tokens, &mut scratch.stream[..rows * hidden]);
        attention::turns(&mut context, config, &runs, rows, &mut scratch.turns);

        let wanted = wanted_rows(&runs, chunks);
        for (number, layer) in weights.layers.iter().enumerate() {
            let Scratch {
                stream, blocks, floats, qkv, added, middle, queries, attended, scores, turns, ..
            } = &mut *scratch;
            if number == 0 {
                let next =
                    (ActBuffers { blocks, floats }, &layer.qkv, layer.vectors.attention_norm.as_slice());
                let stream = (&mut stream[..rows * hidden], hidden);
                add_and_norm(&mut context, rows, stream, None, Some(next), config.epsilon);
            }
            let product = |linear, rows| Product { linear, rows };
            product(&layer.qkv, rows).run(&mut context, Acts { blocks, floats }, qkv);
            let step = attention::Step { config, layer, number, rows, runs: &runs };
            let turns = &turns[usize::from(config.is_local(number))];
            step.remember(&mut context, qkv, queries, turns, chunks);
            let all = number + 1 < weights.layers.len();
            if !all && wanted.is_empty() {
                break;
            }
            let plan = step.attend(&mut context, queries, (attended, scores), chunks);
            // In the last layer, only the wanted rows go on: nothing reads the others any more.
            let (source, rows) = if all {
                (AttentionRows { plan: &plan, rows: None }, rows)
            } else {
                for (to, from) in wanted.iter().enumerate() {
                    stream.copy_within(from * hidden..(from + 1) * hidden, to * hidden);
                }
                (AttentionRows { plan: &plan, rows: Some(&wanted) }, wanted.len())
            };
            let stream = &mut stream[..rows * hidden];
            quantise_rows(&mut context, rows, &source, ActBuffers { blocks, floats }, &layer.output);
            product(&layer.output, rows).run(&mut context, Acts { blocks, floats }, added);
            let next =
                (ActBuffers { blocks, floats }, &layer.gate_up, layer.vectors.feed_forward_norm.as_slice());
            let add = (added.as_slice(), layer.vectors.post_attention_norm.as_deref());
            add_and_norm(&mut context, rows, (stream, hidden), Some(add), Some(next), config.epsilon);
            product(&layer.gate_up, rows).run(&mut context, Acts { blocks, floats }, middle);
            let panels = Panels { data: middle, rows, width: layer.gate_up.epilogue.width() };
            quantise_rows(&mut context, rows, &panels, ActBuffers { blocks, floats }, &layer.down);
            product(&layer.down, rows).run(&mut context, Acts { blocks, floats }, added);
            let next = weights.layers.get(number + 1).map(|next| {
                (ActBuffers { blocks, floats }, &next.qkv, next.vectors.attention_norm.as_slice())
            });
            let add = (added.as_slice(), layer.vectors.post_feed_forward_norm.as_deref());
            add_and_norm(&mut context, rows, (stream, hidden), Some(add), next, config.epsilon);
        }

        let logits = head(&mut context, weights, config, scratch, wanted.len());
        scratch.own = own;
        logits
    }
}

/// The logits of the stream's first `rows` rows.
fn head(
    context: &mut Context<'_>,
    weights: &Weights,
    config: &Config,
    scratch: &mut Scratch,
    rows: usize,
) -> Logits {
    let (hidden, vocabulary) = (config.hidden, weights.vocabulary);
    let Scratch { stream, blocks, floats, added, .. } = scratch;
    let mut product = |context: &mut Context<'_>, stream: &mut [f32], rows, out: &mut Vec<f32>| {
        let next = (ActBuffers { blocks, floats }, &weights.head, weights.output_norm.as_slice());
        add_and_norm(context, rows, (stream, hidden), None, Some(next), config.epsilon);
        Product { linear: &weights.head, rows }.run(context, Acts { blocks, floats }, out);
    };
    if rows == 1 {
        // With one row, the product has the layout of the logits already.
        let mut numbers = vec![0.0; weights.head.width()];
        product(context, &mut stream[..hidden], 1, &mut numbers);
        numbers.truncate(vocabulary);
        return Logits { vocabulary, numbers };
    }
    let mut logits = Logits { vocabulary, numbers: vec![0.0; rows * vocabulary] };
    let streams = stream[..rows * hidden].chunks_mut(HEAD_ROWS * hidden);
    for (stream, numbers) in streams.zip(logits.numbers.chunks_mut(HEAD_ROWS * vocabulary)) {
        let rows = stream.len() / hidden;
        product(context, stream, rows, added);
        let mut parts: Vec<_> = numbers.chunks_exact_mut(vocabulary).enumerate().collect();
        context.each(&mut parts, |_, (row, numbers)| {
            gather(added, rows, 2 * crate::kernels::LANES, *row, numbers);
        });
    }
    logits
}

/// Splits a run's rows by block: the rows, and the first row's position in the block.
pub(crate) fn block_runs(run: &RowRun) -> impl Iterator<Item = (Range<usize>, usize)> {
    let (mut row, end, mut position) = (run.rows.start, run.rows.end, run.position);
    std::iter::from_fn(move || {
        if row == end {
            return None;
        }
        let within = position % KV_BLOCK;
        let count = (KV_BLOCK - within).min(end - row);
        let rows = row..row + count;
        row += count;
        position += count;
        Some((rows, within))
    })
}
