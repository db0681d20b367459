//! Slots of inbound connections: counts by subnet, admission of one more, and eviction order.
//!
//! Pure: the caller passes in the clock and says which subnets are trusted.

use std::{cmp::Reverse, collections::HashMap, time::Duration};

use libp2p::{PeerId, swarm::ConnectionId};
use tokio::time::Instant;

use super::Closed;
use crate::{limits::MeshLimits, origin::Subnet};

/// One in this many slots is reserved for subnets with few connections: 64 of 512. While only reserved slots
/// are free, each new connection evicts an idle unknown peer.
const KEPT_SHARE: u32 = 8;
/// Connections up to which a subnet has few: a client and another one behind the same router.
const FEW_OPEN: u32 = 2;
/// The time that an unknown peer has to open a stream before it counts as idle.
const IDLE: Duration = Duration::from_secs(10);

/// Limits of [`Places`], each as in [`MeshLimits`].
#[derive(Debug, Clone, Copy)]
struct Bounds {
    open: u32,
    open_per_subnet: u32,
    pending: u32,
    pending_per_subnet: u32,
}

/// An open connection.
#[derive(Debug, Clone, Copy)]
struct Guest {
    peer: PeerId,
    subnet: Option<Subnet>,
    since: Instant,
}

/// Pending and open connections. An uncounted connection has no subnet: it belongs to the operator's own
/// network, and only the totals limit it.
#[derive(Debug)]
pub(super) struct Places {
    bounds: Bounds,
    pending: HashMap<ConnectionId, Option<Subnet>>,
    open: HashMap<ConnectionId, Guest>,
    pending_of: HashMap<Subnet, u32>,
    open_of: HashMap<Subnet, u32>,
}

impl Places {
    pub(super) fn new(limits: &MeshLimits) -> Self {
        let bounds = Bounds {
            open: limits.max_connections_in,
            open_per_subnet: limits.max_connections_per_subnet,
            pending: limits.max_connections_pending,
            pending_per_subnet: limits.max_connections_pending_per_subnet,
        };
        Self {
            bounds,
            pending: HashMap::new(),
            open: HashMap::new(),
            pending_of: HashMap::new(),
            open_of: HashMap::new(),
        }
    }

    /// Checks that a slot is free for one more connection; `trusted` means that its subnet is trusted.
    pub(super) fn room(&self, subnet: Option<Subnet>, trusted: bool) -> Result<(), Closed> {
        let of = |table: &HashMap<Subnet, u32>| {
            subnet.and_then(|subnet| table.get(&subnet)).copied().unwrap_or_default()
        };
        let (pending, open) = (of(&self.pending_of), of(&self.open_of));
        if open >= self.bounds.open_per_subnet {
            return Err(Closed::Count);
        }
        if pending >= self.bounds.pending_per_subnet {
            return Err(Closed::Pending);
        }
        let trusted = trusted || subnet.is_none();
        // A silent handshake holds its slot until the deadline. Subnets that hold none come before those that
        // hold one, and trusted subnets before all others.
        let pending_limit = match self.bounds.pending {
            all if trusted => all,
            all if pending == 0 => all - all / 4,
            all => all / 2,
        };
        if count(&self.pending) >= pending_limit {
            return Err(Closed::Full);
        }
        let open_limit = match self.bounds.open {
            all if trusted || open < FEW_OPEN => all,
            all => all - all / KEPT_SHARE,
        };
        if count(&self.open) >= open_limit { Err(Closed::Full) } else { Ok(()) }
    }

    /// Whether only reserved slots are free.
    pub(super) fn is_crowded(&self) -> bool {
        let kept = self.bounds.open / KEPT_SHARE;
        kept > 0 && count(&self.open) >= self.bounds.open - kept
    }

    /// A connection is being set up.
    pub(super) fn begun(&mut self, id: ConnectionId, subnet: Option<Subnet>) {
        self.pending.insert(id, subnet);
        if let Some(subnet) = subnet {
            *self.pending_of.entry(subnet).or_default() += 1;
        }
    }

    /// The set-up succeeded or failed.
    pub(super) fn settled(&mut self, id: ConnectionId) {
        if let Some(Some(subnet)) = self.pending.remove(&id) {
            decrease(&mut self.pending_of, subnet);
        }
    }

    /// A connection is open.
    pub(super) fn opened(&mut self, id: ConnectionId, peer: PeerId, subnet: Option<Subnet>, now: Instant) {
        self.open.insert(id, Guest { peer, subnet, since: now });
        if let Some(subnet) = subnet {
            *self.open_of.entry(subnet).or_default() += 1;
        }
    }

    /// A connection has ended.
    pub(super) fn ended(&mut self, id: ConnectionId) -> Option<(PeerId, Option<Subnet>)> {
        let guest = self.open.remove(&id)?;
        if let Some(subnet) = guest.subnet {
            decrease(&mut self.open_of, subnet);
        }
        Some((guest.peer, guest.subnet))
    }

    /// The counted subnets of a peer's connections.
    pub(super) fn subnets_of(&self, peer: PeerId) -> impl Iterator<Item = Subnet> {
        self.open.values().filter(move |guest| guest.peer == peer).filter_map(|guest| guest.subnet)
    }

