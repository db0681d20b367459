//! The assignment of slots when slots are few. Pure.
//!
//! Slots are shared by subnet. No subnet fills the table, and one with many connections loses its silent ones first.

use std::collections::HashMap;

use baton_limits::Subnet;
use tokio::time::Instant;

use super::{MAX_CONNECTIONS, SOCKETS_PER_SLOT};

/// Least slots, however few files the program may have open.
const MIN_CONNECTIONS: usize = 4;

/// The facts about an open connection that affect its slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) subnet: Subnet,
    /// Since when the server waits for its peer, if it does.
    pub(super) silent_since: Option<Instant>,
}

/// Limits on connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slots {
    pub(super) all: usize,
    /// Limit for one subnet. The rest is reserved for others.
    pub(super) per_subnet: usize,
}

/// The decision on a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// It takes a free slot.
    Free,
    /// It takes the slot of this connection, which is closed.
    Replace(u64),
    /// It waits: no slot can be freed for it.
    Wait,
}

impl Slots {
    /// The slots of a program that may have this many files open: its sockets take half of them at most.
    pub(super) fn new(open_files: Option<usize>) -> Self {
        let half = open_files.map_or(usize::MAX, |files| files / 2);
        let all = (half / SOCKETS_PER_SLOT).clamp(MIN_CONNECTIONS, MAX_CONNECTIONS);
        Self { all, per_subnet: all - all / 4 }
    }

    /// Decides on a new connection.
    ///
    /// A subnet at its limit replaces its own longest silent connection. While all slots are taken, the
    /// subnet with the most connections loses its longest silent one, unless the new connection's subnet
    /// already has as many.
    pub(super) fn admit(self, connections: &[Connection], subnet: Subnet) -> Admission {
        let mut counts: HashMap<Subnet, usize> = HashMap::new();
        for connection in connections {
            *counts.entry(connection.subnet).or_default() += 1;
        }
        let count = |subnet: Subnet| counts.get(&subnet).copied().unwrap_or_default();
        let own = count(subnet);
        let silent = || connections.iter().filter_map(|one| one.silent_since.map(|since| (one, since)));
        if own >= self.per_subnet {
            let longest = silent().filter(|(one, _)| one.subnet == subnet).min_by_key(|(_, since)| *since);
            return longest.map_or(Admission::Wait, |(one, _)| Admission::Replace(one.id));
        }
        if connections.len() < self.all {
            return Admission::Free;
        }
        let fair = silent().filter(|(one, _)| one.subnet == subnet || count(one.subnet) > own);
        let longest = fair.min_by_key(|(one, since)| (std::cmp::Reverse(count(one.subnet)), *since));
        longest.map_or(Admission::Wait, |(one, _)| Admission::Replace(one.id))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SLOTS: Slots = Slots { all: 8, per_subnet: 6 };

    fn subnet(number: u8) -> Subnet {
        Subnet::V4([10, 0, number])
    }

    /// Connections of subnets; the number after each is its seconds of silence, 0 if it is not silent.
    fn table(entries: &[(u8, u64)]) -> Vec<Connection> {
        let now = Instant::now() + Duration::from_secs(3600);
        let since = |seconds| (seconds > 0).then(|| now - Duration::from_secs(seconds));
        let connections = entries.iter().zip(0..);
        connections
            .map(|((from, silent), id)| Connection {
                id,
                subnet: subnet(*from),
                silent_since: since(*silent),
            })
            .collect()
    }

    #[test]
    fn sockets_take_half_of_the_files_that_the_program_may_open() {
        for (files, all, per_subnet) in [
            (None, 256, 192),
            (Some(1 << 20), 256, 192),
            (Some(1024), 170, 128),
            (Some(64), 10, 8),
            (Some(0), 4, 3),
        ] {
            let slots = Slots::new(files);
            assert_eq!((slots.all, slots.per_subnet), (all, per_subnet), "{files:?}");
        }
    }

    #[test]
    fn free_slots_go_to_anybody_below_their_share() {
        assert_eq!(SLOTS.admit(&[], subnet(1)), Admission::Free);
        assert_eq!(SLOTS.admit(&table(&[(1, 0); 5]), subnet(1)), Admission::Free);
        assert_eq!(SLOTS.admit(&table(&[(1, 0); 6]), subnet(2)), Admission::Free);
    }

    #[test]
    fn a_subnet_at_its_limit_gives_up_its_own_longest_silent_connection() {
        let mut entries = [(1, 0); 6];
        assert_eq!(SLOTS.admit(&table(&entries), subnet(1)), Admission::Wait, "all of them work");
        (entries[2], entries[4]) = ((1, 3), (1, 7));
        assert_eq!(SLOTS.admit(&table(&entries), subnet(1)), Admission::Replace(4));
        let others = [&entries[..], &[(2, 50), (3, 50)]].concat();
        assert_eq!(SLOTS.admit(&table(&others), subnet(1)), Admission::Replace(4), "never another's");
    }

    #[test]
    fn a_full_table_takes_from_the_subnet_with_the_most() {
        let entries = [(1, 2), (1, 9), (1, 0), (1, 4), (2, 99), (2, 99), (3, 99), (4, 0)];
        assert_eq!(SLOTS.admit(&table(&entries), subnet(5)), Admission::Replace(1));
        assert_eq!(SLOTS.admit(&table(&entries), subnet(4)), Admission::Replace(1));
        assert_eq!(SLOTS.admit(&table(&entries), subnet(1)), Admission::Replace(1));
        // The subnet with the most connections has no silent one: the next subnet loses one.
        let entries = [(1, 0), (1, 0), (1, 0), (1, 0), (2, 5), (2, 8), (3, 99), (4, 0)];
        assert_eq!(SLOTS.admit(&table(&entries), subnet(5)), Admission::Replace(5));
        assert_eq!(SLOTS.admit(&table(&entries), subnet(1)), Admission::Wait, "it has the most itself");
    }

    #[test]
    fn nobody_takes_from_a_subnet_that_has_no_more() {
        let entries = [1, 2, 3, 4, 5, 6, 7, 8].map(|number| (number, u64::from(number)));
        assert_eq!(SLOTS.admit(&table(&entries), subnet(9)), Admission::Replace(7));
        assert_eq!(SLOTS.admit(&table(&entries), subnet(3)), Admission::Replace(2), "its own");
        let working = entries.map(|(number, silent)| (number, if number == 3 { 0 } else { silent }));
        assert_eq!(SLOTS.admit(&table(&working), subnet(3)), Admission::Wait);
        assert_eq!(SLOTS.admit(&table(&[(1, 0); 8]), subnet(9)), Admission::Wait);
    }
}
