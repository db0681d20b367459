//! A node that speaks the turn protocol over a real mesh, and fails as its script says. Its model answers
//! with the received text and the number of earlier turns that it could read.

mod act;
mod turn;

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use baton_client::Multiaddr;
use baton_keys::{SecretSigningKey, exchange::ExchangeSecret};
use baton_mesh::{Incoming, Mesh, MeshConfig, MeshHandle, Networks, TurnStream};
use baton_proto::{
    ErrorCode, SignedObject, codec,
    commit::SealedTurn,
    ids::{BlobDigest, ExchangeKey, ModelId, NodeId, SessionId, TurnId},
    limits::{MAX_FRAME_BYTES, NODE_RECORD_VERSION, VERSION},
    node_record::{KeyWindow, MAX_EPOCHS, ModelOffer, NodeLimits, NodeRecord, StorageOffer},
    note::{TurnNote, TurnNoteKind},
    receipt::EngineKind,
    turn::{StoragePolicy, TurnAuth},
    wire::{ClientFrame, NodeFrame, StoreState, TurnStatus},
};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::store::Stores;

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
    /// The name of the model, and the bytes of its id.
    model: (&'static str, u8),
}

struct FakeNodeInner {
    signing: SecretSigningKey,
    exchange: ExchangeSecret,
    engine: EngineKind,
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
}

#[derive(Clone)]
pub struct FakeNode {
    shared: Arc<FakeNodeInner>,
    mesh: MeshHandle,
    listen: Vec<Multiaddr>,
}

pub const MODEL: &str = "parrot";

/// Time for which a queue stands still.
pub const QUEUE: std::time::Duration = std::time::Duration::from_millis(900);

pub fn now_ms() -> u64 {
    baton_client::system_clock()()
}

impl FakeNode {
    pub async fn start(stores: impl Into<Stores>, engine: EngineKind) -> Self {
        let signing = SecretSigningKey::generate();
        let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
        let (mesh, incoming) = spawn_mesh(&signing, "fake node", listen).await;
        let shared = Arc::new(FakeNodeInner {
            signing,
            exchange: ExchangeSecret::generate(),
            engine,
            stores: stores.into(),
            clock_ahead_ms: AtomicI64::new(0),
            state: Mutex::new(FakeNodeState {
                script: VecDeque::new(),
                sealed: HashMap::new(),
                running: None,
                blobs: HashMap::new(),
                seen: NodeLog::default(),
                // Long enough for every test that counts epochs.
                storage: StorageOffer { unknown_max_epochs: MAX_EPOCHS, ..StorageOffer::default() },
                model: (MODEL, 7),
            }),
            asked: watch::channel(0).0,
            hanging: watch::channel(0).0,
            left: watch::channel(0).0,
        });
        tokio::spawn(accept(shared.clone(), incoming));
        let listen = mesh.listen_addrs();
        Self { shared, mesh, listen }
    }

    /// Starts it again at the same address, after a stop.
    pub async fn revive(&mut self) {
        let (mesh, incoming) = spawn_mesh(&self.shared.signing, "fake node", self.listen.clone()).await;
        tokio::spawn(accept(self.shared.clone(), incoming));
        self.mesh = mesh;
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
        self.shared.state.lock().model = (name, id);
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
        let mut left = self.shared.left.subscribe();
        left.wait_for(|count| *count >= turns).await.unwrap();
    }

    /// Waits until this many turns hung.
    pub async fn hung(&self, turns: u32) {
        let mut hanging = self.shared.hanging.subscribe();
        hanging.wait_for(|count| *count >= turns).await.unwrap();
    }

    pub async fn stop(&self) {
        self.mesh.shutdown().await;
    }
}

async fn send(stream: &mut TurnStream, frame: &NodeFrame) {
    // A client that went away is part of many tests.
    let _ = stream.send(&codec::encode(frame)).await;
}

async fn accept(shared: Arc<FakeNodeInner>, mut incoming: Incoming) {
    while let Some((_, stream)) = incoming.next().await {
        tokio::spawn(serve(shared.clone(), stream));
    }
}

async fn serve(shared: Arc<FakeNodeInner>, mut stream: TurnStream) {
    let Ok(Some(bytes)) = stream.recv(MAX_FRAME_BYTES).await else { return };
    if shared.state.lock().seen.deaf {
        // Waits until the other side gives up.
        let _ = stream.recv(16).await;
        return;
    }
    let frame = codec::decode::<ClientFrame>(&bytes, MAX_FRAME_BYTES).unwrap();
    let seen = SeenFrame { peer: stream.remote(), frame: frame.clone(), bytes };
    shared.state.lock().seen.frames.push(seen);
    let answer = match frame {
        ClientFrame::NodeRecord => NodeFrame::NodeRecord(record(&shared).bytes().clone()),
        ClientFrame::Turn(request) => return turn::serve(&shared, stream, request).await,
        ClientFrame::Relay { .. } | ClientFrame::Quota(_) => {
            NodeFrame::Refused { code: ErrorCode::PayloadRejected, retry_after_ms: 0 }
        }
        ClientFrame::Note(bytes) => {
            let note = SignedObject::<TurnNote>::verify(bytes).unwrap().into_value();
            let Some(answer) = note_answer(&shared, note) else { return };
            answer
        }
        ClientFrame::FetchBlob { digest, .. } => {
            let found = shared.state.lock().blobs.get(&digest).cloned();
            found.map_or(
                NodeFrame::Refused { code: ErrorCode::BlobUnavailable, retry_after_ms: 0 },
                NodeFrame::Blob,
            )
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
    let (name, id) = state.model;
    let model = ModelOffer {
        model: ModelId([id; 32]),
        name: name.to_owned(),
        engine: shared.engine,
        context_tokens: 4096,
        input_price: 1,
        output_price: 2,
    };
    signed_record(&shared.signing, ExchangeKey::from(key), model, state.storage, shared.now_ms())
}

/// A node's record, valid for an hour.
pub(crate) fn signed_record(
    signing: &SecretSigningKey,
    key: ExchangeKey,
    model: ModelOffer,
    storage: StorageOffer,
    now: u64,
) -> SignedObject<NodeRecord> {
    let until = now + 3_600_000;
    let record = NodeRecord {
        version: NODE_RECORD_VERSION,
        node: signing.node_id(),
        sequence: now,
        addresses: Vec::new(),
        keys: vec![KeyWindow { key, from_ms: now - 1000, until_ms: until }],
        models: vec![model],
        limits: NodeLimits { slots: 4, queue: 8, turns_per_minute: 600, max_output_tokens: 256 },
        storage,
        versions: vec![VERSION],
        software: "fake".to_owned(),
        issued_ms: now,
        expires_ms: until,
    };
    SignedObject::sign(record, signing)
}

/// The mesh of a server on this machine.
pub(crate) async fn spawn_mesh(
    signing: &SecretSigningKey,
    agent: &str,
    listen: Vec<Multiaddr>,
) -> (MeshHandle, Incoming) {
    let mut config = MeshConfig::server(agent, listen);
    config.limits.own_networks = Networks::loopback();
    Mesh::spawn(signing.expose_seed(), config).await.unwrap()
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
