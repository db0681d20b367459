//! Who may connect at all: so many new connections a minute and so many open ones from one subnet, refused before the
//! handshake, which costs more than anything else that a stranger can make this process do; and peers that somebody
//! shut out for a while.
//!
//! Called by libp2p only; [`crate::MeshHandle::shut_out`] writes its list. It decides nothing about turns.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use libp2p::{
    Multiaddr, PeerId,
    core::{Endpoint, transport::PortUse},
    swarm::{
        ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent,
        THandlerOutEvent, ToSwarm, dummy,
    },
};
use tokio::time::Instant;

use crate::{
    limits::{MAX_SHUT_OUT, MeshLimits},
    origin::{Origin, Subnet},
    rate::Rates,
};

/// Why a connection was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Closed {
    #[error("too many new connections from its subnet")]
    Rate,
    #[error("too many connections from its subnet")]
    Count,
    #[error("the peer is shut out for a while")]
    ShutOut,
}

/// Peers that are shut out, and until when. Shared with the handles.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShutOut(Arc<Mutex<HashMap<PeerId, Instant>>>);

impl ShutOut {
    fn table(&self) -> MutexGuard<'_, HashMap<PeerId, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shuts a peer out. When the table is full of others, it is not: a fresh identity is free, so this is no wall.
    pub(crate) fn insert(&self, peer: PeerId, until: Instant) {
        let mut table = self.table();
        if table.len() >= MAX_SHUT_OUT {
            let now = Instant::now();
            table.retain(|_, until| *until > now);
        }
        if table.len() < MAX_SHUT_OUT || table.contains_key(&peer) {
            table.insert(peer, until);
        }
    }

    fn has(&self, peer: &PeerId, now: Instant) -> bool {
        self.table().get(peer).is_some_and(|until| *until > now)
    }
}

/// The behaviour.
pub(crate) struct Behaviour {
    count_private: bool,
    open_limit: u32,
    fresh: Rates<Subnet>,
    open: HashMap<Subnet, u32>,
    /// The counted connections.
    of: HashMap<ConnectionId, Subnet>,
    began: Instant,
    pub(crate) shut_out: ShutOut,
}

impl Behaviour {
    pub(crate) fn new(limits: &MeshLimits) -> Self {
        Self {
            count_private: limits.count_private,
            open_limit: limits.max_connections_per_subnet,
            fresh: Rates::new(limits.new_connections_per_minute),
            open: HashMap::new(),
            of: HashMap::new(),
            began: Instant::now(),
            shut_out: ShutOut::default(),
        }
    }

    fn counted(&self, local: &Multiaddr, remote: &Multiaddr) -> Option<Subnet> {
        let subnet = Origin::of(local, remote).subnet()?;
        (self.count_private || !subnet.is_private()).then_some(subnet)
    }

    fn admit(&mut self, subnet: Subnet, now: Instant) -> Result<(), Closed> {
        if self.open.get(&subnet).is_some_and(|open| *open >= self.open_limit) {
            return Err(Closed::Count);
        }
        let now_ms = u64::try_from((now - self.began).as_millis()).unwrap_or(u64::MAX);
        self.fresh.take(subnet, now_ms).map_err(|_| Closed::Rate)
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_pending_inbound_connection(
        &mut self,
        _: ConnectionId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        match self.counted(local, remote) {
            Some(subnet) => self.admit(subnet, Instant::now()).map_err(ConnectionDenied::new),
            None => Ok(()),
        }
    }

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        if self.shut_out.has(&peer, Instant::now()) {
            return Err(ConnectionDenied::new(Closed::ShutOut));
        }
        Ok(dummy::ConnectionHandler)
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        match event {
            FromSwarm::ConnectionEstablished(made) => {
                if let libp2p::core::ConnectedPoint::Listener { local_addr, send_back_addr } = made.endpoint
                    && let Some(subnet) = self.counted(local_addr, send_back_addr)
                {
                    *self.open.entry(subnet).or_default() += 1;
                    self.of.insert(made.connection_id, subnet);
                }
            }
            FromSwarm::ConnectionClosed(closed) => {
                let Some(subnet) = self.of.remove(&closed.connection_id) else { return };
                // Only subnets with connections keep an entry, so the limit of connections bounds the table.
                if let Some(open) = self.open.get_mut(&subnet) {
                    *open -= 1;
                    if *open == 0 {
                        self.open.remove(&subnet);
                    }
                }
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn behaviour(count_private: bool) -> Behaviour {
        let limits = MeshLimits {
            count_private,
            new_connections_per_minute: 3,
            max_connections_per_subnet: 2,
            ..MeshLimits::default()
        };
        Behaviour::new(&limits)
    }

    fn arrive(gate: &mut Behaviour, remote: &str) -> bool {
        let local = "/ip4/192.0.2.1/tcp/1".parse().unwrap();
        let id = ConnectionId::new_unchecked(1);
        gate.handle_pending_inbound_connection(id, &local, &remote.parse().unwrap()).is_ok()
    }

    #[test]
    fn a_subnet_that_connects_too_often_is_refused_before_the_handshake_and_others_are_not() {
        let mut gate = behaviour(false);
        for host in 1..=3 {
            assert!(arrive(&mut gate, &format!("/ip4/203.0.113.{host}/tcp/1")));
        }
        assert!(!arrive(&mut gate, "/ip4/203.0.113.4/tcp/1"), "the subnet had its share");
        assert!(arrive(&mut gate, "/ip4/203.0.114.4/tcp/1"));
        for _ in 0..10 {
            assert!(arrive(&mut gate, "/ip4/127.0.0.1/tcp/1"), "a private address is not counted");
        }
        let mut strict = behaviour(true);
        let admitted = (0..10).filter(|_| arrive(&mut strict, "/ip4/127.0.0.1/tcp/1")).count();
        assert_eq!(admitted, 3);
    }

    #[test]
    fn a_subnet_with_its_share_of_connections_open_gets_no_more() {
        let mut gate = behaviour(false);
        let subnet = Subnet::V4([203, 0, 113]);
        gate.open.insert(subnet, 2);
        assert_eq!(gate.admit(subnet, Instant::now()), Err(Closed::Count));
        gate.open.insert(subnet, 1);
        assert_eq!(gate.admit(subnet, Instant::now()), Ok(()));
    }

    #[test]
    fn a_peer_is_shut_out_for_its_time_and_the_table_is_bounded() {
        let (shut_out, now) = (ShutOut::default(), Instant::now());
        let peer = PeerId::random();
        shut_out.insert(peer, now + Duration::from_secs(60));
        assert!(shut_out.has(&peer, now) && !shut_out.has(&PeerId::random(), now));
        assert!(!shut_out.has(&peer, now + Duration::from_secs(61)));
        for _ in 0..MAX_SHUT_OUT + 10 {
            shut_out.insert(PeerId::random(), now + Duration::from_secs(60));
        }
        assert!(shut_out.table().len() <= MAX_SHUT_OUT);
    }
}
