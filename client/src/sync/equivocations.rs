//! Nodes that signed two different links for one turn: found, kept as evidence, and reported.

use std::sync::Arc;

use baton_proto::{ErrorCode, SignedBytes, ids::SessionId};
use tokio::sync::broadcast;

use crate::{
    client::Client,
    error::ClientError,
    evidence::Equivocation,
    network::reputation::NodeFailure,
    session::{open_session::Session, state::Entry},
};

impl Client {
    /// Subscribes to nodes found from now on to have signed two different links for one turn. Earlier
    /// findings are in [`Client::equivocations`].
    #[must_use]
    pub fn watch_equivocations(&self) -> broadcast::Receiver<Equivocation> {
        self.inner.found.subscribe()
    }

    /// The turns of a session for which their node signed a second link, oldest first.
    ///
    /// # Errors
    /// As [`Client::receipts`].
    pub async fn equivocations(&self, id: SessionId) -> Result<Vec<Equivocation>, ClientError> {
        let turns = self.receipts(id, false).await?;
        Ok(turns.into_iter().filter_map(|turn| turn.equivocation).collect())
    }

    /// Handles a second commitment of an accepted turn. The first link stays valid; the second is kept as
    /// evidence.
    pub(crate) async fn committed_again(&self, session: &Arc<Session>, seq: u64, second: SignedBytes) {
        let Some(accepted) = session.read(|state| Some(state.turn(seq)?.0.link.clone())) else { return };
        let node = accepted.author;
        let found = match Equivocation::check(accepted.bytes().clone(), second) {
            Ok(found) => found,
            // The same link again, or an unsigned one, proves nothing to others.
            Err(code) => {
                tracing::warn!(%node, code = code.name(), "a node committed a turn twice");
                return self.inner.directory.failed(node, NodeFailure::Lied, 0);
            }
        };
        tracing::warn!(%node, code = ErrorCode::ForkDetected.name(), "a node signed two different links for one turn; `baton receipts --evidence FILE` writes both down");
        self.inner.directory.failed(node, NodeFailure::Equivocated, 0);
        let entry = Entry::SignedTwice { seq, link: found.other.bytes().clone() };
        if let Err(error) = session.record_of((seq, accepted.link_hash()), vec![entry]).await {
            tracing::warn!(%error, "evidence could not be kept");
        }
        // There may be no listener.
        let _ = self.inner.found.send(found);
    }
}
