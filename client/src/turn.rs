//! A turn, from the caller's message to the accepted answer: the spine of the client.
//!
//! Every binding step is in the journal, flushed, before it is taken: the message, each attempt, the accepted
//! turn. Text shown before acceptance is display only.

pub(crate) mod audit;
mod finish;
mod model_defaults;
mod order;
mod progress;

use std::{sync::Arc, time::Duration};

use baton_proto::{ErrorCode, SignedObject, ids::NodeId, record::check_supersedes, turn::TurnAuth};
use web_time::Instant;

use finish::finish;
use progress::{Progress, turn_failed};

use crate::{
    attempt::{
        self, AttemptSuccess, Events, delivery,
        liveness::AuthorLiveness,
        resolve::{self, ResolveError, STATUS_WAIT},
    },
    clocks::ClockDifference,
    core::Core,
    error::ClientError,
    event::{RouteOptions, TurnEvent, TurnInput, TurnOutcome, TurnSettings},
    network::{
        choose::NoChoice,
        reputation::NodeFailure,
        retry::{AttemptFailure, AttemptStatus},
    },
    session::{
        open_session::Session,
        state::{Entry, PendingTurn, State},
    },
    storage,
    sync::reconcile,
};

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
    answer(core, session, &input.route, &mut on_event).await?.ok_or(ErrorCode::Aborted.into())
}

/// As [`SessionHandle::resume`](crate::SessionHandle::resume).
pub(crate) async fn resume(
    core: &Arc<Core>,
    session: &Arc<Session>,
    route: RouteOptions,
    mut on_event: impl FnMut(TurnEvent) + Send,
) -> Result<Option<TurnOutcome>, ClientError> {
    let _permit = session.begin()?;
    answer(core, session, &route, &mut on_event).await
}

/// Finishes the pending turn after a look at other devices' turns; none if it is answered already.
async fn answer(
    core: &Arc<Core>,
    session: &Arc<Session>,
    route: &RouteOptions,
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
    storage::settle_shards(core, session).await?;
    reconcile::reconcile_before(core, session, route, events).await?;
    if !is_pending() {
        return Ok(None);
    }
    match Box::pin(finish_pending(core, session, route, events)).await {
        // A node or the index revealed a newer head midway.
        Err(error) if error.is_divergence() && route.reconcile => {
            Box::pin(reconcile::compare_and_merge(core, session, Duration::MAX, events)).await?;
            if !is_pending() {
                return Ok(None);
            }
            Box::pin(finish_pending(core, session, route, events)).await.map(Some)
        }
        result => result.map(Some),
    }
}

