//! `baton-testnet up`: keeps a network running until it is told to stop.

use anyhow::{Context as _, ensure};
use baton_keys::files::create_private_folder;

use crate::{
    cli::UpArgs,
    network::{Network, NodeOptions},
    output,
};

/// Runs until SIGTERM or Ctrl-C.
pub(crate) async fn run(args: UpArgs) -> anyhow::Result<()> {
    ensure!((1..=16).contains(&args.nodes), "--nodes must be between 1 and 16");
    let temporary = tempfile::tempdir().context("cannot make a temporary folder")?;
    let folder = args.data_dir.clone().unwrap_or_else(|| temporary.path().to_owned());
    create_private_folder(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let options = NodeOptions {
        engine: args.engine,
        shards: args.shards,
        context_tokens: None,
        echo_delay_ms: 0,
        model_dir: args.model_dir.clone(),
        extra: Vec::new(),
    };
    output::note(&format!("starting a store and {} nodes", args.nodes));
    let network = Network::start(&folder, args.nodes, options).await?;
    announce(&network, &args);
    output::wait_for_signal().await;
    output::note("stopping");
    network.stop().await
}

fn announce(network: &Network, args: &UpArgs) {
    let store = network.store_url();
    let nodes: Vec<String> = network.addresses().iter().map(ToString::to_string).collect();
    if args.json {
        let ready = serde_json::json!({
            "event": "ready", "store": store, "shards": args.shards, "nodes": nodes,
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
    output::line("\ntalk to it from another terminal:\n");
    let echo = if args.engine == crate::network::EngineChoice::Echo { " --allow-echo" } else { "" };
    output::line(&format!(
        "  baton --publisher {store} --aggregator {store} --shards {} --node {}{echo} chat\n",
        args.shards,
        nodes.join(" --node "),
    ));
    output::line("Ctrl-C stops everything");
}
