//! One turn in plain mode, from the request to the answer.

mod memory;
mod open;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use baton_client::{Client, OwnMemory, SessionRoot, TurnEvent, TurnInput, TurnOutcome, TurnView};
use baton_memory::{
    api::{Place, RecallMode},
    ids::OwnerId,
};
use baton_proto::{
    ids::SessionId,
    record::{Message, Role},
    turn::Sampling,
};
use tokio::{runtime::Handle, sync::mpsc};

use super::{
    Chat, ChatAnswer, ChatError, ChatEvent, ChatRequest, Latency, MemoryReport, RecalledFact,
    head::ChatHead,
    memoryless::{self, DrivenSession, Memoryless},
    session_records::{Lease, Progress, RecordLog, SessionRecords},
};
use crate::{injection::Recollection, stacks::SecretUse};
use memory::facts_of;

/// Longest wait at the end of a request for the acknowledgement and the publication of the head. Unfinished
/// work stays in the sealed journal for the next request: no answer waits for a slow store.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(2);
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
        progress: &mut Progress,
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
        let session = self.client.session(id);
        let (outcome, earlier) = self.finish_pending(id, memory.clone(), &mut observer, progress).await?;
        let outcome = match outcome {
            Some(outcome) => outcome,
            None => self.new_turn(id, memory, &mut observer).await?,
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

    async fn new_turn(
        &self,
        id: SessionId,
        memory: Option<OwnMemory>,
        observer: &mut TurnObserver,
    ) -> Result<TurnOutcome, ChatError> {
        self.set_system(id).await?;
        let (session, input) = (self.client.session(id), self.input(memory));
        let turn = Box::pin(session.turn(input, |event| observer.take(event, self, true)));
        tokio::select! {
            biased;
            outcome = turn => Ok(outcome?),
            () = self.events.closed() => Err(ChatError::HungUp),
        }
    }

    /// Finishes the message of an earlier request that died. Returns its outcome if it is the requested one, otherwise
    /// its turn and its answer.
    async fn finish_pending(
        &self,
        id: SessionId,
        memory: Option<OwnMemory>,
        observer: &mut TurnObserver,
        progress: &mut Progress,
    ) -> Result<(Option<TurnOutcome>, Option<(u64, String)>), ChatError> {
        let session = self.client.session(id);
        let Some(pending) = session.pending_messages().await? else { return Ok((None, None)) };
        let resumes = same(&pending, &self.request.messages);
        if resumes && !self.has_settings_of_pending(id).await? {
            // A request with other settings replaces the one that failed.
            session.abandon().await?;
            return Ok((None, None));
        }
        let options = self.input(memory).route;
        let on_event = |event| observer.take(event, self, resumes);
        match Box::pin(session.resume(options, on_event)).await? {
            Some(resumed) if !resumes => {
                self.record(&resumed, progress, &pending).await;
                Ok((None, Some((resumed.seq, resumed.text))))
            }
            outcome => Ok((outcome, None)),
        }
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

    fn input(&self, memory: Option<OwnMemory>) -> TurnInput {
        let mut input = TurnInput::new(self.request.messages.clone()).with_route(|route| {
            route.model = self.request.model.clone();
            route.allow_echo = self.chat.inner.config.allow_echo;
            route.memory = memory;
            route.memory_tokens = self.request.memory_tokens;
        });
        if let Some(tokens) = self.request.max_tokens {
            input.max_output_tokens = tokens;
        }
        input.sampling = Sampling {
            temperature: self.request.temperature.unwrap_or(DEFAULT_TEMPERATURE),
            seed: self
                .request
                .seed
                .unwrap_or_else(|| u64::from_le_bytes(baton_keys::secret::random_bytes()) >> 11),
            ..Sampling::default()
        };
        input
    }

    /// Whether the unanswered turn was begun with the settings and the system text of this request.
    async fn has_settings_of_pending(&self, id: SessionId) -> Result<bool, ChatError> {
        let session = self.client.session(id);
        let pending = session.pending_settings().await?;
        let sets_seed = self.request.seed.is_some();
        let system = session.system().await?;
        Ok(pending.is_some_and(|pending| pending.serve(self.input(None).settings(), sets_seed))
            && self.request.system.as_ref().is_none_or(|wanted| *wanted == system))
    }

    async fn set_system(&self, id: SessionId) -> Result<(), ChatError> {
        if let Some(system) = &self.request.system {
            self.client.session(id).set_system(system.clone()).await?;
        }
        Ok(())
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

/// Whether two lists have the same messages.
fn same(left: &[Message], right: &[Message]) -> bool {
    let said = |message: &Message| (message.role, message.text.clone());
    left.iter().map(said).eq(right.iter().map(said))
}

#[cfg(test)]
mod tests {
    use baton_memory::model::MemoryScope;

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
