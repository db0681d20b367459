//! Rates by peer or session: token buckets in a bounded table. Pure; the caller has the clock. Here because every
//! role that serves streams needs the same one.

use std::{collections::HashMap, hash::Hash};

/// Keys whose rates are remembered. When full, those that were quiet longest are forgotten, which gives them their
/// burst back.
const MAX_RATE_ENTRIES: usize = 4096;

/// A token of a bucket, in the table's unit: so many thousandths refill each millisecond at one a minute.
const TOKEN: u64 = 60_000;

/// Buckets, one for each key, that hold a minute's worth and refill evenly.
#[derive(Debug)]
pub struct Rates<K> {
    per_minute: u64,
    buckets: HashMap<K, Bucket>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    /// What is left, in 60,000ths of a request.
    level: u64,
    at_ms: u64,
}

impl<K: Copy + Eq + Hash> Rates<K> {
    /// Buckets of so many requests a minute, at least one.
    #[must_use]
    pub fn new(per_minute: u32) -> Self {
        Self { per_minute: u64::from(per_minute).max(1), buckets: HashMap::new() }
    }

    /// Takes one request of `key`.
    ///
    /// # Errors
    /// After how many milliseconds there is one again.
    pub fn take(&mut self, key: K, now_ms: u64) -> Result<(), u32> {
        self.make_room(&key, now_ms);
        let full = self.per_minute * TOKEN;
        let bucket = self.buckets.entry(key).or_insert(Bucket { level: full, at_ms: now_ms });
        let refill = now_ms.saturating_sub(bucket.at_ms).saturating_mul(self.per_minute);
        bucket.level = bucket.level.saturating_add(refill).min(full);
        bucket.at_ms = bucket.at_ms.max(now_ms);
        match bucket.level.checked_sub(TOKEN) {
            Some(left) => {
                bucket.level = left;
                Ok(())
            }
            None => {
                let wait = (TOKEN - bucket.level).div_ceil(self.per_minute);
                Err(u32::try_from(wait).unwrap_or(u32::MAX))
            }
        }
    }

    /// Requests that `key` could make at once now.
    #[must_use]
    pub fn left(&self, key: &K, now_ms: u64) -> u64 {
        let full = self.per_minute * TOKEN;
        let level = self.buckets.get(key).map_or(full, |bucket| {
            let refill = now_ms.saturating_sub(bucket.at_ms).saturating_mul(self.per_minute);
            bucket.level.saturating_add(refill).min(full)
        });
        level / TOKEN
    }

    fn make_room(&mut self, key: &K, now_ms: u64) {
        if self.buckets.len() < MAX_RATE_ENTRIES || self.buckets.contains_key(key) {
            return;
        }
        // A bucket untouched for a minute is full again, so forgetting it changes nothing.
        self.buckets.retain(|_, bucket| now_ms.saturating_sub(bucket.at_ms) < 60_000);
        if self.buckets.len() >= MAX_RATE_ENTRIES
            && let Some(oldest) =
                self.buckets.iter().min_by_key(|(_, bucket)| bucket.at_ms).map(|(key, _)| *key)
        {
            self.buckets.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_beyond_the_burst_and_says_when_to_come_back() {
        let mut rates = Rates::new(3);
        for taken in 0..3 {
            assert_eq!(rates.left(&1u8, 0), 3 - taken);
            assert_eq!(rates.take(1u8, 0), Ok(()));
        }
        assert_eq!((rates.left(&1, 0), rates.left(&1, 20_000), rates.left(&1, 600_000)), (0, 1, 3));
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
    fn the_table_is_bounded() {
        let mut rates = Rates::new(1);
        for key in 0..MAX_RATE_ENTRIES + 100 {
            rates.take(key, key as u64).unwrap();
        }
        assert!(rates.buckets.len() <= MAX_RATE_ENTRIES);
    }
}
