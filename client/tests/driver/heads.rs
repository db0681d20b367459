//! The head index: publication, comparison, and recovery of a session from its root alone.

use baton_client::{ClientError, HeadStatus, NewSession, SessionRoot};
use baton_proto::ErrorCode;

use baton_testkit::{GRACE, World, say, session};

#[tokio::test(flavor = "multi_thread")]
async fn an_older_head_is_a_rollback_and_a_vanished_one_too() {
    let world = World::new(1).await;
    let client = world.client().await;
    let session = session(&client).await;
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
    client.shutdown(GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_turn_at_our_position_is_a_fork() {
    let world = World::new(1).await;
    let client = world.client().await;
    let session = session(&client).await;
    say(&client, session, "one").await;
    let root = client.session(session).backup().await.unwrap();
    client.shutdown(GRACE).await;

    // A second device takes the session over and writes turn 1; then ours does the same without looking.
    let other_home = tempfile::tempdir().unwrap();
    let other = world.client_at(other_home.path()).await;
    assert_eq!(other.recover(&root).await.unwrap(), session);
    say(&other, session, "theirs").await;
    other.shutdown(GRACE).await;
    let theirs = world.store.heads();

    let client = world.client().await;
    assert!(matches!(
        client.session(session).check_head().await,
        Err(ClientError::Behind { ours: 0, theirs: 1, own: false })
    ));
    say(&client, session, "ours").await;
    client.shutdown(GRACE).await;
    world.store.set_heads(theirs);
    let client = world.client().await;
    let error = client.session(session).check_head().await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::ForkDetected), "{error}");
    client.shutdown(GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_comes_back_from_its_words_and_goes_on() {
    let world = World::new(1).await;
    let client = world.client().await;
    let session = session(&client).await;
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
    client.shutdown(GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_to_recover_what_never_was_or_was_deleted() {
    let world = World::new(1).await;
    let client = world.client().await;
    assert!(matches!(client.recover(&SessionRoot::generate()).await, Err(ClientError::HeadMissing)));
    let session = session(&client).await;
    say(&client, session, "one").await;
    let root = client.session(session).backup().await.unwrap();
    client.session(session).delete().await.unwrap();
    assert!(matches!(client.session(session).info().await, Err(ClientError::UnknownSession(_))));
    assert!(matches!(client.recover(&root).await, Err(ClientError::Deleted)));
    client.shutdown(GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recovery_refuses_a_store_that_changed_a_blob() {
    let world = World::new(1).await;
    let client = world.client().await;
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
    client.shutdown(GRACE).await;
}
