//! A local endpoint that speaks the APIs of OpenAI, Anthropic and Ollama. Existing programs keep their
//! conversations in sealed sessions without knowing of them.
//!
//! An adapter of each API reads its requests into one inner form (`completion.rs`), and writes the steps of an
//! answer (`steps.rs`). No adapter knows another, so a session that began over one API goes on over another.
//!
//! A program sends the whole conversation with every request. The messages before its new ones identify the
//! session (`session_index.rs`):
//! - If all of them match, the session continues.
//! - If they diverge at some point, the request becomes an edit of the last turn or a branch.
//! - If no session matches, a new session begins with all messages.
//!
//! No earlier turn is lost.
//!
//! The endpoint serves only programs with the bearer key or a key with a name, under a loopback name or an
//! allowed host. It serves pages of another origin only if that origin is allowed. A key with a name sees the
//! sessions of its project alone.
//!
//! An endpoint needs a client with an open home folder:
//!
//! ```no_run
//! use baton_client::{Client, TurnInput};
//! use baton_gateway::{Gateway, GatewayConfig};
//! use tokio::net::TcpListener;
//! use zeroize::Zeroizing;
//!
//! # async fn serve(client: Client) -> Result<(), Box<dyn std::error::Error>> {
//! let config = GatewayConfig {
//!     key: Some(Zeroizing::new("sk-example".to_owned())),
//!     origins: Vec::new(),
//!     hosts: Vec::new(),
//!     template: TurnInput::new(Vec::new()),
//!     relayer: None,
//!     memory: None,
//!     keys: None,
//! };
//! let gateway = Gateway::open(client, config).await?;
//! let listener = TcpListener::bind("127.0.0.1:8788").await?;
//! // Serves until this future is done.
//! gateway.serve(listener, std::future::pending()).await?;
//! # Ok(())
//! # }
//! ```

// Requests of programs and pages come here: a read out of bounds must not panic.
#![warn(clippy::indexing_slicing)]

#[cfg(not(target_family = "wasm"))]
mod acme;
mod agent_tools;
mod answer;
mod api_error;
mod api_form;
mod body;
mod carried_history;
mod chat;
mod clock;
mod completion;
#[cfg(not(target_family = "wasm"))]
mod document;
mod embeddings;
mod ephemeral_sessions;
mod event_stream;
mod fields;
mod format;
mod guard;
mod key_usage;
#[cfg_attr(target_family = "wasm", expect(dead_code, reason = "a page has no file of keys"))]
mod keys;
mod live_turns;
mod logprobs;
mod memory_items;
mod messages;
mod model_list;
mod models;
mod neutral;
mod ollama;
mod page;
#[cfg(not(target_family = "wasm"))]
mod page_files;
mod page_turns;
mod privacy;
mod request_slots;
mod responses;
#[cfg(not(target_family = "wasm"))]
mod serve;
mod session_choice;
mod session_header;
mod session_index;
mod session_slots;
mod steps;
#[cfg(not(target_family = "wasm"))]
mod tls;
mod tools;
mod unanswered;
mod wire;

use std::{
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::{
    Router, middleware,
    routing::{get, patch, post},
};
use baton_proto::{ids::SessionId, record::Message};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use zeroize::Zeroizing;

use api_error::ApiError;
use baton_client::{Client, ClientError, MemoryHint, TurnInput, TurnOutcome};
use ephemeral_sessions::IdleSessions;
use keys::caller::Caller;
use live_turns::LiveTurns;
use models::ModelNames;
use request_slots::RequestSlots;
use session_index::{MAX_SESSIONS, SessionIndex};
use session_slots::SessionSlots;

#[cfg(not(target_family = "wasm"))]
pub use acme::AcmeSettings;
pub use clock::rfc3339;
pub use keys::{
    KeyChange, KeyListError, KeyListFile, KeyQuotas, MAX_KEY_NAME_BYTES, MAX_KEYS, NamedKey,
    accounts::{NamedKeys, read_usage},
    generate_key,
    usage::{DayUsage, KeyUsage, UsageTable},
};
pub use privacy::{HintExtent, MemorySharing, PrivacySettings, Reader};
#[cfg(not(target_family = "wasm"))]
pub use tls::{TlsError, TlsIdentity};

/// File times may be this much coarser than the clock.
const FILE_TIME_SLACK_MS: u64 = 2_000;

/// Configuration of the endpoint.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// The key that every request must carry as `Authorization: Bearer`; `None` serves every program of this
    /// machine.
    pub key: Option<Zeroizing<String>>,
    /// Origins of pages that may send requests, such as `https://chat.example`.
    pub origins: Vec<String>,
    /// Allowed host names beside the loopback names (the host of a URL, without a port).
    pub hosts: Vec<String>,
    /// Defaults for turns where a request sets nothing; its messages are unused.
    pub template: TurnInput,
    /// The name of the template's relayer for people, such as its host; its id if this is `None`.
    pub relayer: Option<String>,
    /// Recalls memory for turns at the template's relayer, and remembers exchanges; `None` recalls nothing.
    pub memory: Option<Arc<dyn GatewayMemory>>,
    /// Keys with names beside `key`; `None` admits none.
    pub keys: Option<NamedKeys>,
}

