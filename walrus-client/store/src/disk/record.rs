//! The index entries of blobs, heads and tokens as bytes. Pure.
//!
//! The database and the trailers around these bytes carry the checksums.

use baton_kit::entries::{self, Change};
use baton_proto::ids::{BlobId, HeadIndexKey};

use super::{
    Epochs,
    files::{FileKey, Root},
};

const PERMANENT: u8 = 1;
const SHARED: u8 = 2;

/// A blob object; on Walrus's chain each purchase makes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Object {
    /// A number that no other object has.
    pub(crate) number: u64,
    /// The epoch in which it was bought.
    pub(crate) registered: u64,
    /// First epoch in which it no longer keeps the blob.
    pub(crate) end: u64,
    /// Cannot be deleted.
    pub(crate) permanent: bool,
    /// Turned into a shared object, which has its own ID.
    pub(crate) shared: bool,
}

impl Object {
    /// Its ID, as if on a chain.
    pub(crate) fn id(&self, blob: BlobId) -> [u8; 32] {
        made_up_id("blob", blob, self.number)
    }

    /// The ID of the shared object made from it.
    pub(crate) fn shared_id(&self, blob: BlobId) -> Option<[u8; 32]> {
        self.shared.then(|| made_up_id("shared", blob, self.number))
    }
}

/// An object ID or digest in place of one from Walrus's chain: only unique and stable.
pub(crate) fn made_up_id(kind: &str, id: BlobId, number: u64) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(kind.as_bytes()).update(&id.0).update(&number.to_le_bytes());
    hasher.finalize().into()
}

/// A stored blob: the file of its bytes, and its objects.
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

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut content = Vec::with_capacity(74 + self.objects.len() * 25);
        content.extend_from_slice(&self.file.number.to_le_bytes());
        content.extend_from_slice(&self.file.length.to_le_bytes());
        content.extend_from_slice(&self.file.root.0);
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
        content
    }

    pub(super) fn decode(mut content: &[u8]) -> Option<Self> {
        let content = &mut content;
        let number = u128::from_le_bytes(*take(content)?);
        let length = take_number(content)?;
        let root = Root(*take::<32>(content)?);
        let bought = take_number(content)?;
        let count = u16::from_le_bytes(*take(content)?);
        let mut objects = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let (number, registered, end) =
                (take_number(content)?, take_number(content)?, take_number(content)?);
            let [flags] = *take::<1>(content)?;
            let (permanent, shared) = (flags & PERMANENT != 0, flags & SHARED != 0);
            objects.push(Object { number, registered, end, permanent, shared });
        }
        content.is_empty().then_some(Self { file: FileKey { number, length, root }, bought, objects })
    }
}

pub(super) fn take<'a, const N: usize>(content: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, rest) = content.split_first_chunk()?;
    *content = rest;
    Some(taken)
}

fn take_number(content: &mut &[u8]) -> Option<u64> {
    take(content).map(|bytes| u64::from_le_bytes(*bytes))
}

/// The subject of an index entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum EntryKey {
    Blob(BlobId),
    Removed(BlobId),
    Head(HeadIndexKey),
    Token([u8; 32]),
    Store,
}

/// The kind of the entries that blobs' files repeat.
pub(super) const BLOB_KIND: u32 = 1;

impl EntryKey {
    pub(super) fn parts(self) -> entries::EntryKey {
        match self {
            Self::Blob(id) => (BLOB_KIND, id.0),
            Self::Removed(id) => (2, id.0),
            Self::Head(key) => (3, key.0),
            Self::Token(key) => (4, key),
            Self::Store => (5, [0; 32]),
        }
    }

    pub(super) fn parse((kind, id): entries::EntryKey) -> Option<Self> {
        Some(match kind {
            BLOB_KIND => Self::Blob(BlobId(id)),
            2 => Self::Removed(BlobId(id)),
            3 => Self::Head(HeadIndexKey(id)),
            4 => Self::Token(id),
            5 => Self::Store,
            _ => return None,
        })
    }

    /// The change that removes its entry.
    pub(super) fn removal(self) -> Change {
        Change::Remove(self.parts())
    }
}

