//! Builds a turn's prompt: verified history, memory and new messages, cut to the model's context and the
//! client's price.

use std::sync::Arc;

use baton_limits::Ticket;
use baton_proto::{
    ErrorCode,
    chain::{HistoryTurn, effective},
    limits::MAX_BLOB_BYTES,
    node_record::storage_units,
    record::RecordKind,
    turn::TurnAuth,
};
use zeroize::Zeroizing;

use super::{DecryptedRequest, admission::AdmittedTurn};
use crate::{
    core::{Core, limits::Price, refusal::Refusal},
    engine::{Engine, EngineError, Hold},
    prompt::{FittedWindow, MemoryBlock, Prompt, TurnText, WindowError, fit_window},
};

/// A prompt, and its figures for the receipt.
pub(crate) struct TurnPrompt {
    /// The prompt.
    pub(crate) prompt: Prompt,
    /// First sequence number of its history; the turn's own without history.
    pub(crate) window_from: u64,
    /// Tokens of the prompt; an estimate for a proxied engine.
    pub(crate) input_tokens: u32,
    /// The part of `input_tokens` for memory.
    pub(crate) memory_tokens: u32,
    /// Number of memory items used, taken best first.
    pub(crate) memory_used: usize,
    /// Maximum tokens of the answer, by cap, price and quota.
    pub(crate) max_tokens: u32,
}

/// Builds the prompt, off the reactor: counting tokens takes CPU time.
///
/// # Errors
/// [`ErrorCode::ContextOverflow`], [`ErrorCode::QuotaExceeded`] when the price cap does not even cover the
/// prompt, [`ErrorCode::PayloadRejected`] when the model's template refuses the messages.
pub(crate) async fn build_prompt(
    core: &Core,
    admitted: &AdmittedTurn,
    (ticket, hold): (&Arc<Ticket>, &Hold),
    opened: &Arc<DecryptedRequest>,
    turns: &Arc<Vec<HistoryTurn>>,
) -> Result<TurnPrompt, Refusal> {
    let (engine, opened, turns) = (admitted.engine.clone(), opened.clone(), turns.clone());
    let auth = TurnAuth::clone(&admitted.auth);
    let price = core.limits.price;
    let is_charged = opened.has_answer(&auth) || !auth.checks.is_empty();
    // Another node wrote this part: this node only reads it.
    let resumed = u32::try_from(opened.payload.resume_tokens.len()).unwrap_or(u32::MAX);
    let storage = &opened.payload.storage;
    let epochs = storage.open_epochs.max(storage.closed_epochs);
    let storage_price = storage_units(MAX_BLOB_BYTES, epochs).saturating_mul(core.limits.storage.price);
    // Counting cannot be stopped: a turn that ends before keeps its slot and its model until then.
    let kept = (ticket.clone(), hold.clone());
    let fitted = tokio::task::spawn_blocking(move || {
        let turn_prompt = fit(engine.as_ref(), &auth, &opened, &turns)?;
        let max_tokens = affordable(&auth, price, storage_price, turn_prompt.input_tokens)?;
        drop(kept);
        Ok::<_, Refusal>(TurnPrompt { max_tokens, ..turn_prompt })
    });
    let mut turn_prompt = fitted.await.map_err(|_| Refusal::from(ErrorCode::Internal))??;
    if is_charged {
        let read = turn_prompt.input_tokens.saturating_add(resumed);
        let left = admitted.charge.hold_prompt(read)?;
        turn_prompt.max_tokens = turn_prompt.max_tokens.min(left.saturating_add(resumed));
    }
    Ok(turn_prompt)
}

fn fit(
    engine: &dyn Engine,
    auth: &TurnAuth,
    opened: &DecryptedRequest,
    turns: &[HistoryTurn],
) -> Result<TurnPrompt, Refusal> {
    let payload = &opened.payload;
    let history = texts(turns, payload.kind, payload.supersedes_from);
    let memory = memory_block(opened);
    let count = |prompt: &Prompt| engine.count(prompt);
    let fit_into = |budget| {
        fit_window(&payload.system, &history, memory.as_ref(), &payload.messages, budget, count)
            .map_err(overflow)
    };

    let context = engine.info().context_tokens;
    let with_answer = context.saturating_sub(auth.max_output_tokens.min(context / 2));
    let resumed = u32::try_from(payload.resume_tokens.len()).unwrap_or(u32::MAX);
    let bare = context.saturating_sub(resumed.saturating_add(1));
    // Room for the whole answer if possible; a long message may take all but one token.
    let fitted = match fit_into(with_answer.min(bare)) {
        Err(refusal) if refusal.code == ErrorCode::ContextOverflow => fit_into(bare)?,
        fitted => fitted?,
    };
    let memory_tokens = count_memory(engine, &fitted)?.min(auth.memory_tokens);
    Ok(TurnPrompt {
        window_from: fitted.first_seq.unwrap_or(auth.seq),
        input_tokens: fitted.tokens,
        memory_tokens,
        memory_used: fitted.memory_items_used,
        prompt: fitted.prompt,
        max_tokens: 0,
    })
}

fn overflow(error: WindowError<EngineError>) -> Refusal {
    match &error {
        WindowError::ContextOverflow { .. } => {
            Refusal::from(ErrorCode::ContextOverflow).because(&error.to_string())
        }
        WindowError::Count(error) => engine_refusal(error),
    }
}

