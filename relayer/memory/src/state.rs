//! An owner's state: the fold of the log. Pure: all decisions are made here or in [`crate::scope`], without
//! await.

mod call_answers;
pub(crate) mod places;
mod prefix_index;
pub(crate) mod visibility;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::OnceLock,
};

use serde::{Deserialize, Serialize};

use crate::{
    events::{Event, Outcome, Pointer, StoredItem, StoredKey, UnpackError},
    ids::{ItemId, ProjectId, SessionId},
    model::{Consent, Edge, Item, Kind, Layer, Text},
    scope::{Class, Home, View},
    state::{call_answers::CallAnswers, places::Places, prefix_index::PrefixIndex},
};

/// Label of the edge from a fact to its paraphrase, into which it was merged.
pub(crate) const SAME_AS: &str = "same_as";

/// An item with its later changes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) item: Item,
    pub(crate) key: StoredKey,
    pub(crate) home: Home,
    pub(crate) valid_to_ms: Option<u64>,
    pub(crate) superseded_by: Option<ItemId>,
    pub(crate) archived: bool,
    pub(crate) pointer: Option<Pointer>,
    /// How often its text was repeated.
    pub(crate) repeats: u64,
    pub(crate) last_ms: u64,
    /// The message before it in its session.
    pub(crate) before: Option<u64>,
    /// The message after it.
    pub(crate) after: Option<u64>,
}

impl Entry {
    pub(crate) fn class(&self) -> Class {
        Class::new(self.home, self.item.kind, self.item.layer, self.item.persona, self.item.intimate)
    }

    /// Whether callers with access can recall it.
    pub(crate) fn is_live(&self) -> bool {
        !self.archived && self.item.consent == Consent::Granted && self.valid_to_ms.is_none()
    }

    /// Whether its content belongs on Walrus and has no confirmed copy there.
    pub(crate) fn waits_for_store(&self) -> bool {
        self.is_stored_outside() && self.pointer.is_none()
    }

    /// Whether its content belongs on Walrus: facts and summaries, not the conversation itself.
    pub(crate) fn is_stored_outside(&self) -> bool {
        matches!(self.item.kind, Kind::Fact | Kind::Summary) && self.item.consent == Consent::Granted
    }
}

/// The place of a new item: its session, except for entities, whose tag never changes (B9).
pub(crate) fn home_of(item: &Item) -> Home {
    match item.provenance.session {
        Some(session) if item.kind != Kind::Entity => Home::Session(session),
        _ => Home::Pinned(item.project),
    }
}

/// A turn that was recorded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Turn {
    pub(crate) session: SessionId,
    pub(crate) turn: u64,
    pub(crate) user: ItemId,
    pub(crate) assistant: ItemId,
    pub(crate) at_ms: u64,
    /// Failed tries of its extraction.
    pub(crate) failures: u32,
    pub(crate) outcome: Option<Outcome>,
}

/// The fold of a log.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct State {
    /// The number of the next event (C5).
    pub(crate) next: u64,
    pub(crate) entries: BTreeMap<u64, Entry>,
    #[serde(skip)]
    numbers: HashMap<ItemId, u64>,
    /// Items by place and content hash.
    #[serde(skip)]
    contents: HashMap<(Home, [u8; 32]), u64>,
    /// Entities by project and stable key.
    #[serde(skip)]
    entities: HashMap<Home, HashMap<Text, u64>>,
    /// Items by place.
    #[serde(skip)]
    members: HashMap<Home, BTreeSet<u64>>,
    pub(crate) edges: BTreeMap<u64, Edge>,
    #[serde(skip)]
    adjacent: HashMap<ItemId, BTreeSet<u64>>,
    pub(crate) places: Places,
    pub(crate) turns: BTreeMap<u64, Turn>,
    #[serde(skip)]
    recorded: HashMap<(SessionId, u64), u64>,
    pub(crate) waiting: BTreeSet<u64>,
    /// The last message of each session.
    last_message: HashMap<SessionId, u64>,
    /// The last turn that the backstop checked, by session.
    pub(crate) backstopped: HashMap<SessionId, u64>,
    /// The last number that consolidation checked in the graph.
    pub(crate) consolidated: u64,
    /// Bytes of text of all items.
    pub(crate) bytes: u64,
    /// Whether third-party nodes may read exchanges.
    pub(crate) nodes_allowed: bool,
    call_answers: CallAnswers,
    /// Built at the first use.
    #[serde(skip)]
    prefix_index: OnceLock<PrefixIndex>,
}

