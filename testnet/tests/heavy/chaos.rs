//! Kills, full disks, damaged files, old copies and wrong clocks on real processes: every acknowledged turn
//! and fact is there. One seed; `BATON_FULL=1` runs two hundred, `BATON_SEED` repeats one.

use std::ops::RangeInclusive;

use baton_testnet::chaos::{ChaosOptions, Scenario, chaos};
use clap::ValueEnum as _;

/// Seeds, with one trial of each scenario.
const SAMPLE: RangeInclusive<u64> = 1..=1;
const FULL: RangeInclusive<u64> = 1..=200;
/// Trials at once; they mostly wait.
const LANES: usize = 10;

fn seeds() -> RangeInclusive<u64> {
    if let Ok(seed) = std::env::var("BATON_SEED") {
        let seed = seed.parse().expect("BATON_SEED is a number");
        return seed..=seed;
    }
    if std::env::var_os("BATON_FULL").is_some_and(|full| full == "1") { FULL } else { SAMPLE }
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_turns_survive_every_fault() {
    let _guard = crate::whole_machine().await;
    let seeds = seeds();
    eprintln!("chaos: seeds {seeds:?}; BATON_SEED repeats one");
    let folder = tempfile::tempdir().unwrap();
    let trials = seeds.clone().count() as u64;
    let options = ChaosOptions { seeds: Some(seeds), lanes: LANES, ..ChaosOptions::default() };
    let report = Box::pin(chaos(&options, folder.path())).await.unwrap();
    eprintln!("{}", serde_json::to_string(&report).unwrap());
    let findings: Vec<String> = report
        .findings
        .iter()
        .map(|finding| format!("seed {}, {}: {}", finding.seed, finding.scenario.name(), finding.what))
        .collect();
    assert_eq!(findings, Vec::<String>::new());
    for scenario in Scenario::value_variants() {
        let tally = &report.scenarios[scenario];
        assert_eq!(tally.trials, trials, "{scenario:?}");
        // A first start that only creates a key acknowledges nothing.
        assert!(tally.acknowledged > 0 || *scenario == Scenario::FirstStart, "{scenario:?}: {tally:?}");
    }
}
