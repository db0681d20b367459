//! Reads from several aggregators, some of which are slow, wrong or absent.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use baton_proto::{
    ids::BlobDigest,
    store::{BlobStore as _, PutOptions, StoreError},
};
use baton_walrus_client::{
    HttpStore, ShardCount,
    http_store::{RetryPolicy, StoredHow, Verification},
};
use tokio::{io::AsyncReadExt as _, sync::Notify};
use wiremock::{MockServer, ResponseTemplate};

use crate::http_common::{
    BLOB, answering, answering_status, builder, count, created_answer, cutting, deciding, id, policy,
    raw_server, silent, with_blob,
};

const LIMIT: u64 = 1 << 20;
/// Far beyond every time here, even on a loaded machine.
const SOON: Duration = Duration::from_secs(20);

/// Reads and checks by the blob ID.
async fn read(store: &HttpStore) -> Result<Vec<u8>, StoreError> {
    store.read(id(), LIMIT, Verification::BlobId).await
}

fn digest() -> BlobDigest {
    BlobDigest(blake3::hash(BLOB).into())
}

async fn with_other() -> MockServer {
    answering(ResponseTemplate::new(200).set_body_bytes(b"other bytes!")).await
}

#[tokio::test]
async fn wrong_bytes_from_one_aggregator_mean_the_next_one() {
    for verification in [Verification::BlobId, Verification::Digest(digest())] {
        let (liar, honest) = (with_other().await, with_blob().await);
        let store = builder(&[], &[&liar, &honest]).build().unwrap();
        for _ in 0..3 {
            assert_eq!(store.read(id(), LIMIT, verification).await.unwrap(), BLOB);
        }
        assert_eq!(count(&liar, "GET").await, 1, "{verification:?}: it stays behind for minutes");
    }
}

#[tokio::test]
async fn only_wrong_bytes_are_an_error_and_never_a_result() {
    let (liar, cutter) = (with_other().await, with_other().await);
    let store = builder(&[], &[&liar, &cutter]).build().unwrap();
    assert_eq!(read(&store).await, Err(StoreError::WrongContent));
    assert_eq!(store.read(id(), LIMIT, Verification::Off).await.unwrap(), b"other bytes!", "as asked for");
}

#[tokio::test]
async fn a_read_by_digest_through_the_trait_goes_on_too() {
    let (liar, honest) = (with_other().await, with_blob().await);
    let store = builder(&[], &[&liar, &honest]).build().unwrap();
    assert_eq!(store.get_checked(id(), 100, digest()).await.unwrap(), BLOB);
    let only_liar = builder(&[], &[&liar]).build().unwrap();
    assert_eq!(only_liar.get_checked(id(), 100, digest()).await, Err(StoreError::WrongContent));
}

#[tokio::test]
async fn each_kind_of_failure_means_the_next_aggregator() {
    let honest = with_blob().await;
    let oversized = answering(ResponseTemplate::new(200).set_body_bytes(vec![0; 200])).await;
    let mut failing: Vec<String> = vec![oversized.uri(), cutting().await];
    let mut servers = Vec::new();
    for status in [301, 400, 403, 404, 429, 451, 500, 502, 503, 504] {
        servers.push(answering_status(status).await);
    }
    failing.extend(servers.iter().map(MockServer::uri));
    for url in failing {
        let store = HttpStore::endpoints(&[], &[&url, &honest.uri()], ShardCount::TESTBED).build().unwrap();
        let bytes = tokio::time::timeout(SOON, store.read(id(), 100, Verification::BlobId)).await;
        assert_eq!(bytes.unwrap().unwrap(), BLOB);
    }
}

#[tokio::test]
async fn a_slow_aggregator_is_overtaken_and_its_request_dropped() {
    let closed = Arc::new(Notify::new());
    let notify = closed.clone();
    let slow = raw_server(move |mut stream| {
        let notify = notify.clone();
        async move {
            // Ends when the client closes its side.
            let _ = stream.read_to_end(&mut Vec::new()).await;
            notify.notify_one();
        }
    })
    .await;
    let honest = with_blob().await;
    let store = HttpStore::endpoints(&[], &[&slow, &honest.uri()], ShardCount::TESTBED)
        .policy(RetryPolicy { hedge: Duration::from_millis(50), ..policy() })
        .build()
        .unwrap();
    assert_eq!(read(&store).await.unwrap(), BLOB);
    tokio::time::timeout(SOON, closed.notified()).await.expect("the slow request is cancelled");
}

