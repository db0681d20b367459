//! Slots that callers share: bounded in total, for each subnet and for each key, with a bounded queue.
//!
//! A freed slot goes to the waiting caller whose subnet holds the fewest slots, then to the oldest. So neither one
//! subnet nor one key can take all slots, and a caller with few slots does not wait behind a caller with many.
//! The HTTP gate and the sealed endpoint use it. It reads no clock but for the wait.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use baton_mesh::Subnet;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

/// Divisor of the total for the slots of one subnet.
const SUBNET_PART: usize = 4;
/// Divisor of the total for the slots of one key.
const KEY_PART: usize = 16;
/// Waiting callers for each slot. A waiting caller holds what it sent so far.
const WAITING_FOR_EACH_SLOT: usize = 2;

/// The caller of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotCaller {
    /// Its subnet, if it is counted by subnet.
    pub(crate) subnet: Option<Subnet>,
    /// Its key, whose signature was verified.
    pub(crate) key: [u8; 32],
}

/// Why a caller gets no slot: its shares and the queue are full, or its time is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoSlot;

/// The slots. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct SharedSlots {
    table: Arc<Mutex<SlotTable>>,
}

#[derive(Debug)]
struct SlotTable {
    free: usize,
    per_subnet: usize,
    per_key: usize,
    max_waiting: usize,
    subnets: HashMap<Subnet, usize>,
    keys: HashMap<[u8; 32], usize>,
    waiting: Vec<WaitingCaller>,
}

#[derive(Debug)]
struct WaitingCaller {
    caller: SlotCaller,
    grant: oneshot::Sender<SlotPermit>,
}

/// A slot; dropping it frees it.
#[derive(Debug)]
pub(crate) struct SlotPermit {
    table: Arc<Mutex<SlotTable>>,
    caller: SlotCaller,
}

fn held<K: Eq + Hash>(counts: &HashMap<K, usize>, key: &K) -> usize {
    counts.get(key).copied().unwrap_or_default()
}

fn release<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl SlotTable {
    fn of_subnet(&self, caller: &SlotCaller) -> usize {
        caller.subnet.map_or(0, |subnet| held(&self.subnets, &subnet))
    }

    fn may_take(&self, caller: &SlotCaller) -> bool {
        let key_fits = held(&self.keys, &caller.key) < self.per_key;
        self.free > 0 && key_fits && self.of_subnet(caller) < self.per_subnet
    }

    fn may_wait(&self, caller: &SlotCaller) -> bool {
        let same = |of: fn(&SlotCaller, &SlotCaller) -> bool| {
            self.waiting.iter().filter(|other| of(&other.caller, caller)).count()
        };
        // Each share has as much of the queue as of the slots.
        self.waiting.len() < self.max_waiting
            && same(|other, caller| other.key == caller.key) < WAITING_FOR_EACH_SLOT * self.per_key
            && same(|other, caller| caller.subnet.is_some() && other.subnet == caller.subnet)
                < WAITING_FOR_EACH_SLOT * self.per_subnet
    }

    fn take(&mut self, caller: &SlotCaller) {
        self.free -= 1;
        *self.keys.entry(caller.key).or_default() += 1;
        if let Some(subnet) = caller.subnet {
            *self.subnets.entry(subnet).or_default() += 1;
        }
    }

    fn give_back(&mut self, caller: &SlotCaller) {
        self.free += 1;
        release(&mut self.keys, &caller.key);
        if let Some(subnet) = caller.subnet {
            release(&mut self.subnets, &subnet);
        }
    }

    /// The waiting caller that gets the next slot.
    fn next(&mut self) -> Option<WaitingCaller> {
        self.waiting.retain(|waiting| !waiting.grant.is_closed());
        let fit = self.waiting.iter().enumerate().filter(|(_, waiting)| self.may_take(&waiting.caller));
        let (index, _) = fit.min_by_key(|(index, waiting)| (self.of_subnet(&waiting.caller), *index))?;
        Some(self.waiting.remove(index))
    }
}

fn lock(table: &Mutex<SlotTable>) -> MutexGuard<'_, SlotTable> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedSlots {
    /// This many slots, at least one. A subnet has a quarter of them, a key a sixteenth, each at least one.
    pub(crate) fn new(slots: usize) -> Self {
        let slots = slots.max(1);
        let table = SlotTable {
            free: slots,
            per_subnet: (slots / SUBNET_PART).max(1),
            per_key: (slots / KEY_PART).max(1),
            max_waiting: WAITING_FOR_EACH_SLOT * slots,
            subnets: HashMap::new(),
            keys: HashMap::new(),
            waiting: Vec::new(),
        };
        Self { table: Arc::new(Mutex::new(table)) }
    }

    /// Takes a slot; waits for it until the deadline. Cancel safe: a dropped wait leaves the queue.
    ///
    /// # Errors
    /// [`NoSlot`], at once if the caller's part of the queue is full.
    pub(crate) async fn take(&self, caller: SlotCaller, deadline: Instant) -> Result<SlotPermit, NoSlot> {
        let granted = {
            let mut table = lock(&self.table);
            // No waiting caller fits now: each freed slot was handed to one that did.
            if table.may_take(&caller) {
                table.take(&caller);
                return Ok(SlotPermit { table: self.table.clone(), caller });
            }
            table.waiting.retain(|waiting| !waiting.grant.is_closed());
            if !table.may_wait(&caller) {
                return Err(NoSlot);
            }
            let (grant, granted) = oneshot::channel();
            table.waiting.push(WaitingCaller { caller, grant });
            granted
        };
        timeout_at(deadline, granted).await.map_err(|_| NoSlot)?.map_err(|_| NoSlot)
    }

    /// Free slots.
    #[cfg(test)]
    fn free(&self) -> usize {
        lock(&self.table).free
    }
}

