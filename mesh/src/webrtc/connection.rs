//! A connection as libp2p's stream multiplexer.
//!
//! The task of the connection polls the [`WebRtcConnection`], which moves packets between the socket and the
//! [peer connection](crate::webrtc::peer_connection). The streams share the peer connection with it, under a lock that is never held
//! across a wait.

use std::{
    fmt,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Instant,
};

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use libp2p::{
    PeerId,
    core::muxing::{StreamMuxer, StreamMuxerEvent},
    identity::Keypair,
};
use libp2p_webrtc_utils::{Stream, noise};
use parking_lot::Mutex;
use tokio::{
    net::UdpSocket,
    sync::mpsc,
    time::{Sleep, sleep_until},
};

use crate::webrtc::{
    certificate::Certificate,
    channel_queue::ChannelQueue,
    data_channel::{DataChannel, PeerState, SharedPeer},
    error::ConnectionError,
    limits::{CHANNEL_LINGER, SILENCE, WORK_AT_ONCE},
    peer_connection::{ChannelId, PeerConnection, Role},
    stun::{self, Kind, StunMessage},
    substream::Substream,
};

/// The socket's side of a connection.
pub(crate) struct Link {
    pub(crate) socket: Arc<UdpSocket>,
    pub(crate) remote: SocketAddr,
    /// The packets from the peer.
    pub(crate) packets: mpsc::Receiver<Bytes>,
    /// User name and password of both sides.
    pub(crate) credentials: String,
}

/// Moves packets between a link and a peer connection.
struct Driver {
    link: Link,
    timer: Pin<Box<Sleep>>,
    heard: Instant,
}

impl Driver {
    /// Works until there is nothing to do; ready with the error that ended the connection.
    fn poll(&mut self, shared: &SharedPeer, context: &mut Context<'_>) -> Poll<ConnectionError> {
        let mut shared = shared.lock();
        if let Some(error) = &shared.ended {
            return Poll::Ready(error.clone());
        }
        let worked = self.work(&mut shared, context);
        shared.take_events();
        match worked {
            Ok(()) => {
                shared.task = Some(context.waker().clone());
                Poll::Pending
            }
            Err(error) => {
                self.send(&mut shared);
                shared.end(error.clone());
                Poll::Ready(error)
            }
        }
    }

    fn work(&mut self, shared: &mut PeerState, context: &mut Context<'_>) -> Result<(), ConnectionError> {
        let now = Instant::now();
        let mut work = 0;
        loop {
            if work >= WORK_AT_ONCE {
                context.waker().wake_by_ref();
                break;
            }
            match self.link.packets.poll_recv(context) {
                Poll::Ready(Some(packet)) => work += 1 + self.receive(shared, &packet, now)?,
                // The listener has ended.
                Poll::Ready(None) => return Err(ConnectionError::Closed),
                Poll::Pending => break,
            }
        }
        loop {
            self.send(shared);
            let silence = self.heard + SILENCE;
            let next = shared.peer.next_timeout().map_or(silence, |due| due.min(silence));
            self.timer.as_mut().reset(next.into());
            if self.timer.poll_unpin(context).is_pending() {
                return Ok(());
            }
            let now = Instant::now();
            if now >= silence {
                return Err(ConnectionError::Silence);
            }
            shared.peer.expire(now)?;
        }
    }

    fn receive(
        &mut self,
        shared: &mut PeerState,
        packet: &[u8],
        now: Instant,
    ) -> Result<usize, ConnectionError> {
        if !stun::is_stun(packet) {
            let chunks = shared.peer.receive(packet, now)?;
            self.heard = now;
            return Ok(chunks);
        }
        let credentials = &self.link.credentials;
        if let Some(message) = StunMessage::parse(packet)
            && message.kind == Kind::Request
            && message.is_signed_with(credentials)
        {
            self.heard = now;
            let response = stun::response(message.transaction, self.link.remote, credentials);
            if response.len() <= packet.len() {
                self.transmit(&response);
            }
        }
        Ok(0)
    }

    fn send(&self, shared: &mut PeerState) {
        while let Some(packet) = shared.peer.next_packet() {
            self.transmit(&packet);
        }
    }

    /// A packet that the system does not take is lost, as on a link; DTLS and SCTP send it again.
    fn transmit(&self, packet: &[u8]) {
        if let Err(error) = self.link.socket.try_send_to(packet, self.link.remote) {
            tracing::trace!(%error, "a packet was not sent");
        }
    }
}

/// A stream in use; it ends with its drop.
type InUse = BoxFuture<'static, ChannelId>;

/// A connection whose peer has proved its identity.
pub(crate) struct WebRtcConnection {
    shared: SharedPeer,
    driver: Driver,
    in_use: FuturesUnordered<InUse>,
    /// Finished data channels, and when they are closed.
    lingering: ChannelQueue<Instant>,
    linger_timer: Pin<Box<Sleep>>,
}

impl fmt::Debug for WebRtcConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebRtcConnection").field("remote", &self.driver.link.remote).finish_non_exhaustive()
    }
}