#[tokio::test]
async fn without_hedging_one_aggregator_is_asked_at_a_time() {
    let slow =
        answering(ResponseTemplate::new(200).set_body_bytes(BLOB).set_delay(Duration::from_millis(300)));
    let (slow, second) = (slow.await, with_blob().await);
    let store = builder(&[], &[&slow, &second]).build().unwrap();
    assert_eq!(read(&store).await.unwrap(), BLOB);
    assert_eq!((count(&slow, "GET").await, count(&second, "GET").await), (1, 0));
}

/// Answers 404 a few times, then with the blob; accepts PUTs.
async fn late(misses: usize) -> MockServer {
    let seen = std::sync::atomic::AtomicUsize::new(0);
    deciding(move |_, request| {
        if request.method.as_str() == "PUT" {
            created_answer()
        } else if seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst) < misses {
            ResponseTemplate::new(404)
        } else {
            ResponseTemplate::new(200).set_body_bytes(BLOB)
        }
    })
    .await
}

#[tokio::test]
async fn a_404_of_what_was_just_stored_goes_away() {
    let server = late(3).await;
    let store = builder(&[&server], &[&server]).build().unwrap();
    store.put(BLOB.to_vec(), PutOptions::default()).await.unwrap();
    assert_eq!(read(&store).await.unwrap(), BLOB);
    assert_eq!(count(&server, "GET").await, 4);

    // Another store in the same process does not know of it, unless it is told so.
    let server = late(3).await;
    let other_client = builder(&[], &[&server]).build().unwrap();
    assert_eq!(read(&other_client).await, Err(StoreError::NotFound));
    other_client.note_stored(id());
    assert_eq!(read(&other_client).await.unwrap(), BLOB);
}

#[tokio::test]
async fn a_404_of_what_was_just_stored_is_believed_in_the_end() {
    let server = answering_status(404).await;
    let brief = RetryPolicy { recently_stored_window: Duration::from_secs(2), ..policy() };
    let store = builder(&[], &[&server]).policy(brief).build().unwrap();
    store.note_stored(id());
    let read = tokio::time::timeout(SOON, read(&store)).await.unwrap();
    assert_eq!(read, Err(StoreError::NotFound));
    assert!(count(&server, "GET").await >= 2);
}

#[tokio::test]
async fn a_failure_is_repeated_and_a_refusal_is_not() {
    for status in [429, 500, 502, 503, 504] {
        let server = deciding(move |number, _| match number {
            0 => ResponseTemplate::new(status),
            _ => ResponseTemplate::new(200).set_body_bytes(BLOB),
        });
        let server = server.await;
        let store = builder(&[], &[&server]).build().unwrap();
        assert_eq!(read(&store).await.unwrap(), BLOB, "{status}");
        assert_eq!(count(&server, "GET").await, 2, "{status}");
    }
    for status in [301, 400, 401, 403, 405, 416, 451] {
        let server = answering_status(status).await;
        let store = builder(&[], &[&server]).build().unwrap();
        let refused = read(&store).await;
        assert!(matches!(refused, Err(StoreError::Refused { .. })), "{status}: {refused:?}");
        assert_eq!(count(&server, "GET").await, 1, "{status}");
    }
}

#[tokio::test]
async fn a_read_follows_redirects_and_takes_any_success_with_content() {
    for status in [301, 302, 303, 307, 308] {
        let server = deciding(move |number, _| match number {
            0 => ResponseTemplate::new(status).insert_header("location", "/elsewhere"),
            _ => ResponseTemplate::new(203).set_body_bytes(BLOB),
        });
        let server = server.await;
        let store = builder(&[], &[&server]).build().unwrap();
        assert_eq!(read(&store).await.unwrap(), BLOB, "{status}");
    }
    for status in [204, 205, 206] {
        let server = answering(ResponseTemplate::new(status).set_body_bytes(BLOB)).await;
        let store = builder(&[], &[&server]).build().unwrap();
        let exists = store.exists(id()).await;
        assert!(matches!(exists, Err(StoreError::Refused { .. })), "{status}: {exists:?}");
    }
}

