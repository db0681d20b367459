//! The shape of an accepted turn, for decoys that imitate it: sizes, settings and times, and no text.

use baton_proto::{
    receipt::{EngineKind, Receipt},
    record::RecordKind,
    tools::is_definitions,
};

use crate::{
    core::Core,
    decoy_ledger::TurnShape,
    session::{open_session::Session, state::State},
};

/// Records the session's last turn, which has this receipt, in the ledger of decoys.
pub(super) fn note(core: &Core, session: &Session, receipt: &Receipt) {
    // Answers of other engines cannot be compared.
    let Some(account) = core.decoys.as_ref().filter(|_| receipt.engine == EngineKind::Native) else { return };
    let output = receipt.tokens.output.saturating_sub(receipt.tokens.resumed);
    let tokens = u64::from(receipt.tokens.input) + u64::from(output);
    let shape = session.read(|state| shape_of_last(state, receipt));
    account.note_turn(receipt.node, tokens, shape);
}

/// The shape of the last turn; none for a turn that decoys do not imitate: with memory, a schema, tools, or
/// several messages, or an edit.
fn shape_of_last(state: &State, receipt: &Receipt) -> Option<TurnShape> {
    let (turn, meta) = state.last()?;
    let record = turn.record.as_ref()?;
    let auth = meta.auth.as_ref()?;
    let (sampling, max_output_tokens) = meta.asked.as_ref()?;
    let system = meta.system.as_deref()?;
    let [message, _answer] = record.messages.as_slice() else { return None };
    let plain = record.kind == RecordKind::Turn
        && auth.memory_from.is_none()
        && sampling.json_schema.is_none()
        && sampling.min_p == 0.0
        && !system.iter().any(is_definitions);
    let before = state.meta.len().checked_sub(2).and_then(|index| state.meta.get(index));
    let bytes = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
    plain.then(|| TurnShape {
        model: receipt.model,
        seq: receipt.seq,
        bytes: bytes(message.text.len()),
        system_bytes: bytes(system.iter().map(|message| message.text.len()).sum()),
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k,
        repetition_penalty: sampling.repetition_penalty,
        logprobs: sampling.logprobs,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        seeded: sampling.seed != 0,
        max_output_tokens: *max_output_tokens,
        pause_ms: before.map_or(0, |before| auth.issued_ms.saturating_sub(before.accepted_ms)),
    })
}
