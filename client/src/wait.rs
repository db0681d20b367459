//! Waiting for background work, for callers that are about to stop or that check the store.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64},
    time::Duration,
};

use baton_proto::ids::SessionId;
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, timeout_at},
};

use crate::{background::AuthorPolicy, client::Client, error::ClientError, session::Session};

/// Pause between two rounds of background work while a caller waits: shorter than between other rounds.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);

/// Signals of the background work on a session. Shared by all copies of a state, and not part of it.
pub(crate) struct Signals {
    /// Marked by every applied entry.
    pub(crate) changed: watch::Sender<()>,
    /// Whether a retry of background work is planned.
    pub(crate) retry_waits: AtomicBool,
    /// Rounds planned since the work was last complete.
    pub(crate) planned_rounds: AtomicU32,
    /// One PUT at a time, so that two tasks never buy the same blob.
    pub(crate) puts: Semaphore,
    /// Whether the indexes lack the head that they acknowledged; then it is published again.
    pub(crate) head_missing: AtomicBool,
    /// When a renewal was last tried in the background, in milliseconds since the Unix epoch; 0 for never.
    pub(crate) renewal_tried_ms: AtomicU64,
}

impl Signals {
    pub(crate) fn new() -> Self {
        Self {
            changed: watch::Sender::default(),
            retry_waits: AtomicBool::new(false),
            planned_rounds: AtomicU32::new(0),
            puts: Semaphore::new(1),
            head_missing: AtomicBool::new(false),
            renewal_tried_ms: AtomicU64::new(0),
        }
    }
}

impl Client {
    /// Waits until every accepted turn of a session is stored with a known ID, and its head is published.
    /// False if that took longer than `timeout`. Resumes unfinished work.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// As opening the session.
    pub async fn wait_settled(&self, id: SessionId, timeout: Duration) -> Result<bool, ClientError> {
        let session = self.open_session(id).await?;
        let mut changes = session.read(|state| state.signals.changed.subscribe());
        let done = async {
            let mut next_round = Instant::now();
            while !is_caught_up(&session) {
                if Instant::now() >= next_round {
                    self.spawn_round(&session, AuthorPolicy::Skip);
                    next_round = Instant::now() + ROUND_INTERVAL;
                }
                // After a change or a timeout alike, look again.
                let _ = timeout_at(next_round, changes.changed()).await;
            }
        };
        Ok(tokio::time::timeout(timeout, done).await.is_ok())
    }
}

impl Client {
    /// Waits until the head of a session is published and its last turn's author has the acknowledgement.
    /// False if that took longer than `timeout`; the rest is in the journal.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// As opening the session.
    pub async fn wait_delivered(&self, id: SessionId, timeout: Duration) -> Result<bool, ClientError> {
        let session = self.open_session(id).await?;
        let mut changes = session.read(|state| state.signals.changed.subscribe());
        let delivered = |session: &Session| {
            session.read(|state| {
                let last = state.next_seq().checked_sub(1);
                state.is_published() && last.is_none_or(|last| !state.unacked.contains(&last))
            })
        };
        let done = async {
            while !delivered(&session) {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        Ok(tokio::time::timeout(timeout, done).await.is_ok())
    }

    /// Waits until all head indexes have the head of a session; false if that took longer than `timeout`.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// As opening the session.
    pub async fn wait_published(&self, id: SessionId, timeout: Duration) -> Result<bool, ClientError> {
        let session = self.open_session(id).await?;
        let mut changes = session.read(|state| state.signals.changed.subscribe());
        let done = async {
            while !session.read(|state| state.is_published() && state.head_unconfirmed.is_none()) {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        Ok(tokio::time::timeout(timeout, done).await.is_ok())
    }

    /// Waits until the head of a session is published or its publication fails. True if another device's
    /// turns are in its way, so that [`Client::reconcile`] has work. False also if nothing is known within
    /// `timeout`.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// As opening the session.
    pub async fn wait_compared(&self, id: SessionId, timeout: Duration) -> Result<bool, ClientError> {
        let session = self.open_session(id).await?;
        let mut changes = session.read(|state| state.signals.changed.subscribe());
        let done = async {
            while !session.is_diverged() && !session.is_publication_over() {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        // At the timeout, the current knowledge is the result.
        let _ = tokio::time::timeout(timeout, done).await;
        Ok(session.is_diverged())
    }
}

/// Whether background work is left: to store, to publish, or to offer a head record again to an index that
/// refused it.
pub(crate) fn has_work(session: &Session) -> bool {
    !is_caught_up(session) || session.read(|state| state.head_unconfirmed.is_some())
}

/// Whether everything is stored and published. An index that is down while another has the head delays no
/// caller.
pub(crate) fn is_caught_up(session: &Session) -> bool {
    session.read(|state| state.is_published() && state.unstored.is_empty())
}
