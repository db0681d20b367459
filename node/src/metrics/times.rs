//! Durations by bucket.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::exposition::{Exposition, Kind};

/// Upper ends in milliseconds: from 10 ms (a cached answer of a small model) to five minutes (a long answer of a
/// large model).
const BUCKETS_MS: [u64; 14] =
    [10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 120_000, 300_000];

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// Durations up to each end, and after the last of those that have a lower end.
    buckets: [AtomicU64; BUCKETS_MS.len()],
    count: AtomicU64,
    sum_ms: AtomicU64,
}

impl Times {
    pub(super) fn observe(&self, time: Duration) {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        for (bucket, end_ms) in self.buckets.iter().zip(BUCKETS_MS) {
            bucket.fetch_add(u64::from(ms <= end_ms), Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum_ms.fetch_add(ms, Ordering::Relaxed);
    }

    pub(super) fn write(&self, text: &mut Exposition, name: &str, help: &str) {
        let seconds = |ms: u64| Duration::from_millis(ms).as_secs_f64();
        text.family(Kind::Histogram, name, help);
        let bucket = format!("{name}_bucket");
        for (count, end_ms) in self.buckets.iter().zip(BUCKETS_MS) {
            let end = seconds(end_ms).to_string();
            text.sample(&bucket, [("le", end.as_str())], count.load(Ordering::Relaxed));
        }
        let count = self.count.load(Ordering::Relaxed);
        text.sample(&bucket, [("le", "+Inf")], count);
        text.sample(&format!("{name}_sum"), [], seconds(self.sum_ms.load(Ordering::Relaxed)));
        text.sample(&format!("{name}_count"), [], count);
    }
}
