//! Work off the path of answers: extraction, embedding, Walrus, the backstop, summaries. What there is to do is in the
//! owner's log; the storage knows only when to look. Every step is durable by itself and may be repeated.

use std::{
    collections::HashMap,
    sync::{PoisonError, atomic::Ordering},
    time::Duration,
};

use baton_embed::EmbedRole;
use baton_keys::secret::random_bytes;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    api::Result,
    content::{self, Content, MAX_BATCH},
    events::{Event, Outcome, Pointer, StoredItem, StoredKey},
    ids::{ItemId, OwnerId, SessionId},
    limits::MAX_FACT_BYTES,
    model::{Author, Consent, Item, Kind, Layer, Provenance, Role},
    owner::{Job, Owner, Plan, embedded_text},
    search::Quantised,
    service::{Memory, OwnerWriter, millis},
    state::Entry,
    writing::{self, Candidate, Exchange, Spoken},
};

/// Turns extracted before the next step, so that one owner's backlog does not hold up its own embeddings.
const TURNS_PER_STEP: usize = 32;
/// Texts embedded at once.
const EMBED_BATCH: usize = 64;
/// Tries of a model on one turn; then the rules decide (F8).
pub(crate) const MODEL_TRIES: u32 = 5;
/// Owners worked on at once.
const OWNERS_AT_ONCE: usize = 4;
/// Owners taken from the storage at once.
const TAKE: usize = 32;
/// For how long taken work is this relayer's; after it, another one may take it.
const LEASE: Duration = Duration::from_secs(120);
/// How often the storage is asked for work that became due.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// First wait after a failure; doubles up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_secs(2);
/// Longest wait after a failure.
const LONGEST_WAIT: Duration = Duration::from_secs(600);
/// Skipped turns that the backstop looks at together.
const BACKSTOP_TURNS: usize = 8;
/// Messages that one summary covers.
const SUMMARY_MESSAGES: usize = 32;
/// Summary of messages in which nothing stands out.
const NOTHING_SAID: &str = "nothing in these messages stands out";
/// Messages of a session that are not summarised: they are recent.
const SUMMARY_KEEPS: usize = 64;

/// The owner of what belongs to no owner. No account key has this address.
const SYSTEM: OwnerId = OwnerId([0; 32]);
/// Name of the record that says which embedder there was last.
const EMBEDDER_RECORD: &str = "embedder";

/// A turn to extract, with its texts.
struct TurnWork {
    number: u64,
    user: String,
    assistant: String,
    at_ms: u64,
    persona: Option<String>,
    failures: u32,
}

/// What a step did.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// There was nothing to do.
    Idle,
    Done,
    Failed,
}

impl Memory {
    /// Works until shutdown on what is due, and closes idle owners. Running steps end first.
    pub async fn run_jobs(&self, shutdown: CancellationToken) {
        let mut running: JoinSet<()> = JoinSet::new();
        let memory = self.clone();
        running.spawn(async move {
            if let Err(error) = memory.reembed_if_changed().await {
                tracing::warn!(%error, "not all items could be given to the present embedder; the next start tries again");
            }
        });
        loop {
            self.close_idle();
            let free = OWNERS_AT_ONCE.saturating_sub(running.len());
            let due = if free == 0 { Vec::new() } else { self.take_due(free.min(TAKE)).await };
            let more = due.len() == free && free > 0;
            for owner in due {
                let memory = self.clone();
                running.spawn(async move { memory.work_on(owner).await });
            }
            if more {
                continue;
            }
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(ended) = running.join_next(), if !running.is_empty() => crate::service::propagate_panic(ended),
                () = self.inner.work.notified() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
        while let Some(ended) = running.join_next().await {
            crate::service::propagate_panic(ended);
        }
    }

    /// Makes work of all items whose vectors are another embedder's, if the embedder is not the one of the last start.
    /// They are found by words until they are embedded anew.
    ///
    /// # Errors
    /// What hinders reading or writing an owner; the next start tries again.
    pub async fn reembed_if_changed(&self) -> Result<()> {
        let embedder = self.inner.parts.embedder.id().as_bytes().to_vec();
        let last = self.get_record(SYSTEM, EMBEDDER_RECORD).await?;
        if last.as_ref() == Some(&embedder) {
            return Ok(());
        }
        let mut after = None;
        loop {
            let (owners, last) = self.inner.parts.vault.owners(after, TAKE).await?;
            for owner in owners.into_iter().filter(|owner| *owner != SYSTEM) {
                let now_ms = self.now_ms();
                self.write(owner, |owner| {
                    let job = if owner.unembedded.is_empty() { Job::Leave } else { Job::Due(now_ms) };
                    Ok((Plan { job, ..Plan::default() }, ()))
                })
                .await?;
            }
            if last.is_none() {
                break;
            }
            after = last;
        }
        self.put_record(SYSTEM, EMBEDDER_RECORD, Some(embedder)).await
    }

    /// Works on everything that is due now, one owner after the other; returns how many owners there were.
    pub async fn run_due(&self) -> usize {
        let due = self.take_due(TAKE).await;
        for owner in &due {
            self.work_on(*owner).await;
        }
        due.len()
    }

    async fn take_due(&self, limit: usize) -> Vec<OwnerId> {
        let now_ms = self.now_ms();
        let vault = &self.inner.parts.vault;
        let jobs = match vault.storage().take_due(now_ms, now_ms + millis(LEASE), limit).await {
            Ok(jobs) => jobs,
            Err(error) => {
                tracing::warn!(%error, "cannot ask for due work");
                return Vec::new();
            }
        };
        let mut owners = Vec::new();
        for job in jobs {
            match vault.resolve(job.owner).await {
                Ok(Some(owner)) => owners.push(owner),
                // Erased meanwhile.
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "cannot open an owner's keys for due work"),
            }
        }
        owners
    }

