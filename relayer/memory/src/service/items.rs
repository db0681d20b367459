//! The owner's operations on single items and pages of items (F1).

use std::collections::HashSet;

use baton_keys::secret::random_bytes;
use baton_proto::text::searchable;

use super::{Memory, places::in_graph, turns::check_fact};
use crate::{
    api::{GraphView, ItemView, ListRequest, MemoryError, Page, Place, Result, Stats},
    events::Event,
    extraction,
    ids::{ItemId, OwnerId},
    limits::{MAX_FACT_BYTES, MAX_ITEMS, MAX_PAGE},
    model::{Author, Consent, Edge, Item, Kind, Layer, MemoryScope, Provenance, Text},
    owner::{Owner, Plan},
    retry::MODEL_TRIES,
    scope::View,
    state::{Entry, visibility::is_named},
};

/// Most nodes in a graph answer.
const MAX_GRAPH_NODES: usize = 2_000;

pub(super) fn no_item() -> MemoryError {
    MemoryError::NotFound("item")
}

impl Owner {
    /// Whether an edge is shown beside these items. Both its ends must be shown, and a shown item must
    /// contain its quote. An edge between other items may quote a fact that the caller may not see.
    pub(crate) fn shows_edge(&self, edge: &Edge, shown: &HashSet<ItemId>) -> bool {
        let ends = [edge.from, edge.to];
        let drawn_by_an_end = || {
            let said = |id: ItemId| self.state.entry(id).is_some_and(|entry| entry.item.kind != Kind::Entity);
            ends.into_iter().any(said)
        };
        let quoted_by_a_fact = || {
            let facts =
                ends.into_iter().flat_map(|id| self.state.entry(id)).filter(|entry| is_named(&entry.item));
            let mut facts = facts.flat_map(|entity| self.state.facts_naming(entity.item.id));
            facts.any(|(_, fact)| shown.contains(&fact.item.id) && fact.item.text.contains(&*edge.evidence))
        };
        ends.iter().all(|end| shown.contains(end))
            && (edge.evidence.is_empty() || drawn_by_an_end() || quoted_by_a_fact())
    }

    /// A caller's view of a place with all layers; `None` if the place does not resolve.
    fn full_view(&self, place: &Place) -> Option<View> {
        self.state.places.resolve(place, MemoryScope::Full).ok()
    }
}

impl Memory {
    /// A page of items, newest first.
    ///
    /// # Errors
    /// [`MemoryError::NotFound`] if the last item of the page before does not exist.
    pub async fn list(&self, owner: OwnerId, request: ListRequest) -> Result<Page> {
        let limit = request.limit.clamp(1, MAX_PAGE);
        let words = request.words.as_deref().map(|words| searchable(&extraction::canonical(words)));
        let words: Vec<String> =
            words.iter().flat_map(|words| words.split_whitespace()).map(str::to_owned).collect();
        self.read(owner, |owner| {
            let id_prefix = request.id_prefix.as_deref().map(str::to_lowercase);
            let view = match (request.everything, owner.full_view(&request.place)) {
                (true, _) => None,
                (false, Some(view)) => Some(view),
                (false, None) => return Ok(Page { items: Vec::new(), next: None }),
            };
            let before = match request.after {
                Some(id) => owner.state.number(id).ok_or_else(no_item)?,
                None => u64::MAX,
            };
            let excluded = owner.excluded_session(&request.filters);
            let found = owner.state.entries.range(..before).rev().filter(|(number, entry)| {
                let Some(how) = owner.state.visibility(view.as_ref(), **number, entry) else { return false };
                let contains = || {
                    let text = Text(searchable(&extraction::canonical(&entry.item.text)));
                    words.iter().all(|word| text.contains(word.as_str()))
                };
                // Consent applies to facts; the entities that they name follow them.
                let follows = request.consent == Some(Consent::Pending) && is_named(&entry.item);
                (request.include_archived || !how.archived)
                    && id_prefix.as_ref().is_none_or(|prefix| entry.item.id.to_string().starts_with(prefix))
                    && request.consent.is_none_or(|consent| how.consent == consent && !follows)
                    && request.filters.pass(entry, &how)
                    && (excluded.is_none() || how.session != excluded)
                    && (words.is_empty() || contains())
            });
            let mut items: Vec<ItemView> =
                found.take(limit + 1).map(|(_, entry)| owner.view_from(entry, view.as_ref())).collect();
            let next = if items.len() > limit {
                items.truncate(limit);
                items.last().map(|item| item.id)
            } else {
                None
            };
            Ok(Page { items, next })
        })
        .await
    }

