//! Command line of `baton-testnet`.

use clap::{Parser, Subcommand};

use crate::{
    bench::BenchCommand,
    chaos::{CHAOS_HELP, ChaosOptions},
    churn::{CHURN_HELP, ChurnOptions},
    demo::DemoArgs,
    flood::{FloodOptions, attacker::AttackerArgs},
    store::StoreArgs,
    up::UpArgs,
};

/// Run a whole Baton network on this machine.
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
    /// Print the report, or the addresses when ready, as one JSON line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a conversation that moves between nodes, with attacks and fixes on the way
    Demo(DemoArgs),
    /// Keep a network running, and show how to connect to it
    Up(UpArgs),
    /// Run many conversations while nodes are killed and restarted, and some are byzantine
    #[command(after_help = CHURN_HELP)]
    Churn(ChurnOptions),
    /// Check that acknowledged turns survive kills, full disks, damaged files, old copies and wrong clocks
    #[command(after_help = CHAOS_HELP)]
    Chaos(ChaosOptions),
    /// Run benchmarks
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Measure the service to honest clients while forged and signed requests flood a node
    Flood(FloodOptions),
    /// Attack a node or a relayer, for `flood`
    #[command(hide = true)]
    FloodAttack(AttackerArgs),
    /// Run only the Walrus-compatible store
    Store(StoreArgs),
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
