//! Tests against a local endpoint.

use std::{fs, os::unix::fs::PermissionsExt as _};

use serde_json::{Value, json};
use wiremock::{
    Mock, MockServer, ResponseTemplate,
    matchers::{header, method, path},
};

use super::*;

fn config(server: &MockServer) -> RemoteConfig {
    serde_json::from_value(
        json!({ "base_url": format!("{}/v1/", server.uri()), "model": "m", "dimensions": 2 }),
    )
    .unwrap()
}

async fn answering(status: u16, body: Value) -> MockServer {
    let server = MockServer::start().await;
    let answer = ResponseTemplate::new(status).set_body_json(body);
    Mock::given(method("POST")).and(path("/v1/embeddings")).respond_with(answer).mount(&server).await;
    server
}

/// Returns one vector for each text, its byte count and 1, in reversed order.
async fn good() -> MockServer {
    let server = MockServer::start().await;
    Mock::given(method("POST"))
        .and(path("/v1/embeddings"))
        .respond_with(|request: &wiremock::Request| {
            let body: Value = serde_json::from_slice(&request.body).unwrap();
            let input = body["input"].as_array().unwrap();
            let vector = |(index, text): (usize, &Value)| {
                json!({ "object": "embedding", "index": index, "embedding": [text.as_str().unwrap().len(), 1] })
            };
            let data: Vec<Value> = input.iter().enumerate().map(vector).rev().collect();
            ResponseTemplate::new(200).set_body_json(json!({ "object": "list", "data": data, "model": "m" }))
        })
        .mount(&server)
        .await;
    server
}

async fn refusal(config: &RemoteConfig) -> String {
    match Remote::open(config).await {
        Ok(_) => panic!("was not refused"),
        Err(EmbedError::Unavailable(reason)) => panic!("only unavailable: {reason}"),
        Err(EmbedError::Unusable(reason)) => reason,
    }
}

async fn bodies(server: &MockServer) -> Vec<Value> {
    let requests = server.received_requests().await.unwrap();
    requests.iter().map(|request| serde_json::from_slice(&request.body).unwrap()).collect()
}

#[tokio::test]
async fn texts_come_back_in_their_order_as_unit_vectors_in_batches() {
    let server = good().await;
    let remote = Remote::open(&RemoteConfig { batch: 2, ..config(&server) }).await.unwrap();
    let texts = ["a", "bbb", "", "!?", "cc"];
    let vectors = remote.embed(EmbedRole::Document, &texts).await.unwrap();
    for (text, vector) in texts.iter().zip(&vectors) {
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let length = text.len() as f32;
        let has_words = text.chars().any(char::is_alphanumeric);
        let expected = if has_words { length / (length * length + 1.0).sqrt() } else { 0.0 };
        assert!((vector[0] - expected).abs() < 1e-6, "{text}: {vector:?}");
    }
    assert_eq!((remote.id(), remote.dimensions()), ("m-2", 2));
    let sent = bodies(&server).await;
    // Two probes, then two batches without the wordless texts.
    assert_eq!(sent[2]["input"], json!(["a", "bbb"]));
    assert_eq!(sent[3]["input"], json!(["cc"]));
    assert_eq!(sent.len(), 4);
    assert_eq!(sent[2].get("input_type"), None);
}

#[tokio::test]
async fn d3_queries_and_documents_are_embedded_differently_where_the_model_can() {
    let server = good().await;
    let by_field: RemoteConfig = RemoteConfig {
        roles: Roles::InputType { query: "search_query".into(), document: "search_document".into() },
        send_dimensions: true,
        ..config(&server)
    };
    Remote::open(&by_field).await.unwrap();
    let sent = bodies(&server).await;
    assert_eq!(
        (&sent[0]["input_type"], &sent[1]["input_type"]),
        (&json!("search_query"), &json!("search_document"))
    );
    assert_eq!(sent[0]["dimensions"], json!(2));

    let server = good().await;
    let roles = Roles::Prefix { query: "query: ".into(), document: "passage: ".into() };
    let by_prefix = Remote::open(&RemoteConfig { roles, ..config(&server) }).await.unwrap();
    let query = by_prefix.embed(EmbedRole::Query, &["fox"]).await.unwrap();
    let document = by_prefix.embed(EmbedRole::Document, &["fox"]).await.unwrap();
    assert_ne!(query, document);
    let sent = bodies(&server).await;
    assert_eq!((&sent[2]["input"][0], &sent[3]["input"][0]), (&json!("query: fox"), &json!("passage: fox")));
}

