//! Writes turns word for word, and the facts extracted from them. This module plans on the state; the service
//! makes the plans durable.

mod idempotency;

use std::collections::HashMap;

use baton_keys::secret::random_bytes;

use super::{Memory, places::check_name};
use crate::{
    api::{MemoryError, Place, RememberOutcome, RememberRequest, Result, TurnRecord},
    events::{Event, Outcome},
    extraction::{self, Candidate, EdgeCandidate, EdgeEnd, EntityMention, Relation},
    ids::{ItemId, OwnerId, PersonaId, ProjectId, SessionId},
    limits::{MAX_BULK, MAX_FACT_BYTES, MAX_IDEMPOTENCY_BYTES, MAX_TEXT_BYTES},
    model::{Author, Consent, Edge, Item, Kind, Layer, MemoryScope, Provenance, Role, Text},
    owner::{Owner, Plan},
    scope::{Home, View},
    state::{Entry, Turn, home_of, visibility::ANCHOR},
};

/// Most edges of one fact; no exchange gives as many.
const MAX_EDGES_PER_FACT: usize = 16;

/// A fact to write, from any source.
pub(crate) struct NewFact {
    pub(crate) candidate: Candidate,
    pub(crate) consent: Consent,
    pub(crate) sources: Vec<ItemId>,
    pub(crate) time_ms: u64,
    pub(crate) turn: Option<u64>,
}

impl NewFact {
    pub(crate) fn of(
        candidate: Candidate,
        consent: Consent,
        source: ItemId,
        turn: u64,
        time_ms: u64,
    ) -> Self {
        Self { candidate, consent, sources: vec![source], time_ms, turn: Some(turn) }
    }
}

/// The place of new facts.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    pub(crate) session: Option<SessionId>,
    pub(crate) project: Option<ProjectId>,
    pub(crate) persona: PersonaId,
}

