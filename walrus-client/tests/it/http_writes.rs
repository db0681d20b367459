//! Stores at several publishers, some of which lose answers, lie or refuse requests.

use std::time::{Duration, Instant};

use baton_proto::store::{BlobStore as _, PutOptions, StoreError};
use baton_walrus_client::{
    HttpStore, PublisherToken, ShardCount, blob_id,
    http_store::{HttpStoreBuilder, RetryPolicy, StoredBlob, StoredHow},
};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use wiremock::{MockServer, ResponseTemplate, http::Method};

use crate::common::closed_port;
use crate::http_common::{
    BLOB, answering, answering_status, builder, count, created, created_answer, cutting, deciding, id,
    policy, raw_server, silent, walrus_error, with_blob,
};

/// Far beyond every time here, even on a loaded machine.
const SOON: Duration = Duration::from_secs(20);
/// Time for each request where a publisher is silent; other answers take less of it, even on a loaded machine.
const ANSWER_TIME: Duration = Duration::from_secs(2);

async fn put(store: &HttpStore) -> Result<StoredBlob, StoreError> {
    put_with(store, PutOptions::default()).await
}

async fn put_with(store: &HttpStore, options: PutOptions) -> Result<StoredBlob, StoreError> {
    tokio::time::timeout(SOON, store.store(BLOB, &options)).await.expect("an end")
}

async fn storing() -> MockServer {
    answering(created_answer()).await
}

async fn with_length(length: u64) -> MockServer {
    let body = vec![0; usize::try_from(length).unwrap()];
    answering(ResponseTemplate::new(200).set_body_bytes(body)).await
}

/// Publishers by URL, for servers that are not mocks.
fn at(publishers: &[&str], aggregators: &[&MockServer]) -> HttpStoreBuilder {
    let aggregators: Vec<String> = aggregators.iter().map(|server| server.uri()).collect();
    let aggregators: Vec<&str> = aggregators.iter().map(String::as_str).collect();
    HttpStore::endpoints(publishers, &aggregators, ShardCount::TESTBED).policy(policy())
}

#[tokio::test]
async fn a_first_put_is_sent_once_and_nothing_is_asked_before() {
    let (publisher, aggregator) = (storing().await, with_blob().await);
    let store = builder(&[&publisher], &[&aggregator]).build().unwrap();
    let stored = put(&store).await.unwrap();
    assert_eq!((stored.blob_id, stored.how, stored.end_epoch), (id(), StoredHow::Created, Some(35)));
    assert_eq!(publisher.received_requests().await.unwrap().len(), 1);
    assert!(aggregator.received_requests().await.unwrap().is_empty());
}

#[tokio::test]
async fn what_was_certainly_not_stored_goes_to_the_next_publisher() {
    let aggregator = with_blob().await;
    for status in [400, 401, 403, 404, 405, 413, 429, 451] {
        let (first, second) = (answering_status(status).await, storing().await);
        let store = builder(&[&first, &second], &[&aggregator]).build().unwrap();
        assert_eq!(put(&store).await.unwrap().how, StoredHow::Created, "{status}");
        assert_eq!((count(&first, "PUT").await, count(&second, "PUT").await), (1, 1), "{status}");
    }
    let (closed, second) = (closed_port().await, storing().await);
    let store = at(&[&closed, &second.uri()], &[&aggregator]).build().unwrap();
    assert_eq!(put(&store).await.unwrap().how, StoredHow::Created);
    assert!(aggregator.received_requests().await.unwrap().is_empty(), "there was no doubt");
}

/// A publisher that redirects each PUT to a place of its own with `status`, and answers there with `answer`.
async fn redirecting(status: u16, to: Option<String>, answer: ResponseTemplate) -> MockServer {
    deciding(move |_, request| {
        if request.url.path() == "/elsewhere" {
            return answer.clone();
        }
        let location = to.clone().unwrap_or_default() + "/elsewhere?epochs=1";
        ResponseTemplate::new(status).insert_header("location", location)
    })
    .await
}

