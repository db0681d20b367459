//! One turn, from its request to its last frame. `run` is the spine and reads like a list; each step is a
//! module.
//!
//! The service calls it for every turn request. Before Accepted, a refusal is one plain frame; after it,
//! everything is sealed. Every signed message is in the journal before it leaves.

mod admission;
pub(crate) mod blobs;
pub(crate) mod charge;
mod check;
mod commit;
mod constraint;
mod events;
pub(crate) mod generate;
mod history;
pub(crate) mod model;
pub mod replay;
pub(crate) mod tally;
pub(crate) mod window;

use std::{sync::Arc, time::Duration};

use baton_keys::exchange::TurnSecret;
use baton_limits::{DisplacedError, Ticket};
use baton_mesh::{Caller, FrameError, TurnStream};
use baton_proto::{
    ErrorCode, SignedObject,
    limits::MAX_BLOB_BYTES,
    memory::{MemEnvelope, MemoryItem},
    node_record::storage_units,
    record::RecordKind,
    right::QuotaUse,
    tools::Definitions,
    turn::{Payload, TurnAuth},
    wire::{ReplyEvent, TurnRequest},
};
use tokio::time::{Instant, timeout};

use crate::{
    core::{Core, frames, pause::Step, refusal::Refusal, reply::Reply, running::Job},
    engine::{Constraint, Hold},
    journal::SealedEntry,
};
use admission::{AdmissionOutcome, AdmittedTurn, RepeatedTurn};
use events::ReplyWriter;

/// How long a turn without a reader keeps its slot while others wait. A retry of the same request arrives
/// sooner.
const CROWDED_GRACE: Duration = Duration::from_secs(1);

/// The contents of an opened request.
pub(crate) struct DecryptedRequest {
    /// Keys, messages, sampling.
    pub(crate) payload: Payload,
    /// Secret that seals the reply.
    pub(crate) secret: TurnSecret,
    /// Memory items that a relayer added, best first.
    pub(crate) memory: Vec<MemoryItem>,
    /// Token limit of the memory items.
    pub(crate) memory_tokens: u32,
    /// Constraint on the answer.
    pub(crate) constraint: Option<Constraint>,
}

impl DecryptedRequest {
    /// Whether the turn has an answer of a model.
    fn has_answer(&self, auth: &TurnAuth) -> bool {
        self.payload.kind != RecordKind::Tombstone && auth.max_output_tokens > 0
    }
}

/// Serves a turn request on its substream. The turn runs as its own task, and the stream follows it.
pub(crate) async fn serve(
    core: &Arc<Core>,
    stream: TurnStream,
    who: Caller,
    request: TurnRequest,
    quota: Option<QuotaUse>,
) -> Result<(), FrameError> {
    let outcome = Box::pin(admission::admit(core, who, request, quota)).await;
    let reply = match outcome {
        Err(refusal) => return frames::refuse(core, stream, who, refusal).await,
        Ok(AdmissionOutcome::Attach(job)) => {
            core.observer.turn_attached();
            job.reply.clone()
        }
        Ok(AdmissionOutcome::Sealed(repeated)) => match answer_repeated(core, &repeated) {
            Ok(reply) => reply,
            Err(code) => return frames::refuse(core, stream, who, code.into()).await,
        },
        Ok(AdmissionOutcome::New(admitted, ticket)) => {
            let reply = admitted.guard.job.reply.clone();
            let reader = reply.attach();
            core.spawn_turn(Box::pin(run(core.clone(), *admitted, Arc::new(ticket))));
            return reader.follow(stream, core.limits.reader_stall).await;
        }
    };
    reply.attach().follow(stream, core.limits.reader_stall).await
}

