//! Conversations in plain mode, `POST /v1/chat`: here the relayer is the session's client, for the length of one request.
//! The answer is whole, or comes as server-sent events.
//!
//! The root of the session comes with the request, lives in memory, and is wiped when the request ends.
//! Between two requests, nothing on the relayer can open the session.
//!
//! Some data must outlive a request: the journal of turns, and blobs that the store does not have yet. The
//! client seals it under the root and keeps it among the owner's records. The next request with the root
//! continues from it, here or at another relayer on the same database.
//!
//! This module must never keep a root, log a word, or fail a turn because memory failed.

mod head;
mod memoryless;
mod session_records;
mod turn;

use std::{convert::Infallible, sync::Arc};

use axum::{
    Json,
    http::Method,
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use baton_client::{Client, ClientError, SessionRoot};
use baton_keys::SecretSigningKey;
use baton_memory::{
    Memory,
    api::{MemoryError, RecallMode},
    ids::OwnerId,
    model::MemoryScope,
};
use baton_proto::{
    ErrorCode, SignedObject,
    ids::SessionId,
    receipt::Receipt,
    record::{FinishReason, Message, Role},
};
use futures::stream;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::task::TaskTracker;
use utoipa::ToSchema;
use zeroize::Zeroizing;

use super::{
    ApiError,
    api_error::{BUSY, CHAT_FORKED, CHAT_GONE, CHAT_ROLLBACK, INTERNAL, MODEL, NO_NODE, UNAVAILABLE},
    document::Schemas,
    limits::CHAT_BODY_BYTES,
    operation::{Answer, Call, Effect, Operation},
    shapes::RecallHit,
};
use crate::delegation::Scope;
use memoryless::DrivenSessions;
use session_records::{RecordStore, SessionRecords};

/// Most concurrent conversations; each holds a session in memory.
const MAX_CHATS: usize = 128;
/// Events that may wait for a reader. An answer has fewer. A very slow reader of several attempts misses only
/// display text, since the last event has the whole answer.
const MAX_WAITING_EVENTS: usize = 4096;

/// The route of conversations. It carries keys of sessions.
pub(super) const PATH: &str = "/v1/chat";

/// The operation of these conversations.
pub(super) fn operation(chat: Chat) -> Operation {
    let handler = move |call, request| answer(chat.clone(), call, request);
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

/// The messages of a request.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(try_from = "Vec<MessageInput>")]
pub struct ChatMessages {
    /// System text to pin from now on; `None` leaves it unchanged.
    pub system: Option<Vec<Message>>,
    /// The new messages, in order; the session holds the earlier ones.
    pub said: Vec<Message>,
}

impl TryFrom<Vec<MessageInput>> for ChatMessages {
    type Error = &'static str;

    fn try_from(input: Vec<MessageInput>) -> Result<Self, Self::Error> {
        let mut read = Self::default();
        for message in input {
            let role = match message.role.as_str() {
                "system" => Role::System,
                "user" => Role::User,
                "tool" => Role::Tool,
                "assistant" => {
                    read.said.clear();
                    continue;
                }
                _ => return Err("a message's role is user, tool, system or assistant"),
            };
            let to = if role == Role::System { read.system.get_or_insert_default() } else { &mut read.said };
            let mut message_read = Message::new(role, message.content);
            (message_read.name, message_read.call_id) = (message.name, message.tool_call_id);
            to.push(message_read);
        }
        Ok(read)
    }
}

/// One turn of a conversation.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChatInput)]
pub struct ChatRequest {
    /// Messages of the turn. System messages are pinned to the session from now on. Of the others, only
    /// messages after the last `assistant` message count: the session holds the earlier messages.
    #[schema(value_type = Vec<MessageInput>)]
    pub messages: ChatMessages,
    /// Name or id of the model. Default: any.
    pub model: Option<String>,
    /// Id of the session, 64 hex characters.
    #[serde(default, deserialize_with = "session_id")]
    #[schema(value_type = Option<String>)]
    pub session_id: Option<SessionId>,
    /// Root of the session, as 64 hex characters or 24 words. Default: a new session. The relayer holds it in
    /// memory only while the request lasts.
    #[serde(default, deserialize_with = "session_key")]
    #[schema(value_type = Option<String>)]
    pub session_key: Option<SessionRoot>,
    /// `head` of the last answer. The turn is refused if the session has another head.
    pub head: Option<String>,
    /// Project of the session. Default: the shared pool.
    pub project: Option<String>,
    /// Persona of the conversation, set when the session begins. Default: the session's. With any other
    /// persona, nothing is recalled or recorded.
    pub persona: Option<String>,
    /// `full`, `neutral_and_relationship` (default), `relationship_only`, `neutral_only`, `insights_only` or
    /// `none`.
    #[schema(value_type = Option<String>)]
    pub memory_scope: Option<MemoryScope>,
    /// Nothing intimate, whatever the scope says: the caller was not granted it.
    #[serde(skip)]
    pub without_intimate: bool,
    /// Whether to answer as server-sent events: `started`, `text`, `restarted`, then `done` or `error`.
    #[serde(default)]
    pub stream: bool,
    /// Most tokens of the answer.
    pub max_tokens: Option<u32>,
    /// Sampling temperature, 0 to 5. Default: 0.7.
    pub temperature: Option<f32>,
    /// Sampling seed. Default: random.
    pub seed: Option<u64>,
    /// Most memories, up to 200. Default: 6.
    pub recall_limit: Option<usize>,
    /// Most tokens of memories, up to 4096. Default: 512.
    pub memory_tokens: Option<u32>,
}

fn session_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SessionId>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| text.parse().map_err(|error| D::Error::custom(format!("`session_id`: {error}"))))
        .transpose()
}

