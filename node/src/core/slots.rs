//! Slots for turns and their bounded, fair queue. The queue shares slots between groups first, then between
//! peers, then between turns. A group is a subnet, a grant, or else a single peer.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use baton_mesh::Subnet;
use baton_proto::ids::{NodeId, QuotaHash};
use tokio::sync::watch;

use crate::lock::lock;

/// Slots for known peers before each slot for an unknown peer, if both wait. Unknown peers share a third,
/// from however many subnets they come.
const KNOWN_BEFORE_UNKNOWN: u32 = 2;

/// All slots are taken and the queue is full, or this peer has used its share of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

/// A waiting turn lost its ticket to a turn of a group with fewer waiting turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DisplacedError;

/// The group of a turn for the sharing of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Group {
    /// A subnet.
    Subnet(Subnet),
    /// The users of one grant.
    Grant(QuotaHash),
    /// A peer that is not counted by subnet.
    Peer(NodeId),
}

/// The requester of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Requester {
    /// The peer.
    pub(crate) peer: NodeId,
    /// Its group.
    pub(crate) group: Group,
    /// Whether it is unknown: without a grant, and without a served turn some time ago.
    pub(crate) unknown: bool,
}

/// The slots of a node.
///
/// While a known peer waits, each slot for an unknown peer comes after two slots for known peers. Otherwise a
/// free slot goes to the waiting turn by these criteria, in order:
/// 1. the group with the fewest running turns,
/// 2. the group whose last slot is longest ago,
/// 3. the peer, by the same two criteria,
/// 4. the turn that came first.
///
/// Unknown peers never hold the last of several slots. One peer may have as many tickets as there are slots
/// and half of the queue (rounded up): alone it uses the whole node.
///
/// When the queue is full, a new turn may displace the newest turn of the group with the most waiting turns.
/// - That group must have two more waiting turns than the new turn's group.
/// - A known peer may always displace an unknown one.
/// - An unknown peer displaces a known one only while unknown peers have less than a third of the queue.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: usize,
    queue_limit: usize,
    queue: Mutex<FairQueue>,
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    requester: Requester,
    runs: bool,
    /// Waits for its model, so a slot would be useless.
    yielding: bool,
}

/// At most `slots + queue` entries, and as many groups and peers.
#[derive(Debug, Default)]
struct FairQueue {
    next: u64,
    entries: Vec<Entry>,
    /// Time of the last slot of each queued group and peer.
    groups: HashMap<Group, u64>,
    peers: HashMap<NodeId, u64>,
    /// Slots given to known peers since an unknown peer's last slot.
    since_unknown: u32,
}

/// Order of waiting turns; the smallest is next.
type Rank = (bool, usize, u64, usize, u64, u64);

impl FairQueue {
    fn count(&self, matches: impl Fn(&Entry) -> bool) -> usize {
        self.entries.iter().filter(|entry| matches(entry)).count()
    }

    fn running(&self) -> usize {
        self.count(|entry| entry.runs)
    }

    fn waiting_of(&self, group: &Group) -> usize {
        self.count(|entry| !entry.runs && entry.requester.group == *group)
    }

    fn rank(&self, entry: &Entry) -> Rank {
        let requester = entry.requester;
        let held_back = requester.unknown && self.since_unknown < KNOWN_BEFORE_UNKNOWN;
        (
            held_back,
            self.count(|other| other.runs && other.requester.group == requester.group),
            self.groups.get(&requester.group).copied().unwrap_or(0),
            self.count(|other| other.runs && other.requester.peer == requester.peer),
            self.peers.get(&requester.peer).copied().unwrap_or(0),
            entry.number,
        )
    }

    /// Gives away the free slots.
    fn promote(&mut self, slots: usize) {
        while self.running() < slots {
            let unknown = self.count(|entry| entry.runs && entry.requester.unknown);
            let for_unknown = slots == 1 || unknown + 1 < slots;
            let may =
                |entry: &&Entry| !entry.runs && !entry.yielding && (for_unknown || !entry.requester.unknown);
            let next = self.entries.iter().filter(may).min_by_key(|entry| self.rank(entry));
            let Some((number, requester)) = next.map(|entry| (entry.number, entry.requester)) else { return };
            self.next += 1;
            self.groups.insert(requester.group, self.next);
            self.peers.insert(requester.peer, self.next);
            self.since_unknown = if requester.unknown { 0 } else { self.since_unknown.saturating_add(1) };
            if let Some(entry) = self.entries.iter_mut().find(|entry| entry.number == number) {
                entry.runs = true;
            }
        }
    }

