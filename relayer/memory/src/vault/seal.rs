//! Sealing and opening records. Pure.
//!
//! A record is `key id(8) ‖ sealed`. Owner, space and number are associated data, so that a record cannot be
//! moved.

use std::collections::BTreeMap;

use zeroize::Zeroizing;

use crate::{
    ids::OwnerId,
    keyring::{KEY_ID_LEN, KeyId, Keyring, Segment, SegmentKey},
    search::FeatureRecord,
    storage::{Record, SearchRow, Space},
};

/// The plain text of a record, wiped on drop.
pub type Secret = Zeroizing<Vec<u8>>;

/// Why a record does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordOpenError {
    /// The keyring lacks the key that the record names.
    UnknownKey(u64),
    /// Its bytes are damaged, or it was moved.
    Damaged(u64),
}

fn associated(owner: OwnerId, space: Space, number: u64, id: KeyId) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..15].copy_from_slice(b"baton record v1");
    bytes[15] = space as u8;
    bytes[16..48].copy_from_slice(&owner.0);
    bytes[48..56].copy_from_slice(&number.to_be_bytes());
    bytes[56..].copy_from_slice(&id.0);
    bytes
}

/// Seals a record under a key.
pub(super) fn seal(owner: OwnerId, key: &SegmentKey, space: Space, number: u64, text: &[u8]) -> Record {
    let mut bytes = key.id.0.to_vec();
    bytes.extend_from_slice(&key.key.seal(&associated(owner, space, number, key.id), text));
    Record { space, number, bytes }
}

/// Opens a record's bytes.
pub(super) fn open(
    ring: &Keyring,
    space: Space,
    number: u64,
    bytes: &[u8],
) -> Result<Secret, RecordOpenError> {
    let (id, sealed) = bytes.split_first_chunk::<KEY_ID_LEN>().ok_or(RecordOpenError::Damaged(number))?;
    let id = KeyId(*id);
    let key = ring.find(Segment::of(space, number), id).ok_or(RecordOpenError::UnknownKey(number))?;
    key.open(&associated(ring.owner, space, number, id), sealed).map_err(|_| RecordOpenError::Damaged(number))
}

/// Opens a page of records.
pub(super) fn open_all(
    ring: &Keyring,
    space: Space,
    rows: &[(u64, Vec<u8>)],
) -> Result<Vec<(u64, Secret)>, RecordOpenError> {
    rows.iter().map(|(number, bytes)| Ok((*number, open(ring, space, *number, bytes)?))).collect()
}

/// Seals texts under the keys of a redaction, or else under the current keys.
///
/// # Panics
/// For a segment without a key; the caller makes keys first.
pub(super) fn seal_all(
    ring: &Keyring,
    fresh: &BTreeMap<Segment, SegmentKey>,
    texts: &[(Space, u64, Secret)],
) -> Vec<Record> {
    texts
        .iter()
        .map(|(space, number, text)| {
            let key =
                new_key(ring, fresh, Segment::of(*space, *number)).expect("every segment was given a key");
            seal(ring.owner, key, *space, *number, text)
        })
        .collect()
}

/// The key of new records of a segment.
fn new_key<'a>(
    ring: &'a Keyring,
    fresh: &'a BTreeMap<Segment, SegmentKey>,
    segment: Segment,
) -> Option<&'a SegmentKey> {
    fresh.get(&segment).or_else(|| ring.current(segment))
}

/// The search row beside a record of features, under the key that seals the record; `None` for other records.
pub(super) fn row_of(
    ring: &Keyring,
    fresh: &BTreeMap<Segment, SegmentKey>,
    space: Space,
    number: u64,
    text: &[u8],
) -> Option<SearchRow> {
    let record = (space == Space::Features).then(|| FeatureRecord::decode(text)).flatten()?;
    Some(new_key(ring, fresh, Segment::of(space, number))?.row_key().row(number, &record))
}

/// Tries a key on a record, whichever key the record names.
#[cfg(test)]
pub(super) fn try_key(
    owner: OwnerId,
    key: &SegmentKey,
    space: Space,
    number: u64,
    bytes: &[u8],
) -> Option<Secret> {
    let (id, sealed) = bytes.split_first_chunk::<KEY_ID_LEN>()?;
    key.key.open(&associated(owner, space, number, KeyId(*id)), sealed).ok()
}

/// The key that a record names.
pub(super) fn key_of(bytes: &[u8]) -> Option<KeyId> {
    bytes.first_chunk().copied().map(KeyId)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const SPACES: [Space; 4] = [Space::Log, Space::Features, Space::Snapshot, Space::Sessions];

    fn ring(owner: u8, space: Space, number: u64) -> Keyring {
        let mut ring = Keyring::generate(OwnerId([owner; 32]));
        ring.extend(&BTreeSet::from([Segment::of(space, number)])).unwrap();
        ring
    }

    proptest! {
        #[test]
        fn records_round_trip_and_never_repeat(space in 0usize..4, number: u64, text: Vec<u8>) {
            let space = SPACES[space];
            let ring = ring(1, space, number);
            let sealed = || seal_all(&ring, &BTreeMap::new(), &[(space, number, Zeroizing::new(text.clone()))]).remove(0);
            let opened = open(&ring, space, number, &sealed().bytes).unwrap();
            prop_assert_eq!(opened.as_slice(), text.as_slice());
            prop_assert_ne!(sealed().bytes, sealed().bytes);
        }

        #[test]
        fn a_moved_or_changed_record_does_not_open(number: u64, other: u64, byte: prop::sample::Index, bit in 0u8..8) {
            prop_assume!(number != other);
            let ring = ring(1, Space::Log, number);
            let key = ring.current(Segment::of(Space::Log, number)).unwrap();
            let bytes = seal(ring.owner, key, Space::Log, number, b"text").bytes;
            prop_assert!(open(&ring, Space::Log, other, &bytes).is_err());
            prop_assert!(open(&ring, Space::Features, number, &bytes).is_err());
            let mut changed = bytes.clone();
            let at = byte.index(changed.len());
            changed[at] ^= 1 << bit;
            prop_assert!(open(&ring, Space::Log, number, &changed).is_err());
            // Even with the same keys, another owner could not claim the record.
            let foreign = seal(OwnerId([2; 32]), key, Space::Log, number, b"text").bytes;
            prop_assert_eq!(open(&ring, Space::Log, number, &foreign), Err(RecordOpenError::Damaged(number)));
        }

        #[test]
        fn bytes_of_any_length_are_refused_and_never_panic(number: u64, bytes: Vec<u8>) {
            prop_assert!(open(&ring(1, Space::Log, number), Space::Log, number, &bytes).is_err());
        }
    }
}
