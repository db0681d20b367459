//! Limits of inbound connections and streams. Connections are limited before the handshake, the most expensive operation
//! that an unknown peer can cause here.
//!
//! 1. Per subnet: new connections a minute, and open connections.
//! 2. All subnets: new connections a second.
//! 3. Handshakes in progress.
//! 4. Peers shut out for a while (checked after the handshake, when the identity is known).
//! 5. Streams, per subnet and in all.
//!
//! The TCP listeners [check](SharedGate::check) each connection first, and reset a refused one: a flood costs the
//! swarm nothing. [`GateBehaviour`] then admits the connection, and counts it. The gate decides nothing about turns.

mod behaviour;
mod connections;
mod streams;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use baton_limits::{Bucket, Buckets, Expiring, Networks, Rate, Shares, Subnet};
use libp2p::{Multiaddr, PeerId, swarm::ConnectionId};
use tokio::time::Instant;

use crate::{
    limits::{MeshLimits, TRUST_TIME_MS},
    origin::Origin,
};
pub(crate) use behaviour::{EvictionRequest, GateBehaviour};
use connections::Connections;
pub(crate) use streams::{StreamPermit, StreamRate};

/// Recent connections up to which a subnet still counts as quiet: one over each of a client's transports,
/// twice.
const FEW: u64 = 4;

/// When the swarm task's upkeep is this late, unknown subnets connect at half the rate; four times as late, at
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

/// The limits and what counts towards them. Times are milliseconds since the gate began.
struct Gate {
    own_networks: Networks,
    connections: Connections,
    fresh: Buckets<Subnet>,
    /// The least remaining quota of a subnet that counts as quiet.
    quiet_level: u64,
    all: Bucket,
    all_rate: Rate,
    /// Units of `all` that a connection from an unknown subnet costs; more while the swarm task is late.
    cost: u64,
    /// Subnets of which a turn was served lately.
    trusted: Expiring<Subnet>,
    crowded: bool,
    shut_out: Expiring<PeerId>,
    streams: Shares<Subnet>,
    /// The streams of each peer.
    busy: Shares<PeerId>,
}

/// A gate that the swarm, its listeners, its streams and the handles share.
#[derive(Clone)]
pub(crate) struct SharedGate {
    began: Instant,
    gate: Arc<Mutex<Gate>>,
}

impl SharedGate {
    pub(crate) fn new(limits: &MeshLimits) -> Self {
        Self { began: Instant::now(), gate: Arc::new(Mutex::new(Gate::new(limits))) }
    }

    fn lock(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether a new connection would be admitted now. Takes no quota.
    #[cfg_attr(target_family = "wasm", expect(dead_code, reason = "a page does not listen"))]
    pub(crate) fn check(&self, local: &Multiaddr, remote: &Multiaddr) -> Result<(), ConnectionRefusal> {
        let mut gate = self.lock();
        let subnet = Origin::of(local, remote).counted(&gate.own_networks);
        gate.check(subnet, self.now_ms()).map(drop)
    }

    /// Records that a turn of a subnet was served here, or that this mesh opens turns there: it is trusted for a while.
    pub(crate) fn trust(&self, subnet: Subnet) {
        self.lock().trust(subnet, self.now_ms());
    }

    /// Admits no connection of a peer for `span`.
    pub(crate) fn shut_out(&self, peer: PeerId, span: Duration) {
        let span_ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        self.lock().shut_out.insert(peer, self.now_ms().saturating_add(span_ms));
    }

    /// The number of peers that are shut out.
    pub(crate) fn shut_out_count(&self) -> u64 {
        self.lock().shut_out.count(self.now_ms()) as u64
    }

    /// Records how late the swarm task's upkeep ran.
    pub(crate) fn late_by(&self, late: Duration) {
        self.lock().late_by(late);
    }

    /// The idle peer to evict first, if any.
    pub(crate) fn eviction_candidate(&self) -> Option<(PeerId, ConnectionId)> {
        self.lock().eviction_candidate(self.now_ms())
    }
}

impl Gate {
    fn new(limits: &MeshLimits) -> Self {
        let at_once = u64::from(limits.new_connections_at_once.min(limits.new_connections_per_minute));
        let fresh = Rate::per_minute(limits.new_connections_per_minute.into()).in_bursts_of(at_once);
        Self {
            own_networks: limits.own_networks.clone(),
            connections: Connections::new(limits),
            fresh: Buckets::new(fresh),
            quiet_level: at_once.saturating_sub(FEW),
            all: Bucket::default(),
            all_rate: Rate::per_second(limits.new_connections_per_second.into()),
            cost: 1,
            trusted: Expiring::default(),
            crowded: false,
            shut_out: Expiring::default(),
            streams: Shares::new(limits.max_streams_in, limits.max_streams_per_subnet),
            busy: Shares::new(usize::MAX, usize::MAX),
        }
    }

