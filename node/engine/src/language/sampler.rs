//! The choice of a token from logits.
//!
//! Pure, and the same bits everywhere. The exponential is the engine's own (`kernels::math`). The rest is
//! additions, multiplications and divisions in a fixed order, and equals go to the lower token id. The
//! randomness of a position is a function of the seed and that position alone. So a continuation or a replay
//! draws the same tokens.
//!
//! The order of operations:
//! 1. **Biases.** Add the bias of each token that has one. For each token that the answer has, `n` times,
//!    subtract `presence_penalty + n * frequency_penalty`. In single precision.
//! 2. **Penalty.** For each token among the last [`REPETITION_WINDOW`] of prompt and answer, multiply its
//!    logit once: by `1 / penalty` if positive, else by `penalty`. In single precision.
//! 3. **Best.** The largest finite logit, the lowest id among equals. With temperature 0 that is the token.
//! 4. **Weights.** For each token, `exp((logit - best) / temperature)` in single precision; 0 if the logit is
//!    not finite.
//! 5. **Total** of all weights, in order of ids. From here on, all is in double precision.
//! 6. **Candidates.** Tokens with a weight above 0. If top-k or top-p is on, they are sorted by weight: the
//!    largest first, the lowest id first among equals. Top-k keeps the first `top_k`. Top-p keeps the
//!    shortest prefix whose sum, in that order, is at least `top_p` times the base. The base is the sum (in
//!    that order) of top-k's tokens, or else the total. For top-p alone, tokens below
//!    `(1 - top_p) total / vocabulary` are left out before: together they weigh less than the tokens that
//!    top-p leaves out. Last, min-p keeps the tokens with a weight of at least `min_p`: the likeliest token's
//!    weight is 1.
//! 7. **Draw.** `u` is the upper 53 bits of BLAKE3, keyed by the seed, of the position. From `u` times the
//!    candidates' sum, subtract each candidate's weight in order. The first that makes it negative is the
//!    token.

use std::{collections::BTreeMap, fmt};

use super::LanguageError;
use crate::kernels::{Isa, Kernel, LANES, Simd, math};

/// Tokens at the end of prompt and answer to which the repetition penalty applies.
pub const REPETITION_WINDOW: usize = 64;

/// The context for deriving a key from a seed.
pub const RANDOMNESS_CONTEXT: &str = "baton 2026-11-21 sampler-randomness v1";

/// The parameters of sampling.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Nucleus: the smallest set of likeliest tokens with at least this probability; 1 is off.
    pub top_p: f32,
    /// Only this many likeliest tokens; 0 is off.
    pub top_k: u32,
    /// Only tokens with at least this part of the likeliest token's probability; 0 is off.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of recent tokens; 1 is off.
    pub repetition_penalty: f32,
    /// Seed of the randomness: a pure function of the seed and the token's position in the answer.
    pub seed: u64,
    /// Subtracted from the logit of each token that the answer has; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token once for each time that the answer has it; 0 is off.
    pub frequency_penalty: f32,
    /// Tokens with a number that is added to their logits, each token once. Ids beyond the vocabulary have no
    /// effect.
    pub token_biases: Vec<(u32, f32)>,
}

impl Default for Sampling {
    /// Greedy sampling.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            token_biases: Vec::new(),
        }
    }
}

/// The sampler of one answer.
pub struct Sampler {
    sampling: Sampling,
    key: [u8; 32],
    isa: Isa,
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampler").field("temperature", &self.sampling.temperature).finish_non_exhaustive()
    }
}

impl Sampler {
    /// A sampler on this processor's fastest instruction set.
    #[must_use]
    pub fn new(sampling: &Sampling) -> Self {
        Self::with_isa(sampling, Isa::best())
    }

    /// A sampler on a given instruction set. The tokens are the same on all.
    #[must_use]
    pub fn with_isa(sampling: &Sampling, isa: Isa) -> Self {
        let mut key = blake3::Hasher::new_derive_key(RANDOMNESS_CONTEXT);
        key.update(&sampling.seed.to_le_bytes());
        Self { sampling: sampling.clone(), key: key.finalize().into(), isa }
    }

