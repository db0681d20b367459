//! One attempt at the pending turn, in three parts: a node is chosen within the caller's price, the order is journaled,
//! and it is sent.

use std::time::Duration;

use baton_proto::ErrorCode;

use super::{model_defaults, progress::Progress};
use crate::{
    attempt::{
        self, AttemptContext, AttemptSuccess, Events, opening,
        request::{AttemptOrder, PreparedAttempt},
    },
    error::ClientError,
    event::{DEFAULT_OUTPUT_TOKENS, MODEL_OUTPUT_TOKENS, TurnEvent},
    network::{
        choose::{Choice, NoChoice, Wish},
        nodes::InFlight,
        retry::{AttemptFailure, pause_before_repeat},
    },
    session::state::{AttemptChange, AttemptEntry, Entry, State},
};

/// Limit for opening a substream in the middle of an answer that another node could continue. It is a few
/// round trips to the other side of the world. A dead node may be noticed only by its silence.
const HURRIED_OPEN: Duration = Duration::from_secs(1);

/// Chooses the node, and waits before the same node is asked again.
pub(super) async fn choose(
    progress: &mut Progress<'_>,
    events: &mut Events<'_>,
) -> Result<(Choice, InFlight), ClientError> {
    let (core, directory) = (progress.core, &progress.core.directory);
    let (last_model, warm, output_tokens) =
        progress.session.read(|state| (state.last_model(), core.warm_node(state), output_tokens(state)));
    let model_of_session = last_model.filter(|_| progress.route.model.is_none());
    let name = model_of_session.map(|model| model.to_string());
    let by_route = core.wish(&progress.route);
    let model = by_route.model.or(name.as_deref());
    let wish = Wish { model, warm, output_tokens, tried: &progress.tried, ..by_route };
    let last_resorts = progress.last_resorts();
    let soon = Wish { tried: &last_resorts, ..wish };
    let continues = progress.begun.as_ref().and_then(|begun| {
        directory.choose_to_continue(&soon, begun).or_else(|| directory.choose_to_continue(&wish, begun))
    });
    if continues.is_none() && progress.begun.take().is_some() {
        events(TurnEvent::Restarted);
    }
    let (choice, in_flight) = match continues {
        Some(chosen) => chosen,
        None => Box::pin(directory.choose(&soon)).await.map_err(|why| match (why, model_of_session) {
            (NoChoice::ModelUnavailable { served, .. }, Some(model)) => {
                let model = directory.model_name(model).unwrap_or_else(|| model.to_string());
                NoChoice::ModelOfSession { model, served }
            }
            (why, _) => why,
        })?,
    };
    progress.substitute = directory.has_substitute(&wish, &choice);
    if progress.tried.contains(&choice.node) {
        // Asking the same nodes again changes nothing.
        if progress.refused_for_good() {
            return Err(ClientError::NoNode(NoChoice::NoNodes));
        }
        let asked = progress.last.as_ref().map_or(0, |(_, failure)| failure.retry_after_ms);
        tokio::time::sleep(pause_before_repeat(progress.attempts, asked)).await;
    }
    Ok((choice, in_flight))
}

/// Most tokens that the pending turn requests.
fn output_tokens(state: &State) -> u32 {
    match state.pending.as_ref().map_or(0, |pending| pending.turn.max_output_tokens) {
        MODEL_OUTPUT_TOKENS => DEFAULT_OUTPUT_TOKENS,
        tokens => tokens,
    }
}

/// Prepares the order for the chosen node, and journals it.
pub(super) async fn journal(
    progress: &Progress<'_>,
    choice: &Choice,
) -> Result<PreparedAttempt, ClientError> {
    let session = progress.session;
    let settle = |state: &State| {
        state.pending.as_ref().and_then(|pending| model_defaults::settled(&pending.turn, &choice.offer.name))
    };
    if let Some(turn) = session.read(settle) {
        session.record(vec![Entry::Pending(turn)]).await?;
    }
    let (route, begun, now_ms) = (&progress.route, progress.begun.as_ref(), progress.core.now_ms());
    let order = session.read(|state| {
        let pending = state.pending.as_ref().ok_or(ErrorCode::Aborted)?;
        let attempt = u32::try_from(pending.attempts.len()).map_err(|_| ErrorCode::BadSequence)?;
        AttemptOrder { state, turn: &pending.turn, attempt, choice, route, begun, now_ms }.prepare()
    })?;
    let (attempt, auth) = (order.auth.attempt, order.auth.bytes().clone());
    let mut entries = vec![Entry::Attempt(AttemptEntry { attempt, auth, terms: order.terms })];
    // Without it, the attempt could not be compared with its receipt after a crash.
    if !order.memory.is_empty() {
        entries.push(Entry::OfAttempt(attempt, AttemptChange::Memory(order.memory.clone())));
    }
    session.record(entries).await?;
    Ok(order)
}

/// Sends a journaled order, with the waits that suit the node, and follows the reply.
pub(super) async fn send(
    progress: &Progress<'_>,
    choice: &Choice,
    order: PreparedAttempt,
    events: &mut Events<'_>,
) -> Result<AttemptSuccess, AttemptFailure> {
    let (core, route, substitute) = (progress.core, &progress.route, progress.substitute);
    let (directory, mut timeouts) = (&core.directory, core.config.timeouts);
    let prompt = progress.session.read(State::prompt_tokens).min(choice.offer.context_tokens);
    // We do not know this node's speed. If another node could replace it, expect that node's speed; otherwise a
    // silent node could hold a long prompt for minutes.
    let slowest = directory.slowest_first_token(choice.offer.model).filter(|_| substitute);
    let usual = directory.first_token_of(choice.node).or(slowest);
    let first_token = attempt::first_token_wait(timeouts.first_token, prompt, usual);
    if progress.begun.is_some() && substitute {
        timeouts.open = timeouts.open.min(HURRIED_OPEN);
    } else if route.relayer.is_none() {
        timeouts.open = timeouts.open.min(opening::DIRECT_OPEN);
    }
    let context = AttemptContext {
        core,
        session: progress.session,
        session_mesh: &progress.session_mesh,
        route,
        begun: progress.begun.as_ref(),
        timeouts,
        first_token,
        substitute,
        faster: slowest.is_some(),
    };
    Box::pin(attempt::run(&context, order, events)).await
}
