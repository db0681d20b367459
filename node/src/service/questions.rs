//! Requests about turns, apart from serving them: status, acknowledgement, abort, blobs.

use baton_mesh::Caller;
use baton_proto::{
    ErrorCode, SignedBytes, SignedObject,
    ids::{BlobDigest, FetchProof},
    limits::{MAX_AUTH_LIFETIME_MS, MAX_CLOCK_SKEW_MS},
    note::{Acknowledgement, TurnNote, TurnNoteKind},
    wire::{NodeFrame, TurnStatus},
};

use crate::{
    core::{Core, refusal::Refusal},
    journal::{EntryState, TurnKey},
};

type AnswerResult = Result<NodeFrame, Refusal>;

/// Answers a client's note about a turn of this node.
pub(crate) async fn note(core: &Core, who: &Caller, bytes: SignedBytes) -> AnswerResult {
    let note = SignedObject::<TurnNote>::verify(bytes)?;
    if note.node != core.node {
        return Err(ErrorCode::WrongAudience.into());
    }
    match &note.kind {
        TurnNoteKind::Ack(accepted) => acknowledge(core, &note, accepted).await,
        TurnNoteKind::Abort => abort(core, who, &note).await,
        TurnNoteKind::Status => status(core, &note).await,
    }
}

fn key_of(note: &TurnNote) -> TurnKey {
    TurnKey { session_id: note.session_id, turn_id: note.turn_id, attempt: note.attempt }
}

/// The status of an attempt.
async fn status(core: &Core, note: &TurnNote) -> AnswerResult {
    check_recent(note.time_ms, core.now_ms())?;
    let key = key_of(note);
    // First, because a turn that ends after this read is in the journal by then.
    let runs = core.running.find(&key).is_some();
    let entry = core.journal.look_up(key).await.map_err(Refusal::of_journal)?;
    let status = match entry.map(|entry| entry.state) {
        Some(EntryState::Sealed(sealed)) => {
            TurnStatus::Sealed { committed: Box::new(sealed.committed), store: sealed.store }
        }
        Some(EntryState::Aborted) => TurnStatus::Aborted,
        // Before its entry, a turn may wait for its model.
        Some(EntryState::Accepted) | None if runs => TurnStatus::Accepted,
        // It ended before its seal and is not running: another attempt is due.
        Some(EntryState::Accepted) | None => return Err(ErrorCode::StatusUnknown.into()),
    };
    Ok(NodeFrame::Status(status))
}

fn check_recent(time_ms: u64, now_ms: u64) -> Result<(), ErrorCode> {
    if time_ms > now_ms.saturating_add(MAX_CLOCK_SKEW_MS) {
        Err(ErrorCode::NotYetValid)
    } else if now_ms.saturating_sub(time_ms) > MAX_AUTH_LIFETIME_MS {
        Err(ErrorCode::Expired)
    } else {
        Ok(())
    }
}

/// Stores the client's acknowledgement of a turn. It may come late and more than once.
async fn acknowledge(core: &Core, note: &SignedObject<TurnNote>, accepted: &Acknowledgement) -> AnswerResult {
    let named = (accepted.link_hash, accepted.receipt_hash);
    let (session, digest) = (note.session_id, accepted.blob_digest);
    let kept = core.journal.acknowledge(session, digest, named, note.bytes().clone()).await;
    kept.map_err(Refusal::of_journal)??;
    Ok(NodeFrame::Done)
}

/// Aborts an attempt for its client. An unknown attempt will be refused if it arrives later. It costs as much
/// as a turn, because the journal stores it.
async fn abort(core: &Core, who: &Caller, note: &TurnNote) -> AnswerResult {
    let now_ms = core.now_ms();
    check_recent(note.time_ms, now_ms)?;
    let key = key_of(note);
    let known = core.running.find(&key).is_some()
        || core.journal.look_up(key).await.map_err(Refusal::of_journal)?.is_some();
    if !known {
        core.defence.turn(who, false)?;
    }
    core.journal.abort(key, now_ms).await.map_err(Refusal::of_journal)??;
    if let Some(job) = core.running.find(&key) {
        job.abort();
    }
    Ok(NodeFrame::Done)
}

/// A stored blob, from the journal or the cache, for a caller with proof of its key. Others get the same
/// answer as for a missing blob.
pub(crate) async fn blob(core: &Core, digest: BlobDigest, proof: FetchProof) -> Result<Vec<u8>, Refusal> {
    if let Some(bytes) = core.journal.fetch(digest, proof).await.map_err(Refusal::of_journal)? {
        return Ok(bytes);
    }
    let cached = core.cache.get(&proof).ok_or(ErrorCode::BlobUnavailable)?;
    Ok(cached.to_vec())
}
