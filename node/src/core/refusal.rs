//! Refusals of requests on the wire.

use baton_mesh::StreamDenial;
use baton_proto::{
    ErrorCode,
    wire::{NodeFrame, failure_reason},
};

use super::limits::BUSY_RETRY_MS;
use crate::journal::JournalError;

/// Why a request is refused or a turn fails, and its retry time.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The error code.
    pub(crate) code: ErrorCode,
    /// Minimum wait before a retry here; 0 says nothing.
    pub(crate) retry_after_ms: u32,
    /// The failure in words, for the client alone: it goes into sealed events, and never into the log.
    pub(crate) reason: String,
}

impl std::fmt::Debug for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Refusal({:?}, {} ms)", self.code, self.retry_after_ms)
    }
}

impl From<ErrorCode> for Refusal {
    fn from(code: ErrorCode) -> Self {
        let retry_after_ms = if code == ErrorCode::Busy { BUSY_RETRY_MS } else { 0 };
        Self::after(code, retry_after_ms)
    }
}

impl From<StreamDenial> for Refusal {
    fn from(StreamDenial { code, retry_after_ms }: StreamDenial) -> Self {
        Self::after(code, retry_after_ms)
    }
}

impl From<Refusal> for ErrorCode {
    fn from(refusal: Refusal) -> Self {
        refusal.code
    }
}

impl Refusal {
    /// A refusal with a retry time.
    pub(crate) fn after(code: ErrorCode, retry_after_ms: u32) -> Self {
        Self { code, retry_after_ms, reason: String::new() }
    }

    /// The same refusal with its reason in words.
    pub(crate) fn because(self, reason: &str) -> Self {
        Self { reason: failure_reason(reason), ..self }
    }

    /// The journal failed. The operator gets the details, the peer only the code.
    pub(crate) fn of_journal(error: JournalError) -> Self {
        tracing::error!(%error, "the journal failed");
        ErrorCode::Internal.into()
    }

    /// The refusal as a frame, without its reason.
    pub(crate) fn frame(&self) -> NodeFrame {
        NodeFrame::Refused { code: self.code, retry_after_ms: self.retry_after_ms }
    }
}
