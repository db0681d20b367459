//! Creates, moves, forks and deletes projects, sessions and personas.

use super::{Memory, turns::check_place, view::counts};
use crate::{
    api::{MemoryError, Place, PlaceView, Result},
    events::{Event, Fork},
    ids::{ItemId, OwnerId, PersonaId, ProjectId, SessionId},
    limits::{MAX_PLACES, NAME_FORM, is_name},
    model::{Kind, Layer, MemoryScope},
    owner::{Owner, Plan},
    scope::Home,
    state::{Entry, places::PlaceError},
};

/// Refuses a text that is no name.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if is_name(name) { Ok(()) } else { Err(MemoryError::Invalid(NAME_FORM.to_owned())) }
}

fn full(what: &str) -> MemoryError {
    MemoryError::Full(format!("it has {MAX_PLACES} {what}"))
}

impl Owner {
    pub(super) fn project(&self, name: &str) -> Result<ProjectId> {
        self.state.places.project_named(name).ok_or(MemoryError::NotFound("project"))
    }

    fn session(&self, name: &str) -> Result<SessionId> {
        self.state.places.session_named(name).ok_or(MemoryError::NotFound("session"))
    }

    pub(crate) fn project_of(&self, entry: &Entry) -> Option<ProjectId> {
        match entry.home {
            Home::Session(id) => self.state.places.session(id).and_then(|session| session.project),
            Home::Pinned(project) => project,
        }
    }

    fn project_view(&self, id: ProjectId) -> Option<PlaceView> {
        let project = self.state.places.projects.get(&id)?;
        Some(self.named_view(project, |entry| self.project_of(entry) == Some(id)))
    }

    /// Refuses a place that contradicts its session, before any part of it is created.
    fn check_claims(&self, place: &Place) -> Result<()> {
        let places = &self.state.places;
        let is_known = place.session.as_deref().is_some_and(|name| places.session_named(name).is_some());
        let unresolved = places.resolve(place, MemoryScope::Full).err().filter(|_| is_known);
        unresolved.map_or(Ok(()), |why| {
            // A session is in no project and with no persona that has yet to be created.
            Err(match why {
                PlaceError::Project => PlaceError::ProjectOfSession,
                PlaceError::Persona => PlaceError::PersonaOfSession,
                why => why,
            }
            .into())
        })
    }

    /// Events that create a place's missing project, persona and session. The session starts in its project,
    /// so that it belongs there before its first recall (B10).
    fn plan_place(&self, place: &Place, now_ms: u64) -> Result<Plan> {
        let places = &self.state.places;
        self.check_claims(place)?;
        let mut events = Vec::new();
        let mut project = None;
        if let Some(name) = &place.project {
            project = places.project_named(name);
            if project.is_none() {
                if places.projects.len() >= MAX_PLACES as usize {
                    return Err(full("projects"));
                }
                let id = places.next_project();
                events.push(Event::ProjectCreated { id, name: name.as_str().into(), at_ms: now_ms });
                project = Some(id);
            }
        }
        let mut persona = PersonaId::DEFAULT;
        if let Some(name) = &place.persona {
            persona = match places.persona_named(name) {
                Some(id) => id,
                None if places.personas.len() >= MAX_PLACES as usize => return Err(full("personas")),
                None => {
                    let id = places.next_persona();
                    events.push(Event::PersonaCreated { id, name: name.as_str().into(), at_ms: now_ms });
                    id
                }
            };
        }
        if let Some(name) = &place.session
            && places.session_named(name).is_none()
        {
            if places.sessions.len() >= MAX_PLACES as usize {
                return Err(full("sessions"));
            }
            let id = places.next_session();
            let (name, at_ms) = (name.as_str().into(), now_ms);
            events.push(Event::SessionCreated { id, name, project, persona, fork: None, at_ms });
        }
        Ok(Plan::of(events))
    }
}

