//! An open owner: the vault, the fold of the log and the search index, kept consistent. [`Owner::commit`] is
//! the only way to write. A change is planned on the state, made durable, then folded in.

mod commit;
mod features;
mod holders;
mod index;
mod load;

use std::{collections::BTreeSet, sync::Arc};

use baton_proto::codec;
use serde::Serialize;
use zeroize::Zeroizing;

pub(crate) use commit::Plan;
pub(crate) use features::embedded_text;
use features::features_of;
pub(crate) use holders::{Holders, RemovalQuery};
use index::ItemIndex;
pub(crate) use index::ItemSearch;
pub(crate) use load::joined;

use crate::{
    api::{MemoryError, Result},
    events::{Event, StoredItem},
    ids::OwnerId,
    keyring::OwnerKeys,
    limits::MAX_TEXT_BYTES,
    model::{Author, Kind},
    search::{Candidates, TermHasher},
    state::State,
    vault::{OwnerVault, Secret},
};

/// New turns after which all turns are reviewed again. Fewer would slow each write to a long memory.
const REVIEW_EVERY: usize = 8;
/// Approximate size of an item, edge or turn without its text.
const BYTES_PER_ITEM: usize = 600;
/// Largest encoded event: an item of the largest text, and room for its other fields.
const MAX_EVENT_BYTES: usize = MAX_TEXT_BYTES + 64 * 1024;
/// Tries of a plan that conflicts with other writers.
pub(crate) const COMMIT_TRIES: usize = 8;

/// The embedder and the length of vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VectorKind {
    pub(crate) embedder: String,
    pub(crate) dimensions: usize,
}

/// An open owner.
pub(crate) struct Owner {
    pub(crate) id: OwnerId,
    pub(crate) vault: Arc<OwnerVault>,
    keys: Arc<OwnerKeys>,
    pub(crate) state: State,
    index: ItemIndex,
    pub(crate) hasher: TermHasher,
    /// Items without a vector from the current embedder.
    pub(crate) unembedded: BTreeSet<u64>,
    /// Items whose features have their own record, which can be packed.
    loose: BTreeSet<u64>,
    snapshot_at: u64,
    /// The number of turns at the last review of all turns.
    reviewed: Option<usize>,
}

impl Owner {
    /// Folds the vault's records of an owner.
    pub(crate) async fn open(vault: Arc<OwnerVault>, kind: VectorKind) -> Result<Self> {
        let keys = vault.keys();
        let hasher = TermHasher::new(*keys.term_key());
        let mut owner = Self {
            id: vault.owner(),
            keys,
            state: State::default(),
            index: ItemIndex::new(&vault, kind),
            hasher,
            unembedded: BTreeSet::new(),
            loose: BTreeSet::new(),
            snapshot_at: 0,
            reviewed: None,
            vault,
        };
        owner.load().await?;
        Ok(owner)
    }

    pub(crate) fn keys(&self) -> &OwnerKeys {
        &self.keys
    }

    /// Its approximate size in memory.
    pub(crate) fn bytes(&self) -> u64 {
        let items = self.state.entries.len() + self.state.edges.len() + self.state.turns.len();
        2 * self.state.bytes + (items * BYTES_PER_ITEM) as u64 + self.index.bytes() as u64
    }

    /// Keyed hash of a text by author and kind (C6).
    pub(crate) fn content_hash(&self, author: Author, kind: Kind, text: &str) -> [u8; 32] {
        let equal = Zeroizing::new(match kind {
            // Messages are equal only if identical; facts are equal if their wordings are.
            Kind::Episode => text.to_owned(),
            _ => crate::extraction::wording(text),
        });
        let mut content = Zeroizing::new(vec![author as u8, kind as u8]);
        content.extend_from_slice(equal.as_bytes());
        self.keys().content_hash(&content)
    }

    /// Keyed hash of an entity: its stable key identifies it for all authors.
    pub(crate) fn entity_hash(&self, key: &str) -> [u8; 32] {
        self.content_hash(Author::User, Kind::Entity, key)
    }

    fn fold(&mut self, number: u64, event: &Event) -> Result<()> {
        if let Event::Deleted { items } = event {
            for number in items.iter().filter_map(|id| self.state.number(*id)).collect::<Vec<_>>() {
                self.index.remove(number);
                self.unembedded.remove(&number);
            }
        }
        self.state.apply(number, event).map_err(|_| damaged("an item does not unpack"))?;
        if let Event::Added(_) = event {
            self.index_item(number);
        }
        Ok(())
    }

    fn rewrite(&mut self, number: u64, stored: &StoredItem) -> Result<()> {
        self.state.rewrite(number, stored).map_err(|_| damaged("an item does not unpack"))?;
        self.index_item(number);
        Ok(())
    }

    fn index_item(&mut self, number: u64) {
        if let Some(entry) = self.state.entries.get(&number) {
            self.index.insert(number, features_of(&entry.item, &self.hasher));
            self.unembedded.insert(number);
        }
    }

    /// The candidates of a search; `None` if another relayer wrote meanwhile.
    pub(crate) async fn search(&self, search: &ItemSearch<'_>) -> Result<Option<Candidates>> {
        self.index.search(&self.vault, search).await
    }

    /// Whether enough turns came since the last review of all turns.
    pub(crate) fn is_review_due(&self) -> bool {
        self.reviewed.is_none_or(|reviewed| self.state.turns.len() >= reviewed + REVIEW_EVERY)
    }

    /// Records a review of all turns.
    pub(crate) fn note_review(&mut self) {
        if self.is_review_due() {
            self.reviewed = Some(self.state.turns.len());
        }
    }
}

/// The result of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum CommitOutcome {
    Done,
    /// Another writer was faster; its changes are folded in.
    Conflict,
}

pub(crate) fn busy() -> MemoryError {
    MemoryError::Unavailable("other relayers write to this owner all the time; try again".into())
}

fn damaged(what: &str) -> MemoryError {
    MemoryError::Damaged(what.to_owned())
}

/// The log's placeholder for a deleted event.
pub(crate) fn filler() -> Secret {
    encode(&Event::Redacted)
}

fn encode<T: Serialize>(value: &T) -> Secret {
    Zeroizing::new(codec::encode(value))
}
