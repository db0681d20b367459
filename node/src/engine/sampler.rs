//! Choosing a token from logits. Pure: the randomness of a position is a function of the seed and that
//! position alone, so a continuation or a replay draws what the first run drew.

use baton_keys::{contexts::SAMPLER_RANDOMNESS, secret::kdf};

use super::{EngineError, REPETITION_WINDOW, Sampling};

/// The sampler of one answer.
pub(crate) struct Sampler {
    temperature: f32,
    top_p: f64,
    top_k: usize,
    repetition_penalty: f32,
    key: [u8; 32],
}

impl Sampler {
    pub(crate) fn new(sampling: &Sampling) -> Self {
        Self {
            temperature: sampling.temperature,
            top_p: f64::from(sampling.top_p),
            top_k: sampling.top_k as usize,
            repetition_penalty: sampling.repetition_penalty,
            key: kdf(SAMPLER_RANDOMNESS, &[&sampling.seed.to_le_bytes()]),
        }
    }

    /// Chooses the token at `position` of the answer. `context` is prompt and answer so far (its last
    /// [`REPETITION_WINDOW`] tokens matter). Equal logits go to the lower token id.
    pub(crate) fn sample(
        &self,
        logits: &mut [f32],
        context: &[u32],
        position: u32,
    ) -> Result<u32, EngineError> {
        self.penalise(logits, context);
        let best = greedy(logits)?;
        if self.temperature == 0.0 {
            return index_to_id(best);
        }
        let weights = self.weights(logits, f64::from(logits[best]));
        let candidates = self.candidates(&weights, best);
        let total: f64 = candidates.iter().map(|&index| weights[index]).sum();
        let mut left = self.uniform(position) * total;
        for &index in &candidates {
            left -= weights[index];
            if left < 0.0 {
                return index_to_id(index);
            }
        }
        index_to_id(best)
    }

    fn penalise(&self, logits: &mut [f32], context: &[u32]) {
        if (self.repetition_penalty - 1.0).abs() < f32::EPSILON {
            return;
        }
        let mut recent = context[context.len().saturating_sub(REPETITION_WINDOW)..].to_vec();
        recent.sort_unstable();
        recent.dedup();
        for id in recent {
            if let Some(logit) = logits.get_mut(id as usize) {
                let down = if *logit > 0.0 { 1.0 / self.repetition_penalty } else { self.repetition_penalty };
                *logit *= down;
            }
        }
    }

    /// Unnormalised probabilities; the best token's is 1, and what is not a number has none.
    fn weights(&self, logits: &[f32], best: f64) -> Vec<f64> {
        let temperature = f64::from(self.temperature);
        logits
            .iter()
            .map(
                |&logit| {
                    if logit.is_finite() { ((f64::from(logit) - best) / temperature).exp() } else { 0.0 }
                },
            )
            .collect()
    }

    /// The tokens that may be drawn, likeliest first where top-k or top-p needs an order.
    fn candidates(&self, weights: &[f64], best: usize) -> Vec<usize> {
        let limits_k = self.top_k > 0 && self.top_k < weights.len();
        let limits_p = self.top_p < 1.0;
        let total: f64 = weights.iter().sum();
        // All tokens below this together hold less than 1 - top_p, so none of them is in the nucleus.
        let least = if limits_p { (1.0 - self.top_p) * total / weights.len() as f64 } else { 0.0 };
        let mut indices: Vec<usize> =
            (0..weights.len()).filter(|&index| weights[index] > 0.0 && weights[index] >= least).collect();
        if !limits_k && !limits_p {
            return indices;
        }
        indices.sort_unstable_by(|&a, &b| weights[b].total_cmp(&weights[a]).then(a.cmp(&b)));
        let mut kept_total = total;
        if limits_k {
            if limits_p {
                // The nucleus is taken of the top-k distribution, as other engines do.
                kept_total = indices.iter().take(self.top_k).map(|&index| weights[index]).sum();
            }
            indices.truncate(self.top_k);
        }
        if limits_p {
            let mut sum = 0.0;
            let nucleus = indices.iter().position(|&index| {
                sum += weights[index];
                sum >= self.top_p * kept_total
            });
            indices.truncate(nucleus.map_or(indices.len(), |last| last + 1));
        }
        if indices.is_empty() {
            indices.push(best);
        }
        indices
    }

