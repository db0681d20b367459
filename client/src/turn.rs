//! A turn, from the caller's message to the accepted answer: the spine of the client.
//!
//! Every binding step is in the journal, flushed, before it is taken: the message, each attempt, the accepted
//! turn. Text shown before acceptance is display only.

pub(crate) mod audit;
mod model_defaults;
mod progress;

use std::{sync::Arc, time::Duration};

use baton_proto::{
    ErrorCode, SignedObject,
    chain::effective_newest_first,
    commit::AcceptedTurn,
    contradiction::Contradiction,
    ids::{ModelId, NodeId},
    note::{Acknowledgement, TurnNote, TurnNoteKind},
    record::{RecordKind, check_supersedes},
    tools::is_definitions,
    turn::TurnAuth,
};
use web_time::Instant;

use progress::Progress;

use crate::{
    attempt::{
        self, AttemptSuccess, Context, Events, checks, delivery,
        liveness::AuthorLiveness,
        opening,
        request::{self, AttemptOptions},
        resolve::{self, ResolveError, STATUS_WAIT},
    },
    background::{self, repair},
    clocks::ClockDifference,
    core::Core,
    error::{ClientError, StateError},
    event::{
        DEFAULT_OUTPUT_TOKENS, InlinePolicy, MODEL_OUTPUT_TOKENS, Omissions, ResumeOptions, TurnEvent,
        TurnInput, TurnOutcome, TurnSettings,
    },
    identities::SessionMesh,
    network::{
        choose::{NoChoice, Wish},
        reputation::NodeFailure,
        retry::{AttemptFailure, AttemptStatus, Carry, NextStep, next_step, pause_before_repeat},
    },
    proofs,
    session::{
        open_session::Session,
        state::{AttemptChange, AttemptEntry, Entry, PendingTurn, Proof, State, TurnEntry},
    },
    storage,
    sync::{
        head::{self, PublishReason},
        reconcile,
    },
};

/// Limit for opening a substream in the middle of an answer that another node could continue. It is a few
/// round trips to the other side of the world. A dead node may be noticed only by its silence.
const HURRIED_OPEN: Duration = Duration::from_secs(1);
/// How long a turn waits for its head to be published, when a node asks where the history is.
const PUBLISH_WAIT: Duration = Duration::from_secs(2);

/// As [`SessionHandle::turn`](crate::SessionHandle::turn).
pub(crate) async fn turn(
    core: &Arc<Core>,
    session: &Arc<Session>,
    input: TurnInput,
    mut on_event: impl FnMut(TurnEvent) + Send,
) -> Result<TurnOutcome, ClientError> {
    let _permit = session.begin()?;
    if session.read(|state| state.pending.is_some()) {
        return Err(ClientError::PendingTurn);
    }
    let next = session.read(State::next_seq);
    check_supersedes(input.kind, input.supersedes_from, next)?;
    let TurnSettings { supersedes_from, sampling, max_output_tokens, model } = input.settings();
    let mut entries = Vec::new();
    // The schema is journaled once, before the turn that names its hash.
    if let (Some(schema), Some(hash)) = (&input.json_schema, sampling.json_schema)
        && session.read(|state| state.schema(&hash).is_none())
    {
        entries.push(Entry::Schema(schema.clone()));
    }
    let pending = PendingTurn {
        turn_id: session.read(State::draw_turn_id),
        kind: input.kind,
        supersedes_from,
        messages: input.messages.clone(),
        sampling,
        max_output_tokens,
        model,
        begun_ms: core.now_ms(),
    };
    entries.push(Entry::Pending(pending));
    session.record(entries).await?;
    let options = ResumeOptions::of(&input);
    answer(core, session, &options, &mut on_event).await?.ok_or(StateError::NothingPending.into())
}

