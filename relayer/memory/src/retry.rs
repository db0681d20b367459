//! Retry times of failed work. Each kind of an owner's work fails and waits by itself, so a broken store
//! delays storing only. The job steps report results; this module only counts.

use std::{collections::HashMap, time::Duration};

use crate::{dates::millis, ids::OwnerId};

/// First wait after a failure; doubles up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_secs(2);
/// Longest wait after a failure.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Work {
    /// Facts of turns, by a judge and an extractor.
    Extraction,
    /// Vectors, by the embedder.
    Embedding,
    /// Contents on Walrus.
    Storing,
    /// Work that needs no other service.
    Review,
}

impl Work {
    /// All kinds, in the order of a round of steps.
    pub(crate) const ALL: [Self; 4] = [Self::Extraction, Self::Embedding, Self::Storing, Self::Review];
}

/// Consecutive failures, and the time of the next try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Retry {
    failures: u32,
    due_ms: u64,
}

/// Model tries for one turn; after them, the rules decide (F8).
pub(crate) const MODEL_TRIES: u32 = 5;

/// Failures of all owners' work. A success removes an entry.
#[derive(Debug, Default)]
pub(crate) struct Retries(HashMap<(OwnerId, Work), Retry>);

impl Retries {
    /// Records the result of a step.
    pub(crate) fn note(&mut self, owner: OwnerId, work: Work, has_failed: bool, now_ms: u64) {
        if !has_failed {
            self.0.remove(&(owner, work));
            return;
        }
        let failures = self.failures(owner, work).saturating_add(1);
        let wait = FIRST_WAIT.saturating_mul(1 << (failures - 1).min(16)).min(LONGEST_WAIT);
        let due_ms = now_ms.saturating_add(millis(wait));
        self.0.insert((owner, work), Retry { failures, due_ms });
    }

    /// When failed work is due again; `None` for work without failures.
    pub(crate) fn due_ms(&self, owner: OwnerId, work: Work) -> Option<u64> {
        self.0.get(&(owner, work)).map(|retry| retry.due_ms)
    }

    /// Whether failed work still has to wait.
    pub(crate) fn rests(&self, owner: OwnerId, work: Work, now_ms: u64) -> bool {
        self.due_ms(owner, work).is_some_and(|due_ms| now_ms < due_ms)
    }

    /// Consecutive failures.
    pub(crate) fn failures(&self, owner: OwnerId, work: Work) -> u32 {
        self.0.get(&(owner, work)).map_or(0, |retry| retry.failures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_end_with_a_success() {
        let (owner, other) = (OwnerId([1; 32]), OwnerId([2; 32]));
        let mut retries = Retries::default();
        let mut now_ms = 1_000;
        for seconds in [2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600] {
            retries.note(owner, Work::Storing, true, now_ms);
            let due_ms = now_ms + seconds * 1_000;
            assert_eq!(retries.due_ms(owner, Work::Storing), Some(due_ms));
            assert!(retries.rests(owner, Work::Storing, due_ms - 1));
            assert!(!retries.rests(owner, Work::Storing, due_ms));
            now_ms = due_ms;
        }
        assert_eq!(retries.failures(owner, Work::Storing), 11);
        assert!(!retries.rests(owner, Work::Extraction, now_ms) && !retries.rests(other, Work::Storing, 0));
        retries.note(owner, Work::Storing, false, now_ms);
        assert_eq!((retries.failures(owner, Work::Storing), retries.due_ms(owner, Work::Storing)), (0, None));
    }
}
