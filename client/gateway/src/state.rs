//! The state of an endpoint, and the rights of a caller in it. Handlers get a [`Gateway`]. The modules below hold the
//! parts of the state; they run no turn.

pub(crate) mod ephemeral_sessions;
pub(crate) mod live_turns;
pub(crate) mod request_slots;
pub(crate) mod session_index;
pub(crate) mod session_slots;

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::{
    extract::{FromRequestParts, Path},
    http::request::Parts,
};
use baton_client::{Client, ClientError, NodeInfo, SessionHandle, TurnInput};
use baton_proto::{
    ids::{ModelId, SessionId},
    text::is_same_place,
};
use ephemeral_sessions::IdleSessions;
use parking_lot::{Mutex, MutexGuard};
use request_slots::{RequestSlot, RequestSlots};
use serde_json::{Value, json};
use session_index::{MAX_SESSIONS, SessionIndex};
use session_slots::SessionSlots;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use zeroize::Zeroizing;

use crate::{
    form::fields::is_empty,
    http::api_error::ApiError,
    keys::{
        Caller,
        accounts::{Charge, NamedKeys},
        usage::UsageCounts,
    },
    memory::GatewayMemory,
};

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
    /// Serves every program of this machine, with these defaults of turns.
    #[must_use]
    pub fn new(template: TurnInput) -> Self {
        let (origins, hosts) = (Vec::new(), Vec::new());
        Self { key: None, origins, hosts, template, relayer: None, memory: None, keys: None }
    }

    /// The name of the relayer through which turns pass.
    pub(crate) fn relayer_name(&self) -> Option<String> {
        let relayer = self.template.route.relayer.as_ref()?;
        let short = || relayer.node.to_string().chars().take(8).collect();
        Some(self.relayer.clone().unwrap_or_else(short))
    }
}

/// The endpoint, with the rights of a caller.
#[derive(Clone)]
pub struct Gateway {
    pub(crate) inner: Arc<Inner>,
    /// The caller whose request is served; the home's owner outside of requests.
    pub(crate) caller: Caller,
}

/// The part of the endpoint that all callers share.
pub(crate) type GatewayState = Arc<Inner>;

pub(crate) struct Inner {
    pub(crate) client: Client,
    pub(crate) config: GatewayConfig,
    pub(crate) index: Mutex<SessionIndex>,
    /// Names of the models that nodes offered since the start.
    pub(crate) model_names: Mutex<ModelNames>,
    /// The metadata of kept responses.
    pub(crate) response_labels: Arc<ResponseLabels>,
    /// Lets one search read the sessions at a time.
    pub(crate) search_slot: tokio::sync::Mutex<()>,
    /// Sessions with the time of their last use, to release their files.
    pub(crate) open: Mutex<Vec<(SessionId, Instant)>>,
    pub(crate) slots: RequestSlots,
    /// Ephemeral sessions that a next request may continue.
    pub(crate) idle_sessions: IdleSessions,
    /// The sessions in which requests take turns.
    pub(crate) session_slots: SessionSlots,
    /// Time of the last scan of the home, in milliseconds since the Unix epoch, less [`FILE_TIME_SLACK_MS`].
    pub(crate) scanned_ms: AtomicU64,
    pub(crate) turns: TaskTracker,
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
            response_labels: Arc::default(),
            search_slot: tokio::sync::Mutex::new(()),
            open: Mutex::new(Vec::new()),
            slots: RequestSlots::default(),
            idle_sessions: IdleSessions::default(),
            session_slots: SessionSlots::default(),
            scanned_ms: AtomicU64::new(0),
            turns: TaskTracker::new(),
        });
        let gateway = Self { inner, caller: Caller::Owner };
        gateway.refresh().await?;
        Ok(gateway)
    }

    /// Learns the sessions that changed in the home since the last scan.
    pub(crate) async fn refresh(&self) -> Result<(), ClientError> {
        let now = self.client().now_ms();
        let since = self.inner.scanned_ms.swap(now.saturating_sub(FILE_TIME_SLACK_MS), Ordering::Relaxed);
        let inner = self.inner.clone();
        let learn = move |conversation| inner.index.lock().learn(conversation);
        self.client().each_conversation(since, MAX_SESSIONS, learn).await
    }

    /// Runs a turn to its end, also when its program has hung up.
    pub(crate) fn spawn(&self, turn: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(self.inner.turns.track_future(turn));
    }

    pub(crate) fn client(&self) -> &Client {
        &self.inner.client
    }

    pub(crate) fn config(&self) -> &GatewayConfig {
        &self.inner.config
    }

    pub(crate) fn index(&self) -> MutexGuard<'_, SessionIndex> {
        // The map only proposes sessions. A caller compares the messages, so a panic's leftovers do no harm.
        self.inner.index.lock()
    }

    /// Learns a session's present messages, if they can be read.
    pub(crate) async fn learn(&self, session: SessionId) {
        match self.client().session(session).conversation().await {
            Ok(conversation) => self.index().learn(conversation),
            Err(error) => tracing::debug!(%error, "a session's words cannot be read"),
        }
    }

    /// Notes that a session's file is open.
    pub(crate) fn note_use(&self, session: SessionId) {
        let mut open = self.inner.open.lock();
        open.retain(|(id, _)| *id != session);
        open.push((session, Instant::now()));
    }
}

