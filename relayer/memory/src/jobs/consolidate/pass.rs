//! Decides which parts of a graph to consolidate. Pure; the decisions are events.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use baton_proto::text::searchable;

use super::ConsolidationReport;
use crate::{
    events::Event,
    extraction::canonical,
    ids::{ItemId, PersonaId, ProjectId, SessionId},
    model::{Consent, Edge, Kind, Layer, Text},
    owner::{Owner, Plan},
    scope::Home,
    search::Features,
    state::{Entry, SAME_AS, State, visibility::is_named},
};

/// Changes of one pass: a commit of a few hundred events.
const CHANGES_PER_PASS: usize = 128;
/// Facts of an entity that a fact is compared with: the newest. An entity with more facts is a topic of its
/// own.
const COMPARED: usize = 32;
/// Entities of a fact that lead to other facts.
const ENTITIES: usize = 8;
/// Edges of one pass whose words are searched for in the whole memory.
const EVIDENCE_SEARCHES: usize = 16;
/// Cosine from which two facts about the same thing are similar. Unrelated facts about one thing have about
/// half of it.
const ALIKE: f32 = 0.8;
/// Most confidence that repetition gives: repetition does not prove a fact.
const MAX_CONFIDENCE: f32 = 0.95;
/// Label of the edge between similar facts.
const ALIKE_LABEL: &str = "says_alike";
/// Optional titles of a person's name.
const TITLES: &[&str] =
    &["dr", "mr", "mrs", "ms", "prof", "professor", "doctor", "uncle", "aunt", "grandma", "grandpa"];
/// Words that negate or reverse a statement. They carry no content for the search.
const NEGATIONS: &[&str] = &[
    "not", "no", "never", "none", "nobody", "nothing", "neither", "nor", "without", "dont", "doesnt",
    "didnt", "isnt", "arent", "wasnt", "werent", "wont", "wouldnt", "cant", "cannot", "couldnt", "shouldnt",
    "hasnt", "havent", "hadnt", "hardly", "barely", "former", "formerly", "ex", "was", "were", "had", "used",
];

/// An entity with its kind.
type TypedEntity<'a> = (&'a str, &'a Entry);
/// An edge with the number of its event.
type NumberedEdge<'a> = (u64, &'a Edge);

/// The meaning of an edge: source, target and label.
type Meaning<'a> = ([u8; 16], [u8; 16], &'a str);

/// The scope of a fact, across the sessions of a project; a fork has its own scope.
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Scope {
    project: Option<ProjectId>,
    fork: Option<SessionId>,
    layer: u8,
    persona: Option<PersonaId>,
    intimate: bool,
    granted: bool,
    author: u8,
}

fn scope_of(state: &State, entry: &Entry) -> Option<Scope> {
    let (project, fork) = match entry.home {
        Home::Pinned(project) => (project, None),
        Home::Session(id) => {
            let session = state.places.session_scope(id)?;
            (session.project, session.forked.then_some(id))
        }
    };
    let item = &entry.item;
    let persona = (item.layer != Layer::Profile).then_some(item.persona);
    Some(Scope {
        project,
        fork,
        layer: item.layer as u8,
        persona,
        intimate: item.intimate,
        granted: item.consent == Consent::Granted,
        author: item.provenance.author as u8,
    })
}

fn is_fact(entry: &Entry) -> bool {
    entry.item.kind == Kind::Fact && entry.is_live()
}

fn is_entity(entry: &Entry) -> bool {
    is_named(&entry.item) && !entry.archived && entry.superseded_by.is_none()
}

/// Facts that no pass has compared yet, in their order.
pub(super) fn new_facts(state: &State, limit: usize) -> Vec<u64> {
    let new = state.entries.range(state.consolidated..).filter(|(_, entry)| is_fact(entry));
    new.map(|(number, _)| *number).take(limit).collect()
}

