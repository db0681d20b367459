//! The head index: publication, comparison, and recovery of a session from its root alone.

use std::sync::Arc;

use baton_client::{Client, ClientError, HeadStatus, InlinePolicy, NewSession, SessionRoot, TurnInput};
use baton_proto::{
    ErrorCode, SignedObject, codec, head::HeadRecord, ids::HeadIndexKey, limits::HEAD_PERIOD_MS,
    turn::Payload,
};

use baton_client::testkit::{
    GRACE, World,
    gate::{Gate, with_indexes},
    say, say_settled, session,
};

#[tokio::test(flavor = "multi_thread")]
async fn an_older_head_is_a_rollback_and_a_vanished_one_too() {
    let (world, client, session) = World::with_session(1).await;
    assert_eq!(client.session(session).check_head().await.unwrap(), HeadStatus::None);
    say(&client, session, "one").await;
    client.shutdown(GRACE).await;
    let old = world.store.heads();

    let client = world.client().await;
    assert_eq!(client.session(session).check_head().await.unwrap(), HeadStatus::Current);
    say(&client, session, "two").await;
    client.shutdown(GRACE).await;

    let client = world.client().await;
    for heads in [old, Default::default()] {
        world.store.set_heads(heads);
        let error = client.session(session).check_head().await.unwrap_err();
        assert_eq!((error.code(), error.exit_code()), (Some(ErrorCode::RollbackDetected), 5));
        let info = client.session(session).info().await.unwrap();
        assert_eq!((info.trouble, info.turns), (Some(ErrorCode::RollbackDetected), 2));
        // The device has the record that the index lost, and publishes it again.
        assert!(client.session(session).wait_published(GRACE).await.unwrap());
        assert_eq!(client.session(session).check_head().await.unwrap(), HeadStatus::Current);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_comes_back_from_its_words_and_goes_on() {
    let (world, client, session) = World::with_session(1).await;
    for turn in 0..17 {
        say(&client, session, &format!("turn {turn}")).await;
    }
    let words = client.session(session).backup().await.unwrap().to_words().to_string();
    client.shutdown(GRACE).await;

    let home = tempfile::tempdir().unwrap();
    let client = world.client_at(home.path()).await;
    let root = SessionRoot::from_words(&words).unwrap();
    assert_eq!(client.recover(&root).await.unwrap(), session);
    assert!(matches!(client.recover(&root).await, Err(ClientError::SessionExists(id)) if id == session));
    let history = client.session(session).history().await.unwrap();
    assert_eq!(history.len(), 17);
    assert_eq!(history[3].turn.record.as_ref().unwrap().messages[0].text, "turn 3");
    assert!(history.iter().all(|turn| turn.receipt.is_none()));
    let report = client.session(session).verify(true).await.unwrap();
    assert!(report.is_good());
    assert_eq!((report.receipts_missing, report.turns), (17, 17));
    assert_eq!(say(&client, session, "more").await.text, "more (17)");
    client.shutdown(GRACE).await;

    // The first device learns of the new turn and takes it over.
    let client = world.client().await;
    assert!(matches!(
        client.session(session).check_head().await,
        Err(ClientError::Behind { theirs: 17, .. })
    ));
    assert_eq!(client.recover(&root).await.unwrap(), session);
    let history = client.session(session).history().await.unwrap();
    assert_eq!(history.len(), 18);
    assert!(history[16].receipt.is_some() && history[17].receipt.is_none());
    assert_eq!(say(&client, session, "and more").await.text, "and more (18)");
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_to_recover_what_never_was_or_was_deleted() {
    let (_world, client) = World::with_client(1).await;
    assert!(matches!(client.recover(&SessionRoot::generate()).await, Err(ClientError::HeadMissing)));
    let session = session(&client).await;
    say(&client, session, "one").await;
    let root = client.session(session).backup().await.unwrap();
    client.session(session).delete().await.unwrap();
    assert!(matches!(client.session(session).info().await, Err(ClientError::UnknownSession(_))));
    assert!(matches!(client.recover(&root).await, Err(ClientError::Deleted)));
}

#[tokio::test(flavor = "multi_thread")]
async fn recovery_refuses_a_store_that_changed_a_blob() {
    let (world, client) = World::with_client(1).await;
    let session = client.new_session(NewSession::default()).await.unwrap();
    say(&client, session, "one").await;
    let root = client.session(session).backup().await.unwrap();
    client.shutdown(GRACE).await;
    world.store.corrupt_blobs();
    world.nodes[0].stop().await;
    let home = tempfile::tempdir().unwrap();
    let client = world.client_at(home.path()).await;
    let error = client.recover(&root).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::BlobHashMismatch));
    assert!(client.sessions().await.unwrap().is_empty());
}

/// A client of a world whose clock, like the nodes', is this many weeks ahead; and its access to the index.
async fn weeks_later(world: &World, home: &std::path::Path, weeks: u64) -> (Client, Arc<Gate>) {
    let ahead = weeks * HEAD_PERIOD_MS;
    world.nodes.iter().for_each(|node| node.set_clock_ahead(i64::try_from(ahead).unwrap()));
    let gate = Gate::new(&world.store);
    let mut config = with_indexes(world.config(home), std::slice::from_ref(&gate));
    config.shift_clocks(i64::try_from(ahead / 1000).unwrap());
    (Client::open(config).await.unwrap(), gate)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_a_granted_place_finds_and_recognises_no_head_of_the_next_week() {
    let world = World::new(1).await;
    let (client, _) = weeks_later(&world, world.home.path(), 0).await;
    let id = session(&client).await;
    say_settled(&client, id, "one").await;
    // Without the locations of the blobs, the node gets the place of the head; otherwise it gets nothing.
    let input = TurnInput::user("two")
        .with_route(|route| (route.with_locator, route.inline) = (false, InlinePolicy::Never));
    client.session(id).turn(input, |_| {}).await.unwrap();
    assert!(client.session(id).wait_settled(GRACE).await.unwrap());
    let root = client.session(id).backup().await.unwrap();
    client.shutdown(GRACE).await;
    let payloads = world.nodes[0].seen(|seen| seen.payloads.clone());
    let granted = |position: usize| {
        let (_, bytes) = &payloads[position];
        codec::decode::<Payload>(bytes, bytes.len()).unwrap().grant.head.clone()
    };
    assert_eq!(granted(0), None);
    let grant = granted(1).unwrap();
    let shows = |key: &HeadIndexKey| {
        let found = world.store.heads().get(key).cloned().unwrap();
        SignedObject::<HeadRecord>::verify_encoded(&found).unwrap()
    };
    let watched = shows(&grant.index_key);
    assert_eq!(watched.open_outer(&grant.key.head_key()).unwrap().seq, 1);

    let (client, _) = weeks_later(&world, world.home.path(), 1).await;
    say_settled(&client, id, "three").await;
    client.shutdown(GRACE).await;
    // The granted place stands still, and the key opens nothing else in the index.
    assert_eq!(shows(&grant.index_key), watched);
    let others: Vec<HeadIndexKey> =
        world.store.heads().into_keys().filter(|key| *key != grant.index_key).collect();
    assert_eq!(others.len(), 1);
    let later = shows(&others[0]);
    assert_eq!(later.open_outer(&grant.key.head_key()), Err(ErrorCode::PayloadRejected));
    assert_ne!(later.head_key, watched.head_key);

    // The root alone finds the newest head, now and after five weeks of rest. The lease of the device looks
    // once more.
    for (weeks, lookups) in [(1, 2), (6, 10)] {
        let home = tempfile::tempdir().unwrap();
        let (client, gate) = weeks_later(&world, home.path(), weeks).await;
        assert_eq!(client.recover(&root).await.unwrap(), id);
        assert!(gate.resolves() <= 2 * lookups, "{} look-ups", gate.resolves());
        let history = client.session(id).history().await.unwrap();
        assert_eq!(history.len(), 3);
        client.shutdown(GRACE).await;
    }
}