#[tokio::test]
async fn every_success_with_a_result_is_a_stored_blob() {
    let aggregator = with_blob().await;
    let result = created(&id().to_string());
    for status in [200, 201, 202, 203, 299] {
        for body in [result.clone(), format!("\u{feff}{result}")] {
            let answer = ResponseTemplate::new(status).set_body_raw(body, "text/html");
            let (first, second) = (answering(answer).await, storing().await);
            let store = builder(&[&first, &second], &[&aggregator]).build().unwrap();
            assert_eq!(put(&store).await.unwrap().how, StoredHow::Created, "{status}");
            assert_eq!((count(&first, "PUT").await, count(&second, "PUT").await), (1, 0), "{status}");
        }
    }
}

#[tokio::test]
async fn a_success_without_a_result_is_looked_for_before_anyone_else_is_paid() {
    let aggregator = with_blob().await;
    for (status, body) in [(200, "{}"), (201, "[]"), (202, "queued"), (204, "")] {
        let answer = ResponseTemplate::new(status).set_body_string(body);
        let (first, second) = (answering(answer).await, storing().await);
        let store = builder(&[&first, &second], &[&aggregator]).build().unwrap();
        assert_eq!(put(&store).await.unwrap().how, StoredHow::Found, "{status}");
        assert_eq!(count(&second, "PUT").await, 0, "{status}");
    }
}

#[tokio::test]
async fn a_put_follows_redirects_with_its_body_and_a_303_to_its_answer() {
    for status in [301, 302, 303, 307, 308] {
        let publisher = redirecting(status, None, created_answer()).await;
        let token = PublisherToken::bearer("secret").unwrap();
        let store = builder(&[&publisher], &[&publisher]).token(token).build().unwrap();
        assert_eq!(put(&store).await.unwrap().how, StoredHow::Created, "{status}");
        let asked = publisher.received_requests().await.unwrap();
        let last = asked.last().unwrap();
        let (method, body): (_, &[u8]) = if status == 303 { (Method::GET, b"") } else { (Method::PUT, BLOB) };
        assert_eq!((asked.len(), &last.method, last.body.as_slice()), (2, &method, body), "{status}");
        assert!(last.headers.contains_key("authorization"), "{status}");

        let there = redirecting(status, None, created_answer()).await;
        let away = redirecting(status, Some(there.uri()), created_answer()).await;
        let token = PublisherToken::bearer("secret").unwrap();
        let store = builder(&[&away], &[&away]).token(token).build().unwrap();
        assert_eq!(put(&store).await.unwrap().how, StoredHow::Created, "{status}");
        let asked = there.received_requests().await.unwrap();
        assert!(!asked[0].headers.contains_key("authorization"), "{status}: another server saw the token");
    }
}

#[tokio::test]
async fn a_303_whose_answer_is_missing_leaves_doubt_and_pays_nobody_else() {
    for status in [404, 429, 500] {
        let publisher = redirecting(303, None, ResponseTemplate::new(status)).await;
        let (second, aggregator) = (storing().await, with_blob().await);
        let store = builder(&[&publisher, &second], &[&aggregator]).build().unwrap();
        assert_eq!(put(&store).await.unwrap().how, StoredHow::Found, "{status}");
        assert_eq!(count(&second, "PUT").await, 0, "{status}");
    }
}

#[tokio::test]
async fn publishers_that_are_busy_are_asked_again_and_those_that_refuse_are_not() {
    let busy = deciding(|number, _| match number {
        0 => ResponseTemplate::new(429),
        _ => created_answer(),
    });
    let busy = busy.await;
    let store = builder(&[&busy], &[&busy]).build().unwrap();
    assert_eq!(put(&store).await.unwrap().how, StoredHow::Created);
    let always = answering_status(429).await;
    let store = builder(&[&always], &[&always]).build().unwrap();
    assert!(matches!(put(&store).await, Err(StoreError::Unavailable { .. })));
    assert_eq!(count(&always, "PUT").await, 2);
    let refusing = answering_status(403).await;
    let store = builder(&[&refusing], &[&refusing]).build().unwrap();
    assert!(matches!(put(&store).await, Err(StoreError::Refused { .. })));
    assert_eq!(count(&refusing, "PUT").await, 1);
}

