//! TCP and WebSocket (Noise, Yamux) and QUIC with DNS names, and the check of listen addresses before use.
//!
//! WebSocket is for browsers, which can open nothing else to an address without a certificate, and only accepts: other
//! programs have TCP and QUIC. TLS is the work of a proxy before it.

use std::{
    error::Error,
    io,
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
    pin::Pin,
    task::{Context, Poll},
};

use libp2p::{
    Multiaddr, PeerId, Transport as _,
    core::{
        muxing::StreamMuxerBox,
        transport::{Boxed, DialOpts, ListenerId, TransportError, TransportEvent, timeout::TransportTimeout},
        upgrade::Version,
    },
    dns,
    identity::Keypair,
    multiaddr::Protocol,
    noise, quic, relay, tcp, websocket, yamux,
};

use crate::{
    address_scope::{Reach, ScopedTransport},
    error::MeshError,
    limits::{
        DIAL_TIMEOUT, INBOUND_HANDSHAKE_TIMEOUT, MAX_MUXED_STREAMS, MAX_NEGOTIATING_STREAMS,
        MAX_WEBSOCKET_MESSAGE_BYTES, QUIC_CONNECTION_WINDOW_BYTES, QUIC_SILENCE, QUIC_STREAM_WINDOW_BYTES,
    },
};

type Transport = Boxed<(PeerId, StreamMuxerBox)>;

/// The transport of every role.
///
/// DNS uses the system's resolver configuration. On a machine without one, addresses with names fail and all
/// others work. Relay circuits go first: the other transports would take their addresses for those of the
/// relays. WebSocket comes before TCP, which would take its names for its own.
pub(crate) fn transport(
    keypair: &Keypair,
    nearest: Reach,
    circuits: relay::client::Transport,
) -> Result<Transport, MeshError> {
    let (noise, yamux) = security(keypair)?;
    let circuits = circuits
        .upgrade(Version::V1Lazy)
        .authenticate(noise)
        .multiplex(yamux)
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    let circuits = TransportTimeout::with_ingoing_timeout(circuits, INBOUND_HANDSHAKE_TIMEOUT);
    let direct = match dns::tokio::Transport::system(direct_transport(keypair, nearest)?) {
        Ok(transport) => transport.boxed(),
        Err(error) => {
            tracing::warn!(%error, "no usable resolver configuration: addresses with names will fail");
            direct_transport(keypair, nearest)?.boxed()
        }
    };
    let websocket = websocket_transport(keypair)?;
    let all = circuits.or_transport(websocket).map(|either, _| either.into_inner()).or_transport(direct);
    Ok(all.map(|either, _| either.into_inner()).boxed())
}

fn websocket_transport(keypair: &Keypair) -> Result<Transport, MeshError> {
    let (noise, yamux) = security(keypair)?;
    let mut websocket = websocket::Config::new(tcp::tokio::Transport::new(tcp::Config::new().nodelay(true)));
    websocket.set_max_data_size(MAX_WEBSOCKET_MESSAGE_BYTES);
    let websocket = websocket
        .upgrade(Version::V1Lazy)
        .authenticate(noise)
        .multiplex(yamux)
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    Ok(TransportTimeout::with_ingoing_timeout(
        AcceptingTransport(websocket.boxed()),
        INBOUND_HANDSHAKE_TIMEOUT,
    )
    .boxed())
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

fn security(keypair: &Keypair) -> Result<(noise::Config, yamux::Config), MeshError> {
    let noise = noise::Config::new(keypair).map_err(|error| MeshError::Transport(error.to_string()))?;
    let mut yamux = yamux::Config::default();
    yamux.set_max_num_streams(MAX_MUXED_STREAMS);
    Ok((noise, yamux))
}

fn direct_transport(
    keypair: &Keypair,
    nearest: Reach,
) -> Result<TransportTimeout<TransportTimeout<ScopedTransport<Transport>>>, MeshError> {
    let (noise, yamux) = security(keypair)?;
    let tcp = tcp::tokio::Transport::new(tcp::Config::new().nodelay(true))
        .upgrade(Version::V1Lazy)
        .authenticate(noise)
        .multiplex(yamux)
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));

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

