//! `POST /v1/chat`: one turn of a conversation, with a whole answer or server-sent events. Neither the words
//! nor the session's key are kept.

use std::{convert::Infallible, sync::Arc};

use axum::{
    Json,
    http::{Method, StatusCode},
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use baton_client::SessionRoot;
use baton_memory::{api::RecallMode, limits::MAX_PAGE, model::MemoryScope};
use baton_proto::{
    ErrorCode,
    ids::SessionId,
    record::{FinishReason, Message, Role},
};
use futures::stream;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use utoipa::{ToSchema, openapi::Response as Documented};
use zeroize::Zeroizing;

use super::{
    ApiError,
    api_error::{
        BUSY, CHAT_FORKED, CHAT_GONE, CHAT_ROLLBACK, INTERNAL, MODEL, NO_NODE, RequestId, UNAVAILABLE,
        UNSUPPORTED,
    },
    extract::scope_named,
    limits::CHAT_BODY_BYTES,
    operation::{Answer, Call, Effect, Operation, Schemas},
    shapes::RecallHit,
};
use crate::{
    chat::{
        Chat, ChatAnswer, ChatError, ChatEvent, ChatRequest, DEFAULT_MEMORY_TOKENS, DEFAULT_RECALL_ITEMS,
        MemoryReport, RecalledFact,
    },
    delegation::Scope,
};

/// Most tokens of memories that a request may ask for.
const MAX_MEMORY_TOKENS: u32 = 4096;

/// The route of conversations. It carries keys of sessions.
pub(super) const PATH: &str = "/v1/chat";

/// The operation of these conversations; without them, for its documentation alone.
pub(super) fn operation(chat: Option<Chat>) -> Operation {
    let handler = move |call, input| turn(chat.clone(), call, input);
    Operation::new(
        Effect::Adds,
        Method::POST,
        PATH,
        handler,
        "Runs one turn of a session with recalled memories, and returns the answer. A client that closes the event stream \
         during the answer cancels the turn, and its message is dropped. Without a stream, the turn finishes even if the \
         client disconnects. The session's next request then gets the answer.",
    )
    .by(Scope::Chat)
    .up_to(CHAT_BODY_BYTES)
    .or(410)
    .tagged("chat")
}

/// A message.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct MessageInput {
    /// `user`, `tool`, `system` or `assistant`.
    role: String,
    content: String,
    /// Name of the tool.
    name: Option<String>,
    /// Id of the call that the tool answers.
    tool_call_id: Option<String>,
}

/// A text that is wiped on drop.
struct SecretText(Zeroizing<String>);

impl<'de> Deserialize<'de> for SecretText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(Zeroizing::new(text)))
    }
}

impl std::fmt::Debug for SecretText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretText(..)")
    }
}

/// One turn of a conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ChatInput {
    /// Messages of the turn. System messages are pinned to the session from now on. Of the others, only
    /// messages after the last `assistant` message count: the session holds the earlier messages.
    messages: Vec<MessageInput>,
    /// Name or id of the model. Default: any.
    model: Option<String>,
    /// Id of the session, 64 hex characters.
    session_id: Option<String>,
    /// Root of the session, as 64 hex characters or 24 words. Default: a new session. The relayer holds it in
    /// memory only while the request lasts.
    #[schema(value_type = Option<String>)]
    session_key: Option<SecretText>,
    /// `head` of the last answer. The turn is refused if the session has another head.
    head: Option<String>,
    /// Project of the session. Default: the shared pool.
    project: Option<String>,
    /// Persona of the conversation, set when the session begins. Default: the session's. With any other
    /// persona, nothing is recalled or recorded.
    persona: Option<String>,
    /// `full`, `neutral_and_relationship` (default), `relationship_only`, `neutral_only`, `insights_only` or
    /// `none`.
    memory_scope: Option<String>,
    /// Whether to answer as server-sent events: `started`, `text`, `restarted`, then `done` or `error`.
    #[serde(default)]
    stream: bool,
    /// Most tokens of the answer.
    max_tokens: Option<u32>,
    /// Sampling temperature, 0 to 5. Default: 0.7.
    temperature: Option<f32>,
    /// Sampling seed. Default: random.
    seed: Option<u64>,
    /// Most memories, up to 200. Default: 6.
    recall_limit: Option<usize>,
    /// Most tokens of memories, up to 4096. Default: 512.
    memory_tokens: Option<u32>,
}

/// A memory that was sent to the node with the turn.
#[derive(Debug, Serialize, ToSchema)]
struct RecalledJson {
    #[serde(flatten)]
    found: RecallHit,
    /// Whether the node used it, by its signed receipt; null while unknown.
    used: Option<bool>,
}

