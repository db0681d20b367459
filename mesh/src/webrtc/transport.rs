//! The transport: listeners at addresses of the form `/ip4/ADDRESS/udp/PORT/webrtc-direct`.

use std::{
    collections::{HashMap, VecDeque},
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    task::{Context, Poll, Waker},
};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture};
use if_watch::{IfEvent, tokio::IfWatcher};
use libp2p::{
    Multiaddr, PeerId,
    core::transport::{DialOpts, ListenerId, TransportError, TransportEvent},
    identity::Keypair,
    multiaddr::Protocol,
};

use crate::webrtc::{
    certificate::Certificate,
    connection::{Link, WebRtcConnection, accept},
    listener::{self, Admission, Listener, webrtc_address},
};

/// A libp2p transport that accepts WebRTC connections of browsers, and dials none.
pub(crate) struct WebRtcTransport {
    identity: Keypair,
    certificate: Certificate,
    admission: Admission,
    listeners: HashMap<ListenerId, Listening>,
    events: VecDeque<TransportEvent<Upgrade, io::Error>>,
    waker: Option<Waker>,
}

type Upgrade = BoxFuture<'static, io::Result<(PeerId, WebRtcConnection)>>;

struct Listening {
    listener: Listener,
    /// The addresses of the machine, for a listener on all of them.
    interfaces: Option<IfWatcher>,
}

impl WebRtcTransport {
    /// A transport whose peers see `certificate` and prove themselves to `identity`.
    #[must_use]
    pub(crate) fn new(identity: Keypair, certificate: Certificate, admission: Admission) -> Self {
        Self {
            identity,
            certificate,
            admission,
            listeners: HashMap::new(),
            events: VecDeque::new(),
            waker: None,
        }
    }

    fn multiaddress(&self, address: SocketAddr) -> Multiaddr {
        webrtc_address(address).with(self.certificate.address_part())
    }

    fn incoming(
        &self,
        listener_id: ListenerId,
        local: SocketAddr,
        link: Link,
    ) -> TransportEvent<Upgrade, io::Error> {
        TransportEvent::Incoming {
            listener_id,
            local_addr: self.multiaddress(local),
            send_back_addr: webrtc_address(link.remote),
            upgrade: accept(link, self.certificate.clone(), self.identity.clone())
                .map(|accepted| Ok(accepted?))
                .boxed(),
        }
    }
}

/// The socket address of `/ip4/ADDRESS/udp/PORT/webrtc-direct`, with or without a certificate's hash.
fn socket_address(address: &Multiaddr) -> Option<SocketAddr> {
    let mut parts = address.iter();
    let ip = match parts.next()? {
        Protocol::Ip4(ip) => IpAddr::V4(ip),
        Protocol::Ip6(ip) => IpAddr::V6(ip),
        _ => return None,
    };
    let (Protocol::Udp(port), Protocol::WebRTCDirect) = (parts.next()?, parts.next()?) else { return None };
    match (parts.next(), parts.next()) {
        (None | Some(Protocol::Certhash(_)), None) => Some(SocketAddr::new(ip, port)),
        _ => None,
    }
}

impl libp2p::Transport for WebRtcTransport {
    type Output = (PeerId, WebRtcConnection);
    type Error = io::Error;
    type ListenerUpgrade = Upgrade;
    type Dial = BoxFuture<'static, Result<Self::Output, Self::Error>>;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<Self::Error>> {
        let Some(socket) = socket_address(&address) else {
            return Err(TransportError::MultiaddrNotSupported(address));
        };
        let all = socket.ip().is_unspecified();
        let interfaces = all.then(IfWatcher::new).transpose().map_err(TransportError::Other)?;
        let listener = listener::listen(socket, self.admission.clone()).map_err(TransportError::Other)?;
        if interfaces.is_none() {
            let listen_addr = self.multiaddress(listener.address);
            self.events.push_back(TransportEvent::NewAddress { listener_id: id, listen_addr });
        }
        self.listeners.insert(id, Listening { listener, interfaces });
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
        Ok(())
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        let removed = self.listeners.remove(&id).is_some();
        if removed {
            self.events.push_back(TransportEvent::ListenerClosed { listener_id: id, reason: Ok(()) });
            if let Some(waker) = self.waker.take() {
                waker.wake();
            }
        }
        removed
    }

    fn dial(&mut self, address: Multiaddr, _: DialOpts) -> Result<Self::Dial, TransportError<Self::Error>> {
        Err(TransportError::MultiaddrNotSupported(address))
    }

    fn poll(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, Self::Error>> {
        if let Some(event) = self.events.pop_front() {
            return Poll::Ready(event);
        }
        let this = &mut *self;
        let mut ready = None;
        for (id, listening) in &mut this.listeners {
            let local = listening.listener.address;
            if let Some(interfaces) = &mut listening.interfaces
                && let Poll::Ready(Some(event)) = interfaces.poll_next_unpin(context)
            {
                ready = Some((*id, local, Ready::Interface(event)));
                break;
            }
            if let Poll::Ready(Some(link)) = listening.listener.incoming.poll_recv(context) {
                ready = Some((*id, local, Ready::Link(link)));
                break;
            }
        }
        let Some((listener_id, local, ready)) = ready else {
            this.waker = Some(context.waker().clone());
            return Poll::Pending;
        };
        let same_family = |ip: IpAddr| ip.is_ipv4() == local.is_ipv4();
        let bound = |ip: IpAddr| SocketAddr::new(ip, local.port());
        let event = match ready {
            Ready::Link(link) => this.incoming(listener_id, local, link),
            Ready::Interface(Ok(IfEvent::Up(net))) if same_family(net.addr()) => {
                TransportEvent::NewAddress { listener_id, listen_addr: this.multiaddress(bound(net.addr())) }
            }
            Ready::Interface(Ok(IfEvent::Down(net))) if same_family(net.addr()) => {
                TransportEvent::AddressExpired {
                    listener_id,
                    listen_addr: this.multiaddress(bound(net.addr())),
                }
            }
            Ready::Interface(Ok(_)) => {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Ready::Interface(Err(error)) => TransportEvent::ListenerError { listener_id, error },
        };
        Poll::Ready(event)
    }
}

/// The news of a listener.
enum Ready {
    Link(Link),
    Interface(io::Result<IfEvent>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_webrtc_direct_are_listened_on() {
        let socket = |text: &str| socket_address(&text.parse().unwrap()).map(|address| address.to_string());
        assert_eq!(socket("/ip4/127.0.0.1/udp/1/webrtc-direct").unwrap(), "127.0.0.1:1");
        let hash = Certificate::generate().unwrap().address_part();
        assert_eq!(
            socket(&format!("/ip6/::1/udp/1/webrtc-direct{}", Multiaddr::from(hash))).unwrap(),
            "[::1]:1"
        );
        for other in [
            "/ip4/127.0.0.1/udp/1",
            "/ip4/127.0.0.1/udp/1/quic-v1",
            "/ip4/127.0.0.1/tcp/1",
            "/dns4/example.org/udp/1/webrtc-direct",
            "/ip4/127.0.0.1/udp/1/webrtc-direct/p2p-circuit",
        ] {
            assert_eq!(socket(other), None, "{other}");
        }
    }
}
