//! Background work after a turn is accepted. All of it is idempotent and resumes at the next start; none of
//! it delays the answer. It does the following:
//! - acknowledges the turn;
//! - computes its blob's ID;
//! - publishes the head;
//! - ensures that the blob is stored;
//! - aborts the attempts that were not accepted.

pub(crate) mod renewal;
pub(crate) mod repair;

use std::{sync::Arc, time::Duration};

use baton_proto::{
    ids::{BlobId, LinkHash, SessionId},
    wire::{ClientFrame, StoreState},
};
use futures::{StreamExt as _, stream};
use tokio::time::sleep_until;

use crate::{
    attempt::{
        ReplyTail,
        delivery::{self, DeliveryOutcome},
    },
    core::Core,
    error::ClientError,
    network::reputation::NodeFailure,
    session::{
        open_session::{AuthorPolicy, Session},
        rounds::Rounds,
        state::{Entry, Purchase, StoredBlob, TurnChange},
    },
    storage,
    sync::{
        equivocations,
        head::{self, HeadStatus, PublishReason},
    },
};

/// Tries of one store before it is left to the next round.
const PUT_TRIES: u32 = 3;
/// First pause between tries.
const PAUSE: Duration = Duration::from_millis(500);
/// Acknowledgements sent again at a start; older ones wait for the next start.
const MAX_ACKS_PER_START: usize = 32;
/// Acknowledgements sent at once: a lost node delays only its own.
const PARALLEL_ACKS: usize = 8;
/// How long a store's caches may not know of a blob: longer than for any known store.
const LATELY_MS: u64 = 60 * 1000;

/// The background work after a turn was accepted; `tail` is where its author reports whether the blob is
/// stored.
pub(crate) fn spawn_after_turn(core: &Arc<Core>, session: Arc<Session>, seq: u64, tail: Option<ReplyTail>) {
    let shared = core.clone();
    core.spawn(async move {
        let wait = shared.config.timeouts.author_stores;
        let accepted = tokio::time::Instant::now();
        let stored = async {
            let (reported, second) = match tail {
                Some(tail) => tail.store_state(wait).await,
                None => (StoreState::Pending, None),
            };
            if let Some(second) = second {
                equivocations::committed_again(&shared, &session, seq, second).await;
            }
            after_store_report(&shared, &session, seq, reported, accepted + wait).await;
        };
        let known = async {
            if let Err(error) = storage::ensure_blob_id(&session, seq).await {
                tracing::warn!(%error, "a blob ID could not be computed");
            } else if let Err(error) = head::publish_head(&shared, &session, PublishReason::Head).await {
                tracing::warn!(%error, "the head record was not published");
            }
        };
        tokio::join!(Box::pin(acknowledge(&shared, &session, seq)), Box::pin(known), Box::pin(stored));
        repair::confirm_closed(&shared, &session, seq).await;
        renewal::spawn_renewal(&shared, &session);
        let refused = session.read(|state| state.unstored.contains(&seq));
        if !refused && unstored(&shared, &session).iter().any(|(_, wait)| wait.is_zero()) {
            // The store may now take a blob that it refused earlier.
            spawn_round(&shared, &session, AuthorPolicy::Skip);
        } else {
            after_round(&shared, &session);
        }
    });
}

/// Tells the store which blobs were stored just before this program started.
fn note_lately_stored(core: &Arc<Core>, session: &Session) {
    let since_ms = core.now_ms().saturating_sub(LATELY_MS);
    let ids: Vec<BlobId> = session.read(|state| {
        let lately = state.meta.iter().rev().take_while(|meta| meta.accepted_ms > since_ms);
        lately.filter(|meta| meta.stored).filter_map(|meta| meta.blob_id).collect()
    });
    ids.into_iter().for_each(|id| core.config.store.note_stored(id));
}

