//! Messages from tasks to the full-screen view: all output of a line view, and the events of a turn. Tasks
//! push, the view's loop takes; neither waits for the other.

use std::sync::{Mutex, MutexGuard, PoisonError};

use baton_client::TurnEvent;
use baton_proto::ids::LinkHash;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Tone;

/// Most queued messages; the view takes all of them many times a second. Beyond it remarks are dropped. Text
/// joins the queued text, and other messages are a few for each turn.
const MAX_WAITING: usize = 4096;

/// A message for the view.
#[derive(Debug, Clone)]
pub(crate) enum ViewMessage {
    /// One or a few lines beside the conversation.
    Remark(Tone, String),
    /// A turn begins, with this user text.
    TurnStarted(String),
    /// An event of the turn.
    Turn(TurnEvent),
    /// The turn was verified and accepted.
    TurnFinished(FinishedTurn),
    /// An escape sequence for the terminal, such as a text for its clipboard.
    Raw(String),
}

/// A turn that was just accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FinishedTurn {
    /// Its link.
    pub link: LinkHash,
    /// The answer.
    pub text: String,
    /// Its node and verification.
    pub verified: String,
    /// Tokens of the answer.
    pub tokens: u32,
}

/// The queue from tasks to the view, and the view's stop signal to running tasks.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    waiting: Mutex<Vec<ViewMessage>>,
    arrived: Notify,
    stop: Mutex<CancellationToken>,
}

impl Inbox {
    /// Queues a message for the view.
    pub(crate) fn push(&self, message: ViewMessage) {
        let mut waiting = lock(&self.waiting);
        let is_full = waiting.len() >= MAX_WAITING;
        match (waiting.last_mut(), message) {
            (Some(ViewMessage::Turn(TurnEvent::Text(before))), ViewMessage::Turn(TurnEvent::Text(text))) => {
                before.push_str(&text);
            }
            (_, ViewMessage::Remark(..)) if is_full => {}
            (_, message) => waiting.push(message),
        }
        drop(waiting);
        self.arrived.notify_one();
    }

    /// Takes all queued messages.
    pub(crate) fn take(&self) -> Vec<ViewMessage> {
        std::mem::take(&mut *lock(&self.waiting))
    }

    /// Waits until a message may be there. Cancel safe.
    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }

    /// Ends the running task.
    pub(crate) fn stop(&self) {
        lock(&self.stop).cancel();
    }

    /// Begins a new task, which an earlier [`Inbox::stop`] does not affect.
    pub(crate) fn renew(&self) {
        *lock(&self.stop) = CancellationToken::new();
    }

    /// Waits until the running task should end.
    pub(crate) async fn stopped(&self) {
        let stop = lock(&self.stop).clone();
        stop.cancelled().await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code under either lock can panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn text_is_joined_and_a_flood_of_remarks_is_cut() {
        let inbox = Inbox::default();
        for text in ["one ", "two"] {
            inbox.push(ViewMessage::Turn(TurnEvent::Text(text.to_owned())));
        }
        for _ in 0..2 * MAX_WAITING {
            inbox.push(ViewMessage::Remark(Tone::Note, String::new()));
        }
        inbox.push(ViewMessage::TurnStarted("hello".to_owned()));
        let taken = inbox.take();
        assert!(matches!(taken.first(), Some(ViewMessage::Turn(TurnEvent::Text(text))) if text == "one two"));
        assert!(matches!(taken.last(), Some(ViewMessage::TurnStarted(_))), "what counts is never left out");
        assert_eq!(taken.len(), MAX_WAITING + 1);
        assert!(inbox.take().is_empty());
    }

    #[tokio::test]
    async fn a_stop_ends_what_runs_and_not_what_runs_next() {
        let inbox = Inbox::default();
        inbox.stop();
        inbox.stopped().await;
        inbox.renew();
        let mut next = Box::pin(inbox.stopped());
        assert!((&mut next).now_or_never().is_none(), "nobody stopped this one");
        inbox.stop();
        assert!(next.now_or_never().is_some());
    }
}
