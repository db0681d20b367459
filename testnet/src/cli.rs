//! Command line of `baton-testnet`.

use std::{ops::RangeInclusive, path::PathBuf};

use baton_client::manual::{CompletionsArguments, ManArguments};
use baton_mesh::Multiaddr;
use baton_proto::ids::NodeId;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{chaos::Scenario, flood::attack::Attack, network::EngineChoice, store::StoreArgs};

/// A whole Baton network on this machine.
#[derive(Debug, Parser)]
#[command(
    name = "baton-testnet",
    version,
    after_help = "Examples:\n  baton-testnet demo\n  baton-testnet demo --faults store\n  baton-testnet up --nodes 3\n  \
                  baton-testnet churn --seconds 60\n  baton-testnet churn --hostile 0 --json\n  \
                  baton-testnet chaos --seed 7\n  \
                  baton-testnet store --listen 127.0.0.1:31415 --shards 10\n  \
                  baton-testnet store fsck --data-dir baton-store\n\n\
                  Exit codes: 0 everything held, 1 something did not (the message says what), 2 wrong usage."
)]
pub(crate) struct Cli {
    /// Log level, or a tracing filter [default: warn for `store`, else error]
    #[arg(long, global = true, env = "BATON_TESTNET_LOG")]
    pub(crate) log: Option<String>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// A conversation that moves between nodes, attacked and repaired on the way
    Demo(DemoArgs),
    /// Keep a network running, and say how to talk to it
    Up(UpArgs),
    /// Many conversations while nodes are killed and started again, and some of them lie
    #[command(after_help = CHURN_HELP)]
    Churn(ChurnArgs),
    /// Kills, full disks, damaged files, old copies and wrong clocks: what was acknowledged is there afterwards
    #[command(after_help = CHAOS_HELP)]
    Chaos(ChaosArgs),
    /// Measure
    #[command(subcommand)]
    Bench(BenchCommand),
    /// What honest clients notice while a node is flooded with forged and with signed requests
    Flood(FloodArgs),
    /// The attacker of `flood`
    #[command(hide = true)]
    FloodAttack(AttackArgs),
    /// Kills the processes of a command that was killed
    #[command(hide = true)]
    Warden,
    /// Only the Walrus-compatible store
    Store(StoreArgs),
    /// Print what completes this command in a shell
    Completions(CompletionsArguments),
    /// Print the manual page, or write the pages of all commands
    Man(ManArguments),
}

#[derive(Debug, Args)]
pub(crate) struct FloodArgs {
    /// Print the report as one JSON line
    #[arg(long)]
    pub(crate) json: bool,
    /// Seconds of each part: quiet, four attacks, the attacker's processor time alone
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=900))]
    pub(crate) seconds: u64,
    /// Only these attacks, with commas between; the quiet part is always there
    #[arg(long, value_delimiter = ',', value_name = "PART",
        value_parser = ["forged", "signed", "forged-many", "signed-many", "burner"])]
    pub(crate) parts: Vec<String>,
    /// Requests a second that the attacker offers
    #[arg(long, default_value_t = 5000)]
    pub(crate) rate: u32,
    /// Subnets of the two attacks from many; 0 leaves them out
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u16).range(0..=500))]
    pub(crate) subnets: u16,
    /// Whether the node's defence is on
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub(crate) defence: bool,
    /// Seed of the attacker's sessions and identities
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

#[derive(Debug, Args)]
pub(crate) struct AttackArgs {
    /// What is sent
    #[arg(value_enum)]
    pub(crate) kind: Attack,
    /// The node's address
    #[arg(long)]
    pub(crate) target: Multiaddr,
    /// The node
    #[arg(long)]
    pub(crate) node: NodeId,
    #[arg(long)]
    pub(crate) rate: u32,
    #[arg(long)]
    pub(crate) seconds: u64,
    #[arg(long)]
    pub(crate) seed: u64,
    /// Second byte of the addresses 127.x.0.0 that it comes from
    #[arg(long)]
    pub(crate) network: u8,
    /// How many addresses it comes from
    #[arg(long)]
    pub(crate) subnets: usize,
    /// Requests of one identity
    #[arg(long)]
    pub(crate) each: u64,
    /// Share of a processor that the burner uses
    #[arg(long, default_value_t = 1.0)]
    pub(crate) duty: f64,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Print the report as one JSON line at the end
    #[arg(long)]
    pub(crate) json: bool,
    /// Engine of the nodes
    #[arg(long, value_enum, default_value = "native")]
    pub(crate) engine: EngineChoice,
    /// Shard count of the store
    #[arg(long, default_value_t = 10)]
    pub(crate) shards: u16,
    /// Folder of downloaded models
    #[arg(long, env = "BATON_MODEL_DIR")]
    pub(crate) model_dir: Option<PathBuf>,
    /// Make something fail at random all the while
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) faults: Option<DemoFaults>,
    /// Keep the network's folder here, with export.json and the logs
    #[arg(long)]
    pub(crate) keep: Option<PathBuf>,
}

/// What fails at random in the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DemoFaults {
    /// The store: errors, lost answers, wrong, late, cut and oversized bytes, on all routes for blobs.
    Store,
}

