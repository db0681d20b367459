//! Projects, sessions and personas of an owner, by internal numbers and outside names.

use std::collections::{BTreeMap, HashMap};

use baton_proto::text::folded;
use serde::{Deserialize, Serialize};

use crate::{
    api::{MemoryError, Place},
    events::{Event, Fork},
    ids::{PersonaId, ProjectId, SessionId},
    model::{MemoryScope, Text},
    scope::{SessionScope, View},
};

/// A project or persona.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NamedPlace {
    pub(crate) name: Text,
    pub(crate) created_ms: u64,
    /// The event that created it.
    pub(crate) number: u64,
}

/// A session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Session {
    pub(crate) name: Text,
    pub(crate) project: Option<ProjectId>,
    pub(crate) persona: PersonaId,
    pub(crate) fork: Option<Fork>,
    pub(crate) created_ms: u64,
    pub(crate) updated_ms: u64,
    pub(crate) items: u64,
    pub(crate) bytes: u64,
    /// The event that created it.
    pub(crate) number: u64,
}

/// All places of an owner.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Places {
    pub(crate) projects: BTreeMap<ProjectId, NamedPlace>,
    pub(crate) personas: BTreeMap<PersonaId, NamedPlace>,
    pub(crate) sessions: BTreeMap<SessionId, Session>,
    /// By the folded name, so that each spelling of a word is the same place. Names of sessions are ids.
    project_names: HashMap<Text, ProjectId>,
    persona_names: HashMap<Text, PersonaId>,
    session_names: HashMap<Text, SessionId>,
    /// The highest numbers in use so far: no number is used twice.
    last_project: u32,
    last_persona: u32,
    last_session: u32,
}

/// Why a place sees nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceError {
    Session,
    Project,
    Persona,
    /// The session is in a project other than the request's.
    ProjectOfSession,
    /// The session has a persona other than the request's.
    PersonaOfSession,
}

impl PlaceError {
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Session => "there is no such session",
            Self::Project => "there is no such project",
            Self::Persona => "there is no such persona",
            Self::ProjectOfSession => "the session is not in that project",
            Self::PersonaOfSession => "the session is with another persona",
        }
    }
}

impl From<PlaceError> for MemoryError {
    fn from(unresolved: PlaceError) -> Self {
        match unresolved {
            PlaceError::Session => Self::NotFound("session"),
            PlaceError::Project => Self::NotFound("project"),
            PlaceError::Persona => Self::NotFound("persona"),
            PlaceError::ProjectOfSession | PlaceError::PersonaOfSession => {
                Self::Conflict(unresolved.reason().to_owned())
            }
        }
    }
}

/// The key of the name of a project or persona.
fn key(name: &str) -> Text {
    Text(folded(name))
}

impl Places {
    pub(crate) fn apply(&mut self, number: u64, event: &Event) {
        match event {
            Event::ProjectCreated { id, name, at_ms } => {
                let project = NamedPlace { name: name.clone(), created_ms: *at_ms, number };
                self.projects.insert(*id, project);
                self.project_names.insert(key(name), *id);
                self.last_project = self.last_project.max(id.0);
            }
            Event::PersonaCreated { id, name, at_ms } => {
                let persona = NamedPlace { name: name.clone(), created_ms: *at_ms, number };
                self.personas.insert(*id, persona);
                self.persona_names.insert(key(name), *id);
                self.last_persona = self.last_persona.max(id.0);
            }
            Event::SessionCreated { id, name, project, persona, fork, at_ms } => {
                let session = Session {
                    name: name.clone(),
                    project: *project,
                    persona: *persona,
                    fork: *fork,
                    created_ms: *at_ms,
                    updated_ms: *at_ms,
                    items: 0,
                    bytes: 0,
                    number,
                };
                self.sessions.insert(*id, session);
                self.session_names.insert(name.clone(), *id);
                self.last_session = self.last_session.max(id.0);
            }
            Event::SessionMoved { id, project, .. } => {
                if let Some(session) = self.sessions.get_mut(id) {
                    session.project = *project;
                }
            }
            Event::SessionDeleted { id, .. } => {
                // The creating event may be redacted; its number stays taken.
                self.last_session = self.last_session.max(id.0);
                if let Some(session) = self.sessions.remove(id) {
                    self.session_names.remove(&*session.name);
                }
            }
            Event::ProjectDeleted { id } => {
                self.last_project = self.last_project.max(id.0);
                if let Some(project) = self.projects.remove(id) {
                    self.project_names.remove(&*key(&project.name));
                }
            }
            Event::PersonaDeleted { id } => {
                self.last_persona = self.last_persona.max(id.0);
                if let Some(persona) = self.personas.remove(id) {
                    self.persona_names.remove(&*key(&persona.name));
                }
            }
            _ => {}
        }
    }

