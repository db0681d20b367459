//! The next step, decided without I/O: after a round of reads, after a PUT, after a search for a doubtful
//! PUT.
//!
//! Pure. The rules are Walrus's:
//! - A read that failed on the server's side is repeated after a pause.
//! - A refusal is never repeated.
//! - A 404 is repeated only for a recently stored blob.
//! - A PUT that may have arrived is repeated only once the blob is known to be nowhere, or where the
//!   repetition buys nothing. Otherwise a repeated PUT buys a second object.

use std::{collections::BTreeMap, time::Duration};

use baton_proto::store::StoreError;

use super::answer::{PutFault, ReadFault};

/// Pause before the first repetition; each further repetition doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Longest pause that the server did not ask for.
const MAX_PAUSE: Duration = Duration::from_secs(3);
/// PUTs sent again after a known loss. Only one: a store that loses two is not worth paying.
const RESENDS: u32 = 1;

/// The pause before repetition number `round` (from 0): half of it fixed, half by `jitter` (0 to 1). So
/// clients that failed together do not retry together.
pub(super) fn pause(round: u32, jitter: f64) -> Duration {
    let whole = FIRST_PAUSE.saturating_mul(1 << round.min(16)).min(MAX_PAUSE);
    whole / 2 + (whole / 2).mul_f64(jitter.clamp(0.0, 1.0))
}

/// The state of a read after all its sources have failed once more.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadSituation {
    /// Rounds repeated so far.
    pub(super) round: u32,
    /// The repeated rounds in which a source failed on its side. Waiting for a cache's 404 to expire does not
    /// count.
    pub(super) failed_rounds: u32,
    /// Most repeated rounds for sources that failed on their side.
    pub(super) budget: u32,
    /// How long a 404 of this blob may still be a cache's; zero unless it was recently stored.
    pub(super) missing_left: Duration,
    /// Time left until the deadline.
    pub(super) left: Duration,
    /// From 0 to 1.
    pub(super) jitter: f64,
}

/// The next step of a read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReadStep {
    Fail(StoreError),
    /// Wait, then ask these sources again.
    Again {
        wait: Duration,
        sources: Vec<usize>,
    },
}

/// Decides from each source's last fault.
pub(super) fn after_reads(faults: &BTreeMap<usize, ReadFault>, situation: ReadSituation) -> ReadStep {
    let own_pause = pause(situation.round, situation.jitter);
    let answered = faults.values().any(|fault| *fault == ReadFault::Missing);
    let waits: Vec<(usize, Duration)> = faults
        .iter()
        .filter_map(|(source, fault)| match fault {
            ReadFault::Busy { retry_after, .. } if situation.failed_rounds < situation.budget => {
                Some((*source, own_pause.max(retry_after.unwrap_or_default())))
            }
            ReadFault::Unreachable { .. } if !answered && situation.failed_rounds < situation.budget => {
                Some((*source, own_pause))
            }
            // The last try is at the very end of the time for a cache's 404.
            ReadFault::Missing if !situation.missing_left.is_zero() => {
                Some((*source, own_pause.min(situation.missing_left)))
            }
            _ => None,
        })
        .collect();
    match waits.iter().map(|(_, wait)| *wait).min() {
        Some(wait) if wait < situation.left => ReadStep::Again {
            wait,
            sources: waits.iter().filter(|(_, own)| *own <= wait).map(|(source, _)| *source).collect(),
        },
        _ => ReadStep::Fail(read_error(faults)),
    }
}

