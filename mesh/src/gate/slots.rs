//! Slots of inbound connections: counts by subnet, admission of one more, and eviction order.
//!
//! Pure: the caller passes in the clock and says which subnets are trusted.

use std::{cmp::Reverse, collections::HashMap, time::Duration};

use libp2p::{PeerId, swarm::ConnectionId};
use tokio::time::Instant;

use super::ConnectionRefusal;
use crate::{limits::MeshLimits, subnet::Subnet};

/// One in this many slots is reserved for subnets with few connections: 64 of 512. While only reserved slots
/// are free, each new connection evicts an idle unknown peer.
const RESERVED_SHARE: u32 = 8;
/// Connections up to which a subnet has few: a client and another one behind the same router.
const FEW_OPEN: u32 = 2;
/// The time that an unknown peer has to open a stream before it counts as idle.
const IDLE: Duration = Duration::from_secs(10);

/// Limits of [`ConnectionSlots`], each as in [`MeshLimits`].
#[derive(Debug, Clone, Copy)]
struct Bounds {
    open: u32,
    open_per_subnet: u32,
    pending: u32,
    pending_per_subnet: u32,
}

/// An open connection.
#[derive(Debug, Clone, Copy)]
struct OpenConnection {
    peer: PeerId,
    subnet: Option<Subnet>,
    since: Instant,
}

/// Pending and open connections. An uncounted connection has no subnet: it belongs to the operator's own
/// network, and only the totals limit it.
#[derive(Debug)]
pub(super) struct ConnectionSlots {
    bounds: Bounds,
    pending: HashMap<ConnectionId, Option<Subnet>>,
    open: HashMap<ConnectionId, OpenConnection>,
    pending_of: HashMap<Subnet, u32>,
    open_of: HashMap<Subnet, u32>,
}

impl ConnectionSlots {
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
    pub(super) fn check_free(&self, subnet: Option<Subnet>, trusted: bool) -> Result<(), ConnectionRefusal> {
        let of = |table: &HashMap<Subnet, u32>| {
            subnet.and_then(|subnet| table.get(&subnet)).copied().unwrap_or_default()
        };
        let (pending, open) = (of(&self.pending_of), of(&self.open_of));
        if open >= self.bounds.open_per_subnet {
            return Err(ConnectionRefusal::Count);
        }
        if pending >= self.bounds.pending_per_subnet {
            return Err(ConnectionRefusal::Pending);
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
            return Err(ConnectionRefusal::Full);
        }
        let open_limit = match self.bounds.open {
            all if trusted || open < FEW_OPEN => all,
            all => all - all / RESERVED_SHARE,
        };
        if count(&self.open) >= open_limit { Err(ConnectionRefusal::Full) } else { Ok(()) }
    }

    /// Whether only reserved slots are free.
    pub(super) fn is_crowded(&self) -> bool {
        let reserved = self.bounds.open / RESERVED_SHARE;
        reserved > 0 && count(&self.open) >= self.bounds.open - reserved
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
        self.open.insert(id, OpenConnection { peer, subnet, since: now });
        if let Some(subnet) = subnet {
            *self.open_of.entry(subnet).or_default() += 1;
        }
    }

    /// A connection has ended.
    pub(super) fn ended(&mut self, id: ConnectionId) -> Option<(PeerId, Option<Subnet>)> {
        let connection = self.open.remove(&id)?;
        if let Some(subnet) = connection.subnet {
            decrease(&mut self.open_of, subnet);
        }
        Some((connection.peer, connection.subnet))
    }

    /// The counted subnets of a peer's connections.
    pub(super) fn subnets_of(&self, peer: PeerId) -> impl Iterator<Item = Subnet> {
        self.open
            .values()
            .filter(move |connection| connection.peer == peer)
            .filter_map(|connection| connection.subnet)
    }

