//! The contents of a key file, and their changes. Pure.

use std::collections::{BTreeMap, BTreeSet};

use baton_keys::{
    master::{DataKey, OwnerSecret},
    secret::random_bytes,
};
use baton_proto::codec;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use super::{IndexKeys, KeyringError, OwnerKeys};
use crate::{ids::OwnerId, storage::Space};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Segment {
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyId(pub(crate) [u8; KEY_ID_LEN]);

/// A key with its id.
#[derive(Clone, PartialEq)]
pub(crate) struct SegmentKey {
    pub(crate) id: KeyId,
    pub(crate) key: DataKey,
}

impl SegmentKey {
    fn generate() -> Self {
        Self { id: KeyId(random_bytes()), key: DataKey::generate() }
    }
}

/// A segment that is being re-sealed. Its records show whether that happened: they name the old key or not.
#[derive(Clone, PartialEq)]
pub(crate) struct Redaction {
    pub(crate) segment: Segment,
    pub(crate) old: KeyId,
    /// `None` for a segment without remaining records.
    pub(crate) new: Option<SegmentKey>,
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

/// The keys of a database's search index: rows may use any of them; new rows use the last.
#[derive(Clone, PartialEq)]
struct IndexSecrets {
    /// By generation, ascending.
    secrets: Vec<(u64, OwnerSecret)>,
    /// Whether rows may use the owner's own secret, as before the index had keys.
    under_owner: bool,
    /// Since when old pages may hold rows of deleted items.
    stale_ms: Option<u64>,
}

impl IndexSecrets {
    fn generate() -> Self {
        Self { secrets: vec![(1, OwnerSecret::generate())], under_owner: false, stale_ms: None }
    }

    fn of_old_files() -> Self {
        Self { secrets: Vec::new(), under_owner: true, stale_ms: None }
    }

    fn is_being_replaced(&self) -> bool {
        self.secrets.len() + usize::from(self.under_owner) > 1
    }
}

/// An owner's secret and segment keys.
#[derive(Clone)]
pub(crate) struct Keyring {
    pub(crate) owner: OwnerId,
    secret: OwnerSecret,
    keys: BTreeMap<Segment, SegmentKey>,
    redactions: Vec<Redaction>,
    index: IndexSecrets,
    mark: Mark,
}

impl Keyring {
    pub(crate) fn generate(owner: OwnerId) -> Self {
        Self {
            owner,
            secret: OwnerSecret::generate(),
            keys: BTreeMap::new(),
            redactions: Vec::new(),
            index: IndexSecrets::generate(),
            mark: Mark::default(),
        }
    }

    pub(crate) fn owner_keys(&self) -> OwnerKeys {
        OwnerKeys::of(&self.secret)
    }

    /// The keys of existing index rows; the last is the key of new rows.
    pub(crate) fn index_keys(&self) -> Vec<IndexKeys> {
        let own = self.index.under_owner.then(|| IndexKeys::of_owner(&self.secret));
        let others = self.index.secrets.iter();
        own.into_iter().chain(others.map(|(generation, secret)| IndexKeys::of(*generation, secret))).collect()
    }

    /// The generation of new rows; 0 is the owner's own secret.
    pub(crate) fn index_generation(&self) -> Option<u64> {
        let own = self.index.under_owner.then_some(0);
        self.index.secrets.last().map(|(generation, _)| *generation).or(own)
    }

    /// The number of keys that rows may use.
    pub(crate) fn index_count(&self) -> usize {
        self.index.secrets.len() + usize::from(self.index.under_owner)
    }

    /// The time from which the index needs a new key; `None` if it needs none.
    pub(crate) fn reindex_from_ms(&self) -> Option<u64> {
        if self.index.under_owner || self.index.is_being_replaced() { Some(0) } else { self.index.stale_ms }
    }

    /// Records the time since which old pages may hold rows of deleted items.
    pub(crate) fn note_stale_index(&mut self, at_ms: u64) {
        self.index.stale_ms = Some(self.index.stale_ms.map_or(at_ms, |since| since.min(at_ms)));
    }

    /// Creates a new key of the index, unless the last one does not cover all rows yet. Later deletions need
    /// another key.
    pub(crate) fn begin_reindex(&mut self) {
        if self.index.is_being_replaced() {
            return;
        }
        let generation = self.index.secrets.last().map_or(1, |(last, _)| last + 1);
        self.index.secrets.push((generation, OwnerSecret::generate()));
        self.index.stale_ms = None;
    }

    /// Destroys all keys of the index except one generation's, which covers all rows now. Does nothing if a
    /// newer key was created meanwhile.
    pub(crate) fn end_reindex(&mut self, generation: u64) {
        if self.index.secrets.last().is_some_and(|(last, _)| *last == generation) {
            self.index.secrets.retain(|(kept, _)| *kept == generation);
            self.index.under_owner = false;
        }
    }

    /// The database's least progress at the file's last write.
    pub(crate) fn mark(&self) -> Mark {
        self.mark
    }

    pub(crate) fn raise_mark(&mut self, seen: Mark) {
        self.mark.raise(seen);
    }

    /// Gives up lost data.
    pub(crate) fn lower_mark(&mut self, found: Mark) {
        self.mark = found;
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
        let new = self
            .redactions
            .iter()
            .filter(|open| open.segment == segment)
            .filter_map(|open| open.new.as_ref());
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
                let new = (!empty.contains(segment)).then(SegmentKey::generate);
                Some(Redaction { segment: *segment, old, new })
            })
            .collect();
        self.redactions.extend(redactions.iter().cloned());
        redactions
    }

    /// All keys, for tests that try each of them.
    #[cfg(test)]
    pub(crate) fn all_keys(&self) -> impl Iterator<Item = &SegmentKey> {
        self.keys.values().chain(self.redactions.iter().filter_map(|open| open.new.as_ref()))
    }

    pub(crate) fn redactions(&self) -> &[Redaction] {
        &self.redactions
    }

    /// Ends a redaction that took place, and removes the old key. If the redaction is not open, another
    /// relayer has ended it.
    pub(crate) fn complete(&mut self, redaction: &Redaction) {
        if self.close(redaction)
            && self.keys.get(&redaction.segment).is_some_and(|key| key.id == redaction.old)
        {
            match &redaction.new {
                Some(new) => self.keys.insert(redaction.segment, new.clone()),
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
            (open.segment, open.old, open.new.as_ref().map(|key| key.id))
                != (redaction.segment, redaction.old, redaction.new.as_ref().map(|key| key.id))
        });
        self.redactions.len() < before
    }

    pub(crate) fn encode(&self) -> Zeroizing<Vec<u8>> {
        codec::encode_secret(&WireRing {
            keys: self.wire_keys(),
            mark: self.mark,
            index: self
                .index
                .secrets
                .iter()
                .map(|(generation, secret)| (*generation, *secret.expose()))
                .collect(),
            under_owner: self.index.under_owner,
            stale_ms: self.index.stale_ms,
        })
    }

    fn wire_keys(&self) -> WireKeys {
        WireKeys {
            owner: self.owner,
            secret: *self.secret.expose(),
            keys: self.keys.iter().map(|(segment, key)| WireKey::new(*segment, key)).collect(),
            redactions: self
                .redactions
                .iter()
                .map(|open| WireRedaction {
                    old: open.old.0,
                    new: open.new.as_ref().map(|key| WireKey::new(open.segment, key)),
                    space: open.segment.space as u8,
                    index: open.segment.index,
                })
                .collect(),
        }
    }

    /// Decodes the output of [`Self::encode`]; `None` for other bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let wire: WireRing = codec::decode(bytes, MAX_KEYRING_BYTES).ok()?;
        let secrets =
            wire.index.iter().map(|(generation, secret)| (*generation, OwnerSecret::from_bytes(*secret)));
        let index = IndexSecrets {
            secrets: secrets.collect(),
            under_owner: wire.under_owner,
            stale_ms: wire.stale_ms,
        };
        if index.secrets.is_empty() && !index.under_owner {
            return None;
        }
        Some(Self { index, mark: wire.mark, ..Self::of_keys(&wire.keys)? })
    }

    /// Reads a file of the first format, which had neither a mark nor index keys.
    pub(crate) fn decode_first(bytes: &[u8]) -> Option<Self> {
        Self::of_keys(&codec::decode(bytes, MAX_KEYRING_BYTES).ok()?)
    }

    fn of_keys(wire: &WireKeys) -> Option<Self> {
        let keys = wire.keys.iter().map(WireKey::read).collect::<Option<BTreeMap<_, _>>>()?;
        let redactions = wire
            .redactions
            .iter()
            .map(|open| {
                let segment = Segment { space: space_of(open.space)?, index: open.index };
                let new = match &open.new {
                    Some(key) => Some(key.read()?.1),
                    None => None,
                };
                Some(Redaction { segment, old: KeyId(open.old), new })
            })
            .collect::<Option<_>>()?;
        Some(Self {
            owner: wire.owner,
            secret: OwnerSecret::from_bytes(wire.secret),
            keys,
            redactions,
            index: IndexSecrets::of_old_files(),
            mark: Mark::default(),
        })
    }
}

