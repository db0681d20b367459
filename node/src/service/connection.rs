//! One accepted substream: its first frame decides what it is.

use std::sync::Arc;

use baton_mesh::{FrameError, FrameTooLarge, TurnStream};
use baton_proto::{
    ErrorCode, codec,
    limits::{MAX_BLOB_BYTES, MAX_FRAME_BYTES},
    wire::{ClientFrame, NodeFrame},
};
use tokio::time::Instant;

use super::{
    Core, RequestKind,
    limits::{BUSY_RETRY_MS, SMALL_FRAME_BYTES},
    lock, questions,
};
use crate::turn::{self, Refusal};

/// Serves a substream to its end, or until the service ends.
pub(crate) async fn serve(core: Arc<Core>, stream: TurnStream) {
    let served = Box::pin(answer(&core, stream));
    if let Some(Err(error)) = core.closing.run_until_cancelled(served).await {
        tracing::debug!(%error, "a turn substream ended early");
    }
}

async fn answer(core: &Arc<Core>, mut stream: TurnStream) -> Result<(), FrameError> {
    let frame = match first_frame(core, &mut stream).await? {
        Ok(frame) => frame,
        Err(refusal) => return refuse(core, stream, refusal).await,
    };
    // Held until the blob is handed over: its bytes, and their encoding.
    let _share = match &frame {
        ClientFrame::FetchBlob { .. } => {
            let deadline = Instant::now() + core.limits.request_timeout;
            match core.frame_share(2 * MAX_BLOB_BYTES, deadline).await {
                Ok(share) => Some(share),
                Err(code) => return refuse(core, stream, code.into()).await,
            }
        }
        _ => None,
    };
    let (kind, answered) = match frame {
        ClientFrame::Turn(request) => {
            core.observer.requested(RequestKind::Turn);
            return turn::serve(core, stream, request).await;
        }
        ClientFrame::Relay(_) | ClientFrame::RelayRecall { .. } => {
            (RequestKind::Relay, Err(ErrorCode::UnsupportedVersion.into()))
        }
        ClientFrame::Status(bytes) => (RequestKind::Status, questions::status(core, bytes).await),
        ClientFrame::Ack(bytes) => (RequestKind::Ack, questions::acknowledge(core, bytes).await),
        ClientFrame::Abort(bytes) => (RequestKind::Abort, questions::abort(core, bytes).await),
        ClientFrame::FetchBlob { digest, proof } => {
            (RequestKind::FetchBlob, questions::blob(core, digest, proof).await)
        }
        ClientFrame::NodeRecord => {
            (RequestKind::NodeRecord, Ok(NodeFrame::NodeRecord(core.identity.record())))
        }
    };
    core.observer.requested(kind);
    match answered {
        Ok(frame) => send_only(core, stream, &frame).await,
        Err(refusal) => refuse(core, stream, refusal).await,
    }
}

/// Reads, rates and decodes the first frame.
async fn first_frame(
    core: &Core,
    stream: &mut TurnStream,
) -> Result<Result<ClientFrame, Refusal>, FrameError> {
    let deadline = Instant::now() + core.limits.request_timeout;
    let mut received = stream.recv_by(SMALL_FRAME_BYTES, deadline).await;
    let mut _share = None;
    if let Err(FrameError::TooLarge(FrameTooLarge { len, .. })) = received
        && len <= MAX_FRAME_BYTES
    {
        // Bytes and what is decoded from them.
        _share = match core.frame_share(2 * len, deadline).await {
            Ok(share) => Some(share),
            Err(code) => return Ok(Err(Refusal { code, retry_after_ms: BUSY_RETRY_MS })),
        };
        received = stream.recv_by(MAX_FRAME_BYTES, deadline).await;
    }
    let bytes = match received {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Err(FrameError::Truncated),
        Err(FrameError::TooLarge(_)) => return Ok(Err(ErrorCode::FrameTooLarge.into())),
        Err(error) => return Err(error),
    };
    let rated = lock(&core.frame_rates).take(stream.remote(), core.now_ms());
    Ok(match rated {
        Err(retry_after_ms) => Err(Refusal { code: ErrorCode::RateLimited, retry_after_ms }),
        Ok(()) => codec::decode(&bytes, MAX_FRAME_BYTES).map_err(Refusal::from),
    })
}

/// Sends the one frame that refuses a request.
pub(crate) async fn refuse(core: &Core, stream: TurnStream, refusal: Refusal) -> Result<(), FrameError> {
    core.observer.refused(refusal.code);
    send_only(core, stream, &refusal.frame()).await
}

async fn send_only(core: &Core, mut stream: TurnStream, frame: &NodeFrame) -> Result<(), FrameError> {
    let deadline = Instant::now() + core.limits.reader_stall;
    stream.send_by(&codec::encode(frame), deadline).await?;
    stream.close().await
}