impl State {
    /// Builds the indexes that a snapshot leaves out, because building them is faster than reading them.
    pub(crate) fn index(&mut self) {
        self.numbers.reserve(self.entries.len());
        self.contents.reserve(self.entries.len());
        self.adjacent.reserve(self.entries.len());
        for (number, entry) in &self.entries {
            self.numbers.insert(entry.item.id, *number);
            self.contents.insert((entry.home, entry.item.content_hash), *number);
            self.members.entry(entry.home).or_default().insert(*number);
            if let Some(key) = &entry.item.stable_key {
                self.entities.entry(home_of(&entry.item)).or_default().insert(key.clone(), *number);
            }
        }
        for (number, edge) in &self.edges {
            for end in [edge.from, edge.to] {
                self.adjacent.entry(end).or_default().insert(*number);
            }
        }
        self.recorded =
            self.turns.iter().map(|(number, turn)| ((turn.session, turn.turn), *number)).collect();
    }

    /// Applies the event of a number. Events that name missing items change nothing: a log stays readable
    /// after any deletion.
    ///
    /// # Errors
    /// [`UnpackError`] for an item that does not unpack.
    pub(crate) fn apply(&mut self, number: u64, event: &Event) -> Result<(), UnpackError> {
        self.next = self.next.max(number + 1);
        match event {
            Event::Redacted | Event::Rewritten { .. } => {}
            Event::Added(stored) => self.add(number, stored)?,
            Event::EdgeAdded(edge) => self.add_edge(number, edge),
            Event::Repeated { item, at_ms } => self.change(*item, |entry| {
                entry.repeats += 1;
                entry.last_ms = entry.last_ms.max(*at_ms);
            }),
            Event::Superseded { old, new, at_ms } => self.change(*old, |entry| {
                entry.valid_to_ms = Some(*at_ms);
                entry.superseded_by = Some(*new);
            }),
            Event::Archived { item, archived } => self.change(*item, |entry| entry.archived = *archived),
            Event::Consented { item } => self.change(*item, |entry| entry.item.consent = Consent::Granted),
            Event::Stored { items } => {
                for (item, pointer) in items {
                    self.change(*item, |entry| entry.pointer = Some(pointer.clone()));
                }
            }
            Event::Unstored { items } => {
                for item in items {
                    self.change(*item, |entry| entry.pointer = None);
                }
            }
            Event::TurnRecorded { session, turn, user, assistant, at_ms } => {
                let (session, turn, user, assistant, at_ms) = (*session, *turn, *user, *assistant, *at_ms);
                let record = Turn { session, turn, user, assistant, at_ms, failures: 0, outcome: None };
                self.turns.insert(number, record);
                self.recorded.insert((session, turn), number);
                self.waiting.insert(number);
                self.places.touch(session, at_ms);
            }
            Event::ExtractionFailed { turn, .. } => {
                if let Some(turn) = self.turns.get_mut(turn) {
                    turn.failures += 1;
                }
            }
            Event::Extracted { turn, outcome } => {
                self.waiting.remove(turn);
                if let Some(turn) = self.turns.get_mut(turn) {
                    turn.outcome = Some(*outcome);
                }
            }
            Event::Backstopped { session, up_to } => {
                let looked_at = self.backstopped.entry(*session).or_default();
                *looked_at = (*looked_at).max(*up_to);
            }
            Event::Deleted { items } => {
                for item in items {
                    self.remove(*item);
                }
            }
            Event::EdgesEnded { edges } => edges.iter().for_each(|edge| self.end_edge(*edge)),
            Event::Consolidated { up_to, .. } => self.consolidated = self.consolidated.max(*up_to),
            Event::SessionDeleted { id, project } => self.end_session(number, *id, *project),
            Event::NodesAllowed { allowed, .. } => self.nodes_allowed = *allowed,
            Event::Answered { key, call, item } => self.call_answers.add(number, *key, *call, *item),
            place => self.places.apply(number, place),
        }
        Ok(())
    }

