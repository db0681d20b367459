//! A client's signed note about a past turn: acknowledgement, abort or status request.

use baton_keys::{
    contexts::{SignatureLabel, TURN_NOTE},
    session::session_id,
};
use serde::{Deserialize, Serialize};

use crate::{
    error::ErrorCode,
    ids::{BlobDigest, LinkHash, NodeId, PublicKey, ReceiptHash, SessionId, TurnId},
    limits::VERSION,
    link::Link,
    signed::{Signable, SignedObject},
    turn::TurnAuth,
};

pub(crate) fn check_session(id: &SessionId, key: &PublicKey) -> Result<(), ErrorCode> {
    if session_id(key) == *id { Ok(()) } else { Err(ErrorCode::SessionIdMismatch) }
}

/// A client's note about one attempt, to its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnNote {
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
    /// The attempt.
    pub attempt: u32,
    /// The node of the attempt.
    pub node: NodeId,
    /// When, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// The client's words about the attempt.
    pub kind: TurnNoteKind,
}

/// A kind of note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TurnNoteKind {
    /// The client rebuilt the turn and accepts it. Idempotent; the client repeats it if it is lost.
    Ack(Acknowledgement),
    /// The client rejects the attempt: its blob is an orphan and expires.
    Abort,
    /// Asks for the state of the attempt. Signed, so that only the session's owner can ask.
    Status,
}

/// The accepted turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledgement {
    /// The accepted link.
    pub link_hash: LinkHash,
    /// The accepted blob.
    pub blob_digest: BlobDigest,
    /// The countersigned receipt.
    pub receipt_hash: ReceiptHash,
}

impl TurnNote {
    /// A note about the attempt of an authorisation.
    #[must_use]
    pub fn of(auth: &TurnAuth, kind: TurnNoteKind, time_ms: u64) -> Self {
        Self {
            version: VERSION,
            session_id: auth.session_id,
            session_key: auth.session_key,
            seq: auth.seq,
            turn_id: auth.turn_id,
            attempt: auth.attempt,
            node: auth.audience,
            time_ms,
            kind,
        }
    }

    /// Whether the note accepts the turn of this link and blob.
    #[must_use]
    pub fn accepts(&self, link: &SignedObject<Link>, blob_digest: BlobDigest) -> bool {
        let accepted =
            Acknowledgement { link_hash: link.link_hash(), blob_digest, receipt_hash: link.receipt_hash };
        self.session_id == link.session_id
            && self.seq == link.seq
            && self.turn_id == link.turn_id
            && self.attempt == link.attempt
            && self.node == link.author
            && self.kind == TurnNoteKind::Ack(accepted)
    }
}

/// Implements [`Signable`] for a message that its session's key signs.
macro_rules! signed_by_session {
    ($name:ident, $label:expr) => {
        impl Signable for $name {
            const LABEL: SignatureLabel = $label;
            const BAD_SIGNATURE: ErrorCode = ErrorCode::BadSignature;

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

signed_by_session!(TurnNote, TURN_NOTE);
