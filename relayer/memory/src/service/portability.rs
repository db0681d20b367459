//! Export and import as signed JSON lines, and the check of contents on Walrus.

use std::collections::{HashMap, HashSet};

use baton_keys::{
    SIGNATURE_LEN, account::export_digest, contexts::MEMORY_EXPORT, ids::PublicKey, secret::random_bytes,
    sign,
};
use serde::{Deserialize, Serialize};

use super::{Memory, places::check_name, turns::check_fact};
use crate::{
    api::{Export, ImportReport, MemoryError, Place, RestoreReport, Result},
    content,
    events::{Event, Fork, Outcome, StoredItem, StoredKey},
    ids::{ItemId, OwnerId, PersonaId, ProjectId, SessionId},
    limits::{MAX_TEXT_BYTES, RESTORE_AT_ONCE},
    model::{Author, Consent, Edge, Item, Kind, Layer, MemoryScope, Provenance, Role, Text},
    owner::{CommitOutcome, Job, Owner, Plan, busy},
    scope::View,
    state::{Entry, State, places::PlaceError, visibility::Visibility},
};

/// The name of the export format.
const FORMAT: &str = "baton-memory-export-v1";
/// Longest line of an import: an item of the largest text, every byte escaped.
const MAX_LINE_BYTES: usize = 6 * MAX_TEXT_BYTES + 64 * 1024;
/// Import lines of one commit.
const LINES_PER_COMMIT: usize = 500;
/// Most lines of an import for each item allowed, to include places, edges and turns.
const LINES_PER_ITEM: u64 = 8;

