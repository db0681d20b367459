//! The turns that the chat page begins. Such a turn goes on when its tab is closed, and each tab that shows the session
//! follows it. A turn keeps its request's slot, so there are at most as many as slots.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::{Json, body::Body, extract::Path, http::StatusCode, response::Response};
use baton_proto::ids::SessionId;
use futures::{Stream, stream};
use serde_json::{Map, Value, json};
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    ApiError, Gateway,
    answer::{KEEP_ALIVE, RunningTurn, start},
    completion::{CompletionRequest, RequestPlace},
    event_stream::{self, ServerEvent},
    fields::Fields,
    page_turns::{id_of, messages},
    session_header::name_session,
    steps::Step,
    wire::read_chat,
};
use baton_client::ClientError;

/// Most tabs that follow one turn: more than a person has open. A further tab is told to try again.
const MAX_FOLLOWERS: usize = 16;
/// Most remarks about the nodes of one turn; further ones are left out.
const MAX_NOTES: usize = 16;

/// The turns of the page that run, by their session.
#[derive(Clone, Default)]
pub(super) struct LiveTurns(Arc<Mutex<HashMap<SessionId, Arc<LiveTurn>>>>);

/// A turn that runs.
struct LiveTurn {
    /// The new messages with their place, as the page shows them.
    question: Map<String, Value>,
    begun: Instant,
    progress: watch::Sender<Progress>,
    stop: CancellationToken,
}

/// The part of an answer that is here. The largest answer bounds its text.
#[derive(Default)]
struct Progress {
    text: String,
    notes: Vec<String>,
    end: Option<Value>,
}

impl std::fmt::Debug for LiveTurns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LiveTurns")
    }
}

impl LiveTurns {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<LiveTurn>>> {
        // Each change is one call of the map, so a panic leaves it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a turn of the page runs in a session.
    pub(super) fn has(&self, session: SessionId) -> bool {
        self.lock().contains_key(&session)
    }

    fn find(&self, session: SessionId) -> Result<Arc<LiveTurn>, ApiError> {
        let none =
            || ApiError::missing("no_answer", "no answer of the page is under way in this conversation");
        self.lock().get(&session).cloned().ok_or_else(none)
    }

    /// Forgets a turn, unless a newer one has its session by now.
    fn remove(&self, session: SessionId, turn: &Arc<LiveTurn>) {
        let mut turns = self.lock();
        if turns.get(&session).is_some_and(|here| Arc::ptr_eq(here, turn)) {
            turns.remove(&session);
        }
    }
}

impl LiveTurn {
    fn new(request: &CompletionRequest) -> Self {
        let mut question = Map::new();
        question.insert("messages".to_owned(), messages(&request.messages));
        if let RequestPlace::Replaces(seq) = request.place {
            question.insert("replaces".to_owned(), seq.into());
        }
        let progress = watch::Sender::new(Progress::default());
        Self { question, begun: Instant::now(), progress, stop: CancellationToken::new() }
    }

    /// Events for one more tab: first the question with the text so far, then each change, and the end.
    fn follow(&self) -> Result<Response, ApiError> {
        if self.progress.receiver_count() >= MAX_FOLLOWERS {
            return Err(ApiError::crowded());
        }
        let mut first = self.question.clone();
        let waited_ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        first.insert("waited_ms".to_owned(), waited_ms.into());
        let follower = Follower { progress: self.progress.subscribe(), first, text: 0, notes: 0 };
        Ok(event_stream::respond(follower.events(), KEEP_ALIVE, ServerEvent::comment()))
    }