    fn add(&mut self, number: u64, stored: &StoredItem) -> Result<(), UnpackError> {
        let item = stored.unpack()?;
        let home = home_of(&item);
        let before = match (item.kind, item.provenance.session) {
            (Kind::Episode, Some(session)) => self.last_message.insert(session, number),
            _ => None,
        };
        if let Some(previous) = before.and_then(|before| self.entries.get_mut(&before)) {
            previous.after = Some(number);
        }
        if let Some(key) = &item.stable_key {
            self.entities.entry(home).or_default().insert(key.clone(), number);
        }
        self.numbers.insert(item.id, number);
        self.members.entry(home).or_default().insert(number);
        self.contents.insert((home, item.content_hash), number);
        self.bytes += item.text.len() as u64;
        self.places.count(item.provenance.session, item.text.len() as u64, item.provenance.time_ms);
        let entry = Entry {
            home,
            key: stored.key.clone(),
            valid_to_ms: None,
            superseded_by: None,
            archived: false,
            pointer: None,
            repeats: 0,
            last_ms: item.provenance.time_ms,
            before,
            after: None,
            item,
        };
        if let Some(prefix_index) = self.prefix_index.get_mut() {
            prefix_index.add(number, &entry);
        }
        self.entries.insert(number, entry);
        Ok(())
    }

    fn add_edge(&mut self, number: u64, edge: &Edge) {
        // An edge to a deleted item is not added.
        if self.numbers.contains_key(&edge.from) && self.numbers.contains_key(&edge.to) {
            self.edges.insert(number, edge.clone());
            for end in [edge.from, edge.to] {
                self.adjacent.entry(end).or_default().insert(number);
            }
        }
    }

    fn end_edge(&mut self, number: u64) {
        let Some(edge) = self.edges.remove(&number) else { return };
        for end in [edge.from, edge.to] {
            if let Some(edges) = self.adjacent.get_mut(&end) {
                edges.remove(&number);
            }
        }
    }

    fn change(&mut self, id: ItemId, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.numbers.get(&id).and_then(|number| self.entries.get_mut(number)) {
            change(entry);
        }
    }

    fn remove(&mut self, id: ItemId) {
        // A turn without its message has nothing to extract.
        let orphaned: Vec<u64> = self
            .waiting
            .iter()
            .copied()
            .filter(|turn| self.turns.get(turn).is_some_and(|turn| turn.user == id || turn.assistant == id))
            .collect();
        for turn in orphaned {
            self.waiting.remove(&turn);
        }
        self.call_answers.forget(id);
        let Some(number) = self.numbers.remove(&id) else { return };
        let Some(entry) = self.entries.remove(&number) else { return };
        if let Some(prefix_index) = self.prefix_index.get_mut() {
            prefix_index.remove(number, &entry);
        }
        if let Some(members) = self.members.get_mut(&entry.home) {
            members.remove(&number);
        }
        let content = (entry.home, entry.item.content_hash);
        if self.contents.get(&content) == Some(&number) {
            self.contents.remove(&content);
        }
        if let Some(key) = &entry.item.stable_key
            && let Some(entities) = self.entities.get_mut(&entry.home)
            && entities.get(&**key) == Some(&number)
        {
            entities.remove(&**key);
        }
        for edge in self.adjacent.remove(&id).unwrap_or_default() {
            if let Some(edge) = self.edges.remove(&edge) {
                let other = if edge.from == id { edge.to } else { edge.from };
                if let Some(edges) = self.adjacent.get_mut(&other) {
                    edges.retain(|number| self.edges.contains_key(number));
                }
            }
        }
        for (end, other) in [(entry.before, entry.after), (entry.after, entry.before)] {
            if let Some(neighbour) = end.and_then(|end| self.entries.get_mut(&end)) {
                if neighbour.before == Some(number) {
                    neighbour.before = other;
                } else {
                    neighbour.after = other;
                }
            }
        }
        if let Some(session) = entry.item.provenance.session {
            if self.last_message.get(&session) == Some(&number) {
                match entry.before {
                    Some(before) => self.last_message.insert(session, before),
                    None => self.last_message.remove(&session),
                };
            }
            self.places.uncount(session, entry.item.text.len() as u64);
        }
        self.bytes = self.bytes.saturating_sub(entry.item.text.len() as u64);
    }

