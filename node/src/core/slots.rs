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
const KNOWN_BEFORE_STRANGER: u32 = 2;

/// All slots are taken and the queue is full, or this peer has used its share of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

/// A waiting turn lost its place to a turn of a group with fewer waiting turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Displaced;

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

/// The requester of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Guest {
    /// The peer.
    pub(crate) peer: NodeId,
    /// Its group.
    pub(crate) group: Group,
    /// Whether it is unknown: without a grant, and without a served turn some time ago.
    pub(crate) stranger: bool,
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
/// Unknown peers never hold the last of several slots. One peer may have as many places as there are slots
/// and half of the queue (rounded up): alone it uses the whole node.
///
/// When the queue is full, a new turn may displace the newest turn of the group with the most waiting turns.
/// - That group must have two more waiting turns than the new turn's group.
/// - A known peer may always displace an unknown one.
/// - An unknown peer displaces a known one only while unknown peers have less than a third of the queue.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: usize,
    queue: usize,
    line: Mutex<Line>,
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    guest: Guest,
    runs: bool,
    /// Waits for its model, so a slot would be useless.
    aside: bool,
}

/// At most `slots + queue` entries, and as many groups and peers.
#[derive(Debug, Default)]
struct Line {
    next: u64,
    entries: Vec<Entry>,
    /// Time of the last slot of each queued group and peer.
    groups: HashMap<Group, u64>,
    peers: HashMap<NodeId, u64>,
    /// Slots given to known peers since an unknown peer's last slot.
    since_stranger: u32,
}

/// Order of waiting turns; the smallest is next.
type Rank = (bool, usize, u64, usize, u64, u64);

impl Line {
    fn count(&self, matches: impl Fn(&Entry) -> bool) -> usize {
        self.entries.iter().filter(|entry| matches(entry)).count()
    }

    fn running(&self) -> usize {
        self.count(|entry| entry.runs)
    }

    fn waiting_of(&self, group: &Group) -> usize {
        self.count(|entry| !entry.runs && entry.guest.group == *group)
    }

    fn rank(&self, entry: &Entry) -> Rank {
        let guest = entry.guest;
        let held_back = guest.stranger && self.since_stranger < KNOWN_BEFORE_STRANGER;
        (
            held_back,
            self.count(|other| other.runs && other.guest.group == guest.group),
            self.groups.get(&guest.group).copied().unwrap_or(0),
            self.count(|other| other.runs && other.guest.peer == guest.peer),
            self.peers.get(&guest.peer).copied().unwrap_or(0),
            entry.number,
        )
    }

    /// Gives away the free slots.
    fn promote(&mut self, slots: usize) {
        while self.running() < slots {
            let strangers = self.count(|entry| entry.runs && entry.guest.stranger);
            let for_strangers = slots == 1 || strangers + 1 < slots;
            let may =
                |entry: &&Entry| !entry.runs && !entry.aside && (for_strangers || !entry.guest.stranger);
            let next = self.entries.iter().filter(may).min_by_key(|entry| self.rank(entry));
            let Some((number, guest)) = next.map(|entry| (entry.number, entry.guest)) else { return };
            self.next += 1;
            self.groups.insert(guest.group, self.next);
            self.peers.insert(guest.peer, self.next);
            self.since_stranger = if guest.stranger { 0 } else { self.since_stranger.saturating_add(1) };
            if let Some(entry) = self.entries.iter_mut().find(|entry| entry.number == number) {
                entry.runs = true;
            }
        }
    }

    /// The waiting turn that a new turn may displace.
    fn displaced_by(&self, guest: &Guest, queue: usize) -> Option<u64> {
        let own = self.waiting_of(&guest.group);
        let strangers = self.count(|entry| !entry.runs && entry.guest.stranger);
        let few = strangers < queue.div_ceil(KNOWN_BEFORE_STRANGER as usize + 1);
        let yields = |entry: &&Entry| {
            let more = self.waiting_of(&entry.guest.group) > own + 1;
            let above = guest.stranger && !entry.guest.stranger && !few;
            !entry.runs && ((more && !above) || (entry.guest.stranger && !guest.stranger))
        };
        let candidates = self.entries.iter().filter(yields);
        let worst = candidates
            .max_by_key(|entry| (entry.guest.stranger, self.waiting_of(&entry.guest.group), entry.number));
        worst.map(|entry| entry.number)
    }

    fn remove(&mut self, number: u64) {
        self.entries.retain(|entry| entry.number != number);
        // A group or peer that leaves the queue loses its history.
        let Self { entries, groups, peers, .. } = self;
        groups.retain(|group, _| entries.iter().any(|entry| entry.guest.group == *group));
        peers.retain(|peer, _| entries.iter().any(|entry| entry.guest.peer == *peer));
    }
}

