//! Connection limits, enforced before the handshake, the most expensive operation that an unknown peer can
//! cause here.
//!
//! 1. Per subnet: new connections a minute, and open connections.
//! 2. All subnets: new connections a second.
//! 3. Handshakes in progress.
//! 4. Peers shut out for a while (checked after the handshake, when the identity is known).
//!
//! The TCP listeners [check](SharedGate::check) each connection first, and reset a refused one: a flood costs the
//! swarm nothing. [`GateBehaviour`] then admits the connection, and counts it. The swarm task reports served peers, and
//! [`crate::MeshHandle::shut_out`] writes one of the lists. The gate decides nothing about turns.

mod behaviour;
mod slots;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use libp2p::{Multiaddr, PeerId, swarm::ConnectionId};
use tokio::time::Instant;

use crate::{
    expiring_peers::ExpiringPeers,
    limits::{KNOWN_TIME, MAX_TRUSTED_SUBNETS, MeshLimits, TRUST_TIME},
    rate::Rates,
    subnet::{Networks, Origin, Subnet},
};
pub(crate) use behaviour::{EvictionRequest, GateBehaviour};
use slots::ConnectionSlots;

/// Recent connections up to which a subnet still counts as quiet: one over each of a client's transports,
/// twice.
const FEW: u64 = 4;

/// When the swarm task's upkeep is this late, unknown peers connect at half the rate; four times as late, at
/// a quarter.
const LATE: Duration = Duration::from_millis(250);

/// Why a connection was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConnectionRefusal {
    #[error("too many new connections from its subnet")]
    Rate,
    #[error("too many connections from its subnet")]
    Count,
    #[error("too many unfinished handshakes from its subnet")]
    Pending,
    #[error("too many new connections from everywhere")]
    RateOfAll,
    #[error("too many connections from everywhere")]
    Full,
    #[error("the peer is shut out for a while")]
    ShutOut,
}

/// The limits and what counts towards them.
struct Gate {
    own_networks: Networks,
    slots: ConnectionSlots,
    fresh: Rates<Subnet>,
    /// The least remaining quota of a subnet that counts as quiet.
    quiet_level: u64,
    all: Rates<()>,
    /// The part of `all` reserved for quiet subnets, and the part of that for trusted subnets.
    reserve: u64,
    best_reserve: u64,
    /// Units of `all` that a connection from an untrusted subnet costs; more while the swarm task is late.
    cost: u64,
    began: Instant,
    /// Trusted subnets, from which a known peer connected, with the time at which the trust ends.
    trusted_until: HashMap<Subnet, Instant>,
    crowded: bool,
    shut_out: ExpiringPeers,
    /// Peers that this mesh has dealt with lately.
    known: ExpiringPeers,
}

/// A gate that the swarm and its listeners share.
#[derive(Clone)]
pub(crate) struct SharedGate(Arc<Mutex<Gate>>);

impl SharedGate {
    fn lock(&self) -> MutexGuard<'_, Gate> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a new connection would be admitted now. Takes no quota.
    #[cfg_attr(target_family = "wasm", expect(dead_code, reason = "a page does not listen"))]
    pub(crate) fn check(&self, local: &Multiaddr, remote: &Multiaddr) -> Result<(), ConnectionRefusal> {
        let mut gate = self.lock();
        let subnet = gate.counted(local, remote);
        gate.check(subnet, Instant::now()).map(drop)
    }
}

impl Gate {
    fn new(limits: &MeshLimits) -> Self {
        let at_once = u64::from(limits.new_connections_at_once);
        Self {
            own_networks: limits.own_networks.clone(),
            slots: ConnectionSlots::new(limits),
            fresh: Rates::new(limits.new_connections_per_minute).in_bursts_of(at_once),
            quiet_level: at_once.min(limits.new_connections_per_minute.into()).saturating_sub(FEW),
            all: Rates::per(limits.new_connections_per_second.into(), 1000),
            reserve: u64::from(limits.new_connections_per_second / 2),
            best_reserve: u64::from(limits.new_connections_per_second / 4),
            cost: 1,
            began: Instant::now(),
            trusted_until: HashMap::new(),
            crowded: false,
            shut_out: ExpiringPeers::default(),
            known: ExpiringPeers::default(),
        }
    }

    fn served(&mut self, peer: PeerId, now: Instant) {
        self.known.insert(peer, now + KNOWN_TIME);
        let subnets: Vec<_> = self.slots.subnets_of(peer).collect();
        for subnet in subnets {
            self.trust(subnet, now);
        }
    }

    fn trust(&mut self, subnet: Subnet, now: Instant) {
        if self.trusted_until.len() >= MAX_TRUSTED_SUBNETS {
            self.trusted_until.retain(|_, until| *until > now);
        }
        if self.trusted_until.len() < MAX_TRUSTED_SUBNETS || self.trusted_until.contains_key(&subnet) {
            self.trusted_until.insert(subnet, now + TRUST_TIME);
        }
    }

