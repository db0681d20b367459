//! The chat page and its own routes, beside the endpoint for programs. Every client that reaches the port may
//! load the page: it holds no secret, and all its data needs the key.

use std::collections::HashSet;

use axum::{
    Json, Router,
    extract::{Path, Query, State},
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use baton_proto::{
    ids::SessionId,
    receipt::EngineKind,
    record::{Message, Role},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{ApiError, Gateway};
use baton_client::{ClientError, NewSession, TurnView};

const PAGE: &str = include_str!("page/index.html");
const SCRIPT: &str = include_str!("page/app.js");
const STYLE: &str = include_str!("page/style.css");
/// The page loads only its own files and calls only this endpoint; no page may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page's files, which need no key.
pub(super) fn files() -> Router<Gateway> {
    Router::new()
        .route("/", get(async || file("text/html; charset=utf-8", PAGE)))
        .route("/app.js", get(async || file("text/javascript; charset=utf-8", SCRIPT)))
        .route("/style.css", get(async || file("text/css; charset=utf-8", STYLE)))
}

/// The routes that the page calls.
pub(super) fn routes() -> Router<Gateway> {
    Router::new()
        .route("/api/sessions", get(list).post(begin))
        .route("/api/sessions/{id}", get(show).delete(delete))
        .route("/api/sessions/{id}/abandon", post(abandon))
        .route("/api/sessions/{id}/verify", post(verify))
        .route("/api/sessions/{id}/export", get(export))
        .route("/api/nodes", get(nodes))
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}

fn id_of(text: &str) -> Result<SessionId, ApiError> {
    text.parse().map_err(|_| ApiError::missing("session_not_found", "this is no session's id"))
}

/// The sessions, last used first. Reads sessions again that other programs changed.
async fn list(State(gateway): State<Gateway>) -> Result<Json<Value>, ApiError> {
    gateway.refresh().await?;
    let here: HashSet<SessionId> = gateway.client().session_ids().await?.into_iter().collect();
    let listed = gateway.index().list();
    let sessions: Vec<Value> = listed
        .iter()
        .filter(|one| here.contains(&one.session))
        .map(|one| {
            json!({
                "id": one.session.to_string(),
                "title": one.title,
                "turns": one.turns,
                "used_ms": one.used_ms,
            })
        })
        .collect();
    Ok(Json(json!({ "sessions": sessions })))
}

/// Begins a session, so that the page knows its id before the first turn.
async fn begin(State(gateway): State<Gateway>) -> Result<Json<Value>, ApiError> {
    let id = gateway.client().new_session(NewSession::default()).await?;
    gateway.note_use(id);
    Ok(Json(json!({ "id": id.to_string() })))
}

/// A conversation, with the node and verification state of each turn.
async fn show(State(gateway): State<Gateway>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let id = id_of(&id)?;
    let client = gateway.client();
    let views = client.session(id).history().await?;
    gateway.note_use(id);
    let info = client.session(id).info().await?;
    let pending = client.session(id).pending_messages().await?;
    let counting: HashSet<u64> =
        client.session(id).conversation().await?.turns.iter().map(|turn| turn.seq).collect();
    let turns: Vec<Value> =
        views.iter().filter(|view| counting.contains(&view.turn.link.seq)).map(describe).collect();
    Ok(Json(json!({
        "id": id.to_string(),
        "created_ms": info.created_ms,
        "turns": turns,
        "replaced": views.len() - turns.len(),
        "pending": pending.as_deref().map(messages),
        "unstored": info.unstored,
        "kept_until_ms": info.kept_until_ms,
        "trouble": info.trouble.map(|code| code.name()),
    })))
}

fn describe(view: &TurnView) -> Value {
    let receipt = view.receipt.as_ref().map(|receipt| {
        json!({
            "hash": receipt.receipt_hash().to_string(),
            "model": receipt.model.to_string(),
            "engine": receipt.engine.name(),
            "input_tokens": receipt.tokens.input,
            "output_tokens": receipt.tokens.output,
            "memory_items": receipt.memory_items,
            "seed": receipt.seed,
            "price": receipt.price,
            "first_token_ms": receipt.timings.first_token_ms,
            "decode_ms": receipt.timings.decode_ms,
        })
    });
    json!({
        "seq": view.turn.link.seq,
        "node": view.turn.link.author.to_string(),
        "time_ms": view.turn.link.time_ms,
        "link": view.turn.link.link_hash().to_string(),
        "messages": view.turn.record.as_ref().map(|record| messages(&record.messages)),
        "stored": view.stored,
        "acked": view.acked,
        "moved_from": view.replay_of.map(|from| from.seq),
        "receipt": receipt,
    })
}

fn messages(messages: &[Message]) -> Value {
    messages
        .iter()
        .map(|message| {
            let role = match message.role {
                Role::System => "system",
                Role::User => "user",
                Role::Assistant => "assistant",
                Role::Tool => "tool",
            };
            json!({ "role": role, "content": message.text })
        })
        .collect()
}

/// Gives up an unanswered message.
async fn abandon(State(gateway): State<Gateway>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    gateway.client().session(id_of(&id)?).abandon().await?;
    Ok(Json(json!({ "abandoned": true })))
}

/// Deletes a session, here and in the head index.
async fn delete(State(gateway): State<Gateway>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let id = id_of(&id)?;
    let deletion = gateway.client().session(id).delete().await?;
    gateway.index().forget(id);
    Ok(Json(json!({
        "deleted": true,
        "untold": deletion.unpublished.map(|error| error.to_string()),
    })))
}

#[derive(Deserialize)]
struct VerifyInput {
    #[serde(default)]
    full: bool,
}

/// Checks every link, record, signature and blob against the store.
async fn verify(
    State(gateway): State<Gateway>,
    Path(id): Path<String>,
    Query(input): Query<VerifyInput>,
) -> Result<Json<Value>, ApiError> {
    let id = id_of(&id)?;
    let report = gateway.client().session(id).verify_when_stored(input.full).await?;
    gateway.note_use(id);
    Ok(Json(json!({
        "good": report.is_good(),
        "turns": report.turns,
        "blobs_checked": report.blobs_checked,
        "ids_checked": report.ids_checked,
        "receipts_checked": report.receipts_checked,
        "from_store": report.from_store,
        "not_stored": report.not_stored,
        "problems": report
            .problems
            .iter()
            .map(|problem| json!({ "turn": problem.seq, "code": problem.code.name() }))
            .collect::<Vec<_>>(),
    })))
}

/// The session as evidence that any reader can check; without its root.
async fn export(State(gateway): State<Gateway>, Path(id): Path<String>) -> Result<Response, ApiError> {
    let id = id_of(&id)?;
    let text = gateway.client().session(id).export(false).await?;
    gateway.note_use(id);
    let mut response =
        ([(header::CONTENT_TYPE, "application/json")], text.as_str().to_owned()).into_response();
    let name = format!("attachment; filename=\"session-{}.json\"", &id.to_string()[..8]);
    let name = HeaderValue::from_str(&name).map_err(|_| ClientError::TaskEnded)?;
    response.headers_mut().insert(header::CONTENT_DISPOSITION, name);
    Ok(response)
}

/// The nodes found.
async fn nodes(State(gateway): State<Gateway>) -> Json<Value> {
    let nodes: Vec<Value> = gateway
        .client()
        .nodes()
        .await
        .iter()
        .map(|node| {
            // Models for conversations only.
            let offers = node.record.models.iter().filter(|offer| offer.engine != EngineKind::Embedding);
            json!({
                "node": node.record.node.to_string(),
                "models": offers.map(|offer| &offer.name).collect::<Vec<_>>(),
                "connected": node.connected,
                "slots": node.record.limits.slots,
            })
        })
        .collect();
    Json(json!({ "nodes": nodes }))
}