/// A place in the queue; dropping it frees it.
#[derive(Debug)]
pub(crate) struct Place {
    slots: Arc<Slots>,
    number: u64,
}

/// A turn that needs no slot for a while. On drop it takes part again.
#[derive(Debug)]
pub(crate) struct Aside<'a>(&'a Place);

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        self.0.stand(false);
    }
}

impl Slots {
    pub(crate) fn new(slots: usize, queue: usize) -> Arc<Self> {
        let changed = watch::Sender::new(());
        Arc::new(Self { slots: slots.max(1), queue, line: Mutex::default(), changed })
    }

    /// Joins the queue.
    pub(crate) fn enter(self: &Arc<Self>, guest: Guest) -> Result<Place, Full> {
        let number = {
            let mut line = lock(&self.line);
            if let Some(displaced) = self.room_for(&line, &guest)? {
                line.remove(displaced);
            }
            line.next += 1;
            let number = line.next;
            line.entries.push(Entry { number, guest, runs: false, aside: false });
            line.promote(self.slots);
            number
        };
        self.changed.send_replace(());
        Ok(Place { slots: self.clone(), number })
    }

    /// Whether there is room: a free check before the expensive ones.
    pub(crate) fn has_room(&self, guest: &Guest) -> bool {
        self.room_for(&lock(&self.line), guest).is_ok()
    }

    /// The turn to displace, if no place is free.
    fn room_for(&self, line: &Line, guest: &Guest) -> Result<Option<u64>, Full> {
        let of_peer = line.count(|entry| entry.guest.peer == guest.peer);
        if of_peer >= self.slots + self.queue.div_ceil(2) {
            return Err(Full);
        }
        if line.entries.len() < self.slots + self.queue {
            return Ok(None);
        }
        line.displaced_by(guest, self.queue).map(Some).ok_or(Full)
    }

    /// Running and waiting turns.
    pub(crate) fn load(&self) -> (usize, usize) {
        let line = lock(&self.line);
        let running = line.running();
        (running, line.entries.len() - running)
    }
}

