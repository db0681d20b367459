//! Waiting for what goes on in the background, for callers that are about to stop, or that check what is stored.

use std::time::Duration;

use baton_proto::ids::SessionId;

use crate::{client::Client, error::ClientError, session::Session};

/// Pause between two looks at the state. Background tasks report to the journal, not to each other, so there is no one
/// event to wait for; a look is a short lock.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

impl Client {
    /// Waits until every accepted turn of a session is stored and its ID known, and its head is published; false when
    /// that was not so within `timeout`. Work that is left over from before is taken up.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// As opening the session.
    pub async fn wait_settled(&self, id: SessionId, timeout: Duration) -> Result<bool, ClientError> {
        let session = self.opened(id).await?;
        let done = async {
            while !is_caught_up(&session) {
                self.spawn_duties(session.clone());
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        };
        Ok(tokio::time::timeout(timeout, done).await.is_ok())
    }
}

fn is_caught_up(session: &Session) -> bool {
    session.read(|state| {
        let published = state
            .last()
            .is_none_or(|(turn, _)| state.head.is_some_and(|head| head.link_hash == turn.link.link_hash()));
        let stored =
            |seq: u64| state.is_superseded(seq) || state.turn(seq).is_some_and(|(_, meta)| meta.stored);
        published && (0..state.next_seq()).rev().all(stored)
    })
}
