//! Conversations at the plain door: here the relayer is the session's client, for the length of one request.
//!
//! The root of the session comes with the request, lives in memory, and is wiped when the request ends; nothing on this
//! side opens the session between two requests. What must outlive one (the journal of turns, blobs that the store does not
//! have yet) is sealed under the root by the client and kept among the owner's records, so that the next request that
//! brings the root takes up where a dead relayer stopped, here or at another relayer on the same database.
//!
//! Who calls it: the HTTP door. What it must never do: keep a root, log a word, or fail a turn because memory failed.

mod head;
mod keep;
mod memoryless;
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
    ErrorCode, Signed,
    ids::{NodeId, SessionId},
    receipt::Receipt,
    record::{FinishReason, Message},
};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::task::TaskTracker;

use crate::injection::Recollection;
use keep::Shelf;
use memoryless::DrivenSessions;

/// Conversations driven at once; each holds a session in memory.
pub const MAX_CHATS: usize = 128;
/// Most memories for a turn where the request names no number.
pub const DEFAULT_RECALL_ITEMS: usize = 6;
/// Most tokens that memories take where the request names no number.
pub const DEFAULT_MEMORY_TOKENS: u32 = 512;
/// Events that may wait for a reader. An answer has fewer; what a very slow reader of several attempts misses is display
/// only, since the last event has the whole answer.
const MAX_WAITING_EVENTS: usize = 4096;

/// What one turn is asked for.
#[derive(Debug)]
pub struct ChatRequest {
    /// The new messages, in order; the session holds the earlier ones.
    pub messages: Vec<Message>,
    /// Pinned system text from now on; none leaves it as it is.
    pub system: Option<Vec<Message>>,
    /// The session; needs its key.
    pub session_id: Option<SessionId>,
    /// The root of the session; none begins a new one.
    pub session_key: Option<SessionRoot>,
    /// Where the session stood when the user last heard of it.
    pub head: Option<String>,
    /// The project that the session is in.
    pub project: Option<String>,
    /// The persona that is spoken to.
    pub persona: Option<String>,
    /// What of memory the turn may use.
    pub scope: MemoryScope,
    /// Nothing intimate, whatever the scope says: the asker was not granted it.
    pub without_intimate: bool,
    /// Name or id of the model, or any.
    pub model: Option<String>,
    /// Most tokens of the answer.
    pub max_tokens: Option<u32>,
    /// Randomness, 0 to 5.
    pub temperature: Option<f32>,
    /// Seed of the randomness; a random one if none.
    pub seed: Option<u64>,
    /// Most memories.
    pub recall_items: usize,
    /// Most tokens of memories.
    pub memory_tokens: u32,
}

/// A memory that went with a turn (A8): exactly what the node was sent.
#[derive(Clone, Debug, PartialEq)]
pub struct RecalledFact {
    /// The item, with score and provenance; its text is what was sent.
    pub hit: Hit,
    /// Whether the node used it, by its signed receipt; unknown until the turn is done.
    pub used: Option<bool>,
}

/// What memory did for a turn.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryReport {
    /// How it searched.
    pub mode: RecallMode,
    /// Why less than fully.
    pub degraded: Option<String>,
    /// What matched and was left out.
    pub dropped: Vec<(ItemId, f32, DropReason)>,
    /// Whether the turn is recorded, durably; unknown until the turn is done. A turn of a time in which memory was lost is
    /// never recorded.
    pub recorded: Option<bool>,
}

/// What happens while a turn runs.
#[derive(Clone, Debug)]
pub enum ChatEvent {
    /// The session is open and memory was asked; the turn begins.
    Started {
        /// The session.
        session_id: SessionId,
        /// What goes with the turn.
        recalled: Vec<RecalledFact>,
        /// What memory did.
        memory: MemoryReport,
    },
    /// Text of the answer; display only.
    Text(String),
    /// Text shown so far is void.
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
    pub finish: FinishReason,
    /// The session.
    pub session_id: SessionId,
    /// Its root.
    pub session_key: SessionRoot,
    /// Where it stands now.
    pub head: String,
    /// The turn's number.
    pub seq: u64,
    /// The node that served it.
    pub node: NodeId,
    /// The model's name, where a node was asked just now.
    pub model: Option<String>,
    /// What the node claims, signed; none for a turn that was taken up from the store alone.
    pub receipt: Option<Signed<Receipt>>,
    /// What memory gave.
    pub recalled: Vec<RecalledFact>,
    /// What memory did.
    pub memory: MemoryReport,
    /// An earlier message that was finished first: its turn and answer.
    pub earlier: Option<(u64, String)>,
    /// How long it took.
    pub latency: Latency,
}