    /// A number in [0, 1) with 53 random bits: BLAKE3 keyed by the seed, of the position.
    fn uniform(&self, position: u32) -> f64 {
        let hash = blake3::keyed_hash(&self.key, &u64::from(position).to_le_bytes());
        let bytes: [u8; 8] = std::array::from_fn(|index| hash.as_bytes()[index]);
        (u64::from_le_bytes(bytes) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Index of the largest finite logit.
fn greedy(logits: &[f32]) -> Result<usize, EngineError> {
    let mut best: Option<(usize, f32)> = None;
    for (index, &logit) in logits.iter().enumerate() {
        if logit.is_finite() && best.is_none_or(|(_, value)| logit > value) {
            best = Some((index, logit));
        }
    }
    best.map(|(index, _)| index).ok_or(EngineError::Numerics)
}

fn index_to_id(index: usize) -> Result<u32, EngineError> {
    u32::try_from(index).map_err(|_| EngineError::Numerics)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(change: impl FnOnce(&mut Sampling)) -> Sampler {
        let mut sampling = Sampling { temperature: 1.0, seed: 7, ..Sampling::default() };
        change(&mut sampling);
        Sampler::new(&sampling)
    }

    fn histogram(sampler: &Sampler, logits: &[f32]) -> Vec<u32> {
        let mut counts = vec![0; logits.len()];
        for position in 0..4000 {
            let id = sampler.sample(&mut logits.to_vec(), &[], position).unwrap();
            counts[id as usize] += 1;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_best_and_the_lower_id_among_equals() {
        let greedy = sampler(|s| s.temperature = 0.0);
        assert_eq!(greedy.sample(&mut [0.0, 3.0, 3.0, 1.0], &[], 0).unwrap(), 1);
    }

    #[test]
    fn what_is_not_a_number_is_never_chosen() {
        let (greedy, random) = (sampler(|s| s.temperature = 0.0), sampler(|_| {}));
        let logits = [f32::NAN, f32::INFINITY, -2.0, f32::NEG_INFINITY];
        for position in 0..50 {
            assert_eq!(greedy.sample(&mut logits.clone(), &[], position).unwrap(), 2);
            assert_eq!(random.sample(&mut logits.clone(), &[], position).unwrap(), 2);
        }
        let nothing = random.sample(&mut [f32::NAN, f32::NAN], &[], 0);
        assert_eq!(nothing.unwrap_err(), EngineError::Numerics);
        assert_eq!(greedy.sample(&mut [], &[], 0).unwrap_err(), EngineError::Numerics);
    }

    #[test]
    fn draws_follow_the_distribution() {
        let logits: Vec<f32> = [0.5f32, 0.25, 0.125, 0.125].iter().map(|p| p.ln()).collect();
        let counts = histogram(&sampler(|_| {}), &logits);
        for (count, expected) in counts.iter().zip([2000u32, 1000, 500, 500]) {
            assert!(count.abs_diff(expected) < 130, "{counts:?}");
        }
    }

    #[test]
    fn top_k_and_top_p_leave_out_the_rest() {
        let logits: Vec<f32> = [0.5f32, 0.25, 0.125, 0.125].iter().map(|p| p.ln()).collect();
        let counts = histogram(&sampler(|s| s.top_k = 2), &logits);
        assert!(counts[0] > 2400 && counts[1] > 1100 && counts[2] == 0 && counts[3] == 0, "{counts:?}");
        let counts = histogram(&sampler(|s| s.top_p = 0.7), &logits);
        assert!(counts[0] > 2400 && counts[1] > 1100 && counts[2] == 0 && counts[3] == 0, "{counts:?}");
        assert_eq!(histogram(&sampler(|s| s.top_p = 1e-6), &logits)[0], 4000);
        assert_eq!(histogram(&sampler(|s| s.temperature = 1e-6), &logits)[0], 4000);
    }

    #[test]
    fn randomness_depends_on_seed_and_position_only() {
        let logits = [0.0f32; 64];
        let draw =
            |seed, position| sampler(|s| s.seed = seed).sample(&mut logits.clone(), &[], position).unwrap();
        let first: Vec<_> = (0..32).map(|position| draw(1, position)).collect();
        let backwards: Vec<_> = (0..32).rev().map(|position| draw(1, position)).collect();
        assert!(first.iter().eq(backwards.iter().rev()));
        assert_ne!(first, (0..32).map(|position| draw(2, position)).collect::<Vec<_>>());
        // Frozen: a replay years later draws the same.
        assert_eq!(first[..8], FROZEN_DRAWS);
    }

    const FROZEN_DRAWS: [u32; 8] = [29, 21, 23, 59, 47, 24, 23, 14];

    #[test]
    fn repetition_penalty_lowers_recent_tokens_of_either_sign() {
        let penal = sampler(|s| (s.temperature, s.repetition_penalty) = (0.0, 2.0));
        assert_eq!(penal.sample(&mut [4.0, 3.0], &[0, 0], 0).unwrap(), 1);
        assert_eq!(penal.sample(&mut [-1.0, -1.5], &[0], 0).unwrap(), 1);
        let mut old = vec![0];
        old.extend([9; REPETITION_WINDOW]);
        assert_eq!(penal.sample(&mut [4.0, 3.0], &old, 0).unwrap(), 0);
    }
}
