//! The node's last ten minutes, in memory only: one sample a second. The oldest sample goes first.
//!
//! The admin port takes and serves the samples; the status page plots them. Counts are totals since the
//! start, so a reader that misses samples still gets correct differences.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    Json, Router,
    extract::{Query, State},
    routing::get,
};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::Source;
use crate::metrics::{SourceCounts, Totals, TurnCounts};

/// Time between samples. Short answers take a few seconds.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of samples: ten minutes, under 100 KiB.
const KEPT_SAMPLES: usize = 600;

/// The node's figures at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Milliseconds since the start of the node.
    pub(crate) uptime_ms: u64,
    /// Totals since the start.
    #[serde(flatten)]
    pub(crate) totals: Totals,
    /// Turns since the start, and at this moment.
    #[serde(flatten)]
    pub(crate) turns: TurnCounts,
    /// Connected peers at this moment.
    pub(crate) peers: u64,
}

/// The answer of `/status/history`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HistoryAnswer {
    /// Start of the samples' clock, in milliseconds since the Unix epoch. A different value means a different
    /// run of the node.
    pub(crate) started_ms: u64,
    /// Milliseconds between two samples.
    pub(crate) every_ms: u64,
    /// Maximum number of samples.
    pub(crate) kept: usize,
    /// Sources of history blobs, counted since the start.
    pub(crate) sources: Vec<SourceCounts>,
    /// Samples, oldest first.
    pub(crate) samples: Vec<Sample>,
}

/// The samples.
#[derive(Debug)]
pub(crate) struct History {
    started_ms: u64,
    samples: Mutex<VecDeque<Sample>>,
}

impl History {
    /// An empty history. `started` is the node's start time.
    #[must_use]
    pub(crate) fn new(started: SystemTime) -> Self {
        let since = started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let started_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        Self { started_ms, samples: Mutex::default() }
    }

    pub(super) fn put(&self, sample: Sample) {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.len() == KEPT_SAMPLES {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    /// The samples after `after`. Returns all samples if `after` is later than the newest, as after a
    /// restart.
    fn since(&self, after: u64) -> Vec<Sample> {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let unknown = samples.back().is_some_and(|newest| newest.uptime_ms < after);
        samples.iter().filter(|sample| unknown || sample.uptime_ms > after).copied().collect()
    }

    /// Takes samples for as long as it is polled.
    pub(super) async fn watch(&self, source: &Source) -> Infallible {
        let mut ticks = interval_at(Instant::now() + SAMPLE_EVERY, SAMPLE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.put(source.sample());
        }
    }
}

/// Query of `/status/history`.
#[derive(Debug, Deserialize)]
struct HistoryQuery {
    /// Only samples after this uptime in milliseconds.
    #[serde(default)]
    after: u64,
}

/// The route `/status/history`.
pub(super) fn routes(source: Source, history: Arc<History>) -> Router {
    Router::new().route("/status/history", get(answer)).with_state((source, history))
}

async fn answer(
    State((source, history)): State<(Source, Arc<History>)>,
    Query(query): Query<HistoryQuery>,
) -> Json<HistoryAnswer> {
    Json(HistoryAnswer {
        started_ms: history.started_ms,
        every_ms: u64::try_from(SAMPLE_EVERY.as_millis()).unwrap_or(u64::MAX),
        kept: KEPT_SAMPLES,
        sources: source.sources(),
        samples: history.since(query.after),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(uptimes: impl Iterator<Item = u64>) -> History {
        let history = History::new(UNIX_EPOCH + Duration::from_millis(7));
        uptimes.for_each(|uptime_ms| history.put(Sample { uptime_ms, ..Sample::default() }));
        history
    }

    fn uptimes(samples: &[Sample]) -> Vec<u64> {
        samples.iter().map(|sample| sample.uptime_ms).collect()
    }

    #[test]
    fn the_oldest_samples_are_forgotten_first() {
        let history = history((0..=KEPT_SAMPLES as u64).map(|second| second * 1000));
        let samples = history.since(0);
        assert_eq!((samples.len(), samples[0].uptime_ms), (KEPT_SAMPLES, 1000));
        assert_eq!(history.started_ms, 7);
    }

    #[test]
    fn a_reader_with_samples_gets_the_later_ones_and_all_after_a_restart() {
        let history = history([1000, 2000, 3000].into_iter());
        assert_eq!(uptimes(&history.since(2000)), [3000]);
        assert_eq!(uptimes(&history.since(3000)), [0; 0]);
        assert_eq!(uptimes(&history.since(90_000)), [1000, 2000, 3000]);
    }
}
