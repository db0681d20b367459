//! Nodes that embed texts and serve no turns, honest or byzantine.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use baton_client::{Client, Multiaddr};
use baton_keys::{SecretSigningKey, exchange::ExchangeSecret};
use baton_mesh::{EMBED_PROTOCOL, Incoming, Mesh, MeshConfig, MeshHandle, TurnStream};
use baton_proto::{
    ErrorCode, SignedObject, codec,
    embed::{EmbedAnswer, EmbedAuth, EmbedFrame, EmbedReply, SealedReply},
    ids::{AuthHash, ModelId, NodeId},
    limits::{MAX_EMBED_ANSWER_BYTES, MAX_EMBED_FRAME_BYTES, MAX_FRAME_BYTES, VERSION},
    node_record::{ModelOffer, NodeRecord, StorageOffer},
    receipt::EngineKind,
    wire::{ClientFrame, NodeFrame},
};
use parking_lot::Mutex;

use crate::{
    World,
    fake::{now_ms, signed_record},
};

pub const EMBEDDER: &str = "tiny-embedder";

/// The node's action for the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbedderAct {
    Serve,
    Refuse(ErrorCode),
    /// Signs with another key.
    Forge,
    OtherModel,
    OtherOrder,
    /// Returns a vector too few.
    Fewer,
    NotFinite,
    FlippedBit,
    Garbage,
    Huge,
    /// Ends the substream.
    HangUp,
    /// Sends no answer.
    Silent,
}

/// The shared state of a test's nodes: their next actions, and the requests with their number of texts.
#[derive(Clone, Default)]
pub struct Script {
    pub acts: Arc<Mutex<VecDeque<EmbedderAct>>>,
    pub asked: Arc<Mutex<Vec<(NodeId, EmbedAuth, usize)>>>,
    /// Turns requested from a node that serves none.
    pub turns: Arc<Mutex<usize>>,
}

/// A node that embeds texts and serves no turns.
pub struct Embedder {
    pub mesh: MeshHandle,
}

struct EmbedderInner {
    signing: SecretSigningKey,
    exchange: ExchangeSecret,
    script: Script,
}

impl Embedder {
    pub async fn start(script: &Script) -> Self {
        let shared = Arc::new(EmbedderInner {
            signing: SecretSigningKey::generate(),
            exchange: ExchangeSecret::generate(),
            script: script.clone(),
        });
        let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
        let config =
            MeshConfig { side_protocols: vec![EMBED_PROTOCOL], ..MeshConfig::server("embedder", listen) };
        let (mesh, incoming) = Mesh::spawn(shared.signing.expose_seed(), config).await.unwrap();
        tokio::spawn(accept(shared, incoming));
        Self { mesh }
    }

    pub fn addrs(&self) -> Vec<Multiaddr> {
        self.mesh.bootstrap_addrs()
    }
}

async fn accept(shared: Arc<EmbedderInner>, mut incoming: Incoming) {
    while let Some((_, stream)) = incoming.next().await {
        let shared = shared.clone();
        tokio::spawn(async move {
            if stream.protocol() == EMBED_PROTOCOL.as_ref() {
                embed(&shared, stream).await;
            } else {
                tell(&shared, stream).await;
            }
        });
    }
}

fn record(shared: &EmbedderInner) -> SignedObject<NodeRecord> {
    let model = ModelOffer {
        model: ModelId([0x1e; 32]),
        name: EMBEDDER.to_owned(),
        engine: EngineKind::Embedding,
        context_tokens: 256,
        input_price: 0,
        output_price: 0,
    };
    let key = shared.exchange.public_key();
    signed_record(&shared.signing, key, model, StorageOffer::default(), now_ms())
}

async fn tell(shared: &EmbedderInner, mut stream: TurnStream) {
    let Ok(Some(bytes)) = stream.recv(MAX_FRAME_BYTES).await else { return };
    let answer = match codec::decode::<ClientFrame>(&bytes, MAX_FRAME_BYTES).unwrap() {
        ClientFrame::NodeRecord => NodeFrame::NodeRecord(record(shared).bytes().clone()),
        _ => {
            *shared.script.turns.lock() += 1;
            NodeFrame::Refused { code: ErrorCode::ModelUnavailable, retry_after_ms: 0 }
        }
    };
    let _ = stream.send(&codec::encode(&answer)).await;
    let _ = stream.close().await;
}

/// The vector of a text: its length and its first byte.
pub fn vector(text: &str) -> [f32; 2] {
    [f32::from(u16::try_from(text.len()).unwrap()), f32::from(text.as_bytes()[0])]
}

async fn embed(shared: &EmbedderInner, mut stream: TurnStream) {
    let Ok(Some(bytes)) = stream.recv(MAX_EMBED_FRAME_BYTES).await else { return };
    let EmbedFrame::Request(request) = codec::decode(&bytes, MAX_EMBED_FRAME_BYTES).unwrap();
    let auth = SignedObject::<EmbedAuth>::verify(request.auth).unwrap();
    assert_eq!((auth.audience, auth.check_time(now_ms())), (shared.signing.node_id(), Ok(())));
    let (texts, secret) = request.texts.open(&shared.exchange, &auth).unwrap();
    let seen = (auth.audience, EmbedAuth::clone(&auth), texts.texts.len());
    shared.script.asked.lock().push(seen);
    let act = shared.script.acts.lock().pop_front().unwrap_or(EmbedderAct::Serve);
    let mut reply = EmbedReply {
        version: VERSION,
        node: shared.signing.node_id(),
        auth_hash: auth.auth_hash(),
        model: auth.model,
        dimensions: 2,
        tokens: vec![4; texts.texts.len()],
        components: texts.texts.iter().flat_map(|text| vector(text)).collect(),
    };
    let mut key = shared.signing.clone();
    match act {
        EmbedderAct::Forge => key = SecretSigningKey::generate(),
        EmbedderAct::OtherModel => reply.model = ModelId([9; 32]),
        EmbedderAct::OtherOrder => reply.auth_hash = AuthHash([9; 32]),
        EmbedderAct::Fewer => {
            reply.tokens.pop();
            reply.components.truncate(2 * reply.tokens.len());
        }
        EmbedderAct::NotFinite => reply.components[0] = f32::NAN,
        _ => {}
    }
    let nonce = baton_keys::secret::random_bytes();
    let mut sealed = SealedReply::seal(&reply, &key, &secret, &nonce);
    if act == EmbedderAct::FlippedBit {
        sealed.0[7] ^= 1;
    }
    let bytes = match act {
        EmbedderAct::Refuse(code) => codec::encode(&EmbedAnswer::Refused { code, retry_after_ms: 10 }),
        EmbedderAct::Garbage => vec![0xff; 40],
        EmbedderAct::Huge => vec![0; MAX_EMBED_ANSWER_BYTES + 1],
        EmbedderAct::HangUp => return,
        EmbedderAct::Silent => return drop(stream.recv(16).await),
        _ => codec::encode(&EmbedAnswer::Embedded { nonce, sealed }),
    };
    // A client that went away is part of some tests.
    let _ = stream.send(&bytes).await;
    let _ = stream.close().await;
}

/// A client that knows one node for turns and some for embeddings.
pub async fn client(world: &World, embedders: &[Embedder]) -> Client {
    let mut config = world.config(world.home.path());
    config.bootstrap.extend(embedders.iter().flat_map(Embedder::addrs));
    config.timeouts.embed = Duration::from_millis(500);
    Client::open(config).await.unwrap()
}