fn session_key<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SessionRoot>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)?.map(Zeroizing::new) else {
        return Ok(None);
    };
    let mut bytes = Zeroizing::new([0u8; 32]);
    if hex::decode_to_slice(text.trim(), &mut bytes[..]).is_ok() {
        return Ok(Some(SessionRoot::from_bytes(*bytes)));
    }
    let wrong = |error| format!("`session_key` is 64 hex characters or 24 words: {error}");
    SessionRoot::from_words(&text).map(Some).map_err(|error| D::Error::custom(wrong(error)))
}

/// A memory that was sent to the node with the turn (A8).
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = RecalledJson)]
pub struct RecalledFact {
    /// The item, with score and provenance; its text is the sent text.
    #[serde(flatten)]
    pub(super) found: RecallHit,
    /// Whether the node used it, by its signed receipt; null while unknown.
    pub used: Option<bool>,
}

/// The use of memory in a turn.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = MemoryJson)]
pub struct MemoryReport {
    /// Kind of search: `full`, `lexical` (words only) or `none`.
    #[schema(value_type = String)]
    pub mode: RecallMode,
    /// Reason for a search that was not full, with any fix. If memory is lost, the turn continues without
    /// it.
    pub degraded: Option<String>,
    /// Number of matches that were left out.
    pub(crate) dropped: usize,
    /// Whether the turn is durably recorded. If not, the session's next request records it, unless memory was
    /// lost.
    pub recorded: Option<bool>,
}

impl MemoryReport {
    /// The report of a turn without a search.
    fn of_none(degraded: Option<String>) -> Self {
        Self { mode: RecallMode::None, degraded, dropped: 0, recorded: None }
    }
}

/// The node's receipt of the turn.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ReceiptJson {
    /// Hash of the receipt, in hex.
    hash: String,
    /// Id of the model.
    model: String,
    /// `native`, `proxied` or `echo`.
    engine: &'static str,
    input_tokens: u32,
    output_tokens: u32,
    memory_tokens: u32,
    /// Items of memory that the node used.
    pub memory_items: u16,
    price: u64,
    /// Signed receipt as in docs/PROTOCOL.md, base64.
    signed: String,
}

