//! The turn service: everything between an accepted substream and its last frame.
//!
//! It owns admission, the turns that run, the reply logs that streams follow, the blob cache and the tasks that
//! store blobs. `main` builds it from [`ServiceDeps`] and runs it; the turn itself is in [`crate::turn`]. It keeps no
//! table of sessions: what it remembers is the journal, and any other node can serve the next turn. It must never
//! write text of a conversation anywhere but into a sealed record or a sealed reply.

mod audit;
pub(crate) mod connection;
pub mod embedding;
pub(crate) mod guard;
pub mod limits;
pub mod observer;
pub mod pause;
mod questions;
pub(crate) mod reply;
pub(crate) mod running;
mod shares;
pub(crate) mod slots;
pub(crate) mod storing;

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use baton_keys::{
    SecretSigningKey,
    contexts::LOG_PSEUDONYM,
    exchange::ExchangeSecret,
    secret::{kdf, random_bytes},
};
use baton_mesh::{Incoming, MeshHandle, Rates, TurnStream};
use baton_proto::{
    ErrorCode, SignedBytes,
    ids::{ExchangeKey, ModelId, NodeId, SessionId},
    store::{BlobStore, HeadIndex},
};
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    engine::{Engine, SessionKey},
    journal::Journal,
    telemetry::Telemetry,
    turn::{Refusal, blobs::BlobCache},
};
use embedding::Embedding;
pub use embedding::EmbeddingModel;
pub use guard::quotas::QuotaPolicy;
use guard::{Caller, Guard, Offence, TooMany, quotas::Quotas};
pub use limits::{Price, ServiceLimits};
pub use observer::{BlobSource, NoObserver, RequestKind, ServiceObserver, TurnSummary};
pub use pause::{PausePoints, Step};
use running::Running;
use shares::FrameShares;
use slots::Slots;

/// Milliseconds since the Unix epoch, from wherever the caller takes them.
pub type ClockMs = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The node's keys and what it says of itself.
pub trait NodeIdentity: Send + Sync {
    /// The Ed25519 key, which is also the libp2p identity.
    fn signing_key(&self) -> &SecretSigningKey;
    /// The secret of one of the node's exchange keys, while turns sealed to it may still be opened.
    fn exchange_secret(&self, key: &ExchangeKey, now_ms: u64) -> Option<ExchangeSecret>;
    /// The current signed [`NodeRecord`](baton_proto::node_record::NodeRecord).
    fn record(&self) -> SignedBytes;
}

/// The key of what sessions are called outside of turns, in logs and in the engine's cache: without it nobody can match
/// such a name to a session.
#[derive(Clone)]
pub struct LogKey([u8; 32]);

impl LogKey {
    /// From an operator's secret: `KDF("log-pseudonym", secret)`.
    #[must_use]
    pub fn from_secret(secret: &[u8; 32]) -> Self {
        Self(kdf(LOG_PSEUDONYM, &[secret]))
    }

    /// A key for this process only: log lines of two runs cannot be matched.
    #[must_use]
    pub fn random() -> Self {
        Self::from_secret(&random_bytes())
    }

    /// What a session is called in the engine's cache: the engine does not learn its id, and a cache of another process
    /// calls it otherwise.
    pub(crate) fn cache_key(&self, session: &SessionId) -> SessionKey {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        // Longer than an id, so that it is the hash of no log line.
        hasher.update(b"cache of session ").update(&session.0);
        SessionKey(hasher.finalize().into())
    }

    /// Eight hex characters that stand for a session in this operator's logs.
    #[must_use]
    pub fn short(&self, session: &SessionId) -> String {
        let hash = blake3::keyed_hash(&self.0, &session.0);
        hex::encode(hash.as_bytes().first_chunk::<4>().expect("a hash has 32 bytes"))
    }
}

impl std::fmt::Debug for LogKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogKey(redacted)")
    }
}

