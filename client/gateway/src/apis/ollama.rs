//! Ollama's API: `/api/chat`, `/api/generate`, `/api/embed`, and what its clients ask about models. Answers come
//! whole, or as lines of JSON.
//!
//! Nodes hold the models, and their operators choose them: nothing is pulled, made or deleted here.

mod answer;
mod request;

use std::time::Duration;

use axum::{
    Json, Router,
    body::Body,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{any, get, post},
};
use baton_proto::receipt::EngineKind;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    clock::rfc3339,
    form::completion::CompletionRequest,
    http::{api_error::ApiError, session_header::named_session},
    models::{self, ModelEntry, bare_name},
    state::{Gateway, GatewayState, request_slots::RequestSlot},
    turns::response::respond,
};
use answer::LineWriter;
use request::{own_param, read_chat, read_embed, read_generate, read_model};

/// The addresses below `/api` that are no part of this API: the chat page's, and those of keys.
const OTHER_ROUTES: [&str; 5] = ["sessions", "nodes", "defaults", "usage", "memory"];
/// The version of Ollama whose API this follows: clients look for features by it.
const FOLLOWED_VERSION: &str = "0.12.0";
/// Routes that make, copy, push or delete models.
const REFUSED: [&str; 5] = ["/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs/{*digest}"];
/// How long a model is said to stay: nodes keep theirs loaded.
const STAYS: Duration = Duration::from_secs(300);

/// The routes.
pub(crate) fn routes() -> Router<GatewayState> {
    Router::new()
        .route("/api/chat", post(chat))
        .route("/api/generate", post(generate))
        .route("/api/embed", post(embed))
        .route("/api/embeddings", post(embed_one))
        .route("/api/tags", get(list))
        .route("/api/show", post(show))
        .route("/api/ps", get(list))
        .route("/api/version", get(version))
        .route("/api/pull", post(pull))
        .merge(REFUSED.iter().fold(Router::new(), |routes, path| routes.route(path, any(not_here))))
}

/// Whether an address belongs to this API.
pub(crate) fn is_own(path: &str) -> bool {
    let route = path.strip_prefix("/api/").and_then(|rest| rest.split('/').next());
    route.is_some_and(|route| !OTHER_ROUTES.contains(&route))
}

/// An error in this API's form.
pub(crate) fn error_body(api_error: &ApiError) -> Value {
    json!({ "error": api_error.message_with_param(own_param), "code": api_error.code() })
}

/// The next message of a conversation.
async fn chat(gateway: Gateway, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    let (slot, body) = gateway.receive(body).await?;
    let request = read_chat(&body, named_session(&headers)?)?;
    answer(&gateway, slot, request, true).await
}

/// An answer to a text that belongs to no conversation.
async fn generate(gateway: Gateway, body: Body) -> Result<Response, ApiError> {
    let (slot, body) = gateway.receive(body).await?;
    let request = read_generate(&body)?;
    answer(&gateway, slot, request, false).await
}

async fn answer(
    gateway: &Gateway,
    slot: RequestSlot,
    request: CompletionRequest,
    is_chat: bool,
) -> Result<Response, ApiError> {
    let writer = LineWriter::new(gateway, is_chat);
    // Clients ask so to have a model loaded, which nodes do by themselves.
    if request.messages.iter().all(|message| message.text.is_empty()) {
        return Ok(Json(writer.loaded(request.model.as_deref())).into_response());
    }
    respond(gateway, slot, request, writer).await
}

/// The vectors of some texts.
async fn embed(gateway: Gateway, body: Body) -> Result<Json<Value>, ApiError> {
    let begun = Instant::now();
    let (_slot, body) = gateway.receive(body).await?;
    let (texts, ignored) = read_embed(&body, "input")?;
    let embedded = texts.embed(&gateway).await?;
    let vectors: Vec<&[f32]> = embedded.texts.iter().map(|text| text.vector.as_slice()).collect();
    let tokens: u64 = embedded.texts.iter().map(|text| u64::from(text.tokens)).sum();
    Ok(Json(json!({
        "model": embedded.model,
        "embeddings": vectors,
        "total_duration": nanoseconds(begun.elapsed()),
        "load_duration": 0,
        "prompt_eval_count": tokens,
        "baton": { "ignored": ignored },
    })))
}

