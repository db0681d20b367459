//! Attention of some rows to the positions before them, over keys and values in blocks.
//!
//! For one row and one head with visible positions `from..=position`, these steps define the result, whatever
//! else is computed with it:
//!
//! 1. A score is the sum over the head's dimensions in order by fused multiply-add, from 0.
//! 2. Subtract the largest score and apply `exp`. An invisible position counts 0.
//! 3. Lane `l` sums the weights of positions `16 i + l` in order; [`sum_lanes`] adds the lanes.
//! 4. Each dimension of the result sums weight times value over the positions in order by fused multiply-add,
//!    from 0. The factor (1 divided by the weights' sum) follows.

#![expect(clippy::inline_always, reason = "a kernel's parts must end up in its one function")]

use std::ops::Range;

use super::{
    Kernel, LANES, Simd,
    math::{exp, lanes, max_lanes, sum_lanes},
};

/// Positions in a block of the cache.
pub const KV_BLOCK: usize = 32;

/// Dimensions of values stored together, position after position: one cache line.
pub const SLICE: usize = 32;

/// Maximum number of queries for which keys and values are prefetched.
const FEW: usize = 4;

/// Rows of one step that are computed together, at consecutive positions.
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    /// The first row's position.
    pub position: usize,
    /// Number of rows.
    pub count: usize,
    /// How many positions a row sees, its own included.
    pub window: usize,
}

impl Rows {
    /// The groups of 16 positions that the rows see.
    #[must_use]
    pub fn groups(&self) -> Range<usize> {
        (self.position + 1).saturating_sub(self.window) / LANES..(self.position + self.count).div_ceil(LANES)
    }
}

/// Computes the scores of rows and heads that share keys.
pub struct Score<'a, B> {
    /// The queries, rotated and scaled: a slice of `head_dim` for each row and each of its heads, rows
    /// outermost.
    pub queries: &'a [&'a [f32]],
    /// The groups of 16 positions to score.
    pub groups: Range<usize>,
    /// Dimensions of a head: a multiple of 16.
    pub head_dim: usize,
    /// A block's keys and values for this layer and these heads. Keys: for each 16 positions, 16 numbers of
    /// dimension 0, 16 of dimension 1, and so on. Values: for each [`SLICE`] dimensions (the last slice may
    /// be smaller), the numbers of each position.
    pub block: B,
    /// For each query, 16 scores for each group.
    pub scores: &'a mut [f32],
}

/// Computes the results from all scores of rows and heads that share values.
pub struct Weigh<'a, B> {
    /// The rows.
    pub rows: Rows,
    /// Heads of each row.
    pub heads: usize,
    /// Dimensions of a head: a multiple of 16.
    pub head_dim: usize,
    /// The dimensions to compute: from a multiple of [`SLICE`] to a multiple or the end.
    pub dims: Range<usize>,
    /// See [`Score::block`].
    pub block: B,
    /// For each row and each of its heads, 16 scores for each of [`Rows::groups`].
    pub scores: &'a mut [f32],
    /// The results: `dims` for each row and each of its heads.
    pub out: &'a mut [f32],
}

/// [`Score`], then [`Weigh`].
pub struct Attend<'a, B> {
    /// The rows.
    pub rows: Rows,
    /// See [`Score::queries`].
    pub queries: &'a [&'a [f32]],
    /// Dimensions of a head: a multiple of 16.
    pub head_dim: usize,
    /// See [`Score::block`].
    pub block: B,
    /// Room for the scores: 16 for each query and each of [`Rows::groups`].
    pub scores: &'a mut [f32],
    /// The results: `head_dim` for each query, one after the other.
    pub out: &'a mut [f32],
}

impl<'k, B: Fn(usize) -> (&'k [u16], &'k [u16])> Kernel for Attend<'_, B> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { rows, queries, head_dim, block, scores, out } = self;
        Score { queries, groups: rows.groups(), head_dim, block: &block, scores: &mut *scores }.run(s);
        let heads = queries.len() / rows.count;
        Weigh { rows, heads, head_dim, dims: 0..head_dim, block, scores, out }.run(s);
    }
}