fn space_of(byte: u8) -> Option<Space> {
    Space::ALL.into_iter().find(|space| *space as u8 == byte)
}

#[derive(Serialize, Deserialize, ZeroizeOnDrop)]
struct WireRing {
    keys: WireKeys,
    #[zeroize(skip)]
    mark: Mark,
    index: Vec<(u64, [u8; 32])>,
    #[zeroize(skip)]
    under_owner: bool,
    #[zeroize(skip)]
    stale_ms: Option<u64>,
}

/// The whole of a file of the first format.
#[derive(Serialize, Deserialize, ZeroizeOnDrop)]
struct WireKeys {
    #[zeroize(skip)]
    owner: OwnerId,
    secret: [u8; 32],
    #[zeroize(skip)]
    keys: Vec<WireKey>,
    #[zeroize(skip)]
    redactions: Vec<WireRedaction>,
}

#[derive(Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
struct WireKey {
    space: u8,
    index: u64,
    id: [u8; KEY_ID_LEN],
    key: [u8; 32],
}

#[derive(Serialize, Deserialize)]
struct WireRedaction {
    space: u8,
    index: u64,
    old: [u8; KEY_ID_LEN],
    new: Option<WireKey>,
}

impl WireKey {
    fn new(segment: Segment, key: &SegmentKey) -> Self {
        Self { space: segment.space as u8, index: segment.index, id: key.id.0, key: *key.key.expose() }
    }