    fn trust(&mut self, subnet: Subnet, now_ms: u64) {
        self.trusted.insert(subnet, now_ms.saturating_add(TRUST_TIME_MS));
    }

    fn is_trusted(&self, subnet: Option<Subnet>, now_ms: u64) -> bool {
        subnet.is_none_or(|subnet| self.trusted.has(&subnet, now_ms))
    }

    fn late_by(&mut self, late: Duration) {
        self.cost = match late {
            late if late >= 4 * LATE => 4,
            late if late >= LATE => 2,
            _ => 1,
        };
    }

    fn eviction_candidate(&self, now_ms: u64) -> Option<(PeerId, ConnectionId)> {
        let is_trusted = |subnet| self.is_trusted(subnet, now_ms);
        self.connections.eviction_candidate(now_ms, is_trusted, |peer| self.busy.of(peer) > 0)
    }

    /// The units of the rate of all subnets that a connection would cost now. Takes nothing.
    fn check(&mut self, subnet: Option<Subnet>, now_ms: u64) -> Result<u64, ConnectionRefusal> {
        let trusted = self.is_trusted(subnet, now_ms);
        self.crowded |= self.connections.is_crowded();
        self.connections.check_free(subnet, trusted)?;
        let Some(subnet) = subnet else { return Ok(0) };
        let own = self.fresh.left(&subnet, now_ms);
        if own == 0 {
            return Err(ConnectionRefusal::Rate);
        }
        // A refusal caused by other subnets costs no quota of this one. New subnets are quiet, and an
        // attacker may own many, so the last quarter is for trusted subnets.
        let all = self.all_rate.burst();
        let (reserve, cost) = match () {
            () if trusted => (0, 1),
            () if own >= self.quiet_level => (all / 4, self.cost),
            () => (all / 2, self.cost),
        };
        if self.all.left(&self.all_rate, now_ms) < reserve + cost {
            return Err(ConnectionRefusal::RateOfAll);
        }
        Ok(cost)
    }

