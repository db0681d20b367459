//! Conversations in plain mode: here the relayer is the session's client, for the length of one request.
//!
//! The root of the session comes with the request, lives in memory, and is wiped when the request ends.
//! Between two requests, nothing on the relayer can open the session.
//!
//! Some data must outlive a request: the journal of turns, and blobs that the store does not have yet. The
//! client seals it under the root and keeps it among the owner's records. The next request with the root
//! continues from it, here or at another relayer on the same database.
//!
//! The HTTP handlers call this module. It must never keep a root, log a word, or fail a turn because memory
//! failed.

mod head;
mod memoryless;
mod session_records;
mod turn;

use std::{sync::Arc, time::Duration};

use baton_client::{Client, ClientError, SessionRoot};
use baton_keys::SecretSigningKey;
use baton_memory::{
    api::{DropReason, Hit, MemoryError, RecallMode},
    ids::{ItemId, OwnerId},
    model::MemoryScope,
};
use baton_proto::{
    ErrorCode, SignedObject,
    ids::{NodeId, SessionId},
    receipt::Receipt,
    record::{FinishReason, Message},
};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::task::TaskTracker;

use crate::injection::Recollection;
use memoryless::DrivenSessions;
use session_records::SessionRecords;

/// Most concurrent conversations; each holds a session in memory.
pub(crate) const MAX_CHATS: usize = 128;
/// Default limit of memories for a turn.
pub(crate) const DEFAULT_RECALL_ITEMS: usize = 6;
/// Default limit of tokens for memories.
pub(crate) const DEFAULT_MEMORY_TOKENS: u32 = 512;
/// Events that may wait for a reader. An answer has fewer. A very slow reader of several attempts misses only
/// display text, since the last event has the whole answer.
const MAX_WAITING_EVENTS: usize = 4096;

/// A request for one turn.
#[derive(Debug)]
pub struct ChatRequest {
    /// The new messages, in order; the session holds the earlier ones.
    pub messages: Vec<Message>,
    /// System text to pin from now on; `None` leaves it unchanged.
    pub system: Option<Vec<Message>>,
    /// The session; needs its key.
    pub session_id: Option<SessionId>,
    /// The root of the session; `None` starts a new session.
    pub session_key: Option<SessionRoot>,
    /// The session's head in the user's last answer.
    pub head: Option<String>,
    /// The project that the session is in.
    pub project: Option<String>,
    /// The persona of the conversation.
    pub persona: Option<String>,
    /// The part of memory that the turn may use.
    pub scope: MemoryScope,
    /// Nothing intimate, whatever the scope says: the caller was not granted it.
    pub without_intimate: bool,
    /// Name or id of the model; `None` for any.
    pub model: Option<String>,
    /// Most tokens of the answer.
    pub max_tokens: Option<u32>,
    /// Randomness, 0 to 5.
    pub temperature: Option<f32>,
    /// Seed of the randomness; `None` for a random one.
    pub seed: Option<u64>,
    /// Most memories.
    pub recall_items: usize,
    /// Most tokens of memories.
    pub memory_tokens: u32,
}

/// A memory that was sent to the node with a turn (A8).
#[derive(Clone, Debug, PartialEq)]
pub struct RecalledFact {
    /// The item, with score and provenance; its text is the sent text.
    pub hit: Hit,
    /// Whether the node used it, by its signed receipt; unknown until the turn is done.
    pub used: Option<bool>,
}

/// The report of memory on a turn.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryReport {
    /// The kind of search.
    pub mode: RecallMode,
    /// Why the search was not a full one.
    pub degraded: Option<String>,
    /// Matches that were left out.
    pub(crate) dropped: Vec<(ItemId, f32, DropReason)>,
    /// Whether the turn is durably recorded; unknown until the turn is done. A turn during a loss of memory
    /// is never recorded.
    pub recorded: Option<bool>,
}

/// Events of a turn.
#[derive(Clone, Debug)]
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

