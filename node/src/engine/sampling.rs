//! Sampling settings: how an engine chooses tokens.

use std::fmt;

use baton_proto::{
    limits::{MAX_LOGPROBS, MAX_STOP_BYTES, MAX_STOP_STRINGS, MAX_TOKEN_BIASES},
    turn::{TokenBias, in_range},
};

use super::EngineError;

/// Sampling settings.
#[derive(Clone, PartialEq)]
pub struct Sampling {
    /// 0 is greedy; otherwise logits are divided by it. Range 0 to 5.
    pub temperature: f32,
    /// Nucleus: the smallest set of likeliest tokens with at least this probability. Range (0, 1]; 1 is off.
    pub top_p: f32,
    /// Samples only from this many most likely tokens; 0 is off.
    pub top_k: u32,
    /// Samples only from tokens with at least this part of the likeliest one's probability. Range 0 to 1; 0 is off.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of recent tokens. Range (0, 10]; 1 is off.
    pub repetition_penalty: f32,
    /// Seed of the randomness, a pure function of the seed and the token's position in the answer.
    pub seed: u64,
    /// Texts that end the answer; no part of them is ever emitted.
    pub stop: Vec<String>,
    /// Maximum tokens of the whole answer, including a resumed prefix. At least 1.
    pub max_tokens: u32,
    /// Number of most likely tokens to report with each token's own probability; 0 reports none. At most
    /// [`MAX_LOGPROBS`].
    pub logprobs: u8,
    /// Subtracted from the logit of each token that the answer has. Range -2 to 2; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token once for each time that the answer has it. Range -2 to 2; 0 is off.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens. At most [`MAX_TOKEN_BIASES`], ascending by token; -100 to 100.
    pub token_biases: Vec<TokenBias>,
}

impl Default for Sampling {
    /// Greedy, at most 512 tokens.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
            stop: Vec::new(),
            max_tokens: 512,
            logprobs: 0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            token_biases: Vec::new(),
        }
    }
}

impl fmt::Debug for Sampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampling")
            .field("temperature", &self.temperature)
            .field("top_p", &self.top_p)
            .field("top_k", &self.top_k)
            .field("min_p", &self.min_p)
            .field("repetition_penalty", &self.repetition_penalty)
            .field("seed", &self.seed)
            .field("stop", &format_args!("{} strings", self.stop.len()))
            .field("max_tokens", &self.max_tokens)
            .field("logprobs", &self.logprobs)
            .field("presence_penalty", &self.presence_penalty)
            .field("frequency_penalty", &self.frequency_penalty)
            .field("token_biases", &format_args!("{} tokens", self.token_biases.len()))
            .finish()
    }
}

impl Sampling {
    /// The settings of a turn, with this maximum of tokens.
    #[must_use]
    pub(crate) fn asked(asked: &baton_proto::turn::Sampling, max_tokens: u32) -> Self {
        Self {
            temperature: asked.temperature,
            top_p: asked.top_p,
            top_k: asked.top_k,
            min_p: asked.min_p,
            repetition_penalty: asked.repetition_penalty,
            seed: asked.seed,
            stop: asked.stop.clone(),
            max_tokens,
            logprobs: asked.logprobs,
            presence_penalty: asked.presence_penalty,
            frequency_penalty: asked.frequency_penalty,
            token_biases: asked.token_biases.clone(),
        }
    }

    /// Checks every field against its range, as [`baton_proto::turn::Sampling::check`] does.
    ///
    /// # Errors
    /// [`EngineError::InvalidSampling`] names the first field out of range.
    pub(crate) fn validate(&self) -> Result<(), EngineError> {
        let refuse = |field| Err(EngineError::InvalidSampling { field });
        if !in_range(self.temperature, 0.0..=5.0) {
            return refuse("temperature");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return refuse("top_p");
        }
        if !in_range(self.min_p, 0.0..=1.0) {
            return refuse("min_p");
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty <= 10.0) {
            return refuse("repetition_penalty");
        }
        if self.max_tokens == 0 {
            return refuse("max_tokens");
        }
        let too_long = |stop: &String| stop.is_empty() || stop.len() > MAX_STOP_BYTES;
        if self.stop.len() > MAX_STOP_STRINGS || self.stop.iter().any(too_long) {
            return refuse("stop");
        }
        if self.logprobs > MAX_LOGPROBS {
            return refuse("logprobs");
        }
        if !in_range(self.presence_penalty, -2.0..=2.0) {
            return refuse("presence_penalty");
        }
        if !in_range(self.frequency_penalty, -2.0..=2.0) {
            return refuse("frequency_penalty");
        }
        let biases = &self.token_biases;
        if biases.len() > MAX_TOKEN_BIASES
            || !biases.is_sorted_by(|a, b| a.token < b.token)
            || !biases.iter().all(|bias| in_range(bias.bias, -100.0..=100.0))
        {
            return refuse("token_biases");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::turn::Sampling as Asked;

    use super::*;

    /// The engine's and the protocol's verdict on the same settings.
    fn verdicts(change: impl FnOnce(&mut Asked)) -> [bool; 2] {
        let mut asked = Asked::default();
        change(&mut asked);
        let ours = Sampling::asked(&asked, 1);
        [ours.validate().is_ok(), asked.check().is_ok()]
    }

    #[test]
    fn accepts_exactly_the_numbers_that_the_protocol_accepts() {
        let edges = [-1.0, -0.0, 0.0, f32::MIN_POSITIVE, 1.0, 1.0f32.next_up(), 5.0, 5.0f32.next_up(), 10.0];
        let edges = edges.into_iter().chain([10.0f32.next_up(), f32::INFINITY, f32::NAN]);
        let mut accepted = 0;
        for value in edges {
            for [ours, protocol] in [
                verdicts(|asked| asked.temperature = value),
                verdicts(|asked| asked.top_p = value),
                verdicts(|asked| asked.min_p = value),
                verdicts(|asked| asked.repetition_penalty = value),
            ] {
                assert_eq!(ours, protocol, "{value}");
                accepted += u32::from(ours);
            }
        }
        assert_eq!(accepted, 5 + 2 + 3 + 6);
    }

    #[test]
    fn reports_as_many_alternatives_as_the_protocol_allows() {
        for (count, expected) in [(0, true), (MAX_LOGPROBS, true), (MAX_LOGPROBS + 1, false)] {
            assert_eq!(verdicts(|asked| asked.logprobs = count), [expected; 2]);
        }
    }

    #[test]
    fn accepts_exactly_the_stop_strings_that_the_protocol_accepts() {
        let many = |count| vec!["x".to_owned(); count];
        for (stop, expected) in [
            (many(MAX_STOP_STRINGS), true),
            (many(MAX_STOP_STRINGS + 1), false),
            (vec!["x".repeat(MAX_STOP_BYTES)], true),
            (vec!["x".repeat(MAX_STOP_BYTES + 1)], false),
            (vec![String::new()], false),
        ] {
            assert_eq!(verdicts(|asked| asked.stop = stop), [expected; 2]);
        }
    }
}