impl Place {
    /// Gives up the slot, and takes none until the returned value is dropped.
    pub(crate) fn step_aside(&self) -> Aside<'_> {
        self.stand(true);
        Aside(self)
    }

    fn stand(&self, aside: bool) {
        {
            let mut line = lock(&self.slots.line);
            if let Some(own) = line.entries.iter_mut().find(|entry| entry.number == self.number) {
                own.aside = aside;
                own.runs &= !aside;
            }
            line.promote(self.slots.slots);
        }
        self.slots.changed.send_replace(());
    }

    /// The current number of turns ahead; 0 with a slot.
    ///
    /// # Errors
    /// [`Displaced`].
    pub(crate) fn ahead(&self) -> Result<u32, Displaced> {
        let line = lock(&self.slots.line);
        let own = line.entries.iter().find(|entry| entry.number == self.number).ok_or(Displaced)?;
        if own.runs {
            return Ok(0);
        }
        let rank = line.rank(own);
        let before = line.count(|entry| !entry.runs && line.rank(entry) < rank);
        Ok(u32::try_from(before + 1).unwrap_or(u32::MAX))
    }

    /// Waits for a slot. Cancel safe.
    ///
    /// # Errors
    /// [`Displaced`].
    pub(crate) async fn granted(&self) -> Result<(), Displaced> {
        let mut ahead = self.ahead()?;
        while ahead > 0 {
            ahead = self.moved(ahead).await?;
        }
        Ok(())
    }

    /// Waits until [`Place::ahead`] is no longer `known`, and returns it. Cancel safe.
    ///
    /// # Errors
    /// [`Displaced`].
    pub(crate) async fn moved(&self, known: u32) -> Result<u32, Displaced> {
        let mut changed = self.slots.changed.subscribe();
        loop {
            let ahead = self.ahead()?;
            if ahead != known || changed.changed().await.is_err() {
                return Ok(ahead);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        {
            let mut line = lock(&self.slots.line);
            line.remove(self.number);
            line.promote(self.slots.slots);
        }
        self.slots.changed.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(fill: u8) -> Guest {
        let peer = NodeId([fill; 32]);
        Guest { peer, group: Group::Peer(peer), stranger: false }
    }

    fn of_subnet(fill: u8, subnet: u8, stranger: bool) -> Guest {
        Guest { peer: NodeId([fill; 32]), group: Group::Subnet(Subnet::V4([203, 0, subnet])), stranger }
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
    async fn a_turn_that_steps_aside_gives_its_slot_away_and_waits_for_one_again() {
        let slots = Slots::new(1, 3);
        let first = slots.enter(peer(1)).unwrap();
        let second = slots.enter(peer(2)).unwrap();
        let aside = first.step_aside();
        assert_eq!((second.ahead(), slots.load()), (Ok(0), (1, 1)));
        drop(aside);
        assert_eq!((first.ahead(), second.ahead()), (Ok(1), Ok(0)));
        let (ahead, ()) = tokio::join!(first.moved(1), async { drop(second) });
        assert_eq!(ahead, Ok(0));
        // While it steps aside, the free slot stays free.
        let aside = first.step_aside();
        assert_eq!(slots.load(), (0, 1));
        drop(aside);
        assert_eq!((first.ahead(), slots.load()), (Ok(0), (1, 0)));
    }

    #[test]
    fn one_peer_may_use_every_slot_and_half_of_the_queue() {
        let slots = Slots::new(2, 5);
        let (greedy, other) = (peer(1), peer(2));
        let places: Vec<_> = std::iter::repeat_with(|| slots.enter(greedy)).map_while(Result::ok).collect();
        assert_eq!(places.len(), 5);
        let _places: Vec<_> = (0..2).map(|_| slots.enter(other).unwrap()).collect();
        assert_eq!(slots.enter(other).unwrap_err(), Full, "the line is full");
        drop(places);
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
        assert_eq!(crowd.iter().filter(|place| place.ahead() == Ok(0)).count(), 1);
    }

    #[tokio::test]
    async fn a_full_queue_makes_room_for_whoever_waits_less() {
        let slots = Slots::new(1, 4);
        let crowd: Vec<_> = (0..5).map(|fill| slots.enter(of_subnet(fill, 1, false)).unwrap()).collect();
        assert_eq!(slots.enter(of_subnet(9, 1, false)).unwrap_err(), Full, "not for its own kind");
        let (ahead, honest) =
            tokio::join!(crowd[4].moved(4), async { slots.enter(of_subnet(20, 2, false)).unwrap() });
        assert_eq!(ahead, Err(Displaced), "the latest of the crowd");
        assert!(crowd[3].ahead().is_ok() && honest.ahead() == Ok(1));
        let second = slots.enter(of_subnet(21, 2, false)).unwrap();
        assert_eq!(slots.enter(of_subnet(22, 2, false)).unwrap_err(), Full, "two and two");
        drop((honest, second));
    }

    #[test]
    fn strangers_of_many_subnets_take_no_more_than_a_third_of_the_queue_from_known_ones() {
        let slots = Slots::new(1, 6);
        let known: Vec<_> = (1..8).map(|fill| slots.enter(of_subnet(fill, 1, false)).unwrap()).collect();
        let crowd: Vec<_> = (20..40).map(|fill| slots.enter(of_subnet(fill, fill, true))).collect();
        assert_eq!(crowd.iter().filter(|entered| entered.is_ok()).count(), 2);
        assert_eq!(known.iter().filter(|place| place.ahead().is_ok()).count(), 5);
        let again = slots.enter(of_subnet(50, 2, false)).unwrap();
        assert!(again.ahead().is_ok() && known.iter().filter(|place| place.ahead().is_ok()).count() == 5);
    }

    #[test]
    fn strangers_of_many_subnets_get_every_third_slot_while_known_ones_wait() {
        let slots = Slots::new(1, 40);
        let mut waiting: Vec<(bool, Place)> = (0..12)
            .map(|fill| (true, slots.enter(of_subnet(fill, fill, true)).unwrap()))
            .chain((20..26).map(|fill| (false, slots.enter(of_subnet(fill, 20, false)).unwrap())))
            .collect();
        let mut given = Vec::new();
        while let Some(at) = waiting.iter().position(|(_, place)| place.ahead() == Ok(0)) {
            let (stranger, place) = waiting.remove(at);
            given.push(if stranger { 's' } else { 'k' });
            drop(place);
        }
        let given: String = given.into_iter().collect();
        assert_eq!(given, "skkskkskksssssssss", "and all, once nobody else waits");
    }

    #[test]
    fn strangers_leave_the_last_slot_and_their_places_to_those_who_were_served_before() {
        let slots = Slots::new(2, 2);
        let strangers: Vec<_> =
            (0..4).map(|fill| slots.enter(of_subnet(fill, fill, true)).unwrap()).collect();
        assert_eq!(slots.load(), (1, 3), "one slot is left");
        assert_eq!(slots.enter(of_subnet(9, 9, true)).unwrap_err(), Full);
        let known = slots.enter(of_subnet(20, 20, false)).unwrap();
        assert_eq!(known.ahead(), Ok(0));
        assert_eq!(strangers.iter().filter(|place| place.ahead() == Err(Displaced)).count(), 1);
        let alone = Slots::new(1, 2);
        assert_eq!(alone.enter(of_subnet(1, 1, true)).unwrap().ahead(), Ok(0), "an only slot is for all");
    }
}
