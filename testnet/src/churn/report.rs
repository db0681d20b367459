//! The figures of a churn run.

use std::{collections::BTreeMap, time::Duration};

use baton_proto::ErrorCode;
use serde::Serialize;

use super::{
    ChurnOptions,
    chat::ChurnClient,
    gaps::{Cause, FailedAttempt, Takeover},
    nodes::ChurnCounts,
};
use crate::{
    bench::Quantiles,
    byzantine::{Behaviour, Misbehaviour, MisbehaviourLog},
    output,
    trial::{BUILD, TrialReport, tenths},
};

/// The results of one misbehaviour.
#[derive(Clone, Debug, Serialize)]
pub struct MisbehaviourReport {
    /// Its behaviour.
    pub behaviour: Behaviour,
    /// The misbehaviour.
    pub lie: Misbehaviour,
    /// Times it happened.
    pub told: u64,
    /// Clients' names for it, with counts.
    pub detected_as: BTreeMap<String, u64>,
    /// Times that the client had already abandoned the attempt for another reason.
    pub left_before: u64,
    /// Accepted turns with it. Only these may be accepted: a turn committed twice, with the first link, and a
    /// turn whose blob is not stored.
    pub accepted: u64,
}

/// The report of one run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ChurnReport {
    /// Its seed.
    pub seed: u64,
    /// `debug` or `release`.
    pub build: &'static str,
    /// Nodes, including byzantine ones.
    pub nodes: usize,
    /// Byzantine nodes.
    pub hostile: usize,
    /// Clients.
    pub clients: usize,
    /// Duration of the kills and restarts.
    pub seconds: f64,
    /// Nodes killed.
    pub kills: u64,
    /// Nodes restarted.
    pub starts: u64,
    /// Turns accepted.
    pub turns: u64,
    /// Accepted turns from byzantine nodes that did not falsify them, or committed them twice.
    pub turns_by_liars: u64,
    /// Turns verified again from journal, store and export.
    pub turns_verified: u64,
    /// Receipts checked by that verification.
    pub receipts_verified: u64,
    /// Turns read from the store by a client that has the root alone.
    pub turns_recovered: u64,
    /// Answers taken over after part of their text.
    pub takeovers: u64,
    /// Takeovers that passed on the arrived tokens.
    pub continued: u64,
    /// Failed attempts by cause.
    pub replaced: BTreeMap<String, u64>,
    /// Failed attempts at honest nodes, by error name.
    pub failures: BTreeMap<String, u64>,
    /// Turns that failed as a whole and were resumed, by error name.
    pub taken_up_again: BTreeMap<String, u64>,
    /// Times that shown text was discarded.
    pub restarts: u64,
    /// Takeovers from killed nodes: from the old node's last text to the new node's first.
    pub gap_ms: Quantiles,
    /// Part of it: until the death was detected.
    pub detection_ms: Quantiles,
    /// Part of it: after the detection.
    pub after_detection_ms: Quantiles,
    /// The same without the substitute's queue and prefill times, by its receipt.
    pub after_detection_net_ms: Quantiles,
    /// The results of each misbehaviour.
    pub lies: Vec<MisbehaviourReport>,
    /// Violations of the promises.
    pub violations: Vec<String>,
}

impl ChurnReport {
    pub(super) fn new(options: &ChurnOptions, seed: u64, lasted: Duration, counts: ChurnCounts) -> Self {
        let ChurnCounts { kills, starts } = counts;
        let ChurnOptions { nodes, hostile, clients, .. } = *options;
        let seconds = tenths(lasted);
        Self { seed, build: BUILD, nodes, hostile, clients, seconds, kills, starts, ..Self::default() }
    }

    pub(super) fn violation(&mut self, what: String) {
        output::note(&format!("  VIOLATION: {what}"));
        self.violations.push(what);
    }

    /// Adds up the results of all clients.
    pub(super) fn gather(&mut self, clients: &[ChurnClient], log: &MisbehaviourLog) {
        for client in clients {
            let results = &client.results;
            self.turns += results.ledger.acknowledged();
            self.turns_by_liars += results.from_byzantine;
            self.restarts += results.restarts;
            for name in &results.unfinished {
                count(&mut self.taken_up_again, name);
            }
            for violation in &results.violations {
                self.violation(violation.clone());
            }
        }
        let failures: Vec<_> = clients.iter().flat_map(|client| &client.results.failures).collect();
        for failure in &failures {
            count(&mut self.replaced, &format!("{:?}", failure.cause).to_lowercase());
            if failure.misbehaviour.is_none() {
                count(&mut self.failures, &name_of(failure));
                if failure.code.is_some_and(|code| !may_happen(code)) {
                    self.violation(format!("an honest answer was called {}", name_of(failure)));
                }
            }
        }
        self.measure(clients.iter().flat_map(|client| &client.results.takeovers));
        self.judge_misbehaviours(clients, &failures, log);
    }

