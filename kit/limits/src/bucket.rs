//! Token buckets: an amount in a period, of which a part may come at once.

use std::hash::Hash;

use crate::bounded_map::BoundedMap;

/// An amount in a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    amount: u64,
    period_ms: u64,
    burst: u64,
}

impl Rate {
    /// An amount a second.
    #[must_use]
    pub const fn per_second(amount: u64) -> Self {
        Self { amount, period_ms: 1_000, burst: amount }
    }

    /// An amount a minute.
    #[must_use]
    pub const fn per_minute(amount: u64) -> Self {
        Self { amount, period_ms: 60_000, burst: amount }
    }

    /// An amount an hour.
    #[must_use]
    pub const fn per_hour(amount: u64) -> Self {
        Self { amount, period_ms: 3_600_000, burst: amount }
    }

    /// The same rate, of which `burst` may come at once: otherwise it is a whole period's amount.
    #[must_use]
    pub const fn in_bursts_of(self, burst: u64) -> Self {
        Self { burst, ..self }
    }

    /// The amount that may come at once.
    #[must_use]
    pub const fn burst(&self) -> u64 {
        self.burst
    }

    fn scaled(&self, count: u64) -> u128 {
        u128::from(count) * u128::from(self.period_ms)
    }
}

/// The use of one key at one rate, which the caller passes in: keys may have rates of their own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Use at `at_ms`, in units of 1/`period_ms`, so that its decay is a whole number.
    used: u128,
    at_ms: u64,
}

impl Bucket {
    /// A bucket with this use at a time, as after a restart.
    #[must_use]
    pub fn used(count: u64, at_ms: u64, rate: &Rate) -> Self {
        Self { used: rate.scaled(count), at_ms }
    }

    /// The use now. A rate that was lowered since makes the bucket empty, and no more.
    fn used_at(&self, rate: &Rate, now_ms: u64) -> u128 {
        let decayed = u128::from(now_ms.saturating_sub(self.at_ms)) * u128::from(rate.amount);
        self.used.min(rate.scaled(rate.burst)).saturating_sub(decayed)
    }

    /// The use now, rounded up.
    #[must_use]
    pub fn in_use(&self, rate: &Rate, now_ms: u64) -> u64 {
        u64::try_from(self.used_at(rate, now_ms).div_ceil(u128::from(rate.period_ms))).unwrap_or(u64::MAX)
    }

    /// The amount that may come at once now.
    #[must_use]
    pub fn left(&self, rate: &Rate, now_ms: u64) -> u64 {
        rate.burst.saturating_sub(self.in_use(rate, now_ms))
    }

    /// The wait in milliseconds until `count` may come at once; 0 if they may now, `u32::MAX` if they never may.
    #[must_use]
    pub fn wait_ms(&self, rate: &Rate, count: u64, now_ms: u64) -> u32 {
        if count > rate.burst {
            return u32::MAX;
        }
        let over = self.used_at(rate, now_ms) + rate.scaled(count);
        let over = over.saturating_sub(rate.scaled(rate.burst));
        u32::try_from(over.div_ceil(u128::from(rate.amount.max(1)))).unwrap_or(u32::MAX)
    }

    /// Takes `count`, all or none.
    ///
    /// # Errors
    /// [`Self::wait_ms`].
    pub fn take(&mut self, rate: &Rate, count: u64, now_ms: u64) -> Result<(), u32> {
        let wait_ms = self.wait_ms(rate, count, now_ms);
        self.used = self.used_at(rate, now_ms);
        // A clock that goes back gives nothing.
        self.at_ms = self.at_ms.max(now_ms);
        if wait_ms > 0 {
            return Err(wait_ms);
        }
        self.used += rate.scaled(count);
        Ok(())
    }

    /// Returns an amount that was taken and not used.
    pub fn give_back(&mut self, rate: &Rate, count: u64) {
        self.used = self.used.saturating_sub(rate.scaled(count));
    }