/// As [`SessionHandle::resume`](crate::SessionHandle::resume).
pub(crate) async fn resume(
    core: &Arc<Core>,
    session: &Arc<Session>,
    options: ResumeOptions,
    mut on_event: impl FnMut(TurnEvent) + Send,
) -> Result<Option<TurnOutcome>, ClientError> {
    let _permit = session.begin()?;
    answer(core, session, &options, &mut on_event).await
}

/// Finishes the pending turn after a look at other devices' turns; none if it is answered already.
async fn answer(
    core: &Arc<Core>,
    session: &Arc<Session>,
    options: &ResumeOptions,
    events: &mut Events<'_>,
) -> Result<Option<TurnOutcome>, ClientError> {
    let is_pending = || session.read(|state| state.pending.is_some());
    if !is_pending() {
        return Ok(None);
    }
    // An edit may go back to a turn that a snapshot leaves out.
    let replaces = |state: &State| state.pending.as_ref().and_then(|pending| pending.turn.supersedes_from);
    if session.read(replaces).is_some() {
        session.load_all().await?;
    }
    reconcile::reconcile_before(core, session, options, events).await?;
    if !is_pending() {
        return Ok(None);
    }
    match Box::pin(finish_pending(core, session, options, events)).await {
        // A node or the index revealed a newer head midway.
        Err(error) if error.is_divergence() && options.reconcile => {
            let mode = reconcile::MergeMode::ResolveForks;
            Box::pin(reconcile::compare_and_merge(core, session, mode, Duration::MAX, events)).await?;
            if !is_pending() {
                return Ok(None);
            }
            Box::pin(finish_pending(core, session, options, events)).await.map(Some)
        }
        result => result.map(Some),
    }
}

/// Finishes the pending turn: with a sealed attempt, or by new attempts.
pub(crate) async fn finish_pending(
    core: &Arc<Core>,
    session: &Arc<Session>,
    options: &ResumeOptions,
    events: &mut Events<'_>,
) -> Result<TurnOutcome, ClientError> {
    storage::ensure_head_id(session).await?;
    let asked = session.read(attempt::attempts_to_ask);
    for auth in asked.into_iter().rev() {
        match Box::pin(resolve::resolve_attempt(core, session, &auth, None, STATUS_WAIT)).await {
            Ok(Some((finished, memory))) => {
                events(TurnEvent::Text(finished.record.answer().unwrap_or_default().to_owned()));
                let finish = finish(core, session, &auth, finished, (memory, Vec::new()), None, events);
                return Box::pin(finish).await;
            }
            Ok(None) => {}
            Err(reason) => tracing::debug!(%reason, "an attempt could not be settled"),
        }
    }
    Box::pin(drive(core, session, options, events)).await
}

/// As [`SessionHandle::abandon`](crate::SessionHandle::abandon).
pub(crate) async fn abandon(core: &Arc<Core>, session: &Arc<Session>) -> Result<(), ClientError> {
    let _permit = session.begin()?;
    let attempts = session.read(|state| state.pending.as_ref().map(|_| attempt::open_attempts(state)));
    let Some(attempts) = attempts else { return Ok(()) };
    session.record(vec![Entry::Abandoned]).await?;
    delivery::spawn_aborts(core, session, attempts, None);
    Ok(())
}

/// As [`SessionHandle::stop_attempts`](crate::SessionHandle::stop_attempts).
pub(crate) fn stop_attempts(core: &Arc<Core>, session: &Arc<Session>) -> Result<(), ClientError> {
    let _permit = session.begin()?;
    delivery::spawn_aborts(core, session, session.read(attempt::open_attempts), None);
    Ok(())
}

