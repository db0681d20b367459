//! Head records: the end of a session's chain, found by session ID, or by root on another device.

use baton_keys::{
    OpenError,
    contexts::{HEAD, SignatureLabel},
    session::{SessionRoot, head_index_key, head_locate_key},
};
use serde::{Deserialize, Serialize};

use crate::{
    codec,
    error::ErrorCode,
    ids::{DeviceId, HeadIndexKey, LinkHash, NodeId, PublicKey, SessionId, TurnId},
    limits::{
        HEAD_INNER_BLOCK, HEAD_OUTER_BLOCK, MAX_DEVICES, MAX_HEAD_BYTES, MAX_HEAD_LIFETIME_MS,
        MAX_READ_BLOBS, VERSION,
    },
    link::{BlobRef, BranchPoint},
    signed::{Signable, SignedObject},
};

/// The signed record as an index stores it. The index, and any validator, learns neither the session id nor
/// the blobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadRecord {
    /// Format version, 1.
    pub version: u8,
    /// The head public key, which signs; the index key is its hash.
    pub head_key: PublicKey,
    /// Rises with every publication: the time in milliseconds, or the last sequence plus one if that is
    /// greater. So it does not count turns.
    pub sequence: u64,
    /// When it was issued, in milliseconds since the Unix epoch.
    pub issued_ms: u64,
    /// When the index may drop it.
    pub expires_ms: u64,
    /// [`HeadOuter`], padded to a multiple of 1 KiB and sealed under `KDF("head-locate", session_id)`.
    #[serde(with = "serde_bytes")]
    pub outer: Vec<u8>,
    /// [`HeadInner`], padded to a multiple of 512 bytes and sealed under `KDF("head-inner", R)`.
    #[serde(with = "serde_bytes")]
    pub inner: Vec<u8>,
}

/// A blob and the segment it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentRef {
    /// Segment number.
    pub segment: u64,
    /// Its latest blob.
    pub blob: BlobRef,
}

/// The part for every holder of the session id: enough to fetch the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadOuter {
    /// Shard count of the session's blob IDs.
    pub n_shards: u16,
    /// The parent, if the session is a branch.
    pub branch: Option<BranchPoint>,
    /// The last turn.
    pub seq: u64,
    /// Its link.
    pub link_hash: LinkHash,
    /// Blobs, newest first: the last turn's, then the closed segments before it, at most nine.
    pub blobs: Vec<SegmentRef>,
}

/// A device that may write the session for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceLease {
    /// The device.
    pub device: DeviceId,
    /// When the lease ends, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
}

/// The part for the client's own devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadInner {
    /// The last turn.
    pub turn_id: TurnId,
    /// Its attempt.
    pub attempt: u32,
    /// The node that served it.
    pub author: NodeId,
    /// Devices that may write.
    pub devices: Vec<DeviceLease>,
    /// Whether the session was deleted.
    pub tombstone: bool,
}

impl Signable for HeadRecord {
    const LABEL: SignatureLabel = HEAD;
    const BAD_SIGNATURE: ErrorCode = ErrorCode::BadSignature;
    const MAX_BYTES: usize = MAX_HEAD_BYTES;

    fn version(&self) -> u8 {
        self.version
    }

    fn signer(&self) -> PublicKey {
        self.head_key
    }

    fn check(&self) -> Result<(), ErrorCode> {
        let lifetime = self.expires_ms.checked_sub(self.issued_ms);
        match lifetime {
            Some(lifetime) if lifetime <= MAX_HEAD_LIFETIME_MS => Ok(()),
            _ => Err(ErrorCode::Expired),
        }
    }
}

impl HeadRecord {
    /// Builds and signs a head record.
    #[must_use]
    pub fn seal(
        root: &SessionRoot,
        outer: &HeadOuter,
        inner: &HeadInner,
        sequence: u64,
        issued_ms: u64,
        expires_ms: u64,
    ) -> SignedObject<Self> {
        let signing = root.head_signing_key();
        let head_key = signing.public_key();
        let record = Self {
            version: VERSION,
            head_key,
            sequence,
            issued_ms,
            expires_ms,
            outer: head_locate_key(&root.session_id())
                .seal(&head_key, &codec::pad_block(&codec::encode(outer), HEAD_OUTER_BLOCK)),
            inner: root
                .head_inner_key()
                .seal(&head_key, &codec::pad_block(&codec::encode(inner), HEAD_INNER_BLOCK)),
        };
        SignedObject::sign(record, &signing)
    }

    /// The key that indexes the record.
    #[must_use]
    pub fn index_key(&self) -> HeadIndexKey {
        head_index_key(&self.head_key)
    }

    /// Opens the outer part.
    ///
    /// # Errors
    /// [`ErrorCode::PayloadRejected`] when the record belongs to another session, and the codes of the codec.
    pub fn open_outer(&self, session_id: &SessionId) -> Result<HeadOuter, ErrorCode> {
        let opened = head_locate_key(session_id)
            .open(&self.head_key, &self.outer)
            .map_err(|OpenError| ErrorCode::PayloadRejected)?;
        let outer: HeadOuter = codec::decode(codec::unpad_block(&opened, HEAD_OUTER_BLOCK)?, MAX_HEAD_BYTES)?;
        let descending = outer.blobs.windows(2).all(|pair| matches!(pair, [a, b] if a.segment > b.segment));
        if outer.blobs.is_empty() || outer.blobs.len() > MAX_READ_BLOBS || !descending {
            return Err(ErrorCode::BadSequence);
        }
        Ok(outer)
    }

    /// Opens the inner part.
    ///
    /// # Errors
    /// As [`HeadRecord::open_outer`].
    pub fn open_inner(&self, root: &SessionRoot) -> Result<HeadInner, ErrorCode> {
        let opened = root
            .head_inner_key()
            .open(&self.head_key, &self.inner)
            .map_err(|OpenError| ErrorCode::PayloadRejected)?;
        let inner: HeadInner = codec::decode(codec::unpad_block(&opened, HEAD_INNER_BLOCK)?, MAX_HEAD_BYTES)?;
        if inner.devices.len() > MAX_DEVICES { Err(ErrorCode::FrameTooLarge) } else { Ok(inner) }
    }
}