impl From<SignedObject<Receipt>> for ReceiptJson {
    fn from(receipt: SignedObject<Receipt>) -> Self {
        Self {
            hash: receipt.receipt_hash().to_string(),
            model: receipt.model.to_string(),
            engine: receipt.engine.name(),
            input_tokens: receipt.tokens.input,
            output_tokens: receipt.tokens.output,
            memory_tokens: receipt.tokens.memory,
            memory_items: receipt.memory_items,
            price: receipt.price,
            signed: BASE64_STANDARD.encode(receipt.encode()),
        }
    }
}

/// An earlier turn that was finished first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = EarlierJson)]
pub struct EarlierTurn {
    /// Turn in the session, from 0.
    pub turn: u64,
    /// Its answer.
    pub content: String,
}

/// A finished turn.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = ChatOutput)]
pub struct ChatAnswer {
    /// The answer.
    pub content: String,
    /// `stop`, `length` or `tool_calls`.
    finish_reason: &'static str,
    /// The session.
    #[serde(serialize_with = "as_text")]
    #[schema(value_type = String)]
    pub session_id: SessionId,
    /// Key that continues the session, here or in any client; as secret as the conversation.
    #[serde(serialize_with = "as_hex")]
    #[schema(value_type = String)]
    pub session_key: SessionRoot,
    /// Head of the session; send it with the next request.
    pub head: String,
    /// Id of the request in the relayer's log.
    request_id: String,
    /// Turn in the session, from 0.
    pub turn: u64,
    /// Node that served the turn.
    node: String,
    model: Option<String>,
    /// The memories of the turn.
    pub recalled_facts: Vec<RecalledFact>,
    /// The use of memory.
    pub memory: MemoryReport,
    /// The node's signed receipt; null for a turn that comes from the store alone.
    pub receipt: Option<ReceiptJson>,
    /// An earlier message that was finished first.
    pub earlier: Option<EarlierTurn>,
}

fn as_text<S: Serializer>(value: &impl std::fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn as_hex<S: Serializer>(root: &SessionRoot, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&Zeroizing::new(hex::encode(root.expose())))
}

fn finish_name(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Length => "length",
        FinishReason::ToolCall => "tool_calls",
        FinishReason::Stop | FinishReason::StopString | FinishReason::None => "stop",
    }
}

/// Events of a turn.
#[derive(Debug)]
pub enum ChatEvent {
    /// The session is open and memory has answered; the turn begins.
    Started {
        /// The session.
        session_id: SessionId,
        /// The memories of the turn.
        recalled: Vec<RecalledFact>,
        /// The report of memory.
        memory: MemoryReport,
    },
    /// Text of the answer; display only.
    Text(String),
    /// Earlier text is void.
    Restarted,
    /// The turn is done: accepted, recorded, and the last event.
    Done(Box<ChatAnswer>),
    /// The turn failed; the last event.
    Failed(ChatError),
}

/// Why a turn failed.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// The request is invalid; the text says why.
    #[error("{0}")]
    Bad(String),
    /// The presented head differs from the session's head, or other sources have fewer turns than it names.
    #[error("{code}: {0}", code = ErrorCode::RollbackDetected)]
    Rollback(&'static str),
    /// Another writer replaced a turn.
    #[error("{code}", code = ErrorCode::ForkDetected)]
    Fork,
    /// The reader disconnected, and the turn was cancelled.
    #[error("nobody waited for the answer; the turn was given up")]
    HungUp,
    /// The session, or the relayer, is busy.
    #[error("another turn of this session is under way, or was a moment ago")]
    Busy {
        /// When to retry.
        retry_after_ms: u64,
    },
    /// The client's own error.
    #[error(transparent)]
    Client(Box<ClientError>),
    /// Memory failed in the middle of a turn: the session's own records could not be stored.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl From<ClientError> for ChatError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Protocol(ErrorCode::ForkDetected) => Self::Fork,
            error => Self::Client(Box::new(error)),
        }
    }
}

