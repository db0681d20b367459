//! The results of the trials, and their table.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{ledger::Verdict, plan::Scenario};
use crate::output;

/// Counts of trials. All but `trials`, `acknowledged` and `unmentioned` are broken promises.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Trials that were run.
    pub trials: u64,
    /// Turns and memories that a client printed as verified or kept.
    pub acknowledged: u64,
    /// Acknowledged turns that were lost, and intact blobs that the store deleted.
    pub lost: u64,
    /// Turns that were there twice, out of order, with another turn's answer, or that no client sent.
    pub wrong: u64,
    /// Damage or wrong clocks that caused a loss and that no program named.
    pub undetected: u64,
    /// Valid calls that failed or waited after the fault had ended.
    pub unserved: u64,
    /// Processes that panicked.
    pub panics: u64,
    /// Calls that took more than half a minute.
    pub hangs: u64,
    /// Trials that could not be carried out.
    pub failed: u64,
    /// Starts after harmless damage that no log names. For information.
    pub unmentioned: u64,
}

impl Tally {
    /// Adds another tally.
    pub(super) fn add(&mut self, other: &Self) {
        self.trials += other.trials;
        self.acknowledged += other.acknowledged;
        self.lost += other.lost;
        self.wrong += other.wrong;
        self.undetected += other.undetected;
        self.unserved += other.unserved;
        self.panics += other.panics;
        self.hangs += other.hangs;
        self.failed += other.failed;
        self.unmentioned += other.unmentioned;
    }

    /// The number of broken promises.
    #[must_use]
    pub fn broken(&self) -> u64 {
        self.lost + self.wrong + self.undetected + self.unserved + self.panics + self.hangs + self.failed
    }

    fn cells(&self) -> [u64; 10] {
        let Self { trials, acknowledged, lost, wrong, undetected, .. } = *self;
        let Self { unserved, panics, hangs, failed, unmentioned, .. } = *self;
        [trials, acknowledged, lost, wrong, undetected, unserved, panics, hangs, failed, unmentioned]
    }
}

/// The findings of one trial: counts, and a line for each finding.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    pub(super) tally: Tally,
    pub(super) lines: Vec<String>,
    /// Harmless damage that no log names.
    pub(super) unmentioned: Vec<String>,
}

impl Findings {
    /// Adds the findings of a comparison.
    pub(super) fn judge(&mut self, verdict: &Verdict) {
        self.tally.lost += verdict.lost.len() as u64;
        self.tally.wrong += verdict.wrong.len() as u64;
        let lost = verdict.lost.iter().map(|text| format!("lost: {text:?}"));
        self.lines.extend(lost.chain(verdict.wrong.iter().map(|text| format!("wrong: {text}"))));
    }

    pub(super) fn lost(&mut self, count: u64, what: &str) {
        if count > 0 {
            self.tally.lost += count;
            self.lines.push(format!("lost: {what}"));
        }
    }

    pub(super) fn wrong(&mut self, what: &str) {
        self.tally.wrong += 1;
        self.lines.push(format!("wrong: {what}"));
    }

    pub(super) fn undetected(&mut self, what: &str) {
        self.tally.undetected += 1;
        self.lines.push(format!("undetected: {what}"));
    }

    pub(super) fn unmentioned(&mut self, what: &str) {
        self.tally.unmentioned += 1;
        self.unmentioned.push(format!("unmentioned: {what}"));
    }

    pub(super) fn unserved(&mut self, what: &str) {
        self.tally.unserved += 1;
        self.lines.push(format!("unserved: {what}"));
    }

    pub(super) fn panic(&mut self, what: &str) {
        self.tally.panics += 1;
        self.lines.push(format!("panic: {what}"));
    }

    pub(super) fn hang(&mut self, what: &str) {
        self.tally.hangs += 1;
        self.lines.push(format!("hang: {what}"));
    }

