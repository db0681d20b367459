//! What a peer may send, how much and how often.

use std::{sync::atomic::Ordering, time::Duration};

use baton_relayer::http::Limits;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::harness::{Door, Person};

#[tokio::test]
async fn an_owner_and_a_key_have_a_rate_and_are_told_when_to_come_back() {
    let door = Door::with(Limits { owner_per_minute: 4, key_per_minute: 3, ..Limits::default() }).await;
    let owner = Person::new(&door);
    let first = owner.post("/api/stats", json!({})).await;
    assert_eq!(first.good()["quota"]["key_requests_per_minute"], 3);
    assert_eq!(first.headers["x-ratelimit-limit"], "3");
    assert_eq!(first.headers["x-ratelimit-remaining"], "2");
    for _ in 0..2 {
        owner.post("/api/stats", json!({})).await.good();
    }
    let limited = owner.post("/api/stats", json!({})).await;
    limited.refused(429, "rate_limited");
    assert_eq!(limited.headers["retry-after"], "20");
    assert_eq!(limited.json()["retry_after_seconds"], 20);
    let mut friend = owner.friend();
    friend.delegation = Some(owner.delegate(&friend, &["read"], None).to_header());
    friend.post("/api/stats", json!({})).await.good();
    friend.post("/api/stats", json!({})).await.refused(429, "rate_limited");
    Person::new(&door).post("/api/stats", json!({})).await.good();
    door.now_ms.fetch_add(20_000, Ordering::SeqCst);
    owner.post("/api/stats", json!({})).await.good();
}

#[tokio::test]
async fn bodies_and_batches_are_bounded() {
    let door = Door::open().await;
    let person = Person::new(&door);
    let large = "x".repeat(2 * 1024 * 1024 + 1);
    door.bare("POST", "/api/remember", &large).await.refused(413, "too_large");
    person.post("/api/remember", json!({ "text": "x".repeat(5_000) })).await.refused(400, "bad_request");
    let many: Vec<Value> = (0..101).map(|number| json!({ "text": format!("fact {number}") })).collect();
    person.post("/api/remember/bulk", json!({ "items": many })).await.refused(400, "bad_request");
    person.post("/api/remember/bulk", json!({ "items": [] })).await.refused(400, "bad_request");
    person.post("/v1/memory/remember", json!({ "facts": many })).await.refused(400, "bad_request");
    let ids = vec!["0".repeat(32); 1_001];
    person.post("/v1/memory/delete", json!({ "ids": ids })).await.refused(400, "bad_request");
    person
        .post("/api/remember/bulk/status", json!({ "job_ids": &ids[..101] }))
        .await
        .refused(400, "bad_request");
    person.post("/api/recall", json!({ "query": "x".repeat(9_000) })).await.refused(400, "bad_request");
    person.post("/api/analyze", json!({ "text": "x".repeat(70_000) })).await.refused(400, "bad_request");
}

