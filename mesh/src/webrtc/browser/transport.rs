//! The transport of a page: it dials, and listens on nothing.

use std::{
    net::{IpAddr, SocketAddr},
    pin::Pin,
    task::{Context, Poll},
};

use futures::{FutureExt as _, future::BoxFuture};
use libp2p::{
    Multiaddr, PeerId,
    core::transport::{DialOpts, ListenerId, TransportError, TransportEvent},
    identity::Keypair,
};
use libp2p_webrtc_utils::{Fingerprint, noise, parse_webrtc_dial_addr};
use send_wrapper::SendWrapper;

use super::{connection::PageConnection, peer::Peer};
use crate::webrtc::{error::ConnectionError, substream::Substream};

/// A libp2p transport that dials nodes by WebRTC-direct.
#[derive(Debug)]
pub(crate) struct PageTransport {
    identity: Keypair,
}

impl PageTransport {
    /// A transport that proves `identity` to nodes; `None` where there is no WebRTC, as in a worker.
    #[must_use]
    pub(crate) fn new(identity: &Keypair) -> Option<Self> {
        let has_webrtc = js_sys::Reflect::has(&js_sys::global(), &"RTCPeerConnection".into());
        has_webrtc.unwrap_or(false).then(|| Self { identity: identity.clone() })
    }
}

impl libp2p::Transport for PageTransport {
    type Output = (PeerId, PageConnection);
    type Error = ConnectionError;
    type ListenerUpgrade = BoxFuture<'static, Result<Self::Output, Self::Error>>;
    type Dial = BoxFuture<'static, Result<Self::Output, Self::Error>>;

    fn listen_on(&mut self, _: ListenerId, address: Multiaddr) -> Result<(), TransportError<Self::Error>> {
        Err(TransportError::MultiaddrNotSupported(address))
    }

    fn remove_listener(&mut self, _: ListenerId) -> bool {
        false
    }

    fn dial(
        &mut self,
        address: Multiaddr,
        options: DialOpts,
    ) -> Result<Self::Dial, TransportError<Self::Error>> {
        let target = parse_webrtc_dial_addr(&address).filter(|(node, _)| can_be_dialled(*node));
        match target {
            Some((node, certificate)) if options.role.is_dialer() => {
                Ok(SendWrapper::new(connect(node, certificate, self.identity.clone())).boxed())
            }
            _ => Err(TransportError::MultiaddrNotSupported(address)),
        }
    }

    fn poll(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, Self::Error>> {
        Poll::Pending
    }
}

fn can_be_dialled(node: SocketAddr) -> bool {
    let multicast = match node.ip() {
        IpAddr::V4(ip) => ip.is_multicast() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_multicast(),
    };
    node.port() != 0 && !node.ip().is_unspecified() && !multicast
}

async fn connect(
    node: SocketAddr,
    certificate: Fingerprint,
    identity: Keypair,
) -> Result<(PeerId, PageConnection), ConnectionError> {
    let peer = Peer::new().await?;
    // The description names a channel only if there is one.
    let first = peer.first_channel();
    let local = peer.begin(node, certificate).await?;
    let (stream, _ended) = Substream::new(first.clone());
    let proved = noise::outbound(identity, stream, certificate, local).await;
    let proved = proved.map_err(|error| ConnectionError::Noise(error.to_string()))?;
    Ok((proved, PageConnection::new(peer, first)))
}