/// The conversations of this relayer. Clones share everything.
#[derive(Clone)]
pub struct Chat {
    inner: Arc<Inner>,
}

struct Inner {
    /// A client in memory, without sessions of its own; the clients of requests share its network and nodes.
    client: Client,
    memory: Memory,
    key: SecretSigningKey,
    allow_echo: bool,
    now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
    slots: Arc<Semaphore>,
    /// Sessions that run while their owner's memory is unreadable.
    memoryless: DrivenSessions,
    tasks: TaskTracker,
}

impl Chat {
    /// Conversations over a client in memory, with this memory; `key` is the relayer's. With `allow_echo`, test engines
    /// that only repeat the message may serve.
    #[must_use]
    pub fn new(
        client: Client,
        memory: Memory,
        key: SecretSigningKey,
        allow_echo: bool,
        now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
    ) -> Self {
        let slots = Arc::new(Semaphore::new(MAX_CHATS));
        let (memoryless, tasks) = (DrivenSessions::default(), TaskTracker::new());
        let inner = Inner { client, memory, key, allow_echo, now_ms, slots, memoryless, tasks };
        Self { inner: Arc::new(inner) }
    }

    /// Begins a turn; its last event is [`ChatEvent::Done`] or [`ChatEvent::Failed`]. A reader that
    /// disconnects during the answer cancels it. The node stops, the message is dropped, and the session
    /// stays unchanged. An accepted answer is always finished, and waits for the session's next request.
    ///
    /// # Errors
    /// [`ChatError::Bad`], [`ChatError::Busy`].
    pub fn turn(&self, owner: OwnerId, request: ChatRequest) -> Result<mpsc::Receiver<ChatEvent>, ChatError> {
        turn::check(&request)?;
        let busy = |_| ChatError::Busy { retry_after_ms: 1000 };
        let slot = self.inner.slots.clone().try_acquire_owned().map_err(busy)?;
        let (events, receiver) = mpsc::channel(MAX_WAITING_EVENTS);
        let chat = self.clone();
        self.inner.tasks.spawn(async move {
            let last = match Box::pin(chat.drive(owner, request, &events)).await {
                Ok(answer) => ChatEvent::Done(Box::new(answer)),
                Err(error) => ChatEvent::Failed(error),
            };
            // A reader that left after the answer gets it with its next request.
            let _ = events.send(last).await;
            drop(slot);
        });
        Ok(receiver)
    }

    /// Waits for running turns.
    pub async fn finish(&self) {
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }
}

/// The answer to a turn, whole or as server-sent events.
struct TurnAnswer(Response);

impl Answer for TurnAnswer {
    fn documented(schemas: &mut Schemas) -> (u16, Value) {
        ChatAnswer::documented(schemas)
    }

    fn respond(self) -> Response {
        self.0
    }
}

async fn answer(chat: Chat, call: Call, mut request: ChatRequest) -> Result<TurnAnswer, ApiError> {
    let place = call.caller.place(request.project, None, request.persona)?;
    (request.project, request.persona) = (place.project, place.persona);
    request.without_intimate = !call.caller.sees_intimate();
    let streamed = request.stream;
    let mut events = chat.turn(call.owner(), request).map_err(api_error)?;
    let id = call.request_id.0;
    if streamed {
        let events = stream::unfold((events, id), |(mut events, id)| async move {
            let event = events.recv().await?;
            Some((Ok::<_, Infallible>(sent(event, &id)), (events, id)))
        });
        // A proxy in front, such as nginx, would keep the events back.
        let events = ([("x-accel-buffering", "no")], Sse::new(events).keep_alive(KeepAlive::default()));
        return Ok(TurnAnswer(events.into_response()));
    }
    while let Some(event) = events.recv().await {
        match event {
            ChatEvent::Done(answer) => {
                return Ok(TurnAnswer(Json(ChatAnswer { request_id: id, ..*answer }).into_response()));
            }
            ChatEvent::Failed(error) => return Err(api_error(error)),
            ChatEvent::Started { .. } | ChatEvent::Text(_) | ChatEvent::Restarted => {}
        }
    }
    Err(ApiError::new(INTERNAL))
}

