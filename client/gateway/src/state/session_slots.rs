//! Lets one request at a time take a turn in a session. Another request for the same place branches off, unless
//! the program of the first one has hung up.

use std::{collections::HashMap, sync::Arc};

use baton_proto::ids::SessionId;
use parking_lot::Mutex;
use tokio::sync::{mpsc::WeakUnboundedSender, watch};

use crate::{form::steps::Step, state::live_turns::LiveTurn};

/// The sessions in which requests take turns; as many as there are requests.
#[derive(Clone, Default)]
pub(crate) struct SessionSlots(Arc<Mutex<HashMap<SessionId, SlotHolder>>>);

/// The request that holds a session.
#[derive(Clone)]
pub(crate) struct SlotHolder {
    steps: WeakUnboundedSender<Step>,
    /// The turn, if the page began it.
    live: Option<Arc<LiveTurn>>,
    held: watch::Receiver<()>,
}

/// The right to take a turn in a session, until it is dropped.
pub(crate) struct SessionSlot {
    slots: SessionSlots,
    session: SessionId,
    /// Its end tells the waiting requests.
    _held: watch::Sender<()>,
}

impl SessionSlots {
    /// Takes a session for the request that is answered through `steps`.
    ///
    /// # Errors
    /// The request that holds it.
    pub(crate) fn take(
        &self,
        session: SessionId,
        steps: WeakUnboundedSender<Step>,
    ) -> Result<SessionSlot, SlotHolder> {
        let (sender, held) = watch::channel(());
        // Each change is one call of the map, so a panic leaves it whole.
        let mut holders = self.0.lock();
        if let Some(holder) = holders.get(&session) {
            return Err(holder.clone());
        }
        holders.insert(session, SlotHolder { steps, live: None, held });
        Ok(SessionSlot { slots: self.clone(), session, _held: sender })
    }

    /// The request that holds a session.
    pub(crate) fn holder(&self, session: SessionId) -> Option<SlotHolder> {
        self.0.lock().get(&session).cloned()
    }

    /// Notes that the page follows the turn of the request that holds a session.
    pub(crate) fn set_live(&self, session: SessionId, turn: &Arc<LiveTurn>) {
        if let Some(holder) = self.0.lock().get_mut(&session) {
            holder.live = Some(turn.clone());
        }
    }

    /// The page's turn that runs in a session.
    pub(crate) fn live(&self, session: SessionId) -> Option<Arc<LiveTurn>> {
        self.holder(session)?.live.filter(|turn| turn.progress.borrow().end.is_none())
    }

    /// For whom a request is being answered in a session: for the page, whose tabs can follow, or a program.
    pub(crate) fn reader(&self, session: SessionId) -> Option<&'static str> {
        if self.live(session).is_some() {
            return Some("page");
        }
        self.holder(session).filter(|holder| !holder.has_hung_up()).map(|_| "program")
    }
}

impl SlotHolder {
    /// Whether the program that sent this request is gone: its turn ends soon.
    pub(crate) fn has_hung_up(&self) -> bool {
        self.steps.upgrade().is_none_or(|steps| steps.is_closed())
    }

    /// Waits until the session is free.
    pub(crate) async fn ended(mut self) {
        while self.held.changed().await.is_ok() {}
    }
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        self.slots.0.lock().remove(&self.session);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_session_has_one_holder_who_may_hang_up_and_ends() {
        let (slots, session) = (SessionSlots::default(), SessionId([1; 32]));
        let (steps, reader) = mpsc::unbounded_channel();
        let slot = slots.take(session, steps.downgrade()).ok().unwrap();
        let holder = slots.take(session, steps.downgrade()).err().unwrap();
        assert!(!holder.has_hung_up());
        assert!(slots.take(SessionId([2; 32]), steps.downgrade()).is_ok(), "another session is free");
        drop(reader);
        assert!(holder.has_hung_up());
        let waits = tokio::spawn(holder.ended());
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        drop(slot);
        waits.await.unwrap();
        assert!(slots.take(session, steps.downgrade()).is_ok());
    }
}
