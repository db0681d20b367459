//! A turn in sealed mode: through a relayer that adds memory and forwards ciphertext that it cannot read.

use baton_client::testkit::{
    GRACE, World, events_of,
    fake::Act,
    relayer::{FakeRelayer, Trick, items},
    session,
};
use baton_client::{AccountKey, MemoryHint, RouteOptions, TurnEvent, TurnInput};
use baton_keys::owner::sui_address;
use baton_proto::{ErrorCode, ids::SuiAddress};

#[tokio::test(flavor = "multi_thread")]
async fn memory_comes_through_a_relayer_and_is_checked_against_the_receipt() {
    let world = World::new(1).await;
    let relayer = FakeRelayer::start(&world.nodes[0], Trick::None).await;
    let client = world.client().await;
    let session = session(&client).await;
    let input = TurnInput::user("hello").with_route(|route| route.relayer = Some(relayer.named()));
    let (result, events) = events_of(&client, session, input).await;
    let outcome = result.unwrap();
    assert!(events.contains(&TurnEvent::Memory(items())));
    assert_eq!((outcome.memory, outcome.receipt.memory_items), (items(), 2));
    let auth = world.nodes[0].seen(|seen| seen.turns[0].clone());
    assert_eq!(auth.memory_from, Some(relayer.named().node.public_key()));
    assert_eq!(client.session(session).history().await.unwrap()[0].memory, items());
}

/// Other memory than it sent, memory named late or twice, and a refusal that is not the node's.
#[tokio::test(flavor = "multi_thread")]
async fn a_relayers_trick_is_found_out_and_blames_no_node() {
    let (world, client) = World::with_client(1).await;
    client.nodes().await;
    for (trick, code) in [
        (Trick::Lie, ErrorCode::ReceiptMismatch),
        (Trick::Repeat, ErrorCode::NonCanonical),
        (Trick::Conceal, ErrorCode::NonCanonical),
        (Trick::Refuse, ErrorCode::ModelUnavailable),
    ] {
        let relayer = FakeRelayer::start(&world.nodes[0], trick).await;
        let session = session(&client).await;
        let hint = Some(MemoryHint::new(AccountKey::generate(), "tea"));
        let input = TurnInput::user("hello").with_route(|route| {
            (route.relayer, route.hint, route.max_attempts) = (Some(relayer.named()), hint, 1);
        });
        let (result, events) = events_of(&client, session, input).await;
        assert_eq!(result.unwrap_err().code(), Some(code), "{trick:?}");
        assert!(!events.contains(&TurnEvent::Accepted), "{trick:?}");
        let row = client.explain(None, &RouteOptions::default()).await.unwrap().remove(0);
        assert_eq!((row.last_fault, row.evidence.lied_until_ms), (Some("unclear"), 0), "{trick:?}");
        assert!(row.evidence.failed < 0.01, "{trick:?}");
        client.session(session).abandon().await.unwrap();
    }
    client.shutdown(GRACE).await;
    // The attempt that only the relayer says was refused is aborted.
    let (turns, aborts) = world.nodes[0].seen(|seen| (seen.turns.clone(), seen.aborts.clone()));
    assert!(aborts.contains(&(turns.last().unwrap().turn_id, 0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relayer_that_cannot_hand_a_turn_on_is_named_with_its_fix() {
    let world = World::new(1).await;
    world.nodes[0].script([Act::Refuse(ErrorCode::Busy)]);
    let relayer = FakeRelayer::start(&world.nodes[0], Trick::None).await;
    let client = world.client().await;
    let session = session(&client).await;
    let input = TurnInput::user("hello")
        .with_route(|route| (route.relayer, route.max_attempts) = (Some(relayer.named()), 1));
    let error = events_of(&client, session, input).await.0.unwrap_err();
    assert!(error.to_string().contains("the relayer cannot reach the node"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("--bootstrap")), "{:?}", error.hint());
    client.session(session).abandon().await.unwrap();
    // A node's own word is its own.
    world.nodes[0].script([Act::Refuse(ErrorCode::Busy)]);
    let direct = TurnInput::user("hello").with_route(|route| route.max_attempts = 1);
    let error = events_of(&client, session, direct).await.0.unwrap_err();
    assert!(error.to_string().contains("no free slot") && !error.hint().unwrap().contains("--bootstrap"));
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
    world.nodes[0].script([baton_client::testkit::fake::Act::Truncate]);
    let input = TurnInput::user("the prompt")
        .with_route(|route| (route.relayer, route.hint) = (Some(relayer.named()), Some(hint)));
    let (result, _) = events_of(&client, session, input).await;
    assert_eq!(result.unwrap().memory, items());
    let hints = relayer.hints.lock().clone();
    let [first, second] = &hints[..] else { panic!("{hints:?}") };
    assert_ne!(first.auth_hash, second.auth_hash);
    for hint in &hints {
        assert_eq!((hint.hint.as_str(), hint.project.as_deref()), ("harbour", Some("boats")));
        assert_eq!(hint.owner, SuiAddress(sui_address(&account.public_key())));
        assert!(!String::from_utf8_lossy(&hint.encode()).contains("prompt"));
    }
}
