//! OpenAI's Responses API: `/v1/responses`, answered whole or as server-sent events.
//!
//! A response is a turn of a session, and its id names both. So `previous_response_id` continues a session, or
//! branches off it, also after a restart and on another device; nothing but the session is kept.

mod answer;
mod request;

use std::fmt;

use axum::{
    Json, Router,
    body::Body,
    extract::Path,
    http::StatusCode,
    response::Response,
    routing::{get, post},
};
use baton_client::{SessionHandle, TurnView};
use baton_proto::{ids::SessionId, record::Role, tools::Definitions};
use serde_json::{Value, json};

use crate::{
    form::{
        fields::{BodyFields, page_of, with},
        tools::AnswerParser,
    },
    http::{api_error::ApiError, exact},
    state::{Gateway, GatewayState},
    turns::response::respond,
};
use answer::{ResponseFrame, ResponseWriter, input_item};
use request::{ResponseRequest, own_name};

/// Most input items in one page of a list, as in OpenAI's API.
const MAX_LISTED: u8 = 100;
/// Input items in a page unless the request sets a number.
const LISTED: usize = 20;

const COMPACT: &str =
    "compact is not served: a session keeps its turns, and nodes read those that fit their context";
const CANCEL: &str =
    "only a response in the background can be cancelled; to stop this one, close its connection";

/// The routes.
pub(crate) fn routes() -> Router<GatewayState> {
    Router::new()
        .route("/v1/responses", post(create))
        .route("/v1/responses/input_tokens", post(count_tokens))
        .route("/v1/responses/compact", post(async || ApiError::unsupported("", COMPACT)))
        .route("/v1/responses/{id}", get(retrieve).delete(delete))
        .route("/v1/responses/{id}/input_items", get(input_items))
        .route("/v1/responses/{id}/cancel", post(async || ApiError::unsupported("", CANCEL)))
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

    /// The error for an id that a request names as the previous one, and that names no kept response.
    fn unknown() -> ApiError {
        let message = "no response with this id is kept here; one with store false is never kept";
        ApiError::request("previous_response_not_found", "previous_response_id", message)
    }
}

/// The id, without a prefix.
impl fmt::Display for ResponseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:016x}{}", self.session, self.seq, if self.is_one_call { ONE_CALL } else { "" })
    }
}

/// A response to a new input.
async fn create(gateway: Gateway, body: Body) -> Result<Response, ApiError> {
    let (slot, body) = gateway.receive(body).await?;
    let ResponseRequest { completion, previous, echo } = ResponseRequest::read(&body)?;
    if let Some(previous) = previous {
        session_of(&gateway, previous, ResponseId::unknown).await?;
    }
    let frame = ResponseFrame {
        id: format!("resp_{}", hex::encode(baton_keys::secret::random_bytes::<40>())),
        created_s: gateway.now_s(),
        model: String::new(),
        echo,
    };
    let writer = ResponseWriter::new(frame, &completion, gateway.inner.response_labels.clone());
    respond(&gateway, slot, completion, writer).await.map_err(own_name)
}

/// The session of a response that can be followed: its turn is part of the session.
pub(crate) async fn session_of(
    gateway: &Gateway,
    id: ResponseId,
    unknown: impl Fn() -> ApiError,
) -> Result<SessionHandle, ApiError> {
    let found = async {
        let session = gateway.session(id.session).await?;
        let turns = session.conversation().await?.turns;
        Ok(turns.iter().any(|turn| turn.seq == id.seq).then_some(session))
    };
    found.await.map_err(|error| known(error, &unknown))?.ok_or_else(unknown)
}

/// The error of a response whose session is not here.
fn known(api_error: ApiError, unknown: impl Fn() -> ApiError) -> ApiError {
    if api_error.status() == StatusCode::NOT_FOUND { unknown() } else { api_error }
}

fn not_found() -> ApiError {
    ApiError::new("response_not_found", "no response with this id is kept here")
}

/// A kept response with its session and its turn.
async fn find(gateway: &Gateway, text: &str) -> Result<(ResponseId, SessionHandle, TurnView), ApiError> {
    let id = ResponseId::parse(RESPONSE_ID, text).ok_or_else(not_found)?;
    let history = async {
        let session = gateway.session(id.session).await?;
        let history = session.history().await?;
        Ok::<_, ApiError>((session, history))
    };
    let (session, history) = history.await.map_err(|error| known(error, not_found))?;
    gateway.note_use(id.session);
    let view = history.into_iter().find(|view| view.turn.link.seq == id.seq && view.turn.record.is_some());
    Ok((id, session, view.ok_or_else(not_found)?))
}

/// A kept response. Parameters that only its request had are absent from it.
async fn retrieve(
    gateway: Gateway,
    Path(id): Path<String>,
    mut options: BodyFields,
) -> Result<Response, ApiError> {
    if options.flag("stream")? == Some(true) {
        let message = "a kept response is read whole: leave stream out";
        return Err(ApiError::unsupported("stream", message));
    }
    let (id, session, view) = find(&gateway, &id).await?;
    let tools = Definitions::pinned(&session.system().await?).flatten();
    let model = view.receipt.as_ref().map(|receipt| {
        let names = gateway.inner.model_names.lock();
        names.name(&receipt.model).map_or_else(|| receipt.model.to_string(), str::to_owned)
    });
    let frame = ResponseFrame {
        id: format!("{RESPONSE_ID}{id}"),
        created_s: view.turn.link.time_ms / 1000,
        model: model.unwrap_or_default(),
        echo: json!({ "metadata": gateway.inner.response_labels.of((id.session, id.seq)) }),
    };
    let parser = tools.map(|tools| AnswerParser::new(tools, id.is_one_call, false));
    Ok(exact::respond(&frame.of_turn(&view, parser)))
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
    let (id, _, view) = find(&gateway, &id).await?;
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
    Ok(Json(with(json!({ "object": "list" }), page_of(&items, more))))
}

/// Deletes the session of a response that is its only turn. Other turns would lose their history with it.
async fn delete(gateway: Gateway, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let (id, session, _) = find(&gateway, &id).await?;
    if session.history().await?.len() != 1 {
        let message = "this response is part of a longer conversation, which is one chain: \
                       delete the session with baton session delete, or on the chat page";
        return Err(ApiError::new("response_in_conversation", message));
    }
    session.delete().await?;
    gateway.index().forget(id.session);
    Ok(Json(json!({ "id": format!("{RESPONSE_ID}{id}"), "object": "response", "deleted": true })))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_session_and_turn_and_nothing_else_is_one() {
        let id = ResponseId { session: SessionId([0xab; 32]), seq: 258, is_one_call: false };
        let text = format!("resp_{id}");
        assert_eq!((text.len(), ResponseId::parse(RESPONSE_ID, &text)), (85, Some(id)));
        let one_call = ResponseId { is_one_call: true, ..id };
        assert_eq!(ResponseId::parse("", &one_call.to_string()), Some(one_call));
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
