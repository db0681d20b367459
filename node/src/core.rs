//! State shared by the tasks of a node: keys, engines, journal, limits and running turns.
//!
//! The turn ([`crate::turn`]) and the service ([`crate::service`]) both use [`Core`], never each other. The
//! modules:
//! - [`quotas`] verifies grants,
//! - [`accounts`] counts the use of resources by the hour,
//! - [`reply`] and [`running`] follow replies,
//! - [`frames`] reads and writes frames,
//! - [`storing`] stores blobs.

pub(crate) mod accounts;
pub(crate) mod cache;
pub(crate) mod embedding;
pub(crate) mod frames;
pub(crate) mod limits;
pub(crate) mod pause;
pub(crate) mod quotas;
pub(crate) mod refusal;
pub(crate) mod reply;
pub(crate) mod running;
pub(crate) mod storing;

use std::{ops::Deref, sync::Arc};

use baton_keys::{
    SecretSigningKey,
    contexts::LOG_PSEUDONYM,
    exchange::ExchangeSecret,
    secret::{kdf, random_bytes},
};
use baton_limits::Slots;
use baton_mesh::{MeshHandle, StreamDefence};
use baton_proto::{
    ErrorCode, SignedBytes,
    chain::VerifiedLinks,
    ids::{ExchangeKeyId, ModelId, NodeId, SessionId},
    store::{BlobStore, HeadIndex},
};
use parking_lot::Mutex;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    engine::{Engine, SessionKey},
    journal::Journal,
    observer::ServiceObserver,
};
use accounts::Accounts;
use cache::BlobCache;
use embedding::{Embedding, EmbeddingModel};
use limits::ServiceLimits;
use pause::PausePoints;
use quotas::Quotas;
use running::RunningTurns;

/// Clock of the caller: milliseconds since the Unix epoch.
pub(crate) type ClockMs = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The node's keys and its signed record.
pub trait NodeIdentity: Send + Sync {
    /// The Ed25519 key, which is also the libp2p identity.
    fn signing_key(&self) -> &SecretSigningKey;
    /// The secret of an exchange key, while turns sealed to that key may still be opened.
    fn exchange_secret(&self, key: &ExchangeKeyId, now_ms: u64) -> Option<ExchangeSecret>;
    /// The current signed [`NodeRecord`](baton_proto::node_record::NodeRecord).
    fn record(&self) -> SignedBytes;
}

/// Key for session pseudonyms in logs and in the engine's cache. Without it, a pseudonym cannot be matched to
/// a session.
#[derive(Clone)]
pub struct LogKey([u8; 32]);

impl LogKey {
    /// A key for this process only: log lines of two runs cannot be matched.
    #[must_use]
    pub fn random() -> Self {
        Self(kdf(LOG_PSEUDONYM, &[&random_bytes::<32>()]))
    }

    /// The session's name in the engine's cache. It hides the session ID, and it differs from process to
    /// process.
    pub(crate) fn cache_key(&self, session: &SessionId) -> SessionKey {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        // The input is longer than a session ID, so this hash never equals a log pseudonym.
        hasher.update(b"cache of session ").update(&session.0);
        SessionKey(hasher.finalize().into())
    }

    /// Pseudonym of a session in this operator's logs: eight hex characters.
    #[must_use]
    pub(crate) fn short(&self, session: &SessionId) -> String {
        let hash = blake3::keyed_hash(&self.0, &session.0);
        hex::encode(hash.as_bytes().first_chunk::<4>().expect("a hash has 32 bytes"))
    }
}

impl std::fmt::Debug for LogKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogKey(redacted)")
    }
}

/// The dependencies of a service.
pub struct ServiceDeps {
    /// The models served here.
    pub engines: Vec<Arc<dyn Engine>>,
    /// The blob store.
    pub store: Arc<dyn BlobStore>,
    /// Head index for requests without a locator.
    pub heads: Option<Arc<dyn HeadIndex>>,
    /// The node's keys.
    pub identity: Arc<dyn NodeIdentity>,
    /// The journal of promises and signatures.
    pub journal: Journal,
    /// The limits.
    pub limits: ServiceLimits,
    /// The wall clock.
    pub clock: ClockMs,
    /// Receiver of counts.
    pub observer: Arc<dyn ServiceObserver>,
    /// The mesh, for blobs that the store does not have yet.
    pub peers: Option<MeshHandle>,
    /// Key of session pseudonyms in logs.
    pub log_key: LogKey,
    /// Pause points of a turn, for tests that kill the process.
    pub pause: PausePoints,
    /// The embedding model, if embeddings are offered.
    pub embeddings: Option<EmbeddingModel>,
}

/// State shared by all tasks of the service: its dependencies, and what they do.
pub(crate) struct Core {
    pub(crate) deps: ServiceDeps,
    /// This node's ID.
    pub(crate) node: NodeId,
    /// Rates and bans, and memory for large frames.
    pub(crate) defence: StreamDefence,
    /// Verified grants.
    pub(crate) quotas: Mutex<Quotas>,
    /// Use by subnet and grant.
    pub(crate) accounts: Mutex<Accounts>,
    pub(crate) slots: Slots,
    /// The embedding model, if embeddings are offered.
    pub(crate) embedding: Option<Embedding>,
    pub(crate) running: Arc<RunningTurns>,
    pub(crate) cache: BlobCache,
    pub(crate) verified_links: Arc<VerifiedLinks>,
    /// The capacity for PUTs, with the blobs that wait for it.
    pub(crate) put_slots: Slots,
    pub(crate) connections: TaskTracker,
    pub(crate) turns: TaskTracker,
    pub(crate) storing: TaskTracker,
    /// Refuses new turns.
    pub(crate) draining: CancellationToken,
    /// Ends every turn now.
    pub(crate) ending: CancellationToken,
    /// Ends every substream now.
    pub(crate) closing: CancellationToken,
    pub(crate) panicked: CancellationToken,
}

impl Deref for Core {
    type Target = ServiceDeps;

    fn deref(&self) -> &ServiceDeps {
        &self.deps
    }
}

impl Core {
    /// The time now.
    pub(crate) fn now_ms(&self) -> u64 {
        (self.clock)()
    }

    /// The engine that serves a model here.
    pub(crate) fn engine(&self, model: &ModelId) -> Result<Arc<dyn Engine>, ErrorCode> {
        let found = self.engines.iter().find(|engine| engine.info().model_id == *model);
        found.cloned().ok_or(ErrorCode::ModelUnavailable)
    }

    /// Runs a turn as its own task. It outlives the stream that requested it.
    pub(crate) fn spawn_turn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        self.turns.spawn(watched(self.panicked.clone(), task));
    }

    /// Runs a task that stores a blob. It outlives the turn.
    pub(crate) fn spawn_storing(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let ending = self.ending.clone();
        let until_end = async move {
            // The journal has each blob that is not stored by then; the next start stores it.
            let _ = ending.run_until_cancelled_owned(task).await;
        };
        self.storing.spawn(watched(self.panicked.clone(), until_end));
    }
}

/// Reports a panic to the service's main task.
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