/// Builds the events of a plan, which may refer to items that the plan itself adds.
pub(crate) struct Draft<'a> {
    owner: &'a Owner,
    target: Target,
    now_ms: u64,
    pub(crate) events: Vec<Event>,
    /// Entities and anchors of this draft, by project and key.
    named: HashMap<(Option<ProjectId>, Text), ItemId>,
    /// Messages and facts of this draft, by place and content.
    added: HashMap<(Target, [u8; 32]), ItemId>,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(owner: &'a Owner, target: Target, now_ms: u64) -> Self {
        Self { owner, target, now_ms, events: Vec::new(), named: HashMap::new(), added: HashMap::new() }
    }

    fn add(&mut self, item: Item) -> ItemId {
        let id = item.id;
        self.events.push(Event::added(item));
        id
    }

    /// A message, word for word. A repeated message in the same branch is the same node (C3).
    fn message(&mut self, text: &Text, author: Author, turn: u64, time_ms: u64) -> ItemId {
        let mut item = self.owner.new_item(self.target, Kind::Episode, author, text.clone(), time_ms);
        item.provenance.turn = Some(turn);
        item.intimate = extraction::is_intimate(text);
        item.salience = extraction::salience(text);
        let hash = item.content_hash;
        if let Some(same) = self.owner.state.same_content(home_of(&item), hash) {
            self.events.push(Event::Repeated { item: same.item.id, at_ms: time_ms });
            return same.item.id;
        }
        if let Some(id) = self.added.get(&(self.target, hash)) {
            return *id;
        }
        self.added.insert((self.target, hash), item.id);
        self.add(item)
    }

    /// An entity of the target's project, created if missing (E1). It owns only its project tag; its facts
    /// give the rest ([`crate::state::visibility`]). An anchor belongs to the persona or to all personas, by
    /// its layer.
    fn entity(&mut self, key: &str, name: &str, layer: Layer) -> ItemId {
        let known = (self.target.project, Text::from(key));
        if let Some(id) = self.named.get(&known) {
            return *id;
        }
        let home = Home::Pinned(self.target.project);
        let id = match self.owner.state.entity(home, key) {
            Some(entry) => entry.item.id,
            None => {
                let persona = if layer == Layer::Profile { PersonaId::DEFAULT } else { self.target.persona };
                let target = Target { session: None, persona, ..self.target };
                let name = name.into();
                let mut item = self.owner.new_item(target, Kind::Entity, Author::User, name, self.now_ms);
                (item.layer, item.role, item.stable_key) = (layer, Role::System, Some(key.into()));
                item.content_hash = self.owner.entity_hash(key);
                self.add(item)
            }
        };
        self.named.insert(known, id);
        id
    }

    fn user(&mut self) -> ItemId {
        self.entity(&format!("{ANCHOR}user"), "the user", Layer::Profile)
    }

    fn persona(&mut self) -> ItemId {
        let persona = self.target.persona;
        let name = self.owner.state.places.persona_name(persona).unwrap_or_else(|| "the assistant".into());
        self.entity(&format!("{ANCHOR}persona:{}", persona.0), &name, Layer::Relationship)
    }

    fn edge(&mut self, edge: Edge) {
        self.events.push(Event::EdgeAdded(edge));
    }

    fn plain_edge(&mut self, from: ItemId, to: ItemId, label: &str, description: &str) {
        let (label, description) = (label.to_owned(), description.into());
        self.edge(Edge { from, to, label, description, evidence: Text::default(), confidence: 1.0 });
    }

    /// Writes a fact, unless it exists already; ends facts that it contradicts (F3); links it into the graph
    /// (E3).
    pub(crate) fn fact(&mut self, fact: NewFact) -> RememberOutcome {
        let candidate = &fact.candidate;
        let (text, author) = (candidate.text.clone(), candidate.author);
        let mut item = self.owner.new_item(self.target, Kind::Fact, author, text, fact.time_ms);
        let hash = item.content_hash;
        let (known, ended) = self.compare(&fact, hash);
        if let Some(id) = known {
            self.events.push(Event::Repeated { item: id, at_ms: fact.time_ms });
            let waits =
                self.owner.state.entry(id).is_some_and(|entry| entry.item.consent == Consent::Pending);
            if waits && fact.consent == Consent::Granted {
                self.events.push(Event::Consented { item: id });
            }
            return RememberOutcome { id, existed: true, superseded: None, blob_id: None };
        }
        (item.layer, item.role, item.stable_key) = (candidate.layer, candidate.role, candidate.slot_key());
        (item.provenance.turn, item.provenance.sources) = (fact.turn, fact.sources.clone());
        (item.consent, item.intimate) = (fact.consent, candidate.intimate);
        item.salience = candidate.salience.clamp(0.0, 1.0);
        let id = self.add(item);
        self.added.insert((self.target, hash), id);
        self.graft(id, &fact);
        for old in &ended {
            self.events.push(Event::Superseded { old: *old, new: id, at_ms: fact.time_ms });
            self.plain_edge(id, *old, "supersedes", "holds now in the place of what held before");
        }
        RememberOutcome { id, existed: false, superseded: ended.first().copied(), blob_id: None }
    }

    fn drawn(&mut self, id: ItemId, edge: &EdgeCandidate, entities: &[EntityMention]) {
        let from = self.end(&edge.from, id, entities);
        let to = self.end(&edge.to, id, entities);
        self.edge(Edge {
            from,
            to,
            label: edge.label.clone(),
            description: edge.description.as_str().into(),
            evidence: edge.evidence.clone(),
            confidence: edge.confidence,
        });
    }

    /// Links an existing fact to the names in its new words.
    pub(crate) fn names(&mut self, id: ItemId, candidate: &Candidate) {
        let names = |edge: &&EdgeCandidate| {
            [&edge.from, &edge.to].into_iter().any(|end| matches!(end, EdgeEnd::Entity(_)))
        };
        for edge in candidate.edges.iter().filter(names).take(MAX_EDGES_PER_FACT) {
            self.drawn(id, edge, &candidate.entities);
        }
    }

    fn graft(&mut self, id: ItemId, fact: &NewFact) {
        for edge in fact.candidate.edges.iter().take(MAX_EDGES_PER_FACT) {
            self.drawn(id, edge, &fact.candidate.entities);
        }
        if fact.candidate.edges.is_empty() {
            let anchor =
                if fact.candidate.layer == Layer::Relationship { self.persona() } else { self.user() };
            self.plain_edge(id, anchor, "about", "what it is about");
        }
        for source in &fact.sources {
            self.plain_edge(id, *source, "said_in", "the message that it was read from");
        }
        // Links to the fact before it in the same conversation.
        let before = self.target.session.and_then(|session| {
            let facts = self.owner.state.entries_of(session).map(|(_, entry)| &entry.item);
            facts.filter(|item| item.kind == Kind::Fact && item.id != id).last().map(|item| item.id)
        });
        if let Some(before) = before {
            self.plain_edge(id, before, "temporal_follows", "learned later in the same conversation");
        }
    }

    fn end(&mut self, end: &EdgeEnd, fact: ItemId, entities: &[EntityMention]) -> ItemId {
        match end {
            EdgeEnd::Fact => fact,
            EdgeEnd::User => self.user(),
            EdgeEnd::Persona => self.persona(),
            EdgeEnd::Entity(key) => {
                let name = entities
                    .iter()
                    .find(|entity| entity.stable_key == *key)
                    .map(|entity| entity.name.clone());
                self.entity(key, name.as_deref().unwrap_or(key), Layer::Profile)
            }
        }
    }

    /// Candidates for comparison: facts of the same layer that are visible from the same place. They say the
    /// same, are about the same thing, or begin with the same words.
    fn comparable(&self, candidate: &Candidate) -> Vec<&'a Entry> {
        let lineage = self.target.session.map(|id| self.owner.state.places.lineage(id)).unwrap_or_default();
        let (project, persona) = (self.target.project, self.target.persona);
        let view = View { project, persona, scope: MemoryScope::Full, lineage };
        let facts = self.owner.state.facts_like(&candidate.text, candidate.slot.is_some());
        let facts = facts.filter(|(number, entry)| {
            entry.item.layer == candidate.layer
                && entry.valid_to_ms.is_none()
                && !entry.archived
                && self.owner.state.admits(&view, *number, entry)
        });
        facts.map(|(_, entry)| entry).collect()
    }

    /// The existing fact with the same words, and the facts that it ends.
    fn compare(&self, fact: &NewFact, hash: [u8; 32]) -> (Option<ItemId>, Vec<ItemId>) {
        if let Some(id) = self.added.get(&(self.target, hash)) {
            return (Some(*id), Vec::new());
        }
        let mut ended = Vec::new();
        for entry in self.comparable(&fact.candidate) {
            let item = &entry.item;
            let existing = extraction::ExistingFact {
                text: &item.text,
                author: item.provenance.author,
                time_ms: item.provenance.time_ms,
            };
            match extraction::relation(&fact.candidate, fact.time_ms, &existing) {
                // The assistant's statement becomes a fact of the user's when the user says it.
                Relation::Same if trusted(item.provenance.author) || !trusted(fact.candidate.author) => {
                    return (Some(item.id), Vec::new());
                }
                // A fact without consent ends no other fact.
                Relation::Supersedes if fact.consent == Consent::Granted && self.in_this_branch(entry) => {
                    ended.push(item.id);
                }
                _ => {}
            }
        }
        (None, ended)
    }

    /// A fact in a fork ends nothing outside the fork (C4).
    fn in_this_branch(&self, entry: &Entry) -> bool {
        let forked = self
            .target
            .session
            .and_then(|id| self.owner.state.places.session_scope(id))
            .is_some_and(|session| session.forked);
        !forked || entry.item.provenance.session == self.target.session
    }
}

