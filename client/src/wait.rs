//! Waiting for background work, for callers that are about to stop or that check the store.

use std::time::Duration;

use baton_proto::ids::SessionId;
use tokio::time::{Instant, timeout_at};

use crate::{
    client::Client,
    error::ClientError,
    session::open_session::{AuthorPolicy, Session},
};

/// Pause between two rounds of background work while a caller waits: shorter than between other rounds.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);

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
            while !session.is_caught_up() {
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