/// The open session. Opens it if needed, and resumes its unfinished work. If `shortly`, turns that its snapshot leaves
/// out may not be here.
pub(crate) async fn open(
    core: &Arc<Core>,
    id: SessionId,
    shortly: bool,
) -> Result<Arc<Session>, ClientError> {
    let (session, first) = core.open(id, shortly).await?;
    if !shortly {
        session.load_all().await?;
    }
    if first && !session.is_read_only() {
        spawn_background_work(core, session.clone());
    }
    Ok(session)
}

/// Compares the head index with this device's state, and publishes what the index lacks in the background.
pub(crate) async fn check_head(core: &Arc<Core>, session: &Arc<Session>) -> Result<HeadStatus, ClientError> {
    let (snapshot, status) = head::look_and_compare(core, session, Duration::MAX).await?;
    if status.is_ok() {
        head::spawn_repair_of_indexes(core, session.id, &snapshot.look);
    }
    if session.has_work() {
        spawn_round(core, session, AuthorPolicy::Skip);
    }
    status
}

/// Resumes the unfinished work of earlier runs. It loads turns that a snapshot leaves out if they may have work.
pub(crate) fn spawn_background_work(core: &Arc<Core>, session: Arc<Session>) {
    let (terms, now_ms) = (core.terms(), core.now_ms());
    if !session.read(|state| state.needs_omitted(terms, now_ms)) {
        return resume_work(core, session);
    }
    let shared = core.clone();
    core.spawn(async move {
        if let Err(error) = session.load_all().await {
            tracing::warn!(%error, "the early turns of a session were not read");
        }
        resume_work(&shared, session);
    });
}

fn resume_work(core: &Arc<Core>, session: Arc<Session>) {
    note_lately_stored(core, &session);
    spawn_round(core, &session, AuthorPolicy::Wait);
    repair::spawn_confirmation(core, &session);
    renewal::spawn_renewal(core, &session);
    let unacked: Vec<u64> =
        session.read(|state| state.unacked.iter().rev().take(MAX_ACKS_PER_START).copied().collect());
    if unacked.is_empty() {
        return;
    }
    let shared = core.clone();
    core.spawn(async move {
        let sent = stream::iter(unacked).map(|seq| acknowledge(&shared, &session, seq));
        sent.buffer_unordered(PARALLEL_ACKS).collect::<()>().await;
    });
}

/// Stores and publishes everything unfinished, unless a round is running or nothing is left. Repeats in
/// rounds until the work is complete.
pub(crate) fn spawn_round(core: &Arc<Core>, session: &Arc<Session>, authors: AuthorPolicy) {
    if session.is_read_only() || !session.rounds(Rounds::begin) {
        return;
    }
    let (shared, session) = (core.clone(), session.clone());
    core.spawn(async move {
        Box::pin(round(&shared, &session, authors)).await;
        session.rounds(Rounds::end);
        after_round(&shared, &session);
    });
}

/// Plans another round if work is left.
fn after_round(core: &Arc<Core>, session: &Arc<Session>) {
    if session.has_work() {
        plan_round(core, session);
    } else {
        session.rounds(Rounds::complete);
    }
}

/// Starts another round after a pause that grows with each failed round. The pausing task holds neither
/// client nor session, and ends with the client. It is not counted among the tasks, because a shutdown
/// need not wait for it.
fn plan_round(core: &Arc<Core>, session: &Arc<Session>) {
    let first = core.config.timeouts.store_retry;
    let Some(pause) = session.rounds(|rounds| rounds.plan(first)) else { return };
    let cancel = core.cancel.clone();
    let (weak, session) = (Arc::downgrade(core), Arc::downgrade(session));
    tokio::spawn(async move {
        tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        let (Some(core), Some(session)) = (weak.upgrade(), session.upgrade()) else { return };
        session.rounds(Rounds::end_pause);
        if session.has_work() {
            spawn_round(&core, &session, AuthorPolicy::Skip);
        }
    });
}

