//! Rotary position embeddings: the angles, in every variant that the Llama family uses.

use super::{ConfigError, Reader};
use crate::{
    exact::{ln, pow, sin_cos},
    kernels::rows::Pairing,
};

/// The rotation of queries and keys by their position.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// How dimensions pair up.
    pub pairing: Pairing,
    /// Radians per position, for each pair of dimensions.
    pub frequencies: Vec<f64>,
    /// Factor for cosines and sines.
    pub magnitude: f64,
}

impl Rope {
    /// `base^(-2 i / dims)` for pair `i`.
    #[must_use]
    pub fn plain(dims: usize, base: f64, pairing: Pairing) -> Self {
        let frequency = |pair: usize| pow(base, -2.0 * pair as f64 / dims as f64);
        Self { pairing, frequencies: (0..dims / 2).map(frequency).collect(), magnitude: 1.0 }
    }

    pub(super) fn read(
        read: &Reader<'_>,
        head_dim: usize,
        context: usize,
        pairing: Pairing,
    ) -> Result<Self, ConfigError> {
        let dims = read.bounded("rope.dimension_count", Some(head_dim), head_dim)?;
        if !dims.is_multiple_of(2) || (pairing == Pairing::Halves && dims != head_dim) {
            return Err(ConfigError::Unsupported(format!("rotation of {dims} of {head_dim} dimensions")));
        }
        let base = f64::from(read.positive("rope.freq_base", Some(10_000.0))?);
        let mut rope = Self::plain(dims, base, pairing);
        let legacy = read.gguf.optional_f32(&read.key("rope.scale_linear"))?;
        let factor = f64::from(read.positive("rope.scaling.factor", Some(legacy.unwrap_or(1.0)))?);
        let kind = read.gguf.optional_str(&read.key("rope.scaling.type"))?;
        match kind.unwrap_or("linear") {
            "none" => {}
            "linear" => rope.frequencies.iter_mut().for_each(|frequency| *frequency /= factor),
            "yarn" => {
                let original =
                    read.bounded("rope.scaling.original_context_length", Some(context), super::MAX_CONTEXT)?;
                let attention = f64::from(read.positive("rope.scaling.attn_factor", Some(1.0))?);
                rope.stretch(dims, base, factor, original as f64);
                rope.magnitude = attention * (1.0 + 0.1 * ln(factor));
            }
            other => return Err(ConfigError::Unsupported(format!("rotation scaled by {other:?}"))),
        }
        Ok(rope)
    }

    /// YaRN (arXiv 2309.00071) with its usual limits of 32 turns and 1 turn within the original context.
    /// Pairs with at least 32 turns keep their frequency. For pairs with less than one turn, it is divided.
    /// The pairs between get a mixture.
    fn stretch(&mut self, dims: usize, base: f64, factor: f64, original: f64) {
        let pair_of =
            |turns: f64| dims as f64 * ln(original / (turns * std::f64::consts::TAU)) / (2.0 * ln(base));
        let low = pair_of(32.0).floor().max(0.0);
        let high = pair_of(1.0).ceil().min(dims as f64 - 1.0);
        for (pair, frequency) in self.frequencies.iter_mut().enumerate() {
            let ramp = ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            *frequency = *frequency / factor * ramp + *frequency * (1.0 - ramp);
        }
    }

    /// Divides each pair's frequency: Llama 3's method for longer contexts.
    pub(crate) fn divide(&mut self, factors: &[f32]) {
        for (frequency, factor) in self.frequencies.iter_mut().zip(factors) {
            *frequency /= f64::from(*factor);
        }
    }

    /// Cosines and sines of a position's angles, one of each per pair. They are computed in double precision,
    /// then rounded.
    #[expect(clippy::cast_possible_truncation, reason = "rounding is what is wanted")]
    pub fn turns(&self, position: usize, cosines: &mut [f32], sines: &mut [f32]) {
        for ((frequency, to_cosine), to_sine) in self.frequencies.iter().zip(cosines).zip(sines) {
            let (sine, cosine) = sin_cos(position as f64 * frequency);
            *to_cosine = (cosine * self.magnitude) as f32;
            *to_sine = (sine * self.magnitude) as f32;
        }
    }
}
