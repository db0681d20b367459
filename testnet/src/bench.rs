//! `baton-testnet bench`: the network's overhead on a turn, against the bare engine in the same run; the cost of a
//! turn at each length of a session, and beside many open sessions; and what each API of the gateway adds to a turn.

mod apis;
mod growth;
mod overhead;
mod proxy;
mod sessions;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use baton_client::{Client, TurnEvent, TurnInput, TurnOutcome};
use baton_proto::ids::SessionId;
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::{
    network::{EngineChoice, ModelFolder, NodeOptions},
    output,
};

/// Turns a minute that nodes allow: more than a machine can do, so that no limit of a node is measured.
const TURNS_PER_MINUTE: &str = "1000000";
/// Time limit of the background work after a turn.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure the network's overhead on a turn, and the cost of a turn by session length
    Turn(BenchTurnArgs),
    /// Measure the first-token time of each API of `baton serve`, beside that of a bare session
    Apis(ModelFolder),
    /// Measure a client's processor time for a turn with few open sessions, and with many
    Sessions,
}

/// Arguments of `baton-testnet bench turn`.
#[derive(Debug, Args)]
pub(crate) struct BenchTurnArgs {
    /// Turns measured on the echo engine, after a warm-up
    #[arg(long, default_value_t = 200)]
    pub(crate) turns: usize,
    /// Turns measured on the real model; 0 skips them
    #[arg(long, default_value_t = 12)]
    pub(crate) model_turns: usize,
    /// Session lengths at which to count a turn's bytes and blobs
    #[arg(long, value_delimiter = ',', default_value = "10,100,1000,10000")]
    pub(crate) at: Vec<u64>,
    #[command(flatten)]
    pub(crate) models: ModelFolder,
}

/// A sample of times, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// Number of values.
    pub count: usize,
    /// Half of the sample is at most this.
    pub p50: f64,
    /// Ninety-five hundredths of the sample are at most this.
    pub p95: f64,
    /// Ninety-nine hundredths of the sample are at most this.
    pub p99: f64,
    /// The longest time.
    pub max: f64,
}

impl Quantiles {
    /// Of an unsorted sample: the value at rank ⌈q·n⌉, or 0 of an empty one.
    pub(crate) fn of(sample: &[f64]) -> Self {
        let mut sorted = sample.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |hundredths: usize| {
            let rank = (sorted.len() * hundredths).div_ceil(100).max(1);
            (sorted.get(rank - 1).copied().unwrap_or_default() * 1000.0).round() / 1000.0
        };
        Self { count: sorted.len(), p50: at(50), p95: at(95), p99: at(99), max: at(100) }
    }
}

/// A turn, with the times from its sending.
struct TimedTurn {
    outcome: TurnOutcome,
    first_text_ms: f64,
    whole_ms: f64,
}

/// Options of nodes whose limits are in the way of no benchmark.
fn unlimited(engine: EngineChoice, model_dir: Option<PathBuf>) -> NodeOptions {
    // A long session uses more than a stranger's hour.
    let limits =
        ["--turns-per-minute", TURNS_PER_MINUTE, "--tokens-per-hour", "0", "--storage-per-hour", "0"];
    NodeOptions { model_dir, ..NodeOptions::new(engine).with(&limits) }
}

/// Milliseconds since a moment.
fn ms_since(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1000.0
}

/// Runs a turn, and then waits for its background work, which belongs to no time.
async fn timed_turn(client: &Client, session: SessionId, input: TurnInput) -> anyhow::Result<TimedTurn> {
    let (begun, mut first) = (Instant::now(), None);
    let on_event = |event: TurnEvent| {
        if matches!(event, TurnEvent::Text(_)) {
            first.get_or_insert_with(|| ms_since(begun));
        }
    };
    let outcome = client.session(session).turn(input, on_event).await?;
    let whole_ms = ms_since(begun);
    settle(client, session).await?;
    Ok(TimedTurn { outcome, first_text_ms: first.context("an answer has text")?, whole_ms })
}

/// Waits for the background work of a session.
async fn settle(client: &Client, session: SessionId) -> anyhow::Result<()> {
    let settled = client.session(session).wait_settled(SETTLE_TIMEOUT).await?;
    ensure!(settled, "background work did not end");
    Ok(())
}

#[derive(Debug, Serialize)]
struct Figures {
    echo: overhead::Overhead,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<overhead::Overhead>,
    growth: Vec<growth::Cost>,
    /// Bytes of a turn at the longest length over bytes at the shortest.
    bytes_ratio: f64,
    /// Time of a turn at the longest length over that at the shortest.
    time_ratio: f64,
    /// Processor time of a start and a turn at the longest length over that at the shortest.
    start_ratio: f64,
}

/// Runs one benchmark.
pub(crate) async fn run(command: BenchCommand, json: bool) -> anyhow::Result<()> {
    match command {
        BenchCommand::Turn(args) => {
            let figures = measure(&args).await?;
            if !json {
                output::line(&summary("echo ", &figures.echo));
                figures.model.iter().for_each(|model| output::line(&summary("model", model)));
            }
            output::report(json, &figures)
        }
        BenchCommand::Apis(models) => {
            let mut figures = Vec::new();
            for engine in [EngineChoice::Echo, EngineChoice::Native] {
                figures.push(apis::measure(engine, models.model_dir.clone()).await?);
            }
            output::report(json, &figures)
        }
        BenchCommand::Sessions => output::report(json, &sessions::measure().await?),
    }
}

/// The network's share of a first token, in a line.
fn summary(name: &str, measured: &overhead::Overhead) -> String {
    let (added, network, bare) =
        (measured.added_first_token_ms, measured.network_first_token_ms, measured.bare_first_token_ms);
    format!(
        "{name}: first token {:.2} ms over the network, {:.2} ms bare; added {:.2} ms p50, {:.2} ms p99 ({} turns)",
        network.p50, bare.p50, added.p50, added.p99, measured.turns
    )
}

async fn measure(args: &BenchTurnArgs) -> anyhow::Result<Figures> {
    output::note("echo engine: network turn against the bare engine");
    let echo = overhead::measure(EngineChoice::Echo, args.turns, args).await?;
    let model = if args.model_turns > 0 {
        output::note("real model: network turn against the bare engine");
        Some(overhead::measure(EngineChoice::Native, args.model_turns, args).await?)
    } else {
        None
    };
    output::note("bytes and blobs of a turn as the session grows");
    let growth = Box::pin(growth::measure(&args.at)).await?;
    let ratio = |figure: fn(&growth::Cost) -> f64| match (growth.first(), growth.last()) {
        (Some(first), Some(last)) => figure(last) / figure(first),
        _ => f64::NAN,
    };
    let bytes_ratio = ratio(|cost| cost.bytes_up + cost.bytes_down);
    let (time_ratio, start_ratio) = (ratio(|cost| cost.turn_ms), ratio(|cost| cost.start_ms));
    Ok(Figures { echo, model, growth, bytes_ratio, time_ratio, start_ratio })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_of_the_sample() {
        let times: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let expected = Quantiles { count: 100, p50: 50.0, p95: 95.0, p99: 99.0, max: 100.0 };
        assert_eq!(Quantiles::of(&times), expected);
        assert_eq!(Quantiles::of(&[7.0]), Quantiles { count: 1, p50: 7.0, p95: 7.0, p99: 7.0, max: 7.0 });
        assert_eq!(Quantiles::of(&[]), Quantiles::default());
    }
}
