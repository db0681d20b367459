//! How likely tokens were, by the model's own distribution. Pure.

use baton_proto::wire::{TokenBytes, TokenLogprob};

/// What is reported of one token: itself, then the likeliest of all, each with its bytes. Part of a conversation.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Reported {
    /// The token itself, then as many of the likeliest as were asked for, the likeliest first.
    pub tokens: Vec<TokenLogprob>,
    /// The bytes of each.
    pub spelled: Vec<TokenBytes>,
}

impl zeroize::Zeroize for Reported {
    fn zeroize(&mut self) {
        for one in &mut self.tokens {
            (one.token, one.millinats) = (0, 0);
        }
        self.tokens.clear();
        for one in &mut self.spelled {
            one.0.zeroize();
        }
        self.spelled.clear();
    }
}

/// Softmax of logits: what each token's probability is made of.
pub(crate) struct Softmax<'a> {
    logits: &'a [f32],
    /// Logarithm of the sum of all exponentials.
    log_sum: f64,
}

impl<'a> Softmax<'a> {
    /// Of logits as the model gave them. What is not a number has no probability.
    pub(crate) fn of(logits: &'a [f32]) -> Self {
        let best = logits.iter().copied().filter(|logit| logit.is_finite()).fold(f32::NEG_INFINITY, f32::max);
        let best = f64::from(best);
        let finite = logits.iter().filter(|logit| logit.is_finite());
        let sum: f64 = finite.map(|&logit| (f64::from(logit) - best).exp()).sum();
        Self { logits, log_sum: best + sum.ln() }
    }

    /// A token with its probability's natural logarithm in thousandths, rounded; the least number for none.
    pub(crate) fn of_token(&self, token: u32) -> TokenLogprob {
        let logit = self.logits.get(token as usize).copied().filter(|logit| logit.is_finite());
        let nats = logit.map_or(f64::NEG_INFINITY, |logit| f64::from(logit) - self.log_sum);
        // A rounding error must not make a token likelier than certain.
        let millinats = (nats * 1000.0).round().min(0.0);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a float becomes the nearest i32, and infinity the least"
        )]
        let millinats = millinats as i32;
        TokenLogprob { token, millinats }
    }

    /// The likeliest tokens, the likeliest first; the lower id first among equals.
    pub(crate) fn likeliest(&self, count: usize) -> Vec<TokenLogprob> {
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
        assert_eq!(softmax.of_token(0), TokenLogprob { token: 0, millinats: -693 });
        assert_eq!(softmax.of_token(1).millinats, -1386);
        assert_eq!(softmax.of_token(3).millinats, -2079);
        let ids = |count| softmax.likeliest(count).iter().map(|one| one.token).collect::<Vec<_>>();
        assert_eq!((ids(0), ids(2), ids(3)), (vec![], vec![0, 1], vec![0, 1, 2]));
        assert_eq!(ids(20), [0, 1, 2, 3], "no more than there are");
    }

    #[test]
    fn what_is_not_a_number_or_no_token_has_no_probability() {
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
