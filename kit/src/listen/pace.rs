//! How far a peer lags behind the slowest accepted pace.

use std::time::Duration;

use tokio::time::Instant;

use super::MIN_TRANSFER_RATE;

/// How far a peer lags behind [`MIN_TRANSFER_RATE`]: the server's time of waiting for it, minus the time that
/// the moved bytes are worth. Only time in which the server waits for the peer counts.
#[derive(Debug, Default)]
pub(super) struct Lag {
    time: Duration,
    since: Option<Instant>,
}

impl Lag {
    /// Notes that the peer moves nothing for now. Returns the start of its lag, as if it had never moved
    /// since.
    pub(super) fn stalled(&mut self, now: Instant) -> Instant {
        let since = *self.since.get_or_insert(now);
        since.checked_sub(self.time).unwrap_or(since)
    }

    /// Notes the bytes that the peer moved.
    pub(super) fn moved(&mut self, bytes: usize, now: Instant) {
        let waited = self.since.take().map(|since| now.saturating_duration_since(since)).unwrap_or_default();
        let worth = Duration::from_micros(bytes as u64 * 1_000_000 / MIN_TRANSFER_RATE);
        self.time = (self.time + waited).saturating_sub(worth);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::IDLE_TIMEOUT, *};

    #[test]
    fn a_peer_lags_by_its_pace_and_not_by_the_pauses_of_the_server() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let rate = usize::try_from(MIN_TRANSFER_RATE).unwrap();
        for (bytes_a_second, lags) in [(rate / 2, true), (rate, false), (2 * rate, false)] {
            let mut lag = Lag::default();
            for number in 0..100 {
                lag.stalled(start + number * second);
                lag.moved(bytes_a_second, start + (number + 1) * second);
            }
            let due = lag.stalled(start + 100 * second) + IDLE_TIMEOUT;
            assert_eq!(due <= start + 100 * second, lags, "{bytes_a_second}");
        }
        let mut lag = Lag::default();
        // An hour between two writes that are taken at once.
        lag.moved(1, start);
        lag.moved(1, start + 3600 * second);
        assert_eq!(lag.stalled(start + 3600 * second), start + 3600 * second);
    }
}
