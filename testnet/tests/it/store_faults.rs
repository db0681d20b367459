//! The embedded store's behaviour over HTTP below a plan of faults.

use std::time::Duration;

use baton_proto::ids::BlobId;
use baton_testnet::faults::Faults;
use baton_walrus_store::PutCounts;
use futures::StreamExt as _;
use reqwest::{Client, Method, Response};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::common::{Running, id_of, open};

const BLOB: &[u8] = b"0123456789";

struct Bench {
    _folder: TempDir,
    running: Running,
    faults: Faults,
    client: Client,
}

impl Bench {
    /// A store with [`BLOB`], and then these faults.
    async fn with(faults: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let (store, given) = (open(&folder), Faults::default());
        let routes = given.around(store.router());
        let running = Running::start_as(store, routes).await;
        let bench = Self { _folder: folder, running, faults: given, client: Client::new() };
        assert_eq!(bench.put(BLOB).await.unwrap().status(), 200);
        bench.set(faults);
        bench
    }

    fn set(&self, faults: &str) {
        self.faults.set(faults.parse().unwrap());
    }

    async fn put(&self, bytes: &[u8]) -> reqwest::Result<Response> {
        self.client.put(format!("{}/v1/blobs", self.running.url)).body(bytes.to_vec()).send().await
    }

    async fn read(&self, method: Method, id: BlobId) -> reqwest::Result<Response> {
        self.client.request(method, format!("{}/v1/blobs/{id}", self.running.url)).send().await
    }

    fn counts(&self, bytes: &[u8]) -> PutCounts {
        self.running.store.admin().put_counts(id_of(bytes))
    }
}

/// Status and reason, or the text if the answer is not JSON.
async fn refusal(response: Response) -> (u16, String) {
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    let reason = serde_json::from_str::<Value>(&text)
        .ok()
        .and_then(|body| Some(body["error"]["details"][0]["reason"].as_str()?.to_owned()));
    (status, reason.unwrap_or(text))
}

#[tokio::test]
async fn statuses_are_answered_and_nothing_is_stored() {
    let bench = Bench::with("none").await;
    for (fault, status, put_reason, get_reason) in [
        ("500", 500, "INTERNAL_ERROR", "INTERNAL_ERROR"),
        ("503", 503, "BLOB_UNAVAILABLE", "BLOB_UNAVAILABLE"),
        ("429", 429, "too many requests", "too many requests"),
        ("504", 504, "INSUFFICIENT_CONFIRMATIONS", "gateway timeout"),
    ] {
        bench.set(&format!("put:{fault}"));
        let (found, reason) = refusal(bench.put(b"refused").await.unwrap()).await;
        assert_eq!(found, status);
        assert!(reason.contains(put_reason), "{reason}");
        assert_eq!(bench.read(Method::GET, id_of(BLOB)).await.unwrap().status(), 200, "PUT only");

        bench.set(&format!("get:{fault}"));
        let (found, reason) = refusal(bench.read(Method::GET, id_of(BLOB)).await.unwrap()).await;
        assert_eq!(found, status);
        assert!(reason.contains(get_reason), "{reason}");
        assert_eq!(bench.read(Method::HEAD, id_of(BLOB)).await.unwrap().status(), 200, "GET only");

        bench.set(&format!("head:{fault}"));
        assert_eq!(bench.read(Method::HEAD, id_of(BLOB)).await.unwrap().status().as_u16(), status);
        assert_eq!(bench.counts(b"refused"), PutCounts::default());
    }
    bench.set("any:500");
    let status = bench.client.get(format!("{}/status", bench.running.url)).send().await.unwrap();
    assert_eq!(status.status(), 200, "no fault is for this route");
    bench.running.stop().await;
}