/// The refusal of an engine's error. It has a reason where a client, or its user, can do something about it.
pub(crate) fn engine_refusal(error: &EngineError) -> Refusal {
    let code = engine_code(error);
    match error {
        EngineError::Backend { retry_after_ms, words, .. } => {
            let gap = if words.is_empty() { "" } else { ": " };
            let reason = Zeroizing::new(format!("{error}{gap}{}", words.as_str()));
            let retry_after_ms = Refusal::from(code).retry_after_ms.max(*retry_after_ms);
            Refusal::after(code, retry_after_ms).because(&reason)
        }
        EngineError::ContextOverflow { .. }
        | EngineError::InvalidSampling
        | EngineError::Unsupported { .. }
        | EngineError::Schema { .. }
        | EngineError::Template { .. }
        | EngineError::ToolsUnsupported
        | EngineError::BackendUnreachable
        | EngineError::BackendProtocol { .. }
        | EngineError::BackendTruncated => Refusal::from(code).because(&error.to_string()),
        _ => code.into(),
    }
}

/// The wire code of an engine's error.
pub(crate) fn engine_code(error: &EngineError) -> ErrorCode {
    match error {
        EngineError::Busy { .. }
        | EngineError::ShutDown
        | EngineError::NotLoaded
        | EngineError::NoRoom { .. } => ErrorCode::Busy,
        EngineError::ContextOverflow { .. } => ErrorCode::ContextOverflow,
        EngineError::InvalidSampling
        | EngineError::InvalidResume
        | EngineError::ResumeUnsupported
        | EngineError::Unsupported { .. }
        | EngineError::Schema { .. }
        | EngineError::Template { .. } => ErrorCode::PayloadRejected,
        EngineError::Backend { fault, .. } => fault.code(),
        // Another node may have a suitable model.
        EngineError::ToolsUnsupported | EngineError::LoadFailed { .. } => ErrorCode::ModelUnavailable,
        // The same server would do it again.
        EngineError::BackendProtocol { .. } => ErrorCode::BackendDenied,
        EngineError::BackendUnreachable | EngineError::BackendTruncated | EngineError::Compute { .. } => {
            ErrorCode::Internal
        }
    }
}

/// The effective history, without superseded turns; if this turn is an edit, it supersedes turns as well. A
/// summary still reads the turns that it will replace.
pub(crate) fn texts(turns: &[HistoryTurn], kind: RecordKind, supersedes_from: Option<u64>) -> Vec<TurnText> {
    let end = match (kind, supersedes_from) {
        (RecordKind::Edit, Some(from)) => from,
        _ => u64::MAX,
    };
    effective(turns)
        .into_iter()
        .filter_map(|position| turns.get(position))
        .filter(|turn| turn.link.seq < end)
        .filter_map(|turn| {
            let messages = turn.record.as_ref()?.messages.clone();
            Some(TurnText { seq: turn.link.seq, messages })
        })
        .collect()
}

fn memory_block(opened: &DecryptedRequest) -> Option<MemoryBlock> {
    if opened.memory.is_empty() {
        return None;
    }
    Some(MemoryBlock {
        fence_tag: opened.payload.grant.record_key.record_key().memory_fence(),
        items: opened.memory.clone(),
        max_tokens: opened.memory_tokens,
    })
}

/// Tokens of the memory: the difference between the prompt with and without it.
fn count_memory(engine: &dyn Engine, fitted: &FittedWindow) -> Result<u32, Refusal> {
    if fitted.memory_items_used == 0 {
        return Ok(0);
    }
    let without = engine.count(&fitted.prompt.without_memory()).map_err(|error| engine_refusal(&error))?;
    Ok(fitted.tokens.saturating_sub(without))
}

/// Tokens of the answer that the client's maximum price covers, beside the prompt and the storage.
fn affordable(
    auth: &TurnAuth,
    price: Price,
    storage_price: u64,
    input_tokens: u32,
) -> Result<u32, ErrorCode> {
    let left = auth.max_price.checked_sub(storage_price).ok_or(ErrorCode::QuotaExceeded)?;
    let input = u128::from(input_tokens) * u128::from(price.input);
    let left = (u128::from(left) * 1000).checked_sub(input).ok_or(ErrorCode::QuotaExceeded)?;
    match left.checked_div(u128::from(price.output)) {
        None => Ok(auth.max_output_tokens),
        Some(0) if auth.max_output_tokens > 0 => Err(ErrorCode::QuotaExceeded),
        Some(tokens) => Ok(auth.max_output_tokens.min(u32::try_from(tokens).unwrap_or(u32::MAX))),
    }
}

/// Price of a turn's tokens, in millionths of the node's unit, rounded down.
pub(crate) fn price_of(price: Price, input_tokens: u32, output_tokens: u32) -> u64 {
    let thousandths = u128::from(input_tokens) * u128::from(price.input)
        + u128::from(output_tokens) * u128::from(price.output);
    u64::try_from(thousandths / 1000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_breaks_the_protocol_is_not_asked_again() {
        let error = EngineError::BackendProtocol { reason: "" };
        assert_eq!(engine_code(&error), ErrorCode::BackendDenied);
    }
}
