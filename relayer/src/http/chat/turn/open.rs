//! Opens the session of a turn, and compares the user's head with it.

use baton_client::{ClientError, NewSession, TurnView};

use super::{
    super::{
        ChatError,
        head::{ChatHead, HeadPosition},
    },
    TurnContext,
};

impl TurnContext<'_> {
    /// Opens the session from this relayer's journal, updated from the head index. Otherwise it uses the
    /// index and the store by the root alone, or starts a new session. Returns the number of turns in the journal.
    pub(super) async fn open(&self) -> Result<u64, ChatError> {
        let (client, session, root) = (self.client, &self.session, self.root);
        let found = match client.open_log(root).await {
            // The store has all accepted turns; only an unanswered message is lost with the journal.
            Err(ClientError::JournalDamaged { .. }) => {
                tracing::warn!("a session's journal is damaged; the session is taken from the store");
                None
            }
            other => other?,
        };
        if found.is_some() {
            let journaled = session.info().await?.turns;
            match session.check_head().await {
                Err(ClientError::Behind { .. }) => {
                    // Another turn has replaced the unfinished one.
                    session.abandon().await?;
                    client.recover(root).await?;
                }
                Err(
                    error @ (ClientError::Deleted
                    | ClientError::Protocol(baton_proto::ErrorCode::ForkDetected)),
                ) => {
                    return Err(error.into());
                }
                // An unreachable index, or one with fewer turns, costs nothing else.
                Err(error) => tracing::debug!(%error, "the head index does not confirm a session"),
                Ok(_) => {}
            }
            return Ok(journaled);
        }
        if self.request.session_key.is_some() {
            match client.recover(root).await {
                Ok(_) => return Ok(0),
                Err(ClientError::HeadMissing) if self.request.head.is_some() => {
                    return Err(ChatError::Rollback("nobody here knows the session that the head is of"));
                }
                Err(ClientError::HeadMissing) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let system = self.request.messages.system.clone().unwrap_or_default();
        let new = NewSession { system, root: Some(root.clone()), ..NewSession::default() };
        client.new_session(new).await?;
        Ok(0)
    }

    /// Compares the user's head with the known turns. One turn that was never delivered to the user is not a
    /// rollback.
    pub(super) fn check_head(&self, last: Option<&TurnView>, undelivered: bool) -> Result<(), ChatError> {
        let Some(text) = &self.request.head else { return Ok(()) };
        let head = ChatHead::read(text, self.owner, self.root.session_id())
            .ok_or_else(|| ChatError::Bad("the head is not one of this session and owner".to_owned()))?;
        let known = last.map(|last| last.turn.link.seq);
        let named = match head.position(known) {
            HeadPosition::Ahead => {
                return Err(ChatError::Rollback(
                    "the head names a later turn than the store and the index show",
                ));
            }
            HeadPosition::Last => last.map(|last| last.turn.link.link_hash()),
            HeadPosition::Stale(1) if undelivered => last.map(|last| last.turn.link.prev_link),
            HeadPosition::Stale(_) => {
                return Err(ChatError::Rollback(
                    "the session went on since; leave the head out to go on from where it is",
                ));
            }
        };
        if named == Some(head.link_hash) { Ok(()) } else { Err(ChatError::Fork) }
    }
}
