//! A node that speaks the turn protocol over a real mesh, and fails as its script says. Its model answers
//! with the received text and the number of earlier turns that it could read.

mod act;
pub mod embed;
mod turn;

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use baton_keys::{SecretSigningKey, exchange::ExchangeSecret};
use baton_mesh::{EMBED_PROTOCOL, Mesh, MeshConfig, MeshHandle, Networks, TurnStream};
use baton_proto::{
    ErrorCode, SignedObject, codec,
    commit::SealedTurn,
    ids::{BlobDigest, ExchangeKey, LinkHash, ModelId, NodeId, SessionId, TurnId},
    limits::{MAX_FRAME_BYTES, NODE_RECORD_VERSION, VERSION},
    node_record::{KeyWindow, MAX_EPOCHS, ModelOffer, NodeLimits, NodeRecord, StorageOffer},
    note::{TurnNote, TurnNoteKind},
    receipt::EngineKind,
    turn::{StoragePolicy, TurnAuth},
    wire::{ClientFrame, NodeFrame, StoreState, TurnStatus},
};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::store::Stores;
use crate::{Multiaddr, system_clock};

pub use act::Act;

#[derive(Default)]
pub struct NodeLog {
    pub turns: Vec<TurnAuth>,
    /// The payload fields beside the messages: schema and storage.
    pub asked: Vec<(Option<String>, StoragePolicy)>,
    pub inlined: Vec<usize>,
    pub acks: Vec<TurnNote>,
    pub aborts: Vec<(TurnId, u32)>,
    pub statuses: usize,
    /// Number of acknowledgements to lose before it accepts one.
    pub lose_acks: usize,
    /// Answers acknowledgements like a node without its journal.
    pub forgotten: bool,
    pub ack_requests: usize,
    /// Accepts every request and answers none.
    pub deaf: bool,
    /// Offers an exchange key whose X25519 part is of small order.
    pub unusable_key: bool,
    /// Every request, with the peer that sent it.
    pub frames: Vec<SeenFrame>,
    /// Every opened payload, as encoded, with the session's id.
    pub payloads: Vec<(SessionId, Vec<u8>)>,
    /// The acts that happened, by attempt.
    pub lies: HashMap<AttemptKey, Lie>,
}

/// The key of an attempt, known to both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttemptKey {
    pub session: SessionId,
    pub seq: u64,
    pub attempt: u32,
}

/// An act, as it happened.
#[derive(Debug, Clone, Copy)]
pub struct Lie {
    pub act: Act,
    pub at: Instant,
    /// The link that the client may accept nevertheless.
    pub link: Option<LinkHash>,
}

/// The tokens of a model that gives one to each word, as the echo engine does.
#[derive(Debug, Clone, Copy)]
pub struct WordTokens {
    pub id_of: fn(&str) -> u32,
    /// Pause before each token.
    pub delay: Duration,
}

/// A request as a node saw it.
#[derive(Clone)]
pub struct SeenFrame {
    /// The connection's other end.
    pub peer: NodeId,
    /// The request.
    pub frame: ClientFrame,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

struct FakeNodeState {
    script: VecDeque<Act>,
    sealed: HashMap<(TurnId, u32), SealedTurn>,
    /// The turn that runs until it was asked about often enough.
    running: Option<(TurnId, u32)>,
    blobs: HashMap<BlobDigest, Vec<u8>>,
    seen: NodeLog,
    storage: StorageOffer,
    model: ModelOffer,
    /// Of a node that embeds texts.
    embedding: Option<embed::Script>,
}

struct FakeNodeInner {
    signing: SecretSigningKey,
    exchange: ExchangeSecret,
    engine: EngineKind,
    /// Without them, an answer has two tokens.
    words: Option<WordTokens>,
    bootstrap: Vec<Multiaddr>,
    stores: Stores,
    state: Mutex<FakeNodeState>,
    /// The node's clock error, in milliseconds ahead.
    clock_ahead_ms: AtomicI64,
    /// Rises with every question about a turn.
    asked: watch::Sender<usize>,
    /// Rises with every turn that begins to hang.
    hanging: watch::Sender<u32>,
    /// Rises with every hanging turn whose client goes away.
    left: watch::Sender<u32>,
}

impl FakeNodeInner {
    /// The time by the node's clock.
    fn now_ms(&self) -> u64 {
        now_ms().saturating_add_signed(self.clock_ahead_ms.load(Ordering::SeqCst))
    }

    async fn spawn(self: Arc<Self>, listen: Vec<Multiaddr>) -> MeshHandle {
        let (shared, bootstrap) = (self.clone(), self.bootstrap.clone());
        spawn_peer(&self.signing, listen, bootstrap, move |_, stream| serve(shared.clone(), stream)).await
    }
}

#[derive(Clone)]
pub struct FakeNode {
    shared: Arc<FakeNodeInner>,
    mesh: MeshHandle,
    listen: Vec<Multiaddr>,
}

pub const MODEL: &str = "parrot";

/// Time for which a queue stands still.
pub const QUEUE: Duration = Duration::from_millis(900);

pub fn now_ms() -> u64 {
    system_clock()()
}

impl FakeNode {
    pub async fn start(stores: impl Into<Stores>, engine: EngineKind) -> Self {
        let model = ModelOffer {
            model: ModelId([7; 32]),
            name: MODEL.to_owned(),
            engine,
            context_tokens: 4096,
            input_price: 1,
            output_price: 2,
        };
        Self::start_with(stores.into(), model, None, Vec::new()).await
    }

