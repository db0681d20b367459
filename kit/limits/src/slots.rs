//! Capacity that callers share, with a bounded, fair queue. It wakes its waiters itself, so it needs no runtime; a caller
//! that waits no longer drops its ticket.

use std::{
    collections::HashMap,
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};

use crate::subnet::Subnet;

/// Slots for other callers before each slot for an unknown one, if both wait: unknown callers share a third, from
/// however many subnets they come.
const BEFORE_UNKNOWN: u32 = 2;

/// The key by which a use of the capacity counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Key {
    /// An unknown caller: without a grant, counted by its subnet.
    Subnet(Subnet),
    /// The holders of a grant, by its hash.
    Grant([u8; 32]),
    /// The operator's own networks, without a limit of their own.
    Own,
}

impl Key {
    /// The key of a caller without a grant; `None` is the operator's own network.
    #[must_use]
    pub fn of(subnet: Option<Subnet>) -> Self {
        subnet.map_or(Self::Own, Self::Subnet)
    }

    /// Whether it is a subnet's.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Subnet(_))
    }
}

/// Limits of [`Slots`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotLimits {
    /// Units of capacity in all, at least one.
    pub units: usize,
    /// Units of one key at once.
    pub per_key: usize,
    /// Units that unknown callers never use, if there are more.
    pub reserved: usize,
    /// Callers that may wait.
    pub queue: usize,
    /// Callers of one key that may wait.
    pub queue_per_key: usize,
}

impl SlotLimits {
    /// Capacity of which a key has a quarter, with this many places to wait, of which it has as large a part.
    #[must_use]
    pub fn in_quarters(units: usize, queue: usize) -> Self {
        let units = units.max(1);
        let per_key = (units / 4).max(1);
        Self { units, per_key, reserved: 0, queue, queue_per_key: queue * per_key / units }
    }
}

/// The capacity is in use and the queue is full, in all or for this key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// A waiting caller lost its ticket to a caller whose key has fewer that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DisplacedError;

/// The shared capacity. Clones share it.
///
/// Free units go to the waiting caller that is first by these criteria, in order:
/// 1. While others wait, an unknown caller comes after two of them.
/// 2. The key that uses the fewest units.
/// 3. The key that got units longest ago.
/// 4. The first in the queue.
///
/// When the queue is full, a new caller may displace the newest waiting one of the key that has the most:
/// - That key must have two more than the new caller's.
/// - A caller that is not unknown may always displace an unknown one.
/// - An unknown caller displaces only unknown ones while these have a third of the queue or more.
#[derive(Debug, Clone)]
pub struct Slots(Arc<Mutex<FairQueue>>);

#[derive(Debug)]
struct Entry {
    number: u64,
    key: Key,
    units: usize,
    runs: bool,
    /// Needs no units for now.
    yielding: bool,
    waker: Option<Waker>,
    /// Whether it is to be woken when its place changes, and not only when it runs.
    follows: bool,
}

/// The use of a key that has entries.
#[derive(Debug, Default, Clone, Copy)]
struct KeyUse {
    units: usize,
    waiting: usize,
    /// When it got its last units.
    last: u64,
}

/// At most as many entries as there are units and places in the queue, and as many keys.
#[derive(Debug)]
struct FairQueue {
    limits: SlotLimits,
    next: u64,
    entries: Vec<Entry>,
    keys: HashMap<Key, KeyUse>,
    used: usize,
    used_by_unknown: usize,
    /// Callers that were let through since an unknown one was.
    since_unknown: u32,
}

/// Order of waiting callers; the smallest is next.
type Rank = (bool, usize, u64, u64);

impl FairQueue {
    fn of(&self, key: &Key) -> KeyUse {
        self.keys.get(key).copied().unwrap_or_default()
    }

