//! The owner's settings, repeated calls, times, and restoring without Walrus.

use serde_json::{Value, json};

use super::harness::{Person, TestServer};

#[tokio::test]
async fn only_the_owner_and_its_administrators_decide_on_settings() {
    let server = TestServer::open().await;
    let (owner, other) = (Person::new(&server), Person::new(&server));
    let path = "/api/settings";
    let off = json!({ "extract_through_nodes": false, "nodes_offered": false, "written_by": "rules" });
    assert_eq!(owner.get(path).await.good(), off);
    let on = json!({ "extract_through_nodes": true });
    for scopes in [&["read"][..], &["read", "write", "chat"]] {
        owner.delegate_of(scopes, None).ask("PUT", path, on.clone()).await.refused(403, "scope_missing");
    }
    let friend = owner.delegate_of(&["read", "admin"], Some("garden"));
    friend.ask("PUT", path, on.clone()).await.refused(403, "project_only");
    friend.get(path).await.refused(403, "project_only");
    assert_eq!(owner.get(path).await.good(), off, "nothing of it was done");
    owner.ask("PUT", path, json!({})).await.refused(400, "bad_request");
    owner
        .ask("PUT", path, json!({ "extract_through_nodes": true, "x": 1 }))
        .await
        .refused(400, "bad_request");
    let answer = owner.ask("PUT", path, on).await.good();
    assert_eq!((&answer["extract_through_nodes"], &answer["written_by"]), (&json!(true), &json!("rules")));
    assert_eq!(owner.post("/api/stats", json!({})).await.good()["all"]["extract_through_nodes"], true);
    assert_eq!(other.get(path).await.good(), off);
    owner
        .delegate_of(&["read", "admin"], None)
        .ask("PUT", path, json!({ "extract_through_nodes": false }))
        .await
        .good();
    assert_eq!(owner.get(path).await.good(), off);
}

#[tokio::test]
async fn f10_a_call_with_the_same_idempotency_key_is_made_once() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    let fact = |text: &str, key: &str| json!({ "text": text, "idempotency_key": key });
    let first = person.post("/api/remember", fact("I live in Lisbon.", "a")).await.good();
    let job = first["job_id"].as_str().unwrap().to_owned();
    let again = person.post("/api/remember", fact("I live in Lisbon.", "a")).await.good();
    assert_eq!((&again["job_id"], &again["existed"]), (&json!(job), &json!(true)));
    person.post("/api/remember", fact("I live in Faro.", "a")).await.refused(409, "conflict");
    let items = json!({ "items": [fact("I play the cello.", "b"), fact("I live in Lisbon.", "a")] });
    for _ in 0..2 {
        let bulk = person.post("/api/remember/bulk", items.clone()).await.good();
        assert_eq!(bulk["job_ids"][1], json!(job));
    }
    person.post("/api/remember", fact("x is y", &"k".repeat(257))).await.refused(400, "bad_request");
}

#[tokio::test]
async fn f10_occurred_at_dates_the_memory() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    let at = "2025-03-01T10:00:00Z";
    let analyzed = json!({ "text": "I work as a carpenter in Lisbon.", "occurred_at": at });
    let found = person.post("/api/analyze", analyzed).await.good();
    let id = found["facts"][0]["id"].as_str().unwrap().to_owned();
    let remembered = json!({ "text": "My dog is called Biscuit.", "occurred_at": at });
    let job = person.post("/api/remember", remembered).await.good()["job_id"].as_str().unwrap().to_owned();
    for id in [id, job] {
        let item = person.get(&format!("/api/items/{id}")).await.good();
        assert_eq!((&item["time"], &item["valid_from"]), (&json!("2025-03-01T10:00:00.000Z"), &item["time"]));
    }
    let wrong = json!({ "text": "I work as a carpenter.", "occurred_at": "yesterday" });
    person.post("/api/analyze", wrong).await.refused(400, "bad_request");
}

#[tokio::test]
async fn restoring_without_walrus_says_why_it_cannot_and_what_to_do() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    person.remember("My dog is called Biscuit.", None).await;
    let answer = person.post("/api/restore", json!({ "namespace": "default" })).await;
    answer.refused(501, "no_walrus");
    let answer: Value = answer.json();
    assert!(answer["message"].as_str().unwrap().contains("Walrus"), "{answer}");
    assert!(answer["hint"].as_str().unwrap().contains("/api/import"), "{answer}");
}
