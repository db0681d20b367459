//! The step after a failed attempt.

use std::{sync::Arc, time::Duration};

use baton_proto::{ErrorCode, SignedObject, ids::NodeId, tools::is_definitions, turn::TurnAuth};

use super::progress::Progress;
use crate::{
    attempt::Events,
    background::repair,
    error::ClientError,
    event::{InlinePolicy, TurnEvent},
    network::{
        reputation::NodeFailure,
        retry::{AttemptFailure, AttemptStatus, Carry, NextStep, next_step},
    },
    session::{
        open_session::Session,
        state::{AttemptChange, Entry},
    },
    sync::head::{self, PublishReason},
};

/// How long a turn waits for its head to be published, when a node asks where the history is.
const PUBLISH_WAIT: Duration = Duration::from_secs(2);

/// Journals a failed attempt, informs the caller, and prepares the next attempt.
pub(super) async fn after_failure(
    progress: &mut Progress<'_>,
    auth: &SignedObject<TurnAuth>,
    mut failure: AttemptFailure,
    noticed_ago: Duration,
    events: &mut Events<'_>,
) -> Result<(), ClientError> {
    let node = auth.audience;
    let (code, reason) = (failure.code, failure.reason.clone());
    events(TurnEvent::AttemptFailed { attempt: auth.attempt, node, code, reason, noticed_ago });
    journal(progress.session, auth, &failure).await?;
    let carried = progress.carry(auth, &mut failure, events);
    // If a beginning was given to this node, that is at fault, and neither the turn nor the node.
    if carried != Carry::Void && !is_of_quota(progress, auth, &failure) {
        let step = decide(progress, node, &failure);
        take(progress, step, node, &failure).await?;
    }
    progress.last = Some((node, failure));
    Ok(())
}

/// Journals the facts that a later start needs.
async fn journal(
    session: &Arc<Session>,
    auth: &TurnAuth,
    failure: &AttemptFailure,
) -> Result<(), ClientError> {
    let mut changes = Vec::new();
    if let Some(note) = &failure.note {
        changes.push(AttemptChange::Note(note.bytes().clone()));
    }
    let is_wrong = failure.status == AttemptStatus::Wrong;
    // The author of any other is asked at the next start, and informed when another attempt is accepted.
    if is_wrong || failure.status == AttemptStatus::NothingSigned {
        changes.push(AttemptChange::Ended { is_wrong });
    }
    if changes.is_empty() {
        return Ok(());
    }
    session.record(changes.into_iter().map(|change| Entry::OfAttempt(auth.attempt, change)).collect()).await
}

/// Whether the node refused the quota, so that the next attempt shows another one, or none.
fn is_of_quota(progress: &Progress<'_>, auth: &SignedObject<TurnAuth>, failure: &AttemptFailure) -> bool {
    let config = &progress.core.config;
    failure.code == Some(ErrorCode::QuotaExceeded)
        && failure.is_claim()
        && config.quota.as_ref().is_some_and(|quota| quota.note_refused(auth, progress.core.now_ms()))
}

fn decide(progress: &mut Progress<'_>, node: NodeId, failure: &AttemptFailure) -> NextStep {
    let code = failure.code.map(|code| (code, failure.is_claim()));
    let mut seen = code.is_some_and(|code| progress.codes.contains(&code));
    // A node that cannot enforce a schema, or report token probabilities, refuses with this code; others
    // can.
    if failure.code == Some(ErrorCode::PayloadRejected) && asks_more(progress.session) {
        seen = progress.tried.contains(&node);
    }
    progress.codes.extend(code);
    next_step(failure, progress.route.with_locator, seen)
}

async fn take(
    progress: &mut Progress<'_>,
    step: NextStep,
    node: NodeId,
    failure: &AttemptFailure,
) -> Result<(), ClientError> {
    let core = progress.core;
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
            progress.route.inline = InlinePolicy::Always;
            repair::repair(core, progress.session).await;
        }
        NextStep::Locate => {
            progress.route.with_locator = true;
            publish(progress).await?;
        }
        NextStep::Stop => return Err(turn_failed(progress.attempts, node, failure)),
    }
    Ok(())
}

/// Publishes the head for a node that asks where the history is.
async fn publish(progress: &Progress<'_>) -> Result<(), ClientError> {
    let (core, session) = (progress.core, progress.session);
    if progress.route.reconcile {
        // The node may know a newer head than ours.
        head::check_for_newer(core, session).await?;
    }
    // A silent index must not hold up the answer: the node may find the head there, or gets the history itself.
    let publishing = head::publish_head(core, session, PublishReason::Head);
    match tokio::time::timeout(PUBLISH_WAIT, publishing).await.unwrap_or(Ok(())) {
        Err(error) if error.is_divergence() && progress.route.reconcile => return Err(error),
        Err(error) => tracing::warn!(%error, "the head record could not be published again"),
        Ok(()) => {}
    }
    Ok(())
}

/// Whether the pending turn needs a feature that not every node has.
fn asks_more(session: &Session) -> bool {
    session.read(|state| {
        let sampling = state.pending.as_ref().map(|pending| &pending.turn.sampling);
        sampling.is_some_and(|sampling| sampling.json_schema.is_some() || sampling.logprobs > 0)
            || state.system.iter().any(is_definitions)
    })
}

/// The failure of the turn at its last node.
pub(super) fn turn_failed(attempts: u32, node: NodeId, failure: &AttemptFailure) -> ClientError {
    let relayed = failure.status == AttemptStatus::Hearsay;
    let reason = match &failure.silent_others {
        Some(others) => format!("{}{others}", failure.reason),
        None => failure.reason.clone(),
    };
    let (code, retry_after_ms) = (failure.code, failure.retry_after_ms);
    ClientError::TurnFailed { attempts, node, code, reason, relayed, retry_after_ms }
}
