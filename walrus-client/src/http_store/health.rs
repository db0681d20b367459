//! The order in which sources are asked, decided from their past results. The time is a parameter.
//!
//! Pure. A failed source goes behind the others for a while that doubles with each failure; after wrong
//! content, for minutes. It is still asked when all others fail. After that time it returns to its place and
//! is tried again. Among the rest, faster sources come first, in steps of two; equals stay in configured
//! order.

use std::time::Duration;

use tokio::time::Instant;

/// Cool-down after a first failure; each further failure doubles it.
const FIRST_COOL_DOWN: Duration = Duration::from_millis(500);
/// Longest cool-down from failures alone.
const MAX_COOL_DOWN: Duration = Duration::from_secs(30);
/// Longest effective `Retry-After`: a source must not be able to remove itself for days.
const MAX_ASKED_COOL_DOWN: Duration = Duration::from_secs(300);
/// Cool-down after a refusal of a request that others may take.
const REFUSED_COOL_DOWN: Duration = Duration::from_secs(10);
/// Cool-down after wrong content.
const WRONG_COOL_DOWN: Duration = Duration::from_secs(300);
/// How long a measured latency counts, so that a slow source is measured again.
const LATENCY_MEMORY: Duration = Duration::from_secs(120);
/// Assumed latency without a recent measurement: others are tried when the preferred source is slower.
const UNMEASURED: Duration = Duration::from_millis(100);

/// A mark against a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SourceOffence {
    /// It was unreachable or failed on its side, and may have asked to wait.
    Failed(Option<Duration>),
    /// It refused.
    Refused,
    /// It sent wrong content, or named a wrong ID.
    WrongContent,
}

#[derive(Debug, Clone, Copy, Default)]
struct SourceState {
    failures: u32,
    back_at: Option<Instant>,
    latency: Option<(Duration, Instant)>,
}

/// The health of the sources of one role, in configured order.
#[derive(Debug)]
pub(super) struct SourceHealth {
    sources: Vec<SourceState>,
}

impl SourceHealth {
    pub(super) fn new(sources: usize) -> Self {
        Self { sources: vec![SourceState::default(); sources] }
    }

