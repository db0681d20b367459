//! Anthropic's Messages API: `/v1/messages`, answered whole or as server-sent events, and its list of models.

mod answer;
mod request;

use axum::{
    Json, Router,
    body::Body,
    http::{HeaderMap, StatusCode},
    response::Response,
    routing::post,
};
use baton_proto::tools::Definitions;
use serde_json::{Value, json};

use crate::{
    apis::openai::responses::session_of,
    clock::rfc3339,
    form::{
        fields::{page_of, with},
        logprobs::LogprobsRequest,
    },
    http::{api_error::ApiError, session_header::named_session},
    models::{self, ModelEntry},
    state::{Gateway, GatewayState},
    turns::response::respond,
};
use answer::MessageWriter;
use request::{
    THREAD_NOT_FOUND, THREAD_UNSUPPORTED, own_param, read_request, thread_not_found, token_estimate,
};

/// The header that every client of this API sends.
const VERSION: &str = "anthropic-version";

/// The routes.
pub(crate) fn routes() -> Router<GatewayState> {
    Router::new().route("/v1/messages", post(create)).route("/v1/messages/count_tokens", post(count_tokens))
}

/// Whether a client of this API sends a request, by its headers.
pub(crate) fn is_client(headers: &HeaderMap) -> bool {
    headers.contains_key(VERSION)
}

/// Whether a request belongs to this API.
pub(crate) fn is_own(path: &str, headers: &HeaderMap) -> bool {
    path.starts_with("/v1/messages") || is_client(headers)
}

/// An error in this API's form.
pub(crate) fn error_body(api_error: &ApiError, request_id: Option<&str>) -> Value {
    let kind = match api_error.status() {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "api_error",
    };
    let message = api_error.message_with_param(own_param);
    // By these details, the API's clients go on without a thread, or begin another.
    let details = match api_error.code() {
        code @ (THREAD_NOT_FOUND | THREAD_UNSUPPORTED) => json!({ "details": { "error_code": code } }),
        _ => Value::Null,
    };
    let error = with(json!({ "type": kind, "message": message, "code": api_error.code() }), details);
    let request = request_id.map(|id| json!({ "request_id": id }));
    with(json!({ "type": "error", "error": error }), request.into())
}

/// A message in answer to the last ones.
async fn create(gateway: Gateway, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    let (slot, body) = gateway.receive(body).await?;
    let (mut request, previous) = read_request(&body, named_session(&headers)?)?;
    if let Some(previous) = previous {
        let session = session_of(&gateway, previous, thread_not_found).await?;
        if request.tools.is_none() {
            // A thread has the tools with which it began.
            request.tools = Definitions::pinned(&session.system().await?).flatten();
        }
    }
    if request.sampling.stop.len() > 1
        && models::report_probabilities(&gateway, request.model.as_deref()).await
    {
        // The bytes of the tokens say which sequence was met.
        request.logprobs = Some(LogprobsRequest::default());
    }
    let writer = MessageWriter::new(&request);
    respond(&gateway, slot, request, writer).await
}

/// An estimate of a request's tokens. Only a node has the model's vocabulary, and it is not asked.
async fn count_tokens(gateway: Gateway, body: Body) -> Result<Json<Value>, ApiError> {
    let (_slot, body) = gateway.read(body).await?;
    let tokens = token_estimate(&body)?;
    Ok(Json(json!({ "input_tokens": tokens, "baton": { "estimate": true } })))
}

/// The models in this API's form.
pub(crate) fn list(models: &[(String, ModelEntry)]) -> Value {
    let data: Vec<Value> = models.iter().map(|(name, entry)| describe(name, entry)).collect();
    page_of(&data, false)
}

/// A model in this API's form.
pub(crate) fn describe(name: &str, entry: &ModelEntry) -> Value {
    json!({
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": rfc3339(entry.since_s),
    })
}
