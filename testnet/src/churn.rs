//! `baton-testnet churn`: many conversations while nodes come and go, and some of them misbehave.
//!
//! Nodes are processes, killed with SIGKILL and restarted; byzantine nodes are peers in this process
//! ([`crate::byzantine`]). Clients receive the nodes' addresses. The echo engine's answers are known, so each
//! answer is compared word by word, even if several nodes produced it. At the end, each conversation is
//! verified again from the store alone. [`ChurnReport::violations`] lists the violations.

mod chat;
mod check;
mod gaps;
mod nodes;
mod report;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use baton_client::{Client, ClientConfig, Multiaddr, NewSession};
use baton_keys::{files::create_private_folder, secret::random_bytes};
use baton_proto::ids::NodeId;
use clap::Args;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    byzantine::{Behaviour, ByzantineNode, ByzantineOptions, MisbehaviourLog},
    draws::Draws,
    network::{EngineChoice, Network, NodeOptions},
    output,
};
use chat::{LatestEvent, Talk};
use nodes::Deaths;
pub(crate) use nodes::free_ports;
/// The end of the command's help.
pub(crate) const CHURN_HELP: &str = "\
Every other moment one of the nodes is killed (SIGKILL) or started again, except two that are left alone, while clients \
chat without pause on the echo engine. Hostile nodes stall, truncate, equivocate, forge, change history and send garbage. At the \
end every conversation is compared word by word with what was said and what the engine must answer, and verified again from \
the store alone.

Exit code 0: no accepted turn was lost or wrong, every lie was found out by name, and none was accepted.";

/// Arguments of `baton-testnet churn`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ChurnArgs {
    /// Number of nodes, including byzantine ones
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u16).range(3..=64))]
    pub(crate) nodes: u16,
    /// Number of byzantine nodes
    #[arg(long, default_value_t = 4)]
    pub(crate) hostile: u16,
    /// Number of clients, each with its own conversation
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) clients: u16,
    /// Duration of kills and restarts, in seconds
    #[arg(long, default_value_t = 180)]
    pub(crate) seconds: u64,
    /// Time between one kill or restart and the next, in milliseconds
    #[arg(long, default_value_t = 2000, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) every_ms: u64,
    /// Delay of the test engine before each token, in milliseconds
    #[arg(long, default_value_t = 15, value_name = "MS")]
    pub(crate) echo_delay_ms: u64,
    /// Seed of nodes, words and misbehaviour [default: random]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Keep the network's folder here, with the logs
    #[arg(long)]
    pub(crate) keep: Option<PathBuf>,
    /// Print the report as one JSON line
    #[arg(long)]
    pub(crate) json: bool,
}

pub use report::{Breakdown, ChurnReport, MisbehaviourReport, Percentiles};

/// Nodes that are never killed; all others bootstrap with them.
pub const HUB: usize = 2;
/// Shard count of the store, as in Walrus's local testbed.
const SHARDS: u16 = 10;
/// How long a client leaves storing to a turn's author. The default is a minute, but here authors die often.
const AUTHOR_STORES: Duration = Duration::from_secs(5);
/// Time for clients to finish their last turns.
const LAST_TURNS: Duration = Duration::from_secs(60);

/// Options of a churn run.
#[derive(Clone, Debug)]
pub struct ChurnOptions {
    /// Nodes, including byzantine ones.
    pub nodes: usize,
    /// Byzantine nodes. If there are at least as many as behaviours, each node has one behaviour; fewer nodes
    /// take all behaviours in turn.
    pub byzantine: usize,
    /// Clients.
    pub clients: usize,
    /// Duration of the kills and restarts.
    pub time: Duration,
    /// Time between one kill or restart and the next.
    pub every: Duration,
    /// Pause before each token.
    pub echo_delay: Duration,
    /// Fewest and most words of a message.
    pub words: (u64, u64),
    /// Seed of all choices.
    pub seed: u64,
}

