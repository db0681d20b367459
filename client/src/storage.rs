//! Blobs of a session in the store: their IDs, and PUTs of their bytes, rebuilt from this client's own text.

use std::{sync::Arc, time::Duration};

use baton_proto::{
    ErrorCode,
    head::BranchHead,
    ids::BlobId,
    store::{PutOptions, StoreError},
};
use baton_walrus_client::ShardCount;
use tokio::time::Instant;

use crate::{
    core::Core,
    error::{ClientError, log_failure},
    session::{
        open_session::Session,
        state::{Entry, Purchase, SessionHeader, State, StoredBlob, TurnChange},
    },
};

/// Pause before a store that gave no answer is asked again whether it answers.
const ANSWER_PAUSE: Duration = Duration::from_millis(200);

/// Computes and journals the Walrus ID of a turn's blob, unless it is known. Waits for a running
/// computation.
pub(crate) async fn ensure_blob_id(session: &Arc<Session>, seq: u64) -> Result<BlobId, ClientError> {
    let _permit = session.ids.lock().await;
    if let Some(blob) = session.read(|state| state.blob_ref(seq)) {
        return Ok(blob.blob_id);
    }
    let (bytes, shards) =
        session.read(|state| Ok::<_, ClientError>((state.rebuild(seq)?, shards(state)?)))?;
    let computed = crate::stack_wipe::blocking(move || baton_walrus_client::blob_id(&bytes, shards)).await?;
    let id = computed.map_err(|_| ErrorCode::BlobTooLarge)?;
    session.record(vec![Entry::OfTurn(seq, TurnChange::BlobId(id))]).await?;
    Ok(id)
}

/// As [`ensure_blob_id`], for the last turn, if there is one.
pub(crate) async fn ensure_head_id(session: &Arc<Session>) -> Result<(), ClientError> {
    match session.read(|state| state.next_seq().checked_sub(1)) {
        Some(last) => ensure_blob_id(session, last).await.map(|_| ()),
        None => Ok(()),
    }
}

/// The number of shards that the store announces, if it announces one. It is asked until it has answered once, and has
/// the time of a first look.
async fn announced_shards(core: &Core) -> Result<Option<u16>, StoreError> {
    if let Some(known) = core.announced_shards.get() {
        return Ok(*known);
    }
    let answer = core.config.store.announced_shards(core.config.timeouts.first_look).await?;
    Ok(*core.announced_shards.get_or_init(|| answer))
}

/// Gives a session without a turn the number of shards of the store that answers now: only a turn binds it.
pub(crate) async fn settle_shards(core: &Core, session: &Arc<Session>) -> Result<(), ClientError> {
    if session.read(State::next_seq) > 0 {
        return Ok(());
    }
    let Ok(announced) = announced_shards(core).await else { return Ok(()) };
    let n_shards = announced.unwrap_or(core.config.shards.get());
    let header = session.read(|state| state.header.clone());
    if header.n_shards == n_shards {
        return Ok(());
    }
    session.record(vec![Entry::Opened(SessionHeader { n_shards, ..header })]).await
}

/// Refuses a store with another number of shards than the session's blob IDs are for: it would sell storage under other
/// IDs, where no reader looks.
pub(crate) async fn check_shards(core: &Core, session: &Session) -> Result<(), ClientError> {
    let ours = session.read(|state| state.header.n_shards);
    match announced_shards(core).await {
        Ok(Some(theirs)) if theirs != ours => Err(ClientError::OtherShards { ours, theirs }),
        _ => Ok(()),
    }
}

/// Fails within seconds if no server of the store answers, before work that asks the store again and again. A busy store
/// may refuse connections for a moment, and is asked again.
///
/// # Errors
/// [`StoreError::Unavailable`], with the names of the servers.
pub(crate) async fn check_answer(core: &Core) -> Result<(), StoreError> {
    let until = Instant::now() + core.config.timeouts.heads;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match core.config.store.announced_shards(left).await {
            Err(_) if left > ANSWER_PAUSE => tokio::time::sleep(ANSWER_PAUSE).await,
            answer => return answer.map(drop),
        }
    }
}