impl Owner {
    /// Refuses a turn whose number is taken by another text. A deleted message is not compared.
    fn check_repeated(&self, known: &Turn, turn: &TurnRecord) -> Result<()> {
        let sides =
            [(known.user, Author::User, &turn.user), (known.assistant, Author::Assistant, &turn.assistant)];
        for (id, author, text) in sides {
            let hash = self.content_hash(author, Kind::Episode, text);
            if self.state.entry(id).is_some_and(|entry| entry.item.content_hash != hash) {
                return Err(MemoryError::Conflict(format!(
                    "turn {} of this session is recorded with another text; record this one under a number of its own",
                    turn.turn
                )));
            }
        }
        Ok(())
    }

    /// The target of a place's facts; refuses missing places.
    pub(crate) fn target(&self, place: &Place) -> Result<Target> {
        let view = self.state.places.resolve(place, MemoryScope::Full)?;
        let session = view.lineage.first().map(|(session, _)| *session);
        Ok(Target { session, project: view.project, persona: view.persona })
    }
}

fn check_text(text: &str, limit: usize) -> Result<()> {
    if text.len() > limit {
        return Err(MemoryError::Invalid(format!(
            "a text has {} bytes; at most {limit} are taken",
            text.len()
        )));
    }
    Ok(())
}

