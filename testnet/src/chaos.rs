//! `baton-testnet chaos`: kills, full disks, damaged files, old copies and wrong clocks, on real processes.
//!
//! A seed stands for one trial of each scenario ([`Scenario`]); `plan` derives its kills, damage or clock
//! from the seed alone. Each trial has its own network: store, node, clients and relayer are the programs
//! beside this one. The echo engine repeats each message, so the answers are known. After each trial, every
//! turn that a client printed as verified must be there, once and in order. The same holds for a new device
//! that has the 24 words alone. [`ChaosReport::findings`] lists the violations with their seeds.

mod call;
mod damage;
mod disks;
mod faults;
mod files;
mod kills;
mod ledger;
mod memories;
mod plan;
mod report;
mod rollback;
mod world;

use std::{
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context as _, ensure};
use baton_keys::{files::create_private_folder, secret::random_bytes};
use clap::Args;
use futures::{StreamExt as _, stream};

use crate::output;
use memories::TrialMemory;
pub use plan::Scenario;
use plan::{Fault, FirstCommand, Program, Trial};
use report::Findings;
pub use report::{ChaosReport, Finding, Tally};
use world::World;

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

/// Arguments of `baton-testnet chaos`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ChaosArgs {
    /// First seed [default: random]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Number of seeds, from the first one on
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) count: u64,
    /// First and last seed, both included
    #[arg(long, value_name = "FIRST..LAST", value_parser = parse_seeds, conflicts_with_all = ["seed", "count"])]
    pub(crate) seeds: Option<RangeInclusive<u64>>,
    /// Run only this scenario; may be repeated, or separated by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SCENARIO")]
    pub(crate) only: Vec<Scenario>,
    /// Concurrent trials
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) lanes: u16,
    /// Keep the folders of failed trials here: logs, and all calls with their output
    #[arg(long, value_name = "FOLDER")]
    pub(crate) keep: Option<PathBuf>,
    /// Print the report as one JSON line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses `FIRST..LAST`, both included.
fn parse_seeds(text: &str) -> Result<RangeInclusive<u64>, String> {
    let seed = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is no seed"));
    let (first, last) = text.split_once("..").ok_or("take two seeds, for example 1..200")?;
    let seeds = seed(first)?..=seed(last)?;
    if seeds.is_empty() { Err("the last seed is before the first one".to_owned()) } else { Ok(seeds) }
}

/// Options of a chaos run.
#[derive(Clone, Debug)]
pub struct ChaosOptions {
    /// The seeds.
    pub seeds: RangeInclusive<u64>,
    /// Scenarios to run; all if empty.
    pub only: Vec<Scenario>,
    /// Trials at once. They mostly wait for processes to start and for each other.
    pub lanes: usize,
}