impl<'k, B: Fn(usize) -> (&'k [u16], &'k [u16])> Kernel for Score<'_, B> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { queries, groups: Range { start: first, end }, head_dim, block, scores } = self;
        let width = (end - first) * LANES;
        let keys = |group: usize| {
            let (keys, _) = block(group * LANES / KV_BLOCK);
            let at = group % (KV_BLOCK / LANES) * LANES * head_dim;
            keys[at..at + LANES * head_dim].as_chunks::<LANES>().0
        };
        let mut query = 0;
        while query < queries.len() {
            let (queries, scores) = (&queries[query..], &mut scores[query * width..]);
            query += match queries.len() {
                12.. if S::MANY_REGISTERS => score_groups::<S, 12, 2>(s, queries, &keys, first, end, scores),
                6.. if S::MANY_REGISTERS => score_groups::<S, 6, 4>(s, queries, &keys, first, end, scores),
                4.. if S::MANY_REGISTERS => score_groups::<S, 4, 4>(s, queries, &keys, first, end, scores),
                3.. if S::MANY_REGISTERS => score_groups::<S, 3, 4>(s, queries, &keys, first, end, scores),
                2.. => score_groups::<S, 2, 2>(s, queries, &keys, first, end, scores),
                _ => score_groups::<S, 1, 4>(s, queries, &keys, first, end, scores),
            };
        }
    }
}

impl<'k, B: Fn(usize) -> (&'k [u16], &'k [u16])> Kernel for Weigh<'_, B> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { rows: Rows { position, count, window }, heads, head_dim, dims, block, scores, out } = self;
        let groups = self.rows.groups();
        let (first, width) = (groups.start * LANES, groups.len() * LANES);
        let queries = count * heads;
        for (query, (scores, out)) in
            scores.chunks_exact_mut(width).zip(out.chunks_exact_mut(dims.len())).take(queries).enumerate()
        {
            let position = position + query / heads;
            let visible = (position + 1).saturating_sub(window)..position + 1;
            // For the next pass: the first number of the result temporarily holds the result's factor.
            out[0] = 1.0 / softmax(s, scores, visible.start - first, visible.end - first);
        }
        let values = |at: usize| block(at).1;
        let of =
            Values { from: (position + 1).saturating_sub(window), to: position + count, first, head_dim };
        let mut query = 0;
        while query < queries {
            let (scores, out) = (&scores[query * width..], &mut out[query * dims.len()..]);
            query += match queries - query {
                6.. if S::MANY_REGISTERS => weigh::<S, 6>(s, scores, width, &values, of, &dims, out),
                4.. if S::MANY_REGISTERS => weigh::<S, 4>(s, scores, width, &values, of, &dims, out),
                3.. if S::MANY_REGISTERS => weigh::<S, 3>(s, scores, width, &values, of, &dims, out),
                2.. => weigh::<S, 2>(s, scores, width, &values, of, &dims, out),
                _ => weigh::<S, 1>(s, scores, width, &values, of, &dims, out),
            };
        }
    }
}

