//! Pause points of a turn, so that a test can kill the process at exactly one step.

use std::sync::Arc;

use clap::ValueEnum;
use serde::Serialize;

/// Steps of a turn, in order.
#[derive(Default, Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// The turn is admitted and in the journal; Accepted was sent.
    #[default]
    Accepted,
    /// The window is fetched and verified.
    Fetched,
    /// The first tokens were sent.
    MidToken,
    /// Record, receipt, link and blob exist in memory.
    Sealed,
    /// They are in the journal, flushed; nothing signed has left.
    Journaled,
    /// Link and receipt were sent to the client.
    ReceiptSent,
    /// The PUT is under way.
    PutSent,
    /// The store has answered; the journal does not know yet.
    PutDone,
}

type StepCallback = Arc<dyn Fn(Step) + Send + Sync>;

/// The action at a step. By default none, at the cost of one comparison.
#[derive(Clone, Default)]
pub struct PausePoints {
    at: Option<(Step, StepCallback)>,
}

impl PausePoints {
    /// Calls `reached` when a turn reaches `step`, and never resumes that turn.
    #[must_use]
    pub fn at(step: Step, reached: impl Fn(Step) + Send + Sync + 'static) -> Self {
        Self { at: Some((step, Arc::new(reached))) }
    }

    /// Whether any step pauses turns.
    pub(crate) fn is_set(&self) -> bool {
        self.at.is_some()
    }

    /// Whether turns pause at this step.
    pub(crate) fn stops_at(&self, step: Step) -> bool {
        self.at.as_ref().is_some_and(|(wanted, _)| *wanted == step)
    }

    /// Returns at once, or never returns if turns pause at `step`.
    pub(crate) async fn pass(&self, step: Step) {
        if let Some((wanted, reached)) = &self.at
            && *wanted == step
        {
            reached(step);
            std::future::pending::<()>().await;
        }
    }
}

impl std::fmt::Debug for PausePoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PausePoints").field(&self.at.as_ref().map(|(step, _)| step)).finish()
    }
}
