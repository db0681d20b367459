//! Recall: selects the memories for an answer. It has a deadline, degrades instead of failing, and reports
//! the kind of search.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use baton_models::embed::{EmbedRole, RelatedWord};
use baton_proto::text::composed;
use tokio::runtime::Handle;
use zeroize::Zeroizing;

use super::{Memory, OwnerReadGuard};
use crate::{
    api::{DropReason, DroppedMatch, Filters, Hit, MemoryError, Recall, RecallMode, RecallRequest, Result},
    extraction::{holds_words, wording},
    ids::{OwnerId, SessionId},
    limits::{MAX_DROPPED, MAX_PAGE, MAX_QUERY_BYTES},
    model::{Kind, MemoryScope},
    owner::{ItemSearch, Owner, busy, joined},
    scope::{Class, View},
    search::{Candidates, DEFAULT_THRESHOLD, Documents, Question, RankedItem, rank},
    state::{
        Entry,
        visibility::{Visibility, is_anchor, is_named},
    },
};

/// The embedder has the deadline divided by this; after it, the search uses words alone.
const EMBED_SHARE: u32 = 2;
/// Ranked items for each item of the limit: graph neighbours, duplicates and the budget use some up.
const SPARE: usize = 3;
/// Best hits whose graph neighbours are added.
const GRAPH_SEEDS: usize = 5;
/// Share of a hit's score that its neighbour gets at full confidence.
const GRAPH_SHARE: f32 = 0.6;
/// Tries of a search while other relayers write.
const SEARCH_TRIES: u32 = 3;
/// Why a recall has nothing after its deadline.
const TOO_LATE: &str = "memory did not answer in time";
/// Percentage of items without a vector from which an answer reports it.
const UNEMBEDDED_PERCENT: usize = 10;

/// A request with the parts that the embedder gave.
struct RecallQuery {
    request: RecallRequest,
    /// The embedding, or why there is none.
    vector: Result<Vec<f32>, String>,
    words: Vec<String>,
    /// For each word, its related words.
    related: Vec<Vec<RelatedWord>>,
}

/// The part of an owner that one request may see.
struct VisibleItems<'a> {
    owner: &'a Owner,
    view: &'a View,
    filters: &'a Filters,
    not_session: Option<SessionId>,
    classes: HashMap<Class, Option<u64>>,
    /// Visibilities of named entities, from the visible facts.
    named: HashMap<u64, Visibility>,
}

impl<'a> VisibleItems<'a> {
    fn new(owner: &'a Owner, view: &'a View, filters: &'a Filters) -> Self {
        let not_session = owner.excluded_session(filters);
        let mut classes = HashMap::new();
        let mut named = HashMap::new();
        for (number, entry) in &owner.state.entries {
            if is_named(&entry.item) {
                named.extend(owner.state.visibility(Some(view), *number, entry).map(|how| (*number, how)));
                continue;
            }
            let class = entry.class();
            classes
                .entry(class)
                .or_insert_with(|| view.admits(&class, |id| owner.state.places.session_scope(id)));
        }
        Self { owner, view, filters, not_session, classes, named }
    }

    fn entry(&self, number: u64) -> Option<&'a Entry> {
        self.owner.state.entries.get(&number).filter(|entry| self.shows(number, entry))
    }

    /// All of its items, ascending.
    fn numbers(&self) -> Vec<u64> {
        let entries = self.owner.state.entries.iter();
        entries.filter(|(number, entry)| self.shows(**number, entry)).map(|(number, _)| *number).collect()
    }

    fn shows(&self, number: u64, entry: &Entry) -> bool {
        if is_named(&entry.item) {
            return self.named.get(&number).is_some_and(|how| self.passes(entry, how));
        }
        let up_to = self.classes.get(&entry.class()).copied().flatten();
        up_to.is_some_and(|up_to| number <= up_to) && self.passes(entry, &Visibility::of(entry))
    }

    /// Whether an item passes the filters (F7).
    fn passes(&self, entry: &Entry, how: &Visibility) -> bool {
        how.is_recalled()
            && self.filters.pass(entry, how)
            && (self.not_session.is_none()
                || how.session != self.not_session
                || entry.item.kind == Kind::Fact)
    }
}

impl Documents for VisibleItems<'_> {
    fn neighbours(&self, number: u64) -> [Option<u64>; 2] {
        self.entry(number).map_or([None; 2], |entry| [entry.before, entry.after])
    }

    fn time_ms(&self, number: u64) -> u64 {
        self.entry(number).map_or(0, |entry| entry.item.provenance.time_ms)
    }

    fn kind(&self, number: u64) -> Kind {
        self.entry(number).map_or(Kind::Episode, |entry| entry.item.kind)
    }

    fn salience(&self, number: u64) -> f32 {
        self.entry(number).map_or(0.0, |entry| entry.item.salience)
    }
}

