//! Deletions, edits and denials: the items that are deleted, the remaining holders of their words, and an
//! answer that names both (F1).

use std::collections::BTreeSet;

use super::{
    Memory,
    items::no_item,
    turns::{Draft, Target, check_fact},
};
use crate::{
    api::{Holder, ItemView, MemoryError, Removal, RemovalOptions, Result},
    events::Event,
    extraction::{self, Candidate},
    ids::{ItemId, OwnerId},
    limits::{MAX_FACT_BYTES, MAX_HOLDERS, MAX_TEXT_BYTES},
    model::{Consent, Edge, Item, Kind, Text},
    owner::{Holders, Owner, Plan, RemovalQuery},
    scope::Home,
    state::{Entry, visibility::is_named},
};

impl Memory {
    /// Deletes items for good, and other holders of their words as far as the options say. The answer names
    /// all of them.
    ///
    /// # Errors
    /// [`MemoryError::Unavailable`], [`MemoryError::Damaged`].
    pub async fn delete_with(
        &self,
        owner: OwnerId,
        ids: Vec<ItemId>,
        options: RemovalOptions,
    ) -> Result<Removal> {
        self.write(owner, |owner| {
            let there = ids.iter().filter(|id| owner.state.entry(**id).is_some()).count() as u64;
            Ok(owner.plan_removal(&ids, there, options))
        })
        .await
    }

    /// Decides on items that wait for consent. A denial deletes them as [`Memory::delete_with`] does. The
    /// answer counts the items that waited.
    ///
    /// # Errors
    /// [`MemoryError::Invalid`] for [`Consent::Pending`].
    pub async fn decide_with(
        &self,
        owner: OwnerId,
        ids: Vec<ItemId>,
        consent: Consent,
        options: RemovalOptions,
    ) -> Result<Removal> {
        if consent == Consent::Pending {
            return Err(MemoryError::Invalid("decide granted or denied".into()));
        }
        self.write(owner, |owner| {
            let waits = |id: &&ItemId| {
                owner.state.entry(**id).is_some_and(|entry| entry.item.consent == Consent::Pending)
            };
            let waiting: Vec<ItemId> = ids.iter().filter(waits).copied().collect();
            let count = waiting.len() as u64;
            if consent == Consent::Denied {
                return Ok(owner.plan_removal(&waiting, count, options));
            }
            let granted = waiting.into_iter().map(|item| Event::Consented { item });
            Ok((Plan::of(granted.collect()), Removal { count, ..Removal::default() }))
        })
        .await
    }

    /// Replaces an item's text. As in a deletion, the old words go from the graph, and from other holders as
    /// far as the options say. [`Memory::supersede`] keeps them in history.
    ///
    /// # Errors
    /// [`MemoryError::NotFound`]; [`MemoryError::Invalid`] beyond the limits, or for an entity, whose name is
    /// its identity.
    pub async fn edit_with(
        &self,
        owner: OwnerId,
        id: ItemId,
        text: Text,
        options: RemovalOptions,
    ) -> Result<(ItemView, Removal)> {
        check_fact(&text, MAX_TEXT_BYTES)?;
        let now_ms = self.now_ms();
        let removal = self
            .write(owner, |owner| {
                let entry = owner.state.entry(id).ok_or_else(no_item)?;
                if entry.item.kind == Kind::Entity {
                    return Err(MemoryError::Conflict(
                        "an entity's name is what it is known by; delete it instead".into(),
                    ));
                }
                if entry.item.kind != Kind::Episode {
                    check_fact(&text, MAX_FACT_BYTES)?;
                }
                Ok(owner.plan_edit(entry, &text, options, now_ms))
            })
            .await?;
        Ok((self.get(owner, id).await?, removal))
    }
}

impl Owner {
    /// The plan that deletes items with their dependants, and the report on other holders.
    fn plan_removal(&self, ids: &[ItemId], count: u64, options: RemovalOptions) -> (Plan, Removal) {
        let (others, everywhere) = (options.others, !options.same_project);
        let named_again = BTreeSet::new();
        let holders = self.holders(&RemovalQuery { ids, replacement: None, named_again, others, everywhere });
        let going: Vec<ItemId> = holders.going.iter().copied().collect();
        (self.plan_delete(&going), self.removal(ids, count, &holders))
    }