    /// All sources, the first to ask at the front.
    pub(super) fn order(&self, now: Instant) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.sources.len()).collect();
        order.sort_by_key(|index| {
            let back_at = self.back_at(*index, now);
            let latency = self.latency(*index, now).unwrap_or(UNMEASURED);
            let rank = (latency.as_millis() + 1).ilog2();
            (back_at, rank, *index)
        });
        order
    }

    /// Notes an answer after this time.
    pub(super) fn note_answer(&mut self, index: usize, latency: Duration, now: Instant) {
        if let Some(state) = self.sources.get_mut(index) {
            state.failures = 0;
            state.back_at = None;
        }
        self.note_latency(index, latency, now);
    }

    /// Notes that another source was faster: this source takes at least this long.
    pub(super) fn note_overtaken(&mut self, index: usize, waited: Duration, now: Instant) {
        let known = self.latency(index, now).unwrap_or_default();
        self.note_latency(index, waited.max(known), now);
    }

    pub(super) fn note_offence(&mut self, index: usize, offence: SourceOffence, now: Instant) {
        let Some(state) = self.sources.get_mut(index) else { return };
        state.failures = state.failures.saturating_add(1);
        let cool_down = match offence {
            SourceOffence::Failed(asked) => {
                let doublings = (state.failures - 1).min(16);
                let own = FIRST_COOL_DOWN.saturating_mul(1 << doublings).min(MAX_COOL_DOWN);
                own.max(asked.unwrap_or_default().min(MAX_ASKED_COOL_DOWN))
            }
            SourceOffence::Refused => REFUSED_COOL_DOWN,
            SourceOffence::WrongContent => WRONG_COOL_DOWN,
        };
        // A later timeout does not shorten the cool-down after wrong content.
        state.back_at = state.back_at.max(Some(now + cool_down));
    }

    /// Its usual latency, if measured recently.
    pub(super) fn latency(&self, index: usize, now: Instant) -> Option<Duration> {
        let (latency, measured) = self.sources.get(index)?.latency?;
        (now.saturating_duration_since(measured) < LATENCY_MEMORY).then_some(latency)
    }

    fn back_at(&self, index: usize, now: Instant) -> Option<Instant> {
        self.sources.get(index)?.back_at.filter(|back_at| *back_at > now)
    }

    /// A moving average that gives the newest measurement a quarter of the weight.
    fn note_latency(&mut self, index: usize, latency: Duration, now: Instant) {
        let known = self.latency(index, now);
        if let Some(state) = self.sources.get_mut(index) {
            state.latency = Some((known.map_or(latency, |known| (known * 3 + latency) / 4), now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn cooling(health: &SourceHealth, index: usize, now: Instant) -> Duration {
        health.back_at(index, now).map_or(Duration::ZERO, |back_at| back_at - now)
    }

    #[test]
    fn equals_keep_the_configured_order() {
        let now = Instant::now();
        let mut health = SourceHealth::new(3);
        assert_eq!(health.order(now), [0, 1, 2]);
        health.note_answer(0, 90 * MS, now);
        assert_eq!(health.order(now), [0, 1, 2], "it does well, so the others stay unmeasured");
        let mut health = SourceHealth::new(3);
        for index in 0..3 {
            health.note_answer(index, 20 * MS + MS * (2 - u32::try_from(index).unwrap()), now);
        }
        assert_eq!(health.order(now), [0, 1, 2], "two milliseconds are no reason to change");
    }

    #[test]
    fn a_failed_source_goes_last_and_comes_back() {
        let now = Instant::now();
        let mut health = SourceHealth::new(2);
        health.note_offence(0, SourceOffence::Failed(None), now);
        assert_eq!(health.order(now), [1, 0]);
        assert_eq!(cooling(&health, 0, now), FIRST_COOL_DOWN);
        assert_eq!(health.order(now + FIRST_COOL_DOWN), [0, 1], "it is tried again");
        health.note_offence(0, SourceOffence::Failed(None), now);
        assert_eq!(cooling(&health, 0, now), FIRST_COOL_DOWN * 2, "the second failure counts double");
        health.note_answer(0, MS, now);
        assert_eq!(health.order(now), [0, 1]);
        for _ in 0..100 {
            health.note_offence(0, SourceOffence::Failed(None), now);
        }
        assert_eq!(cooling(&health, 0, now), MAX_COOL_DOWN);
    }

    #[test]
    fn a_retry_after_is_kept_within_reason() {
        let now = Instant::now();
        let mut health = SourceHealth::new(2);
        health.note_offence(0, SourceOffence::Failed(Some(Duration::from_secs(60))), now);
        assert_eq!(cooling(&health, 0, now), Duration::from_secs(60));
        health.note_offence(1, SourceOffence::Failed(Some(Duration::from_secs(1 << 40))), now);
        assert_eq!(cooling(&health, 1, now), MAX_ASKED_COOL_DOWN);
    }

    #[test]
    fn wrong_content_outlasts_failures_and_refusals() {
        let now = Instant::now();
        let mut health = SourceHealth::new(3);
        health.note_offence(0, SourceOffence::WrongContent, now);
        health.note_offence(0, SourceOffence::Failed(None), now);
        health.note_offence(1, SourceOffence::Refused, now);
        health.note_offence(2, SourceOffence::Failed(None), now);
        assert_eq!(health.order(now), [2, 1, 0]);
        assert_eq!(health.order(now + REFUSED_COOL_DOWN), [1, 2, 0]);
    }

    #[test]
    fn the_much_faster_source_comes_first_until_the_measurement_is_old() {
        let now = Instant::now();
        let mut health = SourceHealth::new(2);
        health.note_answer(0, 400 * MS, now);
        health.note_answer(1, 40 * MS, now);
        assert_eq!(health.order(now), [1, 0]);
        let later = now + LATENCY_MEMORY;
        assert_eq!((health.order(later), health.latency(0, later)), (vec![0, 1], None));
    }

    #[test]
    fn a_source_that_is_overtaken_counts_as_slow() {
        let now = Instant::now();
        let mut health = SourceHealth::new(2);
        health.note_answer(0, 10 * MS, now);
        health.note_answer(1, 10 * MS, now);
        for _ in 0..8 {
            health.note_overtaken(0, 500 * MS, now);
        }
        assert_eq!(health.order(now), [1, 0]);
        health.note_overtaken(1, MS, now);
        assert_eq!(health.latency(1, now), Some(10 * MS), "it is not made faster by that");
    }
}
