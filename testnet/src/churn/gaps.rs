//! What a client sees of one turn, event by event: the text, who failed and why, and how long nothing came.

use std::time::{Duration, Instant};

use baton_client::{TurnEvent, TurnOutcome};
use baton_proto::{
    ErrorCode,
    ids::{NodeId, SessionId},
};

use super::nodes::Deaths;
use crate::hostile::{AttemptKey, Ledger, Lie};

/// Why a node was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// It was killed.
    Killed,
    /// It sent nothing for too long.
    Stalled,
    /// It lied.
    Lied,
    /// It refused, or failed in another way.
    Failed,
}

/// An attempt that failed.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) key: AttemptKey,
    pub(super) code: Option<ErrorCode>,
    pub(super) reason: String,
    pub(super) cause: Cause,
    pub(super) lie: Option<Lie>,
    pub(super) noticed: Instant,
}

/// An answer that another node went on with, or began anew.
#[derive(Clone, Debug)]
pub(super) struct Takeover {
    pub(super) cause: Cause,
    /// From the last text before to the first one after.
    pub(super) gap: Duration,
    /// From the node's death, or its last text, to its being noticed.
    pub(super) detection: Duration,
    /// From then to the first text after.
    pub(super) after: Duration,
    /// Of that: asking the author what became of the turn.
    pub(super) asking: Duration,
    /// Choosing, journaling and sealing, up to the attempt that was answered; earlier substitutes that failed included.
    pub(super) choosing: Duration,
    /// Opening the substream, until the node admits the turn.
    pub(super) opening: Duration,
    /// From there to its first text.
    pub(super) answering: Duration,
    /// Substitutes that were tried.
    pub(super) substitutes: u32,
    /// Tokens that the substitute was handed.
    pub(super) continued: u32,
    attempt: u32,
    /// What its receipt says, where it finished the answer.
    pub(super) served: Option<Served>,
    /// Whether it said that others were before it.
    waited: bool,
}

/// What a receipt says of the time to the first token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    /// Waiting in line.
    pub(super) in_line: Duration,
    /// Reading the prompt.
    pub(super) prefill: Duration,
}

/// The attempt under way.
struct Current {
    attempt: u32,
    continues: u32,
    sent: Instant,
    admitted: Option<Instant>,
    waited: bool,
}

/// What was cut off.
struct Lost {
    cause: Cause,
    last_text: Instant,
    detection: Duration,
    noticed: Instant,
    asking: Duration,
    substitutes: u32,
}

/// The events of one turn.
pub(super) struct Watch<'a> {
    session: SessionId,
    seq: u64,
    ledger: &'a Ledger,
    deaths: &'a Deaths,
    /// All text that counts.
    pub(super) shown: String,
    last_text: Option<Instant>,
    current: Option<Current>,
    lost: Option<Lost>,
    pub(super) failures: Vec<Failure>,
    pub(super) takeovers: Vec<Takeover>,
    pub(super) restarts: u64,
}

impl<'a> Watch<'a> {
    pub(super) fn new(session: SessionId, seq: u64, ledger: &'a Ledger, deaths: &'a Deaths) -> Self {
        Self {
            session,
            seq,
            ledger,
            deaths,
            shown: String::new(),
            last_text: None,
            current: None,
            lost: None,
            failures: Vec::new(),
            takeovers: Vec::new(),
            restarts: 0,
        }
    }

