//! Answers that a person stops, and an endpoint without nodes.

use std::time::Duration;

use baton_client::testkit::World;
use reqwest::Method;
use serde_json::{Value, json};

use crate::serve::{Endpoint, hung, said, until};

#[tokio::test(flavor = "multi_thread")]
async fn the_text_of_a_stopped_answer_is_there_after_a_reload_and_a_restart() {
    let (world, endpoint) = Endpoint::with_nodes(1).await;
    let body = json!({ "messages": said(&[("user", "tell me")]), "stream": true });
    let (id, mut response) = hung(&world, endpoint.chat(&body)).await;
    until(&mut response, r#""content":"t"#).await;
    // The page's Stop closes the connection; the node has signed no progress yet.
    drop(response);
    let shown = pending_of(&endpoint, &id).await;
    assert_eq!(shown["pending"][0]["content"], "tell me");
    endpoint.close().await;
    let endpoint = Endpoint::open(&world).await;
    assert_eq!(pending_of(&endpoint, &id).await["pending_text"], shown["pending_text"], "the journal has it");
    endpoint.close().await;
}

/// The session once its turn has ended with a part of the answer.
pub(crate) async fn pending_of(endpoint: &Endpoint, id: &str) -> Value {
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
async fn without_a_node_models_are_an_error_and_a_message_of_a_named_session_is_kept() {
    let world = World::new(1).await;
    let endpoint = Endpoint::without_nodes(&world, true).await;
    for path in ["/v1/models", "/v1/models/parrot"] {
        let response = endpoint.request(Method::GET, path).send().await.unwrap();
        assert_eq!(response.status(), 503, "{path}");
        assert!(response.headers().contains_key("retry-after"));
        let body: Value = response.json().await.unwrap();
        assert_eq!(body["error"]["code"], "no_node");
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains("/ip4/127.0.0.1/tcp/9") && message.contains("baton doctor"), "{message}");
    }
    let id = endpoint.begin().await;
    let messages = |text: &str| json!({ "messages": said(&[("user", text)]) });
    let refused = endpoint.chat(&messages("keep me")).header("x-baton-session", &id).send().await.unwrap();
    assert_eq!(refused.status(), 503);
    // A program that says the same takes the message up, and does not take it away.
    assert_eq!(endpoint.chat(&messages("keep me")).send().await.unwrap().status(), 503);
    // A program that names no session can repeat its request: nothing of it stays.
    assert_eq!(endpoint.chat(&messages("drop me")).send().await.unwrap().status(), 503);
    endpoint.close().await;
    let endpoint = Endpoint::without_nodes(&world, true).await;
    assert_eq!(endpoint.get(&format!("/api/sessions/{id}")).await["pending"][0]["content"], "keep me");
    assert_eq!(endpoint.sessions().await, 1);
    endpoint.close().await;
}