/// Answers for a turn that was sealed earlier: the same link and receipt under a fresh nonce, without its
/// tokens.
fn answer_repeated(core: &Core, repeated: &RepeatedTurn) -> Result<Arc<Reply>, ErrorCode> {
    let (_, secret) = repeated.payload.open(&repeated.exchange, &repeated.auth)?;
    core.observer.turn_attached();
    let reply = Reply::new();
    let mut events = ReplyWriter::accept(reply.clone(), &secret, &repeated.auth.auth_hash())?;
    say_sealed(&mut events, &repeated.sealed)?;
    reply.finish();
    Ok(reply)
}

fn say_sealed(events: &mut ReplyWriter, sealed: &SealedEntry) -> Result<(), ErrorCode> {
    events.send(ReplyEvent::Committed(Box::new(sealed.committed.clone())))?;
    events.send_last(ReplyEvent::Store(sealed.store))
}

/// The spine of a turn.
async fn run(core: Arc<Core>, admitted: AdmittedTurn, ticket: Arc<Ticket>) {
    let job = admitted.guard.job.clone();
    let session = core.log_key.short(&admitted.auth.session_id);
    let accepted = tokio::select! {
        biased;
        code = stopped(&core, &job) => Err(code.into()),
        accepted = accept(&core, &admitted, &ticket) => accepted,
    };
    let (opened, mut events) = match accepted {
        Ok(Some(accepted)) => accepted,
        Ok(None) => return,
        Err(refusal) => {
            core.observer.refused(refusal.code);
            core.defence.refused(&admitted.charge.who(), refusal.code);
            tracing::debug!(session, code = refusal.code.name(), "a turn was refused");
            drop(ticket);
            // A refusal with a reason is in the log already, sealed. A log with one frame cannot be full.
            if refusal.reason.is_empty() {
                let _ = job.reply.push(&refusal.frame());
            }
            return;
        }
    };
    core.observer.turn_started();
    let answered = tokio::select! {
        biased;
        code = stopped(&core, &job) => Err(code.into()),
        answered = answer(&core, &admitted, &ticket, &opened, &mut events) => answered,
    };
    // Frees the engine for the next turn, however long the storing of this blob takes.
    drop(ticket);
    // From here on the turn is not stopped: signed means journaled, and journaled means sent.
    let is_check_only = opened.payload.is_check_only(&admitted.auth);
    let committed = match answered {
        Ok(answered) if is_check_only => {
            let sent = commit::send_checked(&core, &admitted, &opened, &answered, &mut events);
            sent.map(|()| None).map_err(Refusal::from)
        }
        Ok(answered) => {
            let committed = commit::commit(&core, &admitted, &opened, answered, &mut events).await;
            committed.map(Some).map_err(Refusal::from)
        }
        Err(refusal) => Err(refusal),
    };
    // The store may take seconds. A turn that waits for it keeps neither its request nor its answer.
    drop(opened);
    let guard = admitted.into_guard();
    let ended = match committed {
        Ok(None) => Ok(()),
        Ok(Some(stored)) => commit::send_stored(&core, stored, &mut events).await.map_err(Refusal::from),
        Err(refusal) => Err(refusal),
    };
    let failed = ended.err().map(|refusal| {
        let code = refusal.code;
        // A full or ended reply has no reader left.
        let _ = events.fail(refusal);
        code
    });
    // When a client sees the end, the session must already be free.
    drop(guard);
    if let Some(code) = failed {
        core.observer.failed(code);
        tracing::info!(session, code = code.name(), "a turn failed");
    }
    tell_load(&core);
}

/// Tells the observer how many turns run and wait.
fn tell_load(core: &Core) {
    let (running, waiting) = core.slots.load();
    core.observer.load(running, waiting);
}

/// Waits for a reason to end an unsealed turn.
async fn stopped(core: &Core, job: &Job) -> ErrorCode {
    tokio::select! {
        () = core.ending.cancelled() => ErrorCode::Busy,
        () = job.stop.cancelled() => {
            if job.is_aborted() { ErrorCode::Aborted } else { ErrorCode::Busy }
        }
        // A turn that a test paused stays paused, even without a reader.
        () = left(core, job), if !core.pause.is_set() => {
            core.observer.abandoned();
            ErrorCode::Busy
        }
    }
}

