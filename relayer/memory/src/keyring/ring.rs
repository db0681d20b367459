//! The contents of a key file, and their changes. Pure.

use std::collections::{BTreeMap, BTreeSet};

use baton_keys::{
    master::{DataKey, OwnerSecret},
    secret::random_bytes,
};
use baton_proto::codec;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use zeroize::Zeroizing;

use super::{KeyringError, OwnerKeys};
use crate::{ids::OwnerId, search::RowKey, storage::Space};

/// Numbers of a segment of Log and Features. Re-sealing a segment takes about a millisecond, and the key file
/// of 10,000 items has four kilobytes.
pub(crate) const NUMBERS_PER_SEGMENT: u64 = 256;
/// Sessions have random numbers: their highest bits choose one of 4,096 segments.
const SESSION_SEGMENT_SHIFT: u32 = 52;
/// Bytes of a key's id.
pub(crate) const KEY_ID_LEN: usize = 8;
/// Largest encoded keyring: the codec's limit, enough for 170,000 keys, or 20 million items.
pub(crate) const MAX_KEYRING_BYTES: usize = baton_proto::limits::MAX_OBJECT_BYTES;
const MAX_KEYS: usize = 150_000;

/// Records that are sealed under one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Segment {
    #[serde(serialize_with = "write_space", deserialize_with = "read_space")]
    pub(crate) space: Space,
    index: u64,
}

impl Segment {
    pub(crate) fn of(space: Space, number: u64) -> Self {
        let index = match space {
            Space::Log | Space::Features => number / NUMBERS_PER_SEGMENT,
            Space::Snapshot => 0,
            Space::Sessions => number >> SESSION_SEGMENT_SHIFT,
            Space::Packs => number,
        };
        Self { space, index }
    }

    /// Its lowest and highest number.
    pub(crate) fn range(self) -> (u64, u64) {
        match self.space {
            Space::Log | Space::Features => {
                let first = self.index.saturating_mul(NUMBERS_PER_SEGMENT);
                (first, first.saturating_add(NUMBERS_PER_SEGMENT - 1))
            }
            Space::Snapshot => (0, u64::MAX),
            Space::Packs => (self.index, self.index),
            Space::Sessions => {
                let first = self.index << SESSION_SEGMENT_SHIFT;
                (first, first | ((1 << SESSION_SEGMENT_SHIFT) - 1))
            }
        }
    }
}

/// Names a key within one keyring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeyId(pub(crate) [u8; KEY_ID_LEN]);

/// A key with its id.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SegmentKey {
    pub(crate) id: KeyId,
    #[serde(serialize_with = "write_key", deserialize_with = "read_key")]
    pub(crate) key: DataKey,
}

impl SegmentKey {
    fn generate() -> Self {
        Self { id: KeyId(random_bytes()), key: DataKey::generate() }
    }

    /// The key of the search rows beside its records.
    pub(crate) fn row_key(&self) -> RowKey {
        RowKey::new(u64::from_le_bytes(self.id.0), self.key.row_key())
    }
}

/// A segment that is being re-sealed. Its records show whether that happened: they name the old key or not.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Redaction {
    pub(crate) segment: Segment,
    pub(crate) old: KeyId,
    /// The segment's new key; `None` for a segment without remaining records.
    pub(crate) new: Option<(Segment, SegmentKey)>,
}

impl Redaction {
    fn new_key(&self) -> Option<&SegmentKey> {
        self.new.as_ref().map(|(_, key)| key)
    }
}

/// The known progress of an owner's database. A database that holds less has lost data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The owner's version.
    pub version: u64,
    /// Events of the owner's log.
    pub events: u64,
}

impl Mark {
    /// Takes over the larger values.
    pub(crate) fn raise(&mut self, other: Self) {
        self.version = self.version.max(other.version);
        self.events = self.events.max(other.events);
    }
}

/// An owner's secret and segment keys.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Keyring {
    pub(crate) owner: OwnerId,
    #[serde(serialize_with = "write_secret", deserialize_with = "read_secret")]
    secret: OwnerSecret,
    keys: BTreeMap<Segment, SegmentKey>,
    pub(crate) redactions: Vec<Redaction>,
    /// The database's least progress at the file's last write.
    pub(crate) mark: Mark,
}

impl Keyring {
    pub(crate) fn generate(owner: OwnerId) -> Self {
        Self {
            owner,
            secret: OwnerSecret::generate(),
            keys: BTreeMap::new(),
            redactions: Vec::new(),
            mark: Mark::default(),
        }
    }

    pub(crate) fn owner_keys(&self) -> OwnerKeys {
        OwnerKeys::of(&self.secret)
    }

    /// The keys of existing search rows: those of features, also of redactions that may have taken place.
    pub(crate) fn row_keys(&self) -> Vec<RowKey> {
        let features = |segment: &Segment| segment.space == Space::Features;
        let now = self.keys.iter().filter(|(segment, _)| features(segment)).map(|(_, key)| key);
        let open = self.redactions.iter().filter(|open| features(&open.segment));
        now.chain(open.filter_map(Redaction::new_key)).map(SegmentKey::row_key).collect()
    }

