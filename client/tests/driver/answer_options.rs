//! Turns with special requests: an answer under a schema, and token probabilities.

use baton_client::{RouteOptions, TokenReport, TurnEvent, TurnInput};
use baton_proto::{ErrorCode, turn::Sampling};

use baton_client::testkit::{GRACE, World, events_of, fake::Act, say, session};

const SCHEMA: &str = r#"{"type":"object"}"#;
/// The test nodes' answer to "hello" under a schema.
const ANSWER: &str = r#"{"said": "hello", "read": 0}"#;

fn input(text: &str) -> TurnInput {
    TurnInput {
        json_schema: Some(SCHEMA.to_owned()),
        sampling: Sampling { logprobs: 2, ..Sampling::default() },
        ..TurnInput::user(text)
    }
}

fn reports(events: &[TurnEvent]) -> Vec<TokenReport> {
    let all = events.iter().filter_map(|event| match event {
        TurnEvent::Logprobs(reports) => Some(reports.clone()),
        _ => None,
    });
    all.flatten().collect()
}

fn schemas(world: &World) -> Vec<Option<String>> {
    let asked = world.nodes.iter().flat_map(|node| node.seen(|seen| seen.asked.clone()));
    asked.map(|(schema, _)| schema).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_and_what_is_said_of_tokens_go_with_the_answer_to_another_node() {
    let (world, client, session) = World::with_session(2).await;
    client.nodes().await;
    for node in &world.nodes {
        node.script([Act::Truncate]);
    }
    let (result, events) = events_of(&client, session, input("hello")).await;
    assert_eq!(result.unwrap().text, ANSWER);
    assert!(!events.contains(&TurnEvent::Restarted));
    let reports = reports(&events);
    let said: Vec<&[u8]> = reports.iter().map(|report| report.token.bytes.as_slice()).collect();
    assert_eq!((said.len(), said.concat().as_slice()), (2, ANSWER.as_bytes()), "each token once");
    assert!(reports.iter().all(|report| report.likeliest.len() == 2 && report.token.logprob == -0.125));
    assert_eq!((reports[1].likeliest[0].id, reports[1].likeliest[1].logprob), (141, -1.511));
    let schemas = schemas(&world);
    assert_eq!(schemas.len(), 3, "each attempt brings it along");
    assert!(schemas.iter().all(|schema| schema.as_deref() == Some(SCHEMA)), "{schemas:?}");
    say(&client, session, "and now in words").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_cannot_do_it_are_passed_over_however_many_there_are() {
    let world = World::new(4).await;
    for node in &world.nodes[1..] {
        node.script([Act::Refuse(ErrorCode::PayloadRejected); 8]);
    }
    let client = world.client().await;
    client.nodes().await;
    let (result, _) = events_of(&client, session(&client).await, input("hello")).await;
    assert_eq!(result.unwrap().node, world.nodes[0].id());
    // If all of them refuse, none is asked repeatedly.
    world.nodes[0].script([Act::Refuse(ErrorCode::PayloadRejected); 8]);
    let asked = || world.nodes.iter().map(|node| node.seen(|seen| seen.turns.len())).sum::<usize>();
    let before = asked();
    let (result, _) = events_of(&client, session(&client).await, input("hello")).await;
    assert_eq!(result.unwrap_err().code(), Some(ErrorCode::PayloadRejected));
    assert!(asked() - before <= 6, "{}", asked() - before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_is_finished_after_a_restart_keeps_its_schema() {
    let (world, client, session) = World::with_session(1).await;
    world.nodes[0].script([Act::Fail(ErrorCode::Internal)]);
    let once = input("hello").with_route(|route| route.max_attempts = 1);
    let (result, _) = events_of(&client, session, once).await;
    assert!(result.is_err());
    client.shutdown(GRACE).await;
    let client = world.client().await;
    let mut events = Vec::new();
    let resumed = client.session(session).resume(RouteOptions::default(), |event| events.push(event)).await;
    assert_eq!(resumed.unwrap().unwrap().text, ANSWER);
    assert_eq!(reports(&events).len(), 2);
    assert_eq!(schemas(&world), [Some(SCHEMA.to_owned()), Some(SCHEMA.to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_keeps_what_was_asked_of_its_tokens_is_not_believed() {
    let (world, client) = World::with_client(1).await;
    world.nodes[0].script([Act::KeepLogprobs]);
    let once = input("hello").with_route(|route| route.max_attempts = 1);
    let (result, events) = events_of(&client, session(&client).await, once).await;
    assert_eq!(result.unwrap_err().code(), Some(ErrorCode::NonCanonical));
    assert!(reports(&events).is_empty());
    world.nodes[0].script([Act::IgnoreSchema]);
    let once = input("hello").with_route(|route| route.max_attempts = 1);
    let (result, _) = events_of(&client, session(&client).await, once).await;
    assert_eq!(result.unwrap_err().code(), Some(ErrorCode::ReceiptMismatch), "words are no JSON");
    let long = TurnInput { json_schema: Some("x".repeat(64 * 1024 + 1)), ..TurnInput::user("hello") };
    let (result, _) = events_of(&client, session(&client).await, long).await;
    assert_eq!(result.unwrap_err().name(), "SchemaTooLong");
}