    fn measure<'a>(&mut self, takeovers: impl Iterator<Item = &'a Takeover>) {
        let takeovers: Vec<&Takeover> = takeovers.collect();
        self.takeovers = takeovers.len() as u64;
        self.continued = takeovers.iter().filter(|takeover| takeover.continued > 0).count() as u64;
        let of_killed = |time: fn(&Takeover) -> Option<Duration>| {
            let killed = takeovers.iter().filter(|takeover| takeover.cause == Cause::Killed);
            let times = killed.filter_map(|takeover| Some((time(takeover)?.as_secs_f64() * 1000.0).round()));
            Quantiles::of(&times.collect::<Vec<f64>>())
        };
        self.gap_ms = of_killed(|takeover| Some(takeover.gap));
        self.detection_ms = of_killed(|takeover| Some(takeover.detection));
        self.after_detection_ms = of_killed(|takeover| Some(takeover.after));
        self.after_detection_net_ms =
            of_killed(|takeover| Some(takeover.after.saturating_sub(takeover.served?)));
    }

    fn judge_misbehaviours(
        &mut self,
        clients: &[ChurnClient],
        failures: &[&FailedAttempt],
        log: &MisbehaviourLog,
    ) {
        let counts = log.counts();
        for misbehaviour in Misbehaviour::ALL {
            let Some(times) = counts.get(misbehaviour).copied() else { continue };
            let mut row = MisbehaviourReport {
                behaviour: misbehaviour.behaviour(),
                lie: *misbehaviour,
                told: times,
                detected_as: BTreeMap::new(),
                left_before: 0,
                accepted: 0,
            };
            for failure in failures.iter().filter(|failure| failure.misbehaviour == Some(*misbehaviour)) {
                self.judge(&mut row, failure, log);
            }
            let accepted = clients.iter().flat_map(|client| &client.results.accepted_misbehaviours);
            if *misbehaviour == Misbehaviour::ClaimsStored {
                let detected: u64 = clients.iter().map(|client| client.results.claims_detected).sum();
                if detected > 0 {
                    row.detected_as.insert("lied".to_owned(), detected);
                }
            }
            row.accepted = accepted.filter(|accepted| *accepted == misbehaviour).count() as u64;
            self.lies.push(row);
        }
    }

    /// Judges one failed attempt in which a node misbehaved.
    fn judge(&mut self, row: &mut MisbehaviourReport, failure: &FailedAttempt, log: &MisbehaviourLog) {
        let happened_later = log.entry(&failure.key).is_none_or(|entry| entry.at > failure.noticed);
        let named = failure.code.is_some_and(|code| row.lie.error_codes().contains(&code));
        if named {
            count(&mut row.detected_as, &name_of(failure));
        } else if happened_later || failure.reason.contains("stalled") || row.lie.error_codes().is_empty() {
            row.left_before += 1;
        } else {
            let (lie, name) = (row.lie, name_of(failure));
            count(&mut row.detected_as, &name);
            self.violation(format!("{lie:?} was called {name} ({})", failure.reason));
        }
    }
}

impl TrialReport for ChurnReport {
    fn lines(&self) -> Vec<String> {
        let Self { seed, build, nodes, hostile, clients, seconds, kills, starts, turns, .. } = self;
        let Self { turns_verified, receipts_verified, turns_recovered, takeovers, continued, .. } = self;
        let Self { replaced, failures, taken_up_again, restarts, .. } = self;
        let show = |name: &str, times: &Quantiles| {
            let Quantiles { count, p50, p95, max, .. } = times;
            format!("  {name:<46} {p50:>6.0} {p95:>6.0} {max:>6.0}   of {count}")
        };
        let mut lines = vec![
            format!(
                "{build} build, seed {seed}: {turns} turns accepted in {seconds} s by {clients} clients on {nodes} nodes ({hostile} hostile); {kills} killed, {starts} started"
            ),
            format!(
                "verified again: {turns_verified} turns from journal, store and export, {receipts_verified} receipts, {turns_recovered} turns from the root alone"
            ),
            format!(
                "{takeovers} answers taken over, {continued} of them with the tokens that had arrived; attempts that failed: {replaced:?}"
            ),
            format!("failures at honest nodes: {failures:?}"),
            format!("turns taken up again: {taken_up_again:?}; text void {restarts} times"),
            "\n  milliseconds                                      p50    p95    max".to_owned(),
            show("gap when a node is killed", &self.gap_ms),
            show("  until that is noticed", &self.detection_ms),
            show("  from there to the substitute's first token", &self.after_detection_ms),
            show("    without its line and its prefill", &self.after_detection_net_ms),
        ];
        if !self.lies.is_empty() {
            let heading = "\n  behaviour      lie                  told  accepted  left before  detected as";
            lines.push(heading.to_owned());
            lines.extend(self.lies.iter().map(MisbehaviourReport::line));
        }
        lines.extend(self.violations.iter().map(|violation| format!("VIOLATION: {violation}")));
        lines
    }

    fn broken(&self) -> u64 {
        self.violations.len() as u64
    }
}

impl MisbehaviourReport {
    fn line(&self) -> String {
        let Self { behaviour, lie, told, detected_as, left_before, accepted } = self;
        let names = if lie.error_codes().is_empty() {
            "the first link stands".to_owned()
        } else {
            detected_as.iter().map(|(name, times)| format!("{name} {times}")).collect::<Vec<_>>().join(", ")
        };
        let (behaviour, lie) = (format!("{behaviour:?}"), format!("{lie:?}"));
        format!("  {behaviour:<14} {lie:<20} {told:>4} {accepted:>9} {left_before:>12}  {names}")
    }
}

/// Whether an attempt at an honest node may fail with this code: nodes die, are busy, and reject a resume
/// prefix that another node forged. Any other code means that a takeover spoilt the answer.
fn may_happen(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::StreamTruncated
            | ErrorCode::PayloadRejected
            | ErrorCode::Busy
            | ErrorCode::RateLimited
            | ErrorCode::QuotaExceeded
            | ErrorCode::BlobUnavailable
            | ErrorCode::Replayed
    )
}

fn name_of(failure: &FailedAttempt) -> String {
    match failure.code {
        Some(code) if failure.reason.contains("stalled") => format!("{} (stalled)", code.name()),
        Some(code) => code.name().to_owned(),
        None => "Unreachable".to_owned(),
    }
}

fn count(counts: &mut BTreeMap<String, u64>, name: &str) {
    *counts.entry(name.to_owned()).or_default() += 1;
}
