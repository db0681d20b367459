//! Limits on the memory, writes and waits that a node can cause in a client.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use baton_client::{Client, RouteOptions, TurnInput};
use baton_keys::SecretSigningKey;
use baton_mesh::{Mesh, MeshConfig};
use baton_proto::ErrorCode;

use baton_client::testkit::{
    GRACE, World, events_of,
    fake::{Act, now_ms},
    resume, say, session,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_goes_beyond_its_limits_is_left() {
    let cases = [
        (Act::TooManyTokens, ErrorCode::FrameTooLarge),
        (Act::EmptyTokens, ErrorCode::NonCanonical),
        (Act::WaitOn, ErrorCode::FrameTooLarge),
        (Act::RepeatNote, ErrorCode::NonCanonical),
        (Act::OfferMemory, ErrorCode::NonCanonical),
    ];
    let (world, client) = World::with_client(1).await;
    for (act, code) in cases {
        let session = session(&client).await;
        world.nodes[0].script([act]);
        let input = TurnInput::user("hello").with_route(|route| route.max_attempts = 1);
        let (result, _) = events_of(&client, session, input).await;
        assert_eq!(result.unwrap_err().code(), Some(code), "{act:?}");
        let again = resume(&client, session).await;
        assert_eq!((again.attempt, again.text.as_str()), (1, "hello (0)"), "{act:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_has_a_time_limit_of_its_own() {
    let world = World::new(1).await;
    let client = world
        .client_with(|config| {
            config.timeouts.idle = GRACE * 10;
            config.timeouts.reply = Duration::from_millis(200);
        })
        .await;
    let session = session(&client).await;
    world.nodes[0].script([Act::Hang]);
    let input = TurnInput {
        max_output_tokens: 2,
        route: RouteOptions { max_attempts: 1, ..RouteOptions::default() },
        ..TurnInput::user("hello")
    };
    let begun = Instant::now();
    let error = client.session(session).turn(input, |_| {}).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::StreamTruncated));
    assert!(begun.elapsed() < GRACE, "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_that_is_not_sealed_does_not_hide_a_sealed_turn() {
    let (world, client, session) = World::with_session(1).await;
    world.nodes[0].script([Act::SealAndRefuse]);
    let outcome = client.session(session).turn(TurnInput::user("hello"), |_| {}).await.unwrap();
    assert_eq!((outcome.attempt, outcome.text.as_str()), (0, "hello (0)"));
    assert_eq!(world.nodes[0].seen(|seen| (seen.turns.len(), seen.statuses)), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_peer_is_waited_for_once_and_not_at_every_turn() {
    let world = World::new(1).await;
    let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
    let config = MeshConfig::server("silent", listen);
    let (silent, mut incoming) =
        Mesh::spawn(SecretSigningKey::generate().expose_seed(), config).await.unwrap();
    let (asked, mut asks) = tokio::sync::watch::channel(0);
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Some((_, stream)) = incoming.next().await {
            open.push(stream);
            asked.send_replace(open.len());
        }
    });
    let mut config = world.config(world.home.path());
    config.bootstrap.extend(silent.bootstrap_addrs());
    let stopped_at = Arc::new(AtomicU64::new(0));
    let clock = stopped_at.clone();
    config.clock = Arc::new(move || match clock.load(Ordering::SeqCst) {
        0 => now_ms(),
        stopped_at => stopped_at,
    });
    let client = Client::open(config).await.unwrap();
    assert_eq!(client.nodes().await.len(), 1);
    tokio::time::timeout(GRACE, asks.wait_for(|asks| *asks == 1)).await.unwrap().unwrap();
    // This keeps the silent peer's pause from ending during a slow test.
    stopped_at.store(now_ms(), Ordering::SeqCst);
    let session = session(&client).await;
    for turn in 0..3 {
        assert_eq!(say(&client, session, "hello").await.seq, turn);
    }
    assert_eq!(*asks.borrow(), 1, "asked once, and left alone for a while");
}