/// One line of an export.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    Header {
        format: String,
        owner: String,
        exported_ms: u64,
        public_key: String,
    },
    Project {
        name: Text,
        created_ms: u64,
    },
    Persona {
        name: Text,
        created_ms: u64,
    },
    Session(SessionLine),
    Item(Box<ItemLine>),
    Edge(EdgeLine),
    Turn {
        session: Text,
        turn: u64,
        user: String,
        assistant: String,
        time_ms: u64,
    },
    Signature {
        signature: String,
        lines: u64,
    },
    /// The account's own signature over all lines before it, added by the owner's client. It stays valid
    /// after the owner's keys here are erased.
    Endorsement {
        public_key: String,
        signature: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionLine {
    name: Text,
    project: Option<Text>,
    persona: Option<Text>,
    parent: Option<Text>,
    parent_turns: u64,
    created_ms: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ItemLine {
    id: String,
    kind: String,
    layer: String,
    role: String,
    author: String,
    text: Text,
    stable_key: Option<Text>,
    /// The item's project tag, or its project without a session.
    project: Option<Text>,
    session: Option<Text>,
    turn: Option<u64>,
    persona: Option<Text>,
    time_ms: u64,
    valid_from_ms: u64,
    valid_to_ms: Option<u64>,
    superseded_by: Option<String>,
    sources: Vec<String>,
    consent: String,
    intimate: bool,
    salience: f32,
    archived: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EdgeLine {
    from: String,
    to: String,
    label: String,
    description: Text,
    evidence: Text,
    confidence: f32,
}

fn wrong(line: usize, what: &str) -> MemoryError {
    MemoryError::Invalid(format!("line {line} of the import {what}"))
}

fn json(line: &Line) -> Text {
    Text(serde_json::to_string(line).expect("strings, numbers and lists always have a JSON form"))
}

fn parse_id(text: &str, line: usize) -> Result<ItemId> {
    text.parse().map_err(|_| wrong(line, "has an item id that is none"))
}

/// The digest that a signature covers.
fn digest<'a>(lines: impl Iterator<Item = &'a Text>) -> [u8; 32] {
    export_digest(lines.map(|line| &**line))
}

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
                crate::scope::Home::Pinned(project) => named.projects.extend(project),
                crate::scope::Home::Session(session) => {
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

impl Owner {
    /// Lines in the order of the log, so that an import restores the order and the fork points. An export of
    /// one place names no other place.
    fn export_lines(
        &self,
        view: Option<&View>,
        visibility: &dyn Fn(u64, &Entry) -> Option<Visibility>,
    ) -> Vec<Line> {
        let places = &self.state.places;
        let project = |id: Option<ProjectId>| id.and_then(|id| places.project_name(id)).map(Text);
        let persona = |id: PersonaId| places.persona_name(id).map(Text);
        let session = |id: SessionId| places.session(id).map(|session| session.name.clone());
        let only = view.map(|view| NamedPlaces::of(self, view, visibility));
        let only = only.as_ref();
        let mut lines: Vec<(u64, Line)> = Vec::new();
        for (_, named) in
            places.projects.iter().filter(|(id, _)| only.is_none_or(|only| only.projects.contains(id)))
        {
            let (name, created_ms) = (named.name.clone(), named.created_ms);
            lines.push((named.number, Line::Project { name, created_ms }));
        }
        for (_, named) in
            places.personas.iter().filter(|(id, _)| only.is_none_or(|only| only.personas.contains(id)))
        {
            let (name, created_ms) = (named.name.clone(), named.created_ms);
            lines.push((named.number, Line::Persona { name, created_ms }));
        }
        for (_, place) in
            places.sessions.iter().filter(|(id, _)| only.is_none_or(|only| only.sessions.contains(id)))
        {
            let line = SessionLine {
                name: place.name.clone(),
                project: project(place.project),
                persona: persona(place.persona),
                parent: place.fork.and_then(|fork| session(fork.parent)),
                parent_turns: place.fork.map_or(0, |fork| fork.turns),
                created_ms: place.created_ms,
            };
            lines.push((place.number, Line::Session(line)));
        }
        let mut shown = HashSet::new();
        for (number, entry) in &self.state.entries {
            let Some(how) = visibility(*number, entry) else { continue };
            shown.insert(entry.item.id);
            let line = self.item_line(entry, &how, &project, &persona, &session);
            lines.push((*number, Line::Item(Box::new(line))));
        }
        for (number, turn) in &self.state.turns {
            if let Some(name) = session(turn.session)
                && shown.contains(&turn.user)
                && shown.contains(&turn.assistant)
            {
                let (user, assistant) = (turn.user.to_string(), turn.assistant.to_string());
                lines.push((
                    *number,
                    Line::Turn { session: name, turn: turn.turn, user, assistant, time_ms: turn.at_ms },
                ));
            }
        }
        for (number, edge) in &self.state.edges {
            if self.shows_edge(edge, &shown) {
                let line = EdgeLine {
                    from: edge.from.to_string(),
                    to: edge.to.to_string(),
                    label: edge.label.clone(),
                    description: edge.description.clone(),
                    evidence: edge.evidence.clone(),
                    confidence: edge.confidence,
                };
                lines.push((*number, Line::Edge(line)));
            }
        }
        lines.sort_by_key(|(number, _)| *number);
        lines.into_iter().map(|(_, line)| line).collect()
    }

    fn item_line(
        &self,
        entry: &Entry,
        how: &Visibility,
        project: &dyn Fn(Option<ProjectId>) -> Option<Text>,
        persona: &dyn Fn(PersonaId) -> Option<Text>,
        session: &dyn Fn(SessionId) -> Option<Text>,
    ) -> ItemLine {
        let item = &entry.item;
        let pinned = match entry.home {
            crate::scope::Home::Pinned(id) => id,
            crate::scope::Home::Session(_) => item.project,
        };
        let in_session = match entry.home {
            crate::scope::Home::Session(id) => session(id),
            crate::scope::Home::Pinned(_) => None,
        };
        ItemLine {
            id: item.id.to_string(),
            kind: item.kind.name().into(),
            layer: how.layer.name().into(),
            role: item.role.name().into(),
            author: how.author.name().into(),
            text: item.text.clone(),
            stable_key: item.stable_key.clone(),
            project: project(pinned),
            session: in_session,
            turn: item.provenance.turn,
            persona: persona(how.persona),
            time_ms: item.provenance.time_ms,
            valid_from_ms: item.valid_from_ms,
            valid_to_ms: entry.valid_to_ms,
            superseded_by: entry.superseded_by.map(|id| id.to_string()),
            sources: item.provenance.sources.iter().map(ItemId::to_string).collect(),
            consent: how.consent.name().into(),
            intimate: how.intimate,
            salience: item.salience,
            archived: entry.archived,
        }
    }
}

/// The state of an import.
struct Import {
    /// Whether it is this owner's own export, unchanged. Then authors and ids stay the same.
    own: bool,
    ids: HashMap<ItemId, ItemId>,
    report: ImportReport,
}

impl Import {
    fn id(&mut self, old: ItemId) -> ItemId {
        if self.own { old } else { *self.ids.entry(old).or_insert_with(|| ItemId(random_bytes())) }
    }

    /// Events of one line, on a state that includes all lines before it.
    fn events(&mut self, owner: &Owner, state: &State, line: Line, at: usize) -> Result<Vec<Event>> {
        let places = &state.places;
        let project_of = |name: &Option<Text>| match name {
            Some(name) => {
                places.project_named(name).map(Some).ok_or_else(|| wrong(at, "names a project before it"))
            }
            None => Ok(None),
        };
        let persona_of = |name: &Option<Text>| match name {
            Some(name) => places.persona_named(name).ok_or_else(|| wrong(at, "names a persona before it")),
            None => Ok(PersonaId::DEFAULT),
        };
        Ok(match line {
            Line::Header { .. } | Line::Signature { .. } | Line::Endorsement { .. } => {
                return Err(wrong(at, "stands where none may"));
            }
            Line::Project { name, created_ms } => {
                check_name(&name)?;
                let id = places.next_project();
                let is_new = places.project_named(&name).is_none();
                is_new.then_some(Event::ProjectCreated { id, name, at_ms: created_ms }).into_iter().collect()
            }
            Line::Persona { name, created_ms } => {
                check_name(&name)?;
                let id = places.next_persona();
                let is_new = places.persona_named(&name).is_none();
                is_new.then_some(Event::PersonaCreated { id, name, at_ms: created_ms }).into_iter().collect()
            }
            Line::Session(line) => {
                check_name(&line.name)?;
                if places.session_named(&line.name).is_some() {
                    return Ok(Vec::new());
                }
                let parent = match &line.parent {
                    Some(name) => {
                        Some(places.session_named(name).ok_or_else(|| wrong(at, "forks what is not there"))?)
                    }
                    None => None,
                };
                let up_to = state.next.saturating_sub(1);
                let fork = parent.map(|parent| Fork { parent, up_to, turns: line.parent_turns });
                vec![Event::SessionCreated {
                    id: places.next_session(),
                    project: project_of(&line.project)?,
                    persona: persona_of(&line.persona)?,
                    name: line.name,
                    fork,
                    at_ms: line.created_ms,
                }]
            }
            Line::Item(line) => self.item(owner, state, *line, at)?,
            Line::Edge(line) => {
                let from = parse_id(&line.from, at)?;
                let to = parse_id(&line.to, at)?;
                let (from, to) = (self.id(from), self.id(to));
                let known = state.edges_at(from).any(|(_, edge)| edge.to == to && edge.label == line.label);
                let confidence =
                    if line.confidence.is_finite() { line.confidence.clamp(0.0, 1.0) } else { 0.0 };
                let fits =
                    line.label.len() <= 64 && line.description.len() + line.evidence.len() <= MAX_TEXT_BYTES;
                if known || !fits {
                    return Ok(Vec::new());
                }
                let (label, description, evidence) = (line.label, line.description, line.evidence);
                vec![Event::EdgeAdded(Edge { from, to, label, description, evidence, confidence })]
            }
            Line::Turn { session, turn, user, assistant, time_ms } => {
                let id =
                    places.session_named(&session).ok_or_else(|| wrong(at, "names a session before it"))?;
                if state.recorded(id, turn).is_some() {
                    return Ok(Vec::new());
                }
                let (user, assistant) = (parse_id(&user, at)?, parse_id(&assistant, at)?);
                let (user, assistant) = (self.id(user), self.id(assistant));
                let number = state.next;
                vec![
                    Event::TurnRecorded { session: id, turn, user, assistant, at_ms: time_ms },
                    // The import includes the facts of this turn.
                    Event::Extracted { turn: number, outcome: Outcome::Written },
                ]
            }
        })
    }

    fn item(&mut self, owner: &Owner, state: &State, line: ItemLine, at: usize) -> Result<Vec<Event>> {
        let places = &state.places;
        let unknown = || wrong(at, "has a word that is not known");
        let kind = Kind::named(&line.kind).ok_or_else(unknown)?;
        check_fact(&line.text, MAX_TEXT_BYTES)
            .or_else(|error| if line.text.is_empty() { Ok(()) } else { Err(error) })?;
        let old = parse_id(&line.id, at)?;
        let id = self.id(old);
        if state.entry(id).is_some() {
            self.report.skipped += 1;
            return Ok(Vec::new());
        }
        let said_by = Author::named(&line.author).ok_or_else(unknown)?;
        // Imported memory is not trusted like the user's own words here.
        let author = if self.own || said_by == Author::Assistant { said_by } else { Author::Import };
        let session = match &line.session {
            Some(name) => {
                Some(places.session_named(name).ok_or_else(|| wrong(at, "names a session before it"))?)
            }
            None => None,
        };
        let project = match &line.project {
            Some(name) => {
                Some(places.project_named(name).ok_or_else(|| wrong(at, "names a project before it"))?)
            }
            None => None,
        };
        let persona = match &line.persona {
            Some(name) => places.persona_named(name).ok_or_else(|| wrong(at, "names a persona before it"))?,
            None => PersonaId::DEFAULT,
        };
        let sources = line.sources.iter().map(|id| parse_id(id, at)).collect::<Result<Vec<_>>>()?;
        let content_hash = match &line.stable_key {
            Some(key) if kind == Kind::Entity => owner.entity_hash(key),
            _ => owner.content_hash(author, kind, &line.text),
        };
        let item = Item {
            id,
            kind,
            layer: Layer::named(&line.layer).ok_or_else(unknown)?,
            role: Role::named(&line.role).ok_or_else(unknown)?,
            content_hash,
            text: line.text,
            stable_key: line.stable_key,
            project,
            persona,
            provenance: Provenance {
                session,
                turn: line.turn,
                author,
                time_ms: line.time_ms,
                sources: sources.into_iter().map(|id| self.id(id)).collect(),
            },
            consent: if line.consent == Consent::Granted.name() {
                Consent::Granted
            } else {
                Consent::Pending
            },
            intimate: line.intimate,
            salience: if line.salience.is_finite() { line.salience.clamp(0.0, 1.0) } else { 0.0 },
            valid_from_ms: line.valid_from_ms,
        };
        let same = state.same_content(crate::state::home_of(&item), item.content_hash);
        if let Some(same) = same.filter(|_| !self.own) {
            self.ids.insert(old, same.item.id);
            self.report.skipped += 1;
            return Ok(Vec::new());
        }
        self.report.added += 1;
        let mut events = vec![Event::Added(Box::new(StoredItem::pack(item, StoredKey::generate())))];
        if let Some(at_ms) = line.valid_to_ms {
            let new = match &line.superseded_by {
                Some(new) => parse_id(new, at)?,
                None => old,
            };
            events.push(Event::Superseded { old: id, new: self.id(new), at_ms });
        }
        if line.archived {
            events.push(Event::Archived { item: id, archived: true });
        }
        Ok(events)
    }
}

impl Memory {
    /// Exports everything of the owner, or everything visible from one place, as signed JSON lines (F1, C13).
    /// Intimate items are included only if `intimate` is set.
    ///
    /// # Errors
    /// [`MemoryError::NotFound`] for a missing place, [`MemoryError::Conflict`] for a contradictory place,
    /// [`MemoryError::Unavailable`], [`MemoryError::Damaged`].
    pub async fn export(&self, owner: OwnerId, place: Option<Place>, intimate: bool) -> Result<Export> {
        let exported_ms = self.now_ms();
        self.read(owner, |open| {
            let key = open.keys().export_key();
            let header = Line::Header {
                format: FORMAT.into(),
                owner: owner.to_string(),
                exported_ms,
                public_key: key.public_key().to_string(),
            };
            let mut lines = vec![json(&header)];
            let view = place.as_ref().map(|place| open.exported_view(place)).transpose()?;
            let visibility = |number: u64, entry: &Entry| {
                open.state.visibility(view.as_ref(), number, entry).filter(|how| intimate || !how.intimate)
            };
            lines.extend(open.export_lines(view.as_ref(), &visibility).iter().map(json));
            let signature = hex::encode(key.sign(MEMORY_EXPORT, &digest(lines.iter())));
            lines.push(json(&Line::Signature { signature, lines: lines.len() as u64 }));
            Ok(Export { owner, lines })
        })
        .await
    }

    /// Imports an export. Existing items stay. An owner's own export comes back unchanged. Its proof is the
    /// signing key of the owner here, or the account's own signature, which stays valid after an erasure.
    /// Another owner's items are marked as imported, and are not trusted like the user's own words.
    ///
    /// # Errors
    /// [`MemoryError::Invalid`] for an invalid line or signature: nothing is imported then.
    /// [`MemoryError::Full`].
    pub async fn import(&self, owner: OwnerId, lines: Vec<Text>) -> Result<ImportReport> {
        let most = self.inner.parts.max_items.saturating_mul(LINES_PER_ITEM);
        if lines.len() as u64 > most || lines.iter().any(|line| line.len() > MAX_LINE_BYTES) {
            return Err(MemoryError::Invalid("the import is larger than an owner's memory may be".into()));
        }
        let parsed = parse(&lines)?;
        let items = parsed.lines.iter().filter(|(_, line)| matches!(line, Line::Item(_))).count();
        let own = self
            .read(owner, |open| {
                self.check_room(open, items)?;
                let made_here = parsed.public_key == open.keys().export_key().public_key();
                Ok(parsed.owner == owner && (made_here || parsed.endorsed_by == Some(owner)))
            })
            .await?;
        let mut import = Import { own, ids: HashMap::new(), report: ImportReport::default() };
        let mut lines = parsed.lines.into_iter().peekable();
        while lines.peek().is_some() {
            let part: Vec<(usize, Line)> = lines.by_ref().take(LINES_PER_COMMIT).collect();
            self.import_part(owner, part, &mut import).await?;
        }
        self.inner.work.notify_one();
        Ok(import.report)
    }

    /// Applies lines in order, each on the state of the lines before it; all become durable together.
    async fn import_part(&self, owner: OwnerId, part: Vec<(usize, Line)>, import: &mut Import) -> Result<()> {
        self.hold(owner, async |open| {
            let mut state = open.state.clone();
            let mut all = Vec::new();
            for (at, line) in part {
                for event in import.events(open, &state, line, at)? {
                    state.apply(state.next, &event).map_err(|_| wrong(at, "does not unpack"))?;
                    all.push(event);
                }
            }
            let plan = Plan { job: Job::Due(self.now_ms()), ..Plan::of(all) };
            match open.commit(plan).await? {
                CommitOutcome::Done => Ok(()),
                CommitOutcome::Conflict => Err(busy()),
            }
        })
        .await
    }

    /// Reads a project's contents on Walrus again, newest first, and checks IDs, keys and words. Unreadable
    /// or different contents are stored anew; matching ones are skipped.
    ///
    /// # Errors
    /// [`MemoryError::NotFound`] for the project, [`MemoryError::Unavailable`] without Walrus.
    pub async fn restore(
        &self,
        owner: OwnerId,
        project: Option<String>,
        limit: usize,
    ) -> Result<RestoreReport> {
        let Some(contents) = self.inner.parts.contents.clone() else {
            return Err(MemoryError::Unavailable("this relayer keeps no contents on Walrus".into()));
        };
        let (stored, total) = self.read(owner, |open| open.stored_in(project.as_deref(), limit)).await?;
        let mut restored =
            RestoreReport { total, truncated: total > stored.len() as u64, ..RestoreReport::default() };
        let mut lost = Vec::new();
        for part in stored.chunks(RESTORE_AT_ONCE) {
            let reads = part.iter().map(|(_, _, pointer, _)| contents.get(pointer.into()));
            let read = futures::future::join_all(reads).await;
            for ((id, key, _, text), bytes) in part.iter().zip(read) {
                let content = bytes.ok().and_then(|bytes| content::open(owner, *id, key, &bytes));
                if content.is_some_and(|content| content.text == *text) {
                    restored.skipped += 1;
                } else {
                    lost.push(*id);
                }
            }
        }
        if !lost.is_empty() {
            self.write(owner, |_| Ok((Plan::of(vec![Event::Unstored { items: lost.clone() }]), ()))).await?;
            // Stored at once, so that the answer reports the result.
            self.store_now(owner).await?;
            let again = self.read(owner, |open| {
                Ok(lost
                    .iter()
                    .filter(|id| open.state.entry(**id).is_some_and(|entry| !entry.waits_for_store()))
                    .count())
            });
            restored.restored = again.await? as u64;
            restored.failed = lost.len() as u64 - restored.restored;
        }
        Ok(restored)
    }
}

type StoredContent = (ItemId, StoredKey, crate::events::Pointer, Text);

impl Owner {
    /// The place of an export.
    fn exported_view(&self, place: &Place) -> Result<View> {
        self.state.places.resolve(place, MemoryScope::Full).map_err(|unresolved| match unresolved {
            PlaceError::Session => MemoryError::NotFound("session"),
            PlaceError::Project => MemoryError::NotFound("project"),
            PlaceError::Persona => MemoryError::NotFound("persona"),
            PlaceError::ProjectOfSession | PlaceError::PersonaOfSession => {
                MemoryError::Conflict(unresolved.reason().to_owned())
            }
        })
    }

    /// Items of a project with content on Walrus, newest first, at most `limit`; and their total.
    fn stored_in(&self, project: Option<&str>, limit: usize) -> Result<(Vec<StoredContent>, u64)> {
        let id = match project {
            Some(name) => {
                Some(self.state.places.project_named(name).ok_or(MemoryError::NotFound("project"))?)
            }
            None => None,
        };
        let inside = self.state.entries.values().rev().filter(|entry| self.project_of(entry) == id);
        let stored: Vec<StoredContent> = inside
            .filter_map(|entry| {
                let pointer = entry.pointer.clone()?;
                Some((entry.item.id, entry.key.clone(), pointer, entry.item.text.clone()))
            })
            .collect();
        let total = stored.len() as u64;
        Ok((stored.into_iter().take(limit).collect(), total))
    }
}

/// An import that was parsed whole and has a valid signature.
struct VerifiedImport {
    owner: OwnerId,
    public_key: PublicKey,
    /// The account that signed all of it; `None` without an account's signature.
    endorsed_by: Option<OwnerId>,
    lines: Vec<(usize, Line)>,
}

/// The account that endorses an export, and the endorsed lines: all but the endorsement line.
fn endorsement(lines: &[Text]) -> Result<(Option<OwnerId>, &[Text])> {
    let Some((last, before)) = lines.split_last() else { return Ok((None, lines)) };
    let Ok(Line::Endorsement { public_key, signature }) = serde_json::from_str::<Line>(last) else {
        return Ok((None, lines));
    };
    let at = lines.len();
    let public_key: PublicKey = public_key.parse().map_err(|_| wrong(at, "names no public key"))?;
    let mut bytes = [0; SIGNATURE_LEN];
    hex::decode_to_slice(&signature, &mut bytes).map_err(|_| wrong(at, "is no signature"))?;
    sign::verify(MEMORY_EXPORT, &public_key, &digest(before.iter()), &bytes).map_err(|_| {
        MemoryError::Invalid("the account's signature on the export does not fit: it was changed".into())
    })?;
    Ok((Some(OwnerId::of(&public_key)), before))
}

fn parse(lines: &[Text]) -> Result<VerifiedImport> {
    let (endorsed_by, lines) = endorsement(lines)?;
    let [first, middle @ .., last] = lines else {
        return Err(MemoryError::Invalid("an import has at least a header and a signature".into()));
    };
    // The parser's error may quote a memory, so it is replaced.
    let read =
        |line: &Text, at: usize| serde_json::from_str::<Line>(line).map_err(|_| wrong(at, "cannot be read"));
    let Line::Header { format, owner, public_key, .. } = read(first, 1)? else {
        return Err(wrong(1, "is not a header"));
    };
    if format != FORMAT {
        return Err(wrong(1, "is of another format"));
    }
    let owner = owner.parse().map_err(|_| wrong(1, "names no owner"))?;
    let public_key: PublicKey = public_key.parse().map_err(|_| wrong(1, "names no public key"))?;
    let Line::Signature { signature, .. } = read(last, lines.len())? else {
        return Err(wrong(lines.len(), "is not a signature: the file may be cut off"));
    };
    let mut bytes = [0; SIGNATURE_LEN];
    hex::decode_to_slice(&signature, &mut bytes).map_err(|_| wrong(lines.len(), "is no signature"))?;
    let signed = digest(lines.iter().take(lines.len() - 1));
    sign::verify(MEMORY_EXPORT, &public_key, &signed, &bytes)
        .map_err(|_| MemoryError::Invalid("the export's signature does not fit: it was changed".into()))?;
    let lines = middle.iter().enumerate().map(|(at, line)| Ok((at + 2, read(line, at + 2)?)));
    Ok(VerifiedImport { owner, public_key, endorsed_by, lines: lines.collect::<Result<_>>()? })
}
