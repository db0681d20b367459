//! Operations on one row of numbers: norms, quantisation of activations, additions, rotations.

#![expect(clippy::inline_always, reason = "a kernel's parts must end up in its one function")]

use super::{
    Kernel, LANES, Simd,
    math::{lanes, max_lanes, sum_lanes},
};
pub use crate::lanes::BLOCK;

/// 32 activations as signed bytes.
///
/// `scale` is the largest magnitude divided by 127. Each byte is the number times (127 divided by the largest
/// magnitude), to the nearest integer, ties to even. A block with nothing above 2^-100 is all zero.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[repr(C, align(16))]
pub struct ActBlock {
    /// The bytes, four to a word, the first the lowest.
    pub q: [i32; 8],
    /// The value of one unit of a byte.
    pub scale: f32,
    /// The sum of the bytes, as a float, times the scale.
    pub sum: f32,
    /// The negated sums of the first and of the last 16 bytes.
    pub minus: [i32; 2],
}

#[inline(always)]
fn vectors(row: &[f32]) -> &[[f32; LANES]] {
    row.as_chunks().0
}

/// `1 / sqrt(mean of squares + epsilon)`. Lane `l` sums the squares of elements `16 i + l` in order by fused
/// multiply-add. [`sum_lanes`] adds the lanes; then come division by the count, addition, root and division.
#[inline(always)]
pub fn rms_scale<S: Simd>(s: S, row: &[f32], epsilon: f32) -> f32 {
    let mut squares = s.splat(0.0);
    for vector in vectors(row) {
        let vector = s.load(vector);
        squares = s.fma(vector, vector, squares);
    }
    let mean = sum_lanes(lanes(s, squares)) / row.len() as f32;
    1.0 / (mean + epsilon).sqrt()
}

/// RMS norm in place: each number times the row's scale, then times its weight.
#[inline(always)]
pub fn norm_in_place<S: Simd>(s: S, row: &mut [f32], weight: &[f32], epsilon: f32) {
    let scale = s.splat(rms_scale(s, row, epsilon));
    for (vector, weight) in row.as_chunks_mut::<LANES>().0.iter_mut().zip(vectors(weight)) {
        let value = s.mul(s.mul(s.load(vector), scale), s.load(weight));
        s.store(value, vector);
    }
}

/// Quantises a row whose length is a multiple of 32.
#[inline(always)]
pub fn quantise<S: Simd>(s: S, row: &[f32], blocks: &mut [ActBlock]) {
    const NOTHING: f32 = 7.888_609e-31;
    for (from, to) in row.as_chunks::<BLOCK>().0.iter().zip(blocks) {
        let (low, high) =
            (s.load(from.first_chunk().expect("16 of 32")), s.load(from.last_chunk().expect("16 of 32")));
        let largest = max_lanes(lanes(s, s.max(s.abs(low), s.abs(high))));
        let (scale, inverse) =
            if largest > NOTHING { (largest / 127.0, 127.0 / largest) } else { (0.0, 0.0) };
        let inverse = s.splat(inverse);
        let (low, high) = (s.round(s.mul(low, inverse)), s.round(s.mul(high, inverse)));
        let (low_sum, high_sum) = (s.sum_i(low), s.sum_i(high));
        *to = ActBlock {
            q: s.pack(low, high),
            scale,
            sum: low_sum.wrapping_add(high_sum) as f32 * scale,
            minus: [low_sum.wrapping_neg(), high_sum.wrapping_neg()],
        };
    }
}

/// RMS norm and quantisation of each row of `rows`. Without `norm`, quantisation alone.
pub struct NormQuantise<'a> {
    /// Rows of `width` numbers.
    pub rows: &'a [f32],
    /// Numbers in a row: a multiple of 32.
    pub width: usize,
    /// The norm's weights and epsilon.
    pub norm: Option<(&'a [f32], f32)>,
    /// Room for one row's normed numbers.
    pub scratch: &'a mut [f32],
    /// Output bytes: `width / 32` blocks for each row. May be empty.
    pub blocks: &'a mut [ActBlock],
    /// Output numbers: `width` for each row. May be empty.
    pub floats: &'a mut [f32],
}

