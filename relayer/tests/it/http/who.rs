//! Access rights: signatures, delegations, scopes, projects.

use std::sync::atomic::Ordering;

use baton_keys::{SecretSigningKey, account::addressed_to};
use serde_json::{Value, json};

use super::harness::{Person, TestServer, relayer_key};

#[tokio::test]
async fn every_wrong_signature_gets_the_same_answer() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    let path = "/api/stats";
    let signed = || person.headers("POST", path, b"{}");
    let mut answers = Vec::new();
    for index in 0..5 {
        let mut missing = signed();
        missing.remove(index);
        answers.push(server.send("POST", path, &missing, b"{}".to_vec()).await);
        let mut garbled = signed();
        garbled[index].1 = "zz".to_owned();
        answers.push(server.send("POST", path, &garbled, b"{}".to_vec()).await);
        let twice = [signed(), vec![signed().swap_remove(index)]].concat();
        answers.push(server.send("POST", path, &twice, b"{}".to_vec()).await);
    }
    let impostor = Person { account: person.account.clone(), ..Person::new(&server) };
    answers.push(impostor.post(path, json!({})).await);
    let replayed = signed();
    server.send("POST", path, &replayed, b"{}".to_vec()).await.good();
    answers.push(server.send("POST", path, &replayed, b"{}".to_vec()).await);
    let without_id = |answer: &super::harness::Answer| {
        let mut json = answer.json();
        json["request_id"] = Value::Null;
        (answer.status, json)
    };
    let first = without_id(&answers[0]);
    assert!(answers.iter().all(|answer| without_id(answer) == first), "{answers:?}");
}

#[tokio::test]
async fn a_nonce_is_remembered_across_a_restart() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    let headers = person.headers("POST", "/api/stats", b"{}");
    server.send("POST", "/api/stats", &headers, b"{}".to_vec()).await.good();
    let folder = server.close().await;
    let server = TestServer::on(folder, baton_relayer::http::Limits::default()).await;
    server.send("POST", "/api/stats", &headers, b"{}".to_vec()).await.refused(401, "unauthenticated");
}

#[tokio::test]
async fn clock_skew_is_reported_before_anything_else_is_checked() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    let headers = person.headers("POST", "/api/stats", b"{}");
    server.now_ms.fetch_add(301_000, Ordering::SeqCst);
    let late = server.send("POST", "/api/stats", &headers, b"{}".to_vec()).await;
    late.refused(401, "clock_skew");
    assert_eq!(late.headers["x-auth-error"], "ERR_TIMESTAMP_OUT_OF_BOUNDS");
    let mut forged = headers;
    forged[1].1 = "00".repeat(64);
    server.send("POST", "/api/stats", &forged, b"{}".to_vec()).await.refused(401, "clock_skew");
    server.now_ms.fetch_sub(301_000, Ordering::SeqCst);
    let answer = server.send("POST", "/api/stats", &forged, b"{}".to_vec()).await;
    answer.refused(401, "unauthenticated");
    assert!(!answer.headers.contains_key("x-auth-error"));
}

#[tokio::test]
async fn a_delegate_acts_within_its_scopes_until_taken_back() {
    let server = TestServer::open().await;
    let owner = Person::new(&server);
    owner.remember("My dog is called Biscuit.", None).await;
    let mut friend = owner.friend();
    friend.post("/api/recall", json!({ "query": "dog" })).await.refused(401, "unauthenticated");
    friend.delegation = Some("garbled".to_owned());
    friend.post("/api/recall", json!({ "query": "dog" })).await.refused(401, "unauthenticated");
    let delegation = owner.delegate(&friend, &["read"], None);
    friend.delegation = Some(delegation.to_header());
    friend.post("/api/recall", json!({ "query": "dog" })).await.good();
    friend.delegation = None;
    owner.post("/api/delegations", json!(delegation)).await.good();
    let stats = friend.post("/api/stats", json!({})).await.good();
    assert_eq!(stats["owner"], owner.account, "registered, it is found by account and key");
    friend.post("/api/remember", json!({ "text": "x" })).await.refused(403, "scope_missing");
    friend.post("/api/forget", json!({ "namespace": "default" })).await.refused(403, "scope_missing");
    friend.get("/api/export").await.refused(403, "scope_missing");
    friend.post("/api/delegations", json!(delegation)).await.refused(403, "scope_missing");
    let listed = owner.get("/api/delegations").await.good();
    assert_eq!(listed["delegations"][0]["id"], delegation.id);
    owner.ask("DELETE", &format!("/api/delegations/{}", delegation.id), Value::Null).await.good();
    friend.post("/api/recall", json!({ "query": "dog" })).await.refused(401, "unauthenticated");
    friend.delegation = Some(delegation.to_header());
    friend.post("/api/recall", json!({ "query": "dog" })).await.refused(401, "unauthenticated");
    owner.post("/api/delegations", json!(delegation)).await.refused(409, "conflict");
}

