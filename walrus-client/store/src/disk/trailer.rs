//! The trailer of a blob's file: enough to list the blob without the index. Pure.
//!
//! `content ‖ content length (u32) ‖ magic (8) ‖ checksum (32)`. The content names the file, whose name has
//! 64 random bits. So a blob's own bytes cannot pass for a trailer, even if damage moves the file's end.

use baton_proto::ids::BlobId;

use super::{
    Epochs,
    record::{Record, take},
};

const MAGIC: &[u8; 8] = b"batonblb";
const VERSION: u8 = 1;
/// The encoding of the blob IDs: RS2, the only one.
const RS2: u8 = 1;
const CHECKSUM_BYTES: usize = 32;
/// Longest content: the record of a blob with the most objects is 25 KB.
const MAX_CONTENT: usize = 64 * 1024;
/// All bytes after the content.
pub(super) const FOOT_BYTES: usize = 4 + 8 + CHECKSUM_BYTES;

/// A blob's description in its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trailer {
    pub(super) shards: u16,
    /// The store's epochs when the file was written; the ends of objects refer to them.
    pub(super) epochs: Epochs,
    pub(super) id: BlobId,
    pub(super) record: Record,
}

impl Trailer {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION, RS2];
        bytes.extend_from_slice(&self.shards.to_le_bytes());
        bytes.extend_from_slice(&self.epochs.encode());
        bytes.extend_from_slice(&self.id.0);
        bytes.extend_from_slice(&self.record.encode());
        let length = u32::try_from(bytes.len()).expect("a record is bounded far below");
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(MAGIC);
        let checksum = checksum(&bytes);
        bytes.extend_from_slice(&checksum);
        bytes
    }

    /// Bytes of the content according to the foot, if it is plausible.
    pub(super) fn content_length(foot: &[u8]) -> Option<usize> {
        let mut rest = foot;
        let length = usize::try_from(u32::from_le_bytes(*take(&mut rest)?)).ok()?;
        (take::<8>(&mut rest)? == MAGIC && length <= MAX_CONTENT).then_some(length)
    }

    /// Reads content and foot.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (covered, sum) = bytes.split_last_chunk::<CHECKSUM_BYTES>()?;
        if checksum(covered) != *sum {
            return None;
        }
        let mut rest = covered.get(..covered.len().checked_sub(12)?)?;
        let rest = &mut rest;
        if take::<2>(rest)? != &[VERSION, RS2] {
            return None;
        }
        let shards = u16::from_le_bytes(*take(rest)?);
        let epochs = Epochs::decode(take::<32>(rest)?)?;
        let id = BlobId(*take(rest)?);
        Some(Self { shards, epochs, id, record: Record::decode(rest)? })
    }
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"baton store trailer").update(bytes);
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        super::files::{FileKey, Root},
        *,
    };

    #[test]
    fn trailers_are_read_as_written_and_not_with_another_bit() {
        let file = FileKey { number: 5, length: 9, root: Root([4; 32]) };
        let record = Record { file, bought: 1, objects: Vec::new() };
        let epochs = Epochs::new(1, Duration::from_secs(9), 5);
        let trailer = Trailer { shards: 10, epochs, id: BlobId([1; 32]), record };
        let bytes = trailer.encode();
        let foot = &bytes[bytes.len() - FOOT_BYTES..];
        assert_eq!(Trailer::content_length(foot), Some(bytes.len() - FOOT_BYTES));
        assert_eq!(Trailer::decode(&bytes), Some(trailer));
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Trailer::decode(&changed), None, "{bit}");
        }
    }
}
