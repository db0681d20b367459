//! A relayer that adds memory to sealed turns, honest or byzantine.

use std::sync::Arc;

use baton_keys::{SecretSigningKey, exchange::EphemeralSecret};
use baton_mesh::{MeshHandle, TurnStream};
use baton_proto::{
    ErrorCode, SignedObject, codec,
    ids::{ExchangeKey, NodeId},
    limits::{MAX_FRAME_BYTES, MAX_NODE_FRAME_BYTES},
    memory::{MemEnvelope, MemoryItem, RecallHint},
    node_record::NodeRecord,
    turn::TurnAuth,
    wire::{ClientFrame, NodeFrame},
};
use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

use super::fake::{FakeNode, any_port, now_ms, spawn_peer};
use crate::{Multiaddr, Relayer};

pub fn items() -> Vec<MemoryItem> {
    let item = |text: &str| MemoryItem { text: text.to_owned(), source: "notes".to_owned(), time_ms: 1 };
    vec![item("likes tea"), item("lives by the sea")]
}

/// A relayer's misbehaviour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trick {
    None,
    /// Names other items to the client than it sends to the node.
    Lie,
    /// Sends the items to the client twice.
    Repeat,
    /// Sends the client no items.
    Conceal,
    /// Passes the turn on, waits for the node's answer and reports a refusal by the node.
    Refuse,
}

pub type Hints = Arc<Mutex<Vec<SignedObject<RecallHint>>>>;

pub struct FakeRelayer {
    pub mesh: MeshHandle,
    pub hints: Hints,
}

impl FakeRelayer {
    pub async fn start(node: &FakeNode, trick: Trick) -> Self {
        let signing = SecretSigningKey::generate();
        let (own, addrs, hints) = (signing.clone(), node.addrs(), Hints::default());
        let heard = hints.clone();
        let serve = move |mesh, stream| relay(own.clone(), mesh, addrs.clone(), stream, trick, heard.clone());
        Self { mesh: spawn_peer(&signing, any_port(), Vec::new(), serve).await, hints }
    }

    pub fn named(&self) -> Relayer {
        Relayer { node: self.mesh.node_id(), addrs: self.mesh.listen_addrs() }
    }
}

async fn relay(
    signing: SecretSigningKey,
    mesh: MeshHandle,
    addrs: Vec<Multiaddr>,
    mut client: TurnStream,
    trick: Trick,
    hints: Hints,
) {
    let bytes = client.recv(MAX_FRAME_BYTES).await.unwrap().unwrap();
    let Ok(ClientFrame::Relay { mut request, recall }) = codec::decode(&bytes, MAX_FRAME_BYTES) else {
        return;
    };
    let auth = SignedObject::<TurnAuth>::verify(request.auth.clone()).unwrap();
    let (hint, node_key) = match recall {
        Some(recall) => (Some(recall.hint), recall.node_key),
        None => (None, key_of(&mesh, &addrs, auth.audience).await),
    };
    if let Some(hint) = hint {
        let hint = SignedObject::<RecallHint>::verify(hint).unwrap();
        hint.check_for(&auth, &signing.public_key()).unwrap();
        hints.lock().push(hint);
    }
    let ephemeral = EphemeralSecret::generate();
    let envelope = MemEnvelope::seal(&items(), &auth, &signing, &node_key, ephemeral, now_ms()).unwrap();
    request.memory = Some(envelope.bytes().clone());
    let mut told = items();
    if trick == Trick::Lie {
        told[0].text = "likes coffee".to_owned();
    }
    let times = match trick {
        Trick::Conceal => 0,
        Trick::Repeat => 2,
        _ => 1,
    };
    for _ in 0..times {
        client.send(&codec::encode(&NodeFrame::Memory(told.clone()))).await.unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut node = mesh.open(auth.audience, &addrs, deadline).await.unwrap();
    node.send(&codec::encode(&ClientFrame::Turn(request))).await.unwrap();
    while let Ok(Some(frame)) = node.recv(MAX_NODE_FRAME_BYTES).await {
        if trick == Trick::Refuse {
            let refused = NodeFrame::Refused { code: ErrorCode::ModelUnavailable, retry_after_ms: 0 };
            let _ = client.send(&codec::encode(&refused)).await;
            return;
        }
        if client.send(&frame).await.is_err() {
            return;
        }
    }
    let _ = client.close().await;
}

/// The current exchange key of a node, by its record.
async fn key_of(mesh: &MeshHandle, addrs: &[Multiaddr], node: NodeId) -> ExchangeKey {
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut stream = mesh.open(node, addrs, deadline).await.unwrap();
    stream.send(&codec::encode(&ClientFrame::NodeRecord)).await.unwrap();
    let frame = stream.recv(MAX_NODE_FRAME_BYTES).await.unwrap().unwrap();
    let Ok(NodeFrame::NodeRecord(bytes)) = codec::decode(&frame, MAX_NODE_FRAME_BYTES) else {
        panic!("a node answers with its record")
    };
    SignedObject::<NodeRecord>::verify(bytes).unwrap().current_key(now_ms()).unwrap().clone()
}
