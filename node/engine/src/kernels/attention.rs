//! Attention of some rows to the positions before them, over keys and values in blocks.
//!
//! For one row and one head, with positions `from..=position` visible, whatever else is computed beside it: a score is
//! the sum over the head's dimensions in order by fused multiply-add, from 0. The largest score is taken off, `exp`
//! follows, and a position that is not visible counts 0. Lane `l` sums the weights of positions `16 i + l` in order,
//! the lanes are summed as by [`sum_lanes`]. Each dimension of the result is the sum over the positions in order of
//! weight times value by fused multiply-add, from 0, times (1 divided by the weights' sum).

#![expect(clippy::inline_always, reason = "a kernel's parts must end up in its one function")]

use super::{
    Kernel, LANES, Simd,
    math::{exp, lanes, max_lanes, sum_lanes},
};

/// Positions in a block of the cache.
pub const KV_BLOCK: usize = 32;

/// Queries up to which keys and values are asked for ahead.
const FEW: usize = 4;

/// The rows of one step that are computed together. Their heads share keys and values, their positions follow one
/// another.
pub struct Attend<'a, B> {
    /// The queries, rotated and scaled: one slice of `head_dim` for each row and each of its heads, rows outermost.
    pub queries: &'a [&'a [f32]],
    /// Heads that share the keys and values.
    pub heads: usize,
    /// The first row's position.
    pub position: usize,
    /// How many positions a row sees, itself included.
    pub window: usize,
    /// Dimensions of a head: a multiple of 16.
    pub head_dim: usize,
    /// A block's keys and values for this layer and these heads. Keys: for each 16 positions, 16 numbers of dimension
    /// 0, 16 of dimension 1, and so on. Values: for each position, all dimensions.
    pub block: B,
    /// Room for the scores: `queries x` [`score_width`].
    pub scores: &'a mut [f32],
    /// The results: `head_dim` for each query, one after the other.
    pub out: &'a mut [f32],
}

/// The first group of 16 positions that is looked at, and the one after the last.
fn groups(position: usize, rows: usize, window: usize) -> (usize, usize) {
    ((position + 1).saturating_sub(window) / LANES, (position + rows).div_ceil(LANES))
}

/// How many scores each query needs room for.
#[must_use]
pub fn score_width(position: usize, rows: usize, window: usize) -> usize {
    let (first, end) = groups(position, rows, window);
    (end - first) * LANES
}

impl<'k, B: Fn(usize) -> (&'k [u16], &'k [u16])> Kernel for Attend<'_, B> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { queries, heads, position, window, head_dim, block, scores, out } = self;
        let (first, end) = groups(position, queries.len() / heads, window);
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
        for (query, (scores, out)) in
            scores.chunks_exact_mut(width).zip(out.chunks_exact_mut(head_dim)).take(queries.len()).enumerate()
        {
            let position = position + query / heads;
            let visible = (position + 1).saturating_sub(window)..position + 1;
            // For the next pass: the first number of the result is what the result is multiplied with.
            out[0] = 1.0 / softmax(s, scores, visible.start - first * LANES, visible.end - first * LANES);
        }
        let values = |at: usize| block(at).1;
        let from = (position + 1).saturating_sub(window);
        let to = position + queries.len() / heads;
        let mut query = 0;
        while query < queries.len() {
            let (scores, out) = (&scores[query * width..], &mut out[query * head_dim..]);
            let range = (from, to, first * LANES);
            query += match queries.len() - query {
                6.. if S::MANY_REGISTERS => weigh::<S, 6>(s, scores, width, &values, range, head_dim, out),
                4.. if S::MANY_REGISTERS => weigh::<S, 4>(s, scores, width, &values, range, head_dim, out),
                3.. if S::MANY_REGISTERS => weigh::<S, 3>(s, scores, width, &values, range, head_dim, out),
                2.. => weigh::<S, 2>(s, scores, width, &values, range, head_dim, out),
                _ => weigh::<S, 1>(s, scores, width, &values, range, head_dim, out),
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
            // With few queries, memory is what takes time: what comes next is asked for in good time.
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

/// Turns scores into weights, and returns their sum. Those outside `from..to` become 0.
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

/// Weighs the values for `R` queries. `range` is the first position, the one after the last, and the position of the
/// first score. The first number of each result is its factor.
#[inline(always)]
fn weigh<'k, S: Simd, const R: usize>(
    s: S,
    scores: &[f32],
    width: usize,
    values: &impl Fn(usize) -> &'k [u16],
    range: (usize, usize, usize),
    head_dim: usize,
    out: &mut [f32],
) -> usize {
    let (mut of, mut factors) = ([&scores[..width]; R], [0.0; R]);
    for query in 0..R {
        of[query] = &scores[query * width..][..width];
        factors[query] = out[query * head_dim];
    }
    let mut dim = 0;
    while dim < head_dim {
        dim += if S::MANY_REGISTERS && head_dim - dim >= 4 * LANES {
            weigh_dims::<S, R, 4>(s, of, factors, values, range, dim, head_dim, out)
        } else if S::MANY_REGISTERS && head_dim - dim >= 2 * LANES {
            weigh_dims::<S, R, 2>(s, of, factors, values, range, dim, head_dim, out)
        } else {
            weigh_dims::<S, R, 1>(s, of, factors, values, range, dim, head_dim, out)
        };
    }
    R
}

#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "one caller, right above")]
fn weigh_dims<'k, S: Simd, const R: usize, const N: usize>(
    s: S,
    scores: [&[f32]; R],
    factors: [f32; R],
    values: &impl Fn(usize) -> &'k [u16],
    (from, to, start): (usize, usize, usize),
    dim: usize,
    head_dim: usize,
    out: &mut [f32],
) -> usize {
    let mut results = [[s.splat(0.0); N]; R];
    let mut position = from;
    while position < to {
        let end = to.min((position / KV_BLOCK + 1) * KV_BLOCK);
        let block = &values(position / KV_BLOCK)[position % KV_BLOCK * head_dim..];
        let later = values((position / KV_BLOCK + 1).min((to - 1) / KV_BLOCK));
        for (position, values) in (position..end).zip(block.chunks_exact(head_dim)) {
            let values = values[dim..][..N * LANES].as_chunks::<LANES>().0;
            if R <= FEW {
                for line in 0..N.div_ceil(2) {
                    s.prefetch(later, 2 * (position % KV_BLOCK * head_dim + dim + 2 * LANES * line));
                }
            }
            let mut loaded = [s.splat(0.0); N];
            for at in 0..N {
                loaded[at] = s.load_f16(&values[at]);
            }
            for query in 0..R {
                let weight = s.splat(scores[query][position - start]);
                for at in 0..N {
                    results[query][at] = s.fma(loaded[at], weight, results[query][at]);
                }
            }
        }
        position = end;
    }
    for query in 0..R {
        let factor = s.splat(factors[query]);
        let out = out[query * head_dim + dim..][..N * LANES].as_chunks_mut::<LANES>().0;
        for at in 0..N {
            s.store(s.mul(results[query][at], factor), &mut out[at]);
        }
    }
    N * LANES
}
