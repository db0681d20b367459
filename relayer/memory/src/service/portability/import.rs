//! The events that an import's lines become.

use std::collections::HashMap;

use baton_keys::secret::random_bytes;

use super::lines::{ItemLine, Line, SessionLine, wrong};
use crate::{
    api::{ImportReport, Result},
    events::{Event, Fork, Outcome},
    ids::{ItemId, PersonaId, ProjectId, SessionId},
    limits::MAX_TEXT_BYTES,
    model::{Author, Consent, Edge, Item, Kind, Provenance, Text},
    owner::Owner,
    service::{places::check_name, turns::check_fact},
    state::{State, home_of, places::Places},
};

/// The places that a line of an import names.
struct LinePlaces<'a> {
    places: &'a Places,
    /// The line's number, for errors.
    at: usize,
}

impl LinePlaces<'_> {
    fn session(&self, name: &str) -> Result<SessionId> {
        self.places.session_named(name).ok_or_else(|| wrong(self.at, "names a session before it"))
    }

    fn project(&self, name: Option<&Text>) -> Result<Option<ProjectId>> {
        let known = |name: &Text| {
            self.places.project_named(name).ok_or_else(|| wrong(self.at, "names a project before it"))
        };
        name.map(known).transpose()
    }

    fn persona(&self, name: Option<&Text>) -> Result<PersonaId> {
        name.map_or(Ok(PersonaId::DEFAULT), |name| {
            self.places.persona_named(name).ok_or_else(|| wrong(self.at, "names a persona before it"))
        })
    }
}

/// The state of an import.
pub(super) struct Import {
    /// Whether it is this owner's own export, unchanged. Then authors and ids stay the same.
    own: bool,
    ids: HashMap<ItemId, ItemId>,
    pub(super) report: ImportReport,
}

impl Import {
    pub(super) fn new(own: bool) -> Self {
        Self { own, ids: HashMap::new(), report: ImportReport::default() }
    }

    fn id(&mut self, old: ItemId) -> ItemId {
        if self.own { old } else { *self.ids.entry(old).or_insert_with(|| ItemId(random_bytes())) }
    }

    /// Events of one line, on a state that includes all lines before it.
    pub(super) fn events(
        &mut self,
        owner: &Owner,
        state: &State,
        line: Line,
        at: usize,
    ) -> Result<Vec<Event>> {
        let places = &state.places;
        match line {
            Line::Header { .. } | Line::Signature { .. } | Line::Endorsement { .. } => {
                Err(wrong(at, "stands where none may"))
            }
            Line::Project { name, created_ms: at_ms } => {
                check_name(&name)?;
                let is_new = places.project_named(&name).is_none();
                let event = Event::ProjectCreated { id: places.next_project(), name, at_ms };
                Ok(is_new.then_some(event).into_iter().collect())
            }
            Line::Persona { name, created_ms: at_ms } => {
                check_name(&name)?;
                let is_new = places.persona_named(&name).is_none();
                let event = Event::PersonaCreated { id: places.next_persona(), name, at_ms };
                Ok(is_new.then_some(event).into_iter().collect())
            }
            Line::Session(line) => session(state, line, at),
            Line::Item(line) => self.item(owner, state, *line, at),
            Line::Edge(edge) => Ok(self.edge(state, edge)),
            Line::Turn { session, turn, user, assistant, time_ms } => {
                let session = LinePlaces { places, at }.session(&session)?;
                if state.recorded(session, turn).is_some() {
                    return Ok(Vec::new());
                }
                let (user, assistant) = (self.id(user), self.id(assistant));
                Ok(vec![
                    Event::TurnRecorded { session, turn, user, assistant, at_ms: time_ms },
                    // The import includes the facts of this turn.
                    Event::Extracted { turn: state.next, outcome: Outcome::Written },
                ])
            }
        }
    }