    /// The unknown peer to evict first: the oldest connection of the subnet with most connections. `spared`
    /// selects known peers and peers with streams.
    pub(super) fn eviction_candidate(
        &self,
        now: Instant,
        spared: impl Fn(&PeerId) -> bool,
    ) -> Option<(PeerId, ConnectionId)> {
        let beside = |connection: &OpenConnection| {
            connection.subnet.and_then(|subnet| self.open_of.get(&subnet)).copied()
        };
        let idle = self
            .open
            .iter()
            .filter(|(_, connection)| now.saturating_duration_since(connection.since) >= IDLE);
        let unknown = idle.filter(|(_, connection)| !spared(&connection.peer));
        let first = unknown.max_by_key(|(_, connection)| (beside(connection), Reverse(connection.since)));
        first.map(|(id, connection)| (connection.peer, *id))
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
    fn silent_handshakes_of_a_few_subnets_leave_slots_to_others() {
        let mut slots = ConnectionSlots::new(&limits());
        let mut begun = 0;
        let mut arrive = |slots: &mut ConnectionSlots, number, trusted| {
            let result = slots.check_free(subnet(number), trusted);
            if result.is_ok() {
                begun += 1;
                slots.begun(id(begun), subnet(number));
            }
            result
        };
        for number in 0..3 {
            let taken = (0..20).filter(|_| arrive(&mut slots, number, false).is_ok()).count();
            // Half is open to all subnets, four slots each; of the next quarter, each subnet gets one.
            assert_eq!(taken, [4, 4, 1][number]);
        }
        assert_eq!(arrive(&mut slots, 0, false), Err(ConnectionRefusal::Pending));
        assert_eq!((3..20).filter(|number| arrive(&mut slots, *number, false).is_ok()).count(), 3);
        assert_eq!(arrive(&mut slots, 30, false), Err(ConnectionRefusal::Full));
        assert_eq!((0..9).filter(|_| arrive(&mut slots, 31, true).is_ok()).count(), 4, "of a trusted subnet");
        assert_eq!(arrive(&mut slots, 32, true), Err(ConnectionRefusal::Full));
        (1..=16).for_each(|number| slots.settled(id(number)));
        assert!(slots.is_empty());
    }

    #[test]
    fn the_last_slots_are_for_subnets_that_have_few() {
        let (mut slots, now) = (ConnectionSlots::new(&limits()), Instant::now());
        let connect = |slots: &mut ConnectionSlots, number: usize, from| {
            let result = slots.check_free(subnet(from), false);
            if result.is_ok() {
                slots.opened(id(number), PeerId::random(), subnet(from), now);
            }
            result
        };
        for number in 0..14 {
            assert!(!slots.is_crowded());
            assert_eq!(connect(&mut slots, number, number % 2), Ok(()));
        }
        assert!(slots.is_crowded());
        assert_eq!(connect(&mut slots, 14, 0), Err(ConnectionRefusal::Full), "it has seven");
        assert_eq!(connect(&mut slots, 14, 9), Ok(()));
        assert_eq!(connect(&mut slots, 15, 9), Ok(()));
        assert_eq!(connect(&mut slots, 16, 8), Err(ConnectionRefusal::Full), "none is left");
        (0..16).for_each(|number| assert!(slots.ended(id(number)).is_some()));
        assert!(slots.is_empty());
    }

    #[test]
    fn the_longest_idle_unknown_peer_of_the_largest_subnet_is_evicted_first() {
        let (mut slots, start) = (ConnectionSlots::new(&limits()), Instant::now());
        let peers: Vec<_> = (0..5).map(|_| PeerId::random()).collect();
        // An uncounted one, one of a first subnet, and three of a second.
        for (number, from) in [(0, None), (1, subnet(1)), (2, subnet(2)), (3, subnet(2)), (4, subnet(2))] {
            let since = start + Duration::from_secs(number);
            let number = usize::try_from(number).unwrap();
            slots.opened(id(number), peers[number], from, since);
        }
        let now = start + Duration::from_secs(60);
        assert_eq!(slots.eviction_candidate(now, |_| false), Some((peers[2], id(2))));
        assert_eq!(slots.eviction_candidate(now, |peer| *peer == peers[2]), Some((peers[3], id(3))));
        assert_eq!(
            slots.eviction_candidate(start + IDLE, |_| false),
            Some((peers[0], id(0))),
            "nobody else had its time"
        );
        assert_eq!(slots.eviction_candidate(start, |_| false), None);
        assert_eq!(slots.eviction_candidate(now, |_| true), None);
    }
}