    fn late_by(&mut self, late: Duration) {
        self.cost = match late {
            late if late >= 4 * LATE => 4,
            late if late >= LATE => 2,
            _ => 1,
        };
    }

    fn eviction_candidate(
        &mut self,
        now: Instant,
        busy: impl Fn(&PeerId) -> bool,
    ) -> Option<(PeerId, ConnectionId)> {
        self.slots.eviction_candidate(now, |peer| busy(peer) || self.known.has(peer, now))
    }

    /// The subnet that counts a connection; `None` for the operator's own networks.
    fn counted(&self, local: &Multiaddr, remote: &Multiaddr) -> Option<Subnet> {
        Origin::of(local, remote).counted(&self.own_networks)
    }

    /// The units of the rate of all subnets that a connection would cost now. Takes nothing.
    fn check(&mut self, subnet: Option<Subnet>, now: Instant) -> Result<u64, ConnectionRefusal> {
        let trusted =
            subnet.is_none_or(|subnet| self.trusted_until.get(&subnet).is_some_and(|until| *until > now));
        self.crowded |= self.slots.is_crowded();
        self.slots.check_free(subnet, trusted)?;
        let Some(subnet) = subnet else { return Ok(0) };
        let now_ms = self.elapsed_ms(now);
        let own = self.fresh.left(&subnet, now_ms);
        if own == 0 {
            return Err(ConnectionRefusal::Rate);
        }
        // A refusal caused by other subnets costs no quota of this one. New subnets are quiet, and an
        // attacker may own many, so the last slots are for trusted subnets.
        let (reserve, cost) = match () {
            () if trusted => (0, 1),
            () if own >= self.quiet_level => (self.best_reserve, self.cost),
            () => (self.reserve, self.cost),
        };
        if self.all.left(&(), now_ms) < reserve + cost {
            return Err(ConnectionRefusal::RateOfAll);
        }
        Ok(cost)
    }

    fn admit(&mut self, subnet: Option<Subnet>, now: Instant) -> Result<(), ConnectionRefusal> {
        let cost = self.check(subnet, now)?;
        let Some(subnet) = subnet else { return Ok(()) };
        let now_ms = self.elapsed_ms(now);
        self.all.take_many((), cost, now_ms).map_err(|_| ConnectionRefusal::RateOfAll)?;
        self.fresh.take(subnet, now_ms).map_err(|_| ConnectionRefusal::Rate)
    }

