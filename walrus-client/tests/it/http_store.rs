//! The HTTP client against the embedded store, and against a server with every known failure.

use std::time::Duration;

use baton_proto::{
    ids::{HeadIndexKey, SuiAddress},
    store::{BlobStore as _, HeadIndex as _, PutOptions, StoreError},
};
use baton_walrus_client::{
    HttpStore, ShardCount,
    http_store::{RetryPolicy, Verification},
};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use wiremock::{
    Mock, MockServer, ResponseTemplate,
    matchers::{body_bytes, method, path, query_param, query_param_is_missing},
};

use crate::{
    common::{NOW_MS, Running, closed_port, head, open},
    http_common::{BLOB, created, id, raw_server, silent, walrus_error},
};

const LIMIT: usize = 1 << 20;
/// A client that asks once, and searches only briefly for a lost PUT.
fn client(url: &str) -> HttpStore {
    let once = RetryPolicy { retries: 0, probe_window: Duration::from_millis(200), ..RetryPolicy::default() };
    HttpStore::builder(url, url, ShardCount::TESTBED).policy(once).build().unwrap()
}

/// Reads the blob, verified by its ID.
async fn verified(store: &HttpStore) -> Result<Vec<u8>, StoreError> {
    store.read(id(), LIMIT as u64, Verification::BlobId).await
}

/// A server with one answer for all requests, of which there must be exactly `times`.
async fn answering(response: ResponseTemplate, times: u64) -> (MockServer, HttpStore) {
    let server = MockServer::start().await;
    Mock::given(wiremock::matchers::any()).respond_with(response).expect(times).mount(&server).await;
    let store = client(&server.uri());
    (server, store)
}

/// A server that gives this answer to exactly one PUT, and refuses reads.
async fn answering_put(response: ResponseTemplate) -> (MockServer, HttpStore) {
    let server = MockServer::start().await;
    Mock::given(method("PUT")).respond_with(response).expect(1).mount(&server).await;
    Mock::given(method("HEAD")).respond_with(ResponseTemplate::new(503)).mount(&server).await;
    let store = client(&server.uri());
    (server, store)
}

async fn put(store: &HttpStore) -> Result<baton_proto::store::PutOutcome, StoreError> {
    store.put(BLOB.to_vec(), PutOptions::default()).await
}

#[tokio::test]
async fn stores_reads_and_probes_a_real_store() {
    let folder = TempDir::new().unwrap();
    let running = Running::start(open(&folder)).await;
    let store = running.client();
    assert!(!store.exists(id()).await.unwrap());
    assert_eq!(store.get(id(), LIMIT).await, Err(StoreError::NotFound));
    let outcome = put(&store).await.unwrap();
    assert_eq!((outcome.blob_id, outcome.newly_created, outcome.end_epoch), (id(), true, Some(2)));
    assert!(store.exists(id()).await.unwrap());
    assert_eq!(store.get(id(), BLOB.len()).await.unwrap(), BLOB);
    assert_eq!(verified(&store).await.unwrap(), BLOB);

    let permanent = PutOptions { epochs: 4, permanent: true, send_object_to: Some(SuiAddress([7; 32])) };
    assert!(store.put(BLOB.to_vec(), permanent).await.unwrap().newly_created);
    let again = store.put(BLOB.to_vec(), permanent).await.unwrap();
    assert_eq!((again.newly_created, again.end_epoch), (false, Some(5)));
    let too_long = store.put(BLOB.to_vec(), PutOptions { epochs: 1000, ..permanent }).await;
    assert!(matches!(too_long, Err(StoreError::Refused { .. })), "{too_long:?}");
    running.stop().await;
}