#[tokio::test]
async fn a_delegation_ends_and_is_no_ones_else() {
    let server = TestServer::open().await;
    let (owner, other) = (Person::new(&server), Person::new(&server));
    let mut friend = owner.friend();
    let delegation = owner.delegate(&friend, &["read", "write", "chat", "admin"], None);
    other.post("/api/delegations", json!(delegation)).await.refused(400, "bad_request");
    friend.delegation = Some(delegation.to_header());
    let mut thief = owner.friend();
    thief.delegation.clone_from(&friend.delegation);
    thief.post("/api/stats", json!({})).await.refused(401, "unauthenticated");
    friend.account.clone_from(&other.account);
    friend.post("/api/stats", json!({})).await.refused(401, "unauthenticated");
    friend.account.clone_from(&owner.account);
    friend.post("/api/stats", json!({})).await.good();
    let confirm = json!({ "confirm": owner.account });
    friend.post("/api/erase", confirm).await.refused(403, "owner_only");
    server.now_ms.fetch_add(3_600_000, Ordering::SeqCst);
    friend.post("/api/stats", json!({})).await.refused(401, "unauthenticated");
    owner.post("/api/delegations", json!(delegation)).await.refused(400, "bad_request");
}

#[tokio::test]
async fn a_delegate_of_one_project_sees_and_touches_nothing_else() {
    let server = TestServer::open().await;
    let owner = Person::new(&server);
    let inside = owner.remember("The shed needs green paint.", Some("garden")).await;
    let outside = owner.remember("The bank card has paint on it.", None).await;
    let friend = owner.delegate_of(&["read", "write", "chat", "admin"], Some("garden"));
    assert_eq!(friend.recalls("paint", None).await, ["The shed needs green paint."]);
    assert_eq!(friend.recalls("paint", Some("garden")).await, ["The shed needs green paint."]);
    let recall = |project: &str| friend.post("/api/recall", json!({ "query": "paint", "project": project }));
    recall("default").await.refused(403, "project_only");
    recall("house").await.refused(403, "project_only");
    let sdk = json!({ "query": "paint", "namespace": "default" });
    friend.post("/api/recall", sdk).await.refused(403, "project_only");
    for body in
        [json!({}), json!({ "everything": true }), json!({ "everything": true, "consent": "granted" })]
    {
        let listed = friend.post("/api/list", body).await.good().to_string();
        assert!(listed.contains("green paint") && !listed.contains("bank card"), "{listed}");
    }
    for path in ["/api/export", "/api/graph", "/api/profile", "/api/sessions"] {
        let answer = friend.get(path).await;
        assert_eq!(answer.status, 200, "{path} {}", answer.text);
        assert!(!answer.text.contains("bank card"), "{path}");
    }
    friend.get(&format!("/api/items/{inside}")).await.good();
    let item = format!("/api/items/{outside}");
    friend.get(&item).await.refused(404, "not_found");
    friend.ask("PATCH", &item, json!({ "text": "x" })).await.refused(404, "not_found");
    friend.post(&format!("{item}/supersede"), json!({ "text": "x" })).await.refused(404, "not_found");
    friend.post(&format!("{item}/archive"), json!({ "archived": true })).await.refused(404, "not_found");
    friend.post("/api/delete", json!({ "ids": [outside] })).await.refused(404, "not_found");
    friend.get(&format!("/api/remember/{outside}")).await.refused(404, "not_found");
    let status = friend.post("/api/remember/bulk/status", json!({ "job_ids": [outside] })).await.good();
    assert_eq!(status["results"][0]["status"], "not_found");
    friend.get("/api/personas").await.refused(403, "project_only");
    friend.get("/api/delegations").await.refused(403, "project_only");
    friend.post("/api/import", json!({})).await.refused(403, "project_only");
    let projects = friend.get("/api/projects").await.good();
    assert_eq!(projects["places"].as_array().unwrap().len(), 1);
    assert!(owner.get(&item).await.good()["text"].as_str().unwrap().contains("bank card"));
}

