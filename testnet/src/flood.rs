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

mod attack;
pub(crate) mod attacker;
pub mod clients;
pub mod relayer;
mod relayer_attack;
pub mod watch;
mod webrtc;
mod wire;

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use baton_client::Client;
use baton_keys::SecretSigningKey;
use clap::Args;
use serde::Serialize;

use crate::{
    network::{Network, NodeOptions},
    output,
    trial::{self, BUILD, TrialOptions, TrialReport},
};
use attack::{AttackKind, NodeAttack, Wave};
use attacker::{AttackPlan, AttackReport, Attacker, IDENTITIES, REFUSED_AT_DOOR, REFUSED_IN_HANDSHAKE, SENT};
use clients::{Honest, Until, granted_quota, honest, open_client};
use watch::{MemoryUse, NodeCounts, NodeWatch};
use webrtc::PacketShape;

/// Options of a flood.
#[derive(Clone, Debug, Args)]
pub struct FloodOptions {
    #[command(flatten)]
    #[expect(missing_docs, reason = "a doc comment would be a heading of the help")]
    pub trial: TrialOptions,
    /// Attack a relayer instead of a node: its HTTP and its sealed endpoint
    #[arg(long)]
    pub relayer: bool,
    /// Seconds of each part: quiet, six attacks, and the attacker's processor time alone
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=900))]
    pub seconds: u64,
    /// Attacks to run, separated by commas; the quiet part always runs
    #[arg(long, value_delimiter = ',', value_name = "PART",
        value_parser = ["forged", "signed", "forged-many", "signed-many", "tiny-pieces", "empty-chunks", "burner",
            "slow-bodies", "idle", "fresh-keys", "idle-streams"])]
    pub parts: Vec<String>,
    /// Requests a second that the attacker offers
    #[arg(long, default_value_t = 5000)]
    pub rate: u32,
    /// Subnets in the two attacks from many subnets; 0 skips these attacks
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u16).range(0..=500))]
    pub subnets: u16,
    /// Enable the node's defence
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub defence: bool,
    /// Honest clients.
    #[arg(skip = 5_usize)]
    pub clients: usize,
}

impl Default for FloodOptions {
    fn default() -> Self {
        trial::defaults()
    }
}

/// Turns of each client before the measurement, so that the node knows the client.
const WARM_UP: usize = 3;
/// Requests of one identity in the signed attack from many subnets. From one
/// subnet, each request has its own identity; forged requests share an identity until it is shut out.
const EACH_OF_MANY: u64 = 20;
/// Parts whose latency is reported but not judged. Under signed requests from hundreds of subnets, each
/// within its share, the node serves as many turns as it can, ten times the honest ones. Any set of clients
/// may load it like that.
const UNJUDGED: [&str; 3] = ["quiet", "burner", "signed-many"];
/// A 99th percentile is slow from this multiple of the one without an attack on.
const SLOW_RATIO: f64 = 2.0;
/// A network of no machine (RFC 5737): this machine is none of the node's own.
const NO_MACHINE: &str = "192.0.2.0/24";
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

/// Results of one part.
#[derive(Debug, Clone, Serialize)]
pub struct FloodPart {
    /// Results of the honest clients.
    pub honest: Honest,
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
    pub node_mib: MemoryUse,
    /// The machine's load average at the end of the part, including all other programs.
    pub load_average: f64,
}

/// The result.
#[derive(Debug, Clone, Serialize)]
pub struct FloodReport<Part = FloodPart> {
    /// How the programs were built.
    pub build: &'static str,
    /// Processors of the machine, shared with the attacker.
    pub processors: usize,
    /// Length of each part.
    pub seconds: u64,
    /// Whether the node's defence was on.
    pub defence: bool,
    /// By name: `quiet`, and the attacks.
    pub parts: BTreeMap<&'static str, Part>,
    /// Violations other than slowness; empty if the defence held.
    pub breaches: Vec<String>,
    /// Parts in which honest clients waited too long.
    pub slow: Vec<String>,
}

