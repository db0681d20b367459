//! A whole network on this machine, in one folder: a store and nodes, each in its own process.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use baton_mesh::Multiaddr;
use baton_proto::ids::{BlobId, NodeId};
use baton_walrus_client::http_client;

use crate::process::Process;

/// Engine of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EngineChoice {
    /// The real model.
    Native,
    /// The test engine that repeats the message.
    Echo,
}

/// Options for starting nodes.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// The engine.
    pub engine: EngineChoice,
    /// Shard count of the store.
    pub shards: u16,
    /// Faults that the store injects, as for `baton-testnet store --faults`.
    pub store_faults: Option<String>,
    /// Tokens of context, if not the model's own.
    pub context_tokens: Option<u32>,
    /// Pause before each token of the echo engine.
    pub echo_delay_ms: u64,
    /// Folder of downloaded models.
    pub model_dir: Option<PathBuf>,
    /// Additional arguments for `baton-node run`.
    pub extra: Vec<String>,
}

/// The store process.
#[derive(Debug)]
pub struct StoreProcess {
    /// The process.
    pub process: Process,
    /// URL of its HTTP interface.
    pub url: String,
    /// URL of the interface that damages stored data.
    pub admin: String,
}

/// A node process.
#[derive(Debug)]
pub struct NodeProcess {
    /// The process.
    pub process: Process,
    /// Its identity.
    pub node: NodeId,
    /// Full multiaddresses, with `/p2p/`.
    pub addresses: Vec<Multiaddr>,
    /// Address of its admin interface.
    pub admin: Option<String>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListedBlob {
    blob_id: String,
}

/// The store's usage.
#[derive(serde::Deserialize)]
struct StoreUsage {
    blobs: u64,
}

/// A store and some nodes.
#[derive(Debug)]
pub struct Network {
    /// The folder with all its data.
    pub folder: PathBuf,
    /// Options for starting nodes.
    pub options: NodeOptions,
    /// The store, unless stopped.
    pub store: Option<StoreProcess>,
    store_url: String,
    nodes_store_url: Option<String>,
    /// Fixed ports of nodes, by index.
    ports: Vec<u16>,
    /// How many of the first nodes serve the others as bootstrap peers.
    hub: usize,
    /// The nodes; `None` for a stopped one.
    pub nodes: Vec<Option<NodeProcess>>,
}

impl Network {
    /// Starts the store, then the nodes, each bootstrapped with the nodes before it.
    ///
    /// # Errors
    /// The failure, with the process's last log lines if it has any.
    pub async fn start(folder: &Path, count: usize, options: NodeOptions) -> anyhow::Result<Self> {
        let store = start_store(folder, &options, None).await?;
        let store_url = store.url.clone();
        let mut network = Self {
            folder: folder.to_owned(),
            options,
            store: Some(store),
            store_url,
            nodes_store_url: None,
            ports: Vec::new(),
            hub: usize::MAX,
            nodes: Vec::new(),
        };
        for index in 0..count {
            network.nodes.push(None);
            network.start_node(index, &[]).await?;
        }
        Ok(network)
    }

    /// Makes nodes that start later reach the store by another URL, such as a proxy's.
    pub fn reach_store_by(&mut self, url: &str) {
        self.nodes_store_url = Some(url.to_owned());
    }

    /// Gives nodes that start later fixed ports, by index, so that they keep their address after a restart.
    ///
    /// Ports below the ephemeral range are best: the system assigns none of them while a node is down.
    pub fn use_ports(&mut self, ports: Vec<u16>) {
        self.ports = ports;
    }

    /// Bootstraps nodes that start later with the first `hub` nodes only, instead of all running ones.
    pub fn bootstrap_to(&mut self, hub: usize) {
        self.hub = hub;
    }

    /// URL of the store, even while it is stopped.
    #[must_use]
    pub fn store_url(&self) -> &str {
        &self.store_url
    }

