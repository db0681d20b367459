//! A keyed rotation of vectors, for [rows](super::rows).
//!
//! This is obfuscation, not encryption, because the rotation keeps angles: near neighbours of a segment are visible to
//! every reader, and known pairs help to undo it. It only keeps a database's reader from inverting embeddings with a
//! public model at once. docs/MEMORY.md describes the remaining risk.

use zeroize::Zeroizing;

/// Rounds of sign flips and Hadamard transform; three rounds spread a single component evenly.
const ROUNDS: usize = 3;
/// Widest vector that is rotated, to bound the signs. The widest embeddings have about 4,096 dimensions.
const MAX_DIMENSIONS: usize = 16_384;

/// Dimensions of a rotated vector: the next power of two.
#[must_use]
pub(super) fn rotated_dimensions(dimensions: usize) -> usize {
    dimensions.next_power_of_two()
}

/// Rotates a vector by a seed.
///
/// The vector is padded with zeros to a power of two. Each round applies random sign flips and a
/// Walsh-Hadamard transform. Both are orthogonal, so vectors that are rotated by the same seed keep their dot
/// products.
///
/// Source: Ailon and Chazelle, "The fast Johnson-Lindenstrauss transform" (2009), without its projection.
///
/// # Panics
/// For more than 16,384 dimensions; no embedder has as many.
#[must_use]
pub(super) fn rotate(seed: &[u8; 32], vector: &[f32]) -> Vec<f32> {
    assert!(vector.len() <= MAX_DIMENSIONS, "an embedding has at most {MAX_DIMENSIONS} dimensions");
    let width = rotated_dimensions(vector.len());
    let mut rotated = vec![0.0; width];
    for (to, from) in rotated.iter_mut().zip(vector) {
        *to = *from;
    }
    let mut signs = Zeroizing::new(vec![0; (ROUNDS * width).div_ceil(8)]);
    blake3::Hasher::new_keyed(seed).update(b"signs").finalize_xof().fill(&mut signs);
    for round in 0..ROUNDS {
        for (index, value) in rotated.iter_mut().enumerate() {
            let bit = round * width + index;
            if signs[bit / 8] >> (bit % 8) & 1 == 1 {
                *value = -*value;
            }
        }
        hadamard(&mut rotated);
    }
    rotated
}

/// The normalised Walsh-Hadamard transform, in place; the length is a power of two.
fn hadamard(values: &mut [f32]) {
    let mut half = 1;
    while half < values.len() {
        for block in values.chunks_exact_mut(2 * half) {
            let (left, right) = block.split_at_mut(half);
            for (a, b) in left.iter_mut().zip(right) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    #[expect(clippy::cast_precision_loss, reason = "at most 16,384")]
    let scale = 1.0 / (values.len() as f32).sqrt();
    for value in values {
        *value *= scale;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn dot(a: &[f32], b: &[f32]) -> f32 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    proptest! {
        #[test]
        fn rotation_preserves_dot_products(
            (a, b) in (1usize..600).prop_flat_map(|n| {
                let vector = || proptest::collection::vec(-1.0f32..1.0, n);
                (vector(), vector())
            }),
            seed: [u8; 32],
        ) {
            let (ra, rb) = (rotate(&seed, &a), rotate(&seed, &b));
            prop_assert_eq!(ra.len(), rotated_dimensions(a.len()));
            let norm = (dot(&a, &a) * dot(&b, &b)).sqrt().max(1.0);
            prop_assert!((dot(&a, &b) - dot(&ra, &rb)).abs() / norm < 1e-4);
        }
    }

    #[test]
    fn another_seed_gives_an_unrelated_vector_and_one_component_is_spread() {
        let mut vector = vec![0.0; 256];
        vector[7] = 1.0;
        let (a, b) = (rotate(&[1; 32], &vector), rotate(&[2; 32], &vector));
        assert_eq!(a, rotate(&[1; 32], &vector));
        assert!(dot(&a, &b).abs() < 0.3);
        assert!(a.iter().all(|value| value.abs() < 0.5));
    }
}
