//! Limits on a peer's requests: sizes, numbers and rates.

use std::{sync::atomic::Ordering, time::Duration};

use baton_keys::account::body_sha256;
use baton_mesh::Networks;
use baton_relayer::http::Limits;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

use super::harness::{Answer, Person, TestServer};

/// Generous for a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn replays_of_a_request_cost_its_owner_nothing() {
    let server = TestServer::with(Limits { owner_per_minute: 3, ..Limits::default() }).await;
    let owner = Person::new(&server);
    let captured = owner.headers("POST", "/api/stats", b"{}");
    server.send("POST", "/api/stats", &captured, b"{}".to_vec()).await.good();
    for _ in 0..9 {
        server.send("POST", "/api/stats", &captured, b"{}".to_vec()).await.refused(401, "unauthenticated");
    }
    for _ in 0..2 {
        owner.post("/api/stats", json!({})).await.good();
    }
}

#[tokio::test]
async fn an_owner_has_a_rate_with_all_keys_and_gets_a_retry_time() {
    let server = TestServer::with(Limits { owner_per_minute: 3, ..Limits::default() }).await;
    let owner = Person::new(&server);
    let first = owner.post("/api/stats", json!({})).await;
    assert_eq!(first.good()["quota"]["requests_per_minute"], 3);
    let friend = owner.delegate_of(&["read"], None);
    friend.post("/api/stats", json!({})).await.good();
    owner.post("/api/stats", json!({})).await.good();
    let limited = owner.post("/api/stats", json!({})).await;
    limited.refused(429, "rate_limited");
    assert_eq!(limited.headers["retry-after"], "20");
    assert_eq!(limited.json()["retry_after_seconds"], 20);
    friend.post("/api/stats", json!({})).await.refused(429, "rate_limited");
    Person::new(&server).post("/api/stats", json!({})).await.good();
    server.now_ms.fetch_add(20_000, Ordering::SeqCst);
    owner.post("/api/stats", json!({})).await.good();
}

#[tokio::test]
async fn bodies_and_batches_are_bounded() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    let large = "x".repeat(2 * 1024 * 1024 + 1);
    server.bare("POST", "/api/remember", &large).await.refused(401, "unauthenticated");
    let headers = person.headers("POST", "/api/remember", large.as_bytes());
    server.send("POST", "/api/remember", &headers, large.into_bytes()).await.refused(413, "too_large");
    person.post("/api/remember", json!({ "text": "x".repeat(5_000) })).await.refused(400, "bad_request");
    let many: Vec<Value> = (0..101).map(|number| json!({ "text": format!("fact {number}") })).collect();
    person.post("/api/remember/bulk", json!({ "items": many })).await.refused(400, "bad_request");
    person.post("/api/remember/bulk", json!({ "items": [] })).await.refused(400, "bad_request");
    let ids = vec!["0".repeat(32); 1_001];
    person.post("/api/delete", json!({ "ids": ids })).await.refused(400, "bad_request");
    person
        .post("/api/remember/bulk/status", json!({ "job_ids": &ids[..101] }))
        .await
        .refused(400, "bad_request");
    person.post("/api/recall", json!({ "query": "x".repeat(9_000) })).await.refused(400, "bad_request");
    person.post("/api/analyze", json!({ "text": "x".repeat(70_000) })).await.refused(400, "bad_request");
}

/// Sends the head of a signed request with its body's hash, and a part of the body.
async fn begin(person: &Person<'_>, path: &str, body: &[u8], sent: usize) -> TcpStream {
    let mut stream = TcpStream::connect(person.server.address).await.unwrap();
    let mut head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in person.headers("POST", path, body) {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("x-body-sha256: {}\r\n\r\n", body_sha256(body)));
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&body[..sent]).await.unwrap();
    stream
}

/// An answer to a signed request from this local address.
async fn post_from(person: &Person<'_>, from: &str, path: &str, body: Vec<u8>) -> Answer {
    let local: std::net::IpAddr = from.parse().unwrap();
    let client = reqwest::Client::builder().no_proxy().local_address(local).build().unwrap();
    let hash = body_sha256(&body);
    let mut request = client.post(person.server.url(path)).header("x-body-sha256", hash);
    for (name, value) in person.headers("POST", path, &body) {
        request = request.header(name, value);
    }
    let answer = tokio::time::timeout(PATIENCE, request.body(body).send()).await.expect("an answer");
    Answer::read(answer.unwrap()).await
}

