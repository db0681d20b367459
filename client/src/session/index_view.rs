//! Knowledge of the head indexes in this run: it is in no journal. Pure: time is a parameter.

use baton_proto::{ErrorCode, ids::LinkHash};

use crate::{error::ClientError, index_status::IndexStatus};

/// How long a look at the head index stays valid, on a device that knows of no other device.
const LOOK_EVERY_MS: u64 = 60 * 60 * 1000;
/// Pause after a look that no index answered, so that not every turn waits for one.
const LOOK_RETRY_MS: u64 = 30 * 1000;

/// State of the head indexes, as this run last saw it.
#[derive(Debug, Default)]
pub(crate) struct IndexView {
    /// State of each index at the last look.
    pub(crate) statuses: Vec<IndexStatus>,
    /// The error of the last comparison.
    pub(crate) trouble: Option<ErrorCode>,
    /// Whether an index had turns that are missing here; then a comparison comes before any other step.
    pub(crate) diverged: bool,
    /// The head whose last publication failed.
    pub(crate) unpublished: Option<LinkHash>,
    /// Times of the last comparison and of the last try, in milliseconds since the Unix epoch.
    compared_ms: Option<u64>,
    look_tried_ms: Option<u64>,
}

impl IndexView {
    /// Records the result of a comparison.
    pub(crate) fn note_comparison<T>(&mut self, result: &Result<T, ClientError>) {
        self.trouble = match result {
            Err(ClientError::Protocol(code)) => Some(*code),
            _ => None,
        };
        self.diverged = result.as_ref().is_err_and(ClientError::is_divergence);
    }

    /// Records a look. If an index answered, its content is known here.
    pub(crate) fn note_look(&mut self, now_ms: u64, answered: bool) {
        self.look_tried_ms = Some(now_ms);
        if answered {
            self.compared_ms = Some(now_ms);
        }
    }

    /// Whether a turn must first compare. It is due once after the session is opened, then after an hour. If no
    /// index answered, the next try waits.
    pub(crate) fn is_look_due(&self, now_ms: u64) -> bool {
        let since = |then: Option<u64>| then.map_or(u64::MAX, |then| now_ms.saturating_sub(then));
        since(self.compared_ms) > LOOK_EVERY_MS && since(self.look_tried_ms) > LOOK_RETRY_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000_000;

    #[test]
    fn a_look_is_due_at_the_start_and_an_hour_after_an_answer() {
        let mut view = IndexView::default();
        assert!(view.is_look_due(NOW));
        view.note_look(NOW, true);
        assert!(!view.is_look_due(NOW + LOOK_EVERY_MS));
        assert!(view.is_look_due(NOW + LOOK_EVERY_MS + 1));
    }

    #[test]
    fn after_a_look_without_an_answer_the_next_try_waits() {
        let mut view = IndexView::default();
        view.note_look(NOW, false);
        assert!(!view.is_look_due(NOW + LOOK_RETRY_MS));
        assert!(view.is_look_due(NOW + LOOK_RETRY_MS + 1));
    }
}
