//! The results of the trials.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::plan::Scenario;
use crate::trial::{BUILD, TrialReport, ledger::LedgerVerdict};

/// The kind of a broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// Acknowledged turns that were lost, and intact blobs that the store deleted.
    Lost,
    /// Turns that were there twice, out of order, with another turn's answer, or that no client sent.
    Wrong,
    /// Damage or wrong clocks that caused a loss and that no program named.
    Undetected,
    /// Valid calls that failed or waited after the fault had ended.
    Unserved,
    /// Processes that panicked.
    Panics,
    /// Calls that took more than half a minute.
    Hangs,
    /// Trials that could not be carried out.
    Failed,
}

/// Counts of trials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TrialTally {
    /// Trials that were run.
    pub trials: u64,
    /// Turns and memories that a client printed as verified or kept.
    pub acknowledged: u64,
    /// Findings by kind; each kind has a count.
    #[serde(flatten)]
    pub findings: BTreeMap<FindingKind, u64>,
}

impl Default for TrialTally {
    fn default() -> Self {
        use FindingKind::{Failed, Hangs, Lost, Panics, Undetected, Unserved, Wrong};
        let findings = [Lost, Wrong, Undetected, Unserved, Panics, Hangs, Failed].map(|kind| (kind, 0));
        Self { trials: 0, acknowledged: 0, findings: BTreeMap::from(findings) }
    }
}

/// The findings of one trial.
#[derive(Clone, Debug, Default)]
pub(super) struct TrialFindings {
    pub(super) acknowledged: u64,
    pub(super) found: Vec<(FindingKind, String)>,
}

impl TrialFindings {
    /// Records a finding.
    pub(super) fn found(&mut self, kind: FindingKind, what: impl Into<String>) {
        self.found.push((kind, what.into()));
    }

    /// Records the violations in a history.
    pub(super) fn judge(&mut self, verdict: LedgerVerdict) {
        self.found.extend(verdict.lost.into_iter().map(|text| (FindingKind::Lost, text)));
        self.found.extend(verdict.wrong.into_iter().map(|text| (FindingKind::Wrong, text)));
    }
}

/// A broken promise, with the trial that repeats it.
#[derive(Clone, Debug, Serialize)]
pub struct BrokenPromise {
    /// Seed of the trial.
    pub seed: u64,
    /// Its scenario.
    pub scenario: Scenario,
    /// The finding in words.
    pub what: String,
}

/// The report of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ChaosReport {
    /// `debug` or `release`.
    pub build: &'static str,
    /// Seeds that were run.
    pub seeds: BTreeSet<u64>,
    /// The run's seconds.
    pub seconds: f64,
    /// Counts of each scenario.
    pub scenarios: BTreeMap<Scenario, TrialTally>,
    /// Counts of all scenarios.
    pub total: TrialTally,
    /// The broken promises.
    pub findings: Vec<BrokenPromise>,
}

impl ChaosReport {
    pub(super) fn new() -> Self {
        Self { build: BUILD, ..Self::default() }
    }

    /// Adds a trial's findings.
    pub(super) fn add(&mut self, seed: u64, scenario: Scenario, findings: TrialFindings) {
        self.seeds.insert(seed);
        for tally in [self.scenarios.entry(scenario).or_default(), &mut self.total] {
            tally.trials += 1;
            tally.acknowledged += findings.acknowledged;
            for (kind, _) in &findings.found {
                *tally.findings.entry(*kind).or_default() += 1;
            }
        }
        let promises = findings.found.into_iter().map(|(kind, what)| {
            let what = format!("{}: {what}", format!("{kind:?}").to_lowercase());
            BrokenPromise { seed, scenario, what }
        });
        self.findings.extend(promises);
    }
}

impl TrialReport for ChaosReport {
    fn broken(&self) -> usize {
        self.findings.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_count_for_their_scenario_and_in_all() {
        let mut report = ChaosReport::new();
        report.add(3, Scenario::Kills, TrialFindings { acknowledged: 6, ..TrialFindings::default() });
        assert_eq!(report.broken(), 0);
        let found = vec![(FindingKind::Lost, "a turn".to_owned()), (FindingKind::Hangs, "a call".to_owned())];
        report.add(4, Scenario::Kills, TrialFindings { acknowledged: 6, found });
        assert_eq!((report.broken(), &report.scenarios[&Scenario::Kills]), (2, &report.total));
        let json = serde_json::to_value(&report).unwrap();
        let total = serde_json::json!({
            "trials": 2, "acknowledged": 12, "lost": 1, "wrong": 0, "undetected": 0, "unserved": 0, "panics": 0,
            "hangs": 1, "failed": 0,
        });
        assert_eq!((&json["total"], &json["findings"][0]["what"]), (&total, &"lost: a turn".into()));
    }
}