    fn note(&self, note: String) {
        self.progress.send_modify(|progress| {
            if progress.notes.len() < MAX_NOTES {
                progress.notes.push(note);
            }
        });
    }
}

/// A tab's place in the progress of a turn.
struct Follower {
    progress: watch::Receiver<Progress>,
    /// The fields of the first event; empty after it.
    first: Map<String, Value>,
    /// Bytes of the text, and notes, that were sent.
    text: usize,
    notes: usize,
}

impl Follower {
    /// The fields that the tab lacks, and whether they are the last ones.
    fn unsent(&mut self) -> (Map<String, Value>, bool) {
        let mut event = std::mem::take(&mut self.first);
        let progress = self.progress.borrow_and_update();
        if let Some(text) = progress.text.get(self.text..).filter(|text| !text.is_empty()) {
            event.insert("text".to_owned(), text.into());
            self.text = progress.text.len();
        }
        if let Some(notes) = progress.notes.get(self.notes..).filter(|notes| !notes.is_empty()) {
            event.insert("notes".to_owned(), notes.into());
            self.notes = progress.notes.len();
        }
        if let Some(end) = &progress.end {
            event.insert("end".to_owned(), end.clone());
        }
        (event, progress.end.is_some())
    }

    fn events(self) -> impl Stream<Item = ServerEvent> {
        stream::unfold(Some(self), |follower: Option<Self>| async move {
            let mut follower = follower?;
            loop {
                let (event, is_end) = follower.unsent();
                if !event.is_empty() {
                    return Some((ServerEvent::new(Value::Object(event)), (!is_end).then_some(follower)));
                }
                follower.progress.changed().await.ok()?;
            }
        })
    }
}

/// Begins a turn in a session, and follows it.
pub(super) async fn begin(
    gateway: Gateway,
    Path(id): Path<String>,
    mut input: Fields,
    body: Body,
) -> Result<Response, ApiError> {
    let id = id_of(&id)?;
    let is_pending = input.flag("pending")?.unwrap_or(false);
    let (slot, body) = gateway.receive(body).await?;
    let mut request = read_chat(&body, Some(id.to_string()))?;
    if is_pending {
        request.place = RequestPlace::Pending;
    }
    let turn = Arc::new(LiveTurn::new(&request));
    let mut response = turn.follow()?;
    let (begun, is_begun) = oneshot::channel();
    // A tab that is closed now must not end what begins here.
    gateway.clone().spawn(async move {
        let running = match start(&gateway, slot, request).await {
            Ok(running) => running,
            Err(api_error) => return drop(begun.send(Err(api_error))),
        };
        let session = running.session;
        gateway.inner.live_turns.lock().insert(session, turn.clone());
        let _ = begun.send(Ok(session));
        run(&gateway, turn, running).await;
    });
    name_session(&mut response, is_begun.await.map_err(|_| ClientError::TaskEnded)??);
    Ok(response)
}

/// Follows the turn of a session that another tab began.
pub(super) async fn follow(gateway: Gateway, Path(id): Path<String>) -> Result<Response, ApiError> {
    let id = id_of(&id)?;
    gateway.session(id).await?;
    gateway.inner.live_turns.find(id)?.follow()
}

/// Stops the turn of a session, whichever tab began it. Its text so far stays beside the message.
pub(super) async fn stop(gateway: Gateway, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let id = id_of(&id)?;
    gateway.session(id).await?;
    gateway.inner.live_turns.find(id)?.stop.cancel();
    Ok(Json(json!({ "stopped": true })))
}

/// Reads a turn to its end, or until it is stopped.
async fn run(gateway: &Gateway, turn: Arc<LiveTurn>, mut running: RunningTurn) {
    let session = running.session;
    let end = loop {
        let step = tokio::select! {
            biased;
            () = turn.stop.cancelled() => break json!({ "stopped": true }),
            step = running.steps.recv() => step,
        };
        match step {
            Some(Step::Model(_) | Step::Logprobs(_)) => {}
            Some(Step::Note(note)) => turn.note(note),
            Some(Step::Text(text)) => turn.progress.send_modify(|progress| progress.text.push_str(&text)),
            Some(Step::Done(answer)) => break json!({ "answer": answer.about() }),
            Some(Step::Failed(api_error)) => {
                let mut end = api_error.body();
                // Without a tab nobody could take the text back: the message stays.
                let is_seen = turn.progress.receiver_count() > 0;
                if is_seen
                    && give_back(gateway, session, &api_error).await
                    && let Some(end) = end.as_object_mut()
                {
                    end.insert("given_back".to_owned(), true.into());
                }
                break end;
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
    gateway.inner.live_turns.remove(session, &turn);
    turn.progress.send_modify(|progress| progress.end = Some(end));
}

/// Gives up a message that no node was asked for, or that each node would refuse again, with the session that has no
/// other: the page puts its text back into the box. Returns whether it is gone.
async fn give_back(gateway: &Gateway, session: SessionId, api_error: &ApiError) -> bool {
    let handle = gateway.client().session(session);
    let given_up = match api_error.status() {
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND => handle.abandon().await.map(|()| true),
        _ => handle.abandon_unasked().await,
    };
    match given_up {
        Ok(true) => {}
        Ok(false) => return false,
        Err(error) => {
            tracing::debug!(%error, "an unanswered message was not given up");
            return false;
        }
    }
    if handle.info().await.is_ok_and(|info| info.turns == 0) {
        match handle.delete().await {
            Ok(_) => gateway.index().forget(session),
            Err(error) => tracing::debug!(%error, "a session without a turn was not deleted"),
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use baton_proto::record::{Message, Role};
    use futures::StreamExt as _;

    use super::*;

    fn turn() -> LiveTurn {
        LiveTurn::new(&CompletionRequest::new(Vec::new(), vec![Message::new(Role::User, "why")]))
    }

    /// The data of the next event of a response.
    async fn next(
        parts: &mut (impl Stream<Item = Result<axum::body::Bytes, axum::Error>> + Unpin),
    ) -> Option<Value> {
        let part = parts.next().await?.unwrap();
        let text = std::str::from_utf8(&part).unwrap();
        Some(serde_json::from_str(text.strip_prefix("data: ").unwrap()).unwrap())
    }

    #[tokio::test]
    async fn a_tab_that_comes_later_has_the_text_so_far_and_then_each_change() {
        let turn = turn();
        turn.progress.send_modify(|progress| progress.text.push_str("one "));
        let mut parts = turn.follow().unwrap().into_body().into_data_stream();
        let first = next(&mut parts).await.unwrap();
        assert_eq!((&first["messages"][0]["content"], &first["text"]), (&json!("why"), &json!("one ")));
        assert!(first["waited_ms"].is_u64());
        turn.progress.send_modify(|progress| progress.text.push_str("two"));
        turn.note("node a stopped answering".to_owned());
        assert_eq!(
            next(&mut parts).await.unwrap(),
            json!({ "text": "two", "notes": ["node a stopped answering"] })
        );
        turn.progress.send_modify(|progress| progress.end = Some(json!({ "stopped": true })));
        assert_eq!(next(&mut parts).await.unwrap(), json!({ "end": { "stopped": true } }));
        assert_eq!(next(&mut parts).await, None);
    }

    #[tokio::test]
    async fn tabs_and_notes_are_bounded() {
        let turn = turn();
        let mut tabs: Vec<Response> = (0..MAX_FOLLOWERS).map(|_| turn.follow().unwrap()).collect();
        assert_eq!(turn.follow().unwrap_err().status(), StatusCode::TOO_MANY_REQUESTS);
        tabs.pop();
        tabs.push(turn.follow().unwrap());
        for _ in 0..2 * MAX_NOTES {
            turn.note("again".to_owned());
        }
        assert_eq!(turn.progress.borrow().notes.len(), MAX_NOTES);
    }

    #[test]
    fn a_turn_that_ends_late_does_not_hide_the_next_one() {
        let (turns, session) = (LiveTurns::default(), SessionId([1; 32]));
        let (old, new) = (Arc::new(turn()), Arc::new(turn()));
        turns.lock().insert(session, old.clone());
        turns.lock().insert(session, new.clone());
        turns.remove(session, &old);
        assert!(turns.has(session));
        turns.remove(session, &new);
        assert!(!turns.has(session));
    }
}
