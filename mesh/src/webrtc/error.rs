//! Why a connection ended, or was not made.

use std::io;

use crate::webrtc::limits::SILENCE;

/// Why a connection ended.
#[derive(Debug, Clone, thiserror::Error)]
#[cfg_attr(target_family = "wasm", expect(dead_code, reason = "a page only dials"))]
pub(crate) enum ConnectionError {
    /// The peer closed the connection, or this side did.
    #[error("the connection is closed")]
    Closed,
    /// The peer sent nothing for a while, not even the requests by which a browser keeps a connection.
    #[error("the peer sent nothing for {} s", SILENCE.as_secs())]
    Silence,
    /// DTLS failed.
    #[error("DTLS: {0}")]
    Dtls(String),
    /// SCTP failed.
    #[error("SCTP: {0}")]
    Sctp(String),
    /// The peer did not prove an identity.
    #[error("Noise: {0}")]
    Noise(String),
    /// The browser refused a step.
    #[cfg(target_family = "wasm")]
    #[error("the browser: {0}")]
    Browser(String),
    /// A data channel began with another message than the one that opens it.
    #[error("a data channel was not opened as RFC 8832 has it")]
    Opening,
    /// The peer opened too many data channels.
    #[error("too many data channels")]
    Channels,
}

impl From<ConnectionError> for io::Error {
    fn from(error: ConnectionError) -> Self {
        Self::other(error)
    }
}
