//! Work after a turn: blobs stored again, messages sent again, and cases left alone.

use std::time::Duration;

use baton_client::{InlinePolicy, TurnInput};
use baton_proto::store::StoreError;

use baton_client::testkit::{GRACE, World, fake::Act, say, say_settled, session, store::down};

#[tokio::test(flavor = "multi_thread")]
async fn a_long_outage_of_the_store_ends_without_a_turn_or_a_restart() {
    let (world, client, session) = World::with_session(1).await;
    world.store.set_down(true);
    world.nodes[0].script([Act::NeverStore]);
    say(&client, session, "hello").await;
    assert!(!client.session(session).wait_settled(Duration::from_secs(3)).await.unwrap());
    assert_eq!((world.store.puts(), world.store.heads().len()), (0, 0));
    world.store.set_down(false);
    // Without a request, the client returns to the store by itself.
    tokio::time::timeout(GRACE, world.store.put_count(1)).await.unwrap();
    assert!(client.session(session).wait_settled(GRACE).await.unwrap());
    assert_eq!(client.session(session).info().await.unwrap().unstored, 0);
    assert_eq!(world.store.heads().len(), 1);
    client.shutdown(GRACE).await;
    assert_eq!(world.store.puts(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_does_not_wait_for_a_store_that_stays_away() {
    let (world, client, session) = World::with_session(1).await;
    world.store.set_down(true);
    world.nodes[0].script([Act::NeverStore]);
    say(&client, session, "hello").await;
    tokio::time::timeout(GRACE, client.shutdown(Duration::from_secs(3600))).await.unwrap();
    world.store.set_down(false);
    let client = world.client().await;
    assert!(client.session(session).wait_settled(GRACE).await.unwrap(), "taken up from the journal");
    client.shutdown(GRACE).await;
    assert_eq!(world.store.puts(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_is_bought_again_only_when_the_store_says_twice_that_it_is_gone() {
    let cases = [
        (StoreError::NotFound, StoreError::NotFound, 0),
        (StoreError::NotFound, down(), 0),
        (down(), down(), 0),
        (StoreError::NotFound, StoreError::NotFound, 1),
    ];
    for (node_sees, client_sees, again) in cases {
        let (world, client, session) = World::with_session(1).await;
        say_settled(&client, session, "one").await;
        world.store.fail_reads([node_sees, client_sees.clone()]);
        if again > 0 {
            world.store.fail_reads([client_sees.clone()]);
        }
        let input = TurnInput::user("two").with_route(|route| route.inline = InlinePolicy::Never);
        let outcome = client.session(session).turn(input, |_| {}).await.unwrap();
        assert_eq!((outcome.attempt, outcome.text.as_str()), (1, "two (1)"), "{client_sees:?}");
        client.shutdown(GRACE).await;
        assert_eq!(world.store.puts(), 2 + again, "{client_sees:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_author_that_forgot_a_turn_is_not_sent_its_acknowledgement_again() {
    let world = World::new(1).await;
    world.nodes[0].seen(|seen| seen.forgotten = true);
    let client = world.client().await;
    let session = session(&client).await;
    say(&client, session, "hello").await;
    client.shutdown(GRACE).await;
    let client = world.client().await;
    assert!(!client.session(session).history().await.unwrap()[0].acked);
    client.shutdown(GRACE).await;
    assert_eq!(world.nodes[0].seen(|seen| seen.ack_requests), 1);
}