/// Puts a turn's blob, rebuilt from this client's own text.
pub(crate) async fn put(
    core: &Arc<Core>,
    session: &Session,
    seq: u64,
    id: BlobId,
) -> Result<StoredBlob, ClientError> {
    let policy = core.config.storage;
    let (bytes, epochs) = session.read(|state| {
        let epochs = if is_segment_end(state, seq) { policy.closed_epochs } else { policy.open_epochs };
        Ok::<_, ErrorCode>((state.rebuild(seq)?, epochs))
    })?;
    put_bytes(core, session, bytes, id, epochs).await
}

/// Puts the last blob of a branch, if the store lacks it. Returns whether it did.
pub(crate) async fn keep_branch(
    core: &Arc<Core>,
    session: &Session,
    head: &BranchHead,
) -> Result<bool, ClientError> {
    let id = head.end.blob.blob_id;
    if is_there(core, id).await? {
        return Ok(false);
    }
    let bytes = session.read(|state| state.rebuild_branch(head))?;
    put_bytes(core, session, bytes, id, core.config.storage.closed_epochs).await.map(|_| true)
}

async fn put_bytes(
    core: &Arc<Core>,
    session: &Session,
    bytes: Vec<u8>,
    id: BlobId,
    epochs: u32,
) -> Result<StoredBlob, ClientError> {
    session.check_writable()?;
    check_shards(core, session).await?;
    let send_object_to = core.config.storage.send_object_to;
    let options = PutOptions { epochs, permanent: false, send_object_to };
    let stored_ms = core.now_ms();
    let outcome = core.config.store.put(bytes, options).await?;
    // Under another ID the next node would not find it.
    if outcome.blob_id != id {
        return Err(StoreError::WrongContent.into());
    }
    // Without an end epoch, the PUT's answer was lost and the blob found.
    let paid = outcome.end_epoch.map(|_| Purchase { stored_ms, epochs });
    Ok(StoredBlob { end_epoch: outcome.end_epoch, paid, confirmed_ms: None })
}

/// Records that the store showed a turn's blob to this client.
pub(crate) async fn note_confirmed(core: &Arc<Core>, session: &Arc<Session>, seq: u64) {
    if session.read(|state| state.turn(seq).is_none()) {
        return;
    }
    let seen = StoredBlob { confirmed_ms: Some(core.now_ms()), ..StoredBlob::default() };
    let noted = session.record(vec![Entry::OfTurn(seq, TurnChange::Stored(seen))]).await;
    log_failure(noted, "that the store has a blob was not noted");
}

/// Puts a blob without a probe first, because a read just showed it wrong or missing.
pub(crate) async fn put_back(
    core: &Arc<Core>,
    session: &Arc<Session>,
    seq: u64,
    id: BlobId,
) -> Result<(), ClientError> {
    let _permit = session.puts.lock().await;
    session.record(vec![Entry::OfTurn(seq, TurnChange::Lost)]).await?;
    let stored = put(core, session, seq, id).await?;
    session.record(vec![Entry::OfTurn(seq, TurnChange::Stored(stored))]).await
}

/// Looks for a blob in the store by its ID, twice before it counts as missing: the servers of a store may not
/// all have it yet.
///
/// # Errors
/// [`StoreError`] when the store does not answer.
pub(crate) async fn is_there(core: &Arc<Core>, id: BlobId) -> Result<bool, StoreError> {
    if core.config.store.exists(id).await? {
        return Ok(true);
    }
    tokio::time::sleep(core.config.timeouts.second_look).await;
    core.config.store.exists(id).await
}

/// A session's shard count, as configured for new ones or bound by its genesis.
pub(crate) fn shards(state: &State) -> Result<ShardCount, ClientError> {
    ShardCount::new(state.header.n_shards).map_err(|error| ClientError::Config(error.to_string()))
}

/// Whether a turn's blob is its segment's last.
fn is_segment_end(state: &State, seq: u64) -> bool {
    let Some((turn, _)) = state.turn(seq) else { return false };
    !state.is_superseded(seq) && state.segment(turn.link.segment).is_closed()
}