impl Memory {
    /// Creates the missing parts of a place.
    pub(crate) async fn ensure_place(&self, owner: OwnerId, place: &Place) -> Result<()> {
        check_place(place)?;
        let there = self.read(owner, |owner| Ok(owner.plan_place(place, 0)?.events.is_empty())).await?;
        if there {
            return Ok(());
        }
        let now_ms = self.now_ms();
        self.write(owner, |owner| Ok((owner.plan_place(place, now_ms)?, ()))).await
    }

    /// Projects, by name.
    ///
    /// # Errors
    /// [`MemoryError::Unavailable`], [`MemoryError::Damaged`].
    pub async fn projects(&self, owner: OwnerId) -> Result<Vec<PlaceView>> {
        self.read(owner, |owner| {
            let ids = owner.state.places.projects.keys();
            Ok(sorted(ids.filter_map(|id| owner.project_view(*id)).collect()))
        })
        .await
    }

    /// The shared pool of all items outside projects, in the form of a project.
    pub async fn pool(&self, owner: OwnerId, name: &str) -> Result<PlaceView> {
        self.read(owner, |owner| {
            let named = crate::state::places::NamedPlace { name: name.into(), created_ms: 0, number: 0 };
            Ok(owner.named_view(&named, |entry| owner.project_of(entry).is_none()))
        })
        .await
    }

    /// Creates a project; an existing one stays unchanged.
    ///
    /// # Errors
    /// [`MemoryError::Invalid`] for its name, [`MemoryError::Full`].
    pub async fn create_project(&self, owner: OwnerId, name: String) -> Result<PlaceView> {
        let place = Place { project: Some(name.clone()), ..Place::default() };
        self.ensure_place(owner, &place).await?;
        self.read(owner, |owner| {
            owner.project_view(owner.project(&name)?).ok_or(MemoryError::NotFound("project"))
        })
        .await
    }

    /// Deletes a project with its items and sessions; returns the number of items.
    ///
    /// # Errors
    /// [`MemoryError::NotFound`].
    pub async fn delete_project(&self, owner: OwnerId, name: String) -> Result<u64> {
        self.write(owner, |owner| {
            let id = owner.project(&name)?;
            let (mut plan, count) = owner.plan_empty(Some(id));
            let places = &owner.state.places;
            if let Some(project) = places.projects.get(&id) {
                plan.rewrites.push((project.number, Event::Redacted));
            }
            plan.events.push(Event::ProjectDeleted { id });
            Ok((plan, count))
        })
        .await
    }

    /// Deletes all items and sessions of a project, or of the shared pool; the project itself stays.
    ///
    /// # Errors
    /// [`MemoryError::NotFound`].
    pub async fn forget_project(&self, owner: OwnerId, project: Option<String>) -> Result<u64> {
        self.write(owner, |owner| {
            let id = project.as_deref().map(|name| owner.project(name)).transpose()?;
            Ok(owner.plan_empty(id))
        })
        .await
    }

    /// Sessions, most recently used first.
    ///
    /// # Errors
    /// [`MemoryError::Unavailable`], [`MemoryError::Damaged`].
    pub async fn sessions(&self, owner: OwnerId) -> Result<Vec<PlaceView>> {
        self.read(owner, |owner| {
            let ids = owner.state.places.sessions.keys();
            let mut views: Vec<PlaceView> = ids.filter_map(|id| owner.session_view(*id)).collect();
            views.sort_by(|a, b| b.updated_ms.cmp(&a.updated_ms).then(a.name.cmp(&b.name)));
            Ok(views)
        })
        .await
    }

