//! `baton-testnet store`: the embedded Walrus-compatible store as its own process.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use baton_kit::endpoint::listen_address;
use baton_proto::{Signable as _, SignedObject, head::HeadRecord};
use baton_walrus_client::{ShardCount, token_file::read_secret};
use baton_walrus_store::{
    CheckReport, EmbeddedConfig, EmbeddedStore, HeadIdentity, JwtSecret, MAX_PUT_BYTES, check,
};
use clap::{Args, Subcommand};
use tokio_util::sync::CancellationToken;

use crate::faults::{FaultPlan, Faults, text::duration};

/// Default limit on stored blob bytes: enough for a hundred long conversations, and far from filling a
/// laptop's disk.
const DEFAULT_QUOTA_BYTES: u64 = 16 * 1024 * 1024 * 1024;

const FAULTS_HELP: &str = "\
What goes wrong on purpose: a preset, or rules and a seed.

Presets: none; store (all of it can be survived by trying again and probing); hostile (false answers too).

Rules are route:fault, separated by commas, and the seed comes last: put:500=0.1,get:404-after-put=3s;seed=7
  route   put, get, head, quilt, any
  fault   500, 503, 429, 504, truncated, oversized, endless, wrong-bytes, wrong-id, answer-lost: then =SHARE,
          the part of the requests that meet it, from 0 to 1 (all when left out)
          404-after-put=TIME, slow=TIME, drip=TIME: then @SHARE; a TIME is a number with ms, s or m
A request meets the first rule that fits it and is drawn; the same seed draws the same.";

const FSCK_HELP: &str = "\
Every byte is read: blobs against the hashes in their files, and both copies of the index. No process may have the store \
open. With --fix, whatever can be put right is, as at every start: copies of the index, hashes and trailers are \
written again, blobs that the index lost are listed again, and files that nothing names go to the folder `quarantine`.

Exit code 0: nothing is damaged, or all of it was fixed without loss. 1: something is, and the lines say what.";

/// Arguments of `baton-testnet store`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct StoreArgs {
    #[command(subcommand)]
    command: Option<StoreCommand>,
    /// Folder of the store
    #[arg(long, global = true, default_value = "baton-store", value_name = "DIR")]
    data_dir: PathBuf,
    /// Address to listen on; of localhost:PORT and :PORT, this machine alone
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:31415", value_parser = listen_address)]
    listen: SocketAddr,
    /// Shard count for blob IDs (1000 on Walrus's mainnet and testnet)
    #[arg(long, default_value_t = 1000)]
    shards: u16,
    /// Maximum bytes of stored blobs; a PUT beyond it is refused
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_QUOTA_BYTES,
        value_parser = clap::value_parser!(u64).range(1..))]
    quota: u64,
    /// Maximum size of a blob, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = MAX_PUT_BYTES as u64,
        value_parser = clap::value_parser!(u64).range(1..))]
    max_blob: u64,
    /// Duration of an epoch: a number with s, m, h or d
    #[arg(long, value_name = "TIME", default_value = "14d", value_parser = epoch_duration)]
    epoch_duration: Duration,
    /// Require a token for each PUT, signed with the secret in this file (HS256; text, or hex after 0x). Only
    /// the file's owner may have access to it
    #[arg(long, value_name = "FILE")]
    jwt_secret_file: Option<PathBuf>,
    /// Faults to inject: none, store (all survivable by retries), hostile (false answers too), or rules. Rules look
    /// like put:500=0.1,get:404-after-put=3s,any:slow=200ms@0.05;seed=7
    #[arg(long, value_name = "PLAN", default_value = "none", long_help = FAULTS_HELP)]
    faults: FaultPlan,
    /// Loopback address of the interface for damaging stored data, for tests
    #[arg(long, value_name = "ADDRESS", value_parser = listen_address)]
    admin: Option<SocketAddr>,
}

#[derive(Debug, Subcommand)]
enum StoreCommand {
    /// Check everything in a store's folder, and fix it with --fix
    #[command(after_help = FSCK_HELP)]
    Fsck {
        /// Fix damage where possible
        #[arg(long)]
        fix: bool,
    },
}

/// Checks a store's folder and prints the report. Fails if damage remains.
async fn fsck(data_dir: PathBuf, fix: bool, json: bool) -> anyhow::Result<()> {
    let checking = tokio::task::spawn_blocking(move || check(&data_dir, fix));
    let report = checking.await.context("looking at the store panicked")??;
    if json {
        crate::output::line(&serde_json::to_string(&report)?);
    } else {
        report_lines(&report).iter().for_each(|line| crate::output::line(line));
    }
    match (report.is_sound(), report.fixed, report.lost) {
        (true, ..) => Ok(()),
        (false, false, 0) => bail!("{} damages; run it again with --fix", report.damaged),
        (false, false, lost) => bail!(
            "{} damages, by {lost} of which something is lost; run it again with --fix, then store the lost blobs again",
            report.damaged
        ),
        (false, true, lost) => bail!("{lost} damages cost something; store the lost blobs again"),
    }
}