    /// Starts or restarts the node at an index; its folder keeps its key and journal.
    ///
    /// # Errors
    /// The failure, with the process's last log lines if it has any.
    pub async fn start_node(&mut self, index: usize, extra: &[String]) -> anyhow::Result<NodeId> {
        let name = format!("node-{index}");
        let folder = self.folder.join(&name);
        let mut args: Vec<String> = vec!["run".into(), "--json".into()];
        let mut set = |flag: &str, value: &str| args.extend([flag.to_owned(), value.to_owned()]);
        set("--data-dir", &folder.to_string_lossy());
        let port = self.ports.get(index).copied().unwrap_or(0);
        set("--listen", &format!("/ip4/127.0.0.1/tcp/{port}"));
        set("--listen", &format!("/ip4/127.0.0.1/udp/{port}/quic-v1"));
        set("--mdns", "false");
        // All processes here are the tester's, unless a test says otherwise.
        if !self.options.extra.iter().any(|arg| arg == "--own-networks") {
            set("--own-networks", "127.0.0.0/8,::1");
        }
        let store = self.nodes_store_url.as_ref().unwrap_or(&self.store_url);
        set("--publisher", store);
        set("--aggregator", store);
        set("--shards", &self.options.shards.to_string());
        set("--admin", "127.0.0.1:0");
        match self.options.engine {
            EngineChoice::Native => set("--engine", "native"),
            EngineChoice::Echo => {
                set("--engine", "echo");
                set("--echo-delay-ms", &self.options.echo_delay_ms.to_string());
            }
        }
        if let Some(tokens) = self.options.context_tokens {
            set("--context-tokens", &tokens.to_string());
        }
        if let Some(models) = &self.options.model_dir {
            set("--model-dir", &models.to_string_lossy());
        }
        for node in self.nodes.iter().take(self.hub).flatten() {
            if let Some(address) = node.addresses.first() {
                set("--bootstrap", &address.to_string());
            }
        }
        args.extend(self.options.extra.iter().chain(extra).cloned());
        let process = Process::start(&name, "baton-node", &args, &self.folder).await?;
        let ready = &process.ready;
        let node: NodeId = ready["node"].as_str().context("the ready line names the node")?.parse()?;
        let addresses = ready["listen"]
            .as_array()
            .context("the ready line lists addresses")?
            .iter()
            .filter_map(|address| address.as_str()?.parse().ok())
            .collect();
        let admin = ready["admin"].as_str().map(str::to_owned);
        let started = NodeProcess { process, node, addresses, admin };
        let slot = self.nodes.get_mut(index).context("no such node")?;
        *slot = Some(started);
        Ok(node)
    }

    /// Adds a new node.
    ///
    /// # Errors
    /// The failure, with the process's last log lines if it has any.
    pub async fn add_node(&mut self, extra: &[String]) -> anyhow::Result<NodeId> {
        self.nodes.push(None);
        self.start_node(self.nodes.len() - 1, extra).await
    }

    /// Kills a node with `kill -9`.
    ///
    /// # Errors
    /// The failure, with the process's last log lines if it has any.
    pub async fn kill_node(&mut self, node: NodeId) -> anyhow::Result<()> {
        let index = self.index_of(node).context("no such node")?;
        match self.nodes.get_mut(index).and_then(Option::take) {
            Some(mut running) => running.process.kill().await,
            None => Ok(()),
        }
    }

    /// Sends SIGTERM to a node.
    ///
    /// # Errors
    /// The failure, with the process's last log lines if it has any.
    pub async fn stop_node(&mut self, node: NodeId) -> anyhow::Result<()> {
        let index = self.index_of(node).context("no such node")?;
        match self.nodes.get_mut(index).and_then(Option::take) {
            Some(mut running) => running.process.terminate().await,
            None => Ok(()),
        }
    }

    /// Index of a running node.
    #[must_use]
    pub fn index_of(&self, node: NodeId) -> Option<usize> {
        self.nodes.iter().position(|slot| slot.as_ref().is_some_and(|running| running.node == node))
    }

    /// The running nodes.
    pub fn running(&self) -> impl Iterator<Item = &NodeProcess> {
        self.nodes.iter().flatten()
    }

    /// Takes the nodes whose process has ended out of the network.
    pub fn take_ended(&mut self) -> Vec<NodeProcess> {
        let ended = |node: &mut Option<NodeProcess>| node.take_if(|node| node.process.has_ended());
        self.nodes.iter_mut().filter_map(ended).collect()
    }

    /// TCP addresses of the running nodes.
    #[must_use]
    pub fn addresses(&self) -> Vec<Multiaddr> {
        self.running().filter_map(|node| node.addresses.first().cloned()).collect()
    }

    /// Sends SIGTERM to the store; its data stays.
    ///
    /// # Errors
    /// The failure, with the process's last log lines if it has any.
    pub async fn stop_store(&mut self) -> anyhow::Result<()> {
        match self.store.take() {
            Some(mut store) => store.process.terminate().await,
            None => Ok(()),
        }
    }

    /// Kills the store with `kill -9`; its data stays.
    ///
    /// # Errors
    /// The failure, with the process's last log lines if it has any.
    pub async fn kill_store(&mut self) -> anyhow::Result<()> {
        match self.store.take() {
            Some(mut store) => store.process.kill().await,
            None => Ok(()),
        }
    }

