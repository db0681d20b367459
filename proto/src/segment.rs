//! Segments and their blobs: one PUT per turn, of bounded size at any length of a session.

use baton_keys::{OpenError, session::BlobKey};
use serde::{Deserialize, Serialize};

use crate::{
    codec,
    error::ErrorCode,
    ids::{BlobSalt, SessionId},
    limits::{MAX_BLOB_BYTES, MAX_SEGMENT_BUCKET, MIN_SEGMENT_BUCKET, SEGMENT_BYTES, SEGMENT_TURNS, VERSION},
    record::SealedRecord,
    signed::SignedBytes,
};

/// Length of the salt at the start of every blob.
const SALT_LEN: usize = BlobSalt::LEN;

/// One turn in a segment, carried verbatim from blob to blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The signed link.
    pub link: SignedBytes,
    /// The sealed record.
    pub record: SealedRecord,
}

impl Entry {
    /// Bytes of the encoded entry: two lengths, link body, signature, record.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        Self::encoded_len_of(self.link.body.len(), self.record.0.len())
    }

    /// As [`Entry::encoded_len`], from the lengths of the link's body and the sealed record.
    pub(crate) fn encoded_len_of(link_body: usize, record: usize) -> usize {
        8 + link_body + 64 + 8 + record
    }
}

/// A run of turns, stored together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Format version, 1.
    pub version: u8,
    /// The session.
    pub session_id: SessionId,
    /// Segment number, from 0.
    pub segment: u64,
    /// The turns so far, oldest first; at least one in a stored blob.
    pub entries: Vec<Entry>,
}

/// Bytes of an encoded segment without entries: version, session id, number, count.
pub const SEGMENT_HEADER_LEN: usize = 1 + 32 + 8 + 8;

/// Whether a segment of this many turns and encoded bytes takes no further turn.
#[must_use]
pub fn is_closed(turns: usize, encoded_bytes: usize) -> bool {
    turns >= SEGMENT_TURNS || encoded_bytes >= SEGMENT_BYTES
}

impl Segment {
    /// An empty segment.
    #[must_use]
    pub fn empty(session_id: SessionId, segment: u64) -> Self {
        Self { version: VERSION, session_id, segment, entries: Vec::new() }
    }

    /// Bytes of the encoded segment.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        SEGMENT_HEADER_LEN + self.entries.iter().map(Entry::encoded_len).sum::<usize>()
    }

    /// Whether one more entry of this length closes the segment.
    #[must_use]
    pub fn closes_with(&self, entry_bytes: usize) -> bool {
        is_closed(self.entries.len() + 1, self.encoded_len().saturating_add(entry_bytes))
    }

    /// Whether the next turn starts a new segment.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        is_closed(self.entries.len(), self.encoded_len())
    }

    /// Seals the segment as a blob: `salt ‖ sealed(padded segment)`. Deterministic: segment and keys give the
    /// same bytes again.
    ///
    /// # Errors
    /// [`ErrorCode::BlobTooLarge`] when it exceeds the largest bucket.
    pub fn seal(&self, key: &BlobKey, salt: &BlobSalt) -> Result<Vec<u8>, ErrorCode> {
        let encoded = codec::encode(self);
        let padded = codec::pad(&encoded, MIN_SEGMENT_BUCKET, MAX_SEGMENT_BUCKET)
            .map_err(|_| ErrorCode::BlobTooLarge)?;
        let sealed = key.seal(salt, &self.session_id, self.segment, &padded);
        let mut blob = Vec::with_capacity(SALT_LEN + sealed.len());
        blob.extend_from_slice(&salt.0);
        blob.extend_from_slice(&sealed);
        Ok(blob)
    }

    /// Opens a blob of a known session and segment.
    ///
    /// # Errors
    /// [`ErrorCode::BlobTooLarge`]. [`ErrorCode::PayloadRejected`] when the key does not open it.
    /// [`ErrorCode::NonCanonical`], [`ErrorCode::UnsupportedVersion`], [`ErrorCode::BadSequence`] for its
    /// content.
    pub fn open(blob: &[u8], key: &BlobKey, session_id: &SessionId, segment: u64) -> Result<Self, ErrorCode> {
        if blob.len() > MAX_BLOB_BYTES {
            return Err(ErrorCode::BlobTooLarge);
        }
        let (salt, sealed) = split_salt(blob)?;
        let padded =
            key.open(&salt, session_id, segment, sealed).map_err(|OpenError| ErrorCode::PayloadRejected)?;
        let opened: Self = codec::decode(codec::unpad(&padded, MIN_SEGMENT_BUCKET)?, MAX_SEGMENT_BUCKET)?;
        if opened.version != VERSION {
            return Err(ErrorCode::UnsupportedVersion);
        }
        let in_place = opened.session_id == *session_id && opened.segment == segment;
        if !in_place || opened.entries.is_empty() || opened.entries.len() > SEGMENT_TURNS {
            return Err(ErrorCode::BadSequence);
        }
        Ok(opened)
    }
}

/// The salt of a blob.
///
/// # Errors
/// [`ErrorCode::NonCanonical`] when the blob is shorter than a salt.
pub fn blob_salt(blob: &[u8]) -> Result<BlobSalt, ErrorCode> {
    split_salt(blob).map(|(salt, _)| salt)
}

fn split_salt(blob: &[u8]) -> Result<(BlobSalt, &[u8]), ErrorCode> {
    let (salt, sealed) = blob.split_first_chunk::<SALT_LEN>().ok_or(ErrorCode::NonCanonical)?;
    Ok((BlobSalt(*salt), sealed))
}