    /// Ends a session. Its profile stays, and belongs to the session's project for good. The same commit
    /// deleted its other items.
    fn end_session(&mut self, number: u64, id: SessionId, project: Option<ProjectId>) {
        let kept: Vec<u64> = self.entries_of(id).map(|(number, _)| number).collect();
        for kept in kept {
            let Some(entry) = self.entries.get_mut(&kept) else { continue };
            let hash = entry.item.content_hash;
            self.contents.remove(&(entry.home, hash));
            entry.home = Home::Pinned(project);
            self.members.entry(entry.home).or_default().insert(kept);
            self.contents.insert((entry.home, hash), kept);
        }
        self.members.remove(&Home::Session(id));
        self.turns.retain(|_, turn| turn.session != id);
        self.recorded.retain(|(session, _), _| *session != id);
        self.waiting.retain(|turn| self.turns.contains_key(turn));
        self.last_message.remove(&id);
        self.backstopped.remove(&id);
        self.places.apply(number, &Event::SessionDeleted { id, project });
    }

    /// Replaces the text of an item (an edit); its other properties stay.
    pub(crate) fn rewrite(&mut self, number: u64, stored: &StoredItem) -> Result<(), UnpackError> {
        let item = stored.unpack()?;
        let Some(entry) = self.entries.get_mut(&number) else { return Ok(()) };
        self.call_answers.forget(item.id);
        self.bytes = self.bytes.saturating_sub(entry.item.text.len() as u64) + item.text.len() as u64;
        self.contents.remove(&(entry.home, entry.item.content_hash));
        self.contents.insert((entry.home, item.content_hash), number);
        let prefix_index = self.prefix_index.get_mut();
        if let Some(prefix_index) = prefix_index {
            prefix_index.remove(number, entry);
            entry.item = item;
            prefix_index.add(number, entry);
        } else {
            entry.item = item;
        }
        entry.key = stored.key.clone();
        entry.pointer = None;
        Ok(())
    }

    pub(crate) fn number(&self, id: ItemId) -> Option<u64> {
        self.numbers.get(&id).copied()
    }

    pub(crate) fn entry(&self, id: ItemId) -> Option<&Entry> {
        self.entries.get(self.numbers.get(&id)?)
    }

    /// The item with this content in this very place (C3).
    pub(crate) fn same_content(&self, home: Home, hash: [u8; 32]) -> Option<&Entry> {
        self.entries.get(self.contents.get(&(home, hash))?)
    }

    /// Facts with the same beginning as a text; also facts with a slot if `slots`.
    pub(crate) fn facts_like(&self, text: &str, slots: bool) -> impl Iterator<Item = (u64, &Entry)> {
        let prefix_index = self.prefix_index.get_or_init(|| PrefixIndex::of(&self.entries));
        let like = prefix_index.like(text, slots).into_iter();
        like.filter_map(|number| self.entries.get(&number).map(|entry| (number, entry)))
    }

    /// The entity of a project by its stable key (E1), or the entity that it was merged into.
    pub(crate) fn entity(&self, home: Home, key: &str) -> Option<&Entry> {
        let mut entry = self.entries.get(self.entities.get(&home)?.get(key)?)?;
        // The target of each merge was not merged yet, so this loop ends.
        while let Some(into) = entry.superseded_by.and_then(|id| self.entry(id)) {
            entry = into;
        }
        Some(entry)
    }

