//! Repair of the store's copies of a session, after a node could not fetch the history. The client has the
//! text of every turn, so it can rebuild lost blobs. Each PUT may cost money, so a copy counts as lost only
//! if the store showed other bytes, or reported twice that it has none.

use std::sync::Arc;

use baton_proto::{
    limits::{MAX_BLOB_BYTES, MAX_READ_BLOBS},
    link::BlobRef,
    store::StoreError,
};
use futures::future::join_all;

use crate::{
    core::Core,
    error::ClientError,
    session::{open_session::Session, state::TurnMeta},
    storage,
};

/// A session unused for this long is at rest: the background work of its last turn is done by then.
const REST_MS: u64 = 10 * 60 * 1000;

/// The result of checking the store's copy of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreCopy {
    /// It is there.
    Good,
    /// Other bytes are there.
    Wrong,
    /// The store reports that it has none.
    Missing,
    /// The store does not answer, which is no reason to change anything.
    Unknown,
}

/// Checks the store's copies of the blobs that the next turn reads, and restores wrong or lost ones.
pub(crate) async fn repair(core: &Arc<Core>, session: &Arc<Session>) {
    let ends: Vec<(u64, BlobRef)> = session.read(|state| {
        let ends = state.segment_ends(MAX_READ_BLOBS).into_iter();
        ends.filter_map(|seq| Some((seq, state.blob_ref(seq)?))).collect()
    });
    repair_blobs(core, session, &ends).await;
}

/// Checks that the store has the blob of the last turn, and restores it if it is wrong or lost; returns
/// the restored turn. Until a segment is closed, its blob and the path to all earlier blobs depend on one
/// node's word. A blob whose paid time may be over is left to a renewal.
///
/// # Errors
/// [`ClientError::Store`] when it could not be restored.
pub(crate) async fn confirm_last(
    core: &Arc<Core>,
    session: &Arc<Session>,
) -> Result<Option<u64>, ClientError> {
    let last = session.read(|state| {
        let (turn, _) = state.last().filter(|(_, meta)| meta.stored)?;
        let seq = turn.link.seq;
        Some((seq, state.blob_ref(seq)?))
    });
    let Some(last) = last else { return Ok(None) };
    let now_ms = core.now_ms();
    if core.lifetimes_of(session).last().is_none_or(|blob| blob.kept_until_ms <= now_ms) {
        return Ok(None);
    }
    let (put_back, failed) = repair_blobs(core, session, &[last]).await;
    failed.map_or(Ok(put_back.first().copied()), Err)
}

/// [`confirm_last`] in the background, at the first use of a session after a rest, unless this
/// client has confirmed the blob before.
pub(crate) fn spawn_confirmation(core: &Arc<Core>, session: &Arc<Session>) {
    let now_ms = core.now_ms();
    let wanted = session.read(|state| {
        let rested = |meta: &TurnMeta| now_ms.saturating_sub(meta.accepted_ms) > REST_MS;
        state.last().is_some_and(|(_, meta)| meta.stored && !meta.confirmed && rested(meta))
    });
    if !wanted {
        return;
    }
    let (shared, session) = (core.clone(), session.clone());
    core.spawn(async move {
        match confirm_last(&shared, &session).await {
            Ok(None) => {}
            Ok(Some(seq)) => {
                tracing::warn!(seq, "a blob that a node called stored was not there; it is now")
            }
            Err(error) => tracing::warn!(%error, "a blob that a node called stored is not there"),
        }
    });
}

/// Checks the store's copies of these blobs, and restores wrong or lost ones. Returns the turns of the
/// restored blobs, and the last error of a failed restore.
async fn repair_blobs(
    core: &Arc<Core>,
    session: &Arc<Session>,
    ends: &[(u64, BlobRef)],
) -> (Vec<u64>, Option<ClientError>) {
    let first = look_at(core, ends).await;
    for (seq, _) in with(&first, StoreCopy::Good) {
        storage::note_confirmed(session, seq).await;
    }
    let missing: Vec<(u64, BlobRef)> = with(&first, StoreCopy::Missing).collect();
    let mut lost: Vec<(u64, BlobRef)> = with(&first, StoreCopy::Wrong).collect();
    if !missing.is_empty() {
        tokio::time::sleep(core.config.timeouts.second_look).await;
        let second = look_at(core, &missing).await;
        for (seq, _) in with(&second, StoreCopy::Good) {
            storage::note_confirmed(session, seq).await;
        }
        lost.extend(with(&second, StoreCopy::Missing).chain(with(&second, StoreCopy::Wrong)));
    }
    let (mut put_back, mut failed) = (Vec::new(), None);
    for (seq, blob) in lost {
        match storage::put_back(core, session, seq, blob.blob_id).await {
            Ok(()) => put_back.push(seq),
            Err(error) => {
                tracing::warn!(%error, "a lost blob was not put back");
                failed = Some(error);
            }
        }
    }
    (put_back, failed)
}

async fn look_at(core: &Arc<Core>, blobs: &[(u64, BlobRef)]) -> Vec<((u64, BlobRef), StoreCopy)> {
    let look = |found: &(u64, BlobRef)| {
        let found = *found;
        async move { (found, look(core, &found.1).await) }
    };
    // At most as many as one turn reads.
    join_all(blobs.iter().map(look)).await
}

async fn look(core: &Arc<Core>, blob: &BlobRef) -> StoreCopy {
    match core.config.store.get_checked(blob.blob_id, MAX_BLOB_BYTES, blob.digest).await {
        Ok(bytes) if blob.check(&bytes).is_ok() => StoreCopy::Good,
        Ok(_) | Err(StoreError::WrongContent | StoreError::TooLarge { .. }) => StoreCopy::Wrong,
        Err(StoreError::NotFound) => StoreCopy::Missing,
        Err(error) => {
            tracing::debug!(%error, "a blob could not be looked at");
            StoreCopy::Unknown
        }
    }
}

fn with(
    looks: &[((u64, BlobRef), StoreCopy)],
    wanted: StoreCopy,
) -> impl Iterator<Item = (u64, BlobRef)> + '_ {
    looks.iter().filter(move |(_, copy)| *copy == wanted).map(|(found, _)| *found)
}
