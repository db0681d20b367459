//! The portable implementation, which defines each operation.

#![expect(clippy::inline_always, reason = "a kernel's parts must end up in its one function")]

use super::{Kernel, LANES, Simd};
use crate::half::{bf16_to_f32, f16_to_f32, f32_to_f16};

/// An array of `$count` values by a loop: without closures, which the compiler may leave as calls.
macro_rules! each {
    ($zero:expr; $count:expr, $lane:ident => $value:expr) => {{
        let mut out = [$zero; $count];
        for ($lane, out) in out.iter_mut().enumerate() {
            *out = $value;
        }
        out
    }};
}

/// Arithmetic on arrays, with `f32::mul_add` as the fused multiply-add.
#[derive(Debug, Clone, Copy)]
pub struct Scalar;

impl Simd for Scalar {
    const MANY_REGISTERS: bool = false;

    type F = [f32; LANES];
    type I = [i32; LANES];
    type B = [u8; 64];

    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        [value; LANES]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        *from
    }

    #[inline(always)]
    fn store(self, value: Self::F, to: &mut [f32; LANES]) {
        *to = value;
    }

    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> Self::F {
        each!(0.0; LANES, lane => f16_to_f32(from[lane]))
    }

    #[inline(always)]
    fn load_bytes(self, from: &[u8; 64]) -> Self::F {
        let words = from.as_chunks().0;
        each!(0.0; LANES, lane => f32::from_le_bytes(words[lane]))
    }

    #[inline(always)]
    fn load_f16_bytes(self, from: &[u8; 32]) -> Self::F {
        let words = from.as_chunks().0;
        each!(0.0; LANES, lane => f16_to_f32(u16::from_le_bytes(words[lane])))
    }

    #[inline(always)]
    fn load_bf16_bytes(self, from: &[u8; 32]) -> Self::F {
        let words = from.as_chunks().0;
        each!(0.0; LANES, lane => bf16_to_f32(u16::from_le_bytes(words[lane])))
    }

    #[inline(always)]
    fn store_f16(self, value: Self::F, to: &mut [u16; LANES]) {
        *to = each!(0; LANES, lane => f32_to_f16(value[lane]));
    }

    #[inline(always)]
    fn load_u8(self, from: &[u8; LANES]) -> Self::F {
        each!(0.0; LANES, lane => f32::from(from[lane]))
    }

    #[inline(always)]
    fn load_i8(self, from: &[u8; LANES]) -> Self::F {
        each!(0.0; LANES, lane => f32::from(from[lane].cast_signed()))
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        each!(0.0; LANES, lane => a[lane] + b[lane])
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        each!(0.0; LANES, lane => a[lane] - b[lane])
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        each!(0.0; LANES, lane => a[lane] * b[lane])
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        each!(0.0; LANES, lane => a[lane] / b[lane])
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        each!(0.0; LANES, lane => if a[lane] > b[lane] { a[lane] } else { b[lane] })
    }

    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        each!(0.0; LANES, lane => if a[lane] < b[lane] { a[lane] } else { b[lane] })
    }

    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        each!(0.0; LANES, lane => a[lane].abs())
    }

    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        each!(0.0; LANES, lane => a[lane].mul_add(b[lane], c[lane]))
    }

    #[inline(always)]
    fn keep(self, value: Self::F, from: usize, to: usize, other: f32) -> Self::F {
        each!(0.0; LANES, lane => if (from..to).contains(&lane) { value[lane] } else { other })
    }

    #[inline(always)]
    fn where_at_least(self, value: Self::F, test: Self::F, least: f32) -> Self::F {
        each!(0.0; LANES, lane => if test[lane] >= least { value[lane] } else { 0.0 })
    }

    #[inline(always)]
    fn round(self, value: Self::F) -> Self::I {
        each!(0; LANES, lane => round(value[lane]))
    }

    #[inline(always)]
    fn to_float(self, value: Self::I) -> Self::F {
        each!(0.0; LANES, lane => value[lane] as f32)
    }

    #[inline(always)]
    fn pow2(self, value: Self::I) -> Self::F {
        each!(0.0; LANES, lane => f32::from_bits(value[lane].wrapping_add(127).cast_unsigned() << 23))
    }

    #[inline(always)]
    fn splat_i(self, value: i32) -> Self::I {
        [value; LANES]
    }

    #[inline(always)]
    fn shift(self, value: Self::I, by: i32) -> Self::I {
        each!(0; LANES, lane => value[lane] << by)
    }

    #[inline(always)]
    fn sum_i(self, value: Self::I) -> i32 {
        value.iter().fold(0, |sum, value| sum.wrapping_add(*value))
    }

    #[inline(always)]
    fn pack(self, low: Self::I, high: Self::I) -> [i32; 8] {
        let all = [low, high];
        each!(0; 8, word => {
            let lane = 4 * word % LANES;
            let of = &all[word / 4];
            i32::from_le_bytes([byte(of[lane]), byte(of[lane + 1]), byte(of[lane + 2]), byte(of[lane + 3])])
        })
    }

    #[inline(always)]
    fn prefetch<T>(self, _: &[T], _: usize) {}

    #[inline(always)]
    fn load_b(self, from: &[u8; 64]) -> Self::B {
        *from
    }

    #[inline(always)]
    fn store_b(self, value: Self::B, to: &mut [u8; 64]) {
        *to = value;
    }

    #[inline(always)]
    fn and(self, value: Self::B, mask: u8) -> Self::B {
        each!(0; 64, at => value[at] & mask)
    }

    #[inline(always)]
    fn or(self, a: Self::B, b: Self::B) -> Self::B {
        each!(0; 64, at => a[at] | b[at])
    }

    #[inline(always)]
    fn shr(self, value: Self::B, by: i32) -> Self::B {
        let mut out = [0; 64];
        for (to, from) in out.as_chunks_mut::<2>().0.iter_mut().zip(value.as_chunks::<2>().0) {
            *to = (u16::from_le_bytes(*from) >> by).to_le_bytes();
        }
        out
    }

    #[inline(always)]
    fn shl(self, value: Self::B, by: i32) -> Self::B {
        let mut out = [0; 64];
        for (to, from) in out.as_chunks_mut::<2>().0.iter_mut().zip(value.as_chunks::<2>().0) {
            *to = (u16::from_le_bytes(*from) << by).to_le_bytes();
        }
        out
    }

    #[inline(always)]
    fn dot(self, sum: Self::I, w: Self::B, x: i32) -> Self::I {
        let x = signed(x);
        each!(0; LANES, lane => {
            let mut sum = sum[lane];
            for at in 0..4 {
                sum += i32::from(w[4 * lane + at]) * x[at];
            }
            sum
        })
    }

    #[inline(always)]
    fn wide_start(self, _: i32) -> Self::I {
        [0; LANES]
    }

    #[inline(always)]
    fn dot_wide(self, sum: Self::I, w: Self::B, x: i32) -> Self::I {
        let x = signed(x);
        each!(0; LANES, lane => {
            let mut sum = sum[lane];
            for at in 0..4 {
                sum += (i32::from(w[4 * lane + at]) - 128) * x[at];
            }
            sum
        })
    }
}

/// To the nearest integer; `i32::MIN` if out of range.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "it has just been checked")]
fn round(value: f32) -> i32 {
    const LIMIT: f32 = 2_147_483_648.0;
    let rounded = value.round_ties_even();
    if (-LIMIT..LIMIT).contains(&rounded) { rounded as i32 } else { i32::MIN }
}

/// The nearest signed byte, as bits.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "clamped")]
fn byte(value: i32) -> u8 {
    (value.clamp(-128, 127) as i8).cast_unsigned()
}

/// A word's signed bytes.
#[inline(always)]
fn signed(word: i32) -> [i32; 4] {
    let bytes = word.to_le_bytes();
    each!(0; 4, at => i32::from(bytes[at].cast_signed()))
}