/// The one error for all sources. "Not found" needs all reachable sources to agree; "try later" needs one
/// source where it may help.
pub(super) fn read_error(faults: &BTreeMap<usize, ReadFault>) -> StoreError {
    let soonest = faults.values().filter_map(ReadFault::retry_after).min();
    let wrong = faults.values().any(|fault| *fault == ReadFault::Wrong);
    let mut refused = None;
    let mut too_large = None;
    let missing_at_best =
        |fault: &ReadFault| matches!(fault, ReadFault::Missing | ReadFault::Unreachable { .. });
    if faults.values().all(missing_at_best) && faults.values().any(|fault| *fault == ReadFault::Missing) {
        return StoreError::NotFound;
    }
    for fault in faults.values() {
        match fault {
            ReadFault::Busy { reason, .. } | ReadFault::Unreachable { reason } => {
                let more = if wrong { "; another source had other content" } else { "" };
                return StoreError::Unavailable { reason: format!("{reason}{more}"), retry_after: soonest };
            }
            ReadFault::Refused { reason } => refused = refused.or_else(|| Some(reason.clone())),
            ReadFault::TooLarge { length, limit } => too_large = too_large.or(Some((*length, *limit))),
            ReadFault::Missing | ReadFault::Wrong => {}
        }
    }
    match (wrong, too_large, refused) {
        (true, ..) => StoreError::WrongContent,
        (_, Some((length, limit)), _) => StoreError::TooLarge { length, limit },
        (.., Some(reason)) => StoreError::Refused { reason },
        _ => StoreError::NotFound,
    }
}

/// The result of a search at all aggregators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProbeOutcome {
    Found,
    /// All reachable aggregators lack it, at the end of the search time.
    Absent,
    /// An aggregator gave no usable answer, or none was reachable.
    Undecided,
}

/// The last answer of one aggregator in a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProbeAnswer {
    Present,
    Absent,
    /// No connection came about: it does not count, unless no other source does.
    Unreachable,
    Unknown,
}

/// The next step of a search.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ProbeStep {
    Done(ProbeOutcome),
    Again(Duration),
}

/// Decides after pass number `pass` over all aggregators, with `left` of the search time.
pub(super) fn after_probe_pass(answers: &[ProbeAnswer], pass: u32, left: Duration, jitter: f64) -> ProbeStep {
    if answers.contains(&ProbeAnswer::Present) {
        return ProbeStep::Done(ProbeOutcome::Found);
    }
    if !left.is_zero() {
        return ProbeStep::Again(pause(pass, jitter).min(left));
    }
    let absent = answers.contains(&ProbeAnswer::Absent)
        && answers.iter().all(|answer| matches!(answer, ProbeAnswer::Absent | ProbeAnswer::Unreachable));
    ProbeStep::Done(if absent { ProbeOutcome::Absent } else { ProbeOutcome::Undecided })
}

/// The next step of a PUT.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PutStep {
    /// Send it to the next publisher of this round.
    Next,
    /// Wait, then start another round over all publishers.
    Round(Duration),
    /// Search for the blob.
    Probe,
    Fail(StoreError),
}

/// The course of one PUT over publishers, rounds and doubts.
#[derive(Debug)]
pub(super) struct PutCourse {
    length: u64,
    budget: u32,
    round: u32,
    resends_left: u32,
    /// Whether a second PUT at the same publisher buys nothing. For a permanent blob, it finds its own
    /// registration or the certified blob. Another publisher would not see an uncertified blob.
    repeatable: bool,
    /// The errors of this round's publishers; none of them stored it.
    refusals: Vec<StoreError>,
    /// The error while it is unknown whether the blob is stored.
    doubt: Option<StoreError>,
}

impl PutCourse {
    pub(super) fn new(length: u64, budget: u32, repeatable: bool) -> Self {
        Self {
            length,
            budget,
            round: 0,
            resends_left: RESENDS,
            repeatable,
            refusals: Vec::new(),
            doubt: None,
        }
    }