/// The use of memory in a turn.
#[derive(Debug, Serialize, ToSchema)]
struct MemoryJson {
    /// Kind of search: `full`, `lexical` (words only) or `none`.
    #[schema(value_type = String)]
    mode: RecallMode,
    /// Reason for a search that was not full, with any fix. If memory is lost, the turn continues without
    /// it.
    degraded: Option<String>,
    /// Number of matches that were left out.
    dropped: usize,
    /// Whether the turn is durably recorded. If not, the session's next request records it, unless memory was
    /// lost.
    recorded: Option<bool>,
}

/// Durations, in milliseconds.
#[derive(Debug, Serialize, ToSchema)]
struct LatencyJson {
    recall_ms: u64,
    first_token_ms: Option<u64>,
    total_ms: u64,
}

/// The node's receipt of the turn.
#[derive(Debug, Serialize, ToSchema)]
struct ReceiptJson {
    /// Hash of the receipt, in hex.
    hash: String,
    /// Id of the model.
    model: String,
    /// `native`, `proxied` or `echo`.
    engine: String,
    input_tokens: u32,
    output_tokens: u32,
    memory_tokens: u32,
    memory_items: u16,
    price: u64,
    /// Signed receipt as in docs/PROTOCOL.md, base64.
    signed: String,
}

/// An earlier turn that was finished first.
#[derive(Debug, Serialize, ToSchema)]
struct EarlierJson {
    turn: u64,
    content: String,
}

/// A finished turn.
#[derive(Debug, Serialize, ToSchema)]
struct ChatOutput {
    content: String,
    /// `stop`, `length` or `tool_calls`.
    finish_reason: String,
    session_id: String,
    /// Key that continues the session, here or in any client; as secret as the conversation.
    session_key: String,
    /// Head of the session; send it with the next request.
    head: String,
    request_id: String,
    /// Turn in the session, from 0.
    turn: u64,
    /// Node that served the turn.
    node: String,
    model: Option<String>,
    recalled_facts: Vec<RecalledJson>,
    memory: MemoryJson,
    receipt: Option<ReceiptJson>,
    earlier: Option<EarlierJson>,
    latency: LatencyJson,
}

/// The answer to a turn.
enum TurnAnswer {
    Whole(Box<ChatOutput>),
    /// Server-sent events.
    Events(Response),
}

impl Answer for TurnAnswer {
    fn documented(schemas: &mut Schemas) -> (StatusCode, Documented) {
        ChatOutput::documented(schemas)
    }

    fn respond(self) -> Response {
        match self {
            Self::Whole(output) => Json(output).into_response(),
            Self::Events(events) => events,
        }
    }
}

async fn turn(chat: Option<Chat>, call: Call, input: ChatInput) -> Result<TurnAnswer, ApiError> {
    let chat = chat.ok_or_else(|| ApiError::new(UNSUPPORTED))?;
    let streamed = input.stream;
    let place = call.caller.place(input.project.clone(), None, input.persona.clone())?;
    let scope = scope_named(input.memory_scope.as_deref())?;
    let mut request = read(input, scope)?;
    (request.project, request.persona) = (place.project, place.persona);
    request.without_intimate = !call.caller.sees_intimate();
    let events = chat.turn(call.owner(), request).map_err(api_error)?;
    if streamed {
        return Ok(TurnAnswer::Events(sse(events, call.request_id).into_response()));
    }
    let answer = whole(events).await?;
    Ok(TurnAnswer::Whole(Box::new(output(answer, &call.request_id))))
}

fn read(input: ChatInput, scope: MemoryScope) -> Result<ChatRequest, ApiError> {
    let session_id = input.session_id.map(|text| {
        text.parse::<SessionId>().map_err(|error| ApiError::bad(format!("`session_id`: {error}")))
    });
    let (system, messages) = messages(input.messages)?;
    Ok(ChatRequest {
        messages,
        system,
        session_id: session_id.transpose()?,
        session_key: input.session_key.map(|text| root(&text.0)).transpose()?,
        head: input.head,
        project: input.project,
        persona: input.persona,
        scope,
        without_intimate: false,
        model: input.model,
        max_tokens: input.max_tokens,
        temperature: input.temperature,
        seed: input.seed,
        recall_items: input.recall_limit.unwrap_or(DEFAULT_RECALL_ITEMS).min(MAX_PAGE),
        memory_tokens: input.memory_tokens.unwrap_or(DEFAULT_MEMORY_TOKENS).min(MAX_MEMORY_TOKENS),
    })
}