/// Pairs of facts of one scope about the same thing: a new fact, and an older one.
pub(super) fn pairs(state: &State, facts: &[u64]) -> Vec<(u64, u64)> {
    let mut pairs = BTreeSet::new();
    for number in facts {
        let Some(entry) = state.entries.get(number) else { continue };
        let others = |id: ItemId| {
            state.edges_at(id).map(move |(_, edge)| if edge.from == id { edge.to } else { edge.from })
        };
        let about = others(entry.item.id).filter(|id| state.entry(*id).is_some_and(is_entity));
        let about: BTreeSet<ItemId> = about.take(ENTITIES).collect();
        for entity in about {
            let facts: BTreeSet<u64> = others(entity).filter_map(|id| state.number(id)).collect();
            let before = facts.range(..number).rev().filter(|other| {
                state
                    .entries
                    .get(other)
                    .is_some_and(|other| is_fact(other) && scope_of(state, other) == scope_of(state, entry))
            });
            pairs.extend(before.take(COMPARED).map(|other| (*other, *number)));
        }
    }
    pairs.into_iter().collect()
}

/// The normalised name of an entity, without diacritics and title; and its kind.
fn folded(key: &str) -> Option<(String, &str)> {
    let (kind, name) = key.split_once(':')?;
    let plain = searchable(name);
    let mut words = plain.split(' ').filter(|word| !word.is_empty()).peekable();
    if kind == "person" && words.peek().is_some_and(|word| TITLES.contains(word)) && plain.contains(' ') {
        words.next();
    }
    let name = words.collect::<Vec<_>>().join(" ");
    (!name.is_empty()).then_some((name, kind))
}

/// The negations of a canonical text.
fn negations(text: &str) -> Vec<&str> {
    text.split(' ').filter(|word| NEGATIONS.contains(word)).collect()
}

/// A pass over an owner's graph, and its changes.
pub(super) struct GraphPass<'a> {
    owner: &'a Owner,
    state: &'a State,
    now_ms: u64,
    events: Vec<Event>,
    /// Edges whose words are gone; their events are redacted.
    unwritten: Vec<u64>,
    done: ConsolidationReport,
    /// Items and edges that this pass has changed; the next pass sees their new state.
    touched: HashSet<ItemId>,
    ended: HashSet<u64>,
}

impl<'a> GraphPass<'a> {
    pub(super) fn new(owner: &'a Owner, now_ms: u64) -> Self {
        Self {
            owner,
            state: &owner.state,
            now_ms,
            events: Vec::new(),
            unwritten: Vec::new(),
            done: ConsolidationReport::default(),
            touched: HashSet::new(),
            ended: HashSet::new(),
        }
    }

    fn is_full(&self) -> bool {
        self.done.total() >= CHANGES_PER_PASS as u64
    }

    /// The plan, and its changes.
    pub(super) fn finish(mut self) -> (Plan, ConsolidationReport) {
        if !self.ended.is_empty() {
            let mut edges: Vec<u64> = self.ended.into_iter().collect();
            edges.sort_unstable();
            self.events.push(Event::EdgesEnded { edges });
        }
        let rewrites = self.unwritten.into_iter().map(|number| (number, Event::Redacted)).collect();
        (Plan { events: self.events, rewrites, ..Plan::default() }, self.done)
    }

    /// Merges an item into another, and moves its edges. Returns false, and leaves the merge to the next
    /// pass, if this pass has changed one of the edges' ends.
    fn merge(&mut self, from: &Entry, into: &Entry, description: &str) -> bool {
        let (old, new) = (from.item.id, into.item.id);
        let edges: Vec<(u64, &Edge)> = self.state.edges_at(old).collect();
        let moving = |edge: &Edge| [edge.from, edge.to].iter().any(|end| self.touched.contains(end));
        if self.touched.contains(&new) || edges.iter().any(|(_, edge)| moving(edge)) {
            return false;
        }
        self.events.push(Event::Superseded { old, new, at_ms: self.now_ms });
        // Archived, not *no longer true*: the other item says it.
        self.events.push(Event::Archived { item: old, archived: true });
        for (number, edge) in edges {
            let moved = |end: ItemId| if end == old { new } else { end };
            let (from, to) = (moved(edge.from), moved(edge.to));
            let keeps = !matches!(edge.label.as_str(), "temporal_follows" | ALIKE_LABEL | SAME_AS);
            if from != to && keeps {
                self.events.push(Event::EdgeAdded(Edge { from, to, ..edge.clone() }));
            }
            if from == to || keeps || edge.label == ALIKE_LABEL {
                self.ended.insert(number);
            }
        }
        self.link(new, old, SAME_AS, description, 1.0);
        self.touched.insert(old);
        true
    }

    fn link(&mut self, from: ItemId, to: ItemId, label: &str, description: &str, confidence: f32) {
        let (label, description) = (label.to_owned(), description.into());
        self.events.push(Event::EdgeAdded(Edge {
            from,
            to,
            label,
            description,
            evidence: Text::default(),
            confidence,
        }));
    }

