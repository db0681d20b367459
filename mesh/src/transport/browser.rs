//! The transport of a browser: it dials WebSockets. The browser resolves names, has TLS, and decides which networks
//! a page may reach.

use std::sync::Arc;

use libp2p::{
    Multiaddr, Transport as _, core::transport::timeout::TransportTimeout, identity::Keypair, relay,
    websocket_websys,
};

use super::{Transport, is_websocket, secured};
use crate::{
    address_scope::Reach, error::MeshError, gate::SharedGate, limits::DIAL_TIMEOUT, stats::Counters,
};

/// Whether this mesh dials an address.
pub(crate) fn can_dial(address: &Multiaddr) -> bool {
    is_websocket(address)
}

/// The transport.
pub(crate) fn transport(
    keypair: &Keypair,
    _: Reach,
    circuits: relay::client::Transport,
    _: &SharedGate,
    _: &Arc<Counters>,
) -> Result<Transport, MeshError> {
    let circuits = secured(circuits, keypair)?;
    let websocket = secured(websocket_websys::Transport::default(), keypair)?;
    let all = circuits.or_transport(websocket).map(|either, _| either.into_inner());
    Ok(TransportTimeout::with_outgoing_timeout(all, DIAL_TIMEOUT).boxed())
}
