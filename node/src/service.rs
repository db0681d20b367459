//! The turn service: everything between an accepted substream and its last frame.
//!
//! It owns admission, the turns that run, the reply logs that streams follow, the blob cache and the tasks that
//! store blobs. `main` builds it from [`ServiceDeps`] and runs it; the turn itself is in [`crate::turn`]. It keeps no
//! table of sessions: what it remembers is the journal, and any other node can serve the next turn. It must never
//! write text of a conversation anywhere but into a sealed record or a sealed reply.

mod audit;
pub(crate) mod connection;
pub mod embedding;
mod questions;

use std::sync::{Arc, Mutex, atomic::Ordering};

use baton_mesh::{Incoming, MeshHandle, Rates, TurnStream};
use baton_proto::store::{BlobStore, HeadIndex};
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use crate::{
    core::{
        ClockMs, LogKey, NodeIdentity,
        embedding::EmbeddingModel,
        guard::quotas::QuotaPolicy,
        limits::{Price, ServiceLimits},
        pause::{PausePoints, Step},
    },
    observer::{BlobSource, NoObserver, RequestKind, ServiceObserver, TurnSummary},
};
use crate::{
    core::{
        Core,
        cache::BlobCache,
        embedding::Embedding,
        guard::{Guard, quotas::Quotas},
        limits,
        shares::FrameShares,
        slots::Slots,
        storing, watched,
    },
    engine::Engine,
    journal::Journal,
    telemetry::Telemetry,
};

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
            verified_links: Arc::default(),
            puts: Arc::new(tokio::sync::Semaphore::new(limits::MAX_CONCURRENT_PUTS)),
            frame_shares: FrameShares::new(limits.frame_bytes),
            audit_shares: FrameShares::new(limits::MAX_AUDITS_BYTES),
            connections: TaskTracker::new(),
            turns: TaskTracker::new(),
            storing: TaskTracker::new(),
            held: false.into(),
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