    fn waiting(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| !entry.runs)
    }

    fn rank(&self, entry: &Entry) -> Rank {
        let of_key = self.of(&entry.key);
        let held_back = entry.key.is_unknown() && self.since_unknown < BEFORE_UNKNOWN;
        (held_back, of_key.units, of_key.last, entry.number)
    }

    /// Whether a caller would fit if all capacity were free but that of its key and of unknown callers.
    fn may_run(&self, entry: &Entry) -> bool {
        let SlotLimits { units, per_key, reserved, .. } = self.limits;
        let for_unknown = units.saturating_sub(reserved).max(1);
        match entry.key {
            Key::Own => true,
            Key::Grant(_) => self.of(&entry.key).units + entry.units <= per_key,
            Key::Subnet(_) => {
                self.of(&entry.key).units + entry.units <= per_key
                    && self.used_by_unknown + entry.units <= for_unknown
            }
        }
    }

    /// Gives away the free units.
    fn promote(&mut self) {
        loop {
            let ready = self.entries.iter().enumerate();
            let ready = ready.filter(|(_, entry)| !entry.runs && !entry.yielding && self.may_run(entry));
            let Some((index, _)) = ready.min_by_key(|(_, entry)| self.rank(entry)) else { return };
            // A large one is not overtaken, or it would never come.
            if self.used + self.entries[index].units > self.limits.units {
                return;
            }
            self.next += 1;
            let last = self.next;
            let entry = &mut self.entries[index];
            entry.runs = true;
            let (key, units) = (entry.key, entry.units);
            self.count(key, units, true);
            self.keys.entry(key).or_default().last = last;
            self.since_unknown = if key.is_unknown() { 0 } else { self.since_unknown.saturating_add(1) };
        }
    }

    /// Counts that a caller begins to run, or that it stops and waits.
    fn count(&mut self, key: Key, units: usize, runs: bool) {
        let of_key = self.keys.entry(key).or_default();
        let unknown = if key.is_unknown() { units } else { 0 };
        if runs {
            of_key.waiting -= 1;
            of_key.units += units;
            self.used += units;
            self.used_by_unknown += unknown;
        } else {
            of_key.waiting += 1;
            of_key.units -= units;
            self.used -= units;
            self.used_by_unknown -= unknown;
        }
    }

    /// The place that a new caller would have: the waiting one to displace, if the queue is full.
    fn place_for(&self, key: &Key, units: usize) -> Result<Option<u64>, Full> {
        let SlotLimits { units: all, per_key, queue, queue_per_key, .. } = self.limits;
        let is_own = *key == Key::Own;
        if units > all || (!is_own && units > per_key) {
            return Err(Full);
        }
        let own = self.of(key);
        let waiting = self.entries.len() - self.entries.iter().filter(|entry| entry.runs).count();
        // A caller that runs at once does not wait.
        let (may_wait, runs_at_once) =
            (is_own || own.waiting < queue_per_key, self.runs_at_once(*key, units));
        if runs_at_once || (may_wait && waiting < queue) {
            return Ok(None);
        }
        if !may_wait {
            return Err(Full);
        }
        self.displaced_by(key).map(Some).ok_or(Full)
    }

    /// Whether a new caller would run at once.
    fn runs_at_once(&self, key: Key, units: usize) -> bool {
        let number = u64::MAX;
        let entry = Entry { number, key, units, runs: false, yielding: false, waker: None, follows: false };
        self.used + units <= self.limits.units && self.may_run(&entry) && {
            let rank = self.rank(&entry);
            !self.waiting().any(|other| !other.yielding && self.may_run(other) && self.rank(other) < rank)
        }
    }

    /// The waiting caller that a new one may displace.
    fn displaced_by(&self, key: &Key) -> Option<u64> {
        let own = self.of(key).waiting;
        let unknown = self.waiting().filter(|entry| entry.key.is_unknown()).count();
        let few = unknown < self.limits.queue.div_ceil(BEFORE_UNKNOWN as usize + 1);
        let yields = |entry: &&Entry| {
            let more = self.of(&entry.key).waiting > own + 1;
            let above = key.is_unknown() && !entry.key.is_unknown() && !few;
            (more && !above) || (entry.key.is_unknown() && !key.is_unknown())
        };
        let candidates = self.waiting().filter(yields);
        let worst = candidates
            .max_by_key(|entry| (entry.key.is_unknown(), self.of(&entry.key).waiting, entry.number));
        worst.map(|entry| entry.number)
    }

    fn push(&mut self, key: Key, units: usize) -> u64 {
        self.next += 1;
        let number = self.next;
        let entry = Entry { number, key, units, runs: false, yielding: false, waker: None, follows: false };
        self.entries.push(entry);
        self.keys.entry(key).or_default().waiting += 1;
        number
    }

    fn find(&mut self, number: u64) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.number == number)
    }

    /// Removes a caller; returns the waker of one that waits.
    fn remove(&mut self, number: u64) -> Option<Waker> {
        let index = self.entries.iter().position(|entry| entry.number == number)?;
        let entry = self.entries.remove(index);
        if entry.runs {
            self.count(entry.key, entry.units, false);
        }
        if let Some(of_key) = self.keys.get_mut(&entry.key) {
            of_key.waiting -= 1;
            // A key that leaves loses its history.
            if of_key.waiting == 0 && of_key.units == 0 {
                self.keys.remove(&entry.key);
            }
        }
        entry.waker
    }

    /// The wakers of those for which something changed.
    fn woken(&mut self) -> Vec<Waker> {
        let woken = self.entries.iter_mut().filter(|entry| entry.runs || entry.follows);
        woken.filter_map(|entry| entry.waker.take()).collect()
    }

    fn ahead(&self, number: u64) -> Result<u32, DisplacedError> {
        let own = self.entries.iter().find(|entry| entry.number == number).ok_or(DisplacedError)?;
        if own.runs {
            return Ok(0);
        }
        let rank = self.rank(own);
        let before = self.waiting().filter(|entry| self.rank(entry) < rank).count();
        Ok(u32::try_from(before + 1).unwrap_or(u32::MAX))
    }
}

