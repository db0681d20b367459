//! Constraints on a turn's answer, checked before the turn is accepted. So an unusable schema or an
//! unsuitable engine costs no slot.

use std::{sync::Arc, time::Duration};

use baton_limits::Ticket;
use baton_proto::{ErrorCode, tools::Definitions, turn::Payload};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};
use zeroize::Zeroizing;

use super::{admission::AdmittedTurn, model, window::engine_refusal};
use crate::{
    core::{limits::MAX_REPLY_BYTES, refusal::Refusal},
    engine::{Constraint, Engine, EngineError},
};

/// Schemas are compiled one at a time: a hostile schema takes at most one core of this machine.
static COMPILING: Semaphore = Semaphore::const_new(1);
/// Timeout of a schema's wait and compilation. Nearly all take some milliseconds.
const COMPILE_TIME: Duration = Duration::from_secs(2);

/// Bytes of a token and its report in a reply, including the padding of events.
const TOKEN_BYTES: usize = 256;
/// Additional bytes of each alternative: its number, its probability, and rather long bytes of its own.
const ALTERNATIVE_BYTES: usize = 64;

/// Prepares the constraint on the answer, off the reactor.
///
/// # Errors
/// - [`ErrorCode::PayloadRejected`]: the engine lacks a requested feature, or the schema is unusable or takes
///   too long.
/// - [`ErrorCode::QuotaExceeded`]: more reports than a reply can hold.
/// - [`ErrorCode::Busy`]: other schemas are being compiled.
pub(super) async fn prepare(
    admitted: &AdmittedTurn,
    ticket: &Arc<Ticket>,
    payload: &Payload,
) -> Result<Option<Constraint>, Refusal> {
    if payload.sampling.logprobs > 0 && !admitted.engine.info().reports_logprobs {
        return Err(rejected("this engine reports no log probabilities"));
    }
    if !reports_fit(admitted.auth.max_output_tokens, payload.sampling.logprobs) {
        return Err(ErrorCode::QuotaExceeded.into());
    }
    let schema = payload.json_schema.clone().map(Zeroizing::new);
    let tools = Definitions::pinned(&payload.system).flatten();
    if schema.is_none() && tools.is_none() {
        return Ok(None);
    }
    // A schema is compiled for the model's vocabulary.
    let hold = model::hold(&admitted.engine, ticket).await?;
    let deadline = Instant::now() + COMPILE_TIME;
    let turn = timeout_at(deadline, COMPILING.acquire()).await.map_err(|_| ErrorCode::Busy)?;
    let turn = turn.map_err(|_| ErrorCode::Internal)?;
    let engine = admitted.engine.clone();
    let compiling = tokio::task::spawn_blocking(move || {
        let constraint =
            constraint_of(engine.as_ref(), schema.as_deref().map(String::as_str), tools.as_ref());
        // An abandoned compilation still keeps others from compiling.
        drop((turn, hold));
        constraint
    });
    match timeout_at(deadline, compiling).await {
        Err(_) => Err(rejected("the schema takes too long to compile")),
        Ok(Err(_)) => Err(ErrorCode::Internal.into()),
        Ok(Ok(constraint)) => constraint.map_err(|error| engine_refusal(&error)),
    }
}

/// The constraint on an answer: by its schema, or by the tools of its prompt. CPU-bound.
pub(super) fn constraint_of(
    engine: &dyn Engine,
    schema: Option<&str>,
    tools: Option<&Definitions>,
) -> Result<Option<Constraint>, EngineError> {
    match (schema, tools) {
        (Some(schema), _) => engine.constrain(schema).map(Some),
        (None, Some(tools)) => engine.constrain_calls(tools),
        (None, None) => Ok(None),
    }
}

fn rejected(reason: &str) -> Refusal {
    Refusal::from(ErrorCode::PayloadRejected).because(reason)
}

/// Whether the reports of `tokens` tokens, each with this number of alternatives, fit into a reply.
fn reports_fit(tokens: u32, alternatives: u8) -> bool {
    let each = TOKEN_BYTES + ALTERNATIVE_BYTES * usize::from(alternatives);
    alternatives == 0 || (tokens as usize).saturating_mul(each) <= MAX_REPLY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_answer_has_room_for_fewer_alternatives() {
        for (tokens, alternatives, fits) in
            [(4096, 20, true), (8192, 5, true), (8192, 20, false), (32 * 1024, 1, false), (u32::MAX, 0, true)]
        {
            assert_eq!(reports_fit(tokens, alternatives), fits, "{tokens} tokens, {alternatives}");
        }
    }
}
