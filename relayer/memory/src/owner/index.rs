//! The search index of an open owner: in memory, or in the rows of the database. The owner tells it of every change, asks
//! it for candidates, and knows no more of the difference.

use std::collections::{BTreeSet, HashSet};

use super::{
    VectorKind,
    features::{Pack, pack_of},
    load::off_reactor,
};
use crate::{
    api::Result,
    search::{
        Candidates, Documents, FeatureRecord, Features, Index, QuantisedVector, Question, RowQuestion,
        embedder_hash,
    },
    storage::Space,
    vault::{OwnerVault, Secret},
};

/// Visible items up to which all features are opened, without a scan of rows.
const ALL_UP_TO: usize = 400;
/// Most items whose features are opened after a scan, besides their neighbours: far more than an answer has.
const OPENED: usize = 256;

/// A search of an owner's items.
pub(crate) struct ItemSearch<'a> {
    pub(crate) question: &'a Question,
    /// The items that the caller may see, ascending.
    pub(crate) visible: &'a [u64],
    pub(crate) documents: &'a dyn Documents,
}

/// The items whose stored features were read.
#[derive(Default)]
pub(crate) struct StoredFeatures {
    /// Items with a vector of the present embedder.
    pub(super) current: HashSet<u64>,
    /// Items without.
    pub(super) stale: HashSet<u64>,
    /// Items with a record of their own.
    pub(super) loose: BTreeSet<u64>,
}

/// The search index of an owner.
pub(super) struct ItemIndex {
    pub(super) kind: VectorKind,
    /// All features, for a storage without a search. Else the database compares its rows, and the features of the
    /// best ones are opened.
    memory: Option<Index>,
}

impl ItemIndex {
    /// The index that an owner's storage needs.
    pub(super) fn new(vault: &OwnerVault, kind: VectorKind) -> Self {
        let memory = (!vault.has_rows()).then(|| Index::new(kind.dimensions));
        Self { kind, memory }
    }

    /// Takes the features of an item, in place of former ones.
    pub(super) fn insert(&mut self, number: u64, features: Features) {
        if let Some(index) = &mut self.memory {
            index.insert(number, features);
        }
    }

    /// Takes the vector of an item.
    pub(super) fn set_vector(&mut self, number: u64, vector: QuantisedVector) {
        if let Some(index) = &mut self.memory {
            index.set_vector(number, Some(vector));
        }
    }

    /// Forgets an item.
    pub(super) fn remove(&mut self, number: u64) {
        if let Some(index) = &mut self.memory {
            index.remove(number);
        }
    }

    /// Whether it has an item. A row is written with its item.
    pub(super) fn contains(&self, number: u64) -> bool {
        self.memory.as_ref().is_none_or(|index| index.contains(number))
    }

    /// Its approximate bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.memory.as_ref().map_or(0, Index::bytes)
    }

    /// Whether it reads all features, so that they are better stored in packs.
    pub(super) fn reads_all(&self) -> bool {
        self.memory.is_some()
    }

    fn embedder(&self) -> u64 {
        embedder_hash(&self.kind.embedder, self.kind.dimensions)
    }

    /// Reads the stored features of items from a number on.
    pub(super) async fn read(&mut self, vault: &OwnerVault, from: u64) -> Result<StoredFeatures> {
        let mut found = StoredFeatures::default();
        if self.memory.is_none() {
            found.current = vault.embedded_rows(self.embedder(), from).await?.into_iter().collect();
            return Ok(found);
        }
        for space in [Space::Packs, Space::Features] {
            let mut next = if space == Space::Packs { pack_of(from) } else { from };
            loop {
                let page = vault.read(space, next).await?;
                let Some((last, _)) = page.last() else { break };
                next = last + 1;
                let index = self.memory.take().unwrap_or_default();
                let mut reader = FeatureReader { index, kind: self.kind.clone(), from, found };
                let read = off_reactor(move || {
                    page.iter().for_each(|(number, bytes)| reader.take_record(space, *number, bytes));
                    reader
                });
                let reader = read.await?;
                (self.memory, found) = (Some(reader.index), reader.found);
            }
        }
        Ok(found)
    }

    /// An index of some items alone.
    async fn opened(&self, vault: &OwnerVault, numbers: Vec<u64>) -> Result<Index> {
        let mut index = Index::new(self.kind.dimensions);
        for (number, bytes) in vault.read_some(Space::Features, numbers).await? {
            let Some(mut record) = FeatureRecord::decode(&bytes) else { continue };
            let current = record.is_of(&self.kind.embedder, self.kind.dimensions);
            let mut features = std::mem::take(&mut record.features);
            if !current {
                features.vector = None;
            }
            index.insert(number, features);
        }
        Ok(index)
    }

    /// The candidates of a search; `None` if another relayer wrote meanwhile.
    pub(super) async fn search(
        &self,
        vault: &OwnerVault,
        search: &ItemSearch<'_>,
    ) -> Result<Option<Candidates>> {
        let ItemSearch { question, visible, documents } = search;
        let is_visible = |number: u64| visible.binary_search(&number).is_ok();
        if let Some(index) = &self.memory {
            return Ok(Some(index.scan(question, &is_visible)));
        }
        if visible.len() <= ALL_UP_TO {
            let index = self.opened(vault, visible.to_vec()).await?;
            return Ok(Some(index.scan(question, &|_| true)));
        }
        let asked = RowQuestion::new(question, self.embedder());
        let Some(scan) = vault.scan_rows(|keys| asked.under(keys)).await? else { return Ok(None) };
        let selected = asked.select(&scan, visible, OPENED);
        // An answer may share no word with its question, the message before.
        let near = selected.numbers.iter().flat_map(|number| documents.neighbours(*number)).flatten();
        let near = near.filter(|number| is_visible(*number));
        let numbers: BTreeSet<u64> = near.chain(selected.numbers.iter().copied()).collect();
        let index = self.opened(vault, numbers.into_iter().collect()).await?;
        Ok(Some(index.scan_among(question, &selected.statistics)))
    }
}

/// Takes stored features into an index.
struct FeatureReader {
    index: Index,
    kind: VectorKind,
    from: u64,
    found: StoredFeatures,
}

impl FeatureReader {
    /// The seal proves that a pack is intact, so the checksums of its vectors are not recomputed.
    fn take_record(&mut self, space: Space, number: u64, bytes: &Secret) {
        if space == Space::Packs {
            let Some(pack) = Pack::decode(bytes) else { return };
            let from = self.from;
            let current =
                pack.embedder == self.kind.embedder && pack.dimensions as usize == self.kind.dimensions;
            for packed in pack.items.iter().filter(|packed| packed.number >= from) {
                self.take(packed.number, packed.features(), current);
            }
        } else if let Some(mut record) = FeatureRecord::decode(bytes) {
            self.found.loose.insert(number);
            let current = record.is_of(&self.kind.embedder, self.kind.dimensions);
            self.take(number, std::mem::take(&mut record.features), current);
        }
    }

    fn take(&mut self, number: u64, mut features: Features, current: bool) {
        let StoredFeatures { current: now, stale, .. } = &mut self.found;
        let (now, before) = if current { (now, stale) } else { (stale, now) };
        before.remove(&number);
        now.insert(number);
        if !current {
            features.vector = None;
        }
        self.index.insert(number, features);
    }
}