    /// The unknown peer to evict first: the oldest connection of the subnet with most connections. `spared`
    /// selects known peers and peers with streams.
    pub(super) fn first_to_go(
        &self,
        now: Instant,
        spared: impl Fn(&PeerId) -> bool,
    ) -> Option<(PeerId, ConnectionId)> {
        let beside = |guest: &Guest| guest.subnet.and_then(|subnet| self.open_of.get(&subnet)).copied();
        let idle = self.open.iter().filter(|(_, guest)| now.saturating_duration_since(guest.since) >= IDLE);
        let strangers = idle.filter(|(_, guest)| !spared(&guest.peer));
        let first = strangers.max_by_key(|(_, guest)| (beside(guest), Reverse(guest.since)));
        first.map(|(id, guest)| (guest.peer, *id))
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
            && self.open.is_empty()
            && self.pending_of.is_empty()
            && self.open_of.is_empty()
    }
}

fn count<T>(table: &HashMap<ConnectionId, T>) -> u32 {
    u32::try_from(table.len()).unwrap_or(u32::MAX)
}

/// Only subnets with connections keep an entry, so the connection limits bound the table.
fn decrease(table: &mut HashMap<Subnet, u32>, subnet: Subnet) {
    if let Some(count) = table.get_mut(&subnet) {
        *count -= 1;
        if *count == 0 {
            table.remove(&subnet);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subnet(number: usize) -> Option<Subnet> {
        let [.., high, low] = number.to_be_bytes();
        Some(Subnet::V4([203, high, low]))
    }

    fn id(number: usize) -> ConnectionId {
        ConnectionId::new_unchecked(number)
    }

    fn limits() -> MeshLimits {
        MeshLimits {
            max_connections_in: 16,
            max_connections_per_subnet: 8,
            max_connections_pending: 16,
            max_connections_pending_per_subnet: 4,
            ..MeshLimits::default()
        }
    }

    #[test]
    fn silent_handshakes_of_a_few_subnets_leave_places_to_others() {
        let mut places = Places::new(&limits());
        let mut begun = 0;
        let mut knock = |places: &mut Places, number, trusted| {
            let room = places.room(subnet(number), trusted);
            if room.is_ok() {
                begun += 1;
                places.begun(id(begun), subnet(number));
            }
            room
        };
        for number in 0..3 {
            let taken = (0..20).filter(|_| knock(&mut places, number, false).is_ok()).count();
            // Half is open to all subnets, four slots each; of the next quarter, each subnet gets one.
            assert_eq!(taken, [4, 4, 1][number]);
        }
        assert_eq!(knock(&mut places, 0, false), Err(Closed::Pending));
        assert_eq!((3..20).filter(|number| knock(&mut places, *number, false).is_ok()).count(), 3);
        assert_eq!(knock(&mut places, 30, false), Err(Closed::Full));
        assert_eq!((0..9).filter(|_| knock(&mut places, 31, true).is_ok()).count(), 4, "in good standing");
        assert_eq!(knock(&mut places, 32, true), Err(Closed::Full));
        (1..=16).for_each(|number| places.settled(id(number)));
        assert!(places.is_empty());
    }

    #[test]
    fn the_last_places_are_for_subnets_that_have_few() {
        let (mut places, now) = (Places::new(&limits()), Instant::now());
        let enter = |places: &mut Places, number: usize, from| {
            let room = places.room(subnet(from), false);
            if room.is_ok() {
                places.opened(id(number), PeerId::random(), subnet(from), now);
            }
            room
        };
        for number in 0..14 {
            assert!(!places.is_crowded());
            assert_eq!(enter(&mut places, number, number % 2), Ok(()));
        }
        assert!(places.is_crowded());
        assert_eq!(enter(&mut places, 14, 0), Err(Closed::Full), "it has seven");
        assert_eq!(enter(&mut places, 14, 9), Ok(()));
        assert_eq!(enter(&mut places, 15, 9), Ok(()));
        assert_eq!(enter(&mut places, 16, 8), Err(Closed::Full), "none is left");
        (0..16).for_each(|number| assert!(places.ended(id(number)).is_some()));
        assert!(places.is_empty());
    }

    #[test]
    fn the_longest_idle_stranger_of_the_largest_subnet_goes_first() {
        let (mut places, start) = (Places::new(&limits()), Instant::now());
        let peers: Vec<_> = (0..5).map(|_| PeerId::random()).collect();
        // An uncounted one, one of a first subnet, and three of a second.
        for (number, from) in [(0, None), (1, subnet(1)), (2, subnet(2)), (3, subnet(2)), (4, subnet(2))] {
            let since = start + Duration::from_secs(number);
            let number = usize::try_from(number).unwrap();
            places.opened(id(number), peers[number], from, since);
        }
        let now = start + Duration::from_secs(60);
        assert_eq!(places.first_to_go(now, |_| false), Some((peers[2], id(2))));
        assert_eq!(places.first_to_go(now, |peer| *peer == peers[2]), Some((peers[3], id(3))));
        assert_eq!(
            places.first_to_go(start + IDLE, |_| false),
            Some((peers[0], id(0))),
            "nobody else had its time"
        );
        assert_eq!(places.first_to_go(start, |_| false), None);
        assert_eq!(places.first_to_go(now, |_| true), None);
    }
}