    /// Creates a session with its project and persona, before its first turn (B10). An existing session stays
    /// unchanged.
    ///
    /// # Errors
    /// [`MemoryError::Invalid`] without a session's name; [`MemoryError::Conflict`] if the session is in
    /// another project.
    pub async fn create_session(&self, owner: OwnerId, place: Place) -> Result<PlaceView> {
        if place.session.is_none() {
            return Err(MemoryError::Invalid("a session needs a name".into()));
        }
        self.ensure_place(owner, &place).await?;
        self.read(owner, |owner| {
            let session = owner.target(&place)?.session;
            session.and_then(|id| owner.session_view(id)).ok_or(MemoryError::NotFound("session"))
        })
        .await
    }

    /// Moves a session into a project, which is created if missing, or out of its project (B6, B7). Takes
    /// effect on the next message.
    ///
    /// # Errors
    /// [`MemoryError::NotFound`], [`MemoryError::Invalid`] for the project's name.
    pub async fn move_session(
        &self,
        owner: OwnerId,
        name: String,
        project: Option<String>,
    ) -> Result<PlaceView> {
        self.read(owner, |owner| owner.session(&name).map(drop)).await?;
        let target = Place { project: project.clone(), ..Place::default() };
        self.ensure_place(owner, &target).await?;
        let at_ms = self.now_ms();
        self.write(owner, |owner| {
            let id = owner.session(&name)?;
            let project = project.as_deref().map(|name| owner.project(name)).transpose()?;
            Ok((Plan::of(vec![Event::SessionMoved { id, project, at_ms }]), ()))
        })
        .await?;
        self.session_named(owner, &name).await
    }

    async fn session_named(&self, owner: OwnerId, name: &str) -> Result<PlaceView> {
        self.read(owner, |owner| {
            owner.session_view(owner.session(name)?).ok_or(MemoryError::NotFound("session"))
        })
        .await
    }

    /// Forks a session. The fork sees the first `turns` turns of its parent (all if `None`), and writes
    /// nothing to it (C4).
    ///
    /// # Errors
    /// [`MemoryError::NotFound`] for the parent, [`MemoryError::Conflict`] if the new name is taken.
    pub async fn fork_session(
        &self,
        owner: OwnerId,
        parent: String,
        name: String,
        turns: Option<u64>,
    ) -> Result<PlaceView> {
        check_name(&name)?;
        let at_ms = self.now_ms();
        self.write(owner, |owner| {
            let places = &owner.state.places;
            let id = owner.session(&parent)?;
            let session = places.session(id).ok_or(MemoryError::NotFound("session"))?;
            if places.session_named(&name).is_some() {
                return Err(MemoryError::Conflict("there is a session of that name already".into()));
            }
            if places.sessions.len() >= MAX_PLACES as usize {
                return Err(full("sessions"));
            }
            let fork = owner.fork_point(id, turns);
            let created = Event::SessionCreated {
                id: places.next_session(),
                name: name.as_str().into(),
                project: session.project,
                persona: session.persona,
                fork: Some(fork),
                at_ms,
            };
            Ok((Plan::of(vec![created]), ()))
        })
        .await?;
        self.session_named(owner, &name).await
    }

    /// Deletes a session with its episodes and relationship memories; the profile stays (D2). A fork is
    /// deleted whole.
    ///
    /// # Errors
    /// [`MemoryError::NotFound`].
    pub async fn delete_session(&self, owner: OwnerId, name: String) -> Result<u64> {
        self.write(owner, |owner| {
            let id = owner.session(&name)?;
            let items = owner.state.goes_with_session(id);
            let count = items.len() as u64;
            let mut plan = owner.plan_delete(&items);
            owner.plan_end_session(&mut plan, id);
            Ok((plan, count))
        })
        .await
    }

    /// Personas, by name.
    ///
    /// # Errors
    /// [`MemoryError::Unavailable`], [`MemoryError::Damaged`].
    pub async fn personas(&self, owner: OwnerId) -> Result<Vec<PlaceView>> {
        self.read(owner, |owner| {
            let personas = owner.state.places.personas.iter();
            let views =
                personas.map(|(id, named)| owner.named_view(named, |entry| entry.item.persona == *id));
            Ok(sorted(views.collect()))
        })
        .await
    }

