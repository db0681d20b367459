//! `baton-testnet up`: runs a network until a signal stops it.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use baton_keys::files::replace_private;
use baton_kit::{output::shell_word, progress};
use clap::Args;

use crate::{
    network::{EngineChoice, Network, NodeOptions},
    output, trial,
};

/// Time between two looks at the processes of the nodes.
const NODE_LOOK: Duration = Duration::from_secs(1);
/// Where no spinner can be drawn, a line says after each such time that a part is still starting.
const STILL_STARTING: Duration = Duration::from_secs(5);

/// Arguments of `baton-testnet up`.
#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Number of nodes
    #[arg(long, default_value_t = 3)]
    pub(crate) nodes: usize,
    /// Engine of the nodes
    #[arg(long, value_enum, default_value = "native")]
    pub(crate) engine: EngineChoice,
    /// Model of the nodes [default: that of a node]
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Delay of the test engine before each token, in milliseconds
    #[arg(long, default_value_t = 0, value_name = "MS")]
    pub(crate) echo_delay_ms: u64,
    /// Shard count of the store
    #[arg(long, default_value_t = 10)]
    pub(crate) shards: u16,
    /// Folder of downloaded models
    #[arg(long, env = "BATON_NODE_MODEL_DIR", value_name = "DIR")]
    pub(crate) model_dir: Option<PathBuf>,
    /// Folder of the network [default: a temporary one, removed at the end]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Print the addresses as one JSON line when ready
    #[arg(long)]
    pub(crate) json: bool,
    /// Stop as soon as standard input closes, so that no network outlives the program that started it
    #[arg(long)]
    pub(crate) while_stdin_open: bool,
}

/// Runs until SIGTERM or Ctrl-C.
pub(crate) async fn run(args: UpArgs) -> anyhow::Result<()> {
    ensure!((1..=16).contains(&args.nodes), "--nodes must be between 1 and 16");
    let (_temporary, folder) = trial::folder(args.data_dir.as_deref())?;
    let model = args.model.clone().map(|name| ["--model".to_owned(), name]);
    let options = NodeOptions {
        shards: args.shards,
        echo_delay_ms: args.echo_delay_ms,
        model_dir: args.model_dir.clone(),
        extra: match args.engine {
            EngineChoice::Native => model.into_iter().flatten().collect(),
            EngineChoice::Echo => Vec::new(),
        },
        ..NodeOptions::new(args.engine)
    };
    let mut signals = output::stop_signals()?;
    let mut network = output::unless_stopped(&mut signals, start(&folder, args.nodes, options)).await?;
    let config = write_config(&network, &folder)?;
    announce(&network, &args, &config);
    let closed = stdin_closed();
    tokio::pin!(closed);
    let mut looks = tokio::time::interval(NODE_LOOK);
    loop {
        tokio::select! {
            () = &mut closed, if args.while_stdin_open => break,
            _ = signals.next() => break,
            _ = looks.tick() => {
                for node in network.take_ended() {
                    let left = network.running().count();
                    output::note(&format!("node {} has ended; {left} of the network's nodes run", node.node));
                }
            }
        }
    }
    output::note("stopping");
    output::unless_stopped(&mut signals, network.stop()).await
}

/// Starts the store, and then one node after the other. Says so for each: a node loads its model first.
async fn start(folder: &Path, nodes: usize, options: NodeOptions) -> anyhow::Result<Network> {
    let mut network = with_word("the store", Network::start(folder, 0, options)).await?;
    for number in 1..=nodes {
        with_word(&format!("node {number} of {nodes}"), network.add_node(&[])).await?;
    }
    Ok(network)
}

/// Waits for the start of `part`, with a spinner at a terminal and lines elsewhere.
async fn with_word<T>(part: &str, starting: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let begun = Instant::now();
    let spinner = progress::spinner(format!("starting {part}"));
    let waiting = async {
        loop {
            tokio::time::sleep(STILL_STARTING).await;
            if spinner.is_hidden() {
                output::note(&format!("{part} is still starting, after {} s", begun.elapsed().as_secs()));
            }
        }
    };
    let started = tokio::select! {
        started = starting => started,
        () = waiting => unreachable!("the waiting does not end"),
    };
    spinner.finish_and_clear();
    if started.is_ok() {
        output::note(&format!("{part} is ready ({:.1} s)", begun.elapsed().as_secs_f64()));
    }
    started
}

/// Waits for the end of standard input.
async fn stdin_closed() {
    let mut stdin = tokio::io::stdin();
    // An error also means that nobody holds the other end.
    let _ = tokio::io::copy(&mut stdin, &mut tokio::io::sink()).await;
}

/// Writes a configuration for the client, which keeps its command line short.
pub(crate) fn write_config(network: &Network, folder: &Path) -> anyhow::Result<PathBuf> {
    let nodes: Vec<String> = network.addresses().iter().map(|address| format!("\"{address}\"")).collect();
    let (store, shards) = (network.store_url(), network.options.shards);
    // A home of its own: the person's conversations stay apart.
    let home = folder.join("home").display().to_string();
    let text = format!(
        "home = {home:?}\npublisher = \"{store}\"\nshards = {shards}\nnode = [\n  {},\n]\n",
        nodes.join(",\n  ")
    );
    let path = folder.join("baton.toml");
    replace_private(&path, text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn announce(network: &Network, args: &UpArgs, config: &Path) {
    let store = network.store_url();
    if args.json {
        let nodes: Vec<String> = network.addresses().iter().map(ToString::to_string).collect();
        let ready = serde_json::json!({
            "event": "ready", "store": store, "shards": args.shards, "nodes": nodes, "config": config,
        });
        output::line(&ready.to_string());
        return;
    }
    output::line(&format!("store {store} ({} shards)", args.shards));
    for node in network.running() {
        let admin = node.admin.as_deref().unwrap_or("none");
        let process = node.process.id().unwrap_or_default();
        output::line(&format!("node  {} (process {process}, admin http://{admin})", node.node));
    }
    let baton = crate::process::sibling("baton").unwrap_or_else(|_| PathBuf::from("baton"));
    let echo = if args.engine == crate::network::EngineChoice::Echo { " --allow-echo" } else { "" };
    output::line("\nTalk to it from another terminal:\n");
    // Clients do not dial loopback addresses that multicast announces: the settings name the nodes.
    output::line(&format!("  export BATON_CONFIG={}", shell_word(config)));
    output::line(&format!("  {} chat{echo}\n", shell_word(&baton)));
    let nodes: Vec<String> = network.addresses().iter().map(ToString::to_string).collect();
    let relayer = crate::process::sibling("baton-relayer").unwrap_or_else(|_| PathBuf::from("baton-relayer"));
    output::line("A relayer for it, after baton-relayer init:\n");
    output::line(&format!(
        "  {} run --publisher {store} --aggregator {store} --shards {} --bootstrap {}\n",
        shell_word(&relayer),
        args.shards,
        nodes.join(",")
    ));
    output::line("Ctrl-C stops everything");
}