impl Memory {
    /// Searches within the deadline (F5). Never fails: the answer reports errors (A7).
    pub async fn recall(&self, owner: OwnerId, request: RecallRequest) -> Recall {
        let started = Instant::now();
        let deadline = self.inner.parts.recall_deadline;
        let mut recall = match tokio::time::timeout(deadline, self.search(owner, request)).await {
            Ok(Ok(recall)) => recall,
            Ok(Err(error)) => nothing(Some(error.to_string())),
            Err(_) => nothing(Some(TOO_LATE.into())),
        };
        recall.took_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        recall
    }

    async fn search(&self, owner: OwnerId, mut request: RecallRequest) -> Result<Recall> {
        if request.scope == MemoryScope::None {
            return Ok(nothing(None));
        }
        let cut = request.query.floor_char_boundary(MAX_QUERY_BYTES);
        request.query.0.truncate(cut);
        let (vector, (words, related), opened) = tokio::join!(
            self.embed_query(&request.query),
            self.related_words(&request.query),
            self.open_to_read(owner)
        );
        let mut open = opened?;
        let query = RecallQuery { request, vector, words, related };
        for _ in 1..SEARCH_TRIES {
            match self.search_open(open, &query).await? {
                Some(answer) => return Ok(answer),
                // Another relayer wrote in between.
                None => open = self.open_to_read(owner).await?,
            }
        }
        self.search_open(open, &query).await?.ok_or_else(busy)
    }

    /// Searches an open owner; `None` if another relayer wrote meanwhile.
    async fn search_open(&self, open: OwnerReadGuard, query: &RecallQuery) -> Result<Option<Recall>> {
        let request = query.request.clone();
        let mut question = Question::parse(&request.query, &open.hasher, self.now_ms()).with_related(
            &query.words,
            &query.related,
            &open.hasher,
        );
        let (waiting, all) = (open.unembedded.len(), open.state.entries.len());
        let (mut mode, mut degraded) = (RecallMode::Full, None);
        match &query.vector {
            Ok(vector) => {
                question = question.with_vector(vector, self.inner.background);
                if waiting * 100 > all * UNEMBEDDED_PERCENT && waiting > MAX_PAGE {
                    degraded = Some(format!(
                        "{waiting} items wait for their embedding and are found by words alone"
                    ));
                }
            }
            Err(reason) => (mode, degraded) = (RecallMode::Lexical, Some(reason.clone())),
        }
        let view = match open.state.places.resolve(&request.place, request.scope) {
            Ok(view) => view,
            Err(unresolved) => return Ok(Some(nothing(Some(unresolved.reason().into())))),
        };
        // A search of a large owner takes milliseconds: too long for the reactor, which serves the storage meanwhile.
        let (reactor, deadline) = (Handle::current(), self.inner.parts.recall_deadline);
        let searching = tokio::task::spawn_blocking(move || {
            let sight = VisibleItems::new(&open, &view, &request.filters);
            let visible = sight.numbers();
            let search = ItemSearch { question: &question, visible: &visible, documents: &sight };
            let found =
                reactor.block_on(async { tokio::time::timeout(deadline, open.search(&search)).await });
            let found = found.map_err(|_| MemoryError::Unavailable(TOO_LATE.into()))??;
            Ok::<_, MemoryError>(found.map(|candidates| choose(&sight, &question, &candidates, &request)))
        });
        Ok(joined(searching.await)??.map(|answer| Recall { mode, degraded, ..answer }))
    }

    /// The words of a question, each with its related words; no related words after the time limit.
    async fn related_words(&self, query: &str) -> (Vec<String>, Vec<Vec<RelatedWord>>) {
        let words = Question::words_sought(query);
        let asked: Vec<&str> = words.iter().map(String::as_str).collect();
        let related = self.inner.parts.embedder.related(&asked);
        let related = tokio::time::timeout(self.embed_deadline(), related).await;
        (words, related.unwrap_or_default())
    }

    async fn embed_query(&self, query: &str) -> Result<Vec<f32>, String> {
        let query = Zeroizing::new(composed(query));
        let texts = [query.as_str()];
        let embedding = self.inner.parts.embedder.embed(EmbedRole::Query, &texts);
        match tokio::time::timeout(self.embed_deadline(), embedding).await {
            Ok(Ok(mut vectors)) if vectors.len() == 1 => Ok(vectors.swap_remove(0)),
            Ok(Ok(_)) => Err("the embedder gave no vector: searched by words alone".into()),
            Ok(Err(error)) => Err(format!("{error}: searched by words alone")),
            Err(_) => Err("the embedder did not answer in time: searched by words alone".into()),
        }
    }