    /// Whether an earlier PUT may have been stored: the next PUT may then only go to the same publisher.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.doubt.is_some()
    }

    /// The error if the time ends now.
    pub(super) fn at_deadline(&self, in_flight: bool) -> StoreError {
        match (&self.doubt, in_flight) {
            (Some(doubt), _) => doubt.clone(),
            (None, true) => StoreError::OutcomeUnknown { reason: "timed out".to_owned() },
            (None, false) => match put_error(&self.refusals) {
                Some(StoreError::Unavailable { reason, retry_after }) => {
                    StoreError::Unavailable { reason, retry_after }
                }
                _ => StoreError::Unavailable { reason: "timed out".to_owned(), retry_after: None },
            },
        }
    }

    /// A publisher did not confirm the blob. `publishers_left` counts the publishers of this round that were
    /// not asked.
    pub(super) fn after_fault(
        &mut self,
        fault: PutFault,
        publishers_left: usize,
        left: Duration,
        jitter: f64,
    ) -> PutStep {
        let refusal = match fault {
            PutFault::Ambiguous { reason } => {
                self.doubt = Some(StoreError::OutcomeUnknown { reason });
                return PutStep::Probe;
            }
            PutFault::WrongId => {
                self.resends_left = 0;
                self.repeatable = false;
                self.doubt = Some(StoreError::WrongContent);
                return PutStep::Probe;
            }
            PutFault::Invalid => {
                return PutStep::Fail(StoreError::Refused {
                    reason: "the blob is marked invalid".to_owned(),
                });
            }
            PutFault::Busy { reason, retry_after } => StoreError::Unavailable { reason, retry_after },
            PutFault::Refused { reason } => StoreError::Refused { reason },
            // The publisher does not state its limit, which is below the sent length.
            PutFault::TooLarge => {
                StoreError::TooLarge { length: self.length, limit: self.length.saturating_sub(1) }
            }
        };
        self.refusals.push(refusal);
        if publishers_left > 0 { PutStep::Next } else { self.next_round(left, jitter) }
    }

    /// All publishers were asked, and none stored it.
    fn next_round(&mut self, left: Duration, jitter: f64) -> PutStep {
        let error = put_error(&self.refusals).unwrap_or_else(no_publisher);
        if let StoreError::Unavailable { retry_after, .. } = &error {
            let wait = pause(self.round, jitter).max(retry_after.unwrap_or_default());
            if self.round < self.budget && wait < left {
                self.round += 1;
                self.refusals.clear();
                return PutStep::Round(wait);
            }
        }
        // An earlier PUT may have arrived, whatever happened to later PUTs.
        PutStep::Fail(self.doubt.clone().unwrap_or(error))
    }

    /// Decides after the search at all aggregators. `None`: it is stored.
    pub(super) fn after_probe(
        &mut self,
        probed: ProbeOutcome,
        left: Duration,
        jitter: f64,
    ) -> Option<PutStep> {
        (probed != ProbeOutcome::Found).then(|| self.resend(probed, left, jitter))
    }

    /// Another PUT, if it cannot buy the blob twice.
    fn resend(&mut self, probed: ProbeOutcome, left: Duration, jitter: f64) -> PutStep {
        let wait = pause(0, jitter);
        let may = probed == ProbeOutcome::Absent || self.repeatable;
        if !may || self.resends_left == 0 || wait >= left {
            return PutStep::Fail(self.at_deadline(true));
        }
        if probed == ProbeOutcome::Absent {
            self.doubt = None;
        }
        self.resends_left -= 1;
        self.refusals.clear();
        PutStep::Round(wait)
    }
}

fn no_publisher() -> StoreError {
    StoreError::Refused { reason: "no publisher is configured".to_owned() }
}

/// The one error for all publishers of a round: "try later" if that may help with any of them.
fn put_error(refusals: &[StoreError]) -> Option<StoreError> {
    let soonest = refusals
        .iter()
        .filter_map(|error| match error {
            StoreError::Unavailable { retry_after, .. } => Some(retry_after.unwrap_or_default()),
            _ => None,
        })
        .min()
        .filter(|wait| !wait.is_zero());
    let unavailable = refusals.iter().find(|error| error.is_retryable());
    match unavailable.or(refusals.first())? {
        StoreError::Unavailable { reason, .. } => {
            Some(StoreError::Unavailable { reason: reason.clone(), retry_after: soonest })
        }
        other => Some(other.clone()),
    }
}

#[cfg(test)]
mod tests;
