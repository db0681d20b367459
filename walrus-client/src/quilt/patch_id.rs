//! IDs of patches.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

use super::VERSION;
use crate::blob_id::BlobId;

/// Bytes of a patch ID: quilt ID, version, and two column numbers.
const BYTES: usize = 37;

/// The ID of a patch: its quilt, and its columns there. It does not depend on the patch's content alone: the
/// same blob has another ID in every quilt.
///
/// Its text form is URL-safe base64 without padding, 50 characters, as on Walrus's HTTP interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuiltPatchId {
    /// The quilt's blob ID.
    pub quilt: BlobId,
    /// First column of the patch.
    pub start: u16,
    /// The column after its last column; greater than `start`.
    pub end: u16,
}

/// A text that is not a patch ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a quilt patch ID is 50 characters of URL-safe base64 that name a quilt and a range of columns")]
pub struct ParseQuiltPatchIdError;

impl std::fmt::Display for QuiltPatchId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend(self.quilt.0);
        bytes.push(VERSION);
        bytes.extend(self.start.to_le_bytes());
        bytes.extend(self.end.to_le_bytes());
        f.write_str(&URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl std::str::FromStr for QuiltPatchId {
    type Err = ParseQuiltPatchIdError;

    fn from_str(text: &str) -> Result<Self, ParseQuiltPatchIdError> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| ParseQuiltPatchIdError)?;
        let (quilt, rest) = bytes.split_first_chunk::<32>().ok_or(ParseQuiltPatchIdError)?;
        let [VERSION, start_low, start_high, end_low, end_high] = *rest else {
            return Err(ParseQuiltPatchIdError);
        };
        let start = u16::from_le_bytes([start_low, start_high]);
        let end = u16::from_le_bytes([end_low, end_high]);
        if start >= end {
            return Err(ParseQuiltPatchIdError);
        }
        Ok(Self { quilt: BlobId(*quilt), start, end })
    }
}
