//! Turns that stay without an answer: those that a next request could not resume are given up, with the sessions that
//! they began.

use baton_client::ClientError;
use baton_proto::{ErrorCode, ids::SessionId};

use super::{Gateway, completion::CompletionRequest};

/// Gives up the turn of a failed request if the same request could not resume it. Returns whether it is gone.
pub(super) async fn forget_failed(
    gateway: &Gateway,
    request: &CompletionRequest,
    session: SessionId,
    error: &ClientError,
) -> bool {
    (is_refused(error, request) && discard_unused(gateway, request, session).await)
        || drop_unasked(gateway, request, session).await
}

/// Whether no asked node serves the request as it is. The same request would fail again.
fn is_refused(error: &ClientError, request: &CompletionRequest) -> bool {
    let lacks_tools = error.code() == Some(ErrorCode::ModelUnavailable) && request.tools.is_some();
    error.is_refusal_of_request() || lacks_tools
}

/// Gives up the turn of a failed request if no node was asked for it, with the session that the request began. In a
/// session that the request named, as the chat page does, the message stays. Returns whether the turn is gone.
async fn drop_unasked(gateway: &Gateway, request: &CompletionRequest, session: SessionId) -> bool {
    if is_named(request) {
        return false;
    }
    match gateway.client().session(session).abandon_unasked().await {
        Ok(is_gone) => {
            if is_gone {
                discard_unused(gateway, request, session).await;
            }
            is_gone
        }
        Err(error) => {
            tracing::debug!(%error, "a turn that no node was asked for was not given up");
            false
        }
    }
}

/// Deletes the session that a failed request began, and that has no turn. A session that the request named
/// stays. Returns whether the session is gone.
pub(super) async fn discard_unused(
    gateway: &Gateway,
    request: &CompletionRequest,
    session: SessionId,
) -> bool {
    let handle = gateway.client().session(session);
    if is_named(request) || !handle.info().await.is_ok_and(|info| info.turns == 0) {
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

/// Whether a request names a session that was there before.
fn is_named(request: &CompletionRequest) -> bool {
    request.session.as_deref().is_some_and(|name| name != "new")
}
