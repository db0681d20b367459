//! A wrong clock is reported with its owner, the difference and the next step.

use std::{sync::Arc, time::Duration};

use baton_client::{
    Client, ClientError, RouteOptions, TurnInput, WrongClock,
    choose::{Exclusion, NoChoice, Verdict},
    system_clock,
};
use baton_proto::ErrorCode;

use baton_client::testkit::{GRACE, World, fake::Act, session};

const SECOND: i64 = 1000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// A client whose clock is ahead by `ahead_ms`.
async fn client(world: &World, ahead_ms: i64) -> Client {
    let mut config = world.config(world.home.path());
    let clock = system_clock();
    config.clock = Arc::new(move || clock().saturating_add_signed(ahead_ms));
    // Far above the time of a connection on this machine; the test also shows that no caller waits for it.
    config.timeouts.discovery = Duration::from_secs(60);
    Client::open(config).await.unwrap()
}

/// A turn that must fail because of a clock.
async fn refused(client: &Client) -> ClientError {
    let session = session(client).await;
    let failed = client.session(session).turn(TurnInput::user("what time is it?"), |_| {}).await.unwrap_err();
    assert_eq!((failed.exit_code(), failed.name()), (4, "ClocksDiffer"), "{failed}");
    failed
}

fn difference(error: &ClientError) -> &baton_client::ClockDifference {
    let ClientError::NoNode(NoChoice::ClocksDiffer(found)) = error else { panic!("{error}") };
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn this_machines_wrong_clock_is_named_with_how_much_and_what_to_do() {
    let offsets = [-400 * DAY, -DAY, -HOUR, -5 * MINUTE, DAY, 40 * DAY, 400 * DAY];
    for with_store in [false, true] {
        let world = World::new(1).await;
        if with_store {
            world.store.set_clock(system_clock());
        }
        for offset in offsets {
            let client = client(&world, offset).await;
            let error =
                tokio::time::timeout(GRACE, refused(&client)).await.expect("nobody waits for discovery");
            let found = difference(&error);
            let wrong =
                if with_store { WrongClock::Here } else { WrongClock::HereOrNode(world.nodes[0].id()) };
            assert_eq!((found.wrong, found.ahead), (wrong, offset > 0), "{offset}: {error}");
            // A record alone shows when a key ends, an hour after it was signed.
            let allowed = if with_store { 5 * SECOND } else { HOUR + 5 * SECOND };
            let by = i64::try_from(found.by_ms).unwrap();
            assert!((offset.abs() - allowed..=offset.abs() + SECOND).contains(&by), "{offset}: {by}");
            assert!(error.to_string().contains("this machine's clock is"), "{error}");
            assert!(error.hint().unwrap().contains("check this machine's clock"), "{error}");
            client.shutdown(GRACE).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nodes_wrong_clock_is_named_where_the_store_agrees_with_this_machine() {
    for ahead in [45 * SECOND, HOUR, DAY, -2 * HOUR, -40 * DAY] {
        let world = World::new(1).await;
        world.store.set_clock(system_clock());
        world.nodes[0].set_clock_ahead(ahead);
        let client = client(&world, 0).await;
        let error = refused(&client).await;
        let found = difference(&error);
        assert_eq!((found.wrong, found.ahead), (WrongClock::Node(world.nodes[0].id()), ahead > 0), "{error}");
        assert!(error.to_string().contains(&world.nodes[0].id().to_string()), "{error}");
        assert!(error.to_string().contains("the test's store"), "{error}");
        // Turns are served if another node has the right clock.
        let explained = client.explain(None, &RouteOptions::default()).await.unwrap();
        let [row] = &explained[..] else { panic!("{explained:?}") };
        let expected = |exclusion: &Exclusion| match exclusion {
            Exclusion::NotBegun { by_ms } => ahead > 0 && *by_ms <= ahead.unsigned_abs(),
            Exclusion::RanOut { .. } => ahead < 0,
            _ => false,
        };
        assert!(matches!(&row.verdict, Verdict::Excluded(exclusion) if expected(exclusion)), "{row:?}");
        client.shutdown(GRACE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_clock_was_set_right_serves_again() {
    let world = World::new(1).await;
    world.store.set_clock(system_clock());
    world.nodes[0].set_clock_ahead(HOUR);
    let client = client(&world, 0).await;
    refused(&client).await;
    world.nodes[0].set_clock_ahead(0);
    let session = session(&client).await;
    let served = async {
        // It is asked again after a pause.
        while client.session(session).turn(TurnInput::user("hello"), |_| {}).await.is_err() {
            client.session(session).abandon().await.unwrap();
        }
    };
    tokio::time::timeout(GRACE, served).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_the_time_is_told_as_a_clock_and_not_as_a_failed_turn() {
    for (code, node_ahead) in [(ErrorCode::Expired, true), (ErrorCode::NotYetValid, false)] {
        for store_agrees in [true, false] {
            let world = World::new(1).await;
            let off = if node_ahead { HOUR } else { -HOUR };
            let clock = system_clock();
            let ahead = if store_agrees { 0 } else { off };
            world.store.set_clock(Arc::new(move || clock().saturating_add_signed(ahead)));
            world.nodes[0].script([Act::Refuse(code); 12]);
            let client = client(&world, 0).await;
            let error = refused(&client).await;
            let found = difference(&error);
            let expected = match store_agrees {
                true => (WrongClock::Node(world.nodes[0].id()), node_ahead),
                false => (WrongClock::Here, !node_ahead),
            };
            assert_eq!((found.wrong, found.ahead), expected, "{error}");
            client.shutdown(GRACE).await;
        }
    }
}
