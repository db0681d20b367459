//! A listener and clients over real sockets. As a browser, the client sends STUN requests until they are answered, answers
//! those of the server, and begins DTLS.

use std::{
    future::poll_fn,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use futures::{AsyncReadExt as _, AsyncWriteExt as _, FutureExt as _, io::copy};
use libp2p::{
    Multiaddr, PeerId, Transport as _,
    core::{
        muxing::StreamMuxer as _,
        transport::{ListenerId, TransportEvent},
    },
    identity::Keypair,
    multiaddr::Protocol,
};
use tokio::{
    net::UdpSocket,
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::timeout,
};

use crate::webrtc::{
    Certificate, WebRtcTransport,
    connection::{Link, WebRtcConnection, establish},
    error::ConnectionError,
    limits::{CHANNEL_LINGER, MAX_CHANNELS, MAX_PACKET_BYTES, PACKET_QUEUE, SILENCE},
    peer_connection::Role,
    stun::{self, Kind, StunMessage},
    substream::Substream,
};

const CREDENTIALS: &str = "libp2p+webrtc+v1/0123456789abcdef";
/// Longer than any step takes on a loaded machine.
const SOON: Duration = Duration::from_secs(30);

/// A connection in a task of its own.
struct TestConnection {
    peer: PeerId,
    open: mpsc::UnboundedSender<oneshot::Sender<Substream>>,
    incoming: mpsc::UnboundedReceiver<Substream>,
    ended: JoinHandle<ConnectionError>,
}

impl TestConnection {
    fn new((peer, mut connection): (PeerId, WebRtcConnection)) -> Self {
        let (open, mut wanted) = mpsc::unbounded_channel::<oneshot::Sender<Substream>>();
        let (streams, incoming) = mpsc::unbounded_channel();
        let ended = tokio::spawn(async move {
            let mut waiting = None;
            poll_fn(move |context| {
                loop {
                    let mut connection = Pin::new(&mut connection);
                    if let Poll::Ready(ended) = connection.as_mut().poll(context) {
                        return Poll::Ready(ended.unwrap_err());
                    }
                    if let Poll::Ready(stream) = connection.as_mut().poll_inbound(context) {
                        // The test may be at its end.
                        let _ = streams.send(stream.unwrap());
                        continue;
                    }
                    if waiting.is_none() {
                        waiting = match wanted.poll_recv(context) {
                            Poll::Ready(Some(opening)) => Some(opening),
                            Poll::Ready(None) => return Poll::Ready(ConnectionError::Closed),
                            Poll::Pending => return Poll::Pending,
                        };
                    }
                    let Poll::Ready(stream) = connection.poll_outbound(context) else { return Poll::Pending };
                    let _ = waiting.take().unwrap().send(stream.unwrap());
                }
            })
            .await
        });
        Self { peer, open, incoming, ended }
    }

    async fn open(&self) -> Substream {
        let (sender, opened) = oneshot::channel();
        self.open.send(sender).unwrap();
        timeout(SOON, opened).await.expect("a stream in time").unwrap()
    }

    async fn incoming(&mut self) -> Substream {
        timeout(SOON, self.incoming.recv()).await.expect("a stream in time").unwrap()
    }

    async fn error(self) -> ConnectionError {
        timeout(SOON, self.ended).await.expect("an end in time").unwrap()
    }
}

struct Server {
    identity: PeerId,
    address: SocketAddr,
    accepted: mpsc::UnboundedReceiver<TestConnection>,
    asked: Arc<AtomicUsize>,
}

impl Server {
    async fn start() -> Self {
        Self::admitting(true).await
    }

    async fn admitting(admits: bool) -> Self {
        let identity = Keypair::generate_ed25519();
        let peer = identity.public().to_peer_id();
        let asked = Arc::new(AtomicUsize::new(0));
        let asks = asked.clone();
        let admission = Arc::new(move |_: &Multiaddr, _: &Multiaddr| {
            asks.fetch_add(1, Ordering::Relaxed);
            admits
        });
        let mut transport = WebRtcTransport::new(identity, Certificate::generate().unwrap(), admission);
        transport
            .listen_on(ListenerId::next(), "/ip4/127.0.0.1/udp/0/webrtc-direct".parse().unwrap())
            .unwrap();
        let event = poll_fn(|context| Pin::new(&mut transport).poll(context)).await;
        let address = event.into_new_address().unwrap();
        assert!(matches!(address.iter().last(), Some(Protocol::Certhash(_))), "{address}");
        let port = address.iter().find_map(|part| match part {
            Protocol::Udp(port) => Some(port),
            _ => None,
        });
        let (sender, accepted) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            loop {
                let event = poll_fn(|context| Pin::new(&mut transport).poll(context)).await;
                let TransportEvent::Incoming { upgrade, .. } = event else { continue };
                let sender = sender.clone();
                tokio::spawn(async move {
                    if let Ok(connection) = upgrade.await {
                        let _ = sender.send(TestConnection::new(connection));
                    }
                });
            }
        });
        Self { identity: peer, address: SocketAddr::from(([127, 0, 0, 1], port.unwrap())), accepted, asked }
    }

    async fn accept(&mut self) -> TestConnection {
        timeout(SOON, self.accepted.recv()).await.expect("a connection in time").unwrap()
    }
}

