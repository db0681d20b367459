//! A client's view of one turn, event by event: the text, the failed attempts, and the gaps between texts.

use std::time::{Duration, Instant};

use baton_client::TurnEvent;
use baton_proto::{ErrorCode, ids::SessionId};

use super::chat::ClientResults;
use crate::byzantine::{AttemptKey, FakeNode, Lie, lie_of};

/// An attempt that failed.
#[derive(Clone, Debug)]
pub(super) struct FailedAttempt {
    pub(super) code: Option<ErrorCode>,
    pub(super) reason: String,
    /// The lie that was told in it, perhaps later.
    pub(super) lie: Option<Lie>,
    pub(super) noticed: Instant,
}

/// An answer that another node continued or began anew.
#[derive(Clone, Copy, Debug)]
pub(super) struct Takeover {
    /// From the last text before the failure to the first text after it.
    pub(super) gap: Duration,
    /// Whether the substitute got the tokens that had arrived.
    pub(super) is_continued: bool,
}

/// The events of one turn.
pub(super) struct TurnWatch<'a> {
    session: SessionId,
    seq: u64,
    liars: &'a [FakeNode],
    pub(super) results: &'a mut ClientResults,
    /// All text shown since the last restart.
    pub(super) shown: String,
    last_text: Option<Instant>,
    /// Whether the running attempt continues an answer; `None` between attempts.
    continues: Option<bool>,
    /// The last text of an interrupted answer.
    interrupted: Option<Instant>,
}

impl<'a> TurnWatch<'a> {
    pub(super) fn new(
        session: SessionId,
        seq: u64,
        liars: &'a [FakeNode],
        results: &'a mut ClientResults,
    ) -> Self {
        let shown = String::new();
        Self { session, seq, liars, results, shown, last_text: None, continues: None, interrupted: None }
    }

    /// A new call does not repeat the text shown before.
    pub(super) fn begin_again(&mut self) {
        self.shown.clear();
        (self.last_text, self.continues, self.interrupted) = (None, None, None);
    }

    /// Processes an event as it happens.
    pub(super) fn take(&mut self, event: TurnEvent) {
        let now = Instant::now();
        if !matches!(event, TurnEvent::Text(_)) {
            tracing::debug!(session = %self.session, seq = self.seq, ?event, "an event of a turn");
        }
        match event {
            TurnEvent::Attempt { continues, .. } => self.continues = Some(continues > 0),
            TurnEvent::Text(text) => {
                self.shown.push_str(&text);
                // Text repeated before the next attempt comes from no node.
                let Some(is_continued) = self.continues else { return };
                let interrupted = self.interrupted.take();
                self.results
                    .takeovers
                    .extend(interrupted.map(|last| Takeover { gap: now - last, is_continued }));
                self.last_text = Some(now);
            }
            TurnEvent::Restarted => {
                self.shown.clear();
                self.results.restarts += 1;
            }
            TurnEvent::AttemptFailed { attempt, code, reason, noticed_ago, .. } => {
                self.continues = None;
                self.interrupted = self.interrupted.or(self.last_text);
                let key = AttemptKey { session: self.session, seq: self.seq, attempt };
                let lie = lie_of(self.liars, &key);
                let noticed = now.checked_sub(noticed_ago).unwrap_or(now);
                self.results.failures.push(FailedAttempt { code, reason, lie, noticed });
            }
            _ => {}
        }
    }
}
