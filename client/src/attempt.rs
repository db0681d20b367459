//! One attempt at a turn: sends it, opens the reply and rebuilds the turn. Ends with an accepted turn or a
//! failure with the known facts; it never decides the next step.

pub(crate) mod checks;
pub(crate) mod delivery;
pub(crate) mod embed;
pub(crate) mod liveness;
pub(crate) mod opening;
mod pace;
pub(crate) mod request;
pub(crate) mod resolve;
mod unnoted;

use baton_mesh::{FrameError, TurnStream};
use baton_proto::{
    ErrorCode, SignedBytes, SignedObject,
    commit::{AcceptedTurn, ChainPosition, ExpectedTurn, accept_turn},
    ids::RunningHash,
    limits::{MAX_MEMORY_ITEM_BYTES, MAX_MEMORY_ITEMS, MAX_MESSAGE_BYTES, MAX_STOP_BYTES},
    memory::MemoryItem,
    node_record::storage_units,
    receipt::{EngineKind, ProgressNote, running_hash_start, running_hash_step},
    record::FinishReason,
    turn::TurnAuth,
    wire::{ClientFrame, Committed, NodeFrame, RelayRecall, ReplyEvent, StoreState, TurnStatus},
};
use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::{
    attempt::request::PreparedAttempt,
    event::{MemoryHint, Relayer, TurnEvent},
    identities::SessionMesh,
    logprobs::Reports,
    network::{
        exchange::{self, ExchangeError},
        nodes::Directory,
        quota::QuotaHolder,
        reputation::SpeedSample,
        retry::{AnswerPrefix, AttemptFailure, AttemptStatus, PartialAnswer},
    },
    session::{
        open_session::Session,
        state::{AttemptChange, Entry, OrderTerms, PendingTurn, State},
    },
    timeouts::Timeouts,
};

use pace::Pace;
pub(crate) use pace::first_token_wait;
use resolve::{SHORT_STATUS_WAIT, STATUS_WAIT};
use unnoted::UnnotedText;

/// Most queue reports of a node in one reply. Each restarts the wait for the next event; a queue holds tens
/// of turns, and its positions change as often.
const MAX_WAITING_EVENTS: u32 = 1024;
/// Factor for the patience with a node that no other could replace: asking it again costs it the prompt
/// again.
const LONE_PATIENCE: u32 = 5;

/// Receives the events of a turn.
pub(crate) type Events<'a> = dyn FnMut(TurnEvent) + Send + 'a;

/// A reply while it arrives.
struct Reply {
    text: Zeroizing<String>,
    /// Ids of its tokens, including those of another node.
    ids: Zeroizing<Vec<u32>>,
    /// Number of tokens that it began with.
    begun: usize,
    /// Arrival of the last tokens, and duration of the latest ones.
    pace: Pace,
    /// Text since the last note in the journal.
    unnoted: UnnotedText,
    /// Tokens whose ids were reported.
    tokens: u32,
    /// Most reported tokens, as signed.
    max_tokens: u32,
    /// The last progress note.
    note: Option<SignedObject<ProgressNote>>,
    /// Queue reports so far.
    waited: u32,
    /// Since when the node's queue ahead of the turn is empty; none while the node reports turns ahead.
    turn_came: Option<Instant>,
    /// When the node last said, asked, that it still works on the turn.
    runs_at: Option<Instant>,
    /// Running hash after each token; the first is the start.
    hashes: Vec<RunningHash>,
    memory: Vec<MemoryItem>,
    /// Token probabilities, if requested.
    reports: Reports,
}

/// A rebuilt turn, and the substream on which the node will report whether it is stored.
pub(crate) struct AttemptSuccess {
    pub(crate) accepted: AcceptedTurn,
    pub(crate) memory: Vec<MemoryItem>,
    /// The tokens of the answer.
    pub(crate) tokens: Vec<u32>,
    pub(crate) tail: ReplyTail,
}

/// The rest of a reply, after the turn is final.
pub(crate) struct ReplyTail {
    stream: TurnStream,
    /// Carries the stream.
    _mesh: SessionMesh,
    opener: baton_keys::seal::StreamOpener,
    last_report: Option<StoreState>,
    /// Speed of the answer; none through a relayer, whose time cannot be told from the node's.
    pub(crate) speed: Option<SpeedSample>,
}

