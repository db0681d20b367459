//! The turn service: handles an accepted substream up to its last frame.
//!
//! It owns admission, the running turns, the reply logs for streams, the blob cache and the tasks that store
//! blobs. `daemon` builds it from [`ServiceDeps`] and runs it; `turn` handles the turn itself. It
//! keeps no table of sessions: its only memory is the journal, and any other node can serve the next turn.
//! Conversation text may leave it only in a sealed record or a sealed reply.

pub(crate) mod connection;
pub(crate) mod embedding;
mod questions;

use std::{pin::pin, sync::Arc};

use baton_limits::Slots;
use baton_mesh::{Incoming, StreamDefence, TurnStream};
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use crate::core::ClockMs;
pub use crate::core::embedding::EmbeddingModel;
pub use crate::core::limits::{Price, ServiceLimits};
pub use crate::core::pause::{PausePoints, Step};
pub use crate::core::quotas::QuotaPolicy;
use crate::core::{
    Core, accounts::Accounts, cache::BlobCache, embedding::Embedding, limits, quotas::Quotas, storing,
    watched,
};
pub use crate::core::{LogKey, NodeIdentity, ServiceDeps};
pub use crate::observer::{BlobContent, BlobSource, NoObserver, ServiceObserver, TurnSummary};

/// Why a service ended without a shutdown request.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A task panicked; the log has its message. The process should end.
    #[error("a task of the turn service panicked; see the message before")]
    TaskPanicked,
    /// The journal cannot be read or written.
    #[error(transparent)]
    Journal(#[from] crate::journal::JournalError),
}

/// Saves the accounts in the journal, again and again.
async fn save_accounts(core: Arc<Core>) {
    let mut ticks = interval(limits::SAVE_ACCOUNTS_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let saved = core.accounts.lock().snapshot(core.now_ms());
        let Some(saved) = saved else { continue };
        if let Err(error) = core.journal.save_accounts(saved).await {
            tracing::error!(%error, "the accounts were not saved: a restart forgives their use");
        }
    }
}

/// The turn service of one node. Clones share it.
#[derive(Clone)]
pub struct NodeService {
    core: Arc<Core>,
}

impl NodeService {
    /// Creates a service without starting it.
    #[must_use]
    pub fn new(deps: ServiceDeps) -> Self {
        let (limits, now_ms) = (&deps.limits, (deps.clock)());
        let node = deps.identity.signing_key().node_id();
        let observer = deps.observer.clone();
        let defence = StreamDefence::new(limits.defence(), deps.clock.clone(), move || observer.banned());
        let embeddings = deps.embeddings.clone();
        let core = Core {
            node,
            defence,
            quotas: Mutex::new(Quotas::new(limits.quotas.clone(), node)),
            accounts: Mutex::default(),
            slots: Slots::new(limits.turn_slots(limits.slots)),
            embedding: embeddings.map(|model| Embedding::new(model, limits.turn_slots(1), now_ms)),
            running: Arc::default(),
            cache: BlobCache::new(limits.cache_bytes),
            verified_links: Arc::default(),
            put_slots: Slots::new(limits.put_slots()),
            connections: TaskTracker::new(),
            turns: TaskTracker::new(),
            storing: TaskTracker::new(),
            draining: CancellationToken::new(),
            ending: CancellationToken::new(),
            closing: CancellationToken::new(),
            panicked: CancellationToken::new(),
            deps,
        };
        Self { core: Arc::new(core) }
    }

    /// Running and waiting embedding requests.
    #[must_use]
    pub fn embeddings_load(&self) -> (usize, usize) {
        self.core.embedding.as_ref().map(Embedding::load).unwrap_or_default()
    }

    /// Serves until `shutdown` or until the mesh stops. Then it refuses new turns, lets running ones finish
    /// within [`ServiceLimits::drain_grace`], ends the others, and joins every task.
    ///
    /// Before serving, it resumes storing the unstored blobs of an earlier run.
    ///
    /// # Errors
    /// [`ServiceError`]; the process should then end with a failure.
    pub async fn run(self, mut incoming: Incoming, shutdown: CancellationToken) -> Result<(), ServiceError> {
        let core = &self.core;
        if let Some(saved) = core.journal.accounts().await? {
            *core.accounts.lock() = Accounts::restored(&saved, core.now_ms());
        }
        storing::store_again(core).await?;
        let mut saving = pin!(save_accounts(core.clone()));
        loop {
            tokio::select! {
                biased;
                () = self.core.panicked.cancelled() => return Err(ServiceError::TaskPanicked),
                () = shutdown.cancelled() => break,
                next = incoming.next() => match next {
                    Some((_, stream)) => self.serve(stream),
                    None => break,
                },
                // It has no end.
                () = &mut saving => {}
            }
        }
        self.drain(incoming).await
    }

    /// Serves one substream in its own task. [`NodeService::run`] calls it for every accepted substream; a
    /// simulation may call it with its own streams.
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
            // The last frames are still in transit, and blobs may soon be stored: both deserve a short wait.
            let rest = async {
                core.connections.wait().await;
                core.storing.wait().await;
            };
            let _ = tokio::time::timeout_at(deadline, rest).await;
        }
        core.ending.cancel();
        core.turns.wait().await;
        // Turns that just ended still send a last frame.
        let _ = tokio::time::timeout(limits::LAST_FRAMES_WAIT, core.connections.wait()).await;
        core.closing.cancel();
        core.connections.wait().await;
        core.storing.wait().await;
        let saved = core.accounts.lock().snapshot(core.now_ms());
        if let Some(saved) = saved {
            core.journal.save_accounts(saved).await?;
        }
        core.journal.flush().await?;
        if core.panicked.is_cancelled() { Err(ServiceError::TaskPanicked) } else { Ok(()) }
    }
}
