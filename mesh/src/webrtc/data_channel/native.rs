//! A data channel of a peer connection that its connection's task and its streams share.

use std::{
    collections::HashMap,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Instant,
};

use bytes::Bytes;
use futures::{AsyncRead, AsyncWrite};
use parking_lot::Mutex;

use crate::webrtc::{
    channel_queue::ChannelQueue,
    error::ConnectionError,
    peer_connection::{ChannelId, Event, PeerConnection, ReadResult, WriteResult},
};

/// The peer connection and the tasks that wait for it.
pub(crate) struct PeerState {
    pub(crate) peer: PeerConnection,
    /// The task of the connection, which sends packets.
    pub(crate) task: Option<Waker>,
    pub(crate) waiting: HashMap<ChannelId, WaitingTasks>,
    /// Channels that the peer opened and libp2p has not taken.
    pub(crate) incoming: ChannelQueue<()>,
    pub(crate) established: bool,
    /// The error that ended the connection.
    pub(crate) ended: Option<ConnectionError>,
}

/// The tasks that wait for a channel.
#[derive(Default)]
pub(crate) struct WaitingTasks {
    reader: Option<Waker>,
    writer: Option<Waker>,
}

pub(crate) type SharedPeer = Arc<Mutex<PeerState>>;

impl PeerState {
    pub(crate) fn new(peer: PeerConnection) -> Self {
        Self {
            peer,
            task: None,
            waiting: HashMap::new(),
            incoming: ChannelQueue::new(),
            established: false,
            ended: None,
        }
    }

    pub(crate) fn take_events(&mut self) {
        while let Some(event) = self.peer.next_event() {
            match event {
                Event::Established => self.established = true,
                Event::Incoming(id) => self.incoming.push(id, (), &self.peer),
                Event::Readable(id) => {
                    wake(self.waiting.get_mut(&id).and_then(|waiting| waiting.reader.take()))
                }
                Event::Writable(id) => {
                    wake(self.waiting.get_mut(&id).and_then(|waiting| waiting.writer.take()))
                }
                Event::Ended(id) => {
                    if let Some(waiting) = self.waiting.remove(&id) {
                        wake(waiting.reader);
                        wake(waiting.writer);
                    }
                }
            }
        }
    }

    pub(crate) fn end(&mut self, error: ConnectionError) {
        if self.ended.is_none() {
            self.ended = Some(error);
        }
        for (_, waiting) in self.waiting.drain() {
            wake(waiting.reader);
            wake(waiting.writer);
        }
        wake(self.task.take());
    }

    /// The result of a call of a stream, after which the task may have packets to send.
    fn after<T>(&mut self, result: Result<T, ConnectionError>) -> io::Result<T> {
        self.take_events();
        match result {
            Ok(value) => {
                if self.peer.has_packets() {
                    wake(self.task.take());
                }
                Ok(value)
            }
            Err(error) => {
                self.end(error.clone());
                Err(error.into())
            }
        }
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// A data channel as a stream of bytes.
#[derive(Clone)]
pub(crate) struct DataChannel {
    id: ChannelId,
    shared: SharedPeer,
    /// The rest of a message that was read in part. Only one of the two clones reads.
    unread: Bytes,
}

impl DataChannel {
    pub(crate) fn new(id: ChannelId, shared: SharedPeer) -> Self {
        Self { id, shared, unread: Bytes::new() }
    }
}

impl AsyncRead for DataChannel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if self.unread.is_empty() {
            let id = self.id;
            let mut shared = self.shared.lock();
            if let Some(error) = &shared.ended {
                return Poll::Ready(Err(error.clone().into()));
            }
            let read = shared.peer.read(id, Instant::now());
            let message = match shared.after(read)? {
                ReadResult::Message(message) => message,
                ReadResult::End => return Poll::Ready(Ok(0)),
                ReadResult::Nothing => {
                    shared.waiting.entry(id).or_default().reader = Some(context.waker().clone());
                    return Poll::Pending;
                }
            };
            drop(shared);
            self.unread = message.into();
        }
        let count = self.unread.len().min(into.len());
        into.split_at_mut(count).0.copy_from_slice(&self.unread.split_to(count));
        Poll::Ready(Ok(count))
    }
}

impl AsyncWrite for DataChannel {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut shared = self.shared.lock();
        if let Some(error) = &shared.ended {
            return Poll::Ready(Err(error.clone().into()));
        }
        let written = shared.peer.write(self.id, bytes, Instant::now());
        match shared.after(written)? {
            WriteResult::Bytes(count) => Poll::Ready(Ok(count)),
            WriteResult::Closed => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            WriteResult::Full => {
                shared.waiting.entry(self.id).or_default().writer = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// The connection's task sends on its own.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