/// The environment of an attempt.
pub(crate) struct Context<'a> {
    pub(crate) session: &'a Arc<Session>,
    pub(crate) directory: &'a Arc<Directory>,
    /// The network under the session's identity.
    pub(crate) mesh: &'a SessionMesh,
    pub(crate) timeouts: Timeouts,
    pub(crate) relayer: Option<&'a Relayer>,
    /// The quota for turns.
    pub(crate) quota: Option<&'a QuotaHolder>,
    /// The recall hint for the relayer.
    pub(crate) hint: Option<&'a MemoryHint>,
    /// Memory already in the request.
    pub(crate) own: Vec<MemoryItem>,
    /// The beginning of the answer, if another node made one.
    pub(crate) begun: Option<&'a AnswerPrefix>,
    /// How long to wait for the first token, once the node's queue ahead of the turn is empty.
    pub(crate) first_token: Duration,
    /// Whether another node could continue the answer, so that a stalled node is not waited for.
    pub(crate) substitute: bool,
    /// Whether another node is known to begin its answers, so that a slow node is not waited for.
    pub(crate) faster: bool,
}

/// Sends a prepared and journaled attempt, follows the reply and rebuilds the turn.
pub(crate) async fn run(
    context: &Context<'_>,
    turn: &PendingTurn,
    prepared: PreparedAttempt,
    events: &mut Events<'_>,
) -> Result<AttemptSuccess, AttemptFailure> {
    let PreparedAttempt { auth, request, node_key, secret, record_key, terms } = prepared;
    let start = running_hash_start(&record_key, &auth.auth_hash());
    let begun = context.begun.map(|begun| &begun.partial);
    let unnoted = UnnotedText::new(context.session.clone(), auth.attempt);
    let mut reply = Reply::new((start, unnoted), auth.max_output_tokens, turn.sampling.logprobs, begun);
    let (target, frame) = match context.relayer {
        Some(relayer) => {
            let recall =
                context.hint.map(|hint| RelayRecall { hint: hint.sign(&auth).bytes().clone(), node_key });
            (relayer.node, ClientFrame::Relay { request, recall })
        }
        None => (auth.audience, ClientFrame::Turn(request)),
    };
    if !context.own.is_empty() {
        events(TurnEvent::Memory(context.own.clone()));
        reply.memory.clone_from(&context.own);
    }
    let addrs = match context.relayer {
        Some(relayer) if !relayer.addrs.is_empty() => relayer.addrs.clone(),
        _ => context.directory.addrs_to_dial(target).await,
    };
    // A relayer passes no quota on, and the node would charge the turn to the relayer's user.
    let quota = context.quota.filter(|_| context.relayer.is_none()).and_then(|quota| quota.for_turn(&auth));
    let quota = quota.map(ClientFrame::Quota);
    let frames: Vec<_> = quota.iter().chain([&frame]).collect();
    let sent = Instant::now();
    // Our own request may be too large for a frame.
    let frames = exchange::encode_all(&frames).map_err(|error| AttemptFailure::from(error).unclear())?;
    drop(frame);
    let wait = context.timeouts.open;
    let opened = match context.relayer {
        Some(_) => {
            let opened = context.mesh.open(target, &addrs, Instant::now() + wait).await;
            opened.map_err(|error| ExchangeError::from(error).into())
        }
        None => {
            let opening = opening::open(context.mesh, (target, &addrs), context.substitute, wait);
            opening::open_at(context.directory, (target, context.substitute), opening, events).await
        }
    };
    let mut stream = opened.map_err(|failure| context.blame(failure))?;
    let sent_all = exchange::send_all(&mut stream, frames, wait).await;
    sent_all.map_err(|error| context.blame(error.into()))?;
    let admitted = admitted(context, &auth, &mut stream, &mut reply, events).await;
    let nonce = admitted.map_err(|failure| context.blame(failure))?;
    reply.turn_came = Some(Instant::now());
    let opener = secret.reply_opener(&nonce, &auth.auth_hash().0);
    let mut tail = ReplyTail { stream, _mesh: context.mesh.clone(), opener, last_report: None, speed: None };
    let committed = match follow(context, &auth, &mut tail, &mut reply, events).await {
        Ok(committed) => committed,
        Err(failure) => return Err(reply.failed(context.blame(failure))),
    };
    let now_ms = context.directory.now_ms();
    let arrived =
        ArrivedAnswer { text: &reply.text, tokens: reply.tokens, hashes: Some(&reply.hashes), lost: false };
    let held_to = ReceiptTerms { order: terms, arrived };
    let accepted = context.session.read(|state| {
        accept(state, turn, &auth, &committed, (&reply.text, &reply.memory), (&held_to, now_ms))
    });
    let accepted = match accepted {
        Ok(accepted) => accepted,
        Err(code) => return Err(reply.failed(context.blame(AttemptFailure::check(code)))),
    };
    reply.unnoted.clear();
    tail.speed = context.relayer.is_none().then(|| reply.pace.measured(sent));
    let tokens = std::mem::take(&mut *reply.ids);
    Ok(AttemptSuccess { accepted, memory: reply.memory, tokens, tail })
}

