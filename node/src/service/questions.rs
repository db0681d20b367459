//! Requests about turns, apart from serving them: status, acknowledgement, abort, blobs.

use baton_proto::{
    ErrorCode, SignedBytes, SignedObject,
    ack::{Abort, StatusRequest, TurnAck},
    ids::{BlobDigest, FetchProof},
    limits::{MAX_AUTH_LIFETIME_MS, MAX_CLOCK_SKEW_MS},
    wire::{NodeFrame, TurnStatus},
};

use crate::{
    core::{Core, guard::Caller, refusal::Refusal},
    journal::{EntryState, TurnKey},
};

type AnswerResult = Result<NodeFrame, Refusal>;

/// The status of an attempt.
pub(crate) async fn status(core: &Core, bytes: SignedBytes) -> AnswerResult {
    let asked = SignedObject::<StatusRequest>::verify(bytes)?;
    if asked.node != core.node {
        return Err(ErrorCode::WrongAudience.into());
    }
    check_recent(asked.time_ms, core.now_ms())?;
    let key = TurnKey { session_id: asked.session_id, turn_id: asked.turn_id, attempt: asked.attempt };
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
pub(crate) async fn acknowledge(core: &Core, bytes: SignedBytes) -> AnswerResult {
    let ack = SignedObject::<TurnAck>::verify(bytes)?;
    let named = (ack.link_hash, ack.receipt_hash);
    let kept = core.journal.acknowledge(ack.session_id, ack.blob_digest, named, ack.bytes().clone()).await;
    kept.map_err(Refusal::of_journal)??;
    Ok(NodeFrame::Done)
}

/// Aborts an attempt for its client. An unknown attempt will be refused if it arrives later. It costs as much
/// as a turn, because the journal stores it.
pub(crate) async fn abort(core: &Core, who: &Caller, bytes: SignedBytes) -> AnswerResult {
    let abort = SignedObject::<Abort>::verify(bytes)?;
    let now_ms = core.now_ms();
    check_recent(abort.time_ms, now_ms)?;
    let key = TurnKey { session_id: abort.session_id, turn_id: abort.turn_id, attempt: abort.attempt };
    let known = core.running.find(&key).is_some()
        || core.journal.look_up(key).await.map_err(Refusal::of_journal)?.is_some();
    if !known {
        core.take_turn(who, false, now_ms)?;
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
