//! The routes of turns that the chat page begins.

use std::sync::Arc;

use axum::{Json, body::Body, http::StatusCode, response::Response};
use baton_proto::ids::SessionId;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use crate::{
    apis::page::turns::messages,
    form::{completion::RequestPlace, fields::BodyFields, steps::Step, wire::read_chat},
    http::{api_error::ApiError, session_header::name_session},
    sessions::unanswered::discard_unused,
    state::{Gateway, PathSession, live_turns::LiveTurn},
    turns::answer::{RunningTurn, start},
};
use baton_client::ClientError;

/// Begins a turn in a session, and follows it.
pub(crate) async fn begin(
    gateway: Gateway,
    PathSession(session): PathSession,
    mut input: BodyFields,
    body: Body,
) -> Result<Response, ApiError> {
    let is_pending = input.flag("pending")?.unwrap_or(false);
    let (slot, body) = gateway.receive(body).await?;
    let mut request = read_chat(&body, Some(session.id().to_string()))?;
    if is_pending {
        request.place = RequestPlace::Pending;
    }
    let mut question = Map::from_iter([("messages".to_owned(), messages(&request.messages))]);
    if let RequestPlace::Replaces(seq) = request.place {
        question.insert("replaces".to_owned(), seq.into());
    }
    let turn = Arc::new(LiveTurn::new(question));
    let mut response = turn.follow()?;
    let (begun, is_begun) = oneshot::channel();
    // A tab that is closed now must not end what begins here.
    gateway.clone().spawn(async move {
        let running = match start(&gateway, slot, request).await {
            Ok(running) => running,
            Err(api_error) => return drop(begun.send(Err(api_error))),
        };
        gateway.inner.session_slots.set_live(running.session, &turn);
        let _ = begun.send(Ok(running.session));
        run(&gateway, &turn, running).await;
    });
    name_session(&mut response, is_begun.await.map_err(|_| ClientError::TaskEnded)??);
    Ok(response)
}

/// Follows the turn of a session that another tab began.
pub(crate) async fn follow(
    gateway: Gateway,
    PathSession(session): PathSession,
) -> Result<Response, ApiError> {
    find(&gateway, session.id())?.follow()
}

/// Stops the turn of a session, whichever tab began it. Its text so far stays beside the message.
pub(crate) async fn stop(
    gateway: Gateway,
    PathSession(session): PathSession,
) -> Result<Json<Value>, ApiError> {
    find(&gateway, session.id())?.stop.cancel();
    Ok(Json(json!({ "stopped": true })))
}

fn find(gateway: &Gateway, session: SessionId) -> Result<Arc<LiveTurn>, ApiError> {
    let missing = || ApiError::new("no_answer", "no answer of the page is under way in this conversation");
    gateway.inner.session_slots.live(session).ok_or_else(missing)
}

/// Reads a turn to its end, or until it is stopped.
async fn run(gateway: &Gateway, turn: &LiveTurn, mut running: RunningTurn) {
    let session = running.session;
    let end = loop {
        let step = tokio::select! {
            biased;
            () = turn.stop.cancelled() => break json!({ "stopped": true }),
            step = running.steps.recv() => step,
        };
        match step {
            Some(Step::Model(_)) => {}
            Some(Step::Note(note)) => turn.note(note),
            Some(Step::Text(text, _)) => turn.progress.send_modify(|progress| progress.text.push_str(&text)),
            Some(Step::Done(answer)) => break json!({ "answer": answer.about() }),
            Some(Step::Failed(api_error)) => {
                // Without a tab nobody could take the text back: the message stays.
                let is_seen = turn.progress.receiver_count() > 0;
                if is_seen {
                    give_back(gateway, session, &api_error).await;
                }
                break api_error.body();
            }
            None => break ApiError::from(ClientError::TaskEnded).body(),
        }
    };
    let holder = gateway.inner.session_slots.holder(session).filter(|_| turn.stop.is_cancelled());
    // Ends a turn that was stopped.
    drop(running);
    if let Some(holder) = holder {
        holder.ended().await;
    }
    turn.progress.send_modify(|progress| progress.end = Some(end));
}

/// Gives up a message that no node was asked for, or that each node would refuse again, with the session that has no
/// other: the page puts its text back into the box.
async fn give_back(gateway: &Gateway, session: SessionId, api_error: &ApiError) {
    let handle = gateway.client().session(session);
    let given_up = match api_error.status() {
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND => handle.abandon().await.map(|()| true),
        _ => handle.abandon_unasked().await,
    };
    let is_gone = given_up.unwrap_or_else(|error| {
        tracing::debug!(%error, "an unanswered message was not given up");
        false
    });
    if is_gone {
        discard_unused(gateway, session).await;
    }
}