/// Refuses a fact without words or beyond the limit.
pub(crate) fn check_fact(text: &str, limit: usize) -> Result<()> {
    check_text(text, limit)?;
    if text.trim().is_empty() {
        return Err(MemoryError::Invalid("a fact needs words".into()));
    }
    Ok(())
}

impl Memory {
    /// Records both sides of an exchange (C10). They are durable on return and searchable from then on (F2);
    /// repeated calls record them once. The other steps (gate, extraction, embedding, Walrus) are queued
    /// (A9).
    ///
    /// # Errors
    /// - [`MemoryError::Invalid`] without a session or beyond the limits;
    /// - [`MemoryError::Conflict`] for a contradictory place, or for another text under the same turn number;
    /// - [`MemoryError::Full`], [`MemoryError::Unavailable`].
    pub async fn record_turn(&self, owner: OwnerId, turn: TurnRecord) -> Result<()> {
        if turn.place.session.is_none() {
            return Err(MemoryError::Invalid("a turn belongs to a session: name it".into()));
        }
        check_text(&turn.user, MAX_TEXT_BYTES)?;
        check_text(&turn.assistant, MAX_TEXT_BYTES)?;
        self.ensure_place(owner, &turn.place).await?;
        let now_ms = self.now_ms();
        let off_record = extraction::gate(&extraction::MessagePair {
            user: &turn.user,
            assistant: &turn.assistant,
            time_ms: turn.time_ms,
            persona: turn.place.persona.as_deref(),
        })
        .has(extraction::flag::OFF_RECORD);
        self.write(owner, |owner| {
            let target = owner.target(&turn.place)?;
            let session = target.session.expect("the place names a session that is there");
            if let Some(known) = owner.state.recorded(session, turn.turn) {
                owner.check_repeated(known, &turn)?;
                return Ok((Plan::default(), ()));
            }
            self.check_room(owner, 2)?;
            let mut draft = Draft::new(owner, target, now_ms);
            let user = draft.message(&turn.user, Author::User, turn.turn, turn.time_ms);
            let assistant = draft.message(&turn.assistant, Author::Assistant, turn.turn, turn.time_ms);
            // Off-the-record messages stay in the transcript and are not recalled.
            if off_record {
                draft.events.extend([user, assistant].map(|item| Event::Archived { item, archived: true }));
            }
            let (turn, at_ms) = (turn.turn, turn.time_ms);
            draft.events.push(Event::TurnRecorded { session, turn, user, assistant, at_ms });
            Ok((Plan::of(draft.events), ()))
        })
        .await
    }

    /// Stores facts that were written by hand, at most [`MAX_BULK`]; durable on return.
    ///
    /// # Errors
    /// [`MemoryError::Invalid`] for an empty or too long text or too many texts, [`MemoryError::Conflict`]
    /// for a contradictory place, [`MemoryError::Full`], [`MemoryError::Unavailable`].
    pub async fn remember(
        &self,
        owner: OwnerId,
        facts: Vec<RememberRequest>,
    ) -> Result<Vec<RememberOutcome>> {
        self.remember_once(owner, facts.into_iter().map(|fact| (fact, None)).collect()).await
    }

