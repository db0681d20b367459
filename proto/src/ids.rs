//! Identifiers of wire objects, and a re-export of those that the key schedule needs.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use baton_keys::byte_id;
pub use baton_keys::ids::{
    BlobSalt, EmbedId, Encapsulation, ExchangeKey, ExchangeKeyId, HeadIndexKey, NodeId, ParseIdError,
    PublicKey, SessionId, TurnId,
};

/// A Walrus blob ID: the 32 hash bytes that Walrus computes from a blob's erasure coding.
///
/// Its text form is URL-safe base64 without padding, 43 characters, as on Walrus's HTTP interface.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct BlobId(pub [u8; 32]);

/// A text that is not a Walrus blob ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a blob ID is 43 characters of URL-safe base64")]
pub struct ParseBlobIdError;

impl std::fmt::Display for BlobId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl std::fmt::Debug for BlobId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BlobId({self})")
    }
}

impl std::str::FromStr for BlobId {
    type Err = ParseBlobIdError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| ParseBlobIdError)?;
        Ok(Self(bytes.try_into().map_err(|_| ParseBlobIdError)?))
    }
}

byte_id!(
    /// BLAKE3 of a stored blob's bytes; the hot path checks this hash.
    BlobDigest, 32
);
byte_id!(
    /// Proof that the requester of a blob holds its key.
    FetchProof, 32
);
byte_id!(
    /// Hash of a signed link, its node signature included.
    LinkHash, 32
);
byte_id!(
    /// Hash of a sealed record.
    RecordHash, 32
);
byte_id!(
    /// Hash of a signed turn authorisation, its signature included.
    AuthHash, 32
);
byte_id!(
    /// Hash of a sealed payload.
    PayloadHash, 32
);
byte_id!(
    /// Hash of a grant (the keys handed to a node for one turn).
    GrantHash, 32
);
byte_id!(
    /// Hash of the sampling settings of a turn.
    SamplingDigest, 32
);
byte_id!(
    /// Hash of a signed receipt, its signature included.
    ReceiptHash, 32
);
byte_id!(
    /// A model's identity: the hash of its manifest (weights, tokenizer, template).
    ModelId, 32
);
byte_id!(
    /// A keyed commitment in a receipt; only a holder of the turn's record key can check it.
    Commitment, 32
);
byte_id!(
    /// The running hash over the tokens of an answer.
    RunningHash, 32
);
byte_id!(
    /// One of a client's devices, 16 random bytes.
    DeviceId, 16
);
byte_id!(
    /// Hash of a signed right, its signature included.
    RightHash, 32
);
byte_id!(
    /// The id by which a right is revoked, 16 random bytes.
    RightId, 16
);
byte_id!(
    /// A Sui-style address: BLAKE2b-256 of `0x00` and an Ed25519 public key.
    SuiAddress, 32
);
