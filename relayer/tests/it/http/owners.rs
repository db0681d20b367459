//! Admission of owners, and the budgets of all of them.

use std::sync::Arc;

use baton_relayer::{
    BudgetLimits,
    http::Limits,
    owners::{self, OwnerAdmission, OwnerPolicy},
};
use serde_json::{Value, json};

use super::harness::{Person, START_MS, TestServer, relayer_key};

async fn server(policy: OwnerPolicy, budgets: BudgetLimits) -> TestServer {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    TestServer::for_owners(folder, Limits::default(), policy, budgets).await
}

async fn server_for(admission: OwnerAdmission) -> TestServer {
    server(OwnerPolicy { owners: admission, ..OwnerPolicy::default() }, BudgetLimits::default()).await
}

fn fact() -> Value {
    json!({ "text": "My dog is called Biscuit." })
}

#[tokio::test]
async fn a_loop_of_fresh_keys_is_refused_where_owners_are_listed() {
    let server = server_for(OwnerAdmission::Listed).await;
    for _ in 0..20 {
        let stranger = Person::new(&server);
        stranger.post("/api/remember", fact()).await.refused(403, "not_admitted");
        stranger.post("/api/ask", json!({ "question": "who?" })).await.refused(403, "not_admitted");
    }
    // The answer names the next step, and an unsigned request does not get so far.
    let answer = Person::new(&server).post("/api/stats", json!({})).await;
    assert!(answer.json()["hint"].as_str().unwrap().contains("allowed_owners"), "{}", answer.text);
    server.bare("POST", "/api/stats", "{}").await.refused(401, "unauthenticated");
}

#[tokio::test]
async fn a_listed_owner_and_its_delegate_are_served() {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let before = TestServer::on(folder, Limits::default()).await;
    let key = Person::new(&before).key;
    let owner = baton_memory::ids::OwnerId::of(&key.public_key());
    let policy =
        OwnerPolicy { owners: OwnerAdmission::Listed, listed: vec![owner], ..OwnerPolicy::default() };
    let server = server(policy, BudgetLimits::default()).await;
    let person = Person { server: &server, account: key.account_id(), key, delegation: None };
    person.post("/api/remember", fact()).await.good();
    person.delegate_of(&["read"], None).post("/api/stats", json!({})).await.good();
}

#[tokio::test]
async fn an_invitation_is_presented_once() {
    let server = server_for(OwnerAdmission::Invited).await;
    let (person, other) = (Person::new(&server), Person::new(&server));
    person.post("/api/remember", fact()).await.refused(403, "not_admitted");
    let invitation = owners::invite(&relayer_key(), person.key.public_key(), 1, START_MS).unwrap();
    let invitation = json!({ "invitation": invitation.to_string() });
    other.post("/api/invitation", invitation.clone()).await.refused(400, "bad_request");
    other.post("/api/remember", fact()).await.refused(403, "not_admitted");
    let answer = person.post("/api/invitation", invitation).await.good();
    assert_eq!(answer["owner"], person.account);
    person.post("/api/remember", fact()).await.good();
}

#[tokio::test]
async fn a_loop_of_fresh_keys_ends_at_the_budget_of_owners() {
    let policy = OwnerPolicy { max_owners: 5, ..OwnerPolicy::default() };
    let server = server(policy, BudgetLimits::default()).await;
    let people: Vec<_> = (0..5).map(|_| Person::new(&server)).collect();
    for person in &people {
        person.post("/api/remember", fact()).await.good();
    }
    let refused = Person::new(&server).post("/api/remember", fact()).await;
    refused.refused(503, "budget_spent");
    assert!(refused.text.contains("max_owners"), "{}", refused.text);
    for person in &people {
        person.post("/api/stats", json!({})).await.good();
    }
}

#[tokio::test]
async fn a_full_relayer_takes_no_more_and_still_deletes() {
    let server =
        server(OwnerPolicy::default(), BudgetLimits { max_bytes: 1_000, ..BudgetLimits::default() }).await;
    let person = Person::new(&server);
    let id = person.remember("My dog is called Biscuit.", None).await;
    server.budgets.note_stored(1_000);
    for (path, body) in [
        ("/api/remember", fact()),
        ("/api/turns", json!({})),
        ("/api/import", json!({})),
        ("/api/projects", json!({ "name": "garden" })),
        (&format!("/api/items/{id}/supersede"), json!({ "text": "My dog is called Rex." })),
    ] {
        let refused = person.post(path, body).await;
        refused.refused(503, "budget_spent");
        assert!(refused.text.contains("max_bytes"), "{}", refused.text);
    }
    assert_eq!(person.recalls("dog", None).await.len(), 1);
    person.post("/api/delete", json!({ "ids": [id] })).await.good();
}
