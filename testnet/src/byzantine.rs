//! Byzantine nodes: real peers with a real mesh, a valid node record and the echo engine, which may falsify
//! any of their output.
//!
//! Behind each is the honest turn service of `baton-node`. A proxy in front of it holds the node's keys: it
//! opens the sealed reply, makes its change, signs again and seals again. So all else about the falsified
//! reply is valid. Its store may answer a PUT without storing. The [`MisbehaviourLog`] records each falsified reply.
//! A node with a [`FalseEngine`] lies about its computation instead, in valid replies.

mod false_engine;
mod false_store;
mod falsified_turn;
mod forging;
mod misbehaviour;
mod misbehaviour_log;

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::{Arc, OnceLock, atomic::AtomicBool},
    time::Duration,
};

use anyhow::Context as _;
use baton_client::system_clock;
use baton_keys::{SecretSigningKey, exchange::ExchangeSecret};
use baton_mesh::{
    FrameError, Incoming, Mesh, MeshConfig, MeshHandle, Multiaddr, Networks, TURN_PROTOCOL, TurnStream,
};
use baton_node::{
    engine::{
        Engine,
        echo::{EchoConfig, EchoEngine},
    },
    journal::{Journal, JournalLimits},
    service::{
        LogKey, NoObserver, NodeIdentity, NodeService, PausePoints, ServiceDeps, ServiceError, ServiceLimits,
    },
};
use baton_proto::{
    ErrorCode, SignedBytes, SignedObject, codec,
    commit::SealedTurn,
    ids::{BlobDigest, ExchangeKeyId, NodeId, TurnId},
    limits::{MAX_FRAME_BYTES, MAX_NODE_FRAME_BYTES, NODE_RECORD_VERSION, VERSION},
    node_record::{KeyWindow, ModelOffer, NodeLimits, NodeRecord, StorageOffer},
    note::{TurnNote, TurnNoteKind},
    wire::{ClientFrame, NodeFrame, StoreState, TurnStatus},
};
use baton_walrus_client::{HttpStore, ShardCount};
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    task::{JoinHandle, JoinSet},
};
use tokio_util::{compat::TokioAsyncReadCompatExt as _, sync::CancellationToken};

pub use false_engine::{EngineLie, FalseEngine};
use false_store::FalseStore;
use misbehaviour::MisbehaviourScript;
pub use misbehaviour::{Behaviour, Misbehaviour};
pub use misbehaviour_log::{AttemptKey, MisbehaviourEntry, MisbehaviourLog};

/// Bytes buffered between the two halves of a byzantine node, in each direction: a few frames of tokens.
const PIPE_BYTES: usize = 64 * 1024;
/// Lifetime of a byzantine node's record: longer than any run.
const RECORD_LIFE_MS: u64 = 3_600_000;
/// How long a stalling node holds the stream open for its client.
const HOLD: Duration = Duration::from_secs(120);

/// Options for starting a byzantine node.
#[derive(Clone, Debug)]
pub struct ByzantineOptions<'a> {
    /// Its folder, for the honest half's journal.
    pub folder: &'a Path,
    /// The store.
    pub store_url: &'a str,
    /// Shard count of the store.
    pub shards: u16,
    /// Pause before each token.
    pub echo_delay: Duration,
    /// Its bootstrap peers.
    pub bootstrap: Vec<Multiaddr>,
    /// Its behaviours, in turn.
    pub behaviours: Vec<Behaviour>,
    /// Index of the first behaviour.
    pub begin: usize,
    /// The log of its falsified replies.
    pub log: MisbehaviourLog,
}

/// A running byzantine node.
#[derive(Debug)]
pub struct ByzantineNode {
    /// Its identity.
    pub node: NodeId,
    /// Its addresses, with `/p2p/`.
    pub addresses: Vec<Multiaddr>,
    meshes: [MeshHandle; 2],
    stop: CancellationToken,
    serving: JoinHandle<()>,
    honest: JoinHandle<Result<(), ServiceError>>,
}

/// The keys of a byzantine node, and its record.
struct ByzantineKeys {
    signing: SecretSigningKey,
    exchange: ExchangeSecret,
    offer: ModelOffer,
    addresses: OnceLock<Vec<String>>,
}

impl NodeIdentity for ByzantineKeys {
    fn signing_key(&self) -> &SecretSigningKey {
        &self.signing
    }

    fn exchange_secret(&self, key: &ExchangeKeyId, _now_ms: u64) -> Option<ExchangeSecret> {
        (self.exchange.public_key().id() == *key).then(|| self.exchange.clone())
    }

