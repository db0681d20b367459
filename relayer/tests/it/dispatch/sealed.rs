//! Sealed mode: the relayer recalls by a hint for a turn that it cannot read.

use std::time::Duration;

use baton_client::{AccountKey, Client, ClientError, MemoryHint, NewSession, TurnInput, TurnOutcome};
use baton_keys::SecretSigningKey;
use baton_memory::ids::OwnerId;
use baton_mesh::{Mesh, MeshConfig, MeshHandle, Networks, TurnStream};
use baton_proto::{
    ErrorCode, codec,
    ids::{PublicKey, SuiAddress},
    memory::RecallScope,
    right::{MemoryAccess, Permissions, Right, RightChain, RightScope},
    wire::NodeFrame,
};
use baton_relayer::{SealedLimits, delegation::registry::Registry};
use tokio::time::Instant;

use baton_client::testkit::fake::now_ms;

use super::world::{SealedRelayer, World, contains, files, logs};

const PROMPT: &str = "should I paint her periwinkle or vermilion this spring";

async fn turn(
    world: &World,
    relayer: &SealedRelayer,
    hint: Option<MemoryHint>,
) -> Result<TurnOutcome, ClientError> {
    let home = tempfile::tempdir().unwrap();
    let client = Client::open(world.client_config(Some(home.path()))).await.unwrap();
    let session = client.new_session(NewSession::default()).await.unwrap();
    let input = TurnInput::user(PROMPT).with_route(|route| {
        route.relayer = Some(relayer.named());
        route.hint = hint;
        route.max_attempts = 1;
    });
    let outcome = client.session(session).turn(input, |_| {}).await;
    client.shutdown(std::time::Duration::from_secs(10)).await;
    outcome
}

fn texts(outcome: &TurnOutcome) -> Vec<&str> {
    outcome.memory.iter().map(|item| item.text.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hint_brings_memory_to_a_turn_whose_words_the_relayer_never_has() {
    let world = World::new().await;
    world.remember("The user's boat is called Marigold").await;
    world.remember("The user plays the cello").await;
    let relayer = world.sealed().await;
    // As the command sends it: with a session that is unknown to memory and stays unknown.
    let session = Some("a session".to_owned());
    let hint = MemoryHint { session, ..MemoryHint::new(world.account.clone(), "boat") };
    let outcome = turn(&world, &relayer, Some(hint)).await.unwrap();
    assert_eq!(texts(&outcome), ["The user's boat is called Marigold"]);
    assert_eq!(outcome.receipt.memory_items, 1);
    assert!(outcome.memory[0].source.starts_with("a note by the user on "), "{:?}", outcome.memory[0].source);
    // Without a hint, nothing is recalled; with an empty one, the profile.
    assert!(texts(&turn(&world, &relayer, None).await.unwrap()).is_empty());
    let profile = turn(&world, &relayer, Some(MemoryHint::new(world.account.clone(), ""))).await.unwrap();
    assert_eq!(texts(&profile).len(), 2);
    // A scope of nothing recalls nothing.
    for words in ["boat", ""] {
        let hint = MemoryHint { scope: RecallScope::None, ..MemoryHint::new(world.account.clone(), words) };
        assert!(texts(&turn(&world, &relayer, Some(hint)).await.unwrap()).is_empty());
    }

    // Nothing of the turn was written, neither here nor to a log.
    assert!(world.turns().await.is_empty());
    assert!(world.memory.sessions(world.owner()).await.unwrap().is_empty());
    for bytes in files(world.folder.path()).iter().chain([&logs()]) {
        assert!(!contains(bytes, b"periwinkle") && !contains(bytes, b"vermilion"));
        assert!(!contains(bytes, b"Marigold"), "nor a memory outside what is sealed");
    }
    let auths = world.nodes[0].seen(|seen| seen.turns.clone());
    assert!(auths.iter().all(|auth| auth.memory_from == Some(relayer.key.public_key())));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_owner_and_its_delegates_get_an_owners_memory() {
    let world = World::new().await;
    world.remember("The user's boat is called Marigold").await;
    let relayer = world.sealed().await;
    let other_account = AccountKey::generate();
    let as_owner = |key: &AccountKey| MemoryHint {
        owner: SuiAddress(world.owner().0),
        ..MemoryHint::new(key.clone(), "boat")
    };
    let refused = turn(&world, &relayer, Some(as_owner(&other_account))).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::MemUnauthorized));
    assert!(world.nodes[0].seen(|seen| seen.turns.is_empty()), "it went no further");
    assert!(
        texts(&turn(&world, &relayer, Some(MemoryHint::new(other_account.clone(), "boat"))).await.unwrap())
            .is_empty()
    );

    let registry = Registry::new(world.memory.clone(), PublicKey([0; 32]));
    let allow = async |names: &[&str], project: Option<&str>| {
        let permissions = Permissions::named(names.iter().copied()).unwrap();
        let scope = RightScope::Memory(MemoryAccess { permissions, project: project.map(str::to_owned) });
        let (account, now) = (world.account.signing_key(), now_ms());
        let valid_ms = now - 1_000..now + 3_600_000;
        let right = Right::new(account.public_key(), other_account.public_key(), scope, valid_ms);
        let chain = RightChain::issue(right, account).unwrap();
        assert!(registry.register(world.owner(), &chain, now).await.unwrap());
    };
    allow(&["write"], None).await;
    let refused = turn(&world, &relayer, Some(as_owner(&other_account))).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::MemUnauthorized), "writing is not reading");
    allow(&["read"], Some("boats")).await;
    let other = MemoryHint { project: Some("cars".to_owned()), ..as_owner(&other_account) };
    assert_eq!(
        turn(&world, &relayer, Some(other)).await.unwrap_err().code(),
        Some(ErrorCode::MemUnauthorized)
    );
    allow(&["read"], None).await;
    let outcome = turn(&world, &relayer, Some(as_owner(&other_account))).await.unwrap();
    assert_eq!(texts(&outcome), ["The user's boat is called Marigold"]);
    assert_ne!(OwnerId::of(&other_account.public_key()), world.owner());
}