    /// A node of a network, with another model.
    pub async fn start_with(
        stores: Stores,
        model: ModelOffer,
        words: Option<WordTokens>,
        bootstrap: Vec<Multiaddr>,
    ) -> Self {
        let shared = Arc::new(FakeNodeInner {
            signing: SecretSigningKey::generate(),
            exchange: ExchangeSecret::generate(),
            engine: model.engine,
            words,
            bootstrap,
            stores,
            clock_ahead_ms: AtomicI64::new(0),
            state: Mutex::new(FakeNodeState {
                script: VecDeque::new(),
                sealed: HashMap::new(),
                running: None,
                blobs: HashMap::new(),
                seen: NodeLog::default(),
                // Long enough for every test that counts epochs.
                storage: StorageOffer { unknown_max_epochs: MAX_EPOCHS, ..StorageOffer::default() },
                model,
                embedding: None,
            }),
            asked: watch::channel(0).0,
            hanging: watch::channel(0).0,
            left: watch::channel(0).0,
        });
        let mesh = shared.clone().spawn(any_port()).await;
        let listen = mesh.listen_addrs();
        Self { shared, mesh, listen }
    }

    /// Starts it again at the same address, after a stop.
    pub async fn revive(&mut self) {
        self.mesh = self.shared.clone().spawn(self.listen.clone()).await;
    }

    pub fn stores(&self) -> Stores {
        self.shared.stores.clone()
    }

    pub fn id(&self) -> NodeId {
        self.shared.signing.node_id()
    }

    /// The key to which payloads are sealed.
    pub fn exchange_key(&self) -> ExchangeKey {
        self.shared.exchange.public_key()
    }

    /// The peers that this node is connected with.
    pub fn connected(&self) -> Vec<NodeId> {
        let peers = self.mesh.peers().into_iter();
        peers.filter(|peer| peer.connected).map(|peer| peer.node).collect()
    }

    pub fn addrs(&self) -> Vec<Multiaddr> {
        self.mesh.bootstrap_addrs()
    }

    pub fn script(&self, acts: impl IntoIterator<Item = Act>) {
        self.shared.state.lock().script.extend(acts);
    }

    /// Sets the node's clock ahead, or behind.
    pub fn set_clock_ahead(&self, ms: i64) {
        self.shared.clock_ahead_ms.store(ms, Ordering::SeqCst);
    }

    /// Loses all blobs that it serves to others.
    pub fn forget_blobs(&self) {
        self.shared.state.lock().blobs.clear();
    }

    /// Sets the terms of storage in its record.
    pub fn offer_storage(&self, storage: StorageOffer) {
        self.shared.state.lock().storage = storage;
    }

    /// Offers another model than the other nodes.
    pub fn offer_model(&self, name: &'static str, id: u8) {
        let mut state = self.shared.state.lock();
        (state.model.name, state.model.model) = (name.to_owned(), ModelId([id; 32]));
    }

    pub(crate) fn embed(&self, script: &embed::Script) {
        self.shared.state.lock().embedding = Some(script.clone());
    }

    pub fn clear_script(&self) {
        self.shared.state.lock().script.clear();
    }

    pub fn seen<T>(&self, look: impl FnOnce(&mut NodeLog) -> T) -> T {
        look(&mut self.shared.state.lock().seen)
    }

    /// Waits until a turn hangs.
    pub async fn hangs(&self) {
        self.hung(1).await;
    }

    /// Waits until the clients of this many hanging turns went away.
    pub async fn left(&self, turns: u32) {
        self.shared.left.subscribe().wait_for(|count| *count >= turns).await.unwrap();
    }

    /// Waits until this many turns hung.
    pub async fn hung(&self, turns: u32) {
        self.shared.hanging.subscribe().wait_for(|count| *count >= turns).await.unwrap();
    }