/// Waits until a turn had no reader for its grace period, or for a shorter time if others wait for slots.
async fn left(core: &Core, job: &Job) {
    let grace = core.limits.attach_grace;
    let moment = grace.min(CROWDED_GRACE);
    let began = Instant::now();
    loop {
        job.reply.abandoned(moment).await;
        // Without any reader so far, the grace period starts at the beginning. A reader that leaves starts a
        // new one.
        let unread = job.reply.unread_for().unwrap_or_else(|| began.elapsed());
        let (_, waiting) = core.slots.load();
        if waiting > 0 || unread >= grace {
            return;
        }
    }
}

/// Opens the request, records it in the journal, and sends Accepted. `None` if the turn was already sealed;
/// then it is answered.
async fn accept(
    core: &Arc<Core>,
    admitted: &AdmittedTurn,
    ticket: &Arc<Ticket>,
) -> Result<Option<(Arc<DecryptedRequest>, ReplyWriter)>, Refusal> {
    let auth = &admitted.auth;
    let mut opened = open(core, admitted)?;
    check_storage(core, admitted, &opened.payload)?;
    opened.constraint = match constraint::prepare(admitted, ticket, &opened.payload).await {
        Ok(constraint) => constraint,
        Err(refusal) => return Err(refuse_sealed(admitted, &opened.secret, refusal)),
    };
    let key = admitted.guard.job.key;
    let noted = core.journal.accept(key, auth.auth_hash(), auth.expires_ms, core.now_ms()).await;
    let sealed = noted.map_err(Refusal::of_journal)??;
    let mut events =
        ReplyWriter::accept(admitted.guard.job.reply.clone(), &opened.secret, &auth.auth_hash())?;
    if let Some(sealed) = sealed {
        say_sealed(&mut events, &sealed)?;
        return Ok(None);
    }
    core.pause.pass(Step::Accepted).await;
    Ok(Some((Arc::new(opened), events)))
}

/// Sends the reason of a refusal, if it has one, in a sealed event: no relayer reads it.
fn refuse_sealed(admitted: &AdmittedTurn, secret: &TurnSecret, refusal: Refusal) -> Refusal {
    if !refusal.reason.is_empty() {
        let reply = admitted.guard.job.reply.clone();
        // A log with two frames cannot be full.
        let _ = ReplyWriter::accept(reply, secret, &admitted.auth.auth_hash())
            .and_then(|mut events| events.fail(refusal.clone()));
    }
    refusal
}

/// Checks the ordered storage against the node's terms, and reserves its units. A peer without a grant gets
/// fewer epochs, and no tombstones: they have no answer, and would only buy storage.
fn check_storage(core: &Core, admitted: &AdmittedTurn, payload: &Payload) -> Result<(), Refusal> {
    let (charge, storage) = (&admitted.charge, &payload.storage);
    let epochs = storage.open_epochs.max(storage.closed_epochs);
    let unpaid = payload.kind == RecordKind::Tombstone && !charge.is_granted();
    if unpaid || epochs > core.limits.storage.epochs(charge.is_granted()) {
        return Err(ErrorCode::QuotaExceeded.into());
    }
    // The longest that the turn may take; the end of the turn returns the rest.
    charge.hold_storage(storage_units(MAX_BLOB_BYTES, epochs))
}

