//! `baton-testnet flood`: the service that honest clients get while one node is flooded. The requests are
//! forged, or signed ones of new sessions and identities, from one subnet and from many. Two further attacks send packets
//! over WebRTC that no browser sends.
//!
//! Node, store and attacker are processes. The attacker is one thread of the lowest priority, since on one
//! machine it competes for the processors, unlike an attacker over a network. To measure that cost alone, a
//! burner uses as much processor time and sends nothing. The attacker connects as a proxy of the node does: each
//! connection names its client, and each attack has clients of its own network 10.x.0.0/16. Honest clients share ::1.
//! Quotas are the defaults.
//!
//! Each session has an identity of its own, so a node cannot tell a regular user without a grant from a
//! stranger. Under rightly signed turns from hundreds of subnets, such a user's subnet gets a share like any
//! other. In that part, the honest clients therefore hold a grant.

pub mod attack;
pub mod clients;
pub mod relayer;
pub(crate) mod relayer_attack;
mod shots;
pub mod watch;
mod webrtc;
mod wire;

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use baton_client::Client;
use baton_keys::SecretSigningKey;
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::{
    network::{EngineChoice, Network, NodeOptions},
    output,
    process::Process,
};
use attack::{Attack, AttackReport};
use clients::{Honest, Until, granted_quota, honest, open_client};
use watch::{Memory, NodeCounts, NodeWatch};

/// Arguments of `baton-testnet flood`.
#[derive(Debug, Args)]
pub(crate) struct FloodArgs {
    /// Print the report as one JSON line
    #[arg(long)]
    pub(crate) json: bool,
    /// Attack a relayer instead of a node: its HTTP and its sealed endpoint
    #[arg(long)]
    pub(crate) relayer: bool,
    /// Seconds of each part: quiet, six attacks, and the attacker's processor time alone
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=900))]
    pub(crate) seconds: u64,
    /// Attacks to run, separated by commas; the quiet part always runs
    #[arg(long, value_delimiter = ',', value_name = "PART",
        value_parser = ["forged", "signed", "forged-many", "signed-many", "tiny-pieces", "empty-chunks", "burner",
            "slow-bodies", "idle", "fresh-keys", "idle-streams"])]
    pub(crate) parts: Vec<String>,
    /// Requests a second that the attacker offers
    #[arg(long, default_value_t = 5000)]
    pub(crate) rate: u32,
    /// Subnets in the two attacks from many subnets; 0 skips these attacks
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u16).range(0..=500))]
    pub(crate) subnets: u16,
    /// Enable the node's defence
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub(crate) defence: bool,
    /// Seed of the attacker's sessions and identities
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Turns of each client before the measurement, so that the node knows the client.
const WARM_UP: usize = 3;
/// Requests of one identity in the signed attack from many subnets: a peer's limit in a second. From one
/// subnet, each request has its own identity; forged requests share an identity until it is shut out.
const EACH_OF_MANY: u64 = 20;
/// Parts whose latency is reported but not judged. Under signed requests from hundreds of subnets, each
/// within its share, the node serves as many turns as it can, ten times the honest ones. Any set of clients
/// may load it like that.
const UNJUDGED: [&str; 3] = ["quiet", "burner", "signed-many"];
/// A network of no machine (RFC 5737): this machine is none of the node's own.
pub(crate) const NO_MACHINE: &str = "192.0.2.0/24";
/// Megabytes of blobs that the node caches in memory: so few that the cache is full before its memory is
/// measured.
const CACHE_MB: &str = "4";
/// How much more memory the node may ever have than in the quiet part, in MiB: its tables fill once, turns wait for
/// the store, and its allocator retains memory.
pub const MOST_ABOVE_QUIET_MIB: f64 = 96.0;
/// Allowed growth of the node's memory during a part, in MiB.
pub const MOST_GROWTH_MIB: f64 = 24.0;
/// Allowed part of that growth after the first third of a part.
pub const MOST_LATE_GROWTH_MIB: f64 = 12.0;
/// The part whose turns of many peers wait for the store: on a busy machine, what fills once still fills for half a
/// minute.
const FILLS_SLOWLY: &str = "signed-many";
/// The part in which the honest clients hold grants.
const SHARED_BY_SUBNET: &str = "signed-many";
/// Seconds of that part from which on its growth is judged.
const FILLED_AFTER_S: u64 = 60;

