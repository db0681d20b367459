//! `baton-testnet flood --relayer`: the service that honest clients get while a relayer is attacked.
//!
//! Store, node, relayer and attacker are processes. Over HTTP, honest clients come from ::1, and the attacks from
//! 127.0.0.0/8, which is one subnet. Limits are the defaults.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use baton_client::{Client, ClientConfig, NewSession, Relayer, TurnInput};
use baton_keys::account::AccountKey;
use baton_mesh::Multiaddr;
use clap::ValueEnum as _;
use serde::Serialize;
use tokio::task::JoinSet;

use super::{
    FloodOptions,
    clients::{SHOWN_SLOWEST, SlowTurn},
    relayer_attack::{RelayerAttack, now_seconds},
};
use crate::{
    bench::Quantiles,
    network::{EngineChoice, Network, NodeOptions},
    output,
    process::Process,
};

/// Time between two honest requests of a client.
const REQUEST_EVERY: Duration = Duration::from_millis(300);
/// Time between two honest turns: a node serves two a second to one peer.
const TURN_EVERY: Duration = Duration::from_millis(600);
/// Time limit of an honest request or turn; a longer one counts as failed.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The honest question.
const QUESTION: &[u8] = br#"{"query":"favourite fruit"}"#;

/// Results of the honest clients at one endpoint.
#[derive(Debug, Clone, Serialize)]
pub struct HonestCalls {
    /// Calls that were answered.
    pub answered: usize,
    /// Calls that failed, with the reasons.
    pub failures: Vec<String>,
    /// Milliseconds to the answer, or to the failure.
    pub call_ms: Quantiles,
    /// The 99th percentile over that of the quiet part.
    pub p99_over_quiet: f64,
    /// The slowest calls, slowest first: they show what delays a call.
    pub slowest: Vec<SlowTurn>,
}

/// Results of one part.
#[derive(Debug, Clone, Serialize)]
pub struct RelayerPart {
    /// Recalls over HTTP.
    pub http: HonestCalls,
    /// Turns through the sealed endpoint.
    pub sealed: HonestCalls,
    /// Outcomes of the attacker's attempts.
    pub attacker: BTreeMap<String, u64>,
}

/// The result.
#[derive(Debug, Clone, Serialize)]
pub struct RelayerFloodReport {
    /// How the programs were built.
    pub build: &'static str,
    /// Processors of the machine, shared with the attacker.
    pub processors: usize,
    /// Length of each part.
    pub seconds: u64,
    /// By name: `quiet`, `slow-bodies`, `idle`, `fresh-keys`, `idle-streams`.
    pub parts: BTreeMap<&'static str, RelayerPart>,
    /// Failed honest calls; empty if the defence held.
    pub breaches: Vec<String>,
    /// Parts in which honest clients waited too long.
    pub slow: Vec<String>,
}

/// Runs all parts in a folder.
///
/// # Errors
/// When a process does not start, or the warm-up fails.
pub async fn run(folder: &Path, options: &FloodOptions) -> anyhow::Result<RelayerFloodReport> {
    let node_options = NodeOptions {
        engine: EngineChoice::Echo,
        shards: 10,
        store_faults: None,
        context_tokens: None,
        echo_delay_ms: 2,
        model_dir: None,
        extra: Vec::new(),
    };
    let network = Network::start(folder, 1, node_options).await?;
    let bench = Bench::open(&network, folder, options).await?;
    output::note("warming up");
    let warm = bench.part(None, Duration::from_secs(3)).await?;
    ensure!(
        warm.http.failures.is_empty(),
        "honest requests fail without an attack: {:?}",
        warm.http.failures
    );
    ensure!(
        warm.sealed.failures.is_empty(),
        "honest turns fail without an attack: {:?}",
        warm.sealed.failures
    );
    let span = Duration::from_secs(options.seconds);
    let mut parts = BTreeMap::from([("quiet", bench.part(None, span).await?)]);
    for (name, attack, network) in RelayerAttack::ALL {
        if options.has(name) {
            output::note(name);
            parts.insert(name, bench.part(Some((attack, network)), span).await?);
        }
    }
    let mut relayer = bench.relayer;
    relayer.terminate().await?;
    network.stop().await?;
    Ok(judged(parts, options.seconds))
}

