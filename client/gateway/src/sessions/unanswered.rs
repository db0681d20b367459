//! Turns that stay without an answer: those that a next request could not resume are given up, with the sessions that
//! they began.

use baton_client::ClientError;
use baton_proto::{ErrorCode, ids::SessionId};

use crate::{form::completion::CompletionRequest, state::Gateway};

/// Gives up the turn of a failed request if the same request could not resume it, with the session that the request
/// began. In a session that the request named, as the chat page does, a message stays that a node may still answer; so
/// does a message that waited there before a request took it up. Returns whether the turn is gone.
pub(crate) async fn forget_failed(
    gateway: &Gateway,
    request: &CompletionRequest,
    session: SessionId,
    is_resumed: bool,
    error: &ClientError,
) -> bool {
    let is_named = request.is_named();
    match gateway.client().session(session).keeps_message(error, !is_named && !is_resumed).await {
        Ok(true) => {
            let lacks_tools = error.code() == Some(ErrorCode::ModelUnavailable) && request.tools.is_some();
            lacks_tools && !is_named && discard_unused(gateway, session).await
        }
        Ok(false) => {
            if !is_named {
                discard_unused(gateway, session).await;
            }
            true
        }
        Err(error) => {
            tracing::debug!(%error, "a turn that failed was not given up");
            false
        }
    }
}

/// Deletes a session without a turn, with its unanswered message. Returns whether the session is gone.
pub(crate) async fn discard_unused(gateway: &Gateway, session: SessionId) -> bool {
    let handle = gateway.client().session(session);
    if !handle.info().await.is_ok_and(|info| info.turns == 0) {
        return false;
    }
    let discarded = async {
        handle.abandon().await?;
        handle.delete().await
    };
    match discarded.await {
        Ok(_) => gateway.index().forget(session),
        Err(error) => tracing::debug!(%error, "a session without a turn was not deleted"),
    }
    !gateway.client().session_ids().await.is_ok_and(|ids| ids.contains(&session))
}
