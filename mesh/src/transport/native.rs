//! The transports of a system: TCP and QUIC with DNS names, and listeners on WebRTC and WebSocket.
//!
//! Those two are for browsers, and only accept: other programs have TCP and QUIC. WebRTC needs nothing else; a page from
//! HTTPS opens a WebSocket only with TLS, which is the work of a proxy before it.

use std::sync::Arc;

use libp2p::{
    Multiaddr, Transport as _,
    core::{
        muxing::StreamMuxerBox,
        transport::{OptionalTransport, timeout::TransportTimeout},
    },
    dns,
    identity::Keypair,
    multiaddr::Protocol,
    quic, relay, websocket,
};

use super::{Transport, gated::GatedTransport, is_for_browsers, scoped::ScopedTransport, secured};
use crate::{
    address_scope::DialScope,
    config::MeshConfig,
    error::MeshError,
    gate::SharedGate,
    limits::{
        DIAL_TIMEOUT, INBOUND_HANDSHAKE_TIMEOUT, MAX_NEGOTIATING_STREAMS, MAX_WEBSOCKET_MESSAGE_BYTES,
        QUIC_CONNECTION_WINDOW_BYTES, QUIC_SILENCE, QUIC_STREAM_WINDOW_BYTES,
    },
    stats::Counters,
    webrtc,
};

/// Whether this mesh dials an address: some are for browsers, and some are outside of its scope.
pub(crate) fn can_dial(address: &Multiaddr, scope: &DialScope) -> bool {
    !is_for_browsers(address) && scope.allows(address)
}

/// The configuration with a certificate, and its hash in the external addresses, if the mesh serves browsers by WebRTC.
pub(crate) fn prepared(mut config: MeshConfig) -> Result<MeshConfig, MeshError> {
    let is_webrtc = |address: &Multiaddr| address.iter().any(|part| part == Protocol::WebRTCDirect);
    if !config.listen.iter().any(is_webrtc) {
        config.webrtc_certificate = None;
        return Ok(config);
    }
    let certificate = match config.webrtc_certificate.take() {
        Some(certificate) => certificate,
        None => webrtc::Certificate::generate().map_err(|error| MeshError::Transport(error.to_string()))?,
    };
    for address in &mut config.external {
        if address.iter().last() == Some(Protocol::WebRTCDirect) {
            address.push(certificate.address_part());
        }
    }
    config.webrtc_certificate = Some(certificate);
    Ok(config)
}

/// The transport of every role.
///
/// DNS uses the system's resolver configuration. On a machine without one, addresses with names fail and all
/// others work. Relay circuits go first: the other transports would take their addresses for those of the
/// relays. WebSocket comes before TCP, which would take its names for its own.
pub(crate) fn transport(
    keypair: &Keypair,
    config: &MeshConfig,
    circuits: relay::client::Transport,
    scope: &Arc<DialScope>,
    gate: &SharedGate,
    counters: &Arc<Counters>,
) -> Result<Transport, MeshError> {
    let tcp = || GatedTransport::new(gate.clone(), counters.clone(), config.proxies.clone());
    let circuits =
        TransportTimeout::with_ingoing_timeout(secured(circuits, keypair)?, INBOUND_HANDSHAKE_TIMEOUT);
    let direct = match dns::tokio::Transport::system(direct_transport(tcp(), keypair)?) {
        Ok(transport) => transport.boxed(),
        Err(error) => {
            tracing::warn!(%error, "no usable resolver configuration: addresses with names will fail");
            direct_transport(tcp(), keypair)?.boxed()
        }
    };
    let direct = ScopedTransport::new(direct, Some(scope.clone()));
    let websocket = websocket_transport(tcp(), keypair)?;
    let webrtc = config.webrtc_certificate.clone();
    let webrtc =
        webrtc.map(|certificate| webrtc_transport(keypair, certificate, gate.clone(), counters.clone()));
    let webrtc = webrtc.map_or_else(OptionalTransport::none, OptionalTransport::some);
    let browsers = websocket.or_transport(webrtc).map(|either, _| either.into_inner());
    let all = circuits.or_transport(browsers).map(|either, _| either.into_inner()).or_transport(direct);
    Ok(all.map(|either, _| either.into_inner()).boxed())
}

fn webrtc_transport(
    keypair: &Keypair,
    certificate: webrtc::Certificate,
    gate: SharedGate,
    counters: Arc<Counters>,
) -> Transport {
    let admission = move |local: &Multiaddr, remote: &Multiaddr| match gate.check(local, remote) {
        Ok(()) => true,
        Err(refusal) => {
            counters.count(|stats| stats.inbound_refused.refused(refusal));
            tracing::debug!(error = %refusal, "inbound connection refused");
            false
        }
    };
    let webrtc = webrtc::WebRtcTransport::new(keypair.clone(), certificate, Arc::new(admission));
    let webrtc = webrtc.map(|(peer, connection), _| (peer, StreamMuxerBox::new(connection)));
    TransportTimeout::with_ingoing_timeout(webrtc, INBOUND_HANDSHAKE_TIMEOUT).boxed()
}

fn websocket_transport(tcp: GatedTransport, keypair: &Keypair) -> Result<Transport, MeshError> {
    let mut websocket = websocket::Config::new(tcp);
    websocket.set_max_data_size(MAX_WEBSOCKET_MESSAGE_BYTES);
    let websocket = ScopedTransport::new(secured(websocket, keypair)?, None);
    Ok(TransportTimeout::with_ingoing_timeout(websocket, INBOUND_HANDSHAKE_TIMEOUT).boxed())
}

fn direct_transport(
    tcp: GatedTransport,
    keypair: &Keypair,
) -> Result<TransportTimeout<TransportTimeout<Transport>>, MeshError> {
    let tcp = secured(tcp, keypair)?;

    let mut config = quic::Config::new(keypair);
    config.max_idle_timeout = u32::try_from(QUIC_SILENCE.as_millis()).unwrap_or(u32::MAX);
    config.keep_alive_interval = QUIC_SILENCE / 3;
    config.max_stream_data = QUIC_STREAM_WINDOW_BYTES;
    config.max_connection_data = QUIC_CONNECTION_WINDOW_BYTES;
    config.max_concurrent_stream_limit = u32::try_from(MAX_NEGOTIATING_STREAMS * 2).unwrap_or(u32::MAX);
    let quic = quic::tokio::Transport::new(config).map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));

    let direct = tcp.or_transport(quic).map(|either, _| either.into_inner()).boxed();
    let direct = TransportTimeout::with_ingoing_timeout(direct, INBOUND_HANDSHAKE_TIMEOUT);
    Ok(TransportTimeout::with_outgoing_timeout(direct, DIAL_TIMEOUT))
}