fn sent(event: ChatEvent, request_id: &str) -> Event {
    let (name, value) = match event {
        ChatEvent::Started { session_id, recalled, memory } => {
            let session_id = session_id.to_string();
            let value = json!({
                "session_id": session_id, "request_id": request_id, "recalled_facts": recalled, "memory": memory,
            });
            ("started", value)
        }
        ChatEvent::Text(text) => ("text", json!({ "text": text })),
        ChatEvent::Restarted => ("restarted", json!({})),
        ChatEvent::Done(answer) => {
            ("done", json!(ChatAnswer { request_id: request_id.to_owned(), ..*answer }))
        }
        ChatEvent::Failed(error) => ("error", json!(api_error(error).json(request_id))),
    };
    // The value is our own JSON text, without the line ends that an event cannot carry.
    Event::default().event(name).data(value.to_string())
}

/// Removes the chat records of sessions before memory deletes the sessions; returns whether any existed. It
/// runs first, since a session in use cannot be deleted. One that is resumed at once may be busy until its lease expires.
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
        let store = Arc::new(RecordStore::Memory(call.memory().clone()));
        let records = SessionRecords { store, owner: call.owner(), session };
        let now_ms = call.app.inner.config.now_ms.clone();
        any |= session_records::forget(records, now_ms).await.map_err(api_error)?;
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
        ChatError::Client(error) => {
            let kind = match (error.name(), error.code()) {
                ("Deleted", _) => CHAT_GONE,
                ("NoNode", _) => NO_NODE,
                ("Log" | "Store", _) => UNAVAILABLE,
                ("MessageTooLong" | "TooManyMessages" | "SchemaTooLong" | "EmptyMessage", _) => {
                    return ApiError::bad(error.to_string());
                }
                (
                    name,
                    Some(ErrorCode::PayloadRejected | ErrorCode::ContextOverflow | ErrorCode::ContentRefused),
                ) => return ApiError::bad(error.to_string()).with("error", name.into()),
                _ => MODEL,
            };
            let is_kept = matches!(*error, ClientError::TurnFailed { .. } | ClientError::NoNode(_));
            let answer = ApiError::new(kind).saying(error.to_string());
            answer.with("error", error.name().into()).with("message_kept", is_kept.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<ChatRequest, String> {
        serde_json::from_value(body).map_err(|error| error.to_string())
    }

    #[test]
    fn a_turn_begins_after_the_last_answer_and_pins_system_text() {
        let of = |roles: &[(&str, &str)]| {
            let messages = roles.iter().map(|(role, content)| json!({ "role": role, "content": content }));
            read(json!({ "messages": messages.collect::<Vec<_>>() })).map(|request| request.messages)
        };
        let read =
            of(&[("system", "be brief"), ("user", "one"), ("assistant", "1"), ("user", "two")]).unwrap();
        assert_eq!(read.system.unwrap()[0].text, "be brief");
        assert_eq!(read.said.iter().map(|message| message.text.as_str()).collect::<Vec<_>>(), ["two"]);
        assert!(of(&[("robot", "x")]).is_err());
        assert!(of(&[("user", "x")]).unwrap().system.is_none(), "none leaves the pinned text as it is");
    }

    #[test]
    fn a_session_key_is_hex_or_words_and_never_shown() {
        let key = SessionRoot::generate();
        let of = |text: &str| read(json!({ "messages": [], "session_key": text }));
        for text in [hex::encode(key.expose()), key.to_words().to_string()] {
            let request = of(&text).unwrap();
            assert!(!format!("{request:?}").contains(&text));
            assert_eq!(request.session_key.unwrap(), key);
        }
        assert!(!of("secretsecret").unwrap_err().contains("secretsecret"));
    }
}
