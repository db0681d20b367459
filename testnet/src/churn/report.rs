//! The figures of a churn run.

use std::{collections::BTreeMap, time::Duration};

use baton_proto::ErrorCode;
use serde::Serialize;

use super::{
    ChurnOptions,
    chat::Talk,
    gaps::{Cause, Failure, Takeover},
    nodes::ChurnCounts,
};
use crate::{
    byzantine::{Behaviour, Misbehaviour, MisbehaviourLog},
    output,
};

/// A sample of times, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// Number of values.
    pub count: u64,
    /// Median.
    pub p50: u64,
    /// 95th percentile.
    pub p95: u64,
    /// The longest.
    pub max: u64,
}

impl Percentiles {
    fn of(times: impl IntoIterator<Item = Duration>) -> Self {
        let mut sorted: Vec<u64> =
            times.into_iter().map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)).collect();
        sorted.sort_unstable();
        // The value at rank ⌈q·n⌉.
        let at = |hundredths: usize| {
            let rank = (sorted.len() * hundredths).div_ceil(100).max(1);
            sorted.get(rank - 1).copied().unwrap_or_default()
        };
        Self { count: sorted.len() as u64, p50: at(50), p95: at(95), max: at(100) }
    }
}

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

/// Parts of a takeover's time [`ChurnReport::after_detection_ms`].
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Breakdown {
    /// Asking the failed author for the turn's status.
    pub asking_ms: Percentiles,
    /// Choosing a substitute, journaling and sealing, and substitutes that failed before one answered.
    pub choosing_ms: Percentiles,
    /// Opening the substream, until the turn is admitted.
    pub opening_ms: Percentiles,
    /// From the admission to the first text.
    pub answering_ms: Percentiles,
    /// Part of it: time in the substitute's queue, by its receipt.
    pub in_line_ms: Percentiles,
}

/// The report of one run.
#[derive(Clone, Debug, Serialize)]
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
    /// Takeovers by the second substitute or a later one.
    pub by_a_later_substitute: u64,
    /// Failed attempts by cause.
    pub replaced: BTreeMap<String, u64>,
    /// Failed attempts at honest nodes, by error name.
    pub failures: BTreeMap<String, u64>,
    /// Turns that failed as a whole and were resumed, by error name.
    pub taken_up_again: BTreeMap<String, u64>,
    /// Times that shown text was discarded.
    pub restarts: u64,
    /// Takeovers from killed nodes: from the old node's last text to the new node's first.
    pub gap_ms: Percentiles,
    /// Part of it: until the death was detected.
    pub detection_ms: Percentiles,
    /// Part of it: after the detection.
    pub after_detection_ms: Percentiles,
    /// The same without the substitute's queue and prefill times, by its receipt.
    pub after_detection_net_ms: Percentiles,
    /// Share of those takeovers with at most a second of that time.
    pub within_a_second: f64,
    /// Parts of the time after detection.
    pub parts: Breakdown,
    /// Takeovers from nodes that stalled or misbehaved: from the old node's last text to the new node's
    /// first.
    pub other_gap_ms: Percentiles,
    /// Part of it: after the detection.
    pub other_after_detection_ms: Percentiles,
    /// The results of each misbehaviour.
    pub lies: Vec<MisbehaviourReport>,
    /// Violations of the promises.
    pub violations: Vec<String>,
}

impl ChurnReport {
    pub(super) fn new(options: &ChurnOptions, lasted: Duration, counts: ChurnCounts) -> Self {
        Self {
            seed: options.seed,
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            nodes: options.nodes,
            hostile: options.byzantine,
            clients: options.clients,
            seconds: (lasted.as_secs_f64() * 10.0).round() / 10.0,
            kills: counts.kills,
            starts: counts.starts,
            turns: 0,
            turns_by_liars: 0,
            turns_verified: 0,
            receipts_verified: 0,
            turns_recovered: 0,
            takeovers: 0,
            continued: 0,
            by_a_later_substitute: 0,
            replaced: BTreeMap::new(),
            failures: BTreeMap::new(),
            taken_up_again: BTreeMap::new(),
            restarts: 0,
            gap_ms: Percentiles::default(),
            detection_ms: Percentiles::default(),
            after_detection_ms: Percentiles::default(),
            after_detection_net_ms: Percentiles::default(),
            within_a_second: 1.0,
            parts: Breakdown::default(),
            other_gap_ms: Percentiles::default(),
            other_after_detection_ms: Percentiles::default(),
            lies: Vec::new(),
            violations: Vec::new(),
        }
    }