    /// Merges entities of one project with the same name, of the same kind or an unknown kind. Facts of the
    /// same scopes must name both. Otherwise a caller could see one fact's spelling through the other fact.
    pub(super) fn merge_entities(&mut self) {
        let mut named: BTreeMap<String, Vec<(&str, &Entry)>> = BTreeMap::new();
        let state = self.state;
        for entry in state.entries.values().filter(|entry| is_entity(entry)) {
            if let Some((name, kind)) = entry.item.stable_key.as_deref().and_then(folded) {
                named.entry(name).or_default().push((kind, entry));
            }
        }
        for same in named.into_values().filter(|same| same.len() > 1) {
            let mut groups: HashMap<(Home, BTreeSet<Scope>), Vec<TypedEntity<'_>>> = HashMap::new();
            for (kind, entry) in same {
                let facts = state.facts_naming(entry.item.id).map(|(_, fact)| fact);
                let scopes: BTreeSet<Scope> = facts.filter_map(|fact| scope_of(state, fact)).collect();
                groups.entry((entry.home, scopes)).or_default().push((kind, entry));
            }
            let mut groups: Vec<_> = groups.into_values().collect();
            groups.sort_by_key(|group| group.first().map(|(_, entry)| entry.item.id));
            for group in groups {
                self.merge_named(&group);
            }
        }
    }

    fn merge_named(&mut self, group: &[(&str, &Entry)]) {
        let known: BTreeSet<&str> =
            group.iter().map(|(kind, _)| *kind).filter(|kind| *kind != "thing").collect();
        for kind in known.iter().copied().chain(known.is_empty().then_some("thing")) {
            // A name that is both a person and a place is two entities; a thing of that name may be either.
            let counts = |of: &str| of == kind || (of == "thing" && known.len() <= 1);
            let Some((_, into)) = group.iter().find(|(of, _)| *of == kind) else { continue };
            for (_, from) in group.iter().filter(|(of, entry)| counts(of) && entry.item.id != into.item.id) {
                if self.is_full() {
                    return;
                }
                if self.merge(from, into, "another way to write the same name") {
                    self.done.entities_merged += 1;
                }
            }
        }
    }

    /// Merges facts with the same words; links similar ones.
    pub(super) fn compare_facts(&mut self, pairs: &[(u64, u64)], features: &BTreeMap<u64, Features>) {
        for (first, second) in pairs {
            if self.is_full() {
                return;
            }
            let (Some(a), Some(b)) = (self.state.entries.get(first), self.state.entries.get(second)) else {
                continue;
            };
            if !is_fact(a) || !is_fact(b) || [a, b].iter().any(|entry| self.touched.contains(&entry.item.id))
            {
                continue;
            }
            let vectors = [first, second].map(|number| features.get(number)?.vector.as_ref());
            let [Some(va), Some(vb)] = vectors else { continue };
            let alike = va.cosine(vb).unwrap_or(0.0);
            if alike < ALIKE {
                continue;
            }
            let [sa, sb] = [a, b].map(|entry| Text(canonical(&entry.item.text)));
            // A fact of another session may be hidden, moved and deleted by itself.
            let one_place = a.home == b.home && a.item.persona == b.item.persona;
            let same = sa == sb && one_place;
            let linked = self.state.edges_at(a.item.id).any(|(_, edge)| {
                [edge.from, edge.to].contains(&b.item.id)
                    && [ALIKE_LABEL, SAME_AS, "supersedes"].contains(&&*edge.label)
            });
            if same && consents(a, b) {
                if self.merge(b, a, "says the same") {
                    let at_ms = b.item.provenance.time_ms;
                    self.events.push(Event::Repeated { item: a.item.id, at_ms });
                    self.done.facts_merged += 1;
                }
            } else if !linked && negations(&sa) == negations(&sb) {
                self.link(b.item.id, a.item.id, ALIKE_LABEL, "says something alike of the same thing", alike);
                self.done.facts_linked += 1;
            }
        }
    }

