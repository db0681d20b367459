//! Each encoding's conversion of tiles to operands and scales.

#![expect(clippy::inline_always, reason = "a kernel's parts must end up in its one function")]

use super::super::{LANES, Simd, rows::ActBlock};

/// The integer arithmetic of a block: the start of its sums, and their further use.
pub(super) trait BlockArithmetic {
    /// Parts of a block with a scale each: one, or two of 16 inputs.
    const PARTS: usize = 1;
    /// Whether there is a minimum.
    const MINIMUM: bool = false;

    /// The initial sum, which cancels the weights' offset.
    fn start<S: Simd>(s: S, act: &ActBlock, part: usize) -> S::I;

    #[inline(always)]
    fn dot<S: Simd>(s: S, sum: S::I, weights: S::B, x: i32) -> S::I {
        s.dot(sum, weights, x)
    }
}

/// Unsigned integers, a scale and a minimum.
pub(super) struct WithMinimum;

impl BlockArithmetic for WithMinimum {
    const MINIMUM: bool = true;

    #[inline(always)]
    fn start<S: Simd>(s: S, _: &ActBlock, _: usize) -> S::I {
        s.splat_i(0)
    }
}

/// Unsigned integers with an offset of `2^SHIFT` to subtract, and a scale.
pub(super) struct Symmetric<const SHIFT: i32>;

impl<const SHIFT: i32> BlockArithmetic for Symmetric<SHIFT> {
    #[inline(always)]
    fn start<S: Simd>(s: S, act: &ActBlock, _: usize) -> S::I {
        s.shift(s.splat_i(act.minus[0].wrapping_add(act.minus[1])), SHIFT)
    }
}

/// Bytes with an offset of 128 to subtract, and a scale.
pub(super) struct Wide;

impl BlockArithmetic for Wide {
    #[inline(always)]
    fn start<S: Simd>(s: S, act: &ActBlock, _: usize) -> S::I {
        s.wide_start(act.minus[0].wrapping_add(act.minus[1]))
    }

    #[inline(always)]
    fn dot<S: Simd>(s: S, sum: S::I, weights: S::B, x: i32) -> S::I {
        s.dot_wide(sum, weights, x)
    }
}

/// Unsigned integers with an offset of 32 to subtract, and a scale for each 16 inputs.
pub(super) struct TwoScales;

impl BlockArithmetic for TwoScales {
    const PARTS: usize = 2;

    #[inline(always)]
    fn start<S: Simd>(s: S, act: &ActBlock, part: usize) -> S::I {
        s.shift(s.splat_i(act.minus[part]), 5)
    }
}

/// An encoding's tiles.
pub(super) trait Format {
    type Arithmetic: BlockArithmetic;
    /// Bytes of a block's integers.
    const QUANT_BYTES: usize;
    /// Bytes of a group's scales.
    const SCALE_BYTES: usize;
    /// Blocks in a group.
    const GROUP: usize = 1;

    /// A block's integers as bytes.
    fn operands<S: Simd>(s: S, quants: &[u8]) -> [S::B; 8];

    /// A block's scale and its minimum, or both of its scales, or its scale twice.
    fn scales<S: Simd>(s: S, group: &[u8], block: usize) -> (S::F, S::F);
}

#[inline(always)]
fn line(quants: &[u8], line: usize) -> &[u8; 64] {
    quants[64 * line..].first_chunk().expect("a block has this line")
}

#[inline(always)]
fn half_lanes<S: Simd>(s: S, bytes: &[u8]) -> S::F {
    s.load_f16_bytes(bytes.first_chunk().expect("16 numbers"))
}

#[inline(always)]
fn bytes_at(group: &[u8], at: usize) -> &[u8; LANES] {
    group[at..].first_chunk().expect("a group has these factors")
}

#[inline(always)]
fn four_bits<S: Simd>(s: S, quants: &[u8]) -> [S::B; 8] {
    let (a, b) = (s.load_b(line(quants, 0)), s.load_b(line(quants, 1)));
    let (c, d) = (s.load_b(line(quants, 2)), s.load_b(line(quants, 3)));
    [
        s.and(a, 15),
        s.and(s.shr(a, 4), 15),
        s.and(b, 15),
        s.and(s.shr(b, 4), 15),
        s.and(c, 15),
        s.and(s.shr(c, 4), 15),
        s.and(d, 15),
        s.and(s.shr(d, 4), 15),
    ]
}

#[inline(always)]
fn five_bits<S: Simd>(s: S, quants: &[u8]) -> [S::B; 8] {
    let (low, high) = (four_bits(s, quants), s.load_b(line(quants, 4)));
    [
        s.or(low[0], s.and(s.shl(high, 4), 16)),
        s.or(low[1], s.and(s.shl(high, 3), 16)),
        s.or(low[2], s.and(s.shl(high, 2), 16)),
        s.or(low[3], s.and(s.shl(high, 1), 16)),
        s.or(low[4], s.and(high, 16)),
        s.or(low[5], s.and(s.shr(high, 1), 16)),
        s.or(low[6], s.and(s.shr(high, 2), 16)),
        s.or(low[7], s.and(s.shr(high, 3), 16)),
    ]
}

