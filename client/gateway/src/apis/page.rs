//! The chat page's own routes, beside the endpoint for programs. They need the key.

#[cfg(not(target_family = "wasm"))]
pub(crate) mod files;
mod live;
mod turns;

use std::collections::HashSet;

use axum::{
    Json, Router,
    body::Body,
    http::header,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use baton_proto::{
    ids::SessionId, limits::MAX_OUTPUT_TOKENS, link::BranchPoint, receipt::EngineKind, tools::is_definitions,
};
use serde_json::{Value, json};

use crate::{
    form::fields::{BodyFields, with},
    http::api_error::ApiError,
    state::{Gateway, GatewayState, PathSession},
};
use baton_client::{MODEL_OUTPUT_TOKENS, NewSession, SessionBranch};
use turns::{describe_turns, messages, replaced_count};

/// The routes that the page calls.
pub(crate) fn routes() -> Router<GatewayState> {
    Router::new()
        .route("/api/defaults", get(defaults))
        .route("/api/sessions", get(list).post(begin))
        .route("/api/sessions/search", get(search))
        .route("/api/sessions/{id}", get(show).patch(rename).delete(delete))
        .route("/api/sessions/{id}/turns", post(live::begin))
        .route("/api/sessions/{id}/answer", get(live::follow))
        .route("/api/sessions/{id}/stop", post(live::stop))
        .route("/api/sessions/{id}/abandon", post(abandon))
        .route("/api/sessions/{id}/verify", post(verify))
        .route("/api/sessions/{id}/export", get(export))
        .route("/api/nodes", get(nodes))
}

/// The settings that apply where a request sets none, and who can read what under them.
async fn defaults(gateway: Gateway) -> Json<Value> {
    let config = gateway.config();
    let fields = json!({
        "model": config.template.route.model,
        "temperature": config.template.sampling.temperature,
        // Null where the model decides.
        "max_tokens": Some(config.template.max_output_tokens).filter(|tokens| *tokens != MODEL_OUTPUT_TOKENS),
        "largest_max_tokens": MAX_OUTPUT_TOKENS,
    });
    Json(with(fields, gateway.privacy().fields()))
}

/// The sessions, last used first. Reads sessions again that other programs changed.
async fn list(gateway: Gateway) -> Result<Json<Value>, ApiError> {
    gateway.refresh().await?;
    let here: HashSet<SessionId> = gateway.client().session_ids().await?.into_iter().collect();
    let project = gateway.caller.project();
    let listed = gateway.index().list(project);
    let sessions: Vec<Value> = listed
        .iter()
        .filter(|(one, _)| here.contains(&one.session))
        .map(|(one, turns)| {
            json!({
                "id": one.session.to_string(),
                "title": one.title,
                "project": one.project.as_ref().filter(|_| project.is_none()),
                "turns": turns,
                "used_ms": one.used_ms,
                "branch_of": one.branch.as_ref().map(describe_branch),
                "running": gateway.inner.session_slots.reader(one.session),
            })
        })
        .collect();
    Ok(Json(json!({ "sessions": sessions })))
}

/// Begins a session, so that the page knows its id before the first turn.
async fn begin(gateway: Gateway) -> Result<Json<Value>, ApiError> {
    let project = gateway.caller.project().map(str::to_owned);
    let id = gateway.client().new_session(NewSession { project, ..NewSession::default() }).await?;
    gateway.note_use(id);
    Ok(Json(json!({ "id": id.to_string() })))
}

/// Turns that a fork left beside the conversation.
fn describe_fork(branch: &SessionBranch) -> Value {
    let turns =
        branch.turns.iter().map(|turn| json!({ "seq": turn.seq, "messages": messages(&turn.messages) }));
    json!({ "name": branch.name, "turns": turns.collect::<Vec<_>>() })
}

/// The parent of a branch, and its last shared link.
fn describe_branch(branch: &BranchPoint) -> Value {
    json!({ "session": branch.session_id.to_string(), "link": branch.link_hash.to_string() })
}

/// Most characters of the words to search for.
const MAX_QUERY_CHARS: usize = 200;

/// The sessions that have all words, in any of their messages or in their title; last used first. It reads
/// every journal, so one search runs at a time.
async fn search(gateway: Gateway, mut input: BodyFields) -> Result<Json<Value>, ApiError> {
    let words = input.text("q")?.unwrap_or_default();
    if words.chars().count() > MAX_QUERY_CHARS {
        return Err(ApiError::value("q", format!("q has at most {MAX_QUERY_CHARS} characters")));
    }
    let _slot = gateway.inner.search_slot.lock().await;
    let found = gateway.client().search(&words, gateway.caller.project()).await?;
    let sessions: Vec<Value> = found
        .iter()
        .map(|one| {
            let session = &one.session;
            json!({
                "id": session.id.to_string(),
                "title": session.title,
                "turns": session.effective_turns,
                "used_ms": session.last_ms.unwrap_or(session.created_ms),
                "snippet": one.snippet,
            })
        })
        .collect();
    Ok(Json(json!({ "sessions": sessions })))
}

/// Gives a session a title of its own, or takes it away.
async fn rename(
    gateway: Gateway,
    PathSession(session): PathSession,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let (_slot, body) = gateway.read(body).await?;
    let title = BodyFields::of_body(&body)?.text("title")?;
    session.rename(title.as_deref()).await?;
    gateway.learn(session.id()).await;
    Ok(Json(json!({})))
}

/// A conversation, with the node and verification state of each turn; with `replaced`, of replaced turns too.
async fn show(
    gateway: Gateway,
    PathSession(session): PathSession,
    mut input: BodyFields,
) -> Result<Json<Value>, ApiError> {
    let replaced = input.flag("replaced")?.unwrap_or(false);
    let id = session.id();
    let views = session.history().await?;
    let info = session.info().await?;
    let pending = session.pending_messages().await?;
    let lifetimes = session.lifetimes().await?;
    let branch = session.conversation().await?.branch;
    let branches = session.branches().await?;
    let mut system = session.system().await?;
    system.retain(|message| !is_definitions(message));
    let turns = describe_turns(&views, &lifetimes, &gateway.inner.model_names.lock(), replaced);
    Ok(Json(json!({
        "id": id.to_string(),
        "created_ms": info.created_ms,
        "turns": turns,
        "replaced": replaced_count(&views),
        "system": messages(&system),
        "branch_of": branch.as_ref().map(describe_branch),
        "branches": branches.iter().map(describe_fork).collect::<Vec<_>>(),
        // The part of the answer that arrived before it stopped; no part of the conversation.
        "pending_text": pending.is_some().then_some(info.pending_text),
        "pending": pending.as_deref().map(messages),
        // For whom the pending message is being answered.
        "running": gateway.inner.session_slots.reader(id),
        "deleted_elsewhere": info.deleted_elsewhere,
        "unstored": info.unstored,
        "kept_until_ms": info.kept_until_ms,
        "trouble": info.trouble.map(|code| code.name()),
    })))
}

/// Gives up an unanswered message.
async fn abandon(PathSession(session): PathSession) -> Result<Json<Value>, ApiError> {
    session.abandon().await?;
    Ok(Json(json!({ "abandoned": true })))
}

/// Deletes a session, here and in the head index.
async fn delete(gateway: Gateway, PathSession(session): PathSession) -> Result<Json<Value>, ApiError> {
    let deletion = session.delete().await?;
    gateway.index().forget(session.id());
    Ok(Json(json!({
        "deleted": true,
        "untold": deletion.unpublished.map(|error| error.to_string()),
    })))
}

/// Checks every link, record, signature and blob against the store.
async fn verify(PathSession(session): PathSession, mut input: BodyFields) -> Result<Json<Value>, ApiError> {
    let report = session.verify_when_stored(input.flag("full")?.unwrap_or(false)).await?;
    Ok(Json(json!({
        "good": report.is_good(),
        "turns": report.turns,
        "blobs_checked": report.blobs_checked,
        "ids_checked": report.ids_checked,
        "receipts_checked": report.receipts_checked,
        "segments": report.segments,
        "from_store": report.from_store,
        "from_own": report.from_own,
        "receipts_missing": report.receipts_missing,
        "not_stored": report.not_stored,
        "problems": report
            .problems
            .iter()
            .map(|problem| json!({ "turn": problem.seq, "code": problem.code.name() }))
            .collect::<Vec<_>>(),
    })))
}

/// The session as evidence that any reader can check; without its root.
async fn export(PathSession(session): PathSession) -> Result<Response, ApiError> {
    if session.info().await?.turns == 0 {
        return Err(ApiError::new(
            "session_empty",
            "the session has no turn yet, so there is nothing to export",
        ));
    }
    let text = session.export(false).await?;
    let name = format!("attachment; filename=\"session-{:.8}.json\"", session.id().to_string());
    let headers =
        [(header::CONTENT_TYPE, "application/json".to_owned()), (header::CONTENT_DISPOSITION, name)];
    Ok((headers, text.as_str().to_owned()).into_response())
}

/// The nodes found.
async fn nodes(gateway: Gateway) -> Json<Value> {
    let nodes = gateway.client().nodes().await;
    gateway.inner.model_names.lock().learn(&nodes);
    let nodes: Vec<Value> = nodes
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
