//! The search index of an open owner: in memory, or in the rows of the database. The owner tells it of every change, asks
//! it for candidates, and knows no more of the difference.

use std::collections::{BTreeSet, HashSet};

use futures::future::{BoxFuture, LocalBoxFuture};

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
pub(crate) trait ItemIndex: Send + Sync {
    /// Takes the features of an item, in place of former ones.
    fn insert(&mut self, number: u64, features: Features);

    /// Takes the vector of an item.
    fn set_vector(&mut self, number: u64, vector: QuantisedVector);

    /// Forgets an item.
    fn remove(&mut self, number: u64);

    /// Whether it has an item.
    fn contains(&self, number: u64) -> bool;

    /// Its approximate bytes of memory.
    fn bytes(&self) -> usize;

    /// Whether it reads all features, so that they are better stored in packs.
    fn reads_all(&self) -> bool;

    /// Reads the stored features of items from a number on.
    fn read<'a>(&'a mut self, vault: &'a OwnerVault, from: u64) -> BoxFuture<'a, Result<StoredFeatures>>;

    /// The candidates of a search; `None` if another relayer wrote meanwhile.
    fn search<'a>(
        &'a self,
        vault: &'a OwnerVault,
        search: &'a ItemSearch<'a>,
    ) -> LocalBoxFuture<'a, Result<Option<Candidates>>>;
}

/// The index that an owner's storage needs.
pub(super) fn open(vault: &OwnerVault, kind: &VectorKind) -> Box<dyn ItemIndex> {
    if vault.has_rows() {
        Box::new(RowIndex { kind: kind.clone() })
    } else {
        Box::new(MemoryIndex { index: Index::new(kind.dimensions), kind: kind.clone() })
    }
}

/// All features in memory, for a storage without a search.
struct MemoryIndex {
    index: Index,
    kind: VectorKind,
}

impl MemoryIndex {
    fn take(&mut self, number: u64, mut features: Features, current: bool, found: &mut StoredFeatures) {
        let (now, before) = if current {
            (&mut found.current, &mut found.stale)
        } else {
            features.vector = None;
            (&mut found.stale, &mut found.current)
        };
        before.remove(&number);
        now.insert(number);
        self.index.insert(number, features);
    }

    /// The seal proves that a pack is intact, so the checksums of its vectors are not recomputed.
    fn take_pack(&mut self, pack: &Pack, from: u64, found: &mut StoredFeatures) {
        let current = pack.embedder == self.kind.embedder && pack.dimensions as usize == self.kind.dimensions;
        for packed in pack.items.iter().filter(|packed| packed.number >= from) {
            self.take(packed.number, packed.features(), current, found);
        }
    }

    fn take_record(&mut self, number: u64, mut record: FeatureRecord, found: &mut StoredFeatures) {
        let current = record.is_of(&self.kind.embedder, self.kind.dimensions);
        found.loose.insert(number);
        self.take(number, std::mem::take(&mut record.features), current, found);
    }

    fn take_page(&mut self, space: Space, page: &[(u64, Secret)], from: u64, found: &mut StoredFeatures) {
        for (number, bytes) in page {
            if space == Space::Packs {
                Pack::decode(bytes).iter().for_each(|pack| self.take_pack(pack, from, found));
            } else if let Some(record) = FeatureRecord::decode(bytes) {
                self.take_record(*number, record, found);
            }
        }
    }
}

impl ItemIndex for MemoryIndex {
    fn insert(&mut self, number: u64, features: Features) {
        self.index.insert(number, features);
    }

    fn set_vector(&mut self, number: u64, vector: QuantisedVector) {
        self.index.set_vector(number, Some(vector));
    }

    fn remove(&mut self, number: u64) {
        self.index.remove(number);
    }

    fn contains(&self, number: u64) -> bool {
        self.index.contains(number)
    }

    fn bytes(&self) -> usize {
        self.index.bytes()
    }

    fn reads_all(&self) -> bool {
        true
    }

    fn read<'a>(&'a mut self, vault: &'a OwnerVault, from: u64) -> BoxFuture<'a, Result<StoredFeatures>> {
        Box::pin(async move {
            let mut found = StoredFeatures::default();
            for space in [Space::Packs, Space::Features] {
                let mut next = if space == Space::Packs { pack_of(from) } else { from };
                loop {
                    let page = vault.read(space, next).await?;
                    let Some((last, _)) = page.last() else { break };
                    next = last + 1;
                    let mut reading =
                        Self { index: std::mem::take(&mut self.index), kind: self.kind.clone() };
                    (self.index, found) = off_reactor(move || {
                        reading.take_page(space, &page, from, &mut found);
                        (reading.index, found)
                    })
                    .await?;
                }
            }
            Ok(found)
        })
    }

    fn search<'a>(
        &'a self,
        _vault: &'a OwnerVault,
        search: &'a ItemSearch<'a>,
    ) -> LocalBoxFuture<'a, Result<Option<Candidates>>> {
        let is_visible = |number: u64| search.visible.binary_search(&number).is_ok();
        Box::pin(std::future::ready(Ok(Some(self.index.scan(search.question, &is_visible)))))
    }
}

/// No features in memory: the database compares its rows, and the features of the best ones are opened.
struct RowIndex {
    kind: VectorKind,
}

impl RowIndex {
    fn embedder(&self) -> u64 {
        embedder_hash(&self.kind.embedder, self.kind.dimensions)
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
}

impl ItemIndex for RowIndex {
    fn insert(&mut self, _number: u64, _features: Features) {}

    fn set_vector(&mut self, _number: u64, _vector: QuantisedVector) {}

    fn remove(&mut self, _number: u64) {}

    /// A row is written with its item.
    fn contains(&self, _number: u64) -> bool {
        true
    }

    fn bytes(&self) -> usize {
        0
    }

    fn reads_all(&self) -> bool {
        false
    }

    fn read<'a>(&'a mut self, vault: &'a OwnerVault, from: u64) -> BoxFuture<'a, Result<StoredFeatures>> {
        Box::pin(async move {
            let current = vault.embedded_rows(self.embedder(), from).await?.into_iter().collect();
            Ok(StoredFeatures { current, ..StoredFeatures::default() })
        })
    }

    fn search<'a>(
        &'a self,
        vault: &'a OwnerVault,
        search: &'a ItemSearch<'a>,
    ) -> LocalBoxFuture<'a, Result<Option<Candidates>>> {
        Box::pin(async move {
            let ItemSearch { question, visible, documents } = search;
            if visible.len() <= ALL_UP_TO {
                let index = self.opened(vault, visible.to_vec()).await?;
                return Ok(Some(index.scan(question, &|_| true)));
            }
            let asked = RowQuestion::new(question, self.embedder());
            let Some(scan) = vault.scan_rows(|keys| asked.under(keys)).await? else { return Ok(None) };
            let selected = asked.select(&scan, visible, OPENED);
            // An answer may share no word with its question, the message before.
            let near = selected.numbers.iter().flat_map(|number| documents.neighbours(*number)).flatten();
            let near = near.filter(|number| visible.binary_search(number).is_ok());
            let numbers: BTreeSet<u64> = near.chain(selected.numbers.iter().copied()).collect();
            let index = self.opened(vault, numbers.into_iter().collect()).await?;
            Ok(Some(index.scan_among(question, &selected.statistics)))
        })
    }
}
