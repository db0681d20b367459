//! Sealed mode against an attacker with captured requests: a hint opens memory once, on its own turn, within
//! its time.

use std::{sync::atomic::Ordering, time::Duration};

use baton_client::{AccountKey, Client, MemoryHint, NewSession, TurnInput};
use baton_keys::{SecretSigningKey, exchange::ExchangeSecret};
use baton_mesh::{Mesh, MeshConfig, MeshHandle};
use baton_proto::{
    ErrorCode, SignedBytes, SignedObject, codec,
    ids::{ExchangeKey, SuiAddress},
    limits::{MAX_FRAME_BYTES, MAX_NODE_FRAME_BYTES},
    memory::{MemoryItem, RecallHint},
    turn::TurnAuth,
    wire::{ClientFrame, NodeFrame, RelayRecall, TurnRequest},
};

use super::{
    sealed::{peer, stream_to},
    world::{SealedRelayer, World},
};

/// The frame that a client sends to the relayer of this key, captured in its place.
async fn captured(
    world: &World,
    key: &SecretSigningKey,
    hint: MemoryHint,
) -> (TurnRequest, SignedBytes, ExchangeKey) {
    let config = MeshConfig::server("a tap", vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()]);
    let (mesh, mut incoming) = Mesh::spawn(key.expose_seed(), config).await.unwrap();
    let relayer = baton_client::Relayer { node: mesh.node_id(), addrs: mesh.listen_addrs() };
    let client = Client::open(world.client_config(None)).await.unwrap();
    let session = client.new_session(NewSession::default()).await.unwrap();
    let input = TurnInput::user("what shall I paint").with_route(|route| {
        route.relayer = Some(relayer);
        route.hint = Some(hint);
        route.max_attempts = 1;
    });
    let handle = client.session(session);
    let tap = async {
        let (_, mut stream) = incoming.next().await.unwrap();
        stream.recv(MAX_FRAME_BYTES).await.unwrap().unwrap()
    };
    let (frame, failed) = tokio::join!(tap, handle.turn(input, |_| {}));
    assert!(failed.is_err(), "the tap answers nothing");
    client.shutdown(Duration::ZERO).await;
    mesh.shutdown().await;
    match codec::decode(&frame, MAX_FRAME_BYTES).unwrap() {
        ClientFrame::Relay { request, recall: Some(RelayRecall { hint, node_key }) } => {
            (request, hint, node_key)
        }
        other => panic!("{other:?}"),
    }
}

/// The relayer's first answer to an unknown peer: the added memory, or the reason for none.
async fn send(
    peer: &MeshHandle,
    relayer: &SealedRelayer,
    (request, hint, node_key): (TurnRequest, SignedBytes, ExchangeKey),
) -> Result<Vec<MemoryItem>, ErrorCode> {
    let mut stream = stream_to(peer, relayer).await;
    let recall = Some(RelayRecall { hint, node_key });
    stream.send(&codec::encode(&ClientFrame::Relay { request, recall })).await.unwrap();
    let frame = stream.recv(MAX_NODE_FRAME_BYTES).await.unwrap().unwrap();
    match codec::decode(&frame, MAX_NODE_FRAME_BYTES).unwrap() {
        NodeFrame::Memory(items) => Ok(items),
        NodeFrame::Refused { code, .. } => Err(code),
        other => panic!("{other:?}"),
    }
}

/// A changed hint, signed anew.
fn forged(hint: &SignedBytes, signer: &AccountKey, change: impl FnOnce(&mut RecallHint)) -> SignedBytes {
    let mut hint = SignedObject::<RecallHint>::verify(hint.clone()).unwrap().into_value();
    change(&mut hint);
    SignedObject::sign(hint, signer.signing_key()).bytes().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_captured_hint_opens_memory_once_and_a_replay_of_it_nothing() {
    let world = World::new().await;
    world.remember("The user's boat is called Marigold").await;
    let key = SecretSigningKey::generate();
    let frame = captured(&world, &key, MemoryHint::new(world.account.clone(), "boat")).await;
    let relayer = world.sealed_as(key.clone()).await;
    let peer = peer().await;
    let first = send(&peer, &relayer, frame.clone()).await.unwrap();
    assert_eq!(first.len(), 1, "the client's own, late");
    for _ in 0..2 {
        assert_eq!(send(&peer, &relayer, frame.clone()).await, Err(ErrorCode::MemUnauthorized));
    }
    // Nor after a restart, or at another relayer with the same key on the same memory.
    let again = world.sealed_as(key).await;
    assert_eq!(send(&peer, &again, frame.clone()).await, Err(ErrorCode::MemUnauthorized));
    // The node refuses the same turn without its hint; it brings no memory.
    assert_eq!(world.nodes[0].seen(|seen| seen.turns.len()), 1, "a replay goes no further than the relayer");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_captured_hint_is_of_its_own_turn_owner_and_time() {
    let world = World::new().await;
    world.remember("The user's boat is called Marigold").await;
    let key = SecretSigningKey::generate();
    let (request, hint, node_key) =
        captured(&world, &key, MemoryHint::new(world.account.clone(), "boat")).await;
    let thief = AccountKey::generate();
    let (own_request, own_hint, own_key) =
        captured(&world, &key, MemoryHint::new(thief.clone(), "boat")).await;
    let relayer = world.sealed_as(key).await;
    let peer = peer().await;
    let owner = SuiAddress(world.owner().0);

    // On a turn of the thief's own.
    let moved = send(&peer, &relayer, (own_request.clone(), hint.clone(), own_key.clone())).await;
    assert_eq!(moved, Err(ErrorCode::MemUnauthorized), "it is of another turn");
    // The thief's own hint on the thief's own turn, with the other account's name.
    let claimed = forged(&own_hint, &thief, |hint| hint.owner = owner);
    let claimed = send(&peer, &relayer, (own_request.clone(), claimed, own_key.clone())).await;
    assert_eq!(claimed, Err(ErrorCode::MemUnauthorized), "it is of another account");
    // The captured hint with another turn: the owner did not sign that.
    let auth = SignedObject::<TurnAuth>::verify(own_request.auth.clone()).unwrap();
    let mut rebound = SignedObject::<RecallHint>::verify(hint.clone()).unwrap().into_value();
    rebound.auth_hash = auth.auth_hash();
    let rebound = SignedBytes { body: codec::encode(&rebound), signature: hint.signature };
    assert!(send(&peer, &relayer, (own_request.clone(), rebound, own_key.clone())).await.is_err());
    // An exchange key that the order does not name, as of an attacker who wants to read the items.
    let foreign_key = ExchangeSecret::generate().public_key();
    let foreign = send(&peer, &relayer, (request.clone(), hint.clone(), foreign_key)).await;
    assert_eq!(foreign, Err(ErrorCode::KxExpired));
    // Refused hints use nothing up.
    assert_eq!(send(&peer, &relayer, (own_request, own_hint, own_key)).await, Ok(Vec::new()));

    // The whole captured frame, after its time.
    world.later_ms.fetch_add(200_000, Ordering::SeqCst);
    assert_eq!(send(&peer, &relayer, (request, hint, node_key)).await, Err(ErrorCode::Expired));
    assert_eq!(world.nodes[0].seen(|seen| seen.turns.len()), 1, "of the thief's own turn");
}