    fn record(&self) -> SignedBytes {
        let now = system_clock()();
        let until_ms = now + RECORD_LIFE_MS;
        let key = KeyWindow { key: self.exchange.public_key(), from_ms: now.saturating_sub(1000), until_ms };
        let record = NodeRecord {
            version: NODE_RECORD_VERSION,
            node: self.signing.node_id(),
            sequence: now,
            addresses: self.addresses.get().cloned().unwrap_or_default(),
            keys: vec![key],
            models: vec![self.offer.clone()],
            limits: NodeLimits { slots: 1, queue: 16, turns_per_minute: 120, max_output_tokens: 4096 },
            storage: StorageOffer::default(),
            versions: vec![VERSION],
            software: concat!("baton-node/", env!("CARGO_PKG_VERSION")).to_owned(),
            issued_ms: now,
            expires_ms: until_ms,
        };
        SignedObject::sign(record, &self.signing).bytes().clone()
    }
}

/// Shared state of a byzantine node's tasks.
struct ByzantineProxy {
    keys: Arc<ByzantineKeys>,
    honest: NodeService,
    script: Mutex<MisbehaviourScript>,
    log: MisbehaviourLog,
    /// Whether blobs are called stored and not stored, from the last turn's request on.
    claims_stored: Arc<AtomicBool>,
    /// Falsified attempts, with the reply to a later status request.
    status_replies: Mutex<HashMap<(TurnId, u32), Option<OtherTurn>>>,
}

/// The sealed turn of another attempt, for a false status reply.
#[derive(Clone)]
struct OtherTurn {
    attempt: AttemptKey,
    misbehaviour: Misbehaviour,
    sealed: SealedTurn,
}

impl ByzantineNode {
    /// Starts a byzantine node.
    ///
    /// # Errors
    /// The error of opening its journal or of listening.
    pub async fn start(options: ByzantineOptions<'_>) -> anyhow::Result<Self> {
        let config = EchoConfig { token_delay: options.echo_delay, ..EchoConfig::default() };
        let engine = EchoEngine::new(&config, Handle::current());
        Self::start_with(options, Arc::new(engine)).await
    }

    /// Starts a node with this engine in place of the echo engine. Behaviours that change an answer know the echo
    /// engine alone; without behaviours the node serves honestly whatever the engine computes.
    ///
    /// # Errors
    /// As [`ByzantineNode::start`].
    pub async fn start_with(options: ByzantineOptions<'_>, engine: Arc<dyn Engine>) -> anyhow::Result<Self> {
        let info = engine.info();
        let offer = ModelOffer {
            model: info.model_id,
            name: info.name.clone(),
            engine: info.kind,
            context_tokens: info.context_tokens,
            input_price: 0,
            output_price: 0,
        };
        let (signing, exchange) = (SecretSigningKey::generate(), ExchangeSecret::generate());
        let keys = Arc::new(ByzantineKeys { signing, exchange, offer, addresses: OnceLock::new() });
        let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().context("a constant address")?];
        let agent = concat!("baton-node/", env!("CARGO_PKG_VERSION"));
        let mut config = MeshConfig::server(agent, listen);
        config.bootstrap = options.bootstrap.clone();
        config.limits.own_networks = Networks::loopback();
        let (mesh, incoming) = Mesh::spawn(keys.signing.expose_seed(), config).await?;
        let addresses = mesh.bootstrap_addrs();
        let _ = keys.addresses.set(mesh.listen_addrs().iter().map(ToString::to_string).collect());
        // The honest half receives turns from the proxy alone; its own mesh has no peers.
        let (own, nobody) =
            Mesh::spawn(keys.signing.expose_seed(), MeshConfig::server(agent, Vec::new())).await?;
        let claims_stored = Arc::new(AtomicBool::new(false));
        let honest =
            NodeService::new(deps(&options, engine, keys.clone(), (mesh.clone(), claims_stored.clone()))?);
        let stop = CancellationToken::new();
        let running = tokio::spawn(honest.clone().run(nobody, stop.clone()));
        let proxy = Arc::new(ByzantineProxy {
            keys: keys.clone(),
            honest,
            script: Mutex::new(MisbehaviourScript::new(options.behaviours, options.begin)),
            log: options.log,
            claims_stored,
            status_replies: Mutex::default(),
        });
        let serving = tokio::spawn(accept(proxy, incoming, stop.clone()));
        let node = keys.signing.node_id();
        Ok(Self { node, addresses, meshes: [mesh, own], stop, serving, honest: running })
    }

    /// Stops it and joins its tasks.
    ///
    /// # Errors
    /// When its honest half failed.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.stop.cancel();
        self.serving.await?;
        self.honest.await??;
        for mesh in self.meshes {
            mesh.shutdown().await;
        }
        Ok(())
    }
}