/// What a service is made of.
pub struct ServiceDeps {
    /// The models served here.
    pub engines: Vec<Arc<dyn Engine>>,
    /// Where blobs are stored and read.
    pub store: Arc<dyn BlobStore>,
    /// Where heads are found for requests without a locator.
    pub heads: Option<Arc<dyn HeadIndex>>,
    /// The node's keys.
    pub identity: Arc<dyn NodeIdentity>,
    /// What was promised and signed.
    pub journal: Journal,
    /// Bounds.
    pub limits: ServiceLimits,
    /// The wall clock.
    pub clock: ClockMs,
    /// Where counts go.
    pub observer: Arc<dyn ServiceObserver>,
    /// Other nodes, asked for blobs that the store does not have yet.
    pub peers: Option<MeshHandle>,
    /// Shortens session ids in logs.
    pub log_key: LogKey,
    /// Where to stop a turn, for tests that kill the process.
    pub pause: PausePoints,
    /// Where traces of turns go.
    pub telemetry: Telemetry,
}

/// What is under way in a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Turns that wait, run or are being signed.
    pub turns: usize,
    /// Blobs that are being stored; they are in the journal until they are.
    pub storing: usize,
}

/// Why a service ended other than by being told to.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A task panicked; its own message stands in the log. The process should end.
    #[error("a task of the turn service panicked; see the message before")]
    TaskPanicked,
    /// The journal cannot be read or written.
    #[error(transparent)]
    Journal(#[from] crate::journal::JournalError),
}

/// Everything that the tasks of the service share.
pub(crate) struct Core {
    pub(crate) engines: Vec<Arc<dyn Engine>>,
    pub(crate) store: Arc<dyn BlobStore>,
    pub(crate) heads: Option<Arc<dyn HeadIndex>>,
    pub(crate) identity: Arc<dyn NodeIdentity>,
    pub(crate) journal: Journal,
    pub(crate) limits: ServiceLimits,
    clock: ClockMs,
    pub(crate) observer: Arc<dyn ServiceObserver>,
    pub(crate) peers: Option<MeshHandle>,
    pub(crate) log_key: LogKey,
    pub(crate) pause: PausePoints,
    pub(crate) telemetry: Telemetry,
    /// This node's name.
    pub(crate) node: NodeId,
    /// Who gets how much.
    guard: Mutex<Guard>,
    /// What was granted to whom.
    pub(crate) quotas: Mutex<Quotas>,
    /// Turns, by session.
    pub(crate) session_rates: Mutex<Rates<SessionId>>,
    pub(crate) slots: Arc<Slots>,
    /// What texts are embedded with, if they are.
    pub(crate) embedding: Option<Embedding>,
    pub(crate) running: Arc<Running>,
    pub(crate) cache: BlobCache,
    /// Limits how many PUTs run at once.
    pub(crate) puts: Arc<tokio::sync::Semaphore>,
    /// Of [`ServiceLimits::frame_bytes`].
    pub(crate) frame_shares: FrameShares,
    /// Of [`limits::MAX_AUDITS_BYTES`].
    pub(crate) audit_shares: FrameShares,
    connections: TaskTracker,
    turns: TaskTracker,
    storing: TaskTracker,
    /// No new turns, until the operator says otherwise.
    held: AtomicBool,
    /// No new turns.
    pub(crate) draining: CancellationToken,
    /// Every turn ends now.
    pub(crate) ending: CancellationToken,
    /// Every substream ends now.
    pub(crate) closing: CancellationToken,
    panicked: CancellationToken,
}