    fn admit(&mut self, subnet: Option<Subnet>, now_ms: u64) -> Result<(), ConnectionRefusal> {
        let cost = self.check(subnet, now_ms)?;
        let Some(subnet) = subnet else { return Ok(()) };
        self.all.take(&self.all_rate, cost, now_ms).map_err(|_| ConnectionRefusal::RateOfAll)?;
        self.fresh.take(subnet, now_ms).map_err(|_| ConnectionRefusal::Rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> MeshLimits {
        MeshLimits { new_connections_per_minute: 3, max_connections_per_subnet: 2, ..MeshLimits::default() }
    }

    fn subnet(last: u8) -> Subnet {
        Subnet::V4([203, 0, last])
    }

    #[test]
    fn a_subnet_that_connects_too_often_is_refused_before_the_handshake() {
        let mut gate = Gate::new(&limits());
        let admitted = |gate: &mut Gate, subnet| (0..10).filter(|_| gate.admit(subnet, 0).is_ok()).count();
        assert_eq!(admitted(&mut gate, Some(subnet(113))), 3);
        assert_eq!(gate.admit(Some(subnet(113)), 19_999), Err(ConnectionRefusal::Rate));
        assert_eq!(gate.admit(Some(subnet(113)), 20_000), Ok(()));
        assert_eq!(admitted(&mut gate, Some(subnet(114))), 3);
        assert_eq!(admitted(&mut gate, None), 10, "a listed network is not counted");
    }

    #[test]
    fn a_subnet_with_its_share_of_connections_open_gets_no_more() {
        let mut gate = Gate::new(&limits());
        let [first, second] = [1, 2].map(ConnectionId::new_unchecked);
        for id in [first, second] {
            gate.connections.opened(id, PeerId::random(), Some(subnet(113)), 0);
        }
        assert_eq!(gate.admit(Some(subnet(113)), 0), Err(ConnectionRefusal::Count));
        gate.connections.ended(first);
        assert_eq!(gate.admit(Some(subnet(113)), 0), Ok(()));
    }

    /// The number of these subnets that are admitted.
    fn admitted(gate: &mut Gate, subnets: std::ops::Range<u8>, now_ms: u64) -> usize {
        subnets.filter(|last| gate.admit(Some(subnet(*last)), now_ms).is_ok()).count()
    }

    #[test]
    fn quiet_and_trusted_subnets_have_reserved_shares_of_the_connection_rate() {
        let limits = MeshLimits {
            new_connections_per_minute: 60,
            new_connections_per_second: 12,
            ..MeshLimits::default()
        };
        let mut gate = Gate::new(&limits);
        // Five subnets use up their quiet allowance and go on; from then on they share half of the rate.
        for step in 1..=20 {
            admitted(&mut gate, 0..5, 500 * step);
        }
        let now_ms = 11_000;
        let again: usize = (0..20).map(|_| admitted(&mut gate, 0..5, now_ms)).sum();
        assert_eq!(again, 6, "half of twelve");
        assert_eq!(gate.admit(Some(subnet(0)), now_ms), Err(ConnectionRefusal::RateOfAll));
        assert_eq!(admitted(&mut gate, 100..120, now_ms), 3, "a quarter, for fresh ones");
        assert_eq!(gate.admit(Some(subnet(200)), now_ms), Err(ConnectionRefusal::RateOfAll));
        gate.trust(subnet(200), now_ms);
        let trusted = (0..20).filter(|_| gate.admit(Some(subnet(200)), now_ms).is_ok()).count();
        assert_eq!(trusted, 3, "the last quarter, for a trusted subnet");
        let later_ms = now_ms + TRUST_TIME_MS;
        assert_eq!(admitted(&mut gate, 0..50, later_ms), 9, "the last quarter stays reserved");
        let expired = gate.admit(Some(subnet(200)), later_ms);
        assert_eq!(expired, Err(ConnectionRefusal::RateOfAll), "its trust has expired");
    }

    #[test]
    fn a_late_swarm_task_admits_fewer_unknown_subnets_and_as_many_trusted_ones() {
        let limits = MeshLimits { new_connections_per_second: 16, ..MeshLimits::default() };
        for (late_ms, unknown) in [(0, 12), (300, 6), (2000, 3)] {
            let mut gate = Gate::new(&limits);
            gate.late_by(Duration::from_millis(late_ms));
            gate.trust(subnet(200), 0);
            assert_eq!(admitted(&mut gate, 0..50, 0), unknown, "{late_ms} ms late");
            let trusted = (0..20).filter(|_| gate.admit(Some(subnet(200)), 0).is_ok()).count();
            assert_eq!(trusted, 4);
        }
    }

    #[test]
    fn a_hundred_thousand_subnets_leave_small_tables() {
        let mut gate = Gate::new(&MeshLimits::default());
        for number in 0..100_000u32 {
            let [_, a, b, c] = number.to_be_bytes();
            let _ = gate.admit(Some(Subnet::V4([100 + a, b, c])), number.into());
            gate.trust(Subnet::V4([100 + a, b, c]), number.into());
        }
        assert!(gate.fresh.in_use(0).count() <= baton_limits::MAX_KEYS);
        assert!(gate.trusted.count(0) <= baton_limits::MAX_KEYS);
        assert!(gate.connections.is_empty(), "only open connections are kept");
    }
}
