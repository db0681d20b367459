//! `baton-testnet flood`: what honest clients notice while one node is flooded with requests, forged ones and then signed
//! ones from fresh sessions and identities.
//!
//! Node, store and attacker are processes; the attacker runs at the lowest priority, since on one machine it competes
//! for the processors as no attacker over a network does, and its processor time is reported. The node counts loopback
//! addresses as it does public ones; the attacker comes from 127.0.0.1 and the honest clients, together, from ::1: two
//! subnets to the node. Quotas are the defaults.

pub mod attack;
mod shots;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use baton_client::{Client, ClientConfig, NewSession, TurnEvent, TurnInput};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::{
    bench::Quantiles,
    cli::FloodArgs,
    network::{EngineChoice, Network, NodeOptions},
    output,
    process::Process,
};
use attack::{Attack, AttackReport};

/// Honest clients.
const CLIENTS: usize = 5;
/// From one honest turn's start to the next: a hundred a minute, of the hundred and twenty that a peer has.
const TURN_EVERY: Duration = Duration::from_millis(600);
/// Turns of an honest session before the next one begins.
const SESSION_TURNS: usize = 6;
/// Turns of each client before anything is measured: it is known to the node then.
const WARM_UP: usize = 3;
/// Time for an honest turn; beyond it, it failed.
const TURN_TIMEOUT: Duration = Duration::from_secs(20);
/// Hundredths of a second in which Linux counts processor time.
const TICKS_PER_SECOND: f64 = 100.0;

/// What to do.
#[derive(Debug, Clone)]
pub struct FloodOptions {
    /// Length of each part.
    pub seconds: u64,
    /// Requests a second that the attacker tries to send.
    pub rate: u32,
    /// Whether the node's defence is on.
    pub defence: bool,
    /// Whether to measure also what the attacker's mere processor time does.
    pub control: bool,
    /// Seed of the attacker's sessions.
    pub seed: u64,
}

/// What honest clients saw in one part.
#[derive(Debug, Clone, Serialize)]
pub struct Honest {
    /// Turns that were answered and verified.
    pub turns: usize,
    /// Turns that were not.
    pub failed: usize,
    /// From sending to the accepted turn, in milliseconds; of failed turns, until they failed.
    pub turn_ms: Quantiles,
    /// Attempts that failed before a turn was answered, by error code or reason.
    pub again: BTreeMap<String, u64>,
}

/// One attack.
#[derive(Debug, Clone, Serialize)]
pub struct Part {
    /// What the honest clients saw.
    pub honest: Honest,
    /// Their 99th percentile over that of the quiet part.
    pub p99_ratio: f64,
    /// What the attacker did.
    pub attacker: AttackReport,
    /// Processors that the node used, on average.
    pub node_cpus: f64,
    /// The node's resident memory before and after, and at its highest so far, in MiB.
    pub rss_mib: [f64; 3],
}

/// The result.
#[derive(Debug, Clone, Serialize)]
pub struct FloodReport {
    /// How the programs were built.
    pub build: &'static str,
    /// Whether the node's defence was on.
    pub defence: bool,
    /// Without any attack.
    pub quiet: Honest,
    /// By attack.
    pub parts: BTreeMap<&'static str, Part>,
}

impl FloodReport {
    /// Whether honest clients were served: no turn failed, and the slowest took at most so many times as long as without
    /// an attack.
    #[must_use]
    pub fn holds(&self, most: f64) -> bool {
        self.parts.values().all(|part| part.honest.failed == 0 && part.p99_ratio < most)
    }
}

/// The command.
pub(crate) async fn command(args: FloodArgs) -> anyhow::Result<()> {
    let options = FloodOptions {
        seconds: args.seconds,
        rate: args.rate,
        defence: args.defence,
        control: true,
        seed: args.seed,
    };
    let folder = tempfile::tempdir()?;
    let report = Box::pin(run(folder.path(), &options)).await?;
    if args.json {
        output::line(&serde_json::to_string(&report)?);
    } else {
        print(&report);
    }
    ensure!(report.holds(2.0), "honest turns failed, or the slowest took twice as long as without an attack");
    Ok(())
}