    pub(super) fn failed(&mut self, what: &str) {
        self.tally.failed += 1;
        self.lines.push(format!("failed: {what}"));
    }
}

/// A finding, with the trial that repeats it.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Seed of the trial.
    pub seed: u64,
    /// Its scenario.
    pub scenario: Scenario,
    /// The broken promise.
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
    pub scenarios: BTreeMap<Scenario, Tally>,
    /// Counts of all scenarios.
    pub total: Tally,
    /// The broken promises.
    pub findings: Vec<Finding>,
}

impl Default for ChaosReport {
    fn default() -> Self {
        Self {
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            seeds: BTreeSet::new(),
            seconds: 0.0,
            scenarios: BTreeMap::new(),
            total: Tally::default(),
            findings: Vec::new(),
        }
    }
}

impl ChaosReport {
    /// Adds a trial's findings.
    pub(super) fn add(&mut self, seed: u64, scenario: Scenario, found: Findings) {
        self.seeds.insert(seed);
        self.scenarios.entry(scenario).or_default().add(&found.tally);
        self.total.add(&found.tally);
        self.findings.extend(found.lines.into_iter().map(|what| Finding { seed, scenario, what }));
    }

    /// Prints it, for people or as one line of JSON.
    pub(super) fn print(&self, json: bool) -> anyhow::Result<()> {
        if json {
            output::line(&serde_json::to_string(self)?);
            return Ok(());
        }
        for line in self.table() {
            output::line(&line);
        }
        for Finding { seed, scenario, what } in &self.findings {
            output::line(&format!("seed {seed}, {}: {what}", scenario.name()));
        }
        let again: BTreeSet<(u64, Scenario)> =
            self.findings.iter().map(|finding| (finding.seed, finding.scenario)).collect();
        for (seed, scenario) in again {
            output::line(&format!("again: baton-testnet chaos --seed {seed} --only {}", scenario.name()));
        }
        Ok(())
    }

    /// A heading, a row a scenario, and their sum.
    fn table(&self) -> Vec<String> {
        let heading = [
            "trials",
            "acked",
            "lost",
            "wrong",
            "undetected",
            "unserved",
            "panics",
            "hangs",
            "failed",
            "unmentioned",
        ];
        let widths = heading.map(|name| name.len().max(5));
        let row = |name: &str, cells: &[String; 10]| {
            let cells = cells.iter().zip(widths).map(|(cell, width)| format!("  {cell:>width$}"));
            format!("{name:<16}{}", cells.collect::<String>())
        };
        let numbers = |tally: &Tally| tally.cells().map(|cell| cell.to_string());
        let mut lines = vec![row("scenario", &heading.map(str::to_owned))];
        for (scenario, tally) in &self.scenarios {
            lines.push(row(&scenario.name(), &numbers(tally)));
        }
        lines.push(row("all", &numbers(&self.total)));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_their_sum_stand_in_columns() {
        let mut report = ChaosReport::default();
        let tally = Tally { trials: 1, acknowledged: 6, unmentioned: 1, ..Tally::default() };
        let mut found = Findings { tally, ..Findings::default() };
        report.add(3, Scenario::Kills, found.clone());
        assert_eq!(report.total.broken(), 0);
        found.lost(2, "two turns");
        found.hang("a call");
        report.add(4, Scenario::OlderHome, found);
        assert_eq!(report.total.broken(), 3);
        let table = report.table();
        assert_eq!(table.len(), 4);
        assert!(table.iter().all(|line| line.len() == table[0].len()), "{table:#?}");
        let cells = |line: usize| table[line].split_whitespace().skip(1).collect::<Vec<_>>();
        assert_eq!(cells(2), ["1", "6", "2", "0", "0", "0", "0", "1", "0", "1"]);
        assert_eq!(cells(3), ["2", "12", "2", "0", "0", "0", "0", "1", "0", "2"]);
        assert_eq!(report.findings.len(), 2);
        assert_eq!(report.seeds, BTreeSet::from([3, 4]));
    }
}
