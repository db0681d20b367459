//! Embeddings over real sockets: served requests, refusals before any work, rates and bans, and requests
//! whose client leaves.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use baton_keys::{
    SecretSigningKey,
    exchange::{EmbedSecret, EphemeralSecret, SUITE},
    secret::random_bytes,
};
use baton_mesh::{EMBED_PROTOCOL, Networks, OpenError, TurnStream};
use baton_models::embed::{CountedFuture, CountedVector, EmbedFuture, EmbedRole, Embedder, Hashing};
use baton_node::service::{EmbeddingModel, QuotaPolicy, ServiceLimits};
use baton_proto::{
    ErrorCode, SignedObject, codec,
    embed::{EmbedAnswer, EmbedAuth, EmbedFrame, EmbedReply, EmbedRequest, EmbedTexts, SealedTexts},
    ids::{EmbedId, ExchangeKeyId, ModelId, NodeId, PayloadHash},
    limits::{EMBED_AUTH_VERSION, MAX_EMBED_ANSWER_BYTES, MAX_EMBED_FRAME_BYTES, MAX_EMBED_TEXTS},
    node_record::ModelOffer,
    receipt::EngineKind,
    right::{Right, RightChain, RightScope, TurnQuota},
};
use tokio::{io::AsyncWriteExt as _, sync::Semaphore};
use tokio_util::compat::TokioAsyncReadCompatExt as _;

use crate::service::network::{
    World,
    client::{Changes, Client, Session, soon},
    node::{Setup, TestNode},
    now_ms, world,
};

const MODEL: ModelId = ModelId([0x42; 32]);

/// Embeds with permission, and counts started and dropped work.
#[derive(Debug)]
struct GatedEmbedder {
    permits: Semaphore,
    began: AtomicUsize,
    dropped: Arc<AtomicUsize>,
}

impl GatedEmbedder {
    fn new(permits: usize) -> Arc<Self> {
        Arc::new(Self {
            permits: Semaphore::new(permits),
            began: AtomicUsize::new(0),
            dropped: Arc::default(),
        })
    }

    async fn until_began(&self, count: usize) {
        until(|| self.began.load(SeqCst) >= count).await;
    }
}

/// Waits for a condition that has no event.
async fn until(condition: impl Fn() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(20), async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.expect("it becomes so");
}

struct DropCounter(Arc<AtomicUsize>, bool);

impl Drop for DropCounter {
    fn drop(&mut self) {
        if !self.1 {
            self.0.fetch_add(1, SeqCst);
        }
    }
}

impl Embedder for GatedEmbedder {
    fn id(&self) -> &str {
        "gated"
    }

    fn dimensions(&self) -> usize {
        Hashing.dimensions()
    }

    fn embed<'a>(&'a self, role: EmbedRole, texts: &'a [&'a str]) -> EmbedFuture<'a> {
        Hashing.embed(role, texts)
    }

    fn embed_counted<'a>(&'a self, role: EmbedRole, texts: &'a [&'a str]) -> CountedFuture<'a> {
        self.began.fetch_add(1, SeqCst);
        Box::pin(async move {
            let mut left = DropCounter(self.dropped.clone(), false);
            self.permits.acquire().await.unwrap().forget();
            let vectors = self.embed(role, texts).await?;
            left.1 = true;
            Ok(vectors.into_iter().map(|vector| CountedVector { vector, tokens: 3 }).collect())
        })
    }
}

fn offering(embedder: Arc<dyn Embedder>) -> Option<EmbeddingModel> {
    let offer = ModelOffer {
        model: MODEL,
        name: "test".to_owned(),
        engine: EngineKind::Embedding,
        context_tokens: 256,
        input_price: 0,
        output_price: 0,
    };
    Some(EmbeddingModel { offer, embedder })
}

async fn embedding_node() -> World {
    world(Setup { embeddings: offering(Arc::new(Hashing)), ..Setup::default() }).await
}

