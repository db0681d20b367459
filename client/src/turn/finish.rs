//! The end of a turn: journals the accepted turn, informs the caller, and leaves the rest to the background.

use std::sync::Arc;

use baton_proto::{
    ErrorCode, SignedObject,
    chain::effective_newest_first,
    commit::AcceptedTurn,
    contradiction::Contradiction,
    note::{Acknowledgement, TurnNote, TurnNoteKind},
    record::RecordKind,
    turn::TurnAuth,
};

use crate::{
    attempt::{self, AttemptSuccess, Events, checks, delivery},
    background,
    core::Core,
    error::{ClientError, log_failure},
    event::{Omissions, TurnEvent, TurnOutcome},
    network::reputation::NodeFailure,
    proofs,
    session::{
        open_session::Session,
        state::{Entry, Proof, State, TurnEntry},
    },
};

/// Journals an accepted turn, informs the caller, and leaves the rest to the background.
pub(super) async fn finish(
    core: &Arc<Core>,
    session: &Arc<Session>,
    auth: &SignedObject<TurnAuth>,
    success: AttemptSuccess,
    events: &mut Events<'_>,
) -> Result<TurnOutcome, ClientError> {
    let AttemptSuccess { accepted, mut memory, tokens, tail } = success;
    let now = core.now_ms();
    let used = usize::from(accepted.receipt.memory_items).min(memory.len());
    let omitted = Omissions {
        turns: session.read(|state| omitted_turns(state, &accepted)),
        memories: memory.len() - used,
    };
    memory.truncate(used);
    let others = session.read(attempt::open_attempts);
    let turn = session.read(|state| turn_entry(state, auth, &accepted, now))?;
    let turn = TurnEntry { memory: memory.clone(), tokens, ..turn };
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

/// The entry of an accepted turn, with its countersigned receipt; without its memory and tokens.
fn turn_entry(
    state: &State,
    auth: &SignedObject<TurnAuth>,
    accepted: &AcceptedTurn,
    now_ms: u64,
) -> Result<TurnEntry, ErrorCode> {
    let ack = TurnNoteKind::Ack(Acknowledgement {
        link_hash: accepted.link.link_hash(),
        blob_digest: accepted.blob_digest,
        receipt_hash: accepted.receipt.receipt_hash(),
    });
    let ack = SignedObject::sign(TurnNote::of(auth, ack, now_ms), &state.root.signing_key());
    let mut attempts = state.pending.iter().flat_map(|pending| &pending.attempts);
    let attempt = attempts.find(|known| known.auth.attempt == auth.attempt);
    Ok(TurnEntry {
        entry: accepted.segment.entries.last().ok_or(ErrorCode::BadSequence)?.clone(),
        blob_digest: accepted.blob_digest,
        blob_length: u32::try_from(accepted.blob.len()).map_err(|_| ErrorCode::BlobTooLarge)?,
        accepted_ms: now_ms,
        proof: Some(Proof {
            auth: auth.bytes().clone(),
            receipt: accepted.receipt.bytes().clone(),
            ack: Some(ack.bytes().clone()),
        }),
        ordered: attempt.map(|attempt| attempt.terms.storage),
        memory: Vec::new(),
        tokens: Vec::new(),
    })
}

/// Avoids the nodes that others contradict about an answer, and keeps the proof.
async fn avoid_accused(core: &Arc<Core>, proof: Contradiction) {
    for node in proof.check().map(|report| report.accused).unwrap_or_default() {
        tracing::warn!(%node, "a node's statement contradicts those of others; `baton nodes --proofs` lists the proof");
        core.directory.failed(node, NodeFailure::Contradicted, 0);
    }
    let kept = core.blocking(move |core| proofs::keep(core, &proof)).await;
    log_failure(kept, "a proof of a contradiction was not written");
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
