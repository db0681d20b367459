//! One accepted substream: its first frame selects the handler.

use std::sync::Arc;

use baton_mesh::{Caller, FrameError, TurnStream};
use baton_proto::{
    ErrorCode,
    embed::EMBED_PROTOCOL,
    ids::{BlobDigest, FetchProof},
    limits::{MAX_BLOB_BYTES, MAX_FRAME_BYTES},
    wire::{ClientFrame, NodeFrame},
};

use super::{embedding, questions};
use crate::{
    core::{
        Core,
        frames::{next_frame, refuse, send_only},
    },
    turn,
};

/// Serves a substream to its end, or until the service ends.
pub(crate) async fn serve(core: Arc<Core>, stream: TurnStream) {
    let who = core.defence.caller(&stream);
    let served = async {
        // A refused stream is not read: a read would cost more than the share of its peer.
        match core.defence.arrive(&who, core.peers.as_ref()) {
            Err(denial) => refuse(&core, stream, who, denial.into()).await,
            Ok(()) => match stream.protocol() {
                EMBED_PROTOCOL => embedding::serve(&core, stream, who).await,
                _ => answer(&core, stream, who).await,
            },
        }
    };
    if let Some(Err(error)) = core.closing.run_until_cancelled(Box::pin(served)).await {
        tracing::debug!(%error, "a turn substream ended early");
    }
}

async fn answer(core: &Arc<Core>, mut stream: TurnStream, who: Caller) -> Result<(), FrameError> {
    let frame = match next_frame(core, &mut stream, &who, MAX_FRAME_BYTES).await? {
        Ok(frame) => frame,
        Err(refusal) => return refuse(core, stream, who, refusal).await,
    };
    let (kind, answered) = match frame {
        ClientFrame::Turn(request) => {
            core.observer.requested("turn");
            return turn::serve(core, stream, who, request, None).await;
        }
        ClientFrame::Quota(used) => {
            core.observer.requested("turn");
            return match next_frame(core, &mut stream, &who, MAX_FRAME_BYTES).await? {
                Ok(ClientFrame::Turn(request)) => turn::serve(core, stream, who, request, Some(used)).await,
                Ok(_) => refuse(core, stream, who, ErrorCode::NonCanonical.into()).await,
                Err(refusal) => refuse(core, stream, who, refusal).await,
            };
        }
        ClientFrame::Relay { .. } => ("relay", Err(ErrorCode::UnsupportedVersion.into())),
        ClientFrame::Note(bytes) => ("note", questions::note(core, &who, bytes).await),
        ClientFrame::FetchBlob { digest, proof } => return send_blob(core, stream, who, digest, proof).await,
        ClientFrame::NodeRecord => ("node_record", Ok(NodeFrame::NodeRecord(core.identity.record()))),
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
    core.observer.requested("fetch_blob");
    // Held until the blob is sent: its bytes, and their encoding.
    let mut share = match core.defence.blob_share(&who, 2 * MAX_BLOB_BYTES).await {
        Ok(share) => share,
        Err(denial) => return refuse(core, stream, who, denial.into()).await,
    };
    match questions::blob(core, digest, proof).await {
        Ok(blob) => {
            share.shrink_to(2 * blob.len());
            send_only(core, stream, &who, &NodeFrame::Blob(blob)).await
        }
        Err(refusal) => refuse(core, stream, who, refusal).await,
    }
}