impl Core {
    /// Whether the operator wants no new turns here.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    /// Who gets how much. Never held across an await.
    pub(crate) fn guard(&self) -> MutexGuard<'_, Guard> {
        lock(&self.guard)
    }

    /// Notes what a refusal says of whoever caused it.
    pub(crate) fn note_refusal(&self, who: &Caller, code: ErrorCode) {
        if let Some(offence) = Offence::of(code) {
            self.note_offence(who, offence);
        }
    }

    /// Takes one of the turns that somebody has; notes it where they did not wait as they were told.
    pub(crate) fn take_turn(&self, who: &Caller, granted: bool, now_ms: u64) -> Result<(), Refusal> {
        let taken = self.guard().turn(who, granted, now_ms);
        taken.map_err(|TooMany { retry_after_ms, early }| {
            if early {
                self.note_offence(who, Offence::Early);
            }
            Refusal { code: ErrorCode::RateLimited, retry_after_ms }
        })
    }

    /// Notes that somebody did something wrong.
    pub(crate) fn note_offence(&self, who: &Caller, offence: Offence) {
        let now_ms = self.now_ms();
        let mut guard = self.guard();
        let Some(span_ms) = guard.offence(who, offence, now_ms) else { return };
        let tells = guard.tells(now_ms);
        drop(guard);
        self.observer.banned();
        if tells {
            tracing::info!(peer = %who.peer, ?offence, seconds = span_ms / 1000, "a peer is refused for a while");
        }
    }

    /// The time now.
    pub(crate) fn now_ms(&self) -> u64 {
        (self.clock)()
    }

    /// The engine that serves a model here.
    pub(crate) fn engine(&self, model: &ModelId) -> Result<Arc<dyn Engine>, ErrorCode> {
        let found = self.engines.iter().find(|engine| engine.info().model_id == *model);
        found.cloned().ok_or(ErrorCode::ModelUnavailable)
    }

    /// Runs a turn as a task of its own: it outlives the stream that asked for it.
    pub(crate) fn spawn_turn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        self.turns.spawn(watched(self.panicked.clone(), task));
    }

    /// Runs a task that stores a blob: it outlives the turn.
    pub(crate) fn spawn_storing(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let ending = self.ending.clone();
        let until_end = async move {
            // What is not stored by then is in the journal and stored at the next start.
            let _ = ending.run_until_cancelled_owned(task).await;
        };
        self.storing.spawn(watched(self.panicked.clone(), until_end));
    }
}

/// Locks, going on after a panic elsewhere: every critical section here leaves its data whole, and a panic ends
/// the process anyway.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells the service's main task of a panic.
struct PanicAlarm(CancellationToken);

impl Drop for PanicAlarm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.cancel();
        }
    }
}

async fn watched(panicked: CancellationToken, task: impl Future<Output = ()>) {
    let _alarm = PanicAlarm(panicked);
    task.await;
}

/// The turn service of one node. Clones share it.
#[derive(Clone)]
pub struct NodeService {
    core: Arc<Core>,
}

impl NodeService {
    /// A service; nothing runs yet.
    #[must_use]
    pub fn new(deps: ServiceDeps) -> Self {
        Self::offering(deps, None)
    }

    /// A service that embeds texts too; nothing runs yet.
    #[must_use]
    pub fn offering(deps: ServiceDeps, embeddings: Option<EmbeddingModel>) -> Self {
        let now_ms = (deps.clock)();
        let ServiceDeps { engines, store, heads, identity, journal, limits, .. } = deps;
        let node = identity.signing_key().node_id();
        let core = Core {
            engines,
            store,
            heads,
            journal,
            clock: deps.clock,
            observer: deps.observer,
            peers: deps.peers,
            log_key: deps.log_key,
            pause: deps.pause,
            telemetry: deps.telemetry,
            node,
            identity,
            guard: Mutex::new(Guard::new(&limits)),
            quotas: Mutex::new(Quotas::new(limits.quotas.clone(), node)),
            session_rates: Mutex::new(Rates::new(limits.session_turns_per_minute)),
            slots: Slots::new(limits.slots, limits.queue),
            embedding: embeddings.map(|model| Embedding::new(model, limits.queue, now_ms)),
            running: Arc::default(),
            cache: BlobCache::new(limits.cache_bytes),
            puts: Arc::new(tokio::sync::Semaphore::new(limits::MAX_CONCURRENT_PUTS)),
            frame_shares: FrameShares::new(limits.frame_bytes),
            audit_shares: FrameShares::new(limits::MAX_AUDITS_BYTES),
            connections: TaskTracker::new(),
            turns: TaskTracker::new(),
            storing: TaskTracker::new(),
            held: AtomicBool::new(false),
            draining: CancellationToken::new(),
            ending: CancellationToken::new(),
            closing: CancellationToken::new(),
            panicked: CancellationToken::new(),
            limits,
        };
        Self { core: Arc::new(core) }
    }

