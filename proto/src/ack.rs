//! A client's messages about a past turn: acknowledgement, abort and status request.

use baton_keys::{
    contexts::{ABORT, STATUS_REQUEST, SignatureLabel, TURN_ACK},
    session::session_id,
};
use serde::{Deserialize, Serialize};

use crate::{
    error::ErrorCode,
    ids::{BlobDigest, LinkHash, NodeId, PublicKey, ReceiptHash, SessionId, TurnId},
    signed::Signable,
};

pub(crate) fn check_session(id: &SessionId, key: &PublicKey) -> Result<(), ErrorCode> {
    if session_id(key) == *id { Ok(()) } else { Err(ErrorCode::SessionIdMismatch) }
}

/// The client rebuilt the turn and accepts it. Idempotent; the client repeats it if it is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnAck {
    /// Format version, 1.
    pub version: u8,
    /// The session.
    pub session_id: SessionId,
    /// The session's public key, which signs.
    pub session_key: PublicKey,
    /// Position in the chain.
    pub seq: u64,
    /// The accepted link.
    pub link_hash: LinkHash,
    /// The accepted blob.
    pub blob_digest: BlobDigest,
    /// The countersigned receipt.
    pub receipt_hash: ReceiptHash,
    /// When, in milliseconds since the Unix epoch.
    pub time_ms: u64,
}

/// The client rejects an attempt: its blob is an orphan and expires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abort {
    /// Format version, 1.
    pub version: u8,
    /// The session.
    pub session_id: SessionId,
    /// The session's public key, which signs.
    pub session_key: PublicKey,
    /// Position in the chain.
    pub seq: u64,
    /// The turn.
    pub turn_id: TurnId,
    /// The abandoned attempt.
    pub attempt: u32,
    /// When, in milliseconds since the Unix epoch.
    pub time_ms: u64,
}

/// Asks a node for the state of an attempt. Signed, so that only the session's owner can ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusRequest {
    /// Format version, 1.
    pub version: u8,
    /// The session.
    pub session_id: SessionId,
    /// The session's public key, which signs.
    pub session_key: PublicKey,
    /// The turn.
    pub turn_id: TurnId,
    /// The attempt.
    pub attempt: u32,
    /// The node that receives the request.
    pub node: NodeId,
    /// When, in milliseconds since the Unix epoch.
    pub time_ms: u64,
}

/// Implements [`Signable`] for a message that its session's key signs.
macro_rules! signed_by_session {
    ($name:ident, $label:expr) => {
        impl Signable for $name {
            const LABEL: SignatureLabel = $label;
            const BAD_SIGNATURE: ErrorCode = ErrorCode::BadSignature;

            fn version(&self) -> u8 {
                self.version
            }

            fn signer(&self) -> PublicKey {
                self.session_key
            }

            fn check(&self) -> Result<(), ErrorCode> {
                check_session(&self.session_id, &self.session_key)
            }
        }
    };
}
pub(crate) use signed_by_session;

signed_by_session!(TurnAck, TURN_ACK);
signed_by_session!(Abort, ABORT);
signed_by_session!(StatusRequest, STATUS_REQUEST);
