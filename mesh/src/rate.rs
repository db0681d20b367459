//! Rate limits by peer, session or subnet: token buckets in a bounded table.
//!
//! Pure: the caller passes in the time. It stands in this crate because every role that serves streams needs
//! it.

use std::{collections::HashMap, hash::Hash, time::Duration};

use tokio::time::Instant;

/// Keys whose rates are remembered. When full, the least recently used keys are forgotten, which restores
/// their burst.
pub const MAX_RATE_ENTRIES: usize = 4096;
/// Keys forgotten at once when no bucket is full again, so that a flood of new keys does not scan the table
/// for each.
const FORGOTTEN_AT_ONCE: usize = MAX_RATE_ENTRIES / 8;

/// One minute, in milliseconds.
const MINUTE_MS: u64 = 60_000;

/// One bucket for each key, which holds one period's amount, or less, and refills evenly.
#[derive(Debug)]
pub struct Rates<K> {
    amount: u64,
    /// Requests that a full bucket holds; at most `amount`.
    at_once: u64,
    period_ms: u64,
    buckets: HashMap<K, Bucket>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    /// Remaining level, in units of 1/`period_ms` of a request, so that refills are whole numbers.
    level: u128,
    at_ms: u64,
}

impl<K: Copy + Eq + Hash> Rates<K> {
    /// Buckets of `per_minute` requests a minute, at least one.
    #[must_use]
    pub fn new(per_minute: u32) -> Self {
        Self::per(per_minute.into(), MINUTE_MS)
    }

    /// Buckets of `amount` requests in each period, at least one.
    #[must_use]
    pub fn per(amount: u64, period_ms: u64) -> Self {
        let amount = amount.max(1);
        Self { amount, at_once: amount, period_ms: period_ms.max(1), buckets: HashMap::new() }
    }

    /// The same rate from buckets that hold `at_once` requests, at least one and at most a period's amount.
    #[must_use]
    pub fn in_bursts_of(self, at_once: u64) -> Self {
        Self { at_once: at_once.clamp(1, self.amount), ..self }
    }

    /// Takes one request of `key`.
    ///
    /// # Errors
    /// The wait in milliseconds until one is available.
    pub fn take(&mut self, key: K, now_ms: u64) -> Result<(), u32> {
        self.take_many(key, 1, now_ms)
    }

    /// Takes `count` requests at once, all or none. A `count` above the bucket's size takes a full bucket.
    ///
    /// # Errors
    /// The wait in milliseconds until that many are available.
    pub fn take_many(&mut self, key: K, count: u64, now_ms: u64) -> Result<(), u32> {
        self.make_room(&key, now_ms);
        let full = self.full();
        let cost = u128::from(count.min(self.at_once)) * u128::from(self.period_ms);
        let level = self.level(&key, now_ms);
        let at_ms = self.buckets.get(&key).map_or(now_ms, |bucket| bucket.at_ms.max(now_ms));
        let left = level.min(full).checked_sub(cost);
        self.buckets.insert(key, Bucket { level: left.unwrap_or(level), at_ms });
        match left {
            Some(_) => Ok(()),
            None => {
                let wait = (cost - level).div_ceil(u128::from(self.amount));
                Err(u32::try_from(wait).unwrap_or(u32::MAX))
            }
        }
    }

    /// Returns requests that were taken and not used; never more than were taken.
    pub fn give_back(&mut self, key: &K, count: u64) {
        let full = self.full();
        if let Some(bucket) = self.buckets.get_mut(key) {
            let back = u128::from(count) * u128::from(self.period_ms);
            bucket.level = bucket.level.saturating_add(back).min(full);
        }
    }

    /// Requests that `key` could make at once now.
    #[must_use]
    pub fn left(&self, key: &K, now_ms: u64) -> u64 {
        u64::try_from(self.level(key, now_ms) / u128::from(self.period_ms)).unwrap_or(u64::MAX)
    }

    /// The requests that each remembered key could make at once now, where a bucket is not full.
    pub fn levels(&self, now_ms: u64) -> impl Iterator<Item = (K, u64)> {
        let each = self.buckets.keys().map(move |key| (*key, self.left(key, now_ms)));
        each.filter(|(_, left)| *left < self.at_once)
    }

    /// Sets a bucket to the requests that it held at a time, as after a restart.
    pub fn restore(&mut self, key: K, left: u64, at_ms: u64) {
        self.make_room(&key, at_ms);
        let level = u128::from(left.min(self.at_once)) * u128::from(self.period_ms);
        self.buckets.insert(key, Bucket { level, at_ms });
    }

    /// The wait in milliseconds until `key` could make a request; 0 if it could now. Takes nothing.
    #[must_use]
    pub fn wait_ms(&self, key: &K, now_ms: u64) -> u32 {
        let lacking = u128::from(self.period_ms).saturating_sub(self.level(key, now_ms));
        u32::try_from(lacking.div_ceil(u128::from(self.amount))).unwrap_or(u32::MAX)
    }

    /// The number of remembered keys, at most [`MAX_RATE_ENTRIES`].
    #[must_use]
    pub fn len(&self) -> usize {
        self.buckets.len()
    }

