//! The stream of a data channel, for both sides.

use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures::{AsyncRead, AsyncWrite, channel::oneshot};
use libp2p_webrtc_utils::Stream;

use crate::webrtc::data_channel::DataChannel;

/// A stream of a connection. libp2p's messages on the channel let each half end on its own.
pub(crate) struct Substream {
    stream: Stream<DataChannel>,
    /// Whether the peer has closed its half.
    ended: bool,
    /// Tells the connection of the drop.
    _held: oneshot::Sender<()>,
}

impl Substream {
    /// The stream of a channel, and a future that ends after the stream's drop. It must be polled: it tells the peer of a
    /// stream that was not closed.
    pub(crate) fn new(channel: DataChannel) -> (Self, impl Future<Output = ()>) {
        let (stream, listener) = Stream::new(channel);
        let (held, released) = oneshot::channel();
        let ended = async {
            // A closed stream may still be read.
            if let Err(error) = listener.await {
                tracing::trace!(%error, "a stream ended after its channel");
            }
            // The sender sends nothing: its drop is the news.
            let _ = released.await;
        };
        (Self { stream, ended: false, _held: held }, ended)
    }
}

impl fmt::Debug for Substream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Substream").finish_non_exhaustive()
    }
}

impl AsyncRead for Substream {
    /// libp2p's stream reads nothing at a reset and at a message without bytes too. After an end it fails, or reads nothing
    /// again and again.
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut was_empty = false;
        while !self.ended && !into.is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_read(context, into)) {
                Ok(0) if was_empty => self.ended = true,
                Ok(0) => was_empty = true,
                Err(error) if was_empty && error.kind() == io::ErrorKind::BrokenPipe => self.ended = true,
                read => return Poll::Ready(read),
            }
        }
        Poll::Ready(Ok(0))
    }
}

impl AsyncWrite for Substream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(context)
    }
}
