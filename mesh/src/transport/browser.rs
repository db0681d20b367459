//! The transport of a browser: it dials WebSockets, and nodes by WebRTC where the browser has it. The browser resolves
//! names, has TLS, and decides which networks a page may reach.

use std::sync::Arc;

use libp2p::{
    Multiaddr, Transport as _,
    core::{
        muxing::StreamMuxerBox,
        transport::{OptionalTransport, timeout::TransportTimeout},
    },
    identity::Keypair,
    relay, websocket_websys,
};

use super::{Transport, is_for_browsers, secured};
use crate::{
    address_scope::DialScope, config::MeshConfig, error::MeshError, gate::SharedGate, limits::DIAL_TIMEOUT,
    stats::Counters, webrtc::PageTransport,
};

/// Whether this mesh dials an address.
pub(crate) fn can_dial(address: &Multiaddr, _: &DialScope) -> bool {
    is_for_browsers(address)
}

/// A page listens on nothing.
pub(crate) fn prepared(config: MeshConfig) -> Result<MeshConfig, MeshError> {
    Ok(config)
}

/// The transport.
pub(crate) fn transport(
    keypair: &Keypair,
    _: &MeshConfig,
    circuits: relay::client::Transport,
    _: &Arc<DialScope>,
    _: &SharedGate,
    _: &Arc<Counters>,
) -> Result<Transport, MeshError> {
    let circuits = secured(circuits, keypair)?;
    let websocket = secured(websocket_websys::Transport::default(), keypair)?;
    let webrtc = PageTransport::new(keypair);
    let webrtc = webrtc
        .map(|webrtc| webrtc.map(|(peer, connection), _| (peer, StreamMuxerBox::new(connection))).boxed());
    let webrtc = webrtc.map_or_else(OptionalTransport::none, OptionalTransport::some);
    let all = circuits.or_transport(websocket).map(|either, _| either.into_inner());
    let all = all.or_transport(webrtc).map(|either, _| either.into_inner());
    Ok(TransportTimeout::with_outgoing_timeout(all, DIAL_TIMEOUT).boxed())
}