/// A finished turn.
#[derive(Clone, Debug)]
pub struct ChatAnswer {
    /// The answer.
    pub content: String,
    /// Why it ended.
    pub(crate) finish: FinishReason,
    /// The session.
    pub session_id: SessionId,
    /// Its root.
    pub session_key: SessionRoot,
    /// The head of the session now.
    pub head: String,
    /// The turn's number.
    pub seq: u64,
    /// The node that served it.
    pub(crate) node: NodeId,
    /// The model's name, if a node has just answered.
    pub(crate) model: Option<String>,
    /// The node's signed receipt; `None` for a turn that comes from the store alone.
    pub receipt: Option<SignedObject<Receipt>>,
    /// The recalled memories.
    pub recalled: Vec<RecalledFact>,
    /// The report of memory.
    pub memory: MemoryReport,
    /// An earlier message that was finished first: its turn and answer.
    pub earlier: Option<(u64, String)>,
    /// How long it took.
    pub latency: Latency,
}

/// Durations of the parts of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Until memory answered.
    pub recall: Duration,
    /// From the start of the request to the first text; `None` without text.
    pub first_token: Option<Duration>,
    /// All of it.
    pub total: Duration,
}

/// Why a turn failed.
#[derive(Clone, Debug, thiserror::Error)]
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
    /// The client's own error, with its name and hint.
    #[error("{message}")]
    Client {
        /// Stable name.
        name: &'static str,
        /// The error message.
        message: String,
        /// The protocol code of the cause.
        code: Option<ErrorCode>,
        /// Whether the message is kept, to be finished by the next request.
        kept: bool,
    },
    /// Memory failed in the middle of a turn: the session's own records could not be stored.
    #[error("{0}")]
    Memory(Arc<MemoryError>),
}

impl From<MemoryError> for ChatError {
    fn from(error: MemoryError) -> Self {
        Self::Memory(Arc::new(error))
    }
}

impl From<ClientError> for ChatError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Protocol(ErrorCode::ForkDetected) => Self::Fork,
            error => Self::Client {
                name: error.name(),
                message: error.to_string(),
                code: error.code(),
                kept: matches!(error, ClientError::TurnFailed { .. } | ClientError::NoNode(_)),
            },
        }
    }
}

/// The operator's settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChatConfig {
    /// Whether test engines that only repeat the message may serve.
    pub allow_echo: bool,
}

/// The conversations of this relayer. Clones share everything.
#[derive(Clone)]
pub struct Chat {
    inner: Arc<Inner>,
}

struct Inner {
    /// A client in memory, without sessions of its own; the clients of requests share its network and nodes.
    client: Client,
    memory: Arc<dyn Recollection>,
    key: SecretSigningKey,
    config: ChatConfig,
    now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
    slots: Arc<Semaphore>,
    /// Sessions that run while their owner's memory is unreadable.
    memoryless: DrivenSessions,
    tasks: TaskTracker,
}

/// As [`Chat::forget`], also if no conversations are served now; returns whether records existed. A session
/// that is resumed at once may be busy until its lease expires.
///
/// # Errors
/// As [`Chat::forget`].
pub(crate) async fn forget(
    memory: Arc<dyn Recollection>,
    owner: OwnerId,
    session: SessionId,
    now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
) -> Result<bool, ChatError> {
    session_records::forget(SessionRecords { memory, owner, session }, now_ms).await
}

impl Chat {
    /// Conversations over a client in memory, with this memory; `key` is the relayer's.
    #[must_use]
    pub fn new(
        client: Client,
        memory: Arc<dyn Recollection>,
        key: SecretSigningKey,
        config: ChatConfig,
        now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
    ) -> Self {
        let slots = Arc::new(Semaphore::new(MAX_CHATS));
        Self {
            inner: Arc::new(Inner {
                client,
                memory,
                key,
                config,
                now_ms,
                slots,
                memoryless: DrivenSessions::default(),
                tasks: TaskTracker::new(),
            }),
        }
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

    /// Removes the records of a session: its journal and progress. The session itself belongs to the user.
    ///
    /// # Errors
    /// [`ChatError::Busy`] while it is in use, and memory's.
    pub async fn forget(&self, owner: OwnerId, session: SessionId) -> Result<(), ChatError> {
        forget(self.inner.memory.clone(), owner, session, self.inner.now_ms.clone()).await.map(drop)
    }

    /// Waits for running turns.
    pub async fn finish(&self) {
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }
}
