//! The ledger of stored blobs.

use std::{collections::BTreeMap, time::Duration};

use baton_proto::ids::BlobId;
use serde::{Deserialize, Serialize};

use super::clock::{EpochClock, TimeBounds};
use crate::http_store::{ObjectId, ObjectOwner, StoredBlob, StoredHow, WriteOptions};

/// Most blobs in one ledger: some 40 MB of JSON. A session has one blob a turn.
const MAX_BLOBS: usize = 100_000;

/// The problem of a blob's last renewal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Trouble {
    /// Nothing was stored.
    Failed {
        /// The reason.
        reason: String,
        /// Unix time in milliseconds.
        at_ms: u64,
    },
    /// It was sent, but may not have been stored and paid.
    Uncertain {
        /// The reason.
        reason: String,
        /// Unix time in milliseconds.
        at_ms: u64,
    },
    /// Every reachable aggregator said that it lacks the blob.
    Lost {
        /// Unix time in milliseconds.
        at_ms: u64,
    },
}

/// A blob in the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// Its ID.
    #[serde(with = "blob_id_text")]
    pub blob_id: BlobId,
    /// Its length in bytes.
    pub length: u64,
    /// The first epoch without it, if a publisher said.
    pub end_epoch: Option<u64>,
    /// Whether it cannot be deleted earlier.
    pub permanent: bool,
    /// The intended owner of the object.
    pub owner: ObjectOwner,
    /// The object on Sui of the last PUT, if the publisher said.
    pub object: Option<ObjectId>,
    /// Time when it was last stored or found, Unix time in milliseconds.
    pub recorded_ms: u64,
    /// The problem since then.
    pub trouble: Option<Trouble>,
}

/// The reason why the ledger refuses an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The ledger is full.
    #[error("the ledger is full with {MAX_BLOBS} blobs; remove those that are no longer needed")]
    Full,
    /// Two entries of one blob.
    #[error("the ledger has a blob twice")]
    Duplicate,
}

/// The ledger: the stored blobs and their lifetimes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "LedgerFile", into = "LedgerFile")]
pub struct Ledger {
    clock: EpochClock,
    blobs: BTreeMap<BlobId, LedgerEntry>,
}

/// The form on disk.
#[derive(Clone, Serialize, Deserialize)]
struct LedgerFile {
    clock: EpochClock,
    blobs: Vec<LedgerEntry>,
}

impl TryFrom<LedgerFile> for Ledger {
    type Error = LedgerError;

    fn try_from(form: LedgerFile) -> Result<Self, LedgerError> {
        let given = form.blobs.len();
        if given > MAX_BLOBS {
            return Err(LedgerError::Full);
        }
        let blobs: BTreeMap<_, _> = form.blobs.into_iter().map(|blob| (blob.blob_id, blob)).collect();
        if blobs.len() < given {
            return Err(LedgerError::Duplicate);
        }
        Ok(Self { clock: form.clock, blobs })
    }
}

impl From<Ledger> for LedgerFile {
    fn from(ledger: Ledger) -> Self {
        Self { clock: ledger.clock, blobs: ledger.blobs.into_values().collect() }
    }
}

impl Ledger {
    /// An empty ledger for a network with epochs of this length ([`EpochClock::MAINNET_EPOCH`],
    /// [`EpochClock::TESTNET_EPOCH`] or another).
    #[must_use]
    pub fn new(epoch: Duration) -> Self {
        Self { clock: EpochClock::new(epoch), blobs: BTreeMap::new() }
    }

    /// The knowledge of epochs.
    #[must_use]
    pub fn clock(&self) -> &EpochClock {
        &self.clock
    }