/// Makes attempts at the pending turn until one is accepted, nodes agree that none can succeed, or the
/// limit is reached.
async fn drive(
    core: &Arc<Core>,
    session: &Arc<Session>,
    options: &ResumeOptions,
    events: &mut Events<'_>,
) -> Result<TurnOutcome, ClientError> {
    // The next authorisation signs the ID of the last blob; its computation began when that turn was
    // accepted.
    storage::ensure_head_id(session).await?;
    // Held for the whole turn, so that it has one identity.
    let own = core.identities.of_turns(session.id).await?;
    let mut progress = Progress::begin(options);
    while progress.attempts < options.max_attempts.max(1) {
        let (auth, result) =
            match Box::pin(attempt(core, (session, &own), options, &mut progress, events)).await {
                Ok(made) => made,
                // If no node is left, the first failure says more than the lack of a second node.
                Err(ClientError::NoNode(_)) if progress.last.is_some() => break,
                Err(error) => return Err(error),
            };
        progress.attempts += 1;
        let mut failure = match result {
            Ok(AttemptSuccess { accepted, memory, tokens, tail }) => {
                let parts = (memory, tokens);
                return finish(core, session, &auth, accepted, parts, Some(tail), events).await;
            }
            Err(failure) => failure,
        };
        let noticed = Instant::now();
        // Only for a lost reply: a node whose reply was wrong is not asked for another. A sealed turn
        // must begin with the tokens that were sent.
        let mesh = core.directory.mesh();
        let in_the_middle = !failure.partial.ids.is_empty();
        let author = AuthorLiveness::of(&own, mesh, auth.audience);
        if failure.status == AttemptStatus::Lost && in_the_middle && author == AuthorLiveness::Gone {
            // Its process or machine is gone while other nodes are connected, so it would not answer. The
            // turn that it may have sealed is aborted once another attempt is accepted, as after asking
            // in vain.
            progress.probe_others(mesh, auth.audience).await;
        } else if failure.status == AttemptStatus::Lost && !failure.disowned {
            // A silent node is not asked for long either if another node can serve the turn.
            let hurried = in_the_middle || failure.fault == NodeFailure::Stalled;
            let wait = if hurried { author.status_wait() } else { STATUS_WAIT };
            let probing = async {
                if in_the_middle {
                    progress.probe_others(mesh, auth.audience).await;
                }
            };
            let arrived = Some(&*failure.partial);
            let resolving = Box::pin(resolve::resolve_attempt(core, session, &auth, arrived, wait));
            let resolved = match tokio::join!(resolving, Box::pin(probing)).0 {
                // A second order would read the prompt again, at the same node.
                Err(ResolveError::Running) if !progress.substitute => {
                    Box::pin(resolve::resolve_running(core, session, &auth, arrived)).await
                }
                resolved => resolved,
            };
            match resolved {
                Ok(Some((accepted, memory))) => {
                    let answer = accepted.record.answer().unwrap_or_default();
                    // The answer begins with the part that arrived.
                    let unseen = answer.get(failure.partial.text.len()..).unwrap_or_default();
                    if !unseen.is_empty() {
                        events(TurnEvent::Text(unseen.to_owned()));
                    }
                    let parts = (memory, Vec::new());
                    return finish(core, session, &auth, accepted, parts, None, events).await;
                }
                Err(ResolveError::Wrong(code)) => failure = failure.exposed(code, auth.memory_from.is_some()),
                Ok(None) | Err(ResolveError::Unknown(_) | ResolveError::Running) => {}
            }
        }
        let noticed_ago = noticed.elapsed();
        // A second attempt at the only allowed node finds a new address of it, and a third finds nothing more.
        let only_again = options.node.is_some()
            && failure.fault == NodeFailure::Unreachable
            && progress.tried.contains(&auth.audience);
        let in_vain = options.relayer.is_none() && (failure.silent_others.is_some() || only_again);
        after_failure(core, session, &auth, (failure, noticed_ago), &mut progress, events).await?;
        if in_vain {
            break;
        }
    }
    Err(match progress.last {
        Some((node, failure)) => match clock_refusal(core, node, &failure).await {
            Some(difference) => NoChoice::ClocksDiffer(difference).into(),
            None => failed(progress.attempts, node, &failure),
        },
        None => ClientError::NoNode(NoChoice::NoNodes),
    })
}

