//! A turn in sealed mode: through a relayer that adds memory and passes on what it cannot read.

use std::sync::{Arc, Mutex};

use baton_client::{AccountKey, MemoryHint, Relayer, TurnEvent, TurnInput};
use baton_keys::{SecretSigningKey, exchange::ExchangeSecret, owner::sui_address};
use baton_mesh::{Mesh, MeshConfig, MeshHandle, TurnStream};
use baton_proto::{
    ErrorCode, Signed, codec,
    ids::SuiAddress,
    limits::{MAX_FRAME_BYTES, MAX_NODE_FRAME_BYTES},
    memory::{MemEnvelope, MemoryItem, RecallHint},
    turn::TurnAuth,
    wire::{ClientFrame, NodeFrame},
};
use tokio::time::{Duration, Instant};

use crate::{
    GRACE, World, events_of,
    fake::{FakeNode, now_ms},
    session,
};

fn items() -> Vec<MemoryItem> {
    let item = |text: &str| MemoryItem { text: text.to_owned(), source: "notes".to_owned(), time_ms: 1 };
    vec![item("likes tea"), item("lives by the sea")]
}

/// What a relayer does that it should not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trick {
    None,
    /// Tells the client of other items than it sends to the node.
    Lie,
    /// Tells the client twice.
    Repeat,
    /// Tells the client nothing.
    Conceal,
    /// Passes the turn on, waits for the node's answer and says that the node refused.
    Refuse,
}

pub(crate) type Hints = Arc<Mutex<Vec<Signed<RecallHint>>>>;

pub(crate) struct FakeRelayer {
    pub(crate) mesh: MeshHandle,
    pub(crate) hints: Hints,
}

impl FakeRelayer {
    pub(crate) async fn start(node: &FakeNode, trick: Trick) -> Self {
        let signing = SecretSigningKey::generate();
        let config = MeshConfig::server("fake relayer", vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()]);
        let (mesh, mut incoming) = Mesh::spawn(signing.expose_seed(), config).await.unwrap();
        let (dialer, addrs) = (mesh.clone(), node.addrs());
        let hints = Hints::default();
        let heard = hints.clone();
        tokio::spawn(async move {
            while let Some((_, stream)) = incoming.next().await {
                tokio::spawn(relay(
                    signing.clone(),
                    dialer.clone(),
                    addrs.clone(),
                    stream,
                    trick,
                    heard.clone(),
                ));
            }
        });
        Self { mesh, hints }
    }

    pub(crate) fn named(&self) -> Relayer {
        Relayer { node: self.mesh.node_id(), addrs: self.mesh.listen_addrs() }
    }
}

