//! Open routes: health, version, identity, and the data that the `memwal` SDK reads at its start. They return
//! constants, memory's readiness and the relayer's addresses, and nothing about any owner.

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::{MethodRouter, get, post},
};
use bytes::Bytes;
use serde_json::{Value, json};

use super::{ApiError, AppState, RelayerIdentity, api_error::UNAVAILABLE, extract::read_json};

/// Version of the HTTP interface for the `memwal` SDK, which requires major version 1.
const API_VERSION: &str = "1.0.0";
/// Oldest compatible SDK interface: the baseline that 0.2.1 states.
const MIN_SDK: &str = "0.1.0";

/// All open routes: method, path, description and handler.
pub(super) fn routes() -> [(&'static str, &'static str, &'static str, MethodRouter<AppState>); 7] {
    let version = async || Json(about());
    [
        ("GET", "/health", "Health of the relayer and of memory, always with 200.", get(health)),
        ("GET", "/readyz", "Whether memory is usable: 200, or 503 with reason and fix.", get(ready)),
        ("GET", "/version", "Versions of the relayer and its interface.", get(version)),
        ("GET", "/relayer", "Peer id and libp2p addresses, and where memory goes.", get(relayer)),
        ("GET", "/config", "For the `memwal` SDK: a configuration without SEAL.", get(config)),
        ("POST", "/sui", "For the `memwal` SDK: answers `sui_getObject` with version 1.", post(sui)),
        ("GET", "/openapi.json", "This document.", get(document)),
    ]
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

async fn health(State(app): State<AppState>) -> Json<Value> {
    let mut about = about();
    if let Err(why) = app.readiness().await {
        about["status"] = "degraded".into();
        about["write_ready"] = false.into();
        about["memory"] = why.into();
    }
    Json(about)
}

async fn ready(State(app): State<AppState>) -> Result<Json<Value>, ApiError> {
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

async fn relayer(State(app): State<AppState>) -> Json<RelayerIdentity> {
    Json((app.inner.config.identity)())
}

/// This relayer uses no SEAL. It names a network without a public Sui endpoint and itself as the Sui endpoint, so the
/// unmodified SDK contacts no other host. It neither reads nor keeps the session in `x-seal-session`.
async fn config(State(app): State<AppState>, headers: HeaderMap) -> Result<Json<Value>, ApiError> {
    let host = || authority(&headers).ok_or_else(|| ApiError::bad("the Host header is missing"));
    let base = match &app.inner.config.public_url {
        Some(url) => url.trim_end_matches('/').to_owned(),
        None => format!("http://{}", host()?),
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

async fn sui(body: Bytes) -> Result<Json<Value>, ApiError> {
    let request: Value = read_json(&body)?;
    let mut answer = json!({ "jsonrpc": "2.0", "id": request["id"].as_number() });
    if request["method"] == "sui_getObject" {
        answer["result"] = json!({ "data": { "version": "1" } });
    } else {
        answer["error"] = json!({ "code": -32601, "message": "this relayer is no Sui node" });
    }
    Ok(Json(answer))
}

async fn document(State(app): State<AppState>) -> Result<Json<Value>, StatusCode> {
    app.inner.document.get().cloned().map(Json).ok_or(StatusCode::NOT_FOUND)
}
