//! Products of a step's rows with a matrix, and the layout of the results.
//!
//! A product is stored by panels: all rows' numbers of the first panel, then of the second, and so on.

use std::ops::Range;

use super::{Context, Own, room};
use crate::{
    kernels::{
        LANES,
        dot::{Acts, DIRECT_ROWS, Panel, SpreadBlock},
        rows::BLOCK,
    },
    weights::{Linear, share},
};

/// Minimum number of rows for which spreading a tile out again pays off.
const LEAST_ROWS: usize = 24;

/// A product to compute.
pub(super) struct Product<'a> {
    pub linear: &'a Linear,
    pub rows: usize,
}

/// Some panels for all rows, or one panel for some rows.
struct Part<'a> {
    panels: Range<usize>,
    rows: Range<usize>,
    out: &'a mut [f32],
}

impl Product<'_> {
    /// Computes the product into `out`, which grows if necessary.
    pub(super) fn run(&self, context: &mut Context<'_>, acts: Acts<'_>, out: &mut Vec<f32>) {
        let Self { linear, rows } = *self;
        let out = room(out, rows * linear.width(), 0.0);
        let (isa, width) = (context.isa, linear.epilogue.width());
        let (wants_floats, wants_blocks) = linear.wants();
        let work = |own: &mut Own, part: &mut Part<'_>| {
            let spread = room(&mut own.spread, 2 * linear.columns / BLOCK, SpreadBlock::EMPTY);
            let (from, count) = (part.rows.start, part.rows.len());
            let row_blocks = if wants_blocks { linear.columns / BLOCK } else { 0 };
            let row_floats = if wants_floats { linear.columns } else { 0 };
            let acts = Acts {
                blocks: &acts.blocks[from * row_blocks..(from + count) * row_blocks],
                floats: &acts.floats[from * row_floats..(from + count) * row_floats],
            };
            let (epilogue, direct) = (linear.epilogue, rows <= DIRECT_ROWS);
            for (panel, out) in part.panels.clone().zip(part.out.chunks_exact_mut(count * width)) {
                let tiles = linear.panel(panel);
                Panel { tiles, acts, rows: count, direct, epilogue, out, spread }.run(isa);
            }
        };
        let threads = context.threads.count();
        if rows <= DIRECT_ROWS {
            let (mut parts, starts) = self.shares(threads, out);
            context.each_near(&mut parts, &starts, work);
        } else {
            context.each(&mut self.parts(threads, out), work);
        }
    }

    /// Cuts each thread's own panels into four parts. Returns the parts, and the index of each thread's first
    /// part. With few rows, reading the weights is the bottleneck, so each thread reads its own contiguous
    /// weights.
    fn shares<'o>(&self, threads: usize, out: &'o mut [f32]) -> (Vec<Part<'o>>, Vec<usize>) {
        let (rows, width) = (self.rows, self.linear.epilogue.width());
        let mut out = out;
        let (mut parts, mut starts) = (Vec::with_capacity(4 * threads), Vec::with_capacity(threads));
        for thread in 0..threads {
            starts.push(parts.len());
            let own = share(self.linear.panels(), thread, threads);
            let at_once = own.len().div_ceil(4).max(1);
            for start in own.clone().step_by(at_once) {
                let panels = start..(start + at_once).min(own.end);
                let out = out.split_off_mut(..panels.len() * rows * width).unwrap_or_default();
                parts.push(Part { panels, rows: 0..rows, out });
            }
        }
        (parts, starts)
    }

    /// About 64 parts for each thread, or about four if there are few panels.
    fn parts<'o>(&self, threads: usize, out: &'o mut [f32]) -> Vec<Part<'o>> {
        let (panels, rows, width) = (self.linear.panels(), self.rows, self.linear.epilogue.width());
        let wanted = 4 * threads;
        let at_once = panels.div_ceil(16 * wanted);
        let splits = if threads > 1 && panels < wanted { wanted.div_ceil(panels) } else { 1 };
        let rows_at_once = rows.div_ceil(splits).next_multiple_of(6).max(LEAST_ROWS).min(rows);
        let at_once = if rows_at_once < rows { 1 } else { at_once };
        let mut out = out;
        let mut parts = Vec::with_capacity(panels.div_ceil(at_once) * rows.div_ceil(rows_at_once));
        for start in (0..panels).step_by(at_once) {
            let panels = start..(start + at_once).min(panels);
            for row in (0..rows).step_by(rows_at_once) {
                let rows = row..(row + rows_at_once).min(rows);
                let length = panels.len() * rows.len() * width;
                let out = out.split_off_mut(..length).unwrap_or_default();
                parts.push(Part { panels: panels.clone(), rows, out });
            }
        }
        parts
    }
}

/// Copies a row out of a product with panels of `width` numbers; `width` comes from `Epilogue::width`.
pub(super) fn gather(data: &[f32], rows: usize, width: usize, row: usize, out: &mut [f32]) {
    if width == LANES {
        gather_panels::<LANES>(data, rows, row, out);
    } else {
        gather_panels::<{ 2 * LANES }>(data, rows, row, out);
    }
}

/// With a constant width, the compiler copies a panel's numbers by registers instead of a call.
fn gather_panels<const WIDTH: usize>(data: &[f32], rows: usize, row: usize, out: &mut [f32]) {
    let numbers = |panel: usize| &data[(panel * rows + row) * WIDTH..][..WIDTH];
    let (panels, rest) = out.as_chunks_mut::<WIDTH>();
    let whole = panels.len();
    for (panel, out) in panels.iter_mut().enumerate() {
        out.copy_from_slice(numbers(panel));
    }
    if !rest.is_empty() {
        rest.copy_from_slice(&numbers(whole)[..rest.len()]);
    }
}
