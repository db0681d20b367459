//! Servers with prescribed answers, and a publisher's JSON.

use std::time::Duration;

use baton_proto::ids::BlobId;
use baton_walrus_client::{HttpStore, HttpStoreBuilder, ShardCount, blob_id, http_store::RetryPolicy};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use wiremock::{Mock, MockServer, Request, ResponseTemplate, matchers::any};

pub(crate) const BLOB: &[u8] = b"sealed bytes";

pub(crate) fn id() -> BlobId {
    blob_id(BLOB, ShardCount::TESTBED).unwrap()
}

/// A server with one answer for everything.
pub(crate) async fn answering(response: ResponseTemplate) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(response).mount(&server).await;
    server
}

pub(crate) async fn answering_status(status: u16) -> MockServer {
    answering(ResponseTemplate::new(status)).await
}

pub(crate) async fn with_blob() -> MockServer {
    answering(ResponseTemplate::new(200).set_body_bytes(BLOB)).await
}

/// A server whose answers come from a function of the request and its number (from 0).
pub(crate) async fn deciding(
    answer: impl Fn(usize, &Request) -> ResponseTemplate + Send + Sync + 'static,
) -> MockServer {
    let server = MockServer::start().await;
    let count = std::sync::atomic::AtomicUsize::new(0);
    let responder =
        move |request: &Request| answer(count.fetch_add(1, std::sync::atomic::Ordering::SeqCst), request);
    Mock::given(any()).respond_with(responder).mount(&server).await;
    server
}

/// Number of requests with this method.
pub(crate) async fn count(server: &MockServer, method: &str) -> usize {
    let requests = server.received_requests().await.unwrap();
    requests.iter().filter(|request| request.method.as_str() == method).count()
}

/// Short windows, one repetition, and no aggregator beside a slow one.
pub(crate) fn policy() -> RetryPolicy {
    RetryPolicy {
        base_timeout: Duration::from_secs(5),
        retries: 1,
        hedge: Duration::MAX,
        recently_stored_window: Duration::from_secs(5),
        probe_window: Duration::from_millis(300),
    }
}

/// A client of these servers, by [`policy`].
pub(crate) fn builder(publishers: &[&MockServer], aggregators: &[&MockServer]) -> HttpStoreBuilder {
    let urls = |servers: &[&MockServer]| servers.iter().map(|server| server.uri()).collect::<Vec<_>>();
    let (publishers, aggregators) = (urls(publishers), urls(aggregators));
    let publishers: Vec<&str> = publishers.iter().map(String::as_str).collect();
    let aggregators: Vec<&str> = aggregators.iter().map(String::as_str).collect();
    HttpStore::endpoints(&publishers, &aggregators, ShardCount::TESTBED).policy(policy())
}

/// A publisher's answer for a newly stored blob.
pub(crate) fn created(id: &str) -> String {
    format!(
        r#"{{"newlyCreated":{{"blobObject":{{"id":"0x{}","registeredEpoch":34,"blobId":"{id}","size":12,"encodingType":"RS2","certifiedEpoch":34,"storage":{{"id":"0x2","startEpoch":34,"endEpoch":35,"storageSize":1}},"deletable":true}},"resourceOperation":{{"registerFromScratch":{{"encodedLength":1,"epochsAhead":1}}}},"cost":7}}}}"#,
        "0b".repeat(32)
    )
}

pub(crate) fn created_answer() -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_string(created(&id().to_string()))
}

pub(crate) fn walrus_error(reason: &str) -> String {
    format!(
        r#"{{"error":{{"status":"X","code":1,"message":"m","details":[{{"@type":"ErrorInfo","reason":"{reason}","domain":"daemon.walrus.space","metadata":{{}}}}]}}}}"#
    )
}

/// Serves every connection with `answer`, once a request's headers have arrived.
pub(crate) async fn raw_server<F>(answer: impl Fn(TcpStream) -> F + Send + Sync + 'static) -> String
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut seen = Vec::new();
            while !seen.windows(4).any(|end| end == b"\r\n\r\n") {
                let mut byte = [0];
                if stream.read_exact(&mut byte).await.is_err() {
                    break;
                }
                seen.push(byte[0]);
            }
            tokio::spawn(answer(stream));
        }
    });
    url
}

/// A server that accepts requests and never answers.
pub(crate) async fn silent() -> String {
    raw_server(|stream| async move {
        let _stream = stream;
        std::future::pending().await
    })
    .await
}

/// A server whose answer is cut in the middle.
pub(crate) async fn cutting() -> String {
    raw_server(|mut stream| async move {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{\"newly").await;
    })
    .await
}