impl Context<'_> {
    /// Removes all blame from the node if a relayer is in between. A relayer can drop, change and invent the
    /// data it carries, and report different memory to each side.
    fn blame(&self, failure: AttemptFailure) -> AttemptFailure {
        if self.relayer.is_some() { failure.unclear() } else { failure }
    }

    /// Whether the node says, asked apart from the reply, that it still works on the turn.
    async fn is_running(&self, auth: &SignedObject<TurnAuth>) -> bool {
        let wait = if self.substitute { SHORT_STATUS_WAIT } else { STATUS_WAIT };
        let status = resolve::status((self.mesh, self.directory), self.session, auth, wait).await;
        matches!(status, Ok(TurnStatus::Accepted))
    }
}

/// The client's own facts, to which it holds a receipt before it countersigns.
pub(crate) struct ReceiptTerms<'a> {
    /// The offer that it chose, and the storage that it ordered.
    pub(crate) order: OrderTerms,
    /// The part of the answer that arrived.
    pub(crate) arrived: ArrivedAnswer<'a>,
}

/// The part of an answer that arrived, to which a client holds the answer that its node sealed.
pub(crate) struct ArrivedAnswer<'a> {
    /// Its text: the sealed answer begins with it.
    pub(crate) text: &'a str,
    /// Its tokens, with those of a resume prefix.
    pub(crate) tokens: u32,
    /// Running hashes of its tokens, from the start on; none if a restart lost them.
    pub(crate) hashes: Option<&'a [RunningHash]>,
    /// Whether the reply was lost before its end.
    pub(crate) lost: bool,
}

impl ReceiptTerms<'_> {
    fn check(&self, accepted: &AcceptedTurn) -> Result<(), ErrorCode> {
        let (receipt, storage) = (&accepted.receipt, &self.order.storage);
        let closes = accepted.segment.is_closed();
        let epochs = if closes { storage.closed_epochs } else { storage.open_epochs };
        let units = storage_units(accepted.blob.len(), epochs);
        self.arrived.check(accepted)?;
        if receipt.fits_terms(&self.order.offer, units) { Ok(()) } else { Err(ErrorCode::ReceiptMismatch) }
    }
}

impl ArrivedAnswer<'_> {
    /// Checks text, count and running hash. The count of an unseen part is at most its bytes: a token has one at least.
    fn check(&self, accepted: &AcceptedTurn) -> Result<(), ErrorCode> {
        let (receipt, record) = (&accepted.receipt, &accepted.record);
        let answer = record.answer().unwrap_or_default();
        let unseen = answer.strip_prefix(self.text).ok_or(ErrorCode::BlobMismatch)?;
        // The server behind such a node gives no ids to count.
        if self.tokens == 0 && receipt.engine == EngineKind::Proxied {
            return Ok(());
        }
        // No text shows the tokens of a stop string.
        let hidden = if self.lost && record.finish == FinishReason::StopString { MAX_STOP_BYTES } else { 0 };
        let unseen = if self.hashes.is_some() { unseen } else { answer };
        let more = u32::try_from(unseen.len() + hidden).unwrap_or(u32::MAX);
        let output = receipt.tokens.output;
        let counted = match self.hashes {
            Some(hashes) if output == self.tokens => receipt.matches_tokens(hashes),
            _ => (self.tokens..=self.tokens.saturating_add(more)).contains(&output),
        };
        if counted { Ok(()) } else { Err(ErrorCode::ReceiptMismatch) }
    }
}