    async fn work_on(&self, owner: OwnerId) {
        let locked = || self.inner.working.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever works on it now sees the new work, too: its last step asks whether there is any left.
        if !locked().insert(owner) {
            return;
        }
        if let Err(error) = self.steps(owner).await {
            // The lease runs out, and the work is taken again.
            tracing::warn!(%error, "work on an owner's memory did not end");
        }
        locked().remove(&owner);
    }

    /// All steps of an owner until there is nothing left to do or something failed.
    async fn steps(&self, owner: OwnerId) -> Result<()> {
        loop {
            let steps = [
                self.extract_turns(owner).await?,
                self.embed_items(owner).await?,
                self.store_contents(owner).await?,
                self.backstop(owner).await?,
                self.summarise(owner).await?,
            ];
            let failed = steps.contains(&Step::Failed);
            if failed || steps.iter().all(|step| *step == Step::Idle) {
                self.hold(owner, async |owner| {
                    owner.note_review();
                    Ok(())
                })
                .await?;
                let wait = self.wait_after(owner, failed);
                let due_ms = self.now_ms() + wait.map_or(0, millis);
                let stores = self.inner.parts.contents.is_some();
                self.write(owner, |owner| {
                    let job = if owner.has_work(stores) { Job::Due(due_ms) } else { Job::Done };
                    Ok((Plan { job, ..Plan::default() }, ()))
                })
                .await?;
                return self.hold(owner, async |owner| owner.take_snapshot().await).await;
            }
        }
    }

    /// Failures of an owner's jobs in a row.
    pub(crate) fn failures_of(&self, owner: OwnerId) -> u32 {
        let failures = self.inner.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.get(&owner).copied().unwrap_or(0)
    }

    /// How long to wait before an owner's next try.
    fn wait_after(&self, owner: OwnerId, failed: bool) -> Option<Duration> {
        let mut failures = self.inner.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if !failed {
            failures.remove(&owner);
            return None;
        }
        let count = failures.entry(owner).or_insert(0);
        *count = count.saturating_add(1);
        Some(FIRST_WAIT.saturating_mul(1 << (*count - 1).min(16)).min(LONGEST_WAIT))
    }

    async fn extract_turns(&self, owner: OwnerId) -> Result<Step> {
        let turns = self.read(owner, |owner| Ok(owner.waiting_turns(TURNS_PER_STEP))).await?;
        if turns.is_empty() {
            return Ok(Step::Idle);
        }
        let mut step = Step::Done;
        for turn in turns {
            let exchange = Exchange {
                user: &turn.user,
                assistant: &turn.assistant,
                time_ms: turn.at_ms,
                persona: turn.persona.as_deref(),
            };
            let now_ms = self.now_ms();
            // Asked for each turn: an owner who changes his mind is heard at once.
            let writer = self.writer_of(owner).await?;
            match self.read_exchange(writer.as_ref(), &exchange, turn.failures).await {
                Ok(found) => {
                    self.write(owner, |owner| {
                        Ok((Self::plan_extracted(owner, turn.number, found.clone(), now_ms)?.quiet(), ()))
                    })
                    .await?;
                }
                Err(error) => {
                    tracing::info!(%error, tries = turn.failures + 1, "a model's extraction failed");
                    self.inner.counters.extraction_failures.fetch_add(1, Ordering::Relaxed);
                    let failed = Event::ExtractionFailed { turn: turn.number, at_ms: now_ms };
                    self.write(owner, |_| Ok((Plan::of(vec![failed.clone()]).quiet(), ()))).await?;
                    step = Step::Failed;
                }
            }
        }
        Ok(step)
    }