/// The report as text.
fn report_lines(report: &CheckReport) -> Vec<String> {
    let mut lines: Vec<String> = report.damages.iter().map(ToString::to_string).collect();
    let unlisted = report.damaged - report.damages.len() as u64;
    if unlisted > 0 {
        lines.push(format!("and {unlisted} more damages"));
    }
    let CheckReport { blobs, bytes, heads, found, removable, quarantined, .. } = report;
    let done = if report.fixed { "listed again" } else { "not listed in the index" };
    if *found > 0 {
        lines.push(format!("{found} blobs found by their own files, {done}"));
    }
    if *removable > 0 {
        let done = if report.fixed { "removed" } else { "to be removed" };
        lines.push(format!("{removable} files of unfinished uploads and of replaced blobs, {done}"));
    }
    if *quarantined > 0 {
        lines.push(format!("{quarantined} files in the quarantine"));
    }
    lines.push(format!("{blobs} blobs of {bytes} bytes, {heads} heads, {} damages", report.damaged));
    lines
}

/// Serves until SIGTERM or Ctrl-C, or runs the subcommand.
pub(crate) async fn run(args: StoreArgs, json: bool) -> anyhow::Result<()> {
    match args.command {
        Some(StoreCommand::Fsck { fix }) => fsck(args.data_dir, fix, json).await,
        None => serve(args, json).await,
    }
}

/// Serves until SIGTERM or Ctrl-C.
async fn serve(args: StoreArgs, json: bool) -> anyhow::Result<()> {
    let mut config = EmbeddedConfig::new(&args.data_dir);
    config.shards = ShardCount::new(args.shards)?;
    config.quota_bytes = Some(args.quota);
    config.max_put_bytes =
        usize::try_from(args.max_blob).context("--max-blob is too large for this machine")?;
    config.epoch_duration = args.epoch_duration;
    if let Some(path) = &args.jwt_secret_file {
        let secret = JwtSecret::new(read_secret(path)?.to_vec());
        config.jwt_secret = Some(secret.with_context(|| format!("{}", path.display()))?);
    }
    let store = tokio::task::spawn_blocking(move || EmbeddedStore::open(config, validate_head))
        .await
        .context("opening the store panicked")??;
    let listener = EmbeddedStore::bind(args.listen).await?;
    let url = format!("http://{}", listener.local_addr()?);
    let admin_listener = match args.admin {
        Some(address) => Some(EmbeddedStore::bind(address).await?),
        None => None,
    };
    let admin = admin_listener.as_ref().map(|listener| listener.local_addr()).transpose()?;
    let admin = admin.map(|address| format!("http://{address}"));
    let mut signals = crate::output::stop_signals()?;
    if json {
        let ready = serde_json::json!({ "event": "ready", "url": url, "admin": admin });
        crate::output::line(&ready.to_string());
    } else {
        crate::output::line(&format!("store with {} shards at {url}", args.shards));
    }
    let shutdown = CancellationToken::new();
    let routes = Faults::new(args.faults).around(store.router());
    let serving = store.serve_as(listener, routes, shutdown.clone().cancelled_owned());
    let administering = async {
        match admin_listener {
            Some(listener) => store.serve_admin(listener, shutdown.clone().cancelled_owned()).await,
            None => Ok(()),
        }
    };
    let stopping = async {
        signals.next().await;
        shutdown.cancel();
        Ok(())
    };
    tokio::try_join!(serving, administering, stopping)?;
    Ok(())
}

/// Parses a time of a second at least.
fn epoch_duration(text: &str) -> Result<Duration, String> {
    let parsed = duration(text).filter(|duration| duration.as_secs() > 0);
    parsed.ok_or_else(|| "take a number with s, m, h or d, for example 14d".to_owned())
}

/// Accepts a head record only if the key that indexes it has signed it.
fn validate_head(bytes: &[u8]) -> Result<HeadIdentity, String> {
    let limit = HeadRecord::MAX_BYTES;
    if bytes.len() > limit {
        return Err(format!("more than {limit} bytes"));
    }
    let record =
        SignedObject::<HeadRecord>::verify_encoded(bytes).map_err(|error| error.name().to_owned())?;
    Ok(HeadIdentity { key: record.index_key(), sequence: record.sequence, expires_ms: record.expires_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_a_number_and_a_unit() {
        for (text, seconds) in [("90s", 90), ("2m", 120), ("1h", 3_600), ("14d", 1_209_600)] {
            assert_eq!(epoch_duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "7", "s", "0d", "999ms", "-1d", "1w", "1.5h", "99999999999999999d"] {
            assert!(epoch_duration(text).is_err(), "{text}");
        }
    }
}
