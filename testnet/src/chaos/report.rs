//! The results of the trials, and their table.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::plan::Scenario;
use crate::trial::{BUILD, TrialReport, ledger::LedgerVerdict};

/// The kind of a finding, a column of the table. Every kind but the last is a broken promise.
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
    /// Starts after harmless damage that no log names. For information.
    Unmentioned,
}

impl FindingKind {
    const ALL: [Self; 8] = [
        Self::Lost,
        Self::Wrong,
        Self::Undetected,
        Self::Unserved,
        Self::Panics,
        Self::Hangs,
        Self::Failed,
        Self::Unmentioned,
    ];

    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
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
        let findings = FindingKind::ALL.into_iter().map(|kind| (kind, 0)).collect();
        Self { trials: 0, acknowledged: 0, findings }
    }
}

impl TrialTally {
    fn add(&mut self, other: &Self) {
        self.trials += other.trials;
        self.acknowledged += other.acknowledged;
        for (kind, count) in &other.findings {
            *self.findings.entry(*kind).or_default() += count;
        }
    }

    /// The number of broken promises.
    #[must_use]
    pub fn broken(&self) -> u64 {
        let broken = self.findings.iter().filter(|(kind, _)| **kind != FindingKind::Unmentioned);
        broken.map(|(_, count)| count).sum()
    }
}

/// The findings of one trial: counts, and a line for each finding.
#[derive(Clone, Debug, Default)]
pub(super) struct TrialFindings {
    pub(super) tally: TrialTally,
    pub(super) lines: Vec<String>,
    /// Harmless damage that no log names.
    pub(super) unmentioned: Vec<String>,
}

impl TrialFindings {
    /// Records one finding.
    pub(super) fn found(&mut self, kind: FindingKind, what: &str) {
        self.found_all(kind, 1, what);
    }

    /// Records findings that one line describes, if there are any.
    pub(super) fn found_all(&mut self, kind: FindingKind, count: u64, what: &str) {
        if count > 0 {
            *self.tally.findings.entry(kind).or_default() += count;
            let of_kind =
                if kind == FindingKind::Unmentioned { &mut self.unmentioned } else { &mut self.lines };
            of_kind.push(format!("{}: {what}", kind.name()));
        }
    }

    /// Records the violations in a history.
    pub(super) fn judge(&mut self, verdict: &LedgerVerdict) {
        verdict.lost.iter().for_each(|text| self.found(FindingKind::Lost, &format!("{text:?}")));
        verdict.wrong.iter().for_each(|text| self.found(FindingKind::Wrong, text));
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
#[derive(Clone, Debug, Serialize)]
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

impl Default for ChaosReport {
    fn default() -> Self {
        Self {
            build: BUILD,
            seeds: BTreeSet::new(),
            seconds: 0.0,
            scenarios: BTreeMap::new(),
            total: TrialTally::default(),
            findings: Vec::new(),
        }
    }
}

impl ChaosReport {
    /// Adds a trial's findings.
    pub(super) fn add(&mut self, seed: u64, scenario: Scenario, found: TrialFindings) {
        self.seeds.insert(seed);
        self.scenarios.entry(scenario).or_default().add(&found.tally);
        self.total.add(&found.tally);
        self.findings.extend(found.lines.into_iter().map(|what| BrokenPromise { seed, scenario, what }));
    }

    /// A heading, a row a scenario, and their sum.
    fn table(&self) -> Vec<String> {
        let heading: Vec<String> = ["trials".to_owned(), "acked".to_owned()]
            .into_iter()
            .chain(FindingKind::ALL.map(FindingKind::name))
            .collect();
        let row = |name: &str, cells: &[String]| {
            let widths = heading.iter().map(|name| name.len().max(5));
            let cells = cells.iter().zip(widths).map(|(cell, width)| format!("  {cell:>width$}"));
            format!("{name:<16}{}", cells.collect::<String>())
        };
        let numbers = |name: &str, tally: &TrialTally| {
            let counts =
                [tally.trials, tally.acknowledged].into_iter().chain(tally.findings.values().copied());
            row(name, &counts.map(|count| count.to_string()).collect::<Vec<_>>())
        };
        let mut lines = vec![row("scenario", &heading)];
        lines.extend(self.scenarios.iter().map(|(scenario, tally)| numbers(&scenario.name(), tally)));
        lines.push(numbers("all", &self.total));
        lines
    }
}

impl TrialReport for ChaosReport {
    fn lines(&self) -> Vec<String> {
        let mut lines = self.table();
        let findings = self.findings.iter();
        lines.extend(
            findings.map(|found| format!("seed {}, {}: {}", found.seed, found.scenario.name(), found.what)),
        );
        let again: BTreeSet<_> = self.findings.iter().map(|found| (found.seed, found.scenario)).collect();
        lines.extend(again.into_iter().map(|(seed, scenario)| {
            format!("again: baton-testnet chaos --seed {seed} --only {}", scenario.name())
        }));
        lines
    }

    fn broken(&self) -> u64 {
        self.total.broken()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_their_sum_stand_in_columns() {
        let mut report = ChaosReport::default();
        let mut found = TrialFindings::default();
        (found.tally.trials, found.tally.acknowledged) = (1, 6);
        found.found(FindingKind::Unmentioned, "a start");
        report.add(3, Scenario::Kills, found.clone());
        assert_eq!(report.broken(), 0);
        found.found_all(FindingKind::Lost, 2, "two turns");
        found.found_all(FindingKind::Wrong, 0, "none");
        found.found(FindingKind::Hangs, "a call");
        report.add(4, Scenario::OlderHome, found);
        assert_eq!(report.broken(), 3);
        let table = report.table();
        assert_eq!(table.len(), 4);
        assert!(table.iter().all(|line| line.len() == table[0].len()), "{table:#?}");
        let cells = |line: usize| table[line].split_whitespace().skip(1).collect::<Vec<_>>();
        assert_eq!(cells(2), ["1", "6", "2", "0", "0", "0", "0", "1", "0", "1"]);
        assert_eq!(cells(3), ["2", "12", "2", "0", "0", "0", "0", "1", "0", "2"]);
        assert_eq!(report.findings.len(), 2);
        assert_eq!(report.seeds, BTreeSet::from([3, 4]));
        let json = serde_json::to_value(&report.total).unwrap();
        assert_eq!((&json["trials"], &json["lost"], &json["wrong"]), (&2.into(), &2.into(), &0.into()));
    }
}
