//! One turn in plain mode, from the request to the answer.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use baton_client::{
    Client, ClientError, NewSession, OwnMemory, ResumeOptions, SessionRoot, TurnEvent, TurnInput,
    TurnOutcome, TurnView,
};
use baton_memory::{
    api::{Filters, Hit, Place, Recall, RecallMode, RecallRequest, TurnRecord},
    ids::OwnerId,
    model::{MemoryScope, Text},
};
use baton_proto::{
    ids::SessionId,
    record::{Message, Role},
    turn::Sampling,
};
use tokio::{runtime::Handle, sync::mpsc};

use super::{
    Chat, ChatAnswer, ChatError, ChatEvent, ChatRequest, Latency, MemoryReport, RecalledFact,
    head::{ChatHead, HeadPosition},
    memoryless::{self, DrivenSession, Memoryless},
    session_records::{Lease, RecordLog, SessionRecords},
};
use crate::{
    injection::{Recollection, items_of},
    stacks::SecretUse,
};

/// Longest wait at the end of a request for the acknowledgement and the publication of the head. Unfinished
/// work stays in the sealed journal for the next request: no answer waits for a slow store.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(2);
/// Text of the session's latest turns that is surely in the window: it is not recalled again.
const WINDOW_BYTES: usize = 8 * 1024;
/// Lively, but still on the subject.
const DEFAULT_TEMPERATURE: f32 = 0.7;

/// Validates a request before anything is opened.
pub(super) fn check(request: &ChatRequest) -> Result<(), ChatError> {
    let bad = |text: &str| Err(ChatError::Bad(text.to_owned()));
    if !request.messages.iter().any(|message| message.role == Role::User && !message.text.trim().is_empty()) {
        return bad("the messages end with what the user says");
    }
    if request.messages.iter().any(|message| matches!(message.role, Role::Assistant | Role::System)) {
        return bad("only messages of the user and of tools begin a turn");
    }
    match (&request.session_key, request.session_id) {
        (None, Some(_)) => bad("the session's key is needed: the relayer keeps none"),
        (None, None) if request.head.is_some() => bad("a head belongs to a session, whose key is missing"),
        (Some(key), Some(id)) if key.session_id() != id => bad("the session's id is not of this key"),
        _ => Ok(()),
    }
}

/// The context of a turn.
struct TurnContext<'a> {
    chat: &'a Chat,
    client: &'a Client,
    /// The owner's memory, or its replacement while it is unreadable.
    memory: Arc<dyn Recollection>,
    /// Why memory is off for this turn; `None` while it works.
    lost: Option<&'a str>,
    owner: OwnerId,
    request: &'a ChatRequest,
    place: Place,
    events: &'a mpsc::Sender<ChatEvent>,
    began: Instant,
    /// Whether no request of this session ended here before.
    first_here: bool,
}

/// The session of a turn, once it is open.
struct OpenSession {
    id: SessionId,
    /// Turns in this relayer's own journal.
    journaled: u64,
}

/// The basis of a turn: the session's records, and the right to drive it.
struct SessionAccess {
    records: SessionRecords,
    lease: Lease,
    /// Why memory is off for the turn; `None` while it works.
    lost: Option<String>,
    /// The right to drive the session while memory cannot grant a lease.
    driven: Option<DrivenSession>,
}

impl Chat {
    /// The owner's records and a lease in them; if the owner's memory is unreadable, the replacement (A7).
    async fn session_access(&self, owner: OwnerId, session: SessionId) -> Result<SessionAccess, ChatError> {
        let now_ms = || self.inner.now_ms.clone();
        let records = SessionRecords { memory: self.inner.memory.clone(), owner, session };
        let error = match Lease::take(records.clone(), now_ms()).await {
            Ok(lease) => return Ok(SessionAccess { records, lease, lost: None, driven: None }),
            Err(ChatError::Memory(error)) => error,
            Err(error) => return Err(error),
        };
        let Some(reason) = memoryless::reason(&error) else { return Err(ChatError::Memory(error)) };
        tracing::warn!(%error, "a turn goes on without memory");
        let busy = ChatError::Busy { retry_after_ms: 1_000 };
        let driven = self.inner.memoryless.take(owner, session).ok_or(busy)?;
        let records = SessionRecords { memory: Arc::new(Memoryless::new(reason.clone())), owner, session };
        let lease = Lease::take(records.clone(), now_ms()).await?;
        Ok(SessionAccess { records, lease, lost: Some(reason), driven: Some(driven) })
    }