/// Options of a flood.
#[derive(Debug, Clone)]
pub struct FloodOptions {
    /// Length of each part.
    pub seconds: u64,
    /// Requests a second that the attacker offers.
    pub rate: u32,
    /// Whether the node's defence is on.
    pub defence: bool,
    /// Honest clients.
    pub clients: usize,
    /// Subnets of the attacks from many; 0 leaves them out.
    pub subnets: u16,
    /// Names of the parts besides the quiet one; all if empty.
    pub parts: Vec<String>,
    /// Seed of the attacker's sessions.
    pub seed: u64,
}

/// Results of one part.
#[derive(Debug, Clone, Serialize)]
pub struct Part {
    /// Results of the honest clients.
    pub honest: Honest,
    /// Their 99th percentile over that of the quiet part.
    pub p99_over_quiet: f64,
    /// Their 99th percentile over that of the burner's part; `None` without a burner, and for the burner
    /// itself.
    pub p99_over_burner: Option<f64>,
    /// The attacker's report; empty in the quiet part.
    pub attacker: AttackReport,
    /// The node's counters.
    pub node: NodeCounts,
    /// Processors that the node used, on average.
    pub node_cpus: f64,
    /// The node's resident memory.
    pub node_mib: Memory,
    /// The machine's load average at the end of the part, including all other programs.
    pub load_average: f64,
}

/// The result.
#[derive(Debug, Clone, Serialize)]
pub struct FloodReport {
    /// How the programs were built.
    pub build: &'static str,
    /// Processors of the machine, shared with the attacker.
    pub processors: usize,
    /// Length of each part.
    pub seconds: u64,
    /// Whether the node's defence was on.
    pub defence: bool,
    /// By name: `quiet`, `forged`, `signed`, `forged-many`, `signed-many`, `tiny-pieces`, `empty-chunks`, `burner`.
    pub parts: BTreeMap<&'static str, Part>,
    /// Violations other than slowness; empty if the defence held.
    pub breaches: Vec<String>,
    /// Parts in which honest clients waited too long.
    pub slow: Vec<String>,
}

/// An attack of the plan.
#[derive(Debug, Clone, Copy)]
struct Wave {
    name: &'static str,
    attack: Attack,
    /// Second byte of its clients' addresses, so that each attack has unused quotas.
    network: u8,
    subnets: usize,
    each: u64,
}

fn waves(options: &FloodOptions) -> Vec<Wave> {
    let many = usize::from(options.subnets);
    let wave = |name, attack, network, subnets, each| Wave { name, attack, network, subnets, each };
    let mut waves = vec![
        wave("forged", Attack::Forged, 1, 1, u64::MAX),
        wave("signed", Attack::Signed, 2, 1, 1),
        wave("forged-many", Attack::Forged, 3, many, u64::MAX),
        wave("signed-many", Attack::Signed, 4, many, EACH_OF_MANY),
        wave("tiny-pieces", Attack::TinyPieces, 0, 1, 0),
        wave("empty-chunks", Attack::EmptyChunks, 0, 1, 0),
    ];
    waves.retain(|wave| wave.subnets > 0 && options.has(wave.name));
    waves
}

impl FloodOptions {
    fn has(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|name| name == part)
    }
}

