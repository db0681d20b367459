//! The pace of an answer, when it has stalled, and when its first token is due. Pure: the caller passes the
//! time.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use crate::network::reputation::SpeedSample;

/// Tokens over which the recent pace is taken.
const RECENT_TOKENS: usize = 16;
/// A node that sends nothing for this multiple of its recent pace has stalled.
const STALL_FACTOR: u32 = 3;

/// A node may begin this many times later than its average.
const FIRST_TOKEN_FACTOR: u32 = 4;
/// Time per prompt token at a node of unknown speed: enough for a small machine without an accelerator.
const READ_TOKEN_UNKNOWN: Duration = Duration::from_millis(50);
/// Extra time per prompt token at a node with a known average, to allow for prompt variance.
const READ_TOKEN_KNOWN: Duration = Duration::from_millis(10);

/// Bytes of text per token when speeds are measured, for today's tokenizers and most languages.
const BYTES_PER_TOKEN: f64 = 4.0;
/// A shorter answer gives no usable speed.
const MIN_MEASURED_BYTES: usize = 64;

/// How long to wait for a node's first token: at least `least`. A long prompt, or a node measured as slow to
/// begin, gets longer. The caller caps it.
pub(crate) fn first_token_wait(least: Duration, prompt_tokens: u32, measured: Option<Duration>) -> Duration {
    let expected = match measured {
        Some(usual) => {
            usual.saturating_mul(FIRST_TOKEN_FACTOR).saturating_add(READ_TOKEN_KNOWN * prompt_tokens)
        }
        None => READ_TOKEN_UNKNOWN * prompt_tokens,
    };
    least.max(expected)
}

/// The pace of arriving tokens.
#[derive(Default)]
pub(super) struct TokenPace {
    first: Option<Instant>,
    last: Option<Instant>,
    /// Bytes of text after the first event with text.
    bytes: usize,
    /// Duration of each of the latest tokens, oldest first.
    recent: VecDeque<Duration>,
}

impl TokenPace {
    pub(super) fn arrived(&mut self, now: Instant, tokens: usize, bytes: usize) {
        match self.first {
            Some(_) => self.bytes += bytes,
            // Ids alone are no answer yet.
            None => self.first = (bytes > 0).then_some(now),
        }
        if let (Some(last), Ok(tokens)) = (self.last, u32::try_from(tokens.max(1))) {
            if self.recent.len() == RECENT_TOKENS {
                self.recent.pop_front();
            }
            self.recent.push_back(now.saturating_duration_since(last) / tokens);
        }
        self.last = Some(now);
    }

    /// The speed of the answer to a turn sent at `sent`.
    pub(super) fn measured(&self, sent: Instant) -> SpeedSample {
        let span = self.first.zip(self.last).map(|(first, last)| last.saturating_duration_since(first));
        let span = span.filter(|span| self.bytes >= MIN_MEASURED_BYTES && !span.is_zero());
        SpeedSample {
            first_token: self.first.map(|first| first.saturating_duration_since(sent)),
            tokens_per_second: span.map(|span| self.bytes as f64 / BYTES_PER_TOKEN / span.as_secs_f64()),
        }
    }

    /// The silence after which the node counts as stalled; none before the first token, whose delay depends
    /// on the prompt.
    pub(super) fn stalls_after(&self, least: Duration) -> Option<Duration> {
        self.last?;
        let recent: Duration = self.recent.iter().sum();
        let mean = recent / u32::try_from(self.recent.len().max(1)).unwrap_or(1);
        Some(least.max(mean * STALL_FACTOR))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_stalls_at_three_times_its_pace_but_not_before_the_least() {
        let least = Duration::from_secs(2);
        let mut pace = TokenPace::default();
        assert_eq!(pace.stalls_after(least), None, "before the first token");
        let mut now = Instant::now();
        pace.arrived(now, 1, 4);
        assert_eq!(pace.stalls_after(least), Some(least));
        for _ in 0..RECENT_TOKENS {
            now += Duration::from_secs(2);
            pace.arrived(now, 2, 8);
        }
        assert_eq!(pace.stalls_after(least), Some(Duration::from_secs(3)), "a second for each token");
        for _ in 0..RECENT_TOKENS {
            now += Duration::from_millis(10);
            pace.arrived(now, 1, 4);
        }
        assert_eq!(pace.stalls_after(least), Some(least), "what was long ago does not count");
    }

    #[test]
    fn a_first_token_is_waited_for_by_prompt_and_node_and_never_shorter_than_the_least() {
        let least = Duration::from_secs(10);
        let seconds = |tokens, measured: Option<f64>| {
            first_token_wait(least, tokens, measured.map(Duration::from_secs_f64)).as_secs_f64()
        };
        assert!((seconds(0, None) - 10.0).abs() < 0.01);
        assert!((seconds(100, Some(0.2)) - 10.0).abs() < 0.01, "a quick node has the least, too");
        assert!((seconds(1000, None) - 50.0).abs() < 0.01, "a long prompt");
        assert!((seconds(1000, Some(0.2)) - 10.8).abs() < 0.01, "at a node that reads fast");
        assert!((seconds(100, Some(20.0)) - 81.0).abs() < 0.01, "at one that begins late");
        assert!(first_token_wait(least, u32::MAX, Some(Duration::MAX)) > least, "no overflow");
    }

    #[test]
    fn speed_is_measured_by_text_and_not_by_what_is_said_of_it() {
        let sent = Instant::now();
        let (mut pace, mut now) = (TokenPace::default(), sent + Duration::from_millis(300));
        pace.arrived(sent, 500, 0);
        pace.arrived(now, 500, 4);
        assert_eq!(pace.measured(sent).first_token, Some(Duration::from_millis(300)));
        assert_eq!(pace.measured(sent).tokens_per_second, None, "too short to tell");
        for _ in 0..20 {
            now += Duration::from_millis(100);
            // Five hundred ids for four bytes of text.
            pace.arrived(now, 500, 4);
        }
        let rate = pace.measured(sent).tokens_per_second.unwrap();
        assert!((rate - 10.0).abs() < 0.01, "{rate}");
    }
}