    /// What an exchange tells: the gate, and only behind it the extraction; by the model while it has tries left, by rules
    /// otherwise.
    async fn read_exchange(
        &self,
        writer: Option<&OwnerWriter>,
        exchange: &Exchange<'_>,
        failures: u32,
    ) -> Result<Vec<(Candidate, Consent)>, writing::ModelError> {
        let rules = writing::gate(exchange);
        let model = writer.and_then(|writer| writer.for_exchange(exchange));
        let writer = model.filter(|_| failures < MODEL_TRIES);
        if model.is_some() && failures >= MODEL_TRIES {
            self.inner.counters.extractions_abandoned.fetch_add(1, Ordering::Relaxed);
        }
        let ruled = writing::extract(exchange);
        let (verdict, candidates) = match writer {
            Some(writer) if writing::needs_judge(exchange) => {
                let verdict = writing::combine(rules, writer.judge(exchange).await?);
                let found =
                    if verdict.writes() { writer.extract(exchange).await?.candidates } else { Vec::new() };
                (verdict, writing::merge(ruled, found))
            }
            _ => (rules, ruled),
        };
        if !verdict.writes() {
            return Ok(Vec::new());
        }
        let consents = verdict.consents(&candidates);
        Ok(candidates.into_iter().zip(consents).collect())
    }

    async fn embed_items(&self, owner: OwnerId) -> Result<Step> {
        let texts = self
            .read(owner, |owner| {
                let waiting = owner.unembedded.iter().take(EMBED_BATCH);
                Ok(waiting
                    .filter_map(|number| {
                        Some((*number, embedded_text(&owner.state.entries.get(number)?.item)))
                    })
                    .collect::<Vec<_>>())
            })
            .await?;
        if texts.is_empty() {
            return Ok(Step::Idle);
        }
        let slices: Vec<&str> = texts.iter().map(|(_, text)| text.as_str()).collect();
        let vectors = match self.inner.parts.embedder.embed(EmbedRole::Document, &slices).await {
            Ok(vectors) if vectors.len() == texts.len() => vectors,
            Ok(_) | Err(_) => {
                self.inner.counters.embedding_failures.fetch_add(1, Ordering::Relaxed);
                tracing::info!(items = texts.len(), "the embedder failed; it will be asked again");
                return Ok(Step::Failed);
            }
        };
        let vectors: Vec<(u64, &str, Quantised)> = texts
            .iter()
            .zip(&vectors)
            .map(|((number, text), vector)| (*number, text.as_str(), Quantised::from_unit(vector)))
            .collect();
        self.write(owner, |owner| {
            // What was edited or deleted meanwhile has another text now.
            let same = |number: u64, text: &str| {
                owner.state.entries.get(&number).is_some_and(|entry| embedded_text(&entry.item) == text)
            };
            let vectors = vectors.iter().filter(|(number, text, _)| same(*number, text));
            let vectors = vectors.map(|(number, _, vector)| (*number, vector.clone())).collect();
            Ok((Plan { vectors, ..Plan::default() }, ()))
        })
        .await?;
        Ok(Step::Done)
    }

    async fn store_contents(&self, owner: OwnerId) -> Result<Step> {
        let Some(contents) = &self.inner.parts.contents else { return Ok(Step::Idle) };
        let sealed = self.read(owner, |owner| Ok(owner.unstored_contents())).await?;
        if sealed.is_empty() {
            return Ok(Step::Idle);
        }
        let named: Vec<(String, Vec<u8>)> =
            sealed.iter().map(|(_, _, bytes)| (hex::encode(random_bytes::<16>()), bytes.clone())).collect();
        let ids = match contents.put(&named).await {
            Ok(ids) => ids,
            Err(error) => {
                self.inner.counters.content_failures.fetch_add(1, Ordering::Relaxed);
                tracing::info!(%error, items = named.len(), "contents could not be stored on Walrus; they will be again");
                return Ok(Step::Failed);
            }
        };
        let stored: Vec<(ItemId, StoredKey, Pointer)> =
            sealed.iter().zip(ids).map(|((id, key, _), patch)| (*id, key.clone(), patch.into())).collect();
        self.write(owner, |owner| {
            // What was edited or deleted meanwhile has another key, or none: the blob stays noise.
            let same =
                |id: ItemId, key: &StoredKey| owner.state.entry(id).is_some_and(|entry| entry.key == *key);
            let items = stored.iter().filter(|(id, key, _)| same(*id, key));
            let items: Vec<_> = items.map(|(id, _, pointer)| (*id, pointer.clone())).collect();
            let events = if items.is_empty() { Vec::new() } else { vec![Event::Stored { items }] };
            Ok((Plan::of(events).quiet(), ()))
        })
        .await?;
        self.inner.counters.contents_stored.fetch_add(stored.len() as u64, Ordering::Relaxed);
        Ok(Step::Done)
    }