async fn relay(
    signing: SecretSigningKey,
    mesh: MeshHandle,
    addrs: Vec<baton_client::Multiaddr>,
    mut client: TurnStream,
    trick: Trick,
    hints: Hints,
) {
    let bytes = client.recv(MAX_FRAME_BYTES).await.unwrap().unwrap();
    let (mut request, hint) = match codec::decode(&bytes, MAX_FRAME_BYTES) {
        Ok(ClientFrame::Relay(request)) => (request, None),
        Ok(ClientFrame::RelayRecall { request, hint }) => (request, Some(hint)),
        _ => return,
    };
    let auth = Signed::<TurnAuth>::verify(request.auth.clone()).unwrap();
    if let Some(hint) = hint {
        let hint = Signed::<RecallHint>::verify(hint).unwrap();
        hint.check_for(&auth, &signing.public_key()).unwrap();
        hints.lock().unwrap().push(hint);
    }
    let envelope =
        MemEnvelope::seal(&items(), &auth, &signing, &ExchangeSecret::generate(), now_ms()).unwrap();
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

#[tokio::test(flavor = "multi_thread")]
async fn memory_comes_through_a_relayer_and_is_checked_against_the_receipt() {
    let world = World::new(1).await;
    let relayer = FakeRelayer::start(&world.nodes[0], Trick::None).await;
    let client = world.client().await;
    let session = session(&client).await;
    let input = TurnInput { relayer: Some(relayer.named()), ..TurnInput::user("hello") };
    let (result, events) = events_of(&client, session, input).await;
    let outcome = result.unwrap();
    assert!(events.contains(&TurnEvent::Memory(items())));
    assert_eq!((outcome.memory, outcome.receipt.memory_items), (items(), 2));
    let auth = world.nodes[0].seen(|seen| seen.turns[0].clone());
    assert_eq!(auth.memory_from, Some(relayer.named().node.public_key()));
    assert_eq!(client.history(session).await.unwrap()[0].memory, items());
    client.shutdown(GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relayer_that_names_other_memory_than_it_sent_is_found_out() {
    let world = World::new(1).await;
    let relayer = FakeRelayer::start(&world.nodes[0], Trick::Lie).await;
    let client = world.client().await;
    let session = session(&client).await;
    let input = TurnInput { relayer: Some(relayer.named()), max_attempts: 1, ..TurnInput::user("hello") };
    let (result, events) = events_of(&client, session, input).await;
    assert_eq!(result.unwrap_err().code(), Some(ErrorCode::ReceiptMismatch));
    assert!(!events.contains(&TurnEvent::Accepted));
    client.shutdown(GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relayer_must_name_its_memory_first_and_once() {
    for trick in [Trick::Repeat, Trick::Conceal] {
        let world = World::new(1).await;
        let relayer = FakeRelayer::start(&world.nodes[0], trick).await;
        let client = world.client().await;
        let session = session(&client).await;
        let input = TurnInput { relayer: Some(relayer.named()), max_attempts: 1, ..TurnInput::user("hello") };
        let (result, _) = events_of(&client, session, input).await;
        assert_eq!(result.unwrap_err().code(), Some(ErrorCode::NonCanonical), "{trick:?}");
        client.shutdown(GRACE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_only_a_relayer_says_was_refused_is_aborted() {
    let world = World::new(1).await;
    let relayer = FakeRelayer::start(&world.nodes[0], Trick::Refuse).await;
    let client = world.client().await;
    let session = session(&client).await;
    let input = TurnInput { relayer: Some(relayer.named()), max_attempts: 1, ..TurnInput::user("hello") };
    let (result, _) = events_of(&client, session, input).await;
    assert_eq!(result.unwrap_err().code(), Some(ErrorCode::ModelUnavailable));
    client.abandon(session).await.unwrap();
    client.shutdown(GRACE).await;
    let (turns, aborts) = world.nodes[0].seen(|seen| (seen.turns.clone(), seen.aborts.clone()));
    assert_eq!(aborts, [(turns[0].turn_id, 0)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hint_is_for_its_own_attempt_and_carries_only_the_words_chosen_for_it() {
    let world = World::new(1).await;
    let relayer = FakeRelayer::start(&world.nodes[0], Trick::None).await;
    let client = world.client().await;
    let session = session(&client).await;
    let account = AccountKey::generate();
    let hint =
        MemoryHint { project: Some("boats".to_owned()), ..MemoryHint::new(account.clone(), "harbour") };
    // The first attempt fails at the node, so that there are two.
    world.nodes[0].script([crate::fake::Act::Truncate]);
    let input =
        TurnInput { relayer: Some(relayer.named()), hint: Some(hint), ..TurnInput::user("the prompt") };
    let (result, _) = events_of(&client, session, input).await;
    assert_eq!(result.unwrap().memory, items());
    let hints = relayer.hints.lock().unwrap().clone();
    let [first, second] = &hints[..] else { panic!("{hints:?}") };
    assert_ne!(first.auth_hash, second.auth_hash);
    for hint in &hints {
        assert_eq!((hint.hint.as_str(), hint.project.as_deref()), ("harbour", Some("boats")));
        assert_eq!(hint.owner, SuiAddress(sui_address(&account.public_key())));
        assert!(!String::from_utf8_lossy(&hint.encode()).contains("prompt"));
    }
    client.shutdown(GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recalled_items_that_the_relayer_changed_are_a_receipt_mismatch() {
    let world = World::new(1).await;
    let relayer = FakeRelayer::start(&world.nodes[0], Trick::Lie).await;
    let client = world.client().await;
    let session = session(&client).await;
    let hint = Some(MemoryHint::new(AccountKey::generate(), "tea"));
    let input =
        TurnInput { relayer: Some(relayer.named()), hint, max_attempts: 1, ..TurnInput::user("hello") };
    let (result, events) = events_of(&client, session, input).await;
    assert_eq!(result.unwrap_err().code(), Some(ErrorCode::ReceiptMismatch));
    assert!(!events.contains(&TurnEvent::Accepted));
    client.shutdown(GRACE).await;
}