#[tokio::test]
async fn a_stored_blob_is_absent_for_a_while() {
    let bench = Bench::with("get:404-after-put=60m,head:404-after-put=200ms").await;
    assert_eq!(bench.read(Method::GET, id_of(BLOB)).await.unwrap().status(), 200, "put before the plan");
    assert_eq!(bench.put(b"new").await.unwrap().status(), 200);
    let (status, reason) = refusal(bench.read(Method::GET, id_of(b"new")).await.unwrap()).await;
    assert_eq!((status, &reason[..]), (404, "BLOB_NOT_FOUND"));
    // The short window ends, however slow this machine is.
    while bench.read(Method::HEAD, id_of(b"new")).await.unwrap().status() != 200 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(bench.counts(b"new"), PutCounts { puts: 1, bought: 1 });
    bench.running.stop().await;
}

#[tokio::test]
async fn a_slow_answer_and_a_dripping_one_are_whole() {
    let bench = Bench::with("get:slow=300ms").await;
    for fault in ["get:slow=300ms", "get:drip=300ms"] {
        bench.set(fault);
        let start = std::time::Instant::now();
        let answer = bench.read(Method::GET, id_of(BLOB)).await.unwrap();
        assert_eq!(answer.bytes().await.unwrap(), BLOB);
        // Ten bytes drip in five pieces of two.
        assert!(start.elapsed() >= Duration::from_millis(180), "{fault}: {:?}", start.elapsed());
    }
    bench.running.stop().await;
}

#[tokio::test]
async fn bodies_are_cut_lengthened_and_changed() {
    let bench = Bench::with("get:truncated").await;
    let address = bench.running.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET /v1/blobs/{} HTTP/1.1\r\nhost: x\r\n\r\n", id_of(BLOB));
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut raw = Vec::new();
    // A cut may appear as an end or as a reset.
    drop(stream.read_to_end(&mut raw).await);
    let raw = String::from_utf8(raw).unwrap();
    assert!(raw.contains("content-length: 10") && raw.ends_with("\r\n\r\n01234"), "{raw}");
    let cut = bench.read(Method::GET, id_of(BLOB)).await.unwrap();
    assert!(cut.bytes().await.is_err());

    bench.set("get:oversized");
    let long = bench.read(Method::GET, id_of(BLOB)).await.unwrap();
    assert_eq!(long.bytes().await.unwrap(), b"01234567890123456789\n"[..]);

    bench.set("get:endless");
    let endless = bench.read(Method::GET, id_of(BLOB)).await.unwrap();
    assert_eq!(endless.content_length(), None);
    let mut taken = 0;
    let mut pieces = endless.bytes_stream();
    while taken < 4 << 20 {
        taken += pieces.next().await.unwrap().unwrap().len();
    }
    drop(pieces);

    bench.set("get:wrong-bytes");
    let wrong = bench.read(Method::GET, id_of(BLOB)).await.unwrap();
    assert_eq!(wrong.bytes().await.unwrap(), b"0123446789"[..]);
    assert_eq!(bench.read(Method::HEAD, id_of(BLOB)).await.unwrap().status(), 200, "HEAD has no body");
    bench.running.stop().await;
}

#[tokio::test]
async fn a_put_is_stored_although_its_answer_is_lost_cut_or_false() {
    let bench = Bench::with("put:answer-lost").await;
    assert!(bench.put(b"lost").await.is_err());
    bench.set("put:truncated");
    assert!(bench.put(b"cut").await.unwrap().bytes().await.is_err());
    bench.set("put:wrong-id");
    let answer: Value = bench.put(b"false").await.unwrap().json().await.unwrap();
    let named = answer["newlyCreated"]["blobObject"]["blobId"].as_str().unwrap();
    assert!(named.parse::<BlobId>().is_ok_and(|id| id != id_of(b"false")), "{named}");
    bench.set("none");
    for bytes in [&b"lost"[..], b"cut", b"false"] {
        assert_eq!(bench.counts(bytes), PutCounts { puts: 1, bought: 1 });
        let read = bench.read(Method::GET, id_of(bytes)).await.unwrap();
        assert_eq!(read.bytes().await.unwrap(), bytes);
    }
    assert_eq!(bench.put(b"lost").await.unwrap().status(), 200);
    assert_eq!(bench.counts(b"lost"), PutCounts { puts: 2, bought: 2 }, "a blind second PUT shows");
    bench.running.stop().await;
}