/// Rebuilds a turn from the session's own data and the node's commitment.
pub(crate) fn accept(
    state: &State,
    turn: &PendingTurn,
    auth: &SignedObject<TurnAuth>,
    committed: &Committed,
    (answer, memory): (&str, &[MemoryItem]),
    (held_to, now_ms): (&ReceiptTerms<'_>, u64),
) -> Result<AcceptedTurn, ErrorCode> {
    let base = state.base();
    let prev_blob = state.next_seq().checked_sub(1).and_then(|last| state.blob_ref(last));
    let expected = ExpectedTurn {
        auth,
        position: ChainPosition { base: &base, prev_blob },
        kind: turn.kind,
        supersedes_from: turn.supersedes_from,
        system: &state.system,
        messages: &turn.messages,
        sampling: &turn.sampling,
        memory,
    };
    let accepted = accept_turn(&state.root, &expected, committed, answer, now_ms)?;
    held_to.check(&accepted)?;
    // Only the node can say that it satisfies the schema; the client can check that it is JSON.
    let cut = accepted.record.finish != FinishReason::Stop;
    let is_json = || serde_json::from_str::<serde::de::IgnoredAny>(answer).is_ok();
    if turn.sampling.json_schema.is_none() || cut || is_json() {
        Ok(accepted)
    } else {
        Err(ErrorCode::ReceiptMismatch)
    }
}

/// Waits until the node admits or refuses the turn; returns the nonce of its reply.
async fn admitted(
    context: &Context<'_>,
    auth: &SignedObject<TurnAuth>,
    stream: &mut TurnStream,
    reply: &mut Reply,
    events: &mut Events<'_>,
) -> Result<[u8; 32], AttemptFailure> {
    let mut frame = first_frame(context, auth, stream, events).await?;
    // A relayer first reports its added items, once; a node reports no memory.
    if context.relayer.is_some() {
        match frame {
            Some(NodeFrame::Memory(items)) => {
                take_memory(context, auth, items, reply, events).await?;
                frame = first_frame(context, auth, stream, events).await?;
            }
            Some(NodeFrame::Refused { .. }) | None => {}
            Some(_) => return Err(AttemptFailure::check(ErrorCode::NonCanonical)),
        }
    }
    match frame {
        Some(NodeFrame::Accepted { nonce }) => {
            events(TurnEvent::Admitted);
            Ok(nonce)
        }
        Some(NodeFrame::Refused { code, retry_after_ms }) => {
            let failure = AttemptFailure::node(code, retry_after_ms);
            // A relayer can report this about a turn that it still passed on.
            Err(match context.relayer {
                Some(_) => {
                    AttemptFailure { status: AttemptStatus::Hearsay, reason: relayed_reason(code), ..failure }
                }
                None => failure,
            })
        }
        Some(_) => Err(AttemptFailure::check(ErrorCode::NonCanonical)),
        None => Err(ExchangeError::Ended.into()),
    }
}

/// The next frame before the node admits the turn. A node that loads its model may take long.
async fn first_frame(
    context: &Context<'_>,
    auth: &SignedObject<TurnAuth>,
    stream: &mut TurnStream,
    events: &mut Events<'_>,
) -> Result<Option<NodeFrame>, AttemptFailure> {
    let sent = Instant::now();
    let deadline = sent + context.timeouts.reply_to(auth.max_output_tokens);
    loop {
        match exchange::receive(stream, context.timeouts.admit).await {
            Err(ExchangeError::Frame(FrameError::Timeout)) if Instant::now() < deadline => {
                if context.substitute || !context.is_running(auth).await {
                    return Err(ExchangeError::Frame(FrameError::Timeout).into());
                }
                events(TurnEvent::StillRunning { node: auth.audience, waited: sent.elapsed() });
            }
            received => return Ok(received?),
        }
    }
}

/// A failure in a relayer's words. A relayer reports a node as busy also if it cannot reach the node.
fn relayed_reason(code: ErrorCode) -> String {
    match code {
        ErrorCode::Busy => "the relayer cannot reach the node, or has no free slot".to_owned(),
        code => code.to_string(),
    }
}

async fn take_memory(
    context: &Context<'_>,
    auth: &TurnAuth,
    items: Vec<MemoryItem>,
    reply: &mut Reply,
    events: &mut Events<'_>,
) -> Result<(), AttemptFailure> {
    check_memory(&items)?;
    let entry = Entry::OfAttempt(auth.attempt, AttemptChange::Memory(items.clone()));
    context.session.note(entry).await.map_err(journal_failed)?;
    events(TurnEvent::Memory(items.clone()));
    reply.memory = items;
    Ok(())
}

fn check_memory(items: &[MemoryItem]) -> Result<(), AttemptFailure> {
    let fits = items.len() <= MAX_MEMORY_ITEMS
        && items.iter().all(|item| {
            item.text.len() <= MAX_MEMORY_ITEM_BYTES && item.source.len() <= MAX_MEMORY_ITEM_BYTES
        });
    if fits { Ok(()) } else { Err(AttemptFailure::check(ErrorCode::MemUnauthorized)) }
}

fn journal_failed(error: crate::error::ClientError) -> AttemptFailure {
    AttemptFailure { reason: error.to_string(), ..AttemptFailure::check(ErrorCode::Internal) }.unclear()
}

/// Follows the reply until the turn is committed.
async fn follow(
    context: &Context<'_>,
    auth: &SignedObject<TurnAuth>,
    tail: &mut ReplyTail,
    reply: &mut Reply,
    events: &mut Events<'_>,
) -> Result<Committed, AttemptFailure> {
    let admitted = Instant::now();
    let deadline = admitted + context.timeouts.reply_to(auth.max_output_tokens);
    let mut heard = admitted;
    loop {
        let now = Instant::now();
        let left = deadline.saturating_duration_since(now);
        // Checked apart from the wait, which a node that keeps sending events would never let expire.
        if left.is_zero() {
            let reason = if reply.runs_at.is_some() {
                "the node still works on the turn, and it took too long"
            } else {
                "the reply took too long"
            };
            return Err(AttemptFailure::stalled(reason.to_owned()));
        }
        let patience = reply.patience(context, now).min(left);
        let next = match tail.next(patience).await {
            Err(failure) if failure.status == AttemptStatus::Lost && now.elapsed() >= patience => {
                let may_run = reply.may_run(context);
                if may_run && context.is_running(auth).await {
                    reply.runs_at = Some(Instant::now());
                    events(TurnEvent::StillRunning { node: auth.audience, waited: admitted.elapsed() });
                    continue;
                }
                let silent = heard.elapsed().as_millis();
                let reason = format!("the node stalled: it sent nothing for {silent} ms");
                return Err(AttemptFailure { disowned: may_run, ..AttemptFailure::stalled(reason) });
            }
            next => next?,
        };
        let Some((event, last)) = next else {
            return Err(AttemptFailure::lost(ErrorCode::StreamTruncated.to_string()));
        };
        heard = Instant::now();
        match event {
            ReplyEvent::Waiting(ahead) => {
                reply.waits(ahead, Instant::now()).map_err(AttemptFailure::check)?;
                if ahead > 0 {
                    events(TurnEvent::Waiting(ahead));
                }
            }
            ReplyEvent::Tokens { index, ids, text, logprobs } => {
                reply.push(index, &ids, &text).map_err(AttemptFailure::check)?;
                let reports = reply.reports.take(&ids, logprobs).map_err(AttemptFailure::check)?;
                if !reports.is_empty() {
                    events(TurnEvent::Logprobs(reports));
                }
                if !text.is_empty() {
                    events(TurnEvent::Text(text));
                }
            }
            ReplyEvent::Progress(note) => {
                reply.check_note(note, auth).map_err(AttemptFailure::check)?;
                if let Some(entry) = reply.unnoted.take() {
                    context.session.note(entry).await.map_err(journal_failed)?;
                }
            }
            ReplyEvent::Committed(committed) => return Ok(*committed),
            ReplyEvent::Failed { code, retry_after_ms, reason } => {
                return Err(AttemptFailure::node(code, retry_after_ms).because(&reason));
            }
            // The store cannot have a turn before it is sealed.
            ReplyEvent::Store(_) | ReplyEvent::Checked(_) => {
                return Err(AttemptFailure::check(ErrorCode::NonCanonical));
            }
        }
        if last {
            return Err(AttemptFailure::check(ErrorCode::StreamTruncated));
        }
    }
}

impl Reply {
    fn new(
        (start, unnoted): (RunningHash, UnnotedText),
        max_tokens: u32,
        logprobs: u8,
        begun: Option<&PartialAnswer>,
    ) -> Self {
        let mut reply = Self {
            text: Zeroizing::default(),
            ids: Zeroizing::default(),
            begun: 0,
            pace: Pace::default(),
            unnoted,
            tokens: 0,
            max_tokens,
            note: None,
            waited: 0,
            turn_came: None,
            runs_at: None,
            hashes: vec![start],
            memory: Vec::new(),
            reports: Reports::new(logprobs),
        };
        if let Some(begun) = begun {
            reply.text.push_str(&begun.text);
            reply.unnoted.push(&begun.text);
            reply.count(&begun.ids);
            reply.begun = reply.ids.len();
            reply.reports.taken.clone_from(&begun.reports);
        }
        reply
    }

    /// The failure, with the part that had arrived.
    fn failed(mut self, failure: AttemptFailure) -> AttemptFailure {
        // Text of a reply that was wrong is not shown again.
        if failure.status != AttemptStatus::Lost {
            self.unnoted.clear();
        }
        AttemptFailure {
            partial: Box::new(PartialAnswer { text: self.text, ids: self.ids, reports: self.reports.taken }),
            note: self.note.map(Box::new),
            ..failure
        }
    }

    /// Takes the ids of the next tokens.
    fn count(&mut self, ids: &[u32]) {
        for id in ids {
            let last = self.hashes.last().copied().unwrap_or(RunningHash([0; 32]));
            self.hashes.push(running_hash_step(&last, *id));
        }
        self.tokens += u32::try_from(ids.len()).unwrap_or(u32::MAX);
        self.ids.extend_from_slice(ids);
    }

    /// How long to wait for the next event. During the answer the pace of the tokens decides. Before the
    /// first token, wait until it is due, or as long as a queue may stand still. A node that says that it works on
    /// the turn gets the same time again.
    fn patience(&self, context: &Context<'_>, now: Instant) -> Duration {
        let idle = context.timeouts.idle;
        let runs = self.runs_at.is_some();
        let least = if context.substitute && !runs { 1 } else { LONE_PATIENCE };
        match (self.pace.stalls_after(context.timeouts.stall), self.turn_came) {
            (Some(stall), _) => stall.saturating_mul(least).min(idle),
            (None, Some(came)) => {
                let since = self.runs_at.map_or(came, |runs_at| runs_at.max(came));
                let due = since + context.first_token.saturating_mul(least).min(idle);
                due.saturating_duration_since(now)
            }
            (None, None) => idle,
        }
    }

    /// Whether a silent node is asked if it still works on the turn. If another node can serve, it is asked once,
    /// before its answer began, and only if no other is likely faster.
    fn may_run(&self, context: &Context<'_>) -> bool {
        let began = self.pace.stalls_after(context.timeouts.stall).is_some();
        !context.substitute || (!began && !context.faster && self.runs_at.is_none())
    }

    /// Takes a queue report. A repeated report that the queue is empty gains no time.
    fn waits(&mut self, ahead: u32, now: Instant) -> Result<(), ErrorCode> {
        self.turn_came = if ahead == 0 { self.turn_came.or(Some(now)) } else { None };
        self.waited += 1;
        if self.waited > MAX_WAITING_EVENTS { Err(ErrorCode::FrameTooLarge) } else { Ok(()) }
    }

    /// Takes tokens: none missing, none twice, no more than requested.
    fn push(&mut self, index: u32, ids: &[u32], text: &str) -> Result<(), ErrorCode> {
        // An empty event would only keep the reply open.
        if ids.is_empty() && text.is_empty() {
            return Err(ErrorCode::NonCanonical);
        }
        if !ids.is_empty() && index != self.tokens {
            return Err(ErrorCode::StreamTruncated);
        }
        if self.text.len() + text.len() > MAX_MESSAGE_BYTES {
            return Err(ErrorCode::FrameTooLarge);
        }
        let left = self.max_tokens.saturating_sub(self.tokens);
        if u32::try_from(ids.len()).ok().is_none_or(|count| count > left) {
            return Err(ErrorCode::FrameTooLarge);
        }
        self.count(ids);
        self.pace.arrived(Instant::now(), ids.len(), text.len());
        self.text.push_str(text);
        self.unnoted.push(text);
        Ok(())
    }

    /// Checks that a progress note is from this node, about this turn, covers more tokens than the previous
    /// note, and covers only arrived tokens. An engine without token ids gives nothing to compare.
    fn check_note(&mut self, bytes: SignedBytes, auth: &SignedObject<TurnAuth>) -> Result<(), ErrorCode> {
        let note = SignedObject::<ProgressNote>::verify(bytes)?;
        if note.node != auth.audience || note.auth_hash != auth.auth_hash() {
            return Err(ErrorCode::ReceiptMismatch);
        }
        // Each note may write to the journal, so a node cannot repeat itself.
        let noted = self.note.as_ref().map_or(0, |note| note.token_count);
        if note.token_count <= noted || note.token_count > self.max_tokens {
            return Err(ErrorCode::NonCanonical);
        }
        let arrived = self.hashes.get(note.token_count as usize);
        if self.tokens > 0 && arrived != Some(&note.running_hash) {
            return Err(ErrorCode::ReceiptMismatch);
        }
        self.note = Some(note);
        Ok(())
    }
}

impl ReplyTail {
    /// The next event and whether it is the last; none when the reply ended before its last chunk.
    async fn next(&mut self, wait: Duration) -> Result<Option<(ReplyEvent, bool)>, AttemptFailure> {
        match exchange::receive(&mut self.stream, wait).await? {
            None => Ok(None),
            Some(NodeFrame::Chunk(sealed)) => {
                // A chunk that does not open was changed or moved, or an earlier one was dropped.
                let (opened, last) = self
                    .opener
                    .open(&sealed)
                    .map_err(|_| AttemptFailure::check(ErrorCode::StreamTruncated))?;
                let event = ReplyEvent::from_chunk(&opened).map_err(AttemptFailure::check)?;
                Ok(Some((event, last)))
            }
            // Any carrier of the bytes can write this. The node's own events are sealed by now.
            Some(NodeFrame::Refused { code, .. }) => {
                Err(AttemptFailure::lost(format!("the reply ended with an unsealed refusal: {code}")))
            }
            Some(_) => Err(AttemptFailure::check(ErrorCode::NonCanonical)),
        }
    }

    /// The node's last report on whether the blob is stored; waits at most `wait` in total. A substream that
    /// ends gives no report. With it comes the link of a second commitment, if the node makes one.
    pub(crate) async fn store_state(mut self, wait: Duration) -> (StoreState, Option<SignedBytes>) {
        let mut second = None;
        let watch = async {
            while let Ok(Some((event, last))) = self.next(wait).await {
                match event {
                    ReplyEvent::Store(state) => {
                        self.last_report = Some(state);
                        if matches!(state, StoreState::Stored { .. } | StoreState::GivenUp) {
                            return;
                        }
                    }
                    // The accepted link stays valid, and the client stores its blob.
                    ReplyEvent::Committed(again) => {
                        second = Some(again.link);
                        self.last_report = Some(StoreState::GivenUp);
                        return;
                    }
                    _ => {}
                }
                if last {
                    return;
                }
            }
        };
        // At the timeout, the last report is the result.
        let _ = tokio::time::timeout(wait, watch).await;
        (self.last_report.unwrap_or(StoreState::Pending), second)
    }
}

/// Attempts of the pending turn that may have been sealed, according to their nodes; oldest first.
pub(crate) fn open_attempts(state: &State) -> Vec<SignedObject<TurnAuth>> {
    let pending = state.pending.iter().flat_map(|pending| &pending.attempts);
    pending.filter(|attempt| !attempt.refused).map(|attempt| attempt.auth.clone()).collect()
}

/// The attempts whose author is asked about them.
pub(crate) fn attempts_to_ask(state: &State) -> Vec<SignedObject<TurnAuth>> {
    let pending = state.pending.iter().flat_map(|pending| &pending.attempts);
    pending
        .filter(|attempt| !attempt.refused && !attempt.rejected)
        .map(|attempt| attempt.auth.clone())
        .collect()
}
