//! The current epoch, estimated from publishers' answers and their times.
//!
//! Pure. An answer that names the present epoch proves that this epoch had begun and was not over. Epochs
//! have a known, equal length, so one answer bounds the start of every epoch to one length. Further answers
//! can only narrow the bounds. Where a moment matters, the early bound is the careful choice.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Greatest age of an answer's epoch on arrival: publishers register, encode and upload in between.
const ANSWER_AGE_MS: i128 = 10 * 60 * 1000;

/// An estimate of the start of epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochClock {
    epoch_ms: u64,
    /// Bounds of the start of epoch 0, in Unix milliseconds; may be before 1970.
    zero: Option<Zero>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Zero {
    earliest: i64,
    latest: i64,
}

/// Bounds of a time, in Unix milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TimeBounds {
    /// Not before this.
    pub earliest_ms: u64,
    /// Not after this.
    pub latest_ms: u64,
}

/// Bounds of an epoch number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct EpochBounds {
    /// Not before this epoch.
    pub earliest: u64,
    /// Not after this epoch.
    pub latest: u64,
}

impl EpochClock {
    /// Epoch length of mainnet: two weeks.
    pub const MAINNET_EPOCH: Duration = Duration::from_secs(14 * 24 * 3600);
    /// Epoch length of testnet: a day.
    pub const TESTNET_EPOCH: Duration = Duration::from_secs(24 * 3600);

    /// A clock without observations, for epochs of this length (at least a millisecond).
    #[must_use]
    pub fn new(epoch: Duration) -> Self {
        let epoch_ms = u64::try_from(epoch.as_millis()).unwrap_or(u64::MAX).max(1);
        Self { epoch_ms, zero: None }
    }

    /// The length of an epoch.
    #[must_use]
    pub fn epoch(&self) -> Duration {
        Duration::from_millis(self.epoch_ms)
    }

    /// Notes that an answer at this time named this as the present epoch. A contradicting answer replaces
    /// earlier ones, since it is newer. Returns false for a number that no clock can hold.
    pub fn observe(&mut self, epoch: u64, at_ms: u64) -> bool {
        let began_by = i128::from(at_ms) - i128::from(epoch) * i128::from(self.epoch_ms);
        let not_over = began_by - i128::from(self.epoch_ms) - ANSWER_AGE_MS;
        let (Ok(earliest), Ok(latest)) = (i64::try_from(not_over), i64::try_from(began_by)) else {
            return false;
        };
        let seen = Zero { earliest, latest };
        let both = self.zero.map(|known| Zero {
            earliest: known.earliest.max(seen.earliest),
            latest: known.latest.min(seen.latest),
        });
        self.zero = Some(both.filter(|both| both.earliest <= both.latest).unwrap_or(seen));
        true
    }

    /// The start of an epoch, if anything is known.
    #[must_use]
    pub fn begins(&self, epoch: u64) -> Option<TimeBounds> {
        let zero = self.zero?;
        let offset = i128::from(epoch) * i128::from(self.epoch_ms);
        let time = |zero: i64| clamp(i128::from(zero) + offset);
        Some(TimeBounds { earliest_ms: time(zero.earliest), latest_ms: time(zero.latest) })
    }

    /// The epoch at a time, if anything is known.
    #[must_use]
    pub fn epoch_at(&self, now_ms: u64) -> Option<EpochBounds> {
        let zero = self.zero?;
        let number =
            |zero: i64| clamp((i128::from(now_ms) - i128::from(zero)).div_euclid(i128::from(self.epoch_ms)));
        Some(EpochBounds { earliest: number(zero.latest), latest: number(zero.earliest) })
    }

    /// The end of the epoch at a time. A blob stored then lives at least until that end.
    #[must_use]
    pub fn epoch_end(&self, at_ms: u64) -> Option<TimeBounds> {
        let now = self.epoch_at(at_ms)?;
        let end = |epoch: u64| self.begins(epoch.saturating_add(1));
        Some(TimeBounds {
            earliest_ms: end(now.earliest)?.earliest_ms.max(at_ms),
            latest_ms: end(now.latest)?.latest_ms,
        })
    }
}

fn clamp(value: i128) -> u64 {
    u64::try_from(value.max(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;
    const AGE: u64 = 600_000;

    fn clock() -> EpochClock {
        EpochClock::new(Duration::from_millis(24 * HOUR))
    }

    #[test]
    fn nothing_is_known_before_the_first_answer() {
        assert_eq!((clock().begins(3), clock().epoch_at(HOUR), clock().epoch_end(HOUR)), (None, None, None));
    }

    #[test]
    fn one_answer_bounds_the_beginning_to_an_epoch() {
        let mut clock = clock();
        assert!(clock.observe(10, 1000 * HOUR));
        let next = clock.begins(11).unwrap();
        assert_eq!((next.earliest_ms, next.latest_ms), (1000 * HOUR - AGE, 1024 * HOUR));
        let now = clock.epoch_at(1000 * HOUR).unwrap();
        assert_eq!((now.earliest, now.latest), (10, 11), "the answer may be some minutes old");
    }

    #[test]
    fn further_answers_narrow_it() {
        let mut clock = clock();
        // Epoch 10 runs from hour 1000 to hour 1024.
        clock.observe(10, 1020 * HOUR);
        clock.observe(11, 1025 * HOUR);
        let end = clock.begins(11).unwrap();
        assert_eq!((end.earliest_ms, end.latest_ms), (1020 * HOUR - AGE, 1025 * HOUR));
        assert!(end.earliest_ms <= 1024 * HOUR && 1024 * HOUR <= end.latest_ms);
        let now = clock.epoch_at(1030 * HOUR).unwrap();
        assert_eq!((now.earliest, now.latest), (11, 11));
        let rest = clock.epoch_end(1030 * HOUR).unwrap();
        assert_eq!((rest.earliest_ms, rest.latest_ms), (1044 * HOUR - AGE, 1049 * HOUR));
    }

    #[test]
    fn the_newer_answer_wins_over_those_it_contradicts() {
        let mut clock = clock();
        clock.observe(10, 1000 * HOUR);
        clock.observe(3, 1001 * HOUR);
        assert_eq!(clock.epoch_at(1001 * HOUR).unwrap().earliest, 3);
    }

    #[test]
    fn absurd_epochs_change_nothing() {
        let mut clock = clock();
        clock.observe(10, 1000 * HOUR);
        let before = clock;
        assert!(!clock.observe(u64::MAX, 1000 * HOUR));
        assert_eq!(clock, before);
        assert_eq!(clock.begins(u64::MAX).unwrap().latest_ms, u64::MAX);
        assert_eq!(EpochClock::new(Duration::ZERO).epoch(), Duration::from_millis(1));
    }
}