    /// Deletes a stored blob, as a store that lost it would.
    ///
    /// # Errors
    /// When the store does not respond.
    pub async fn forget_blob(&self, id: BlobId) -> anyhow::Result<()> {
        let url = format!("{}/admin/blobs/{id}", self.admin_url()?);
        http_client::builder_for(&url).build()?.delete(url).send().await?.error_for_status()?;
        Ok(())
    }

    /// Starts the store again at its old address.
    ///
    /// # Errors
    /// The failure, with the process's last log lines if it has any.
    pub async fn restart_store(&mut self) -> anyhow::Result<()> {
        let address = self.store_url.trim_start_matches("http://").to_owned();
        self.store = Some(start_store(&self.folder, &self.options, Some(&address)).await?);
        Ok(())
    }

    /// Stops nodes and store with SIGTERM.
    ///
    /// # Errors
    /// The failure, with the process's last log lines if it has any.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        let nodes: Vec<NodeId> = self.running().map(|node| node.node).collect();
        for node in nodes {
            self.stop_node(node).await?;
        }
        self.stop_store().await
    }

    fn admin_url(&self) -> anyhow::Result<&str> {
        Ok(&self.store.as_ref().context("the store is stopped")?.admin)
    }

    /// Replaces the stored bytes under an ID, as a byzantine store would.
    ///
    /// # Errors
    /// The failure, with the process's last log lines if it has any.
    pub async fn replace_blob(&self, id: BlobId, bytes: Vec<u8>) -> anyhow::Result<()> {
        let url = format!("{}/admin/blobs/{id}", self.admin_url()?);
        http_client::builder_for(&url).build()?.put(url).body(bytes).send().await?.error_for_status()?;
        Ok(())
    }

    /// Writes a head record to the index without its checks, as a byzantine index would.
    ///
    /// # Errors
    /// The failure, with the process's last log lines if it has any.
    pub async fn force_head(&self, record: Vec<u8>) -> anyhow::Result<()> {
        let url = format!("{}/admin/heads", self.admin_url()?);
        http_client::builder_for(&url).build()?.put(url).body(record).send().await?.error_for_status()?;
        Ok(())
    }

    /// The number of stored blobs.
    ///
    /// # Errors
    /// When the store does not respond.
    pub async fn blob_count(&self) -> anyhow::Result<u64> {
        let url = format!("{}/admin/usage", self.admin_url()?);
        let usage: StoreUsage = reqwest::get(url).await?.error_for_status()?.json().await?;
        Ok(usage.blobs)
    }

    /// The bytes of every stored blob.
    ///
    /// # Errors
    /// When the store does not respond.
    pub async fn all_blobs(&self) -> anyhow::Result<Vec<(BlobId, Vec<u8>)>> {
        let mut blobs = Vec::new();
        for id in self.list_blobs().await? {
            blobs.push((id, self.read_blob(id).await?));
        }
        Ok(blobs)
    }

    /// The IDs of all stored blobs.
    ///
    /// # Errors
    /// When the store does not respond.
    pub async fn list_blobs(&self) -> anyhow::Result<Vec<BlobId>> {
        let url = format!("{}/admin/blobs", self.admin_url()?);
        let listed: Vec<ListedBlob> = reqwest::get(url).await?.error_for_status()?.json().await?;
        Ok(listed.iter().map(|blob| blob.blob_id.parse()).collect::<Result<_, _>>()?)
    }

    /// The bytes of one stored blob, as on the store's disk.
    ///
    /// # Errors
    /// The failure, with the process's last log lines if it has any.
    pub async fn read_blob(&self, id: BlobId) -> anyhow::Result<Vec<u8>> {
        let url = format!("{}/admin/blobs/{id}", self.admin_url()?);
        Ok(reqwest::get(url).await?.error_for_status()?.bytes().await?.to_vec())
    }
}

async fn start_store(
    folder: &Path,
    options: &NodeOptions,
    address: Option<&str>,
) -> anyhow::Result<StoreProcess> {
    let mut args: Vec<String> = [
        "store",
        "--log",
        "warn",
        "--data-dir",
        &folder.join("store").to_string_lossy(),
        "--shards",
        &options.shards.to_string(),
        "--listen",
        address.unwrap_or("127.0.0.1:0"),
        "--admin",
        "127.0.0.1:0",
        "--json",
    ]
    .map(str::to_owned)
    .to_vec();
    if let Some(faults) = &options.store_faults {
        args.extend(["--faults".to_owned(), faults.clone()]);
    }
    let process = Process::start("store", "baton-testnet", &args, folder).await?;
    let text = |key: &str| process.ready[key].as_str().unwrap_or_default().to_owned();
    Ok(StoreProcess { url: text("url"), admin: text("admin"), process })
}