#[tokio::test]
async fn d4_an_unusable_endpoint_is_refused_at_start_with_the_fix() {
    let vector = |vector: Value| json!({ "data": [{ "index": 0, "embedding": vector }] });
    for (status, body, advice) in [
        (200, vector(json!([1, 2, 3])), "correct dimensions"),
        (200, vector(json!([])), "correct dimensions"),
        (200, json!({ "data": [] }), "0 vectors for 1 texts"),
        (200, json!({ "data": [{ "index": 1, "embedding": [1, 0] }] }), "numbered wrongly"),
        (200, json!({ "hello": "world" }), "correct base_url"),
        (200, vector(json!([1, null])), "correct base_url"),
        (200, vector(json!([1e39, 0])), "none"),
        (401, json!({}), "correct api_key_file"),
        (404, json!({}), "correct base_url, model"),
        (302, json!({}), "correct base_url"),
        (429, json!({}), "configure another embedder"),
        (503, json!({}), "configure another embedder"),
    ] {
        let server = answering(status, body.clone()).await;
        let reason = refusal(&config(&server)).await;
        assert!(reason.contains(advice), "{status} {body}: {reason}");
    }
    // Nothing listens there any more.
    let server = MockServer::start().await;
    let gone = config(&server);
    drop(server);
    let nowhere = RemoteConfig { base_url: "http://127.0.0.1:9".into(), ..gone };
    assert!(refusal(&nowhere).await.contains("correct base_url"));
}

#[tokio::test]
async fn d4_a_configuration_that_cannot_work_is_refused() {
    let server = good().await;
    let good = config(&server);
    for bad in [
        RemoteConfig { base_url: "not a url".into(), ..good.clone() },
        RemoteConfig { base_url: "file:///etc".into(), ..good.clone() },
        RemoteConfig { model: String::new(), ..good.clone() },
        RemoteConfig { dimensions: 0, ..good.clone() },
        RemoteConfig { dimensions: 100_000, ..good.clone() },
        RemoteConfig { batch: 0, ..good.clone() },
        RemoteConfig { timeout_ms: 0, ..good.clone() },
        RemoteConfig { api_key_file: Some("/nonexistent/key".into()), ..good.clone() },
    ] {
        refusal(&bad).await;
    }
    assert_eq!(bodies(&server).await.len(), 0);
    assert!(
        serde_json::from_value::<RemoteConfig>(
            json!({ "base_url": "http://a", "model": "m", "dimensions": 2, "x": 1 })
        )
        .is_err()
    );
}

#[tokio::test]
async fn the_key_comes_from_a_private_file_and_is_not_shown() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    fs::write(&file, "secret-key\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let server = MockServer::start().await;
    let answer = ResponseTemplate::new(200).set_body_json(json!({ "data": [{ "embedding": [1, 0] }] }));
    Mock::given(header("authorization", "Bearer secret-key")).respond_with(answer).mount(&server).await;
    let with_key = RemoteConfig { api_key_file: Some(file.clone()), ..config(&server) };
    assert!(refusal(&with_key).await.contains("chmod 600"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let remote = Remote::open(&with_key).await.unwrap();
    assert!(!format!("{remote:?}").contains("secret"));
    for bad in ["", "two\nlines", "caf\u{e9}"] {
        fs::write(&file, bad).unwrap();
        assert!(refusal(&with_key).await.contains("one key"));
    }
}

#[tokio::test]
async fn an_endpoint_that_fails_later_is_unavailable_and_not_unusable() {
    let server = good().await;
    let remote = Remote::open(&config(&server)).await.unwrap();
    server.reset().await;
    let answer = ResponseTemplate::new(503);
    Mock::given(method("POST")).respond_with(answer).mount(&server).await;
    let error = remote.embed(EmbedRole::Query, &["fox"]).await.unwrap_err();
    assert!(matches!(error, EmbedError::Unavailable(_)), "{error}");
}

#[tokio::test]
async fn an_answer_without_end_is_cut_off() {
    let server = MockServer::start().await;
    let answer = ResponseTemplate::new(200).set_body_bytes(vec![b' '; MAX_ANSWER_BYTES + 1]);
    Mock::given(method("POST")).respond_with(answer).mount(&server).await;
    assert!(refusal(&config(&server)).await.contains("too long"));
}
