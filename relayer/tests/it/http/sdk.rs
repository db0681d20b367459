//! The SDK's routes in the SDK's formats. `scripts/memwal` tests the real client.

use serde_json::json;

use super::harness::{Person, TestServer};

#[tokio::test]
async fn f10_the_sdk_can_read_its_start_routes() {
    let server = TestServer::open().await;
    let version = server.bare("GET", "/version", "").await.good();
    assert_eq!(version["apiVersion"], "1.0.0");
    assert_eq!(version["minSupportedSdk"]["python"], "0.1.0");
    assert_eq!(server.bare("GET", "/health", "").await.good()["status"], "ok");
    let config = server.bare("GET", "/config", "").await.good();
    assert_eq!(config["suiRpcUrl"], server.url("/sui"));
    assert!(!["mainnet", "testnet", "devnet"].contains(&config["network"].as_str().unwrap()));
    let request =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "sui_getObject", "params": [config["packageId"]] });
    let object = server.bare("POST", "/sui", &request.to_string()).await.good();
    assert_eq!(object["result"]["data"]["version"], "1");
    let other =
        server.bare("POST", "/sui", r#"{"id":2,"method":"sui_executeTransactionBlock"}"#).await.good();
    assert!(other["result"].is_null() && other["error"]["code"].is_i64());
}

#[tokio::test]
async fn the_http_address_leads_to_the_libp2p_addresses() {
    let server = TestServer::open().await;
    let identity = server.bare("GET", "/relayer", "").await.good();
    assert_eq!(identity, serde_json::to_value(super::harness::identity()).unwrap());
    let document = server.bare("GET", "/openapi.json", "").await.good();
    assert!(document["components"]["schemas"]["RelayerIdentity"]["properties"]["addresses"].is_object());
}

#[tokio::test]
async fn f10_remember_recall_forget_and_count_by_namespace() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    let body = json!({ "text": "The shed needs paint.", "namespace": "garden", "idempotency_key": "r1-x" });
    let accepted = person.post("/api/remember", body.clone()).await;
    assert_eq!(accepted.status, 202);
    let job = accepted.good()["job_id"].as_str().unwrap().to_owned();
    assert_eq!(
        person.post("/api/remember", body).await.good()["job_id"],
        job,
        "the same again is the same job"
    );
    let status = person.get(&format!("/api/remember/{job}")).await.good();
    assert_eq!((status["status"].as_str(), status["namespace"].as_str()), (Some("done"), Some("garden")));
    assert_eq!(status["owner"], person.account);
    person.get("/api/remember/nope").await.refused(404, "not_found");
    let recall = json!({ "query": "paint for the shed", "namespace": "garden", "limit": 5 });
    let found = person.post("/api/recall", recall).await.good();
    let first = &found["results"][0];
    assert_eq!(
        (first["text"].as_str(), found["dropped_count"].as_u64()),
        (Some("The shed needs paint."), Some(0))
    );
    for field in ["distance", "score"] {
        assert!(first[field].is_number(), "{first}");
    }
    assert!(first["created_at"].as_str().unwrap().ends_with('Z') && first["blob_id"].is_string());
    let stats = person.post("/api/stats", json!({ "namespace": "garden" })).await.good();
    assert_eq!(
        (stats["owner"].as_str(), stats["memory_count"].as_u64() >= Some(1)),
        (Some(&*person.account), true)
    );
    person.post("/api/forget", json!({})).await.refused(400, "bad_request");
    let forgotten = person.post("/api/forget", json!({ "namespace": "garden" })).await.good();
    assert!(forgotten["deleted"].as_u64() >= Some(1));
    let recall = json!({ "query": "paint for the shed", "namespace": "garden" });
    assert_eq!(person.post("/api/recall", recall).await.good()["results"], json!([]));
}

#[tokio::test]
async fn f10_bulk_status_names_missing_jobs() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    let items = json!({ "items": [{ "text": "I live in Lisbon." }, { "text": "I play the cello." }] });
    let accepted = person.post("/api/remember/bulk", items).await;
    assert_eq!((accepted.status, accepted.good()["total"].as_u64()), (202, Some(2)));
    let mut ids = accepted.json()["job_ids"].as_array().unwrap().clone();
    ids.push(json!("unknown"));
    let status = person.post("/api/remember/bulk/status", json!({ "job_ids": ids })).await.good();
    let states: Vec<_> =
        status["results"].as_array().unwrap().iter().map(|one| one["status"].as_str().unwrap()).collect();
    assert_eq!(states, ["done", "done", "not_found"]);
}

#[tokio::test]
async fn there_is_no_manual_mode_and_the_answer_says_why() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    for path in ["/api/remember/manual", "/api/recall/manual"] {
        let answer = person.post(path, json!({ "vector": [0.5] })).await;
        answer.refused(501, "not_supported");
        assert!(answer.json()["message"].as_str().unwrap().contains("keywords"));
    }
    let vector = person.post("/api/embed", json!({ "text": "hello" })).await.good();
    assert_eq!(vector["vector"].as_array().unwrap().len(), 384);
}
