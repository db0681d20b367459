//! The outside form of items and places.

use baton_walrus_client::quilt::QuiltPatchId;

use crate::{
    api::{Filters, ItemView, PlaceView},
    ids::{ItemId, SessionId},
    model::{Consent, Kind},
    owner::Owner,
    scope::View,
    state::{Entry, places::NamedPlace, visibility::Visibility},
};

impl Filters {
    /// Whether an item with this visibility passes the filters (F7), the one of sessions aside.
    pub(super) fn pass(&self, entry: &Entry, how: &Visibility) -> bool {
        let item = &entry.item;
        (self.kinds.is_empty() || self.kinds.contains(&item.kind))
            && (self.layers.is_empty() || self.layers.contains(&how.layer))
            && (self.authors.is_empty() || self.authors.contains(&how.author))
            && self.from_ms.is_none_or(|from| item.provenance.time_ms >= from)
            && self.before_ms.is_none_or(|before| item.provenance.time_ms < before)
            && (self.include_ended || entry.valid_to_ms.is_none())
            && !(self.without_intimate && how.intimate)
    }
}

impl Owner {
    /// The session that the filters exclude.
    pub(super) fn excluded_session(&self, filters: &Filters) -> Option<SessionId> {
        filters.not_session.as_deref().and_then(|name| self.state.places.session_named(name))
    }

    /// An item as its owner sees it.
    pub(crate) fn view(&self, entry: &Entry) -> ItemView {
        self.view_from(entry, None)
    }

    /// An item as a caller with access sees it from a place. For an entity: only the properties that visible
    /// facts give.
    pub(crate) fn view_from(&self, entry: &Entry, view: Option<&View>) -> ItemView {
        let places = &self.state.places;
        let item = &entry.item;
        let visibility =
            self.state.number(item.id).and_then(|number| self.state.visibility(view, number, entry));
        let how = visibility.unwrap_or_else(|| Visibility::of(entry));
        let session = how.session.and_then(|id| places.session(id));
        ItemView {
            id: item.id,
            kind: item.kind,
            layer: how.layer,
            role: item.role,
            text: item.text.clone(),
            project: self.project_of(entry).and_then(|id| places.project_name(id)),
            session: session.map(|session| session.name.0.clone()),
            turn: item.provenance.turn,
            persona: places.persona_name(how.persona),
            author: how.author,
            time_ms: item.provenance.time_ms,
            valid_from_ms: item.valid_from_ms,
            valid_to_ms: entry.valid_to_ms,
            superseded_by: entry.superseded_by,
            consent: how.consent,
            intimate: how.intimate,
            salience: item.salience,
            archived: how.archived,
            blob_id: entry.pointer.as_ref().map(|pointer| QuiltPatchId::from(pointer).to_string()),
            accesses: entry.repeats,
            sources: item.provenance.sources.clone(),
        }
    }

    pub(crate) fn view_of(&self, id: ItemId) -> Option<ItemView> {
        self.state.entry(id).map(|entry| self.view(entry))
    }

    /// A session as its owner sees it.
    pub(crate) fn session_view(&self, id: SessionId) -> Option<PlaceView> {
        let places = &self.state.places;
        let session = places.session(id)?;
        let parent = session.fork.and_then(|fork| places.session(fork.parent));
        Some(PlaceView {
            name: session.name.0.clone(),
            project: session.project.and_then(|id| places.project_name(id)),
            persona: places.persona_name(session.persona),
            parent: parent.map(|parent| parent.name.0.clone()),
            parent_turns: session.fork.map(|fork| fork.turns),
            items: session.items,
            created_ms: session.created_ms,
            updated_ms: session.updated_ms,
            bytes: session.bytes,
        })
    }

    /// A project or persona, with the items for which `is_in` holds.
    pub(crate) fn named_view(&self, named: &NamedPlace, is_in: impl Fn(&Entry) -> bool) -> PlaceView {
        let mut view = PlaceView {
            name: named.name.0.clone(),
            created_ms: named.created_ms,
            updated_ms: named.created_ms,
            ..PlaceView::default()
        };
        for entry in self.state.entries.values().filter(|entry| is_in(entry) && counts(entry)) {
            view.items += 1;
            view.bytes += entry.item.text.len() as u64;
            view.updated_ms = view.updated_ms.max(entry.last_ms);
        }
        view
    }
}

/// Whether an item counts for a user: neither an anchor of the graph nor an item that waits for consent.
pub(crate) fn counts(entry: &Entry) -> bool {
    entry.item.kind != Kind::Entity && entry.item.consent == Consent::Granted
}