    /// The waiting turn that a new turn may displace.
    fn displaced_by(&self, requester: &Requester, queue_limit: usize) -> Option<u64> {
        let own = self.waiting_of(&requester.group);
        let unknown = self.count(|entry| !entry.runs && entry.requester.unknown);
        let few = unknown < queue_limit.div_ceil(KNOWN_BEFORE_UNKNOWN as usize + 1);
        let yields = |entry: &&Entry| {
            let more = self.waiting_of(&entry.requester.group) > own + 1;
            let above = requester.unknown && !entry.requester.unknown && !few;
            !entry.runs && ((more && !above) || (entry.requester.unknown && !requester.unknown))
        };
        let candidates = self.entries.iter().filter(yields);
        let worst = candidates.max_by_key(|entry| {
            (entry.requester.unknown, self.waiting_of(&entry.requester.group), entry.number)
        });
        worst.map(|entry| entry.number)
    }

    fn remove(&mut self, number: u64) {
        self.entries.retain(|entry| entry.number != number);
        // A group or peer that leaves the queue loses its history.
        let Self { entries, groups, peers, .. } = self;
        groups.retain(|group, _| entries.iter().any(|entry| entry.requester.group == *group));
        peers.retain(|peer, _| entries.iter().any(|entry| entry.requester.peer == *peer));
    }
}

/// A place in the queue; dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct Ticket {
    slots: Arc<Slots>,
    number: u64,
}

/// A turn that needs no slot for a while. On drop it takes part again.
#[derive(Debug)]
pub(crate) struct YieldGuard<'a>(&'a Ticket);

impl Drop for YieldGuard<'_> {
    fn drop(&mut self) {
        self.0.set_yielding(false);
    }
}

impl Slots {
    pub(crate) fn new(slots: usize, queue_limit: usize) -> Arc<Self> {
        let changed = watch::Sender::new(());
        Arc::new(Self { slots: slots.max(1), queue_limit, queue: Mutex::default(), changed })
    }

    /// Joins the queue.
    pub(crate) fn enter(self: &Arc<Self>, requester: Requester) -> Result<Ticket, Full> {
        let number = {
            let mut queue = lock(&self.queue);
            if let Some(displaced) = self.room_for(&queue, &requester)? {
                queue.remove(displaced);
            }
            queue.next += 1;
            let number = queue.next;
            queue.entries.push(Entry { number, requester, runs: false, yielding: false });
            queue.promote(self.slots);
            number
        };
        self.changed.send_replace(());
        Ok(Ticket { slots: self.clone(), number })
    }

    /// Whether there is room: a free check before the expensive ones.
    pub(crate) fn has_room(&self, requester: &Requester) -> bool {
        self.room_for(&lock(&self.queue), requester).is_ok()
    }

    /// The turn to displace, if the queue is full.
    fn room_for(&self, queue: &FairQueue, requester: &Requester) -> Result<Option<u64>, Full> {
        let of_peer = queue.count(|entry| entry.requester.peer == requester.peer);
        if of_peer >= self.slots + self.queue_limit.div_ceil(2) {
            return Err(Full);
        }
        if queue.entries.len() < self.slots + self.queue_limit {
            return Ok(None);
        }
        queue.displaced_by(requester, self.queue_limit).map(Some).ok_or(Full)
    }

    /// Running and waiting turns.
    pub(crate) fn load(&self) -> (usize, usize) {
        let queue = lock(&self.queue);
        let running = queue.running();
        (running, queue.entries.len() - running)
    }
}