    pub(crate) fn same_secret(&self, other: &Self) -> bool {
        self.secret == other.secret
    }

    /// The key for new records of a segment. During a redaction, that is the old key. If the redaction took
    /// place after all, the writer's version is too old and nothing is written.
    pub(crate) fn current(&self, segment: Segment) -> Option<&SegmentKey> {
        self.keys.get(&segment)
    }

    /// The key of a record.
    pub(crate) fn find(&self, segment: Segment, id: KeyId) -> Option<&DataKey> {
        let open = self.redactions.iter().filter(|open| open.segment == segment);
        let new = open.filter_map(Redaction::new_key);
        self.keys.get(&segment).into_iter().chain(new).find(|key| key.id == id).map(|key| &key.key)
    }

    /// Creates keys for segments without a key; returns whether any were missing.
    pub(crate) fn extend(&mut self, segments: &BTreeSet<Segment>) -> Result<bool, KeyringError> {
        let missing: Vec<_> = segments.iter().filter(|segment| !self.keys.contains_key(segment)).collect();
        if self.keys.len() + missing.len() > MAX_KEYS {
            return Err(KeyringError::Full);
        }
        for segment in &missing {
            self.keys.insert(**segment, SegmentKey::generate());
        }
        Ok(!missing.is_empty())
    }

    /// Begins to re-seal segments; those in `empty` will have no records left.
    pub(crate) fn begin(&mut self, touched: &BTreeSet<Segment>, empty: &BTreeSet<Segment>) -> Vec<Redaction> {
        let redactions: Vec<_> = touched
            .iter()
            .filter_map(|segment| {
                let old = self.keys.get(segment)?.id;
                let new = (!empty.contains(segment)).then(|| (*segment, SegmentKey::generate()));
                Some(Redaction { segment: *segment, old, new })
            })
            .collect();
        self.redactions.extend(redactions.iter().cloned());
        redactions
    }

    /// All keys, for tests that try each of them.
    #[cfg(test)]
    pub(crate) fn all_keys(&self) -> impl Iterator<Item = &SegmentKey> {
        self.keys.values().chain(self.redactions.iter().filter_map(Redaction::new_key))
    }

    /// Ends a redaction that took place, and removes the old key. If the redaction is not open, another
    /// relayer has ended it.
    pub(crate) fn complete(&mut self, redaction: &Redaction) {
        if self.close(redaction)
            && self.keys.get(&redaction.segment).is_some_and(|key| key.id == redaction.old)
        {
            match &redaction.new {
                Some((segment, key)) => self.keys.insert(*segment, key.clone()),
                None => self.keys.remove(&redaction.segment),
            };
        }
    }

    /// Ends a redaction that did not take place, and removes the new key.
    pub(crate) fn cancel(&mut self, redaction: &Redaction) {
        self.close(redaction);
    }

    fn close(&mut self, redaction: &Redaction) -> bool {
        let before = self.redactions.len();
        self.redactions.retain(|open| {
            (open.segment, open.old, open.new_key().map(|key| key.id))
                != (redaction.segment, redaction.old, redaction.new_key().map(|key| key.id))
        });
        self.redactions.len() < before
    }

    pub(crate) fn encode(&self) -> Zeroizing<Vec<u8>> {
        codec::encode_secret(self)
    }

    /// Decodes the output of [`Self::encode`]; `None` for other bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        codec::decode(bytes, MAX_KEYRING_BYTES).ok()
    }
}

fn write_space<S: Serializer>(space: &Space, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u8(*space as u8)
}

fn read_space<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Space, D::Error> {
    let byte = u8::deserialize(deserializer)?;
    let space = Space::ALL.into_iter().find(|space| *space as u8 == byte);
    space.ok_or_else(|| D::Error::custom("no such space"))
}

fn write_key<S: Serializer>(key: &DataKey, serializer: S) -> Result<S::Ok, S::Error> {
    key.expose().serialize(serializer)
}

fn read_key<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DataKey, D::Error> {
    Ok(DataKey::from_bytes(*Zeroizing::new(Deserialize::deserialize(deserializer)?)))
}

fn write_secret<S: Serializer>(secret: &OwnerSecret, serializer: S) -> Result<S::Ok, S::Error> {
    secret.expose().serialize(serializer)
}

