//! `baton-testnet bench`: the network's overhead on a turn, against the bare engine in the same run; the cost of a
//! turn at each length of a session, and beside many open sessions; and what each API of the gateway adds to a turn.

mod apis;
mod growth;
mod overhead;
mod proxy;
mod sessions;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::{network::EngineChoice, output};

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure the network's overhead on a turn, and the cost of a turn by session length
    Turn(BenchTurnArgs),
    /// Measure the first-token time of each API of `baton serve`, beside that of a bare session
    Apis(BenchApisArgs),
    /// Measure a client's processor time for a turn with few open sessions, and with many
    Sessions(BenchSessionsArgs),
}

/// Arguments of `baton-testnet bench sessions`.
#[derive(Debug, Args)]
pub(crate) struct BenchSessionsArgs {
    /// Print the figures as one JSON line
    #[arg(long)]
    pub(crate) json: bool,
    /// Sessions that are open in the end
    #[arg(long, default_value_t = 500)]
    pub(crate) open: usize,
    /// Turns of each measurement
    #[arg(long, default_value_t = 200)]
    pub(crate) turns: u32,
}

/// Arguments of `baton-testnet bench apis`.
#[derive(Debug, Args)]
pub(crate) struct BenchApisArgs {
    /// Print the figures as one JSON line
    #[arg(long)]
    pub(crate) json: bool,
    /// Samples of each API and engine, after a warm-up
    #[arg(long, default_value_t = 100, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    pub(crate) samples: usize,
    /// Folder of downloaded models
    #[arg(long, env = "BATON_NODE_MODEL_DIR", value_name = "DIR")]
    pub(crate) model_dir: Option<PathBuf>,
}

/// Arguments of `baton-testnet bench turn`.
#[derive(Debug, Args)]
pub(crate) struct BenchTurnArgs {
    /// Print the figures as one JSON line
    #[arg(long)]
    pub(crate) json: bool,
    /// Turns measured on the echo engine, after a warm-up
    #[arg(long, default_value_t = 200)]
    pub(crate) turns: usize,
    /// Turns measured on the real model; 0 skips them
    #[arg(long, default_value_t = 12)]
    pub(crate) model_turns: usize,
    /// Session lengths at which to count a turn's bytes and blobs
    #[arg(long, value_delimiter = ',', default_value = "10,100,1000,10000")]
    pub(crate) at: Vec<u64>,
    /// Shard count of the store in the timed part
    #[arg(long, default_value_t = 10)]
    pub(crate) shards: u16,
    /// Folder of downloaded models
    #[arg(long, env = "BATON_NODE_MODEL_DIR", value_name = "DIR")]
    pub(crate) model_dir: Option<PathBuf>,
}

/// Half and ninety-nine hundredths of a sample, in milliseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Quantiles {
    /// Half of the sample is at most this.
    pub p50: f64,
    /// Ninety-nine hundredths of the sample are at most this.
    pub p99: f64,
}

impl Quantiles {
    /// Of an unsorted, non-empty sample: the value at rank ⌈q·n⌉.
    pub(crate) fn of(sample: &[f64]) -> Self {
        let mut sorted = sample.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |hundredths: usize| {
            let rank = (sorted.len() * hundredths).div_ceil(100).max(1);
            let value = sorted.get(rank - 1).copied().unwrap_or(f64::NAN);
            (value * 1000.0).round() / 1000.0
        };
        Self { p50: at(50), p99: at(99) }
    }
}

#[derive(Debug, Serialize)]
struct Figures {
    echo: overhead::Overhead,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<overhead::Overhead>,
    /// The wait for the blob ID before the next turn can be signed, by shard count; not part of the overhead.
    blob_id_ms: Vec<overhead::BlobIdWait>,
    growth: Vec<growth::Cost>,
    /// Bytes of a turn at the longest length over bytes at the shortest.
    bytes_ratio: f64,
    /// Time of a turn at the longest length over the time at the shortest, measured by turns at the end.
    time_ratio: f64,
    /// Time of a turn at the shortest length, at the end over the beginning: the cost of older nodes and stores.
    age_ratio: f64,
}

/// Runs one benchmark.
pub(crate) async fn run(command: BenchCommand) -> anyhow::Result<()> {
    let args = match command {
        BenchCommand::Turn(args) => args,
        BenchCommand::Apis(args) => return run_apis(&args).await,
        BenchCommand::Sessions(args) => {
            let cost = sessions::measure(&args).await?;
            if args.json {
                output::line(&serde_json::to_string(&cost)?);
            } else {
                sessions::print(&cost);
            }
            return Ok(());
        }
    };
    let figures = measure(&args).await?;
    if args.json {
        output::line(&serde_json::to_string(&figures)?);
    } else {
        print(&figures);
    }
    Ok(())
}

async fn run_apis(args: &BenchApisArgs) -> anyhow::Result<()> {
    let mut figures = Vec::new();
    for engine in [EngineChoice::Echo, EngineChoice::Native] {
        figures.push(apis::measure(engine, args).await?);
    }
    if args.json {
        output::line(&serde_json::to_string(&figures)?);
    } else {
        apis::print(&figures);
    }
    Ok(())
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
    output::note("blob IDs");
    let blob_id_ms = overhead::blob_id_waits()?;
    output::note("bytes and blobs of a turn as the session grows");
    let growth = growth::measure(&args.at).await?;
    let total = |cost: Option<&growth::Cost>| cost.map_or(f64::NAN, |cost| cost.bytes_up + cost.bytes_down);
    let bytes_ratio = total(growth.last()) / total(growth.first());
    let time_ratio = growth.last().map_or(f64::NAN, |last| last.turn_ms / last.short_ms);
    let short = |cost: Option<&growth::Cost>| cost.map_or(f64::NAN, |cost| cost.short_ms);
    let age_ratio = short(growth.last()) / short(growth.first());
    Ok(Figures { echo, model, blob_id_ms, growth, bytes_ratio, time_ratio, age_ratio })
}

fn print(figures: &Figures) {
    let show = |name: &str, measured: &overhead::Overhead| {
        let (added, network, bare) =
            (measured.added_first_token_ms, measured.network_first_token_ms, measured.bare_first_token_ms);
        output::line(&format!(
            "{name}: first token {:.2} ms over the network, {:.2} ms bare; added {:.2} ms p50, {:.2} ms p99 ({} turns)",
            network.p50, bare.p50, added.p50, added.p99, measured.turns
        ));
    };
    show("echo ", &figures.echo);
    if let Some(model) = &figures.model {
        show("model", model);
    }
    for wait in &figures.blob_id_ms {
        output::line(&format!(
            "blob ID at {} shards: {:.2} ms for {} bytes",
            wait.shards, wait.ms, wait.bytes
        ));
    }
    output::line(
        "\n  at turn   bytes up   bytes down   blobs   turns read   turn ms   short ms   (of one turn: means, and medians of times)",
    );
    for cost in &figures.growth {
        output::line(&format!(
            "  {:>7} {:>10.0} {:>12.0} {:>7.2} {:>12.1} {:>9.2} {:>10.2}",
            cost.turn,
            cost.bytes_up,
            cost.bytes_down,
            cost.blobs,
            cost.turn_reads,
            cost.turn_ms,
            cost.short_ms
        ));
    }
    output::line(&format!(
        "  longest to shortest: {:.3} times the bytes, {:.3} times the time; nodes and store by their age: {:.3} times",
        figures.bytes_ratio, figures.time_ratio, figures.age_ratio
    ));
}