    /// As [`Memory::remember`], each fact with an optional idempotency key. A repeated key gets the same
    /// answer and writes nothing, even if the fact was superseded since.
    ///
    /// The owner's latest [`MAX_CALL_ANSWERS`] keys are remembered. A key is forgotten when the item's words
    /// are edited or deleted, since it may be made from them.
    ///
    /// # Errors
    /// As [`Memory::remember`]; [`MemoryError::Conflict`] for a key of another text or place.
    ///
    /// [`MAX_CALL_ANSWERS`]: crate::limits::MAX_CALL_ANSWERS
    pub async fn remember_once(
        &self,
        owner: OwnerId,
        facts: Vec<(RememberRequest, Option<String>)>,
    ) -> Result<Vec<RememberOutcome>> {
        if facts.len() > MAX_BULK {
            return Err(MemoryError::Invalid(format!("at most {MAX_BULK} facts are taken at once")));
        }
        for (fact, key) in &facts {
            check_fact(&fact.text, MAX_FACT_BYTES)?;
            if key.as_ref().is_some_and(|key| key.len() > MAX_IDEMPOTENCY_BYTES) {
                return Err(MemoryError::Invalid(format!(
                    "an idempotency key has at most {MAX_IDEMPOTENCY_BYTES} bytes"
                )));
            }
            self.ensure_place(owner, &fact.place).await?;
        }
        let now_ms = self.now_ms();
        self.write(owner, |owner| {
            self.check_room(owner, facts.len())?;
            let mut draft: Option<Draft<'_>> = None;
            let mut answers = Vec::new();
            for (fact, key) in &facts {
                let target = owner.target(&fact.place)?;
                let draft = draft.get_or_insert_with(|| Draft::new(owner, target, now_ms));
                draft.target = target;
                let call = key.as_ref().map(|key| owner.call(key, fact));
                let answer = match call.map(|call| draft.known_answer(call)).transpose()?.flatten() {
                    Some(id) => RememberOutcome { id, existed: true, superseded: None, blob_id: None },
                    None => draft.fact(new_fact(fact, fact.place.persona.as_deref(), now_ms)),
                };
                if let Some(call) = call {
                    draft.answer(call, answer.id);
                }
                let blob_id = owner.view_of(answer.id).and_then(|view| view.blob_id);
                answers.push(RememberOutcome { blob_id, ..answer });
            }
            let events = draft.map_or_else(Vec::new, |draft| draft.events);
            Ok((Plan::of(events), answers))
        })
        .await
    }

    /// Extracts facts from a text by rules (and by the model, if configured) and stores them, as said at a
    /// time; `None` for now.
    ///
    /// # Errors
    /// As [`Memory::remember`].
    pub async fn analyze(
        &self,
        owner: OwnerId,
        place: Place,
        text: Text,
        said_ms: Option<u64>,
    ) -> Result<Vec<(RememberOutcome, Text)>> {
        check_text(&text, MAX_TEXT_BYTES)?;
        self.ensure_place(owner, &place).await?;
        let now_ms = self.now_ms();
        let said_ms = said_ms.unwrap_or(now_ms);
        let candidates = self.candidates_of(owner, &text, said_ms).await?;
        self.write(owner, |owner| {
            let target = owner.target(&place)?;
            self.check_room(owner, candidates.len())?;
            let mut draft = Draft::new(owner, target, now_ms);
            let mut answers = Vec::new();
            for candidate in candidates.clone() {
                let words = candidate.text.clone();
                let (consent, sources) = (Consent::Granted, Vec::new());
                let fact = NewFact { candidate, consent, sources, time_ms: said_ms, turn: None };
                answers.push((draft.fact(fact), words));
            }
            Ok((Plan::of(draft.events), answers))
        })
        .await
    }

    /// Candidates from a text of the user: by the model if it answers, else by rules. A text without
    /// candidates is its own candidate if it is informative and short enough for one fact.
    async fn candidates_of(&self, owner: OwnerId, text: &Text, said_ms: u64) -> Result<Vec<Candidate>> {
        let pair = extraction::MessagePair { user: text, assistant: "", time_ms: said_ms, persona: None };
        let ruled = extraction::extract(&pair);
        let writer = self.writer_of(owner).await?;
        let Some(writer) = writer.as_ref().and_then(|writer| writer.for_pair(&pair)) else {
            return Ok(ruled);
        };
        Ok(match writer.extract(&pair).await {
            Ok(found) => extraction::merge(ruled, found.candidates),
            // The rules' candidates are better than none.
            Err(_) => ruled,
        })
    }
}