    fn elapsed_ms(&self, now: Instant) -> u64 {
        u64::try_from((now - self.began).as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> MeshLimits {
        MeshLimits { new_connections_per_minute: 3, max_connections_per_subnet: 2, ..MeshLimits::default() }
    }

    fn behaviour() -> Gate {
        Gate::new(&limits())
    }

    fn arrive(gate: &mut Gate, remote: &str) -> bool {
        let local = "/ip4/192.0.2.1/tcp/1".parse().unwrap();
        let id = ConnectionId::new_unchecked(1);
        let subnet = gate.counted(&local, &remote.parse().unwrap());
        let admitted = gate.admit(subnet, Instant::now()).is_ok();
        gate.slots.begun(id, subnet);
        gate.slots.settled(id);
        admitted
    }

    fn subnet(last: u8) -> Subnet {
        Subnet::V4([203, 0, last])
    }

    #[test]
    fn a_subnet_that_connects_too_often_is_refused_before_the_handshake() {
        let mut gate = behaviour();
        for host in 1..=3 {
            assert!(arrive(&mut gate, &format!("/ip4/203.0.113.{host}/tcp/1")));
        }
        assert!(!arrive(&mut gate, "/ip4/203.0.113.4/tcp/1"), "the subnet had its share");
        assert!(arrive(&mut gate, "/ip4/203.0.114.4/tcp/1"));
        let admitted =
            (1..10).filter(|host| arrive(&mut gate, &format!("/ip4/127.0.{host}.1/tcp/1"))).count();
        assert_eq!(admitted, 3, "all of loopback is one subnet");
        let mut own = Gate::new(&MeshLimits { own_networks: Networks::loopback(), ..limits() });
        for _ in 0..10 {
            assert!(arrive(&mut own, "/ip4/127.0.0.1/tcp/1"), "a listed network is not counted");
        }
        assert!(gate.slots.is_empty() && own.slots.is_empty());
    }

    #[test]
    fn a_subnet_with_its_share_of_connections_open_gets_no_more() {
        let mut gate = behaviour();
        let [first, second] = [1, 2].map(ConnectionId::new_unchecked);
        for id in [first, second] {
            gate.slots.opened(id, PeerId::random(), Some(subnet(113)), gate.began);
        }
        assert_eq!(gate.admit(Some(subnet(113)), gate.began), Err(ConnectionRefusal::Count));
        gate.slots.ended(first);
        assert_eq!(gate.admit(Some(subnet(113)), gate.began), Ok(()));
    }

    /// The number of these subnets that are admitted.
    fn admitted(gate: &mut Gate, subnets: std::ops::Range<u8>, now: Instant) -> usize {
        subnets.filter(|last| gate.admit(Some(subnet(*last)), now).is_ok()).count()
    }

    #[test]
    fn quiet_and_trusted_subnets_have_reserved_shares_of_the_connection_rate() {
        let limits = MeshLimits {
            new_connections_per_minute: 60,
            new_connections_per_second: 12,
            ..MeshLimits::default()
        };
        let mut gate = Gate::new(&limits);
        let mut now = gate.began;
        // Five subnets use up their quiet allowance and go on; from then on they share half of the rate.
        for _ in 0..20 {
            now += Duration::from_millis(500);
            admitted(&mut gate, 0..5, now);
        }
        now += Duration::from_secs(1);
        let again: usize = (0..20).map(|_| admitted(&mut gate, 0..5, now)).sum();
        assert_eq!(again, 6, "half of twelve");
        assert_eq!(gate.admit(Some(subnet(0)), now), Err(ConnectionRefusal::RateOfAll));
        assert_eq!(admitted(&mut gate, 100..120, now), 3, "a quarter, for fresh ones");
        assert_eq!(gate.admit(Some(subnet(200)), now), Err(ConnectionRefusal::RateOfAll));
        gate.trust(subnet(200), now);
        let known = (0..20).filter(|_| gate.admit(Some(subnet(200)), now).is_ok()).count();
        assert_eq!(known, 3, "the last quarter, for a trusted subnet");
        let later = now + TRUST_TIME;
        assert_eq!(admitted(&mut gate, 0..50, later), 9, "the last quarter stays reserved");
        assert_eq!(
            gate.admit(Some(subnet(200)), later),
            Err(ConnectionRefusal::RateOfAll),
            "its trust has expired"
        );
    }

    #[test]
    fn a_late_swarm_task_admits_fewer_unknown_peers_and_as_many_of_trusted_subnets() {
        let limits = MeshLimits { new_connections_per_second: 16, ..MeshLimits::default() };
        for (late_ms, unknown) in [(0, 12), (300, 6), (2000, 3)] {
            let mut gate = Gate::new(&limits);
            gate.late_by(Duration::from_millis(late_ms));
            gate.trust(subnet(200), gate.began);
            let now = gate.began;
            assert_eq!(admitted(&mut gate, 0..50, now), unknown, "{late_ms} ms late");
            let known = (0..20).filter(|_| gate.admit(Some(subnet(200)), now).is_ok()).count();
            assert_eq!(known, 4);
        }
    }

    #[test]
    fn a_served_peers_subnet_is_trusted_for_a_while() {
        let mut gate = behaviour();
        let (peer, now) = (PeerId::random(), gate.began);
        gate.slots.opened(ConnectionId::new_unchecked(1), peer, Some(subnet(1)), now);
        gate.served(peer, now);
        assert!(gate.trusted_until.contains_key(&subnet(1)) && gate.known.has(&peer, now));
        let (unknown, soon) = (PeerId::random(), now + Duration::from_secs(60));
        gate.slots.opened(ConnectionId::new_unchecked(2), unknown, Some(subnet(2)), now);
        let first = gate.eviction_candidate(soon, |_| false);
        assert_eq!(first.map(|(peer, _)| peer), Some(unknown), "never the known one");
        assert_eq!(gate.eviction_candidate(soon, |_| true), None);
        for number in 0..MAX_TRUSTED_SUBNETS + 10 {
            let [.., b, c] = number.to_be_bytes();
            gate.trust(Subnet::V4([100, b, c]), now);
        }
        assert!(
            gate.trusted_until.len() <= MAX_TRUSTED_SUBNETS && gate.trusted_until.contains_key(&subnet(1))
        );
    }

    #[test]
    fn a_hundred_thousand_subnets_leave_small_tables() {
        let mut gate = Gate::new(&MeshLimits::default());
        for number in 0..100_000u32 {
            let [_, a, b, c] = number.to_be_bytes();
            let now = gate.began + Duration::from_millis(number.into());
            let _ = gate.admit(Some(Subnet::V4([100 + a, b, c])), now);
        }
        assert!(gate.fresh.len() <= crate::rate::MAX_RATE_ENTRIES, "{}", gate.fresh.len());
        assert!(gate.slots.is_empty(), "only open connections have a slot");
    }
}
