//! Inbound connections: counts by subnet, admission of one more, and the order of eviction. Pure.

use std::{cmp::Reverse, collections::HashMap};

use baton_limits::{Shares, Subnet};
use libp2p::{PeerId, swarm::ConnectionId};

use super::ConnectionRefusal;
use crate::limits::MeshLimits;

/// One in this many connections is reserved for subnets with few: 64 of 512. While only reserved ones are free, each new
/// connection evicts an idle peer.
const RESERVED_SHARE: usize = 8;
/// Connections up to which a subnet has few: a client and another one behind the same router.
const FEW_OPEN: usize = 2;
/// The time that a peer has to open a stream before it counts as idle.
const IDLE_MS: u64 = 10_000;

/// An open connection.
#[derive(Debug, Clone, Copy)]
struct OpenConnection {
    peer: PeerId,
    subnet: Option<Subnet>,
    since_ms: u64,
}

/// Pending and open connections. One from the operator's own networks has no subnet, and only the totals limit it.
#[derive(Debug)]
pub(super) struct Connections {
    pending: HashMap<ConnectionId, Option<Subnet>>,
    open: HashMap<ConnectionId, OpenConnection>,
    pending_of: Shares<Subnet>,
    open_of: Shares<Subnet>,
}

impl Connections {
    pub(super) fn new(limits: &MeshLimits) -> Self {
        let share = |all: u32, of_subnet: u32| Shares::new(all as usize, of_subnet as usize);
        Self {
            pending: HashMap::new(),
            open: HashMap::new(),
            pending_of: share(limits.max_connections_pending, limits.max_connections_pending_per_subnet),
            open_of: share(limits.max_connections_in, limits.max_connections_per_subnet),
        }
    }

    /// Checks that there is room for one more connection; `trusted` means that its subnet is trusted.
    pub(super) fn check_free(&self, subnet: Option<Subnet>, trusted: bool) -> Result<(), ConnectionRefusal> {
        if !self.open_of.has_share(subnet) {
            return Err(ConnectionRefusal::Count);
        }
        if !self.pending_of.has_share(subnet) {
            return Err(ConnectionRefusal::Pending);
        }
        let of = |shares: &Shares<Subnet>| subnet.map_or(0, |subnet| shares.of(&subnet));
        // A silent handshake holds its place until the deadline. Subnets that hold none come before those that
        // hold one, and trusted subnets before all others.
        let pending_limit = match self.pending_of.most() {
            all if trusted => all,
            all if of(&self.pending_of) == 0 => all - all / 4,
            all => all / 2,
        };
        let open_limit = match self.open_of.most() {
            all if trusted || of(&self.open_of) < FEW_OPEN => all,
            all => all - all / RESERVED_SHARE,
        };
        let is_full = self.pending_of.all() >= pending_limit || self.open_of.all() >= open_limit;
        if is_full { Err(ConnectionRefusal::Full) } else { Ok(()) }
    }

    /// Whether only reserved connections are free.
    pub(super) fn is_crowded(&self) -> bool {
        let reserved = self.open_of.most() / RESERVED_SHARE;
        reserved > 0 && self.open_of.all() >= self.open_of.most() - reserved
    }

    /// A connection is being set up.
    pub(super) fn begun(&mut self, id: ConnectionId, subnet: Option<Subnet>) {
        self.pending.insert(id, subnet);
        self.pending_of.add(subnet);
    }

    /// The set-up succeeded or failed.
    pub(super) fn settled(&mut self, id: ConnectionId) {
        if let Some(subnet) = self.pending.remove(&id) {
            self.pending_of.give_back(subnet);
        }
    }

    /// A connection is open.
    pub(super) fn opened(&mut self, id: ConnectionId, peer: PeerId, subnet: Option<Subnet>, now_ms: u64) {
        self.open.insert(id, OpenConnection { peer, subnet, since_ms: now_ms });
        self.open_of.add(subnet);
    }

    /// A connection has ended.
    pub(super) fn ended(&mut self, id: ConnectionId) {
        if let Some(connection) = self.open.remove(&id) {
            self.open_of.give_back(connection.subnet);
        }
    }