/// One entry of the index.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry<'a> {
    Blob(BlobId, Record),
    /// A blob was removed, and older files of it are useless.
    Removed(BlobId),
    Head {
        key: HeadIndexKey,
        sequence: u64,
        expires_ms: u64,
        record: &'a [u8],
    },
    Token {
        key: [u8; 32],
        expires_s: u64,
    },
    Store {
        shards: u16,
        epochs: Epochs,
    },
}

impl<'a> Entry<'a> {
    /// The change that writes it under a number.
    pub(super) fn put(&self, number: u64) -> Change {
        Change::Put(entries::Entry { key: self.key().parts(), number, value: self.encode() })
    }

    pub(super) fn key(&self) -> EntryKey {
        match self {
            Self::Blob(id, _) => EntryKey::Blob(*id),
            Self::Removed(id) => EntryKey::Removed(*id),
            Self::Head { key, .. } => EntryKey::Head(*key),
            Self::Token { key, .. } => EntryKey::Token(*key),
            Self::Store { .. } => EntryKey::Store,
        }
    }

    /// The value under its key.
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Blob(_, record) => record.encode(),
            Self::Removed(_) => Vec::new(),
            Self::Head { sequence, expires_ms, record, .. } => {
                [&sequence.to_le_bytes(), &expires_ms.to_le_bytes(), *record].concat()
            }
            Self::Token { expires_s, .. } => expires_s.to_le_bytes().into(),
            Self::Store { shards, epochs } => [&shards.to_le_bytes()[..], &epochs.encode()].concat(),
        }
    }

    pub(super) fn decode(key: EntryKey, value: &'a [u8]) -> Option<Self> {
        let mut rest = value;
        let rest = &mut rest;
        let entry = match key {
            EntryKey::Blob(id) => Self::Blob(id, Record::decode(std::mem::take(rest))?),
            EntryKey::Removed(id) => Self::Removed(id),
            EntryKey::Head(key) => {
                let (sequence, expires_ms) = (take_number(rest)?, take_number(rest)?);
                Self::Head { key, sequence, expires_ms, record: std::mem::take(rest) }
            }
            EntryKey::Token(key) => Self::Token { key, expires_s: take_number(rest)? },
            EntryKey::Store => {
                let shards = u16::from_le_bytes(*take(rest)?);
                Self::Store { shards, epochs: Epochs::decode(std::mem::take(rest))? }
            }
        };
        rest.is_empty().then_some(entry)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn record() -> Record {
        let object = Object { number: 7, registered: 3, end: 5, permanent: true, shared: false };
        let other = Object { number: 8, end: 9, permanent: false, shared: true, ..object };
        let file = FileKey { number: 0xfe << 64, length: 300_000, root: Root([4; 32]) };
        Record { file, bought: 12, objects: vec![object, other] }
    }

    #[test]
    fn entries_are_read_as_written_and_not_when_cut() {
        for entry in [
            Entry::Blob(BlobId([1; 32]), record()),
            Entry::Removed(BlobId([1; 32])),
            Entry::Head { key: HeadIndexKey([2; 32]), sequence: 7, expires_ms: 8, record: b"head" },
            Entry::Token { key: [3; 32], expires_s: 9 },
            Entry::Store { shards: 10, epochs: Epochs::new(1, Duration::from_secs(9), 5) },
        ] {
            let (key, value) = (entry.key(), entry.encode());
            assert_eq!(EntryKey::parse(key.parts()), Some(key));
            assert_eq!(Entry::decode(key, &value), Some(entry));
            if !value.is_empty() {
                assert_eq!(Entry::decode(key, &value[..7]), None);
            }
        }
        assert_eq!(EntryKey::parse((6, [0; 32])), None);
        assert_eq!(Entry::decode(EntryKey::Token([3; 32]), &[9; 9]), None);
    }

    #[test]
    fn objects_keep_a_blob_until_their_last_epoch_is_over() {
        let record = record();
        assert_eq!(record.live(4).count(), 2);
        assert_eq!(record.live(5).count(), 1);
        assert_eq!(record.live(9).count(), 0);
    }
}