    /// The time of the last use.
    #[must_use]
    pub fn at_ms(&self) -> u64 {
        self.at_ms
    }
}

/// A bucket for each key, at one rate; at most [`MAX_KEYS`](crate::MAX_KEYS). When full, the least recently used go,
/// which gives their keys a full burst.
#[derive(Debug, Clone)]
pub struct Buckets<K> {
    rate: Rate,
    buckets: BoundedMap<K, Bucket>,
}

impl<K: Copy + Eq + Hash> Buckets<K> {
    /// Full buckets.
    #[must_use]
    pub fn new(rate: Rate) -> Self {
        Self { rate, buckets: BoundedMap::default() }
    }

    /// Takes one of `key`.
    ///
    /// # Errors
    /// The wait in milliseconds until one may come.
    pub fn take(&mut self, key: K, now_ms: u64) -> Result<(), u32> {
        self.take_many(key, 1, now_ms)
    }

    /// Takes `count` at once, all or none; a `count` above the burst takes a whole burst.
    ///
    /// # Errors
    /// The wait in milliseconds until that many may come.
    pub fn take_many(&mut self, key: K, count: u64, now_ms: u64) -> Result<(), u32> {
        let bucket = self.buckets.entry(key, Bucket::at_ms);
        bucket.take(&self.rate, count.min(self.rate.burst.max(1)), now_ms)
    }

    /// Returns an amount that was taken and not used.
    pub fn give_back(&mut self, key: &K, count: u64) {
        if let Some(bucket) = self.buckets.get_mut(key) {
            bucket.give_back(&self.rate, count);
        }
    }

    /// The amount of `key` that may come at once now.
    #[must_use]
    pub fn left(&self, key: &K, now_ms: u64) -> u64 {
        self.of(key).left(&self.rate, now_ms)
    }

    /// The wait in milliseconds until one of `key` may come; 0 if it may now.
    #[must_use]
    pub fn wait_ms(&self, key: &K, now_ms: u64) -> u32 {
        self.of(key).wait_ms(&self.rate, 1, now_ms)
    }

    fn of(&self, key: &K) -> Bucket {
        self.buckets.get(key).copied().unwrap_or_default()
    }

    /// The keys with use, each with the use now, rounded up.
    pub fn in_use(&self, now_ms: u64) -> impl Iterator<Item = (K, u64)> {
        let each = self.buckets.iter().map(move |(key, bucket)| (*key, bucket.in_use(&self.rate, now_ms)));
        each.filter(|(_, count)| *count > 0)
    }