async fn round(core: &Arc<Core>, session: &Arc<Session>, authors: AuthorPolicy) {
    if session.is_deleted() {
        return;
    }
    let head = async {
        if let Err(error) = storage::ensure_head_id(session).await {
            tracing::warn!(%error, "a blob ID could not be computed");
        }
        if let Err(error) = head::publish_head(core, session, PublishReason::Head).await {
            tracing::warn!(%error, "the head record was not published");
        }
        if let Err(error) = head::offer_unconfirmed(core, session).await {
            tracing::warn!(%error, "a head record's indexes were not noted");
        }
    };
    tokio::join!(head, store_unstored(core, session, authors));
}

/// Stores the blobs that only this client may still have, once their author's time is over.
async fn store_unstored(core: &Arc<Core>, session: &Arc<Session>, authors: AuthorPolicy) {
    for (seq, wait) in unstored(core, session) {
        match authors {
            AuthorPolicy::Wait => tokio::time::sleep(wait).await,
            AuthorPolicy::Skip if !wait.is_zero() => continue,
            AuthorPolicy::Skip => {}
        }
        if !store_own(core, session, seq).await {
            // The store is down, for the other blobs too.
            return;
        }
    }
}

/// The outcome of [`store_waiting`].
#[derive(Debug, Default)]
pub(crate) struct WaitingReport {
    /// Turns whose blobs the store has now.
    pub(crate) stored: Vec<u64>,
    /// Turns whose blobs it does not have, with the errors.
    pub(crate) failed: Vec<(u64, ClientError)>,
}

/// Looks in the store for the blobs that it has not confirmed, and stores those that it lacks once their
/// author's time is over. One try for each: the user waits.
pub(crate) async fn store_waiting(core: &Arc<Core>, session: &Arc<Session>) -> WaitingReport {
    let mut report = WaitingReport::default();
    for (seq, wait) in unstored(core, session) {
        let result = if wait.is_zero() {
            try_store_own(core, session, seq).await
        } else {
            look_for_own(core, session, seq).await
        };
        if let Err(error) = result {
            report.failed.push((seq, error));
            // The store is down, for the other blobs too.
            break;
        }
        if !session.read(|state| state.unstored.contains(&seq)) {
            report.stored.push(seq);
        }
    }
    report
}

/// Looks for a turn's blob, which its author may have stored; notes that it is there.
async fn look_for_own(core: &Arc<Core>, session: &Arc<Session>, seq: u64) -> Result<(), ClientError> {
    let id = storage::ensure_blob_id(session, seq).await?;
    if core.config.store.exists(id).await? {
        core.config.store.note_stored(id);
        storage::note_confirmed(core, session, seq).await;
        return Ok(());
    }
    storage::check_shards(core, session)
}

/// Turns whose blob only this client may still have, each with its author's remaining time to store it.
pub(crate) fn unstored(core: &Arc<Core>, session: &Session) -> Vec<(u64, Duration)> {
    let now = core.now_ms();
    let wait = u64::try_from(core.config.timeouts.author_stores.as_millis()).unwrap_or(u64::MAX);
    session.read(|state| {
        let left = |seq: &u64| {
            let (_, meta) = state.turn(*seq)?;
            let due_ms = meta.accepted_ms.saturating_add(wait);
            Some((*seq, Duration::from_millis(due_ms.saturating_sub(now))))
        };
        state.unstored.iter().filter_map(left).collect()
    })
}

/// Acts on the author's last report about storing.
async fn after_store_report(
    core: &Arc<Core>,
    session: &Arc<Session>,
    seq: u64,
    reported: StoreState,
    author_until: tokio::time::Instant,
) {
    let turn = session.read(|state| {
        let (turn, _) = state.turn(seq)?;
        Some((turn.link.link_hash(), turn.link.author))
    });
    let Some((link, author)) = turn else { return };
    match reported {
        StoreState::Stored { blob_id, end_epoch } => {
            match storage::ensure_blob_id(session, seq).await {
                Ok(ours) if ours == blob_id => {
                    core.config.store.note_stored(blob_id);
                    match storage::is_there(core, blob_id).await {
                        Ok(true) => return note_reported(core, session, (seq, link), end_epoch).await,
                        Ok(false) => {
                            tracing::warn!(%author, "a node called a blob stored that the store does not have");
                            core.directory.failed(author, NodeFailure::Lied, 0);
                        }
                        // A later round looks again.
                        Err(error) => tracing::debug!(%error, "a stored blob could not be looked for"),
                    }
                }
                // Under another ID the next node would not find it.
                Ok(_) => tracing::warn!("a node named another blob ID than its blob has"),
                Err(error) => tracing::warn!(%error, "a blob ID could not be computed"),
            }
        }
        StoreState::Pending => sleep_until(author_until).await,
        StoreState::GivenUp => {}
    }
    // The author's minute is over, or it gave up or was wrong.
    store_own(core, session, seq).await;
}

