//! Waiting for background work, for callers that are about to stop or that check the store.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

use crate::{background, core::Core, session::open_session::Session};

/// Pause between two rounds of background work while a caller waits: shorter than between other rounds.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);

/// As [`SessionHandle::wait_settled`](crate::SessionHandle::wait_settled).
pub(crate) async fn wait_settled(core: &Arc<Core>, session: &Arc<Session>, timeout: Duration) -> bool {
    let mut changes = session.changes();
    let done = async {
        let mut next_round = Instant::now();
        while !session.is_caught_up() {
            if Instant::now() >= next_round {
                background::spawn_rounds(core, session, Duration::ZERO);
                next_round = Instant::now() + ROUND_INTERVAL;
            }
            // After a change or a timeout alike, look again.
            let _ = timeout_at(next_round, changes.changed()).await;
        }
    };
    tokio::time::timeout(timeout, done).await.is_ok()
}

/// Waits until a session is in this state; false if that took longer than `timeout`.
pub(crate) async fn until(session: &Session, timeout: Duration, is_so: impl Fn(&Session) -> bool) -> bool {
    let mut changes = session.changes();
    let done = async { while !is_so(session) && changes.changed().await.is_ok() {} };
    tokio::time::timeout(timeout, done).await.is_ok()
}