impl FloodReport {
    /// Finds violations in the counts. None of them depends on the machine's speed.
    fn find_breaches(&mut self, subnets: u16) {
        let Self { parts, breaches, seconds, .. } = self;
        let quiet_mib = parts.get("quiet").map_or(0.0, |quiet| quiet.node_mib.most);
        let mut breach = |holds: bool, text: String| {
            if !holds {
                breaches.push(text);
            }
        };
        for (name, part) in parts.iter() {
            let honest = &part.honest;
            breach(honest.failed == 0, format!("{name}: {} honest turns failed", honest.failed));
            let Memory { most, grew, grew_late, .. } = part.node_mib;
            let text =
                format!("{name}: the node's memory reached {most} MiB, and {quiet_mib} in the quiet part");
            breach(most - quiet_mib <= MOST_ABOVE_QUIET_MIB, text);
            if *name == FILLS_SLOWLY && *seconds < FILLED_AFTER_S {
                continue;
            }
            breach(grew <= MOST_GROWTH_MIB, format!("{name}: the node's memory grew by {grew} MiB"));
            let text =
                format!("{name}: the node's memory still grew by {grew_late} MiB after a third of the time");
            breach(grew_late <= MOST_LATE_GROWTH_MIB, text);
        }
        // A minute's burst, and the refill during the part and a few seconds more.
        let share = |a_minute: u64| a_minute + a_minute * (*seconds + 5) / 60;
        for name in ["forged", "forged-many"] {
            let Some(Part { node, attacker, .. }) = parts.get(name) else { continue };
            let at_node = per_part(attacker.at_node_per_second, *seconds);
            let verified = node.refused_as("BadSignature");
            let text = format!("{name}: {verified} signatures were verified of {at_node} requests");
            // Each forged request costs its subnet more turns than the one before: after some fifty, sixteen
            // turns each.
            let each = 50 + share(600).saturating_sub(600).div_ceil(16);
            let most = if name == "forged" { each } else { u64::from(subnets) * each };
            breach(verified <= most, text);
        }
        if let Some(Part { node, honest, attacker, .. }) = parts.get("signed") {
            let (share, most) = (share(600), share(120));
            let served = node.turns_served.saturating_sub(honest.turns as u64);
            let text = format!("signed: one subnet had {served} turns, and its share is {share}");
            breach(served <= share, text);
            let identities = attacker.identities;
            let text =
                format!("signed: {identities} identities of one subnet were let in, and its share is {most}");
            breach(identities <= most, text);
        }
    }

    fn find_slowness(&mut self, most: f64) {
        for (name, part) in &mut self.parts {
            let ratio = part.p99_over_burner.unwrap_or(part.p99_over_quiet);
            if !UNJUDGED.contains(name) && ratio >= most {
                self.slow.push(format!("{name}: the slowest honest turns took {ratio:.2} times as long"));
            }
        }
    }
}

fn per_part(per_second: f64, seconds: u64) -> u64 {
    Duration::try_from_secs_f64(per_second.max(0.0)).map_or(0, |count| count.as_secs() * seconds)
}

/// Runs the command.
pub(crate) async fn command(args: FloodArgs) -> anyhow::Result<()> {
    let options = FloodOptions {
        seconds: args.seconds,
        rate: args.rate,
        defence: args.defence,
        clients: 5,
        subnets: args.subnets,
        parts: args.parts,
        seed: args.seed,
    };
    let folder = tempfile::tempdir()?;
    if args.relayer {
        return relayer_command(folder.path(), &options, args.json).await;
    }
    let report = Box::pin(run(folder.path(), &options)).await?;
    if args.json {
        output::line(&serde_json::to_string(&report)?);
    } else {
        print(&report);
    }
    let wrong: Vec<&str> = report.breaches.iter().chain(&report.slow).map(String::as_str).collect();
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    Ok(())
}

async fn relayer_command(folder: &Path, options: &FloodOptions, json: bool) -> anyhow::Result<()> {
    let report = Box::pin(relayer::run(folder, options)).await?;
    if json {
        output::line(&serde_json::to_string(&report)?);
    } else {
        relayer::print(&report);
    }
    let wrong: Vec<&str> = report.breaches.iter().chain(&report.slow).map(String::as_str).collect();
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    Ok(())
}