/// Finishes the pending turn: with a sealed attempt, or by new attempts.
pub(crate) async fn finish_pending(
    core: &Arc<Core>,
    session: &Arc<Session>,
    route: &RouteOptions,
    events: &mut Events<'_>,
) -> Result<TurnOutcome, ClientError> {
    storage::ensure_head_id(session).await?;
    // The author of a rejected attempt is not asked about it, nor about a turn for another store's number of shards.
    let asked: Vec<_> = session.read(|state| {
        let attempts = state.pending.iter().flat_map(|pending| &pending.attempts);
        let asked = attempts.filter(|attempt| !attempt.refused && !attempt.rejected);
        let asked = asked.filter(|attempt| attempt.auth.n_shards == state.header.n_shards);
        asked.map(|attempt| attempt.auth.clone()).rev().collect()
    });
    for auth in asked {
        match Box::pin(resolve::resolve_attempt(core, session, &auth, None, STATUS_WAIT)).await {
            Ok(Some(success)) => {
                events(TurnEvent::Text(success.accepted.record.answer().unwrap_or_default().to_owned()));
                return Box::pin(finish(core, session, &auth, success, events)).await;
            }
            Ok(None) => {}
            Err(reason) => tracing::debug!(%reason, "an attempt could not be settled"),
        }
    }
    Box::pin(drive(core, session, route, events)).await
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
    route: &RouteOptions,
    events: &mut Events<'_>,
) -> Result<TurnOutcome, ClientError> {
    // The next authorisation signs the ID of the last blob; its computation began when that turn was
    // accepted.
    storage::ensure_head_id(session).await?;
    let mut progress = Progress::begin(core, session, route.clone()).await?;
    while progress.attempts < route.max_attempts.max(1) {
        let (choice, _in_flight) = match Box::pin(order::choose(&mut progress, events)).await {
            Ok(chosen) => chosen,
            // If no node is left, the first failure says more than the lack of a second node.
            Err(ClientError::NoNode(_)) if progress.last.is_some() => break,
            Err(error) => return Err(error),
        };
        let order = order::journal(&progress, &choice).await?;
        let auth = order.auth.clone();
        events(TurnEvent::Attempt {
            attempt: auth.attempt,
            node: choice.node,
            model: choice.offer.name.clone(),
            engine: choice.offer.engine,
            continues: auth.resume.map_or(0, |prefix| prefix.token_count),
        });
        let result = Box::pin(order::send(&progress, &choice, order, events)).await;
        progress.attempts += 1;
        let mut failure = match result {
            Ok(success) => return Box::pin(finish(core, session, &auth, success, events)).await,
            Err(failure) => failure,
        };
        let noticed = Instant::now();
        // Only for a lost reply: a node whose reply was wrong is not asked for another.
        if failure.status == AttemptStatus::Lost {
            match ask_author(&mut progress, &auth, &failure).await {
                Ok(Some(success)) => {
                    let answer = success.accepted.record.answer().unwrap_or_default();
                    // The answer begins with the part that arrived.
                    let unseen = answer.get(failure.partial.text.len()..).unwrap_or_default();
                    if !unseen.is_empty() {
                        events(TurnEvent::Text(unseen.to_owned()));
                    }
                    return Box::pin(finish(core, session, &auth, success, events)).await;
                }
                Err(ResolveError::Wrong(code)) => failure = failure.exposed(code, auth.memory_from.is_some()),
                Ok(None) | Err(ResolveError::Unknown(_) | ResolveError::Running) => {}
            }
        }
        let in_vain = is_in_vain(&progress, auth.audience, &failure);
        progress.after_failure(&auth, failure, noticed.elapsed(), events).await?;
        if in_vain {
            break;
        }
    }
    Err(match &progress.last {
        Some((node, failure)) => match clock_refusal(core, *node, failure).await {
            Some(difference) => NoChoice::ClocksDiffer(difference).into(),
            None => turn_failed(progress.attempts, *node, failure),
        },
        None => ClientError::NoNode(NoChoice::NoNodes),
    })
}

/// Asks the author of a lost reply for the turn, which must begin with the tokens that it sent. If the answer broke off,
/// the other nodes are probed meanwhile.
async fn ask_author(
    progress: &mut Progress<'_>,
    auth: &SignedObject<TurnAuth>,
    failure: &AttemptFailure,
) -> Result<Option<AttemptSuccess>, ResolveError> {
    let (core, session) = (progress.core, progress.session);
    let in_the_middle = !failure.partial.ids.is_empty();
    let author = AuthorLiveness::of(&progress.session_mesh, core.directory.mesh(), auth.audience);
    if in_the_middle && author == AuthorLiveness::Gone {
        // Its process or machine is gone while other nodes are connected, so it would not answer. The
        // turn that it may have sealed is aborted once another attempt is accepted, as after asking
        // in vain.
        progress.probe_others(auth.audience).await;
        return Ok(None);
    }
    if failure.disowned {
        return Ok(None);
    }
    // A silent node is not asked for long either if another node can serve the turn.
    let hurried = in_the_middle || failure.fault == NodeFailure::Stalled;
    let wait = if hurried { author.status_wait() } else { STATUS_WAIT };
    let substitute = progress.substitute;
    let probing = async {
        if in_the_middle {
            progress.probe_others(auth.audience).await;
        }
    };
    let arrived = Some(&*failure.partial);
    let resolving = Box::pin(resolve::resolve_attempt(core, session, auth, arrived, wait));
    match tokio::join!(resolving, Box::pin(probing)).0 {
        // A second order would read the prompt again, at the same node.
        Err(ResolveError::Running) if !substitute => {
            Box::pin(resolve::resolve_running(core, session, auth, arrived)).await
        }
        resolved => resolved,
    }
}

/// Whether another attempt would only wait: no other node answers either, or the only allowed node did not answer a
/// second time. A second attempt there finds a new address of it, and a third finds nothing more.
fn is_in_vain(progress: &Progress<'_>, node: NodeId, failure: &AttemptFailure) -> bool {
    let only_again = progress.route.node.is_some()
        && failure.fault == NodeFailure::Unreachable
        && progress.tried.contains(&node);
    progress.route.relayer.is_none() && (failure.silent_others.is_some() || only_again)
}

/// Finds the wrong clock after a node refused an attempt because of its time.
async fn clock_refusal(core: &Arc<Core>, node: NodeId, failure: &AttemptFailure) -> Option<ClockDifference> {
    let code = failure.code.filter(|_| failure.is_claim())?;
    core.directory.refused_by_clock(node, code).await
}