/// Publishers whose answer leaves unknown whether the blob is stored.
async fn doubtful() -> Vec<(String, Option<MockServer>)> {
    let dropping = raw_server(|stream| async move { drop(stream) }).await;
    let mut all = vec![(cutting().await, None), (silent().await, None), (dropping, None)];
    let mut answers: Vec<ResponseTemplate> =
        [408, 500, 502, 503, 504].map(ResponseTemplate::new).into_iter().collect();
    for body in ["", "garbage", r#"{"error":{"failurePhase":"certify","errorMsg":"x"}}"#] {
        answers.push(ResponseTemplate::new(200).set_body_string(body));
    }
    for answer in answers {
        let server = answering(answer).await;
        all.push((server.uri(), Some(server)));
    }
    all
}

#[tokio::test]
async fn a_put_in_doubt_that_is_found_is_stored_and_not_sent_again() {
    let (second, aggregator) = (storing().await, with_length(12).await);
    for (url, server) in doubtful().await {
        let brief = RetryPolicy { base_timeout: ANSWER_TIME, ..policy() };
        let store = at(&[&url, &second.uri()], &[&aggregator]).policy(brief).build().unwrap();
        let stored = put(&store).await.unwrap();
        assert_eq!((stored.how, stored.end_epoch), (StoredHow::Found, None));
        if let Some(server) = server {
            assert_eq!(count(&server, "PUT").await, 1);
        }
    }
    assert_eq!(count(&second, "PUT").await, 0);
}

#[tokio::test]
async fn a_put_in_doubt_that_is_nowhere_is_sent_once_more_after_the_window() {
    for (url, _server) in doubtful().await {
        let (second, none, nor) = (storing().await, answering_status(404).await, answering_status(404).await);
        let window = Duration::from_millis(250);
        let brief = RetryPolicy { base_timeout: ANSWER_TIME, probe_window: window, ..policy() };
        let store = at(&[&url, &second.uri()], &[&none, &nor]).policy(brief).build().unwrap();
        let began = Instant::now();
        assert_eq!(put(&store).await.unwrap().how, StoredHow::Created);
        assert!(began.elapsed() >= window, "the window is looked through to its end");
        assert_eq!(count(&second, "PUT").await, 1);
    }
}

#[tokio::test]
async fn a_publisher_that_lost_a_put_does_not_get_it_again_while_there_are_others() {
    let (lossy, second, none) = (answering_status(500).await, storing().await, answering_status(404).await);
    // Long enough for the first publisher to return to its place.
    let window = Duration::from_millis(800);
    let patient = RetryPolicy { probe_window: window, ..policy() };
    let store = builder(&[&lossy, &second], &[&none]).policy(patient).build().unwrap();
    assert_eq!(put(&store).await.unwrap().how, StoredHow::Created);
    assert_eq!((count(&lossy, "PUT").await, count(&second, "PUT").await), (1, 1));
}

#[tokio::test]
async fn a_put_that_is_lost_twice_is_not_sent_a_third_time() {
    let (lossy, none) = (answering_status(500).await, answering_status(404).await);
    let store = builder(&[&lossy], &[&none]).policy(RetryPolicy { retries: 9, ..policy() }).build().unwrap();
    assert!(matches!(put(&store).await, Err(StoreError::OutcomeUnknown { .. })));
    assert_eq!(count(&lossy, "PUT").await, 2);
}

#[tokio::test]
async fn a_put_in_doubt_is_not_sent_again_while_one_aggregator_cannot_be_asked() {
    for status in [403, 429, 500, 503] {
        let (lossy, second) = (answering_status(504).await, storing().await);
        let (none, broken) = (answering_status(404).await, answering_status(status).await);
        let store = builder(&[&lossy, &second], &[&none, &broken]).build().unwrap();
        assert!(matches!(put(&store).await, Err(StoreError::OutcomeUnknown { .. })), "{status}");
        assert_eq!((count(&lossy, "PUT").await, count(&second, "PUT").await), (1, 0), "{status}");
    }
}

#[tokio::test]
async fn a_blob_that_appears_within_the_window_is_found() {
    let lossy = answering_status(500).await;
    let late = deciding(|number, _| match number {
        0 | 1 => ResponseTemplate::new(404),
        _ => ResponseTemplate::new(200).set_body_bytes(BLOB),
    });
    let late = late.await;
    let patient = RetryPolicy { probe_window: Duration::from_secs(10), ..policy() };
    let store = builder(&[&lossy], &[&late]).policy(patient).build().unwrap();
    assert_eq!(put(&store).await.unwrap().how, StoredHow::Found);
    assert_eq!(count(&lossy, "PUT").await, 1);
}

