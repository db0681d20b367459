//! Ollama's API over sessions.

use baton_client::testkit::fake::{Act, MODEL};
use baton_proto::ErrorCode;
use reqwest::Method;
use serde_json::{Value, json};

use crate::serve::{CALL, Endpoint, assert_has, assert_turn, sent, user};

async fn lines(endpoint: &Endpoint, path: &str, body: &Value) -> Vec<Value> {
    let response = endpoint.request(Method::POST, path).json(body).send().await.unwrap();
    assert_eq!(response.status(), 200);
    response.text().await.unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_streams_lines_and_goes_on_in_its_session() {
    let (_world, endpoint) = Endpoint::with_nodes(2).await;
    let asked = json!({ "model": format!("{MODEL}:latest"), "messages": [user("a")] });
    let first = lines(&endpoint, "/api/chat", &asked).await;
    let text: String = first.iter().filter_map(|line| line["message"]["content"].as_str()).collect();
    assert_eq!(text, "a (0)");
    let last = first.last().unwrap();
    assert_has(last, &json!({ "done": true, "done_reason": "stop", "model": MODEL }));
    assert!(last["eval_count"].as_u64().unwrap() > 0 && last["total_duration"].as_u64().unwrap() > 0);
    assert!(first.iter().rev().skip(1).all(|line| line["done"] == false));

    let messages = json!([user("a"), { "role": "assistant", "content": text }, user("b")]);
    let second =
        endpoint.post("/api/chat", &json!({ "model": MODEL, "messages": messages, "stream": false })).await;
    assert_eq!(second["message"], json!({ "role": "assistant", "content": "b (1)" }));
    assert_turn(&second, last, 2);
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_have_objects_as_arguments() {
    let (world, endpoint) = Endpoint::with_nodes(1).await;
    let tools = json!([{ "type": "function", "function": { "name": "get_weather", "parameters": { "type": "object" } } }]);
    world.nodes[0].script([Act::Say(CALL)]);
    let asked = json!({ "model": MODEL, "messages": [user("weather?")], "tools": tools });
    let first = lines(&endpoint, "/api/chat", &asked).await;
    let calls: Vec<&Value> = first.iter().filter_map(|line| line["message"].get("tool_calls")).collect();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0][0]["function"]["arguments"], json!({ "city": "Paris" }));
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generated_text_belongs_to_no_session_and_keeps_its_system_text() {
    let (_world, endpoint) = Endpoint::with_nodes(1).await;
    let body = json!({ "model": MODEL, "prompt": "a", "system": "be brief", "stream": false });
    let answer = endpoint.post("/api/generate", &body).await;
    assert_eq!((&answer["response"], &answer["done"]), (&json!("be briefa (0)"), &json!(true)));
    assert_eq!(endpoint.sessions().await, 0);
    let loaded = endpoint.post("/api/generate", &json!({ "model": MODEL })).await;
    assert_eq!((&loaded["done_reason"], &loaded["response"]), (&json!("load"), &json!("")));
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_those_of_the_nodes_and_none_is_pulled() {
    let (_world, endpoint) = Endpoint::with_nodes(1).await;
    assert_eq!(endpoint.get("/api/tags").await["models"][0]["name"], MODEL);
    assert!(endpoint.get("/api/ps").await["models"][0]["context_length"].as_u64().unwrap() > 0);
    assert!(endpoint.get("/api/version").await["version"].as_str().unwrap().split('.').count() == 3);
    let shown = endpoint.post("/api/show", &json!({ "model": MODEL })).await;
    assert_eq!(shown["capabilities"], json!(["completion", "tools"]));
    assert_eq!(endpoint.post("/api/pull", &json!({ "model": MODEL })).await["status"], "success");
    let (status, error) = endpoint.ask("/api/pull", &json!({ "model": "llama3" })).await;
    assert_eq!(status, 404);
    assert!(error["error"].as_str().unwrap().starts_with("no node serves the model \"llama3\""), "{error}");
    assert_eq!(sent(endpoint.request(Method::DELETE, "/api/delete")).await.0, 400);
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_the_form_of_the_api() {
    let (world, endpoint) = Endpoint::with_nodes(1).await;
    world.nodes[0].script([Act::Refuse(ErrorCode::ContextOverflow)]);
    let long = json!({ "model": MODEL, "messages": [user("long")] });
    let (status, body) = endpoint.ask("/api/chat", &long).await;
    assert_eq!((status, &body["code"]), (400, &json!("context_length_exceeded")));
    assert!(body["error"].is_string(), "{body}");
    let (status, body) = sent(endpoint.without_key(Method::GET, "/api/tags")).await;
    assert!(status == 401 && body["error"].is_string(), "{body}");
    for (method, path) in [
        (Method::POST, "/api/embeddings"),
        (Method::POST, "/api/nothing"),
        (Method::GET, "/api/chat"),
        (Method::HEAD, "/api/blobs/sha256:00"),
    ] {
        let response = endpoint.request(method.clone(), path).json(&json!({})).send().await.unwrap();
        assert!(response.status().is_client_error(), "{path}");
        assert!(
            method == Method::HEAD || response.json::<Value>().await.unwrap()["error"].is_string(),
            "{path}"
        );
    }
    let skipped = json!({
        "model": MODEL, "messages": [user("skip")], "stream": false, "max_output_tokens": 20, "temperature": 0.2,
        "options": { "mirostat_tau": 0.5, "warmth": 1, "num_ctx": 64 },
    });
    let answer = endpoint.post("/api/chat", &skipped).await;
    // The unit tests name them all.
    assert_eq!(answer["baton"]["ignored"][0], "max_output_tokens");
    endpoint.close().await;
}