    /// The idle peer to evict first: the longest connected one of the subnet with the most connections. Those of trusted
    /// subnets come last.
    pub(super) fn eviction_candidate(
        &self,
        now_ms: u64,
        is_trusted: impl Fn(Option<Subnet>) -> bool,
        is_busy: impl Fn(&PeerId) -> bool,
    ) -> Option<(PeerId, ConnectionId)> {
        let is_idle =
            |open: &OpenConnection| now_ms.saturating_sub(open.since_ms) >= IDLE_MS && !is_busy(&open.peer);
        let idle = self.open.iter().filter(|(_, open)| is_idle(open));
        let first = idle.max_by_key(|(_, open)| {
            let beside = open.subnet.map(|subnet| self.open_of.of(&subnet));
            (!is_trusted(open.subnet), beside, Reverse(open.since_ms))
        });
        first.map(|(id, open)| (open.peer, *id))
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.open.is_empty()
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
    fn silent_handshakes_of_a_few_subnets_leave_connections_to_others() {
        let mut connections = Connections::new(&limits());
        let mut begun = 0;
        let mut arrive = |connections: &mut Connections, number, trusted| {
            let result = connections.check_free(subnet(number), trusted);
            if result.is_ok() {
                begun += 1;
                connections.begun(id(begun), subnet(number));
            }
            result
        };
        for number in 0..3 {
            let taken = (0..20).filter(|_| arrive(&mut connections, number, false).is_ok()).count();
            // Half is open to all subnets, four connections each; of the next quarter, each subnet gets one.
            assert_eq!(taken, [4, 4, 1][number]);
        }
        assert_eq!(arrive(&mut connections, 0, false), Err(ConnectionRefusal::Pending));
        assert_eq!((3..20).filter(|number| arrive(&mut connections, *number, false).is_ok()).count(), 3);
        assert_eq!(arrive(&mut connections, 30, false), Err(ConnectionRefusal::Full));
        assert_eq!(
            (0..9).filter(|_| arrive(&mut connections, 31, true).is_ok()).count(),
            4,
            "of a trusted subnet"
        );
        assert_eq!(arrive(&mut connections, 32, true), Err(ConnectionRefusal::Full));
        (1..=16).for_each(|number| connections.settled(id(number)));
        assert!(connections.is_empty());
    }

    #[test]
    fn the_last_connections_are_for_subnets_that_have_few() {
        let (mut connections, now) = (Connections::new(&limits()), 0);
        let connect = |connections: &mut Connections, number: usize, from| {
            let result = connections.check_free(subnet(from), false);
            if result.is_ok() {
                connections.opened(id(number), PeerId::random(), subnet(from), now);
            }
            result
        };
        for number in 0..14 {
            assert!(!connections.is_crowded());
            assert_eq!(connect(&mut connections, number, number % 2), Ok(()));
        }
        assert!(connections.is_crowded());
        assert_eq!(connect(&mut connections, 14, 0), Err(ConnectionRefusal::Full), "it has seven");
        assert_eq!(connect(&mut connections, 14, 9), Ok(()));
        assert_eq!(connect(&mut connections, 15, 9), Ok(()));
        assert_eq!(connect(&mut connections, 16, 8), Err(ConnectionRefusal::Full), "none is left");
        (0..16).for_each(|number| connections.ended(id(number)));
        assert!(connections.is_empty());
    }

    #[test]
    fn the_longest_idle_peer_of_the_largest_subnet_is_evicted_first() {
        let mut connections = Connections::new(&limits());
        let peers: Vec<_> = (0..5).map(|_| PeerId::random()).collect();
        // An uncounted one, one of a first subnet, and three of a second.
        for (number, from) in [(0, None), (1, subnet(1)), (2, subnet(2)), (3, subnet(2)), (4, subnet(2))] {
            connections.opened(id(number), peers[number], from, 1000 * number as u64);
        }
        let evicted = |now_ms, trusted: &[Option<Subnet>], busy: &[usize]| {
            let is_trusted = |subnet: Option<Subnet>| subnet.is_none() || trusted.contains(&subnet);
            let is_busy = |peer: &PeerId| busy.iter().any(|number| peers[*number] == *peer);
            connections.eviction_candidate(now_ms, is_trusted, is_busy).map(|(_, connection)| connection)
        };
        assert_eq!(evicted(60_000, &[], &[]), Some(id(2)));
        assert_eq!(evicted(60_000, &[], &[2]), Some(id(3)));
        assert_eq!(evicted(60_000, &[subnet(2)], &[]), Some(id(1)));
        assert_eq!(evicted(60_000, &[subnet(1), subnet(2)], &[]), Some(id(2)), "all are trusted");
        assert_eq!(evicted(IDLE_MS, &[], &[]), Some(id(0)), "nobody else had its time");
        assert_eq!((evicted(0, &[], &[]), evicted(60_000, &[], &[0, 1, 2, 3, 4])), (None, None));
    }
}