fn read_secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<OwnerSecret, D::Error> {
    Ok(OwnerSecret::from_bytes(*Zeroizing::new(Deserialize::deserialize(deserializer)?)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SPACES: [Space; 5] = Space::ALL;

    proptest! {
        #[test]
        fn every_number_lies_in_the_range_of_its_segment_alone(space in 0usize..5, number: u64, other: u64) {
            let segment = Segment::of(SPACES[space], number);
            let (first, last) = segment.range();
            prop_assert!(first <= number && number <= last);
            prop_assert_eq!(Segment::of(SPACES[space], other) == segment, (first..=last).contains(&other));
        }

        #[test]
        fn a_ring_reads_back_as_it_was(numbers in proptest::collection::btree_set((0usize..5, any::<u64>()), 0..40), empty: bool) {
            let mut ring = Keyring::generate(OwnerId([9; 32]));
            let segments: BTreeSet<_> = numbers.iter().map(|(space, number)| Segment::of(SPACES[*space], *number)).collect();
            ring.extend(&segments).unwrap();
            let gone = if empty { segments.clone() } else { BTreeSet::new() };
            ring.begin(&segments, &gone);
            ring.mark.raise(Mark { version: 7, events: 9 });
            let read = Keyring::decode(&ring.encode()).unwrap();
            prop_assert!(read.same_secret(&ring) && read.keys == ring.keys && read.redactions == ring.redactions);
            prop_assert!(read.mark == ring.mark);
            prop_assert!(Keyring::decode(&ring.encode()[1..]).is_none());
        }

        /// In any order of completed and cancelled redactions, each segment keeps one key. Only keys that
        /// records may name can be found.
        #[test]
        fn redactions_leave_one_key_for_each_segment(steps in proptest::collection::vec((0u64..3, any::<bool>(), any::<bool>()), 1..30)) {
            let mut ring = Keyring::generate(OwnerId([9; 32]));
            for (index, took_place, empty) in steps {
                let segment = BTreeSet::from([Segment { space: Space::Log, index }]);
                ring.extend(&segment).unwrap();
                let before = ring.current(*segment.first().unwrap()).unwrap().clone();
                let open = ring.begin(&segment, &if empty { segment.clone() } else { BTreeSet::new() }).remove(0);
                prop_assert!(ring.find(open.segment, before.id).is_some());
                if took_place { ring.complete(&open) } else { ring.cancel(&open) }
                prop_assert!(ring.redactions.is_empty());
                prop_assert_eq!(ring.find(open.segment, before.id).is_some(), !took_place);
                let now = ring.current(open.segment).map(|key| key.id);
                let wanted = if took_place { open.new_key().map(|key| key.id) } else { Some(before.id) };
                prop_assert_eq!(now, wanted);
            }
        }
    }

    #[test]
    fn the_bytes_of_a_key_file_stay_as_they_are() {
        let segment = Segment { space: Space::Features, index: 2 };
        let key = |byte| SegmentKey { id: KeyId([byte; 8]), key: DataKey::from_bytes([byte; 32]) };
        let ring = Keyring {
            owner: OwnerId([9; 32]),
            secret: OwnerSecret::from_bytes([8; 32]),
            keys: BTreeMap::from([(segment, key(3))]),
            redactions: vec![Redaction { segment, old: KeyId([3; 8]), new: Some((segment, key(4))) }],
            mark: Mark { version: 7, events: 9 },
        };
        let [one, index, version, events] = [1_u64, 2, 7, 9].map(u64::to_le_bytes);
        let place = [&[1][..], &index].concat();
        let head = [&[9; 32][..], &[8; 32], &one, &place, &[3; 40]].concat();
        let redaction = [&one[..], &place, &[3; 8], &[1], &place, &[4; 40]].concat();
        assert_eq!(ring.encode().as_slice(), [&head[..], &redaction, &version, &events].concat());
    }

    #[test]
    fn rows_have_a_key_of_their_segment_that_goes_with_it() {
        let mut ring = Keyring::generate(OwnerId([9; 32]));
        let segments = BTreeSet::from([
            Segment::of(Space::Features, 0),
            Segment::of(Space::Features, 300),
            Segment::of(Space::Log, 0),
        ]);
        ring.extend(&segments).unwrap();
        let names = |ring: &Keyring| -> BTreeSet<u64> { ring.row_keys().iter().map(RowKey::id).collect() };
        let before = names(&ring);
        assert_eq!(before.len(), 2);
        let touched = BTreeSet::from([Segment::of(Space::Features, 300)]);
        let open = ring.begin(&touched, &BTreeSet::new()).remove(0);
        assert!(
            names(&ring).is_superset(&before) && names(&ring).len() == 3,
            "it may have taken place or not"
        );
        ring.complete(&open);
        let after = names(&ring);
        assert_eq!((after.len(), after.intersection(&before).count()), (2, 1));
    }

    #[test]
    fn a_redaction_ended_twice_changes_nothing_the_second_time() {
        let mut ring = Keyring::generate(OwnerId([9; 32]));
        let segments = BTreeSet::from([Segment::of(Space::Log, 0)]);
        ring.extend(&segments).unwrap();
        let first = ring.begin(&segments, &BTreeSet::new()).remove(0);
        ring.complete(&first);
        let second = ring.begin(&segments, &BTreeSet::new()).remove(0);
        ring.complete(&second);
        let now = ring.current(first.segment).unwrap().clone();
        ring.complete(&first);
        ring.cancel(&second);
        assert!(*ring.current(first.segment).unwrap() == now);
    }
}
