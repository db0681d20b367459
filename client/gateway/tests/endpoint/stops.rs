//! Answers that a person stops, and an endpoint without nodes.

use std::time::Duration;

use baton_client::{Client, ClientConfig};
use baton_proto::ErrorCode;
use baton_testkit::{World, fake::Act};
use reqwest::Method;
use serde_json::{Value, json};

use crate::serve::{Endpoint, events, said};

#[tokio::test(flavor = "multi_thread")]
async fn the_text_of_a_stopped_answer_is_there_after_a_reload_and_a_restart() {
    let (world, endpoint) = Endpoint::with_nodes(1).await;
    world.nodes[0].script([Act::Hang]);
    let body = json!({ "messages": said(&[("user", "tell me")]), "stream": true });
    let mut response = endpoint.chat(&body).send().await.unwrap();
    let id = response.headers()["x-baton-session"].to_str().unwrap().to_owned();
    let mut text = String::new();
    while text.is_empty() {
        let part = String::from_utf8(response.chunk().await.unwrap().unwrap().to_vec()).unwrap();
        for event in events(&part) {
            let event: Value = serde_json::from_str(&event).unwrap();
            text.push_str(event["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
        }
    }
    // The page's Stop closes the connection; the node has signed no progress yet.
    drop(response);
    let shown = pending_of(&endpoint, &id).await;
    assert_eq!((&shown["pending"][0]["content"], &shown["pending_text"]), (&json!("tell me"), &json!(text)));
    endpoint.close().await;
    let endpoint = Endpoint::open(&world).await;
    assert_eq!(pending_of(&endpoint, &id).await["pending_text"], text, "the journal has it");
    endpoint.close().await;
}

/// The session once its turn has ended with a part of the answer.
async fn pending_of(endpoint: &Endpoint, id: &str) -> Value {
    for _ in 0..100 {
        let shown = endpoint.get(&format!("/api/sessions/{id}")).await;
        if shown["pending_text"].as_str().is_some_and(|text| !text.is_empty()) {
            return shown;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the part of the answer is not shown");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_node_the_list_of_models_is_an_error_that_names_what_was_tried() {
    let world = World::new(1).await;
    let mut config = ClientConfig { home: None, ..world.config(std::path::Path::new("unused")) };
    let dead = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";
    config.bootstrap = vec![dead.parse().unwrap()];
    config.timeouts.discovery = Duration::from_millis(500);
    let endpoint = Endpoint::over(Client::open(config).await.unwrap()).await;
    for path in ["/v1/models", "/v1/models/parrot"] {
        let response = endpoint.request(Method::GET, path).send().await.unwrap();
        assert_eq!(response.status(), 503, "{path}");
        assert!(response.headers().contains_key("retry-after"));
        let body: Value = response.json().await.unwrap();
        assert_eq!(body["error"]["code"], "no_node");
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains("/ip4/127.0.0.1/tcp/9") && message.contains("baton doctor"), "{message}");
    }
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_a_named_session_is_kept_without_a_node_and_found_after_a_restart() {
    let world = World::new(1).await;
    let without_nodes = || {
        let mut config = world.config(world.home.path());
        let dead = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";
        config.bootstrap = vec![dead.parse().unwrap()];
        config.timeouts.discovery = Duration::from_millis(300);
        Client::open(config)
    };
    let endpoint = Endpoint::over(without_nodes().await.unwrap()).await;
    let begun = endpoint.request(Method::POST, "/api/sessions").send().await.unwrap();
    let id = begun.json::<Value>().await.unwrap()["id"].as_str().unwrap().to_owned();
    let body = json!({ "messages": said(&[("user", "keep me")]) });
    let refused = endpoint.chat(&body).header("x-baton-session", &id).send().await.unwrap();
    assert_eq!(refused.status(), 503);
    // A program that says the same takes the message up, and does not take it away.
    assert_eq!(endpoint.chat(&body).send().await.unwrap().status(), 503);
    // A program that names no session can repeat its request: nothing of it stays.
    let other = json!({ "messages": said(&[("user", "drop me")]) });
    assert_eq!(endpoint.chat(&other).send().await.unwrap().status(), 503);
    endpoint.close().await;
    let endpoint = Endpoint::over(without_nodes().await.unwrap()).await;
    let shown = endpoint.request(Method::GET, &format!("/api/sessions/{id}")).send().await.unwrap();
    assert_eq!(shown.json::<Value>().await.unwrap()["pending"][0]["content"], "keep me");
    assert_eq!(endpoint.client.session_ids().await.unwrap().len(), 1);
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_no_node_takes_as_it_is_does_not_stay_in_a_named_session() {
    let (world, endpoint) = Endpoint::with_nodes(1).await;
    let begun = endpoint.request(Method::POST, "/api/sessions").send().await.unwrap();
    let id = begun.json::<Value>().await.unwrap()["id"].as_str().unwrap().to_owned();
    world.nodes[0].script([Act::Explain(ErrorCode::ContextOverflow, 0, "it needs 5000 tokens"); 6]);
    let body = json!({ "messages": said(&[("user", "too long")]) });
    let refused = endpoint.chat(&body).header("x-baton-session", &id).send().await.unwrap();
    assert!(refused.status().is_client_error(), "{}", refused.status());
    let shown = endpoint.request(Method::GET, &format!("/api/sessions/{id}")).send().await.unwrap();
    assert_eq!(shown.json::<Value>().await.unwrap()["pending"], Value::Null);
    endpoint.close().await;
    assert!(world.client().await.session_ids().await.unwrap().is_empty(), "and leaves no file");
}