/// Runs all of it in a folder.
///
/// # Errors
/// When a process does not start, or the quiet part fails.
pub async fn run(folder: &Path, options: &FloodOptions) -> anyhow::Result<FloodReport> {
    let defence = if options.defence { "true" } else { "false" };
    let extra = ["--count-private", "true", "--defence", defence, "--listen", "/ip6/::1/tcp/0"];
    let node_options = NodeOptions {
        engine: EngineChoice::Echo,
        shards: 10,
        store_faults: None,
        context_tokens: None,
        echo_delay_ms: 2,
        model_dir: None,
        extra: extra.map(str::to_owned).to_vec(),
    };
    let network = Network::start(folder, 1, node_options).await?;
    let mut clients = Vec::with_capacity(CLIENTS);
    for number in 0..CLIENTS {
        clients.push(Arc::new(open_client(&network, folder, number).await?));
    }
    output::note("warming up, then without an attack");
    let warm = honest(&clients, Until::Turns(WARM_UP)).await?;
    ensure!(warm.failed == 0, "honest turns fail without an attack");
    let quiet = honest(&clients, Until::Passed(Duration::from_secs(options.seconds))).await?;
    let mut parts = BTreeMap::new();
    for attack in [Attack::Spin, Attack::Forged, Attack::Signed] {
        if attack == Attack::Spin && !options.control {
            continue;
        }
        output::note(&format!("under attack: {}", attack.name()));
        let part = under_attack(folder, &network, &clients, (attack, &quiet), options).await?;
        parts.insert(attack.name(), part);
    }
    for client in clients {
        client.shutdown(Duration::from_secs(5)).await;
    }
    network.stop().await?;
    let build = if cfg!(debug_assertions) { "debug" } else { "release" };
    Ok(FloodReport { build, defence: options.defence, quiet, parts })
}

async fn open_client(network: &Network, folder: &Path, number: usize) -> anyhow::Result<Client> {
    let (url, home) = (network.store_url(), folder.join(format!("client-{number}")));
    let mut config = ClientConfig::with_http(Some(&home), url, url, Some(url), network.options.shards)?;
    let node = network.running().next().context("the node runs")?;
    let others = node.addresses.iter().filter(|address| address.to_string().starts_with("/ip6/"));
    config.bootstrap = others.cloned().collect();
    ensure!(!config.bootstrap.is_empty(), "the node listens on no IPv6 address");
    Ok(Client::open(config).await?)
}

async fn under_attack(
    folder: &Path,
    network: &Network,
    clients: &[Arc<Client>],
    (attack, quiet): (Attack, &Honest),
    options: &FloodOptions,
) -> anyhow::Result<Part> {
    let node = network.running().next().context("the node runs")?;
    let pid = node.process.id().context("the node runs")?;
    let target = node.addresses.first().context("the node has an address")?.to_string();
    let mut args: Vec<String> = vec!["flood-attack".into(), attack.name().into()];
    for (flag, value) in [
        ("--target", target),
        ("--node", node.node.to_string()),
        ("--rate", options.rate.to_string()),
        ("--seconds", options.seconds.to_string()),
        ("--seed", options.seed.to_string()),
    ] {
        args.extend([flag.to_owned(), value]);
    }
    let mut attacker = Process::start(attack.name(), "baton-testnet", &args, folder).await?;
    let before = (Instant::now(), cpu_seconds(pid)?, memory_mib(pid, "VmRSS")?);
    let until = Until::Passed(Duration::from_secs(options.seconds));
    let seen = honest(clients, until).await?;
    let spent = cpu_seconds(pid)? - before.1;
    let node_cpus = spent / before.0.elapsed().as_secs_f64();
    let done = attacker.wait_event("done", Duration::from_secs(60)).await?;
    let attacker_report: AttackReport = serde_json::from_value(done["report"].clone())?;
    attacker.kill().await?;
    let rss_mib = [before.2, memory_mib(pid, "VmRSS")?, memory_mib(pid, "VmHWM")?];
    let p99_ratio = seen.turn_ms.p99 / quiet.turn_ms.p99;
    Ok(Part { honest: seen, p99_ratio, attacker: attacker_report, node_cpus, rss_mib })
}

/// How long honest clients go on.
#[derive(Clone, Copy)]
enum Until {
    Turns(usize),
    Passed(Duration),
}

