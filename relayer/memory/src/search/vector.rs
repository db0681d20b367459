//! Unit vectors in int8: a quarter of the memory, and memory bandwidth bounds a scan. The error of a cosine
//! is below 0.01.

use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

/// Largest code.
const MAX_CODE: f32 = 127.0;

/// A unit vector in int8: component = code * scale.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Zeroize)]
pub struct QuantisedVector {
    /// Factor of the codes; 0 for a text without words, which is similar to no text.
    pub scale: f32,
    /// One code for each dimension.
    pub codes: Vec<i8>,
}

impl QuantisedVector {
    /// Rounds a unit vector. All zeros, or a value that is not finite, gives the vector that is similar to
    /// none.
    #[must_use]
    pub fn from_unit(vector: &[f32]) -> Self {
        let largest = vector.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        if !(largest > 0.0 && largest.is_finite()) || vector.iter().any(|x| !x.is_finite()) {
            return Self { scale: 0.0, codes: vec![0; vector.len()] };
        }
        let scale = largest / MAX_CODE;
        #[expect(clippy::cast_possible_truncation, reason = "within ±127, as the largest is 127 * scale")]
        let codes = vector.iter().map(|x| (x / scale).round() as i8).collect();
        Self { scale, codes }
    }

    /// The approximate vector.
    #[must_use]
    pub fn to_unit(&self) -> Vec<f32> {
        self.codes.iter().map(|code| f32::from(*code) * self.scale).collect()
    }

    /// Cosine similarity of two unit vectors; `None` if their lengths differ or one scale is 0.
    #[must_use]
    pub fn cosine(&self, other: &Self) -> Option<f32> {
        let comparable = self.codes.len() == other.codes.len() && self.scale > 0.0 && other.scale > 0.0;
        comparable.then(|| as_cosine(dot(&self.codes, &other.codes), self.scale, other.scale))
    }
}

/// The cosine of a dot product of codes.
#[expect(clippy::cast_precision_loss, reason = "a similarity needs no more than 24 bits")]
pub(super) fn as_cosine(dot: i32, scale: f32, other: f32) -> f32 {
    (dot as f32 * scale * other).clamp(-1.0, 1.0)
}

/// Dot product of codes. Pieces of a fixed length with 16-bit products let the compiler use multiply-add
/// instructions. Exact, since 127 * 127 * 2^17 dimensions fit 32 bits.
pub(super) fn dot(a: &[i8], b: &[i8]) -> i32 {
    const LANES: usize = 32;
    let (a, b) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sum = 0;
    for (a, b) in a.0.iter().zip(b.0) {
        let mut part = 0;
        for lane in 0..LANES {
            part += i32::from(i16::from(a[lane]) * i16::from(b[lane]));
        }
        sum += part;
    }
    sum + a.1.iter().zip(b.1).map(|(a, b)| i32::from(i16::from(*a) * i16::from(*b))).sum::<i32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(seed: u32, dimensions: usize) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from(u16::try_from(state >> 16).unwrap()) / 32_768.0 - 1.0
        };
        let vector: Vec<f32> = (0..dimensions).map(|_| next()).collect();
        let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
        vector.into_iter().map(|x| x / norm).collect()
    }

    #[test]
    fn cosines_survive_quantisation_within_a_hundredth() {
        for dimensions in [1, 31, 32, 33, 256, 384, 1_536] {
            for seed in 1..20 {
                let (a, b) = (unit(seed, dimensions), unit(seed + 100, dimensions));
                let exact: f32 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
                let (a, b) = (QuantisedVector::from_unit(&a), QuantisedVector::from_unit(&b));
                assert!((a.cosine(&b).unwrap() - exact).abs() < 0.01);
                assert!((a.cosine(&a).unwrap() - 1.0).abs() < 0.01);
            }
        }
    }

    #[test]
    fn what_has_no_direction_is_similar_to_nothing() {
        let good = QuantisedVector::from_unit(&unit(1, 8));
        for bad in [vec![0.0; 8], vec![f32::NAN; 8], vec![f32::INFINITY; 8], unit(1, 9), vec![]] {
            assert_eq!(QuantisedVector::from_unit(&bad).cosine(&good), None);
        }
    }
}