impl GatewayConfig {
    /// The name of the relayer through which turns pass.
    fn relayer_name(&self) -> Option<String> {
        let relayer = self.template.relayer.as_ref()?;
        let short = || relayer.node.to_string().chars().take(8).collect();
        Some(self.relayer.clone().unwrap_or_else(short))
    }
}

/// Memory for the turns of an endpoint.
pub trait GatewayMemory: std::fmt::Debug + Send + Sync {
    /// The hint from which the relayer recalls memory for a turn with these new messages. The project is that
    /// of the caller's key.
    fn hint(&self, project: Option<&str>, session: SessionId, messages: &[Message]) -> MemoryHint;

    /// The parts of a conversation that [`GatewayMemory::hint`] and [`GatewayMemory::remember`] give away.
    fn sharing(&self) -> MemorySharing;

    /// Remembers an accepted exchange if that is wanted. The implementation handles its own failures.
    fn remember<'a>(
        &'a self,
        project: Option<&'a str>,
        messages: &'a [Message],
        outcome: &'a TurnOutcome,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

    /// Answers an agent's message of the Model Context Protocol, of this version, for the owner; `None` if the
    /// message takes no answer.
    ///
    /// # Errors
    /// A sentence for the agent's user.
    fn answer_agent<'a>(
        &'a self,
        message: &'a str,
        version: Option<&'a str>,
    ) -> Pin<Box<dyn Future<Output = Result<Option<String>, String>> + Send + 'a>>;

    /// The memories that a filter leaves, newest first, at most some hundred.
    ///
    /// # Errors
    /// [`MemoryFailure::Refused`].
    fn list<'a>(&'a self, filter: &'a MemoryFilter) -> MemoryFuture<'a, Vec<MemoryEntry>>;

    /// Replaces the text of a memory, which is of a project if one is given; returns the new memory.
    ///
    /// # Errors
    /// [`MemoryFailure`].
    fn edit<'a>(
        &'a self,
        project: Option<&'a str>,
        id: &'a str,
        text: &'a str,
    ) -> MemoryFuture<'a, MemoryEntry>;

    /// Deletes a memory for good, which is of a project if one is given.
    ///
    /// # Errors
    /// [`MemoryFailure`].
    fn delete<'a>(&'a self, project: Option<&'a str>, id: &'a str) -> MemoryFuture<'a, ()>;

    /// Deletes all memories that a filter leaves for good; returns their number. The filter has no query.
    ///
    /// # Errors
    /// [`MemoryFailure::Refused`].
    fn delete_all<'a>(&'a self, filter: &'a MemoryFilter) -> MemoryFuture<'a, u64>;
}

/// The future of an operation on memories.
pub type MemoryFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, MemoryFailure>> + Send + 'a>>;

/// Selects memories. A part that is `None` selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryFilter {
    /// The project.
    pub project: Option<String>,
    /// Words that a memory has.
    pub query: Option<String>,
    /// `episode`, `fact`, `entity` or `summary`.
    pub kind: Option<String>,
}

/// A memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct MemoryEntry {
    /// Its id: 32 hex characters.
    pub id: String,
    /// Its text.
    pub text: String,
    /// Its kind.
    pub kind: String,
    /// When it was said, RFC 3339.
    pub created: String,
    /// Its project; none for the shared pool.
    pub project: Option<String>,
}

/// Why an operation on memories failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryFailure {
    /// There is no such memory, or it is of another project.
    Unknown,
    /// The relayer refused or failed: a sentence for the caller.
    Refused(String),
}

/// The endpoint, with the rights of a caller.
#[derive(Debug, Clone)]
pub struct Gateway {
    inner: Arc<Inner>,
    /// The caller whose request is served; the home's owner outside of requests.
    caller: Caller,
}

/// The part of the endpoint that all callers share.
type GatewayState = Arc<Inner>;

