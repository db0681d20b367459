//! What every kind of trial has: options, a folder of its own, the ledger of acknowledged turns, and a report that counts
//! broken promises.

pub(crate) mod ledger;

use std::{
    net::{TcpListener, UdpSocket},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use baton_keys::{files::create_private_folder, secret::random_bytes};
use clap::Args;
use serde::Serialize;
use tempfile::TempDir;
use tokio::time::Instant;

use crate::{draws::Draws, output};

/// Pause between two tries of a call.
pub(crate) const PAUSE: Duration = Duration::from_millis(250);
/// First port to try, below the systems' ephemeral ranges.
const FIRST_PORT: u64 = 20_000;
/// Number of ports to try.
const PORTS: u64 = 10_000;

/// Options of every trial.
#[derive(Clone, Debug, Default, Args)]
pub struct TrialOptions {
    /// Seed of all choices [default: random]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Keep the network's folder here, with the logs; of `chaos`, the folders of failed trials
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
}

impl TrialOptions {
    /// The seed, drawn if none was given.
    pub(crate) fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(|| u64::from(u16::from_le_bytes(random_bytes())))
    }
}

/// A trial's report, broken promises included.
pub trait TrialReport: Serialize {
    /// The number of broken promises.
    fn broken(&self) -> usize;
}

/// Runs a trial in its folder until it ends or a signal comes, and prints its report. Fails if a promise broke.
pub(crate) async fn command<R: TrialReport>(
    options: &TrialOptions,
    json: bool,
    trial: impl AsyncFnOnce(&Path) -> anyhow::Result<R>,
) -> anyhow::Result<()> {
    let (_temporary, folder) = folder(options.keep.as_deref())?;
    let report = Box::pin(output::until_signal(trial(&folder))).await?;
    output::report(json, &report)?;
    let broken = report.broken();
    ensure!(broken == 0, "{broken} promises broke");
    Ok(())
}

/// The folder of a run: the kept one, or a temporary one, which is removed with the first value.
pub(crate) fn folder(keep: Option<&Path>) -> anyhow::Result<(TempDir, PathBuf)> {
    let temporary = tempfile::tempdir().context("cannot make a temporary folder")?;
    let folder = keep.unwrap_or_else(|| temporary.path()).to_owned();
    create_private_folder(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok((temporary, folder))
}

/// The default options of a trial.
pub(crate) fn defaults<T: Args>() -> T {
    let matches = T::augment_args(clap::Command::new("trial")).get_matches_from(["trial"]);
    T::from_arg_matches(&matches).expect("every option has a default")
}

/// `debug` or `release`.
pub(crate) const BUILD: &str = if cfg!(debug_assertions) { "debug" } else { "release" };

/// A time in seconds, to a tenth.
pub(crate) fn tenths(time: Duration) -> f64 {
    (time.as_secs_f64() * 10.0).round() / 10.0
}

/// Repeats an attempt until it succeeds or the time is over; then returns its last failure.
pub(crate) async fn retried<T, E>(
    within: Duration,
    mut attempt: impl AsyncFnMut() -> anyhow::Result<Result<T, E>>,
) -> anyhow::Result<Result<T, E>> {
    let until = Instant::now() + within;
    loop {
        let outcome = attempt().await?;
        if outcome.is_ok() || Instant::now() >= until {
            return Ok(outcome);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Ports that are free now, for TCP and UDP.
pub(crate) fn free_ports(count: usize, draws: &mut Draws) -> anyhow::Result<Vec<u16>> {
    let mut ports = Vec::new();
    for _ in 0..PORTS {
        if ports.len() == count {
            break;
        }
        let port = u16::try_from(FIRST_PORT + draws.below(PORTS))?;
        let is_free =
            TcpListener::bind(("127.0.0.1", port)).is_ok() && UdpSocket::bind(("127.0.0.1", port)).is_ok();
        if is_free && !ports.contains(&port) {
            ports.push(port);
        }
    }
    ensure!(ports.len() == count, "no {count} free ports from {FIRST_PORT} on");
    Ok(ports)
}