fn judged(mut parts: BTreeMap<&'static str, RelayerPart>, seconds: u64) -> RelayerFloodReport {
    let quiet = parts.get("quiet").map(|part| (part.http.call_ms.p99, part.sealed.call_ms.p99));
    let (mut breaches, mut slow) = (Vec::new(), Vec::new());
    for (name, part) in &mut parts {
        let Some((http, sealed)) = quiet else { continue };
        for (endpoint, calls, quiet) in [("HTTP", &mut part.http, http), ("sealed", &mut part.sealed, sealed)]
        {
            calls.p99_over_quiet = calls.call_ms.p99 / quiet;
            if !calls.failures.is_empty() {
                breaches.push(format!(
                    "{name}: {} honest calls failed at the {endpoint} endpoint",
                    calls.failures.len()
                ));
            }
            if calls.p99_over_quiet >= 2.0 {
                slow.push(format!(
                    "{name}: the slowest honest calls of {endpoint} took {:.2} times as long",
                    calls.p99_over_quiet
                ));
            }
        }
    }
    RelayerFloodReport {
        build: if cfg!(debug_assertions) { "debug" } else { "release" },
        processors: std::thread::available_parallelism().map_or(0, Into::into),
        seconds,
        parts,
        breaches,
        slow,
    }
}

/// The relayer, and its honest clients.
struct Bench {
    folder: PathBuf,
    relayer: Process,
    http: SocketAddr,
    sealed: Relayer,
    requests: reqwest::Client,
    accounts: Vec<AccountKey>,
    store_url: String,
    shards: u16,
    nodes: Vec<Multiaddr>,
}

impl Bench {
    async fn open(network: &Network, folder: &Path, options: &FloodOptions) -> anyhow::Result<Self> {
        let url = network.store_url();
        let mut args = vec!["--data-dir".to_owned(), folder.join("relayer").to_string_lossy().into_owned()];
        args.extend(
            ["run", "--json", "--mdns", "false", "--http", "[::]:0", "--owners", "open"].map(str::to_owned),
        );
        args.extend(["--embedder", "hashing"].map(str::to_owned));
        args.extend(["--listen", "/ip4/127.0.0.1/tcp/0"].map(str::to_owned));
        for address in network.addresses() {
            args.extend(["--bootstrap".to_owned(), address.to_string()]);
        }
        let relayer = Process::start("relayer", "baton-relayer", &args, folder).await?;
        let ready = &relayer.ready;
        let http = ready["http"].as_str().and_then(|url| url.strip_prefix("http://")?.parse().ok());
        let node = ready["relayer"].as_str().context("the ready line names the relayer")?.parse()?;
        let listen = ready["listen"].as_array().context("the ready line lists addresses")?;
        let addrs = listen.iter().filter_map(|address| address.as_str()?.parse().ok()).collect();
        Ok(Self {
            folder: folder.to_owned(),
            store_url: url.to_owned(),
            shards: network.options.shards,
            nodes: network.addresses(),
            http: http.context("the ready line names the HTTP address")?,
            sealed: Relayer { node, addrs },
            requests: reqwest::Client::builder().no_proxy().timeout(TIMEOUT).build()?,
            accounts: (0..options.clients).map(|_| AccountKey::generate()).collect(),
            relayer,
        })
    }

    /// A client of its own for a part: one with the sessions of the parts before is slower.
    async fn client(&self) -> anyhow::Result<Arc<Client>> {
        let home = tempfile::tempdir_in(&self.folder)?.keep();
        let url = self.store_url.as_str();
        let mut config = ClientConfig::with_http(Some(&home), url, url, Some(url), self.shards)?;
        config.bootstrap = self.nodes.clone();
        Ok(Arc::new(Client::open(config).await?))
    }

    /// Runs the honest clients for a time, and an attack beside them.
    async fn part(&self, attack: Option<(RelayerAttack, u8)>, span: Duration) -> anyhow::Result<RelayerPart> {
        let client = self.client().await?;
        let mut attacker = match attack {
            Some((attack, network)) => Some(self.attacker(attack, network, span).await?),
            None => None,
        };
        let (http, sealed) = tokio::join!(self.recalls(span), self.turns(&client, span));
        client.shutdown(Duration::from_secs(5)).await;
        let mut outcomes = BTreeMap::new();
        if let Some(attacker) = &mut attacker {
            let done = attacker.wait_event("done", Duration::from_secs(60)).await?;
            outcomes = serde_json::from_value(done["outcomes"].clone())?;
            attacker.kill().await?;
        }
        Ok(RelayerPart { http: http?, sealed: sealed?, attacker: outcomes })
    }

    async fn attacker(&self, attack: RelayerAttack, network: u8, span: Duration) -> anyhow::Result<Process> {
        let name = attack.to_possible_value().context("every attack has a name")?.get_name().to_owned();
        let mut args = vec!["flood-relayer-attack".to_owned(), name];
        let relayer = self.sealed.node.to_string();
        let sealed = self.sealed.addrs.iter().map(|address| ("--sealed", address.to_string()));
        let rest = [
            ("--http", SocketAddr::from((Ipv4Addr::LOCALHOST, self.http.port())).to_string()),
            ("--relayer", relayer),
            ("--network", network.to_string()),
            ("--seconds", span.as_secs().to_string()),
        ];
        for (flag, value) in rest.into_iter().chain(sealed) {
            args.extend([flag.to_owned(), value]);
        }
        Process::start("relayer-attack", "baton-testnet", &args, &self.folder).await
    }

