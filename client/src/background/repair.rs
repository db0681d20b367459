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
    core.spawn(async move {
        confirm_due(&shared, &session).await;
    });
}

/// Checks the store's copies of these blobs, and restores wrong or lost ones. Returns the turns of the
/// restored blobs, and the last error of a failed restore.
async fn repair_blobs(
    core: &Arc<Core>,
    session: &Arc<Session>,
    ends: &[(u64, BlobRef)],
) -> (Vec<u64>, Option<ClientError>) {
    // At most as many as one turn reads.
    let looks = join_all(ends.iter().map(|(_, blob)| is_whole(core, blob))).await;
    let (mut put_back, mut failed) = (Vec::new(), None);
    for ((seq, blob), is_whole) in ends.iter().zip(looks) {
        match is_whole {
            Some(true) => storage::note_confirmed(core, session, *seq).await,
            Some(false) => match storage::put_back(core, session, *seq, blob.blob_id).await {
                Ok(()) => {
                    tracing::warn!(seq, "a blob that was called stored was not there; it is now");
                    put_back.push(*seq);
                }
                Err(error) => {
                    tracing::warn!(seq, %error, "a lost blob was not put back");
                    failed = Some(error);
                }
            },
            None => {}
        }
    }
    (put_back, failed)
}

/// Whether the store has the bytes of a blob; none if it does not answer, which is no reason to change anything.
async fn is_whole(core: &Core, blob: &BlobRef) -> Option<bool> {
    let look = || core.config.store.get_checked(blob.blob_id, MAX_BLOB_BYTES, blob.digest);
    let mut found = look().await;
    if found == Err(StoreError::NotFound) {
        tokio::time::sleep(core.config.timeouts.second_look).await;
        found = look().await;
    }
    match found {
        Ok(bytes) if blob.check(&bytes).is_ok() => Some(true),
        Ok(_) | Err(StoreError::WrongContent | StoreError::TooLarge { .. } | StoreError::NotFound) => {
            Some(false)
        }
        Err(error) => {
            tracing::debug!(%error, "a blob could not be looked at");
            None
        }
    }
}