    /// Creates a persona; an existing one stays unchanged.
    ///
    /// # Errors
    /// [`MemoryError::Invalid`] for its name, [`MemoryError::Full`].
    pub async fn create_persona(&self, owner: OwnerId, name: String) -> Result<PlaceView> {
        let place = Place { persona: Some(name.clone()), ..Place::default() };
        self.ensure_place(owner, &place).await?;
        let personas = self.personas(owner).await?;
        personas.into_iter().find(|persona| persona.name == name).ok_or(MemoryError::NotFound("persona"))
    }

    /// Deletes a persona with its relationship memories and episodes; the profile stays.
    ///
    /// # Errors
    /// [`MemoryError::NotFound`].
    pub async fn delete_persona(&self, owner: OwnerId, name: String) -> Result<u64> {
        self.write(owner, |owner| {
            let places = &owner.state.places;
            let id = places.persona_named(&name).ok_or(MemoryError::NotFound("persona"))?;
            let goes = |entry: &&Entry| entry.item.persona == id && entry.item.layer != Layer::Profile;
            let items: Vec<ItemId> =
                owner.state.entries.values().filter(goes).map(|entry| entry.item.id).collect();
            let mut plan = owner.plan_delete(&items);
            for session in
                places.sessions.iter().filter(|(_, session)| session.persona == id).map(|(id, _)| *id)
            {
                owner.plan_end_session(&mut plan, session);
            }
            if let Some(persona) = places.personas.get(&id) {
                plan.rewrites.push((persona.number, Event::Redacted));
            }
            plan.events.push(Event::PersonaDeleted { id });
            Ok((plan, items.len() as u64))
        })
        .await
    }
}

impl Owner {
    /// The end of the first `turns` turns of a session.
    fn fork_point(&self, id: SessionId, turns: Option<u64>) -> Fork {
        let limit = turns.unwrap_or(u64::MAX);
        let recorded = self.state.turns.iter().filter(|(_, turn)| turn.session == id && turn.turn < limit);
        let count = recorded.clone().count() as u64;
        // A turn's event follows its messages and precedes the next turn. Facts from the turn come later; the
        // messages contain them too.
        let up_to = match turns {
            None => self.state.next.saturating_sub(1),
            Some(_) => recorded.map(|(number, _)| *number).max().unwrap_or(0),
        };
        Fork { parent: id, up_to, turns: count }
    }

    /// Adds the end of a session to a plan; redacts the session's name too.
    fn plan_end_session(&self, plan: &mut Plan, id: SessionId) {
        let Some(session) = self.state.places.session(id) else { return };
        plan.rewrites.push((session.number, Event::Redacted));
        plan.events.push(Event::SessionDeleted { id, project: session.project });
    }

    /// The plan that deletes all items and sessions of a project or of the shared pool.
    fn plan_empty(&self, project: Option<ProjectId>) -> (Plan, u64) {
        let inside = |entry: &&Entry| self.project_of(entry) == project;
        let entries: Vec<&Entry> = self.state.entries.values().filter(inside).collect();
        let count = entries.iter().filter(|entry| counts(entry)).count() as u64;
        let ids: Vec<ItemId> = entries.iter().map(|entry| entry.item.id).collect();
        let mut plan = self.plan_delete(&ids);
        let sessions = self.state.places.sessions.iter().filter(|(_, session)| session.project == project);
        for id in sessions.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.plan_end_session(&mut plan, id);
        }
        (plan, count)
    }
}

fn sorted(mut views: Vec<PlaceView>) -> Vec<PlaceView> {
    views.sort_by(|a, b| a.name.cmp(&b.name));
    views
}

/// Kinds that a graph shows.
pub(crate) fn in_graph(entry: &Entry) -> bool {
    matches!(entry.item.kind, Kind::Entity | Kind::Fact | Kind::Summary)
}