    /// Takes an event as it happens.
    pub(super) fn take(&mut self, event: TurnEvent) {
        let now = Instant::now();
        if !matches!(event, TurnEvent::Text(_)) {
            tracing::debug!(session = %self.session, seq = self.seq, ?event, "an event of a turn");
        }
        match event {
            TurnEvent::Attempt { attempt, continues, .. } => {
                self.current = Some(Current { attempt, continues, sent: now, admitted: None, waited: false });
                if let Some(lost) = &mut self.lost {
                    lost.substitutes += 1;
                }
            }
            TurnEvent::Admitted => {
                if let Some(current) = &mut self.current {
                    current.admitted = Some(now);
                }
            }
            TurnEvent::Text(text) => {
                self.shown.push_str(&text);
                // What is shown again before the next attempt is no answer of a node.
                if self.current.is_some() {
                    self.resumed(now);
                    self.last_text = Some(now);
                }
            }
            TurnEvent::Restarted => {
                self.shown.clear();
                self.restarts += 1;
            }
            TurnEvent::AttemptFailed { attempt, node, code, reason, noticed_ago } => {
                self.failed((attempt, node), (code, reason), now, noticed_ago);
            }
            TurnEvent::Waiting(_) => {
                if let Some(current) = &mut self.current {
                    current.waited = true;
                }
            }
            TurnEvent::Accepted | TurnEvent::Memory(_) | TurnEvent::Logprobs(_) | TurnEvent::Devices(_) => {}
        }
    }

    fn failed(
        &mut self,
        (attempt, node): (u32, NodeId),
        (code, reason): (Option<ErrorCode>, String),
        now: Instant,
        asking: Duration,
    ) {
        let current = self.current.take();
        let admitted = current.as_ref().and_then(|current| current.admitted);
        let sent = current.map_or(now, |current| current.sent);
        let noticed = now.checked_sub(asking).unwrap_or(now);
        let key = AttemptKey { session: self.session, seq: self.seq, attempt };
        let told = self.ledger.told(&key);
        let death = self.deaths.of(node, sent);
        let cause = match (told, death) {
            (Some(_), _) => Cause::Lied,
            (None, Some(_)) => Cause::Killed,
            _ if reason.contains("stalled") => Cause::Stalled,
            _ => Cause::Failed,
        };
        let lie = told.map(|told| told.lie);
        self.failures.push(Failure { key, code, reason, cause, lie, noticed });
        let Some(last_text) = self.last_text else { return };
        let found_out = |since: Instant| noticed.saturating_duration_since(death.unwrap_or(since).max(since));
        match (&mut self.lost, admitted) {
            (None, _) => {
                let detection = found_out(last_text);
                self.lost = Some(Lost { cause, last_text, detection, noticed, asking, substitutes: 0 });
            }
            // A substitute that lived when it was chosen, and was lost in turn: that is found out anew.
            (Some(lost), Some(admitted)) => {
                (lost.cause, lost.noticed, lost.asking) = (cause, noticed, asking);
                lost.detection = found_out(admitted);
            }
            // One that never answered belongs to the time that taking over took.
            (Some(_), None) => {}
        }
    }

    /// Text comes again.
    fn resumed(&mut self, now: Instant) {
        let (Some(current), Some(lost)) = (&self.current, self.lost.take()) else { return };
        let admitted = current.admitted.unwrap_or(now);
        self.takeovers.push(Takeover {
            cause: lost.cause,
            gap: now.saturating_duration_since(lost.last_text),
            detection: lost.detection,
            after: now.saturating_duration_since(lost.noticed),
            asking: lost.asking,
            choosing: current.sent.saturating_duration_since(lost.noticed + lost.asking),
            opening: admitted.saturating_duration_since(current.sent),
            answering: now.saturating_duration_since(admitted),
            substitutes: lost.substitutes,
            continued: current.continues,
            attempt: current.attempt,
            served: None,
            waited: current.waited,
        });
    }

    /// Adds what the accepted turn's receipt says.
    pub(super) fn accepted(&mut self, outcome: &TurnOutcome) {
        let timings = outcome.receipt.timings;
        let millis = |ms: u32| Duration::from_millis(ms.into());
        for takeover in self.takeovers.iter_mut().filter(|takeover| takeover.attempt == outcome.attempt) {
            // Without a line, what the receipt calls so went into fetching the history, which is no excuse.
            let in_line = if takeover.waited { millis(timings.queue_ms) } else { Duration::ZERO };
            takeover.served = Some(Served { in_line, prefill: millis(timings.prefill_ms) });
        }
    }
}
