//! Reads from several aggregators, some of which are slow, wrong or absent.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use baton_proto::{
    ids::{BlobDigest, BlobId},
    store::{BlobStore as _, PutOptions, StoreError},
};
use baton_walrus_client::{
    HttpStore, ShardCount, blob_id,
    http_store::{
        ConcatId, Digest, Hedge, ObjectId, Operation, OperationOutcome, Phase, ProgressFn, RangeRoute,
        ReadOptions, Sha256Digest, StoredHow, Verification, WriteOptions,
    },
};
use sha2::Digest as _;
use tempfile::TempDir;
use tokio::{io::AsyncReadExt as _, sync::Notify};
use wiremock::{
    Mock, MockServer, ResponseTemplate,
    matchers::{header, method, path, query_param},
};

use crate::http_common::{
    BLOB, answering, answering_status, builder, count, created_answer, cutting, deciding, id, raw_server,
    silent, with_blob,
};

const LIMIT: u64 = 1 << 20;
/// Far beyond every time here, even on a loaded machine.
const SOON: Duration = Duration::from_secs(20);

fn options() -> ReadOptions {
    ReadOptions::new(LIMIT)
}

fn unchecked() -> ReadOptions {
    options().verify(Verification::Off)
}

fn blake3() -> Digest {
    Digest::Blake3(BlobDigest(blake3::hash(BLOB).into()))
}

async fn with_other() -> MockServer {
    answering(ResponseTemplate::new(200).set_body_bytes(b"other bytes!")).await
}

#[tokio::test]
async fn wrong_bytes_from_one_aggregator_mean_the_next_one() {
    let (liar, honest) = (with_other().await, with_blob().await);
    let sha = Digest::Sha256(Sha256Digest(sha2::Sha256::digest(BLOB).into()));
    for verification in [Verification::BlobId, Verification::Digest(blake3()), Verification::Digest(sha)] {
        let store = builder(&[], &[&liar, &honest]).build().unwrap();
        assert_eq!(store.read(id(), &options().verify(verification)).await.unwrap(), BLOB);
        let metrics = store.metrics();
        let wrong: Vec<u64> = metrics.aggregators.iter().map(|source| source.wrong_content).collect();
        assert_eq!(wrong, [1, 0], "{verification:?}");
        assert!(metrics.aggregators[0].cooling_ms > 60_000, "it stays behind for minutes");
        // So the next read does not ask it.
        store.read(id(), &options()).await.unwrap();
        assert_eq!(store.metrics().aggregators[0].requests, 1);
        assert_eq!(store.metrics().count(Operation::Read, OperationOutcome::Ok), 2);
    }
}

#[tokio::test]
async fn only_wrong_bytes_are_an_error_and_never_a_result() {
    let (liar, cutter) = (with_other().await, with_other().await);
    let store = builder(&[], &[&liar, &cutter]).build().unwrap();
    assert_eq!(store.read(id(), &options()).await, Err(StoreError::WrongContent));
    assert_eq!(store.read(id(), &unchecked()).await.unwrap(), b"other bytes!", "as asked for");
    assert_eq!(store.metrics().count(Operation::Read, OperationOutcome::WrongContent), 1);
}

#[tokio::test]
async fn a_read_by_digest_through_the_trait_goes_on_too() {
    let (liar, honest) = (with_other().await, with_blob().await);
    let store = builder(&[], &[&liar, &honest]).build().unwrap();
    let digest = BlobDigest(blake3::hash(BLOB).into());
    assert_eq!(store.get_checked(id(), 100, digest).await.unwrap(), BLOB);
    let only_liar = builder(&[], &[&liar]).build().unwrap();
    assert_eq!(only_liar.get_checked(id(), 100, digest).await, Err(StoreError::WrongContent));
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
        let bytes = tokio::time::timeout(SOON, store.read(id(), &ReadOptions::new(100))).await;
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
        .hedge(Hedge::After(Duration::from_millis(50)))
        .build()
        .unwrap();
    assert_eq!(store.read(id(), &options()).await.unwrap(), BLOB);
    tokio::time::timeout(SOON, closed.notified()).await.expect("the slow request is cancelled");
    let metrics = store.metrics();
    assert_eq!((metrics.hedges, metrics.hedges_won, metrics.retries), (1, 1, 0));
}