    /// The call with an idempotency key, and the item of its answer.
    pub(crate) fn call_answer(&self, key: &[u8; 32]) -> Option<([u8; 32], ItemId)> {
        self.call_answers.of(key)
    }

    pub(crate) fn recorded(&self, session: SessionId, turn: u64) -> Option<&Turn> {
        self.turns.get(self.recorded.get(&(session, turn))?)
    }

    /// Items that belong to a session.
    pub(crate) fn entries_of(&self, id: SessionId) -> impl Iterator<Item = (u64, &Entry)> {
        let members = self.members.get(&Home::Session(id)).into_iter().flatten();
        members.filter_map(|number| self.entries.get(number).map(|entry| (*number, entry)))
    }

    /// Edges of an item, with their numbers.
    pub(crate) fn edges_at(&self, id: ItemId) -> impl Iterator<Item = (u64, &Edge)> {
        self.adjacent
            .get(&id)
            .into_iter()
            .flatten()
            .filter_map(|number| self.edges.get(number).map(|edge| (*number, edge)))
    }

    /// Whether a caller may see an item, live or not.
    pub(crate) fn admits(&self, view: &View, number: u64, entry: &Entry) -> bool {
        self.visibility(Some(view), number, entry).is_some()
    }

    /// Whether a caller may see items of this item's class. Of entities, only anchors have a class.
    fn admits_class(&self, view: &View, number: u64, entry: &Entry) -> bool {
        view.admits(&entry.class(), |id| self.places.session_scope(id)).is_some_and(|up_to| number <= up_to)
    }

    /// The events that a deletion of these items redacts: their own events, their edges, and the calls that
    /// made them.
    pub(crate) fn events_about(&self, ids: &[ItemId]) -> BTreeSet<u64> {
        let own = |id: ItemId| self.number(id).into_iter().chain(self.edges_at(id).map(|(number, _)| number));
        ids.iter().flat_map(|id| own(*id).chain(self.calls_about(*id))).collect()
    }

    /// The events of calls whose answer is this item. An idempotency key may be derived from the words, so it
    /// is deleted with them.
    pub(crate) fn calls_about(&self, id: ItemId) -> impl Iterator<Item = u64> {
        self.call_answers.about(id)
    }

