//! `baton-testnet chaos`: kills, full disks, damaged files, old copies and wrong clocks, on real processes.
//!
//! A seed stands for one trial of each scenario ([`Scenario`]), which draws its kills, damage or clock
//! from the seed alone. Each trial has its own network: store, node, clients and relayer are the programs
//! beside this one. The echo engine repeats each message, so the answers are known. After each trial, every
//! turn that a client printed as verified must be there, once and in order. The same holds for a new device
//! that has the 24 words alone. [`ChaosReport::findings`] lists the violations with their seeds.

mod call;
mod damage;
mod faults;
pub(crate) mod files;
mod kills;
mod plan;
mod report;
mod starts;
mod world;

use std::{ops::RangeInclusive, path::Path, time::Instant};

use anyhow::Context as _;
use baton_keys::files::create_private_folder;
use clap::{Args, ValueEnum as _};
use futures::{StreamExt as _, stream};

use plan::Program;
pub use plan::Scenario;
use report::TrialFindings;
pub use report::{BrokenPromise, ChaosReport, FindingKind, TrialTally};
use world::TrialWorld;

use crate::{
    draws::Draws,
    output,
    trial::{self, TrialOptions},
};

/// The end of the command's help.
pub(crate) const CHAOS_HELP: &str = "\
A seed stands for one trial of each scenario, each on a network of its own with the echo engine. Afterwards everything that \
a client printed as verified must be there, once and in order, also for a fresh device with the 24 words alone.

Counts: acknowledged: turns and memories; lost: acknowledged and not there; wrong: doubled, out of order, or with another's \
answer; undetected: damage or a wrong clock that nobody named; unserved: honest calls that were refused with nothing wrong \
any more; panics; hangs: calls of more than 30 s; failed: trials that could not be carried out.

Examples:
  baton-testnet chaos --seed 7
  baton-testnet chaos --seeds 1..200 --json
  baton-testnet chaos --seed 7 --only older-home --keep /tmp/chaos

Exit code 0: no promise broke.";

/// Options of a chaos run.
#[derive(Clone, Debug, Args)]
pub struct ChaosOptions {
    #[command(flatten)]
    #[expect(missing_docs, reason = "a doc comment would be a heading of the help")]
    pub trial: TrialOptions,
    /// First and last seed, both included
    #[arg(long, value_name = "FIRST..LAST", value_parser = parse_seeds, conflicts_with = "seed")]
    pub seeds: Option<RangeInclusive<u64>>,
    /// Run only this scenario; may be repeated, or separated by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SCENARIO")]
    pub only: Vec<Scenario>,
    /// Concurrent trials, which mostly wait for processes to start and for each other
    #[arg(long, default_value_t = 4, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=64))]
    pub lanes: usize,
}

impl Default for ChaosOptions {
    fn default() -> Self {
        trial::defaults()
    }
}

/// Parses `FIRST..LAST`, both included.
fn parse_seeds(text: &str) -> Result<RangeInclusive<u64>, String> {
    let seed = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is no seed"));
    let (first, last) = text.split_once("..").ok_or("take two seeds, for example 1..200")?;
    let seeds = seed(first)?..=seed(last)?;
    if seeds.is_empty() { Err("the last seed is before the first one".to_owned()) } else { Ok(seeds) }
}

/// Runs the trials in a folder, and returns a report.
///
/// # Errors
/// When the folder cannot be used. A trial that cannot be carried out is in the report.
pub async fn chaos(options: &ChaosOptions, folder: &Path) -> anyhow::Result<ChaosReport> {
    let began = Instant::now();
    let seeds = options.seeds.clone().unwrap_or_else(|| {
        let seed = options.trial.seed();
        seed..=seed
    });
    let only: &[Scenario] = if options.only.is_empty() { Scenario::value_variants() } else { &options.only };
    let trials = seeds.clone().flat_map(|seed| only.iter().map(move |scenario| (seed, *scenario)));
    output::note(&format!("chaos: seeds {}..{}", seeds.start(), seeds.end()));
    let mut report = ChaosReport::new();
    let mut running = stream::iter(trials)
        .map(|(seed, scenario)| async move { (seed, scenario, in_folder(folder, seed, scenario).await) })
        .buffer_unordered(options.lanes.max(1));
    while let Some((seed, scenario, findings)) = running.next().await {
        for (kind, what) in &findings.found {
            output::note(&format!("  seed {seed}, {}: {kind:?}: {what}", scenario.name()));
        }
        report.add(seed, scenario, findings);
    }
    report.seconds = trial::tenths(began.elapsed());
    Ok(report)
}

/// Runs a trial in its own folder, which is removed if no promise broke.
async fn in_folder(folder: &Path, seed: u64, scenario: Scenario) -> TrialFindings {
    let folder = folder.join(format!("seed-{seed}-{}", scenario.name()));
    let mut findings = TrialFindings::default();
    if let Err(error) = Box::pin(carry_out(&folder, seed, scenario, &mut findings)).await {
        findings.found(FindingKind::Failed, format!("{error:#}"));
    }
    findings.search_logs(&folder);
    if findings.found.is_empty() {
        // Otherwise hundreds of trials leave gigabytes.
        let _ = std::fs::remove_dir_all(&folder);
    }
    findings
}

async fn carry_out(
    folder: &Path,
    seed: u64,
    scenario: Scenario,
    findings: &mut TrialFindings,
) -> anyhow::Result<()> {
    create_private_folder(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut draws = Draws::of(seed, scenario as u64);
    let program = draws.one_of(scenario.programs()).context("a scenario is of some program")?;
    if scenario == Scenario::FirstStart {
        starts::first_start(folder, program, &mut draws, findings).await?;
        if program != Program::Client {
            return Ok(());
        }
    }
    let mut world = TrialWorld::start(folder, program, draws).await?;
    let carried_out = match scenario {
        Scenario::Kills | Scenario::KillRelayer => kills::kills(&mut world).await,
        Scenario::TwoDevices => kills::two_devices(&mut world).await,
        Scenario::FullDisk => faults::full_disk(&mut world).await,
        Scenario::FirstStart => starts::first_chat(&mut world).await,
        Scenario::DamageClient => damage::of_client(&mut world).await,
        Scenario::DamageNode => damage::of_node(&mut world).await,
        Scenario::DamageStore => damage::of_store(&mut world).await,
        Scenario::DamageRelayer => damage::of_relayer(&mut world).await,
        Scenario::OlderHome => faults::older_home(&mut world).await,
        Scenario::CutJournal => faults::cut_journal(&mut world).await,
        Scenario::WrongClock => faults::wrong_clock(&mut world).await,
        Scenario::ForgetfulStore => faults::forgetful_store(&mut world).await,
        Scenario::SilentPeers => faults::silent_peers(&mut world).await,
    };
    world.end(findings).await;
    carried_out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_first_and_a_last_one() {
        assert_eq!(parse_seeds("1..200"), Ok(1..=200));
        assert_eq!(parse_seeds("7..7"), Ok(7..=7));
        for text in ["", "7", "1..", "..7", "9..8", "a..b", "1...3", "-1..3"] {
            assert!(parse_seeds(text).is_err(), "{text}");
        }
    }
}