    /// Merges edges with the same ends and meaning; repetition raises their confidence.
    pub(super) fn merge_edges(&mut self) {
        let mut same: BTreeMap<Meaning<'_>, Vec<NumberedEdge<'_>>> = BTreeMap::new();
        for (number, edge) in &self.state.edges {
            if !self.ended.contains(number) {
                same.entry((edge.from.0, edge.to.0, &edge.label)).or_default().push((*number, edge));
            }
        }
        for edges in same.into_values() {
            if self.is_full() {
                return;
            }
            let Some((first, kept)) = edges.first().copied() else { continue };
            let confidence = self.confidence(&edges);
            let raised = confidence > kept.confidence + f32::EPSILON;
            if raised {
                let best = edges
                    .iter()
                    .max_by(|a, b| a.1.confidence.total_cmp(&b.1.confidence))
                    .map_or(kept, |best| best.1);
                self.events.push(Event::EdgeAdded(Edge { confidence, ..best.clone() }));
                self.ended.insert(first);
                self.done.edges_raised += 1;
            }
            self.ended.extend(edges.iter().skip(1).map(|(number, _)| *number));
            self.done.edges_merged += edges.len() as u64 - 1;
        }
    }

    /// The confidence of edges with the same meaning. Each separate evidence makes it less likely that all
    /// are wrong, and so does each repetition of their fact.
    fn confidence(&self, edges: &[(u64, &Edge)]) -> f32 {
        let mut evidence: HashMap<&str, f32> = HashMap::new();
        for (_, edge) in edges {
            let best = evidence.entry(&edge.evidence).or_default();
            *best = best.max(edge.confidence);
        }
        let highest = edges.iter().map(|(_, edge)| edge.confidence).fold(0.0, f32::max);
        let together =
            1.0 - evidence.values().map(|confidence| 1.0 - confidence.clamp(0.0, 1.0)).product::<f32>();
        let Some((_, edge)) = edges.first() else { return highest };
        let repeats = if edge.label == ALIKE_LABEL {
            0
        } else {
            let facts = [edge.from, edge.to].map(|id| self.state.entry(id).filter(|entry| is_fact(entry)));
            facts.into_iter().flatten().map(|entry| entry.repeats).max().unwrap_or(0)
        };
        let said = if repeats == 0 {
            0.0
        } else {
            1.0 - 0.5_f32.powi(i32::try_from(repeats).unwrap_or(30).min(30) + 1)
        };
        // It never falls.
        highest.max(together.max(said).min(MAX_CONFIDENCE))
    }

    /// Ends edges between other items whose quotes no item contains any more.
    pub(super) fn end_edges_without_evidence(&mut self) {
        let mut searches = 0;
        let none = HashSet::new();
        let quoting = self.state.edges.iter().filter(|(number, edge)| {
            let of_a_fact = [edge.from, edge.to].iter().any(|id| self.state.entry(*id).is_some_and(is_said));
            !edge.evidence.is_empty() && !of_a_fact && !self.ended.contains(number)
        });
        let quoting: Vec<(u64, &Edge)> = quoting.map(|(number, edge)| (*number, edge)).collect();
        // Each pass starts at another edge, so that no edge is left out for ever.
        let begin = usize::try_from(self.state.next).unwrap_or(0) % quoting.len().max(1);
        for (number, edge) in quoting.iter().skip(begin).chain(quoting.iter().take(begin)) {
            if self.is_full() || searches == EVIDENCE_SEARCHES {
                return;
            }
            if self.is_said_by_its_fact(*number, &edge.evidence) {
                continue;
            }
            searches += 1;
            if !self.owner.says_somewhere(&edge.evidence, &none) {
                self.ended.insert(*number);
                self.unwritten.push(*number);
                self.done.edges_ended += 1;
            }
        }
    }

    /// Whether the edge's own fact, the one before it in the log, or that fact's message still contains the
    /// words.
    fn is_said_by_its_fact(&self, number: u64, words: &str) -> bool {
        let fact = self
            .state
            .entries
            .range(..number)
            .rev()
            .map(|(_, entry)| entry)
            .find(|entry| entry.item.kind == Kind::Fact);
        fact.is_some_and(|fact| {
            let sources = fact.item.provenance.sources.iter().filter_map(|id| self.state.entry(*id));
            sources.chain([fact]).any(|entry| entry.item.text.contains(words))
        })
    }
}

fn is_said(entry: &Entry) -> bool {
    matches!(entry.item.kind, Kind::Fact | Kind::Episode)
}

fn consents(a: &Entry, b: &Entry) -> bool {
    a.item.consent == Consent::Granted && b.item.consent == Consent::Granted
}
