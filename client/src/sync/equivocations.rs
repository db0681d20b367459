//! Nodes that signed two different links for one turn: found, kept as evidence, and reported.

use std::sync::Arc;

use baton_proto::{ErrorCode, SignedBytes};

use crate::{
    core::Core,
    error::log_failure,
    evidence::Equivocation,
    network::reputation::NodeFailure,
    session::{
        open_session::Session,
        state::{Entry, TurnChange},
    },
};

/// Handles a second commitment of an accepted turn. The first link stays valid; the second is kept as
/// evidence.
pub(crate) async fn committed_again(core: &Arc<Core>, session: &Arc<Session>, seq: u64, second: SignedBytes) {
    let Some(accepted) = session.read(|state| Some(state.turn(seq)?.0.link.clone())) else { return };
    let node = accepted.author;
    let found = match Equivocation::check(accepted.bytes().clone(), second) {
        Ok(found) => found,
        // The same link again, or an unsigned one, proves nothing to others.
        Err(code) => {
            tracing::warn!(%node, code = code.name(), "a node committed a turn twice");
            return core.directory.failed(node, NodeFailure::Lied, 0);
        }
    };
    tracing::warn!(%node, code = ErrorCode::ForkDetected.name(), "a node signed two different links for one turn; `baton receipts --evidence FILE` writes both down");
    core.directory.failed(node, NodeFailure::Equivocated, 0);
    let entry = Entry::OfTurn(seq, TurnChange::SignedTwice(found.other.bytes().clone()));
    let kept = session.record_of((seq, accepted.link_hash()), vec![entry]).await;
    log_failure(kept, "evidence could not be kept");
}