/// Finds the wrong clock after a node refused an attempt because of its time.
async fn clock_refusal(core: &Arc<Core>, node: NodeId, failure: &AttemptFailure) -> Option<ClockDifference> {
    let code = failure.code.filter(|_| failure.is_claim())?;
    core.directory.refused_by_clock(node, code).await
}

/// One attempt: chooses a node, journals, sends and follows the reply. The outer error is the client's
/// own.
async fn attempt(
    core: &Arc<Core>,
    (session, mesh): (&Arc<Session>, &SessionMesh),
    options: &ResumeOptions,
    progress: &mut Progress,
    events: &mut Events<'_>,
) -> Result<(SignedObject<TurnAuth>, Result<AttemptSuccess, AttemptFailure>), ClientError> {
    let directory = &core.directory;
    let (model_of_session, warm, output_tokens) = session.read(|state| {
        let output_tokens = state.pending.as_ref().map_or(0, |pending| pending.turn.max_output_tokens);
        let output_tokens =
            if output_tokens == MODEL_OUTPUT_TOKENS { DEFAULT_OUTPUT_TOKENS } else { output_tokens };
        (model_of(state).filter(|_| options.model.is_none()), warm_node(core, state), output_tokens)
    });
    let model = options.model.clone().or(model_of_session.map(|model| model.to_string()));
    let wish = Wish {
        embeddings: false,
        model: model.as_deref(),
        node: options.node,
        allow_echo: options.allow_echo,
        warm,
        output_tokens,
        max_price: Some(core.config.max_price),
        storage: Some(core.config.storage),
        // A relayer passes no quota on.
        quota: core.config.quota.as_deref().filter(|_| options.relayer.is_none()),
        tried: &progress.tried,
        now_ms: core.now_ms(),
    };
    let last_resorts = progress.last_resorts(directory.mesh());
    let soon = Wish { tried: &last_resorts, ..wish };
    let continues = progress.begun.as_ref().and_then(|begun| {
        directory.choose_to_continue(&soon, begun).or_else(|| directory.choose_to_continue(&wish, begun))
    });
    if continues.is_none() && progress.begun.take().is_some() {
        events(TurnEvent::Restarted);
    }
    let (choice, _in_flight) = match continues {
        Some(chosen) => chosen,
        None => Box::pin(directory.choose(&soon)).await.map_err(|why| match (why, model_of_session) {
            (NoChoice::ModelUnavailable { served, .. }, Some(model)) => {
                let model = directory.model_name(model).unwrap_or_else(|| model.to_string());
                NoChoice::ModelOfSession { model, served }
            }
            (why, _) => why,
        })?,
    };
    let substitute = directory.has_substitute(&wish, &choice);
    progress.substitute = substitute;
    if progress.tried.contains(&choice.node) {
        // Asking the same nodes again changes nothing.
        if progress.refused_for_good() {
            return Err(ClientError::NoNode(NoChoice::NoNodes));
        }
        let asked = progress.last.as_ref().map_or(0, |(_, failure)| failure.retry_after_ms);
        tokio::time::sleep(pause_before_repeat(progress.attempts, asked)).await;
    }
    // A relayer's memory and the caller's own exclude each other: an authorisation names one source.
    let own = options.memory.as_ref().filter(|own| options.relayer.is_none() && !own.items.is_empty());
    let memory_from = options.relayer.as_ref().map(|relayer| relayer.node.public_key());
    let terms = AttemptOptions {
        memory_from: memory_from.or_else(|| own.map(|own| own.signer.public_key())),
        memory: own,
        memory_tokens: options.memory_tokens,
        with_locator: progress.with_locator,
        inline: progress.inline,
        begun: progress.begun.as_ref(),
        audits: false,
    };
    let settle = |state: &State| {
        state.pending.as_ref().and_then(|pending| model_defaults::settled(&pending.turn, &choice.offer.name))
    };
    if let Some(turn) = session.read(settle) {
        session.record(vec![Entry::Pending(turn)]).await?;
    }
    let now = core.now_ms();
    let (turn, prepared) = session.read(|state| {
        let pending = state.pending.as_ref().ok_or(StateError::NothingPending)?;
        let attempt = u32::try_from(pending.attempts.len()).map_err(|_| ErrorCode::BadSequence)?;
        let prepared = request::prepare(state, &pending.turn, attempt, &choice, &terms, now)?;
        Ok::<_, ClientError>((pending.turn.clone(), prepared))
    })?;
    let auth = prepared.auth.clone();
    let entry = AttemptEntry { attempt: auth.attempt, auth: auth.bytes().clone(), terms: prepared.terms };
    let mut entries = vec![Entry::Attempt(entry)];
    // Without it, the attempt could not be compared with its receipt after a crash.
    let items = own.map(|own| own.items.clone()).unwrap_or_default();
    if !items.is_empty() {
        entries.push(Entry::OfAttempt(auth.attempt, AttemptChange::Memory(items.clone())));
    }
    session.record(entries).await?;
    events(TurnEvent::Attempt {
        attempt: auth.attempt,
        node: choice.node,
        model: choice.offer.name.clone(),
        engine: choice.offer.engine,
        continues: auth.resume.map_or(0, |prefix| prefix.token_count),
    });
    let mut timeouts = core.config.timeouts;
    let prompt = session.read(State::prompt_tokens).min(choice.offer.context_tokens);
    // A node of unknown speed is held to the others if one of them can take its place: a node that sends nothing
    // would else keep a long prompt for minutes.
    let slowest = directory.slowest_first_token(choice.offer.model).filter(|_| substitute);
    let usual = directory.first_token_of(choice.node).or(slowest);
    let first_token = attempt::first_token_wait(timeouts.first_token, prompt, usual);
    if progress.begun.is_some() && substitute {
        timeouts.open = timeouts.open.min(HURRIED_OPEN);
    } else if options.relayer.is_none() {
        timeouts.open = timeouts.open.min(opening::DIRECT_OPEN);
    }
    let context = Context {
        session,
        directory,
        mesh,
        timeouts,
        relayer: options.relayer.as_ref(),
        quota: core.config.quota.as_deref(),
        hint: options.hint.as_ref(),
        own: items,
        begun: progress.begun.as_ref(),
        first_token,
        substitute,
        faster: slowest.is_some(),
    };
    let result = Box::pin(attempt::run(&context, &turn, prepared, events)).await;
    Ok((auth, result))
}

