//! The sealed reply: each event becomes a chunk of a stream whose order and end cannot be forged.

use std::sync::Arc;

use baton_keys::{exchange::TurnSecret, seal::StreamSealer, secret::random_bytes};
use baton_proto::{
    ErrorCode,
    ids::AuthHash,
    wire::{NodeFrame, ReplyEvent},
};
use zeroize::Zeroize as _;

use crate::core::{
    refusal::Refusal,
    reply::{Reply, ReplyFull},
};

/// The writing end of a turn's reply.
pub(crate) struct ReplyWriter {
    reply: Arc<Reply>,
    sealer: StreamSealer,
    ended: bool,
}

impl From<ReplyFull> for ErrorCode {
    fn from(ReplyFull: ReplyFull) -> Self {
        tracing::error!("a reply exceeds its limit");
        Self::Internal
    }
}

impl ReplyWriter {
    /// Sends Accepted, with a nonce that is unique to this run.
    pub(crate) fn accept(
        reply: Arc<Reply>,
        secret: &TurnSecret,
        auth_hash: &AuthHash,
    ) -> Result<Self, ErrorCode> {
        let nonce = random_bytes();
        let sealer = secret.reply_sealer(&nonce, &auth_hash.0);
        reply.push(&NodeFrame::Accepted { nonce })?;
        Ok(Self { reply, sealer, ended: false })
    }

    fn seal(&mut self, mut event: ReplyEvent, last: bool) -> Result<(), ErrorCode> {
        if self.ended {
            return Err(ErrorCode::Internal);
        }
        self.ended = last;
        let chunk = event.to_chunk();
        if let ReplyEvent::Tokens { ids, text, logprobs, .. } = &mut event {
            ids.zeroize();
            text.zeroize();
            logprobs.zeroize();
        }
        self.reply.push(&NodeFrame::Chunk(self.sealer.seal(&chunk, last)))?;
        Ok(())
    }

    /// Sends an event.
    pub(crate) fn send(&mut self, event: ReplyEvent) -> Result<(), ErrorCode> {
        self.seal(event, false)
    }

    /// Waits until a reader is close enough for another event. This is how a slow reader slows the engine.
    pub(crate) async fn paced(&self) {
        self.reply.paced().await;
    }

    /// Sends the last event.
    pub(crate) fn send_last(&mut self, event: ReplyEvent) -> Result<(), ErrorCode> {
        self.seal(event, true)
    }

    /// Ends the reply of a turn without a signature.
    pub(crate) fn fail(&mut self, refusal: Refusal) -> Result<(), ErrorCode> {
        let Refusal { code, retry_after_ms, reason } = refusal;
        self.seal(ReplyEvent::Failed { code, retry_after_ms, reason }, true)
    }

    /// Waits until a reader has all events.
    pub(crate) async fn delivered(&self) {
        self.reply.delivered().await;
    }
}
