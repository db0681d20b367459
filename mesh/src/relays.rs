//! The relays on which a mesh behind a router is reachable, and whether their limits fit a turn.
//!
//! Pure bookkeeping of the swarm task, which makes the reservations.

use std::{collections::HashMap, time::Duration};

use libp2p::{Multiaddr, PeerId, core::transport::ListenerId, multiaddr::Protocol};
use tokio::time::Instant;

use crate::{
    limits::{MIN_CIRCUIT_BYTES, MIN_CIRCUIT_TIME, RELAY_PAUSE, RELAY_TOO_SMALL_PAUSE, RELAYS_WANTED},
    transport::split_identity,
};

/// Relays that are remembered.
const MAX_KNOWN: usize = 256;

/// A relay's limits on one circuit; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CircuitLimits {
    /// Bytes.
    pub bytes: Option<u64>,
    /// Time.
    pub time: Option<Duration>,
}

impl CircuitLimits {
    /// Whether a turn of any size and a long answer fit.
    #[must_use]
    pub fn fit_a_turn(&self) -> bool {
        self.bytes.is_none_or(|bytes| bytes >= MIN_CIRCUIT_BYTES)
            && self.time.is_none_or(|time| time >= MIN_CIRCUIT_TIME)
    }
}

impl std::fmt::Display for CircuitLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.bytes {
            Some(bytes) => write!(f, "{} KiB", bytes / 1024)?,
            None => f.write_str("any number of bytes")?,
        }
        match self.time {
            Some(time) => write!(f, " and {} s", time.as_secs()),
            None => f.write_str(" for any time"),
        }
    }
}

/// A relay that this mesh reserves or tries to reserve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayInfo {
    /// The relay.
    pub relay: PeerId,
    /// Its limits, once it has granted the reservation.
    pub limits: Option<CircuitLimits>,
}

#[derive(Debug, Default)]
pub(crate) struct Relays {
    /// Configured relays, reserved in any case.
    fixed: Vec<(PeerId, Multiaddr)>,
    /// Connected peers that announce the relay protocol, with their addresses.
    offers: HashMap<PeerId, Multiaddr>,
    held: HashMap<ListenerId, RelayInfo>,
    paused: HashMap<PeerId, Instant>,
    /// The last limits of each relay, from our reservations and circuits.
    granted: HashMap<PeerId, CircuitLimits>,
}

impl Relays {
    pub(crate) fn new(fixed: Vec<Multiaddr>) -> Self {
        let named = |address| match split_identity(address) {
            (address, Some(peer)) => Some((peer, address)),
            _ => None,
        };
        Self { fixed: fixed.into_iter().filter_map(named).collect(), ..Self::default() }
    }

    /// A connected peer announces that it relays, at this address.
    pub(crate) fn offered(&mut self, relay: PeerId, address: Multiaddr) {
        if self.offers.len() < MAX_KNOWN || self.offers.contains_key(&relay) {
            self.offers.insert(relay, address);
        }
    }

    /// A peer no longer relays, or is gone.
    pub(crate) fn withdrawn(&mut self, relay: PeerId) {
        self.offers.remove(&relay);
    }

    /// The next circuit address to listen on, if any: that of a configured relay or, when `unreachable`, of
    /// an offered one picked by `random`.
    pub(crate) fn next(
        &mut self,
        unreachable: bool,
        now: Instant,
        random: u64,
    ) -> Option<(PeerId, Multiaddr)> {
        self.paused.retain(|_, until| *until > now);
        let free = |peer: &PeerId| {
            !self.paused.contains_key(peer) && self.held.values().all(|held| held.relay != *peer)
        };
        let fixed = self.fixed.iter().find(|(peer, _)| free(peer)).cloned();
        let found = fixed.or_else(|| {
            if !unreachable || self.held.len() >= RELAYS_WANTED {
                return None;
            }
            let mut offers: Vec<_> = self.offers.iter().filter(|(peer, _)| free(peer)).collect();
            offers.sort_by_key(|(peer, _)| **peer);
            let index = usize::try_from(random % offers.len().max(1) as u64).unwrap_or(0);
            offers.get(index).map(|(peer, address)| (**peer, (*address).clone()))
        });
        found.map(|(peer, address)| (peer, circuit_through(peer, address)))
    }

    /// Listening on a relay has begun.
    pub(crate) fn requested(&mut self, listener: ListenerId, relay: PeerId) {
        self.held.insert(listener, RelayInfo { relay, limits: None });
    }

    /// Listening on a relay failed or ended. Returns whether the listener was on a relay.
    pub(crate) fn ended(&mut self, listener: ListenerId, now: Instant) -> bool {
        let Some(held) = self.held.remove(&listener) else { return false };
        self.pause(held.relay, now + RELAY_PAUSE);
        true
    }

    pub(crate) fn pause(&mut self, relay: PeerId, until: Instant) {
        if self.paused.len() < MAX_KNOWN {
            let entry = self.paused.entry(relay).or_insert(until);
            *entry = until.max(*entry);
        }
    }

