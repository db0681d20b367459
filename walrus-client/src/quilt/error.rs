//! The reasons why a quilt is refused. No error holds an identifier or other content: it names a patch by its
//! position.

use crate::blob_id::ShardCount;

/// An identifier that Walrus refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdentifierError {
    /// No characters.
    #[error("is empty")]
    Empty,
    /// Too many bytes for its length field.
    #[error("is longer than 65,531 bytes")]
    TooLong,
    /// A character of Unicode's control category.
    #[error("has a control character")]
    ControlCharacter,
    /// White space at its end.
    #[error("ends in white space")]
    TrailingSpace,
}

/// The reason why patches cannot be encoded as a quilt, or bytes are not a valid quilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuiltError {
    /// Nothing to encode.
    #[error("a quilt needs at least one patch")]
    NoPatches,
    /// More patches than columns for them.
    #[error("{given} patches are too many: there are columns for {limit}")]
    TooManyPatches {
        /// Patches offered, or claimed by an index.
        given: u64,
        /// Most patches for this shard count: k2 - 1.
        limit: usize,
    },
    /// An identifier that Walrus refuses.
    #[error("the identifier of patch {patch} {reason}")]
    Identifier {
        /// Position of the patch, from 0, in the caller's list or in the index.
        patch: usize,
        /// The problem.
        reason: IdentifierError,
    },
    /// An identifier used before.
    #[error("patch {patch} has the identifier of another one")]
    DuplicateIdentifier {
        /// Position of the second use.
        patch: usize,
    },
    /// Tags whose BCS form is longer than 65,535 bytes.
    #[error("the tags of patch {patch} are larger than 65,535 bytes")]
    TagsTooLarge {
        /// Position of the patch.
        patch: usize,
    },
    /// A patch of 4 GiB or more.
    #[error("patch {patch} does not fit the 32 bits of its length")]
    PatchTooLarge {
        /// Position of the patch.
        patch: usize,
    },
    /// The symbols would exceed 65,534 bytes.
    #[error("the patches are too large for one quilt on {shards} shards")]
    TooLarge {
        /// The shard count.
        shards: ShardCount,
    },
    /// Not k1 · k2 symbols of an even size from 2 to 65,534 bytes.
    #[error("{length} bytes are no quilt on {shards} shards")]
    Length {
        /// Length of the bytes.
        length: u64,
        /// The shard count.
        shards: ShardCount,
    },
    /// A version other than 1.
    #[error("quilt version {found} is not known")]
    Version {
        /// The byte where the version should be.
        found: u8,
    },
    /// An index that claims more bytes than its ten columns or the quilt can hold.
    #[error("the index claims {length} bytes, more than its columns hold")]
    IndexTooLong {
        /// The claimed bytes.
        length: u64,
    },
    /// An index that is not canonical BCS of its type.
    #[error("the index is malformed: {what}")]
    MalformedIndex {
        /// The part that does not parse.
        what: &'static str,
    },
    /// Identifiers that are not in strictly rising order: unsorted or duplicate.
    #[error("entry {patch} of the index does not come after the one before it")]
    Unsorted {
        /// Position of the entry.
        patch: usize,
    },
    /// Columns that are empty, outside the quilt, or overlap earlier columns.
    #[error("the columns {start} to {end} of entry {patch} are empty, outside the quilt or overlap others")]
    Columns {
        /// Position of the entry.
        patch: usize,
        /// First column of the entry.
        start: u16,
        /// Column after the entry's last column.
        end: u16,
    },
    /// A range of columns that the index lacks.
    #[error("the quilt has no patch in columns {start} to {end}")]
    UnknownPatch {
        /// First requested column.
        start: u16,
        /// Column after the last requested column.
        end: u16,
    },
    /// A patch whose own header does not parse, or claims a length that does not match its columns.
    #[error("the patch in columns {start} to {end} is malformed: {what}")]
    MalformedPatch {
        /// Its first column.
        start: u16,
        /// Column after its last column.
        end: u16,
        /// The part that does not parse.
        what: &'static str,
    },
    /// A patch whose own header names another identifier or other tags than the index.
    #[error("the patch in columns {start} to {end} is not the one that the index names")]
    PatchMismatch {
        /// Its first column.
        start: u16,
        /// Column after its last column.
        end: u16,
    },
}
