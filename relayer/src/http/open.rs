//! Open routes: health, version, identity, and the data that the `memwal` SDK reads at its start. They return
//! constants, memory's readiness and the relayer's addresses, and nothing about any owner.

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use serde_json::{Value, json};
use utoipa::openapi::{OpenApi, PathItem, path::Operation};

use super::{ApiError, ApiErrorJson, AppState, RelayerIdentity, api_error::UNAVAILABLE, extract::read_json};

/// Version of the HTTP interface for the `memwal` SDK, which requires major version 1.
const API_VERSION: &str = "1.0.0";
/// Oldest compatible SDK interface: the baseline that 0.2.1 states.
const MIN_SDK: &str = "0.1.0";

/// Headers of a signed request, with their contents.
pub(super) const AUTH_HEADERS: [(&str, &str); 5] = [
    ("x-public-key", "The signer's Ed25519 public key, hex."),
    ("x-signature", "Ed25519 over the request's canonical bytes, hex."),
    ("x-timestamp", "Seconds since the Unix epoch, within 300 of the relayer's clock."),
    ("x-nonce", "A UUID that the key has never used."),
    ("x-account-id", "The Sui address of the owner's key: 0x and 64 hex characters."),
];

/// All operations of a path, with their methods.
pub(super) fn operations(item: &mut PathItem) -> impl Iterator<Item = (&'static str, &mut Operation)> {
    let PathItem { get, put, post, patch, delete, .. } = item;
    [("get", get), ("put", put), ("post", post), ("patch", patch), ("delete", delete)]
        .into_iter()
        .filter_map(|(method, operation)| Some((method, operation.as_mut()?)))
}

fn about() -> Value {
    json!({
        "status": "ok",
        "version": env!("CARGO_PKG_VERSION"),
        "relayerVersion": env!("CARGO_PKG_VERSION"),
        "apiVersion": API_VERSION,
        "minSupportedSdk": { "python": MIN_SDK, "typescript": MIN_SDK, "mcp": MIN_SDK },
        "featureFlags": {
            "asyncRemember": true, "bulkRemember": true, "namespaces": true, "restore": true, "manual": false,
            "seal": false,
        },
        "deprecations": [],
        "build": { "name": "baton-relayer" },
        "mode": "baton",
        "write_ready": true,
    })
}

/// Reports the health of the relayer and of memory; always 200.
///
/// `status` is `ok`, or `degraded` with the reason and the fix in `memory`.
#[utoipa::path(get, path = "/health", tag = "open", responses((status = 200, body = Object)))]
pub(super) async fn health(State(app): State<AppState>) -> Json<Value> {
    let mut about = about();
    if let Err(why) = app.readiness().await {
        about["status"] = "degraded".into();
        about["write_ready"] = false.into();
        about["memory"] = why.into();
    }
    Json(about)
}

/// Reports whether memory is usable: 200, or 503 with the reason and the fix. A `warning` says that some owners are
/// refused, while all others are served.
#[utoipa::path(get, path = "/readyz", tag = "open", responses((status = 200, body = Object), (status = 503, body = ApiErrorJson)))]
pub(super) async fn ready(State(app): State<AppState>) -> Result<Json<Value>, ApiError> {
    match app.readiness().await {
        Ok(()) => {
            let mut ready = json!({ "ready": true });
            if let Some(warning) = app.inner.config.owners.warning() {
                ready["warning"] = warning.into();
            }
            Ok(Json(ready))
        }
        Err(why) => Err(ApiError::new(UNAVAILABLE).saying(why).after_ms(2_000)),
    }
}

/// Returns the versions of the relayer and its interface.
#[utoipa::path(get, path = "/version", tag = "open", responses((status = 200, body = Object)))]
pub(super) async fn version() -> Json<Value> {
    Json(about())
}

/// Returns the relayer's identity: its peer id and libp2p addresses for sealed turns, and where memory goes.
#[utoipa::path(get, path = "/relayer", tag = "open", responses((status = 200, body = RelayerIdentity)))]
pub(super) async fn relayer(State(app): State<AppState>) -> Json<RelayerIdentity> {
    Json((app.inner.config.identity)())
}

/// Returns the configuration for the SEAL session of the `memwal` SDK.
///
/// This relayer uses no SEAL. It names a network without a public Sui endpoint and itself as the Sui
/// endpoint, so the unmodified SDK contacts no other host. It neither reads nor keeps the session in
/// `x-seal-session`.
#[utoipa::path(get, path = "/config", tag = "open", responses((status = 200, body = Object), (status = 400, body = ApiErrorJson)))]
pub(super) async fn config(State(app): State<AppState>, headers: HeaderMap) -> Result<Json<Value>, ApiError> {
    let base = match &app.inner.config.public_url {
        Some(url) => url.trim_end_matches('/').to_owned(),
        None => {
            format!(
                "http://{}",
                authority(&headers).ok_or_else(|| ApiError::bad("the Host header is missing"))?
            )
        }
    };
    Ok(Json(json!({
        "packageId": format!("0x{}", "0".repeat(63) + "1"),
        "network": "baton",
        "suiRpcUrl": format!("{base}/sui"),
    })))
}

/// The server's name in the client's request, if it is plausible.
fn authority(headers: &HeaderMap) -> Option<&str> {
    let host = headers.get("host")?.to_str().ok()?;
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte);
    ((1..=255).contains(&host.len()) && host.bytes().all(allowed)).then_some(host)
}

/// Answers the one Sui call of the `memwal` SDK with version 1.
///
/// The call is `sui_getObject`, for the version of the package in `/config`. Other methods get an error.
#[utoipa::path(post, path = "/sui", tag = "open", request_body = Object, responses((status = 200, body = Object), (status = 400, body = ApiErrorJson)))]
pub(super) async fn sui(body: Bytes) -> Result<Response, ApiError> {
    let request: Value = read_json(&body)?;
    let id = request.get("id").filter(|id| id.is_number()).cloned().unwrap_or(Value::Null);
    if request.get("method").and_then(Value::as_str) != Some("sui_getObject") {
        let error = json!({ "code": -32601, "message": "this relayer is no Sui node" });
        return Ok(Json(json!({ "jsonrpc": "2.0", "id": id, "error": error })).into_response());
    }
    Ok(Json(json!({ "jsonrpc": "2.0", "id": id, "result": { "data": { "version": "1" } } })).into_response())
}

/// Returns this document.
#[utoipa::path(get, path = "/openapi.json", tag = "open", responses((status = 200, body = Object)))]
pub(super) async fn document(State(app): State<AppState>) -> Result<Json<OpenApi>, StatusCode> {
    app.inner.document.get().cloned().map(Json).ok_or(StatusCode::NOT_FOUND)
}