    /// The items that are deleted with a session (D2): all outside the profile, and all of a fork.
    pub(crate) fn goes_with_session(&self, id: SessionId) -> Vec<ItemId> {
        let forked = self.places.session(id).is_some_and(|session| session.fork.is_some());
        self.entries_of(id)
            .filter(|(_, entry)| forked || entry.item.layer != Layer::Profile)
            .map(|(_, entry)| entry.item.id)
            .collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{
        ids::PersonaId,
        model::{Author, Provenance, Role},
    };

    pub(crate) fn item(text: &str) -> Item {
        Item {
            id: ItemId(*blake3::hash(text.as_bytes()).as_bytes().first_chunk().unwrap()),
            kind: Kind::Episode,
            layer: Layer::Episode,
            role: Role::User,
            text: text.into(),
            stable_key: None,
            project: None,
            persona: PersonaId::DEFAULT,
            provenance: Provenance {
                session: Some(SessionId(1)),
                turn: Some(0),
                author: Author::User,
                time_ms: 5,
                sources: Vec::new(),
            },
            consent: Consent::Granted,
            intimate: false,
            salience: 0.5,
            valid_from_ms: 5,
            content_hash: *blake3::hash(text.as_bytes()).as_bytes(),
        }
    }

    fn added(item: Item) -> Event {
        Event::Added(Box::new(StoredItem::pack(item, StoredKey([7; 32]))))
    }

    fn fold(events: &[Event]) -> State {
        let mut state = State::default();
        for (number, event) in events.iter().enumerate() {
            state.apply(number as u64, event).unwrap();
        }
        state
    }

    fn session(id: u32, project: Option<ProjectId>) -> Event {
        let name = format!("session {id}").into();
        let persona = PersonaId::DEFAULT;
        Event::SessionCreated { id: SessionId(id), name, project, persona, fork: None, at_ms: 1 }
    }

    #[test]
    fn e2_a_state_read_from_a_snapshot_is_the_fold() {
        let named = |key: &str| Item { kind: Kind::Entity, stable_key: Some(key.into()), ..item(key) };
        let edge = |from: &str, to: &str| {
            let (label, description) = ("mentions".into(), "d".into());
            let (from, to) = (item(from).id, item(to).id);
            Event::EdgeAdded(Edge { from, to, label, description, evidence: "e".into(), confidence: 1.0 })
        };
        let turn = Event::TurnRecorded {
            session: SessionId(1),
            turn: 4,
            user: item("a").id,
            assistant: item("b").id,
            at_ms: 3,
        };
        let mut state = fold(&[
            session(1, None),
            session(2, Some(ProjectId(7))),
            added(item("a")),
            added(item("b")),
            added(named("person:ana")),
            edge("a", "b"),
            edge("person:ana", "a"),
            turn,
            Event::Deleted { items: vec![item("b").id] },
            Event::SessionDeleted { id: SessionId(2), project: None },
        ]);
        let bytes = baton_proto::codec::encode(&state);
        let mut read: State = baton_proto::codec::decode(&bytes, bytes.len()).unwrap();
        read.index();
        state.members.retain(|_, numbers| !numbers.is_empty());
        state.adjacent.retain(|_, edges| !edges.is_empty());
        state.entities.retain(|_, keys| !keys.is_empty());
        assert_eq!((read.next, &read.numbers, &read.contents), (state.next, &state.numbers, &state.contents));
        assert_eq!((&read.entities, &read.members), (&state.entities, &state.members));
        assert_eq!((&read.adjacent, &read.recorded), (&state.adjacent, &state.recorded));
        assert_eq!(baton_proto::codec::encode(&read).len(), bytes.len());
    }

    #[test]
    fn c5_sequence_numbers_only_grow() {
        let mut state = fold(&[session(1, None), added(item("a"))]);
        assert_eq!(state.next, 2);
        state.apply(1, &Event::Redacted).unwrap();
        assert_eq!(state.next, 2, "an event that is read again takes no number");
        state.apply(9, &Event::Redacted).unwrap();
        assert_eq!(state.next, 10);
    }

    #[test]
    fn messages_of_a_session_know_their_neighbours_also_after_a_deletion() {
        let mut state = fold(&[session(1, None), added(item("a")), added(item("b")), added(item("c"))]);
        let around =
            |state: &State, number: u64| (state.entries[&number].before, state.entries[&number].after);
        assert_eq!(around(&state, 2), (Some(1), Some(3)));
        state.apply(4, &Event::Deleted { items: vec![item("b").id] }).unwrap();
        assert_eq!((around(&state, 1), around(&state, 3)), ((None, Some(3)), (Some(1), None)));
        state.apply(5, &Event::Deleted { items: vec![item("c").id] }).unwrap();
        state.apply(6, &added(item("d"))).unwrap();
        assert_eq!(around(&state, 6), (Some(1), None));
    }

    #[test]
    fn a_deleted_item_leaves_nothing() {
        let edge = Edge {
            from: item("a").id,
            to: item("b").id,
            label: "mentions".into(),
            description: "d".into(),
            evidence: "e".into(),
            confidence: 1.0,
        };
        let events = [session(1, None), added(item("a")), added(item("b")), Event::EdgeAdded(edge.clone())];
        let mut state = fold(&events);
        assert_eq!(state.events_about(&[item("a").id]), BTreeSet::from([1, 3]));
        state.apply(4, &Event::Deleted { items: vec![item("a").id] }).unwrap();
        assert!(state.entry(item("a").id).is_none() && state.edges.is_empty());
        assert_eq!(state.edges_at(item("b").id).count(), 0);
        assert!(state.same_content(Home::Session(SessionId(1)), item("a").content_hash).is_none());
        assert_eq!(state.bytes, 1);
        // An old page may bring the edge's own event again; it adds no edge.
        state.apply(5, &Event::EdgeAdded(edge)).unwrap();
        assert!(state.edges.is_empty());
    }
}
