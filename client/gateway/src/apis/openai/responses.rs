//! OpenAI's Responses API: `/v1/responses`, answered whole or as server-sent events.
//!
//! A response is a turn of a session, and its id names both. So `previous_response_id` continues a session, or
//! branches off it, also after a restart and on another device; nothing but the session is kept.

mod events;
mod input_items;
mod object;
mod request;

use std::fmt;

use axum::{
    Json, Router,
    body::Body,
    extract::Path,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use baton_client::{ClientError, SessionHandle, TurnView};
use baton_proto::{ids::SessionId, record::Role, tools::Definitions};
use serde_json::{Value, json};

use crate::{
    form::{completion::RequestPlace, fields::BodyFields, tools::AnswerParser},
    http::{
        api_error::ApiError,
        event_stream::{self, ServerEvent},
        session_header::name_session,
    },
    state::{Gateway, GatewayState},
    turns::answer::start,
};
use events::EventWriter;
use object::{ResponseFrame, input_item};
use request::{ResponseRequest, own_name};

/// Most input items in one page of a list, as in OpenAI's API.
const MAX_LISTED: u8 = 100;
/// Input items in a page unless the request sets a number.
const LISTED: usize = 20;

/// The routes.
pub(crate) fn routes() -> Router<GatewayState> {
    Router::new()
        .route("/v1/responses", post(create))
        .route("/v1/responses/input_tokens", post(count_tokens))
        .route("/v1/responses/compact", post(compact))
        .route("/v1/responses/{id}", get(retrieve).delete(delete))
        .route("/v1/responses/{id}/input_items", get(input_items))
        .route("/v1/responses/{id}/cancel", post(cancel))
}

/// The id of a kept response: its session and its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResponseId {
    pub(crate) session: SessionId,
    pub(crate) seq: u64,
    /// Whether its program took the first call alone. The turn keeps all that the model wrote.
    pub(crate) is_one_call: bool,
}

/// Begins the id of a response.
const RESPONSE_ID: &str = "resp_";

/// Ends the id of a response with one call.
const ONE_CALL: &str = "_1";

impl ResponseId {
    /// Reads the prefix with 64 digits for the session, 16 for the turn, and the mark of one call.
    pub(crate) fn parse(prefix: &str, text: &str) -> Option<Self> {
        let (session, rest) = text.strip_prefix(prefix)?.split_at_checked(64)?;
        let seq = rest.strip_suffix(ONE_CALL).unwrap_or(rest);
        let is_number = seq.len() == 16 && seq.bytes().all(|byte| byte.is_ascii_hexdigit());
        let seq = is_number.then(|| u64::from_str_radix(seq, 16).ok())??;
        Some(Self { session: session.parse().ok()?, seq, is_one_call: rest.ends_with(ONE_CALL) })
    }

    /// The id, after this prefix.
    pub(crate) fn with_prefix(&self, prefix: &str) -> String {
        let mark = if self.is_one_call { ONE_CALL } else { "" };
        format!("{prefix}{}{:016x}{mark}", self.session, self.seq)
    }

    /// The error for an id that names no kept response.
    fn unknown(param: &str) -> ApiError {
        let message = "no response with this id is kept here; one with store false is never kept";
        ApiError::request("previous_response_not_found", param, message)
    }
}

impl fmt::Display for ResponseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.with_prefix(RESPONSE_ID))
    }
}

