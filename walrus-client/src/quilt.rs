//! Quilts (version 1): many small blobs in one Walrus blob.
//!
//! Owns the format: writes patches and their index into the k1 × k2 matrix of symbols, reads both back, and
//! makes patch IDs. Pure; the store client and the embedded store call it. A quilt comes from an unknown
//! peer, so no content may panic. Allocation stays within some twenty times the index, plus the requested
//! patch; short tags have that overhead in a map.
//!
//! The matrix is filled column by column. The index takes columns 0 on, at most ten. Each patch then starts a
//! fresh column, in the byte order of the identifiers. A quilt's ID is the blob ID of the whole matrix,
//! padding included. The layout is that of Walrus's `quilt_encoding.rs`, QuiltVersionV1:
//!
//! ```text
//! index = 01 ‖ u32 length ‖ BCS vector of { end column u16, identifier, map of tags }
//! patch = 01 ‖ u32 length of the rest ‖ mask u8 ‖ u16 length ‖ BCS identifier ‖ [u16 length ‖ BCS tags] ‖ data
//! ```
//!
//! All numbers are little-endian. A patch begins at the end of the patch before it; the first follows the
//! index.

mod bcs;
mod body;
mod index;
mod layout;
mod patch_id;

use std::collections::BTreeMap;

pub use index::{PatchEntry, QuiltIndex};
pub use layout::max_patches;
pub use patch_id::{ParseQuiltPatchIdError, QuiltPatchId};

use crate::blob_id::ShardCount;
use layout::Layout;

/// First byte of a quilt and of each patch: version 1.
const VERSION: u8 = 1;
/// Most columns that the index may take.
const MAX_INDEX_COLUMNS: usize = 10;
/// Bytes of version and length before the index itself.
const INDEX_PREFIX_BYTES: usize = 5;
/// Longest identifier, in bytes: its BCS form (up to three bytes longer) must stay below 65,535.
const MAX_IDENTIFIER_BYTES: usize = 65_531;
/// Longest BCS form of a patch's tags, in bytes: the length field has 16 bits.
const MAX_TAGS_BYTES: usize = 65_535;

/// A blob to be put in a quilt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuiltPatch<'a> {
    /// Its name, unique in the quilt: see [`check_identifier`].
    pub identifier: &'a str,
    /// Its tags: together at most 65,535 bytes in BCS.
    pub tags: BTreeMap<String, String>,
    /// Its bytes.
    pub data: &'a [u8],
}

/// An encoded quilt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quilt {
    /// The blob to store: k1 · k2 symbols, padding included. Its blob ID is the quilt's ID.
    pub bytes: Vec<u8>,
    /// The place of each patch.
    pub index: QuiltIndex,
}

/// The reason why patches cannot be encoded as a quilt, or bytes are not a valid quilt. No error holds an identifier or
/// other content: it names a patch by its position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuiltError {
    /// A range of columns that the index lacks.
    #[error("the quilt has no such patch")]
    UnknownPatch,
    /// Anything else.
    #[error("{0}")]
    Refused(String),
}

fn refused(reason: impl Into<String>) -> QuiltError {
    QuiltError::Refused(reason.into())
}

/// Refuses an identifier that Walrus refuses.
///
/// # Errors
/// The reason if it is empty, is longer than 65,531 bytes, ends in white space or has control characters.
pub fn check_identifier(identifier: &str) -> Result<(), &'static str> {
    if identifier.is_empty() {
        return Err("is empty");
    }
    if identifier.len() > MAX_IDENTIFIER_BYTES {
        return Err("is longer than 65,531 bytes");
    }
    if identifier.chars().any(char::is_control) {
        return Err("has a control character");
    }
    if identifier.trim_end().len() != identifier.len() {
        return Err("ends in white space");
    }
    Ok(())
}

/// As [`check_identifier`], of the patch at this position in the caller's list or in the index.
fn check_identifier_of(patch: usize, identifier: &str) -> Result<(), QuiltError> {
    check_identifier(identifier)
        .map_err(|reason| refused(format!("the identifier of patch {patch} {reason}")))
}