/// Checks that a configured address can be bound now.
///
/// libp2p binds TCP listeners with `SO_REUSEPORT`, so two processes of one user would silently share a port.
/// A plain bind detects that.
pub(crate) fn probe_listen(address: &Multiaddr) -> Result<(), MeshError> {
    let result = match socket_address(address) {
        Some((_, socket)) if socket.port() == 0 => Ok(()),
        // A plain bind of `::` would also claim IPv4; the listener does not.
        Some((_, socket)) if socket.ip().is_unspecified() && socket.is_ipv6() => Ok(()),
        Some((Socket::Tcp, socket)) => TcpListener::bind(socket).map(drop),
        Some((Socket::Udp, socket)) => UdpSocket::bind(socket).map(drop),
        None => Ok(()),
    };
    result.map_err(|error| listen_error(address, &error))
}

/// Turns a listen failure into an error with a hint for the operator.
pub(crate) fn listen_error(address: &Multiaddr, error: &(dyn Error + 'static)) -> MeshError {
    let (reason, kind) = root_cause(error);
    let hint = match kind {
        Some(io::ErrorKind::AddrInUse) => {
            "another process already listens there: stop it, or choose another port (0 lets the system choose)"
        }
        Some(io::ErrorKind::PermissionDenied) => "this user may not use the port: choose one above 1023",
        Some(io::ErrorKind::AddrNotAvailable) => {
            "this machine has no such address: use one of its own, or 0.0.0.0 for all"
        }
        _ => {
            "use the form /ip4/ADDRESS/tcp/PORT, /ip4/ADDRESS/udp/PORT/quic-v1, or for browsers /ip4/ADDRESS/tcp/PORT/ws"
        }
    };
    MeshError::Listen { address: address.clone(), reason, hint }
}

/// As [`listen_error`], for errors of the swarm's `listen_on`.
pub(crate) fn listen_on_error(address: &Multiaddr, error: &TransportError<io::Error>) -> MeshError {
    match error {
        TransportError::MultiaddrNotSupported(_) => {
            listen_error(address, &io::Error::other("this kind of address is not supported"))
        }
        TransportError::Other(error) => listen_error(address, error),
    }
}

/// The innermost I/O error: boxed transports wrap the system's error in several of kind `Other`.
fn root_cause(error: &(dyn Error + 'static)) -> (String, Option<io::ErrorKind>) {
    let (mut current, mut kind) = (error, None);
    loop {
        let inner = match current.downcast_ref::<io::Error>() {
            Some(io) => {
                kind = Some(io.kind());
                io.get_ref().map(|inner| inner as &(dyn Error + 'static))
            }
            None => current.source(),
        };
        match inner {
            Some(inner) => current = inner,
            None => return (current.to_string(), kind),
        }
    }
}

/// Whether an address is a WebSocket's, which programs other than browsers leave alone.
pub(crate) fn is_websocket(address: &Multiaddr) -> bool {
    address.iter().any(|part| matches!(part, Protocol::Ws(_) | Protocol::Wss(_)))
}

enum Socket {
    Tcp,
    Udp,
}

fn socket_address(address: &Multiaddr) -> Option<(Socket, SocketAddr)> {
    let mut parts = address.iter();
    let ip = match parts.next()? {
        Protocol::Ip4(ip) => IpAddr::V4(ip),
        Protocol::Ip6(ip) => IpAddr::V6(ip),
        _ => return None,
    };
    match parts.next()? {
        Protocol::Tcp(port) => Some((Socket::Tcp, SocketAddr::new(ip, port))),
        Protocol::Udp(port) => Some((Socket::Udp, SocketAddr::new(ip, port))),
        _ => None,
    }
}

/// Splits off a trailing `/p2p/` part, and returns the identity that it names.
pub(crate) fn split_identity(mut address: Multiaddr) -> (Multiaddr, Option<PeerId>) {
    match address.iter().last() {
        Some(Protocol::P2p(peer)) => {
            address.pop();
            (address, Some(peer))
        }
        _ => (address, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_system_error_below_its_wrappers() {
        let inner = io::Error::from(io::ErrorKind::AddrInUse);
        let wrapped = io::Error::other(io::Error::other(inner));
        assert_eq!(root_cause(&wrapped).1, Some(io::ErrorKind::AddrInUse));
    }

    #[test]
    fn splits_the_identity_off_an_address() {
        let peer = Keypair::generate_ed25519().public().to_peer_id();
        let bare: Multiaddr = "/ip4/127.0.0.1/tcp/1".parse().unwrap();
        let full = bare.clone().with(Protocol::P2p(peer));
        assert_eq!(split_identity(full), (bare.clone(), Some(peer)));
        assert_eq!(split_identity(bare.clone()), (bare, None));
    }
}
