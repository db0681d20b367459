//! What tasks hand to the full-screen view: everything that a line view would print, and what happens in a turn. Tasks
//! push, the view's loop takes; nobody waits for the other.

use std::sync::{Mutex, MutexGuard, PoisonError};

use baton_client::TurnEvent;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    conversation::{Finished, Loaded},
    sidebar::Listed,
};
use crate::out::Tone;

/// Most that waits for the view, which takes it all many times a second. Beyond it remarks are left out; text is joined to
/// the text that waits, and the rest is a few for each turn.
const MAX_WAITING: usize = 4096;

/// Something for the view.
#[derive(Debug, Clone)]
pub enum Said {
    /// A line beside the conversation, or a few.
    Remark(Tone, String),
    /// A turn begins, with what the user says in it.
    Begun(String),
    /// What happens in it.
    Turn(TurnEvent),
    /// It was verified and accepted.
    Finished(Finished),
    /// A session as its journal has it.
    Session(Box<Loaded>),
    /// The sessions of the home, the last used first.
    Sessions(Vec<Listed>),
}

/// The way from tasks to the view, and the view's word that what runs should stop.
#[derive(Debug, Default)]
pub struct Inbox {
    waiting: Mutex<Vec<Said>>,
    arrived: Notify,
    stop: Mutex<CancellationToken>,
}

impl Inbox {
    /// Hands something to the view.
    pub fn push(&self, said: Said) {
        let mut waiting = lock(&self.waiting);
        let is_full = waiting.len() >= MAX_WAITING;
        match (waiting.last_mut(), said) {
            (Some(Said::Turn(TurnEvent::Text(before))), Said::Turn(TurnEvent::Text(text))) => {
                before.push_str(&text);
            }
            (_, Said::Remark(..)) if is_full => {}
            (_, said) => waiting.push(said),
        }
        drop(waiting);
        self.arrived.notify_one();
    }

    /// Takes what waits.
    pub fn take(&self) -> Vec<Said> {
        std::mem::take(&mut *lock(&self.waiting))
    }

    /// Waits until something may be there. Cancel safe.
    pub async fn arrived(&self) {
        self.arrived.notified().await;
    }

    /// Ends what runs.
    pub fn stop(&self) {
        lock(&self.stop).cancel();
    }

    /// Something new runs, which an earlier [`Inbox::stop`] does not concern.
    pub fn renew(&self) {
        *lock(&self.stop) = CancellationToken::new();
    }

    /// Waits until what runs should end.
    pub async fn stopped(&self) {
        let stop = lock(&self.stop).clone();
        stop.cancelled().await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that can panic happens under either lock.
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
            inbox.push(Said::Turn(TurnEvent::Text(text.to_owned())));
        }
        for _ in 0..2 * MAX_WAITING {
            inbox.push(Said::Remark(Tone::Note, String::new()));
        }
        inbox.push(Said::Begun("hello".to_owned()));
        let taken = inbox.take();
        assert!(matches!(taken.first(), Some(Said::Turn(TurnEvent::Text(text))) if text == "one two"));
        assert!(matches!(taken.last(), Some(Said::Begun(_))), "what counts is never left out");
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
