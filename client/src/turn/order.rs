//! One attempt at the pending turn, in three parts: a node is chosen within the caller's price, the order is journaled,
//! and it is sent.

use std::time::Duration;

use baton_proto::{ErrorCode, SignedObject, memory::MemoryItem, turn::TurnAuth};

use super::{model_defaults, progress::Progress};
use crate::{
    attempt::{
        self, AttemptContext, AttemptSuccess, Events, opening,
        request::{self, AttemptOptions, PreparedAttempt},
    },
    error::{ClientError, StateError},
    event::{DEFAULT_OUTPUT_TOKENS, MODEL_OUTPUT_TOKENS, TurnEvent},
    network::{
        choose::{Choice, NoChoice, Wish},
        nodes::InFlight,
        retry::{AttemptFailure, pause_before_repeat},
    },
    session::state::{AttemptChange, AttemptEntry, Entry, PendingTurn, State},
};

/// Limit for opening a substream in the middle of an answer that another node could continue. It is a few
/// round trips to the other side of the world. A dead node may be noticed only by its silence.
const HURRIED_OPEN: Duration = Duration::from_secs(1);

/// An attempt that was made.
pub(super) struct AttemptReport {
    pub(super) auth: SignedObject<TurnAuth>,
    pub(super) result: Result<AttemptSuccess, AttemptFailure>,
}

/// Makes one attempt. The outer error is the client's own.
pub(super) async fn attempt(
    progress: &mut Progress<'_>,
    events: &mut Events<'_>,
) -> Result<AttemptReport, ClientError> {
    let (choice, _in_flight) = choose(progress, events).await?;
    let order = journal(progress, &choice).await?;
    let auth = order.prepared.auth.clone();
    events(TurnEvent::Attempt {
        attempt: auth.attempt,
        node: choice.node,
        model: choice.offer.name.clone(),
        engine: choice.offer.engine,
        continues: auth.resume.map_or(0, |prefix| prefix.token_count),
    });
    let result = send(progress, &choice, order, events).await;
    Ok(AttemptReport { auth, result })
}

/// Chooses the node, and waits before the same node is asked again.
async fn choose(
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

/// An order in the journal, ready to be sent.
struct JournaledOrder {
    turn: PendingTurn,
    prepared: PreparedAttempt,
    /// The caller's own memory in the request.
    own_memory: Vec<MemoryItem>,
}

/// Prepares the order for the chosen node, and journals it.
async fn journal(progress: &Progress<'_>, choice: &Choice) -> Result<JournaledOrder, ClientError> {
    let (session, route) = (progress.session, &progress.route);
    let settle = |state: &State| {
        state.pending.as_ref().and_then(|pending| model_defaults::settled(&pending.turn, &choice.offer.name))
    };
    if let Some(turn) = session.read(settle) {
        session.record(vec![Entry::Pending(turn)]).await?;
    }
    // A relayer's memory and the caller's own exclude each other: an authorisation names one source.
    let own = route.memory.as_ref().filter(|own| route.relayer.is_none() && !own.items.is_empty());
    let memory_from = route.relayer.as_ref().map(|relayer| relayer.node.public_key());
    let options = AttemptOptions {
        memory_from: memory_from.or_else(|| own.map(|own| own.signer.public_key())),
        memory: own,
        memory_tokens: route.memory_tokens,
        with_locator: route.with_locator,
        inline: route.inline,
        begun: progress.begun.as_ref(),
        audits: false,
    };
    let now = progress.core.now_ms();
    let (turn, prepared) = session.read(|state| {
        let pending = state.pending.as_ref().ok_or(StateError::NothingPending)?;
        let attempt = u32::try_from(pending.attempts.len()).map_err(|_| ErrorCode::BadSequence)?;
        let prepared = request::prepare(state, &pending.turn, attempt, choice, &options, now)?;
        Ok::<_, ClientError>((pending.turn.clone(), prepared))
    })?;
    let auth = &prepared.auth;
    let entry = AttemptEntry { attempt: auth.attempt, auth: auth.bytes().clone(), terms: prepared.terms };
    let mut entries = vec![Entry::Attempt(entry)];
    // Without it, the attempt could not be compared with its receipt after a crash.
    let own_memory = own.map(|own| own.items.clone()).unwrap_or_default();
    if !own_memory.is_empty() {
        entries.push(Entry::OfAttempt(auth.attempt, AttemptChange::Memory(own_memory.clone())));
    }
    session.record(entries).await?;
    Ok(JournaledOrder { turn, prepared, own_memory })
}

/// Sends a journaled order, with the waits that suit the node, and follows the reply.
async fn send(
    progress: &Progress<'_>,
    choice: &Choice,
    order: JournaledOrder,
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
        session: progress.session,
        directory,
        session_mesh: &progress.session_mesh,
        timeouts,
        relayer: route.relayer.as_ref(),
        quota: core.config.quota.as_deref(),
        hint: route.hint.as_ref(),
        own_memory: order.own_memory,
        begun: progress.begun.as_ref(),
        first_token,
        substitute,
        faster: slowest.is_some(),
    };
    Box::pin(attempt::run(&context, &order.turn, order.prepared, events)).await
}