fn deps(
    options: &ByzantineOptions<'_>,
    engine: Arc<dyn Engine>,
    identity: Arc<ByzantineKeys>,
    (peers, claims_stored): (MeshHandle, Arc<AtomicBool>),
) -> anyhow::Result<ServiceDeps> {
    let shards = ShardCount::new(options.shards)?;
    let store = Arc::new(HttpStore::builder(options.store_url, options.store_url, shards).build()?);
    let journal = Journal::open(options.folder, JournalLimits::default(), system_clock()())?;
    Ok(ServiceDeps {
        engines: vec![engine],
        store: Arc::new(FalseStore::new(store.clone(), shards, claims_stored)),
        heads: Some(store),
        identity,
        journal,
        limits: ServiceLimits {
            prices: BTreeMap::new(),
            // A turn interrupted on purpose is of no further use.
            attach_grace: Duration::ZERO,
            drain_grace: Duration::from_secs(1),
            own_networks: Networks::loopback(),
            ..ServiceLimits::default()
        },
        clock: system_clock(),
        observer: Arc::new(NoObserver),
        peers: Some(peers),
        log_key: LogKey::random(),
        pause: PausePoints::default(),
    })
}

async fn accept(proxy: Arc<ByzantineProxy>, mut incoming: Incoming, stop: CancellationToken) {
    let mut streams = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            // Joined as they end, so that the set stays small.
            Some(_) = streams.join_next() => {}
            next = incoming.next() => match next {
                Some((_, stream)) => drop(streams.spawn(serve(proxy.clone(), stream))),
                None => break,
            },
        }
    }
    streams.shutdown().await;
}

async fn serve(proxy: Arc<ByzantineProxy>, stream: TurnStream) {
    // Most misbehaviour makes the client disconnect.
    if let Err(error) = proxy.answer(stream).await {
        tracing::debug!(%error, "a substream of a hostile node ended");
    }
}

impl ByzantineProxy {
    async fn answer(&self, mut stream: TurnStream) -> Result<(), FrameError> {
        let Some(bytes) = stream.recv(MAX_FRAME_BYTES).await? else { return Ok(()) };
        match codec::decode::<ClientFrame>(&bytes, MAX_FRAME_BYTES) {
            Ok(ClientFrame::Turn(request)) => Box::pin(self.turn(stream, &bytes, &request)).await,
            Ok(ClientFrame::Note(note)) => match self.status(note) {
                Some(answer) => send_only(stream, &answer).await,
                None => self.pass(stream, &bytes).await,
            },
            Ok(ClientFrame::FetchBlob { digest, .. }) => match self.other_blob(digest) {
                Some(blob) => send_only(stream, &NodeFrame::Blob(blob)).await,
                None => self.pass(stream, &bytes).await,
            },
            _ => self.pass(stream, &bytes).await,
        }
    }

    /// Passes a request to the honest half, and its reply back unchanged.
    async fn pass(&self, stream: TurnStream, request: &[u8]) -> Result<(), FrameError> {
        let mut honest = self.ask_honest(stream.remote());
        honest.send(request).await?;
        relay(honest, stream).await
    }

    /// A substream to the honest half, as if the client had opened it.
    fn ask_honest(&self, client: NodeId) -> TurnStream {
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        let name = TURN_PROTOCOL;
        self.honest.serve(TurnStream::from_io(client, name.as_ref(), far.compat()));
        TurnStream::from_io(self.keys.signing.node_id(), name.as_ref(), near.compat())
    }

    /// The false status of a falsified attempt; `None` if the honest half may reply.
    fn status(&self, note: SignedBytes) -> Option<NodeFrame> {
        let asked =
            SignedObject::<TurnNote>::verify(note).ok().filter(|note| note.kind == TurnNoteKind::Status)?;
        let sealed = self.status_replies.lock().get(&(asked.turn_id, asked.attempt)).cloned()?;
        Some(match sealed {
            Some(OtherTurn { sealed, .. }) => NodeFrame::Status(TurnStatus::Sealed {
                committed: Box::new(sealed.committed()),
                store: StoreState::Pending,
            }),
            None => NodeFrame::Refused { code: ErrorCode::StatusUnknown, retry_after_ms: 0 },
        })
    }

    /// The blob of another turn. Only this blob proves the substitution; before it, the reply looks merely
    /// cut short.
    fn other_blob(&self, digest: BlobDigest) -> Option<Vec<u8>> {
        let later = self.status_replies.lock();
        let other = later.values().flatten().find(|other| other.sealed.blob_digest == digest)?;
        self.log.record(other.attempt, other.misbehaviour, None);
        Some(other.sealed.blob.clone())
    }
}

/// Forwards frames until the honest half ends its reply.
async fn relay(mut from: TurnStream, mut to: TurnStream) -> Result<(), FrameError> {
    while let Some(frame) = from.recv(MAX_NODE_FRAME_BYTES).await? {
        to.send(&frame).await?;
    }
    to.close().await
}

async fn send_only(mut stream: TurnStream, frame: &NodeFrame) -> Result<(), FrameError> {
    stream.send(&codec::encode(frame)).await?;
    stream.close().await
}
