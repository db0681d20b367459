//! `baton-testnet up`: runs a network until a signal stops it.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use baton_keys::files::replace_private;
use baton_kit::output::shell_word;
use clap::Args;

use crate::{
    network::{EngineChoice, ModelFolder, Network, NodeOptions, SHARDS},
    output,
    process::sibling,
    trial,
};

/// Time between two looks at the processes of the nodes.
const NODE_LOOK: Duration = Duration::from_secs(1);

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
    #[command(flatten)]
    pub(crate) models: ModelFolder,
    /// Folder of the network [default: a temporary one, removed at the end]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Stop as soon as standard input closes, so that no network outlives the program that started it
    #[arg(long)]
    pub(crate) while_stdin_open: bool,
}

/// Runs until SIGTERM or Ctrl-C.
pub(crate) async fn run(args: UpArgs, json: bool) -> anyhow::Result<()> {
    ensure!((1..=16).contains(&args.nodes), "--nodes must be between 1 and 16");
    let (_temporary, folder) = trial::folder(args.data_dir.as_deref())?;
    let model = args.model.clone().map(|name| ["--model".to_owned(), name]);
    let options = NodeOptions {
        echo_delay_ms: args.echo_delay_ms,
        model_dir: args.models.model_dir.clone(),
        extra: match args.engine {
            EngineChoice::Native => model.into_iter().flatten().collect(),
            EngineChoice::Echo => Vec::new(),
        },
        ..NodeOptions::new(args.engine)
    };
    let mut signals = output::stop_signals()?;
    let mut network = output::unless_stopped(&mut signals, start(&folder, args.nodes, options)).await?;
    let config = write_config(&network, &folder)?;
    announce(&network, &args, json, &config);
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

/// Waits for the start of `part`, and says how long it took.
async fn with_word<T>(part: &str, starting: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let begun = Instant::now();
    output::note(&format!("starting {part}"));
    let started = starting.await?;
    output::note(&format!("{part} is ready ({:.1} s)", begun.elapsed().as_secs_f64()));
    Ok(started)
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
    let store = network.store_url();
    // A home of its own: the person's conversations stay apart.
    let home = folder.join("home").display().to_string();
    let text = format!(
        "home = {home:?}\npublisher = \"{store}\"\nshards = {SHARDS}\nnode = [\n  {},\n]\n",
        nodes.join(",\n  ")
    );
    let path = folder.join("baton.toml");
    replace_private(&path, text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn announce(network: &Network, args: &UpArgs, json: bool, config: &Path) {
    let store = network.store_url();
    let nodes: Vec<String> = network.addresses().iter().map(ToString::to_string).collect();
    if json {
        let ready = serde_json::json!({
            "event": "ready", "store": store, "shards": SHARDS, "nodes": nodes, "config": config,
        });
        return output::line(&ready.to_string());
    }
    output::line(&format!("store {store} ({SHARDS} shards)"));
    for node in network.running() {
        let admin = node.admin.as_deref().unwrap_or("none");
        let process = node.process.id().unwrap_or_default();
        output::line(&format!("node  {} (process {process}, admin http://{admin})", node.node));
    }
    let program = |name: &str| shell_word(&sibling(name).unwrap_or_else(|_| PathBuf::from(name)));
    let echo = if args.engine == EngineChoice::Echo { " --allow-echo" } else { "" };
    // Clients do not dial loopback addresses that multicast announces: the settings name the nodes.
    output::line(&format!(
        "\nTalk to it from another terminal:\n\n  export BATON_CONFIG={}\n  {} chat{echo}\n\n\
         A relayer for it, after baton-relayer init:\n\n  \
         {} run --publisher {store} --aggregator {store} --shards {SHARDS} --bootstrap {}\n\n\
         Ctrl-C stops everything",
        shell_word(config),
        program("baton"),
        program("baton-relayer"),
        nodes.join(",")
    ));
}
