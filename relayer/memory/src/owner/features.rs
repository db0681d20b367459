//! The stored search features of items. A new item has a record of its own. Later, packs hold the features of a segment,
//! so that an owner opens with few records, unless a database searches its rows.
//!
//! A single record overrides a pack. A deletion or rewrite removes an item from its pack in the same commit.
//! The commit seals the pack under a new key and destroys the old one.

use std::collections::{BTreeMap, BTreeSet};

use baton_proto::{codec, text::composed};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::{CommitOutcome, Owner, VectorKind, encode};
use crate::{
    api::Result,
    events::StoredItem,
    keyring::NUMBERS_PER_SEGMENT,
    model::{Author, Item},
    search::{
        ASSISTANT_SPEAKER, FeatureRecord, Features, QuantisedVector, TermHasher, USER_SPEAKER,
        document_features, indexed_text,
    },
    storage::Space,
    vault::{Changes, OwnerVault},
};

/// Fewest single records of a segment for which packing is worth a commit.
const PACK_FROM: usize = 32;
/// Packs of one commit; a pack has a few hundred kilobytes.
const PACKS_AT_ONCE: usize = 16;
/// Largest pack. A segment with larger features keeps its single records.
const MAX_PACK_BYTES: usize = 16 * 1024 * 1024;
/// Bytes of a term in a pack: its hash and count.
const TERM_BYTES: usize = 10;

/// Features of items of one segment, with vectors of one embedder.
#[derive(Serialize, Deserialize)]
pub(super) struct Pack {
    pub(super) embedder: String,
    pub(super) dimensions: u32,
    pub(super) items: Vec<PackItem>,
}

/// One item of a pack as flat bytes, for fast reads.
#[derive(Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub(super) struct PackItem {
    pub(super) number: u64,
    /// Hash (u64, little endian) and count (u16, little endian) of each term, ascending by hash.
    #[serde(with = "serde_bytes")]
    terms: Vec<u8>,
    length: u32,
    scale: f32,
    #[serde(with = "serde_bytes")]
    codes: Vec<u8>,
    checksum: [u8; 32],
}

impl PackItem {
    /// `None` without a vector: such an item is not packed.
    fn of(number: u64, record: &FeatureRecord) -> Option<Self> {
        let vector = record.features.vector.as_ref()?;
        let terms = record.features.terms.iter();
        Some(Self {
            number,
            terms: terms
                .flat_map(|(hash, count)| hash.to_le_bytes().into_iter().chain(count.to_le_bytes()))
                .collect(),
            length: record.features.length,
            scale: vector.scale,
            codes: vector.codes.iter().map(|code| code.cast_unsigned()).collect(),
            checksum: record.checksum,
        })
    }

    pub(super) fn features(&self) -> Features {
        let (terms, _) = self.terms.as_chunks::<TERM_BYTES>();
        let term = |[a, b, c, d, e, f, g, h, low, high]: &[u8; TERM_BYTES]| {
            let hash = u64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h]);
            (hash, u16::from_le_bytes([*low, *high]))
        };
        let codes = self.codes.iter().map(|code| code.cast_signed()).collect();
        Features {
            terms: terms.iter().map(term).collect(),
            length: self.length,
            vector: Some(QuantisedVector { scale: self.scale, codes }),
        }
    }
}

impl Pack {
    /// Decodes a record; `None` if it is not a pack.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        codec::decode(bytes, MAX_PACK_BYTES).ok()
    }

    /// Its items as single records.
    fn records(&self) -> impl Iterator<Item = (u64, FeatureRecord)> {
        self.items.iter().map(|packed| {
            let record = FeatureRecord {
                embedder: self.embedder.clone(),
                dimensions: self.dimensions,
                checksum: packed.checksum,
                features: packed.features(),
            };
            (packed.number, record)
        })
    }
}

/// The number of an item's pack: that of its segment.
pub(super) fn pack_of(number: u64) -> u64 {
    number / NUMBERS_PER_SEGMENT
}

/// The first and the last number of a pack's items.
fn range_of(pack: u64) -> (u64, u64) {
    let first = pack.saturating_mul(NUMBERS_PER_SEGMENT);
    (first, first.saturating_add(NUMBERS_PER_SEGMENT - 1))
}

/// All stored features of items in a range of numbers, both ends included.
async fn records_between(vault: &OwnerVault, first: u64, last: u64) -> Result<BTreeMap<u64, FeatureRecord>> {
    let mut found = BTreeMap::new();
    for number in pack_of(first)..=pack_of(last) {
        let bytes = vault.get(Space::Packs, number).await?;
        if let Some(pack) = bytes.and_then(|bytes| Pack::decode(&bytes)) {
            found.extend(pack.records());
        }
    }
    let mut from = first;
    while from <= last {
        let page = vault.read(Space::Features, from).await?;
        let Some((end, _)) = page.last() else { break };
        from = end + 1;
        let wanted = page.iter().filter(|(number, _)| *number <= last);
        found.extend(wanted.filter_map(|(number, bytes)| Some((*number, FeatureRecord::decode(bytes)?))));
    }
    found.retain(|number, _| (first..=last).contains(number));
    Ok(found)
}