/// Records a blob that its author called stored, and that the store showed. The author was asked to store it
/// for so long; later looks find out whether it did.
async fn note_reported(
    core: &Arc<Core>,
    session: &Arc<Session>,
    turn: (u64, LinkHash),
    end_epoch: Option<u64>,
) {
    let (seq, stored_ms) = (turn.0, core.now_ms());
    let epochs = session.read(|state| storage::ordered_epochs(core, state, seq));
    let paid = Some(Purchase { stored_ms, epochs });
    let stored = TurnChange::Stored(StoredBlob { end_epoch, paid, confirmed_ms: Some(stored_ms) });
    if let Err(error) = session.record_of(turn, vec![Entry::OfTurn(seq, stored)]).await {
        tracing::warn!(%error, "a stored blob was not noted");
    }
}

/// Stores a turn's blob from this client's own text, after checking whether it is there. False if the
/// store could not be reached in a few tries.
pub(crate) async fn store_own(core: &Arc<Core>, session: &Arc<Session>, seq: u64) -> bool {
    let mut pause = PAUSE;
    for left in (0..PUT_TRIES).rev() {
        let Err(error) = try_store_own(core, session, seq).await else { return true };
        tracing::warn!(%error, "a blob was not stored");
        if left == 0 {
            return !matches!(error, ClientError::Store(error) if error.is_retryable());
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    true
}

async fn try_store_own(core: &Arc<Core>, session: &Arc<Session>, seq: u64) -> Result<(), ClientError> {
    let _permit = session.puts.acquire().await.map_err(|_| ClientError::TaskEnded)?;
    // Another task may have stored it, or a later turn's blob may hold it too by now.
    if !session.read(|state| state.unstored.contains(&seq)) {
        return Ok(());
    }
    let id = storage::ensure_blob_id(session, seq).await?;
    // Never a blind PUT: the author may have stored it meanwhile.
    if core.config.store.exists(id).await? {
        core.config.store.note_stored(id);
        storage::note_confirmed(core, session, seq).await;
        return Ok(());
    }
    let stored = storage::put(core, session, seq, id).await?;
    session.record(vec![Entry::OfTurn(seq, TurnChange::Stored(stored))]).await?;
    // The publisher's answer is a claim, too. If the store shows nothing yet, a later look is due.
    if core.config.store.exists(id).await.unwrap_or(false) {
        storage::note_confirmed(core, session, seq).await;
    }
    Ok(())
}

/// Sends a turn's acknowledgement until its author has it or does not know the turn, or the tries are
/// used up.
async fn acknowledge(core: &Arc<Core>, session: &Arc<Session>, seq: u64) {
    let found = session.read(|state| {
        let (turn, meta) = state.turn(seq).filter(|_| state.unacked.contains(&seq))?;
        Some((turn.link.author, turn.link.link_hash(), meta.ack.as_ref()?.bytes().clone()))
    });
    let Some((author, link, ack)) = found else { return };
    let is_moot = match delivery::deliver(core, session.id, author, &ClientFrame::Note(ack)).await {
        DeliveryOutcome::Accepted => false,
        DeliveryOutcome::Unknown => true,
        DeliveryOutcome::Unanswered => return,
    };
    let acked = Entry::OfTurn(seq, TurnChange::Acked { is_moot });
    if let Err(error) = session.record_of((seq, link), vec![acked]).await {
        tracing::warn!(%error, "an acknowledgement was not noted");
    }
}
