//! The figures of a churn run.

use std::{collections::BTreeMap, time::Duration};

use baton_proto::ErrorCode;
use serde::Serialize;

use super::{
    ChurnOptions,
    chat::ChurnClient,
    gaps::{FailedAttempt, Takeover},
    nodes::ChurnCounts,
};
use crate::{
    bench::Quantiles,
    byzantine::{Act, FakeNode, LIES},
    output,
    trial::{BUILD, TrialReport, tenths},
};

/// The results of one misbehaviour.
#[derive(Clone, Debug, Serialize)]
pub struct MisbehaviourReport {
    /// The lie.
    pub lie: String,
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
    /// Failed attempts at honest nodes, by error name.
    pub failures: BTreeMap<String, u64>,
    /// Turns that failed as a whole and were resumed, by error name.
    pub taken_up_again: BTreeMap<String, u64>,
    /// Times that shown text was discarded.
    pub restarts: u64,
    /// From the old node's last text to the new node's first, of all takeovers.
    pub gap_ms: Quantiles,
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
    pub(super) fn gather(&mut self, clients: &[ChurnClient], liars: &[FakeNode]) {
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
            if failure.lie.is_none() {
                count(&mut self.failures, &name_of(failure));
                if failure.code.is_some_and(|code| !may_happen(code)) {
                    self.violation(format!("an honest answer was called {}", name_of(failure)));
                }
            }
        }
        let takeovers: Vec<Takeover> =
            clients.iter().flat_map(|client| client.results.takeovers.iter().copied()).collect();
        self.takeovers = takeovers.len() as u64;
        self.continued = takeovers.iter().filter(|takeover| takeover.is_continued).count() as u64;
        let gaps = takeovers.iter().map(|takeover| (takeover.gap.as_secs_f64() * 1000.0).round());
        self.gap_ms = Quantiles::of(&gaps.collect::<Vec<f64>>());
        self.judge_lies(clients, &failures, liars);
    }

    fn judge_lies(&mut self, clients: &[ChurnClient], failures: &[&FailedAttempt], liars: &[FakeNode]) {
        for kind in LIES {
            let told = |node: &FakeNode| {
                node.seen(|seen| seen.lies.values().filter(|lie| lie.act == kind.act).count() as u64)
            };
            let accepted = clients.iter().flat_map(|client| &client.results.accepted_lies);
            let mut row = MisbehaviourReport {
                lie: format!("{:?}", kind.act),
                told: liars.iter().map(told).sum(),
                detected_as: BTreeMap::new(),
                left_before: 0,
                accepted: accepted.filter(|(act, _)| *act == kind.act).count() as u64,
            };
            if row.told == 0 {
                continue;
            }
            for failure in failures {
                if let Some(lie) = failure.lie.filter(|lie| lie.act == kind.act) {
                    self.judge(&mut row, failure, lie.at > failure.noticed, kind.codes);
                }
            }
            if kind.act == Act::ClaimStored {
                let detected: u64 = clients.iter().map(|client| client.results.claims_detected).sum();
                row.detected_as.extend((detected > 0).then(|| ("lied".to_owned(), detected)));
            }
            self.lies.push(row);
        }
    }

    /// Judges one failed attempt in which a node lied.
    fn judge(
        &mut self,
        row: &mut MisbehaviourReport,
        failure: &FailedAttempt,
        is_later: bool,
        codes: &[ErrorCode],
    ) {
        if failure.code.is_some_and(|code| codes.contains(&code)) {
            count(&mut row.detected_as, &name_of(failure));
        } else if is_later || failure.reason.contains("stalled") || codes.is_empty() {
            row.left_before += 1;
        } else {
            count(&mut row.detected_as, &name_of(failure));
            self.violation(format!("{} was called {} ({})", row.lie, name_of(failure), failure.reason));
        }
    }
}

impl TrialReport for ChurnReport {
    fn broken(&self) -> usize {
        self.violations.len()
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