    /// Takes no new turns from now on, or takes them again. Those that were admitted are finished either way, and what is
    /// asked about turns is answered.
    pub fn hold_turns(&self, hold: bool) {
        self.core.held.store(hold, Ordering::Relaxed);
    }

    /// What is under way.
    #[must_use]
    pub fn work(&self) -> Work {
        Work { turns: self.core.turns.len(), storing: self.core.storing.len() }
    }

    /// Requests for embeddings that run and that wait.
    #[must_use]
    pub fn embeddings_load(&self) -> (usize, usize) {
        self.core.embedding.as_ref().map(Embedding::load).unwrap_or_default()
    }

    /// Serves until `shutdown`, then refuses new turns, lets running ones finish within
    /// [`ServiceLimits::drain_grace`], ends the others, and joins every task. Also drains when the mesh stops.
    ///
    /// First it stores again what the journal holds unstored from an earlier run.
    ///
    /// # Errors
    /// [`ServiceError`]; the process should end then, with a failure.
    pub async fn run(self, mut incoming: Incoming, shutdown: CancellationToken) -> Result<(), ServiceError> {
        storing::store_again(&self.core).await?;
        loop {
            tokio::select! {
                biased;
                () = self.core.panicked.cancelled() => return Err(ServiceError::TaskPanicked),
                () = shutdown.cancelled() => break,
                next = incoming.next() => match next {
                    Some((_, stream)) => self.serve(stream),
                    None => break,
                },
            }
        }
        self.drain(incoming).await
    }

    /// Serves one substream in a task of its own. [`NodeService::run`] does this for every accepted one; a
    /// simulation may call it with streams of its own.
    pub fn serve(&self, stream: TurnStream) {
        let task = connection::serve(self.core.clone(), stream);
        self.core.connections.spawn(watched(self.core.panicked.clone(), task));
    }

    async fn drain(self, mut incoming: Incoming) -> Result<(), ServiceError> {
        let core = &self.core;
        core.draining.cancel();
        core.turns.close();
        core.connections.close();
        core.storing.close();
        let deadline = Instant::now() + core.limits.drain_grace;
        let mut accepting = true;
        let finished = loop {
            tokio::select! {
                biased;
                () = core.panicked.cancelled() => return Err(ServiceError::TaskPanicked),
                () = core.turns.wait() => break true,
                () = tokio::time::sleep_until(deadline) => break false,
                next = incoming.next(), if accepting => match next {
                    Some((_, stream)) => self.serve(stream),
                    None => accepting = false,
                },
            }
        };
        drop(incoming);
        if finished {
            // The last frames are still on their way, and a store that answers soon is worth a wait.
            let rest = async {
                core.connections.wait().await;
                core.storing.wait().await;
            };
            let _ = tokio::time::timeout_at(deadline, rest).await;
        }
        core.ending.cancel();
        core.turns.wait().await;
        // What ended just now has a last frame to say so.
        let _ = tokio::time::timeout(limits::LAST_FRAMES_WAIT, core.connections.wait()).await;
        core.closing.cancel();
        core.connections.wait().await;
        core.storing.wait().await;
        core.journal.flush().await?;
        if core.panicked.is_cancelled() { Err(ServiceError::TaskPanicked) } else { Ok(()) }
    }
}
