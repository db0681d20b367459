//! Turns of the chat page: they go on without a tab, and each tab follows them.

use baton_client::testkit::{World, fake::Act};
use baton_proto::ErrorCode;
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};

use crate::{
    serve::{Endpoint, events, hung, said, until},
    stops::pending_of,
};

fn turn(endpoint: &Endpoint, id: &str, text: &str) -> RequestBuilder {
    let body = json!({ "messages": said(&[("user", text)]) });
    endpoint.request(Method::POST, &format!("/api/sessions/{id}/turns")).json(&body)
}

fn at(endpoint: &Endpoint, method: Method, id: &str, place: &str) -> RequestBuilder {
    endpoint.request(method, &format!("/api/sessions/{id}{place}"))
}

async fn shown(endpoint: &Endpoint, id: &str) -> Value {
    endpoint.get(&format!("/api/sessions/{id}")).await
}

/// The events of a tab, to the end.
async fn followed(response: Response) -> Vec<Value> {
    assert_eq!(response.status(), 200);
    let text = response.text().await.unwrap();
    events(&text).iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}

fn text(events: &[Value]) -> String {
    events.iter().filter_map(|event| event["text"].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_goes_on_without_its_tab_and_another_tab_sees_all_of_it() {
    let (world, endpoint) = Endpoint::with_nodes(2).await;
    let id = endpoint.begin().await;
    let (same, first) = hung(&world, turn(&endpoint, &id, "a")).await;
    assert_eq!(same, id);
    drop(first);
    let running = shown(&endpoint, &id).await;
    assert_eq!((&running["running"], &running["pending"][0]["content"]), (&json!("page"), &json!("a")));
    let listed = endpoint.get("/api/sessions").await;
    let entry = listed["sessions"].as_array().unwrap().iter().find(|one| one["id"] == *id);
    assert!(entry.is_none_or(|entry| entry["running"] == "page"), "{listed}");
    // The same question once more, as from a tab that does not know: it is not asked twice.
    assert_eq!(endpoint.refused(turn(&endpoint, &id, "a")).await, (409, "session_busy".to_owned()));
    let seen = followed(at(&endpoint, Method::GET, &id, "/answer").send().await.unwrap()).await;
    assert_eq!(seen[0]["messages"], json!([{ "role": "user", "content": "a" }]));
    assert_eq!(text(&seen), "a (0)");
    let notes: Vec<&Value> = seen.iter().filter_map(|event| event["notes"].as_array()).flatten().collect();
    let last = notes.last().and_then(|note| note.as_str()).unwrap_or_default();
    assert!(last.ends_with("continues the answer") || last.ends_with("answers now"), "{notes:?}");
    assert_eq!(seen.last().unwrap()["end"]["answer"]["verified"], true);
    let done = shown(&endpoint, &id).await;
    assert_eq!((done["turns"].as_array().unwrap().len(), &done["running"]), (1, &Value::Null));
    let over = endpoint.refused(at(&endpoint, Method::GET, &id, "/answer")).await;
    assert_eq!(over, (404, "no_answer".to_owned()));
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_tab_stops_a_turn_and_its_message_is_answered_once() {
    let (world, endpoint) = Endpoint::with_nodes(1).await;
    let id = endpoint.begin().await;
    let (_, first) = hung(&world, turn(&endpoint, &id, "a")).await;
    // The node sent a part of the answer. Another tab sees when it has arrived.
    let mut other = at(&endpoint, Method::GET, &id, "/answer").send().await.unwrap();
    until(&mut other, r#""text":"#).await;
    drop(other);
    assert_eq!(at(&endpoint, Method::POST, &id, "/stop").send().await.unwrap().status(), 200);
    assert!(first.text().await.unwrap().contains(r#""stopped":true"#));
    // Its text stays.
    let stopped = pending_of(&endpoint, &id).await;
    assert_eq!((&stopped["running"], &stopped["pending"][0]["content"]), (&Value::Null, &json!("a")));
    let again = |text: &str| {
        let body = json!({ "messages": said(&[("user", text)]) });
        at(&endpoint, Method::POST, &id, "/turns?pending=1").json(&body)
    };
    let not_pending = (409, "message_not_pending".to_owned());
    assert_eq!(endpoint.refused(again("b")).await, not_pending);
    assert_eq!(text(&followed(again("a").send().await.unwrap()).await), "a (0)");
    assert_eq!(endpoint.refused(again("a")).await, not_pending, "it is answered");
    assert_eq!(shown(&endpoint, &id).await["turns"].as_array().unwrap().len(), 1);
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_no_node_was_asked_for_is_given_back_and_leaves_nothing() {
    let world = World::new(1).await;
    let endpoint = Endpoint::without_nodes(&world, false).await;
    let id = endpoint.begin().await;
    let export = endpoint.refused(at(&endpoint, Method::GET, &id, "/export")).await;
    assert_eq!(export, (409, "session_empty".to_owned()), "it has no turn");
    let seen = followed(turn(&endpoint, &id, "a").send().await.unwrap()).await;
    assert_eq!(seen.last().unwrap()["end"]["error"]["code"], "no_node");
    let gone = endpoint.refused(at(&endpoint, Method::GET, &id, "")).await;
    assert_eq!(gone, (404, "session_not_found".to_owned()));
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_too_long_for_the_model_is_given_back_to_pages_and_programs() {
    let (world, endpoint) = Endpoint::with_nodes(1).await;
    let id = endpoint.begin().await;
    followed(turn(&endpoint, &id, "a").send().await.unwrap()).await;
    world.nodes[0].script([Act::Refuse(ErrorCode::ContextOverflow)]);
    let seen = followed(turn(&endpoint, &id, "long").send().await.unwrap()).await;
    assert_eq!(seen.last().unwrap()["end"]["error"]["code"], "context_length_exceeded");
    let left = shown(&endpoint, &id).await;
    assert_eq!((&left["pending"], left["turns"].as_array().unwrap().len()), (&Value::Null, 1));
    let empty = endpoint.begin().await;
    world.nodes[0].script([Act::Explain(ErrorCode::ContextOverflow, 0, "it needs 5000 tokens"); 6]);
    let refused = endpoint.chat_in(&empty, &said(&[("user", "long")])).send().await.unwrap();
    assert_eq!(refused.status(), 400);
    assert_eq!(shown(&endpoint, &empty).await["pending"], Value::Null);
    endpoint.close().await;
    assert_eq!(world.client().await.session_ids().await.unwrap().len(), 1, "no file of the empty one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_begins_after_a_replaced_turn_with_all_that_led_to_it() {
    let (_world, endpoint) = Endpoint::with_nodes(1).await;
    let id = endpoint.begin().await;
    for text in ["a", "b", "c"] {
        followed(turn(&endpoint, &id, text).send().await.unwrap()).await;
    }
    let body = |place: &str, seq: u64, text: &str| json!({ "messages": said(&[("user", text)]), place: seq });
    let place = format!("/api/sessions/{id}/turns");
    let send = |body| endpoint.request(Method::POST, &place).json(&body).send();
    followed(send(body("replaces", 1, "B")).await.unwrap()).await;
    let branched = send(body("branch_after", 2, "d")).await.unwrap();
    let branch = branched.headers()["x-baton-session"].to_str().unwrap().to_owned();
    assert_ne!(branch, id);
    followed(branched).await;
    let turns = shown(&endpoint, &branch).await["turns"].take();
    let asked: Vec<&Value> =
        turns[0]["messages"].as_array().unwrap().iter().step_by(2).map(|one| &one["content"]).collect();
    assert_eq!(asked, ["a", "b", "c", "d"]);
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_says_how_many_earlier_turns_its_prompt_omitted() {
    let (_world, endpoint) = Endpoint::with_nodes(1).await;
    let id = endpoint.begin().await;
    // Two of them fill the window of the node's model.
    for _ in 0..4 {
        followed(turn(&endpoint, &id, &"word ".repeat(900)).send().await.unwrap()).await;
    }
    let turns = shown(&endpoint, &id).await["turns"].take();
    let left_out: Vec<u64> =
        turns.as_array().unwrap().iter().map(|one| one["omitted_turns"].as_u64().unwrap()).collect();
    assert_eq!(left_out, [0, 0, 0, 1]);
    endpoint.close().await;
}