    /// Chooses the token at `position` of the answer. `context` is prompt and answer so far: only its last
    /// [`REPETITION_WINDOW`] tokens matter, and with a penalty of presence or frequency the whole answer.
    /// Equal logits go to the lower token id.
    ///
    /// # Errors
    /// [`LanguageError::Numerics`] when no logit is finite.
    pub fn sample(&self, logits: &mut [f32], context: &[u32], position: u32) -> Result<u32, LanguageError> {
        self.bias(logits, context, position);
        self.penalise(logits, context);
        let (best, largest) = greedy(logits).ok_or(LanguageError::Numerics)?;
        if self.sampling.temperature == 0.0 {
            return id_of(best);
        }
        let weights = weights(self.isa, logits, largest, self.sampling.temperature);
        let likely = |index: usize| if weights[index] >= self.sampling.min_p { weights[index] } else { 0.0 };
        let uniform = self.uniform(position);
        let drawn = match self.nucleus(&weights) {
            Some(nucleus) => draw(nucleus.into_iter().map(|index| (index, likely(index))), uniform),
            None => {
                let quick = if self.sampling.min_p == 0.0 { quick_draw(&weights, uniform) } else { None };
                quick.or_else(|| draw((0..weights.len()).map(|index| (index, likely(index))), uniform))
            }
        };
        id_of(drawn.unwrap_or(best))
    }

    /// Whether a choice depends on the whole answer before it.
    fn reads_answer(&self) -> bool {
        self.sampling.presence_penalty != 0.0 || self.sampling.frequency_penalty != 0.0
    }

    fn bias(&self, logits: &mut [f32], context: &[u32], position: u32) {
        for (token, bias) in &self.sampling.token_biases {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit += bias;
            }
        }
        if !self.reads_answer() {
            return;
        }
        let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
        for token in &context[context.len().saturating_sub(position as usize)..] {
            *counts.entry(*token).or_default() += 1;
        }
        for (token, count) in counts {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit -= self.sampling.presence_penalty + count as f32 * self.sampling.frequency_penalty;
            }
        }
    }

    fn penalise(&self, logits: &mut [f32], context: &[u32]) {
        let penalty = self.sampling.repetition_penalty;
        if penalty == 1.0 {
            return;
        }
        let mut recent = context[context.len().saturating_sub(REPETITION_WINDOW)..].to_vec();
        recent.sort_unstable();
        recent.dedup();
        for id in recent {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit *= if *logit > 0.0 { 1.0 / penalty } else { penalty };
            }
        }
    }

    /// The tokens that top-k and top-p keep, likeliest first; `None` if neither is on.
    fn nucleus(&self, weights: &[f32]) -> Option<Vec<usize>> {
        let (top_k, top_p) = (self.sampling.top_k as usize, f64::from(self.sampling.top_p));
        let limits_k = top_k > 0 && top_k < weights.len();
        let limits_p = top_p < 1.0;
        if !limits_k && !limits_p {
            return None;
        }
        let total = || weights.iter().copied().map(f64::from).sum::<f64>();
        let total = (limits_p && !limits_k).then(total);
        // All tokens below this limit together hold less than 1 - top_p, so none of them is in the nucleus.
        let least = total.map_or(0.0, |total| (1.0 - top_p) * total / weights.len() as f64);
        let may = |index: &usize| weights[*index] > 0.0 && f64::from(weights[*index]) >= least;
        let mut indices: Vec<usize> = (0..weights.len()).filter(may).collect();
        let order = |a: &usize, b: &usize| weights[*b].total_cmp(&weights[*a]).then(a.cmp(b));
        if limits_k && top_k < indices.len() {
            indices.select_nth_unstable_by(top_k, order);
            indices.truncate(top_k);
        }
        indices.sort_unstable_by(order);
        if limits_p {
            let of_top_k = || indices.iter().map(|&index| f64::from(weights[index])).sum();
            let base: f64 = total.unwrap_or_else(of_top_k);
            let mut sum = 0.0;
            let nucleus = indices.iter().position(|&index| {
                sum += f64::from(weights[index]);
                sum >= top_p * base
            });
            indices.truncate(nucleus.map_or(indices.len(), |last| last + 1));
        }
        Some(indices)
    }

    /// A number in [0, 1) with 53 random bits: BLAKE3 of the position, keyed by the seed.
    fn uniform(&self, position: u32) -> f64 {
        let hash = blake3::keyed_hash(&self.key, &u64::from(position).to_le_bytes());
        let bytes: [u8; 8] = std::array::from_fn(|index| hash.as_bytes()[index]);
        (u64::from_le_bytes(bytes) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Draws a token by weight, in the candidates' order; `None` if all weights are 0.
fn draw(candidates: impl Iterator<Item = (usize, f32)> + Clone, uniform: f64) -> Option<usize> {
    let total: f64 = candidates.clone().map(|(_, weight)| f64::from(weight)).sum();
    let mut left = uniform * total;
    let mut drawn = candidates.skip_while(|(_, weight)| {
        left -= f64::from(*weight);
        left >= 0.0
    });
    drawn.next().map(|(index, _)| index)
}

/// Weights summed at once by [`quick_draw`].
const DRAW_BLOCK: usize = 512;

/// How far from the drawn number a sum must be, as a part of the total, to leave no doubt. Two sums of the same weights
/// in two orders differ by less than 2^-53 for each of the 2^21 possible tokens; five such errors meet here.
const DRAW_DOUBT: f64 = 1e-8;

/// The token that [`draw`] gives for all tokens, from sums in the order that is fastest. `None` where only the stated
/// order decides.
fn quick_draw(weights: &[f32], uniform: f64) -> Option<usize> {
    let sum_of = |weights: &[f32]| {
        let mut sums = [0.0; LANES];
        for weights in weights.chunks(LANES) {
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum += f64::from(*weight);
            }
        }
        sums.iter().sum::<f64>()
    };
    let sums: Vec<f64> = weights.chunks(DRAW_BLOCK).map(sum_of).collect();
    let total: f64 = sums.iter().sum();
    let (least, most) = ((uniform - DRAW_DOUBT) * total, (uniform + DRAW_DOUBT) * total);
    let mut before = 0.0;
    for ((block, weights), sum) in weights.chunks(DRAW_BLOCK).enumerate().zip(&sums) {
        if before + sum < least {
            before += sum;
            continue;
        }
        for (index, weight) in weights.iter().enumerate() {
            before += f64::from(*weight);
            if before >= least {
                return (before > most).then_some(block * DRAW_BLOCK + index);
            }
        }
    }
    None
}

/// Index and value of the largest finite logit, the first among equals.
pub(crate) fn greedy(logits: &[f32]) -> Option<(usize, f32)> {
    // Lane by lane, since a compiler makes vectors of that.
    let mut largest = [f32::NEG_INFINITY; LANES];
    for values in logits.chunks(LANES) {
        for (largest, value) in largest.iter_mut().zip(values) {
            let value = finite(*value);
            *largest = if value > *largest { value } else { *largest };
        }
    }
    let largest = largest.into_iter().reduce(f32::max).filter(|value| value.is_finite())?;
    let first = logits.iter().position(|logit| *logit == largest)?;
    Some((first, logits[first]))
}

/// The logit; that of a token which is never chosen, if it is no number.
fn finite(logit: f32) -> f32 {
    if logit.is_finite() { logit } else { f32::NEG_INFINITY }
}

/// Unnormalised probabilities: `exp((logit - best) / temperature)`, 0 if the logit is not finite.
pub(super) fn weights(isa: Isa, logits: &[f32], best: f32, temperature: f32) -> Vec<f32> {
    let whole = logits.len().next_multiple_of(LANES);
    let mut weights = Vec::with_capacity(whole);
    weights.extend(logits.iter().copied().map(finite));
    weights.resize(whole, f32::NEG_INFINITY);
    isa.run(Exponentials { values: &mut weights, best, temperature });
    weights.truncate(logits.len());
    weights
}

/// Turns whole vectors of logits into weights.
struct Exponentials<'a> {
    values: &'a mut [f32],
    best: f32,
    temperature: f32,
}