    /// Number of blobs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blobs.len()
    }

    /// Whether it has no blobs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blobs.is_empty()
    }

    /// The entry of a blob.
    #[must_use]
    pub fn get(&self, id: BlobId) -> Option<&LedgerEntry> {
        self.blobs.get(&id)
    }

    /// All entries, by ID.
    pub fn blobs(&self) -> impl Iterator<Item = &LedgerEntry> {
        self.blobs.values()
    }

    /// Removes a blob that is no longer needed. Nothing else removes entries.
    pub fn remove(&mut self, id: BlobId) -> Option<LedgerEntry> {
        self.blobs.remove(&id)
    }

    /// Records the result of a PUT. A blob that was only found keeps its known end; otherwise the later end
    /// counts.
    ///
    /// # Errors
    /// [`LedgerError::Full`]: the blob is stored but not recorded.
    pub fn record(
        &mut self,
        stored: &StoredBlob,
        options: &WriteOptions,
        now_ms: u64,
    ) -> Result<(), LedgerError> {
        if let Some(epoch) = stored.epoch {
            self.clock.observe(epoch, now_ms);
        }
        let before = self.blobs.get(&stored.blob_id);
        if before.is_none() && self.blobs.len() >= MAX_BLOBS {
            return Err(LedgerError::Full);
        }
        let found_only = stored.how == StoredHow::Found;
        let blob = match before {
            // A blob that outlives its recorded end has another end.
            Some(before) if found_only => LedgerEntry {
                recorded_ms: now_ms,
                end_epoch: before.end_epoch.filter(|_| self.ends(before).latest_ms > now_ms),
                ..before.clone()
            },
            _ => LedgerEntry {
                blob_id: stored.blob_id,
                length: stored.length,
                end_epoch: stored.end_epoch.max(before.and_then(|before| before.end_epoch)),
                permanent: options.permanent,
                owner: options.owner,
                object: stored.object.or(before.and_then(|before| before.object)),
                recorded_ms: now_ms,
                trouble: None,
            },
        };
        self.blobs.insert(stored.blob_id, blob);
        Ok(())
    }

    /// Notes the problem of a blob; ignores a blob outside the ledger.
    pub(super) fn note(&mut self, id: BlobId, trouble: Option<Trouble>) {
        if let Some(blob) = self.blobs.get_mut(&id) {
            blob.trouble = trouble;
        }
    }

    /// Bounds of a blob's end. If the end is unknown, the blob lives at least to the end of the epoch in
    /// which it was last seen. If epochs are unknown too, only that moment is certain.
    #[must_use]
    pub fn ends(&self, blob: &LedgerEntry) -> TimeBounds {
        let known = match blob.end_epoch {
            Some(end) => self.clock.begins(end),
            None => self.clock.epoch_end(blob.recorded_ms),
        };
        known.unwrap_or(TimeBounds { earliest_ms: blob.recorded_ms, latest_ms: u64::MAX })
    }

    /// The blobs that may end within `margin` from now, the most urgent first. A blob of unknown end counts
    /// by its earliest possible end.
    #[must_use]
    pub fn due(&self, now_ms: u64, margin: Duration) -> Vec<&LedgerEntry> {
        let margin_ms = u64::try_from(margin.as_millis()).unwrap_or(u64::MAX);
        let until = now_ms.saturating_add(margin_ms);
        let mut due: Vec<(u64, &LedgerEntry)> = self
            .blobs
            .values()
            .map(|blob| (self.ends(blob).earliest_ms, blob))
            .filter(|(ends, _)| *ends <= until)
            .collect();
        due.sort_by_key(|(ends, blob)| (*ends, blob.blob_id));
        due.into_iter().map(|(_, blob)| blob).collect()
    }
}

/// A blob ID as its text.
pub(super) mod blob_id_text {
    use baton_proto::ids::BlobId;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(crate) fn serialize<S: Serializer>(id: &BlobId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(id)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BlobId, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) const DAY: u64 = 24 * 3_600_000;
    /// Day 100, the start of epoch 10; an epoch is one day.
    pub(crate) const NOW: u64 = 100 * DAY;

    pub(crate) fn stored(fill: u8, end_epoch: Option<u64>) -> StoredBlob {
        StoredBlob {
            blob_id: BlobId([fill; 32]),
            length: 10,
            how: if end_epoch.is_some() { StoredHow::Created } else { StoredHow::Found },
            end_epoch,
            epoch: end_epoch.map(|_| 10),
            object: Some(ObjectId([fill; 32])),
            cost: None,
        }
    }

