//! Speed of the last minute's answers, for people who read the status.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::observer::TurnSummary;

/// The period of the figures.
const WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of turns. With more in a minute, the newest are representative.
const MAX_TURNS: usize = 1024;

/// Figures of the last minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Speed {
    /// Committed turns.
    pub(crate) turns: u64,
    /// Tokens generated for them.
    pub(crate) output_tokens: u64,
    /// Sum of the milliseconds from first to last token.
    pub(crate) generating_ms: u64,
    /// Median of the milliseconds from admission to first token.
    pub(crate) first_token_ms: Option<u32>,
}

impl Speed {
    /// Tokens a second of the whole node over the minute.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    pub(crate) fn tokens_per_second(&self) -> f64 {
        self.output_tokens as f64 / WINDOW.as_secs_f64()
    }

    /// Tokens a second for one reader; `None` if no time passed.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    pub(crate) fn tokens_per_second_each(&self) -> Option<f64> {
        (self.generating_ms > 0).then(|| self.output_tokens as f64 * 1000.0 / self.generating_ms as f64)
    }
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    ended: Instant,
    output_tokens: u32,
    generating_ms: u32,
    first_token_ms: u32,
}

/// Recently ended turns.
#[derive(Debug, Default)]
pub(super) struct Recent(Mutex<VecDeque<Turn>>);

impl Recent {
    pub(super) fn finished(&self, turn: &TurnSummary, now: Instant) {
        let mut turns = self.0.lock();
        if turns.len() >= MAX_TURNS {
            turns.pop_front();
        }
        turns.push_back(Turn {
            ended: now,
            output_tokens: turn.output_tokens,
            generating_ms: turn.total_ms.saturating_sub(turn.first_token_ms),
            first_token_ms: turn.first_token_ms,
        });
    }

    pub(super) fn speed(&self, now: Instant) -> Speed {
        let mut turns = self.0.lock();
        turns.retain(|turn| now.saturating_duration_since(turn.ended) <= WINDOW);
        let mut waits: Vec<u32> = turns.iter().map(|turn| turn.first_token_ms).collect();
        waits.sort_unstable();
        Speed {
            turns: turns.len() as u64,
            output_tokens: turns.iter().map(|turn| u64::from(turn.output_tokens)).sum(),
            generating_ms: turns.iter().map(|turn| u64::from(turn.generating_ms)).sum(),
            first_token_ms: waits.get(waits.len() / 2).copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_last_minute_and_nothing_before() {
        let recent = Recent::default();
        let start = Instant::now();
        let turn = |output_tokens, first_token_ms, total_ms| TurnSummary {
            input_tokens: 5,
            output_tokens,
            queue_ms: 0,
            first_token_ms,
            total_ms,
            price: 0,
        };
        recent.finished(&turn(100, 200, 2200), start);
        recent.finished(&turn(60, 300, 1300), start + Duration::from_secs(30));
        let speed = recent.speed(start + Duration::from_secs(40));
        assert_eq!((speed.turns, speed.output_tokens, speed.generating_ms), (2, 160, 3000));
        assert_eq!(speed.first_token_ms, Some(300));
        assert!(speed.tokens_per_second_each().is_some_and(|each| (53.0..54.0).contains(&each)));
        let later = recent.speed(start + Duration::from_secs(61));
        assert_eq!((later.turns, later.output_tokens), (1, 60));
        assert!((later.tokens_per_second() - 1.0).abs() < 1e-9);
        assert_eq!(recent.speed(start + Duration::from_secs(91)), Speed::default());
        for _ in 0..2 * MAX_TURNS {
            recent.finished(&turn(1, 1, 1), start);
        }
        assert_eq!(recent.speed(start).turns, MAX_TURNS as u64);
        assert_eq!(recent.speed(start).tokens_per_second_each(), None);
    }
}