/// Runs all parts in a folder.
///
/// # Errors
/// When a process does not start, or the warm-up fails.
pub async fn run(folder: &Path, options: &FloodOptions) -> anyhow::Result<FloodReport> {
    let defence = if options.defence { "true" } else { "false" };
    let issuer = SecretSigningKey::generate();
    let issuers = issuer.public_key().to_string();
    let extra = [
        ("--grant-issuers", issuers.as_str()),
        ("--proxies", "127.128.0.0/9"),
        ("--own-networks", NO_MACHINE),
        ("--defence", defence),
        ("--listen", "/ip6/::1/tcp/0"),
        ("--listen", "/ip4/127.0.0.1/udp/0/webrtc-direct"),
        ("--cache-mb", CACHE_MB),
    ];
    let node_options = NodeOptions {
        engine: EngineChoice::Echo,
        shards: 10,
        store_faults: None,
        context_tokens: None,
        echo_delay_ms: 2,
        model_dir: None,
        extra: extra.into_iter().flat_map(<[&str; 2]>::from).map(str::to_owned).collect(),
    };
    let network = Network::start(folder, 1, node_options).await?;
    let (mut clients, mut granted) = (Vec::new(), Vec::new());
    for number in 0..options.clients {
        clients.push(Arc::new(open_client(&network, folder, number, None).await?));
        let quota = Some(granted_quota(&issuer)?);
        granted.push(Arc::new(open_client(&network, folder, options.clients + number, quota).await?));
    }
    output::note("warming up");
    for clients in [&clients, &granted] {
        let warm = honest(clients, Until::Turns(WARM_UP)).await?;
        ensure!(warm.failed == 0, "honest turns fail without an attack: {}", warm.failures.join("; "));
    }
    let bench = Bench { folder, network: &network, clients: &clients, granted: &granted, options };
    let mut parts = BTreeMap::from([("quiet", bench.part(None, 0.0).await?)]);
    for wave in waves(options) {
        parts.insert(wave.name, bench.part(Some(wave), 0.0).await?);
    }
    if options.has("burner") {
        // The least processor time of an attack, so that no attack is compared with a burner that used more.
        let attacks = parts.iter().filter(|(name, _)| **name != "quiet");
        let duty = attacks.map(|(_, part)| part.attacker.cpus).fold(1.0, f64::min);
        let wave = Wave { name: "burner", attack: Attack::Burner, network: 0, subnets: 1, each: 0 };
        parts.insert(wave.name, bench.part(Some(wave), duty).await?);
    }
    for client in clients.into_iter().chain(granted) {
        client.shutdown(Duration::from_secs(5)).await;
    }
    network.stop().await?;
    let (quiet, busy) = (p99(&parts, "quiet"), p99(&parts, "burner"));
    for (name, part) in &mut parts {
        let p99 = part.honest.turn_ms.p99;
        part.p99_over_quiet = quiet.map_or(1.0, |quiet| p99 / quiet);
        part.p99_over_burner = busy.filter(|_| *name != "burner").map(|busy| p99 / busy);
    }
    let mut report = FloodReport {
        build: if cfg!(debug_assertions) { "debug" } else { "release" },
        processors: std::thread::available_parallelism().map_or(0, Into::into),
        seconds: options.seconds,
        defence: options.defence,
        parts,
        breaches: Vec::new(),
        slow: Vec::new(),
    };
    report.find_breaches(options.subnets);
    report.find_slowness(2.0);
    Ok(report)
}

fn p99(parts: &BTreeMap<&str, Part>, name: &str) -> Option<f64> {
    parts.get(name).map(|part| part.honest.turn_ms.p99)
}

/// The shared state of all parts.
struct Bench<'a> {
    folder: &'a Path,
    network: &'a Network,
    clients: &'a [Arc<Client>],
    /// The same number of clients with grants.
    granted: &'a [Arc<Client>],
    options: &'a FloodOptions,
}