async fn honest(clients: &[Arc<Client>], until: Until) -> anyhow::Result<Honest> {
    let mut tasks = JoinSet::new();
    for (number, client) in clients.iter().enumerate() {
        // Not all at the same moment: their turns would wait for each other.
        let offset = TURN_EVERY * u32::try_from(number)? / u32::try_from(clients.len())?;
        tasks.spawn(talk(client.clone(), offset, until));
    }
    let (mut times, mut failed, mut again) = (Vec::new(), 0, BTreeMap::new());
    while let Some(talked) = tasks.join_next().await {
        let (turns, reasons) = talked??;
        reasons.into_iter().for_each(|reason| *again.entry(reason).or_default() += 1);
        for (milliseconds, answered) in turns {
            times.push(milliseconds);
            failed += usize::from(!answered);
        }
    }
    ensure!(!times.is_empty(), "no honest turn was begun");
    Ok(Honest { turns: times.len() - failed, failed, turn_ms: Quantiles::of(&times), again })
}

/// How long each turn took and whether it was answered, and why attempts failed on the way.
type Talked = (Vec<(f64, bool)>, Vec<String>);

/// One honest client.
async fn talk(client: Arc<Client>, offset: Duration, until: Until) -> anyhow::Result<Talked> {
    tokio::time::sleep(offset).await;
    let began = Instant::now();
    let (mut times, mut again) = (Vec::new(), Vec::new());
    let mut session = None;
    let goes_on = |turns: usize| match until {
        Until::Turns(most) => turns < most,
        Until::Passed(span) => began.elapsed() < span,
    };
    while goes_on(times.len()) {
        let begun = Instant::now();
        if times.len().is_multiple_of(SESSION_TURNS) {
            session = Some(client.new_session(NewSession::default()).await?);
        }
        let id = session.context("a session was begun")?;
        let text = format!("honest words of turn {}", times.len());
        let input = TurnInput { allow_echo: true, max_output_tokens: 16, ..TurnInput::user(text) };
        let turn = client.turn(id, input, |event: TurnEvent| {
            if let TurnEvent::AttemptFailed { code, reason, .. } = event {
                again.push(code.map_or(reason, |code| code.name().to_owned()));
            }
        });
        let answered = match tokio::time::timeout(TURN_TIMEOUT, turn).await {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => {
                tracing::warn!(%error, "an honest turn failed");
                false
            }
            Err(_) => false,
        };
        times.push((begun.elapsed().as_secs_f64() * 1000.0, answered));
        if !answered {
            // What is not finished there would be finished first.
            session = Some(client.new_session(NewSession::default()).await?);
        }
        tokio::time::sleep(TURN_EVERY.saturating_sub(begun.elapsed())).await;
    }
    Ok((times, again))
}

/// Processor time of a process so far (fields 14 and 15 of `/proc/PID/stat`, counted after its name).
fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = stat.rsplit_once(')').context("a process has a name")?;
    let ticks = rest.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    Ok(ticks.sum::<f64>() / TICKS_PER_SECOND)
}

fn memory_mib(pid: u32, field: &str) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    Ok((kib.context("the system says how much memory a process has")? / 102.4).round() / 10.0)
}

fn print(report: &FloodReport) {
    let row = |name: &str, honest: &Honest| {
        format!(
            "{name:<8} {:>5} turns, {} failed, {:>8.1} ms half, {:>8.1} ms p99",
            honest.turns, honest.failed, honest.turn_ms.p50, honest.turn_ms.p99
        )
    };
    output::line(&format!("{} build, defence {}", report.build, if report.defence { "on" } else { "off" }));
    output::line(&row("quiet", &report.quiet));
    for (name, part) in &report.parts {
        output::line(&format!("{}, {:.2} times as long", row(name, &part.honest), part.p99_ratio));
        let attacker = &part.attacker;
        output::line(&format!(
            "         tried {:.0} a second, {:.0} reached the node; attacker {:.2} processors, node {:.2}",
            attacker.tried_per_second, attacker.reached_per_second, attacker.cpus, part.node_cpus
        ));
        let [before, after, most] = part.rss_mib;
        output::line(&format!("         node memory {before} MiB before, {after} after, {most} at most"));
        output::line(&format!("         answers {:?}", attacker.answers));
        if !part.honest.again.is_empty() {
            output::line(&format!("         honest attempts that failed: {:?}", part.honest.again));
        }
    }
}

/// What both sides of the attacker's pipe agree on.
#[derive(Debug, Serialize, Deserialize)]
struct Done {
    event: String,
    report: AttackReport,
}
