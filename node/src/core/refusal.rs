//! Refusals of requests, as they go out.

use baton_proto::{ErrorCode, wire::NodeFrame};

use super::limits::BUSY_RETRY_MS;
use crate::journal::JournalError;

/// Why a request is refused, and when it may come again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Why.
    pub(crate) code: ErrorCode,
    /// Wait at least so long before trying here again; 0 says nothing.
    pub(crate) retry_after_ms: u32,
}

impl From<ErrorCode> for Refusal {
    fn from(code: ErrorCode) -> Self {
        let retry_after_ms = if code == ErrorCode::Busy { BUSY_RETRY_MS } else { 0 };
        Self { code, retry_after_ms }
    }
}

impl Refusal {
    /// The journal failed; the operator is told, the peer only that.
    pub(crate) fn of_journal(error: JournalError) -> Self {
        tracing::error!(%error, "the journal failed");
        ErrorCode::Internal.into()
    }

    /// As it goes out.
    pub(crate) fn frame(self) -> NodeFrame {
        NodeFrame::Refused { code: self.code, retry_after_ms: self.retry_after_ms }
    }
}
