//! Probabilities of tokens, by the model's own distribution. Pure, and the same bits everywhere.
//!
//! The sum of `exp(logit - best)` is taken in double precision, in order of ids. `kernels::math` computes the
//! exponentials in single precision, `exact::ln` the logarithm.

use zeroize::Zeroize;

use super::sampler::{greedy, weights};
use crate::{exact, kernels::Isa};

/// A token and its probability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logprob {
    /// The token.
    pub token: u32,
    /// The natural logarithm of its probability in thousandths, rounded; `i32::MIN` for probability zero.
    pub millinats: i32,
}

/// The report on one token: itself, then the likeliest of all, each with its bytes. Part of a conversation.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct LogprobReport {
    /// The token itself, then the requested number of likeliest tokens, the likeliest first.
    pub tokens: Vec<Logprob>,
    /// The bytes of each token.
    pub spelled: Vec<Vec<u8>>,
}

impl Zeroize for LogprobReport {
    fn zeroize(&mut self) {
        for one in &mut self.tokens {
            (one.token, one.millinats) = (0, 0);
        }
        self.tokens.clear();
        self.spelled.zeroize();
    }
}

/// Softmax of logits: the basis of all token probabilities.
pub struct Softmax<'a> {
    logits: &'a [f32],
    /// Logarithm of the sum of all exponentials.
    log_sum: f64,
}

impl<'a> Softmax<'a> {
    /// Takes logits as the model produced them. A logit that is not finite has no probability.
    #[must_use]
    pub fn of(logits: &'a [f32]) -> Self {
        Self::with_isa(logits, Isa::best())
    }

    /// As [`Self::of`], on a given instruction set.
    #[must_use]
    pub fn with_isa(logits: &'a [f32], isa: Isa) -> Self {
        let Some((_, best)) = greedy(logits) else { return Self { logits, log_sum: 0.0 } };
        // At least 1, from the best token.
        let sum: f64 = weights(isa, logits, best, 1.0).into_iter().map(f64::from).sum();
        Self { logits, log_sum: f64::from(best) + exact::ln(sum) }
    }

    /// The natural logarithm of a token's probability; minus infinity for probability zero.
    #[must_use]
    pub fn nats(&self, token: u32) -> f64 {
        let logit = self.logits.get(token as usize).copied().filter(|logit| logit.is_finite());
        logit.map_or(f64::NEG_INFINITY, |logit| f64::from(logit) - self.log_sum)
    }

    /// A token with the natural logarithm of its probability in thousandths, rounded; `i32::MIN` for
    /// probability zero.
    #[must_use]
    pub fn of_token(&self, token: u32) -> Logprob {
        // A rounding error must not make a probability larger than 1.
        let millinats = (self.nats(token) * 1000.0).round().min(0.0);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a float becomes the nearest i32, and infinity the least"
        )]
        let millinats = millinats as i32;
        Logprob { token, millinats }
    }

    /// The likeliest tokens, the likeliest first; among equals, the lower id first.
    #[must_use]
    pub fn likeliest(&self, count: usize) -> Vec<Logprob> {
        let count = count.min(self.logits.len());
        let mut best: Vec<(f32, u32)> = Vec::with_capacity(count + 1);
        for (id, &logit) in (0u32..).zip(self.logits) {
            let enters = best.len() < count || best.last().is_some_and(|(least, _)| logit > *least);
            if logit.is_finite() && enters && count > 0 {
                let at = best.partition_point(|(other, _)| *other >= logit);
                best.insert(at, (logit, id));
                best.truncate(count);
            }
        }
        best.into_iter().map(|(_, id)| self.of_token(id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_those_of_a_softmax() {
        let logits: Vec<f32> = [0.5f32, 0.25, 0.125, 0.125].iter().map(|p| p.ln() + 3.0).collect();
        let softmax = Softmax::of(&logits);
        assert_eq!(softmax.of_token(0), Logprob { token: 0, millinats: -693 });
        assert_eq!(softmax.of_token(1).millinats, -1386);
        assert_eq!(softmax.of_token(3).millinats, -2079);
        let ids = |count| softmax.likeliest(count).iter().map(|one| one.token).collect::<Vec<_>>();
        assert_eq!((ids(0), ids(2), ids(3)), (vec![], vec![0, 1], vec![0, 1, 2]));
        assert_eq!(ids(20), [0, 1, 2, 3], "no more than there are");
    }

    #[test]
    fn non_finite_logits_and_unknown_tokens_have_no_probability() {
        let logits = [f32::NAN, 1e30, f32::INFINITY, f32::NEG_INFINITY, -1e30];
        let softmax = Softmax::of(&logits);
        assert_eq!(softmax.of_token(1).millinats, 0);
        for none in [0, 2, 3, 4, 5, u32::MAX] {
            assert_eq!(softmax.of_token(none).millinats, i32::MIN, "{none}");
        }
        assert_eq!(softmax.likeliest(5).iter().map(|one| one.token).collect::<Vec<_>>(), [1, 4]);
        assert!(Softmax::of(&[]).likeliest(3).is_empty());
    }
}