/// A response to a new input.
async fn create(gateway: Gateway, body: Body) -> Result<Response, ApiError> {
    let (slot, body) = gateway.receive(body).await?;
    let mut request = ResponseRequest::read(&body)?;
    if let Some(previous) = request.previous {
        request.completion.session = Some(previous.session.to_string());
        request.completion.place = RequestPlace::AfterTurn(previous.seq);
        check_kept(&gateway, previous).await?;
    }
    let parser = request.completion.answer_parser();
    let (ephemeral, is_one_call) = (request.completion.is_ephemeral(), request.completion.is_one_call);
    let mut frame = ResponseFrame {
        id: format!("resp_{}", hex::encode(baton_keys::secret::random_bytes::<40>())),
        created_s: gateway.client().now_ms() / 1000,
        model: request.completion.model.clone().unwrap_or_default(),
        echo: request.echo,
    };
    let stream = request.completion.stream;
    let mut running = start(&gateway, slot, request.completion).await.map_err(own_name)?;
    let session = running.session;
    let named = |api_error| {
        let api_error = own_name(api_error);
        if ephemeral { api_error } else { api_error.of(session) }
    };
    let first = running.first_step(&mut frame.model, stream).await.map_err(named)?;
    let kept = (!ephemeral).then_some(ResponseId { session, seq: running.seq, is_one_call });
    if let Some(id) = kept {
        frame.id = id.to_string();
    }
    let writer = EventWriter::new(frame, kept, parser);
    let mut response = if stream {
        // Codex ends a stream after minutes without an event; a comment is none.
        let alive = ServerEvent::named("keepalive", r#"{"type":"keepalive"}"#);
        let events = writer.events(first, running);
        event_stream::respond(events, event_stream::KEEP_ALIVE, alive)
    } else {
        let whole = running.whole(first).await.map_err(named)?;
        Json(writer.whole(&whole)).into_response()
    };
    if !ephemeral {
        name_session(&mut response, session);
    }
    Ok(response)
}

/// Checks that a response can be followed: its turn is part of its session.
async fn check_kept(gateway: &Gateway, previous: ResponseId) -> Result<(), ApiError> {
    let unknown = || ResponseId::unknown("previous_response_id");
    let conversation = match visible(gateway, previous.session, unknown).await?.conversation().await {
        Err(ClientError::UnknownSession(_) | ClientError::Deleted) => return Err(unknown()),
        conversation => conversation?,
    };
    let is_there = conversation.turns.iter().any(|turn| turn.seq == previous.seq);
    if is_there { Ok(()) } else { Err(unknown()) }
}

/// The session of a response, if the caller may see it.
async fn visible(
    gateway: &Gateway,
    session: SessionId,
    unknown: impl Fn() -> ApiError,
) -> Result<SessionHandle, ApiError> {
    let handle = gateway.session(session).await;
    handle
        .map_err(|api_error| if api_error.status() == StatusCode::NOT_FOUND { unknown() } else { api_error })
}

/// A kept response with its turn.
async fn find(gateway: &Gateway, text: &str) -> Result<(ResponseId, TurnView), ApiError> {
    let unknown = || ApiError::missing("response_not_found", "no response with this id is kept here");
    let id = ResponseId::parse(RESPONSE_ID, text).ok_or_else(unknown)?;
    let history = match visible(gateway, id.session, unknown).await?.history().await {
        Err(ClientError::UnknownSession(_) | ClientError::Deleted) => return Err(unknown()),
        history => history?,
    };
    gateway.note_use(id.session);
    let view = history.into_iter().find(|view| view.turn.link.seq == id.seq && view.turn.record.is_some());
    Ok((id, view.ok_or_else(unknown)?))
}

/// A kept response. Parameters that only its request had are absent from it.
async fn retrieve(
    gateway: Gateway,
    Path(id): Path<String>,
    mut options: BodyFields,
) -> Result<Json<Value>, ApiError> {
    if options.flag("stream")? == Some(true) {
        let message = "a kept response is read whole: leave stream out";
        return Err(ApiError::unsupported("stream", message));
    }
    let (id, view) = find(&gateway, &id).await?;
    let system = gateway.client().session(id.session).system().await?;
    let tools = Definitions::pinned(&system).flatten();
    let model = view.receipt.as_ref().map(|receipt| {
        let names = gateway.model_names();
        names.name(&receipt.model).map_or_else(|| receipt.model.to_string(), str::to_owned)
    });
    let frame = ResponseFrame {
        id: id.to_string(),
        created_s: view.turn.link.time_ms / 1000,
        model: model.unwrap_or_default(),
        echo: serde_json::Map::new(),
    };
    let parser = tools.map(|tools| AnswerParser::new(tools, id.is_one_call, false));
    Ok(Json(frame.of_turn(&view, parser)))
}

/// The messages that a response answered, without those of earlier turns.
async fn input_items(
    gateway: Gateway,
    Path(id): Path<String>,
    mut options: BodyFields,
) -> Result<Json<Value>, ApiError> {
    let limit = options.whole("limit", 1..=MAX_LISTED)?.map_or(LISTED, usize::from);
    let order = options.text("order")?;
    let newest_first = match order.as_deref() {
        None | Some("desc") => true,
        Some("asc") => false,
        Some(_) => return Err(ApiError::value("order", "order is asc or desc")),
    };
    let (id, view) = find(&gateway, &id).await?;
    let messages = view.turn.record.as_ref().map_or(&[][..], |record| &record.messages);
    let answer = messages.iter().rposition(|message| message.role == Role::Assistant);
    let asked = messages.iter().take(answer.unwrap_or(messages.len()));
    let mut items: Vec<Value> =
        asked.enumerate().map(|(index, message)| input_item(id, index, message)).collect();
    if newest_first {
        items.reverse();
    }
    if let Some(after) = options.text("after")? {
        let place = items.iter().position(|item| item.get("id").and_then(Value::as_str) == Some(&after));
        let Some(place) = place else {
            return Err(ApiError::value("after", "no item of this list has this id"));
        };
        items.drain(..=place);
    }
    let more = items.len() > limit;
    items.truncate(limit);
    let id_of = |item: Option<&Value>| item.and_then(|item| item.get("id")).cloned();
    Ok(Json(json!({
        "object": "list",
        "first_id": id_of(items.first()),
        "last_id": id_of(items.last()),
        "has_more": more,
        "data": items,
    })))
}

/// Deletes the session of a response that is its only turn. Other turns would lose their history with it.
async fn delete(gateway: Gateway, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let (id, _) = find(&gateway, &id).await?;
    let handle = gateway.client().session(id.session);
    if handle.history().await?.len() != 1 {
        let message = "this response is part of a longer conversation, which is one chain: \
                       delete the session with baton session delete, or on the chat page";
        return Err(ApiError::conflict("response_in_conversation", message));
    }
    handle.delete().await?;
    gateway.index().forget(id.session);
    Ok(Json(json!({ "id": id.to_string(), "object": "response", "deleted": true })))
}

/// An estimate of a request's tokens, without those of an earlier response. Only a node has the model's vocabulary,
/// and it is not asked.
async fn count_tokens(gateway: Gateway, body: Body) -> Result<Json<Value>, ApiError> {
    let (_slot, body) = gateway.read(body).await?;
    let request = ResponseRequest::read(&body)?;
    if request.previous.is_some() {
        let message = "an estimate is of the texts in the request: send the earlier ones as input";
        return Err(ApiError::unsupported("previous_response_id", message));
    }
    let tokens = request.completion.input_estimate();
    let baton = json!({ "estimate": true });
    Ok(Json(json!({ "object": "response.input_tokens", "input_tokens": tokens, "baton": baton })))
}

/// No conversation is made shorter: a session keeps all its turns, and a node reads those that fit its context.
async fn compact() -> ApiError {
    let message =
        "compact is not served: a session keeps its turns, and nodes read those that fit their context";
    ApiError::unsupported("", message)
}

/// Only responses in the background can be cancelled, and there are none.
async fn cancel(gateway: Gateway, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    find(&gateway, &id).await?;
    let message =
        "only a response in the background can be cancelled; to stop this one, close its connection";
    Err(ApiError::request("response_not_cancellable", "", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_session_and_turn_and_nothing_else_is_one() {
        let id = ResponseId { session: SessionId([0xab; 32]), seq: 258, is_one_call: false };
        let text = id.to_string();
        assert_eq!((text.len(), ResponseId::parse(RESPONSE_ID, &text)), (85, Some(id)));
        let one_call = ResponseId { is_one_call: true, ..id };
        assert_eq!(ResponseId::parse(RESPONSE_ID, &one_call.to_string()), Some(one_call));
        let upper = text.replace("0102", "01+2");
        for other in
            ["", "resp_", "resp_é", &text[..84], &format!("{text}0"), &text.replace("resp", "rasp"), &upper]
        {
            assert_eq!(ResponseId::parse(RESPONSE_ID, other), None, "{other}");
        }
        let ephemeral = format!("resp_{}", hex::encode([7; 40]));
        assert!(ResponseId::parse(RESPONSE_ID, &ephemeral).is_some(), "its session is unknown instead");
    }
}
