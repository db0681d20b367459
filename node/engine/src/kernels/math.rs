//! Elementary functions: fixed polynomials in a fixed order, never the platform's library.

#![expect(clippy::inline_always, reason = "a kernel's parts must end up in its one function")]

use super::{LANES, Simd};

/// Sums 16 lanes: lane `l` and `l + 8`, then 4, 2 and 1 apart.
#[inline(always)]
#[must_use]
pub fn sum_lanes(mut lanes: [f32; LANES]) -> f32 {
    for apart in [8, 4, 2, 1] {
        for lane in 0..apart {
            lanes[lane] += lanes[lane + apart];
        }
    }
    lanes[0]
}

/// The largest of 16 lanes.
#[inline(always)]
#[must_use]
pub fn max_lanes(mut lanes: [f32; LANES]) -> f32 {
    for apart in [8, 4, 2, 1] {
        for lane in 0..apart {
            lanes[lane] = if lanes[lane] > lanes[lane + apart] { lanes[lane] } else { lanes[lane + apart] };
        }
    }
    lanes[0]
}

/// A vector's lanes in an array.
#[inline(always)]
pub fn lanes<S: Simd>(s: S, value: S::F) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    s.store(value, &mut lanes);
    lanes
}

/// `e^x`, within 2 units in the last place: 0 below -87 and for NaN, `e^88` above 88.
///
/// `n` is `x log2(e)` to the nearest integer; `r = x - n ln 2` takes two fused steps. `e^r` is a polynomial
/// of degree 7 by Horner's rule with Cephes' coefficients, and `2^n` an exponent.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    const LEAST: f32 = -87.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const COEFFICIENTS: [f32; 6] =
        [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1];
    let one = s.splat(1.0);
    let small = s.min(x, s.splat(88.0));
    let n = s.round(s.mul(small, s.splat(std::f32::consts::LOG2_E)));
    let n_float = s.to_float(n);
    let r = s.fma(n_float, s.splat(-LN2_HIGH), small);
    let r = s.fma(n_float, s.splat(-LN2_LOW), r);
    let mut polynomial = s.splat(COEFFICIENTS[0]);
    for coefficient in &COEFFICIENTS[1..] {
        polynomial = s.fma(polynomial, r, s.splat(*coefficient));
    }
    let value = s.add(s.fma(polynomial, s.mul(r, r), r), one);
    s.where_at_least(s.mul(value, s.pow2(n)), x, LEAST)
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub fn silu<S: Simd>(s: S, x: S::F) -> S::F {
    let e = exp(s, s.sub(s.splat(0.0), x));
    s.div(x, s.add(s.splat(1.0), e))
}

/// The tanh form of GELU, `x (1 + tanh z) / 2 = x / (1 + e^-2z)` with `z = sqrt(2/pi) (x + 0.044715 x^3)`.
#[inline(always)]
pub fn gelu<S: Simd>(s: S, x: S::F) -> S::F {
    const MINUS_TWO_ROOT: f32 = -1.595_769;
    let cube = s.mul(s.mul(x, x), s.splat(0.044_715));
    let z = s.fma(cube, x, x);
    let e = exp(s, s.mul(z, s.splat(MINUS_TWO_ROOT)));
    s.div(x, s.add(s.splat(1.0), e))
}
