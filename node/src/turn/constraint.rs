//! What a turn asks of its answer beyond words, settled before the turn is accepted: a schema that cannot be used, or an
//! engine that cannot, costs no slot.

use std::{sync::Arc, time::Duration};

use baton_proto::{ErrorCode, turn::Payload};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};
use zeroize::Zeroizing;

use super::{admission::Ticket, model, window::engine_code};
use crate::{
    core::{limits::MAX_REPLY_BYTES, slots::Place},
    engine::Constraint,
};

/// Schemas are compiled one at a time: whatever a hostile one costs, it has one core of this machine.
static COMPILING: Semaphore = Semaphore::const_new(1);
/// For a schema's turn to be compiled and for that itself. Nearly all take some milliseconds.
const COMPILE_TIME: Duration = Duration::from_secs(2);

/// Bytes that a token and its report take in a reply, as events are padded.
const TOKEN_BYTES: usize = 256;
/// Bytes that each alternative adds: its number, its probability, and rather long bytes of its own.
const ALTERNATIVE_BYTES: usize = 64;

/// Prepares what the answer must satisfy, off the reactor.
///
/// # Errors
/// [`ErrorCode::PayloadRejected`] for an engine that cannot do what is asked, and for a schema that cannot be used or takes
/// too long; [`ErrorCode::QuotaExceeded`] for more reports than a reply has room for; [`ErrorCode::Busy`] while others are
/// compiled.
pub(super) async fn prepare(
    ticket: &Ticket,
    place: &Arc<Place>,
    payload: &Payload,
) -> Result<Option<Constraint>, ErrorCode> {
    if payload.sampling.logprobs > 0 && !ticket.engine.reports_logprobs() {
        return Err(ErrorCode::PayloadRejected);
    }
    if !reports_fit(ticket.auth.max_output_tokens, payload.sampling.logprobs) {
        return Err(ErrorCode::QuotaExceeded);
    }
    let Some(schema) = payload.json_schema.clone().map(Zeroizing::new) else { return Ok(None) };
    // A schema is compiled for the model's words.
    let hold = model::hold(&ticket.engine, place).await?;
    let deadline = Instant::now() + COMPILE_TIME;
    let turn = timeout_at(deadline, COMPILING.acquire()).await.map_err(|_| ErrorCode::Busy)?;
    let turn = turn.map_err(|_| ErrorCode::Internal)?;
    let engine = ticket.engine.clone();
    let compiling = tokio::task::spawn_blocking(move || {
        let constraint = engine.constrain(&schema);
        // What is not waited for any longer still keeps others from compiling.
        drop((turn, hold));
        constraint
    });
    match timeout_at(deadline, compiling).await {
        Err(_) => Err(ErrorCode::PayloadRejected),
        Ok(Err(_)) => Err(ErrorCode::Internal),
        Ok(Ok(constraint)) => constraint.map(Some).map_err(|error| engine_code(&error)),
    }
}

/// Whether the reports of so many tokens, with so many alternatives each, fit into a reply.
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