/// The vector of one text, as older clients ask for it.
async fn embed_one(gateway: Gateway, body: Body) -> Result<Json<Value>, ApiError> {
    let (_slot, body) = gateway.receive(body).await?;
    let (text, ignored) = read_embed(&body, "prompt")?;
    let embedded = text.embed(&gateway).await?;
    let vector = embedded.texts.first().map(|text| text.vector.as_slice());
    Ok(Json(json!({ "embedding": vector, "baton": { "ignored": ignored } })))
}

/// The models that the found nodes serve, which all are loaded.
async fn list(gateway: Gateway) -> Result<Json<Value>, ApiError> {
    let until = rfc3339(gateway.now_s() + STAYS.as_secs());
    let models = models::offered(&gateway).await?;
    let models = models.iter().map(|(name, entry)| {
        json!({
            "name": name,
            "model": name,
            "modified_at": rfc3339(entry.since_s),
            // Offers have no sizes.
            "size": 0,
            "size_vram": 0,
            "digest": entry.offer.model.to_string(),
            "details": details(),
            "expires_at": until,
            "context_length": entry.offer.context_tokens,
            "baton": about(entry),
        })
    });
    Ok(Json(json!({ "models": models.collect::<Vec<_>>() })))
}

/// A model, as far as nodes describe it.
async fn show(gateway: Gateway, body: Body) -> Result<Json<Value>, ApiError> {
    let (_slot, body) = gateway.read(body).await?;
    let name = read_model(&body)?;
    let entry = models::find(&gateway, &name).await?;
    let abilities: &[&str] = match entry.offer.engine {
        EngineKind::Embedding => &["embedding"],
        EngineKind::Native => &["completion", "tools"],
        _ => &["completion"],
    };
    Ok(Json(json!({
        "modelfile": "",
        "parameters": "",
        "template": "",
        "license": "",
        "modified_at": rfc3339(entry.since_s),
        "details": details(),
        // Nodes do not name the architecture, below which Ollama has these.
        "model_info": {
            "general.architecture": "unknown",
            "unknown.context_length": entry.offer.context_tokens,
        },
        "capabilities": abilities,
        "baton": about(&entry),
    })))
}

async fn version() -> Json<Value> {
    Json(json!({ "version": FOLLOWED_VERSION, "baton": env!("CARGO_PKG_VERSION") }))
}

/// A model that a node serves needs no pull, and another one cannot be pulled from here.
async fn pull(gateway: Gateway, body: Body) -> Result<Response, ApiError> {
    let (_slot, body) = gateway.read(body).await?;
    let name = read_model(&body)?;
    match models::find(&gateway, &name).await {
        Ok(_) => Ok(Json(json!({ "status": "success" })).into_response()),
        Err(api_error) if api_error.status() == StatusCode::NOT_FOUND => {
            let message = format!(
                "no node serves the model {:?}, and models are not pulled here: their nodes' operators choose them",
                bare_name(&name)
            );
            Err(ApiError::new("model_not_found", message))
        }
        Err(api_error) => Err(api_error),
    }
}

async fn not_here() -> ApiError {
    let message = "models are not made, copied, pushed or deleted here: their nodes' operators choose them";
    ApiError::unsupported("", message)
}

/// The fields that Ollama reads out of a model's file. Nodes do not hand them on.
fn details() -> Value {
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": "",
        "families": [],
        "parameter_size": "",
        "quantization_level": "",
    })
}

fn about(entry: &ModelEntry) -> Value {
    json!({ "engine": entry.offer.engine.name(), "nodes": entry.nodes })
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