impl Owner {
    pub(super) fn put_features(&self, changes: &mut Changes, number: u64, stored: &StoredItem) {
        let Ok(item) = stored.unpack() else { return };
        let features = features_of(&item, &self.hasher);
        changes.put.push((Space::Features, number, encode(&FeatureRecord::new(features, ""))));
    }

    pub(super) fn put_vector(&self, changes: &mut Changes, number: u64, vector: &QuantisedVector) {
        let Some(entry) = self.state.entries.get(&number) else { return };
        let mut features = features_of(&entry.item, &self.hasher);
        features.vector = Some(vector.clone());
        let record = FeatureRecord::new(features, &self.index.kind.embedder);
        changes.put.push((Space::Features, number, encode(&record)));
    }

    /// Removes items from their packs: their former bytes must become unreadable.
    pub(super) async fn unpack(&self, changes: &mut Changes, numbers: &BTreeSet<u64>) -> Result<()> {
        let packs: BTreeSet<u64> = numbers.iter().map(|number| pack_of(*number)).collect();
        for number in packs {
            let Some(bytes) = self.vault.get(Space::Packs, number).await? else { continue };
            let Some(mut pack) = Pack::decode(&bytes) else { continue };
            let before = pack.items.len();
            pack.items.retain(|packed| !numbers.contains(&packed.number));
            if pack.items.is_empty() {
                changes.remove.push((Space::Packs, number));
            } else if pack.items.len() < before {
                changes.put.push((Space::Packs, number, encode(&pack)));
            }
        }
        Ok(())
    }

    /// The packs to write: full segments with enough single records, in which each item has its vector.
    fn packs_to_write(&self) -> Vec<u64> {
        if !self.index.reads_all() {
            return Vec::new();
        }
        let mut loose: BTreeMap<u64, usize> = BTreeMap::new();
        for number in &self.loose {
            *loose.entry(pack_of(*number)).or_default() += 1;
        }
        let ready = |pack: u64| {
            let (first, last) = range_of(pack);
            last < self.state.next && self.unembedded.range(first..=last).next().is_none()
        };
        let worth = loose.into_iter().filter(|(_, count)| *count >= PACK_FROM).map(|(pack, _)| pack);
        worth.filter(|pack| ready(*pack)).take(PACKS_AT_ONCE).collect()
    }

    /// Whether there are features to pack.
    pub(crate) fn has_loose_features(&self) -> bool {
        !self.packs_to_write().is_empty()
    }

    /// Moves single records of full segments into packs; returns whether there were any.
    pub(crate) async fn pack_features(&mut self) -> Result<bool> {
        let packs = self.packs_to_write();
        if packs.is_empty() {
            return Ok(false);
        }
        let mut changes = Changes::default();
        let mut looked_at = BTreeSet::new();
        for number in packs {
            let (first, last) = range_of(number);
            let there = |number: &u64| self.state.entries.contains_key(number);
            let records = records_between(&self.vault, first, last).await?;
            let VectorKind { embedder, dimensions } = &self.index.kind;
            let items = records
                .iter()
                .filter(|(number, record)| there(number) && record.is_of(embedder, *dimensions))
                .filter_map(|(number, record)| PackItem::of(*number, record));
            let pack = Pack {
                embedder: embedder.clone(),
                dimensions: u32::try_from(*dimensions).unwrap_or(u32::MAX),
                items: items.collect(),
            };
            let singles = self.loose.range(first..=last).copied();
            looked_at.extend(singles.clone());
            let bytes = encode(&pack);
            if bytes.len() <= MAX_PACK_BYTES && !pack.items.is_empty() {
                let packed: BTreeSet<u64> = pack.items.iter().map(|packed| packed.number).collect();
                let done = singles.filter(|number| packed.contains(number) || !there(number));
                changes.remove.extend(done.map(|number| (Space::Features, number)));
                changes.put.push((Space::Packs, number, bytes));
            }
        }
        if self.make_durable(changes, false).await? == CommitOutcome::Done {
            // Items that could not be packed are skipped until the owner opens again.
            self.loose.retain(|number| !looked_at.contains(number));
        }
        Ok(true)
    }
}

/// The search features of an item: its text, author and time.
pub(crate) fn features_of(item: &Item, hasher: &TermHasher) -> Features {
    document_features(&item.text, speaker(item.provenance.author), item.provenance.time_ms, hasher)
}

/// The text of an item for the embedder.
pub(crate) fn embedded_text(item: &Item) -> String {
    composed(&indexed_text(&item.text, speaker(item.provenance.author), item.provenance.time_ms))
}

fn speaker(author: Author) -> &'static str {
    match author {
        Author::Assistant => ASSISTANT_SPEAKER,
        Author::User | Author::Owner | Author::Import => USER_SPEAKER,
    }
}
