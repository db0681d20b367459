//! A whole network on this machine, in one folder: a store and nodes, each in its own process.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use baton_client::{Client, ClientConfig, Relayer, system_clock};
use baton_keys::account::AccountKey;
use baton_mesh::Multiaddr;
use baton_node::{
    engine::{
        Engine,
        native::{NativeConfig, NativeEngine},
    },
    models::Catalogue,
};
use baton_proto::ids::{BlobId, NodeId};
use baton_walrus_client::{HttpStore, ShardCount, http_client};
use reqwest::{Body, Method, Response};
use serde_json::Value;

use crate::process::Process;

/// Shard count of the store: that of Walrus's local testbed.
pub const SHARDS: u16 = 10;

/// Time limit of a call of a relayer.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// The default model of nodes.
const MODEL: &str = "smollm2-135m-instruct";

/// The engine of the default model, in this process.
///
/// # Errors
/// If the model cannot be fetched or loaded.
pub(crate) async fn native_engine(model_dir: Option<PathBuf>) -> anyhow::Result<Arc<dyn Engine>> {
    let folder = model_dir.unwrap_or_else(baton_node::default_model_dir);
    let loaded = tokio::task::spawn_blocking(move || {
        let path = Catalogue::built_in().pull(MODEL, &folder, &mut |_| {})?;
        anyhow::Ok(NativeEngine::load(&NativeConfig::new(MODEL, path))?)
    });
    Ok(Arc::new(loaded.await??))
}

/// Engine of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EngineChoice {
    /// The real model.
    Native,
    /// The test engine that repeats the message.
    Echo,
}

/// Where the nodes of a command find models.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelFolder {
    /// Folder of downloaded models
    #[arg(long, env = "BATON_NODE_MODEL_DIR", value_name = "DIR")]
    pub(crate) model_dir: Option<PathBuf>,
}

/// Options for starting nodes.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// The engine.
    pub engine: EngineChoice,
    /// Faults that the store injects, as for `baton-testnet store --faults`.
    pub store_faults: Option<String>,
    /// Pause before each token of the echo engine.
    pub echo_delay_ms: u64,
    /// Folder of downloaded models.
    pub model_dir: Option<PathBuf>,
    /// Additional arguments for `baton-node run`.
    pub extra: Vec<String>,
}

impl NodeOptions {
    /// Options with this engine, on a store without faults.
    #[must_use]
    pub fn new(engine: EngineChoice) -> Self {
        Self { engine, store_faults: None, echo_delay_ms: 0, model_dir: None, extra: Vec::new() }
    }

    /// Options with the echo engine.
    #[must_use]
    pub fn echo() -> Self {
        Self::new(EngineChoice::Echo)
    }

    /// The same with further arguments for `baton-node run`.
    #[must_use]
    pub fn with(mut self, extra: &[&str]) -> Self {
        self.extra.extend(extra.iter().map(|word| (*word).to_owned()));
        self
    }
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

/// A relayer process.
#[derive(Debug)]
pub struct RelayerProcess {
    /// The process.
    pub process: Process,
    /// URL of its HTTP interface.
    pub url: String,
    /// Its identity and the addresses of its sealed endpoint.
    pub relayer: Relayer,
    http: reqwest::Client,
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

    /// Settings of a client of this network: its store, and its running nodes. Without a home the client keeps
    /// nothing.
    ///
    /// # Errors
    /// When the store's address or shard count is none.
    pub fn client_config(&self, home: Option<&Path>) -> anyhow::Result<ClientConfig> {
        let url = self.nodes_store_url.as_ref().unwrap_or(&self.store_url);
        let mut config = ClientConfig::with_http(home, url, url, Some(url), SHARDS)?;
        config.bootstrap = self.addresses();
        Ok(config)
    }