#[tokio::test]
async fn requests_in_hand_are_bounded() {
    let door = Door::with(Limits { requests: 1, ..Limits::default() }).await;
    let person = Person::new(&door);
    // A body that does not end keeps the one place.
    let mut slow = tokio::net::TcpStream::connect(door.address).await.unwrap();
    slow.write_all(b"POST /api/stats HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{").await.unwrap();
    let busy = async {
        loop {
            let answer = person.post("/api/stats", json!({})).await;
            if answer.status == 503 {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    };
    let answer = tokio::time::timeout(Duration::from_secs(20), busy).await.unwrap();
    answer.refused(503, "busy");
    assert_eq!(answer.headers["retry-after"], "1");
    drop(slow);
    let free = async { while person.post("/api/stats", json!({})).await.status != 200 {} };
    tokio::time::timeout(Duration::from_secs(20), free).await.unwrap();
    door.bare("GET", "/health", "").await.good();
}

#[tokio::test]
async fn malformed_requests_are_refused_in_one_shape() {
    let door = Door::open().await;
    let person = Person::new(&door);
    let raw = async |path: &str, body: &[u8]| {
        door.send("POST", path, &person.headers("POST", path, body), body.to_vec()).await
    };
    let deep = "[".repeat(100_000);
    for body in [
        &b"{"[..],
        b"[]",
        b"null",
        b"\xff",
        br#"{"query":7}"#,
        br#"{"query":"a","limit":-1}"#,
        deep.as_bytes(),
    ] {
        raw("/api/recall", body).await.refused(400, "bad_request");
    }
    for body in [
        json!({ "query": "a", "limit": 0 }),
        json!({ "query": " " }),
        json!({ "query": "a", "sort": "x" }),
        json!({ "query": "a", "namespace": "" }),
        json!({ "query": "a", "namespace": "a\u{0}b" }),
        json!({ "query": "a", "namespace": "x".repeat(257) }),
        json!({ "query": "a", "scoring_weights": { "semantic": -1 } }),
        json!({ "query": "a", "memory_scope": "all" }),
    ] {
        person.post("/api/recall", body).await.refused(400, "bad_request");
    }
    person.post("/v1/memory/recall", json!({ "query": "a", "unknown": 1 })).await.refused(400, "bad_request");
    person
        .post("/v1/memory/recall", json!({ "query": "a", "threshold": 2 }))
        .await
        .refused(400, "bad_request");
    let filters = json!({ "query": "a", "filters": { "from": "yesterday" } });
    person.post("/v1/memory/recall", filters).await.refused(400, "bad_request");
    person.get("/v1/memory/items/xyz").await.refused(404, "not_found");
    person.get("/v1/memory/graph?unknown=1").await.refused(400, "bad_request");
    person.get("/v1/memory/sessions/%FF/move").await.refused(405, "no_method");
    person.post("/v1/memory/sessions/%FF/move", json!({})).await.refused(400, "bad_request");
    door.bare("GET", "/nowhere", "").await.refused(404, "no_route");
    door.bare("DELETE", "/health", "").await.refused(405, "no_method");
    door.bare("POST", "/sui", &"x".repeat(5_000)).await.refused(400, "bad_request");
}

#[tokio::test]
async fn a_connection_that_is_no_http_is_closed() {
    let door = Door::open().await;
    let mut stream = tokio::net::TcpStream::connect(door.address).await.unwrap();
    stream.write_all(&[0xff; 100_000]).await.ok();
    let mut answer = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
    assert!(ended.is_ok(), "the connection stays open");
    door.bare("GET", "/health", "").await.good();
}

#[tokio::test]
async fn every_documented_route_is_there_and_behind_the_gate() {
    let door = Door::open().await;
    let document = door.bare("GET", "/openapi.json", "").await.good();
    let open = ["/health", "/version", "/config", "/sui", "/openapi.json"];
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 35, "{}", paths.len());
    for (path, operations) in paths {
        for (method, operation) in operations.as_object().unwrap() {
            let filled = path.replace(['{', '}'], "");
            let answer = door.bare(&method.to_uppercase(), &filled, "{}").await;
            let secured = operation["security"].as_array().is_some_and(|list| !list.is_empty());
            if open.contains(&path.as_str()) {
                assert!(!secured && answer.status != 401 && answer.status != 405, "{method} {path}");
            } else {
                assert!(secured, "{method} {path} is documented as open");
                answer.refused(401, "unauthenticated");
            }
            assert!(operation["responses"].as_object().is_some_and(|map| !map.is_empty()), "{method} {path}");
        }
    }
    // What the command prints is what is served.
    let printed = baton_relayer::http::document(utoipa_axum::router::OpenApiRouter::new());
    assert_eq!(serde_json::to_value(printed).unwrap(), document);
    // All references are there.
    let text = document.to_string();
    for reference in text.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
    }
}