/// The key exchange: opens the payload, and the memory if there is any.
fn open(core: &Core, admitted: &AdmittedTurn) -> Result<DecryptedRequest, ErrorCode> {
    let auth = &admitted.auth;
    let (payload, secret) = admitted.payload.open(&admitted.exchange, auth)?;
    match Definitions::pinned(&payload.system) {
        None => return Err(ErrorCode::PayloadRejected),
        // Another node may have a model with tools.
        Some(Some(_)) if !admitted.engine.info().takes_tools => return Err(ErrorCode::ModelUnavailable),
        Some(_) => {}
    }
    let mut opened =
        DecryptedRequest { payload, secret, memory: Vec::new(), memory_tokens: 0, constraint: None };
    if let Some(bytes) = &admitted.memory {
        let refused = |_: ErrorCode| ErrorCode::MemUnauthorized;
        let envelope = SignedObject::<MemEnvelope>::verify(bytes.clone()).map_err(refused)?;
        opened.memory = envelope.open(auth, &admitted.exchange, core.now_ms()).map_err(refused)?;
        opened.memory_tokens = envelope.budget_tokens;
    }
    let fence = opened.payload.grant.record_key.record_key().memory_fence();
    let forged = |item: &MemoryItem| item.text.contains(&fence) || item.source.contains(&fence);
    // The fence cannot be guessed. An item with the fence comes from a party with this turn's key.
    if opened.memory.iter().any(forged) { Err(ErrorCode::MemUnauthorized) } else { Ok(opened) }
}

/// Produces the finished answer.
async fn answer(
    core: &Arc<Core>,
    admitted: &AdmittedTurn,
    ticket: &Arc<Ticket>,
    opened: &Arc<DecryptedRequest>,
    events: &mut ReplyWriter,
) -> Result<commit::AnsweredTurn, Refusal> {
    wait_for_slot(core, ticket, events).await?;
    let hold = model::hold(&admitted.engine, ticket).await?;
    // During a wait for the model, another turn may have taken the slot.
    wait_for_slot(core, ticket, events).await?;
    let answering = answer_in_slot(core, admitted, (ticket, &hold), opened, events);
    // A slow model, store or reader must not hold a slot for ever.
    let limit = core.limits.max_turn_time;
    timeout(limit, answering).await.unwrap_or_else(|_| {
        let reason = format!("this node gives a turn {} minutes, and it took longer", limit.as_secs() / 60);
        Err(Refusal::from(ErrorCode::QuotaExceeded).because(&reason))
    })
}

async fn answer_in_slot(
    core: &Arc<Core>,
    admitted: &AdmittedTurn,
    kept: (&Arc<Ticket>, &Hold),
    opened: &Arc<DecryptedRequest>,
    events: &mut ReplyWriter,
) -> Result<commit::AnsweredTurn, Refusal> {
    let grant = opened.payload.grant.clone();
    let history = history::load(core, &admitted.auth, grant, &admitted.inline).await?;
    core.pause.pass(Step::Fetched).await;
    let turns = Arc::new(history.turns);
    let turn_prompt = window::build_prompt(core, admitted, kept, opened, &turns).await?;
    let checks = check::check_answers(core, admitted, opened, &turns, &turn_prompt).await?;
    drop(turns);
    let started = Instant::now();
    let answer = generate::generate(core, admitted, opened, &turn_prompt, events).await?;
    Ok(commit::AnsweredTurn {
        base: history.base,
        prev_blob: history.prev_blob,
        turn_prompt,
        checks,
        answer,
        queue: started - admitted.began,
    })
}

async fn wait_for_slot(core: &Core, ticket: &Ticket, events: &mut ReplyWriter) -> Result<(), ErrorCode> {
    let mut ahead = ticket.ahead().map_err(|DisplacedError| ErrorCode::Busy)?;
    let waited = ahead > 0;
    while ahead > 0 {
        tell_load(core);
        events.send(ReplyEvent::Waiting(ahead))?;
        ahead = ticket.moved(ahead).await.map_err(|DisplacedError| ErrorCode::Busy)?;
    }
    tell_load(core);
    if waited {
        // From here on the client measures the time to the first token.
        events.send(ReplyEvent::Waiting(0))?;
    }
    Ok(())
}
