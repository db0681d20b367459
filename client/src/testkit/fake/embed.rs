//! The embedding of texts by a scripted node.

use std::{collections::VecDeque, sync::Arc};

use baton_keys::SecretSigningKey;
use baton_mesh::TurnStream;
use baton_proto::{
    ErrorCode, SignedObject, codec,
    embed::{EmbedAnswer, EmbedAuth, EmbedFrame, EmbedReply, SealedReply},
    ids::{AuthHash, ModelId, NodeId},
    limits::{MAX_EMBED_ANSWER_BYTES, MAX_EMBED_FRAME_BYTES, VERSION},
};
use parking_lot::Mutex;

use super::{FakeNodeInner, now_ms};

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
}

/// The vector of a text: its length and its first byte.
pub fn vector(text: &str) -> [f32; 2] {
    [f32::from(u16::try_from(text.len()).unwrap()), f32::from(text.as_bytes()[0])]
}

pub(super) async fn embed(shared: &FakeNodeInner, script: &Script, mut stream: TurnStream) {
    let Ok(Some(bytes)) = stream.recv(MAX_EMBED_FRAME_BYTES).await else { return };
    let EmbedFrame::Request(request) = codec::decode(&bytes, MAX_EMBED_FRAME_BYTES).unwrap();
    let auth = SignedObject::<EmbedAuth>::verify(request.auth).unwrap();
    assert_eq!((auth.audience, auth.check_time(now_ms())), (shared.signing.node_id(), Ok(())));
    let (texts, secret) = request.texts.open(&shared.exchange, &auth).unwrap();
    let seen = (auth.audience, EmbedAuth::clone(&auth), texts.texts.len());
    script.asked.lock().push(seen);
    let act = script.acts.lock().pop_front().unwrap_or(EmbedderAct::Serve);
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
