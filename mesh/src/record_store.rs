//! Index of the DHT records stored here, and their eviction order.
//!
//! Pure: the records themselves are in libp2p's store, which the swarm task keeps in step with this index.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use libp2p::{
    PeerId,
    kad::{KBucketDistance, KBucketKey, RecordKey},
};

use crate::{
    limits::{MAX_DHT_BYTES, MAX_DHT_RECORDS},
    records::RecordSummary,
};

/// A stored record.
#[derive(Debug, Clone, Copy)]
struct StoredRecord {
    summary: RecordSummary,
    distance: KBucketDistance,
    bytes: usize,
}

/// The records by key, by distance of their keys from this mesh's own, and by expiry. Each change costs a
/// tree search, even when the index is full.
#[derive(Debug)]
pub(crate) struct RecordIndex {
    local: KBucketKey<PeerId>,
    records: HashMap<RecordKey, StoredRecord>,
    by_distance: BTreeMap<KBucketDistance, RecordKey>,
    by_expiry: BTreeSet<(u64, KBucketDistance)>,
    bytes: usize,
}

impl RecordIndex {
    pub(crate) fn new(local: PeerId) -> Self {
        Self {
            local: KBucketKey::from(local),
            records: HashMap::new(),
            by_distance: BTreeMap::new(),
            by_expiry: BTreeSet::new(),
            bytes: 0,
        }
    }

    /// The summary of the record under a key.
    pub(crate) fn get(&self, key: &RecordKey) -> Option<RecordSummary> {
        self.records.get(key).map(|entry| entry.summary)
    }

    /// The number of records.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// Inserts a record of `bytes` bytes, replacing any record under its key. Returns the evicted keys:
    /// expired ones first, then those farthest from this mesh.
    ///
    /// # Errors
    /// The evicted keys, if the record is too far away to fit. It is not stored then, and the old record
    /// under its key stays.
    pub(crate) fn insert(
        &mut self,
        key: &RecordKey,
        summary: RecordSummary,
        bytes: usize,
        now_ms: u64,
    ) -> Result<Vec<RecordKey>, Vec<RecordKey>> {
        let known = self.records.get(key).copied();
        let distance =
            known.map_or_else(|| KBucketKey::new(key.clone()).distance(&self.local), |entry| entry.distance);
        // Removed first, so that the record does not compete with its own old version.
        self.remove(key);
        let mut evicted = Vec::new();
        if !self.fits(bytes) {
            evicted = self.expire(now_ms);
        }
        while !self.fits(bytes) {
            let farthest = self.by_distance.last_key_value().filter(|(farthest, _)| **farthest > distance);
            let Some(farthest) = farthest.map(|(_, key)| key.clone()) else {
                if let Some(entry) = known {
                    self.put(key, entry);
                }
                return Err(evicted);
            };
            self.remove(&farthest);
            evicted.push(farthest);
        }
        self.put(key, StoredRecord { summary, distance, bytes });
        Ok(evicted)
    }

    /// Drops expired records and returns their keys.
    pub(crate) fn expire(&mut self, now_ms: u64) -> Vec<RecordKey> {
        let mut evicted = Vec::new();
        while let Some((expires_ms, distance)) = self.by_expiry.first().copied()
            && expires_ms <= now_ms
        {
            self.by_expiry.pop_first();
            if let Some(key) = self.by_distance.get(&distance).cloned() {
                self.remove(&key);
                evicted.push(key);
            }
        }
        evicted
    }

    fn fits(&self, bytes: usize) -> bool {
        self.records.len() < MAX_DHT_RECORDS && self.bytes.saturating_add(bytes) <= MAX_DHT_BYTES
    }

    fn put(&mut self, key: &RecordKey, entry: StoredRecord) {
        self.by_distance.insert(entry.distance, key.clone());
        self.by_expiry.insert((entry.summary.expires_ms, entry.distance));
        self.bytes += entry.bytes;
        self.records.insert(key.clone(), entry);
    }

