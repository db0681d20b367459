//! When background work on a session runs: in rounds, one at a time, with growing pauses after failed rounds.
//! Pure: the caller sleeps.

use std::time::Duration;

/// Longest pause between rounds: a recovered store is used within it, and a store that stays down gets few
/// requests.
const MAX_PAUSE: Duration = Duration::from_secs(5 * 60);

/// The rounds of a session's background work.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    running: bool,
    /// Whether the next round waits for its pause to end.
    planned: bool,
    /// Rounds planned since the work was last complete.
    failed: u32,
}

impl Rounds {
    /// Begins a round; false if one runs already, which handles the rest when it ends.
    pub(crate) fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.running, true)
    }

    /// Ends the running round.
    pub(crate) fn end(&mut self) {
        self.running = false;
    }

    /// The pause before the next round, starting at `first`; none if a round is planned already.
    pub(crate) fn plan(&mut self, first: Duration) -> Option<Duration> {
        if std::mem::replace(&mut self.planned, true) {
            return None;
        }
        let pause = first.saturating_mul(2u32.saturating_pow(self.failed)).min(MAX_PAUSE);
        self.failed = self.failed.saturating_add(1);
        Some(pause)
    }

    /// Ends the pause before the planned round.
    pub(crate) fn end_pause(&mut self) {
        self.planned = false;
    }

    /// Records that no work is left: the next pause is the first again.
    pub(crate) fn complete(&mut self) {
        self.failed = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_secs(5);

    #[test]
    fn rounds_become_rarer_up_to_a_bound() {
        let mut rounds = Rounds::default();
        let mut pauses = Vec::new();
        for _ in 0..41 {
            pauses.extend(rounds.plan(FIRST).map(|pause| pause.as_secs()));
            rounds.end_pause();
        }
        assert_eq!([0, 1, 2, 6, 40].map(|at| pauses[at]), [5, 10, 20, 300, 300]);
    }

    #[test]
    fn complete_work_starts_the_pauses_anew() {
        let mut rounds = Rounds::default();
        rounds.plan(FIRST);
        rounds.end_pause();
        rounds.complete();
        assert_eq!(rounds.plan(FIRST), Some(FIRST));
    }

    #[test]
    fn one_round_runs_and_one_is_planned_at_a_time() {
        let mut rounds = Rounds::default();
        assert!(rounds.begin() && !rounds.begin());
        rounds.end();
        assert!(rounds.begin());
        assert!(rounds.plan(FIRST).is_some() && rounds.plan(FIRST).is_none());
    }
}
