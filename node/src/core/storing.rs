//! Stores sealed blobs: one PUT, never repeated blindly, tried for a minute, resumed after a restart.

use std::{sync::Arc, time::Duration};

use baton_limits::{Key, Ticket};
use baton_proto::{
    ids::BlobDigest,
    store::{PutOptions, StoreError},
    wire::StoreState,
};
use baton_walrus_client::{ShardCount, blob_id};
use tokio::{sync::oneshot, time::Instant};

use super::{Core, pause::Step};
use crate::journal::{JournalError, PutPlan, TurnKey};

/// Longest wait between two tries.
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// Probes before a repeated PUT whose first answer was lost: a fresh blob may be missing for seconds.
const PROBES: u32 = 3;

/// A blob to store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoreTask {
    /// Its turn.
    pub(crate) key: TurnKey,
    /// The blob; its bytes are in the journal.
    pub(crate) digest: BlobDigest,
    /// Storage options.
    pub(crate) plan: PutPlan,
    /// Whether an earlier PUT may have arrived.
    pub(crate) uncertain: bool,
    /// The key that its PUT counts to.
    pub(crate) payer: Key,
}

/// Stores a blob in its own task. The receiver gets the resulting state.
pub(crate) fn start(core: &Arc<Core>, task: StoreTask) -> oneshot::Receiver<StoreState> {
    let (sender, receiver) = oneshot::channel();
    // Turns that are already admitted may exceed the limits by their number.
    let (owner, ticket) = (core.clone(), core.put_slots.enter_over_limit(task.payer));
    core.spawn_storing(async move {
        let began = Instant::now();
        let state = store(&owner, &ticket, task).await;
        if let Err(error) = owner.journal.set_store(task.key, state).await {
            tracing::error!(%error, "cannot note that a blob is stored");
        }
        owner.observer.stored(&state, began.elapsed());
        // The receiver may be gone.
        let _ = sender.send(state);
    });
    receiver
}

/// Resumes the unstored blobs of an earlier run.
pub(crate) async fn store_again(core: &Arc<Core>) -> Result<(), JournalError> {
    let unstored = core.journal.unstored().await?;
    if !unstored.is_empty() {
        tracing::info!(blobs = unstored.len(), "storing blobs of an earlier run");
    }
    for (key, sealed) in unstored {
        let digest = sealed.committed.blob_digest;
        let task = StoreTask { key, digest, plan: sealed.plan, uncertain: true, payer: Key::Own };
        drop(start(core, task));
    }
    Ok(())
}

async fn store(core: &Arc<Core>, ticket: &Ticket, mut task: StoreTask) -> StoreState {
    let deadline = Instant::now() + core.limits.store_give_up;
    let mut backoff = core.limits.store_backoff;
    loop {
        let tried = tokio::time::timeout_at(deadline, attempt(core, ticket, &task)).await;
        let wait = match tried {
            Err(_) => return StoreState::GivenUp,
            Ok(Ok(state)) => return state,
            Ok(Err(StoreError::OutcomeUnknown { reason })) => {
                tracing::warn!(reason, "the answer to a PUT was lost");
                task.uncertain = true;
                backoff
            }
            Ok(Err(StoreError::Unavailable { reason, retry_after })) => {
                tracing::warn!(reason, "the store is unavailable");
                retry_after.unwrap_or_default().max(backoff)
            }
            Ok(Err(error)) => {
                tracing::error!(%error, "the store does not take a blob");
                return StoreState::GivenUp;
            }
        };
        if Instant::now() + wait >= deadline {
            return StoreState::GivenUp;
        }
        let yielding = ticket.yield_slot();
        tokio::time::sleep(wait).await;
        drop(yielding);
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
}

async fn attempt(core: &Arc<Core>, ticket: &Ticket, task: &StoreTask) -> Result<StoreState, StoreError> {
    // No caller of this queue displaces another.
    let _ = ticket.granted().await;
    let bytes = core
        .journal
        .blob(task.digest)
        .await
        .map_err(|error| StoreError::Refused { reason: error.to_string() })?;
    // The journal dropped an aborted turn's blob. An orphan needs no storing.
    let Some(bytes) = bytes else { return Ok(StoreState::GivenUp) };
    if task.uncertain
        && let Some(stored) = probe(core, &bytes, task.plan.n_shards).await?
    {
        return Ok(stored);
    }
    let options = PutOptions {
        epochs: task.plan.epochs.max(1),
        permanent: false,
        send_object_to: task.plan.send_object_to,
    };
    let put = core.store.put(bytes, options);
    let outcome = if core.pause.stops_at(Step::PutSent) {
        // The PUT continues while its turn is paused, so that a kill falls between the PUT and its answer.
        tokio::join!(put, core.pause.pass(Step::PutSent)).0?
    } else {
        put.await?
    };
    core.pause.pass(Step::PutDone).await;
    Ok(StoreState::Stored { blob_id: outcome.blob_id, end_epoch: outcome.end_epoch })
}

/// Queries the store for the blob.
async fn probe(core: &Core, bytes: &[u8], n_shards: u16) -> Result<Option<StoreState>, StoreError> {
    let bytes = bytes.to_vec();
    let refused = |reason: String| StoreError::Refused { reason };
    let computed = tokio::task::spawn_blocking(move || {
        let shards = ShardCount::try_from(n_shards).map_err(|error| error.to_string())?;
        blob_id(&bytes, shards).map_err(|error| error.to_string())
    });
    let id = computed.await.map_err(|error| refused(error.to_string()))?.map_err(refused)?;
    for probe in 0..PROBES {
        if probe > 0 {
            tokio::time::sleep(core.limits.store_backoff).await;
        }
        let found = core
            .store
            .exists(id)
            .await
            .map_err(|error| StoreError::Unavailable { reason: error.to_string(), retry_after: None })?;
        if found {
            return Ok(Some(StoreState::Stored { blob_id: id, end_epoch: None }));
        }
    }
    Ok(None)
}