    fn edge(&mut self, state: &State, edge: Edge) -> Vec<Event> {
        let (from, to, confidence) = (self.id(edge.from), self.id(edge.to), share(edge.confidence));
        let known = state.edges_at(from).any(|(_, known)| known.to == to && known.label == edge.label);
        let fits = edge.label.len() <= 64 && edge.description.len() + edge.evidence.len() <= MAX_TEXT_BYTES;
        let added = (fits && !known).then_some(Event::EdgeAdded(Edge { from, to, confidence, ..edge }));
        added.into_iter().collect()
    }

    fn item(&mut self, owner: &Owner, state: &State, line: ItemLine, at: usize) -> Result<Vec<Event>> {
        let old = line.id;
        let id = self.id(old);
        if state.entry(id).is_some() {
            self.report.skipped += 1;
            return Ok(Vec::new());
        }
        let (end, archived, superseded_by) = (line.valid_to_ms, line.archived, line.superseded_by);
        let item = self.read_item(owner, &state.places, line, at)?;
        let same = state.same_content(home_of(&item), item.content_hash);
        if let Some(same) = same.filter(|_| !self.own) {
            self.ids.insert(old, same.item.id);
            self.report.skipped += 1;
            return Ok(Vec::new());
        }
        self.report.added += 1;
        let mut events = vec![Event::added(item)];
        if let Some(at_ms) = end {
            let new = self.id(superseded_by.unwrap_or(old));
            events.push(Event::Superseded { old: id, new, at_ms });
        }
        if archived {
            events.push(Event::Archived { item: id, archived: true });
        }
        Ok(events)
    }

    fn read_item(&mut self, owner: &Owner, places: &Places, line: ItemLine, at: usize) -> Result<Item> {
        let places = LinePlaces { places, at };
        let kind = line.kind;
        if !line.text.is_empty() {
            check_fact(&line.text, MAX_TEXT_BYTES)?;
        }
        // Imported memory is not trusted like the user's own words here.
        let is_kept = self.own || line.author == Author::Assistant;
        let author = if is_kept { line.author } else { Author::Import };
        let sources = line.sources.iter().map(|id| self.id(*id)).collect();
        let content_hash = match &line.stable_key {
            Some(key) if kind == Kind::Entity => owner.entity_hash(key),
            _ => owner.content_hash(author, kind, &line.text),
        };
        Ok(Item {
            id: self.id(line.id),
            kind,
            layer: line.layer,
            role: line.role,
            content_hash,
            project: places.project(line.project.as_ref())?,
            persona: places.persona(line.persona.as_ref())?,
            provenance: Provenance {
                session: line.session.as_deref().map(|name| places.session(name)).transpose()?,
                turn: line.turn,
                author,
                time_ms: line.time_ms,
                sources,
            },
            text: line.text,
            stable_key: line.stable_key,
            consent: if line.consent == Consent::Granted { Consent::Granted } else { Consent::Pending },
            intimate: line.intimate,
            salience: share(line.salience),
            valid_from_ms: line.valid_from_ms,
        })
    }
}

fn session(state: &State, line: SessionLine, at: usize) -> Result<Vec<Event>> {
    let places = LinePlaces { places: &state.places, at };
    check_name(&line.name)?;
    if state.places.session_named(&line.name).is_some() {
        return Ok(Vec::new());
    }
    let parent = line
        .parent
        .as_deref()
        .map(|name| state.places.session_named(name).ok_or_else(|| wrong(at, "forks what is not there")));
    let up_to = state.next.saturating_sub(1);
    let fork = parent.transpose()?.map(|parent| Fork { parent, up_to, turns: line.parent_turns });
    Ok(vec![Event::SessionCreated {
        id: state.places.next_session(),
        project: places.project(line.project.as_ref())?,
        persona: places.persona(line.persona.as_ref())?,
        name: line.name,
        fork,
        at_ms: line.created_ms,
    }])
}

/// A number from 0 to 1.
fn share(number: f32) -> f32 {
    if number.is_finite() { number.clamp(0.0, 1.0) } else { 0.0 }
}
