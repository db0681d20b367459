//! One accepted substream: its first frame decides what it is.

use std::{sync::Arc, time::Duration};

use baton_mesh::{FrameError, FrameTooLarge, TurnStream};
use baton_proto::{
    ErrorCode, codec,
    limits::{MAX_BLOB_BYTES, MAX_FRAME_BYTES},
    wire::{ClientFrame, NodeFrame},
};
use tokio::time::Instant;

use super::{
    Core, RequestKind,
    guard::{Caller, Offence, Turned},
    limits::{BUSY_RETRY_MS, SMALL_FRAME_BYTES},
    questions,
};
use crate::turn::{self, Refusal};

/// Serves a substream to its end, or until the service ends.
pub(crate) async fn serve(core: Arc<Core>, stream: TurnStream) {
    let who = core.guard().caller(stream.remote(), stream.origin());
    let arrived = core.guard().arrive(&who, core.now_ms());
    let served = async {
        match arrived {
            Ok(()) => answer(&core, stream, who).await,
            Err(turned) => turn_away(&core, stream, who, turned).await,
        }
    };
    if let Some(Err(error)) = core.closing.run_until_cancelled(Box::pin(served)).await {
        tracing::debug!(%error, "a turn substream ended early");
    }
}

/// Refuses a stream unread: reading it costs more than whoever opened it is owed.
async fn turn_away(core: &Core, stream: TurnStream, who: Caller, turned: Turned) -> Result<(), FrameError> {
    if let (Some(span_ms), Some(mesh)) = (turned.shut_out_ms, &core.peers) {
        mesh.shut_out(who.peer, Duration::from_millis(span_ms));
    }
    refuse(core, stream, who, Refusal { code: ErrorCode::RateLimited, retry_after_ms: turned.retry_after_ms })
        .await
}

async fn answer(core: &Arc<Core>, mut stream: TurnStream, who: Caller) -> Result<(), FrameError> {
    let frame = match next_frame(core, &mut stream, &who).await? {
        Ok(frame) => frame,
        Err(refusal) => return refuse(core, stream, who, refusal).await,
    };
    // Held until the blob is handed over: its bytes, and their encoding.
    let _share = match &frame {
        ClientFrame::FetchBlob { .. } => {
            let deadline = Instant::now() + core.limits.request_timeout;
            match core.frame_share(2 * MAX_BLOB_BYTES, deadline).await {
                Ok(share) => Some(share),
                Err(code) => return refuse(core, stream, who, code.into()).await,
            }
        }
        _ => None,
    };
    let (kind, answered) = match frame {
        ClientFrame::Turn(request) => {
            core.observer.requested(RequestKind::Turn);
            return turn::serve(core, stream, who, request, None).await;
        }
        ClientFrame::Quota(used) => {
            core.observer.requested(RequestKind::Turn);
            return match next_frame(core, &mut stream, &who).await? {
                Ok(ClientFrame::Turn(request)) => turn::serve(core, stream, who, request, Some(used)).await,
                Ok(_) => refuse(core, stream, who, ErrorCode::NonCanonical.into()).await,
                Err(refusal) => refuse(core, stream, who, refusal).await,
            };
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
        Err(refusal) => refuse(core, stream, who, refusal).await,
    }
}

/// Reads and decodes the first frame, or the second.
async fn next_frame(
    core: &Core,
    stream: &mut TurnStream,
    who: &Caller,
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
        Err(error) => {
            if matches!(error, FrameError::Timeout) {
                core.note_offence(who, Offence::Stalled);
            }
            return Err(error);
        }
    };
    Ok(codec::decode(&bytes, MAX_FRAME_BYTES).map_err(Refusal::from))
}

/// Sends the one frame that refuses a request.
pub(crate) async fn refuse(
    core: &Core,
    stream: TurnStream,
    who: Caller,
    refusal: Refusal,
) -> Result<(), FrameError> {
    core.observer.refused(refusal.code);
    core.note_refusal(&who, refusal.code);
    send_only(core, stream, &refusal.frame()).await
}

async fn send_only(core: &Core, mut stream: TurnStream, frame: &NodeFrame) -> Result<(), FrameError> {
    let deadline = Instant::now() + core.limits.reader_stall;
    stream.send_by(&codec::encode(frame), deadline).await?;
    stream.close().await
}
