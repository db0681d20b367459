//! The embedded store's HTTP contract: statuses, headers and shapes as in Walrus's daemon.

use std::time::Duration;

use baton_walrus_client::{ShardCount, blob_id};
use baton_walrus_store::{
    EmbeddedConfig, EmbeddedStore, MAX_PUT_BYTES, MAX_RUNNING_PUTS, MAX_WAITING_PUTS, ServeError,
};
use futures::{StreamExt as _, stream::FuturesUnordered};
use reqwest::{Client, Method, Response, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::common::{NOW_MS, Running, config, head, open, opened, validate};

async fn start() -> (TempDir, Running, Client) {
    let folder = TempDir::new().unwrap();
    let running = Running::start(open(&folder)).await;
    (folder, running, Client::new())
}

async fn put(client: &Client, url: &str, query: &str, bytes: &[u8]) -> Response {
    client.put(format!("{url}/v1/blobs{query}")).body(bytes.to_vec()).send().await.unwrap()
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response.headers().get(name).unwrap_or_else(|| panic!("no header {name}")).to_str().unwrap()
}

/// A refusal in Walrus's JSON.
async fn assert_json_error(response: Response, status: u16, name: &str, reason: &str) {
    assert_eq!(response.status().as_u16(), status, "{reason}");
    assert_eq!(header(&response, "content-type"), "application/json");
    let body: Value = response.json().await.unwrap();
    let error = &body["error"];
    assert_eq!((&error["status"], &error["code"]), (&json!(name), &json!(status)), "{body}");
    assert!(error["message"].is_string());
    let detail = json!({
        "@type": "ErrorInfo", "reason": reason, "domain": "daemon.walrus.space", "metadata": {}
    });
    assert_eq!(error["details"], json!([detail]));
}

/// A refusal in plain text.
async fn assert_text_error(response: Response, status: u16, part: &str) {
    assert_eq!(response.status().as_u16(), status);
    assert!(header(&response, "content-type").starts_with("text/plain"));
    let text = response.text().await.unwrap();
    assert!(text.contains(part), "{text}");
}

#[tokio::test]
async fn a_new_blob_is_answered_in_walrus_shape() {
    let (_folder, running, client) = start().await;
    let response = put(&client, &running.url, "?epochs=3", b"hello").await;
    assert_eq!(response.status(), StatusCode::OK);
    let body: Value = response.json().await.unwrap();
    let created = &body["newlyCreated"];
    let object = &created["blobObject"];
    assert_eq!(object["blobId"], json!(blob_id(b"hello", ShardCount::TESTBED).unwrap().to_string()));
    assert_eq!(object["size"], json!(5));
    assert_eq!(object["encodingType"], json!("RS2"));
    assert_eq!((&object["registeredEpoch"], &object["certifiedEpoch"]), (&json!(1), &json!(1)));
    assert_eq!(object["deletable"], json!(true));
    // n(64n+32) + (k1+k2)·s·n at n = 10.
    let encoded = json!(10 * 672 + 11 * 2 * 10);
    let storage = &object["storage"];
    assert_eq!((&storage["startEpoch"], &storage["endEpoch"]), (&json!(1), &json!(4)));
    assert_eq!(storage["storageSize"], encoded);
    for id in [&object["id"], &storage["id"]] {
        let text = id.as_str().unwrap();
        assert!(text.starts_with("0x") && text.len() == 66, "{text}");
    }
    let operation = json!({"registerFromScratch": {"encodedLength": encoded, "epochsAhead": 3}});
    assert_eq!(created["resourceOperation"], operation);
    assert_eq!(created["cost"], json!(2_300));
    assert!(created.get("sharedBlobObject").is_none());
    running.stop().await;
}

#[tokio::test]
async fn only_a_permanent_repeat_is_already_certified() {
    let (_folder, running, client) = start().await;
    let repeat = async |query: &str| -> Value {
        put(&client, &running.url, query, b"again").await.json().await.unwrap()
    };
    let first = repeat("").await;
    let second = repeat("").await;
    let id = |body: &Value| body["newlyCreated"]["blobObject"]["id"].as_str().unwrap().to_owned();
    assert_ne!(id(&first), id(&second), "a deletable repeat buys a second object");

    assert_eq!(
        repeat("?permanent=true&epochs=5").await["newlyCreated"]["blobObject"]["deletable"],
        json!(false)
    );
    let certified = &repeat("?permanent=true&epochs=2").await["alreadyCertified"];
    assert_eq!(certified["endEpoch"], json!(6));
    assert_eq!(certified["event"]["eventSeq"], json!("0"));
    assert!((43..=44).contains(&certified["event"]["txDigest"].as_str().unwrap().len()));
    assert_eq!(certified["blobId"], first["newlyCreated"]["blobObject"]["blobId"]);

    assert!(repeat("?permanent=true&epochs=9").await.get("newlyCreated").is_some(), "longer than it has");
    assert!(repeat("?permanent=true&force=true").await.get("newlyCreated").is_some());
    assert!(repeat("").await.get("newlyCreated").is_some());
    let shared = repeat("?share=true").await;
    assert!(shared["newlyCreated"]["sharedBlobObject"].as_str().unwrap().starts_with("0x"));
    running.stop().await;
}

#[tokio::test]
async fn put_refuses_bad_queries() {
    let (_folder, running, client) = start().await;
    let owner = format!("0x{}", "ab".repeat(32));
    for (query, part) in [
        ("?colour=red", "unknown field"),
        ("?epochs=many", "epochs"),
        ("?epochs=-1", "epochs"),
        ("?permanent=perhaps", "permanent"),
        ("?encoding_type=RS9", "RS2"),
        ("?quilt_version=V7", "quilt_version"),
        ("?send_object_to=0x12", "send_object_to"),
        (&format!("?send_object_to={owner}&share=true"), "exclude"),
    ] {
        assert_text_error(put(&client, &running.url, query, b"x").await, 400, part).await;
    }
    let both = put(&client, &running.url, "?permanent=true&deletable=true", b"x").await;
    assert_json_error(both, 400, "INVALID_ARGUMENT", "INVALID_BLOB_PERSISTENCE").await;
    for query in ["?epochs=0", "?epochs=54"] {
        let refused = put(&client, &running.url, query, b"x").await;
        assert_json_error(refused, 400, "INVALID_ARGUMENT", "MALFORMED_REQUEST").await;
    }
    let all = format!(
        "?epochs=53&deletable=true&force=true&reuse_resources=false&encoding_type=RS2&quilt_version=V1&send_object_to={owner}"
    );
    assert_eq!(put(&client, &running.url, &all, b"x").await.status(), StatusCode::OK);
    assert_eq!(running.store.admin().list_blobs().await.unwrap().len(), 1);
    running.stop().await;
}

#[tokio::test]
async fn get_and_head_carry_walrus_headers() {
    let (_folder, running, client) = start().await;
    put(&client, &running.url, "", b"0123456789").await;
    let id = blob_id(b"0123456789", ShardCount::TESTBED).unwrap().to_string();
    let url = format!("{}/v1/blobs/{id}", running.url);
    for method in [Method::GET, Method::HEAD] {
        let response = client.request(method.clone(), &url).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(header(&response, "etag"), id, "unquoted");
        assert_eq!(header(&response, "cache-control"), "public, max-age=86400, stale-while-revalidate=3600");
        assert_eq!(header(&response, "x-content-type-options"), "nosniff");
        assert_eq!(header(&response, "access-control-allow-origin"), "*");
        assert_eq!(header(&response, "content-length"), "10");
        let body = response.bytes().await.unwrap();
        assert_eq!(&body[..], if method == Method::GET { &b"0123456789"[..] } else { b"" });
    }
    let checked = client.get(format!("{url}?strict_consistency_check=true")).send().await.unwrap();
    assert_eq!(checked.status(), StatusCode::OK);
    let beyond = client.get(&url).header("range", "bytes=5-10").send().await.unwrap();
    assert_json_error(beyond, 416, "RANGE_NOT_SATISFIABLE", "INVALID_BYTE_RANGE").await;
    running.stop().await;
}

#[tokio::test]
async fn a_caller_that_has_the_bytes_is_told_so() {
    let (_folder, running, client) = start().await;
    put(&client, &running.url, "", b"0123456789").await;
    let id = blob_id(b"0123456789", ShardCount::TESTBED).unwrap().to_string();
    let url = format!("{}/v1/blobs/{id}", running.url);
    let part = format!("{url}/byte-range?start=2&length=3");
    let asked = async |method: Method, url: &str, tag: &str| {
        client.request(method, url).header("if-none-match", tag).send().await.unwrap()
    };
    for tag in
        [id.clone(), format!("\"{id}\""), format!("W/\"{id}\""), format!("\"x\", \"{id}\""), "*".into()]
    {
        for method in [Method::GET, Method::HEAD] {
            let response = asked(method, &url, &tag).await;
            assert_eq!(response.status(), StatusCode::NOT_MODIFIED, "{tag}");
            assert_eq!(header(&response, "etag"), id);
            assert_eq!(
                header(&response, "cache-control"),
                "public, max-age=86400, stale-while-revalidate=3600"
            );
            assert!(response.headers().get("content-type").is_none());
            assert_eq!(response.bytes().await.unwrap().len(), 0);
        }
    }
    let response = asked(Method::GET, &part, &format!("\"{id}-2-3\"")).await;
    assert_eq!(response.status(), StatusCode::NOT_MODIFIED);
    // Another tag, half a pair of quotes, the tag of another part: the bytes.
    for tag in ["\"x\"".to_owned(), format!("\"{id}"), format!("{id}-2-3"), String::new()] {
        let response = asked(Method::GET, &url, &tag).await;
        assert_eq!(response.status(), StatusCode::OK, "{tag}");
        assert_eq!(response.text().await.unwrap(), "0123456789");
    }
    assert_eq!(asked(Method::GET, &part, &id).await.text().await.unwrap(), "234");
    // Nothing is known of a blob that is not here, nor of a range that it has not.
    let unknown = blob_id(b"other", ShardCount::TESTBED).unwrap();
    let response = asked(Method::GET, &format!("{}/v1/blobs/{unknown}", running.url), "*").await;
    assert_json_error(response, 404, "NOT_FOUND", "BLOB_NOT_FOUND").await;
    let response = asked(Method::GET, &format!("{url}/byte-range?start=9&length=2"), "*").await;
    assert_json_error(response, 400, "INVALID_ARGUMENT", "INVALID_BYTE_RANGE").await;
    running.stop().await;
}

#[tokio::test]
async fn put_refuses_bodies_over_the_limits() {
    let (_folder, running, client) = start().await;
    let long = put(&client, &running.url, "", &vec![7; MAX_PUT_BYTES + 1]).await;
    assert_text_error(long, 413, "length limit exceeded").await;
    // Chunked, so nothing announces the length.
    let chunks = futures::stream::iter((0..11).map(|_| Ok::<_, std::io::Error>(vec![7u8; 1 << 20])));
    let request = client.put(format!("{}/v1/blobs", running.url)).body(reqwest::Body::wrap_stream(chunks));
    assert_text_error(request.send().await.unwrap(), 413, "length limit exceeded").await;
    // Within the body limit, but more than ten shards can encode.
    let limit = usize::try_from(ShardCount::TESTBED.max_blob_length()).unwrap();
    let large = put(&client, &running.url, "", &vec![7; limit + 1]).await;
    assert_text_error(large, 413, "number of shards").await;
    assert_eq!(put(&client, &running.url, "", &vec![7; limit]).await.status(), StatusCode::OK);
    running.stop().await;
}

#[tokio::test]
async fn sheds_puts_beyond_the_running_and_waiting_ones() {
    const SURPLUS: usize = 4;
    let (_folder, running, _client) = start().await;
    let address = running.url.trim_start_matches("http://").to_owned();
    let total = MAX_RUNNING_PUTS + MAX_WAITING_PUTS + SURPLUS;
    // Each client announces 100 bytes, sends 1, and waits: only a refusal can precede the rest.
    let mut waiting: FuturesUnordered<_> = (0..total)
        .map(|_| {
            let address = address.clone();
            async move {
                let mut stream = TcpStream::connect(&address).await.unwrap();
                let request =
                    "PUT /v1/blobs HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 100\r\n\r\nx";
                stream.write_all(request.as_bytes()).await.unwrap();
                let mut start = [0; 12];
                stream.read_exact(&mut start).await.unwrap();
                let mut rest = Vec::new();
                // The unread part of the body may turn the end into a reset.
                let _ = stream.read_to_end(&mut rest).await;
                (String::from_utf8_lossy(&start).into_owned(), String::from_utf8_lossy(&rest).into_owned())
            }
        })
        .collect();
    for _ in 0..SURPLUS {
        let (start, rest) = waiting.next().await.unwrap();
        assert_eq!(start, "HTTP/1.1 429");
        assert!(rest.contains("text/plain") && !rest.to_lowercase().contains("retry-after"), "{rest}");
    }
    // No other is answered: they hold their permits until their bodies arrive or their senders disconnect.
    assert!(tokio::time::timeout(Duration::from_millis(100), waiting.next()).await.is_err());
    drop(waiting);
    // Without the senders, the permits become free again.
    let client = running.client();
    let options = baton_proto::store::PutOptions::default();
    loop {
        use baton_proto::store::{BlobStore as _, StoreError};
        match client.put(b"after".to_vec(), options).await {
            Ok(_) => break,
            Err(StoreError::Unavailable { .. }) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_refusal_reaches_senders_of_whole_bodies() {
    let folder = TempDir::new().unwrap();
    let config = EmbeddedConfig { max_running_puts: 1, max_waiting_puts: 1, ..config(&folder) };
    let running = Running::start(EmbeddedStore::open(config, validate).unwrap()).await;
    let clients = (0..48).map(|number: u8| {
        let (url, client) = (running.url.clone(), Client::new());
        tokio::spawn(async move {
            let mut seen = [0; 2];
            for round in 0..10 {
                for query in ["", "?x=1"] {
                    let body = vec![number ^ round; 200_000];
                    let sent = client.put(format!("{url}/v1/blobs{query}")).body(body).send().await;
                    match (sent.expect("an answer, never a reset").status().as_u16(), query) {
                        (200, "") => seen[0] += 1,
                        (429, "") => seen[1] += 1,
                        (400, "?x=1") => {}
                        (status, _) => panic!("{status}"),
                    }
                }
            }
            seen
        })
    });
    let seen = futures::future::try_join_all(clients).await.unwrap();
    let sum = seen.iter().fold([0, 0], |sum, seen| [sum[0] + seen[0], sum[1] + seen[1]]);
    assert!(sum[0] > 0 && sum[1] > 0, "{sum:?}");
    running.stop().await;
}

#[tokio::test]
async fn head_route_takes_only_newer_records() {
    let (_folder, running, client) = start().await;
    let route = format!("{}/v1/baton/heads", running.url);
    let publish = async |record: Vec<u8>| client.put(&route).body(record).send().await.unwrap();
    let later = NOW_MS + 1;
    assert_eq!(publish(head(1, 5, later, "five")).await.status(), StatusCode::OK);
    assert_eq!(publish(head(1, 5, later, "five")).await.status(), StatusCode::OK, "the same bytes again");
    for superseded in [head(1, 4, later, "four"), head(1, 5, later, "other")] {
        assert_json_error(publish(superseded).await, 409, "ALREADY_EXISTS", "HEAD_SUPERSEDED").await;
    }
    assert_json_error(publish(vec![1; 10]).await, 400, "INVALID_ARGUMENT", "INVALID_HEAD").await;
    let expired = publish(head(1, 9, NOW_MS, "late")).await;
    assert_json_error(expired, 400, "INVALID_ARGUMENT", "INVALID_HEAD").await;
    let long = publish(head(1, 9, later, &"x".repeat(8 * 1024))).await;
    assert_text_error(long, 413, "length limit").await;

    let get = async |key: String| client.get(format!("{route}/{key}")).send().await.unwrap();
    let found = get("01".repeat(32)).await;
    assert_eq!(header(&found, "cache-control"), "no-store");
    assert_eq!(found.bytes().await.unwrap(), head(1, 5, later, "five"));
    assert_eq!(publish(head(1, 6, later, "six")).await.status(), StatusCode::OK);
    assert_eq!(get("01".repeat(32)).await.bytes().await.unwrap(), head(1, 6, later, "six"));
    assert_json_error(get("02".repeat(32)).await, 404, "NOT_FOUND", "HEAD_NOT_FOUND").await;
    assert_json_error(get("zz".to_owned()).await, 400, "INVALID_ARGUMENT", "INVALID_ID_FORMAT").await;
    running.stop().await;
}

#[tokio::test]
async fn admin_routes_change_what_is_served() {
    let (_folder, store) = opened();
    let running = Running::start(store.clone()).await;
    let listener = EmbeddedStore::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let admin_url = format!("http://{}/admin", listener.local_addr().unwrap());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let admin = tokio::spawn(async move {
        store.serve_admin(listener, async { stopped.await.unwrap_or(()) }).await.unwrap();
    });
    let client = Client::new();
    put(&client, &running.url, "", b"original").await;
    let id = blob_id(b"original", ShardCount::TESTBED).unwrap();
    let blob_url = format!("{}/v1/blobs/{id}", running.url);
    let served = async || client.get(&blob_url).send().await.unwrap();

    let list: Value = client.get(format!("{admin_url}/blobs")).send().await.unwrap().json().await.unwrap();
    assert_eq!(list, json!([{"blobId": id.to_string(), "size": 8}]));
    let replaced = client.put(format!("{admin_url}/blobs/{id}")).body("forged").send().await.unwrap();
    assert_eq!(replaced.json::<Value>().await.unwrap(), json!({"existed": true}));
    assert_eq!(served().await.text().await.unwrap(), "forged");
    // Storing the true bytes heals it.
    put(&client, &running.url, "?permanent=true", b"original").await;
    assert_eq!(served().await.text().await.unwrap(), "original");
    for expected in [StatusCode::OK, StatusCode::NOT_FOUND] {
        let removed = client.delete(format!("{admin_url}/blobs/{id}")).send().await.unwrap();
        assert_eq!(removed.status(), expected);
    }
    assert_eq!(served().await.status(), StatusCode::NOT_FOUND);

    let record = head(3, 7, NOW_MS + 1, "newer");
    client.put(format!("{}/v1/baton/heads", running.url)).body(record).send().await.unwrap();
    let force = async |body: Vec<u8>| {
        client.put(format!("{admin_url}/heads")).body(body).send().await.unwrap().status()
    };
    let head_url = format!("{}/v1/baton/heads/{}", running.url, "03".repeat(32));
    assert_eq!(force(head(3, 2, NOW_MS + 1, "rolled back")).await, StatusCode::OK);
    let got = client.get(&head_url).send().await.unwrap().bytes().await.unwrap();
    assert_eq!(got, head(3, 2, NOW_MS + 1, "rolled back"));
    assert_eq!(force(b"no record".to_vec()).await, StatusCode::BAD_REQUEST);
    stop.send(()).unwrap();
    admin.await.unwrap();
    running.stop().await;
}

#[tokio::test]
async fn admin_is_not_served_beyond_loopback() {
    let folder = TempDir::new().unwrap();
    let listener = EmbeddedStore::bind("0.0.0.0:0".parse().unwrap()).await.unwrap();
    let refused = open(&folder).serve_admin(listener, std::future::pending()).await;
    assert!(matches!(refused, Err(ServeError::NotLoopback { .. })));
}

#[tokio::test]
async fn a_port_in_use_is_named_with_the_next_step() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    let error = EmbeddedStore::bind(address).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{address} is in use; stop what listens there or choose another port")
    );
}