/// A request, with the secret for its answer.
struct Order {
    request: EmbedRequest,
    auth: SignedObject<EmbedAuth>,
    secret: EmbedSecret,
    texts: usize,
    key: SecretSigningKey,
}

fn order(node: &TestNode, texts: &[&str]) -> Order {
    changed(node, texts, |_| {})
}

/// A request with changes.
fn changed(node: &TestNode, texts: &[&str], change: impl FnOnce(&mut EmbedAuth)) -> Order {
    let key = SecretSigningKey::generate();
    let issued_ms = now_ms();
    let mut auth = EmbedAuth {
        version: EMBED_AUTH_VERSION,
        suite: SUITE,
        client_key: key.public_key(),
        request: EmbedId(random_bytes()),
        audience: node.node,
        audience_key: node.exchange.id(),
        model: MODEL,
        texts_hash: PayloadHash([0; 32]),
        issued_ms,
        expires_ms: issued_ms + 60_000,
    };
    let plain = EmbedTexts::new(texts.iter().map(|text| (*text).to_owned()).collect());
    let ephemeral = EphemeralSecret::generate();
    let (sealed, secret) = SealedTexts::seal(&plain, ephemeral, &node.exchange, &auth.binding()).unwrap();
    auth.texts_hash = sealed.hash();
    change(&mut auth);
    let auth = SignedObject::sign(auth, &key);
    let request = EmbedRequest { auth: auth.bytes().clone(), texts: sealed, quota: None };
    Order { request, auth, secret, texts: texts.len(), key }
}

/// A request that another key signed.
fn forged(node: &TestNode) -> Order {
    let mut order = order(node, &["a"]);
    let signed = SignedObject::sign(EmbedAuth::clone(&order.auth), &SecretSigningKey::generate());
    order.request.auth = signed.bytes().clone();
    order
}

async fn open(client: &Client, node: &TestNode) -> TurnStream {
    client.mesh.open_side(node.node, &node.addresses, &EMBED_PROTOCOL, soon()).await.unwrap()
}

async fn send(client: &Client, node: &TestNode, order: &Order) -> TurnStream {
    send_raw(client, node, &codec::encode(&EmbedFrame::Request(order.request.clone()))).await
}

async fn send_raw(client: &Client, node: &TestNode, frame: &[u8]) -> TurnStream {
    let mut stream = open(client, node).await;
    stream.send_by(frame, soon()).await.unwrap();
    stream
}

async fn next(stream: &mut TurnStream) -> EmbedAnswer {
    let bytes = stream.recv_by(MAX_EMBED_ANSWER_BYTES, soon()).await.unwrap().expect("an answer");
    codec::decode(&bytes, MAX_EMBED_ANSWER_BYTES).unwrap()
}

fn code(answer: EmbedAnswer) -> ErrorCode {
    match answer {
        EmbedAnswer::Refused { code, .. } => code,
        EmbedAnswer::Embedded { .. } => panic!("it was served"),
    }
}

fn reply(answer: &EmbedAnswer, order: &Order) -> EmbedReply {
    match answer {
        EmbedAnswer::Embedded { nonce, sealed } => {
            sealed.open(&order.secret, nonce, &order.auth, order.texts).unwrap()
        }
        EmbedAnswer::Refused { code, .. } => panic!("refused: {code}"),
    }
}

async fn ask(client: &Client, node: &TestNode, order: &Order) -> EmbedAnswer {
    next(&mut send(client, node, order).await).await
}