/// The model of a session: that of its last turn. Another one serves it only if the caller names it.
pub(crate) fn model_of(state: &State) -> Option<ModelId> {
    state.last().and_then(|(_, meta)| Some(meta.receipt.as_ref()?.model))
}

/// The node that served a session's last turn, if this client saw that a moment ago: it may still have
/// the prompt cached.
pub(crate) fn warm_node(core: &Arc<Core>, state: &State) -> Option<NodeId> {
    let link = &state.last()?.0.link;
    let tag = state.root.warm_key().tag(&link.author, link.link_hash().as_bytes());
    core.directory.is_warm(&tag).then_some(link.author)
}

/// Decides and prepares the step after a failed attempt.
async fn after_failure(
    core: &Arc<Core>,
    session: &Arc<Session>,
    auth: &SignedObject<TurnAuth>,
    (mut failure, noticed_ago): (AttemptFailure, Duration),
    progress: &mut Progress,
    events: &mut Events<'_>,
) -> Result<(), ClientError> {
    let node = auth.audience;
    let (code, reason) = (failure.code, failure.reason.clone());
    events(TurnEvent::AttemptFailed { attempt: auth.attempt, node, code, reason, noticed_ago });
    if let Some(note) = &failure.note {
        let note = AttemptChange::Note(note.bytes().clone());
        session.record(vec![Entry::OfAttempt(auth.attempt, note)]).await?;
    }
    let carried = progress.carry(auth, &mut failure, events);
    let is_wrong = failure.status == AttemptStatus::Wrong;
    // The author of any other is asked at the next start, and informed when another attempt is accepted.
    if is_wrong || failure.status == AttemptStatus::NothingSigned {
        session.record(vec![Entry::OfAttempt(auth.attempt, AttemptChange::Ended { is_wrong })]).await?;
    }
    if carried == Carry::Void {
        // The beginning given to this node is at fault, not the turn or the node.
        progress.last = Some((node, failure));
        return Ok(());
    }
    let code = code.map(|code| (code, failure.is_claim()));
    let mut seen = code.is_some_and(|code| progress.codes.contains(&code));
    // A node that cannot enforce a schema, or report token probabilities, refuses with this code; others
    // can.
    if code.is_some_and(|(code, _)| code == ErrorCode::PayloadRejected) && asks_more(session) {
        seen = progress.tried.contains(&node);
    }
    if let (Some((ErrorCode::QuotaExceeded, true)), Some(quota)) = (code, &core.config.quota)
        && quota.note_refused(auth, core.now_ms())
    {
        progress.last = Some((node, failure));
        return Ok(());
    }
    let step = next_step(&failure, progress.with_locator, seen);
    progress.codes.extend(code);
    if step == NextStep::Elsewhere || failure.fault == NodeFailure::Lied {
        core.directory.failed(node, failure.fault, u64::from(failure.retry_after_ms));
    }
    match step {
        NextStep::Elsewhere => {
            progress.tried.push(node);
            progress.refusals += usize::from(failure.is_final());
        }
        NextStep::Here(pause) => tokio::time::sleep(pause).await,
        NextStep::RenewRecord => core.directory.renew(node).await,
        NextStep::RepairStore => {
            progress.inline = InlinePolicy::Always;
            repair::repair(core, session).await;
        }
        NextStep::Locate => {
            progress.with_locator = true;
            if progress.reconcile {
                // The node may know a newer head than ours.
                head::check_for_newer(core, session).await?;
            }
            // A silent index must not hold up the answer: the node may find the head there, or gets the history itself.
            let publishing = head::publish_head(core, session, PublishReason::Head);
            match tokio::time::timeout(PUBLISH_WAIT, publishing).await.unwrap_or(Ok(())) {
                Err(error) if error.is_divergence() && progress.reconcile => return Err(error),
                Err(error) => tracing::warn!(%error, "the head record could not be published again"),
                Ok(()) => {}
            }
        }
        NextStep::Stop => return Err(failed(progress.attempts, node, &failure)),
    }
    progress.last = Some((node, failure));
    Ok(())
}

