//! Slots for turns and the bounded queue before them: first come, first served.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use baton_proto::ids::NodeId;
use tokio::sync::watch;

use super::lock;

/// All slots are taken and the queue is full, or this peer has its share of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

/// The slots of a node. The first `slots` turns in line run, the others wait.
///
/// One peer may have as many places as there are slots and half of the queue (rounded up): alone it uses the whole
/// node, and the other half of the queue is left to others. A relayer is one peer for all of its users.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: usize,
    queue: usize,
    line: Mutex<Line>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Line {
    next: u64,
    order: VecDeque<(u64, NodeId)>,
}

/// A place in line; dropping it frees it.
#[derive(Debug)]
pub(crate) struct Place {
    slots: Arc<Slots>,
    number: u64,
}

impl Slots {
    pub(crate) fn new(slots: usize, queue: usize) -> Arc<Self> {
        let changed = watch::Sender::new(());
        Arc::new(Self { slots: slots.max(1), queue, line: Mutex::default(), changed })
    }

    /// Joins the line.
    pub(crate) fn enter(self: &Arc<Self>, peer: NodeId) -> Result<Place, Full> {
        let mut line = lock(&self.line);
        let of_peer = line.order.iter().filter(|(_, other)| *other == peer).count();
        let share = self.slots + self.queue.div_ceil(2);
        if line.order.len() >= self.slots + self.queue || of_peer >= share {
            return Err(Full);
        }
        let number = line.next;
        line.next += 1;
        line.order.push_back((number, peer));
        Ok(Place { slots: self.clone(), number })
    }

    /// Turns that run and that wait.
    pub(crate) fn load(&self) -> (usize, usize) {
        let length = lock(&self.line).order.len();
        (length.min(self.slots), length.saturating_sub(self.slots))
    }
}

impl Place {
    /// Turns to wait for; 0 with a slot.
    pub(crate) fn ahead(&self) -> u32 {
        let line = lock(&self.slots.line);
        let position = line.order.iter().position(|(number, _)| *number == self.number).unwrap_or(0);
        u32::try_from((position + 1).saturating_sub(self.slots.slots)).unwrap_or(u32::MAX)
    }

    /// Waits until [`Place::ahead`] is no longer `known`, and returns it. Cancel safe.
    pub(crate) async fn moved(&self, known: u32) -> u32 {
        let mut changed = self.slots.changed.subscribe();
        loop {
            let ahead = self.ahead();
            if ahead != known || changed.changed().await.is_err() {
                return ahead;
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.slots.line).order.retain(|(number, _)| *number != self.number);
        self.slots.changed.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn runs_in_order_and_refuses_beyond_the_queue() {
        let slots = Slots::new(1, 2);
        let [alice, bob, carol] = [1, 2, 3].map(|fill| NodeId([fill; 32]));
        let first = slots.enter(alice).unwrap();
        let second = slots.enter(bob).unwrap();
        let third = slots.enter(bob).unwrap();
        assert_eq!(slots.enter(carol).unwrap_err(), Full);
        assert_eq!((first.ahead(), second.ahead(), third.ahead()), (0, 1, 2));
        assert_eq!(slots.load(), (1, 2));
        let (ahead, ()) = tokio::join!(third.moved(2), async { drop(second) });
        assert_eq!(ahead, 1);
        let (ahead, ()) = tokio::join!(third.moved(1), async { drop(first) });
        assert_eq!(ahead, 0);
        drop(third);
        assert_eq!(slots.load(), (0, 0));
    }

    #[test]
    fn one_peer_may_use_every_slot_and_half_of_the_queue() {
        let slots = Slots::new(2, 5);
        let (greedy, other) = (NodeId([1; 32]), NodeId([2; 32]));
        let places: Vec<_> = std::iter::repeat_with(|| slots.enter(greedy)).map_while(Result::ok).collect();
        assert_eq!(places.len(), 5);
        let _places: Vec<_> = (0..2).map(|_| slots.enter(other).unwrap()).collect();
        assert_eq!(slots.enter(other).unwrap_err(), Full, "the line is full");
        drop(places);
        assert!(slots.enter(greedy).is_ok());
    }
}
