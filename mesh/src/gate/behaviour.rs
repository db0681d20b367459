//! The gate as libp2p calls it.

use std::{
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use libp2p::{
    Multiaddr, PeerId,
    core::{ConnectedPoint, Endpoint, transport::PortUse},
    swarm::{
        ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent,
        THandlerOutEvent, ToSwarm, dummy,
    },
};
use tokio::time::Instant;

use super::{ConnectionRefusal, Gate, SharedGate};
use crate::{expiring_peers::ExpiringPeers, limits::MeshLimits};

/// Few slots are left; the swarm task should [free one](GateBehaviour::eviction_candidate).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EvictionRequest;

/// The gate's behaviour.
pub(crate) struct GateBehaviour(SharedGate);

impl GateBehaviour {
    pub(crate) fn new(limits: &MeshLimits) -> Self {
        Self(SharedGate(Arc::new(Mutex::new(Gate::new(limits)))))
    }

    /// The same gate, for the listeners.
    pub(crate) fn shared(&self) -> SharedGate {
        self.0.clone()
    }

    /// Peers that are shut out for a while.
    pub(crate) fn shut_out(&self) -> ExpiringPeers {
        self.0.lock().shut_out.clone()
    }

    /// Peers that this mesh has dealt with lately.
    pub(crate) fn known(&self) -> ExpiringPeers {
        self.0.lock().known.clone()
    }

    /// Records that this mesh served a peer or was served by it: the peer is known and its subnets are
    /// trusted for a while.
    pub(crate) fn served(&mut self, peer: PeerId, now: Instant) {
        self.0.lock().served(peer, now);
    }

    /// Records how late the swarm task's upkeep ran.
    pub(crate) fn late_by(&mut self, late: Duration) {
        self.0.lock().late_by(late);
    }

    /// The idle unknown peer to evict first, if any; `busy` tells whether a peer has open streams.
    pub(crate) fn eviction_candidate(
        &mut self,
        now: Instant,
        busy: impl Fn(&PeerId) -> bool,
    ) -> Option<(PeerId, ConnectionId)> {
        self.0.lock().eviction_candidate(now, busy)
    }
}

impl NetworkBehaviour for GateBehaviour {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = EvictionRequest;

    fn handle_pending_inbound_connection(
        &mut self,
        id: ConnectionId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        let mut gate = self.0.lock();
        let subnet = gate.counted(local, remote);
        gate.admit(subnet, Instant::now()).map_err(ConnectionDenied::new)?;
        gate.slots.begun(id, subnet);
        Ok(())
    }

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        if self.0.lock().shut_out.has(&peer, Instant::now()) {
            return Err(ConnectionDenied::new(ConnectionRefusal::ShutOut));
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
        let mut gate = self.0.lock();
        match event {
            FromSwarm::ConnectionEstablished(made) => {
                if let ConnectedPoint::Listener { local_addr, send_back_addr } = made.endpoint {
                    let (subnet, now) = (gate.counted(local_addr, send_back_addr), Instant::now());
                    gate.slots.settled(made.connection_id);
                    gate.slots.opened(made.connection_id, made.peer_id, subnet, now);
                    if let Some(subnet) = subnet.filter(|_| gate.known.has(&made.peer_id, now)) {
                        gate.trust(subnet, now);
                    }
                }
            }
            // libp2p reports every inbound connection that was not established, whichever behaviour refused
            // it.
            FromSwarm::ListenFailure(failed) => gate.slots.settled(failed.connection_id),
            FromSwarm::ConnectionClosed(closed) => {
                let now = Instant::now();
                if let Some((peer, Some(subnet))) = gate.slots.ended(closed.connection_id)
                    && gate.known.has(&peer, now)
                {
                    gate.trust(subnet, now);
                }
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        // The swarm polls its behaviours after each connection attempt, and after each round of refusals.
        if std::mem::take(&mut self.0.lock().crowded) {
            return Poll::Ready(ToSwarm::GenerateEvent(EvictionRequest));
        }
        Poll::Pending
    }
}
