//! Who may do what: signatures, delegations, scopes, projects.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::harness::{Door, Person};

#[tokio::test]
async fn a6_an_unsigned_or_changed_request_is_nobodys() {
    let door = Door::open().await;
    let person = Person::new(&door);
    let (path, body) = ("/api/recall?x=1", br#"{"query":"dog"}"#.to_vec());
    door.bare("POST", path, "{}").await.refused(401, "unauthenticated");
    let signed = || person.headers("POST", path, &body);
    assert_eq!(door.send("POST", path, &signed(), body.clone()).await.status, 200);
    door.send("POST", "/api/recall?x=2", &signed(), body.clone()).await.refused(401, "unauthenticated");
    door.send("POST", "/api/forget?x=1", &signed(), body.clone()).await.refused(401, "unauthenticated");
    let delegations = person.headers("GET", "/api/delegations", &body);
    door.send("POST", "/api/delegations", &delegations, body.clone()).await.refused(401, "unauthenticated");
    door.send("POST", path, &signed(), b"{}".to_vec()).await.refused(401, "unauthenticated");
    let mut other_account = signed();
    other_account[4].1 = Person::new(&door).account;
    door.send("POST", path, &other_account, body).await.refused(401, "unauthenticated");
}

#[tokio::test]
async fn every_wrong_signature_gets_the_same_answer() {
    let door = Door::open().await;
    let person = Person::new(&door);
    let path = "/api/stats";
    let signed = || person.headers("POST", path, b"{}");
    let mut answers = Vec::new();
    for index in 0..5 {
        let mut missing = signed();
        missing.remove(index);
        answers.push(door.send("POST", path, &missing, b"{}".to_vec()).await);
        let mut garbled = signed();
        garbled[index].1 = "zz".to_owned();
        answers.push(door.send("POST", path, &garbled, b"{}".to_vec()).await);
    }
    let stranger = Person { account: person.account.clone(), ..Person::new(&door) };
    answers.push(stranger.post(path, json!({})).await);
    let replayed = signed();
    door.send("POST", path, &replayed, b"{}".to_vec()).await.good();
    answers.push(door.send("POST", path, &replayed, b"{}".to_vec()).await);
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
    let door = Door::open().await;
    let person = Person::new(&door);
    let headers = person.headers("POST", "/api/stats", b"{}");
    door.send("POST", "/api/stats", &headers, b"{}".to_vec()).await.good();
    let folder = door.close().await;
    let door = Door::on(folder, baton_relayer::http::Limits::default()).await;
    door.send("POST", "/api/stats", &headers, b"{}".to_vec()).await.refused(401, "unauthenticated");
}

#[tokio::test]
async fn a_clock_that_is_off_is_told_so_to_its_owner_only() {
    let door = Door::open().await;
    let person = Person::new(&door);
    let headers = person.headers("POST", "/api/stats", b"{}");
    door.now_ms.fetch_add(301_000, Ordering::SeqCst);
    let late = door.send("POST", "/api/stats", &headers, b"{}".to_vec()).await;
    late.refused(401, "clock_skew");
    assert_eq!(late.headers["x-auth-error"], "ERR_TIMESTAMP_OUT_OF_BOUNDS");
    let mut forged = headers;
    forged[1].1 = "00".repeat(64);
    let answer = door.send("POST", "/api/stats", &forged, b"{}".to_vec()).await;
    answer.refused(401, "unauthenticated");
    assert!(!answer.headers.contains_key("x-auth-error"));
}

#[tokio::test]
async fn a_delegate_acts_within_its_scopes_until_taken_back() {
    let door = Door::open().await;
    let owner = Person::new(&door);
    owner.remember("My dog is called Biscuit.", None).await;
    let mut friend = owner.friend();
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
    friend.get("/v1/memory/export").await.refused(403, "scope_missing");
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
    let door = Door::open().await;
    let (owner, other) = (Person::new(&door), Person::new(&door));
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
    friend.ask("DELETE", "/v1/memory/owner", confirm).await.refused(403, "owner_only");
    door.now_ms.fetch_add(3_600_000, Ordering::SeqCst);
    friend.post("/api/stats", json!({})).await.refused(401, "unauthenticated");
    owner.post("/api/delegations", json!(delegation)).await.refused(400, "bad_request");
}

#[tokio::test]
async fn a_delegate_of_one_project_sees_and_touches_nothing_else() {
    let door = Door::open().await;
    let owner = Person::new(&door);
    let inside = owner.remember("The shed needs green paint.", Some("garden")).await;
    let outside = owner.remember("The bank card has paint on it.", None).await;
    let mut friend = owner.friend();
    let all = ["read", "write", "chat", "admin"];
    friend.delegation = Some(owner.delegate(&friend, &all, Some("garden")).to_header());
    assert_eq!(friend.recalls("paint", None).await, ["The shed needs green paint."]);
    assert_eq!(friend.recalls("paint", Some("garden")).await, ["The shed needs green paint."]);
    let recall =
        |project: &str| friend.post("/v1/memory/recall", json!({ "query": "paint", "project": project }));
    recall("default").await.refused(403, "project_only");
    recall("house").await.refused(403, "project_only");
    friend
        .post("/api/recall", json!({ "query": "paint", "namespace": "default" }))
        .await
        .refused(403, "project_only");
    friend.post("/v1/memory/list", json!({ "everything": true })).await.refused(403, "project_only");
    let listed = friend.post("/v1/memory/list", json!({})).await.good();
    assert!(!listed.to_string().contains("bank card"), "{listed}");
    for path in [
        "/v1/memory/export",
        "/v1/memory/graph",
        "/v1/memory/profile",
        "/v1/memory/sessions",
        "/v1/memory/consent",
    ] {
        let answer = friend.get(path).await;
        assert_eq!(answer.status, 200, "{path} {}", answer.text);
        assert!(!answer.text.contains("bank card"), "{path}");
    }
    friend.get(&format!("/v1/memory/items/{inside}")).await.good();
    let item = format!("/v1/memory/items/{outside}");
    friend.get(&item).await.refused(404, "not_found");
    friend.ask("PATCH", &item, json!({ "text": "x" })).await.refused(404, "not_found");
    friend.ask("DELETE", &item, Value::Null).await.refused(404, "not_found");
    friend.post(&format!("{item}/supersede"), json!({ "text": "x" })).await.refused(404, "not_found");
    friend.post(&format!("{item}/archive"), json!({ "archived": true })).await.refused(404, "not_found");
    friend.post("/v1/memory/delete", json!({ "ids": [outside] })).await.refused(404, "not_found");
    friend.get(&format!("/api/remember/{outside}")).await.refused(404, "not_found");
    let status = friend.post("/api/remember/bulk/status", json!({ "job_ids": [outside] })).await.good();
    assert_eq!(status["results"][0]["status"], "not_found");
    friend.get("/v1/memory/personas").await.refused(403, "project_only");
    friend.get("/api/delegations").await.refused(403, "project_only");
    friend.post("/v1/memory/import", json!({})).await.refused(403, "project_only");
    let projects = friend.get("/v1/memory/projects").await.good();
    assert_eq!(projects["places"].as_array().unwrap().len(), 1);
    assert!(owner.get(&item).await.good()["text"].as_str().unwrap().contains("bank card"));
}

#[tokio::test]
async fn another_owner_is_a_stranger_everywhere() {
    let door = Door::open().await;
    let (owner, other) = (Person::new(&door), Person::new(&door));
    let id = owner.remember("The safe's code is in the blue book.", None).await;
    assert_eq!(other.recalls("safe code blue book", None).await, Vec::<String>::new());
    other.get(&format!("/v1/memory/items/{id}")).await.refused(404, "not_found");
    other.get(&format!("/v1/owners/{}/namespaces", owner.account)).await.refused(404, "not_found");
    let answer = other.post("/v1/memory/delete", json!({ "ids": [id] })).await;
    assert!(answer.status == 404 || answer.good()["count"] == 0, "{}", answer.text);
    assert_eq!(owner.recalls("safe code blue book", None).await.len(), 1);
}