    /// One item, in any place.
    ///
    /// # Errors
    /// [`MemoryError::NotFound`].
    pub async fn get(&self, owner: OwnerId, id: ItemId) -> Result<ItemView> {
        self.read(owner, |owner| owner.view_of(id).ok_or_else(no_item)).await
    }

    /// Ends a fact's validity and adds its replacement, which names the old fact (F3).
    ///
    /// # Errors
    /// [`MemoryError::NotFound`], [`MemoryError::Invalid`] for a text that is no fact, [`MemoryError::Conflict`] for an
    /// item that is not a fact, and for a fact that was superseded before.
    pub async fn supersede(&self, owner: OwnerId, id: ItemId, text: Text) -> Result<ItemView> {
        check_fact(&text, MAX_FACT_BYTES)?;
        let now_ms = self.now_ms();
        let new = ItemId(random_bytes());
        self.write(owner, |owner| {
            self.check_room(owner, 1)?;
            let old = owner.state.entry(id).ok_or_else(no_item)?;
            if old.item.kind != Kind::Fact {
                return Err(MemoryError::Conflict(
                    "only facts are superseded; messages stay as they were said".into(),
                ));
            }
            if old.valid_to_ms.is_some() {
                return Err(MemoryError::Conflict("this fact was superseded before".into()));
            }
            let item = Item {
                id: new,
                text: text.clone(),
                provenance: Provenance {
                    author: Author::Owner,
                    time_ms: now_ms,
                    turn: None,
                    sources: Vec::new(),
                    session: old
                        .item
                        .provenance
                        .session
                        .filter(|id| owner.state.places.session(*id).is_some()),
                },
                valid_from_ms: now_ms,
                consent: Consent::Granted,
                intimate: old.item.intimate || extraction::is_intimate(&text),
                content_hash: owner.content_hash(Author::Owner, Kind::Fact, &text),
                ..old.item.clone()
            };
            let edge = Edge {
                from: new,
                to: id,
                label: "supersedes".into(),
                description: "holds now in the place of what held before".into(),
                evidence: Text::default(),
                confidence: 1.0,
            };
            let events = vec![
                Event::added(item),
                Event::Superseded { old: id, new, at_ms: now_ms },
                Event::EdgeAdded(edge),
            ];
            Ok((Plan::of(events), ()))
        })
        .await?;
        self.get(owner, new).await
    }

    /// Archives or restores an item (C8).
    ///
    /// # Errors
    /// [`MemoryError::NotFound`].
    pub async fn archive(&self, owner: OwnerId, id: ItemId, archived: bool) -> Result<ItemView> {
        self.write(owner, |owner| {
            owner.state.entry(id).ok_or_else(no_item)?;
            Ok((Plan::of(vec![Event::Archived { item: id, archived }]), ()))
        })
        .await?;
        self.get(owner, id).await
    }