/// Accepts a connection: DTLS, SCTP, and Noise on the first data channel.
pub(crate) async fn accept(
    link: Link,
    certificate: Certificate,
    identity: Keypair,
) -> Result<(PeerId, WebRtcConnection), ConnectionError> {
    establish(link, Role::Server, certificate, identity).await
}

pub(crate) async fn establish(
    link: Link,
    role: Role,
    certificate: Certificate,
    identity: Keypair,
) -> Result<(PeerId, WebRtcConnection), ConnectionError> {
    let now = Instant::now();
    let shared = PeerState::new(PeerConnection::new(role, &certificate, now)?);
    let shared = Arc::new(Mutex::new(shared));
    let mut driver = Driver { link, timer: Box::pin(sleep_until(now.into())), heard: now };
    std::future::poll_fn(|context| {
        if let Poll::Ready(error) = driver.poll(&shared, context) {
            return Poll::Ready(Err(error));
        }
        if shared.lock().established { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await?;

    let (first, remote) = {
        let mut shared = shared.lock();
        (shared.peer.open_first()?, shared.peer.remote_certificate().ok_or(ConnectionError::Closed)?)
    };
    let (stream, _) = Stream::new(DataChannel::new(first, shared.clone()));
    let local = certificate.fingerprint();
    let mut handshake = match role {
        Role::Server => noise::inbound(identity, stream, remote, local).boxed(),
        Role::Client => noise::outbound(identity, stream, remote, local).boxed(),
    };
    let peer = std::future::poll_fn(|context| {
        let proved = handshake.poll_unpin(context);
        // After the handshake, so that its last message is sent.
        let driven = driver.poll(&shared, context);
        match (proved, driven) {
            (Poll::Ready(Ok(peer)), _) => Poll::Ready(Ok(peer)),
            (Poll::Ready(Err(error)), _) => Poll::Ready(Err(ConnectionError::Noise(error.to_string()))),
            (Poll::Pending, Poll::Ready(error)) => Poll::Ready(Err(error)),
            (Poll::Pending, Poll::Pending) => Poll::Pending,
        }
    })
    .await?;
    shared.lock().peer.release(first, Instant::now())?;
    let connection = WebRtcConnection {
        shared,
        driver,
        in_use: FuturesUnordered::new(),
        lingering: ChannelQueue::new(),
        linger_timer: Box::pin(sleep_until(now.into())),
    };
    Ok((peer, connection))
}

impl WebRtcConnection {
    fn stream(&self, id: ChannelId) -> Substream {
        let channel = DataChannel::new(id, self.shared.clone());
        let (stream, ended) = Substream::new(channel);
        self.in_use.push(ended.map(move |()| id).boxed());
        stream
    }

    fn end_channels(&mut self, context: &mut Context<'_>) {
        while let Poll::Ready(Some(id)) = self.in_use.poll_next_unpin(context) {
            let mut shared = self.shared.lock();
            shared.waiting.remove(&id);
            if let Err(error) = shared.peer.release(id, Instant::now()) {
                shared.end(error);
            }
            // A channel that the peer has closed is gone; one that lingers keeps its number.
            if shared.peer.is_open(id) {
                self.lingering.push(id, Instant::now() + CHANNEL_LINGER, &shared.peer);
            }
        }
        while let Some((id, due)) = self.lingering.first().copied() {
            let now = Instant::now();
            if due > now {
                self.linger_timer.as_mut().reset(due.into());
                if self.linger_timer.poll_unpin(context).is_pending() {
                    return;
                }
                continue;
            }
            self.lingering.pop();
            let mut shared = self.shared.lock();
            match shared.peer.close(id, now) {
                Ok(true) => {}
                Ok(false) => self.lingering.push(id, now + CHANNEL_LINGER, &shared.peer),
                Err(error) => shared.end(error),
            }
        }
    }
}

impl StreamMuxer for WebRtcConnection {
    type Substream = Substream;
    type Error = ConnectionError;

    fn poll_inbound(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<Self::Substream, Self::Error>> {
        let incoming = self.shared.lock().incoming.pop();
        // `poll` has the task's waker.
        incoming.map_or(Poll::Pending, |(id, ())| Poll::Ready(Ok(self.stream(id))))
    }

    fn poll_outbound(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, Self::Error>> {
        let opened = self.shared.lock().peer.open(Instant::now())?;
        match opened {
            Some(id) => Poll::Ready(Ok(self.stream(id))),
            // The task is polled when the peer has confirmed the close of another channel.
            None => Poll::Pending,
        }
    }

    fn poll_close(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.say_goodbye();
        Poll::Ready(Ok(()))
    }

    fn poll(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<StreamMuxerEvent, Self::Error>> {
        self.end_channels(context);
        let this = &mut *self;
        let error = ready!(this.driver.poll(&this.shared, context));
        Poll::Ready(Err(error))
    }
}

impl WebRtcConnection {
    fn say_goodbye(&mut self) {
        let shared = self.shared.clone();
        let mut shared = shared.lock();
        if shared.ended.is_none() {
            shared.peer.end(Instant::now());
            self.driver.send(&mut shared);
            shared.end(ConnectionError::Closed);
        }
    }
}

impl Drop for WebRtcConnection {
    fn drop(&mut self) {
        self.say_goodbye();
    }
}