impl Kernel for NormQuantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { rows, width, norm, scratch, blocks, floats } = self;
        let mut blocks = blocks.chunks_exact_mut(width / BLOCK);
        let mut floats = floats.chunks_exact_mut(width);
        for row in rows.chunks_exact(width) {
            let row = match norm {
                None => row,
                Some((weight, epsilon)) => {
                    let scratch = &mut scratch[..width];
                    scratch.copy_from_slice(row);
                    norm_in_place(s, scratch, weight, epsilon);
                    scratch
                }
            };
            if let Some(blocks) = blocks.next() {
                quantise(s, row, blocks);
            }
            if let Some(floats) = floats.next() {
                floats.copy_from_slice(row);
            }
        }
    }
}

/// Adds `other` to `row`, after an RMS norm of `other` if there is one.
pub struct AddNormed<'a> {
    /// The row, updated in place.
    pub row: &'a mut [f32],
    /// The numbers to add, of the same length.
    pub other: &'a mut [f32],
    /// The norm's weights and epsilon.
    pub norm: Option<(&'a [f32], f32)>,
}

impl Kernel for AddNormed<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if let Some((weight, epsilon)) = self.norm {
            norm_in_place(s, self.other, weight, epsilon);
        }
        for (vector, other) in self.row.as_chunks_mut::<LANES>().0.iter_mut().zip(vectors(self.other)) {
            s.store(s.add(s.load(vector), s.load(other)), vector);
        }
    }
}

/// The pairing of a head's dimensions for rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// Dimension `2 i` with `2 i + 1`.
    Neighbours,
    /// Dimension `i` with `i + half`.
    Halves,
}

/// Prepares one head of a query or a key: RMS norm if the model has one, rotation, and a factor.
pub struct PrepareHead<'a> {
    /// The head's dimensions: a multiple of 16.
    pub head: &'a mut [f32],
    /// The norm's weights and epsilon.
    pub norm: Option<(&'a [f32], f32)>,
    /// Cosines of the position's angles: one for each rotated pair of dimensions.
    pub cosines: &'a [f32],
    /// Sines.
    pub sines: &'a [f32],
    /// The pairing of dimensions.
    pub pairing: Pairing,
    /// Final factor for all dimensions.
    pub factor: f32,
}

impl Kernel for PrepareHead<'_> {
    type Output = ();

    /// A pair `(a, b)` becomes `(fma(a, cos, -(b sin)), fma(a, sin, b cos))`.
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if let Some((weight, epsilon)) = self.norm {
            norm_in_place(s, self.head, weight, epsilon);
        }
        let half = self.cosines.len();
        match self.pairing {
            Pairing::Neighbours => {
                let turns = self.cosines.iter().zip(self.sines);
                for (pair, (cosine, sine)) in self.head.as_chunks_mut::<2>().0.iter_mut().zip(turns) {
                    let [a, b] = *pair;
                    *pair = [turn_first(a, b, *cosine, *sine), turn_second(a, b, *cosine, *sine)];
                }
            }
            Pairing::Halves => {
                let (first, second) = self.head.split_at_mut(half);
                let turns = self.cosines.iter().zip(self.sines);
                for ((a, b), (cosine, sine)) in first.iter_mut().zip(second).zip(turns) {
                    (*a, *b) = (turn_first(*a, *b, *cosine, *sine), turn_second(*a, *b, *cosine, *sine));
                }
            }
        }
        for value in self.head {
            *value *= self.factor;
        }
    }
}

#[inline(always)]
fn turn_first(a: f32, b: f32, cosine: f32, sine: f32) -> f32 {
    a.mul_add(cosine, -(b * sine))
}

#[inline(always)]
fn turn_second(a: f32, b: f32, cosine: f32, sine: f32) -> f32 {
    a.mul_add(sine, b * cosine)
}

/// Rounds numbers to half precision.
pub struct ToHalf<'a> {
    /// The input numbers: a multiple of 16.
    pub from: &'a [f32],
    /// The output.
    pub to: &'a mut [u16],
}

impl Kernel for ToHalf<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (from, to) in vectors(self.from).iter().zip(self.to.as_chunks_mut::<LANES>().0) {
            s.store_f16(s.load(from), to);
        }
    }
}