#[inline(always)]
fn six_bits<S: Simd>(s: S, quants: &[u8]) -> [S::B; 8] {
    let low = four_bits(s, quants);
    let (first, second) = (s.load_b(line(quants, 4)), s.load_b(line(quants, 5)));
    [
        s.or(low[0], s.and(s.shl(first, 4), 48)),
        s.or(low[1], s.and(s.shl(first, 2), 48)),
        s.or(low[2], s.and(first, 48)),
        s.or(low[3], s.and(s.shr(first, 2), 48)),
        s.or(low[4], s.and(s.shl(second, 4), 48)),
        s.or(low[5], s.and(s.shl(second, 2), 48)),
        s.or(low[6], s.and(second, 48)),
        s.or(low[7], s.and(s.shr(second, 2), 48)),
    ]
}

#[inline(always)]
fn one_scale<S: Simd>(s: S, group: &[u8]) -> (S::F, S::F) {
    let scale = half_lanes(s, group);
    (scale, scale)
}

#[inline(always)]
fn scale_and_minimum<S: Simd>(s: S, group: &[u8]) -> (S::F, S::F) {
    (half_lanes(s, group), half_lanes(s, &group[32..]))
}

#[inline(always)]
fn scaled_factors<S: Simd>(s: S, group: &[u8], block: usize) -> (S::F, S::F) {
    let (scale, minimum) = scale_and_minimum(s, group);
    let at = 64 + 32 * block;
    let (scales, minima) = (s.load_u8(bytes_at(group, at)), s.load_u8(bytes_at(group, at + LANES)));
    (s.mul(scale, scales), s.mul(minimum, minima))
}

macro_rules! format {
    ($name:ident, $arithmetic:ty, $quants:literal, $scales:literal, $group:literal, $operands:ident, $read:expr) => {
        pub(super) struct $name;

        impl Format for $name {
            type Arithmetic = $arithmetic;
            const QUANT_BYTES: usize = $quants;
            const SCALE_BYTES: usize = $scales;
            const GROUP: usize = $group;

            #[inline(always)]
            fn operands<S: Simd>(s: S, quants: &[u8]) -> [S::B; 8] {
                $operands(s, quants)
            }

            #[inline(always)]
            fn scales<S: Simd>(s: S, group: &[u8], block: usize) -> (S::F, S::F) {
                $read(s, group, block)
            }
        }
    };
}

format!(Q4_0, Symmetric<3>, 256, 32, 1, four_bits, |s, group, _| one_scale::<S>(s, group));
format!(Q4_1, WithMinimum, 256, 64, 1, four_bits, |s, group, _| scale_and_minimum::<S>(s, group));
format!(Q5_0, Symmetric<4>, 320, 32, 1, five_bits, |s, group, _| one_scale::<S>(s, group));
format!(Q5_1, WithMinimum, 320, 64, 1, five_bits, |s, group, _| scale_and_minimum::<S>(s, group));
format!(Q4K, WithMinimum, 256, 320, 8, four_bits, scaled_factors);
format!(Q5K, WithMinimum, 320, 320, 8, five_bits, scaled_factors);
format!(Q8_0, Wide, 512, 32, 1, eight_bits, |s, group, _| one_scale::<S>(s, group));
format!(Q6K, TwoScales, 384, 288, 8, six_bits, two_scales);

#[inline(always)]
fn eight_bits<S: Simd>(s: S, quants: &[u8]) -> [S::B; 8] {
    let mut operands = [s.load_b(line(quants, 0)); 8];
    for (at, operand) in operands.iter_mut().enumerate().skip(1) {
        *operand = s.load_b(line(quants, at));
    }
    operands
}

#[inline(always)]
fn two_scales<S: Simd>(s: S, group: &[u8], block: usize) -> (S::F, S::F) {
    let scale = half_lanes(s, group);
    let at = 32 + 32 * block;
    let (first, second) = (s.load_i8(bytes_at(group, at)), s.load_i8(bytes_at(group, at + LANES)));
    (s.mul(scale, first), s.mul(scale, second))
}

/// Floating-point weights.
pub(super) trait Float {
    /// Bytes of a number.
    const BYTES: usize;

    /// 16 weights.
    fn load<S: Simd>(s: S, bytes: &[u8]) -> S::F;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Bf16;

impl Float for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    fn load<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        s.load_bytes(bytes.first_chunk().expect("16 weights"))
    }
}

impl Float for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    fn load<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        half_lanes(s, bytes)
    }
}

impl Float for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    fn load<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        s.load_bf16_bytes(bytes.first_chunk().expect("16 weights"))
    }
}
