//! Nodes that refuse, lie, or go away.

use baton_client::{ClientError, RouteOptions, TurnEvent, TurnInput};
use baton_proto::{ErrorCode, node_record::StorageOffer, note::TurnNoteKind};

use baton_client::testkit::{GRACE, World, events_of, fake::Act, resume, say, session};

/// Codes with which attempts failed.
fn codes(events: &[TurnEvent]) -> Vec<Option<ErrorCode>> {
    let failed = events.iter().filter_map(|event| match event {
        TurnEvent::AttemptFailed { code, .. } => Some(*code),
        _ => None,
    });
    failed.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dishonest_or_broken_answer_is_never_accepted() {
    let cases = [
        (Act::Truncate, ErrorCode::StreamTruncated),
        (Act::RepeatToken, ErrorCode::StreamTruncated),
        (Act::WrongReceipt, ErrorCode::ReceiptMismatch),
        (Act::Overcharge, ErrorCode::ReceiptMismatch),
        (Act::WrongNote, ErrorCode::ReceiptMismatch),
        (Act::WrongText, ErrorCode::BlobMismatch),
        (Act::WrongDigest, ErrorCode::BlobMismatch),
        (Act::SealOtherAndVanish, ErrorCode::BlobMismatch),
        (Act::OvercountAndVanish, ErrorCode::ReceiptMismatch),
        (Act::OvercountHalfAndVanish, ErrorCode::ReceiptMismatch),
        (Act::OtherHashAndVanish, ErrorCode::ReceiptMismatch),
        (Act::HugeFrame, ErrorCode::FrameTooLarge),
        (Act::Fail(ErrorCode::Internal), ErrorCode::Internal),
    ];
    let world = World::new(1).await;
    world.nodes[0].offer_storage(StorageOffer { price: 3, ..StorageOffer::default() });
    let client = world.client().await;
    let paid = session(&client).await;
    world.nodes[0].script([Act::Charge]);
    assert_eq!(say(&client, paid, "hello").await.receipt.price, 1 + 3 * 13 * 5, "as offered");
    for (act, code) in cases {
        let session = session(&client).await;
        world.nodes[0].script([act]);
        let input = TurnInput::user("hello").with_route(|route| route.max_attempts = 1);
        let (result, events) = events_of(&client, session, input).await;
        let error = result.unwrap_err();
        assert_eq!(error.code(), Some(code), "{act:?}");
        assert_eq!(codes(&events), [Some(code)], "{act:?}");
        // An honest node's tokens could be continued; a dishonest node's are void.
        let void = !matches!(act, Act::Truncate | Act::Fail(_));
        assert_eq!(events.contains(&TurnEvent::Restarted), void, "{act:?}");
        assert!(!events.contains(&TurnEvent::Accepted), "{act:?}");
        assert_eq!(client.session(session).history().await.unwrap().len(), 0, "{act:?}");
        let info = client.session(session).info().await.unwrap();
        assert!(info.pending, "{act:?}: the message is kept");

        let again = resume(&client, session).await;
        assert_eq!(again.text, "hello (0)", "{act:?}");
        assert_eq!(again.attempt, 1, "{act:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_links_for_one_turn_the_first_stands_and_their_author_is_avoided() {
    let (world, client, session) = World::with_session(2).await;
    client.nodes().await;
    world.nodes[0].script([Act::CommitTwice]);
    let input = TurnInput::user("one").with_route(|route| route.node = Some(world.nodes[0].id()));
    let outcome = client.session(session).turn(input, |_| {}).await.unwrap();
    // The client stores the blob itself, once it has seen the second link.
    assert!(client.session(session).wait_settled(GRACE).await.unwrap());
    let found = client.session(session).equivocations().await.unwrap();
    let [told] = &found[..] else { panic!("{found:?}") };
    assert_eq!((told.node(), told.accepted.link_hash()), (world.nodes[0].id(), outcome.link_hash));
    assert_ne!(told.other.link_hash(), outcome.link_hash);
    for turn in 1..5 {
        let next = say(&client, session, "two").await;
        assert_eq!((next.seq, next.node), (turn, world.nodes[1].id()));
    }
    let history = client.session(session).history().await.unwrap();
    assert_eq!(history[1].turn.link.prev_link, outcome.link_hash);
    client.shutdown(GRACE).await;
    // The journal and the reputation have it too, and anyone can check the exported evidence.
    let client = world.client().await;
    client.nodes().await;
    let kept = client.session(session).equivocations().await.unwrap();
    assert_eq!(kept, found);
    let written = baton_client::evidence::export(&kept).to_string();
    assert_eq!(baton_client::evidence::import(&written).unwrap(), kept);
    let explained = client.explain(None, &RouteOptions::default()).await.unwrap();
    let liar = explained.iter().find(|row| row.node == world.nodes[0].id()).unwrap();
    assert_eq!(liar.last_fault, Some("equivocated"));
    assert!(liar.evidence.lied_until_ms > baton_client::testkit::fake::now_ms() + 29 * 24 * 3_600_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_attempt_is_followed_by_another_and_aborted() {
    let world = World::new(2).await;
    for node in &world.nodes {
        node.script([Act::WrongReceipt]);
    }
    let client = world.client().await;
    let session = session(&client).await;
    let (result, events) = events_of(&client, session, TurnInput::user("hello")).await;
    let outcome = result.unwrap();
    assert_eq!((outcome.attempt, codes(&events).len()), (2, 2));
    client.shutdown(GRACE).await;
    let mut aborted: Vec<_> =
        world.nodes.iter().flat_map(|node| node.seen(|seen| seen.aborts.clone())).collect();
    aborted.sort();
    assert_eq!(aborted, [(outcome.turn_id, 0), (outcome.turn_id, 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_that_stays_is_heard_once_from_each_node_with_its_reason() {
    let cases = [
        (ErrorCode::ContextOverflow, 0, 1),
        (ErrorCode::BackendDenied, 0, 1),
        (ErrorCode::ContentRefused, 0, 1),
        (ErrorCode::ModelUnavailable, 0, 1),
        (ErrorCode::PayloadRejected, 0, 1),
        (ErrorCode::RateLimited, 30_000, 1),
        (ErrorCode::RateLimited, 10, 2),
        (ErrorCode::QuotaExceeded, 0, 1),
        (ErrorCode::QuotaExceeded, 10, 2),
        (ErrorCode::Internal, 0, 2),
    ];
    for nodes in [1, 2] {
        let (world, client) = World::with_client(nodes).await;
        client.nodes().await;
        for (code, pause, times) in cases {
            let session = session(&client).await;
            let act = Act::Explain(code, pause, "not at\n/properties/v");
            world.nodes.iter().for_each(|node| node.script([act; 2]));
            let asked = || world.nodes.iter().map(|node| node.seen(|seen| seen.turns.len())).sum::<usize>();
            let before = asked();
            let input = TurnInput::user("hello")
                .with_route(|route| route.max_attempts = 2 * u32::try_from(nodes).unwrap());
            let error = client.session(session).turn(input, |_| {}).await.unwrap_err();
            assert_eq!(error.code(), Some(code), "{error}");
            assert!(error.to_string().ends_with(": not at /properties/v"), "{error}");
            assert_eq!(error.retry_after_s(), (pause > 0).then(|| u64::from(pause).div_ceil(1000)), "{code}");
            assert_eq!(asked() - before, times * nodes, "{code} of {nodes}");
            world.nodes.iter().for_each(|node| node.clear_script());
        }
        client.shutdown(GRACE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_node_alone_cannot_talk_the_client_out_of_a_turn() {
    let (world, client) = World::with_client(2).await;
    for code in [ErrorCode::BadSignature, ErrorCode::PayloadRejected, ErrorCode::MemUnauthorized] {
        let session = session(&client).await;
        world.nodes[0].script([Act::Refuse(code)]);
        let input = TurnInput::user("hello")
            .with_route(|route| (route.node, route.max_attempts) = (Some(world.nodes[0].id()), 1));
        let error = client.session(session).turn(input, |_| {}).await.unwrap_err();
        assert_eq!(error.code(), Some(code));
        let outcome = resume(&client, session).await;
        assert_eq!((outcome.node, outcome.text.as_str()), (world.nodes[1].id(), "hello (0)"), "{code}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_was_sealed_but_not_delivered_is_taken_from_its_author() {
    let (world, client, session) = World::with_session(1).await;
    say(&client, session, "one").await;
    world.nodes[0].script([Act::SealAndVanish]);
    let outcome = say(&client, session, "two").await;
    assert_eq!((outcome.attempt, outcome.text.as_str()), (0, "two (1)"));
    assert_eq!(world.nodes[0].seen(|seen| (seen.turns.len(), seen.statuses)), (2, 1));
    assert_eq!(say(&client, session, "three").await.text, "three (2)");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_an_unsealed_turn_is_asked_again() {
    let (world, client, session) = World::with_session(1).await;
    world.nodes[0].script([Act::Hang]);
    // The future is dropped while the node is silent: for the journal that is a crash.
    let handle = client.session(session);
    tokio::select! {
        _ = handle.turn(TurnInput::user("hello"), |_| {}) => panic!("the node hangs"),
        () = world.nodes[0].hangs() => {}
    }
    client.shutdown(GRACE).await;
    let client = world.client().await;
    assert!(client.session(session).info().await.unwrap().pending);
    let refused = client.session(session).turn(TurnInput::user("other"), |_| {}).await.unwrap_err();
    assert!(matches!(refused, ClientError::PendingTurn));
    assert_eq!(resume(&client, session).await.attempt, 1);
    assert_eq!(client.session(session).history().await.unwrap().len(), 1);
    assert_eq!(world.nodes[0].seen(|seen| seen.turns.len()), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_turn_sealed_while_the_client_was_away_is_taken_at_its_return() {
    let (world, client, session) = World::with_session(1).await;
    world.nodes[0].script([Act::SealAndVanish]);
    // Only the journal's attempt survives: the turn is dropped at its first event after sending.
    let (tell, told) = tokio::sync::oneshot::channel();
    let mut tell = Some(tell);
    let handle = client.session(session);
    let turn = handle.turn(TurnInput::user("hello"), move |event| {
        if matches!(event, TurnEvent::Text(_))
            && let Some(tell) = tell.take()
        {
            let _ = tell.send(());
        }
    });
    tokio::select! {
        biased;
        _ = told => {}
        _ = turn => {}
    }
    client.shutdown(GRACE).await;
    let client = world.client().await;
    let before = client.session(session).info().await.unwrap();
    let resumed = client.session(session).resume(RouteOptions::default(), |_| {}).await.unwrap();
    assert_eq!(resumed.is_some(), before.pending);
    let history = client.session(session).history().await.unwrap();
    assert_eq!(history.len(), 1);
    assert_eq!(history[0].turn.record.as_ref().unwrap().answer(), Some("hello (0)"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_acknowledgement_is_sent_again_at_the_next_start() {
    let world = World::new(1).await;
    world.nodes[0].seen(|seen| seen.lose_acks = 3);
    let client = world.client().await;
    let session = session(&client).await;
    let outcome = say(&client, session, "hello").await;
    client.shutdown(GRACE).await;
    assert_eq!(world.nodes[0].seen(|seen| seen.acks.len()), 0);
    let client = world.client().await;
    assert!(!client.session(session).history().await.unwrap()[0].acked);
    client.shutdown(GRACE).await;
    let ack = world.nodes[0].seen(|seen| seen.acks.clone());
    let [note] = &ack[..] else { panic!("{ack:?}") };
    let TurnNoteKind::Ack(accepted) = &note.kind else { panic!("{note:?}") };
    assert_eq!(accepted.link_hash, outcome.link_hash);
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_messages_that_are_empty_or_too_long_before_anything_is_sent() {
    let (world, client, session) = World::with_session(1).await;
    let empty = client.session(session).turn(TurnInput::user(" \n\t"), |_| {}).await.unwrap_err();
    assert!(matches!(empty, ClientError::EmptyMessage));
    let long =
        client.session(session).turn(TurnInput::user("x".repeat(1_000_000)), |_| {}).await.unwrap_err();
    assert!(matches!(long, ClientError::MessageTooLong { bytes: 1_000_000, limit: 524_288 }));
    assert_eq!((empty.exit_code(), long.exit_code()), (2, 2));
    assert!(!client.session(session).info().await.unwrap().pending);
    assert_eq!(world.nodes[0].seen(|seen| seen.turns.len()), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_turn_at_once_is_refused_as_busy() {
    let world = World::new(1).await;
    world.nodes[0].script([Act::Hang]);
    let client = world.client().await;
    let session = session(&client).await;
    let handle = client.session(session);
    tokio::select! {
        _ = handle.turn(TurnInput::user("first"), |_| {}) => panic!("the node hangs"),
        () = async {
            world.nodes[0].hangs().await;
            let second = client.session(session).turn(TurnInput::user("second"), |_| {}).await.unwrap_err();
            assert!(matches!(second, ClientError::Busy));
        } => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_kept_unless_nodes_refuse_it_as_it_is_or_its_sender_can_repeat_it() {
    let (world, client) = World::with_client(1).await;
    let refused = session(&client).await;
    world.nodes[0].script([Act::Refuse(ErrorCode::ContextOverflow); 6]);
    let error = events_of(&client, refused, TurnInput::user("too long")).await.0.unwrap_err();
    assert!(!client.session(refused).keeps_message(&error, false).await.unwrap());
    world.nodes[0].clear_script();

    let kept = session(&client).await;
    let input = TurnInput::user("keep me").with_route(|route| route.model = Some("nosuch".to_owned()));
    let error = events_of(&client, kept, input).await.0.unwrap_err();
    assert!(matches!(error, ClientError::NoNode(_)), "{error}");
    assert!(client.session(kept).keeps_message(&error, false).await.unwrap());
    let second = events_of(&client, kept, TurnInput::user("a second one")).await.0.unwrap_err();
    assert!(!client.session(kept).keeps_message(&second, false).await.unwrap(), "the first one waits");
    client.shutdown(GRACE).await;

    let client = world.client().await;
    assert_eq!(client.session_ids().await.unwrap(), [kept], "the refused one left no file");
    let messages = client.session(kept).pending_messages().await.unwrap().unwrap();
    assert_eq!(messages[0].text, "keep me");
    assert!(!client.session(kept).keeps_message(&error, true).await.unwrap(), "a command can be repeated");
    client.shutdown(GRACE).await;
    assert!(world.client().await.session_ids().await.unwrap().is_empty());
}