    pub async fn stop(&self) {
        self.mesh.shutdown().await;
    }
}

async fn send(stream: &mut TurnStream, frame: &NodeFrame) {
    // A client that went away is part of many tests.
    let _ = stream.send(&codec::encode(frame)).await;
}

async fn serve(shared: Arc<FakeNodeInner>, mut stream: TurnStream) {
    let embedding = shared.state.lock().embedding.clone();
    if let Some(script) = embedding.filter(|_| stream.protocol() == EMBED_PROTOCOL.as_ref()) {
        return embed::embed(&shared, &script, stream).await;
    }
    let Ok(Some(bytes)) = stream.recv(MAX_FRAME_BYTES).await else { return };
    if shared.state.lock().seen.deaf {
        // Waits until the other side gives up.
        let _ = stream.recv(16).await;
        return;
    }
    let frame = codec::decode::<ClientFrame>(&bytes, MAX_FRAME_BYTES).unwrap();
    let seen = SeenFrame { peer: stream.remote(), frame: frame.clone(), bytes };
    shared.state.lock().seen.frames.push(seen);
    let refused = |code| NodeFrame::Refused { code, retry_after_ms: 0 };
    let answer = match frame {
        ClientFrame::NodeRecord => NodeFrame::NodeRecord(record(&shared).bytes().clone()),
        ClientFrame::Turn(request) => return turn::serve(&shared, stream, request).await,
        ClientFrame::Relay { .. } | ClientFrame::Quota(_) => refused(ErrorCode::PayloadRejected),
        ClientFrame::Note(bytes) => {
            let note = SignedObject::<TurnNote>::verify(bytes).unwrap().into_value();
            let Some(answer) = note_answer(&shared, note) else { return };
            answer
        }
        ClientFrame::FetchBlob { digest, .. } => {
            let found = shared.state.lock().blobs.get(&digest).cloned();
            found.map_or(refused(ErrorCode::BlobUnavailable), NodeFrame::Blob)
        }
    };
    send(&mut stream, &answer).await;
    let _ = stream.close().await;
}

fn record(shared: &FakeNodeInner) -> SignedObject<NodeRecord> {
    let mut key = *shared.exchange.public_key().as_bytes();
    let state = shared.state.lock();
    if state.seen.unusable_key {
        key[ExchangeKey::LEN - 32..].fill(0);
    }
    let (node, model) = (shared.signing.node_id(), state.model.clone());
    let record = NodeRecord {
        storage: state.storage,
        ..node_record(node, ExchangeKey::from(key), model, shared.now_ms())
    };
    SignedObject::sign(record, &shared.signing)
}

/// A record of a node with one key and one model, valid for an hour.
#[must_use]
pub fn node_record(node: NodeId, key: ExchangeKey, model: ModelOffer, now_ms: u64) -> NodeRecord {
    let until_ms = now_ms + 3_600_000;
    NodeRecord {
        version: NODE_RECORD_VERSION,
        node,
        sequence: now_ms,
        addresses: Vec::new(),
        keys: vec![KeyWindow { key, from_ms: now_ms.saturating_sub(1000), until_ms }],
        models: vec![model],
        limits: NodeLimits { slots: 4, queue: 8, turns_per_minute: 600, max_output_tokens: 256 },
        storage: StorageOffer::default(),
        versions: vec![VERSION],
        software: "fake".to_owned(),
        issued_ms: now_ms,
        expires_ms: until_ms,
    }
}

/// Starts the mesh of a server on this machine, with a task for each of its streams.
pub(crate) async fn spawn_peer<T: Future<Output = ()> + Send + 'static>(
    signing: &SecretSigningKey,
    listen: Vec<Multiaddr>,
    bootstrap: Vec<Multiaddr>,
    serve: impl Fn(MeshHandle, TurnStream) -> T + Send + 'static,
) -> MeshHandle {
    let mut config = MeshConfig::server("fake", listen);
    (config.side_protocols, config.bootstrap) = (vec![EMBED_PROTOCOL], bootstrap);
    config.limits.own_networks = Networks::loopback();
    let (mesh, mut incoming) = Mesh::spawn(signing.expose_seed(), config).await.unwrap();
    let own = mesh.clone();
    tokio::spawn(async move {
        while let Some((_, stream)) = incoming.next().await {
            tokio::spawn(serve(own.clone(), stream));
        }
    });
    mesh
}

pub(crate) fn any_port() -> Vec<Multiaddr> {
    vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()]
}

/// The answer to a note; none to a lost one.
fn note_answer(shared: &FakeNodeInner, note: TurnNote) -> Option<NodeFrame> {
    match note.kind {
        TurnNoteKind::Status => Some(status(shared, &note)),
        TurnNoteKind::Abort => {
            shared.state.lock().seen.aborts.push((note.turn_id, note.attempt));
            Some(NodeFrame::Done)
        }
        TurnNoteKind::Ack(_) => {
            let mut state = shared.state.lock();
            state.seen.ack_requests += 1;
            if state.seen.lose_acks > 0 {
                state.seen.lose_acks -= 1;
                return None;
            }
            if state.seen.forgotten {
                return Some(NodeFrame::Refused { code: ErrorCode::StatusUnknown, retry_after_ms: 0 });
            }
            state.seen.acks.push(note);
            Some(NodeFrame::Done)
        }
    }
}

fn status(shared: &FakeNodeInner, note: &TurnNote) -> NodeFrame {
    let mut state = shared.state.lock();
    state.seen.statuses += 1;
    shared.asked.send_replace(state.seen.statuses);
    if state.running == Some((note.turn_id, note.attempt)) {
        return NodeFrame::Status(TurnStatus::Accepted);
    }
    match state.sealed.get(&(note.turn_id, note.attempt)) {
        None => NodeFrame::Refused { code: ErrorCode::StatusUnknown, retry_after_ms: 0 },
        Some(sealed) => NodeFrame::Status(TurnStatus::Sealed {
            committed: Box::new(sealed.committed()),
            store: StoreState::Pending,
        }),
    }
}
