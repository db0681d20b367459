//! Frames of an accepted substream: reads the first ones within limits, and sends answers of one frame.

use baton_limits::Offence;
use baton_mesh::{Caller, FrameError, TurnReceiver, TurnStream};
use baton_proto::{
    codec,
    embed::{EMBED_PROTOCOL, EmbedAnswer},
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use super::{Core, limits::MAX_STRAY_FRAME_BYTES, refusal::Refusal};

/// Reads and decodes the first or the second frame.
pub(crate) async fn next_frame<T: DeserializeOwned>(
    core: &Core,
    stream: &mut TurnStream,
    who: &Caller,
    limit: usize,
) -> Result<Result<T, Refusal>, FrameError> {
    let received = core.defence.receive(stream, who, limit).await?;
    Ok(match received {
        Ok((bytes, _share)) => codec::decode(&bytes, limit).map_err(Refusal::from),
        Err(denial) => Err(denial.into()),
    })
}

/// Waits until a client that has sent everything gives up its request.
pub(crate) async fn left(receiver: &mut TurnReceiver) -> FrameError {
    receiver.recv(MAX_STRAY_FRAME_BYTES).await.err().unwrap_or(FrameError::Interrupted)
}

/// Sends the single frame that refuses a request.
pub(crate) async fn refuse(
    core: &Core,
    stream: TurnStream,
    who: Caller,
    refusal: Refusal,
) -> Result<(), FrameError> {
    core.observer.refused(refusal.code);
    core.defence.refused(&who, refusal.code);
    let Refusal { code, retry_after_ms, .. } = &refusal;
    let (code, retry_after_ms) = (*code, *retry_after_ms);
    match stream.protocol() {
        EMBED_PROTOCOL => send_only(core, stream, &who, &EmbedAnswer::Refused { code, retry_after_ms }).await,
        _ => send_only(core, stream, &who, &refusal.frame()).await,
    }
}

/// Sends the single frame of an answer, and closes the stream.
pub(crate) async fn send_only(
    core: &Core,
    mut stream: TurnStream,
    who: &Caller,
    frame: &impl Serialize,
) -> Result<(), FrameError> {
    let deadline = Instant::now() + core.limits.reader_stall;
    let sent = stream.send_by(&codec::encode(frame), deadline).await;
    if matches!(sent, Err(FrameError::Timeout)) {
        core.defence.offence(who, Offence::Stalled);
    }
    sent?;
    stream.close().await
}