    /// The plan that replaces an item's words.
    fn plan_edit(&self, entry: &Entry, text: &Text, options: RemovalOptions, now_ms: u64) -> (Plan, Removal) {
        let id = entry.item.id;
        let (others, everywhere) = (options.others, !options.same_project);
        let candidate = self.candidate_in_place_of(&entry.item, text);
        let named_again = candidate.as_ref().map(|candidate| self.known_names(entry, candidate));
        let holders = self.holders(&RemovalQuery {
            ids: &[id],
            replacement: Some(text),
            named_again: named_again.unwrap_or_default(),
            others,
            everywhere,
        });
        let going: Vec<ItemId> = holders.going.iter().copied().filter(|going| *going != id).collect();
        let mut plan = self.plan_delete(&going);
        self.end_edges_of_words(&mut plan, entry, &holders.going);
        plan.rewrites.extend(self.state.calls_about(id).map(|number| (number, Event::Redacted)));
        let Some(number) = self.state.number(id) else { return (plan, Removal::default()) };
        let item = self.reworded(entry, text, candidate.as_ref());
        plan.rewrites.push((number, Event::added(item)));
        plan.events.push(Event::Rewritten { numbers: vec![number] });
        if let Some(candidate) = &candidate {
            plan.events.extend(self.names_of(entry, candidate, now_ms));
        }
        (plan, self.removal(&[id], 1, &holders))
    }

    /// The candidate that the new words of a fact give.
    fn candidate_in_place_of(&self, item: &Item, text: &str) -> Option<Candidate> {
        if item.kind != Kind::Fact {
            return None;
        }
        let persona = self.state.places.persona_name(item.persona);
        extraction::candidate_of(text, item.provenance.author, item.layer, persona.as_deref())
    }

    /// Existing entities that a candidate names.
    fn known_names(&self, entry: &Entry, candidate: &Candidate) -> BTreeSet<ItemId> {
        let home = Home::Pinned(self.project_of(entry));
        let known = candidate.entities.iter().filter_map(|one| self.state.entity(home, &one.stable_key));
        known.map(|entity| entity.item.id).collect()
    }

    /// The item with new words, and the properties that follow from them.
    fn reworded(&self, entry: &Entry, text: &Text, candidate: Option<&Candidate>) -> Item {
        let item = &entry.item;
        // A slot's key may be derived from the words.
        let stable_key = match item.kind {
            Kind::Fact => candidate.and_then(Candidate::slot_key),
            _ => item.stable_key.clone(),
        };
        Item {
            content_hash: self.content_hash(item.provenance.author, item.kind, text),
            text: text.clone(),
            stable_key,
            intimate: item.intimate || extraction::is_intimate(text),
            ..item.clone()
        }
    }

    /// Ends the edges by which an item names entities, and edges whose quote no item says any more. Adds its
    /// other edges anew without the quotes.
    fn end_edges_of_words(&self, plan: &mut Plan, entry: &Entry, going: &BTreeSet<ItemId>) {
        let id = entry.item.id;
        let gone: Vec<ItemId> = going.iter().copied().chain([id]).collect();
        let mut ended: BTreeSet<u64> = self.edges_quoting_only(&gone).into_iter().collect();
        let mut plain = Vec::new();
        for (number, edge) in self.state.edges_at(id) {
            let other = if edge.from == id { edge.to } else { edge.from };
            let names = self.state.entry(other).is_some_and(|other| is_named(&other.item));
            if names || !edge.evidence.is_empty() {
                ended.insert(number);
            }
            if !names && !edge.evidence.is_empty() && !going.contains(&other) {
                plain.push(Event::EdgeAdded(Edge { evidence: Text::default(), ..edge.clone() }));
            }
        }
        for number in &ended {
            plan.rewrite(*number, Event::Redacted);
        }
        if !ended.is_empty() {
            plan.events.push(Event::EdgesEnded { edges: ended.into_iter().collect() });
        }
        plan.events.extend(plain);
    }

    /// Events that link an item to the names in its new words.
    fn names_of(&self, entry: &Entry, candidate: &Candidate, now_ms: u64) -> Vec<Event> {
        let session = match entry.home {
            Home::Session(id) => Some(id),
            Home::Pinned(_) => None,
        };
        let target = Target { session, project: self.project_of(entry), persona: entry.item.persona };
        let mut draft = Draft::new(self, target, now_ms);
        draft.names(entry.item.id, candidate);
        draft.events
    }

    /// The report on the other holders of the words, remaining ones first.
    fn removal(&self, ids: &[ItemId], count: u64, holders: &Holders) -> Removal {
        let gone = holders.going.iter().filter(|id| !ids.contains(id));
        let all = holders.left.iter().map(|id| (id, false)).chain(gone.map(|id| (id, true)));
        let all: Vec<Holder> = all.filter_map(|(id, deleted)| self.holder(*id, deleted)).collect();
        let more = all.len().saturating_sub(MAX_HOLDERS) as u64;
        Removal { count, others: all.into_iter().take(MAX_HOLDERS).collect(), more }
    }

    fn holder(&self, id: ItemId, deleted: bool) -> Option<Holder> {
        let view = self.view_of(id)?;
        let (kind, author, turn) = (view.kind, view.author, view.turn);
        Some(Holder { id, kind, author, project: view.project, session: view.session, turn, deleted })
    }
}
