//! Frames that need no reply but a confirmation, sent to nodes with a few tries.

use std::{sync::Arc, time::Duration};

use baton_proto::{
    ErrorCode, SignedObject,
    ids::{NodeId, SessionId},
    note::{TurnNote, TurnNoteKind},
    turn::TurnAuth,
    wire::{ClientFrame, NodeFrame},
};

use crate::{
    attempt::resolve::ask, core::Core, network::exchange::ExchangeError, session::open_session::Session,
};

/// Tries of one acknowledgement or abort before it is left to the next start.
const SEND_TRIES: u32 = 3;
/// First pause between tries.
const PAUSE: Duration = Duration::from_millis(500);

/// Tells nodes that their attempts were not accepted, in the background.
pub(crate) fn spawn_aborts(
    core: &Arc<Core>,
    session: &Arc<Session>,
    attempts: Vec<SignedObject<TurnAuth>>,
    accepted: Option<u32>,
) {
    let now = core.now_ms();
    for auth in attempts {
        if Some(auth.attempt) == accepted {
            continue;
        }
        let note = TurnNote::of(&auth, TurnNoteKind::Abort, now);
        let note = session.read(|state| SignedObject::sign(note, &state.root.signing_key()));
        let shared = core.clone();
        core.spawn(async move {
            deliver(&shared, auth.session_id, auth.audience, &ClientFrame::Note(note.bytes().clone())).await;
        });
    }
}

/// Sends a frame about a turn to a node, with a few tries. Returns whether the node knows the turn; none without an
/// answer.
pub(crate) async fn deliver(
    core: &Arc<Core>,
    session: SessionId,
    node: NodeId,
    frame: &ClientFrame,
) -> Option<bool> {
    let mut pause = PAUSE;
    for left in (0..SEND_TRIES).rev() {
        match ask(core, session, node, frame).await {
            Ok(NodeFrame::Done) => return Some(true),
            // A node that does not know the turn will not learn it from a repetition.
            Err(ExchangeError::Refused { code: ErrorCode::StatusUnknown, .. }) => return Some(false),
            Ok(_) | Err(_) => {}
        }
        if left > 0 {
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }
    None
}