/// Length of the quilt of these patches in bytes, without building it. One large patch among many small ones
/// can make the quilt far larger than its patches. Callers that take patches from unknown peers should check
/// it first.
///
/// # Errors
/// Every error of [`encode`].
pub fn encoded_length(patches: &[QuiltPatch<'_>], shards: ShardCount) -> Result<u64, QuiltError> {
    Ok(QuiltPlan::new(patches, shards)?.layout.bytes() as u64)
}

/// Lays patches out as a quilt. They may come in any order.
///
/// Needs memory for the result ([`encoded_length`]) beside the patches.
///
/// # Errors
/// [`QuiltError`], always before the quilt is allocated, when:
/// - there is no patch, or more than k2 - 1,
/// - an identifier is refused or used twice,
/// - tags or patches exceed the fields of the format,
/// - the symbols would exceed 65,534 bytes.
pub fn encode(patches: &[QuiltPatch<'_>], shards: ShardCount) -> Result<Quilt, QuiltError> {
    let QuiltPlan { layout, sorted, heads, mut index } = QuiltPlan::new(patches, shards)?;
    let mut bytes = vec![0; layout.bytes()];
    let mut start = layout.columns_for(index.encoded_length());
    for ((patch, head), entry) in sorted.iter().zip(&heads).zip(&mut index.entries) {
        let end = start + layout.columns_for(head.len() + patch.data.len());
        layout.write(&mut bytes, start, 0, head);
        layout.write(&mut bytes, start, head.len(), patch.data);
        entry.start = column_number(start);
        entry.end = column_number(end);
        start = end;
    }
    layout.write(&mut bytes, 0, 0, &index.encode());
    Ok(Quilt { bytes, index })
}

/// One patch by the range of columns in its patch ID. The range must be in the index.
///
/// # Errors
/// [`QuiltError::UnknownPatch`] when the index lacks the range, and every error of [`QuiltIndex::decode`] and
/// [`QuiltIndex::patch`].
pub fn patch_by_range(
    bytes: &[u8],
    shards: ShardCount,
    start: u16,
    end: u16,
) -> Result<(PatchEntry, Vec<u8>), QuiltError> {
    let index = QuiltIndex::decode(bytes, shards)?;
    let entry = index.entries.iter().find(|entry| entry.start == start && entry.end == end);
    let entry = entry.ok_or(QuiltError::UnknownPatch)?;
    Ok((entry.clone(), index.patch(bytes, entry, shards)?))
}

/// A column's number in the 16 bits of the format.
fn column_number(column: usize) -> u16 {
    u16::try_from(column).expect("the layout has at most 2048 columns, and everything fits it")
}

/// The whole quilt except its bytes.
struct QuiltPlan<'a> {
    layout: Layout,
    sorted: Vec<&'a QuiltPatch<'a>>,
    /// The bytes before the data of each patch.
    heads: Vec<Vec<u8>>,
    /// The index, without columns yet.
    index: QuiltIndex,
}

impl<'a> QuiltPlan<'a> {
    fn new(patches: &'a [QuiltPatch<'a>], shards: ShardCount) -> Result<Self, QuiltError> {
        let limit = layout::max_patches(shards);
        if patches.is_empty() {
            return Err(refused("a quilt needs at least one patch"));
        }
        if patches.len() > limit {
            return Err(layout::too_many(patches.len(), limit));
        }
        let mut sorted: Vec<_> = patches.iter().enumerate().collect();
        for (number, patch) in &sorted {
            check_identifier_of(*number, patch.identifier)?;
        }
        sorted.sort_by_key(|(_, patch)| patch.identifier.as_bytes());
        let mut neighbours = sorted.iter().zip(sorted.iter().skip(1));
        if let Some((_, (patch, _))) =
            neighbours.find(|((_, left), (_, right))| left.identifier == right.identifier)
        {
            return Err(refused(format!("patch {patch} has the identifier of another one")));
        }
        let mut heads = Vec::with_capacity(sorted.len());
        let mut entries = Vec::with_capacity(sorted.len());
        for (number, patch) in &sorted {
            heads.push(body::head(patch).map_err(|what| refused(format!("patch {number}: {what}")))?);
            let (identifier, tags) = (patch.identifier.to_owned(), patch.tags.clone());
            entries.push(PatchEntry { identifier, tags, start: 0, end: 0 });
        }
        let index = QuiltIndex { entries };
        let sorted: Vec<_> = sorted.into_iter().map(|(_, patch)| patch).collect();
        let sizes: Vec<usize> =
            heads.iter().zip(&sorted).map(|(head, patch)| head.len() + patch.data.len()).collect();
        let layout = Layout::smallest(shards, index.encoded_length(), &sizes)?;
        Ok(Self { layout, sorted, heads, index })
    }
}
