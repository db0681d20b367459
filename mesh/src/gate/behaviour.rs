//! The gate as libp2p calls it.

use std::task::{Context, Poll};

use libp2p::{
    Multiaddr, PeerId,
    core::{ConnectedPoint, Endpoint, transport::PortUse},
    swarm::{
        ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent,
        THandlerOutEvent, ToSwarm, dummy,
    },
};

use super::{ConnectionRefusal, SharedGate};
use crate::{limits::MeshLimits, origin::Origin};

/// Few slots are left; the swarm task should [free one](SharedGate::eviction_candidate).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EvictionRequest;

/// The gate's behaviour.
pub(crate) struct GateBehaviour(SharedGate);

impl GateBehaviour {
    pub(crate) fn new(limits: &MeshLimits) -> Self {
        Self(SharedGate::new(limits))
    }

    /// The same gate, for all others.
    pub(crate) fn shared(&self) -> SharedGate {
        self.0.clone()
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
        let subnet = Origin::of(local, remote).counted(&gate.own_networks);
        gate.admit(subnet, self.0.now_ms()).map_err(ConnectionDenied::new)?;
        gate.connections.begun(id, subnet);
        Ok(())
    }

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        if self.0.lock().shut_out.has(&peer, self.0.now_ms()) {
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
                    let subnet = Origin::of(local_addr, send_back_addr).counted(&gate.own_networks);
                    gate.connections.settled(made.connection_id);
                    gate.connections.opened(made.connection_id, made.peer_id, subnet, self.0.now_ms());
                }
            }
            // libp2p reports every inbound connection that was not established, whichever behaviour refused
            // it.
            FromSwarm::ListenFailure(failed) => gate.connections.settled(failed.connection_id),
            FromSwarm::ConnectionClosed(closed) => gate.connections.ended(closed.connection_id),
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