impl ChurnOptions {
    /// The default options, with these numbers.
    #[must_use]
    pub fn new(nodes: usize, byzantine: usize, clients: usize, time: Duration) -> Self {
        Self {
            nodes,
            byzantine,
            clients,
            time,
            every: Duration::from_secs(2),
            echo_delay: Duration::from_millis(15),
            words: (20, 100),
            seed: u64::from_le_bytes(random_bytes()),
        }
    }
}

/// Runs the command.
pub(crate) async fn run(args: ChurnArgs) -> anyhow::Result<()> {
    ensure!(
        usize::from(args.nodes) >= HUB + 1 + usize::from(args.hostile),
        "--nodes must be at least {} with --hostile {}: {} are never killed, and somebody must be",
        HUB + 1 + usize::from(args.hostile),
        args.hostile,
        HUB
    );
    let temporary = tempfile::tempdir().context("cannot make a temporary folder")?;
    let folder = args.keep.clone().unwrap_or_else(|| temporary.path().to_owned());
    create_private_folder(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let time = Duration::from_secs(args.seconds);
    let base = ChurnOptions::new(args.nodes.into(), args.hostile.into(), args.clients.into(), time);
    let options = ChurnOptions {
        every: Duration::from_millis(args.every_ms),
        echo_delay: Duration::from_millis(args.echo_delay_ms),
        seed: args.seed.unwrap_or(base.seed),
        ..base
    };
    let report = Box::pin(output::until_signal(churn(&options, &folder))).await?;
    report.print(args.json)?;
    ensure!(report.violations.is_empty(), "{} things did not hold", report.violations.len());
    Ok(())
}

/// Runs the churn in a folder, and returns a report.
///
/// # Errors
/// When nodes, store or clients cannot be started. Violations are in the report.
pub async fn churn(options: &ChurnOptions, folder: &Path) -> anyhow::Result<ChurnReport> {
    output::note(&format!("churn: seed {}", options.seed));
    let begun = Instant::now();
    let log = MisbehaviourLog::default();
    let mut network = start_nodes(options, folder).await?;
    let byzantine_nodes = start_byzantine(options, &network, folder, &log).await?;
    let byzantine: Arc<Vec<NodeId>> = Arc::new(byzantine_nodes.iter().map(|node| node.node).collect());
    let deaths = Deaths::default();
    let talks = talks(options, &network, &byzantine_nodes, (folder, &byzantine, &log, &deaths)).await?;
    output::note(&format!(
        "{} nodes, {} of them hostile; {} clients; {:.1} s to start",
        options.nodes,
        byzantine_nodes.len(),
        talks.len(),
        begun.elapsed().as_secs_f64()
    ));

    let stop = CancellationToken::new();
    let mut chatting = JoinSet::new();
    let latest: Vec<_> = talks.iter().map(|talk| (talk.index, talk.latest.clone())).collect();
    let started = Instant::now();
    for talk in talks {
        chatting.spawn(talk.run(stop.clone()));
    }
    let counts = nodes::kill_and_restart(&mut network, options, &deaths).await?;
    stop.cancel();
    let lasted = started.elapsed();
    let mut talks = Vec::new();
    let finishing = async {
        while let Some(talk) = chatting.join_next().await {
            talks.push(talk.context("a client panicked")??);
        }
        anyhow::Ok(())
    };
    let finished = tokio::time::timeout(LAST_TURNS, finishing).await;
    let mut report = ChurnReport::new(options, lasted, counts);
    match finished {
        Ok(result) => result?,
        Err(_) => {
            let unfinished = |(index, latest): &(usize, LatestEvent)| {
                let latest = latest.unfinished()?;
                Some(format!("client {index} had not finished its turn after {LAST_TURNS:?}: {latest}"))
            };
            latest.iter().filter_map(unfinished).for_each(|violation| report.violation(violation));
        }
    }
    chatting.shutdown().await;
    output::note("verifying every conversation, from the journals and from the store alone");
    check::all(&mut report, &talks, network.store_url()).await?;
    for talk in &mut talks {
        talk.note_detected_claims().await?;
    }
    report.gather(&talks, &log);
    for talk in talks {
        talk.client.shutdown(Duration::from_secs(2)).await;
    }
    for node in byzantine_nodes {
        node.stop().await?;
    }
    network.stop().await?;
    Ok(report)
}

async fn start_nodes(options: &ChurnOptions, folder: &Path) -> anyhow::Result<Network> {
    let node_options = NodeOptions {
        engine: EngineChoice::Echo,
        shards: SHARDS,
        store_faults: None,
        context_tokens: None,
        echo_delay_ms: u64::try_from(options.echo_delay.as_millis())?,
        model_dir: None,
        // The engine serves one turn at a time, so waiting clients receive queue events, and receipts state
        // the wait.
        extra: vec!["--slots".to_owned(), "1".to_owned()],
    };
    let honest = options.nodes.saturating_sub(options.byzantine);
    let mut network = Network::start(folder, 0, node_options).await?;
    network.use_ports(free_ports(honest, &mut Draws::of(options.seed, 1))?);
    network.bootstrap_to(HUB);
    for _ in 0..honest {
        network.add_node(&[]).await?;
    }
    Ok(network)
}

async fn start_byzantine(
    options: &ChurnOptions,
    network: &Network,
    folder: &Path,
    log: &MisbehaviourLog,
) -> anyhow::Result<Vec<ByzantineNode>> {
    let all = Behaviour::ALL;
    let mut started = Vec::new();
    for index in 0..options.byzantine {
        let folder = folder.join(format!("hostile-{index}"));
        let behaviours =
            if options.byzantine < all.len() { all.to_vec() } else { vec![all[index % all.len()]] };
        let begin = usize::try_from(Draws::of(options.seed, 100 + index as u64).below(1000))?;
        let node_options = ByzantineOptions {
            folder: &folder,
            store_url: network.store_url(),
            shards: SHARDS,
            echo_delay: options.echo_delay,
            bootstrap: network.addresses().into_iter().take(HUB).collect(),
            behaviours,
            begin,
            log: log.clone(),
        };
        started.push(ByzantineNode::start(node_options).await?);
    }
    Ok(started)
}

/// Opens the clients, each with a home, a session, and addresses of the hub and of most other nodes.
async fn talks(
    options: &ChurnOptions,
    network: &Network,
    byzantine_nodes: &[ByzantineNode],
    (folder, byzantine, log, deaths): (&Path, &Arc<Vec<NodeId>>, &MisbehaviourLog, &Deaths),
) -> anyhow::Result<Vec<Talk>> {
    let honest = network.addresses();
    let misbehaving = byzantine_nodes.iter().filter_map(|node| node.addresses.first().cloned());
    let others: Vec<Multiaddr> = honest.iter().skip(HUB).cloned().chain(misbehaving).collect();
    let mut talks = Vec::new();
    for index in 0..options.clients {
        let mut draws = Draws::of(options.seed, 1000 + index as u64);
        let url = network.store_url();
        let home = folder.join(format!("client-{index}"));
        let mut config = ClientConfig::with_http(Some(&home), url, url, Some(url), SHARDS)?;
        let known = others.iter().filter(|_| draws.below(4) > 0);
        config.bootstrap = honest.iter().take(HUB).chain(known).cloned().collect();
        config.timeouts.author_stores = AUTHOR_STORES;
        let client = Client::open(config).await?;
        let session = client.new_session(NewSession::default()).await?;
        talks.push(Talk {
            index,
            client,
            session,
            draws,
            words: options.words,
            byzantine: byzantine.clone(),
            log: log.clone(),
            deaths: deaths.clone(),
            latest: LatestEvent::begin(),
            results: chat::ClientResults::default(),
        });
    }
    Ok(talks)
}