impl Drop for SlotPermit {
    fn drop(&mut self) {
        let mut table = lock(&self.table);
        table.give_back(&self.caller);
        // A grant whose caller left meanwhile comes back as a permit, whose drop needs the lock.
        while let Some(waiting) = table.next() {
            table.take(&waiting.caller);
            let permit = Self { table: self.table.clone(), caller: waiting.caller };
            drop(table);
            drop(waiting.grant.send(permit));
            table = lock(&self.table);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use baton_mesh::Origin;
    use futures::FutureExt as _;

    use super::*;

    fn caller(subnet: u8, key: u8) -> SlotCaller {
        SlotCaller { subnet: Origin::Direct([203, 0, subnet, 1].into()).subnet(), key: [key; 32] }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    #[tokio::test]
    async fn neither_a_subnet_nor_a_key_takes_all_slots() {
        let slots = SharedSlots::new(32);
        let mut held = Vec::new();
        for key in 0..8 {
            held.push(slots.take(caller(1, key), soon()).await.unwrap());
        }
        assert_eq!(slots.take(caller(1, 9), soon()).await.unwrap_err(), NoSlot, "a quarter for a subnet");
        for _ in 0..2 {
            held.push(slots.take(caller(2, 20), soon()).await.unwrap());
        }
        assert_eq!(slots.take(caller(3, 20), soon()).await.unwrap_err(), NoSlot, "a sixteenth for a key");
        // A caller that is not counted by subnet has its key alone.
        let private = |key| SlotCaller { subnet: None, key: [key; 32] };
        for key in 0..11 {
            held.push(slots.take(private(100 + key), soon()).await.unwrap());
            held.push(slots.take(private(100 + key), soon()).await.unwrap());
        }
        assert_eq!(slots.free(), 0);
        assert_eq!(slots.take(caller(4, 40), soon()).await.unwrap_err(), NoSlot);
        held.clear();
        assert_eq!(slots.free(), 32);
        assert!(lock(&slots.table).subnets.is_empty() && lock(&slots.table).keys.is_empty());
    }

    #[tokio::test]
    async fn a_freed_slot_goes_to_the_subnet_with_the_fewest() {
        let slots = SharedSlots::new(8);
        let later = Instant::now() + Duration::from_secs(60);
        let mut held: Vec<_> = Vec::new();
        for (subnet, key) in [(1, 1), (1, 2), (2, 3), (2, 4), (3, 5), (3, 6), (4, 7), (4, 8)] {
            held.push(slots.take(caller(subnet, key), later).await.unwrap());
        }
        let mut first = Box::pin(slots.take(caller(2, 10), later));
        let mut second = Box::pin(slots.take(caller(5, 11), later));
        assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
        drop(held.remove(0));
        assert!(first.as_mut().now_or_never().is_none(), "its subnet has its share");
        let taken = second.now_or_never().unwrap().unwrap();
        drop(held.remove(1));
        let other = first.now_or_never().unwrap().unwrap();
        drop((taken, other, held));
        assert_eq!(slots.free(), 8);
    }

    #[tokio::test]
    async fn the_queue_is_bounded_for_each_and_a_dropped_wait_leaves_it() {
        let slots = SharedSlots::new(4);
        let later = Instant::now() + Duration::from_secs(60);
        let held = slots.take(caller(1, 1), later).await.unwrap();
        let mut waiting: Vec<_> = (0..2).map(|key| Box::pin(slots.take(caller(1, key), later))).collect();
        for wait in &mut waiting {
            assert!(wait.as_mut().now_or_never().is_none());
        }
        let refused = slots.take(caller(1, 9), later).now_or_never();
        assert!(matches!(refused, Some(Err(NoSlot))), "at once");
        let other = slots.take(caller(2, 8), later).await.unwrap();
        waiting.pop();
        let mut again = Box::pin(slots.take(caller(1, 9), later));
        assert!(again.as_mut().now_or_never().is_none(), "there is room again");
        drop(waiting);
        drop(held);
        let granted = again.now_or_never().unwrap().unwrap();
        drop((granted, other));
        assert_eq!(slots.free(), 4);
    }

    #[tokio::test]
    async fn a_grant_that_its_caller_left_is_not_lost() {
        let slots = SharedSlots::new(1);
        let later = Instant::now() + Duration::from_secs(60);
        let held = slots.take(caller(1, 1), later).await.unwrap();
        let mut left = Box::pin(slots.take(caller(2, 2), later));
        assert!(left.as_mut().now_or_never().is_none());
        drop(held);
        // The slot was granted, and its caller never looks.
        drop(left);
        assert_eq!(slots.free(), 1);
    }
}