#[tokio::test]
async fn without_hedging_one_aggregator_is_asked_at_a_time() {
    let slow =
        answering(ResponseTemplate::new(200).set_body_bytes(BLOB).set_delay(Duration::from_millis(300)));
    let (slow, second) = (slow.await, with_blob().await);
    let store = builder(&[], &[&slow, &second]).build().unwrap();
    assert_eq!(store.read(id(), &options()).await.unwrap(), BLOB);
    assert_eq!((count(&slow, "GET").await, count(&second, "GET").await), (1, 0));
}

#[tokio::test]
async fn a_404_of_a_blob_of_others_is_asked_once_of_each() {
    let (first, second) = (answering_status(404).await, answering_status(404).await);
    let store = builder(&[], &[&first, &second]).retries(5).build().unwrap();
    assert_eq!(store.read(id(), &options()).await, Err(StoreError::NotFound));
    assert_eq!((count(&first, "GET").await, count(&second, "GET").await), (1, 1));
    assert_eq!(store.exists(id()).await, Ok(false));
    assert_eq!(store.metrics().retries, 0);
}

/// Answers 404 a few times, then with the blob; accepts PUTs.
async fn late(misses: usize) -> MockServer {
    let server = MockServer::start().await;
    let seen = std::sync::atomic::AtomicUsize::new(0);
    let answer = move |_: &wiremock::Request| {
        if seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst) < misses {
            ResponseTemplate::new(404)
        } else {
            ResponseTemplate::new(200).set_body_bytes(BLOB)
        }
    };
    Mock::given(method("PUT")).respond_with(created_answer()).mount(&server).await;
    Mock::given(method("GET")).respond_with(answer).mount(&server).await;
    server
}

#[tokio::test]
async fn a_404_of_what_was_just_stored_goes_away() {
    let server = late(3).await;
    let store = builder(&[&server], &[&server]).build().unwrap();
    store.put(BLOB.to_vec(), PutOptions::default()).await.unwrap();
    assert_eq!(store.read(id(), &options()).await.unwrap(), BLOB);
    assert_eq!(count(&server, "GET").await, 4);

    // Another store in the same process does not know of it, unless the options say so.
    let server = late(3).await;
    let other_client = builder(&[], &[&server]).build().unwrap();
    assert_eq!(other_client.read(id(), &options()).await, Err(StoreError::NotFound));
    let known_stored_options = ReadOptions { known_stored: true, ..options() };
    assert_eq!(other_client.read(id(), &known_stored_options).await.unwrap(), BLOB);
}

#[tokio::test]
async fn a_404_of_what_was_just_stored_is_believed_in_the_end() {
    let server = answering_status(404).await;
    let store = builder(&[], &[&server]).recently_stored_window(Duration::from_millis(400)).build().unwrap();
    let known_stored_options = ReadOptions { known_stored: true, ..options() };
    let read = tokio::time::timeout(SOON, store.read(id(), &known_stored_options)).await.unwrap();
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
        assert_eq!(store.read(id(), &options()).await.unwrap(), BLOB, "{status}");
        assert_eq!(store.metrics().retries, 1);
    }
    for status in [301, 400, 401, 403, 405, 416, 451] {
        let server = answering_status(status).await;
        let store = builder(&[], &[&server]).build().unwrap();
        let refused = store.read(id(), &options()).await;
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
        assert_eq!(store.read(id(), &options()).await.unwrap(), BLOB, "{status}");
    }
    for status in [204, 205, 206] {
        let server = answering(ResponseTemplate::new(status).set_body_bytes(BLOB)).await;
        let store = builder(&[], &[&server]).build().unwrap();
        let stat = store.stat(id(), &options()).await;
        assert!(matches!(stat, Err(StoreError::Refused { .. })), "{status}: {stat:?}");
    }
}