async fn refused(client: &Client, node: &TestNode, order: &Order) -> ErrorCode {
    code(ask(client, node, order).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_are_embedded_and_only_their_client_can_open_the_signed_vectors() {
    let World { node, client, .. } = embedding_node().await;
    let texts = ["the cat sleeps on the sofa", "", "interest rates rose"];
    let asked = order(&node, &texts);
    let answer = ask(&client, &node, &asked).await;
    let reply = reply(&answer, &asked);
    assert_eq!((reply.node, reply.model, reply.dimensions), (node.node, MODEL, 384));
    assert_eq!(reply.tokens, [6, 0, 3]);
    for (vector, text) in reply.vectors().zip(texts) {
        assert_eq!(vector, Hashing::embed_one(text), "{text}");
    }
    let EmbedAnswer::Embedded { nonce, sealed } = answer else { unreachable!() };
    let other = order(&node, &texts);
    assert_eq!(
        sealed.open(&other.secret, &nonce, &asked.auth, 3).unwrap_err(),
        ErrorCode::PayloadRejected,
        "nobody else opens it"
    );
    // The largest possible request.
    let long = "word ".repeat(1638);
    let many = order(&node, &[long.as_str(); MAX_EMBED_TEXTS]);
    let answer = ask(&client, &node, &many).await;
    assert_eq!(self::reply(&answer, &many).vectors().len(), MAX_EMBED_TEXTS);
    // Turns are served as well.
    client.turn(&node, &mut Session::new(), "hello").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_offers_none_does_not_speak_the_protocol() {
    let World { node, client, .. } = world(Setup::default()).await;
    let opened = client.mesh.open_side(node.node, &node.addresses, &EMBED_PROTOCOL, soon()).await;
    assert!(matches!(opened, Err(OpenError::ProtocolUnsupported)), "{opened:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_wrong_with_an_order_is_refused_by_name_and_nothing_is_computed() {
    let gated = GatedEmbedder::new(1);
    let World { node, client, .. } =
        world(Setup { embeddings: offering(gated.clone()), ..Setup::default() }).await;
    type Change = fn(&mut EmbedAuth);
    let cases: [(Change, ErrorCode); 11] = [
        (|auth| auth.version = 1, ErrorCode::UnsupportedVersion),
        (|auth| auth.suite = 1, ErrorCode::UnsupportedVersion),
        (|auth| auth.audience = NodeId([9; 32]), ErrorCode::WrongAudience),
        (|auth| auth.audience_key = ExchangeKeyId([9; 32]), ErrorCode::KxExpired),
        (|auth| auth.model = ModelId([9; 32]), ErrorCode::ModelUnavailable),
        (|auth| auth.texts_hash = PayloadHash([9; 32]), ErrorCode::PayloadRejected),
        (|auth| auth.expires_ms = now_ms() - 1, ErrorCode::Expired),
        (|auth| auth.expires_ms = auth.issued_ms + 120_001, ErrorCode::Expired),
        (|auth| auth.issued_ms += 60_000, ErrorCode::NotYetValid),
        // From before this node's memory.
        (|auth| auth.issued_ms -= 30_000, ErrorCode::Replayed),
        // Sealed for another request: the seal is invalid.
        (|auth| auth.request = EmbedId([9; 16]), ErrorCode::PayloadRejected),
    ];
    for (change, expected) in cases {
        let order = changed(&node, &["a"], change);
        assert_eq!(refused(&client, &node, &order).await, expected);
    }
    assert_eq!(refused(&client, &node, &forged(&node)).await, ErrorCode::BadSignature);
    let mut flipped = order(&node, &["a"]);
    flipped.request.texts.0[40] ^= 1;
    assert_eq!(refused(&client, &node, &flipped).await, ErrorCode::PayloadRejected);
    let mut garbage = send_raw(&client, &node, &[0xff; 9]).await;
    assert_eq!(code(next(&mut garbage).await), ErrorCode::NonCanonical);
    // Refused by its length, before any of its bytes arrive.
    let (near, mut far) = tokio::io::duplex(1 << 16);
    node.service.serve(TurnStream::from_io(NodeId([8; 32]), EMBED_PROTOCOL.as_ref(), near.compat()));
    let length = u32::try_from(MAX_EMBED_FRAME_BYTES + 1).unwrap().to_le_bytes();
    far.write_all(&length).await.unwrap();
    let mut huge = TurnStream::from_io(node.node, EMBED_PROTOCOL.as_ref(), far.compat());
    assert_eq!(code(next(&mut huge).await), ErrorCode::FrameTooLarge);
    assert_eq!(gated.began.load(SeqCst), 0);
    let good = order(&node, &["a"]);
    reply(&ask(&client, &node, &good).await, &good);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_texts_than_allowed_are_refused_once_they_are_opened() {
    let World { node, client, .. } = embedding_node().await;
    for (texts, expected) in [
        (vec![], ErrorCode::PayloadRejected),
        (vec![String::new(); MAX_EMBED_TEXTS + 1], ErrorCode::FrameTooLarge),
        (vec!["x".repeat(8193)], ErrorCode::FrameTooLarge),
    ] {
        // A client that does not check its texts.
        let mut order = order(&node, &["a"]);
        let ephemeral = EphemeralSecret::generate();
        let mut auth = EmbedAuth::clone(&order.auth);
        let (encapsulation, secret) =
            EmbedSecret::initiate(ephemeral, &node.exchange, &auth.binding()).unwrap();
        let plain = codec::pad_block(&codec::encode(&EmbedTexts { version: 1, texts }), 1024);
        let sealed = [&encapsulation.as_bytes()[..], &secret.seal_texts(&plain)].concat();
        order.request.texts = SealedTexts(sealed);
        auth.texts_hash = order.request.texts.hash();
        order.request.auth = SignedObject::sign(auth, &order.key).bytes().clone();
        assert_eq!(refused(&client, &node, &order).await, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_served_once() {
    let World { node, client, .. } = embedding_node().await;
    let thief = Client::start().await;
    let first = order(&node, &["a"]);
    reply(&ask(&client, &node, &first).await, &first);
    assert_eq!(refused(&client, &node, &first).await, ErrorCode::Replayed);
    assert_eq!(refused(&thief, &node, &first).await, ErrorCode::Replayed, "whoever brings it");
    // The same ID and key with other content.
    let mut again = order(&node, &["b"]);
    let mut auth = EmbedAuth::clone(&first.auth);
    auth.issued_ms += 1;
    again.request = EmbedRequest {
        auth: SignedObject::sign(auth, &first.key).bytes().clone(),
        texts: first.request.texts.clone(),
        quota: None,
    };
    assert_eq!(refused(&client, &node, &again).await, ErrorCode::IdempotencyConflict);
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_requests_count_to_the_same_scores_as_forged_turns() {
    let limits = ServiceLimits { own_networks: Networks::default(), ..Setup::default().limits };
    let setup = Setup { limits, embeddings: offering(Arc::new(Hashing)), ..Setup::default() };
    let World { node, client: honest, .. } = world(setup).await;
    let forger = Client::start().await;
    for _ in 0..4 {
        assert_eq!(refused(&forger, &node, &forged(&node)).await, ErrorCode::BadSignature);
    }
    // Neither protocol is read from this peer any more.
    assert_eq!(refused(&forger, &node, &order(&node, &["a"])).await, ErrorCode::RateLimited);
    let session = Session::new();
    let turn = session.prepare(&node, "hello", Changes::default());
    assert_eq!(forger.run(&node, &turn).await.code(), Some(ErrorCode::RateLimited));
    let good = order(&node, &["a"]);
    reply(&ask(&honest, &node, &good).await, &good);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_wait_unopened_in_a_bounded_queue_and_an_abandoned_one_leaves_it() {
    let gated = GatedEmbedder::new(0);
    let limits = ServiceLimits { queue: 2, ..Setup::default().limits };
    let setup = Setup { limits, embeddings: offering(gated.clone()), ..Setup::default() };
    let node = world(setup).await.node;
    let clients = [Client::start().await, Client::start().await, Client::start().await];
    let orders: Vec<Order> = (0..4).map(|_| order(&node, &["a"])).collect();
    let mut first = send(&clients[0], &node, &orders[0]).await;
    gated.until_began(1).await;
    let second = send(&clients[1], &node, &orders[1]).await;
    let mut third = send(&clients[2], &node, &orders[2]).await;
    // With two waiting the queue is full; further requests are refused at once.
    until(|| node.service.embeddings_load() == (1, 2)).await;
    assert_eq!(refused(&clients[0], &node, &orders[3]).await, ErrorCode::Busy);
    assert_eq!(gated.began.load(SeqCst), 1, "those that wait cost nothing");
    // The second client leaves: its place is free, and the third is next.
    drop(second);
    until(|| node.service.embeddings_load() == (1, 1)).await;
    gated.permits.add_permits(2);
    reply(&next(&mut first).await, &orders[0]);
    reply(&next(&mut third).await, &orders[2]);
    assert_eq!((gated.began.load(SeqCst), gated.dropped.load(SeqCst)), (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn work_stops_when_its_client_hangs_up_and_when_its_time_is_over() {
    let gated = GatedEmbedder::new(0);
    let limits = ServiceLimits { max_embed_time: Duration::from_millis(200), ..Setup::default().limits };
    let setup = Setup { limits, embeddings: offering(gated.clone()), ..Setup::default() };
    let World { node, client, .. } = world(setup).await;
    assert_eq!(refused(&client, &node, &order(&node, &["a"])).await, ErrorCode::QuotaExceeded);
    assert_eq!(gated.dropped.load(SeqCst), 1, "the work was dropped");
    node.stop().await;

    let gated = GatedEmbedder::new(0);
    let setup = Setup { embeddings: offering(gated.clone()), ..Setup::default() };
    let World { node, client, .. } = world(setup).await;
    let mut stream = send(&client, &node, &order(&node, &["a"])).await;
    gated.until_began(1).await;
    stream.close().await.unwrap();
    until(|| gated.dropped.load(SeqCst) == 1).await;
    until(|| node.service.embeddings_load() == (0, 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_peer_is_let_go_and_the_next_is_served() {
    let limits = ServiceLimits { request_timeout: Duration::from_millis(100), ..Setup::default().limits };
    let setup = Setup { limits, embeddings: offering(Arc::new(Hashing)), ..Setup::default() };
    let World { node, client, .. } = world(setup).await;
    let mut silent = open(&client, &node).await;
    assert!(!matches!(silent.recv_by(64, soon()).await, Ok(Some(_))), "it ends without an answer");
    let good = order(&node, &["a"]);
    reply(&ask(&client, &node, &good).await, &good);
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_peers_share_their_tokens_and_holders_of_a_grant_have_their_own() {
    let issuer = SecretSigningKey::from_seed(&[0x51; 32]);
    let holder = SecretSigningKey::from_seed(&[0x52; 32]);
    let quotas = QuotaPolicy { issuers: vec![issuer.public_key()], ..QuotaPolicy::default() };
    // A request with one block of texts holds (1024 + 16) / 16 tokens.
    let limits = ServiceLimits {
        own_networks: Networks::default(),
        tokens_per_hour: 67,
        quotas,
        ..Setup::default().limits
    };
    let setup = Setup { limits, embeddings: offering(Arc::new(Hashing)), ..Setup::default() };
    let World { node, client, .. } = world(setup).await;
    for _ in 0..3 {
        // Unused tokens come back: a word costs one token.
        let good = order(&node, &["word"]);
        reply(&ask(&client, &node, &good).await, &good);
    }
    assert_eq!(refused(&client, &node, &order(&node, &["word"])).await, ErrorCode::QuotaExceeded);
    let quota = TurnQuota { models: vec![MODEL], turns_per_hour: 2, tokens_per_hour: 1000, concurrent: 1 };
    let grant = Right::new(issuer.public_key(), holder.public_key(), RightScope::Turns(quota), 0..u64::MAX);
    let grant = RightChain::issue(grant, &issuer).unwrap();
    let [mut stolen, mut granted] = [order(&node, &["word"]), order(&node, &["word"])];
    let proof = grant.prove(&holder, granted.auth.auth_hash());
    for order in [&mut stolen, &mut granted] {
        order.request.quota = Some(proof.clone());
    }
    assert_eq!(refused(&client, &node, &stolen).await, ErrorCode::BadSignature, "a proof for another one");
    reply(&ask(&client, &node, &granted).await, &granted);
}
