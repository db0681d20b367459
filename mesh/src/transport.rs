//! The transports, each with Noise and Yamux, and the check of listen addresses before use.

#[cfg(target_family = "wasm")]
mod browser;
#[cfg(not(target_family = "wasm"))]
mod gated;
#[cfg(not(target_family = "wasm"))]
mod native;
#[cfg(not(target_family = "wasm"))]
mod proxy_header;
#[cfg(not(target_family = "wasm"))]
mod scoped;

use std::{
    error::Error,
    io,
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
};

#[cfg(target_family = "wasm")]
pub(crate) use browser::{can_dial, prepared, transport};
use futures::{AsyncRead, AsyncWrite};
use libp2p::{
    Multiaddr, PeerId, Transport as _,
    core::{
        muxing::StreamMuxerBox,
        transport::{Boxed, TransportError},
        upgrade::Version,
    },
    identity::Keypair,
    multiaddr::Protocol,
    noise, yamux,
};
#[cfg(not(target_family = "wasm"))]
pub(crate) use native::{can_dial, prepared, transport};

use crate::{error::MeshError, limits::MAX_MUXED_STREAMS};

type Transport = Boxed<(PeerId, StreamMuxerBox)>;

/// Puts Noise and Yamux on a transport of bytes.
fn secured<T>(bytes: T, keypair: &Keypair) -> Result<Transport, MeshError>
where
    T: libp2p::Transport + Send + Unpin + 'static,
    T::Output: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    T::Error: Send + Sync + 'static,
    T::Dial: Send + 'static,
    T::ListenerUpgrade: Send + 'static,
{
    let noise = noise::Config::new(keypair).map_err(|error| MeshError::Transport(error.to_string()))?;
    let mut yamux = yamux::Config::default();
    yamux.set_max_num_streams(MAX_MUXED_STREAMS);
    let upgraded = bytes.upgrade(Version::V1Lazy).authenticate(noise).multiplex(yamux);
    Ok(upgraded.map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer))).boxed())
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
            "use the form /ip4/ADDRESS/tcp/PORT, /ip4/ADDRESS/udp/PORT/quic-v1, or for browsers /ip4/ADDRESS/udp/PORT/webrtc-direct or /ip4/ADDRESS/tcp/PORT/ws"
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

/// Whether an address is a WebSocket's or one of WebRTC, which programs other than browsers leave alone.
pub(crate) fn is_for_browsers(address: &Multiaddr) -> bool {
    address.iter().any(|part| matches!(part, Protocol::Ws(_) | Protocol::Wss(_) | Protocol::WebRTCDirect))
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
