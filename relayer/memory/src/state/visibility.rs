//! The visibility of an item: the properties that decide who may see it, and whether it is recalled. An
//! entity owns only its project tag (B9). The facts that name it give it layer, persona, branch, author,
//! intimacy and consent.
//!
//! These properties are derived from the graph each time. So no copy can become stale by an edit, a move or a
//! deletion.

use super::{Entry, State};
use crate::{
    ids::{ItemId, PersonaId, SessionId},
    model::{Author, Consent, Item, Kind, Layer},
    scope::{Home, View},
};

/// Prefix of the stable keys of anchors: the fixed points of the graph (E3).
pub(crate) const ANCHOR: &str = "anchor:";

/// The visibility of an item for a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Visibility {
    pub(crate) layer: Layer,
    pub(crate) persona: PersonaId,
    pub(crate) author: Author,
    pub(crate) session: Option<SessionId>,
    pub(crate) consent: Consent,
    pub(crate) intimate: bool,
    pub(crate) archived: bool,
}

impl Visibility {
    pub(crate) fn of(entry: &Entry) -> Self {
        let item = &entry.item;
        Self {
            layer: item.layer,
            persona: item.persona,
            author: item.provenance.author,
            session: item.provenance.session,
            consent: item.consent,
            intimate: item.intimate,
            archived: entry.archived,
        }
    }

    /// Whether callers with access can recall it.
    pub(crate) fn is_recalled(&self) -> bool {
        !self.archived && self.consent == Consent::Granted
    }

    /// Combines two visibilities: the less restrictive value of each property.
    fn with(self, other: Self) -> Self {
        let profile = [&self, &other].into_iter().find(|one| one.layer == Layer::Profile).unwrap_or(&self);
        Self {
            layer: profile.layer,
            persona: profile.persona,
            author: more_trusted(self.author, other.author),
            session: self.session.filter(|_| self.session == other.session),
            intimate: self.intimate && other.intimate,
            ..self
        }
    }
}

/// The assistant's name for a thing counts only if no other author names it.
fn more_trusted(a: Author, b: Author) -> Author {
    let trust = |author: Author| match author {
        Author::User => 3,
        Author::Owner => 2,
        Author::Import => 1,
        Author::Assistant => 0,
    };
    if trust(a) >= trust(b) { a } else { b }
}

/// Whether an item is a fixed point of the graph; no fact has to name it.
pub(crate) fn is_anchor(item: &Item) -> bool {
    item.stable_key.as_deref().is_some_and(|key| key.starts_with(ANCHOR))
}

/// Whether an item is an entity that facts name.
pub(crate) fn is_named(item: &Item) -> bool {
    item.kind == Kind::Entity && !is_anchor(item)
}

impl State {
    /// The facts with an edge to an entity: they name it.
    pub(crate) fn facts_naming(&self, entity: ItemId) -> impl Iterator<Item = (u64, &Entry)> {
        let others =
            self.edges_at(entity).map(move |(_, edge)| if edge.from == entity { edge.to } else { edge.from });
        others.filter_map(|id| {
            let number = self.number(id)?;
            let entry = self.entries.get(&number)?;
            (entry.item.kind == Kind::Fact).then_some((number, entry))
        })
    }

    /// The visibility of an item for a caller, or for its owner without a view; `None` if the caller may not
    /// see the item. A caller sees an entity of its own project through the visible facts that name it,
    /// wherever their sessions are now.
    pub(crate) fn visibility(&self, view: Option<&View>, number: u64, entry: &Entry) -> Option<Visibility> {
        if !is_named(&entry.item) {
            return view
                .is_none_or(|view| self.admits_class(view, number, entry))
                .then(|| Visibility::of(entry));
        }
        let Some(view) = view else {
            let all = self.facts_naming(entry.item.id).map(|(_, fact)| fact);
            // The owner also sees an entity that no fact names.
            return Some(of_facts(entry, all).unwrap_or_else(|| Visibility::of(entry)));
        };
        if view.project.is_none() || entry.home != Home::Pinned(view.project) {
            return None;
        }
        let granting = self.facts_naming(entry.item.id).filter(|(number, fact)| {
            view.grants(&fact.class(), |id| self.places.session_scope(id))
                .is_some_and(|up_to| *number <= up_to)
        });
        of_facts(entry, granting.map(|(_, fact)| fact))
    }

    /// Entities that only these items name, with the entities merged into them.
    pub(crate) fn named_only_by(&self, going: &std::collections::BTreeSet<ItemId>) -> Vec<ItemId> {
        let tied = going.iter().flat_map(|id| self.edges_at(*id)).flat_map(|(_, edge)| [edge.from, edge.to]);
        let tied: std::collections::BTreeSet<ItemId> = tied.filter(|id| !going.contains(id)).collect();
        let unnamed = tied.into_iter().filter(|id| {
            let is_entity = self.entry(*id).is_some_and(|entry| is_named(&entry.item));
            is_entity && self.facts_naming(*id).all(|(_, fact)| going.contains(&fact.item.id))
        });
        self.with_merged(unnamed.collect())
    }

    /// These items with all items that were merged with them, in either direction.
    pub(crate) fn with_merged(&self, ids: Vec<ItemId>) -> Vec<ItemId> {
        let mut all = ids;
        let mut at = 0;
        while let Some(id) = all.get(at).copied() {
            at += 1;
            for (_, edge) in self.edges_at(id) {
                if edge.label == super::SAME_AS && edge.from == id && !all.contains(&edge.to) {
                    all.push(edge.to);
                }
            }
        }
        all
    }
}

/// The visibility that facts give the entity that they name; `None` without facts. Recalled facts take
/// precedence over others.
fn of_facts<'a>(entity: &Entry, facts: impl Iterator<Item = &'a Entry>) -> Option<Visibility> {
    let mut best: Option<Visibility> = None;
    for fact in facts {
        let next = Visibility::of(fact);
        best = Some(match best {
            Some(best) if best.is_recalled() == next.is_recalled() => {
                let kept = best.with(next);
                Visibility { archived: best.archived && next.archived, ..kept }
            }
            Some(best) if best.is_recalled() => best,
            _ => next,
        });
    }
    best.map(|best| Visibility { archived: best.archived || entity.archived, ..best })
}