impl Owner {
    /// The place of new items of a session.
    pub(crate) fn target_of(&self, session: SessionId) -> Option<Target> {
        let place = self.state.places.session(session)?;
        Some(Target { session: Some(session), project: place.project, persona: place.persona })
    }

    /// A new item of a place, with the usual properties.
    pub(crate) fn new_item(
        &self,
        target: Target,
        kind: Kind,
        author: Author,
        text: Text,
        time_ms: u64,
    ) -> Item {
        let Target { session, project, persona } = target;
        Item {
            id: ItemId(random_bytes()),
            kind,
            layer: Layer::Episode,
            role: if author == Author::Assistant { Role::Assistant } else { Role::User },
            content_hash: self.content_hash(author, kind, &text),
            text,
            stable_key: None,
            project,
            persona,
            provenance: Provenance { session, turn: None, author, time_ms, sources: Vec::new() },
            consent: Consent::Granted,
            intimate: false,
            salience: 0.3,
            valid_from_ms: time_ms,
        }
    }

    /// The job runner's result for a turn: facts with their graph, and the outcome.
    pub(crate) fn plan_extracted(
        &self,
        number: u64,
        facts: Vec<(Candidate, Consent)>,
        outcome: Outcome,
        now_ms: u64,
    ) -> Plan {
        let Some(turn) = self.state.turns.get(&number).filter(|turn| turn.outcome.is_none()) else {
            return Plan::default();
        };
        let Some(target) = self.target_of(turn.session) else { return Plan::default() };
        let mut draft = Draft::new(self, target, now_ms);
        for (candidate, consent) in facts {
            let source = if candidate.author == Author::Assistant { turn.assistant } else { turn.user };
            draft.fact(NewFact::of(candidate, consent, source, turn.turn, turn.at_ms));
        }
        draft.events.push(Event::Extracted { turn: number, outcome });
        Plan::of(draft.events)
    }

    /// The backstop's result for turns that were skipped one by one.
    pub(crate) fn plan_backstop(
        &self,
        session: SessionId,
        turn: u64,
        up_to: u64,
        found: Vec<(Candidate, Consent)>,
        now_ms: u64,
    ) -> Plan {
        let (Some(target), Some(turn)) = (self.target_of(session), self.state.turns.get(&turn)) else {
            return Plan::of(vec![Event::Backstopped { session, up_to }]);
        };
        let mut draft = Draft::new(self, target, now_ms);
        for (candidate, consent) in found {
            draft.fact(NewFact::of(candidate, consent, turn.user, turn.turn, turn.at_ms));
        }
        draft.events.push(Event::Backstopped { session, up_to });
        Plan::of(draft.events)
    }
}

/// Whether the words are the user's, or were noted in the user's name (F4).
fn trusted(author: Author) -> bool {
    author != Author::Assistant
}

fn new_fact(fact: &RememberRequest, persona: Option<&str>, now_ms: u64) -> NewFact {
    let time_ms = fact.time_ms.unwrap_or(now_ms);
    let author = Author::Owner;
    let mut candidate =
        extraction::candidate_of(&fact.text, author, fact.layer, persona).unwrap_or(Candidate {
            text: fact.text.clone(),
            layer: fact.layer,
            author,
            role: Role::User,
            intimate: extraction::is_intimate(&fact.text),
            salience: 0.5,
            entities: Vec::new(),
            slot: None,
            edges: Vec::new(),
        });
    // A note by hand is kept as written.
    candidate.text = fact.text.clone();
    candidate.intimate = fact.intimate.unwrap_or(candidate.intimate);
    candidate.salience = fact.salience.unwrap_or(candidate.salience.max(0.5));
    NewFact { candidate, consent: Consent::Granted, sources: Vec::new(), time_ms, turn: None }
}

/// Refuses a place whose names are beyond the limits.
pub(crate) fn check_place(place: &Place) -> Result<()> {
    for name in [&place.session, &place.project, &place.persona].into_iter().flatten() {
        check_name(name)?;
    }
    Ok(())
}