    fn read(&self) -> Option<(Segment, SegmentKey)> {
        let segment = Segment { space: space_of(self.space)?, index: self.index };
        Some((segment, SegmentKey { id: KeyId(self.id), key: DataKey::from_bytes(self.key) }))
    }
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
            ring.raise_mark(Mark { version: 7, events: 9 });
            ring.note_stale_index(4);
            if empty { ring.begin_reindex() }
            let read = Keyring::decode(&ring.encode()).unwrap();
            prop_assert!(read.same_secret(&ring) && read.keys == ring.keys && read.redactions == ring.redactions);
            prop_assert!(read.index == ring.index && read.mark == ring.mark);
            prop_assert!(Keyring::decode(&ring.encode()[1..]).is_none());
            // A file of the first format has the same beginning, and is readable.
            let first = codec::encode_secret(&ring.wire_keys());
            prop_assert!(Keyring::decode(&first).is_none());
            let read = Keyring::decode_first(&first).unwrap();
            prop_assert!(read.same_secret(&ring) && read.keys == ring.keys && read.redactions == ring.redactions);
            prop_assert!(read.mark == Mark::default() && read.index.under_owner);
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
                prop_assert!(ring.redactions().is_empty());
                prop_assert_eq!(ring.find(open.segment, before.id).is_some(), !took_place);
                let now = ring.current(open.segment).map(|key| key.id);
                let wanted = if took_place { open.new.map(|key| key.id) } else { Some(before.id) };
                prop_assert_eq!(now, wanted);
            }
        }
    }

    #[test]
    fn an_index_key_is_replaced_once_for_all_that_was_deleted_before() {
        let mut ring = Keyring::generate(OwnerId([9; 32]));
        let generations =
            |ring: &Keyring| -> Vec<u64> { ring.index.secrets.iter().map(|(g, _)| *g).collect() };
        assert_eq!((generations(&ring), ring.reindex_from_ms()), (vec![1], None));
        ring.note_stale_index(50);
        ring.note_stale_index(90);
        assert_eq!(ring.reindex_from_ms(), Some(50));
        ring.begin_reindex();
        ring.begin_reindex();
        assert_eq!(
            (generations(&ring), ring.reindex_from_ms()),
            (vec![1, 2], Some(0)),
            "a crash leaves it to be ended"
        );
        ring.note_stale_index(70);
        ring.end_reindex(1);
        assert_eq!(generations(&ring), [1, 2], "that is not the key of new rows");
        ring.end_reindex(2);
        // Items that were deleted meanwhile may be under the new key.
        assert_eq!((generations(&ring), ring.reindex_from_ms()), (vec![2], Some(70)));
        let mut old = Keyring::decode_first(&codec::encode_secret(&ring.wire_keys())).unwrap();
        assert_eq!((old.index_keys().len(), old.reindex_from_ms()), (1, Some(0)));
        old.begin_reindex();
        assert_eq!(old.index_keys().len(), 2);
        old.end_reindex(1);
        assert_eq!((old.index_keys().len(), old.reindex_from_ms()), (1, None));
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