impl Ticket {
    /// Gives up the slot, and takes none until the returned value is dropped.
    pub(crate) fn yield_slot(&self) -> YieldGuard<'_> {
        self.set_yielding(true);
        YieldGuard(self)
    }

    fn set_yielding(&self, yielding: bool) {
        {
            let mut queue = lock(&self.slots.queue);
            if let Some(own) = queue.entries.iter_mut().find(|entry| entry.number == self.number) {
                own.yielding = yielding;
                own.runs &= !yielding;
            }
            queue.promote(self.slots.slots);
        }
        self.slots.changed.send_replace(());
    }

    /// The current number of turns ahead; 0 with a slot.
    ///
    /// # Errors
    /// [`DisplacedError`].
    pub(crate) fn ahead(&self) -> Result<u32, DisplacedError> {
        let queue = lock(&self.slots.queue);
        let own = queue.entries.iter().find(|entry| entry.number == self.number).ok_or(DisplacedError)?;
        if own.runs {
            return Ok(0);
        }
        let rank = queue.rank(own);
        let before = queue.count(|entry| !entry.runs && queue.rank(entry) < rank);
        Ok(u32::try_from(before + 1).unwrap_or(u32::MAX))
    }

    /// Waits for a slot. Cancel safe.
    ///
    /// # Errors
    /// [`DisplacedError`].
    pub(crate) async fn granted(&self) -> Result<(), DisplacedError> {
        let mut ahead = self.ahead()?;
        while ahead > 0 {
            ahead = self.moved(ahead).await?;
        }
        Ok(())
    }

    /// Waits until [`Ticket::ahead`] is no longer `known`, and returns it. Cancel safe.
    ///
    /// # Errors
    /// [`DisplacedError`].
    pub(crate) async fn moved(&self, known: u32) -> Result<u32, DisplacedError> {
        let mut changed = self.slots.changed.subscribe();
        loop {
            let ahead = self.ahead()?;
            if ahead != known || changed.changed().await.is_err() {
                return Ok(ahead);
            }
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        {
            let mut queue = lock(&self.slots.queue);
            queue.remove(self.number);
            queue.promote(self.slots.slots);
        }
        self.slots.changed.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(fill: u8) -> Requester {
        let peer = NodeId([fill; 32]);
        Requester { peer, group: Group::Peer(peer), unknown: false }
    }

    fn of_subnet(fill: u8, subnet: u8, unknown: bool) -> Requester {
        Requester { peer: NodeId([fill; 32]), group: Group::Subnet(Subnet::V4([203, 0, subnet])), unknown }
    }

    #[tokio::test]
    async fn runs_in_order_and_says_how_many_are_ahead() {
        let slots = Slots::new(1, 3);
        let first = slots.enter(peer(1)).unwrap();
        let second = slots.enter(peer(2)).unwrap();
        let third = slots.enter(peer(3)).unwrap();
        assert_eq!((first.ahead(), second.ahead(), third.ahead()), (Ok(0), Ok(1), Ok(2)));
        assert_eq!(slots.load(), (1, 2));
        let (ahead, ()) = tokio::join!(third.moved(2), async { drop(second) });
        assert_eq!(ahead, Ok(1));
        let (ahead, ()) = tokio::join!(third.moved(1), async { drop(first) });
        assert_eq!(ahead, Ok(0));
        drop(third);
        assert_eq!(slots.load(), (0, 0));
    }

    #[tokio::test]
    async fn a_turn_that_yields_gives_its_slot_away_and_waits_for_one_again() {
        let slots = Slots::new(1, 3);
        let first = slots.enter(peer(1)).unwrap();
        let second = slots.enter(peer(2)).unwrap();
        let yielding = first.yield_slot();
        assert_eq!((second.ahead(), slots.load()), (Ok(0), (1, 1)));
        drop(yielding);
        assert_eq!((first.ahead(), second.ahead()), (Ok(1), Ok(0)));
        let (ahead, ()) = tokio::join!(first.moved(1), async { drop(second) });
        assert_eq!(ahead, Ok(0));
        // While it yields, the free slot stays free.
        let yielding = first.yield_slot();
        assert_eq!(slots.load(), (0, 1));
        drop(yielding);
        assert_eq!((first.ahead(), slots.load()), (Ok(0), (1, 0)));
    }

    #[test]
    fn one_peer_may_use_every_slot_and_half_of_the_queue() {
        let slots = Slots::new(2, 5);
        let (greedy, other) = (peer(1), peer(2));
        let tickets: Vec<_> = std::iter::repeat_with(|| slots.enter(greedy)).map_while(Result::ok).collect();
        assert_eq!(tickets.len(), 5);
        let _tickets: Vec<_> = (0..2).map(|_| slots.enter(other).unwrap()).collect();
        assert_eq!(slots.enter(other).unwrap_err(), Full, "the queue is full");
        drop(tickets);
        assert!(slots.enter(greedy).is_ok());
    }

    #[test]
    fn a_subnet_of_many_identities_gets_every_other_slot_and_not_all() {
        let slots = Slots::new(1, 16);
        let mut crowd: Vec<_> = (0..8).map(|fill| slots.enter(of_subnet(fill, 1, false)).unwrap()).collect();
        let honest: Vec<_> = (20..23).map(|fill| slots.enter(of_subnet(fill, 2, false)).unwrap()).collect();
        assert_eq!(honest[0].ahead(), Ok(1), "seven came before it");
        drop(crowd.remove(0));
        assert_eq!(honest[0].ahead(), Ok(0));
        drop(honest);
        assert_eq!(crowd.iter().filter(|ticket| ticket.ahead() == Ok(0)).count(), 1);
    }

    #[tokio::test]
    async fn a_full_queue_makes_room_for_groups_with_fewer_waiting_turns() {
        let slots = Slots::new(1, 4);
        let crowd: Vec<_> = (0..5).map(|fill| slots.enter(of_subnet(fill, 1, false)).unwrap()).collect();
        assert_eq!(slots.enter(of_subnet(9, 1, false)).unwrap_err(), Full, "not for its own kind");
        let (ahead, honest) =
            tokio::join!(crowd[4].moved(4), async { slots.enter(of_subnet(20, 2, false)).unwrap() });
        assert_eq!(ahead, Err(DisplacedError), "the latest of the crowd");
        assert!(crowd[3].ahead().is_ok() && honest.ahead() == Ok(1));
        let second = slots.enter(of_subnet(21, 2, false)).unwrap();
        assert_eq!(slots.enter(of_subnet(22, 2, false)).unwrap_err(), Full, "two and two");
        drop((honest, second));
    }

    #[test]
    fn unknown_peers_of_many_subnets_take_at_most_a_third_of_the_queue_from_known_ones() {
        let slots = Slots::new(1, 6);
        let known: Vec<_> = (1..8).map(|fill| slots.enter(of_subnet(fill, 1, false)).unwrap()).collect();
        let crowd: Vec<_> = (20..40).map(|fill| slots.enter(of_subnet(fill, fill, true))).collect();
        assert_eq!(crowd.iter().filter(|entered| entered.is_ok()).count(), 2);
        assert_eq!(known.iter().filter(|ticket| ticket.ahead().is_ok()).count(), 5);
        let again = slots.enter(of_subnet(50, 2, false)).unwrap();
        assert!(again.ahead().is_ok() && known.iter().filter(|ticket| ticket.ahead().is_ok()).count() == 5);
    }

    #[test]
    fn unknown_peers_of_many_subnets_get_every_third_slot_while_known_ones_wait() {
        let slots = Slots::new(1, 40);
        let mut waiting: Vec<(bool, Ticket)> = (0..12)
            .map(|fill| (true, slots.enter(of_subnet(fill, fill, true)).unwrap()))
            .chain((20..26).map(|fill| (false, slots.enter(of_subnet(fill, 20, false)).unwrap())))
            .collect();
        let mut given = Vec::new();
        while let Some(at) = waiting.iter().position(|(_, ticket)| ticket.ahead() == Ok(0)) {
            let (unknown, ticket) = waiting.remove(at);
            given.push(if unknown { 'u' } else { 'k' });
            drop(ticket);
        }
        let given: String = given.into_iter().collect();
        assert_eq!(given, "ukkukkukkuuuuuuuuu", "and all, once nobody else waits");
    }

    #[test]
    fn unknown_peers_leave_the_last_slot_and_their_tickets_to_known_ones() {
        let slots = Slots::new(2, 2);
        let unknown: Vec<_> = (0..4).map(|fill| slots.enter(of_subnet(fill, fill, true)).unwrap()).collect();
        assert_eq!(slots.load(), (1, 3), "one slot is left");
        assert_eq!(slots.enter(of_subnet(9, 9, true)).unwrap_err(), Full);
        let known = slots.enter(of_subnet(20, 20, false)).unwrap();
        assert_eq!(known.ahead(), Ok(0));
        assert_eq!(unknown.iter().filter(|ticket| ticket.ahead() == Err(DisplacedError)).count(), 1);
        let alone = Slots::new(1, 2);
        assert_eq!(alone.enter(of_subnet(1, 1, true)).unwrap().ahead(), Ok(0), "an only slot is for all");
    }
}