    pub(crate) fn ledger() -> Ledger {
        let mut ledger = Ledger::new(EpochClock::TESTNET_EPOCH);
        let options = WriteOptions::new(1);
        for (fill, end) in [(1, Some(13)), (2, Some(11)), (3, None), (4, Some(40))] {
            ledger.record(&stored(fill, end), &options, NOW).unwrap();
        }
        ledger
    }

    fn fills(blobs: &[&LedgerEntry]) -> Vec<u8> {
        blobs.iter().map(|blob| blob.blob_id.0[0]).collect()
    }

    #[test]
    fn due_blobs_are_sorted_by_their_earliest_possible_end() {
        let ledger = ledger();
        assert_eq!(fills(&ledger.due(NOW, Duration::ZERO)), [2, 3], "both may end with this epoch");
        assert_eq!(fills(&ledger.due(NOW + DAY, EpochClock::TESTNET_EPOCH)), [2, 3, 1]);
        assert_eq!(fills(&ledger.due(NOW, Duration::from_secs(365 * 24 * 3600))), [2, 3, 1, 4]);
        assert_eq!(ledger.due(NOW, Duration::MAX).len(), 4);
    }

    #[test]
    fn without_any_answer_everything_is_due_at_once() {
        let mut ledger = Ledger::new(EpochClock::MAINNET_EPOCH);
        let without_epoch = StoredBlob { epoch: None, ..stored(1, Some(1000)) };
        ledger.record(&without_epoch, &WriteOptions::new(1), NOW).unwrap();
        assert_eq!(ledger.due(NOW, Duration::ZERO).len(), 1);
    }

    #[test]
    fn a_later_end_counts_and_finding_a_blob_changes_no_end() {
        let mut ledger = ledger();
        let id = BlobId([1; 32]);
        ledger.note(id, Some(Trouble::Lost { at_ms: NOW }));
        ledger.record(&stored(1, None), &WriteOptions::new(1), NOW + 5).unwrap();
        let blob = ledger.get(id).unwrap();
        assert_eq!((blob.end_epoch, blob.recorded_ms), (Some(13), NOW + 5));
        assert!(blob.trouble.is_some(), "that it is there does not say for how long");
        let past = NOW + 30 * DAY;
        let mut later = ledger.clone();
        later.record(&stored(1, None), &WriteOptions::new(1), past).unwrap();
        assert_eq!(later.get(id).unwrap().end_epoch, None, "it is there after its end");
        ledger.record(&stored(1, Some(12)), &WriteOptions::new(1), NOW).unwrap();
        assert_eq!(ledger.get(id).unwrap().end_epoch, Some(13), "the longer-lived object still stands");
        ledger.record(&stored(1, Some(20)), &WriteOptions::new(1).permanent(), NOW).unwrap();
        let blob = ledger.get(id).unwrap();
        assert_eq!((blob.end_epoch, blob.permanent, &blob.trouble), (Some(20), true, &None));
    }

    #[test]
    fn it_survives_being_written_and_refuses_what_was_tampered_with() {
        let ledger = ledger();
        let text = serde_json::to_string(&ledger).unwrap();
        assert_eq!(serde_json::from_str::<Ledger>(&text).unwrap(), ledger);
        let mut form: serde_json::Value = serde_json::from_str(&text).unwrap();
        let first = form["blobs"][0].clone();
        form["blobs"].as_array_mut().unwrap().push(first);
        assert!(serde_json::from_value::<Ledger>(form).is_err());
    }

    #[test]
    fn a_full_ledger_refuses_new_blobs_and_removes_none() {
        let mut ledger = ledger();
        let blob = ledger.get(BlobId([1; 32])).unwrap().clone();
        for number in 0..MAX_BLOBS - 4 {
            let mut id = [9; 32];
            id[..8].copy_from_slice(&number.to_le_bytes());
            ledger.blobs.insert(BlobId(id), LedgerEntry { blob_id: BlobId(id), ..blob.clone() });
        }
        let options = WriteOptions::new(1);
        assert_eq!(ledger.record(&stored(5, Some(11)), &options, NOW), Err(LedgerError::Full));
        assert_eq!(ledger.record(&stored(1, Some(50)), &options, NOW), Ok(()), "known ones are written on");
        assert_eq!(ledger.len(), MAX_BLOBS);
    }
}