    pub(super) async fn drive(
        &self,
        owner: OwnerId,
        request: ChatRequest,
        events: &mpsc::Sender<ChatEvent>,
    ) -> Result<ChatAnswer, ChatError> {
        let began = Instant::now();
        let _secret = SecretUse::begin();
        let root = request.session_key.clone().unwrap_or_else(SessionRoot::generate);
        let session = root.session_id();
        let SessionAccess { records, mut lease, lost, driven: _driven } =
            self.session_access(owner, session).await?;
        let client =
            self.inner.client.log_client(Arc::new(RecordLog::new(records.clone(), Handle::current())));
        let place = Place {
            session: Some(session.to_string()),
            project: request.project.clone(),
            persona: request.persona.clone(),
        };
        let context = TurnContext {
            chat: self,
            client: &client,
            memory: records.memory,
            lost: lost.as_deref(),
            owner,
            request: &request,
            place,
            events,
            began,
            first_here: !lease.known,
        };
        let (mut progress, known) = (lease.progress, lease.known);
        let result = lease.while_held(Box::pin(context.run(&root, &mut progress, known))).await;
        if result.is_ok()
            && let Err(error) = client.session(session).compact_log().await
        {
            tracing::warn!(%error, "a session's journal was not made shorter; the next request tries again");
        }
        let mut grace = Duration::ZERO;
        if matches!(result, Err(ChatError::HungUp)) {
            // The node is told, if it is reachable at once.
            grace = PUBLISH_TIMEOUT;
            if let Err(error) = client.session(session).abandon().await {
                tracing::warn!(%error, "a turn that nobody waits for could not be given up; the next request finishes it");
            }
        }
        // From here on, no session key is in memory: the keys end with this client.
        client.shutdown(grace).await;
        lease.progress = progress;
        if let Err(error) = lease.release().await {
            tracing::warn!(%error, "a session's lease was not given back; it runs out by itself");
        }
        result
    }
}