/// A peer that speaks frames by itself.
pub(super) async fn peer() -> MeshHandle {
    // A peer dials loopback addresses only if it listens on one.
    let config = MeshConfig::server("raw peer", vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()]);
    Mesh::spawn(SecretSigningKey::generate().expose_seed(), config).await.unwrap().0
}

pub(super) async fn stream_to(peer: &MeshHandle, relayer: &SealedRelayer) -> TurnStream {
    let deadline = Instant::now() + Duration::from_secs(20);
    peer.open(relayer.mesh.node_id(), &relayer.mesh.listen_addrs(), deadline).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_streams_of_a_few_peers_do_not_stop_an_honest_turn() {
    let world = World::new().await;
    let limits = SealedLimits { relayed_turns: 1, ..SealedLimits::new(Networks::default()) };
    let relayer = world.sealed_with(SecretSigningKey::generate(), limits).await;
    let peers = [peer().await, peer().await];
    let mut idle = Vec::new();
    for peer in &peers {
        for _ in 0..4 {
            // One says nothing, the other announces a large frame and sends a part of it.
            idle.push(stream_to(peer, &relayer).await);
            let mut large = stream_to(peer, &relayer).await;
            let sent = Instant::now() + Duration::from_millis(50);
            // The relayer takes a part and waits for the rest, or takes all and finds no request in it.
            let _ = large.send_by(&vec![0; 8 << 20], sent).await;
            idle.push(large);
        }
    }
    turn(&world, &relayer, None).await.unwrap();
    drop(idle);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_sends_garbage_is_banned_and_others_are_served() {
    let world = World::new().await;
    let relayer = world.sealed_as(SecretSigningKey::generate()).await;
    let peer = peer().await;
    let mut codes = Vec::new();
    for _ in 0..6 {
        let mut stream = stream_to(&peer, &relayer).await;
        stream.send(&[0xff; 40]).await.unwrap();
        let answer = stream.recv(1024).await.unwrap().expect("a refusal");
        let Ok(NodeFrame::Refused { code, .. }) = codec::decode(&answer, 1024) else { panic!("no refusal") };
        codes.push(code);
    }
    let expected = [[ErrorCode::NonCanonical; 5].as_slice(), &[ErrorCode::RateLimited]].concat();
    assert_eq!(codes, expected, "five times garbage, and then a ban");
    turn(&world, &relayer, None).await.unwrap();
}