#[tokio::test]
async fn another_owner_reads_and_deletes_nothing() {
    let server = TestServer::open().await;
    let (owner, other) = (Person::new(&server), Person::new(&server));
    let id = owner.remember("The safe's code is in the blue book.", None).await;
    assert_eq!(other.recalls("safe code blue book", None).await, Vec::<String>::new());
    other.get(&format!("/api/items/{id}")).await.refused(404, "not_found");
    other.get(&format!("/v1/owners/{}/namespaces", owner.account)).await.refused(404, "not_found");
    let answer = other.post("/api/delete", json!({ "ids": [id] })).await;
    assert!(answer.status == 404 || answer.good()["count"] == 0, "{}", answer.text);
    assert_eq!(owner.recalls("safe code blue book", None).await.len(), 1);
}

/// The whole answer as one text.
fn all_of(answer: &super::harness::Answer) -> String {
    answer.good().to_string()
}

#[tokio::test]
async fn a_delegate_that_may_only_write_reads_nothing() {
    let server = TestServer::open().await;
    let owner = Person::new(&server);
    let dog = owner.remember("My dog is called Biscuit.", None).await;
    let place = json!({ "name": "s1", "project": "garden" });
    owner.post("/api/sessions", place.clone()).await.good();
    let writer = owner.delegate_of(&["write"], None);

    // A fact that replaces another's: the writer learns only of its own.
    let answer = writer.post("/api/remember", json!({ "text": "My dog is called Zed." })).await;
    let text = all_of(&answer);
    let zed = answer.json()["id"].as_str().unwrap().to_owned();
    assert!(!text.contains(&dog) && answer.json()["superseded"].is_null(), "{text}");
    let history = owner.get(&format!("/api/items/{dog}")).await.good();
    assert_eq!(history["superseded_by"], zed.as_str(), "and yet it did");
    // A write-only key cannot find out whether a fact exists by adding it.
    let known = json!({ "text": "My dog is called Zed." });
    let fresh = json!({ "text": "The kettle is copper." });
    let shape = |answer: &super::harness::Answer| {
        let mut one = answer.good();
        (one["id"], one["job_id"]) = (Value::Null, Value::Null);
        one
    };
    let known = shape(&writer.post("/api/remember", known).await);
    assert_eq!(known, shape(&writer.post("/api/remember", fresh).await));
    assert!(known["existed"].is_null(), "{known}");

    // It does not see the items that it changes.
    let item = format!("/api/items/{zed}");
    for (method, path, body) in [
        ("POST", format!("{item}/archive"), json!({ "archived": true })),
        ("POST", format!("{item}/archive"), json!({ "archived": false })),
        ("PATCH", item.clone(), json!({ "text": "My dog is called Rex." })),
        ("POST", format!("{item}/supersede"), json!({ "text": "My dog is called Max." })),
    ] {
        let answer = writer.ask(method, &path, body).await.good();
        let fields: Vec<&String> = answer.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["id"], "{method} {path}");
    }
    for (path, body) in [
        ("/api/sessions", place),
        ("/api/projects", json!({ "name": "garden" })),
        ("/api/personas", json!({ "name": "Aria" })),
        ("/api/sessions/s1/fork", json!({ "name": "s2" })),
        ("/api/sessions/s1/move", json!({ "project": "shed" })),
    ] {
        let answer = writer.post(path, body).await.good();
        let fields: Vec<&String> = answer.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["name"], "{path}");
    }
    for path in ["/api/recall", "/api/list", "/api/ask", "/api/stats"] {
        writer.post(path, json!({ "query": "dog" })).await.refused(403, "scope_missing");
    }
    for path in ["/api/profile", "/api/graph", "/api/projects", &item] {
        writer.get(path).await.refused(403, "scope_missing");
    }
}

