//! The turns that the chat page begins. Such a turn goes on when its tab is closed, and each tab that shows the session
//! follows it. A turn keeps its request's slot, so there are at most as many as slots.

use std::{collections::HashMap, sync::Arc};

use axum::response::Response;
use baton_proto::ids::SessionId;
use futures::{Stream, stream};
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Map, Value};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::http::{
    api_error::ApiError,
    event_stream::{self, EVENTS, event},
};

/// Most tabs that follow one turn: more than a person has open. A further tab is told to try again.
const MAX_FOLLOWERS: usize = 16;
/// Most remarks about the nodes of one turn; further ones are left out.
const MAX_NOTES: usize = 16;

/// The turns of the page that run, by their session.
#[derive(Clone, Default)]
pub(crate) struct LiveTurns(Arc<Mutex<HashMap<SessionId, Arc<LiveTurn>>>>);

/// A turn that runs.
pub(crate) struct LiveTurn {
    /// The new messages with their place, as the page shows them.
    question: Map<String, Value>,
    begun: Instant,
    pub(crate) progress: watch::Sender<Progress>,
    pub(crate) stop: CancellationToken,
}

/// The part of an answer that is here. The largest answer bounds its text.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) text: String,
    notes: Vec<String>,
    pub(crate) end: Option<Value>,
}

impl std::fmt::Debug for LiveTurns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LiveTurns")
    }
}

impl LiveTurns {
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<LiveTurn>>> {
        // Each change is one call of the map, so a panic leaves it whole.
        self.0.lock()
    }

    /// Whether a turn of the page runs in a session.
    pub(crate) fn has(&self, session: SessionId) -> bool {
        self.lock().contains_key(&session)
    }

    pub(crate) fn find(&self, session: SessionId) -> Result<Arc<LiveTurn>, ApiError> {
        let message = "no answer of the page is under way in this conversation";
        self.lock().get(&session).cloned().ok_or_else(|| ApiError::new("no_answer", message))
    }

    /// Forgets a turn, unless a newer one has its session by now.
    pub(crate) fn remove(&self, session: SessionId, turn: &Arc<LiveTurn>) {
        let mut turns = self.lock();
        if turns.get(&session).is_some_and(|here| Arc::ptr_eq(here, turn)) {
            turns.remove(&session);
        }
    }
}

impl LiveTurn {
    /// A turn that begins now.
    ///
    /// # Parameters
    /// `question` has the fields of its first event.
    pub(crate) fn new(question: Map<String, Value>) -> Self {
        let progress = watch::Sender::new(Progress::default());
        Self { question, begun: Instant::now(), progress, stop: CancellationToken::new() }
    }

    /// Events for one more tab: first the question with the text so far, then each change, and the end.
    pub(crate) fn follow(&self) -> Result<Response, ApiError> {
        if self.progress.receiver_count() >= MAX_FOLLOWERS {
            return Err(ApiError::crowded());
        }
        let mut first = self.question.clone();
        let waited_ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        first.insert("waited_ms".to_owned(), waited_ms.into());
        let follower = Follower { progress: self.progress.subscribe(), first, text: 0, notes: 0 };
        Ok(event_stream::respond(follower.events(), event_stream::KEEP_ALIVE, EVENTS))
    }

    pub(crate) fn note(&self, note: String) {
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

    fn events(self) -> impl Stream<Item = String> {
        stream::unfold(Some(self), |follower: Option<Self>| async move {
            let mut follower = follower?;
            loop {
                let (fields, is_end) = follower.unsent();
                if !fields.is_empty() {
                    return Some((event(Value::Object(fields)), (!is_end).then_some(follower)));
                }
                follower.progress.changed().await.ok()?;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use futures::StreamExt as _;
    use serde_json::json;

    use super::*;

    fn turn() -> LiveTurn {
        LiveTurn::new(Map::from_iter([("asked".to_owned(), "why".into())]))
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
        assert_eq!((&first["asked"], &first["text"]), (&json!("why"), &json!("one ")));
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
