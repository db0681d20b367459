//! One accepted substream: its first frame decides what it is.

use std::{sync::Arc, time::Duration};

use baton_mesh::{FrameError, FrameTooLarge, TurnReceiver, TurnStream};
use baton_proto::{
    ErrorCode,
    audit::{AUDIT_PROTOCOL, AuditAnswer},
    codec,
    embed::{EMBED_PROTOCOL, EmbedAnswer},
    ids::{BlobDigest, FetchProof},
    limits::{MAX_BLOB_BYTES, MAX_FRAME_BYTES},
    wire::{ClientFrame, NodeFrame},
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use super::{
    Core, RequestKind, audit, embedding,
    guard::{Caller, Offence, Turned},
    limits::{BUSY_RETRY_MS, SMALL_FRAME_BYTES},
    questions,
};
use crate::turn::{self, Refusal};

/// Largest further frame of a client that waits: none is expected.
const MAX_STRAY_FRAME_BYTES: usize = 64;

/// Serves a substream to its end, or until the service ends.
pub(crate) async fn serve(core: Arc<Core>, stream: TurnStream) {
    let who = core.guard().caller(stream.remote(), stream.origin());
    let arrived = core.guard().arrive(&who, core.now_ms());
    let served = async {
        match arrived {
            Err(turned) => turn_away(&core, stream, who, turned).await,
            Ok(()) => match stream.protocol() {
                EMBED_PROTOCOL => embedding::serve(&core, stream, who).await,
                AUDIT_PROTOCOL => audit::serve(&core, stream, who).await,
                _ => answer(&core, stream, who).await,
            },
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
    let frame = match next_frame(core, &mut stream, &who, MAX_FRAME_BYTES).await? {
        Ok(frame) => frame,
        Err(refusal) => return refuse(core, stream, who, refusal).await,
    };
    let (kind, answered) = match frame {
        ClientFrame::Turn(request) => {
            core.observer.requested(RequestKind::Turn);
            return turn::serve(core, stream, who, request, None).await;
        }
        ClientFrame::Quota(used) => {
            core.observer.requested(RequestKind::Turn);
            return match next_frame(core, &mut stream, &who, MAX_FRAME_BYTES).await? {
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
        ClientFrame::Abort(bytes) => (RequestKind::Abort, questions::abort(core, &who, bytes).await),
        ClientFrame::FetchBlob { digest, proof } => return send_blob(core, stream, who, digest, proof).await,
        ClientFrame::NodeRecord => {
            (RequestKind::NodeRecord, Ok(NodeFrame::NodeRecord(core.identity.record())))
        }
    };
    core.observer.requested(kind);
    match answered {
        Ok(frame) => send_only(core, stream, &who, &frame).await,
        Err(refusal) => refuse(core, stream, who, refusal).await,
    }
}

async fn send_blob(
    core: &Core,
    stream: TurnStream,
    who: Caller,
    digest: BlobDigest,
    proof: FetchProof,
) -> Result<(), FrameError> {
    core.observer.requested(RequestKind::FetchBlob);
    let deadline = Instant::now() + core.limits.request_timeout;
    // Held until the blob is handed over: its bytes, and their encoding.
    let mut share = match core.frame_shares.take(2 * MAX_BLOB_BYTES, who.subnet, deadline).await {
        Ok(share) => share,
        Err(code) => return refuse(core, stream, who, code.into()).await,
    };
    match questions::blob(core, digest, proof).await {
        Ok(blob) => {
            share.shrink_to(2 * blob.len());
            send_only(core, stream, &who, &NodeFrame::Blob(blob)).await
        }
        Err(refusal) => refuse(core, stream, who, refusal).await,
    }
}

/// Reads and decodes the first frame, or the second.
pub(crate) async fn next_frame<T: DeserializeOwned>(
    core: &Core,
    stream: &mut TurnStream,
    who: &Caller,
    limit: usize,
) -> Result<Result<T, Refusal>, FrameError> {
    let deadline = Instant::now() + core.limits.request_timeout;
    let mut received = stream.recv_by(SMALL_FRAME_BYTES, deadline).await;
    let mut _share = None;
    let mut large = false;
    if let Err(FrameError::TooLarge(FrameTooLarge { len, .. })) = received
        && len <= limit
    {
        // Bytes and what is decoded from them.
        _share = match core.frame_shares.take(2 * len, who.subnet, deadline).await {
            Ok(share) => Some(share),
            Err(code) => return Ok(Err(Refusal { code, retry_after_ms: BUSY_RETRY_MS })),
        };
        large = true;
        received = stream.recv_by(limit, deadline).await;
    }
    let bytes = match received {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Err(FrameError::Truncated),
        Err(FrameError::TooLarge(_)) => return Ok(Err(ErrorCode::FrameTooLarge.into())),
        Err(error) => {
            // Memory was kept for what did not come.
            if large || matches!(error, FrameError::Timeout) {
                core.note_offence(who, Offence::Stalled);
            }
            return Err(error);
        }
    };
    Ok(codec::decode(&bytes, limit).map_err(Refusal::from))
}

/// Waits until a client that has nothing more to send gives its request up.
pub(crate) async fn left(receiver: &mut TurnReceiver) -> FrameError {
    receiver.recv(MAX_STRAY_FRAME_BYTES).await.err().unwrap_or(FrameError::Interrupted)
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
    let Refusal { code, retry_after_ms } = refusal;
    match stream.protocol() {
        EMBED_PROTOCOL => send_only(core, stream, &who, &EmbedAnswer::Refused { code, retry_after_ms }).await,
        AUDIT_PROTOCOL => send_only(core, stream, &who, &AuditAnswer::Refused { code, retry_after_ms }).await,
        _ => send_only(core, stream, &who, &refusal.frame()).await,
    }
}

async fn send_only(
    core: &Core,
    mut stream: TurnStream,
    who: &Caller,
    frame: &impl Serialize,
) -> Result<(), FrameError> {
    let deadline = Instant::now() + core.limits.reader_stall;
    let sent = stream.send_by(&codec::encode(frame), deadline).await;
    if matches!(sent, Err(FrameError::Timeout)) {
        core.note_offence(who, Offence::Stalled);
    }
    sent?;
    stream.close().await
}
