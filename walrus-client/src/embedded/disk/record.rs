//! What sled holds for each blob and head, as bytes. Pure.
//!
//! Every entry starts with a BLAKE3 checksum over its tree, its key and the rest.

use baton_proto::ids::{BlobId, HeadIndexKey};

use super::{
    BLOBS, HEADS,
    files::{FileKey, Root},
};

const CHECKSUM: usize = 32;
/// Length, root, file number, objects ever bought, number of objects kept.
const RECORD_HEADER: usize = 8 + 32 + 8 + 8 + 2;
/// Number, first epoch, end epoch, flags.
const OBJECT_BYTES: usize = 8 + 8 + 8 + 1;
const PERMANENT: u8 = 1;
const SHARED: u8 = 2;

/// A blob object, as Walrus keeps one on its chain for each PUT that bought one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::embedded) struct Object {
    /// A number that no other object has.
    pub(in crate::embedded) number: u64,
    /// The epoch in which it was bought.
    pub(in crate::embedded) registered: u64,
    /// First epoch in which it no longer keeps the blob.
    pub(in crate::embedded) end: u64,
    /// Not deletable.
    pub(in crate::embedded) permanent: bool,
    /// Turned into a shared object, which has an ID of its own.
    pub(in crate::embedded) shared: bool,
}

impl Object {
    /// Its ID on the chain that there is none of.
    pub(in crate::embedded) fn id(&self, blob: BlobId) -> [u8; 32] {
        made_up_id("blob", blob, self.number)
    }

    /// The ID of the shared object made of it.
    pub(in crate::embedded) fn shared_id(&self, blob: BlobId) -> Option<[u8; 32]> {
        self.shared.then(|| made_up_id("shared", blob, self.number))
    }
}

/// An object ID or digest where Walrus would name one of the chain: unique and stable, and nothing more.
pub(in crate::embedded) fn made_up_id(kind: &str, id: BlobId, number: u64) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(kind.as_bytes()).update(&id.0).update(&number.to_le_bytes());
    hasher.finalize().into()
}

/// A stored blob: its bytes' file, and the objects that keep it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) file: FileKey,
    /// Objects ever bought for it.
    pub(super) bought: u64,
    pub(super) objects: Vec<Object>,
}

impl Record {
    /// The objects that still keep it in an epoch.
    pub(super) fn live(&self, epoch: u64) -> impl Iterator<Item = &Object> {
        self.objects.iter().filter(move |object| object.end > epoch)
    }

    pub(super) fn is_live(&self, epoch: u64) -> bool {
        self.live(epoch).next().is_some()
    }

    pub(super) fn encode(&self, id: BlobId) -> Vec<u8> {
        let mut content = Vec::with_capacity(RECORD_HEADER + self.objects.len() * OBJECT_BYTES);
        content.extend_from_slice(&self.file.length.to_le_bytes());
        content.extend_from_slice(&self.file.root.0);
        content.extend_from_slice(&self.file.number.to_le_bytes());
        content.extend_from_slice(&self.bought.to_le_bytes());
        let count = u16::try_from(self.objects.len()).expect("objects are bounded far below");
        content.extend_from_slice(&count.to_le_bytes());
        for object in &self.objects {
            for number in [object.number, object.registered, object.end] {
                content.extend_from_slice(&number.to_le_bytes());
            }
            let permanent = if object.permanent { PERMANENT } else { 0 };
            let shared = if object.shared { SHARED } else { 0 };
            content.push(permanent | shared);
        }
        seal(BLOBS, &id.0, &[&content])
    }

    /// The record in an entry, if its checksum and form are right.
    pub(super) fn decode(id: &[u8], value: &[u8]) -> Option<Self> {
        let mut content = verify(BLOBS, id, value)?;
        let length = take_number(&mut content)?;
        let root = Root(*take::<32>(&mut content)?);
        let number = take_number(&mut content)?;
        let bought = take_number(&mut content)?;
        let count = u16::from_le_bytes(*take(&mut content)?);
        let mut objects = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let (number, registered, end) =
                (take_number(&mut content)?, take_number(&mut content)?, take_number(&mut content)?);
            let [flags] = *take::<1>(&mut content)?;
            let (permanent, shared) = (flags & PERMANENT != 0, flags & SHARED != 0);
            objects.push(Object { number, registered, end, permanent, shared });
        }
        content.is_empty().then_some(Self { file: FileKey { number, length, root }, bought, objects })
    }
}

/// A head record and what it is ordered and ended by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeadEntry<'a> {
    pub(super) sequence: u64,
    pub(super) expires_ms: u64,
    pub(super) record: &'a [u8],
}

impl<'a> HeadEntry<'a> {
    pub(super) fn encode(&self, key: HeadIndexKey) -> Vec<u8> {
        let header = [self.sequence.to_le_bytes(), self.expires_ms.to_le_bytes()].concat();
        seal(HEADS, &key.0, &[&header, self.record])
    }

    pub(super) fn decode(key: &[u8], value: &'a [u8]) -> Option<Self> {
        let mut content = verify(HEADS, key, value)?;
        let (sequence, expires_ms) = (take_number(&mut content)?, take_number(&mut content)?);
        Some(Self { sequence, expires_ms, record: content })
    }
}

fn take<'a, const N: usize>(content: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, rest) = content.split_first_chunk()?;
    *content = rest;
    Some(taken)
}

fn take_number(content: &mut &[u8]) -> Option<u64> {
    take(content).map(|bytes| u64::from_le_bytes(*bytes))
}

fn checksum(tree: &str, key: &[u8], parts: &[&[u8]]) -> [u8; CHECKSUM] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(tree.as_bytes()).update(key);
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize().into()
}

/// An entry's value: checksum, then the parts.
fn seal(tree: &str, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut value = Vec::with_capacity(CHECKSUM + parts.iter().map(|part| part.len()).sum::<usize>());
    value.extend_from_slice(&checksum(tree, key, parts));
    parts.iter().for_each(|part| value.extend_from_slice(part));
    value
}

/// What follows the checksum, if that is right.
fn verify<'a>(tree: &str, key: &[u8], value: &'a [u8]) -> Option<&'a [u8]> {
    let (found, rest) = value.split_at_checked(CHECKSUM)?;
    (checksum(tree, key, &[rest]) == found).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let object = Object { number: 7, registered: 3, end: 5, permanent: true, shared: false };
        let other = Object { number: 8, end: 9, permanent: false, shared: true, ..object };
        let file = FileKey { number: 0xfe, length: 300_000, root: Root([4; 32]) };
        Record { file, bought: 12, objects: vec![object, other] }
    }

    #[test]
    fn records_are_read_as_written_and_in_no_other_place() {
        let id = BlobId([1; 32]);
        let value = record().encode(id);
        assert_eq!(value.len(), CHECKSUM + RECORD_HEADER + 2 * OBJECT_BYTES);
        assert_eq!(Record::decode(&id.0, &value), Some(record()));
        assert_eq!(Record::decode(&[2; 32], &value), None);
        for place in 0..value.len() {
            let mut changed = value.clone();
            changed[place] ^= 0x10;
            assert_eq!(Record::decode(&id.0, &changed), None, "{place}");
            assert_eq!(Record::decode(&id.0, &value[..place]), None, "{place}");
        }
    }

    #[test]
    fn objects_keep_a_blob_until_their_last_epoch_is_over() {
        let record = record();
        assert_eq!(record.live(4).count(), 2);
        assert_eq!(record.live(5).count(), 1);
        assert!(record.is_live(8) && !record.is_live(9));
    }
}