    /// The session's properties that matter for scope.
    pub(crate) fn session_scope(&self, id: SessionId) -> Option<SessionScope> {
        let session = self.sessions.get(&id)?;
        Some(SessionScope { project: session.project, forked: session.fork.is_some() })
    }

    pub(crate) fn session(&self, id: SessionId) -> Option<&Session> {
        self.sessions.get(&id)
    }

    pub(crate) fn session_named(&self, name: &str) -> Option<SessionId> {
        self.session_names.get(name).copied()
    }

    pub(crate) fn project_named(&self, name: &str) -> Option<ProjectId> {
        self.project_names.get(&*key(name)).copied()
    }

    pub(crate) fn persona_named(&self, name: &str) -> Option<PersonaId> {
        self.persona_names.get(&*key(name)).copied()
    }

    pub(crate) fn next_project(&self) -> ProjectId {
        ProjectId(self.last_project + 1)
    }

    /// 0 is the default persona.
    pub(crate) fn next_persona(&self) -> PersonaId {
        PersonaId(self.last_persona + 1)
    }

    pub(crate) fn next_session(&self) -> SessionId {
        SessionId(self.last_session + 1)
    }

    pub(crate) fn touch(&mut self, id: SessionId, at_ms: u64) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.updated_ms = session.updated_ms.max(at_ms);
        }
    }

    pub(crate) fn count(&mut self, id: Option<SessionId>, bytes: u64, at_ms: u64) {
        if let Some(session) = id.and_then(|id| self.sessions.get_mut(&id)) {
            session.items += 1;
            session.bytes += bytes;
            session.updated_ms = session.updated_ms.max(at_ms);
        }
    }

    pub(crate) fn uncount(&mut self, id: SessionId, bytes: u64) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.items = session.items.saturating_sub(1);
            session.bytes = session.bytes.saturating_sub(bytes);
        }
    }

    /// Resolves a request's place to internal numbers (B8). Fails closed.
    pub(crate) fn resolve(&self, place: &Place, scope: MemoryScope) -> Result<View, PlaceError> {
        let claimed = match &place.project {
            Some(name) => Some(self.project_named(name).ok_or(PlaceError::Project)?),
            None => None,
        };
        let named = match &place.persona {
            Some(name) => Some(self.persona_named(name).ok_or(PlaceError::Persona)?),
            None => None,
        };
        let Some(name) = &place.session else {
            let persona = named.unwrap_or(PersonaId::DEFAULT);
            return Ok(View { project: claimed, persona, scope, lineage: Vec::new() });
        };
        let id = self.session_named(name).ok_or(PlaceError::Session)?;
        let session = self.sessions.get(&id).ok_or(PlaceError::Session)?;
        // No project name is no claim; another project than the session's is a contradiction.
        if claimed.is_some() && claimed != session.project {
            return Err(PlaceError::ProjectOfSession);
        }
        // A session keeps its persona: no other persona reads its shared contents.
        if named.is_some_and(|named| named != session.persona) {
            return Err(PlaceError::PersonaOfSession);
        }
        Ok(View { project: session.project, persona: session.persona, scope, lineage: self.lineage(id) })
    }

    /// A session and its ancestors, each with the last visible number.
    pub(crate) fn lineage(&self, id: SessionId) -> Vec<(SessionId, u64)> {
        let mut lineage = vec![(id, u64::MAX)];
        let (mut current, mut up_to) = (id, u64::MAX);
        // A parent is always older than its fork, so this loop ends.
        while let Some(fork) = self.sessions.get(&current).and_then(|session| session.fork) {
            up_to = up_to.min(fork.up_to);
            lineage.push((fork.parent, up_to));
            current = fork.parent;
        }
        lineage
    }

    pub(crate) fn project_name(&self, id: ProjectId) -> Option<String> {
        self.projects.get(&id).map(|project| project.name.0.clone())
    }

    pub(crate) fn persona_name(&self, id: PersonaId) -> Option<String> {
        self.personas.get(&id).map(|persona| persona.name.0.clone())
    }
}