    /// A relay granted a reservation. Returns the listeners to close because its limits do not fit a turn.
    pub(crate) fn granted(&mut self, relay: PeerId, limits: CircuitLimits, now: Instant) -> Vec<ListenerId> {
        self.learned(relay, limits);
        let ours = self.held.iter_mut().filter(|(_, held)| held.relay == relay);
        let listeners: Vec<_> = ours
            .map(|(listener, held)| {
                held.limits = Some(limits);
                *listener
            })
            .collect();
        if limits.fit_a_turn() {
            return Vec::new();
        }
        self.pause(relay, now + RELAY_TOO_SMALL_PAUSE);
        listeners
    }

    /// Stores a relay's limits.
    pub(crate) fn learned(&mut self, relay: PeerId, limits: CircuitLimits) {
        if self.granted.len() < MAX_KNOWN || self.granted.contains_key(&relay) {
            self.granted.insert(relay, limits);
        }
    }

    /// A relay's limits; zero bytes if unknown.
    pub(crate) fn limits_of(&self, relay: &PeerId) -> CircuitLimits {
        self.granted.get(relay).copied().unwrap_or(CircuitLimits { bytes: Some(0), time: None })
    }

    pub(crate) fn list(&self) -> Vec<RelayInfo> {
        let mut list: Vec<_> = self.held.values().cloned().collect();
        list.sort_by_key(|held| held.relay);
        list
    }
}

/// Appends `/p2p/RELAY/p2p-circuit` to the relay's address.
fn circuit_through(relay: PeerId, address: Multiaddr) -> Multiaddr {
    address.with(Protocol::P2p(relay)).with(Protocol::P2pCircuit)
}

/// The relay in a circuit address.
pub(crate) fn relay_of(address: &Multiaddr) -> Option<PeerId> {
    let mut last = None;
    for part in address {
        match part {
            Protocol::P2p(peer) => last = Some(peer),
            Protocol::P2pCircuit => return last,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn addr(port: u16) -> Multiaddr {
        format!("/ip4/9.9.9.9/tcp/{port}").parse().unwrap()
    }

    fn fitting() -> CircuitLimits {
        CircuitLimits { bytes: Some(MIN_CIRCUIT_BYTES), time: Some(MIN_CIRCUIT_TIME) }
    }

    #[test]
    fn a_mesh_that_can_be_reached_asks_configured_relays_only() {
        let (fixed, offered, now) = (PeerId::random(), PeerId::random(), Instant::now());
        let mut relays = Relays::new(vec![addr(1).with(Protocol::P2p(fixed)), addr(2)]);
        relays.offered(offered, addr(3));
        let (peer, address) = relays.next(false, now, 0).unwrap();
        assert_eq!((peer, relay_of(&address)), (fixed, Some(fixed)));
        relays.requested(ListenerId::next(), fixed);
        assert_eq!(relays.next(false, now, 0), None);
        assert_eq!(relays.next(true, now, 0).unwrap().0, offered);
    }

    #[test]
    fn an_unreachable_mesh_holds_two_and_replaces_one_that_goes() {
        let now = Instant::now();
        let mut relays = Relays::default();
        (1..=4).for_each(|port| relays.offered(PeerId::random(), addr(port)));
        let mut listeners = Vec::new();
        while let Some((peer, _)) = relays.next(true, now, 7) {
            let listener = ListenerId::next();
            relays.requested(listener, peer);
            listeners.push((listener, peer));
        }
        assert_eq!(listeners.len(), RELAYS_WANTED);
        assert!(relays.ended(listeners[0].0, now));
        assert!(!relays.ended(listeners[0].0, now), "once");
        let next = relays.next(true, now, 7).unwrap().0;
        assert!(listeners.iter().all(|(_, peer)| *peer != next), "not the one that went, and none twice");
        let all: std::collections::HashSet<_> = (0..4)
            .filter_map(|random| relays.next(true, now + MINUTE, random))
            .map(|(peer, _)| peer)
            .collect();
        assert_eq!(all.len(), 3, "after a pause it may be asked again");
    }

    #[test]
    fn a_relay_that_lets_too_little_through_is_given_up() {
        let now = Instant::now();
        let small = CircuitLimits { bytes: Some(128 * 1024), time: Some(2 * MINUTE) };
        assert!(fitting().fit_a_turn() && CircuitLimits::default().fit_a_turn() && !small.fit_a_turn());
        assert_eq!(small.to_string(), "128 KiB and 120 s");
        let (relay, listener) = (PeerId::random(), ListenerId::next());
        let mut relays = Relays::default();
        relays.offered(relay, addr(1));
        assert!(!relays.limits_of(&relay).fit_a_turn(), "unknown limits are not trusted");
        relays.requested(listener, relay);
        assert_eq!(relays.granted(relay, small, now), vec![listener]);
        relays.ended(listener, now);
        assert_eq!(relays.next(true, now + MINUTE, 0), None, "nor asked again soon");
        assert!(relays.granted(relay, fitting(), now).is_empty());
        assert!(relays.limits_of(&relay).fit_a_turn());
    }
}