/// Runs the command.
pub(crate) async fn run(args: ChaosArgs) -> anyhow::Result<()> {
    let first = args.seed.unwrap_or_else(|| u64::from(u16::from_le_bytes(random_bytes())));
    let last = first.checked_add(args.count - 1).context("--seed and --count exceed the largest number")?;
    let seeds = args.seeds.clone().unwrap_or(first..=last);
    let temporary = tempfile::tempdir().context("cannot make a temporary folder")?;
    let folder = args.keep.clone().unwrap_or_else(|| temporary.path().to_owned());
    create_private_folder(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let options = ChaosOptions { seeds, only: args.only, lanes: args.lanes.into() };
    let report = Box::pin(chaos(&options, &folder)).await?;
    report.print(args.json)?;
    ensure!(report.total.broken() == 0, "{} promises broke", report.total.broken());
    Ok(())
}

/// Runs the trials in a folder, and returns a report.
///
/// # Errors
/// When the folder cannot be used. A trial that cannot be carried out is in the report.
pub async fn chaos(options: &ChaosOptions, folder: &Path) -> anyhow::Result<ChaosReport> {
    let began = Instant::now();
    let wanted = |trial: &Trial| options.only.is_empty() || options.only.contains(&trial.scenario);
    let trials: Vec<Trial> = options.seeds.clone().flat_map(plan::plan).filter(wanted).collect();
    let (first, last) = (options.seeds.start(), options.seeds.end());
    output::note(&format!("chaos: seeds {first}..{last}, {} trials", trials.len()));
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
    report.seconds = (began.elapsed().as_secs_f64() * 10.0).round() / 10.0;
    Ok(report)
}

/// Runs a trial in its own folder, which is removed if no promise broke.
async fn in_folder(folder: &Path, trial: &Trial) -> Findings {
    let folder = folder.join(format!("seed-{}-{}", trial.seed, trial.scenario.name()));
    let mut findings = match prepared(&folder, trial).await {
        Ok(findings) => findings,
        Err(error) => {
            let mut findings = Findings::default();
            findings.failed(&format!("{error:#}"));
            findings
        }
    };
    findings.tally.trials += 1;
    if findings.tally.broken() == 0 {
        // Otherwise hundreds of trials leave gigabytes.
        let _ = std::fs::remove_dir_all(&folder);
    }
    findings
}

async fn prepared(folder: &Path, trial: &Trial) -> anyhow::Result<Findings> {
    create_private_folder(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let program = match &trial.fault {
        Fault::FullDisk(program) | Fault::Damage(program, _) => *program,
        Fault::SilentPeers { program, .. } => *program,
        Fault::KillRelayer(_) => Program::Relayer,
        Fault::FirstStart(command, how) if *command != FirstCommand::Chat => {
            return disks::first_start(folder, *command, *how).await;
        }
        _ => Program::Client,
    };
    if program == Program::Relayer {
        let mut memories = TrialMemory::start(folder, trial).await?;
        if let Err(error) = of_memories(&mut memories, &trial.fault).await {
            memories.findings.failed(&format!("{error:#}"));
        }
        return Ok(memories.end().await);
    }
    let mut world = World::start(folder, trial).await?;
    if let Err(error) = of_world(&mut world, &trial.fault).await {
        world.findings.failed(&format!("{error:#}"));
    }
    Ok(world.end().await)
}

/// Runs a trial of a conversation.
async fn of_world(world: &mut World, fault: &Fault) -> anyhow::Result<()> {
    match fault {
        Fault::Kills(turns) => kills::kills(world, turns).await,
        Fault::TwoDevices(rounds) => kills::two_devices(world, rounds).await,
        Fault::FullDisk(program) => disks::in_a_conversation(world, *program).await,
        Fault::FirstStart(_, how) => disks::first_chat(world, *how).await,
        Fault::Damage(Program::Node, damage) => damage::of_node(world, damage).await,
        Fault::Damage(Program::Store, damage) => damage::of_store(world, damage).await,
        Fault::Damage(_, damage) => damage::of_client(world, damage).await,
        Fault::OlderHome { before, after } => rollback::older_home(world, *before, *after).await,
        Fault::CutJournal { turns, kept } => rollback::cut_journal(world, *turns, *kept).await,
        Fault::WrongClock { program, seconds } => faults::wrong_clock(world, *program, *seconds).await,
        Fault::ForgetfulStore { everything } => faults::forgetful_store(world, *everything).await,
        Fault::SilentPeers { connections, .. } => faults::silent_at_store(world, *connections).await,
        Fault::KillRelayer(_) => anyhow::bail!("a relayer's trial has no conversation"),
    }
}

/// Runs a trial of memory.
async fn of_memories(memories: &mut TrialMemory, fault: &Fault) -> anyhow::Result<()> {
    match fault {
        Fault::KillRelayer(additions) => kills::kill_relayer(memories, additions).await,
        Fault::FullDisk(_) => disks::of_a_relayer(memories).await,
        Fault::Damage(_, damage) => damage::of_relayer(memories, damage).await,
        Fault::SilentPeers { connections, .. } => faults::silent_at_relayer(memories, *connections).await,
        other => anyhow::bail!("a conversation's trial has no relayer: {other:?}"),
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