#[tokio::test]
async fn a_blob_of_another_length_is_not_the_one_that_is_looked_for() {
    let (lossy, other) = (answering_status(500).await, with_length(13).await);
    let store = builder(&[&lossy], &[&other]).build().unwrap();
    assert!(matches!(put(&store).await, Err(StoreError::OutcomeUnknown { .. })));
}

#[tokio::test]
async fn a_wrong_id_is_marked_and_never_paid_for_again() {
    let other = blob_id(b"other", ShardCount::TESTBED).unwrap().to_string();
    let certified = format!(r#"{{"alreadyCertified":{{"blobId":"{other}","object":"0x1","endEpoch":3}}}}"#);
    for (permanent, body) in [(false, created(&other)), (true, certified), (true, created("not an id"))] {
        let liar = answering(ResponseTemplate::new(200).set_body_string(body)).await;
        let (second, none) = (storing().await, answering_status(404).await);
        let store = builder(&[&liar, &second], &[&none]).build().unwrap();
        let options = PutOptions { permanent, ..PutOptions::default() };
        assert_eq!(put_with(&store, options).await, Err(StoreError::WrongContent));
        assert_eq!((count(&liar, "PUT").await, count(&second, "PUT").await), (1, 0));
    }
    let liar = answering(ResponseTemplate::new(200).set_body_string(created(&other))).await;
    let aggregator = with_length(12).await;
    let store = builder(&[&liar], &[&aggregator]).build().unwrap();
    assert_eq!(put(&store).await.unwrap().how, StoredHow::Found, "it lied, and stored ours all the same");
}

#[tokio::test]
async fn a_permanent_put_may_be_repeated_where_nobody_can_tell() {
    let broken = answering_status(503).await;
    for (permanent, puts) in [(true, 2), (false, 1)] {
        let certified =
            format!(r#"{{"alreadyCertified":{{"blobId":"{}","object":"0x1","endEpoch":9}}}}"#, id());
        let publisher = deciding(move |number, _| match number {
            0 => ResponseTemplate::new(504),
            _ => ResponseTemplate::new(200).set_body_string(certified.clone()),
        });
        let (publisher, other) = (publisher.await, storing().await);
        let store = builder(&[&publisher, &other], &[&broken]).build().unwrap();
        let ended = put_with(&store, PutOptions { permanent, ..PutOptions::default() }).await;
        assert_eq!(count(&publisher, "PUT").await, puts);
        assert_eq!(count(&other, "PUT").await, 0, "it would not see what is not certified yet");
        match ended {
            Ok(stored) => {
                assert_eq!((stored.how, stored.end_epoch), (StoredHow::AlreadyCertified, Some(9)));
                assert_eq!(puts, 2);
            }
            Err(error) => assert!(matches!(error, StoreError::OutcomeUnknown { .. }) && puts == 1, "{error}"),
        }
    }
}

#[tokio::test]
async fn a_put_ends_by_its_deadline_and_says_what_is_known() {
    let slow = async || {
        let busy = ResponseTemplate::new(429).set_delay(Duration::from_millis(700));
        answering(busy).await
    };
    let (first, second, third, none) =
        (slow().await, slow().await, slow().await, answering_status(404).await);
    let (base_timeout, probe_window) = (Duration::from_secs(1), Duration::from_millis(1));
    let brief = RetryPolicy { base_timeout, probe_window, ..policy() };
    let store = builder(&[&first, &second, &third], &[&none]).policy(brief).build().unwrap();
    let ended = put(&store).await;
    assert!(
        matches!(ended, Err(StoreError::OutcomeUnknown { .. })),
        "the third PUT is on its way: {ended:?}"
    );

    let busy = answering(ResponseTemplate::new(429).insert_header("retry-after", "30")).await;
    let store = builder(&[&busy], &[&none]).build().unwrap();
    let ended = put(&store).await;
    let requested_wait = Some(Duration::from_secs(30));
    assert!(
        matches!(ended, Err(StoreError::Unavailable { retry_after, .. }) if retry_after == requested_wait)
    );
    assert_eq!(count(&busy, "PUT").await, 1, "the wait is longer than there is time");
}

#[tokio::test]
async fn what_cannot_be_asked_for_is_refused_before_anything_is_sent() {
    let publisher = storing().await;
    let store = builder(&[&publisher], &[&publisher]).build().unwrap();
    assert!(matches!(
        put_with(&store, PutOptions { epochs: 0, ..PutOptions::default() }).await,
        Err(StoreError::Refused { .. })
    ));
    assert!(publisher.received_requests().await.unwrap().is_empty());
    let without = builder(&[], &[&publisher]).build().unwrap();
    assert_eq!(
        put(&without).await,
        Err(StoreError::Refused { reason: "no publisher is configured".to_owned() })
    );
}

const SECRET: &[u8] = b"a secret of more than 32 bytes, for tests";

#[tokio::test]
async fn every_put_carries_a_fresh_token_for_what_it_is() {
    let publisher = deciding(|number, _| match number {
        0 => ResponseTemplate::new(429),
        _ => created_answer(),
    });
    let publisher = publisher.await;
    let token = PublisherToken::minted(SECRET).unwrap();
    let store = builder(&[&publisher], &[&publisher]).token(token).build().unwrap();
    put(&store).await.unwrap();
    let requests = publisher.received_requests().await.unwrap();
    let claims: Vec<serde_json::Value> = requests
        .iter()
        .map(|request| {
            let value = request.headers["authorization"].to_str().unwrap();
            let token = value.strip_prefix("Bearer ").unwrap();
            let key = DecodingKey::from_secret(SECRET);
            jsonwebtoken::decode(token, &key, &Validation::new(Algorithm::HS256)).unwrap().claims
        })
        .collect();
    assert_eq!(claims.len(), 2);
    assert_ne!(claims[0]["jti"], claims[1]["jti"]);
    assert_eq!((&claims[1]["epochs"], &claims[1]["size"]), (&1.into(), &12.into()));
}

#[tokio::test]
async fn each_publisher_sees_the_token_and_aggregators_do_not() {
    let (first, second, aggregator) = (answering_status(401).await, storing().await, with_blob().await);
    let token = PublisherToken::bearer("hush").unwrap();
    let store = builder(&[&first, &second], &[&aggregator]).token(token).build().unwrap();
    put(&store).await.unwrap();
    store.exists(id()).await.unwrap();
    for (server, expected) in
        [(&first, Some("Bearer hush")), (&second, Some("Bearer hush")), (&aggregator, None)]
    {
        for request in server.received_requests().await.unwrap() {
            let value = request.headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
            assert_eq!(value.as_deref(), expected);
        }
    }
    assert!(!format!("{store:?}").contains("hush"));
}

#[tokio::test]
async fn a_fresh_token_that_was_used_already_leaves_doubt() {
    let used = ResponseTemplate::new(429).set_body_string(walrus_error("TOKEN_ALREADY_USED"));
    let (publisher, aggregator) = (answering(used).await, with_length(12).await);
    let minted = PublisherToken::minted(SECRET).unwrap();
    let store = builder(&[&publisher], &[&aggregator]).token(minted).build().unwrap();
    assert_eq!(put(&store).await.unwrap().how, StoredHow::Found, "somebody between had sent it twice");
    let bearer = PublisherToken::bearer("old").unwrap();
    let store = builder(&[&publisher], &[&aggregator]).token(bearer).build().unwrap();
    let refused = Err(StoreError::Refused { reason: "TOKEN_ALREADY_USED".to_owned() });
    assert_eq!(put(&store).await, refused);
}

#[tokio::test]
async fn what_an_aggregator_has_is_not_looked_for_longer_than_needed() {
    let (lossy, has, hangs) = (answering_status(500).await, with_length(12).await, silent().await);
    let patient = RetryPolicy { probe_window: Duration::from_secs(60), ..policy() };
    let store = HttpStore::endpoints(&[&lossy.uri()], &[&hangs, &has.uri()], ShardCount::TESTBED);
    let store = store.policy(patient).build().unwrap();
    assert_eq!(put(&store).await.unwrap().how, StoredHow::Found);
    let heads = has.received_requests().await.unwrap();
    assert!(heads.iter().all(|request| request.method == Method::HEAD));
}