    /// A client with these settings.
    ///
    /// # Errors
    /// When the client cannot be opened.
    pub async fn client(&self, home: &Path) -> anyhow::Result<Client> {
        Ok(Client::open(self.client_config(Some(home))?).await?)
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

    /// A plain HTTP client of the store.
    pub(crate) fn http_store(&self) -> anyhow::Result<Arc<HttpStore>> {
        let store = HttpStore::builder(&self.store_url, &self.store_url, ShardCount::TESTBED);
        Ok(Arc::new(store.build()?))
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
    pub async fn start_node(&mut self, index: usize, extra: &[&str]) -> anyhow::Result<NodeId> {
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
        set("--shards", &SHARDS.to_string());
        set("--admin", "127.0.0.1:0");
        match self.options.engine {
            EngineChoice::Native => set("--engine", "native"),
            EngineChoice::Echo => {
                set("--engine", "echo");
                set("--echo-delay-ms", &self.options.echo_delay_ms.to_string());
            }
        }
        if let Some(models) = &self.options.model_dir {
            set("--model-dir", &models.to_string_lossy());
        }
        self.bootstrap().iter().for_each(|address| set("--bootstrap", &address.to_string()));
        args.extend(self.options.extra.iter().cloned());
        args.extend(extra.iter().map(|word| (*word).to_owned()));
        let process = Process::start(&name, "baton-node", &args, &self.folder).await?;
        let (node, addresses) = identity(&process.ready, "node")?;
        let admin = process.ready["admin"].as_str().map(str::to_owned);
        let started = NodeProcess { process, node, addresses, admin };
        let slot = self.nodes.get_mut(index).context("no such node")?;
        *slot = Some(started);
        Ok(node)
    }

    /// Adds a new node.
    ///
    /// # Errors
    /// The failure, with the process's last log lines if it has any.
    pub async fn add_node(&mut self, extra: &[&str]) -> anyhow::Result<NodeId> {
        self.nodes.push(None);
        self.start_node(self.nodes.len() - 1, extra).await
    }

    /// Kills a node with `kill -9`.
    ///
    /// # Errors
    /// The failure, with the process's last log lines if it has any.
    pub async fn kill_node(&mut self, node: NodeId) -> anyhow::Result<()> {
        self.take(node)?.process.kill().await
    }

    /// Sends SIGTERM to a node.
    ///
    /// # Errors
    /// The failure, with the process's last log lines if it has any.
    pub async fn stop_node(&mut self, node: NodeId) -> anyhow::Result<()> {
        self.take(node)?.process.terminate().await
    }

    fn take(&mut self, node: NodeId) -> anyhow::Result<NodeProcess> {
        let running =
            self.nodes.iter_mut().find(|slot| slot.as_ref().is_some_and(|running| running.node == node));
        running.and_then(Option::take).context("no such node")
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

    /// Addresses of the nodes with which others bootstrap.
    pub(crate) fn bootstrap(&self) -> Vec<Multiaddr> {
        let hub = self.nodes.iter().take(self.hub).flatten();
        hub.filter_map(|node| node.addresses.first().cloned()).collect()
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

    /// A request to the interface that damages stored data.
    async fn admin(&self, method: Method, path: &str, body: impl Into<Body>) -> anyhow::Result<Response> {
        let admin = &self.store.as_ref().context("the store is stopped")?.admin;
        let client = http_client::builder_for(admin).build()?;
        let sent = client.request(method, format!("{admin}/admin/{path}")).body(body).send().await?;
        Ok(sent.error_for_status()?)
    }

    async fn admin_json(&self, path: &str) -> anyhow::Result<Value> {
        Ok(self.admin(Method::GET, path, "").await?.json().await?)
    }

    /// Deletes a stored blob, as a store that lost it would.
    ///
    /// # Errors
    /// When the store does not respond.
    pub async fn forget_blob(&self, id: BlobId) -> anyhow::Result<()> {
        self.admin(Method::DELETE, &format!("blobs/{id}"), "").await.map(drop)
    }

    /// Replaces the stored bytes under an ID, as a byzantine store would.
    ///
    /// # Errors
    /// When the store does not respond.
    pub async fn replace_blob(&self, id: BlobId, bytes: Vec<u8>) -> anyhow::Result<()> {
        self.admin(Method::PUT, &format!("blobs/{id}"), bytes).await.map(drop)
    }

    /// Writes a head record to the index without its checks, as a byzantine index would.
    ///
    /// # Errors
    /// When the store does not respond.
    pub async fn force_head(&self, record: Vec<u8>) -> anyhow::Result<()> {
        self.admin(Method::PUT, "heads", record).await.map(drop)
    }

    /// The number of stored blobs.
    ///
    /// # Errors
    /// When the store does not respond.
    pub async fn blob_count(&self) -> anyhow::Result<u64> {
        self.admin_json("usage").await?["blobs"].as_u64().context("the store counts its blobs")
    }

    /// The IDs of all stored blobs.
    ///
    /// # Errors
    /// When the store does not respond.
    pub async fn list_blobs(&self) -> anyhow::Result<Vec<BlobId>> {
        let listed = self.admin_json("blobs").await?;
        let ids = listed.as_array().into_iter().flatten().filter_map(|blob| blob["blobId"].as_str());
        Ok(ids.map(str::parse).collect::<Result<_, _>>()?)
    }

    /// The bytes of one stored blob, as on the store's disk.
    ///
    /// # Errors
    /// When the store does not respond, or does not have the blob.
    pub async fn read_blob(&self, id: BlobId) -> anyhow::Result<Vec<u8>> {
        Ok(self.admin(Method::GET, &format!("blobs/{id}"), "").await?.bytes().await?.to_vec())
    }
}

impl RelayerProcess {
    /// Starts a relayer with its data in a folder, for these nodes and with further arguments.
    ///
    /// # Errors
    /// The failure, with the process's last log lines if it has any.
    pub async fn start(folder: &Path, nodes: &[Multiaddr], extra: &[&str]) -> anyhow::Result<Self> {
        let data = folder.join("relayer").to_string_lossy().into_owned();
        let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        let mut args = vec!["--data-dir", &data, "run", "--json", "--mdns", "false"];
        args.extend(["--listen", "/ip4/127.0.0.1/tcp/0"]);
        args.extend(nodes.iter().flat_map(|node| ["--bootstrap", node]));
        args.extend(extra);
        let process = Process::start("relayer", "baton-relayer", &args, folder).await?;
        let (node, addrs) = identity(&process.ready, "relayer")?;
        let url = process.ready["http"].as_str().context("the ready line names the HTTP address")?.to_owned();
        let http = reqwest::Client::builder().no_proxy().timeout(CALL_TIMEOUT).build()?;
        Ok(Self { process, url, relayer: Relayer { node, addrs }, http })
    }

    /// Sends a request that an account signs, and returns the JSON of the answer.
    ///
    /// # Errors
    /// When the relayer does not answer, refuses, or answers no JSON.
    pub async fn call(
        &self,
        account: &AccountKey,
        method: Method,
        path: &str,
        body: &Value,
    ) -> anyhow::Result<Value> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (id, seconds) = (account.account_id(), system_clock()() / 1000);
        let mut request = self.http.request(method.clone(), format!("{}{path}", self.url));
        for (name, value) in account.request_headers(&id, method.as_str(), path, body.as_bytes(), seconds) {
            request = request.header(name, value);
        }
        let answer = request.header("content-type", "application/json").body(body).send().await?;
        let (status, text) = (answer.status(), answer.text().await?);
        ensure!(status.is_success(), "{path}: {status}: {text}");
        serde_json::from_str(&text).with_context(|| format!("{path} gave no JSON"))
    }
}

/// The identity and the addresses in the ready line of a program.
fn identity(ready: &Value, name: &str) -> anyhow::Result<(NodeId, Vec<Multiaddr>)> {
    let node = ready[name].as_str().context("the ready line names the identity")?.parse()?;
    let listen = ready["listen"].as_array().context("the ready line lists addresses")?;
    Ok((node, listen.iter().filter_map(|address| address.as_str()?.parse().ok()).collect()))
}

async fn start_store(
    folder: &Path,
    options: &NodeOptions,
    address: Option<&str>,
) -> anyhow::Result<StoreProcess> {
    let (data, shards) = (folder.join("store"), SHARDS.to_string());
    let (data, address) = (data.to_string_lossy(), address.unwrap_or("127.0.0.1:0"));
    let mut args = vec!["store", "--json", "--log", "warn", "--data-dir", &data, "--shards", &shards];
    args.extend(["--listen", address, "--admin", "127.0.0.1:0"]);
    args.extend(options.store_faults.iter().flat_map(|faults| ["--faults", faults]));
    let process = Process::start("store", "baton-testnet", &args, folder).await?;
    let text = |key: &str| process.ready[key].as_str().unwrap_or_default().to_owned();
    Ok(StoreProcess { url: text("url"), admin: text("admin"), process })
}
