//! Command line of `baton-testnet`.

use baton_command::manual::{CompletionsArguments, ManArguments};
use clap::{Parser, Subcommand};

use crate::{
    bench::BenchCommand,
    chaos::{CHAOS_HELP, ChaosArgs},
    churn::{CHURN_HELP, ChurnArgs},
    demo::DemoArgs,
    flood::{FloodArgs, attack::AttackArgs},
    store::StoreArgs,
    up::UpArgs,
};

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

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