impl Kernel for Exponentials<'_> {
    type Output = ();

    #[expect(clippy::inline_always, reason = "a kernel's parts must end up in its one function")]
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (best, temperature) = (s.splat(self.best), s.splat(self.temperature));
        for lanes in self.values.as_chunks_mut::<LANES>().0 {
            let value = s.div(s.sub(s.load(lanes), best), temperature);
            s.store(math::exp(s, value), lanes);
        }
    }
}

fn id_of(index: usize) -> Result<u32, LanguageError> {
    u32::try_from(index).map_err(|_| LanguageError::Numerics)
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
    fn a_logit_that_is_not_a_number_is_never_chosen() {
        let (greedy, random) = (sampler(|s| s.temperature = 0.0), sampler(|_| {}));
        let logits = [f32::NAN, f32::INFINITY, -2.0, f32::NEG_INFINITY];
        for position in 0..50 {
            assert_eq!(greedy.sample(&mut logits.clone(), &[], position).unwrap(), 2);
            assert_eq!(random.sample(&mut logits.clone(), &[], position).unwrap(), 2);
        }
        let nothing = random.sample(&mut [f32::NAN, f32::NAN], &[], 0);
        assert_eq!(nothing.unwrap_err(), LanguageError::Numerics);
        assert_eq!(greedy.sample(&mut [], &[], 0).unwrap_err(), LanguageError::Numerics);
    }

    #[test]
    fn a_quick_draw_is_that_of_the_stated_order_or_none() {
        // A linear congruential generator: the same cases each time.
        let mut state = 7_u64;
        let mut unit = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1_u32 << 24) as f32
        };
        let mut doubts = 0;
        for case in 0..300 {
            let weight = |unit: f32| if unit < 0.2 { 0.0 } else { (40.0 * (unit - 1.0)).exp() };
            let weights: Vec<f32> = (0..1 + case * 17).map(|_| weight(unit())).collect();
            let exact = |uniform| draw(weights.iter().copied().enumerate(), uniform);
            let total: f64 = weights.iter().copied().map(f64::from).sum();
            let edge = weights.iter().take(case * 5).copied().map(f64::from).sum::<f64>() / total.max(1e-30);
            for uniform in [unit().into(), unit().into(), edge, 0.0, 1.0 - f64::EPSILON] {
                match quick_draw(&weights, uniform) {
                    Some(drawn) => assert_eq!(Some(drawn), exact(uniform), "{case}: {uniform}"),
                    None => doubts += 1,
                }
            }
        }
        assert!((300..1_000).contains(&doubts), "{doubts}");
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
    fn top_k_top_p_and_min_p_exclude_the_rest() {
        let logits: Vec<f32> = [0.5f32, 0.25, 0.125, 0.125].iter().map(|p| p.ln()).collect();
        let counts = histogram(&sampler(|s| s.top_k = 2), &logits);
        assert!(counts[0] > 2400 && counts[1] > 1100 && counts[2] == 0 && counts[3] == 0, "{counts:?}");
        let counts = histogram(&sampler(|s| s.top_p = 0.7), &logits);
        assert!(counts[0] > 2400 && counts[1] > 1100 && counts[2] == 0 && counts[3] == 0, "{counts:?}");
        for (min_p, tokens) in [(0.5, 2), (0.49, 2), (0.51, 1), (0.25, 4), (1.0, 1)] {
            let of = |top_p| histogram(&sampler(|s| (s.min_p, s.top_p) = (min_p, top_p)), &logits);
            assert_eq!(of(1.0).iter().filter(|count| **count > 0).count(), tokens, "{min_p}");
            assert_eq!(of(0.7).iter().filter(|count| **count > 0).count(), tokens.min(2), "{min_p}");
        }
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
        // Frozen: a replay in later years must draw the same tokens.
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

    #[test]
    fn presence_and_frequency_count_the_answer_alone() {
        let of = |presence, frequency| {
            sampler(|s| (s.temperature, s.presence_penalty, s.frequency_penalty) = (0.0, presence, frequency))
        };
        // Token 0 is twice in the answer, and token 1 in the prompt.
        let context = [1, 1, 1, 0, 0];
        let choose =
            |sampler: &Sampler, logits: [f32; 3]| sampler.sample(&mut logits.clone(), &context, 2).unwrap();
        assert_eq!(choose(&of(0.0, 0.0), [2.0, 1.0, 0.0]), 0);
        assert_eq!(choose(&of(0.5, 0.0), [2.0, 1.6, 0.0]), 1);
        assert_eq!(choose(&of(0.5, 0.0), [2.0, 1.4, 0.0]), 0, "once, however often");
        assert_eq!(choose(&of(0.0, 0.5), [2.0, 1.1, 0.0]), 1, "once for each time");
        assert_eq!(choose(&of(-2.0, 0.0), [0.0, 1.0, 1.5]), 0, "a negative one makes it likelier");
        assert!(of(0.5, 0.0).reads_answer() && !of(0.0, 0.0).reads_answer());
    }

    #[test]
    fn biases_forbid_and_force_tokens_and_foreign_ids_have_no_effect() {
        let biased = sampler(|s| s.token_biases = vec![(0, -100.0), (2, 100.0), (4_000_000_000, 100.0)]);
        for position in 0..50 {
            assert_eq!(biased.sample(&mut [5.0, 4.0, 1.0], &[], position).unwrap(), 2);
        }
        let greedy = sampler(|s| (s.temperature, s.token_biases) = (0.0, vec![(0, -1.5)]));
        assert_eq!(greedy.sample(&mut [5.0, 4.0], &[], 0).unwrap(), 1);
    }

    #[test]
    fn weights_and_draws_are_the_same_on_every_instruction_set() {
        // 997 is not a multiple of the lanes.
        let logits: Vec<f32> =
            (0..997_u32).map(|id| (id.wrapping_mul(2_654_435_761) >> 16) as f32 / 4096.0 - 8.0).collect();
        let sampling = Sampling { temperature: 0.7, top_p: 0.9, top_k: 50, seed: 3, ..Sampling::default() };
        let bits = |isa| weights(isa, &logits, 8.0, 0.7).into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let draws = |isa| {
            let sampler = Sampler::with_isa(&sampling, isa);
            (0..64).map(|at| sampler.sample(&mut logits.clone(), &[], at).unwrap()).collect::<Vec<_>>()
        };
        for isa in Isa::all() {
            assert_eq!(bits(isa), bits(Isa::SCALAR), "{isa:?}");
            assert_eq!(draws(isa), draws(Isa::SCALAR), "{isa:?}");
        }
    }
}
