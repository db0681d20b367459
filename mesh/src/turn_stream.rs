//! One turn's substream: frames in both directions, between two authenticated nodes.
//!
//! [`crate::MeshHandle::open`] and [`crate::Incoming`] create it. It moves bytes without knowing their
//! meaning. The transport controls the flow: a peer that does not read stalls [`TurnSender::send`].
//!
//! When [`TurnReceiver::recv`] returns `None`, the peer sends no more, but may not have finished: a dropped
//! QUIC stream looks like a finished one. Only the frames themselves can prove completeness.

use std::{future::Future, io, sync::Arc};

use baton_proto::ids::NodeId;
use futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, timeout_at};

use crate::{
    error::FrameError,
    frame::{FrameDecoder, encode_header},
    gate::StreamPermit,
    origin::Origin,
};

/// How many bytes of a frame are copied next to its header, so that a small frame leaves in one write.
const COALESCE_BYTES: usize = 16 << 10;

/// The sending half of a turn. Dropping both halves resets the substream.
pub struct TurnSender {
    io: Box<dyn AsyncWrite + Send + Unpin>,
    remote: NodeId,
    /// True while a frame is partly written.
    unfinished: bool,
    _permit: Option<Arc<StreamPermit>>,
}

/// The receiving half of a turn.
pub struct TurnReceiver {
    io: Box<dyn AsyncRead + Send + Unpin>,
    remote: NodeId,
    decoder: FrameDecoder,
    _permit: Option<Arc<StreamPermit>>,
}

/// A turn substream with an authenticated remote.
pub struct TurnStream {
    sender: TurnSender,
    receiver: TurnReceiver,
    protocol: String,
    origin: Origin,
}

impl TurnStream {
    /// Frames over any byte stream whose remote the caller has authenticated: a libp2p substream, or a pipe
    /// in a simulation.
    pub fn from_io(
        remote: NodeId,
        protocol: &str,
        io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        Self::with_permit(remote, protocol, io, None)
    }

    pub(crate) fn with_permit(
        remote: NodeId,
        protocol: &str,
        io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        permit: Option<StreamPermit>,
    ) -> Self {
        let permit = permit.map(Arc::new);
        let (read, write) = io.split();
        Self {
            sender: TurnSender { io: Box::new(write), remote, unfinished: false, _permit: permit.clone() },
            receiver: TurnReceiver {
                io: Box::new(read),
                remote,
                decoder: FrameDecoder::default(),
                _permit: permit,
            },
            protocol: protocol.to_owned(),
            origin: Origin::Inside,
        }
    }

    /// Sets the origin; the mesh does so for inbound streams.
    #[must_use]
    pub fn with_origin(mut self, origin: Origin) -> Self {
        self.origin = origin;
        self
    }

    /// The origin of its connection.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// The authenticated node at the other end.
    #[must_use]
    pub fn remote(&self) -> NodeId {
        self.sender.remote
    }

    /// The negotiated protocol name, such as `/baton/turn/2`.
    #[must_use]
    pub fn protocol(&self) -> &str {
        &self.protocol
    }

    /// See [`TurnSender::send`].
    ///
    /// # Errors
    /// As [`TurnSender::send`].
    pub async fn send(&mut self, frame: &[u8]) -> Result<(), FrameError> {
        self.sender.send(frame).await
    }

    /// See [`TurnSender::send_by`].
    ///
    /// # Errors
    /// As [`TurnSender::send_by`].
    pub async fn send_by(&mut self, frame: &[u8], deadline: Instant) -> Result<(), FrameError> {
        self.sender.send_by(frame, deadline).await
    }

    /// See [`TurnReceiver::recv`].
    ///
    /// # Errors
    /// As [`TurnReceiver::recv`].
    pub async fn recv(&mut self, limit: usize) -> Result<Option<Vec<u8>>, FrameError> {
        self.receiver.recv(limit).await
    }

    /// See [`TurnReceiver::recv_by`].
    ///
    /// # Errors
    /// As [`TurnReceiver::recv_by`].
    pub async fn recv_by(&mut self, limit: usize, deadline: Instant) -> Result<Option<Vec<u8>>, FrameError> {
        self.receiver.recv_by(limit, deadline).await
    }

    /// See [`TurnSender::close`].
    ///
    /// # Errors
    /// As [`TurnSender::close`].
    pub async fn close(&mut self) -> Result<(), FrameError> {
        self.sender.close().await
    }

    /// The two halves, so that one task can send while another waits for frames or for the peer's departure.
    /// The substream ends when both are dropped.
    #[must_use]
    pub fn split(self) -> (TurnSender, TurnReceiver) {
        (self.sender, self.receiver)
    }
}

impl TurnSender {
    /// The authenticated node at the other end.
    #[must_use]
    pub fn remote(&self) -> NodeId {
        self.remote
    }

    /// Sends one frame and flushes it; waits while the peer does not read.
    ///
    /// Not cancel safe: a send dropped midway leaves part of a frame behind. Every later send then fails with
    /// [`FrameError::Interrupted`], and the caller can only drop the stream.
    ///
    /// # Errors
    /// - [`FrameError::TooLarge`] above [`crate::FRAME_CEILING_BYTES`].
    /// - [`FrameError::Io`] when the peer or the connection is gone.
    /// - [`FrameError::Interrupted`] as above.
    pub async fn send(&mut self, frame: &[u8]) -> Result<(), FrameError> {
        if self.unfinished {
            return Err(FrameError::Interrupted);
        }
        let header = encode_header(frame.len())?;
        let (near, far) = frame.split_at(frame.len().min(COALESCE_BYTES));
        let first = [&header[..], near].concat();
        self.unfinished = true;
        self.io.write_all(&first).await.map_err(FrameError::Io)?;
        self.io.write_all(far).await.map_err(FrameError::Io)?;
        self.io.flush().await.map_err(FrameError::Io)?;
        self.unfinished = false;
        Ok(())
    }

