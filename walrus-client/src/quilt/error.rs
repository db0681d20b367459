//! Why a quilt is refused. No error holds an identifier or other content: patches are named by their position.

use crate::blob_id::ShardCount;

/// An identifier that Walrus refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdentifierError {
    /// No characters at all.
    #[error("is empty")]
    Empty,
    /// More bytes than its length field can say.
    #[error("is longer than 65,531 bytes")]
    TooLong,
    /// A character of Unicode's control category.
    #[error("has a control character")]
    ControlCharacter,
    /// White space at its end.
    #[error("ends in white space")]
    TrailingSpace,
}

/// Why patches cannot be encoded as a quilt, or bytes are not the quilt that they claim to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QuiltError {
    /// Nothing to encode.
    #[error("a quilt needs at least one patch")]
    NoPatches,
    /// More patches than there are columns for.
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
        /// What is wrong with it.
        reason: IdentifierError,
    },
    /// An identifier used before.
    #[error("patch {patch} has the identifier of another one")]
    DuplicateIdentifier {
        /// Position of the second one.
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
    /// An index that claims more than its ten columns, or more than the quilt, can hold.
    #[error("the index claims {length} bytes, more than its columns hold")]
    IndexTooLong {
        /// Bytes that it claims.
        length: u64,
    },
    /// An index that is not canonical BCS of its type.
    #[error("the index is malformed: {what}")]
    MalformedIndex {
        /// What does not parse.
        what: &'static str,
    },
    /// Identifiers that are not in strictly rising order: unsorted, or one twice.
    #[error("entry {patch} of the index does not come after the one before it")]
    Unsorted {
        /// Position of the entry.
        patch: usize,
    },
    /// Columns that are empty, outside the quilt, or overlap those before them.
    #[error("the columns {start} to {end} of entry {patch} are empty, outside the quilt or overlap others")]
    Columns {
        /// Position of the entry.
        patch: usize,
        /// Column where it begins.
        start: u16,
        /// Column after its last one.
        end: u16,
    },
    /// A range of columns that is none of the index's.
    #[error("the quilt has no patch in columns {start} to {end}")]
    UnknownPatch {
        /// First column asked for.
        start: u16,
        /// Column after the last one asked for.
        end: u16,
    },
    /// A patch whose own header does not parse, or claims a length that does not match its columns.
    #[error("the patch in columns {start} to {end} is malformed: {what}")]
    MalformedPatch {
        /// Its first column.
        start: u16,
        /// Column after its last one.
        end: u16,
        /// What does not parse.
        what: &'static str,
    },
    /// A patch whose own header names another identifier or other tags than the index.
    #[error("the patch in columns {start} to {end} is not the one that the index names")]
    PatchMismatch {
        /// Its first column.
        start: u16,
        /// Column after its last one.
        end: u16,
    },
}