/// The attacks of the flood, each with the name of its part.
fn waves(options: &FloodOptions) -> Vec<(&'static str, Wave)> {
    let many = usize::from(options.subnets);
    let wave = |kind, network, subnets, each| Wave { kind, network, subnets, each };
    let mut waves = vec![
        ("forged", wave(AttackKind::Forged, 1, 1, u64::MAX)),
        ("signed", wave(AttackKind::Signed, 2, 1, 1)),
        ("forged-many", wave(AttackKind::Forged, 3, many, u64::MAX)),
        ("signed-many", wave(AttackKind::Signed, 4, many, EACH_OF_MANY)),
        ("tiny-pieces", wave(AttackKind::Packets(PacketShape::TinyPieces), 0, 1, 0)),
        ("empty-chunks", wave(AttackKind::Packets(PacketShape::EmptyChunks), 0, 1, 0)),
        ("burner", wave(AttackKind::Burner, 0, 1, 0)),
    ];
    waves.retain(|(name, wave)| wave.subnets > 0 && options.has(name));
    waves
}

impl FloodOptions {
    fn has(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|name| name == part)
    }
}

impl<Part> FloodReport<Part> {
    fn of(options: &FloodOptions, parts: BTreeMap<&'static str, Part>) -> Self {
        Self {
            build: BUILD,
            processors: std::thread::available_parallelism().map_or(0, Into::into),
            seconds: options.seconds,
            defence: options.defence,
            parts,
            breaches: Vec::new(),
            slow: Vec::new(),
        }
    }
}

impl<Part: Serialize> TrialReport for FloodReport<Part> {
    fn broken(&self) -> usize {
        self.breaches.len() + self.slow.len()
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
            let MemoryUse { most, grew, grew_late, .. } = part.node_mib;
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
            let Some(FloodPart { node, attacker, .. }) = parts.get(name) else { continue };
            let at_node: u64 =
                [SENT, REFUSED_AT_DOOR, REFUSED_IN_HANDSHAKE].map(|what| attacker.of(what)).iter().sum();
            let verified = node.refused_as("BadSignature");
            let text = format!("{name}: {verified} signatures were verified of {at_node} requests");
            // Each forged request costs its subnet more turns than the one before: after some fifty, sixteen
            // turns each.
            let each = 50 + share(600).saturating_sub(600).div_ceil(16);
            let most = if name == "forged" { each } else { u64::from(subnets) * each };
            breach(verified <= most, text);
        }
        if let Some(FloodPart { node, honest, attacker, .. }) = parts.get("signed") {
            let (share, most) = (share(600), share(120));
            let served = node.turns_served.saturating_sub(honest.turns as u64);
            let text = format!("signed: one subnet had {served} turns, and its share is {share}");
            breach(served <= share, text);
            let identities = attacker.of(IDENTITIES);
            let text =
                format!("signed: {identities} identities of one subnet were let in, and its share is {most}");
            breach(identities <= most, text);
        }
    }

    fn find_slowness(&mut self) {
        for (name, part) in &mut self.parts {
            let ratio = part.p99_over_burner.unwrap_or(part.honest.p99_over_quiet);
            if !UNJUDGED.contains(name) && ratio >= SLOW_RATIO {
                self.slow.push(format!("{name}: the slowest honest turns took {ratio:.2} times as long"));
            }
        }
    }
}