/// A place in the queue, or the capacity that it got; dropping it leaves the queue, or returns the capacity.
#[derive(Debug)]
pub struct Ticket {
    slots: Slots,
    number: u64,
}

/// A caller that needs no capacity for a while. On drop it takes part again.
#[derive(Debug)]
pub struct YieldGuard<'a>(&'a Ticket);

impl Drop for YieldGuard<'_> {
    fn drop(&mut self) {
        self.0.set_yielding(false);
    }
}

impl Slots {
    /// Free capacity.
    #[must_use]
    pub fn new(limits: SlotLimits) -> Self {
        let limits = SlotLimits { units: limits.units.max(1), ..limits };
        Self(Arc::new(Mutex::new(FairQueue {
            limits,
            next: 0,
            entries: Vec::new(),
            keys: HashMap::new(),
            used: 0,
            used_by_unknown: 0,
            since_unknown: 0,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, FairQueue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the queue, gives away the free units, and wakes their callers.
    fn change<T>(&self, change: impl FnOnce(&mut FairQueue) -> T) -> T {
        let (changed, woken) = {
            let mut queue = self.lock();
            let changed = change(&mut queue);
            queue.promote();
            (changed, queue.woken())
        };
        woken.into_iter().for_each(Waker::wake);
        changed
    }

    /// Joins the queue for some units.
    ///
    /// # Errors
    /// [`Full`].
    pub fn enter(&self, key: Key, units: usize) -> Result<Ticket, Full> {
        let entered = self.change(|queue| {
            let displaced = queue.place_for(&key, units)?;
            let waker = displaced.and_then(|number| queue.remove(number));
            Ok((queue.push(key, units), waker))
        });
        let (number, displaced) = entered?;
        displaced.into_iter().for_each(Waker::wake);
        Ok(Ticket { slots: self.clone(), number })
    }

    /// Joins the queue for one unit even if it is full: for work that was admitted before.
    #[must_use]
    pub fn enter_over_limit(&self, key: Key) -> Ticket {
        Ticket { slots: self.clone(), number: self.change(|queue| queue.push(key, 1)) }
    }

    /// Whether a caller may join for one unit now: a free check before the expensive ones.
    #[must_use]
    pub fn has_room(&self, key: &Key) -> bool {
        self.lock().place_for(key, 1).is_ok()
    }

    /// Whether a caller may join for one unit and displaces nobody.
    #[must_use]
    pub fn has_free_place(&self, key: &Key) -> bool {
        self.lock().place_for(key, 1) == Ok(None)
    }

    /// Running and waiting callers.
    #[must_use]
    pub fn load(&self) -> (usize, usize) {
        let queue = self.lock();
        let running = queue.entries.iter().filter(|entry| entry.runs).count();
        (running, queue.entries.len() - running)
    }
}

impl Ticket {
    /// Gives up the capacity, and takes none until the returned value is dropped.
    #[must_use]
    pub fn yield_slot(&self) -> YieldGuard<'_> {
        self.set_yielding(true);
        YieldGuard(self)
    }

    fn set_yielding(&self, yielding: bool) {
        self.slots.change(|queue| {
            let Some(entry) = queue.find(self.number) else { return };
            entry.yielding = yielding;
            let (key, units, stops) = (entry.key, entry.units, yielding && entry.runs);
            entry.runs &= !yielding;
            if stops {
                queue.count(key, units, false);
            }
        });
    }

    /// Returns all but these units of the capacity that it got.
    pub fn shrink_to(&self, units: usize) {
        self.slots.change(|queue| {
            let Some(entry) = queue.find(self.number).filter(|entry| entry.runs) else { return };
            let (key, before, after) = (entry.key, entry.units, units.min(entry.units));
            entry.units = after;
            queue.count(key, before, false);
            queue.count(key, after, true);
        });
    }

    /// The current number of callers ahead; 0 with capacity.
    ///
    /// # Errors
    /// [`DisplacedError`].
    pub fn ahead(&self) -> Result<u32, DisplacedError> {
        self.slots.lock().ahead(self.number)
    }

    /// Waits for the capacity. Cancel safe.
    ///
    /// # Errors
    /// [`DisplacedError`].
    pub async fn granted(&self) -> Result<(), DisplacedError> {
        self.wait(false, |ahead| ahead == 0).await.map(drop)
    }

    /// Waits until [`Ticket::ahead`] is no longer `known`, and returns it. Cancel safe.
    ///
    /// # Errors
    /// [`DisplacedError`].
    pub async fn moved(&self, known: u32) -> Result<u32, DisplacedError> {
        self.wait(true, |ahead| ahead != known).await
    }

    async fn wait(&self, follows: bool, is_enough: impl Fn(u32) -> bool) -> Result<u32, DisplacedError> {
        poll_fn(|context| {
            let (ahead, _replaced) = self.look(context.waker().clone(), follows);
            match ahead {
                Ok(ahead) if !is_enough(ahead) => Poll::Pending,
                enough => Poll::Ready(enough),
            }
        })
        .await
    }

    /// The number ahead, at which `waker` is to be woken when it changes; with the waker that it replaces.
    fn look(&self, waker: Waker, follows: bool) -> (Result<u32, DisplacedError>, Option<Waker>) {
        let mut queue = self.slots.lock();
        let Some(own) = queue.find(self.number) else { return (Err(DisplacedError), None) };
        own.follows = follows;
        let (runs, replaced) = (own.runs, own.waker.replace(waker));
        let ahead = match runs {
            true => Ok(0),
            false if follows => queue.ahead(self.number),
            // Only a caller that follows its place has to know it.
            false => Ok(u32::MAX),
        };
        (ahead, replaced)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Not under the lock: the end of a waker may be the end of a task with another ticket.
        drop(self.slots.change(|queue| queue.remove(self.number)));
    }
}

#[cfg(test)]
mod tests;