    /// [`send`](Self::send) until a deadline.
    ///
    /// # Errors
    /// As `send`, and [`FrameError::Timeout`]; the stream is then out of step, as after a cancelled send.
    pub async fn send_by(&mut self, frame: &[u8], deadline: Instant) -> Result<(), FrameError> {
        by(deadline, self.send(frame)).await
    }

    /// Ends the sending half; the peer's `recv` returns `None` after the frames already sent. Receiving goes
    /// on.
    ///
    /// # Errors
    /// [`FrameError::Io`] when the connection is gone.
    pub async fn close(&mut self) -> Result<(), FrameError> {
        self.io.close().await.map_err(FrameError::Io)
    }
}

impl TurnReceiver {
    /// The authenticated node at the other end.
    #[must_use]
    pub fn remote(&self) -> NodeId {
        self.remote
    }

    /// The next frame of at most `limit` bytes, or `None` when the peer sends no more.
    ///
    /// Cancel safe: bytes already read stay for the next call. Memory grows with the arriving bytes, never
    /// with the announced length.
    ///
    /// # Errors
    /// - [`FrameError::TooLarge`] when the header announces more than `limit`.
    /// - [`FrameError::Truncated`] when the stream ends inside a frame.
    /// - [`FrameError::Io`] when it is reset.
    pub async fn recv(&mut self, limit: usize) -> Result<Option<Vec<u8>>, FrameError> {
        loop {
            let space = self.decoder.space(limit)?;
            let count = match self.io.read(space).await {
                Ok(0) if self.decoder.is_at_boundary() => return Ok(None),
                Ok(0) => return Err(FrameError::Truncated),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(FrameError::Truncated);
                }
                Err(error) => return Err(FrameError::Io(error)),
            };
            if let Some(frame) = self.decoder.filled(count) {
                return Ok(Some(frame));
            }
        }
    }

    /// [`recv`](Self::recv) until a deadline; also cancel safe.
    ///
    /// # Errors
    /// As `recv`, and [`FrameError::Timeout`], after which receiving may go on.
    pub async fn recv_by(&mut self, limit: usize, deadline: Instant) -> Result<Option<Vec<u8>>, FrameError> {
        by(deadline, self.recv(limit)).await
    }
}

async fn by<T>(
    deadline: Instant,
    work: impl Future<Output = Result<T, FrameError>>,
) -> Result<T, FrameError> {
    timeout_at(deadline, work).await.unwrap_or(Err(FrameError::Timeout))
}

impl std::fmt::Debug for TurnStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TurnStream")
            .field("remote", &self.sender.remote)
            .field("protocol", &self.protocol)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for TurnSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TurnSender").field("remote", &self.remote).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for TurnReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TurnReceiver").field("remote", &self.remote).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex};
    use tokio_util::compat::TokioAsyncReadCompatExt as _;

    fn pipe(capacity: usize) -> (TurnStream, DuplexStream) {
        let (near, far) = duplex(capacity);
        (TurnStream::from_io(NodeId([1; 32]), "/baton/turn/2", near.compat()), far)
    }

    #[tokio::test]
    async fn a_cancelled_recv_loses_no_bytes() {
        let (mut turn, mut far) = pipe(64);
        for byte in [5u8, 0, 0, 0, b'h', b'e', b'l', b'l'] {
            far.write_all(&[byte]).await.unwrap();
            assert!(turn.recv(10).now_or_never().is_none(), "polled once, then dropped");
        }
        far.write_all(b"o").await.unwrap();
        assert_eq!(turn.recv(10).await.unwrap(), Some(b"hello".to_vec()));
    }

    #[tokio::test]
    async fn a_cancelled_send_poisons_the_sender() {
        let (mut turn, _far) = pipe(8);
        assert!(turn.send(&[0; 100]).now_or_never().is_none(), "the pipe is full");
        assert!(matches!(turn.send(b"x").await, Err(FrameError::Interrupted)));
    }

    #[tokio::test]
    async fn an_end_inside_a_header_or_a_body_is_truncation() {
        for wire in [&[3u8][..], &[3, 0, 0, 0], &[3, 0, 0, 0, 1]] {
            let (mut turn, mut far) = pipe(64);
            far.write_all(wire).await.unwrap();
            drop(far);
            assert!(matches!(turn.recv(10).await, Err(FrameError::Truncated)), "{wire:?}");
        }
    }

    #[tokio::test]
    async fn deadlines_are_kept_and_receiving_can_go_on() {
        let (mut turn, mut far) = pipe(8);
        assert!(matches!(turn.recv_by(10, Instant::now()).await, Err(FrameError::Timeout)));
        far.write_all(&[1, 0, 0, 0, 9]).await.unwrap();
        assert_eq!(turn.recv(10).await.unwrap(), Some(vec![9]));
        assert!(matches!(turn.send_by(&[0; 100], Instant::now()).await, Err(FrameError::Timeout)));
    }
}