/// How long the parts of a turn took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Until memory had answered.
    pub recall: Duration,
    /// From the beginning of the request to the first text; none without any.
    pub first_token: Option<Duration>,
    /// All of it.
    pub total: Duration,
}

/// Why a turn did not happen.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ChatError {
    /// The request cannot be used; the text says why.
    #[error("{0}")]
    Bad(String),
    /// The head that was shown is not where the session stands, or others show less than it names.
    #[error("{code}: {0}", code = ErrorCode::RollbackDetected)]
    Rollback(&'static str),
    /// Somebody wrote another turn in the place of one.
    #[error("{code}", code = ErrorCode::ForkDetected)]
    Fork,
    /// Nobody waits for the answer any more: its reader went away, and the turn was given up.
    #[error("nobody waited for the answer; the turn was given up")]
    HungUp,
    /// The session, or the relayer, is at work.
    #[error("another turn of this session is under way, or was a moment ago")]
    Busy {
        /// When to come back.
        retry_after_ms: u64,
    },
    /// The client's own error, with its name and hint.
    #[error("{message}")]
    Client {
        /// Stable name.
        name: &'static str,
        /// What went wrong.
        message: String,
        /// The protocol's code behind it.
        code: Option<ErrorCode>,
        /// Whether the message is kept, to be finished by the next request.
        kept: bool,
    },
    /// Memory's, where it fails in the middle of a turn: the session's own records could not be kept.
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

/// What the operator sets.
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
    /// A client in memory, without sessions of its own: its network and nodes are what guests use.
    client: Client,
    memory: Arc<dyn Recollection>,
    key: SecretSigningKey,
    config: ChatConfig,
    now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
    places: Arc<Semaphore>,
    /// Sessions that are driven while their owner's memory cannot be read.
    memoryless: DrivenSessions,
    tasks: TaskTracker,
}

/// As [`Chat::forget`], also where no conversations are served now; whether anything was kept. A session that is driven
/// again at once may be busy until its lease has run out.
///
/// # Errors
/// As [`Chat::forget`].
pub async fn forget(
    memory: Arc<dyn Recollection>,
    owner: OwnerId,
    session: SessionId,
    now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
) -> Result<bool, ChatError> {
    keep::forget(Shelf { memory, owner, session }, now_ms).await
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
        let places = Arc::new(Semaphore::new(MAX_CHATS));
        Self {
            inner: Arc::new(Inner {
                client,
                memory,
                key,
                config,
                now_ms,
                places,
                memoryless: DrivenSessions::default(),
                tasks: TaskTracker::new(),
            }),
        }
    }

    /// Begins a turn; its last event is [`ChatEvent::Done`] or [`ChatEvent::Failed`]. A reader that goes away while the
    /// answer is made cancels it: the node stops, the message is given up, and the session stands where it stood. Once the
    /// answer is accepted the turn is finished, and waits for the session's next request.
    ///
    /// # Errors
    /// [`ChatError::Bad`], [`ChatError::Busy`].
    pub fn turn(&self, owner: OwnerId, request: ChatRequest) -> Result<mpsc::Receiver<ChatEvent>, ChatError> {
        turn::check(&request)?;
        let busy = |_| ChatError::Busy { retry_after_ms: 1000 };
        let place = self.inner.places.clone().try_acquire_owned().map_err(busy)?;
        let (events, receiver) = mpsc::channel(MAX_WAITING_EVENTS);
        let chat = self.clone();
        self.inner.tasks.spawn(async move {
            let last = match Box::pin(chat.drive(owner, request, &events)).await {
                Ok(answer) => ChatEvent::Done(Box::new(answer)),
                Err(error) => ChatEvent::Failed(error),
            };
            // A reader that went away after the answer was there gets it with its next request.
            let _ = events.send(last).await;
            drop(place);
        });
        Ok(receiver)
    }

    /// Removes what is kept of a session: its journal and how far it got. The session itself is the user's.
    ///
    /// # Errors
    /// [`ChatError::Busy`] while it is driven, and memory's.
    pub async fn forget(&self, owner: OwnerId, session: SessionId) -> Result<(), ChatError> {
        forget(self.inner.memory.clone(), owner, session, self.inner.now_ms.clone()).await.map(drop)
    }

    /// Waits for the turns under way.
    pub async fn finish(&self) {
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }
}