    pub(super) fn violation(&mut self, what: String) {
        output::note(&format!("  VIOLATION: {what}"));
        self.violations.push(what);
    }

    /// Adds up the results of all clients.
    pub(super) fn gather(&mut self, talks: &[Talk], log: &MisbehaviourLog) {
        for talk in talks {
            let results = &talk.results;
            self.turns += results.said.len() as u64;
            self.turns_by_liars += results.from_byzantine;
            self.restarts += results.restarts;
            for name in &results.unfinished {
                count(&mut self.taken_up_again, name);
            }
            for violation in &results.violations {
                self.violation(violation.clone());
            }
        }
        let failures: Vec<&Failure> = talks.iter().flat_map(|talk| &talk.results.failures).collect();
        for failure in &failures {
            count(&mut self.replaced, &format!("{:?}", failure.cause).to_lowercase());
            if failure.misbehaviour.is_none() {
                count(&mut self.failures, &name_of(failure));
                if failure.code.is_some_and(|code| !may_happen(code)) {
                    self.violation(format!("an honest answer was called {}", name_of(failure)));
                }
            }
        }
        let takeovers: Vec<&Takeover> = talks.iter().flat_map(|talk| &talk.results.takeovers).collect();
        self.measure(&takeovers);
        self.judge_misbehaviours(talks, &failures, log);
    }

    fn measure(&mut self, takeovers: &[&Takeover]) {
        self.takeovers = takeovers.len() as u64;
        self.continued = takeovers.iter().filter(|takeover| takeover.continued > 0).count() as u64;
        let later = takeovers.iter().filter(|takeover| takeover.substitutes > 1);
        self.by_a_later_substitute = later.count() as u64;
        let (killed, others): (Vec<&Takeover>, Vec<&Takeover>) =
            takeovers.iter().partition(|takeover| takeover.cause == Cause::Killed);
        let of =
            |what: fn(&Takeover) -> Duration| Percentiles::of(killed.iter().map(|takeover| what(takeover)));
        self.gap_ms = of(|takeover| takeover.gap);
        self.detection_ms = of(|takeover| takeover.detection);
        self.after_detection_ms = of(|takeover| takeover.after);
        let net = |takeover: &&Takeover| {
            let served = takeover.served?;
            Some(takeover.after.saturating_sub(served.queued + served.prefill))
        };
        let nets: Vec<Duration> = killed.iter().filter_map(net).collect();
        let soon = nets.iter().filter(|time| **time <= Duration::from_secs(1)).count();
        if !nets.is_empty() {
            self.within_a_second = (soon as f64 / nets.len() as f64 * 1000.0).round() / 1000.0;
        }
        self.after_detection_net_ms = Percentiles::of(nets);
        self.parts = Breakdown {
            asking_ms: of(|takeover| takeover.asking),
            choosing_ms: of(|takeover| takeover.choosing),
            opening_ms: of(|takeover| takeover.opening),
            answering_ms: of(|takeover| takeover.answering),
            in_line_ms: Percentiles::of(
                killed.iter().filter_map(|takeover| takeover.served).map(|served| served.queued),
            ),
        };
        self.other_gap_ms = Percentiles::of(others.iter().map(|takeover| takeover.gap));
        self.other_after_detection_ms = Percentiles::of(others.iter().map(|takeover| takeover.after));
    }