#[derive(Debug)]
struct Inner {
    client: Client,
    config: GatewayConfig,
    index: Mutex<SessionIndex>,
    /// Names of the models that nodes offered since the start.
    model_names: Mutex<ModelNames>,
    /// Lets one search read the sessions at a time.
    search_slot: tokio::sync::Mutex<()>,
    /// Sessions with the time of their last use, to release their files.
    open: Mutex<Vec<(SessionId, Instant)>>,
    slots: RequestSlots,
    /// Ephemeral sessions that a next request may continue.
    idle_sessions: IdleSessions,
    /// The sessions in which requests take turns.
    session_slots: SessionSlots,
    live_turns: LiveTurns,
    /// Time of the last scan of the home, in milliseconds since the Unix epoch, less [`FILE_TIME_SLACK_MS`].
    scanned_ms: AtomicU64,
    turns: TaskTracker,
}

impl Gateway {
    /// An endpoint over a client. Reads the last used sessions of its home, to find them by their messages.
    ///
    /// # Errors
    /// [`ClientError::File`] when the home folder cannot be listed.
    pub async fn open(client: Client, config: GatewayConfig) -> Result<Self, ClientError> {
        let inner = Arc::new(Inner {
            client,
            config,
            index: Mutex::new(SessionIndex::default()),
            model_names: Mutex::new(ModelNames::default()),
            search_slot: tokio::sync::Mutex::new(()),
            open: Mutex::new(Vec::new()),
            slots: RequestSlots::default(),
            idle_sessions: IdleSessions::default(),
            session_slots: SessionSlots::default(),
            live_turns: LiveTurns::default(),
            scanned_ms: AtomicU64::new(0),
            turns: TaskTracker::new(),
        });
        let gateway = Self { inner, caller: Caller::Owner };
        gateway.refresh().await?;
        Ok(gateway)
    }

    /// Learns the sessions that changed in the home since the last scan.
    async fn refresh(&self) -> Result<(), ClientError> {
        let now = self.client().now_ms();
        let since = self.inner.scanned_ms.swap(now.saturating_sub(FILE_TIME_SLACK_MS), Ordering::Relaxed);
        let inner = self.inner.clone();
        let learn = move |conversation| inner.index().learn(&conversation);
        self.client().each_conversation(since, MAX_SESSIONS, learn).await
    }

    /// All routes, for a caller with a transport of its own: a page has no listener. A request needs a `host`, such
    /// as `localhost`.
    pub fn router(&self) -> Router {
        let api = Router::new()
            .route("/v1/chat/completions", post(chat::complete))
            .route("/v1/completions", post(chat::complete_text))
            .route("/mcp", post(agent_tools::answer))
            .merge(responses::routes())
            .merge(messages::routes())
            .merge(ollama::routes())
            .route("/v1/models", get(model_list::list))
            .route("/v1/models/{*model}", get(model_list::one))
            .route("/v1/embeddings", post(embeddings::create))
            .route("/api/usage", get(key_usage::show))
            .route("/api/memory", get(memory_items::list).delete(memory_items::delete_all))
            .route("/api/memory/{id}", patch(memory_items::edit).delete(memory_items::delete))
            .merge(page::routes())
            .fallback(guard::nothing_here)
            .method_not_allowed_fallback(guard::wrong_method)
            .layer(middleware::from_fn_with_state(self.inner.clone(), guard::admit));
        let by_name = middleware::from_fn_with_state(self.inner.clone(), guard::by_allowed_name);
        let open = Router::new().route("/access", get(page::access));
        // In a page, they come from the page's own server.
        #[cfg(not(target_family = "wasm"))]
        let open = open.merge(page_files::files());
        api.merge(open.layer(by_name)).with_state(self.inner.clone())
    }

    /// Runs a turn to its end, also when its program has hung up.
    fn spawn(&self, turn: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(self.inner.turns.track_future(turn));
    }

    fn client(&self) -> &Client {
        &self.inner.client
    }

    fn config(&self) -> &GatewayConfig {
        &self.inner.config
    }

    fn index(&self) -> MutexGuard<'_, SessionIndex> {
        self.inner.index()
    }

    fn model_names(&self) -> MutexGuard<'_, ModelNames> {
        // Names for display alone, so a panic's leftovers do no harm.
        self.inner.model_names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Learns a session's present messages.
    async fn learn(&self, session: SessionId) -> Result<(), ClientError> {
        let conversation = self.client().session(session).conversation().await?;
        self.index().learn(&conversation);
        Ok(())
    }

    fn open_sessions(&self) -> MutexGuard<'_, Vec<(SessionId, Instant)>> {
        self.inner.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a session's file is open.
    fn note_use(&self, session: SessionId) {
        let mut open = self.open_sessions();
        open.retain(|(id, _)| *id != session);
        open.push((session, Instant::now()));
    }
}

impl Inner {
    fn index(&self) -> MutexGuard<'_, SessionIndex> {
        // The map only proposes sessions. A caller compares the messages, so a panic's leftovers do no harm.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether only this machine can reach an address.
#[must_use]
pub fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().is_loopback()
}