#[tokio::test]
async fn requests_in_hand_are_bounded_and_further_ones_wait_in_line() {
    let limits = Limits { requests: 1, slot_wait: Duration::from_millis(100), ..Limits::default() };
    let server = TestServer::with(limits).await;
    let (person, other) = (Person::new(&server), Person::new(&server));
    let mut holding = Box::pin(other.post("/api/embed", json!({ "text": "hold" })));
    let busy = async {
        loop {
            let answer = person.post("/api/stats", json!({})).await;
            if answer.status == 503 {
                return answer;
            }
        }
    };
    let answer = tokio::select! {
        _ = &mut holding => panic!("its text waits"),
        answer = tokio::time::timeout(PATIENCE, busy) => answer.unwrap(),
    };
    answer.refused(503, "busy");
    assert_eq!(answer.headers["retry-after"], "1");
    server.bare("GET", "/health", "").await.good();
    server.gate.add_permits(1);
    holding.await.good();
    person.post("/api/stats", json!({})).await.good();

    let limits = Limits { requests: 1, slot_wait: PATIENCE, ..Limits::default() };
    let server = TestServer::with(limits).await;
    let (person, other) = (Person::new(&server), Person::new(&server));
    let mut holding = Box::pin(other.post("/api/embed", json!({ "text": "hold" })));
    let opening = async {
        // The second request comes to a relayer whose only slot is taken.
        tokio::time::sleep(Duration::from_millis(300)).await;
        server.gate.add_permits(1);
    };
    let (held, waited, ()) = tokio::join!(&mut holding, person.post("/api/stats", json!({})), opening);
    held.good();
    waited.good();
}

/// An address that is the operator's; all others of this machine are one subnet.
fn own(address: &str) -> Networks {
    vec![address.parse().unwrap()].into()
}

#[tokio::test]
async fn one_address_with_many_keys_cannot_take_all_large_slots() {
    const LARGE: usize = 3 * 1024 * 1024;
    let server = TestServer::with(Limits { own_networks: own("127.0.0.2"), ..Limits::default() }).await;
    let (path, large) = ("/api/import", vec![b' '; LARGE]);
    // One holds the slot of its address, two wait, the others are refused at once.
    let mut slow = JoinSet::new();
    for _ in 0..8 {
        let (mut stream, rest) = (begin(&Person::new(&server), path, &large, 0).await, large.clone());
        slow.spawn(async move {
            // Past the small bound, and then nothing; refused ones are closed meanwhile.
            let _ = stream.write_all(&rest[..LARGE - 1]).await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
        });
    }
    for _ in 0..5 {
        tokio::time::timeout(PATIENCE, slow.join_next()).await.expect("five are refused");
    }
    let person = Person::new(&server);
    post_from(&person, "127.0.0.2", path, large).await.refused(400, "bad_request");
    assert_eq!(slow.len(), 3, "the others still hold and wait");
}