    fn remove(&mut self, key: &RecordKey) {
        if let Some(entry) = self.records.remove(key) {
            self.by_distance.remove(&entry.distance);
            self.by_expiry.remove(&(entry.summary.expires_ms, entry.distance));
            self.bytes -= entry.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> RecordKey {
        RecordKey::from(number.to_be_bytes().to_vec())
    }

    fn distance(index: &RecordIndex, key: &RecordKey) -> KBucketDistance {
        KBucketKey::new(key.clone()).distance(&index.local)
    }

    fn until(expires_ms: u64) -> RecordSummary {
        RecordSummary { sequence: 1, expires_ms }
    }

    /// Checks that all tables and the byte sum agree.
    fn check(index: &RecordIndex) {
        let bytes: usize = index.records.values().map(|entry| entry.bytes).sum();
        assert_eq!(index.bytes, bytes);
        assert_eq!((index.by_distance.len(), index.by_expiry.len()), (index.len(), index.len()));
        assert!(index.bytes <= MAX_DHT_BYTES && index.len() <= MAX_DHT_RECORDS);
    }

    #[test]
    fn a_flood_of_new_keys_leaves_the_nearest_and_costs_little_for_each() {
        let mut index = RecordIndex::new(PeerId::random());
        // A full scan for each key would take minutes.
        let flood = 8 * MAX_DHT_RECORDS;
        let (mut stored, mut dropped) = (0, 0);
        for number in 0..flood {
            match index.insert(&key(number), until(1000), 10, 0) {
                Ok(evicted) => (stored, dropped) = (stored + 1, dropped + evicted.len()),
                Err(evicted) => assert!(evicted.is_empty()),
            }
        }
        check(&index);
        assert_eq!((index.len(), stored - dropped), (MAX_DHT_RECORDS, MAX_DHT_RECORDS));
        let mut distances: Vec<_> = (0..flood).map(|number| distance(&index, &key(number))).collect();
        distances.sort_unstable();
        let nearest = &distances[..MAX_DHT_RECORDS];
        assert!(index.by_distance.keys().eq(nearest));
    }

    #[test]
    fn large_records_are_bounded_by_their_bytes() {
        let mut index = RecordIndex::new(PeerId::random());
        let large = baton_proto::limits::MAX_SIGNED_BYTES;
        let fit = MAX_DHT_BYTES / large;
        for number in 0..2 * fit {
            let _ = index.insert(&key(number), until(1000), large, 0);
            check(&index);
        }
        assert_eq!(index.len(), fit);
        // A record that grows evicts farther ones; if there is none, it stays as it was.
        let nearest = index.by_distance.first_key_value().map(|(_, key)| key.clone()).unwrap();
        let farthest = index.by_distance.last_key_value().map(|(_, key)| key.clone()).unwrap();
        let newer = RecordSummary { sequence: 2, expires_ms: 1000 };
        assert_eq!(index.insert(&farthest, newer, large + 1, 0), Err(Vec::new()));
        assert_eq!(index.get(&farthest), Some(until(1000)));
        assert_eq!(index.insert(&nearest, newer, large + 1, 0), Ok(vec![farthest]));
        assert_eq!(index.get(&nearest), Some(newer));
        check(&index);
    }

    #[test]
    fn expired_records_make_room_first() {
        let mut index = RecordIndex::new(PeerId::random());
        for number in 0..MAX_DHT_RECORDS {
            let expires_ms = if number < 3 { 500 } else { 1000 };
            assert_eq!(index.insert(&key(number), until(expires_ms), 10, 0), Ok(Vec::new()));
        }
        let mut evicted = index.insert(&key(MAX_DHT_RECORDS), until(1000), 10, 500).unwrap();
        evicted.sort_by_key(RecordKey::to_vec);
        assert_eq!(evicted, (0..3).map(key).collect::<Vec<_>>());
        check(&index);
        assert_eq!(index.expire(999), Vec::new());
        assert_eq!(index.expire(1000).len(), MAX_DHT_RECORDS - 2);
        check(&index);
        assert_eq!(index.len(), 0);
    }
}
