//! A page's connection as libp2p's stream multiplexer.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use futures::{FutureExt as _, StreamExt as _, future::LocalBoxFuture, stream::FuturesUnordered};
use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use send_wrapper::SendWrapper;

use super::peer::Peer;
use crate::webrtc::{data_channel::DataChannel, error::ConnectionError, substream::Substream};

/// A connection to a node that has proved its identity.
pub(crate) struct PageConnection(SendWrapper<OpenConnection>);

struct OpenConnection {
    peer: Option<Peer>,
    /// Kept open: a browser would give its number to another channel.
    _first: DataChannel,
    /// The streams until their drop.
    in_use: FuturesUnordered<LocalBoxFuture<'static, ()>>,
}

impl fmt::Debug for PageConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageConnection").finish_non_exhaustive()
    }
}

impl PageConnection {
    pub(super) fn new(peer: Peer, first: DataChannel) -> Self {
        Self(SendWrapper::new(OpenConnection {
            peer: Some(peer),
            _first: first,
            in_use: FuturesUnordered::new(),
        }))
    }

    fn stream(&self, channel: DataChannel) -> Substream {
        let (stream, ended) = Substream::new(channel);
        self.0.in_use.push(ended.boxed_local());
        stream
    }

    /// The connection, while it is not over.
    fn peer(&self) -> Result<&Peer, ConnectionError> {
        self.0.peer.as_ref().filter(|peer| !peer.is_over()).ok_or(ConnectionError::Closed)
    }
}

impl StreamMuxer for PageConnection {
    type Substream = Substream;
    type Error = ConnectionError;

    fn poll_inbound(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, Self::Error>> {
        let channel = {
            let mut news = self.peer()?.news();
            news.task = Some(context.waker().clone());
            if news.incoming.is_empty() { return Poll::Pending } else { news.incoming.remove(0) }
        };
        Poll::Ready(Ok(self.stream(channel)))
    }

    fn poll_outbound(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, Self::Error>> {
        let channel = self.peer()?.open_channel();
        Poll::Ready(Ok(self.stream(channel)))
    }

    fn poll_close(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.peer = None;
        Poll::Ready(Ok(()))
    }

    fn poll(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<StreamMuxerEvent, Self::Error>> {
        while let Poll::Ready(Some(())) = self.0.in_use.poll_next_unpin(context) {}
        self.peer()?.news().task = Some(context.waker().clone());
        Poll::Pending
    }
}