/// The scores of `R` queries, `N` groups of 16 positions at a time.
#[inline(always)]
fn score_groups<'k, S: Simd, const R: usize, const N: usize>(
    s: S,
    queries: &[&[f32]],
    keys: &impl Fn(usize) -> &'k [[u16; LANES]],
    first: usize,
    end: usize,
    scores: &mut [f32],
) -> usize {
    let width = (end - first) * LANES;
    let queries: &[&[f32]; R] = queries.first_chunk().expect("as many queries as were counted");
    let mut group = first;
    while group < end {
        let at = (group - first) * LANES;
        if end - group >= N {
            let mut next = [keys(group); N];
            for (at, keys_at) in next.iter_mut().enumerate().skip(1) {
                *keys_at = keys(group + at);
            }
            // With few queries, memory is the bottleneck: prefetch the next keys.
            let mut later = next;
            if R <= FEW {
                for (at, keys_at) in later.iter_mut().enumerate() {
                    *keys_at = keys((group + N + at).min(end - 1));
                }
            }
            let results = score::<S, R, N>(s, queries, next, later);
            for query in 0..R {
                let scores = scores[query * width + at..].as_chunks_mut::<LANES>().0;
                for next in 0..N {
                    s.store(results[query][next], &mut scores[next]);
                }
            }
            group += N;
        } else {
            let results = score::<S, R, 1>(s, queries, [keys(group)], [keys(group)]);
            for query in 0..R {
                let scores = scores[query * width + at..].first_chunk_mut().expect("room for each group");
                s.store(results[query][0], scores);
            }
            group += 1;
        }
    }
    R
}

#[inline(always)]
fn score<S: Simd, const R: usize, const N: usize>(
    s: S,
    queries: &[&[f32]; R],
    keys: [&[[u16; LANES]]; N],
    later: [&[[u16; LANES]]; N],
) -> [[S::F; N]; R] {
    let dims = keys[0].len();
    let (mut queries, mut groups) = (*queries, keys);
    for query in &mut queries {
        *query = &query[..dims];
    }
    for group in &mut groups {
        *group = &group[..dims];
    }
    let mut results = [[s.splat(0.0); N]; R];
    for dim in 0..dims {
        let mut keys = [s.splat(0.0); N];
        for group in 0..N {
            keys[group] = s.load_f16(&groups[group][dim]);
            if R <= FEW && dim % 2 == 0 {
                s.prefetch(later[group], dim * 2 * LANES);
            }
        }
        for row in 0..R {
            let query = s.splat(queries[row][dim]);
            for group in 0..N {
                results[row][group] = s.fma(keys[group], query, results[row][group]);
            }
        }
    }
    results
}

/// Turns scores into weights, and returns their sum. Positions outside `from..to` get weight 0.
#[inline(always)]
fn softmax<S: Simd>(s: S, scores: &mut [f32], from: usize, to: usize) -> f32 {
    let vectors = scores.as_chunks_mut::<LANES>().0;
    let mut largest = s.splat(f32::NEG_INFINITY);
    for (index, vector) in vectors.iter_mut().enumerate() {
        let start = index * LANES;
        let mut value = s.load(vector);
        if start < from || start + LANES > to {
            value = s.keep(value, from.saturating_sub(start), to.saturating_sub(start), f32::NEG_INFINITY);
            s.store(value, vector);
        }
        largest = s.max(value, largest);
    }
    let largest = s.splat(max_lanes(lanes(s, largest)));
    let mut sum = s.splat(0.0);
    for vector in vectors {
        let weight = exp(s, s.sub(s.load(vector), largest));
        s.store(weight, vector);
        sum = s.add(sum, weight);
    }
    sum_lanes(lanes(s, sum))
}

/// The values to weigh.
#[derive(Clone, Copy)]
struct Values {
    /// The first position.
    from: usize,
    /// The position after the last.
    to: usize,
    /// The position of the first score.
    first: usize,
    head_dim: usize,
}

/// Weighs the values for `R` queries. The first number of each result is its factor.
#[inline(always)]
fn weigh<'k, S: Simd, const R: usize>(
    s: S,
    scores: &[f32],
    width: usize,
    values: &impl Fn(usize) -> &'k [u16],
    of: Values,
    dims: &Range<usize>,
    out: &mut [f32],
) -> usize {
    let (mut weights, mut factors) = ([&scores[..width]; R], [0.0; R]);
    for query in 0..R {
        weights[query] = &scores[query * width..][..width];
        factors[query] = out[query * dims.len()];
    }
    let mut dim = dims.start;
    while dim < dims.end {
        let (left, out) = (dims.end - dim, &mut out[dim - dims.start..]);
        dim += if S::MANY_REGISTERS && left >= 2 * SLICE {
            weigh_dims::<S, R, 4>(s, weights, factors, values, of, dim, dims.len(), out)
        } else if S::MANY_REGISTERS && left >= SLICE {
            weigh_dims::<S, R, 2>(s, weights, factors, values, of, dim, dims.len(), out)
        } else {
            weigh_dims::<S, R, 1>(s, weights, factors, values, of, dim, dims.len(), out)
        };
    }
    R
}

