//! A listener: one socket, and the task that gives its packets to connections.

use std::{collections::HashMap, io, net::SocketAddr, sync::Arc, time::Instant};

use bytes::Bytes;
use libp2p::{Multiaddr, multiaddr::Protocol as Part};
use rand::random;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    net::UdpSocket,
    sync::mpsc::{self, error::TrySendError},
    task::JoinHandle,
};
use zeroize::Zeroizing;

use crate::webrtc::{
    connection::Link,
    limits::{CONNECTION_QUEUE, MAX_PACKET_BYTES, PACKET_QUEUE},
    source_proofs::{SourceProofs, SourceVerdict},
};

/// Whether a connection from the second address to the first may begin. It is asked before anything is kept.
pub(crate) type Admission = Arc<dyn Fn(&Multiaddr, &Multiaddr) -> bool + Send + Sync>;

/// Bytes that the system keeps of packets that wait for the task, if it allows so many.
const SOCKET_BUFFER_BYTES: usize = 1 << 20;

/// A running listener; its connections end with it.
pub(crate) struct Listener {
    pub(crate) address: SocketAddr,
    /// The connections to be accepted.
    pub(crate) incoming: mpsc::Receiver<Link>,
    task: JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Binds a socket and begins to listen.
pub(crate) fn listen(address: SocketAddr, admission: Admission) -> io::Result<Listener> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        // IPv4 has its own listener.
        socket.set_only_v6(true)?;
    }
    for set in [Socket::set_recv_buffer_size, Socket::set_send_buffer_size] {
        if let Err(error) = set(&socket, SOCKET_BUFFER_BYTES) {
            tracing::debug!(%error, "the system keeps its size of a socket's buffer");
        }
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    let socket = Arc::new(UdpSocket::from_std(socket.into())?);
    let address = socket.local_addr()?;
    let (sender, incoming) = mpsc::channel(CONNECTION_QUEUE);
    let proofs = SourceProofs::new(Zeroizing::new(random()), Instant::now());
    let routes = Routes {
        socket,
        address: webrtc_address(address),
        proofs,
        connections: HashMap::new(),
        incoming: sender,
        admission,
    };
    Ok(Listener { address, incoming, task: tokio::spawn(routes.run()) })
}

/// The address of a socket, without a certificate's hash.
pub(crate) fn webrtc_address(address: SocketAddr) -> Multiaddr {
    Multiaddr::from(address.ip()).with(Part::Udp(address.port())).with(Part::WebRTCDirect)
}

/// The connections of a socket.
struct Routes {
    socket: Arc<UdpSocket>,
    address: Multiaddr,
    proofs: SourceProofs,
    /// The queue of each connection. A connection that has ended goes with its next packet, or before a new one.
    connections: HashMap<SocketAddr, mpsc::Sender<Bytes>>,
    incoming: mpsc::Sender<Link>,
    admission: Admission,
}

impl Routes {
    async fn run(mut self) {
        let mut packet = [0; MAX_PACKET_BYTES];
        loop {
            match self.socket.recv_from(&mut packet).await {
                Ok((length, source)) => self.route(packet.split_at(length).0, source),
                // An earlier packet could not be delivered. Each read takes one such error.
                Err(error) => {
                    tracing::trace!(%error, "a socket reported an error");
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    fn route(&mut self, packet: &[u8], source: SocketAddr) {
        if let Some(connection) = self.connections.get(&source) {
            match connection.try_send(Bytes::copy_from_slice(packet)) {
                Ok(()) | Err(TrySendError::Full(_)) => return,
                Err(TrySendError::Closed(_)) => self.connections.remove(&source),
            };
        }
        match self.proofs.judge(source, packet, Instant::now()) {
            SourceVerdict::Ignore => {}
            SourceVerdict::Ask(request) => {
                if let Err(error) = self.socket.try_send_to(&request, source) {
                    tracing::trace!(%error, "a source was not asked for its proof");
                }
            }
            SourceVerdict::Begin(credentials) => self.begin(packet, source, credentials),
        }
    }

    fn begin(&mut self, packet: &[u8], source: SocketAddr, credentials: &str) {
        if !(self.admission)(&self.address, &webrtc_address(source)) {
            return;
        }
        self.connections.retain(|_, connection| !connection.is_closed());
        let (sender, packets) = mpsc::channel(PACKET_QUEUE);
        let link = Link {
            socket: self.socket.clone(),
            remote: source,
            packets,
            credentials: credentials.to_owned(),
        };
        // A full queue means that the swarm is behind; the browser asks again.
        if self.incoming.try_send(link).is_ok() && sender.try_send(Bytes::copy_from_slice(packet)).is_ok() {
            self.connections.insert(source, sender);
        }
    }
}