#[tokio::test]
async fn a_slow_body_is_cut_off() {
    let patience = Duration::from_millis(200);
    let server = TestServer::with(Limits { body_patience: patience, ..Limits::default() }).await;
    let person = Person::new(&server);
    let mut stream = begin(&person, "/api/stats", &[b' '; 1000], 10).await;
    let mut answer = Vec::new();
    let read = async {
        while !String::from_utf8_lossy(&answer).contains("slow_body") {
            assert!(stream.read_buf(&mut answer).await.unwrap() > 0, "no answer");
        }
    };
    // Far less than the time after which the connection counts as idle.
    tokio::time::timeout(Duration::from_secs(8), read).await.expect("the body is cut off");
    assert!(answer.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn a_subnet_has_a_rate_whatever_its_keys() {
    let limits = Limits { own_networks: own("127.0.0.3"), subnet_per_minute: 3, ..Limits::default() };
    let server = TestServer::with(limits).await;
    let stats = async |from| post_from(&Person::new(&server), from, "/api/stats", b"{}".to_vec()).await;
    for _ in 0..3 {
        stats("127.0.0.2").await.good();
    }
    let limited = stats("127.0.0.2").await;
    limited.refused(429, "rate_limited");
    assert_eq!(limited.headers["retry-after"], "20");
    stats("127.0.0.3").await.good();
}

#[tokio::test]
async fn further_new_owners_of_a_subnet_cost_it_many_requests() {
    let server = TestServer::with(Limits { own_networks: own("127.0.0.3"), ..Limits::default() }).await;
    let stats = async |from| post_from(&Person::new(&server), from, "/api/stats", b"{}".to_vec()).await;
    for _ in 0..30 {
        stats("127.0.0.2").await.good();
    }
    let mut refused = 0;
    loop {
        let answer = stats("127.0.0.2").await;
        answer.refused(429, "rate_limited");
        if !answer.json()["message"].as_str().unwrap().contains("too many new owners") {
            break;
        }
        refused += 1;
    }
    // An eighth of 3,000 at once, less the 30; each costs sixteen.
    assert_eq!(refused, 22);
    stats("127.0.0.3").await.good();
}

#[tokio::test]
async fn one_connection_has_one_request_at_a_time() {
    let server = TestServer::open().await;
    let client = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().unwrap();
    let answer = client.get(server.url("/health")).send().await.unwrap();
    assert_eq!(answer.status(), 505, "HTTP/2 has many, and the bounds are by connection");
    server.bare("GET", "/health", "").await.good();
}

#[tokio::test]
async fn a_request_holds_no_slot_while_its_body_is_awaited() {
    let limits = Limits { requests: 1, large_bodies: 1, slot_wait: Duration::ZERO, ..Limits::default() };
    let server = TestServer::with(limits).await;
    let (person, large) = (Person::new(&server), vec![b' '; 3 * 1024 * 1024]);
    let mut waiting = Vec::new();
    for path in ["/api/import", "/api/import", "/api/recall", "/v1/chat", "/sui"] {
        // Unsigned, in the form of a signed request, and rightly signed with the hash of a body that does not come.
        let form = person.headers("POST", path, b"{ }");
        let form: String = form.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        for headers in [String::new(), form] {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\n{headers}content-length: 1000\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            waiting.push(stream);
        }
        waiting.push(begin(&Person::new(&server), path, &large, 100).await);
    }
    // All of them have arrived: a later one is answered. The routes read the bodies: they report their errors.
    server.bare("GET", "/health", "").await.good();
    person.post("/api/stats", json!({})).await.good();
    post_from(&person, "127.0.0.1", "/api/import", b"x".to_vec()).await.refused(400, "bad_request");
    post_from(&person, "127.0.0.1", "/api/import", large).await.refused(400, "bad_request");
    drop(waiting);
}

#[tokio::test]
async fn a_large_body_comes_after_its_signature_was_checked() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    let (path, body) = ("/api/import", vec![b' '; 3 * 1024 * 1024]);
    let plain = server.send("POST", path, &person.headers("POST", path, &body), body.clone()).await;
    plain.refused(413, "too_large");
    assert!(plain.json()["hint"].as_str().unwrap().contains("x-body-sha256"), "{}", plain.text);
    let stated = |hash: String| {
        let mut headers = person.headers("POST", path, &body);
        headers.push(("x-body-sha256", hash));
        headers
    };
    // It is read: the route reports its errors.
    let read = server.send("POST", path, &stated(body_sha256(&body)), body.clone()).await;
    read.refused(400, "bad_request");
    // A head with another hash than the signed one is refused, and so is a body with another hash.
    for hash in [body_sha256(b"x"), "zz".repeat(32), String::new()] {
        let refused = server.send("POST", path, &stated(hash), b"x".to_vec()).await;
        refused.refused(401, "unauthenticated");
    }
    let mut other = body.clone();
    other[0] = b'x';
    server.send("POST", path, &stated(body_sha256(&body)), other).await.refused(401, "unauthenticated");
}

#[tokio::test]
async fn malformed_requests_are_refused_in_one_shape() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    let raw = async |path: &str, body: &[u8]| {
        server.send("POST", path, &person.headers("POST", path, body), body.to_vec()).await
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
    person.post("/api/recall", json!({ "query": "a", "unknown": 1 })).await.refused(400, "bad_request");
    person.post("/api/recall", json!({ "query": "a", "threshold": 2 })).await.refused(400, "bad_request");
    let filters = json!({ "query": "a", "filters": { "from": "yesterday" } });
    person.post("/api/recall", filters).await.refused(400, "bad_request");
    person.get("/api/items/xyz").await.refused(404, "not_found");
    person.get("/api/graph?unknown=1").await.refused(400, "bad_request");
    person.get("/api/sessions/%FF/move").await.refused(405, "no_method");
    person.post("/api/sessions/%FF/move", json!({})).await.refused(400, "bad_request");
    server.bare("GET", "/nowhere", "").await.refused(404, "no_route");
    server.bare("DELETE", "/health", "").await.refused(405, "no_method");
    server.bare("POST", "/sui", &"x".repeat(5_000)).await.refused(400, "bad_request");
}

#[tokio::test]
async fn every_documented_route_is_there_and_behind_the_gate() {
    let server = TestServer::open().await;
    let document = server.bare("GET", "/openapi.json", "").await.good();
    let open = ["/health", "/readyz", "/version", "/relayer", "/config", "/sui", "/openapi.json"];
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 35, "{}", paths.len());
    for (path, operations) in paths {
        for (method, operation) in operations.as_object().unwrap() {
            let filled = path.replace(['{', '}'], "");
            let answer = server.bare(&method.to_uppercase(), &filled, "{}").await;
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
    // All references exist.
    let text = document.to_string();
    for reference in text.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
    }
}