    async fn recalls(&self, span: Duration) -> anyhow::Result<HonestCalls> {
        let mut tasks = JoinSet::new();
        for key in &self.accounts {
            let (requests, key, url) = (self.requests.clone(), key.clone(), format!("http://{}", self.http));
            tasks.spawn(async move {
                let began = Instant::now();
                let mut calls = Vec::new();
                while began.elapsed() < span {
                    let begun = Instant::now();
                    let answered = recall(&requests, &url, &key).await.map_err(|error| format!("{error:#}"));
                    calls.push((slow_turn(began, begun), answered));
                    tokio::time::sleep(REQUEST_EVERY.saturating_sub(begun.elapsed())).await;
                }
                calls
            });
        }
        let mut all = Vec::new();
        while let Some(calls) = tasks.join_next().await {
            all.extend(calls?);
        }
        summary(all)
    }

    async fn turns(&self, client: &Arc<Client>, span: Duration) -> anyhow::Result<HonestCalls> {
        let began = Instant::now();
        let mut calls = Vec::new();
        while began.elapsed() < span {
            let begun = Instant::now();
            let answered = self.turn(client).await.map_err(|error| format!("{error:#}"));
            calls.push((slow_turn(began, begun), answered));
            tokio::time::sleep(TURN_EVERY.saturating_sub(begun.elapsed())).await;
        }
        summary(calls)
    }

    async fn turn(&self, client: &Arc<Client>) -> anyhow::Result<()> {
        let session = client.new_session(NewSession::default()).await?;
        let input = TurnInput {
            allow_echo: true,
            max_output_tokens: 8,
            relayer: Some(self.sealed.clone()),
            ..TurnInput::user("honest words")
        };
        let handle = client.session(session);
        tokio::time::timeout(TIMEOUT, handle.turn(input, |_| {})).await.context("no answer in time")??;
        Ok(())
    }
}

/// The call that began at `begun` in a part that began at `began`, and ends now.
fn slow_turn(began: Instant, begun: Instant) -> SlowTurn {
    SlowTurn { at_s: begun.duration_since(began).as_secs_f64(), ms: begun.elapsed().as_secs_f64() * 1000.0 }
}

fn summary(calls: Vec<(SlowTurn, Result<(), String>)>) -> anyhow::Result<HonestCalls> {
    ensure!(!calls.is_empty(), "no honest call was begun");
    let mut slowest: Vec<SlowTurn> = calls.iter().map(|(call, _)| *call).collect();
    let times: Vec<f64> = slowest.iter().map(|call| call.ms).collect();
    let failures: Vec<String> = calls.into_iter().filter_map(|(_, answered)| answered.err()).collect();
    let answered = times.len() - failures.len();
    slowest.sort_by(|one, other| other.ms.total_cmp(&one.ms));
    slowest.truncate(SHOWN_SLOWEST);
    Ok(HonestCalls { answered, failures, call_ms: Quantiles::of(&times), p99_over_quiet: 1.0, slowest })
}

async fn recall(requests: &reqwest::Client, url: &str, key: &AccountKey) -> anyhow::Result<()> {
    let path = "/v1/memory/recall";
    let mut request = requests.post(format!("{url}{path}"));
    for (name, value) in key.request_headers(&key.account_id(), "POST", path, QUESTION, now_seconds()) {
        request = request.header(name, value);
    }
    let answer = request.body(QUESTION).send().await?;
    ensure!(answer.status().is_success(), "{}: {}", answer.status(), answer.text().await?);
    Ok(())
}

/// Prints a report for a person.
pub(super) fn print(report: &RelayerFloodReport) {
    output::line(&format!("{} build, {} processors", report.build, report.processors));
    for (name, part) in &report.parts {
        for (endpoint, calls) in [("http", &part.http), ("sealed", &part.sealed)] {
            output::line(&format!(
                "{name:<12} {endpoint:<6} {:>5} answered, {} failed, {:>7.1} ms half, {:>7.1} ms p99, {:.2} of quiet",
                calls.answered,
                calls.failures.len(),
                calls.call_ms.p50,
                calls.call_ms.p99,
                calls.p99_over_quiet,
            ));
        }
        output::line(&format!("             attacker: {:?}", part.attacker));
    }
}
