//! The lines of an owner, in the order of the log, so that an import restores the order and the fork points.

use std::collections::HashSet;

use super::lines::{ItemLine, Line, SessionLine};
use crate::{
    ids::{ItemId, PersonaId, ProjectId, SessionId},
    model::Text,
    owner::Owner,
    scope::{Home, View},
    state::{Entry, visibility::Visibility},
};

/// The places that an export of one place names: the places of its items, and their containers.
struct NamedPlaces {
    projects: HashSet<ProjectId>,
    personas: HashSet<PersonaId>,
    sessions: HashSet<SessionId>,
}

impl NamedPlaces {
    fn of(owner: &Owner, view: &View, visibility: &dyn Fn(u64, &Entry) -> Option<Visibility>) -> Self {
        let places = &owner.state.places;
        let mut named = Self {
            projects: view.project.into_iter().collect(),
            personas: HashSet::from([view.persona]),
            sessions: view.lineage.iter().map(|(session, _)| *session).collect(),
        };
        for (number, entry) in &owner.state.entries {
            let Some(how) = visibility(*number, entry) else { continue };
            named.personas.insert(how.persona);
            match entry.home {
                Home::Pinned(project) => named.projects.extend(project),
                Home::Session(session) => {
                    named.projects.extend(entry.item.project);
                    named.sessions.extend(places.lineage(session).into_iter().map(|(session, _)| session));
                }
            }
        }
        for session in named.sessions.iter().filter_map(|id| places.session(*id)) {
            named.projects.extend(session.project);
            named.personas.insert(session.persona);
        }
        named
    }
}

/// An export of everything, or of what is visible from one place; the latter names no other place.
pub(super) struct Exporter<'a> {
    owner: &'a Owner,
    visibility: &'a dyn Fn(u64, &Entry) -> Option<Visibility>,
    only: Option<NamedPlaces>,
    /// Each with its number in the log.
    lines: Vec<(u64, Line)>,
    shown: HashSet<ItemId>,
}

impl<'a> Exporter<'a> {
    /// The lines of an owner.
    pub(super) fn lines(
        owner: &'a Owner,
        view: Option<&View>,
        visibility: &'a dyn Fn(u64, &Entry) -> Option<Visibility>,
    ) -> Vec<Line> {
        let only = view.map(|view| NamedPlaces::of(owner, view, visibility));
        let mut exporter = Self { owner, visibility, only, lines: Vec::new(), shown: HashSet::new() };
        exporter.add_projects_and_personas();
        exporter.add_sessions();
        exporter.add_items();
        exporter.add_turns();
        exporter.add_edges();
        exporter.lines.sort_by_key(|(number, _)| *number);
        exporter.lines.into_iter().map(|(_, line)| line).collect()
    }

    fn project(&self, id: Option<ProjectId>) -> Option<Text> {
        id.and_then(|id| self.owner.state.places.project_name(id)).map(Text)
    }

    fn persona(&self, id: PersonaId) -> Option<Text> {
        self.owner.state.places.persona_name(id).map(Text)
    }

    fn session(&self, id: SessionId) -> Option<Text> {
        self.owner.state.places.session(id).map(|session| session.name.clone())
    }

    fn names(&self, is_named: impl Fn(&NamedPlaces) -> bool) -> bool {
        self.only.as_ref().is_none_or(is_named)
    }

    fn add_projects_and_personas(&mut self) {
        let places = &self.owner.state.places;
        for (id, named) in &places.projects {
            if self.names(|only| only.projects.contains(id)) {
                let (name, created_ms) = (named.name.clone(), named.created_ms);
                self.lines.push((named.number, Line::Project { name, created_ms }));
            }
        }
        for (id, named) in &places.personas {
            if self.names(|only| only.personas.contains(id)) {
                let (name, created_ms) = (named.name.clone(), named.created_ms);
                self.lines.push((named.number, Line::Persona { name, created_ms }));
            }
        }
    }

    fn add_sessions(&mut self) {
        for (id, place) in &self.owner.state.places.sessions {
            if self.names(|only| only.sessions.contains(id)) {
                let line = SessionLine {
                    name: place.name.clone(),
                    project: self.project(place.project),
                    persona: self.persona(place.persona),
                    parent: place.fork.and_then(|fork| self.session(fork.parent)),
                    parent_turns: place.fork.map_or(0, |fork| fork.turns),
                    created_ms: place.created_ms,
                };
                self.lines.push((place.number, Line::Session(line)));
            }
        }
    }

    fn add_items(&mut self) {
        for (number, entry) in &self.owner.state.entries {
            let Some(how) = (self.visibility)(*number, entry) else { continue };
            self.shown.insert(entry.item.id);
            let line = self.item_line(entry, &how);
            self.lines.push((*number, Line::Item(Box::new(line))));
        }
    }

    fn add_turns(&mut self) {
        for (number, turn) in &self.owner.state.turns {
            let is_shown = self.shown.contains(&turn.user) && self.shown.contains(&turn.assistant);
            if let Some(session) = self.session(turn.session).filter(|_| is_shown) {
                let (user, assistant) = (turn.user, turn.assistant);
                let line = Line::Turn { session, turn: turn.turn, user, assistant, time_ms: turn.at_ms };
                self.lines.push((*number, line));
            }
        }
    }

    fn add_edges(&mut self) {
        for (number, edge) in &self.owner.state.edges {
            if self.owner.shows_edge(edge, &self.shown) {
                self.lines.push((*number, Line::Edge(edge.clone())));
            }
        }
    }

    fn item_line(&self, entry: &Entry, how: &Visibility) -> ItemLine {
        let item = &entry.item;
        let (project, session) = match entry.home {
            Home::Pinned(project) => (project, None),
            Home::Session(session) => (item.project, self.session(session)),
        };
        ItemLine {
            id: item.id,
            kind: item.kind,
            layer: how.layer,
            role: item.role,
            author: how.author,
            text: item.text.clone(),
            stable_key: item.stable_key.clone(),
            project: self.project(project),
            session,
            turn: item.provenance.turn,
            persona: self.persona(how.persona),
            time_ms: item.provenance.time_ms,
            valid_from_ms: item.valid_from_ms,
            valid_to_ms: entry.valid_to_ms,
            superseded_by: entry.superseded_by,
            sources: item.provenance.sources.clone(),
            consent: how.consent,
            intimate: how.intimate,
            salience: item.salience,
            archived: entry.archived,
        }
    }
}
