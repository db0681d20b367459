//! Every route of the embedded store, as in Walrus's daemon: statuses, headers, bodies and the order of
//! checks.

use baton_proto::ids::BlobId;
use baton_walrus_client::{QuiltIndex, QuiltPatch, QuiltPatchId, ShardCount, quilt};
use baton_walrus_store::{EmbeddedConfig, EmbeddedStore};
use reqwest::{
    Client, Method, Response,
    multipart::{Form, Part},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{Running, config, id_of, open, validate};

/// Three chunks of the store's files, and a bit.
const LARGE: usize = 3 * 256 * 1024 + 11;

struct Bench {
    _folder: TempDir,
    running: Running,
    client: Client,
}

impl Bench {
    async fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let running = Running::start(open(&folder)).await;
        Self { _folder: folder, running, client: Client::new() }
    }

    async fn put(&self, bytes: &[u8]) -> Value {
        self.put_with("", bytes).await
    }

    async fn put_with(&self, query: &str, bytes: &[u8]) -> Value {
        let url = format!("{}/v1/blobs{query}", self.running.url);
        let answer = self.client.put(url).body(bytes.to_vec()).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.json().await.unwrap()
    }

    async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)]) -> Response {
        let mut request = self.client.request(method, format!("{}{path}", self.running.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send().await.unwrap()
    }

    async fn get(&self, path: &str) -> Response {
        self.send(Method::GET, path, &[]).await
    }
}

fn large() -> Vec<u8> {
    (0..=250).cycle().take(LARGE).collect()
}

fn header(response: &Response, name: &str) -> Option<String> {
    response.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
}

/// Status, and the reason of a JSON refusal, or the text.
async fn outcome(response: Response) -> (u16, String) {
    let status = response.status().as_u16();
    let json = header(&response, "content-type").is_some_and(|kind| kind == "application/json");
    let text = response.text().await.unwrap();
    if !json {
        return (status, text);
    }
    let body: Value = serde_json::from_str(&text).unwrap();
    let detail = &body["error"]["details"][0];
    assert_eq!(detail["domain"], "daemon.walrus.space", "{body}");
    (status, detail["reason"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn refusals_come_in_walrus_order_and_form() {
    let bench = Bench::start().await;
    bench.put(b"0123456789").await;
    let (known, unknown) = (id_of(b"0123456789"), id_of(b"never stored"));
    let object = format!("0x{}", "7".repeat(64));
    let patch = QuiltPatchId { quilt: known, start: 1, end: 2 };
    let foreign_patch = QuiltPatchId { quilt: unknown, start: 1, end: 2 };
    let both = "strict_consistency_check=true&skip_consistency_check=true";
    for (path, range, status, expected) in [
        // The path before the query, the query's form before its meaning, the range before the blob.
        ("/v1/blobs/short?x=1".to_owned(), None, 400, "Invalid URL"),
        ("/v1/blobs/+++".to_owned(), None, 400, "Invalid URL"),
        (format!("/v1/blobs/{unknown}A"), None, 400, "Invalid URL"),
        ("/v1/blobs/..%2f..%2fetc".to_owned(), None, 400, "Invalid URL"),
        (format!("/v1/blobs/{unknown}?x=1"), None, 400, "unknown field"),
        (format!("/v1/blobs/{unknown}?strict_consistency_check=7"), None, 400, "strict_consistency_check"),
        (format!("/v1/blobs/{unknown}?{both}"), Some("bytes=9-1"), 400, "INVALID_CONSISTENCY_CHECK"),
        (format!("/v1/blobs/{unknown}"), Some("bytes=9-1"), 416, "INVALID_BYTE_RANGE"),
        (format!("/v1/blobs/{unknown}"), Some("bytes=0-1"), 404, "BLOB_NOT_FOUND"),
        (format!("/v1/blobs/{known}"), Some("bytes=0-10"), 416, "INVALID_BYTE_RANGE"),
        (format!("/v1/blobs/{known}"), Some("bytes=0-1,3-4"), 416, "INVALID_BYTE_RANGE"),
        (format!("/v1/blobs/{known}"), Some("bytes=10-12"), 416, "INVALID_BYTE_RANGE"),
        (format!("/v1/blobs/{known}"), Some("bytes=3-"), 416, "INVALID_BYTE_RANGE"),
        (format!("/v1/blobs/{known}"), Some("bytes=-3"), 416, "INVALID_BYTE_RANGE"),
        (format!("/v1/blobs/{known}"), Some("bytes=4-2"), 416, "INVALID_BYTE_RANGE"),
        (format!("/v1/blobs/{known}"), Some("x"), 416, "INVALID_BYTE_RANGE"),
        ("/v1/blobs/short/byte-range?start=0&length=1".to_owned(), None, 400, "Invalid URL"),
        (format!("/v1/blobs/{known}/byte-range?start=0"), None, 400, "missing field"),
        (format!("/v1/blobs/{known}/byte-range?start=0&length=1&x=1"), None, 400, "unknown field"),
        (format!("/v1/blobs/{known}/byte-range?start=0&length=-1"), None, 400, "length"),
        (format!("/v1/blobs/{unknown}/byte-range?start=0&length=0"), None, 400, "INVALID_BYTE_RANGE"),
        (format!("/v1/blobs/{unknown}/byte-range?start=0&length=1"), None, 404, "BLOB_NOT_FOUND"),
        (format!("/v1/blobs/{known}/byte-range?start=9&length=2"), None, 400, "INVALID_BYTE_RANGE"),
        (format!("/v1/blobs/{known}/byte-range?start=10&length=1"), None, 400, "INVALID_BYTE_RANGE"),
        (
            format!("/v1/blobs/{known}/byte-range?start={}&length={}", u64::MAX, u64::MAX),
            None,
            400,
            "INVALID_BYTE_RANGE",
        ),
        ("/v1/blobs/by-object-id/0xzz".to_owned(), None, 400, "Invalid URL"),
        (format!("/v1/blobs/by-object-id/{object}"), None, 404, "BLOB_NOT_FOUND"),
        ("/v1/blobs/by-quilt-patch-id/abc".to_owned(), None, 400, "Invalid URL"),
        (format!("/v1/blobs/by-quilt-patch-id/{foreign_patch}"), None, 404, "BLOB_NOT_FOUND"),
        (format!("/v1/blobs/by-quilt-patch-id/{patch}"), None, 500, "INTERNAL_ERROR"),
        (format!("/v1/blobs/by-quilt-id/{unknown}/name"), None, 404, "BLOB_NOT_FOUND"),
        ("/v1/blobs/by-quilt-id/short/name".to_owned(), None, 400, "Invalid URL"),
        (format!("/v1/quilts/{unknown}/patches"), None, 404, "BLOB_NOT_FOUND"),
        ("/v1/quilts/short/patches".to_owned(), None, 400, "Invalid URL"),
        ("/v1alpha/blobs/concat".to_owned(), None, 400, "missing field"),
        ("/v1alpha/blobs/concat?ids=,".to_owned(), None, 400, "at least one"),
        (format!("/v1alpha/blobs/concat?ids={known}&x=1"), None, 400, "unknown field"),
        (format!("/v1alpha/blobs/concat?ids={known},!!!"), None, 400, "INVALID_ID_FORMAT"),
        (format!("/v1alpha/blobs/concat?ids={object}"), None, 404, "OBJECT_ID_RESOLUTION_FAILED"),
        (format!("/v1alpha/blobs/concat?ids={known},{unknown}"), None, 404, "BLOB_NOT_FOUND"),
        (format!("/v1alpha/blobs/concat?ids={known}&{both}"), None, 400, "INVALID_CONSISTENCY_CHECK"),
    ] {
        let headers: Vec<_> = range.map(|range| ("range", range)).into_iter().collect();
        let refused = bench.send(Method::GET, &path, &headers).await;
        assert_eq!(header(&refused, "access-control-allow-origin").as_deref(), Some("*"));
        let (found, text) = outcome(refused).await;
        assert!(found == status && text.contains(expected), "{path}: {found} {text}");
        let head = bench.send(Method::HEAD, &path, &headers).await;
        assert_eq!(head.status().as_u16(), status, "HEAD {path}");
    }
    bench.running.stop().await;
}

#[tokio::test]
async fn there_is_a_status_and_no_delete_and_no_other_method() {
    let bench = Bench::start().await;
    let status = bench.get("/status").await;
    assert_eq!((status.status().as_u16(), status.text().await.unwrap().as_str()), (200, "OK"));
    bench.put(b"x").await;
    let id = id_of(b"x");
    for (method, path) in [
        (Method::DELETE, format!("/v1/blobs/{id}")),
        (Method::POST, "/v1/blobs".to_owned()),
        (Method::GET, "/v1/blobs".to_owned()),
        (Method::PUT, format!("/v1/blobs/{id}")),
        (Method::GET, "/v1/quilts".to_owned()),
        (Method::PUT, "/v1alpha/blobs/concat".to_owned()),
        (Method::DELETE, format!("/v1/quilts/{id}/patches")),
    ] {
        assert_eq!(bench.send(method.clone(), &path, &[]).await.status(), 405, "{method} {path}");
    }
    assert_eq!(bench.get("/v1/nothing").await.status(), 404);
    let admin = bench.send(Method::DELETE, &format!("/admin/blobs/{id}"), &[]).await;
    assert_eq!(admin.status(), 404, "the admin routes are not public");
    assert_eq!(bench.get(&format!("/v1/blobs/{id}")).await.text().await.unwrap(), "x");
    let asked = [("origin", "http://example.com"), ("access-control-request-method", "PUT")];
    let preflight = bench.send(Method::OPTIONS, "/v1/blobs", &asked).await;
    let methods = header(&preflight, "access-control-allow-methods");
    assert_eq!((preflight.status().as_u16(), methods.as_deref()), (200, Some("*")));
    let api = bench.get("/v1/api").await;
    assert_eq!((api.status().as_u16(), header(&api, "content-type")), (200, Some("application/yaml".into())));
    assert_eq!(header(&api, "x-baton-shards"), Some("10".into()));
    let text = api.text().await.unwrap();
    assert!(
        text.starts_with("openapi: 3.1.0") && text.contains("/v1/blobs/by-quilt-patch-id/{quilt_patch_id}")
    );
    bench.running.stop().await;
}

#[tokio::test]
async fn large_blobs_are_read_whole_and_in_part() {
    let bench = Bench::start().await;
    let bytes = large();
    let id = id_of(&bytes);
    assert_eq!(bench.put(&bytes).await["newlyCreated"]["blobObject"]["blobId"], json!(id.to_string()));
    let path = format!("/v1/blobs/{id}");
    let whole = bench.get(&path).await;
    assert_eq!(header(&whole, "content-length"), Some(LARGE.to_string()));
    assert_eq!(whole.bytes().await.unwrap(), bytes);
    let head = bench.send(Method::HEAD, &path, &[]).await;
    assert_eq!(header(&head, "content-length"), Some(LARGE.to_string()));

    const CHUNK: usize = 256 * 1024;
    for (first, length) in [
        (0, 1),
        (0, LARGE),
        (0, CHUNK),
        (1, CHUNK),
        (CHUNK - 1, 2),
        (CHUNK, CHUNK),
        (CHUNK + 5, CHUNK + 5),
        (3 * CHUNK, 11),
        (LARGE - 1, 1),
    ] {
        let range = format!("bytes={first}-{}", first + length - 1);
        let part = bench.send(Method::GET, &path, &[("range", &range)]).await;
        assert_eq!(part.status(), 206);
        let content_range = format!("bytes {first}-{}/{LARGE}", first + length - 1);
        assert_eq!(header(&part, "content-range"), Some(content_range));
        assert_eq!(header(&part, "etag"), Some(id.to_string()));
        assert_eq!(header(&part, "content-length"), Some(length.to_string()));
        assert_eq!(part.bytes().await.unwrap(), bytes[first..first + length]);

        let part = bench.get(&format!("{path}/byte-range?start={first}&length={length}")).await;
        assert_eq!((part.status().as_u16(), header(&part, "content-range")), (200, None));
        assert_eq!(header(&part, "etag"), Some(format!("{id}-{first}-{length}")));
        assert_eq!(part.bytes().await.unwrap(), bytes[first..first + length]);
    }
    bench.running.stop().await;
}

#[tokio::test]
async fn answers_take_the_type_that_was_asked_for() {
    let bench = Bench::start().await;
    bench.put(b"{}").await;
    let path = format!("/v1/blobs/{}", id_of(b"{}"));
    for (method, headers, expected) in [
        (Method::GET, vec![("accept", "*/*")], "application/octet-stream"),
        (Method::GET, vec![("accept", "text/*")], "application/octet-stream"),
        (Method::GET, vec![("accept", "application/json")], "application/json"),
        (Method::GET, vec![("accept", "*/*"), ("content-type", "text/html")], "text/html"),
        (Method::HEAD, vec![("accept", "*/*"), ("content-type", "text/html")], "application/octet-stream"),
        (Method::HEAD, vec![("accept", "image/png")], "image/png"),
    ] {
        let answer = bench.send(method, &path, &headers).await;
        assert_eq!(header(&answer, "content-type").as_deref(), Some(expected), "{headers:?}");
        assert_eq!(header(&answer, "x-content-type-options").as_deref(), Some("nosniff"));
    }
    bench.running.stop().await;
}

#[tokio::test]
async fn every_object_finds_its_blob() {
    let bench = Bench::start().await;
    let first = bench.put(b"twice").await;
    let second = bench.put_with("?share=true", b"twice").await;
    let shared = second["newlyCreated"]["sharedBlobObject"].as_str().unwrap();
    let id = |answer: &Value| answer["newlyCreated"]["blobObject"]["id"].as_str().unwrap().to_owned();
    for object in [&id(&first), &id(&second), shared] {
        for text in [object, object.trim_start_matches("0x")] {
            let found = bench.get(&format!("/v1/blobs/by-object-id/{text}")).await;
            assert_eq!(header(&found, "etag"), Some(id_of(b"twice").to_string()));
            assert_eq!(found.text().await.unwrap(), "twice");
        }
    }
    let path = format!("/v1/blobs/by-object-id/{shared}");
    let part = bench.send(Method::GET, &path, &[("range", "bytes=1-2")]).await;
    assert_eq!((part.status().as_u16(), part.text().await.unwrap().as_str()), (206, "wi"));
    bench.running.stop().await;
}

#[tokio::test]
async fn blobs_are_concatenated_by_either_id() {
    let bench = Bench::start().await;
    let bytes = large();
    bench.put(&bytes).await;
    let answer = bench.put(b"tail").await;
    let object = answer["newlyCreated"]["blobObject"]["id"].as_str().unwrap();
    let (large_id, tail) = (id_of(&bytes).to_string(), id_of(b"tail").to_string());
    let expected = [&bytes[..], b"tail", b"tail"].concat();
    let got = bench.get(&format!("/v1alpha/blobs/concat?ids={large_id},%20{object},,{tail}")).await;
    assert_eq!((got.status().as_u16(), header(&got, "content-length")), (200, None), "as a stream");
    let etag = header(&got, "etag").unwrap();
    assert_eq!(etag.len(), 43);
    assert_eq!(got.bytes().await.unwrap(), expected);

    let url = format!("{}/v1alpha/blobs/concat", bench.running.url);
    let post = async |body: Value| bench.client.post(&url).json(&body).send().await.unwrap();
    let posted = post(json!({"ids": [large_id, object, tail], "strict_consistency_check": null})).await;
    assert_eq!(header(&posted, "etag"), Some(etag), "of the IDs as given");
    assert_eq!(posted.bytes().await.unwrap(), expected);
    assert_eq!(outcome(post(json!({"ids": []})).await).await.0, 400);
    assert_eq!(post(json!({"ids": ["a"], "x": 1})).await.status(), 422);
    assert_eq!(outcome(post(json!({"ids": ["!"]})).await).await, (400, "INVALID_ID_FORMAT".to_owned()));
    assert_eq!(outcome(post(json!({"ids": vec![&tail; 1025]})).await).await.0, 400);
    assert_eq!(post(json!({"ids": vec![&tail; 1024]})).await.bytes().await.unwrap().len(), 4096);
    let untyped = bench.client.post(&url).body(r#"{"ids":["a"]}"#).send().await.unwrap();
    assert_eq!(untyped.status(), 415);
    bench.running.stop().await;
}

/// A PUT of a quilt with these fields.
async fn put_quilt(bench: &Bench, query: &str, fields: &[(&'static str, Vec<u8>)]) -> Response {
    let mut form = Form::new().percent_encode_noop();
    for (name, data) in fields {
        form = form.part(*name, Part::bytes(data.clone()));
    }
    let url = format!("{}/v1/quilts{query}", bench.running.url);
    bench.client.put(url).multipart(form).send().await.unwrap()
}

#[tokio::test]
async fn a_quilt_is_stored_and_its_patches_are_found_every_way() {
    let bench = Bench::start().await;
    let metadata = json!([
        {"identifier": "b.txt", "tags": {"kind": "text", "Content-Disposition": "inline", "number": 7}},
        {"identifier": "no such file", "tags": {"x": "y"}},
    ]);
    let fields = [
        ("b.txt", b"second".to_vec()),
        ("_metadata", metadata.to_string().into_bytes()),
        ("a b/ü", b"first".to_vec()),
        ("empty", Vec::new()),
    ];
    let answer = put_quilt(&bench, "?epochs=2&quilt_version=V1", &fields).await;
    assert_eq!(answer.status(), 200);
    let answer: Value = answer.json().await.unwrap();
    let object = &answer["blobStoreResult"]["newlyCreated"]["blobObject"];
    let quilt: BlobId = object["blobId"].as_str().unwrap().parse().unwrap();
    assert_eq!(object["storage"]["endEpoch"], json!(3));

    // The quilt module makes the same bytes from the same patches.
    let tags = [("Content-Disposition", "inline"), ("kind", "text"), ("number", "7")];
    let tags = tags.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let patch = |identifier, data, tags| QuiltPatch { identifier, tags, data };
    let expected = quilt::encode(
        &[
            patch("b.txt", &b"second"[..], tags.clone().into()),
            patch("a b/ü", b"first", Default::default()),
            patch("empty", b"", Default::default()),
        ],
        ShardCount::TESTBED,
    );
    let expected = expected.unwrap();
    assert_eq!(quilt, id_of(&expected.bytes));
    assert_eq!(object["size"], json!(expected.bytes.len()));
    let raw = bench.get(&format!("/v1/blobs/{quilt}")).await.bytes().await.unwrap();
    assert_eq!(raw, expected.bytes);
    assert_eq!(QuiltIndex::decode(&raw, ShardCount::TESTBED).unwrap(), expected.index);

    let stored = answer["storedQuiltBlobs"].as_array().unwrap();
    let listed: Value = bench.get(&format!("/v1/quilts/{quilt}/patches")).await.json().await.unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 3);
    for (name, encoded, data) in
        [("b.txt", "b.txt", "second"), ("a b/ü", "a%20b%2F%C3%BC", "first"), ("empty", "empty", "")]
    {
        let of =
            |list: &[Value]| list.iter().find(|item| item["identifier"] == json!(name)).cloned().unwrap();
        let patch_id = of(stored)["quiltPatchId"].as_str().unwrap().to_owned();
        let item = of(listed.as_array().unwrap());
        assert_eq!(item["patch_id"], json!(patch_id));
        let expected_tags =
            if name == "b.txt" { json!(std::collections::BTreeMap::from(tags.clone())) } else { json!({}) };
        assert_eq!(item["tags"], expected_tags);
        for path in [
            format!("/v1/blobs/by-quilt-patch-id/{patch_id}"),
            format!("/v1/blobs/by-quilt-id/{quilt}/{encoded}"),
        ] {
            for method in [Method::GET, Method::HEAD] {
                // These routes ignore a key in the query.
                let got = bench.send(method.clone(), &format!("{path}?x=1"), &[]).await;
                assert_eq!(got.status(), 200, "{path}");
                assert_eq!(header(&got, "etag"), Some(quilt.to_string()), "the quilt's");
                assert_eq!(header(&got, "content-length"), Some(data.len().to_string()));
                let identifier = got.headers().get("x-quilt-patch-identifier").unwrap();
                assert_eq!(identifier.as_bytes(), name.as_bytes());
                let disposition = header(&got, "content-disposition");
                assert_eq!(disposition.is_some(), name == "b.txt");
                assert_eq!(header(&got, "kind"), None, "only some tags become headers");
                let body = got.text().await.unwrap();
                assert_eq!(body, if method == Method::GET { data } else { "" });
            }
        }
    }
    let missing = bench.get(&format!("/v1/blobs/by-quilt-id/{quilt}/nothing")).await;
    assert_eq!(outcome(missing).await, (404, "QUILT_PATCH_NOT_FOUND".to_owned()));
    let elsewhere = QuiltPatchId { quilt, start: 5, end: 7 };
    let missing = bench.get(&format!("/v1/blobs/by-quilt-patch-id/{elsewhere}")).await;
    assert_eq!(outcome(missing).await, (404, "QUILT_PATCH_NOT_FOUND".to_owned()));
    bench.running.stop().await;
}

#[tokio::test]
async fn quilts_that_walrus_refuses_are_refused() {
    let bench = Bench::start().await;
    let one = ("a", b"x".to_vec());
    let metadata = |text: &str| ("_metadata", text.as_bytes().to_vec());
    for (query, fields, expected) in [
        ("?x=1", vec![one.clone()], "unknown field"),
        ("?quilt_version=V2", vec![one.clone()], "quilt_version"),
        ("", vec![], "MALFORMED_REQUEST"),
        ("", vec![metadata("[]")], "MALFORMED_REQUEST"),
        ("", vec![one.clone(), one.clone()], "MALFORMED_REQUEST"),
        ("", vec![one.clone(), metadata("{")], "MALFORMED_REQUEST"),
        ("", vec![one.clone(), metadata(r#"[{"tags":{}}]"#)], "MALFORMED_REQUEST"),
        ("", vec![one.clone(), metadata(r#"[{"identifier":"a"},{"identifier":"a"}]"#)], "MALFORMED_REQUEST"),
        ("", vec![("a ", b"x".to_vec())], "MALFORMED_REQUEST"),
        ("", vec![one.clone(), ("b", vec![1; 2_000_000])], "MALFORMED_REQUEST"),
        ("?permanent=true&deletable=true", vec![one.clone()], "INVALID_BLOB_PERSISTENCE"),
        ("?epochs=0", vec![one.clone()], "MALFORMED_REQUEST"),
    ] {
        let (status, text) = outcome(put_quilt(&bench, query, &fields).await).await;
        assert!(status == 400 && text.contains(expected), "{query} {}: {status} {text}", fields.len());
    }
    let plain = bench.client.put(format!("{}/v1/quilts", bench.running.url)).body("x").send().await.unwrap();
    let (status, text) = outcome(plain).await;
    assert!(status == 400 && text.contains("boundary"), "{text}");
    assert_eq!(bench.running.store.usage().blobs, 0);
    // Within both bounds on input; a part needs no file name.
    assert_eq!(put_quilt(&bench, "", &[("a", b"1".to_vec()), ("b", b"2".to_vec())]).await.status(), 200);
    bench.running.stop().await;
}

#[tokio::test]
async fn bodies_are_bounded_by_what_is_configured() {
    let folder = TempDir::new().unwrap();
    let config = EmbeddedConfig { max_put_bytes: 1000, max_quilt_bytes: 2000, ..config(&folder) };
    let running = Running::start(EmbeddedStore::open(config, validate).unwrap()).await;
    let bench = Bench { _folder: folder, running, client: Client::new() };
    let put = async |length: usize, chunked: bool| {
        let body = if chunked {
            let pieces = vec![Ok::<_, std::io::Error>(vec![7; length - 1]), Ok(vec![7])];
            reqwest::Body::wrap_stream(futures::stream::iter(pieces))
        } else {
            vec![7; length].into()
        };
        let url = format!("{}/v1/blobs?permanent=true&deletable=true", bench.running.url);
        outcome(bench.client.put(url).body(body).send().await.unwrap()).await
    };
    for chunked in [false, true] {
        assert_eq!(
            put(1001, chunked).await,
            (413, "length limit exceeded".to_owned()),
            "before what it means"
        );
        assert_eq!(put(1000, chunked).await, (400, "INVALID_BLOB_PERSISTENCE".to_owned()));
    }
    let long = put_quilt(&bench, "", &[("a", vec![1; 2000])]).await;
    assert_eq!(outcome(long).await, (413, "length limit exceeded".to_owned()));
    assert_eq!(put_quilt(&bench, "", &[("a", vec![1; 1500])]).await.status(), 200);
    bench.running.stop().await;
}
