//! The turns that the chat page begins. Such a turn goes on when its tab is closed, and each tab that shows the session
//! follows it. A turn keeps its request's slot, so there are at most as many as slots.

use axum::response::Response;
use futures::{Stream, stream};
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
}