#[tokio::test]
async fn the_shards_are_those_of_the_first_server_that_announces_some() {
    let says =
        |text: &'static str| answering(ResponseTemplate::new(404).insert_header("x-baton-shards", text));
    let (quiet, wrong, ten, twenty) =
        (answering_status(200).await, says("3").await, says("10").await, says("20").await);
    let store = |publishers: &[&MockServer]| builder(publishers, &[&quiet]).build().unwrap();
    let wait = Duration::from_millis(500);
    let asked = async |publishers: &[&MockServer]| store(publishers).announced_shards(wait).await;
    assert_eq!(asked(&[&quiet, &wrong, &ten]).await, Ok(Some(10)));
    assert_eq!(asked(&[&quiet, &wrong]).await, Ok(None));
    assert!(asked(&[&ten, &twenty]).await.unwrap().is_some_and(|shards| [10, 20].contains(&shards)));
    let away = silent().await;
    let away_too = HttpStore::builder(&away, "http://127.0.0.1:1", ShardCount::TESTBED).build().unwrap();
    let Err(StoreError::Unavailable { reason, .. }) = away_too.announced_shards(wait).await else {
        panic!("no server answers")
    };
    assert!(reason.contains(&away) && reason.contains("http://127.0.0.1:1"), "{reason}");
    let beside = HttpStore::builder(&away, &ten.uri(), ShardCount::MAINNET).build().unwrap();
    let begun = Instant::now();
    assert_eq!(beside.announced_shards(Duration::from_secs(60)).await, Ok(Some(10)));
    assert!(begun.elapsed() < Duration::from_secs(5), "a silent server delays nothing");
}

#[tokio::test]
async fn a_retry_after_is_waited_for() {
    let server = deciding(|number, _| match number {
        0 => ResponseTemplate::new(429).insert_header("retry-after", "1"),
        _ => ResponseTemplate::new(200).set_body_bytes(BLOB),
    });
    let server = server.await;
    let store = builder(&[], &[&server]).build().unwrap();
    let began = Instant::now();
    assert_eq!(read(&store).await.unwrap(), BLOB);
    assert!(began.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn nothing_takes_longer_than_its_deadline() {
    let (first, second) = (silent().await, silent().await);
    let patient = RetryPolicy { base_timeout: Duration::from_millis(300), retries: 1000, ..policy() };
    let store = HttpStore::endpoints(&[], &[&first, &second], ShardCount::TESTBED).policy(patient);
    let store = store.build().unwrap();
    let began = Instant::now();
    let read = read(&store).await;
    assert!(matches!(read, Err(StoreError::Unavailable { .. })), "{read:?}");
    assert!(began.elapsed() < SOON / 2, "twice the base timeout, whatever the number of repetitions");
}

#[tokio::test]
async fn times_without_end_are_taken_for_long_ones() {
    let server = with_blob().await;
    let endless = RetryPolicy {
        base_timeout: Duration::MAX,
        hedge: Duration::MAX,
        probe_window: Duration::MAX,
        recently_stored_window: Duration::MAX,
        ..policy()
    };
    let store = builder(&[&server], &[&server]).policy(endless).build().unwrap();
    assert_eq!(read(&store).await.unwrap(), BLOB);
    // The answer is not a store result, but the blob is there.
    let stored = store.store(BLOB, &PutOptions::default()).await.unwrap();
    assert_eq!(stored.how, StoredHow::Found);
}

#[tokio::test]
async fn a_blob_exists_when_one_aggregator_has_it_and_is_missing_when_all_say_so() {
    let (none, some, broken) =
        (answering_status(404).await, answering_status(200).await, answering_status(503).await);
    let exists = async |servers: &[&MockServer]| builder(&[], servers).build().unwrap().exists(id()).await;
    assert_eq!(exists(&[&none, &some]).await, Ok(true));
    assert_eq!(exists(&[&none, &none]).await, Ok(false));
    assert!(matches!(exists(&[&none, &broken]).await, Err(StoreError::Unavailable { .. })));
}