    /// Whether no keys are remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    fn full(&self) -> u128 {
        u128::from(self.at_once) * u128::from(self.period_ms)
    }

    fn level(&self, key: &K, now_ms: u64) -> u128 {
        let full = self.full();
        self.buckets.get(key).map_or(full, |bucket| {
            let refill = u128::from(now_ms.saturating_sub(bucket.at_ms)) * u128::from(self.amount);
            bucket.level.saturating_add(refill).min(full)
        })
    }

    fn make_room(&mut self, key: &K, now_ms: u64) {
        if self.buckets.len() < MAX_RATE_ENTRIES || self.buckets.contains_key(key) {
            return;
        }
        // A bucket untouched for a period is full again, so forgetting it changes nothing.
        let period_ms = self.period_ms;
        self.buckets.retain(|_, bucket| now_ms.saturating_sub(bucket.at_ms) < period_ms);
        if self.buckets.len() < MAX_RATE_ENTRIES {
            return;
        }
        let mut times: Vec<u64> = self.buckets.values().map(|bucket| bucket.at_ms).collect();
        let (_, oldest, _) = times.select_nth_unstable(FORGOTTEN_AT_ONCE);
        let mut left = FORGOTTEN_AT_ONCE;
        let oldest = *oldest;
        self.buckets.retain(|_, bucket| {
            let evicted = bucket.at_ms <= oldest && left > 0;
            left -= usize::from(evicted);
            !evicted
        });
    }
}

/// A single bucket: a burst of `at_once`, then one each interval.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    interval: Duration,
    burst: Duration,
    /// When the bucket is full again.
    full: Option<Instant>,
}

impl Pace {
    /// A burst of `at_once`, refilled at `per_second`, each at least one.
    pub(crate) fn new(at_once: u32, per_second: u32) -> Self {
        let interval = Duration::from_secs(1) / per_second.max(1);
        Self { interval, burst: interval.saturating_mul(at_once.max(1)), full: None }
    }

    /// Takes one, if available.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let full = self.full.map_or(now, |full| full.max(now)) + self.interval;
        let is_left = full - now <= self.burst;
        if is_left {
            self.full = Some(full);
        }
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_allows_a_burst_and_then_its_rate() {
        let (mut pace, start) = (Pace::new(8, 4), Instant::now());
        let mut taken = |at_ms| {
            let now = start + Duration::from_millis(at_ms);
            (0..100).filter(|_| pace.take(now)).count()
        };
        assert_eq!([taken(0), taken(249), taken(250), taken(1000), taken(60_000)], [8, 0, 1, 3, 8]);
        let mut unbounded = Pace::new(u32::MAX, u32::MAX);
        assert!((0..100_000).all(|_| unbounded.take(start)));
    }

    #[test]
    fn a_burst_may_be_smaller_than_a_periods_amount() {
        let mut rates = Rates::new(120).in_bursts_of(3);
        let burst = (0..10).filter(|_| rates.take(7, 0).is_ok()).count();
        assert_eq!((burst, rates.take(7, 0)), (3, Err(500)));
        let minute = (1..=60_000).filter(|now_ms| rates.take(7, *now_ms).is_ok()).count();
        assert_eq!(minute, 120, "the rate is the same");
        assert_eq!(rates.left(&7, 200_000), 3);
        assert_eq!(Rates::<u8>::new(2).in_bursts_of(9).left(&7, 0), 2, "never more than a period's amount");
    }

    #[test]
    fn refuses_beyond_the_burst_and_says_when_to_come_back() {
        let mut rates = Rates::new(3);
        for taken in 0..3 {
            assert_eq!(rates.left(&1u8, 0), 3 - taken);
            assert_eq!(rates.take(1u8, 0), Ok(()));
        }
        assert_eq!((rates.left(&1, 0), rates.left(&1, 20_000), rates.left(&1, 600_000)), (0, 1, 3));
        assert_eq!((rates.wait_ms(&1, 0), rates.wait_ms(&1, 20_000), rates.wait_ms(&2, 0)), (20_000, 0, 0));
        assert_eq!(rates.take(1, 0), Err(20_000));
        assert_eq!(rates.take(2, 0), Ok(()), "another key has its own bucket");
        assert_eq!(rates.take(1, 19_999), Err(1));
        assert_eq!(rates.take(1, 20_000), Ok(()));
        assert_eq!(rates.take(1, 20_000), Err(20_000));
    }

    #[test]
    fn a_clock_that_goes_back_gives_nothing() {
        let mut rates = Rates::new(1);
        assert_eq!(rates.take(1u8, 100_000), Ok(()));
        assert!(rates.take(1, 0).is_err());
        assert!(rates.take(1, 100_001).is_err());
    }

    #[test]
    fn unused_requests_come_back_but_never_more_than_a_bucket() {
        let mut rates = Rates::per(100, 3_600_000);
        assert_eq!(rates.take_many(1u8, 60, 0), Ok(()));
        assert_eq!(rates.take_many(1, 60, 0), Err(720_000), "twenty more in a fifth of the hour");
        rates.give_back(&1, 50);
        assert_eq!(rates.take_many(1, 60, 0), Ok(()));
        rates.give_back(&1, 1000);
        assert_eq!(rates.left(&1, 0), 100);
        assert_eq!(rates.take_many(1, 1_000_000, 0), Ok(()), "more than a bucket takes a full one");
        assert_eq!(rates.left(&1, 0), 0);
    }

    #[test]
    fn the_table_is_bounded() {
        let mut rates = Rates::new(1);
        for key in 0..MAX_RATE_ENTRIES + 100 {
            rates.take(key, key as u64).unwrap();
        }
        assert!(rates.buckets.len() <= MAX_RATE_ENTRIES);
    }
}
