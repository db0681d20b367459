//! The node's last ten minutes, in memory only: one sample a second, the oldest forgotten first.
//!
//! The admin port takes the samples and gives them out; the status page plots them. Counts are totals since the
//! start, so that whoever misses some samples still has the right differences.

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
use crate::metrics::SourceCounts;

/// How often a sample is taken: short answers take a few seconds.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Samples kept: ten minutes, under 100 KiB.
const KEPT_SAMPLES: usize = 600;

/// The node at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Milliseconds since the start of the node.
    pub uptime_ms: u64,
    /// Tokens made since then, also of turns that are not committed.
    pub tokens: u64,
    /// First tokens of committed turns.
    pub first_tokens: u64,
    /// Milliseconds from admission to those, all together.
    pub first_token_ms: u64,
    /// Turns committed.
    pub committed: u64,
    /// Turns admitted and failed.
    pub failed: u64,
    /// Requests refused.
    pub refused: u64,
    /// Turns running at this moment.
    pub running: u64,
    /// Turns waiting at this moment.
    pub waiting: u64,
    /// Peers connected at this moment.
    pub peers: u64,
}

/// The answer of `/status/history`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HistoryAnswer {
    /// When the samples' clock began, in milliseconds since the Unix epoch: another value is another run of the node.
    pub started_ms: u64,
    /// Milliseconds between two samples.
    pub every_ms: u64,
    /// Most samples that are kept.
    pub kept: usize,
    /// Where blobs of histories came from, since the start.
    pub sources: Vec<SourceCounts>,
    /// Samples, the oldest first.
    pub samples: Vec<Sample>,
}

/// The samples.
#[derive(Debug)]
pub struct History {
    started_ms: u64,
    samples: Mutex<VecDeque<Sample>>,
}

impl History {
    /// No samples yet. `started` is when the node began.
    #[must_use]
    pub fn new(started: SystemTime) -> Self {
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

    /// The samples later than `after`; all of them where it is later than the newest, as after a restart.
    fn since(&self, after: u64) -> Vec<Sample> {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let unknown = samples.back().is_some_and(|newest| newest.uptime_ms < after);
        samples.iter().filter(|sample| unknown || sample.uptime_ms > after).copied().collect()
    }

    /// Takes further samples for as long as it is polled.
    pub(super) async fn watch(&self, source: &Source) -> Infallible {
        let mut ticks = interval_at(Instant::now() + SAMPLE_EVERY, SAMPLE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.put(source.sample());
        }
    }
}

/// Which samples are wanted.
#[derive(Debug, Deserialize)]
struct Wanted {
    /// Only those after this many milliseconds of uptime.
    #[serde(default)]
    after: u64,
}

/// `/status/history`.
pub(super) fn routes(source: Source, history: Arc<History>) -> Router {
    Router::new().route("/status/history", get(answer)).with_state((source, history))
}

async fn answer(
    State((source, history)): State<(Source, Arc<History>)>,
    Query(wanted): Query<Wanted>,
) -> Json<HistoryAnswer> {
    Json(HistoryAnswer {
        started_ms: history.started_ms,
        every_ms: u64::try_from(SAMPLE_EVERY.as_millis()).unwrap_or(u64::MAX),
        kept: KEPT_SAMPLES,
        sources: source.sources(),
        samples: history.since(wanted.after),
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
    fn whoever_has_some_gets_the_later_ones_and_all_after_a_restart() {
        let history = history([1000, 2000, 3000].into_iter());
        assert_eq!(uptimes(&history.since(2000)), [3000]);
        assert_eq!(uptimes(&history.since(3000)), [0; 0]);
        assert_eq!(uptimes(&history.since(90_000)), [1000, 2000, 3000]);
    }
}