/// Runs all parts in a folder.
///
/// # Errors
/// When a process does not start, or the warm-up fails.
pub async fn run(folder: &Path, options: &FloodOptions) -> anyhow::Result<FloodReport> {
    let issuer = SecretSigningKey::generate();
    let issuers = issuer.public_key().to_string();
    // Without its defence, the node counts nobody.
    let own = if options.defence { NO_MACHINE } else { "0.0.0.0/0,::/0" };
    let access = ["--grant-issuers", &issuers, "--proxies", "127.128.0.0/9", "--own-networks", own];
    let listen = ["--listen", "/ip6/::1/tcp/0", "--listen", "/ip4/127.0.0.1/udp/0/webrtc-direct"];
    let node_options = NodeOptions { echo_delay_ms: 2, ..NodeOptions::echo() };
    let node_options = node_options.with(&access).with(&listen);
    let node_options = node_options.with(&["--cache-mb", CACHE_MB]);
    let network = Network::start(folder, 1, node_options).await?;
    let (mut clients, mut granted) = (Vec::new(), Vec::new());
    for number in 0..options.clients {
        clients.push(Arc::new(open_client(&network, number, None).await?));
        let quota = Some(granted_quota(&issuer)?);
        granted.push(Arc::new(open_client(&network, options.clients + number, quota).await?));
    }
    output::note("warming up");
    for clients in [&clients, &granted] {
        let warm = honest(clients, Until::Turns(WARM_UP)).await?;
        ensure!(warm.failed == 0, "honest turns fail without an attack: {}", warm.failures.join("; "));
    }
    let (seed, mut parts) = (options.trial.seed(), BTreeMap::new());
    let attacks = waves(options).into_iter().map(|(name, wave)| (name, Some(wave)));
    for (name, wave) in std::iter::once(("quiet", None)).chain(attacks) {
        output::note(name);
        // The burner uses the least processor time of an attack, so that no attack is compared with a burner that used
        // more.
        let attacks = parts.iter().filter(|(name, _)| **name != "quiet");
        let duty = attacks.map(|(_, part): (_, &FloodPart)| part.attacker.cpus).fold(1.0, f64::min);
        let clients = if name == SHARED_BY_SUBNET { &granted } else { &clients };
        let attack = wave.map(|wave| attack(&network, wave, options, seed, duty)).transpose()?;
        parts.insert(name, measure(&network, clients, attack, options.seconds).await?);
    }
    for client in clients.into_iter().chain(granted) {
        client.shutdown(Duration::from_secs(5)).await;
    }
    network.stop().await?;
    let p99 = |name: &str| parts.get(name).map(|part| part.honest.turn_ms.p99);
    let (quiet, busy) = (p99("quiet"), p99("burner"));
    for (name, part) in &mut parts {
        let p99 = part.honest.turn_ms.p99;
        part.honest.p99_over_quiet = quiet.map_or(1.0, |quiet| p99 / quiet);
        part.p99_over_burner = busy.filter(|_| *name != "burner").map(|busy| p99 / busy);
    }
    let mut report = FloodReport::of(options, parts);
    report.find_breaches(options.subnets);
    report.find_slowness();
    Ok(report)
}

/// An attack on the node, with a seed and, of the burner, a share of a processor.
fn attack(
    network: &Network,
    wave: Wave,
    options: &FloodOptions,
    seed: u64,
    duty: f64,
) -> anyhow::Result<NodeAttack> {
    let node = network.running().next().context("the node runs")?;
    let protocol = if matches!(wave.kind, AttackKind::Packets(_)) { "/webrtc-direct" } else { "/tcp/" };
    let is_target = |address: &str| address.starts_with("/ip4/") && address.contains(protocol);
    let target = node.addresses.iter().find(|address| is_target(&address.to_string())).cloned();
    let target = target.with_context(|| format!("the node has an address with {protocol}"))?;
    let (node, rate, seconds) = (node.node, options.rate, options.seconds);
    Ok(NodeAttack { wave, target, node, rate, seconds, seed, duty })
}

/// Runs one part: the honest clients, perhaps under an attack.
async fn measure(
    network: &Network,
    clients: &[Arc<Client>],
    attack: Option<NodeAttack>,
    seconds: u64,
) -> anyhow::Result<FloodPart> {
    let node = network.running().next().context("the node runs")?;
    let admin = node.admin.as_deref().context("the node has an admin port")?;
    let before = watch::metrics(admin).await?;
    let attacker = match attack {
        Some(attack) => Some(Attacker::start(&AttackPlan::Node(attack), &network.folder).await?),
        None => None,
    };
    let watch = NodeWatch::begin(node)?;
    let honest = honest(clients, Until::Passed(Duration::from_secs(seconds))).await?;
    let (node_mib, node_cpus) = watch.end().await?;
    let attacker = match attacker {
        Some(attacker) => attacker.report().await?,
        None => AttackReport::default(),
    };
    Ok(FloodPart {
        honest,
        p99_over_burner: None,
        attacker,
        node: NodeCounts::between(&before, &watch::metrics(admin).await?),
        node_cpus,
        node_mib,
        load_average: watch::load_average(),
    })
}
