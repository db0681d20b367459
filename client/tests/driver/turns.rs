//! Successful turns, over several nodes, segments and starts.

use baton_client::{InlinePolicy, NewSession, Omissions, TurnEvent, TurnInput};
use baton_proto::{receipt::EngineKind, record::RecordKind};

use baton_client::testkit::{GRACE, World, close, events_of, fake::FakeNode, say, session};

#[tokio::test(flavor = "multi_thread")]
async fn any_node_continues_what_another_began_over_segments_and_restarts() {
    let (world, client) = World::with_client(2).await;
    let session = client.new_session(NewSession::with_system("be brief: ")).await.unwrap();
    for (turn, node) in (0..18u64).zip(world.nodes.iter().cycle()) {
        let mut input = TurnInput::user(format!("turn {turn}"));
        input.route.node = Some(node.id());
        let outcome = client.session(session).turn(input, |_| {}).await.unwrap();
        assert_eq!(outcome.text, format!("be brief: turn {turn} ({turn})"));
        assert_eq!((outcome.seq, outcome.node), (turn, node.id()));
    }
    client.shutdown(GRACE).await;

    let client = world.client().await;
    let outcome = say(&client, session, "after a restart").await;
    assert_eq!((outcome.seq, outcome.text.as_str()), (18, "be brief: after a restart (18)"));
    let report = client.session(session).verify(true).await.unwrap();
    assert!(report.is_good(), "{:?}", report.problems);
    assert_eq!((report.turns, report.segments, report.ids_checked), (19, 2, 19));
    assert_eq!(report.receipts_checked, 19);
    let history = client.session(session).history().await.unwrap();
    assert_eq!(history[1].turn.link.segment, 0);
    assert_eq!(history[16].turn.link.segment, 1);
    client.shutdown(GRACE).await;
    let acks: usize = world.nodes.iter().map(|node| node.seen(|seen| seen.acks.len())).sum();
    assert_eq!(acks, 19);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_come_in_order_and_accepted_is_last() {
    let (world, client, session) = World::with_session(1).await;
    let (result, events) = events_of(&client, session, TurnInput::user("hello")).await;
    let outcome = result.unwrap();
    let text: String = events
        .iter()
        .filter_map(|event| match event {
            TurnEvent::Text(text) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(text, outcome.text);
    assert!(matches!(events.first(), Some(TurnEvent::Attempt { attempt: 0, .. })));
    assert_eq!(events.last(), Some(&TurnEvent::Accepted));
    assert_eq!(outcome.receipt.node, world.nodes[0].id());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_hides_what_it_replaces_from_the_node() {
    let (_world, client, session) = World::with_session(1).await;
    for text in ["one", "two", "three"] {
        say(&client, session, text).await;
    }
    let mut edit = TurnInput::user("two again");
    (edit.kind, edit.supersedes_from) = (RecordKind::Edit, Some(1));
    let outcome = client.session(session).turn(edit, |_| {}).await.unwrap();
    assert_eq!(outcome.text, "two again (1)");
    assert_eq!(say(&client, session, "next").await.text, "next (2)");
    // Back to before the edit, which restores the turn that it replaced; then back to before the original.
    for (from, text) in [(3, "from the edit on (3)"), (1, "from the original on (1)")] {
        let mut edit = TurnInput::user(text.rsplit_once(' ').unwrap().0);
        (edit.kind, edit.supersedes_from) = (RecordKind::Edit, Some(from));
        assert_eq!(client.session(session).turn(edit, |_| {}).await.unwrap().text, text);
    }
    assert_eq!(say(&client, session, "last").await.text, "last (2)");
    let mut wrong = TurnInput::user("x");
    wrong.supersedes_from = Some(1);
    assert!(client.session(session).turn(wrong, |_| {}).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_finds_the_history_by_session_id_alone_and_a_stale_index_costs_an_attempt() {
    for is_stale in [false, true] {
        let (world, client, session) = World::with_session(1).await;
        say(&client, session, "one").await;
        client.shutdown(GRACE).await;
        if is_stale {
            world.store.set_heads(Default::default());
        }
        let client = world.client().await;
        let mut input = TurnInput::user("two");
        (input.route.with_locator, input.route.inline) = (false, InlinePolicy::Never);
        let outcome = client.session(session).turn(input, |_| {}).await.unwrap();
        assert_eq!((outcome.attempt, outcome.text.as_str()), (u32::from(is_stale), "two (1)"));
        assert!(is_stale || world.nodes[0].seen(|seen| seen.turns[1].prev_blob).is_none());
        client.shutdown(GRACE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn echo_engines_serve_only_where_allowed() {
    let mut world = World::new(0).await;
    world.nodes.push(FakeNode::start(&world.store, EngineKind::Echo).await);
    let client = world.client().await;
    let session = session(&client).await;
    let refused = client.session(session).turn(TurnInput::user("hi"), |_| {}).await.unwrap_err();
    assert_eq!((refused.name(), refused.exit_code()), ("NoNode", 3));
    client.session(session).abandon().await.unwrap();
    let input = TurnInput::user("hi").with_route(|route| route.allow_echo = true);
    let outcome = client.session(session).turn(input, |_| {}).await.unwrap();
    assert_eq!(outcome.receipt.engine, EngineKind::Echo);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_session_goes_on_from_its_snapshot_and_has_its_early_turns() {
    let world = World::new(1).await;
    let client = world.client_with(|config| config.renew = true).await;
    let session = session(&client).await;
    // More segments than a node is ever shown.
    let turns = 12 * 16;
    for turn in 0..turns {
        say(&client, session, &format!("turn {} of segment {}", turn % 16, turn / 16)).await;
    }
    close(&client, session).await;
    let snapshots = || {
        let files = std::fs::read_dir(world.home.path().join("sessions")).unwrap();
        files
            .filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|end| end == "snapshot"))
            .count()
    };
    assert_eq!(snapshots(), 1);
    let client = world.client().await;
    assert_eq!(client.last_session().await.unwrap(), Some(session));
    assert_eq!(say(&client, session, "next").await.seq, turns);
    let info = client.session(session).info().await.unwrap();
    assert_eq!((info.title.as_str(), info.effective_turns), ("turn 0 of segment 0", turns + 1));
    assert_eq!(client.search("turn 7 of segment 2", None).await.unwrap().len(), 1);
    client.shutdown(GRACE).await;

    let client = world.client().await;
    let handle = client.session(session);
    let edit = TurnInput { kind: RecordKind::Edit, supersedes_from: Some(2), ..TurnInput::user("again") };
    assert_eq!(handle.turn(edit, |_| {}).await.unwrap().seq, turns + 1);
    assert_eq!(handle.info().await.unwrap().effective_turns, 3);
    let history = handle.history().await.unwrap();
    assert_eq!(history.len() as u64, turns + 2);
    assert!(history.iter().all(|view| view.receipt.is_some()));
    assert!(handle.verify_when_stored(false).await.unwrap().is_good());
    handle.delete().await.unwrap();
    assert_eq!(snapshots(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_omitted_from_a_prompt_are_counted() {
    let (_world, client, session) = World::with_session(1).await;
    // Two of them fill the window of the node's model.
    let long = "word ".repeat(900);
    for (turn, omitted) in [0, 0, 0, 1, 2].into_iter().enumerate() {
        let outcome = say(&client, session, &long).await;
        assert_eq!(outcome.omitted, Omissions { turns: omitted, memories: 0 }, "turn {turn}");
    }
    let input = TurnInput { kind: RecordKind::Edit, supersedes_from: Some(1), ..TurnInput::user("short") };
    let edited = client.session(session).turn(input, |_| {}).await.unwrap();
    assert!(edited.omitted.is_nothing(), "replaced turns are not left out: {:?}", edited.omitted);
}

#[test]
fn omissions_are_said_in_one_sentence() {
    for (turns, memories, said) in [
        (1, 0, "1 earlier turn was left out"),
        (3, 0, "3 earlier turns were left out"),
        (0, 1, "1 memory was left out"),
        (2, 2, "2 earlier turns and 2 memories were left out"),
    ] {
        assert!(Omissions { turns, memories }.to_string().starts_with(&format!("{said}: ")));
    }
}