#[tokio::test]
async fn the_shards_are_those_of_the_first_server_that_announces_some() {
    let says =
        |text: &'static str| answering(ResponseTemplate::new(404).insert_header("x-baton-shards", text));
    let (quiet, wrong, ten, twenty) =
        (answering_status(200).await, says("3").await, says("10").await, says("20").await);
    let store = |publishers: &[&MockServer]| builder(publishers, &[&quiet]).build().unwrap();
    assert_eq!(store(&[&quiet, &wrong, &ten, &twenty]).announced_shards().await, Some(ShardCount::TESTBED));
    assert_eq!(store(&[&quiet, &wrong]).announced_shards().await, None);
    let away = HttpStore::builder(&silent().await, &silent().await, ShardCount::TESTBED);
    let away = away.base_timeout(Duration::from_millis(50)).build().unwrap();
    assert_eq!(away.announced_shards().await, None);
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
    assert_eq!(store.read(id(), &options()).await.unwrap(), BLOB);
    assert!(began.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn nothing_takes_longer_than_its_deadline() {
    let (first, second) = (silent().await, silent().await);
    let store = HttpStore::endpoints(&[&first], &[&first, &second], ShardCount::TESTBED).build().unwrap();
    let began = Instant::now();
    let deadline = Duration::from_millis(300);
    let read = store.read(id(), &options().within(deadline)).await;
    assert!(matches!(read, Err(StoreError::Unavailable { .. })), "{read:?}");
    assert!(began.elapsed() < SOON / 2, "the base timeout of a minute does not count");
}

#[tokio::test]
async fn times_without_end_are_taken_for_long_ones() {
    let server = with_blob().await;
    let store = builder(&[&server], &[&server])
        .base_timeout(Duration::MAX)
        .hedge(Hedge::After(Duration::MAX))
        .probe_window(Duration::MAX)
        .recently_stored_window(Duration::MAX)
        .build()
        .unwrap();
    assert_eq!(store.read(id(), &options().within(Duration::MAX)).await.unwrap(), BLOB);
    assert_eq!(store.read(id(), &options()).await.unwrap(), BLOB);
    // The answer is not a store result, but the blob is there.
    let stored = store.store(BLOB.to_vec(), &WriteOptions::new(1)).await.unwrap();
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

#[tokio::test]
async fn a_stat_tells_the_length() {
    let server = with_blob().await;
    let store = builder(&[], &[&server]).build().unwrap();
    assert_eq!(store.stat(id(), &options()).await.unwrap().length, Some(BLOB.len() as u64));
}

/// Serves ranges by header and by query, and whole blobs.
async fn ranged() -> MockServer {
    let server = MockServer::start().await;
    let part =
        ResponseTemplate::new(206).insert_header("content-range", "bytes 2-5/12").set_body_bytes(&BLOB[2..6]);
    Mock::given(header("range", "bytes=2-5")).respond_with(part).mount(&server).await;
    let by_query = Mock::given(path(format!("/v1/blobs/{}/byte-range", id())))
        .and(query_param("start", "2"))
        .and(query_param("length", "4"));
    by_query.respond_with(ResponseTemplate::new(200).set_body_bytes(&BLOB[2..6])).mount(&server).await;
    let at_end = ResponseTemplate::new(206)
        .insert_header("content-range", "bytes 10-11/12")
        .set_body_bytes(&BLOB[10..]);
    Mock::given(header("range", "bytes=10-19")).respond_with(at_end).mount(&server).await;
    Mock::given(path(format!("/v1/blobs/{}", id())))
        .respond_with(ResponseTemplate::new(200).set_body_bytes(BLOB))
        .mount(&server)
        .await;
    server
}

#[tokio::test]
async fn a_range_is_read_alone_or_cut_from_what_was_verified() {
    let server = ranged().await;
    let store = builder(&[], &[&server]).build().unwrap();
    for route in [RangeRoute::Header, RangeRoute::Query] {
        let options = ReadOptions { range_route: route, limit: 4, ..unchecked() };
        assert_eq!(store.read(id(), &options.range(2, 4)).await.unwrap(), &BLOB[2..6], "{route:?}");
    }
    let cut = store.read(id(), &unchecked().range(10, 10)).await;
    assert!(matches!(cut, Err(StoreError::Refused { .. })), "{cut:?}");
    for verification in [Verification::BlobId, Verification::Digest(blake3())] {
        let options = options().verify(verification);
        assert_eq!(store.read(id(), &options.clone().range(2, 4)).await.unwrap(), &BLOB[2..6]);
        let past = store.read(id(), &options.clone().range(10, 10)).await;
        assert!(matches!(past, Err(StoreError::Refused { .. })), "{past:?}");
        assert!(matches!(store.read(id(), &options.range(12, 1)).await, Err(StoreError::Refused { .. })));
    }
    let nothing = store.read(id(), &unchecked().range(0, 0)).await;
    assert!(matches!(nothing, Err(StoreError::Refused { .. })));
}

#[tokio::test]
async fn a_range_that_is_not_the_one_asked_for_is_not_taken() {
    let good = ranged().await;
    for (range, body) in
        [("bytes 0-3/12", &BLOB[..4]), ("bytes 2-5/12", &BLOB[2..5]), ("bytes 2-4/12", &BLOB[2..6])]
    {
        let answer = ResponseTemplate::new(206).insert_header("content-range", range).set_body_bytes(body);
        let bad = answering(answer).await;
        let store = builder(&[], &[&bad, &good]).build().unwrap();
        assert_eq!(store.read(id(), &unchecked().range(2, 4)).await.unwrap(), &BLOB[2..6], "{range}");
        assert_eq!(store.metrics().aggregators[0].wrong_content, 1, "{range}");
    }
    let ignoring = with_blob().await;
    let store = builder(&[], &[&ignoring, &good]).build().unwrap();
    assert_eq!(store.read(id(), &unchecked().range(2, 4)).await.unwrap(), &BLOB[2..6]);
}

#[tokio::test]
async fn a_file_gets_its_name_only_when_it_is_right() {
    let folder = TempDir::new().unwrap();
    let target = folder.path().join("blob");
    std::fs::write(&target, "before").unwrap();
    let entries = || std::fs::read_dir(folder.path()).unwrap().count();
    let (liar, honest) = (with_other().await, with_blob().await);

    let store = builder(&[], &[&liar]).build().unwrap();
    for verification in [Verification::BlobId, Verification::Digest(blake3())] {
        let refused = store.read_to_path(id(), &target, &options().verify(verification)).await;
        assert_eq!(refused, Err(StoreError::WrongContent));
        assert_eq!(std::fs::read(&target).unwrap(), b"before");
        assert_eq!(entries(), 1, "nothing is left behind");
    }
    let store = builder(&[], &[&liar, &honest]).build().unwrap();
    assert_eq!(store.read_to_path(id(), &target, &options()).await.unwrap(), BLOB.len() as u64);
    assert_eq!(std::fs::read(&target).unwrap(), BLOB);
    assert_eq!(entries(), 1);

    let nowhere = store.read_to_path(id(), &folder.path().join("no/such/folder"), &options()).await;
    assert!(matches!(nowhere, Err(StoreError::Refused { .. })));
}

#[tokio::test]
async fn a_writer_gets_nothing_that_is_not_verified() {
    let (liar, honest) = (with_other().await, with_blob().await);
    let mut written = Vec::new();
    let store = builder(&[], &[&liar]).build().unwrap();
    assert_eq!(store.read_to(id(), &mut written, &options()).await, Err(StoreError::WrongContent));
    assert!(written.is_empty());
    let store = builder(&[], &[&liar, &honest]).build().unwrap();
    assert_eq!(store.read_to(id(), &mut written, &options()).await.unwrap(), 12);
    assert_eq!(written, BLOB);
}

#[tokio::test]
async fn progress_never_goes_back() {
    let body = vec![7; 300_000];
    let server = answering(ResponseTemplate::new(200).set_body_bytes(body.clone())).await;
    let store = builder(&[], &[&server]).build().unwrap();
    let reports = Arc::new(Mutex::new(Vec::new()));
    let to = reports.clone();
    let progress = ProgressFn::new(move |progress| to.lock().unwrap().push(progress));
    let options = ReadOptions { progress: Some(progress), ..unchecked() };
    assert_eq!(store.read(id(), &options).await.unwrap(), body);
    let reports = reports.lock().unwrap();
    assert!(reports.iter().all(|one| one.phase == Phase::Downloading && one.total == Some(300_000)));
    assert!(reports.windows(2).all(|two| two[0].done < two[1].done));
    assert_eq!(reports.last().unwrap().done, 300_000);
    assert_eq!(store.metrics().bytes_received, 300_000);
}

#[tokio::test]
async fn an_object_is_checked_against_the_blob_that_the_aggregator_names() {
    let object = ObjectId([9; 32]);
    let serve = async |etag: BlobId, body: &'static [u8]| {
        let server = MockServer::start().await;
        let answer = ResponseTemplate::new(200).insert_header("etag", etag.to_string()).set_body_bytes(body);
        let route = Mock::given(path(format!("/v1/blobs/by-object-id/{object}")));
        route.respond_with(answer).mount(&server).await;
        server
    };
    let good = serve(id(), BLOB).await;
    let store = builder(&[], &[&good]).build().unwrap();
    let read = store.read_object(object, &options()).await.unwrap();
    assert_eq!((read.blob_id, read.bytes), (Some(id()), BLOB.to_vec()));
    let forged = serve(id(), b"other bytes!").await;
    let store = builder(&[], &[&forged]).build().unwrap();
    assert_eq!(store.read_object(object, &options()).await, Err(StoreError::WrongContent));
    assert_eq!(store.read_object(object, &unchecked()).await.unwrap().blob_id, Some(id()));
}

#[tokio::test]
async fn blobs_are_joined_there_or_verified_here() {
    let other = blob_id(b"more", ShardCount::TESTBED).unwrap();
    let server = MockServer::start().await;
    for (blob, body) in [(id(), BLOB), (other, b"more")] {
        Mock::given(path(format!("/v1/blobs/{blob}")))
            .respond_with(ResponseTemplate::new(200).set_body_bytes(body))
            .mount(&server)
            .await;
    }
    let joined = [BLOB, b"more"].concat();
    for verb in ["GET", "POST"] {
        Mock::given(method(verb))
            .and(path("/v1alpha/blobs/concat"))
            .respond_with(ResponseTemplate::new(200).set_body_bytes(joined.clone()))
            .mount(&server)
            .await;
    }
    let store = builder(&[], &[&server]).build().unwrap();
    let ids = [ConcatId::Blob(id()), ConcatId::Blob(other)];
    for options in [options(), unchecked()] {
        assert_eq!(store.concat(&ids, &options).await.unwrap(), joined);
    }
    let query = server.received_requests().await.unwrap();
    let query = query.last().unwrap().url.query().unwrap().to_owned();
    assert_eq!(query, format!("ids={}%2C{other}", id()));
    let many = vec![ConcatId::Object(ObjectId([1; 32])); 21];
    assert_eq!(store.concat(&many, &unchecked()).await.unwrap(), joined);
    assert_eq!(count(&server, "POST").await, 1);
    let wrong = store.concat(&ids, &options().verify(Verification::Digest(blake3()))).await;
    assert_eq!(wrong, Err(StoreError::WrongContent));
    let tight = ReadOptions { limit: 13, ..options() };
    assert!(matches!(store.concat(&ids, &tight).await, Err(StoreError::TooLarge { .. })), "12 and 4 bytes");
    for ids in [&[][..], &[ConcatId::Object(ObjectId([1; 32]))]] {
        assert!(matches!(store.concat(ids, &options()).await, Err(StoreError::Refused { .. })));
    }
}