impl DemoFaults {
    /// For the store's `--faults`.
    pub(crate) fn spec(self) -> &'static str {
        match self {
            Self::Store => "store",
        }
    }
}

const CHURN_HELP: &str = "\
Every other moment one of the nodes is killed (SIGKILL) or started again, except two that are left alone, while clients \
chat without pause on the echo engine. Hostile nodes stall, truncate, equivocate, forge, change history and send garbage. At the \
end every conversation is compared word by word with what was said and what the engine must answer, and verified again from \
the store alone.

Exit code 0: no accepted turn was lost or wrong, every lie was found out by name, and none was accepted.";

/// Arguments of `baton-testnet churn`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ChurnArgs {
    /// Number of nodes, hostile ones included
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u16).range(3..=64))]
    pub(crate) nodes: u16,
    /// How many of them lie
    #[arg(long, default_value_t = 4)]
    pub(crate) hostile: u16,
    /// Number of clients, each with a conversation of its own
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) clients: u16,
    /// How long nodes come and go
    #[arg(long, default_value_t = 180)]
    pub(crate) seconds: u64,
    /// Time between one node's death or start and the next
    #[arg(long, default_value_t = 2000, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) every_ms: u64,
    /// What the engine waits before each token
    #[arg(long, default_value_t = 15, value_name = "MS")]
    pub(crate) echo_delay_ms: u64,
    /// The same nodes, words and lies again; a random one if none
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Keep the network's folder here, with the logs
    #[arg(long)]
    pub(crate) keep: Option<PathBuf>,
    /// Print the report as one JSON line
    #[arg(long)]
    pub(crate) json: bool,
}

const CHAOS_HELP: &str = "\
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
    /// The first seed; a random one if none
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// How many seeds, from the first one on
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) count: u64,
    /// Seeds from the first to the last one, both included
    #[arg(long, value_name = "FIRST..LAST", value_parser = parse_seeds, conflicts_with_all = ["seed", "count"])]
    pub(crate) seeds: Option<RangeInclusive<u64>>,
    /// Only this scenario; may be repeated, or several with commas between
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SCENARIO")]
    pub(crate) only: Vec<Scenario>,
    /// Trials at once
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) lanes: u16,
    /// Keep the folders of trials in which something did not hold here: logs, and all calls with their output
    #[arg(long, value_name = "FOLDER")]
    pub(crate) keep: Option<PathBuf>,
    /// Print the report as one JSON line
    #[arg(long)]
    pub(crate) json: bool,
}

/// `FIRST..LAST`, both included.
fn parse_seeds(text: &str) -> Result<RangeInclusive<u64>, String> {
    let seed = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is no seed"));
    let (first, last) = text.split_once("..").ok_or("take two seeds, for example 1..200")?;
    let seeds = seed(first)?..=seed(last)?;
    if seeds.is_empty() { Err("the last seed is before the first one".to_owned()) } else { Ok(seeds) }
}

#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Number of nodes
    #[arg(long, default_value_t = 3)]
    pub(crate) nodes: usize,
    /// Engine of the nodes
    #[arg(long, value_enum, default_value = "native")]
    pub(crate) engine: EngineChoice,
    /// What the test engine waits before each token, in milliseconds
    #[arg(long, default_value_t = 0, value_name = "MS")]
    pub(crate) echo_delay_ms: u64,
    /// Shard count of the store
    #[arg(long, default_value_t = 10)]
    pub(crate) shards: u16,
    /// Folder of downloaded models
    #[arg(long, env = "BATON_MODEL_DIR")]
    pub(crate) model_dir: Option<PathBuf>,
    /// Folder of the network; without it a temporary one, removed at the end
    #[arg(long)]
    pub(crate) data_dir: Option<PathBuf>,
    /// Print the addresses as one JSON line when ready
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// What the network adds to a turn, and what a turn costs at any length of a session
    Turn(BenchTurnArgs),
}

#[derive(Debug, Args)]
pub(crate) struct BenchTurnArgs {
    /// Print the figures as one JSON line
    #[arg(long)]
    pub(crate) json: bool,
    /// Turns measured on the echo engine, after a warm-up
    #[arg(long, default_value_t = 200)]
    pub(crate) turns: usize,
    /// Turns measured on the real model; 0 leaves it out
    #[arg(long, default_value_t = 12)]
    pub(crate) model_turns: usize,
    /// Lengths of a session at which bytes and blobs of a turn are counted
    #[arg(long, value_delimiter = ',', default_value = "10,100,1000,10000")]
    pub(crate) at: Vec<u64>,
    /// Shard count of the store in the timed part
    #[arg(long, default_value_t = 10)]
    pub(crate) shards: u16,
    /// Folder of downloaded models
    #[arg(long, env = "BATON_MODEL_DIR")]
    pub(crate) model_dir: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn seeds_are_a_first_and_a_last_one() {
        assert_eq!(parse_seeds("1..200"), Ok(1..=200));
        assert_eq!(parse_seeds("7..7"), Ok(7..=7));
        for text in ["", "7", "1..", "..7", "9..8", "a..b", "1...3", "-1..3"] {
            assert!(parse_seeds(text).is_err(), "{text}");
        }
    }
}