    /// Counts for one owner.
    ///
    /// # Errors
    /// [`MemoryError::Unavailable`], [`MemoryError::Damaged`].
    pub async fn stats(&self, owner: OwnerId) -> Result<Stats> {
        let stores = self.inner.parts.contents.is_some();
        self.read(owner, |owner| {
            let state = &owner.state;
            let count = |is_counted: &dyn Fn(&Entry) -> bool| {
                state.entries.values().filter(|entry| is_counted(entry)).count() as u64
            };
            let kind = |kind: Kind| count(&|entry| entry.item.kind == kind);
            Ok(Stats {
                items: state.entries.len() as u64,
                episodes: kind(Kind::Episode),
                facts: kind(Kind::Fact),
                entities: kind(Kind::Entity),
                summaries: kind(Kind::Summary),
                edges: state.edges.len() as u64,
                pending_consent: count(&|entry| entry.item.consent == Consent::Pending),
                queued_jobs: state.waiting.len() as u64,
                retried_jobs: state
                    .turns
                    .values()
                    .filter(|turn| turn.outcome.is_none() && turn.failures > 0)
                    .count() as u64,
                abandoned_jobs: state
                    .turns
                    .values()
                    .filter(|turn| turn.outcome.is_some() && turn.failures >= MODEL_TRIES)
                    .count() as u64,
                unstored: count(&|entry| stores && entry.waits_for_store()),
                unembedded: owner.unembedded.len() as u64,
                bytes: state.bytes,
                max_items: MAX_ITEMS,
                extract_through_nodes: state.nodes_allowed,
            })
        })
        .await
    }

    /// Whether an item's content has yet to be stored on Walrus; never without Walrus.
    ///
    /// # Errors
    /// [`MemoryError::Unavailable`], [`MemoryError::Damaged`].
    pub async fn waits_for_store(&self, owner: OwnerId, id: ItemId) -> Result<bool> {
        let stores = self.inner.parts.contents.is_some();
        self.read(owner, |owner| Ok(stores && owner.state.entry(id).is_some_and(Entry::waits_for_store)))
            .await
    }

    /// The profile in readable form (D9): the facts that every persona may know in this place, best first.
    ///
    /// # Errors
    /// [`MemoryError::Unavailable`], [`MemoryError::Damaged`].
    pub async fn profile(&self, owner: OwnerId, place: Place) -> Result<Vec<ItemView>> {
        self.read(owner, |owner| {
            let Some(view) = owner.full_view(&place) else { return Ok(Vec::new()) };
            let mut entries: Vec<&Entry> = owner
                .state
                .entries
                .iter()
                .filter(|(number, entry)| {
                    entry.item.kind == Kind::Fact
                        && entry.item.layer == Layer::Profile
                        && entry.is_live()
                        && owner.state.admits(&view, **number, entry)
                })
                .map(|(_, entry)| entry)
                .collect();
            entries
                .sort_by(|a, b| b.item.salience.total_cmp(&a.item.salience).then(b.last_ms.cmp(&a.last_ms)));
            Ok(entries.into_iter().map(|entry| owner.view(entry)).collect())
        })
        .await
    }

    /// The graph of a place: entities, facts and summaries, and the edges between them. Beyond the limit, the
    /// newest nodes.
    ///
    /// # Errors
    /// [`MemoryError::Unavailable`], [`MemoryError::Damaged`].
    pub async fn graph(&self, owner: OwnerId, place: Place) -> Result<GraphView> {
        self.read(owner, |owner| {
            let Some(view) = owner.full_view(&place) else { return Ok(GraphView::default()) };
            let entries = owner.state.entries.iter().rev().filter(|(number, entry)| {
                let visibility = || owner.state.visibility(Some(&view), **number, entry);
                in_graph(entry) && visibility().is_some_and(|how| !how.archived)
            });
            let nodes: Vec<&Entry> = entries.take(MAX_GRAPH_NODES).map(|(_, entry)| entry).collect();
            let shown: HashSet<ItemId> = nodes.iter().map(|entry| entry.item.id).collect();
            let edges = owner.state.edges.values().filter(|edge| owner.shows_edge(edge, &shown));
            let edges = edges.cloned().collect();
            let nodes = nodes.into_iter().map(|entry| owner.view_from(entry, Some(&view))).collect();
            Ok(GraphView { nodes, edges })
        })
        .await
    }
}
