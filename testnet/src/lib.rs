//! A whole Baton network on one machine, as processes. This crate holds the `baton-testnet` command with its
//! demo, stress runs and benchmarks, and the network for other tests.
//!
//! ```no_run
//! use baton_testnet::network::{Network, NodeOptions};
//!
//! # async fn example() -> anyhow::Result<()> {
//! let folder = tempfile::tempdir()?;
//! // A store and two nodes; then one more node, which dies.
//! let mut network = Network::start(folder.path(), 2, NodeOptions::echo()).await?;
//! let victim = network.add_node(&[]).await?;
//! network.kill_node(victim).await?;
//! println!("the nodes listen on {:?}, the store on {}", network.addresses(), network.store_url());
//! network.stop().await?;
//! # Ok(())
//! # }
//! ```

mod bench;
pub mod byzantine;
pub mod chaos;
pub mod churn;
mod cli;
mod demo;
mod draws;
pub mod faults;
pub mod flood;
pub mod network;
mod output;
pub mod process;
mod raw;
mod store;
pub mod trial;
mod up;

use std::process::ExitCode;

use baton_kit::{log, output as standard_output, usage};
use clap::CommandFactory as _;

use crate::cli::{Cli, Command};

/// Runs the `baton-testnet` command.
#[must_use]
pub fn main() -> ExitCode {
    let (cli, _): (Cli, _) = usage::arguments(Cli::command);
    // The store's warnings name damaged files for its operator.
    let level = if matches!(cli.command, Command::Store(_)) { "warn" } else { "error" };
    log::start(log::filter(cli.log.as_deref().unwrap_or(level), "warn"));
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report(&anyhow::Error::new(error).context("cannot start the async runtime")),
    };
    let json = cli.json;
    let result = runtime.block_on(async {
        match cli.command {
            Command::Store(args) => store::run(args, json).await,
            Command::Up(args) => up::run(args, json).await,
            Command::Bench(args) => Box::pin(output::until_signal(bench::run(args, json))).await,
            Command::Flood(of) if of.relayer => {
                trial::command(&of.trial, json, async |folder| flood::relayer::run(folder, &of).await).await
            }
            Command::Flood(of) => {
                trial::command(&of.trial, json, async |folder| flood::run(folder, &of).await).await
            }
            Command::FloodAttack(args) => flood::attacker::run(args).await,
            Command::Demo(args) => Box::pin(output::until_signal(demo::run(args, json))).await,
            Command::Chaos(of) => {
                trial::command(&of.trial, json, async |folder| chaos::chaos(&of, folder).await).await
            }
            Command::Churn(of) => {
                trial::command(&of.trial, json, async |folder| churn::churn(&of, folder).await).await
            }
        }
    });
    match result.and_then(|()| Ok(standard_output::check()?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

fn report(error: &anyhow::Error) -> ExitCode {
    output::note(&format!("error: {}", standard_output::error_chain(error.chain())));
    ExitCode::FAILURE
}
