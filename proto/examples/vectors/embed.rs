//! Vectors of embeddings: one request with its keys, its reply, and a node record that offers embeddings.

use baton_keys::{
    SecretSigningKey,
    contexts::{EMBED_REPLY_KEY, EMBED_TEXTS},
    exchange::{EmbedSecret, EphemeralSecret, SUITE},
    secret::kdf,
};
use baton_proto::{
    ErrorCode, SignedObject, codec,
    embed::{
        EMBED_PROTOCOL, EmbedAnswer, EmbedAuth, EmbedFrame, EmbedReply, EmbedRequest, EmbedTexts,
        SealedReply, SealedTexts,
    },
    ids::{EmbedId, PayloadHash},
    limits::{EMBED_AUTH_VERSION, MODEL_MANIFEST_VERSION, VERSION},
    node_record::{ModelManifest, ModelOffer, NodeRecord},
    receipt::EngineKind,
};
use serde_json::{Value, json};

use super::{
    counting,
    objects::{frame, node_record, plain, quota_use, signed},
    session::{START_MS, node, node_exchange},
};

/// A request with all related objects.
pub(crate) struct EmbedExchange {
    /// The order.
    pub auth: SignedObject<EmbedAuth>,
    /// Its texts.
    pub texts: EmbedTexts,
    /// The request.
    pub request: EmbedRequest,
    /// The shared secret.
    pub secret: EmbedSecret,
    /// The vectors.
    pub reply: SignedObject<EmbedReply>,
    /// The answer.
    pub answer: EmbedAnswer,
}

fn manifest() -> ModelManifest {
    ModelManifest {
        version: MODEL_MANIFEST_VERSION,
        architecture: "embedding:bert".to_owned(),
        weights_sha256: counting(0x05),
        tokenizer_hash: counting(0x06),
        template_hash: [0; 32],
        engine_revision: 0,
    }
}

/// The key of the order, the client's randomness for the exchange, and the nonce of the reply.
pub(crate) fn secrets() -> (SecretSigningKey, [u8; 64], [u8; 32]) {
    (SecretSigningKey::from_seed(&counting(0xc0)), counting(0xc1), counting(0xc2))
}

/// An order to node 0 for these texts, the texts sealed, and the secret of both.
pub(crate) fn order(texts: &EmbedTexts) -> (SignedObject<EmbedAuth>, SealedTexts, EmbedSecret) {
    let (client, ephemeral, _) = secrets();
    let node_key = node_exchange(0).public_key();
    let mut auth = EmbedAuth {
        version: EMBED_AUTH_VERSION,
        suite: SUITE,
        client_key: client.public_key(),
        request: EmbedId(counting(0xc3)),
        audience: node(0).node_id(),
        audience_key: node_key.id(),
        model: manifest().model_id(),
        texts_hash: PayloadHash([0; 32]),
        issued_ms: START_MS + 1_000,
        expires_ms: START_MS + 61_000,
    };
    let ephemeral = EphemeralSecret::from_bytes(&ephemeral);
    let (sealed, secret) = SealedTexts::seal(texts, ephemeral, &node_key, &auth.binding())
        .expect("the fixture's texts are few and short");
    auth.texts_hash = sealed.hash();
    (SignedObject::sign(auth, &client), sealed, secret)
}

/// The request to node 0.
pub(crate) fn made() -> EmbedExchange {
    let (_, _, nonce) = secrets();
    let texts = EmbedTexts::new(vec!["harbour café".to_owned(), String::new(), "⛵".to_owned()]);
    let (auth, sealed, secret) = order(&texts);
    let reply = EmbedReply {
        version: VERSION,
        node: node(0).node_id(),
        auth_hash: auth.auth_hash(),
        model: manifest().model_id(),
        dimensions: 2,
        tokens: vec![5, 2, 3],
        components: vec![0.6, -0.8, 0.0, 0.0, 1.0, 0.0],
    };
    let sealed_reply = SealedReply::seal(&reply, &node(0), &secret, &nonce);
    let reply = SignedObject::sign(reply, &node(0));
    let request =
        EmbedRequest { auth: auth.bytes().clone(), texts: sealed, quota: Some(quota_use(auth.auth_hash())) };
    let answer = EmbedAnswer::Embedded { nonce, sealed: sealed_reply };
    EmbedExchange { auth, texts, request, secret, reply, answer }
}

/// The record of node 0, with an offer of embeddings beside its offer of turns.
fn offering() -> SignedObject<NodeRecord> {
    let mut record = NodeRecord::clone(&node_record());
    record.models.push(ModelOffer {
        model: manifest().model_id(),
        name: "all-minilm-l6-v2".to_owned(),
        engine: EngineKind::Embedding,
        context_tokens: 256,
        input_price: 0,
        output_price: 0,
    });
    SignedObject::sign(record, &node(0))
}

/// All vectors of embeddings.
pub(crate) fn vectors() -> Value {
    let made = made();
    let (_, ephemeral, nonce) = secrets();
    let auth_hash = made.auth.auth_hash();
    let bare = EmbedRequest { quota: None, ..made.request.clone() };
    let EmbedAnswer::Embedded { sealed, .. } = &made.answer else { unreachable!("it is one") };
    json!({
        "protocol": EMBED_PROTOCOL,
        "node_secret": hex::encode(*node_exchange(0).expose()),
        "node_key": hex::encode(node_exchange(0).public_key().as_bytes()),
        "ephemeral_secret": hex::encode(ephemeral),
        "binding": hex::encode(made.auth.binding().to_bytes()),
        "embed_secret": hex::encode(made.secret.expose()),
        "texts_key": hex::encode(kdf(EMBED_TEXTS, &[made.secret.expose()])),
        "texts": hex::encode(codec::encode(&made.texts)),
        "sealed_texts": hex::encode(&made.request.texts.0),
        "texts_hash": made.request.texts.hash().to_string(),
        "reply_nonce": hex::encode(nonce),
        "reply_key": hex::encode(kdf(EMBED_REPLY_KEY, &[made.secret.expose(), &nonce, &auth_hash.0])),
        "reply": hex::encode(made.reply.encode()),
        "sealed_reply": hex::encode(&sealed.0),
        "objects": [
            signed("EmbedAuth", &made.auth, Some(auth_hash.to_string())),
            signed("EmbedReply", &made.reply, None),
            signed("NodeRecord", &offering(), None),
            plain("EmbedTexts", &made.texts, None),
            plain("ModelManifest", &manifest(), Some(manifest().model_id().to_string())),
        ],
        "frames": [
            frame("Request", "EmbedFrame", &EmbedFrame::Request(bare)),
            frame("Request.Quota", "EmbedFrame", &EmbedFrame::Request(made.request.clone())),
            frame("Embedded", "EmbedAnswer", &made.answer),
            frame("Refused", "EmbedAnswer", &EmbedAnswer::Refused { code: ErrorCode::Busy, retry_after_ms: 1_500 }),
        ],
    })
}