/// Journals an accepted turn, informs the caller, and leaves the rest to the background.
async fn finish(
    core: &Arc<Core>,
    session: &Arc<Session>,
    auth: &SignedObject<TurnAuth>,
    accepted: AcceptedTurn,
    (mut memory, tokens): (Vec<baton_proto::memory::MemoryItem>, Vec<u32>),
    tail: Option<attempt::ReplyTail>,
    events: &mut Events<'_>,
) -> Result<TurnOutcome, ClientError> {
    let now = core.now_ms();
    let used = usize::from(accepted.receipt.memory_items).min(memory.len());
    let omitted = Omissions {
        turns: session.read(|state| omitted_turns(state, &accepted)),
        memories: memory.len() - used,
    };
    memory.truncate(used);
    let others = session.read(attempt::open_attempts);
    let ack = TurnNoteKind::Ack(Acknowledgement {
        link_hash: accepted.link.link_hash(),
        blob_digest: accepted.blob_digest,
        receipt_hash: accepted.receipt.receipt_hash(),
    });
    let ack = TurnNote::of(auth, ack, now);
    let (ack, ordered) = session.read(|state| {
        let mut attempts = state.pending.iter().flat_map(|pending| &pending.attempts);
        let attempt = attempts.find(|known| known.auth.attempt == auth.attempt);
        let ack = SignedObject::sign(ack, &state.root.signing_key());
        (ack, attempt.map(|attempt| attempt.terms.storage))
    });
    let entry = accepted.segment.entries.last().ok_or(ErrorCode::BadSequence)?.clone();
    let turn = TurnEntry {
        entry,
        blob_digest: accepted.blob_digest,
        blob_length: u32::try_from(accepted.blob.len()).map_err(|_| ErrorCode::BlobTooLarge)?,
        accepted_ms: now,
        proof: Some(Proof {
            auth: auth.bytes().clone(),
            receipt: accepted.receipt.bytes().clone(),
            ack: Some(ack.bytes().clone()),
        }),
        ordered,
        memory: memory.clone(),
        tokens,
    };
    session.record(vec![Entry::Turn(Box::new(turn))]).await?;
    let speed = tail.as_ref().and_then(|tail| tail.speed);
    let tag =
        session.read(|state| state.root.warm_key().tag(&auth.audience, accepted.link.link_hash().as_bytes()));
    core.directory.served(&accepted.receipt, speed, tag);
    for proof in session.read(checks::contradictions) {
        avoid_accused(core, proof).await;
    }
    events(TurnEvent::Accepted);
    delivery::spawn_aborts(core, session, others, Some(auth.attempt));
    background::spawn_after_turn(core, session.clone(), accepted.link.seq, tail);
    Ok(TurnOutcome {
        session: session.id,
        seq: accepted.link.seq,
        turn_id: auth.turn_id,
        attempt: auth.attempt,
        node: auth.audience,
        text: accepted.record.answer().unwrap_or_default().to_owned(),
        finish: accepted.record.finish,
        link_hash: accepted.link.link_hash(),
        blob_digest: accepted.blob_digest,
        receipt: accepted.receipt,
        memory,
        omitted,
    })
}