#[tokio::test]
async fn publishes_and_resolves_heads() {
    let folder = TempDir::new().unwrap();
    let running = Running::start(open(&folder)).await;
    let store = running.client();
    let key = HeadIndexKey([1; 32]);
    assert_eq!(store.resolve(key).await, Ok(None));
    store.publish(head(1, 2, NOW_MS + 1, "two")).await.unwrap();
    assert_eq!(store.publish(head(1, 1, NOW_MS + 1, "one")).await, Err(StoreError::HeadSuperseded));
    let invalid = store.publish(b"short".to_vec()).await;
    assert_eq!(invalid, Err(StoreError::Refused { reason: "INVALID_HEAD".to_owned() }));
    assert!(matches!(store.publish(vec![0; 8193]).await, Err(StoreError::TooLarge { .. })));
    assert_eq!(store.resolve(key).await, Ok(Some(head(1, 2, NOW_MS + 1, "two"))));
    running.stop().await;
}

#[tokio::test]
async fn a_store_without_a_head_index_says_so() {
    let (_server, store) = answering(ResponseTemplate::new(404), 2).await;
    assert!(matches!(store.resolve(HeadIndexKey([1; 32])).await, Err(StoreError::Refused { .. })));
    assert!(matches!(store.publish(vec![1]).await, Err(StoreError::Refused { .. })));
}

#[tokio::test]
async fn put_sends_what_was_asked_for() {
    let server = MockServer::start().await;
    let deletable = Mock::given(method("PUT"))
        .and(path("/v1/blobs"))
        .and(query_param("epochs", "1"))
        .and(query_param("deletable", "true"))
        .and(query_param_is_missing("permanent"))
        .and(query_param_is_missing("send_object_to"))
        .and(body_bytes(BLOB));
    let answer = ResponseTemplate::new(200).set_body_string(created(&id().to_string()));
    deletable.respond_with(answer.clone()).expect(1).mount(&server).await;
    let permanent = Mock::given(method("PUT"))
        .and(query_param("epochs", "9"))
        .and(query_param("permanent", "true"))
        .and(query_param_is_missing("deletable"))
        .and(query_param("send_object_to", format!("0x{}", "07".repeat(32))));
    permanent.respond_with(answer).expect(1).mount(&server).await;
    let store = client(&server.uri());
    put(&store).await.unwrap();
    let options = PutOptions { epochs: 9, permanent: true, send_object_to: Some(SuiAddress([7; 32])) };
    store.put(BLOB.to_vec(), options).await.unwrap();
}

#[tokio::test]
async fn a_refused_put_carries_the_reason_code() {
    for (status, body, expected) in [
        (400, walrus_error("INVALID_BLOB_PERSISTENCE"), "INVALID_BLOB_PERSISTENCE"),
        (401, walrus_error("INVALID_SIGNATURE"), "INVALID_SIGNATURE"),
        (451, walrus_error("FORBIDDEN_BLOB"), "FORBIDDEN_BLOB"),
        (400, "unknown field".to_owned(), "HTTP 400: unknown field"),
        (404, String::new(), "HTTP 404"),
    ] {
        let (_server, store) = answering(ResponseTemplate::new(status).set_body_string(body), 1).await;
        assert_eq!(put(&store).await, Err(StoreError::Refused { reason: expected.to_owned() }));
    }
}

#[tokio::test]
async fn oversized_blobs_are_refused_before_anything_is_sent() {
    let (server, _) = answering(ResponseTemplate::new(200), 0).await;
    let encoding = ShardCount::TESTBED.max_blob_length();
    for (shards, limit) in [(ShardCount::TESTBED, encoding), (ShardCount::MAINNET, 10_240 * 1024)] {
        let store = HttpStore::builder(&server.uri(), &server.uri(), shards).build().unwrap();
        let bytes = vec![0; usize::try_from(limit).unwrap() + 1];
        let refused = store.put(bytes, PutOptions::default()).await;
        assert_eq!(refused, Err(StoreError::TooLarge { length: limit + 1, limit }));
    }
}