/// Parses a session's root from hex or words.
fn root(text: &str) -> Result<SessionRoot, ApiError> {
    let mut bytes = Zeroizing::new([0u8; 32]);
    if hex::decode_to_slice(text.trim(), &mut bytes[..]).is_ok() {
        return Ok(SessionRoot::from_bytes(*bytes));
    }
    SessionRoot::from_words(text)
        .map_err(|error| ApiError::bad(format!("`session_key` is 64 hex characters or 24 words: {error}")))
}

/// The pinned text, if given, and the messages that begin the turn.
fn messages(input: Vec<MessageInput>) -> Result<(Option<Vec<Message>>, Vec<Message>), ApiError> {
    let (mut system, mut said) = (Vec::new(), Vec::new());
    for message in input {
        let role = match message.role.as_str() {
            "system" => Role::System,
            "user" => Role::User,
            "tool" => Role::Tool,
            "assistant" => {
                said.clear();
                continue;
            }
            _ => return Err(ApiError::bad("a message's role is user, tool, system or assistant")),
        };
        let mut read = Message::new(role, message.content);
        (read.name, read.call_id) = (message.name, message.tool_call_id);
        if role == Role::System { system.push(read) } else { said.push(read) }
    }
    Ok(((!system.is_empty()).then_some(system), said))
}

/// Waits for the last event.
async fn whole(mut events: mpsc::Receiver<ChatEvent>) -> Result<ChatAnswer, ApiError> {
    while let Some(event) = events.recv().await {
        match event {
            ChatEvent::Done(answer) => return Ok(*answer),
            ChatEvent::Failed(error) => return Err(api_error(error)),
            ChatEvent::Started { .. } | ChatEvent::Text(_) | ChatEvent::Restarted => {}
        }
    }
    Err(ApiError::new(INTERNAL))
}

fn sse(events: mpsc::Receiver<ChatEvent>, request_id: RequestId) -> impl IntoResponse {
    let stream = stream::unfold((events, request_id), |(mut events, request_id)| async move {
        let event = events.recv().await?;
        Some((Ok::<_, Infallible>(sent(event, &request_id)), (events, request_id)))
    });
    // A proxy in front, such as nginx, would keep the events back.
    ([("x-accel-buffering", "no")], Sse::new(stream).keep_alive(KeepAlive::default()))
}

fn sent(event: ChatEvent, request_id: &RequestId) -> Event {
    let (name, value) = match event {
        ChatEvent::Started { session_id, recalled, memory } => {
            let recalled: Vec<RecalledJson> = recalled.into_iter().map(Into::into).collect();
            let value = serde_json::json!({
                "session_id": session_id.to_string(), "request_id": request_id.0, "recalled_facts": recalled,
                "memory": MemoryJson::from(memory),
            });
            ("started", value)
        }
        ChatEvent::Text(text) => ("text", serde_json::json!({ "text": text })),
        ChatEvent::Restarted => ("restarted", serde_json::json!({})),
        ChatEvent::Done(answer) => {
            ("done", serde_json::to_value(output(*answer, request_id)).unwrap_or_default())
        }
        ChatEvent::Failed(error) => {
            ("error", serde_json::to_value(api_error(error).json(&request_id.0)).unwrap_or_default())
        }
    };
    // The value is our own JSON text, without the line ends that an event cannot carry.
    Event::default().event(name).data(value.to_string())
}

impl From<RecalledFact> for RecalledJson {
    fn from(fact: RecalledFact) -> Self {
        Self { found: fact.hit.into(), used: fact.used }
    }
}

impl From<MemoryReport> for MemoryJson {
    fn from(report: MemoryReport) -> Self {
        let MemoryReport { mode, degraded, dropped, recorded } = report;
        Self { mode, degraded, dropped: dropped.len(), recorded }
    }
}

fn output(answer: ChatAnswer, request_id: &RequestId) -> ChatOutput {
    let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let receipt = answer.receipt.map(|receipt| ReceiptJson {
        hash: receipt.receipt_hash().to_string(),
        model: receipt.model.to_string(),
        engine: receipt.engine.name().to_owned(),
        input_tokens: receipt.tokens.input,
        output_tokens: receipt.tokens.output,
        memory_tokens: receipt.tokens.memory,
        memory_items: receipt.memory_items,
        price: receipt.price,
        signed: BASE64_STANDARD.encode(receipt.encode()),
    });
    let finish = match answer.finish {
        FinishReason::Length => "length",
        FinishReason::ToolCall => "tool_calls",
        FinishReason::Stop | FinishReason::StopString | FinishReason::None => "stop",
    };
    ChatOutput {
        content: answer.content,
        finish_reason: finish.to_owned(),
        session_id: answer.session_id.to_string(),
        session_key: hex::encode(answer.session_key.expose()),
        head: answer.head,
        request_id: request_id.0.clone(),
        turn: answer.seq,
        node: answer.node.to_string(),
        model: answer.model,
        recalled_facts: answer.recalled.into_iter().map(Into::into).collect(),
        memory: answer.memory.into(),
        receipt,
        earlier: answer.earlier.map(|(turn, content)| EarlierJson { turn, content }),
        latency: LatencyJson {
            recall_ms: ms(answer.latency.recall),
            first_token_ms: answer.latency.first_token.map(ms),
            total_ms: ms(answer.latency.total),
        },
    }
}

