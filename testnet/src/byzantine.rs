//! Byzantine nodes: peers with a real mesh and a valid node record, which lie.
//!
//! A [`FakeNode`] of the test kit signs false statements in its own turns, as [`LIES`] lists them, or says nothing. A
//! [`NodeInProcess`] has the honest turn service of `baton-node`, and perhaps a [`FalseEngine`], which lies about its
//! computation: its replies are valid.

mod false_engine;
mod lies;

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use baton_client::system_clock;
pub use baton_client::testkit::fake::{Act, AttemptKey, FakeNode, Lie};
use baton_client::testkit::{
    fake::{WordTokens, node_record},
    store::Stores,
};
use baton_keys::{SecretSigningKey, exchange::ExchangeSecret};
use baton_mesh::{Mesh, MeshConfig, MeshHandle, Multiaddr, Networks};
use baton_node::{
    engine::{
        Engine, EngineInfo,
        echo::{EchoConfig, EchoEngine, word_id},
    },
    journal::{Journal, JournalLimits},
    service::{
        LogKey, NoObserver, NodeIdentity, NodeService, PausePoints, ServiceDeps, ServiceError, ServiceLimits,
    },
};
use baton_proto::{
    SignedBytes, SignedObject,
    ids::{ExchangeKeyId, NodeId},
    node_record::{ModelOffer, NodeLimits, NodeRecord},
};
use tokio::{runtime::Handle, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::network::Network;
pub use false_engine::{EngineLie, FalseEngine};
pub use lies::{LIES, LieKind, lie_of};

/// The software in a node's record.
const SOFTWARE: &str = concat!("baton-node/", env!("CARGO_PKG_VERSION"));
/// Lies of a liar: more than the turns of any run.
const SCRIPTED_TURNS: usize = 10_000;

/// Starts a node that repeats messages, as the echo engine does, and tells the next of these lies in each turn.
///
/// # Errors
/// When the store's address is none.
pub async fn start_liar(
    network: &Network,
    delay: Duration,
    lies: impl Iterator<Item = Act>,
) -> anyhow::Result<FakeNode> {
    let store = network.http_store()?;
    let stores = Stores { blobs: store.clone(), heads: store };
    let echo = EchoEngine::new(&EchoConfig::default(), Handle::current());
    let words = WordTokens { id_of: word_id, delay };
    let node = FakeNode::start_with(stores, offer(echo.info()), Some(words), network.bootstrap()).await;
    node.script(lies.take(SCRIPTED_TURNS));
    Ok(node)
}

fn offer(info: &EngineInfo) -> ModelOffer {
    ModelOffer {
        model: info.model_id,
        name: info.name.clone(),
        engine: info.kind,
        context_tokens: info.context_tokens,
        input_price: 0,
        output_price: 0,
    }
}

/// A node in this process.
#[derive(Debug)]
pub struct NodeInProcess {
    /// Its identity.
    pub node: NodeId,
    /// Its addresses, with `/p2p/`.
    pub addresses: Vec<Multiaddr>,
    mesh: MeshHandle,
    stop: CancellationToken,
    running: JoinHandle<Result<(), ServiceError>>,
}

/// The keys of a node, and its record.
struct NodeKeys {
    signing: SecretSigningKey,
    exchange: ExchangeSecret,
    model: ModelOffer,
    addresses: Vec<String>,
}

impl NodeIdentity for NodeKeys {
    fn signing_key(&self) -> &SecretSigningKey {
        &self.signing
    }

    fn exchange_secret(&self, key: &ExchangeKeyId, _now_ms: u64) -> Option<ExchangeSecret> {
        (self.exchange.public_key().id() == *key).then(|| self.exchange.clone())
    }

    fn record(&self) -> SignedBytes {
        let (key, model) = (self.exchange.public_key(), self.model.clone());
        let record = NodeRecord {
            addresses: self.addresses.clone(),
            limits: NodeLimits { slots: 1, queue: 16, turns_per_minute: 120, max_output_tokens: 4096 },
            software: SOFTWARE.to_owned(),
            ..node_record(self.signing.node_id(), key, model, system_clock()())
        };
        SignedObject::sign(record, &self.signing).bytes().clone()
    }
}

impl NodeInProcess {
    /// Starts a node of a network, with a folder of this name for its journal.
    ///
    /// # Errors
    /// The error of opening its journal or of listening.
    pub async fn start(network: &Network, name: &str, engine: Arc<dyn Engine>) -> anyhow::Result<Self> {
        let signing = SecretSigningKey::generate();
        let node = signing.node_id();
        let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().context("a constant address")?];
        let mut config = MeshConfig::server(SOFTWARE, listen);
        config.bootstrap = network.bootstrap();
        config.limits.own_networks = Networks::loopback();
        let (mesh, incoming) = Mesh::spawn(signing.expose_seed(), config).await?;
        let addresses = mesh.listen_addrs().iter().map(ToString::to_string).collect();
        let (exchange, model) = (ExchangeSecret::generate(), offer(engine.info()));
        let keys = NodeKeys { signing, exchange, model, addresses };
        let store = network.http_store()?;
        let folder = network.folder.join(name);
        let service = NodeService::new(ServiceDeps {
            engines: vec![engine],
            store: store.clone(),
            heads: Some(store),
            identity: Arc::new(keys),
            journal: Journal::open(&folder, JournalLimits::default(), system_clock()())?,
            limits: ServiceLimits {
                drain_grace: Duration::from_secs(1),
                own_networks: Networks::loopback(),
                ..ServiceLimits::default()
            },
            clock: system_clock(),
            observer: Arc::new(NoObserver),
            peers: Some(mesh.clone()),
            log_key: LogKey::random(),
            pause: PausePoints::default(),
            embeddings: None,
        });
        let (stop, addresses) = (CancellationToken::new(), mesh.bootstrap_addrs());
        let running = tokio::spawn(service.run(incoming, stop.clone()));
        Ok(Self { node, addresses, mesh, stop, running })
    }

    /// Stops it and joins its tasks.
    ///
    /// # Errors
    /// When its service failed.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.stop.cancel();
        self.running.await??;
        self.mesh.shutdown().await;
        Ok(())
    }
}
