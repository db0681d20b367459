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
    collections::BTreeSet,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use baton_client::{Client, Multiaddr, NewSession};
use clap::{Args, builder::RangedU64ValueParser};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    byzantine::{FakeNode, LIES, start_liar},
    draws::Draws,
    network::{Network, NodeOptions},
    output,
    trial::{self, TrialOptions, free_ports},
};
use chat::{ChurnClient, ClientResults};
pub use report::{ChurnReport, MisbehaviourReport};

/// The end of the command's help.
pub(crate) const CHURN_HELP: &str = "\
Every other moment one of the nodes is killed (SIGKILL) or started again, except two that are left alone, while clients \
chat without pause on the echo engine. Hostile nodes stall, truncate, equivocate, forge, change history and send garbage. At the \
end every conversation is compared word by word with what was said and what the engine must answer, and verified again from \
the store alone.

Exit code 0: no accepted turn was lost or wrong, every lie was found out by name, and none was accepted.";

/// Nodes that are never killed; all others bootstrap with them.
pub const HUB: usize = 2;
/// How long a client leaves storing to a turn's author. The default is a minute, but here authors die often.
const AUTHOR_STORES: Duration = Duration::from_secs(5);
/// Time for clients to finish their last turns.
const LAST_TURNS: Duration = Duration::from_secs(60);

/// Options of a churn run.
#[derive(Clone, Debug, Args)]
pub struct ChurnOptions {
    #[command(flatten)]
    #[expect(missing_docs, reason = "a doc comment would be a heading of the help")]
    pub trial: TrialOptions,
    /// Number of nodes, including byzantine ones
    #[arg(long, default_value_t = 12, value_parser = RangedU64ValueParser::<usize>::new().range(3..=64))]
    pub nodes: usize,
    /// Number of byzantine nodes, each of which tells all lies in turn
    #[arg(long, default_value_t = 4)]
    pub hostile: usize,
    /// Number of clients, each with its own conversation
    #[arg(long, default_value_t = 20, value_parser = RangedU64ValueParser::<usize>::new().range(1..=256))]
    pub clients: usize,
    /// Duration of kills and restarts, in seconds
    #[arg(long, default_value_t = 180)]
    pub seconds: u64,
    /// Time between one kill or restart and the next, in milliseconds.
    #[arg(skip = 2000_u64)]
    pub every_ms: u64,
    /// Delay of the test engine before each token, in milliseconds.
    #[arg(skip = 15_u64)]
    pub echo_delay_ms: u64,
    /// Fewest and most words of a message.
    #[arg(skip = (20, 100))]
    pub words: (u64, u64),
}

impl Default for ChurnOptions {
    fn default() -> Self {
        trial::defaults()
    }
}

/// Runs the churn in a folder, and returns a report.
///
/// # Errors
/// When nodes, store or clients cannot be started. Violations are in the report.
pub async fn churn(options: &ChurnOptions, folder: &Path) -> anyhow::Result<ChurnReport> {
    let least = HUB + 1 + options.hostile;
    ensure!(
        options.nodes >= least,
        "--nodes must be at least {least} with --hostile {}: {HUB} are never killed, and somebody must be",
        options.hostile
    );
    let seed = options.trial.seed();
    output::note(&format!("churn: seed {seed}"));
    let begun = Instant::now();
    let mut network = start_nodes(options, seed, folder).await?;
    let liars = Arc::new(start_liars(options, seed, &network).await?);
    let clients = open_clients(options, seed, &network, &liars).await?;
    output::note(&format!(
        "{} nodes, {} of them hostile; {} clients; {:.1} s to start",
        options.nodes,
        liars.len(),
        clients.len(),
        begun.elapsed().as_secs_f64()
    ));

    let stop = CancellationToken::new();
    let mut chatting = JoinSet::new();
    let mut unfinished: BTreeSet<usize> = clients.iter().map(|client| client.index).collect();
    let started = Instant::now();
    for client in clients {
        chatting.spawn(client.run(stop.clone()));
    }
    let counts = nodes::kill_and_restart(&mut network, options, seed).await?;
    stop.cancel();
    let mut report = ChurnReport::new(options, seed, started.elapsed(), counts);
    let mut clients = Vec::new();
    let finishing = async {
        while let Some(client) = chatting.join_next().await {
            let client = client.context("a client panicked")??;
            unfinished.remove(&client.index);
            clients.push(client);
        }
        anyhow::Ok(())
    };
    if let Ok(finished) = tokio::time::timeout(LAST_TURNS, finishing).await {
        finished?;
    }
    for index in unfinished {
        report.violation(format!("client {index} had not finished its turn after {LAST_TURNS:?}"));
    }
    chatting.shutdown().await;
    output::note("verifying every conversation, from the journals and from the store alone");
    check::all(&mut report, &clients, &network).await?;
    for client in &mut clients {
        client.note_detected_claims().await?;
    }
    report.gather(&clients, &liars);
    for client in clients {
        client.client.shutdown(Duration::from_secs(2)).await;
    }
    for node in liars.iter() {
        node.stop().await;
    }
    network.stop().await?;
    Ok(report)
}

async fn start_nodes(options: &ChurnOptions, seed: u64, folder: &Path) -> anyhow::Result<Network> {
    // The engine serves one turn at a time, so waiting clients receive queue events, and receipts state
    // the wait.
    let node_options = NodeOptions { echo_delay_ms: options.echo_delay_ms, ..NodeOptions::echo() };
    let honest = options.nodes.saturating_sub(options.hostile);
    let mut network = Network::start(folder, 0, node_options.with(&["--slots", "1"])).await?;
    network.use_ports(free_ports(honest, &mut Draws::of(seed, 1))?);
    network.bootstrap_to(HUB);
    for _ in 0..honest {
        network.add_node(&[]).await?;
    }
    Ok(network)
}

async fn start_liars(options: &ChurnOptions, seed: u64, network: &Network) -> anyhow::Result<Vec<FakeNode>> {
    let delay = Duration::from_millis(options.echo_delay_ms);
    let mut started = Vec::new();
    for index in 0..options.hostile {
        let begin = usize::try_from(Draws::of(seed, 100 + index as u64).below(LIES.len() as u64))?;
        let lies = LIES.iter().cycle().skip(begin).map(|lie| lie.act);
        started.push(start_liar(network, delay, lies).await?);
    }
    Ok(started)
}

/// Opens the clients, each with a home, a session, and addresses of the hub and of most other nodes.
async fn open_clients(
    options: &ChurnOptions,
    seed: u64,
    network: &Network,
    liars: &Arc<Vec<FakeNode>>,
) -> anyhow::Result<Vec<ChurnClient>> {
    let honest = network.addresses();
    let misbehaving = liars.iter().filter_map(|node| node.addrs().first().cloned());
    let others: Vec<Multiaddr> = honest.iter().skip(HUB).cloned().chain(misbehaving).collect();
    let mut clients = Vec::new();
    for index in 0..options.clients {
        let mut draws = Draws::of(seed, 1000 + index as u64);
        let mut config = network.client_config(Some(&network.folder.join(format!("client-{index}"))))?;
        let met = others.iter().filter(|_| draws.below(4) > 0);
        config.bootstrap = honest.iter().take(HUB).chain(met).cloned().collect();
        config.timeouts.author_stores = AUTHOR_STORES;
        let client = Client::open(config).await?;
        let session = client.new_session(NewSession::default()).await?;
        clients.push(ChurnClient {
            index,
            client,
            session,
            draws,
            words: options.words,
            liars: liars.clone(),
            results: ClientResults::default(),
        });
    }
    Ok(clients)
}