/// Weighs `N` vectors from dimension `dim` on; the queries' results are `stride` numbers apart.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "one caller, right above")]
fn weigh_dims<'k, S: Simd, const R: usize, const N: usize>(
    s: S,
    weights: [&[f32]; R],
    factors: [f32; R],
    values: &impl Fn(usize) -> &'k [u16],
    Values { from, to, first, head_dim }: Values,
    dim: usize,
    stride: usize,
    out: &mut [f32],
) -> usize {
    let slice = dim / SLICE * SLICE;
    let mut results = [[s.splat(0.0); N]; R];
    let mut position = from;
    while position < to {
        let end = to.min((position / KV_BLOCK + 1) * KV_BLOCK);
        let block = &values(position / KV_BLOCK)[slice * KV_BLOCK..];
        let later = &values((position / KV_BLOCK + 1).min((to - 1) / KV_BLOCK))[slice * KV_BLOCK..];
        let mut of = weights;
        for query in 0..R {
            of[query] = &weights[query][position - first..end - first];
        }
        let within = position % KV_BLOCK..(end - 1) % KV_BLOCK + 1;
        if N == 1 {
            // A part of a slice; the last slice may be half as wide.
            let wide = SLICE.min(head_dim - slice) / LANES;
            let vectors = block.as_chunks::<LANES>().0;
            for (at, row) in within.enumerate() {
                let vector = row * wide + (dim - slice) / LANES;
                if R <= FEW {
                    s.prefetch(later, 2 * LANES * vector);
                }
                weigh_position(s, &mut results, of, at, [s.load_f16(&vectors[vector]); N]);
            }
        } else {
            // One or two slices.
            let slice = |block: &'k [u16]| &block[..SLICE * KV_BLOCK].as_chunks::<SLICE>().0[within.clone()];
            let low = slice(block);
            let high = if N > 2 { slice(&block[SLICE * KV_BLOCK..]) } else { low };
            for (at, (low, high)) in low.iter().zip(high).enumerate() {
                if R <= FEW {
                    for from in 0..N / 2 {
                        s.prefetch(later, 2 * SLICE * (from * KV_BLOCK + within.start + at));
                    }
                }
                let mut loaded = [s.splat(0.0); N];
                for (vectors, values) in loaded.chunks_mut(2).zip([low, high]) {
                    for (vector, values) in vectors.iter_mut().zip(values.as_chunks::<LANES>().0) {
                        *vector = s.load_f16(values);
                    }
                }
                weigh_position(s, &mut results, of, at, loaded);
            }
        }
        position = end;
    }
    for query in 0..R {
        let factor = s.splat(factors[query]);
        let out = out[query * stride..][..N * LANES].as_chunks_mut::<LANES>().0;
        for at in 0..N {
            s.store(s.mul(results[query][at], factor), &mut out[at]);
        }
    }
    N * LANES
}

/// Adds one position's values, each times the position's weight for each query.
#[inline(always)]
fn weigh_position<S: Simd, const R: usize, const N: usize>(
    s: S,
    results: &mut [[S::F; N]; R],
    weights: [&[f32]; R],
    at: usize,
    values: [S::F; N],
) {
    for query in 0..R {
        let weight = s.splat(weights[query][at]);
        for vector in 0..N {
            results[query][vector] = s.fma(values[vector], weight, results[query][vector]);
        }
    }
}
