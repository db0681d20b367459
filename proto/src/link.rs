//! Links: the signed chain that pins every record, blob, authorisation and receipt of a session.

use baton_keys::{
    contexts::{GENESIS, LINK, LINK_HASH, SignatureLabel},
    secret::kdf,
    session::RecordIdentity,
};
use serde::{Deserialize, Serialize};

use crate::{
    error::ErrorCode,
    ids::{
        AuthHash, BlobDigest, BlobId, LinkHash, NodeId, PublicKey, ReceiptHash, RecordHash, SessionId, TurnId,
    },
    limits::{MAX_CLOCK_SKEW_MS, SEGMENT_TURNS},
    signed::{Signable, SignedObject},
};

/// The address of a stored blob, with the digest and length of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlobRef {
    /// Walrus blob ID (`prev_blob_id` in a link).
    pub blob_id: BlobId,
    /// BLAKE3 of the bytes.
    pub digest: BlobDigest,
    /// Number of bytes.
    pub length: u32,
}

impl BlobRef {
    /// Checks bytes against digest and length.
    ///
    /// # Errors
    /// [`ErrorCode::BlobHashMismatch`].
    pub fn check(&self, bytes: &[u8]) -> Result<(), ErrorCode> {
        if bytes.len() == self.length as usize && blob_digest(bytes) == self.digest {
            Ok(())
        } else {
            Err(ErrorCode::BlobHashMismatch)
        }
    }
}

/// Plain BLAKE3 of a blob's bytes.
#[must_use]
pub fn blob_digest(bytes: &[u8]) -> BlobDigest {
    BlobDigest(blake3::hash(bytes).into())
}

/// The point at which a branch left its parent session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BranchPoint {
    /// The parent session.
    pub session_id: SessionId,
    /// The last link shared with it.
    pub link_hash: LinkHash,
}

/// The start of a session: its first link continues it, and it binds the shard count for the blob IDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Genesis {
    /// The session's public key.
    pub session_key: PublicKey,
    /// Number of Walrus shards for which the session's blob IDs are computed.
    pub n_shards: u16,
    /// The parent, if the session is a branch.
    pub branch: Option<BranchPoint>,
}

impl Genesis {
    /// `KDF("genesis", session_id ‖ session key ‖ u16le(n_shards) [‖ parent session_id ‖ parent link hash])`.
    #[must_use]
    pub fn link_hash(&self) -> LinkHash {
        let id = baton_keys::session::session_id(&self.session_key);
        let mut input = [&id.0[..], &self.session_key.0, &self.n_shards.to_le_bytes()].concat();
        if let Some(branch) = &self.branch {
            input.extend_from_slice(&branch.session_id.0);
            input.extend_from_slice(&branch.link_hash.0);
        }
        LinkHash(kdf(GENESIS, &[&input]))
    }
}

/// One link, signed by the node that served the turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Format version, 1.
    pub version: u8,
    /// The session.
    pub session_id: SessionId,
    /// Position in the chain, from 0.
    pub seq: u64,
    /// Segment number, from 0.
    pub segment: u64,
    /// Position in the segment, from 0, below 16.
    pub index: u8,
    /// The turn.
    pub turn_id: TurnId,
    /// The attempt that was served.
    pub attempt: u32,
    /// Hash of the previous link, or of the genesis.
    pub prev_link: LinkHash,
    /// The previous turn's blob (`prev_blob_id` and its BLAKE3); none at seq 0.
    pub prev_blob: Option<BlobRef>,
    /// Hash of this turn's sealed record.
    pub record_hash: RecordHash,
    /// Length of the sealed record in bytes.
    pub record_length: u32,
    /// Hash of the client's authorisation of this turn.
    pub auth_hash: AuthHash,
    /// Hash of the receipt.
    pub receipt_hash: ReceiptHash,
    /// The node that served the turn and signs.
    pub author: NodeId,
    /// When, in milliseconds since the Unix epoch, by the node's clock.
    pub time_ms: u64,
}

impl Link {
    /// Whether the link's time lies near its order's: not before the order was issued, by more than
    /// [`MAX_CLOCK_SKEW_MS`], and not after `latest_ms`. A node fills in the time, and the link's hash covers it.
    #[must_use]
    pub fn is_timely(&self, issued_ms: u64, latest_ms: u64) -> bool {
        self.time_ms >= issued_ms.saturating_sub(MAX_CLOCK_SKEW_MS) && self.time_ms <= latest_ms
    }

    /// The fields from which the turn's record key derives.
    #[must_use]
    pub fn record_identity(&self) -> RecordIdentity {
        RecordIdentity {
            session_id: self.session_id,
            segment: self.segment,
            seq: self.seq,
            turn_id: self.turn_id,
            attempt: self.attempt,
            author: self.author,
        }
    }
}

impl Signable for Link {
    const LABEL: SignatureLabel = LINK;
    const BAD_SIGNATURE: ErrorCode = ErrorCode::BadNodeSignature;

    fn signer(&self) -> PublicKey {
        self.author.public_key()
    }

    fn check(&self) -> Result<(), ErrorCode> {
        let position_fits = usize::from(self.index) < SEGMENT_TURNS
            && u64::from(self.index) <= self.seq
            && self.segment <= self.seq;
        if !position_fits {
            return Err(ErrorCode::BadSequence);
        }
        let is_first = self.seq == 0;
        if self.prev_blob.is_none() == is_first { Ok(()) } else { Err(ErrorCode::BadGenesis) }
    }
}

impl SignedObject<Link> {
    /// `KDF("link-hash", body ‖ signature)`: so the next link also pins the node's signature.
    #[must_use]
    pub fn link_hash(&self) -> LinkHash {
        LinkHash(self.bytes().hash(LINK_HASH))
    }
}
