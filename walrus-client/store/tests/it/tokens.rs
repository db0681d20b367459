//! Publisher tokens of the embedded store.

use baton_walrus_store::{EmbeddedConfig, EmbeddedStore, JwtSecret};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use reqwest::{
    Client,
    multipart::{Form, Part},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{NOW_MS, Running, config, validate};

const SECRET: &[u8] = b"a secret of at least 32 bytes, and some";
const NOW_S: u64 = NOW_MS / 1000;

fn open(folder: &TempDir) -> EmbeddedStore {
    let jwt_secret = Some(JwtSecret::new(SECRET.to_vec()).unwrap());
    EmbeddedStore::open(EmbeddedConfig { jwt_secret, ..config(folder) }, validate).unwrap()
}

fn sign(claims: &Value, secret: &[u8], algorithm: Algorithm) -> String {
    jsonwebtoken::encode(&Header::new(algorithm), claims, &EncodingKey::from_secret(secret)).unwrap()
}

/// A token with these claims, and an ID and an expiry unless the claims have them.
fn token(id: &str, claims: Value) -> String {
    let mut all = json!({"jti": id, "exp": NOW_S + 60});
    all.as_object_mut().unwrap().extend(claims.as_object().unwrap().clone());
    sign(&all, SECRET, Algorithm::HS256)
}

/// Status, name of the status and reason; or the text.
async fn put(
    running: &Running,
    query: &str,
    authorization: Option<&str>,
    body: &'static str,
) -> (u16, String) {
    let mut request = Client::new().put(format!("{}/v1/blobs{query}", running.url)).body(body);
    if let Some(authorization) = authorization {
        request = request.header("authorization", authorization);
    }
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let text = answer.text().await.unwrap();
    let Ok(body) = serde_json::from_str::<Value>(&text) else { return (status, text) };
    let error = &body["error"];
    if error.is_null() {
        return (status, String::new());
    }
    assert_eq!(error["details"][0]["domain"], "auth.publisher.walrus.space");
    let part = |value: &Value| value.as_str().unwrap().to_owned();
    (status, format!("{} {}", part(&error["status"]), part(&error["details"][0]["reason"])))
}

#[tokio::test]
async fn tokens_are_refused_as_walrus_refuses_them() {
    let folder = TempDir::new().unwrap();
    let running = Running::start(open(&folder)).await;
    let owner = format!("0x{}", "ab".repeat(32));
    let other = format!("0x{}", "cd".repeat(32));
    let to = |address: &str| format!("?send_object_to={address}");
    let precondition = |reason: &str| (400, format!("FAILED_PRECONDITION {reason}"));
    let ok = || (200, String::new());
    let invalid = precondition("INVALID_TOKEN");
    let sized = precondition("INVALID_SIZE");
    let epochs = precondition("INVALID_EPOCHS");
    let sent = precondition("INVALID_SEND_OBJECT_TO");
    let bare = |claims: Value| sign(&claims, SECRET, Algorithm::HS256);
    // Every body is "12345".
    for (name, query, token, expected) in [
        ("plain", String::new(), token("plain", json!({})), ok()),
        ("not at all a token", String::new(), "x.y.z".to_owned(), invalid.clone()),
        ("no exp", String::new(), bare(json!({"jti": "a"})), invalid.clone()),
        ("no jti", String::new(), bare(json!({"exp": NOW_S + 60})), invalid.clone()),
        (
            "another algorithm",
            String::new(),
            sign(&json!({"jti": "b", "exp": NOW_S + 60}), SECRET, Algorithm::HS512),
            invalid.clone(),
        ),
        (
            "another secret",
            String::new(),
            sign(&json!({"jti": "c", "exp": NOW_S + 60}), &[1; 40], Algorithm::HS256),
            (401, "UNAUTHENTICATED INVALID_SIGNATURE".to_owned()),
        ),
        ("before 1970", String::new(), token("d", json!({"exp": -1})), precondition("INVALID_TIMESTAMP")),
        ("within the leeway", String::new(), token("e", json!({"exp": NOW_S - 60})), ok()),
        (
            "expired",
            String::new(),
            token("f", json!({"exp": NOW_S - 61})),
            (504, "DEADLINE_EXCEEDED EXPIRED_SIGNATURE".to_owned()),
        ),
        ("epochs as said", "?epochs=3".to_owned(), token("g", json!({"epochs": 3})), ok()),
        ("fewer epochs", "?epochs=2".to_owned(), token("h", json!({"epochs": 3})), epochs.clone()),
        ("epochs by default", String::new(), token("i", json!({"epochs": 1})), ok()),
        ("at most", "?epochs=3".to_owned(), token("j", json!({"max_epochs": 3})), ok()),
        ("more than that", "?epochs=4".to_owned(), token("k", json!({"max_epochs": 3})), epochs),
        (
            "both epochs",
            String::new(),
            token("l", json!({"epochs": 1, "max_epochs": 1})),
            precondition("INCONSISTENT_TOKEN"),
        ),
        ("size as said", String::new(), token("m", json!({"size": 5})), ok()),
        ("another size", String::new(), token("n", json!({"size": 6})), sized.clone()),
        ("smaller size", String::new(), token("o", json!({"size": 4})), sized.clone()),
        ("size at most", String::new(), token("p", json!({"max_size": 5})), ok()),
        ("larger", String::new(), token("q", json!({"max_size": 4})), sized),
        (
            "both sizes",
            String::new(),
            token("r", json!({"size": 5, "max_size": 5})),
            precondition("INCONSISTENT_TOKEN"),
        ),
        ("sent as said", to(&owner), token("s", json!({"send_object_to": owner})), ok()),
        ("sent elsewhere", to(&other), token("t", json!({"send_object_to": owner})), sent.clone()),
        ("sent nowhere", String::new(), token("u", json!({"send_object_to": owner})), sent.clone()),
        ("no address", to(&owner), token("v", json!({"send_object_to": "me"})), sent),
        ("sent freely", to(&owner), token("w", json!({})), ok()),
    ] {
        let authorization = format!("Bearer {token}");
        assert_eq!(put(&running, &query, Some(&authorization), "12345").await, expected, "{name}");
    }
    for (authorization, part) in [
        (None, "`authorization` was missing"),
        (Some("Basic abc"), "authorization"),
        (Some("abc"), "authorization"),
    ] {
        let (status, text) = put(&running, "", authorization, "12345").await;
        assert!(status == 400 && text.contains(part), "{text}");
    }
    // The query comes first, and a read needs no token.
    let (status, text) = put(&running, "?x=1", None, "12345").await;
    assert!(status == 400 && text.contains("unknown field"), "{text}");
    let missing = format!("{}/v1/blobs/{}", running.url, baton_proto::ids::BlobId([0; 32]));
    assert_eq!(Client::new().get(missing).send().await.unwrap().status(), 404);
    running.stop().await;
}

#[tokio::test]
async fn a_token_is_taken_once_also_after_a_restart() {
    let folder = TempDir::new().unwrap();
    let running = Running::start(open(&folder)).await;
    let once = format!("Bearer {}", token("once", json!({"max_epochs": 1})));
    let used = (429, "RESOURCE_EXHAUSTED TOKEN_ALREADY_USED".to_owned());
    // A request that the token does not allow does not use it up.
    assert_eq!(put(&running, "?epochs=2", Some(&once), "x").await.0, 400);
    assert_eq!(put(&running, "", Some(&once), "x").await, (200, String::new()));
    assert_eq!(put(&running, "", Some(&once), "x").await, used);
    drop(running.stop().await);
    let running = Running::start(open(&folder)).await;
    assert_eq!(put(&running, "", Some(&once), "x").await, used);

    // Of many concurrent requests, one is served.
    let raced = format!("bearer {}", token("raced", json!({})));
    let all = (0..8).map(|_| put(&running, "", Some(&raced), "y"));
    let statuses: Vec<_> = futures::future::join_all(all).await;
    assert_eq!(statuses.iter().filter(|(status, _)| *status == 200).count(), 1, "{statuses:?}");
    running.stop().await;
}

#[tokio::test]
async fn sizes_are_checked_of_bodies_that_announce_none_and_of_whole_quilts() {
    let folder = TempDir::new().unwrap();
    let running = Running::start(open(&folder)).await;
    let client = Client::new();
    let chunked = async |claims: Value, id: &str| {
        let pieces = futures::stream::iter([Ok::<_, std::io::Error>("123"), Ok("45")]);
        let request = client.put(format!("{}/v1/blobs", running.url)).bearer_auth(token(id, claims));
        request.body(reqwest::Body::wrap_stream(pieces)).send().await.unwrap().status().as_u16()
    };
    assert_eq!(chunked(json!({"max_size": 4}), "1").await, 400);
    assert_eq!(chunked(json!({"size": 6}), "2").await, 400);
    assert_eq!(chunked(json!({"size": 5}), "3").await, 200);
    let quilt = async |claims: Value, id: &str| {
        let form = Form::new().part("a", Part::bytes(vec![7; 10]));
        let request = client.put(format!("{}/v1/quilts", running.url)).bearer_auth(token(id, claims));
        request.multipart(form).send().await.unwrap().status().as_u16()
    };
    // The smallest quilt that holds it on ten shards has 28 symbols, and its form is longer than ten bytes.
    assert_eq!(quilt(json!({"max_size": 10}), "4").await, 400);
    assert_eq!(quilt(json!({"max_size": 10_000}), "5").await, 200);
    let bare = client.put(format!("{}/v1/quilts", running.url)).multipart(Form::new().text("a", "b"));
    assert_eq!(bare.send().await.unwrap().status(), 400);
    running.stop().await;
}