    /// Stores what waits for Walrus now.
    pub(crate) async fn store_now(&self, owner: OwnerId) -> Result<()> {
        while self.store_contents(owner).await? == Step::Done {}
        Ok(())
    }

    /// Looks again at turns that were skipped one by one: what is told over several messages is found only together.
    async fn backstop(&self, owner: OwnerId) -> Result<Step> {
        let Some((session, turns)) = self.read(owner, |owner| Ok(owner.skipped_turns())).await? else {
            return Ok(Step::Idle);
        };
        let up_to = turns.iter().map(|turn| turn.number).max().unwrap_or_default();
        let together = turns.iter().map(|turn| turn.user.as_str()).collect::<Vec<_>>().join("\n");
        let last = turns.last();
        let exchange = Exchange {
            user: &together,
            assistant: "",
            time_ms: last.map_or(0, |turn| turn.at_ms),
            persona: last.and_then(|turn| turn.persona.as_deref()),
        };
        // A model that fails here is not asked again: the turns were read once already.
        let writer = self.writer_of(owner).await?;
        let found = match writer.as_ref().and_then(|writer| writer.for_exchange(&exchange)) {
            Some(writer) => writer.extract(&exchange).await.unwrap_or_default().candidates,
            None => writing::extract(&exchange),
        };
        let consents = writing::gate(&exchange).consents(&found);
        let now_ms = self.now_ms();
        let first = turns.first().map_or(up_to, |turn| turn.number);
        self.write(owner, |owner| {
            let found = found.iter().cloned().zip(consents.iter().copied()).collect();
            Ok((owner.plan_backstop(session, first, up_to, found, now_ms).quiet(), ()))
        })
        .await?;
        Ok(Step::Done)
    }

    /// Summarises older messages of long sessions (C13); the messages stay.
    async fn summarise(&self, owner: OwnerId) -> Result<Step> {
        let Some((session, messages)) = self.read(owner, |owner| Ok(owner.unsummarised())).await? else {
            return Ok(Step::Idle);
        };
        let spoken: Vec<Spoken<'_>> = messages
            .iter()
            .map(|(_, role, text, time_ms)| Spoken { role: *role, text, time_ms: *time_ms })
            .collect();
        let writer = self.writer_of(owner).await?;
        let by_model = match writer.as_ref().and_then(|writer| writer.for_messages(&spoken)) {
            Some(writer) => writer.summarise(&spoken, MAX_FACT_BYTES).await.ok(),
            None => None,
        };
        let text = by_model
            .filter(|text| !text.trim().is_empty() && text.len() <= MAX_FACT_BYTES)
            .unwrap_or_else(|| writing::summarise(&spoken, MAX_FACT_BYTES));
        // Messages that say nothing are covered, too, or they would be looked at for ever.
        let text = if text.trim().is_empty() { NOTHING_SAID.to_owned() } else { text };
        let sources: Vec<ItemId> = messages.iter().map(|(id, ..)| *id).collect();
        self.write(owner, |owner| Ok((owner.plan_summary(session, &sources, &text).quiet(), ()))).await?;
        Ok(Step::Done)
    }
}

impl Owner {
    fn has_work(&self, stores: bool) -> bool {
        !self.state.waiting.is_empty()
            || !self.unembedded.is_empty()
            || (stores && self.state.entries.values().any(Entry::waits_for_store))
            || self.skipped_turns().is_some()
            || self.unsummarised().is_some()
    }

    fn turn_work(&self, number: u64) -> Option<TurnWork> {
        let turn = self.state.turns.get(&number)?;
        let text =
            |id: ItemId| self.state.entry(id).map(|entry| entry.item.text.0.clone()).unwrap_or_default();
        let persona = self.state.places.session(turn.session)?.persona;
        Some(TurnWork {
            number,
            user: text(turn.user),
            assistant: text(turn.assistant),
            at_ms: turn.at_ms,
            persona: self.state.places.persona_name(persona),
            failures: turn.failures,
        })
    }

