//! A client's view of one turn, event by event: the text, failed attempts with their causes, and the gaps
//! between texts.

use std::time::{Duration, Instant};

use baton_client::{TurnEvent, TurnOutcome};
use baton_proto::{
    ErrorCode,
    ids::{NodeId, SessionId},
};

use super::KnownNodes;
use crate::byzantine::{AttemptKey, Misbehaviour};

/// Why a node was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// It was killed.
    Killed,
    /// It sent nothing for too long.
    Stalled,
    /// It misbehaved.
    Lied,
    /// It refused, or failed in another way.
    Failed,
}

/// An attempt that failed.
#[derive(Clone, Debug)]
pub(super) struct FailedAttempt {
    pub(super) key: AttemptKey,
    pub(super) code: Option<ErrorCode>,
    pub(super) reason: String,
    pub(super) cause: Cause,
    pub(super) misbehaviour: Option<Misbehaviour>,
    pub(super) noticed: Instant,
}

/// An answer that another node continued or began anew.
#[derive(Clone, Debug)]
pub(super) struct Takeover {
    pub(super) cause: Cause,
    /// From the last text before the failure to the first text after it.
    pub(super) gap: Duration,
    /// From the node's death, or its last text, to the detection.
    pub(super) detection: Duration,
    /// From the detection to the first text after it.
    pub(super) after: Duration,
    /// Tokens passed to the substitute.
    pub(super) continued: u32,
    attempt: u32,
    /// The substitute's queue and prefill before the first token, by its receipt if it finished the answer.
    pub(super) served: Option<Duration>,
    /// Whether it reported a queue.
    waited: bool,
}

/// The running attempt.
struct RunningAttempt {
    attempt: u32,
    continues: u32,
    sent: Instant,
    admitted: Option<Instant>,
    waited: bool,
}

/// An interrupted answer.
struct InterruptedAnswer {
    cause: Cause,
    last_text: Instant,
    detection: Duration,
    noticed: Instant,
}

/// The events of one turn.
pub(super) struct TurnWatch<'a> {
    session: SessionId,
    seq: u64,
    known: &'a KnownNodes,
    /// All text shown since the last restart.
    pub(super) shown: String,
    last_text: Option<Instant>,
    current: Option<RunningAttempt>,
    interrupted: Option<InterruptedAnswer>,
    pub(super) failures: Vec<FailedAttempt>,
    pub(super) takeovers: Vec<Takeover>,
    pub(super) restarts: u64,
}

impl<'a> TurnWatch<'a> {
    pub(super) fn new(session: SessionId, seq: u64, known: &'a KnownNodes) -> Self {
        Self {
            session,
            seq,
            known,
            shown: String::new(),
            last_text: None,
            current: None,
            interrupted: None,
            failures: Vec::new(),
            takeovers: Vec::new(),
            restarts: 0,
        }
    }

    /// Processes an event as it happens.
    pub(super) fn take(&mut self, event: TurnEvent) {
        let now = Instant::now();
        if !matches!(event, TurnEvent::Text(_)) {
            tracing::debug!(session = %self.session, seq = self.seq, ?event, "an event of a turn");
        }
        match event {
            TurnEvent::Attempt { attempt, continues, .. } => {
                self.current =
                    Some(RunningAttempt { attempt, continues, sent: now, admitted: None, waited: false });
            }
            TurnEvent::Admitted => {
                if let Some(current) = &mut self.current {
                    current.admitted = Some(now);
                }
            }
            TurnEvent::Text(text) => {
                self.shown.push_str(&text);
                // Text repeated before the next attempt comes from no node.
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
                self.failed((attempt, node), (code, reason), now.checked_sub(noticed_ago).unwrap_or(now));
            }
            TurnEvent::Waiting(_) => {
                if let Some(current) = &mut self.current {
                    current.waited = true;
                }
            }
            _ => {}
        }
    }

    fn failed(
        &mut self,
        (attempt, node): (u32, NodeId),
        (code, reason): (Option<ErrorCode>, String),
        noticed: Instant,
    ) {
        let current = self.current.take();
        let admitted = current.as_ref().and_then(|current| current.admitted);
        let sent = current.map_or(noticed, |current| current.sent);
        let key = AttemptKey { session: self.session, seq: self.seq, attempt };
        let entry = self.known.log.entry(&key);
        let death = self.known.deaths.of(node, sent);
        let cause = match (entry, death) {
            (Some(_), _) => Cause::Lied,
            (None, Some(_)) => Cause::Killed,
            _ if reason.contains("stalled") => Cause::Stalled,
            _ => Cause::Failed,
        };
        let misbehaviour = entry.map(|entry| entry.misbehaviour);
        self.failures.push(FailedAttempt { key, code, reason, cause, misbehaviour, noticed });
        let Some(last_text) = self.last_text else { return };
        let found_out = |since: Instant| noticed.saturating_duration_since(death.unwrap_or(since).max(since));
        match (&mut self.interrupted, admitted) {
            (None, _) => {
                let detection = found_out(last_text);
                self.interrupted = Some(InterruptedAnswer { cause, last_text, detection, noticed });
            }
            // A substitute was alive when chosen and failed in turn: its failure is a new detection.
            (Some(interrupted), Some(admitted)) => {
                (interrupted.cause, interrupted.noticed) = (cause, noticed);
                interrupted.detection = found_out(admitted);
            }
            // A substitute that never answered counts towards the takeover's time.
            (Some(_), None) => {}
        }
    }

    /// Text arrives again.
    fn resumed(&mut self, now: Instant) {
        let (Some(current), Some(interrupted)) = (&self.current, self.interrupted.take()) else { return };
        self.takeovers.push(Takeover {
            cause: interrupted.cause,
            gap: now.saturating_duration_since(interrupted.last_text),
            detection: interrupted.detection,
            after: now.saturating_duration_since(interrupted.noticed),
            continued: current.continues,
            attempt: current.attempt,
            served: None,
            waited: current.waited,
        });
    }

    /// Adds the times from the accepted turn's receipt.
    pub(super) fn accepted(&mut self, outcome: &TurnOutcome) {
        let timings = outcome.receipt.timings;
        let millis = |ms: u32| Duration::from_millis(ms.into());
        for takeover in self.takeovers.iter_mut().filter(|takeover| takeover.attempt == outcome.attempt) {
            // If the node reported no queue, the receipt's queue time was spent fetching the history; that is
            // not subtracted.
            let queued = if takeover.waited { millis(timings.queue_ms) } else { Duration::ZERO };
            takeover.served = Some(queued + millis(timings.prefill_ms));
        }
    }
}
