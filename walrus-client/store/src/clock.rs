//! The store's time: a clock that can be set, and its epochs.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// A clock: Unix time in milliseconds.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl Clock {
    /// The clock that this function reads.
    pub fn new(now_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(now_ms))
    }

    /// The system's clock.
    #[must_use]
    pub fn system() -> Self {
        Self::new(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        })
    }

    /// A stopped clock.
    #[must_use]
    pub fn fixed(now_ms: u64) -> Self {
        Self::new(move || now_ms)
    }

    /// Unix time in milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.now_ms()).finish()
    }
}

/// Epochs of equal length since an anchor. They are on disk, so a restart does not change them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Epochs {
    /// The epoch that began at `anchor_ms`.
    anchor_epoch: u64,
    anchor_ms: u64,
    duration_ms: u64,
    /// Total forward shift of the clock.
    shift_ms: u64,
}

/// The current epoch and the time to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EpochInfo {
    /// The current epoch.
    pub epoch: u64,
    /// Time until the next epoch, in milliseconds.
    pub until_next_ms: u64,
}

impl Epochs {
    /// Epochs whose first begins now.
    pub(super) fn new(first: u64, duration: Duration, now_ms: u64) -> Self {
        let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1);
        Self { anchor_epoch: first, anchor_ms: now_ms, duration_ms, shift_ms: 0 }
    }

    /// The current epoch. A clock before the anchor is in the anchor's epoch.
    pub(super) fn at(&self, now_ms: u64) -> EpochInfo {
        let since = now_ms.saturating_add(self.shift_ms).saturating_sub(self.anchor_ms);
        EpochInfo {
            epoch: self.anchor_epoch.saturating_add(since / self.duration_ms),
            until_next_ms: self.duration_ms - since % self.duration_ms,
        }
    }

    /// The same epochs with the clock moved forward.
    pub(super) fn moved(self, forward: Duration) -> Self {
        let forward = u64::try_from(forward.as_millis()).unwrap_or(u64::MAX);
        Self { shift_ms: self.shift_ms.saturating_add(forward), ..self }
    }

    /// The same epochs with another length from now on: the current epoch starts again.
    pub(super) fn with_duration(self, duration: Duration, now_ms: u64) -> Self {
        let renewed = Self::new(self.at(now_ms).epoch, duration, now_ms.saturating_add(self.shift_ms));
        if renewed.duration_ms == self.duration_ms {
            self
        } else {
            Self { shift_ms: self.shift_ms, ..renewed }
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let numbers = [self.anchor_epoch, self.anchor_ms, self.duration_ms, self.shift_ms];
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let ([anchor_epoch, anchor_ms, duration_ms, shift_ms], []) = bytes.as_chunks::<8>() else {
            return None;
        };
        let duration_ms = u64::from_le_bytes(*duration_ms);
        (duration_ms > 0).then(|| Self {
            anchor_epoch: u64::from_le_bytes(*anchor_epoch),
            anchor_ms: u64::from_le_bytes(*anchor_ms),
            duration_ms,
            shift_ms: u64::from_le_bytes(*shift_ms),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);
    const DAY_MS: u64 = 86_400_000;

    #[test]
    fn epochs_follow_the_clock_from_their_anchor() {
        let epochs = Epochs::new(7, DAY, 1_000);
        let at = |now_ms| (epochs.at(now_ms).epoch, epochs.at(now_ms).until_next_ms);
        assert_eq!(at(0), (7, DAY_MS));
        assert_eq!(at(1_000), (7, DAY_MS));
        assert_eq!(at(DAY_MS + 999), (7, 1));
        assert_eq!(at(DAY_MS + 1_000), (8, DAY_MS));
        assert_eq!(epochs.moved(2 * DAY).at(1_000).epoch, 9);
        assert!(epochs.moved(Duration::MAX).moved(DAY).at(u64::MAX).until_next_ms > 0);
        assert_eq!(Epochs::decode(&epochs.encode()), Some(epochs));
        assert_eq!(Epochs::decode(&[0; 32]), None, "a duration of zero");
        assert_eq!(Epochs::decode(&[1; 31]), None);
    }

    #[test]
    fn another_duration_counts_from_the_current_epoch() {
        let epochs = Epochs::new(7, DAY, 0).moved(3 * DAY);
        assert_eq!(epochs.with_duration(DAY, 50), epochs);
        let shorter = epochs.with_duration(Duration::from_secs(1), 50);
        assert_eq!(shorter.at(50).epoch, 10);
        assert_eq!(shorter.at(1_050).epoch, 11);
    }
}
