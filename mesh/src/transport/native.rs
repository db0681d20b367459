//! The transports of a system: TCP and QUIC with DNS names, and listeners on WebSocket.
//!
//! WebSocket is for browsers, which can open nothing else to an address without a certificate, and only accepts:
//! other programs have TCP and QUIC. TLS is the work of a proxy before it.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use libp2p::{
    Multiaddr, Transport as _,
    core::{
        muxing::StreamMuxerBox,
        transport::{DialOpts, ListenerId, TransportError, TransportEvent, timeout::TransportTimeout},
    },
    dns,
    identity::Keypair,
    quic, relay, websocket,
};

use super::{Transport, gated::GatedTransport, is_websocket, scoped::ScopedTransport, secured};
use crate::{
    address_scope::Reach,
    error::MeshError,
    gate::SharedGate,
    limits::{
        DIAL_TIMEOUT, INBOUND_HANDSHAKE_TIMEOUT, MAX_NEGOTIATING_STREAMS, MAX_WEBSOCKET_MESSAGE_BYTES,
        QUIC_CONNECTION_WINDOW_BYTES, QUIC_SILENCE, QUIC_STREAM_WINDOW_BYTES,
    },
    stats::Counters,
};

/// Whether this mesh dials an address: a WebSocket is a browser's.
pub(crate) fn can_dial(address: &Multiaddr) -> bool {
    !is_websocket(address)
}

/// The transport of every role.
///
/// DNS uses the system's resolver configuration. On a machine without one, addresses with names fail and all
/// others work. Relay circuits go first: the other transports would take their addresses for those of the
/// relays. WebSocket comes before TCP, which would take its names for its own.
pub(crate) fn transport(
    keypair: &Keypair,
    nearest: Reach,
    circuits: relay::client::Transport,
    gate: &SharedGate,
    counters: &Arc<Counters>,
) -> Result<Transport, MeshError> {
    let tcp = || GatedTransport::new(gate.clone(), counters.clone());
    let circuits =
        TransportTimeout::with_ingoing_timeout(secured(circuits, keypair)?, INBOUND_HANDSHAKE_TIMEOUT);
    let direct = match dns::tokio::Transport::system(direct_transport(tcp(), keypair, nearest)?) {
        Ok(transport) => transport.boxed(),
        Err(error) => {
            tracing::warn!(%error, "no usable resolver configuration: addresses with names will fail");
            direct_transport(tcp(), keypair, nearest)?.boxed()
        }
    };
    let websocket = websocket_transport(tcp(), keypair)?;
    let all = circuits.or_transport(websocket).map(|either, _| either.into_inner()).or_transport(direct);
    Ok(all.map(|either, _| either.into_inner()).boxed())
}

fn websocket_transport(tcp: GatedTransport, keypair: &Keypair) -> Result<Transport, MeshError> {
    let mut websocket = websocket::Config::new(tcp);
    websocket.set_max_data_size(MAX_WEBSOCKET_MESSAGE_BYTES);
    let websocket = AcceptingTransport(secured(websocket, keypair)?);
    Ok(TransportTimeout::with_ingoing_timeout(websocket, INBOUND_HANDSHAKE_TIMEOUT).boxed())
}

/// A transport that accepts connections and dials none.
struct AcceptingTransport(Transport);

impl libp2p::Transport for AcceptingTransport {
    type Output = <Transport as libp2p::Transport>::Output;
    type Error = <Transport as libp2p::Transport>::Error;
    type ListenerUpgrade = <Transport as libp2p::Transport>::ListenerUpgrade;
    type Dial = <Transport as libp2p::Transport>::Dial;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<Self::Error>> {
        self.0.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.0.remove_listener(id)
    }

    fn dial(&mut self, address: Multiaddr, _: DialOpts) -> Result<Self::Dial, TransportError<Self::Error>> {
        Err(TransportError::MultiaddrNotSupported(address))
    }

    fn poll(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, Self::Error>> {
        Pin::new(&mut self.0).poll(context)
    }
}

fn direct_transport(
    tcp: GatedTransport,
    keypair: &Keypair,
    nearest: Reach,
) -> Result<TransportTimeout<TransportTimeout<ScopedTransport<Transport>>>, MeshError> {
    let tcp = secured(tcp, keypair)?;

    let mut config = quic::Config::new(keypair);
    config.max_idle_timeout = u32::try_from(QUIC_SILENCE.as_millis()).unwrap_or(u32::MAX);
    config.keep_alive_interval = QUIC_SILENCE / 3;
    config.max_stream_data = QUIC_STREAM_WINDOW_BYTES;
    config.max_connection_data = QUIC_CONNECTION_WINDOW_BYTES;
    config.max_concurrent_stream_limit = u32::try_from(MAX_NEGOTIATING_STREAMS * 2).unwrap_or(u32::MAX);
    let quic = quic::tokio::Transport::new(config).map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));

    let direct =
        ScopedTransport::new(tcp.or_transport(quic).map(|either, _| either.into_inner()).boxed(), nearest);
    let direct = TransportTimeout::with_ingoing_timeout(direct, INBOUND_HANDSHAKE_TIMEOUT);
    Ok(TransportTimeout::with_outgoing_timeout(direct, DIAL_TIMEOUT))
}
