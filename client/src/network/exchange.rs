//! Frames to and from a node: one substream, one request, bounded waits. It decodes and does not judge.

use std::time::Duration;

use baton_mesh::{FrameError, MeshHandle, Multiaddr, OpenError, TurnStream};
use baton_proto::{
    ErrorCode, codec,
    ids::NodeId,
    limits::{MAX_FRAME_BYTES, MAX_NODE_FRAME_BYTES},
    wire::{ClientFrame, NodeFrame},
};
use futures::future::join_all;
use tokio::time::{Instant, timeout};

/// Why an exchange with a peer ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    /// The substream did not open.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// The substream failed or stalled.
    #[error("{0}")]
    Frame(#[from] FrameError),
    /// The peer ended the substream without an answer.
    #[error("the node ended the exchange")]
    Ended,
    /// The peer refused.
    #[error("the node refused: {code}")]
    Refused {
        /// The reason.
        code: ErrorCode,
        /// Wait before trying there again; 0 if unspecified.
        retry_after_ms: u32,
    },
    /// The peer sent another frame than requested.
    #[error("the node broke the protocol: {0}")]
    Broken(ErrorCode),
}

/// Opens a substream and sends one request on it.
pub(crate) async fn send(
    mesh: &MeshHandle,
    node: NodeId,
    addrs: &[Multiaddr],
    frame: &ClientFrame,
    wait: Duration,
) -> Result<TurnStream, ExchangeError> {
    let frames = encode_all(&[frame])?;
    let mut stream = mesh.open(node, addrs, Instant::now() + wait).await?;
    send_all(&mut stream, frames, wait).await?;
    Ok(stream)
}

/// Encodes the frames of a request.
pub(crate) fn encode_all(frames: &[&ClientFrame]) -> Result<Vec<Vec<u8>>, ExchangeError> {
    let frames: Vec<_> = frames.iter().copied().map(codec::encode).collect();
    if frames.iter().any(|bytes| bytes.len() > MAX_FRAME_BYTES) {
        return Err(ExchangeError::Broken(ErrorCode::FrameTooLarge));
    }
    Ok(frames)
}

/// Sends the frames of a request.
pub(crate) async fn send_all(
    stream: &mut TurnStream,
    frames: Vec<Vec<u8>>,
    wait: Duration,
) -> Result<(), ExchangeError> {
    for bytes in frames {
        // A request of a few megabytes takes longer on a slow line than opening does.
        let deadline = Instant::now() + wait + Duration::from_millis(bytes.len() as u64 / 32);
        stream.send_by(&bytes, deadline).await?;
    }
    Ok(())
}

/// The next frame; none at the end of the substream.
pub(crate) async fn receive(
    stream: &mut TurnStream,
    wait: Duration,
) -> Result<Option<NodeFrame>, ExchangeError> {
    match stream.recv_by(MAX_NODE_FRAME_BYTES, Instant::now() + wait).await? {
        None => Ok(None),
        Some(bytes) => codec::decode(&bytes, MAX_NODE_FRAME_BYTES).map(Some).map_err(ExchangeError::Broken),
    }
}

/// Sends one request and returns the single answer; a refusal is an error.
pub(crate) async fn ask(
    mesh: &MeshHandle,
    node: NodeId,
    addrs: &[Multiaddr],
    frame: &ClientFrame,
    wait: Duration,
) -> Result<NodeFrame, ExchangeError> {
    let mut stream = send(mesh, node, addrs, frame, wait).await?;
    match receive(&mut stream, wait).await? {
        None => Err(ExchangeError::Ended),
        Some(NodeFrame::Refused { code, retry_after_ms }) => {
            Err(ExchangeError::Refused { code, retry_after_ms })
        }
        Some(answer) => Ok(answer),
    }
}

/// The nodes that answer a short request in time, with any answer.
pub(crate) async fn answering_nodes(mesh: &MeshHandle, nodes: &[NodeId], wait: Duration) -> Vec<NodeId> {
    let asked = nodes.iter().map(|node| async move {
        let answer = timeout(wait, ask(mesh, *node, &[], &ClientFrame::NodeRecord, wait)).await;
        matches!(answer, Ok(Ok(_) | Err(ExchangeError::Refused { .. }))).then_some(*node)
    });
    join_all(asked).await.into_iter().flatten().collect()
}
