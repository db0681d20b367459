//! One turn in plain mode, from the request to the answer.

mod memory;
mod open;

use std::{sync::Arc, time::Duration};

use baton_client::{
    Client, OwnMemory, SessionHandle, SessionRoot, TurnEvent, TurnInput, TurnOutcome, TurnView,
};
use baton_memory::{api::Place, ids::OwnerId};
use baton_proto::{
    ids::{LinkHash, NodeId, SessionId},
    record::{FinishReason, Message, Role},
    turn::Sampling,
};
use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::mpsc};

use super::{
    Chat, ChatAnswer, ChatError, ChatEvent, ChatRequest, EarlierTurn, MemoryReport, RecalledFact,
    finish_name,
    head::ChatHead,
    memoryless::{self, DrivenSession},
    session_records::{Lease, Progress, RecordLog, RecordStore, SessionRecords},
};
use crate::stacks::SecretUse;

/// Longest wait at the end of a request for the acknowledgement and the publication of the head. Unfinished
/// work stays in the sealed journal for the next request: no answer waits for a slow store.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(2);
/// Lively, but still on the subject.
const DEFAULT_TEMPERATURE: f32 = 0.7;

/// Validates a request before anything is opened.
pub(super) fn check(request: &ChatRequest) -> Result<(), ChatError> {
    let bad = |text: &str| Err(ChatError::Bad(text.to_owned()));
    let mut said = request.messages.said.iter();
    if !said.any(|message| message.role == Role::User && !message.text.trim().is_empty()) {
        return bad("the messages end with what the user says");
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
    session: SessionHandle,
    /// Why memory is off for this turn; `None` while it works.
    lost: Option<&'a str>,
    owner: OwnerId,
    root: &'a SessionRoot,
    request: &'a ChatRequest,
    place: Place,
    events: &'a mpsc::Sender<ChatEvent>,
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
        let records = |store| SessionRecords { store: Arc::new(store), owner, session };
        let of_memory = records(RecordStore::Memory(self.inner.memory.clone()));
        let error = match Lease::take(of_memory.clone(), now_ms()).await {
            Ok(lease) => return Ok(SessionAccess { records: of_memory, lease, lost: None, driven: None }),
            Err(ChatError::Memory(error)) => error,
            Err(error) => return Err(error),
        };
        let Some(reason) = memoryless::reason(&error) else { return Err(ChatError::Memory(error)) };
        tracing::warn!(%error, "a turn goes on without memory");
        let busy = ChatError::Busy { retry_after_ms: 1_000 };
        let driven = self.inner.memoryless.take(owner, session).ok_or(busy)?;
        let records = records(RecordStore::Request(Mutex::default()));
        let lease = Lease::take(records.clone(), now_ms()).await?;
        Ok(SessionAccess { records, lease, lost: Some(reason), driven: Some(driven) })
    }

    pub(super) async fn drive(
        &self,
        owner: OwnerId,
        request: ChatRequest,
        events: &mpsc::Sender<ChatEvent>,
    ) -> Result<ChatAnswer, ChatError> {
        let _secret = SecretUse::begin();
        let root = request.session_key.clone().unwrap_or_else(SessionRoot::generate);
        let id = root.session_id();
        let SessionAccess { records, mut lease, lost, driven: _driven } =
            self.session_access(owner, id).await?;
        let client = self.inner.client.log_client(Arc::new(RecordLog::new(records, Handle::current())));
        let session = client.session(id);
        let context = TurnContext {
            chat: self,
            client: &client,
            session: session.clone(),
            lost: lost.as_deref(),
            owner,
            root: &root,
            request: &request,
            place: Place {
                session: Some(id.to_string()),
                project: request.project.clone(),
                persona: request.persona.clone(),
            },
            events,
            first_here: !lease.known,
        };
        let mut progress = lease.progress;
        let result = lease.while_held(Box::pin(context.run(&mut progress))).await;
        if result.is_ok()
            && let Err(error) = session.compact_log().await
        {
            tracing::warn!(%error, "a session's journal was not made shorter; the next request tries again");
        }
        let mut grace = Duration::ZERO;
        if matches!(result, Err(ChatError::HungUp)) {
            // The node is told, if it is reachable at once.
            grace = PUBLISH_TIMEOUT;
            if let Err(error) = session.abandon().await {
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
    async fn run(&self, progress: &mut Progress) -> Result<ChatAnswer, ChatError> {
        let journaled = self.open().await?;
        let last = self.session.last_turn().await?;
        let turns = last.as_ref().map_or(0, |last| last.turn.link.seq + 1);
        if self.first_here {
            // Earlier turns from elsewhere are not this relayer's to record, and were delivered there.
            (progress.recorded, progress.delivered) = (turns, turns);
        }
        let undelivered = journaled > progress.delivered && turns == journaled;
        self.check_head(last.as_ref(), undelivered)?;
        self.record_missing(progress, journaled).await?;
        progress.recorded = progress.recorded.max(turns);

        // A turn that was accepted when its request died is answered now, not repeated.
        if let (true, Some(last)) = (undelivered && self.is_requested(last.as_ref()), last) {
            progress.delivered = turns;
            return self.repeat_answer(last).await;
        }
        let (recalled, memory, report) = self.recall().await?;
        let facts: Vec<_> =
            recalled.into_iter().map(|hit| RecalledFact { found: hit.into(), used: None }).collect();
        self.emit_start(facts.clone(), report.clone());
        let mut model = None;
        let (outcome, earlier) = self.finish_pending(memory.clone(), &mut model, progress).await?;
        let outcome = match outcome {
            Some(outcome) => outcome,
            None => self.new_turn(memory, &mut model).await?,
        };
        // Both sides of the exchange are durable before the answer is sent; later steps are queued.
        let (recorded, published) = tokio::join!(
            self.record(&outcome, progress, &self.request.messages.said),
            self.session.wait_delivered(PUBLISH_TIMEOUT)
        );
        if !published? {
            tracing::debug!("a head or an acknowledgement waits for the session's next request");
        }
        progress.delivered = outcome.seq + 1;
        let used = outcome.memory.len();
        let facts = facts.into_iter().enumerate();
        let facts = facts.map(|(index, fact)| RecalledFact { used: Some(index < used), ..fact });
        let memory = MemoryReport { recorded: Some(recorded), ..report };
        let mut answer = self.answer(outcome.seq, outcome.link_hash, outcome.node, memory);
        (answer.content, answer.finish_reason) = (outcome.text, finish_name(outcome.finish));
        (answer.model, answer.receipt) = (model, Some(outcome.receipt.into()));
        (answer.recalled_facts, answer.earlier) = (facts.collect(), earlier);
        Ok(answer)
    }

    /// The answer of a turn, without its content.
    fn answer(&self, turn: u64, link: LinkHash, node: NodeId, memory: MemoryReport) -> ChatAnswer {
        let inner = &self.chat.inner;
        let session_id = self.root.session_id();
        ChatAnswer {
            content: String::new(),
            finish_reason: finish_name(FinishReason::None),
            session_id,
            session_key: self.root.clone(),
            head: ChatHead::issue(&inner.key, self.owner, session_id, (turn, link), (inner.now_ms)()),
            request_id: String::new(),
            turn,
            node: node.to_string(),
            model: None,
            recalled_facts: Vec::new(),
            memory,
            receipt: None,
            earlier: None,
        }
    }

    async fn new_turn(
        &self,
        memory: Option<OwnMemory>,
        model: &mut Option<String>,
    ) -> Result<TurnOutcome, ChatError> {
        if let Some(system) = &self.request.messages.system {
            self.session.set_system(system.clone()).await?;
        }
        let turn = Box::pin(self.session.turn(self.input(memory), |event| self.pass_on(event, model, true)));
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
        memory: Option<OwnMemory>,
        model: &mut Option<String>,
        progress: &mut Progress,
    ) -> Result<(Option<TurnOutcome>, Option<EarlierTurn>), ChatError> {
        let Some(pending) = self.session.pending_messages().await? else { return Ok((None, None)) };
        let resumes = same(&pending, &self.request.messages.said);
        if resumes && !self.has_settings_of_pending().await? {
            // A request with other settings replaces the one that failed.
            self.session.abandon().await?;
            return Ok((None, None));
        }
        let options = self.input(memory).route;
        let on_event = |event| self.pass_on(event, model, resumes);
        match Box::pin(self.session.resume(options, on_event)).await? {
            Some(resumed) if !resumes => {
                self.record(&resumed, progress, &pending).await;
                Ok((None, Some(EarlierTurn { turn: resumed.seq, content: resumed.text })))
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
            same(&said, &self.request.messages.said)
        })
    }

    /// The answer of a turn that was accepted before its request ended.
    async fn repeat_answer(&self, last: TurnView) -> Result<ChatAnswer, ChatError> {
        let (link, record) = (&last.turn.link, last.turn.record.as_ref());
        let content = record.and_then(|record| record.answer()).unwrap_or_default().to_owned();
        let _ = self.session.wait_delivered(PUBLISH_TIMEOUT).await?;
        let memory = MemoryReport { recorded: Some(true), ..MemoryReport::of_none(None) };
        self.emit_start(Vec::new(), memory.clone());
        self.emit(ChatEvent::Text(content.clone()));
        let degraded = Some("this turn was answered before; its memories were sent then".to_owned());
        let memory = MemoryReport { degraded, ..memory };
        let mut answer = self.answer(link.seq, link.link_hash(), link.author, memory);
        answer.finish_reason = record.map_or(answer.finish_reason, |record| finish_name(record.finish));
        (answer.content, answer.receipt) = (content, last.receipt.map(Into::into));
        Ok(answer)
    }

    fn input(&self, memory: Option<OwnMemory>) -> TurnInput {
        let request = self.request;
        let mut input = TurnInput::new(request.messages.said.clone()).with_route(|route| {
            route.model = request.model.clone();
            route.allow_echo = self.chat.inner.allow_echo;
            route.memory = memory;
            route.memory_tokens = self.memory_tokens();
        });
        input.max_output_tokens = request.max_tokens.unwrap_or(input.max_output_tokens);
        let random = || u64::from_le_bytes(baton_keys::secret::random_bytes()) >> 11;
        input.sampling = Sampling {
            temperature: request.temperature.unwrap_or(DEFAULT_TEMPERATURE),
            seed: request.seed.unwrap_or_else(random),
            ..Sampling::default()
        };
        input
    }

    /// Whether the unanswered turn was begun with the settings and the system text of this request.
    async fn has_settings_of_pending(&self) -> Result<bool, ChatError> {
        let pending = self.session.pending_settings().await?;
        let system = self.session.system().await?;
        let sets_seed = self.request.seed.is_some();
        Ok(pending.is_some_and(|pending| pending.serve(self.input(None).settings(), sets_seed))
            && self.request.messages.system.as_ref().is_none_or(|wanted| *wanted == system))
    }

    /// Sends an event to the reader; a full queue drops display text only.
    fn emit(&self, event: ChatEvent) {
        let _ = self.events.try_send(event);
    }

    fn emit_start(&self, recalled: Vec<RecalledFact>, memory: MemoryReport) {
        self.emit(ChatEvent::Started { session_id: self.root.session_id(), recalled, memory });
    }

    /// Passes an event of a turn on, and notes the model.
    fn pass_on(&self, event: TurnEvent, model: &mut Option<String>, shown: bool) {
        match event {
            TurnEvent::Attempt { model: name, .. } => *model = Some(name),
            TurnEvent::Text(text) if shown => self.emit(ChatEvent::Text(text)),
            TurnEvent::Restarted if shown => self.emit(ChatEvent::Restarted),
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
    use serde_json::{Value, json};

    use super::*;

    fn check_of(messages: &[(&str, &str)], more: Value) -> Result<(), ChatError> {
        let messages = messages.iter().map(|(role, content)| json!({ "role": role, "content": content }));
        let mut body = json!({ "messages": messages.collect::<Vec<_>>() });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        check(&serde_json::from_value(body).unwrap())
    }

    #[test]
    fn a_request_needs_words_of_the_user_and_the_key_of_its_session() {
        let user = [("user", "hello")];
        let (root, other) = (SessionRoot::generate(), SessionRoot::generate());
        let key = |root: &SessionRoot| hex::encode(root.expose());
        let id = root.session_id().to_string();
        assert!(check_of(&user, json!({})).is_ok());
        assert!(check_of(&user, json!({ "session_id": id, "session_key": key(&root) })).is_ok());
        for (messages, more) in [
            (&[][..], json!({})),
            (&[("user", "  ")], json!({})),
            (&[("tool", "hello")], json!({})),
            (&[("user", "hello"), ("assistant", "hi")], json!({})),
            (&user, json!({ "session_id": id })),
            (&user, json!({ "head": "x" })),
            (&user, json!({ "session_id": id, "session_key": key(&other) })),
        ] {
            let checked = check_of(messages, more.clone());
            assert!(matches!(checked, Err(ChatError::Bad(_))), "{messages:?} {more}");
        }
    }
}
