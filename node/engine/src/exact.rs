//! Double-precision functions for values computed once per model or position.
//!
//! They use additions, multiplications and divisions alone, so that every platform gets the same bits. They
//! are accurate to some 1e-15; their callers round to single precision.

/// `e^x` for x of at most 700 in magnitude: `n` is `x / ln 2` to the nearest integer, then a Taylor series.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "at most 1,010")]
pub fn exp(x: f64) -> f64 {
    let x = x.clamp(-700.0, 700.0);
    let n = (x * std::f64::consts::LOG2_E).round_ties_even();
    let r = x - n * LN2_HIGH - n * LN2_LOW;
    let mut sum = 1.0;
    for term in (1..=16).rev() {
        sum = 1.0 + sum * r / f64::from(term);
    }
    sum * f64::from_bits(((n as i64 + 1023) as u64) << 52)
}

const LN2_HIGH: f64 = 6.931_471_803_691_238e-1;
const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;

/// The natural logarithm of a positive normal number: `x = m 2^e` with m between sqrt(1/2) and sqrt(2), and
/// `ln m = 2 (z + z^3/3 + z^5/5 + ..)` with `z = (m - 1) / (m + 1)`.
#[must_use]
#[expect(clippy::cast_possible_wrap, reason = "an exponent of 11 bits")]
pub fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i64 - 1023;
    let mut mantissa = f64::from_bits(bits & 0x000f_ffff_ffff_ffff | 0x3ff0_0000_0000_0000);
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let mut sum = 0.0;
    for term in (0..=12).rev() {
        sum = sum * z * z + 1.0 / f64::from(2 * term + 1);
    }
    let exponent = exponent as f64;
    exponent * LN2_HIGH + (exponent * LN2_LOW + 2.0 * z * sum)
}

/// `x^y` for positive normal x.
#[must_use]
pub fn pow(x: f64, y: f64) -> f64 {
    exp(y * ln(x))
}

/// Sine and cosine of an angle of at most 2^27 in magnitude. Three steps subtract the nearest multiple of
/// pi/2; Taylor series follow.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "at most 2^27")]
pub fn sin_cos(x: f64) -> (f64, f64) {
    // pi/2 in pieces of 25 bits or fewer, so that a multiple of the first two is exact.
    const FIRST: f64 = 1.570_796_310_901_641_8;
    const SECOND: f64 = 1.589_325_471_229_585_7e-8;
    const THIRD: f64 = 6.123_233_995_736_766e-17;
    let n = (x * std::f64::consts::FRAC_2_PI).round_ties_even();
    let r = x - n * FIRST - n * SECOND - n * THIRD;
    let square = r * r;
    let (mut sine, mut cosine) = (1.0, 1.0);
    for term in (1..=9).rev() {
        let (odd, even) = (f64::from(2 * term * (2 * term + 1)), f64::from(2 * term * (2 * term - 1)));
        sine = 1.0 - sine * square / odd;
        cosine = 1.0 - cosine * square / even;
    }
    let sine = sine * r;
    match n as i64 & 3 {
        0 => (sine, cosine),
        1 => (cosine, -sine),
        2 => (-sine, -cosine),
        _ => (-cosine, sine),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_agree_with_the_platform() {
        for step in -4000..4000 {
            let x = f64::from(step) * 0.173;
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-13, "exp {x}: {} {}", exp(x), x.exp());
            let (sine, cosine) = sin_cos(x * 1000.0);
            let (wanted_sine, wanted_cosine) = (x * 1000.0).sin_cos();
            assert!((sine - wanted_sine).abs() < 1e-10 && (cosine - wanted_cosine).abs() < 1e-10, "{x}");
        }
        for step in 1..4000 {
            let x = f64::from(step) * 17.3;
            assert!((ln(x) - x.ln()).abs() < 1e-13, "ln {x}: {} {}", ln(x), x.ln());
            assert!((pow(x, -0.4) / x.powf(-0.4) - 1.0).abs() < 1e-13, "pow {x}");
        }
    }
}
