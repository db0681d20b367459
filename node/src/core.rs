//! Everything that the tasks of a node share: keys, engines, journal, limits, and the turns that run.
//!
//! The turn ([`crate::turn`]) and the service around it ([`crate::service`]) take [`Core`] and nothing of each other's. Its
//! modules say who may have how much ([`guard`], [`slots`], [`shares`]), follow replies ([`reply`], [`running`]), read and
//! write frames ([`frames`]), and store blobs ([`storing`]).

pub(crate) mod cache;
pub mod embedding;
pub(crate) mod frames;
pub(crate) mod guard;
pub mod limits;
pub mod pause;
pub(crate) mod refusal;
pub(crate) mod reply;
pub(crate) mod running;
pub(crate) mod shares;
pub(crate) mod slots;
pub(crate) mod storing;

use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering},
};

use baton_keys::{
    SecretSigningKey,
    contexts::LOG_PSEUDONYM,
    exchange::ExchangeSecret,
    secret::{kdf, random_bytes},
};
use baton_mesh::{MeshHandle, Rates};
use baton_proto::{
    ErrorCode, SignedBytes,
    chain::VerifiedLinks,
    ids::{ExchangeKey, ModelId, NodeId, SessionId},
    store::{BlobStore, HeadIndex},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    engine::{Engine, SessionKey},
    journal::Journal,
    lock::lock,
    observer::ServiceObserver,
    telemetry::Telemetry,
};
use cache::BlobCache;
use embedding::Embedding;
use guard::{Caller, Guard, Offence, TooMany, quotas::Quotas};
use limits::ServiceLimits;
use pause::PausePoints;
use refusal::Refusal;
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

/// Everything that the tasks of the service share.
pub(crate) struct Core {
    pub(crate) engines: Vec<Arc<dyn Engine>>,
    pub(crate) store: Arc<dyn BlobStore>,
    pub(crate) heads: Option<Arc<dyn HeadIndex>>,
    pub(crate) identity: Arc<dyn NodeIdentity>,
    pub(crate) journal: Journal,
    pub(crate) limits: ServiceLimits,
    pub(crate) clock: ClockMs,
    pub(crate) observer: Arc<dyn ServiceObserver>,
    pub(crate) peers: Option<MeshHandle>,
    pub(crate) log_key: LogKey,
    pub(crate) pause: PausePoints,
    pub(crate) telemetry: Telemetry,
    /// This node's name.
    pub(crate) node: NodeId,
    /// Who gets how much.
    pub(crate) guard: Mutex<Guard>,
    /// What was granted to whom.
    pub(crate) quotas: Mutex<Quotas>,
    /// Turns, by session.
    pub(crate) session_rates: Mutex<Rates<SessionId>>,
    pub(crate) slots: Arc<Slots>,
    /// What texts are embedded with, if they are.
    pub(crate) embedding: Option<Embedding>,
    pub(crate) running: Arc<Running>,
    pub(crate) cache: BlobCache,
    pub(crate) verified_links: Arc<VerifiedLinks>,
    /// Limits how many PUTs run at once.
    pub(crate) puts: Arc<tokio::sync::Semaphore>,
    /// Of [`ServiceLimits::frame_bytes`].
    pub(crate) frame_shares: FrameShares,
    /// Of [`limits::MAX_AUDITS_BYTES`].
    pub(crate) audit_shares: FrameShares,
    pub(crate) connections: TaskTracker,
    pub(crate) turns: TaskTracker,
    pub(crate) storing: TaskTracker,
    /// No new turns, until the operator says otherwise.
    pub(crate) held: AtomicBool,
    /// No new turns.
    pub(crate) draining: CancellationToken,
    /// Every turn ends now.
    pub(crate) ending: CancellationToken,
    /// Every substream ends now.
    pub(crate) closing: CancellationToken,
    pub(crate) panicked: CancellationToken,
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

/// Tells the service's main task of a panic.
struct PanicAlarm(CancellationToken);

impl Drop for PanicAlarm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.cancel();
        }
    }
}

pub(crate) async fn watched(panicked: CancellationToken, task: impl Future<Output = ()>) {
    let _alarm = PanicAlarm(panicked);
    task.await;
}