impl Bench<'_> {
    async fn part(&self, wave: Option<Wave>, duty: f64) -> anyhow::Result<Part> {
        output::note(wave.map_or("quiet", |wave| wave.name));
        let node = self.network.running().next().context("the node runs")?;
        let counts = NodeCounts::of(node).await?;
        let mut attacker = match wave {
            Some(wave) => Some(self.attacker(wave, duty).await?),
            None => None,
        };
        let watch = NodeWatch::begin(node)?;
        let until = Until::Passed(Duration::from_secs(self.options.seconds));
        let is_shared = wave.is_some_and(|wave| wave.name == SHARED_BY_SUBNET);
        let clients = if is_shared { self.granted } else { self.clients };
        let seen = honest(clients, until).await?;
        let (node_mib, node_cpus) = watch.end().await?;
        let mut attacked = AttackReport::default();
        if let Some(attacker) = &mut attacker {
            let done = attacker.wait_event("done", Duration::from_secs(60)).await?;
            attacked = serde_json::from_value(done["report"].clone())?;
            attacker.kill().await?;
        }
        Ok(Part {
            honest: seen,
            p99_over_quiet: 1.0,
            p99_over_burner: None,
            attacker: attacked,
            node: NodeCounts::of(node).await?.since(&counts),
            node_cpus,
            node_mib,
            load_average: watch::load_average(),
        })
    }

    async fn attacker(&self, wave: Wave, duty: f64) -> anyhow::Result<Process> {
        let node = self.network.running().next().context("the node runs")?;
        let mut addresses = node.addresses.iter().map(ToString::to_string);
        let protocol = if wave.attack.shape().is_some() { "/webrtc-direct" } else { "/tcp/" };
        let target = addresses.find(|address| address.starts_with("/ip4/") && address.contains(protocol));
        let target = target.with_context(|| format!("the node has an address with {protocol}"))?;
        let mut args: Vec<String> = vec!["flood-attack".into(), wave.attack.name().into()];
        for (flag, value) in [
            ("--target", target),
            ("--node", node.node.to_string()),
            ("--rate", self.options.rate.to_string()),
            ("--seconds", self.options.seconds.to_string()),
            ("--seed", self.options.seed.to_string()),
            ("--network", wave.network.to_string()),
            ("--subnets", wave.subnets.to_string()),
            ("--each", wave.each.to_string()),
            ("--duty", duty.to_string()),
        ] {
            args.extend([flag.to_owned(), value]);
        }
        Process::start(wave.name, "baton-testnet", &args, self.folder).await
    }
}

fn print(report: &FloodReport) {
    let defence = if report.defence { "on" } else { "off" };
    output::line(&format!("{} build, defence {defence}, {} processors", report.build, report.processors));
    for (name, part) in &report.parts {
        let honest = &part.honest;
        output::line(&format!(
            "{name:<12} {:>5} honest turns, {} failed, {:>7.1} ms half, {:>7.1} ms p99, {:.2} of quiet, {} of the burner's",
            honest.turns,
            honest.failed,
            honest.turn_ms.p50,
            honest.turn_ms.p99,
            part.p99_over_quiet,
            part.p99_over_burner.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
        ));
        let attacker = &part.attacker;
        output::line(&format!(
            "             a second: {:.0} offered, {:.0} at the node ({:.0} refused at the door, {:.0} in the handshake, {:.0} \
             sent), {:.0} not made",
            attacker.offered_per_second,
            attacker.at_node_per_second,
            attacker.refused_at_door_per_second,
            attacker.refused_in_handshake_per_second,
            attacker.sent_per_second,
            attacker.behind_per_second,
        ));
        let memory = &part.node_mib;
        output::line(&format!(
            "             processors: attacker {:.2}, node {:.2}, load {:.1}; node's memory {:.1} MiB at most, grew {:.1}",
            attacker.cpus, part.node_cpus, part.load_average, memory.most, memory.grew
        ));
        output::line(&format!("             node: {:?}", part.node));
        output::line(&format!("             answers: {:?}", attacker.answers));
        let slowest = honest.slowest.iter().map(|turn| format!("{:.0} ms at {:.1} s", turn.ms, turn.at_s));
        output::line(&format!("             slowest: {}", slowest.collect::<Vec<_>>().join(", ")));
        if !honest.again.is_empty() {
            output::line(&format!("             honest attempts that failed: {:?}", honest.again));
        }
    }
}

/// The event on the attacker's output pipe.
#[derive(Debug, Serialize, Deserialize)]
struct AttackEvent {
    event: String,
    report: AttackReport,
}