    fn waiting_turns(&self, limit: usize) -> Vec<TurnWork> {
        self.state.waiting.iter().take(limit).filter_map(|number| self.turn_work(*number)).collect()
    }

    /// The next skipped turns of one session that the backstop has not looked at, once there are enough of them.
    fn skipped_turns(&self) -> Option<(SessionId, Vec<TurnWork>)> {
        if !self.is_review_due() {
            return None;
        }
        let mut by_session: HashMap<SessionId, Vec<u64>> = HashMap::new();
        for (number, turn) in &self.state.turns {
            let looked_at = self.state.backstopped.get(&turn.session).is_some_and(|up_to| number <= up_to);
            if !looked_at && turn.outcome == Some(Outcome::Skipped) && self.state.entry(turn.user).is_some() {
                let skipped = by_session.entry(turn.session).or_default();
                skipped.push(*number);
                if skipped.len() >= BACKSTOP_TURNS {
                    let works = skipped.iter().filter_map(|number| self.turn_work(*number)).collect();
                    return Some((turn.session, works));
                }
            }
        }
        None
    }

    /// Contents that are to be stored, sealed.
    fn unstored_contents(&self) -> Vec<(ItemId, StoredKey, Vec<u8>)> {
        let waiting = self.state.entries.values().filter(|entry| entry.waits_for_store());
        waiting
            .take(MAX_BATCH)
            .map(|entry| {
                let item = &entry.item;
                let content = Content {
                    kind: item.kind,
                    layer: item.layer,
                    author: item.provenance.author,
                    time_ms: item.provenance.time_ms,
                    text: item.text.clone(),
                };
                (item.id, entry.key.clone(), content::seal(self.id, item.id, &entry.key, &content))
            })
            .collect()
    }

    /// Older messages of a long session that no summary covers yet.
    #[expect(clippy::type_complexity, reason = "id, role, text and time of messages, for one caller")]
    fn unsummarised(&self) -> Option<(SessionId, Vec<(ItemId, Role, String, u64)>)> {
        if !self.is_review_due() {
            return None;
        }
        for (id, session) in &self.state.places.sessions {
            if session.items < (SUMMARY_KEEPS + SUMMARY_MESSAGES) as u64 {
                continue;
            }
            let covered = self
                .state
                .entries_of(*id)
                .filter(|(_, entry)| entry.item.kind == Kind::Summary)
                .flat_map(|(_, entry)| &entry.item.provenance.sources)
                .filter_map(|source| self.state.number(*source))
                .max();
            let messages: Vec<&Entry> = self
                .state
                .entries_of(*id)
                .filter(|(number, entry)| {
                    // What is off the record, or was archived, is in no summary.
                    entry.item.kind == Kind::Episode
                        && !entry.archived
                        && covered.is_none_or(|covered| *number > covered)
                })
                .map(|(_, entry)| entry)
                .collect();
            if messages.len() >= SUMMARY_KEEPS + SUMMARY_MESSAGES {
                let part = messages.into_iter().take(SUMMARY_MESSAGES).map(|entry| {
                    let item = &entry.item;
                    (item.id, item.role, item.text.0.clone(), item.provenance.time_ms)
                });
                return Some((*id, part.collect()));
            }
        }
        None
    }

    fn plan_summary(&self, session: SessionId, sources: &[ItemId], text: &str) -> Plan {
        let there: Vec<&Entry> = sources.iter().filter_map(|id| self.state.entry(*id)).collect();
        // A message that was deleted meanwhile may be in the text.
        if there.len() != sources.len() {
            return Plan::default();
        }
        let Some(place) = self.state.places.session(session) else { return Plan::default() };
        let time_ms = there.iter().map(|entry| entry.item.provenance.time_ms).max().unwrap_or_default();
        let item = Item {
            id: ItemId(random_bytes()),
            kind: Kind::Summary,
            layer: Layer::Episode,
            role: Role::Summary,
            text: text.into(),
            stable_key: None,
            project: place.project,
            persona: place.persona,
            provenance: Provenance {
                session: Some(session),
                turn: None,
                author: Author::Assistant,
                time_ms,
                sources: sources.to_vec(),
            },
            consent: Consent::Granted,
            intimate: there.iter().any(|entry| entry.item.intimate),
            salience: 0.4,
            valid_from_ms: time_ms,
            content_hash: self.content_hash(Author::Assistant, Kind::Summary, text),
        };
        Plan::of(vec![Event::Added(Box::new(StoredItem::pack(item, StoredKey::generate())))])
    }
}