/// Without messages and keys, which no log may have.
impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").finish_non_exhaustive()
    }
}

/// A handler gets the endpoint with the rights of its caller. Without an admitted caller there is none.
impl FromRequestParts<GatewayState> for Gateway {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &GatewayState) -> Result<Self, ApiError> {
        let caller = parts.extensions.get::<Caller>().cloned().ok_or_else(ApiError::key)?;
        Ok(Self { inner: state.clone(), caller })
    }
}

/// The session of a path, which the caller may see. Its file is open then.
pub(crate) struct PathSession(pub(crate) SessionHandle);

impl FromRequestParts<GatewayState> for PathSession {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &GatewayState) -> Result<Self, ApiError> {
        let no_session = || ApiError::new("session_not_found", "this is no session's id");
        let gateway = Gateway::from_request_parts(parts, state).await?;
        let path = Path::<String>::from_request_parts(parts, state).await.ok();
        let id = path.and_then(|Path(id)| id.parse().ok()).ok_or_else(no_session)?;
        gateway.note_use(id);
        gateway.session(id).await.map(Self)
    }
}

impl Gateway {
    /// A session that the caller may see.
    pub(crate) async fn session(&self, id: SessionId) -> Result<SessionHandle, ApiError> {
        let handle = self.client().session(id);
        if let Some(project) = self.caller.project()
            && !is_same_place(handle.conversation().await?.project.as_deref(), Some(project))
        {
            return Err(ClientError::UnknownSession(id.to_string()).into());
        }
        Ok(handle)
    }

    /// Takes a slot for one more request of the caller.
    pub(crate) fn slot(&self) -> Result<RequestSlot, ApiError> {
        let name = match &self.caller {
            Caller::Owner => None,
            Caller::Key(key) => Some(key.name.clone()),
        };
        self.inner.slots.take(name).ok_or_else(ApiError::crowded)
    }

    /// Counts a request of the caller's key as it comes. The owner's are not counted.
    pub(crate) fn count_request(&self) -> Result<Option<Charge>, ApiError> {
        let mut counted = self.hold(UsageCounts::REQUEST)?;
        counted.iter_mut().for_each(Charge::keep);
        Ok(counted)
    }

    /// Holds tokens of the caller's key for a request; none for the owner.
    pub(crate) fn hold(&self, wanted: UsageCounts) -> Result<Option<Charge>, ApiError> {
        let (Caller::Key(key), Some(keys)) = (&self.caller, &self.config().keys) else { return Ok(None) };
        let charge = keys.hold(key, wanted, self.now_s());
        charge.map(Some).map_err(|spent| ApiError::quota(&key.name, spent))
    }

    /// The present time, in seconds since the Unix epoch.
    pub(crate) fn now_s(&self) -> u64 {
        self.client().now_ms() / 1000
    }
}

/// Most responses whose metadata is remembered.
const MAX_LABELS: usize = 1_000;
/// Most bytes of the metadata of one: OpenAI's API takes 16 pairs of 64 and 512 characters.
const MAX_LABEL_BYTES: usize = 16 * 1024;

/// The metadata of responses, by session and turn. It is a program's own, so no session has it, and it ends with the
/// endpoint.
#[derive(Default)]
pub(crate) struct ResponseLabels(Mutex<VecDeque<((SessionId, u64), Value)>>);

impl ResponseLabels {
    /// Remembers the metadata of a response in the place of older ones.
    pub(crate) fn keep(&self, turn: (SessionId, u64), metadata: Option<&Value>) {
        let mut kept = self.0.lock();
        kept.retain(|(known, _)| *known != turn);
        let metadata =
            metadata.filter(|metadata| !is_empty(metadata) && metadata.to_string().len() <= MAX_LABEL_BYTES);
        kept.extend(metadata.map(|metadata| (turn, metadata.clone())));
        while kept.len() > MAX_LABELS {
            kept.pop_front();
        }
    }

    /// The metadata of a response; empty if none is known.
    pub(crate) fn of(&self, turn: (SessionId, u64)) -> Value {
        let kept = self.0.lock();
        let found = kept.iter().find(|(known, _)| *known == turn);
        found.map_or_else(|| json!({}), |(_, metadata)| metadata.clone())
    }
}

/// Most remembered names of models: more than the nodes of a home offer.
const MAX_MODEL_NAMES: usize = 1_000;

/// The models' names by id. A receipt has the id alone, and its node may be gone.
#[derive(Debug, Default)]
pub(crate) struct ModelNames(HashMap<ModelId, String>);

impl ModelNames {
    /// Remembers the names that these nodes offer. Beyond the limit, new names are not remembered.
    pub(crate) fn learn(&mut self, nodes: &[NodeInfo]) {
        for offer in nodes.iter().flat_map(|node| &node.record.models) {
            if self.0.len() < MAX_MODEL_NAMES || self.0.contains_key(&offer.model) {
                self.0.insert(offer.model, offer.name.clone());
            }
        }
    }

    /// The name of a model, if a node offered it.
    pub(crate) fn name(&self, model: &ModelId) -> Option<&str> {
        self.0.get(model).map(String::as_str)
    }
}
