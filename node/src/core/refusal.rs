//! Refusals of requests on the wire.

use baton_proto::{ErrorCode, wire::NodeFrame};

use super::limits::BUSY_RETRY_MS;
use crate::journal::JournalError;

/// Why a request is refused, and its retry time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The error code.
    pub(crate) code: ErrorCode,
    /// Minimum wait before a retry here; 0 says nothing.
    pub(crate) retry_after_ms: u32,
}

impl From<ErrorCode> for Refusal {
    fn from(code: ErrorCode) -> Self {
        let retry_after_ms = if code == ErrorCode::Busy { BUSY_RETRY_MS } else { 0 };
        Self { code, retry_after_ms }
    }
}

impl Refusal {
    /// The journal failed. The operator gets the details, the peer only the code.
    pub(crate) fn of_journal(error: JournalError) -> Self {
        tracing::error!(%error, "the journal failed");
        ErrorCode::Internal.into()
    }

    /// The refusal as a frame.
    pub(crate) fn frame(self) -> NodeFrame {
        NodeFrame::Refused { code: self.code, retry_after_ms: self.retry_after_ms }
    }
}
