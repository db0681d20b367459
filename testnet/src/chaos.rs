//! `baton-testnet chaos`: kills, full disks, damaged files, old copies and wrong clocks, on real processes.
//!
//! A seed stands for one trial of each scenario ([`Scenario`]); `plan` derives its kills, damage or clock
//! from the seed alone. Each trial has its own network: store, node, clients and relayer are the programs
//! beside this one. The echo engine repeats each message, so the answers are known. After each trial, every
//! turn that a client printed as verified must be there, once and in order. The same holds for a new device
//! that has the 24 words alone. [`ChaosReport::findings`] lists the violations with their seeds.

mod call;
mod damage;
mod faults;
mod files;
mod kills;
mod plan;
mod report;
mod starts;
mod world;

use std::{ops::RangeInclusive, path::Path, time::Instant};

use anyhow::Context as _;
use baton_keys::files::create_private_folder;
use clap::Args;
use futures::{StreamExt as _, stream};

pub use plan::Scenario;
use plan::{FirstCommand, Trial, TrialFault};
use report::TrialFindings;
pub use report::{BrokenPromise, ChaosReport, FindingKind, TrialTally};
use world::TrialWorld;

use crate::{
    output,
    trial::{self, TrialOptions},
};

/// The end of the command's help.
pub(crate) const CHAOS_HELP: &str = "\
A seed stands for one trial of each scenario, each on a network of its own with the echo engine. Afterwards everything that \
a client printed as verified must be there, once and in order, also for a fresh device with the 24 words alone.

Columns: acked: turns and memories that were acknowledged; lost: acknowledged and not there; wrong: doubled, out of \
order, or with another's answer; undetected: damage or a wrong clock that nobody named; unserved: honest calls that were \
refused with nothing wrong any more; panics; hangs: calls of more than 30 s; failed: trials that could not be carried \
out; unmentioned: starts after harmless damage of which no log says a word, for information.

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
    let wanted = |trial: &Trial| options.only.is_empty() || options.only.contains(&trial.scenario);
    let trials: Vec<Trial> = seeds.clone().flat_map(plan::plan).filter(wanted).collect();
    output::note(&format!("chaos: seeds {}..{}, {} trials", seeds.start(), seeds.end(), trials.len()));
    let mut report = ChaosReport::default();
    let mut running = stream::iter(trials)
        .map(|trial| async move {
            let findings = in_folder(folder, &trial).await;
            (trial, findings)
        })
        .buffer_unordered(options.lanes.max(1));
    while let Some((trial, findings)) = running.next().await {
        let name = trial.scenario.name();
        for line in findings.lines.iter().chain(&findings.unmentioned) {
            output::note(&format!("  seed {}, {name}: {line}", trial.seed));
        }
        report.add(trial.seed, trial.scenario, findings);
    }
    report.seconds = trial::tenths(began.elapsed());
    Ok(report)
}

/// Runs a trial in its own folder, which is removed if no promise broke.
async fn in_folder(folder: &Path, trial: &Trial) -> TrialFindings {
    let folder = folder.join(format!("seed-{}-{}", trial.seed, trial.scenario.name()));
    let mut findings = prepared(&folder, trial).await.unwrap_or_else(|error| {
        let mut findings = TrialFindings::default();
        findings.found(FindingKind::Failed, &format!("{error:#}"));
        findings
    });
    findings.tally.trials += 1;
    if findings.tally.broken() == 0 {
        // Otherwise hundreds of trials leave gigabytes.
        let _ = std::fs::remove_dir_all(&folder);
    }
    findings
}

async fn prepared(folder: &Path, trial: &Trial) -> anyhow::Result<TrialFindings> {
    create_private_folder(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    match &trial.fault {
        TrialFault::FirstStart(command, how) if *command != FirstCommand::Chat => {
            return starts::first_start(folder, *command, *how).await;
        }
        _ => {}
    }
    let mut world = TrialWorld::start(folder, trial).await?;
    if let Err(error) = carry_out(&mut world, &trial.fault).await {
        world.findings.found(FindingKind::Failed, &format!("{error:#}"));
    }
    Ok(world.end().await)
}

async fn carry_out(world: &mut TrialWorld, fault: &TrialFault) -> anyhow::Result<()> {
    match fault {
        TrialFault::Kills(kills) => kills::kills(world, kills).await,
        TrialFault::TwoDevices(rounds) => kills::two_devices(world, rounds).await,
        TrialFault::FullDisk(program) => faults::full_disk(world, *program).await,
        TrialFault::FirstStart(_, how) => starts::first_chat(world, *how).await,
        TrialFault::Damage(program, damage) => damage::damage(world, *program, damage).await,
        TrialFault::OlderHome(before, after) => faults::older_home(world, *before, *after).await,
        TrialFault::CutJournal(turns, kept) => faults::cut_journal(world, *turns, *kept).await,
        TrialFault::WrongClock(program, seconds) => faults::wrong_clock(world, *program, *seconds).await,
        TrialFault::ForgetfulStore(everything) => faults::forgetful_store(world, *everything).await,
        TrialFault::SilentPeers(program, count) => faults::silent_peers(world, *program, *count).await,
    }
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