impl TurnContext<'_> {
    async fn run(
        &self,
        root: &SessionRoot,
        progress: &mut super::session_records::Progress,
        known: bool,
    ) -> Result<ChatAnswer, ChatError> {
        let opened = self.open(root).await?;
        let id = opened.id;
        let last = self.client.session(id).last_turn().await?;
        let turns = last.as_ref().map_or(0, |last| last.turn.link.seq + 1);
        if !known {
            // Earlier turns from elsewhere are not this relayer's to record, and were delivered there.
            (progress.recorded, progress.delivered) = (turns, turns);
        }
        let undelivered = opened.journaled > progress.delivered && turns == opened.journaled;
        self.check_head(id, last.as_ref(), undelivered).await?;
        self.record_missing(id, progress, opened.journaled).await?;
        progress.recorded = progress.recorded.max(turns);

        // A turn that was accepted when its request died is answered now, not repeated.
        if let (true, Some(last)) = (undelivered && self.is_requested(last.as_ref()), last) {
            progress.delivered = turns;
            return self.repeat_answer(root, last).await;
        }
        let (recalled, report, recall) = self.recall(id).await?;
        let memory = self.memory_of(&recalled);
        let (facts, recall_time) = (facts_of(&recalled), recall);
        self.emit(ChatEvent::Started { session_id: id, recalled: facts.clone(), memory: report.clone() });
        let mut observer = TurnObserver::default();
        let mut earlier = None;
        let session = self.client.session(id);
        let pending = session.pending_messages().await?;
        let resumes = pending.as_ref().is_some_and(|messages| same(messages, &self.request.messages));
        let mut outcome = None;
        if pending.is_some() {
            let options = ResumeOptions { memory: memory.clone(), ..self.options() };
            let on_event = |event| observer.take(event, self, resumes);
            let resumed = Box::pin(session.resume(options, on_event)).await?;
            match resumed {
                Some(resumed) if resumes => outcome = Some(resumed),
                Some(resumed) => {
                    self.record(&resumed, progress, pending.as_deref().unwrap_or_default()).await;
                    earlier = Some((resumed.seq, resumed.text));
                }
                None => {}
            }
        }
        let outcome = match outcome {
            Some(outcome) => outcome,
            None => {
                self.set_system(id).await?;
                let input = TurnInput { memory, ..self.input() };
                let on_event = |event| observer.take(event, self, true);
                let turn = Box::pin(session.turn(input, on_event));
                tokio::select! {
                    biased;
                    outcome = turn => outcome?,
                    () = self.events.closed() => return Err(ChatError::HungUp),
                }
            }
        };
        // Both sides of the exchange are durable before the answer is sent; later steps are queued.
        let (recorded, published) = tokio::join!(
            self.record(&outcome, progress, &self.request.messages),
            session.wait_delivered(PUBLISH_TIMEOUT)
        );
        if !published? {
            tracing::debug!("a head or an acknowledgement waits for the session's next request");
        }
        progress.delivered = outcome.seq + 1;
        let latency =
            Latency { recall: recall_time, first_token: observer.first_token, total: self.began.elapsed() };
        let used = outcome.memory.len();
        let facts = facts.into_iter().enumerate();
        Ok(ChatAnswer {
            content: outcome.text.clone(),
            finish: outcome.finish,
            session_id: id,
            session_key: root.clone(),
            head: self.head(id, (outcome.seq, outcome.link_hash)),
            seq: outcome.seq,
            node: outcome.node,
            model: observer.model,
            receipt: Some(outcome.receipt),
            recalled: facts.map(|(index, fact)| RecalledFact { used: Some(index < used), ..fact }).collect(),
            memory: MemoryReport { recorded: Some(recorded), ..report },
            earlier,
            latency,
        })
    }

    /// Opens the session from this relayer's journal, updated from the head index. Otherwise it uses the
    /// index and the store by the root alone, or starts a new session.
    async fn open(&self, root: &SessionRoot) -> Result<OpenSession, ChatError> {
        let client = self.client;
        let found = match client.open_log(root).await {
            // The store has all accepted turns; only an unanswered message is lost with the journal.
            Err(ClientError::JournalDamaged { .. }) => {
                tracing::warn!("a session's journal is damaged; the session is taken from the store");
                None
            }
            other => other?,
        };
        if let Some(id) = found {
            let journaled = client.session(id).info().await?.turns;
            match client.session(id).check_head().await {
                Err(ClientError::Behind { .. }) => {
                    // Another turn has replaced the unfinished one.
                    client.session(id).abandon().await?;
                    client.recover(root).await?;
                }
                Err(
                    error @ (ClientError::Deleted
                    | ClientError::Protocol(baton_proto::ErrorCode::ForkDetected)),
                ) => {
                    return Err(error.into());
                }
                // An unreachable index, or one with fewer turns, costs nothing else.
                Err(error) => tracing::debug!(%error, "the head index does not confirm a session"),
                Ok(_) => {}
            }
            return Ok(OpenSession { id, journaled });
        }
        if self.request.session_key.is_some() {
            match client.recover(root).await {
                Ok(id) => return Ok(OpenSession { id, journaled: 0 }),
                Err(ClientError::HeadMissing) if self.request.head.is_some() => {
                    return Err(ChatError::Rollback("nobody here knows the session that the head is of"));
                }
                Err(ClientError::HeadMissing) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let system = self.request.system.clone().unwrap_or_default();
        let new = NewSession { system, root: Some(root.clone()), ..NewSession::default() };
        Ok(OpenSession { id: client.new_session(new).await?, journaled: 0 })
    }

    /// Compares the user's head with the known turns. One turn that was never delivered to the user is not a
    /// rollback.
    async fn check_head(
        &self,
        id: SessionId,
        last: Option<&TurnView>,
        undelivered: bool,
    ) -> Result<(), ChatError> {
        let Some(text) = &self.request.head else { return Ok(()) };
        let head = ChatHead::read(text, self.owner, id)
            .ok_or_else(|| ChatError::Bad("the head is not one of this session and owner".to_owned()))?;
        let known = last.map(|last| last.turn.link.seq);
        let named = match head.position(known) {
            HeadPosition::Ahead => {
                return Err(ChatError::Rollback(
                    "the head names a later turn than the store and the index show",
                ));
            }
            HeadPosition::Last => last.map(|last| last.turn.link.link_hash()),
            HeadPosition::Stale(1) if undelivered => last.map(|last| last.turn.link.prev_link),
            HeadPosition::Stale(_) => {
                return Err(ChatError::Rollback(
                    "the session went on since; leave the head out to go on from where it is",
                ));
            }
        };
        if named == Some(head.link_hash) { Ok(()) } else { Err(ChatError::Fork) }
    }

    /// Records turns that were accepted when their request, or memory, died.
    async fn record_missing(
        &self,
        id: SessionId,
        progress: &mut super::session_records::Progress,
        journaled: u64,
    ) -> Result<(), ChatError> {
        if progress.recorded >= journaled {
            return Ok(());
        }
        for view in self.client.session(id).history().await? {
            let (seq, Some(record)) = (view.turn.link.seq, &view.turn.record) else { continue };
            if seq < progress.recorded || seq >= journaled {
                continue;
            }
            let answer = record.answer().unwrap_or_default();
            if !self.record_texts(seq, &record.messages, answer, view.turn.link.time_ms).await {
                // Memory is still unavailable; the next request tries again.
                return Ok(());
            }
            progress.recorded = seq + 1;
        }
        Ok(())
    }

    /// Whether the last turn is the requested one.
    fn is_requested(&self, last: Option<&TurnView>) -> bool {
        let record = last.and_then(|last| last.turn.record.as_ref());
        record.is_some_and(|record| {
            let said: Vec<Message> =
                record.messages.iter().filter(|message| message.role != Role::Assistant).cloned().collect();
            same(&said, &self.request.messages)
        })
    }

    /// The answer of a turn that was accepted before its request ended.
    async fn repeat_answer(&self, root: &SessionRoot, last: TurnView) -> Result<ChatAnswer, ChatError> {
        let id = root.session_id();
        let link = &last.turn.link;
        let record = last.turn.record.as_ref();
        let content = record.and_then(|record| record.answer()).unwrap_or_default().to_owned();
        let _ = self.client.session(id).wait_delivered(PUBLISH_TIMEOUT).await?;
        let memory = MemoryReport {
            mode: RecallMode::None,
            degraded: None,
            dropped: Vec::new(),
            recorded: Some(true),
        };
        self.emit(ChatEvent::Started { session_id: id, recalled: Vec::new(), memory: memory.clone() });
        self.emit(ChatEvent::Text(content.clone()));
        Ok(ChatAnswer {
            content,
            finish: record.map_or(baton_proto::record::FinishReason::None, |record| record.finish),
            session_id: id,
            session_key: root.clone(),
            head: self.head(id, (link.seq, link.link_hash())),
            seq: link.seq,
            node: link.author,
            model: None,
            receipt: last.receipt,
            recalled: Vec::new(),
            memory: MemoryReport {
                degraded: Some("this turn was answered before; its memories were sent then".to_owned()),
                ..memory
            },
            earlier: None,
            latency: Latency { total: self.began.elapsed(), ..Latency::default() },
        })
    }

    /// Recalls memory for the turn, within the envelope's limits.
    async fn recall(&self, id: SessionId) -> Result<(Vec<Hit>, MemoryReport, Duration), ChatError> {
        let asked = Instant::now();
        let request = self.request;
        let disabled =
            request.scope == MemoryScope::None || request.recall_items == 0 || request.memory_tokens == 0;
        if disabled || self.lost.is_some() {
            let degraded = self.lost.map(str::to_owned);
            let report =
                MemoryReport { mode: RecallMode::None, degraded, dropped: Vec::new(), recorded: None };
            return Ok((Vec::new(), report, asked.elapsed()));
        }
        if self.first_here
            && let Err(error) = self.memory.begin_session(self.owner, self.place.clone()).await
        {
            // A session of another project than the request's sees nothing; the turn continues.
            tracing::warn!(%error, "a session was not made known to memory");
        }
        let window_from = self.window_from(id).await?;
        let said = request.messages.iter().filter(|message| message.role == Role::User);
        let query = said.map(|message| message.text.as_str()).collect::<Vec<_>>().join("\n");
        let session = id.to_string();
        // A short session is whole in its window; an older part of a long one may be relevant.
        let filters = Filters {
            not_session: (window_from == 0).then(|| session.clone()),
            without_intimate: request.without_intimate,
            ..Filters::default()
        };
        let Recall { hits, dropped, mode, degraded, .. } = self
            .memory
            .recall(
                self.owner,
                RecallRequest {
                    place: self.place.clone(),
                    scope: request.scope,
                    query: Text(query),
                    limit: request.recall_items,
                    threshold: None,
                    budget_tokens: Some(request.memory_tokens),
                    filters,
                    weights: None,
                },
            )
            .await;
        let in_window = |hit: &Hit| {
            hit.view.session.as_deref() == Some(session.as_str())
                && hit.view.turn.is_some_and(|turn| turn >= window_from)
        };
        let (hits, _) = items_of(hits.into_iter().filter(|hit| !in_window(hit)).collect());
        Ok((hits, MemoryReport { mode, degraded, dropped, recorded: None }, asked.elapsed()))
    }

    /// The first turn that is surely in the session's own window.
    async fn window_from(&self, id: SessionId) -> Result<u64, ChatError> {
        let mut left = WINDOW_BYTES;
        let mut from = self.client.session(id).info().await?.turns;
        for view in self.client.session(id).history().await?.iter().rev() {
            let messages = view.turn.record.iter().flat_map(|record| &record.messages);
            let bytes: usize = messages.map(|message| message.text.len()).sum();
            if bytes > left {
                break;
            }
            left -= bytes;
            from = view.turn.link.seq;
        }
        Ok(from)
    }

    fn memory_of(&self, hits: &[Hit]) -> Option<OwnMemory> {
        let (_, items) = items_of(hits.to_vec());
        (!items.is_empty()).then(|| OwnMemory { signer: self.chat.inner.key.clone(), items })
    }

    fn input(&self) -> TurnInput {
        let mut input = TurnInput::new(self.request.messages.clone());
        input.model.clone_from(&self.request.model);
        input.allow_echo = self.chat.inner.config.allow_echo;
        input.memory_tokens = self.request.memory_tokens;
        if let Some(tokens) = self.request.max_tokens {
            input.max_output_tokens = tokens;
        }
        input.sampling = Sampling {
            temperature: self.request.temperature.unwrap_or(DEFAULT_TEMPERATURE),
            seed: self.request.seed.unwrap_or_else(|| u64::from_le_bytes(baton_keys::secret::random_bytes())),
            ..Sampling::default()
        };
        input
    }

    fn options(&self) -> ResumeOptions {
        ResumeOptions::of(&self.input())
    }

    async fn set_system(&self, id: SessionId) -> Result<(), ChatError> {
        if let Some(system) = &self.request.system {
            self.client.session(id).set_system(system.clone()).await?;
        }
        Ok(())
    }

    /// Records a turn; returns whether it succeeded.
    async fn record(
        &self,
        outcome: &TurnOutcome,
        progress: &mut super::session_records::Progress,
        messages: &[Message],
    ) -> bool {
        let time_ms = (self.chat.inner.now_ms)();
        let recorded = self.record_texts(outcome.seq, messages, &outcome.text, time_ms).await;
        // Only in order: the next request first records any missing turns before it.
        if recorded && progress.recorded == outcome.seq {
            progress.recorded = outcome.seq + 1;
        }
        recorded
    }

    async fn record_texts(&self, turn: u64, messages: &[Message], answer: &str, time_ms: u64) -> bool {
        let said = messages.iter().filter(|message| message.role == Role::User);
        let user = said.map(|message| message.text.as_str()).collect::<Vec<_>>().join("\n");
        let record = TurnRecord {
            place: self.place.clone(),
            turn,
            user: Text(user),
            assistant: Text(answer.to_owned()),
            time_ms,
        };
        let recorded = self.memory.record_turn(self.owner, record).await;
        recorded.inspect_err(|error| tracing::warn!(%error, "a turn was not recorded yet")).is_ok()
    }

    fn head(&self, id: SessionId, last: (u64, baton_proto::ids::LinkHash)) -> String {
        let inner = &self.chat.inner;
        ChatHead::issue(&inner.key, self.owner, id, last, (inner.now_ms)())
    }

    /// Sends an event to the reader; a full queue drops display text only.
    fn emit(&self, event: ChatEvent) {
        let _ = self.events.try_send(event);
    }
}

/// Passes the events of a turn on, and notes data from them.
#[derive(Default)]
struct TurnObserver {
    model: Option<String>,
    first_token: Option<Duration>,
}

impl TurnObserver {
    fn take(&mut self, event: TurnEvent, context: &TurnContext<'_>, shown: bool) {
        match event {
            TurnEvent::Attempt { model, .. } => self.model = Some(model),
            TurnEvent::Text(text) if shown => {
                self.first_token.get_or_insert_with(|| context.began.elapsed());
                context.emit(ChatEvent::Text(text));
            }
            TurnEvent::Restarted if shown => context.emit(ChatEvent::Restarted),
            _ => {}
        }
    }
}

fn facts_of(hits: &[Hit]) -> Vec<RecalledFact> {
    hits.iter().map(|hit| RecalledFact { hit: hit.clone(), used: None }).collect()
}

/// Whether two lists have the same messages.
fn same(left: &[Message], right: &[Message]) -> bool {
    let said = |message: &Message| (message.role, message.text.clone());
    left.iter().map(said).eq(right.iter().map(said))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(messages: Vec<Message>) -> ChatRequest {
        ChatRequest {
            messages,
            system: None,
            session_id: None,
            session_key: None,
            head: None,
            project: None,
            persona: None,
            scope: MemoryScope::NeutralAndRelationship,
            without_intimate: false,
            model: None,
            max_tokens: None,
            temperature: None,
            seed: None,
            recall_items: 6,
            memory_tokens: 512,
        }
    }

    #[test]
    fn a_request_needs_words_of_the_user_and_the_key_of_its_session() {
        let user = || vec![Message::new(Role::User, "hello")];
        let (root, other) = (SessionRoot::generate(), SessionRoot::generate());
        assert!(check(&request(user())).is_ok());
        let id = Some(root.session_id());
        let cases = [
            request(Vec::new()),
            request(vec![Message::new(Role::User, "  ")]),
            request(vec![Message::new(Role::Tool, "hello")]),
            request(vec![Message::new(Role::User, "hello"), Message::new(Role::Assistant, "hi")]),
            ChatRequest { session_id: id, ..request(user()) },
            ChatRequest { head: Some("x".to_owned()), ..request(user()) },
            ChatRequest { session_id: id, session_key: Some(other), ..request(user()) },
        ];
        for case in cases {
            assert!(matches!(check(&case), Err(ChatError::Bad(_))), "{case:?}");
        }
        assert!(check(&ChatRequest { session_id: id, session_key: Some(root), ..request(user()) }).is_ok());
    }
}