    /// Sets the use of a key at a time, as after a restart.
    pub fn restore(&mut self, key: K, count: u64, at_ms: u64) {
        *self.buckets.entry(key, Bucket::at_ms) = Bucket::used(count, at_ms, &self.rate);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::MAX_KEYS;

    #[test]
    fn refuses_beyond_the_burst_and_says_when_to_come_back() {
        let mut rates = Buckets::new(Rate::per_minute(3));
        for taken in 0..3 {
            assert_eq!(rates.left(&1, 0), 3 - taken);
            assert_eq!(rates.take(1, 0), Ok(()));
        }
        assert_eq!((rates.left(&1, 0), rates.left(&1, 20_000), rates.left(&1, 600_000)), (0, 1, 3));
        assert_eq!((rates.wait_ms(&1, 0), rates.wait_ms(&1, 20_000), rates.wait_ms(&2, 0)), (20_000, 0, 0));
        assert_eq!(rates.take(1, 0), Err(20_000));
        assert_eq!(rates.take(2, 0), Ok(()), "another key has its own bucket");
        assert_eq!((rates.take(1, 19_999), rates.take(1, 20_000)), (Err(1), Ok(())));
        assert_eq!(rates.take(1, 20_000), Err(20_000));
        assert_eq!(rates.take(1, 0), Err(20_000), "a clock that goes back gives nothing");
        assert_eq!((rates.take_many(2, 100, 60_000), rates.left(&2, 60_000)), (Ok(()), 0), "a whole burst");
    }

    #[test]
    fn a_burst_may_be_smaller_or_larger_than_a_periods_amount() {
        let mut bucket = Bucket::default();
        let rate = Rate::per_minute(120).in_bursts_of(3);
        let burst = (0..10).filter(|_| bucket.take(&rate, 1, 0).is_ok()).count();
        assert_eq!((burst, bucket.take(&rate, 1, 0)), (3, Err(500)));
        let minute = (1..=60_000).filter(|now_ms| bucket.take(&rate, 1, *now_ms).is_ok()).count();
        assert_eq!((minute, bucket.left(&rate, 200_000)), (120, 3), "the rate is the same");
        let (mut bucket, rate) = (Bucket::default(), Rate::per_second(4).in_bursts_of(8));
        let mut taken = |now_ms| (0..100).filter(|_| bucket.take(&rate, 1, now_ms).is_ok()).count();
        assert_eq!([taken(0), taken(249), taken(250), taken(1000), taken(60_000)], [8, 0, 1, 3, 8]);
    }

    #[test]
    fn an_unused_amount_comes_back_and_a_lower_rate_or_none_gives_less() {
        let (mut bucket, rate) = (Bucket::default(), Rate::per_hour(100));
        assert_eq!(bucket.take(&rate, 60, 0), Ok(()));
        assert_eq!(bucket.take(&rate, 60, 0), Err(720_000), "twenty more in a fifth of the hour");
        bucket.give_back(&rate, 50);
        assert_eq!((bucket.left(&rate, 0), bucket.in_use(&rate, 0)), (90, 10));
        bucket.give_back(&rate, 1000);
        assert_eq!(bucket.left(&rate, 0), 100);
        assert_eq!(bucket.take(&rate, 101, 0), Err(u32::MAX), "never");
        bucket.take(&rate, 100, 0).unwrap();
        assert_eq!(
            bucket.wait_ms(&Rate::per_hour(10), 10, 0),
            3_600_000,
            "a lowered limit is used up, and no more"
        );
        assert_eq!(Bucket::default().take(&Rate::per_hour(0), 1, 0), Err(u32::MAX));
        let saved = Bucket::used(bucket.in_use(&rate, 0), 0, &rate);
        assert_eq!((saved.left(&rate, 0), saved.left(&rate, 1_800_000)), (0, 50));
    }

    proptest! {
        /// A key's use in any time is at most a burst and the rate, whatever the clock says.
        #[test]
        fn no_key_gets_more_than_its_burst_and_its_rate(
            amount in 1u64..50, burst in 1u64..100, takes in prop::collection::vec((1u64..20, 0u64..2000, 0u64..20), 1..100)
        ) {
            let rate = Rate::per_second(amount).in_bursts_of(burst);
            let (mut bucket, mut now_ms, mut used) = (Bucket::default(), 0, 0);
            for (count, pause, back) in takes {
                now_ms += pause;
                if let Err(wait) = bucket.take(&rate, count, now_ms) {
                    prop_assert!(count > burst || bucket.wait_ms(&rate, count, now_ms + u64::from(wait)) == 0);
                    continue;
                }
                let back = back.min(count);
                bucket.give_back(&rate, back);
                used += count - back;
            }
            prop_assert!(used <= burst + amount * now_ms / 1000 + 1, "{used} in {now_ms} ms");
        }
    }

    #[test]
    fn a_flood_of_keys_leaves_the_used_up_buckets_of_keys_that_come_again() {
        let mut rates = Buckets::new(Rate::per_minute(1));
        for key in 0..20 * MAX_KEYS {
            rates.take(key + 1, key as u64 / 100).unwrap();
            let _ = rates.take(0, key as u64 / 100);
        }
        assert!(rates.buckets.len() <= MAX_KEYS && rates.left(&0, 820) == 0);
        assert!(rates.in_use(0).count() <= MAX_KEYS);
    }
}
