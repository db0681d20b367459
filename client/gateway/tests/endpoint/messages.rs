//! Anthropic's Messages API over sessions.

use baton_client::testkit::fake::Act;
use baton_proto::ErrorCode;
use reqwest::Method;
use serde_json::{Value, json};

use crate::serve::{CALL, Endpoint, assert_has, assert_turn, named_events, said, sent, user, with};

/// A request as Anthropic's clients send it, with the key in a header of its own.
async fn send(endpoint: &Endpoint, path: &str, body: &Value) -> (u16, Value) {
    let request = endpoint.without_key(Method::POST, path).header("anthropic-version", "2023-06-01");
    let response = request.header("x-api-key", "sk-test").json(body).send().await.unwrap();
    assert!(response.headers().contains_key("request-id"), "clients show the request's id");
    (response.status().as_u16(), response.json().await.unwrap())
}

async fn create(endpoint: &Endpoint, messages: Value, more: Value) -> Value {
    let body = with(json!({ "model": "auto", "max_tokens": 100, "messages": messages }), more);
    let (status, body) = send(endpoint, "/v1/messages", &body).await;
    assert_eq!(status, 200, "{body}");
    body
}

/// The events of a stream.
async fn events(endpoint: &Endpoint, body: &Value) -> Vec<Value> {
    named_events(endpoint, "/v1/messages", body).await
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_a_turn_of_a_session_that_any_api_continues() {
    let (_world, endpoint) = Endpoint::with_nodes(2).await;
    let system = json!({ "system": "be brief" });
    let first = create(&endpoint, json!([user("a")]), system.clone()).await;
    assert_eq!(first["content"], json!([{ "type": "text", "text": "be briefa (0)" }]));
    assert!(first["usage"]["input_tokens"].as_u64().unwrap() > 0);
    let end = json!({ "stop_reason": "end_turn", "baton": { "verified": true } });
    assert_has(&first, &with(json!({ "type": "message", "role": "assistant" }), end));

    let assistant = json!({ "role": "assistant", "content": first["content"] });
    let second = create(&endpoint, json!([user("a"), assistant, user("b")]), system).await;
    assert_turn(&second, &first, 2);
    assert_eq!(second["content"][0]["text"], "be briefb (1)");

    // OpenAI's API goes on with the same session, and Ollama's after it.
    let mut pairs =
        vec![("system", "be brief"), ("user", "a"), ("assistant", "be briefa (0)"), ("user", "b")];
    pairs.extend([("assistant", "be briefb (1)"), ("user", "c")]);
    let third = endpoint.say(&said(&pairs)).await;
    pairs.extend([("assistant", "be briefc (2)"), ("user", "d")]);
    let body = json!({ "model": "auto", "messages": said(&pairs), "stream": false });
    let fourth = endpoint.post("/api/chat", &body).await;
    assert_turn(&third, &first, 3);
    assert_turn(&fourth, &first, 4);
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_has_the_events_of_the_api_in_their_order() {
    let (_world, endpoint) = Endpoint::with_nodes(1).await;
    let body = json!({ "model": "auto", "max_tokens": 100, "stream": true, "messages": [user("a")] });
    let events = events(&endpoint, &body).await;
    let mut order = kinds(&events);
    order.dedup();
    let block = ["content_block_start", "content_block_delta", "content_block_stop"];
    assert_eq!(order, [&["message_start"][..], &block, &["message_delta", "message_stop"]].concat());
    let text: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(text, "a (0)");
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], 7, "an estimate until the receipt");
    let delta = events.iter().find(|event| event["type"] == "message_delta").unwrap();
    let end = json!({ "stop_reason": "end_turn", "stop_sequence": null });
    assert_has(delta, &json!({ "delta": end, "baton": { "verified": true } }));
    assert!(delta["usage"]["output_tokens"].as_u64().unwrap() > 0);
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_blocks() {
    let (world, endpoint) = Endpoint::with_nodes(1).await;
    let tools = json!({ "tools": [{ "name": "get_weather", "description": "d", "input_schema": { "type": "object" } }] });
    world.nodes[0].script([Act::Say(CALL); 2]);
    let first = create(&endpoint, json!([user("weather?")]), tools.clone()).await;
    let call = json!({ "type": "tool_use", "name": "get_weather", "input": { "city": "Paris" } });
    assert_has(&first, &json!({ "stop_reason": "tool_use", "content": [{ "type": "text" }, call] }));
    let mut body =
        json!({ "model": "auto", "max_tokens": 100, "stream": true, "messages": [user("weather now?")] });
    body["tools"] = tools["tools"].clone();
    let events = events(&endpoint, &body).await;
    let starts: Vec<&Value> = events.iter().filter(|event| event["type"] == "content_block_start").collect();
    assert_eq!(starts.len(), 2);
    assert_has(starts[1], &json!({ "index": 1, "content_block": { "input": {} } }));
    let json: String = events.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), json!({ "city": "Paris" }));
    let delta = events.iter().find(|event| event["type"] == "message_delta").unwrap();
    assert_eq!(delta["delta"]["stop_reason"], "tool_use");
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_the_form_of_the_api_also_those_of_the_guard() {
    let (world, endpoint) = Endpoint::with_nodes(1).await;
    let (status, body) =
        send(&endpoint, "/v1/messages", &json!({ "model": "auto", "max_tokens": 5, "messages": [] })).await;
    assert_eq!(status, 400);
    assert_has(&body, &json!({ "type": "error", "error": { "type": "invalid_request_error" } }));
    assert!(body["request_id"].as_str().unwrap().starts_with("req_"));
    let (_, missing) = send(&endpoint, "/v1/messages/batches", &json!({})).await;
    assert_eq!(missing["error"]["type"], "not_found_error");

    let (status, body) = sent(endpoint.without_key(Method::POST, "/v1/messages")).await;
    assert_eq!((status, &body["error"]["type"]), (401, &json!("authentication_error")));

    world.nodes[0].script([Act::Refuse(ErrorCode::ContextOverflow)]);
    let asked = json!({ "model": "auto", "max_tokens": 5, "messages": [user("long")] });
    let (status, body) = send(&endpoint, "/v1/messages", &asked).await;
    assert_eq!((status, &body["error"]["code"]), (400, &json!("context_length_exceeded")));

    let listed = endpoint.request(Method::GET, "/v1/models").header("anthropic-version", "2023-06-01");
    let (_, models) = sent(listed).await;
    assert_eq!((&models["data"][0]["type"], &models["has_more"]), (&json!("model"), &json!(false)));
    let count = json!({ "model": "auto", "messages": [user("abc")] });
    assert_eq!(send(&endpoint, "/v1/messages/count_tokens", &count).await.1["input_tokens"], 7);
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thread_goes_on_in_its_session_with_its_tools_and_an_unknown_one_is_refused() {
    let (world, endpoint) = Endpoint::with_nodes(1).await;
    let begin = json!({ "thread": { "type": "create" }, "system": "be brief",
        "tools": [{ "name": "get_weather", "input_schema": { "type": "object" } }] });
    world.nodes[0].script([Act::Say(CALL)]);
    let first = create(&endpoint, json!([user("weather?")]), begin).await;
    let call = &first["content"][1]["id"];
    let thread = |id: &Value| json!({ "thread": { "type": "continue", "previous_message_id": id } });
    let result = json!([{ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": call, "content": "rain" }] }]);
    world.nodes[0].script([Act::Say(CALL)]);
    let second = create(&endpoint, result, thread(&first["id"])).await;
    assert_turn(&second, &first, 2);
    assert_eq!(second["stop_reason"], "tool_use");
    let third = create(&endpoint, json!([user("and?")]), thread(&second["id"])).await;
    assert!(third["content"][0]["text"].as_str().unwrap().starts_with("be brief"), "its system text");

    let lost = thread(&json!(format!("msg_{}{:016x}", "7".repeat(64), 0)));
    let asked =
        json!({ "model": "auto", "max_tokens": 5, "messages": [user("x")], "thread": lost["thread"] });
    let (status, error) = send(&endpoint, "/v1/messages", &asked).await;
    assert_eq!((status, &error["error"]["details"]["error_code"]), (404, &json!("thread_not_found")));
    endpoint.close().await;
}
