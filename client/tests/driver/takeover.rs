//! Nodes replaced in the middle of an answer: another node continues from the tokens that had arrived.

use std::time::{Duration, Instant};

use baton_client::{Client, TurnEvent, TurnInput};
use baton_proto::ErrorCode;

use baton_client::testkit::{
    GRACE, World, events_of,
    fake::{Act, QUEUE},
    session,
};

/// All text that was shown, in order.
fn shown(events: &[TurnEvent]) -> String {
    let texts = events.iter().filter_map(|event| match event {
        TurnEvent::Text(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

/// Number of tokens that each attempt continued.
fn continued(events: &[TurnEvent]) -> Vec<u32> {
    let attempts = events.iter().filter_map(|event| match event {
        TurnEvent::Attempt { continues, .. } => Some(*continues),
        _ => None,
    });
    attempts.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_continued_by_another_node_with_no_token_twice_and_none_missing() {
    for act in [Act::Truncate, Act::NoteAndTruncate, Act::Fail(ErrorCode::Internal)] {
        let (world, client, session) = World::with_session(2).await;
        // The first node asked breaks off; the other serves.
        client.nodes().await;
        for node in &world.nodes {
            node.script([act]);
        }
        let (result, events) = events_of(&client, session, TurnInput::user("hello")).await;
        let outcome = result.unwrap();
        assert_eq!((shown(&events).as_str(), outcome.text.as_str()), ("hello (0)", "hello (0)"), "{act:?}");
        assert!(!events.contains(&TurnEvent::Restarted), "{act:?}");
        assert_eq!(continued(&events), [0, 1, 2], "{act:?}: each continues what the one before made");
        assert_eq!((outcome.receipt.tokens.resumed, outcome.receipt.tokens.output), (2, 2), "{act:?}");
        let history = client.session(session).history().await.unwrap();
        let resumed = history[0].resumed.unwrap();
        assert_eq!((resumed.attempt, resumed.token_count), (1, 2), "{act:?}");
        assert_ne!(resumed.author, outcome.node, "{act:?}: the record names both");
        let notes: Vec<u32> = history[0].notes.iter().map(|note| note.token_count).collect();
        let expected: &[u32] = if act == Act::NoteAndTruncate { &[1, 2] } else { &[] };
        assert_eq!(notes, expected, "{act:?}: what those who died had signed");
        client.shutdown(GRACE).await;
        // The journal has it too.
        let client = world.client().await;
        let history = client.session(session).history().await.unwrap();
        assert_eq!((history[0].resumed, history[0].notes.len()), (Some(resumed), expected.len()), "{act:?}");
        assert!(client.session(session).verify(true).await.unwrap().is_good(), "{act:?}");
        client.shutdown(GRACE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stalls_in_the_middle_of_an_answer_is_replaced() {
    let world = World::new(2).await;
    let client = world.client_with(|config| config.timeouts.stall = Duration::from_millis(200)).await;
    client.nodes().await;
    let hung = session(&client).await;
    world.nodes[0].script([Act::Hang]);
    world.nodes[1].script([Act::Hang]);
    let begun = Instant::now();
    let (result, events) = events_of(&client, hung, TurnInput::user("hello")).await;
    assert_eq!((result.unwrap().text.as_str(), shown(&events).as_str()), ("hello (0)", "hello (0)"));
    assert_eq!(continued(&events)[..2], [0, 1]);
    let stalled = events
        .iter()
        .any(|event| matches!(event, TurnEvent::AttemptFailed { reason, .. } if reason.contains("stalled")));
    assert!(stalled, "{events:?}");
    // The second to hang was the last that could serve, so it had more time, but not without limit.
    assert!(begun.elapsed() < GRACE, "{:?}", begun.elapsed());
}

/// A client that waits at most this long for a first token.
async fn hasty(world: &World, first_token: Duration) -> Client {
    let client = world.client_with(|config| config.timeouts.first_token = first_token).await;
    client.nodes().await;
    client
}

fn stalls(events: &[TurnEvent]) -> usize {
    let stalled = |event: &&TurnEvent| matches!(event, TurnEvent::AttemptFailed { reason, .. } if reason.contains("stalled"));
    events.iter().filter(stalled).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_admits_and_sends_nothing_is_replaced_and_its_attempt_aborted() {
    for act in [Act::AdmitAndHang, Act::QueueAndHang] {
        let world = World::new(2).await;
        let client = hasty(&world, QUEUE / 3).await;
        let session = session(&client).await;
        for node in &world.nodes {
            node.script([act]);
        }
        let begun = Instant::now();
        let (result, events) = events_of(&client, session, TurnInput::user("hello")).await;
        let outcome = result.unwrap();
        assert_eq!((shown(&events).as_str(), outcome.attempt), ("hello (0)", 2), "{act:?}");
        assert_eq!(
            (continued(&events).as_slice(), stalls(&events)),
            (&[0, 0, 0][..], 2),
            "{act:?}: {events:?}"
        );
        assert!(begun.elapsed() < GRACE, "{act:?}: {:?}", begun.elapsed());
        client.shutdown(GRACE).await;
        let seen = |look: fn(&mut baton_client::testkit::fake::NodeLog) -> usize| {
            world.nodes.iter().map(|node| node.seen(look)).sum::<usize>()
        };
        assert_eq!(seen(|seen| seen.statuses), 2, "{act:?}: both were asked what became of it");
        assert_eq!(seen(|seen| seen.aborts.len()), 2, "{act:?}: and told that it is not wanted any more");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_in_an_honest_queue_is_waited_for_longer_than_a_first_token() {
    let world = World::new(2).await;
    let client = hasty(&world, QUEUE / 3).await;
    let session = session(&client).await;
    for node in &world.nodes {
        node.script([Act::QueueAndServe]);
    }
    let (result, events) = events_of(&client, session, TurnInput::user("hello")).await;
    assert_eq!((result.unwrap().attempt, stalls(&events)), (0, 0), "{events:?}");
    assert!(events.contains(&TurnEvent::Waiting(1)) && !events.contains(&TurnEvent::Waiting(0)));
}

/// Times that a node said that it still works on the turn.
fn reports(events: &[TurnEvent]) -> usize {
    events.iter().filter(|event| matches!(event, TurnEvent::StillRunning { .. })).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_only_node_is_waited_for_as_long_as_it_says_that_it_works_on_the_turn() {
    for (act, orders) in [
        (Act::ServeOnceAsked(5), 1),
        (Act::AdmitOnceAsked(3), 1),
        (Act::SealOnceAsked(2), 1),
        (Act::AdmitAndHang, 2),
    ] {
        let world = World::new(1).await;
        let client = world
            .client_with(|config| {
                config.timeouts.first_token = Duration::from_millis(40);
                config.timeouts.admit = Duration::from_millis(300);
            })
            .await;
        let session = session(&client).await;
        world.nodes[0].script([act]);
        let (result, events) = events_of(&client, session, TurnInput::user("hello")).await;
        assert_eq!(result.unwrap().text, "hello (0)", "{act:?}");
        assert_eq!(world.nodes[0].seen(|seen| seen.turns.len()), orders, "{act:?}: {events:?}");
        let expected = match act {
            Act::ServeOnceAsked(times) | Act::AdmitOnceAsked(times) => times,
            _ => 0,
        };
        assert_eq!(reports(&events), expected, "{act:?}: {events:?}");
        client.shutdown(GRACE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_works_on_the_turn_is_left_only_for_one_that_is_likely_faster() {
    for (measured, orders) in [(false, 1), (true, 2)] {
        let world = World::new(2).await;
        let client = hasty(&world, Duration::from_millis(100)).await;
        let session = session(&client).await;
        if measured {
            let (result, _) = events_of(&client, session, TurnInput::user("hello")).await;
            result.unwrap();
        }
        let seen = || world.nodes.iter().map(|node| node.seen(|seen| seen.turns.len())).sum::<usize>();
        let before = seen();
        let mut scripted = false;
        let handle = client.session(session);
        let turn = handle.turn(TurnInput::user("hello"), |event| match event {
            TurnEvent::Attempt { .. } if !scripted => {
                scripted = true;
                world.nodes.iter().for_each(|node| node.script([Act::ServeOnceAsked(1)]));
            }
            TurnEvent::AttemptFailed { .. } => world.nodes.iter().for_each(|node| node.clear_script()),
            _ => {}
        });
        turn.await.unwrap();
        assert_eq!(seen() - before, orders, "measured: {measured}");
        client.shutdown(GRACE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_author_whose_connection_is_closed_is_not_asked_before_another_goes_on() {
    let (world, client, session) = World::with_session(3).await;
    assert_eq!(client.nodes().await.len(), 3);
    for node in &world.nodes {
        node.script([Act::Hang]);
    }
    let dying = async {
        let hung = world.nodes.iter().map(|node| Box::pin(node.hangs()));
        let (_, first, _) = futures::future::select_all(hung).await;
        world.nodes.iter().for_each(baton_client::testkit::fake::FakeNode::clear_script);
        world.nodes[first].stop().await;
        first
    };
    let ((result, events), died) = tokio::join!(events_of(&client, session, TurnInput::user("hello")), dying);
    let outcome = result.unwrap();
    assert_ne!(outcome.node, world.nodes[died].id());
    assert_eq!((shown(&events).as_str(), continued(&events).as_slice()), ("hello (0)", &[0, 1][..]));
    let noticed = events.iter().find_map(|event| match event {
        TurnEvent::AttemptFailed { noticed_ago, .. } => Some(*noticed_ago),
        _ => None,
    });
    assert!(noticed.unwrap() < Duration::from_millis(400), "{noticed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_words_of_a_node_that_was_caught_are_not_continued() {
    // Each node's script; in the last one, a liar adds to an honest beginning.
    for acts in
        [&[Act::RepeatToken][..], &[Act::WrongNote], &[Act::WrongText], &[Act::Truncate, Act::WrongText]]
    {
        let (world, client, session) = World::with_session(2).await;
        client.nodes().await;
        for node in &world.nodes {
            node.script(acts.iter().copied());
        }
        let input = TurnInput::user("hello").with_route(|route| route.max_attempts = 6);
        let (result, events) = events_of(&client, session, input).await;
        assert_eq!(result.unwrap().text, "hello (0)", "{acts:?}");
        if acts.len() == 1 {
            assert_eq!(continued(&events), [0, 0, 0], "{acts:?}");
        }
        let last = events.iter().rposition(|event| *event == TurnEvent::Restarted).unwrap_or(0);
        assert_eq!(shown(&events[last..]), "hello (0)", "{acts:?}: the display ends whole");
        client.shutdown(GRACE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_beginning_that_nodes_reject_is_given_up_and_not_the_turn() {
    let (world, client, session) = World::with_session(1).await;
    let rejected = Act::Refuse(ErrorCode::PayloadRejected);
    world.nodes[0].script([Act::Truncate, rejected, Act::Truncate, rejected]);
    let (result, events) = events_of(&client, session, TurnInput::user("hello")).await;
    assert_eq!(result.unwrap().text, "hello (0)");
    assert_eq!(continued(&events), [0, 1, 0, 1, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_a_connection_is_the_last_to_continue_an_answer() {
    for _ in 0..4 {
        let (world, client, session) = World::with_session(3).await;
        assert_eq!(client.nodes().await.len(), 3);
        let gone = world.nodes[2].id();
        world.nodes[2].stop().await;
        let deadline = tokio::time::Instant::now() + GRACE;
        let is_gone =
            |peers: &[baton_mesh::PeerInfo]| peers.iter().all(|peer| peer.node != gone || !peer.connected);
        client.mesh().wait_for_peers(deadline, is_gone).await.unwrap();
        let living = &world.nodes[..2];
        living.iter().for_each(|node| node.script([Act::Truncate]));
        let mut events = Vec::new();
        let handle = client.session(session);
        let turn = handle.turn(TurnInput::user("hello"), |event| {
            if matches!(event, TurnEvent::AttemptFailed { code: Some(_), .. }) {
                living.iter().for_each(baton_client::testkit::fake::FakeNode::clear_script);
            }
            events.push(event);
        });
        assert_eq!(turn.await.unwrap().text, "hello (0)");
        let asked: Vec<_> = events
            .iter()
            .filter_map(|event| match event {
                TurnEvent::Attempt { node, .. } => Some(*node),
                _ => None,
            })
            .collect();
        assert!(!asked[1..].contains(&gone), "{asked:?}");
        client.shutdown(GRACE).await;
    }
}