    fn judge_misbehaviours(&mut self, talks: &[Talk], failures: &[&Failure], log: &MisbehaviourLog) {
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
            let accepted = talks.iter().flat_map(|talk| &talk.results.accepted_misbehaviours);
            if *misbehaviour == Misbehaviour::ClaimsStored {
                let detected: u64 = talks.iter().map(|talk| talk.results.claims_detected).sum();
                if detected > 0 {
                    row.detected_as.insert("lied".to_owned(), detected);
                }
            }
            row.accepted = accepted.filter(|accepted| *accepted == misbehaviour).count() as u64;
            self.lies.push(row);
        }
    }

    /// Judges one failed attempt in which a node misbehaved.
    fn judge(&mut self, row: &mut MisbehaviourReport, failure: &Failure, log: &MisbehaviourLog) {
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

    /// Prints the report as text or as one line of JSON.
    pub(super) fn print(&self, json: bool) -> anyhow::Result<()> {
        if json {
            output::line(&serde_json::to_string(self)?);
            return Ok(());
        }
        let show = |name: &str, times: &Percentiles| {
            output::line(&format!(
                "  {name:<46} {:>6} {:>6} {:>6}   of {}",
                times.p50, times.p95, times.max, times.count
            ));
        };
        output::line(&format!(
            "{} build, seed {}: {} turns accepted in {} s by {} clients on {} nodes ({} hostile); {} killed, {} started",
            self.build,
            self.seed,
            self.turns,
            self.seconds,
            self.clients,
            self.nodes,
            self.hostile,
            self.kills,
            self.starts
        ));
        output::line(&format!(
            "verified again: {} turns from journal, store and export, {} receipts, {} turns from the root alone",
            self.turns_verified, self.receipts_verified, self.turns_recovered
        ));
        output::line(&format!(
            "{} answers taken over, {} of them with the tokens that had arrived, {} not by the first substitute; attempts \
             that failed: {:?}",
            self.takeovers, self.continued, self.by_a_later_substitute, self.replaced
        ));
        output::line(&format!("failures at honest nodes: {:?}", self.failures));
        output::line(&format!(
            "turns taken up again: {:?}; text void {} times",
            self.taken_up_again, self.restarts
        ));
        output::line("\n  milliseconds                                      p50    p95    max");
        show("gap when a node is killed", &self.gap_ms);
        show("  until that is noticed", &self.detection_ms);
        show("  from there to the substitute's first token", &self.after_detection_ms);
        show("    without its line and its prefill", &self.after_detection_net_ms);
        show("    asking the dead node", &self.parts.asking_ms);
        show("    choosing, journaling, failed substitutes", &self.parts.choosing_ms);
        show("    opening, until admitted", &self.parts.opening_ms);
        show("    from there to the first text", &self.parts.answering_ms);
        show("      in its line", &self.parts.in_line_ms);
        show("gap when a node stalls or lies", &self.other_gap_ms);
        show("  after that is noticed", &self.other_after_detection_ms);
        output::line(&format!(
            "  the substitute's first token within a second of detection, its line and prefill apart: {:.1} %",
            self.within_a_second * 100.0
        ));
        self.print_misbehaviours();
        for violation in &self.violations {
            output::line(&format!("VIOLATION: {violation}"));
        }
        Ok(())
    }

    fn print_misbehaviours(&self) {
        if self.lies.is_empty() {
            return;
        }
        output::line("\n  behaviour      lie                  told  accepted  left before  detected as");
        for row in &self.lies {
            let names: Vec<String> =
                row.detected_as.iter().map(|(name, times)| format!("{name} {times}")).collect();
            let names = if row.lie.error_codes().is_empty() {
                "the first link stands".to_owned()
            } else {
                names.join(", ")
            };
            output::line(&format!(
                "  {:<14} {:<20} {:>4} {:>9} {:>12}  {names}",
                format!("{:?}", row.behaviour),
                format!("{:?}", row.lie),
                row.told,
                row.accepted,
                row.left_before
            ));
        }
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

fn name_of(failure: &Failure) -> String {
    match failure.code {
        Some(code) if failure.reason.contains("stalled") => format!("{} (stalled)", code.name()),
        Some(code) => code.name().to_owned(),
        None => "Unreachable".to_owned(),
    }
}

fn count(counts: &mut BTreeMap<String, u64>, name: &str) {
    *counts.entry(name.to_owned()).or_default() += 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_are_values_of_the_sample() {
        let times = (1..=100).rev().map(Duration::from_millis);
        assert_eq!(Percentiles::of(times), Percentiles { count: 100, p50: 50, p95: 95, max: 100 });
        let one = Percentiles::of([Duration::from_millis(7)]);
        assert_eq!(one, Percentiles { count: 1, p50: 7, p95: 7, max: 7 });
        assert_eq!(Percentiles::of([]), Percentiles::default());
    }
}
