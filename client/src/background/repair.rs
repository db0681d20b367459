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
    session::{lifetime, open_session::Session},
    storage,
};

/// Most blobs to look for at once; a session with more has the others looked for at its next start.
const MAX_LOOKS: usize = 16;

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

/// Looks in the store for the session's blobs that no look has confirmed, or not for long, and restores wrong
/// or lost ones. Returns the restored turns, and the last error of a failed restore.
pub(crate) async fn confirm_due(core: &Arc<Core>, session: &Arc<Session>) -> (Vec<u64>, Option<ClientError>) {
    let (terms, now_ms) = (core.terms(), core.now_ms());
    let due = session.read(|state| lifetime::looks_due(state, terms, now_ms, MAX_LOOKS));
    repair_blobs(core, session, &due).await
}

/// [`confirm_due`] in the background, at the first use of a session.
pub(crate) fn spawn_confirmation(core: &Arc<Core>, session: &Arc<Session>) {
    let (shared, session) = (core.clone(), session.clone());
    core.spawn(async move { report(confirm_due(&shared, &session).await) });
}

/// Looks for the blob of a segment that a turn closed: no later turn stores it again.
pub(crate) async fn confirm_closed(core: &Arc<Core>, session: &Arc<Session>, seq: u64) {
    let closed = session.read(|state| {
        let (turn, _) = state.turn(seq).filter(|(turn, _)| turn.link.index == 0)?;
        let last = turn.link.seq.checked_sub(1)?;
        let (_, meta) = state.turn(last)?;
        Some((last, state.blob_ref(last).filter(|_| meta.stored)?))
    });
    if let Some(closed) = closed {
        report(repair_blobs(core, session, &[closed]).await);
    }
}

fn report((put_back, failed): (Vec<u64>, Option<ClientError>)) {
    for seq in put_back {
        tracing::warn!(seq, "a blob that was called stored was not there; it is now");
    }
    if let Some(error) = failed {
        tracing::warn!(%error, "a blob that was called stored is not there");
    }
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
        storage::note_confirmed(core, session, seq).await;
    }
    let missing: Vec<(u64, BlobRef)> = with(&first, StoreCopy::Missing).collect();
    let mut lost: Vec<(u64, BlobRef)> = with(&first, StoreCopy::Wrong).collect();
    if !missing.is_empty() {
        tokio::time::sleep(core.config.timeouts.second_look).await;
        let second = look_at(core, &missing).await;
        for (seq, _) in with(&second, StoreCopy::Good) {
            storage::note_confirmed(core, session, seq).await;
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