#[tokio::test]
async fn a_200_that_is_no_result_leaves_the_outcome_unknown() {
    let failed = r#"{"error":{"blobId":null,"failurePhase":"certify","errorMsg":"secret detail"}}"#;
    let endless = "x".repeat(100_000);
    for body in ["", "garbage", "{}", "[1]", r#"{"newlyCreated":{}}"#, failed, endless.as_str()] {
        let (_server, store) = answering_put(ResponseTemplate::new(200).set_body_string(body)).await;
        let Err(StoreError::OutcomeUnknown { reason }) = put(&store).await else {
            panic!("{body:.40} is taken for an outcome")
        };
        assert!(!reason.contains("secret detail"));
    }
    let invalid = format!(r#"{{"markedInvalid":{{"blobId":"{}","event":{{}}}}}}"#, id());
    let (_server, store) = answering(ResponseTemplate::new(200).set_body_string(invalid), 1).await;
    assert!(matches!(put(&store).await, Err(StoreError::Refused { .. })));
}

#[tokio::test]
async fn a_redirect_without_end_or_to_no_web_server_is_refused() {
    for location in ["/again", "ftp://127.0.0.1/", "http://"] {
        let response = ResponseTemplate::new(307).insert_header("location", location);
        let server = MockServer::start().await;
        Mock::given(wiremock::matchers::any()).respond_with(response).mount(&server).await;
        let store = client(&server.uri());
        for refused in [
            put(&store).await.map(drop),
            store.get(id(), LIMIT).await.map(drop),
            store.exists(id()).await.map(drop),
        ] {
            let Err(StoreError::Refused { reason }) = refused else { panic!("{location}: {refused:?}") };
            assert_eq!(reason, "HTTP 307: a redirect that is not followed");
        }
        let asked = server.received_requests().await.unwrap().len();
        assert!(asked <= 18, "{location}: {asked} requests");
    }
}

#[tokio::test]
async fn reads_never_exceed_their_limit() {
    let (_server, store) = answering(ResponseTemplate::new(200).set_body_bytes(BLOB), 2).await;
    assert_eq!(store.get(id(), 11).await, Err(StoreError::TooLarge { length: 12, limit: 11 }));
    assert_eq!(store.get(id(), 12).await, Ok(BLOB.to_vec()));

    // Without an announced length, from a server that never ends.
    let endless = raw_server(|mut stream| async move {
        let start = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(start.as_bytes()).await.unwrap();
        let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
        while stream.write_all(chunk.as_bytes()).await.is_ok() {}
    });
    let store = client(&endless.await);
    let refused = store.get(id(), 100_000).await;
    let Err(StoreError::TooLarge { length, limit: 100_000 }) = refused else { panic!("{refused:?}") };
    assert!(length < 2_000_000, "one chunk beyond the limit at the most");
}

#[tokio::test]
async fn a_late_answer_leaves_the_outcome_unknown() {
    let url = silent().await;
    let builder = HttpStore::builder(&url, &url, ShardCount::TESTBED);
    let (base_timeout, probe_window) = (Duration::from_millis(200), Duration::from_millis(100));
    let brief = RetryPolicy { base_timeout, probe_window, ..RetryPolicy::default() };
    let store = builder.policy(brief).build().unwrap();
    let Err(StoreError::OutcomeUnknown { reason }) = put(&store).await else { panic!("a known outcome") };
    assert!(reason.contains("timed out"), "{reason}");
    // A large limit earns no time before the answer begins: at 64 KiB/s this limit would earn a hundred
    // years.
    let read = tokio::time::timeout(Duration::from_secs(20), store.get(id(), usize::MAX >> 16));
    assert!(matches!(read.await, Ok(Err(StoreError::Unavailable { .. }))));
}

#[tokio::test]
async fn a_refused_connection_stored_nothing() {
    let store = client(&closed_port().await);
    let Err(StoreError::Unavailable { reason, retry_after: None }) = put(&store).await else {
        panic!("not unavailable")
    };
    assert!(reason.contains("could not connect"), "{reason}");
    let error = store.get(id(), LIMIT).await.unwrap_err();
    assert!(error.is_retryable() && !error.to_string().contains(&id().to_string()), "{error}");
    assert!(matches!(store.resolve(HeadIndexKey([0; 32])).await, Err(StoreError::Unavailable { .. })));
}