/// Avoids the nodes that others contradict about an answer, and keeps the proof.
async fn avoid_accused(core: &Arc<Core>, proof: Contradiction) {
    for node in proof.check().map(|report| report.accused).unwrap_or_default() {
        tracing::warn!(%node, "a node's statement contradicts those of others; `baton nodes --proofs` lists the proof");
        core.directory.failed(node, NodeFailure::Contradicted, 0);
    }
    if let Err(error) = core.blocking(move |core| proofs::keep(core, &proof)).await {
        tracing::warn!(%error, "a proof of a contradiction was not written");
    }
}

/// Number of effective earlier turns that the prompt did not have, by the receipt.
fn omitted_turns(state: &State, accepted: &AcceptedTurn) -> usize {
    let (record, window_from) = (&accepted.record, accepted.receipt.window_from);
    // A summary reads the turns that it replaces.
    let replaced = record.supersedes_from.filter(|_| record.kind != RecordKind::Summary);
    let before = window_from.min(replaced.unwrap_or(u64::MAX));
    if before <= state.first_seq() {
        return 0;
    }
    // Reads the window alone, not the whole session.
    let newest_first = state.history.iter().enumerate().rev();
    let later = newest_first.take_while(|(_, turn)| turn.link.seq >= before);
    let all = usize::try_from(state.effective_turns).unwrap_or(usize::MAX);
    all.saturating_sub(effective_newest_first(later).count())
}

/// Whether the pending turn needs a feature that not every node has.
fn asks_more(session: &Session) -> bool {
    session.read(|state| {
        let sampling = state.pending.as_ref().map(|pending| &pending.turn.sampling);
        sampling.is_some_and(|sampling| sampling.json_schema.is_some() || sampling.logprobs > 0)
            || state.system.iter().any(is_definitions)
    })
}

fn failed(attempts: u32, node: NodeId, failure: &AttemptFailure) -> ClientError {
    let relayed = failure.status == AttemptStatus::Hearsay;
    let reason = match &failure.silent_others {
        Some(others) => format!("{}{others}", failure.reason),
        None => failure.reason.clone(),
    };
    let (code, retry_after_ms) = (failure.code, failure.retry_after_ms);
    ClientError::TurnFailed { attempts, node, code, reason, relayed, retry_after_ms }
}
