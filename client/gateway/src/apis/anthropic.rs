//! Anthropic's Messages API: `/v1/messages`, answered whole or as server-sent events, and its list of models.

mod events;
mod request;

use axum::{
    Json, Router,
    body::Body,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use baton_proto::tools::Definitions;
use serde_json::{Value, json};

use crate::{
    apis::openai::responses::ResponseId,
    clock::rfc3339,
    form::{
        completion::{CompletionRequest, RequestPlace},
        logprobs::LogprobsRequest,
    },
    http::{
        api_error::ApiError,
        event_stream::{self, ServerEvent},
        session_header::{name_session, named_session},
    },
    models::{self, ModelEntry},
    state::{Gateway, GatewayState},
    turns::answer::start,
};
use events::MessageWriter;
use request::{read_request, token_estimate};

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
    // The form has no field for the parameter.
    let message = match api_error.param().map(request::own_param) {
        Some(param) if !api_error.message().contains(&param) => format!("{param}: {}", api_error.message()),
        _ => api_error.message().to_owned(),
    };
    let mut body = json!({
        "type": "error",
        "error": { "type": kind, "message": message, "code": api_error.code() },
    });
    // The API's clients go on without a thread, or begin another.
    if let (Some(code), Some(Value::Object(error))) = (api_error.thread_code(), body.get_mut("error")) {
        error.insert("details".to_owned(), json!({ "error_code": code }));
    }
    if let (Some(id), Value::Object(body)) = (request_id, &mut body) {
        body.insert("request_id".to_owned(), id.into());
    }
    body
}

/// A message in answer to the last ones.
async fn create(gateway: Gateway, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    let (slot, body) = gateway.receive(body).await?;
    let mut request = read_request(&body, named_session(&headers)?)?;
    if request.keeps_tools {
        request.tools = thread_tools(&gateway, &request).await?;
    }
    if request.sampling.stop.len() > 1
        && models::report_probabilities(&gateway, request.model.as_deref()).await
    {
        // The bytes of the last tokens say which sequence was met.
        request.logprobs = Some(LogprobsRequest::of_bytes());
    }
    let stream = request.stream;
    let (parser, is_one_call) = (request.answer_parser(), request.is_one_call);
    let mut writer = MessageWriter::new(&request, parser);
    let mut running = start(&gateway, slot, request).await?;
    let session = running.session;
    let named = |api_error: ApiError| api_error.of(session);
    writer.set_id(ResponseId { session, seq: running.seq, is_one_call });
    let first = running.first_step(&mut writer.model, stream).await.map_err(named)?;
    let mut response = if stream {
        let ping = ServerEvent::named("ping", r#"{"type":"ping"}"#);
        event_stream::respond(writer.events(first, running), event_stream::KEEP_ALIVE, ping)
    } else {
        Json(writer.whole(&running.whole(first).await.map_err(named)?)).into_response()
    };
    name_session(&mut response, session);
    Ok(response)
}

/// The tools of the session in which a thread goes on, whose turn must be there.
async fn thread_tools(
    gateway: &Gateway,
    request: &CompletionRequest,
) -> Result<Option<Definitions>, ApiError> {
    let id = request.session.as_deref().and_then(|id| id.parse().ok());
    let (Some(id), RequestPlace::AfterTurn(seq)) = (id, request.place) else { return Ok(None) };
    let lost = |api_error: ApiError| {
        if api_error.status() == StatusCode::NOT_FOUND { ApiError::thread_not_found() } else { api_error }
    };
    let session = gateway.session(id).await.map_err(lost)?;
    let conversation = session.conversation().await.map_err(|error| lost(error.into()))?;
    if !conversation.turns.iter().any(|turn| turn.seq == seq) {
        return Err(ApiError::thread_not_found());
    }
    Ok(Definitions::pinned(&session.system().await?).flatten())
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
    let id_of = |model: Option<&Value>| model.and_then(|model| model.get("id")).cloned();
    json!({
        "first_id": id_of(data.first()),
        "last_id": id_of(data.last()),
        "has_more": false,
        "data": data,
    })
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