#[tokio::test]
async fn intimate_items_show_only_to_a_delegate_that_was_granted_them_by_name_and_an_owner_that_asks() {
    let server = TestServer::open().await;
    let owner = Person::new(&server);
    let fact = |text: &str, intimate: bool| json!({ "text": text, "project": "home", "intimate": intimate });
    let facts =
        [fact("The doctor prescribed a red cream.", true), fact("The doctor lives on Mill Road.", false)];
    let told = owner.post("/api/remember/bulk", json!({ "items": facts })).await.good();
    let secret = told["job_ids"][0].as_str().unwrap().to_owned();
    let ask = json!({ "query": "doctor", "project": "home", "memory_scope": "full", "limit": 20 });
    let list = json!({ "everything": true });
    let place = "?project=home";
    for (scopes, sees) in
        [(&["read", "admin", "write"][..], false), (&["read", "admin", "write", "intimate"], true)]
    {
        let friend = owner.delegate_of(scopes, None);
        let answers = [
            friend.post("/api/recall", ask.clone()).await,
            friend.post("/api/list", list.clone()).await,
            friend.get(&format!("/api/profile{place}")).await,
            friend.get(&format!("/api/graph{place}")).await,
        ];
        for answer in &answers {
            let text = all_of(answer);
            assert!(text.contains("Mill Road"), "{text}");
            assert_eq!(text.contains("red cream"), sees, "{text}");
            assert!(sees || !text.contains(&secret), "{text}");
        }
        let export = friend.get(&format!("/api/export{place}")).await;
        assert!(export.status == 200 && export.text.contains("Mill Road"));
        assert_eq!(export.text.contains("red cream"), sees);
        let item = format!("/api/items/{secret}");
        assert_eq!(friend.get(&item).await.status == 200, sees);
        assert_eq!(friend.get(&format!("/api/remember/{secret}")).await.status == 200, sees);
        let archived = friend.post(&format!("{item}/archive"), json!({ "archived": false })).await;
        assert_eq!(all_of(&archived).contains("red cream"), sees);
    }
    // This scope alone shows nothing.
    owner.delegate_of(&["intimate"], None).post("/api/recall", ask).await.refused(403, "scope_missing");
    // The owner's own recall has no intimate item unless it asks for all.
    let plain = json!({ "query": "doctor", "project": "home" });
    let found = all_of(&owner.post("/api/recall", plain).await);
    assert!(found.contains("Mill Road") && !found.contains("red cream"), "{found}");
    // Without a language model, the answer contains the memories for it.
    let asked = owner.post("/api/ask", json!({ "question": "Which doctor?", "project": "home" })).await;
    asked.refused(503, "no_model");
    assert_eq!(asked.json()["memories"][0]["text"], "The doctor lives on Mill Road.");
    assert!(!asked.text.contains("red cream"), "{}", asked.text);
}

#[tokio::test]
async fn a_request_for_one_relayer_is_refused_by_another() {
    let other = SecretSigningKey::from_seed(&[0xcd; 32]);
    let (here, there) = (TestServer::open().await, TestServer::named(other.clone(), true).await);
    let body = br#"{"query":"dog"}"#.to_vec();
    let path = addressed_to("/api/recall?x=1", &relayer_key().public_key());
    let signed = Person::new(&here).headers("POST", &path, &body);
    // The very bytes, at both: the first relayer hands them on before it serves them.
    there.send("POST", &path, &signed, body.clone()).await.refused(421, "wrong_relayer");
    here.send("POST", &path, &signed, body.clone()).await.good();
    // Without the name, or with another, they are not the signed ones.
    let elsewhere = addressed_to("/api/recall?x=1", &other.public_key());
    there.send("POST", &elsewhere, &signed, body.clone()).await.refused(401, "unauthenticated");
    let plain = Person::new(&there);
    plain.post("/api/recall", json!({ "query": "dog" })).await.refused(401, "relayer_unnamed");
    plain.post(&elsewhere, json!({ "query": "dog" })).await.good();
    // Routes whose queries know no other parameter read theirs without the name.
    let delegation = plain.delegate(&plain.friend(), &["read"], None);
    let named = |path: &str| addressed_to(path, &other.public_key());
    plain.post(&named("/api/delegations"), json!(delegation)).await.good();
    let revoke = named(&format!("/api/delegations/{}", delegation.id));
    plain.ask("DELETE", &revoke, Value::Null).await.good();
}
