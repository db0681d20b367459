//! Embeddings against scripted nodes over a real mesh, by the library and through the endpoint.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use baton_client::{Client, ClientError, Multiaddr, choose::NoChoice};
use baton_keys::{SecretSigningKey, exchange::ExchangeSecret};
use baton_mesh::{EMBED_PROTOCOL, Incoming, Mesh, MeshConfig, MeshHandle, TurnStream};
use baton_proto::{
    ErrorCode, Signed, codec,
    embed::{EmbedAnswer, EmbedAuth, EmbedFrame, EmbedReply, SealedReply},
    ids::{AuthHash, ModelId, NodeId},
    limits::{MAX_EMBED_ANSWER_BYTES, MAX_EMBED_FRAME_BYTES, MAX_FRAME_BYTES, VERSION},
    node_record::{KeyWindow, ModelOffer, NodeLimits, NodeRecord},
    receipt::EngineKind,
    wire::{ClientFrame, NodeFrame},
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    GRACE, World,
    fake::{MODEL, now_ms},
    say,
    serve::Endpoint,
    session,
};

const EMBEDDER: &str = "tiny-embedder";

/// What is done with the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Serve,
    Refuse(ErrorCode),
    /// Signs with another key.
    Forge,
    OtherModel,
    OtherOrder,
    /// A vector too few.
    Fewer,
    NotFinite,
    FlippedBit,
    Garbage,
    Huge,
    /// Ends the substream.
    HangUp,
    /// Answers nothing.
    Silent,
}

/// What all nodes of a test share: what they are to do, and who was asked with how many texts.
#[derive(Clone, Default)]
struct Script {
    acts: Arc<Mutex<VecDeque<Act>>>,
    asked: Arc<Mutex<Vec<(NodeId, EmbedAuth, usize)>>>,
    /// Turns that somebody wanted of a node that serves none.
    turns: Arc<Mutex<usize>>,
}

/// A node that embeds texts and serves no turns.
struct Embedder {
    mesh: MeshHandle,
}

struct Shared {
    signing: SecretSigningKey,
    exchange: ExchangeSecret,
    script: Script,
}