/// A client's socket: it passes on the server's packets, except each `lost`-th.
async fn link(server: SocketAddr, lost: Option<usize>) -> (Link, Arc<UdpSocket>) {
    let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
    socket.connect(server).await.unwrap();
    let (sender, packets) = mpsc::channel(PACKET_QUEUE);
    let (requested, username) = (socket.clone(), format!("{CREDENTIALS}:{CREDENTIALS}"));
    let (answered, mut answer) = oneshot::channel::<()>();
    tokio::spawn(async move {
        while answer.try_recv().is_err() {
            let request = stun::request(rand::random(), &username, CREDENTIALS);
            requested.send(&request).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let received = socket.clone();
    tokio::spawn(async move {
        let (mut packet, mut answered) = ([0; MAX_PACKET_BYTES], Some(answered));
        for number in 1.. {
            let Ok(length) = received.recv(&mut packet).await else { continue };
            let packet = &packet[..length];
            match StunMessage::parse(packet) {
                Some(StunMessage { kind: Kind::Success, .. }) => {
                    if let Some(answered) = answered.take() {
                        let _ = answered.send(());
                    }
                }
                // As a browser, it answers before it knows of a connection.
                Some(message) if message.is_signed_with(CREDENTIALS) => {
                    let answer = stun::response(message.transaction, server, CREDENTIALS);
                    received.send(&answer).await.unwrap();
                }
                _ if lost.is_some_and(|lost| number % lost == 0) => {}
                _ => {
                    if sender.send(Bytes::copy_from_slice(packet)).await.is_err() {
                        return;
                    }
                }
            }
        }
    });
    let credentials = CREDENTIALS.to_owned();
    // `try_send_to` needs an unconnected socket on some systems; Linux takes both.
    (Link { socket: socket.clone(), remote: server, packets, credentials }, socket)
}

async fn dial(server: SocketAddr, lost: Option<usize>) -> TestConnection {
    let (link, _) = link(server, lost).await;
    let identity = Keypair::generate_ed25519();
    let connected = establish(link, Role::Client, Certificate::generate().unwrap(), identity);
    TestConnection::new(timeout(SOON, connected).await.expect("a connection in time").unwrap())
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|place| u8::try_from(place * 31 % 251).unwrap()).collect()
}

/// Sends bytes through an echo, and compares.
async fn echo(near: Substream, far: Substream, length: usize) {
    tokio::spawn(async move {
        let (mut from, mut to) = far.split();
        copy(&mut from, &mut to).await.unwrap();
        to.close().await.unwrap();
    });
    let sent = pattern(length);
    let (mut from, mut to) = near.split();
    let mut received = Vec::new();
    let writing = async {
        to.write_all(&sent).await.unwrap();
        to.close().await.unwrap();
    };
    let both = async { futures::join!(writing, from.read_to_end(&mut received)) };
    timeout(SOON, both).await.expect("an echo in time").1.unwrap();
    assert_eq!(from.read(&mut [0]).await.unwrap(), 0, "an end stays one");
    assert!(received == sent, "{} of {length} bytes came back", received.len());
}

#[tokio::test]
async fn both_sides_prove_their_identity_and_open_streams() {
    let mut server = Server::start().await;
    let mut client = dial(server.address, None).await;
    let mut accepted = server.accept().await;
    assert_eq!(client.peer, server.identity);
    for length in [0, 1, 5000, 2 << 20] {
        // The other side hears of a stream with its first message.
        let mut near = client.open().await;
        near.flush().await.unwrap();
        let far = accepted.incoming().await;
        echo(near, far, length).await;
        let near = accepted.open().await;
        let far = client.incoming().await;
        echo(near, far, length).await;
    }
}

#[tokio::test]
async fn lost_packets_are_sent_again() {
    let mut server = Server::start().await;
    let client = dial(server.address, Some(13)).await;
    let mut accepted = server.accept().await;
    let near = client.open().await;
    let far = accepted.incoming().await;
    echo(near, far, 300_000).await;
}

#[tokio::test]
async fn garbage_does_not_end_a_connection() {
    let mut server = Server::start().await;
    let (link, socket) = link(server.address, None).await;
    let connected =
        establish(link, Role::Client, Certificate::generate().unwrap(), Keypair::generate_ed25519());
    let client = TestConnection::new(connected.await.unwrap());
    let mut accepted = server.accept().await;
    for round in 0..200_u8 {
        // Each kind of packet by its first byte: STUN, DTLS, and others.
        for first in [0, 1, 20, 21, 22, 23, 25, 64, 255] {
            let mut packet = pattern(usize::from(round) * 5 + 1);
            packet[0] = first;
            if let Some(version) = packet.get_mut(1..3) {
                version.copy_from_slice(&[254, 253]);
            }
            let _ = socket.send(&packet).await;
        }
        tokio::task::yield_now().await;
    }
    let near = client.open().await;
    let far = accepted.incoming().await;
    echo(near, far, 100_000).await;
}

#[tokio::test]
async fn a_dropped_stream_ends_for_the_peer_and_frees_its_channel() {
    let mut server = Server::start().await;
    let mut client = dial(server.address, None).await;
    let mut accepted = server.accept().await;
    let near = client.open().await;
    let mut far = accepted.incoming().await;
    drop(near);
    let mut byte = [0];
    let error = timeout(SOON, far.read(&mut byte)).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    drop(far);
    // More streams one after the other than a connection may have at a time.
    for number in 0..MAX_CHANNELS + 50 {
        let near = accepted.open().await;
        let far = client.incoming().await;
        if number % 50 == 0 {
            echo(near, far, 10).await;
        }
        if number % 200 == 199 {
            tokio::time::sleep(CHANNEL_LINGER * 3).await;
        }
    }
}

#[tokio::test]
async fn a_silent_peer_is_lost() {
    let mut server = Server::start().await;
    let client = dial(server.address, None).await;
    let accepted = server.accept().await;
    client.ended.abort();
    // The client's goodbye is lost with its task in this test only if the task had no time to send it.
    let error = timeout(SILENCE + SOON, accepted.error()).await.unwrap();
    assert!(
        matches!(error, ConnectionError::Silence | ConnectionError::Closed | ConnectionError::Sctp(_)),
        "{error}"
    );
}

#[tokio::test]
async fn a_source_that_does_not_answer_leaves_nothing_behind() {
    let server = Server::start().await;
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let username = format!("{CREDENTIALS}:{CREDENTIALS}");
    for _ in 0..100 {
        let short = stun::shortest_request(rand::random(), &username, CREDENTIALS);
        silent.send_to(&short, server.address).await.unwrap();
        let request = stun::request(rand::random(), &username, CREDENTIALS);
        silent.send_to(&request, server.address).await.unwrap();
    }
    let mut packet = [0; MAX_PACKET_BYTES];
    let (length, _) = timeout(SOON, silent.recv_from(&mut packet)).await.unwrap().unwrap();
    let request = StunMessage::parse(&packet[..length]).unwrap();
    assert_eq!(request.kind, Kind::Request, "it is asked, and not answered");
    assert!(length <= stun::request([0; 12], &username, CREDENTIALS).len(), "no amplification");
    assert_eq!(server.asked.load(Ordering::Relaxed), 0, "the limits have not counted it");
}

#[tokio::test]
async fn a_connection_that_the_limits_refuse_is_not_begun() {
    let mut server = Server::admitting(false).await;
    let (link, _) = link(server.address, None).await;
    let connecting =
        establish(link, Role::Client, Certificate::generate().unwrap(), Keypair::generate_ed25519());
    assert!(timeout(Duration::from_secs(1), connecting).await.is_err());
    assert!(server.asked.load(Ordering::Relaxed) > 0);
    assert!(server.accepted.recv().now_or_never().is_none());
}