/// Removes the chat records of sessions before memory deletes the sessions; returns whether any existed. It
/// runs first, since a session in use cannot be deleted.
///
/// # Errors
/// A 503 while a session is in use.
pub(super) async fn forget(
    call: &Call,
    sessions: impl IntoIterator<Item = String>,
) -> Result<bool, ApiError> {
    let mut any = false;
    // The names of plain-mode sessions are their ids.
    for session in sessions.into_iter().filter_map(|name| name.parse::<SessionId>().ok()) {
        let (memory, now_ms) = (Arc::new(call.memory().clone()), call.app.inner.config.now_ms.clone());
        any |= crate::chat::forget(memory, call.owner(), session, now_ms).await.map_err(api_error)?;
    }
    Ok(any)
}

/// The answer to a failed turn.
fn api_error(error: ChatError) -> ApiError {
    match error {
        ChatError::Bad(why) => ApiError::bad(why),
        ChatError::Rollback(why) => ApiError::new(CHAT_ROLLBACK)
            .saying(format!("{}: {why}", ErrorCode::RollbackDetected))
            .with("error", ErrorCode::RollbackDetected.name().into()),
        ChatError::Fork => ApiError::new(CHAT_FORKED).with("error", ErrorCode::ForkDetected.name().into()),
        // No client reads this.
        ChatError::HungUp => ApiError::new(INTERNAL),
        ChatError::Busy { retry_after_ms } => {
            ApiError::new(BUSY).saying("another turn of this session is under way").after_ms(retry_after_ms)
        }
        ChatError::Memory(error) => {
            tracing::warn!(%error, "a session's records are unavailable");
            ApiError::new(UNAVAILABLE).after_ms(2_000)
        }
        ChatError::Client { name, message, code, kept } => {
            let kind = match (name, code) {
                ("Deleted", _) => CHAT_GONE,
                ("NoNode", _) => NO_NODE,
                ("Log" | "Store", _) => UNAVAILABLE,
                ("MessageTooLong" | "TooManyMessages" | "SchemaTooLong" | "EmptyMessage", _) => {
                    return ApiError::bad(message);
                }
                (
                    _,
                    Some(ErrorCode::PayloadRejected | ErrorCode::ContextOverflow | ErrorCode::ContentRefused),
                ) => {
                    return ApiError::bad(message).with("error", name.into());
                }
                _ => MODEL,
            };
            ApiError::new(kind).saying(message).with("error", name.into()).with("message_kept", kept.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(role: &str, content: &str) -> MessageInput {
        MessageInput { role: role.to_owned(), content: content.to_owned(), name: None, tool_call_id: None }
    }

    #[test]
    fn a_turn_begins_after_the_last_answer_and_pins_system_text() {
        let (system, said) = messages(vec![
            message("system", "be brief"),
            message("user", "one"),
            message("assistant", "1"),
            message("user", "two"),
        ])
        .unwrap();
        assert_eq!(system.unwrap()[0].text, "be brief");
        assert_eq!(said.iter().map(|message| message.text.as_str()).collect::<Vec<_>>(), ["two"]);
        assert!(messages(vec![message("robot", "x")]).is_err());
        assert!(
            messages(vec![message("user", "x")]).unwrap().0.is_none(),
            "none leaves the pinned text as it is"
        );
    }

    #[test]
    fn a_session_key_is_hex_or_words_and_never_shown() {
        let key = SessionRoot::generate();
        assert_eq!(root(&hex::encode(key.expose())).unwrap(), key);
        assert_eq!(root(&key.to_words()).unwrap(), key);
        let refused = root("secretsecret").unwrap_err().json("r");
        assert!(!format!("{refused:?}").contains("secretsecret"));
        let input: ChatInput = serde_json::from_str(r#"{"messages":[],"session_key":"abc"}"#).unwrap();
        assert!(!format!("{input:?}").contains("abc"));
    }
}
