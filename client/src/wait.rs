//! Waiting for background work, for callers that are about to stop or that check the store.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

use crate::{
    background,
    core::Core,
    session::open_session::{AuthorPolicy, Session},
};

/// Pause between two rounds of background work while a caller waits: shorter than between other rounds.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);

/// As [`SessionHandle::wait_settled`](crate::SessionHandle::wait_settled).
pub(crate) async fn wait_settled(core: &Arc<Core>, session: &Arc<Session>, timeout: Duration) -> bool {
    let mut changes = session.changes();
    let done = async {
        let mut next_round = Instant::now();
        while !session.is_caught_up() {
            if Instant::now() >= next_round {
                background::spawn_round(core, session, AuthorPolicy::Skip);
                next_round = Instant::now() + ROUND_INTERVAL;
            }
            // After a change or a timeout alike, look again.
            let _ = timeout_at(next_round, changes.changed()).await;
        }
    };
    tokio::time::timeout(timeout, done).await.is_ok()
}

/// As [`SessionHandle::wait_delivered`](crate::SessionHandle::wait_delivered).
pub(crate) async fn wait_delivered(session: &Arc<Session>, timeout: Duration) -> bool {
    let mut changes = session.changes();
    let delivered = |session: &Session| {
        session.read(|state| {
            let last = state.next_seq().checked_sub(1);
            state.is_published() && last.is_none_or(|last| !state.unacked.contains(&last))
        })
    };
    let done = async {
        while !delivered(session) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    };
    tokio::time::timeout(timeout, done).await.is_ok()
}

/// As [`SessionHandle::wait_published`](crate::SessionHandle::wait_published).
pub(crate) async fn wait_published(session: &Arc<Session>, timeout: Duration) -> bool {
    let mut changes = session.changes();
    let done = async {
        while !session.read(|state| state.is_published() && state.head_unconfirmed.is_none()) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    };
    tokio::time::timeout(timeout, done).await.is_ok()
}

/// As [`SessionHandle::wait_compared`](crate::SessionHandle::wait_compared).
pub(crate) async fn wait_compared(session: &Arc<Session>, timeout: Duration) -> bool {
    let mut changes = session.changes();
    let done = async {
        while !session.indexes(|view| view.diverged) && !session.is_publication_over() {
            if changes.changed().await.is_err() {
                return;
            }
        }
    };
    // At the timeout, the current knowledge is the result.
    let _ = tokio::time::timeout(timeout, done).await;
    session.indexes(|view| view.diverged)
}