    fn embed_deadline(&self) -> Duration {
        self.inner.parts.recall_deadline / EMBED_SHARE
    }
}

fn nothing(degraded: Option<String>) -> Recall {
    Recall { hits: Vec::new(), dropped: Vec::new(), mode: RecallMode::None, degraded, took_us: 0 }
}

/// Ranks candidates and selects those that fit.
fn choose(
    sight: &VisibleItems<'_>,
    question: &Question,
    candidates: &Candidates,
    request: &RecallRequest,
) -> Recall {
    let limit = request.limit.clamp(1, MAX_PAGE);
    let threshold = request.threshold.unwrap_or(DEFAULT_THRESHOLD);
    let weights = request.weights.unwrap_or_default();
    let ranked = rank(question, candidates, sight, &weights, limit * SPARE + MAX_DROPPED);
    let ranked = with_neighbours(sight, ranked, threshold);
    let mut recall = nothing(None);
    let mut budget = request.budget_tokens;
    let mut full = false;
    // Wordings of the hits, computed once each: that costs more than ranking.
    let mut said: Vec<Zeroizing<String>> = Vec::new();
    for found in ranked {
        let Some(entry) = sight.entry(found.number) else { continue };
        let reason = if found.score < threshold {
            Some(DropReason::Threshold)
        } else if recall.hits.len() >= limit {
            Some(DropReason::Limit)
        } else {
            said.push(Zeroizing::new(wording(&entry.item.text)));
            let (this, before) = said.split_last().expect("it was just pushed");
            before.iter().any(|hit| says_all_of(hit, this)).then_some(DropReason::Duplicate)
        };
        let reason = reason.or_else(|| {
            let cost = entry_tokens(entry);
            // Whole items are dropped, lowest first: the first that does not fit ends the list.
            full |= budget.is_some_and(|left| cost > left);
            budget = budget.map(|left| left.saturating_sub(cost));
            full.then_some(DropReason::Budget)
        });
        if reason.is_some() {
            said.truncate(recall.hits.len());
        }
        match reason {
            None => {
                let view = sight.owner.view_from(entry, Some(sight.view));
                recall.hits.push(Hit { view, score: found.score, similarity: found.similarity });
            }
            Some(reason) if recall.dropped.len() < MAX_DROPPED => {
                recall.dropped.push(DroppedMatch { id: entry.item.id, score: found.score, reason });
            }
            Some(_) => {}
        }
    }
    recall
}

/// Adds the graph neighbours of the best hits, at a share of their score.
fn with_neighbours(sight: &VisibleItems<'_>, mut ranked: Vec<RankedItem>, threshold: f32) -> Vec<RankedItem> {
    let known: HashSet<u64> =
        ranked.iter().filter(|found| found.score >= threshold).map(|found| found.number).collect();
    let mut more: HashMap<u64, f32> = HashMap::new();
    for seed in ranked.iter().filter(|found| found.score >= threshold).take(GRAPH_SEEDS) {
        let Some(entry) = sight.entry(seed.number) else { continue };
        for (_, edge) in sight.owner.state.edges_at(entry.item.id) {
            let other = if edge.from == entry.item.id { edge.to } else { edge.from };
            let Some(number) = sight.owner.state.number(other) else { continue };
            let wanted = sight.entry(number).is_some_and(|entry| !is_anchor(&entry.item));
            if wanted && !known.contains(&number) {
                let score = seed.score * GRAPH_SHARE * edge.confidence.clamp(0.0, 1.0);
                let best = more.entry(number).or_insert(score);
                *best = best.max(score);
            }
        }
    }
    for (number, score) in more {
        match ranked.iter_mut().find(|found| found.number == number) {
            Some(found) => found.score = found.score.max(score),
            None => ranked.push(RankedItem { number, score, similarity: None }),
        }
    }
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score).then(b.number.cmp(&a.number)));
    ranked
}

/// Whether a hit has all words of a later, shorter item; both are wordings. A longer item says more.
fn says_all_of(hit: &str, item: &str) -> bool {
    hit == item || (item.len() >= 16 && item.len() * 3 >= hit.len() && holds_words(hit, item))
}

fn entry_tokens(entry: &Entry) -> u32 {
    let text = crate::api::excerpt(&entry.item.text);
    // English has about four bytes a token; the source beside the text has about sixteen tokens.
    u32::try_from(text.len().div_ceil(4) + 16).unwrap_or(u32::MAX)
}