impl Embedder {
    async fn start(script: &Script) -> Self {
        let shared = Arc::new(Shared {
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

    fn addrs(&self) -> Vec<Multiaddr> {
        self.mesh.bootstrap_addrs()
    }
}

async fn accept(shared: Arc<Shared>, mut incoming: Incoming) {
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

fn record(shared: &Shared) -> Signed<NodeRecord> {
    let now = now_ms();
    let record = NodeRecord {
        version: VERSION,
        node: shared.signing.node_id(),
        sequence: now,
        addresses: Vec::new(),
        keys: vec![KeyWindow {
            key: shared.exchange.public_key(),
            from_ms: now - 1000,
            until_ms: now + 3_600_000,
        }],
        models: vec![ModelOffer {
            model: ModelId([0x1e; 32]),
            name: EMBEDDER.to_owned(),
            engine: EngineKind::Embedding,
            context_tokens: 256,
            input_price: 0,
            output_price: 0,
        }],
        limits: NodeLimits { slots: 4, queue: 8, turns_per_minute: 600, max_output_tokens: 256 },
        versions: vec![VERSION],
        software: "embedder".to_owned(),
        issued_ms: now,
        expires_ms: now + 3_600_000,
    };
    Signed::sign(record, &shared.signing)
}

async fn tell(shared: &Shared, mut stream: TurnStream) {
    let Ok(Some(bytes)) = stream.recv(MAX_FRAME_BYTES).await else { return };
    let answer = match codec::decode::<ClientFrame>(&bytes, MAX_FRAME_BYTES).unwrap() {
        ClientFrame::NodeRecord => NodeFrame::NodeRecord(record(shared).bytes().clone()),
        _ => {
            *shared.script.turns.lock().unwrap() += 1;
            NodeFrame::Refused { code: ErrorCode::ModelUnavailable, retry_after_ms: 0 }
        }
    };
    let _ = stream.send(&codec::encode(&answer)).await;
    let _ = stream.close().await;
}

/// The vector of a text: its length and its first byte.
fn vector(text: &str) -> [f32; 2] {
    [f32::from(u16::try_from(text.len()).unwrap()), f32::from(text.as_bytes()[0])]
}

async fn embed(shared: &Shared, mut stream: TurnStream) {
    let Ok(Some(bytes)) = stream.recv(MAX_EMBED_FRAME_BYTES).await else { return };
    let EmbedFrame::Request(request) = codec::decode(&bytes, MAX_EMBED_FRAME_BYTES).unwrap();
    let auth = Signed::<EmbedAuth>::verify(request.auth).unwrap();
    assert_eq!((auth.audience, auth.check_time(now_ms())), (shared.signing.node_id(), Ok(())));
    let (texts, secret) = request.texts.open(&shared.exchange, &auth).unwrap();
    let seen = (auth.audience, EmbedAuth::clone(&auth), texts.texts.len());
    shared.script.asked.lock().unwrap().push(seen);
    let act = shared.script.acts.lock().unwrap().pop_front().unwrap_or(Act::Serve);
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
        Act::Forge => key = SecretSigningKey::generate(),
        Act::OtherModel => reply.model = ModelId([9; 32]),
        Act::OtherOrder => reply.auth_hash = AuthHash([9; 32]),
        Act::Fewer => {
            reply.tokens.pop();
            reply.components.truncate(2 * reply.tokens.len());
        }
        Act::NotFinite => reply.components[0] = f32::NAN,
        _ => {}
    }
    let nonce = baton_keys::secret::random_bytes();
    let mut sealed = SealedReply::seal(&reply, &key, &secret, &nonce);
    if act == Act::FlippedBit {
        sealed.0[7] ^= 1;
    }
    let bytes = match act {
        Act::Refuse(code) => codec::encode(&EmbedAnswer::Refused { code, retry_after_ms: 10 }),
        Act::Garbage => vec![0xff; 40],
        Act::Huge => vec![0; MAX_EMBED_ANSWER_BYTES + 1],
        Act::HangUp => return,
        Act::Silent => return drop(stream.recv(16).await),
        _ => codec::encode(&EmbedAnswer::Embedded { nonce, sealed }),
    };
    // A client that went away is part of some tests.
    let _ = stream.send(&bytes).await;
    let _ = stream.close().await;
}

/// A client that knows a node that serves turns and some that embed.
async fn client(world: &World, embedders: &[Embedder]) -> Client {
    let mut config = world.config(world.home.path());
    config.bootstrap.extend(embedders.iter().flat_map(Embedder::addrs));
    config.timeouts.embed = Duration::from_millis(500);
    Client::open(config).await.unwrap()
}

fn texts(count: usize) -> Vec<String> {
    (0..count).map(|number| "x".repeat(number + 1)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_are_embedded_in_batches_of_one_model_and_turns_go_elsewhere() {
    let (world, script) = (World::new(1).await, Script::default());
    let embedders = [Embedder::start(&script).await, Embedder::start(&script).await];
    let client = client(&world, &embedders).await;
    let texts = texts(150);
    let embedded = client.embed(&texts, Some(EMBEDDER)).await.unwrap();
    assert_eq!((embedded.model.as_str(), embedded.dimensions), (EMBEDDER, 2));
    for (text, embedded) in texts.iter().zip(&embedded.texts) {
        assert_eq!((&embedded.vector[..], embedded.tokens), (&vector(text)[..], 4));
    }
    let asked = script.asked.lock().unwrap().clone();
    assert_eq!(asked.iter().map(|(_, _, texts)| *texts).collect::<Vec<_>>(), [64, 64, 22]);
    let mut keys: Vec<_> = asked.iter().map(|(_, auth, _)| auth.client_key).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 3, "no two orders can be linked by their key");
    // No turn is asked of a node that only embeds, whatever model is wanted.
    let id = session(&client).await;
    assert_eq!(say(&client, id, "hello").await.receipt.node, world.nodes[0].id());
    assert_eq!(*script.turns.lock().unwrap(), 0);
    let rows = client.explain(None, &baton_client::ResumeOptions::default()).await.unwrap();
    let excluded = rows.iter().filter(|row| {
        matches!(
            row.verdict,
            baton_client::choose::Verdict::Excluded(baton_client::choose::Exclusion::Purpose)
        )
    });
    assert_eq!(excluded.count(), 2);
    client.shutdown(GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_node_does_wrong_another_one_is_asked() {
    let (world, script) = (World::new(1).await, Script::default());
    let embedders = [Embedder::start(&script).await, Embedder::start(&script).await];
    for act in [
        Act::Refuse(ErrorCode::Busy),
        Act::Refuse(ErrorCode::QuotaExceeded),
        Act::Forge,
        Act::OtherModel,
        Act::OtherOrder,
        Act::Fewer,
        Act::NotFinite,
        Act::FlippedBit,
        Act::Garbage,
        Act::Huge,
        Act::HangUp,
        Act::Silent,
    ] {
        // A fresh one, which knows nothing of what they did before.
        let home = tempfile::tempdir().unwrap();
        let mut config = world.config(home.path());
        config.bootstrap.extend(embedders.iter().flat_map(Embedder::addrs));
        config.timeouts.embed = Duration::from_millis(500);
        let client = Client::open(config).await.unwrap();
        script.asked.lock().unwrap().clear();
        script.acts.lock().unwrap().push_back(act);
        let both = async { while client.nodes().await.len() < 3 {} };
        tokio::time::timeout(GRACE, both).await.unwrap();
        let embedded = client.embed(&texts(2), None).await.unwrap_or_else(|error| panic!("{act:?}: {error}"));
        assert_eq!(embedded.texts[1].vector, vector("xx"), "{act:?}");
        let asked: Vec<NodeId> = script.asked.lock().unwrap().iter().map(|(node, ..)| *node).collect();
        assert_eq!(asked.len(), 2, "{act:?}");
        assert_ne!(asked[0], asked[1], "{act:?}: the other one");
        assert_eq!(embedded.texts[0].node, asked[1], "{act:?}");
        client.shutdown(GRACE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_that_stays_is_told_by_its_name() {
    let (world, script) = (World::new(1).await, Script::default());
    let embedders = [Embedder::start(&script).await];
    let client = client(&world, &embedders).await;
    // What was said twice to be wrong stays so; who lies is asked as often as anybody, and is named.
    for (act, expected, tries) in [
        (Act::Refuse(ErrorCode::PayloadRejected), ErrorCode::PayloadRejected, 2),
        (Act::Forge, ErrorCode::BadNodeSignature, 4),
    ] {
        script.asked.lock().unwrap().clear();
        script.acts.lock().unwrap().extend([act; 4]);
        let error = client.embed(&texts(1), None).await.unwrap_err();
        assert!(matches!(error, ClientError::EmbedFailed { attempts, .. } if attempts == tries), "{error}");
        assert_eq!(error.code(), Some(expected));
        assert_eq!(script.asked.lock().unwrap().len(), tries as usize);
        script.acts.lock().unwrap().clear();
    }
    let too_long = vec!["x".repeat(8193)];
    assert!(matches!(client.embed(&too_long, None).await, Err(ClientError::MessageTooLong { .. })));
    assert!(matches!(client.embed(&[], None).await, Err(ClientError::EmptyMessage)));
    // The model of turns is none of embeddings.
    let none = client.embed(&texts(1), Some(MODEL)).await.unwrap_err();
    let ClientError::NoNode(NoChoice::ModelUnavailable { served, .. }) = none else { panic!("{none}") };
    assert_eq!(served, EMBEDDER);
    client.shutdown(GRACE).await;
}

async fn post(endpoint: &Endpoint, body: &Value) -> (u16, Value) {
    let response = endpoint.request(Method::POST, "/v1/embeddings").json(body).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_endpoint_speaks_openai_s_embeddings() {
    let (world, script) = (World::new(1).await, Script::default());
    let embedders = [Embedder::start(&script).await];
    let endpoint = Endpoint::over(client(&world, &embedders).await).await;
    let (status, one) = post(&endpoint, &json!({ "model": EMBEDDER, "input": "hello", "user": "u" })).await;
    assert_eq!(status, 200, "{one}");
    assert_eq!(one["data"], json!([{ "object": "embedding", "index": 0, "embedding": vector("hello") }]));
    assert_eq!((&one["object"], &one["model"]), (&json!("list"), &json!(EMBEDDER)));
    assert_eq!(one["usage"], json!({ "prompt_tokens": 4, "total_tokens": 4 }));
    assert_eq!(one["baton"]["verified"], true);
    let both = json!({
        "model": EMBEDDER, "input": ["a", "bb"], "encoding_format": "base64", "dimensions": 2,
    });
    let (status, both) = post(&endpoint, &both).await;
    assert_eq!((status, both["data"].as_array().unwrap().len()), (200, 2));
    // 1.0 and 97.0, little-endian.
    assert_eq!(both["data"][0]["embedding"], "AACAPwAAwkI=");
    assert_eq!((&both["data"][1]["index"], &both["usage"]["total_tokens"]), (&json!(1), &json!(8)));
    for (body, status, code) in [
        (json!({ "model": EMBEDDER, "input": [[1, 2]] }), 400, "unsupported_parameter"),
        (json!({ "model": EMBEDDER, "input": "a", "dimensions": 1 }), 400, "unsupported_parameter"),
        (json!({ "model": "text-embedding-3-small", "input": "a" }), 404, "model_not_found"),
        (json!({ "model": MODEL, "input": "a" }), 404, "model_not_found"),
        (json!({ "model": EMBEDDER, "input": "a", "encoding_format": "hex" }), 400, "invalid_value"),
    ] {
        let (found, error) = post(&endpoint, &body).await;
        assert_eq!((found, error["error"]["code"].as_str()), (status, Some(code)), "{body}");
    }
    script.acts.lock().unwrap().extend([Act::Refuse(ErrorCode::Busy); 4]);
    let (status, error) = post(&endpoint, &json!({ "model": EMBEDDER, "input": "a" })).await;
    assert_eq!((status, &error["error"]["code"]), (429, &json!("rate_limit_exceeded")));
    // Both kinds of models are listed, told apart by what serves them.
    let models = endpoint.request(Method::GET, "/v1/models").send().await.unwrap();
    let models: Value = models.json().await.unwrap();
    let listed: Vec<_> = models["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| (model["id"].as_str().unwrap(), model["baton"]["engine"].as_str().unwrap()))
        .collect();
    assert_eq!(listed, [(MODEL, "native"), (EMBEDDER, "embedding")]);
    endpoint.close().await;
}
