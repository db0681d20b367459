//! Anthropic's Messages API over sessions.

use baton_proto::ErrorCode;
use baton_testkit::fake::Act;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::serve::{Endpoint, named_events};

const CALL: &str =
    "I look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";

/// A request as Anthropic's clients send it, with the key in a header of its own.
async fn send(endpoint: &Endpoint, path: &str, body: &Value) -> (StatusCode, Value) {
    let request = endpoint.without_key(Method::POST, path).header("anthropic-version", "2023-06-01");
    let response = request.header("x-api-key", "sk-test").json(body).send().await.unwrap();
    let named = response.headers().contains_key("request-id");
    assert!(named, "clients show the request's id");
    (response.status(), response.json().await.unwrap())
}

async fn create(endpoint: &Endpoint, messages: Value, more: Value) -> Value {
    let mut body = json!({ "model": "auto", "max_tokens": 100, "messages": messages });
    if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
        body.extend(more);
    }
    let (status, body) = send(endpoint, "/v1/messages", &body).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    body
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
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
    assert_eq!(
        (&first["type"], &first["role"], &first["stop_reason"]),
        (&json!("message"), &json!("assistant"), &json!("end_turn"))
    );
    assert!(first["usage"]["input_tokens"].as_u64().unwrap() > 0);
    assert_eq!(first["baton"]["verified"], true);

    let assistant = json!({ "role": "assistant", "content": first["content"] });
    let second = create(&endpoint, json!([user("a"), assistant, user("b")]), system).await;
    assert_eq!(second["baton"]["session"], first["baton"]["session"]);
    assert_eq!(
        (&second["baton"]["turn"], &second["content"][0]["text"]),
        (&json!(2), &json!("be briefb (1)"))
    );

    // OpenAI's API goes on with the same session, and Ollama's after it.
    let said = |role: &str, text: &str| json!({ "role": role, "content": text });
    let mut history = vec![
        said("system", "be brief"),
        said("user", "a"),
        said("assistant", "be briefa (0)"),
        said("user", "b"),
        said("assistant", "be briefb (1)"),
        said("user", "c"),
    ];
    let third = endpoint.say(&json!(history)).await;
    assert_eq!(
        (&third["baton"]["session"], &third["baton"]["turn"]),
        (&first["baton"]["session"], &json!(3))
    );
    history.extend([said("assistant", "be briefc (2)"), said("user", "d")]);
    let body = json!({ "model": "auto", "messages": history, "stream": false });
    let fourth = endpoint.post("/api/chat", &body).await;
    assert_eq!(
        (&fourth["baton"]["session"], &fourth["baton"]["turn"]),
        (&first["baton"]["session"], &json!(4))
    );
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_has_the_events_of_the_api_in_their_order() {
    let (_world, endpoint) = Endpoint::with_nodes(1).await;
    let body = json!({ "model": "auto", "max_tokens": 100, "stream": true, "messages": [user("a")] });
    let events = events(&endpoint, &body).await;
    let mut order = kinds(&events);
    order.dedup();
    assert_eq!(
        order,
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    let text: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(text, "a (0)");
    let delta = events.iter().find(|event| event["type"] == "message_delta").unwrap();
    assert_eq!(delta["delta"], json!({ "stop_reason": "end_turn", "stop_sequence": null }));
    assert!(delta["usage"]["output_tokens"].as_u64().unwrap() > 0);
    assert_eq!(delta["baton"]["verified"], true);
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_blocks_and_their_results_are_answered_in_the_same_session() {
    let (world, endpoint) = Endpoint::with_nodes(1).await;
    let tools = json!({ "tools": [{ "name": "get_weather", "description": "d", "input_schema": { "type": "object" } }] });
    world.nodes[0].script([Act::Say(CALL), Act::Serve, Act::Say(CALL)]);
    let first = create(&endpoint, json!([user("weather?")]), tools.clone()).await;
    assert_eq!(first["stop_reason"], "tool_use");
    let call = &first["content"][1];
    assert_eq!(
        (&first["content"][0]["type"], &call["type"], &call["name"]),
        (&json!("text"), &json!("tool_use"), &json!("get_weather"))
    );
    assert_eq!(call["input"], json!({ "city": "Paris" }));

    let result = json!({ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": call["id"], "content": "rain" }] });
    let assistant = json!({ "role": "assistant", "content": first["content"] });
    let second = create(&endpoint, json!([user("weather?"), assistant, result]), tools.clone()).await;
    assert_eq!(
        (&second["baton"]["session"], &second["baton"]["turn"]),
        (&first["baton"]["session"], &json!(2))
    );

    let mut body =
        json!({ "model": "auto", "max_tokens": 100, "stream": true, "messages": [user("weather now?")] });
    body["tools"] = tools["tools"].clone();
    let events = events(&endpoint, &body).await;
    let starts: Vec<&Value> = events.iter().filter(|event| event["type"] == "content_block_start").collect();
    assert_eq!(starts.len(), 2);
    assert_eq!((&starts[1]["index"], &starts[1]["content_block"]["input"]), (&json!(1), &json!({})));
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
    assert_eq!(
        (status.as_u16(), &body["type"], &body["error"]["type"]),
        (400, &json!("error"), &json!("invalid_request_error"))
    );
    assert!(body["request_id"].as_str().unwrap().starts_with("req_"));
    assert_eq!(
        send(&endpoint, "/v1/messages/batches", &json!({})).await.1["error"]["type"],
        "not_found_error"
    );

    let refused = endpoint.without_key(Method::POST, "/v1/messages").json(&json!({})).send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    let body: Value = refused.json().await.unwrap();
    assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!("authentication_error")));

    world.nodes[0].script([Act::Refuse(ErrorCode::ContextOverflow)]);
    let asked = json!({ "model": "auto", "max_tokens": 5, "messages": [user("long")] });
    let (status, body) = send(&endpoint, "/v1/messages", &asked).await;
    assert_eq!((status.as_u16(), &body["error"]["code"]), (400, &json!("context_length_exceeded")));

    let listed = endpoint
        .request(Method::GET, "/v1/models")
        .header("anthropic-version", "2023-06-01")
        .send()
        .await
        .unwrap();
    let models: Value = listed.json().await.unwrap();
    assert_eq!((&models["data"][0]["type"], &models["has_more"]), (&json!("model"), &json!(false)));
    let count = json!({ "model": "auto", "messages": [user("abc")] });
    assert_eq!(send(&endpoint, "/v1/messages/count_tokens", &count).await.1["input_tokens"], 7);
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thread_goes_on_in_its_session_with_its_tools_and_an_unknown_one_is_refused_as_clients_understand()
{
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
    assert_eq!(
        (&second["baton"]["session"], &second["baton"]["turn"], &second["stop_reason"]),
        (&first["baton"]["session"], &json!(2), &json!("tool_use"))
    );
    let third = create(&endpoint, json!([user("and?")]), thread(&second["id"])).await;
    assert!(
        third["content"][0]["text"].as_str().unwrap().starts_with("be brief"),
        "the thread's system text"
    );

    let lost = format!("msg_{}{:016x}", "7".repeat(64), 0);
    for (thread, code) in [
        (json!({ "type": "continue", "previous_message_id": lost }), "thread_not_found"),
        (json!({ "type": "continue", "previous_message_id": "msg_1" }), "thread_not_found"),
        (json!({ "type": "fork" }), "thread_unsupported_request"),
    ] {
        let asked = json!({ "model": "auto", "max_tokens": 5, "messages": [user("x")], "thread": thread });
        let (status, error) = send(&endpoint, "/v1/messages", &asked).await;
        assert!(status.is_client_error(), "{error}");
        assert_eq!(error["error"]["details"]["error_code"], code, "{error}");
    }
    endpoint.close().await;
}
