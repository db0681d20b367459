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
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    attempt::{ReplyTail, delivery},
    core::Core,
    error::{ClientError, log_failure},
    network::reputation::NodeFailure,
    session::{
        open_session::Session,
        state::{Entry, StoredBlob, TurnChange},
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
/// Longest pause between rounds of work: a recovered store is used within it, and a store that stays down gets few
/// requests.
const MAX_ROUND_PAUSE: Duration = Duration::from_secs(5 * 60);
/// How long a store's caches may not know of a blob: longer than for any known store.
const LATELY_MS: u64 = 60 * 1000;

/// The background work after a turn was accepted; `tail` is where its author reports whether the blob is
/// stored.
pub(crate) fn spawn_after_turn(core: &Arc<Core>, session: Arc<Session>, seq: u64, tail: Option<ReplyTail>) {
    let shared = core.clone();
    core.spawn(async move {
        let wait = shared.config.timeouts.author_stores;
        let accepted = Instant::now();
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
            match storage::ensure_blob_id(&session, seq).await {
                Ok(_) => publish(&shared, &session).await,
                error => log_failure(error, "a blob ID could not be computed"),
            }
        };
        tokio::join!(Box::pin(acknowledge(&shared, &session, seq)), Box::pin(known), Box::pin(stored));
        renewal::spawn_renewal(&shared, &session);
        // A store that took this turn's blob may now take one that it refused earlier.
        let is_refused = session.read(|state| state.unstored.contains(&seq));
        let pause = if is_refused { shared.config.timeouts.store_retry } else { Duration::ZERO };
        spawn_rounds(&shared, &session, pause);
    });
}

async fn publish(core: &Arc<Core>, session: &Arc<Session>) {
    let published = head::publish_head(core, session, PublishReason::Head).await;
    log_failure(published, "the head record was not published");
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
    spawn_rounds(core, session, Duration::ZERO);
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
        log_failure(session.load_all().await, "the early turns of a session were not read");
        resume_work(&shared, session);
    });
}

fn resume_work(core: &Arc<Core>, session: Arc<Session>) {
    note_lately_stored(core, &session);
    spawn_rounds(core, &session, Duration::ZERO);
    repair::spawn_confirmation(core, &session);
    renewal::spawn_renewal(core, &session);
    let unacked: Vec<u64> =
        session.read(|state| state.unacked.iter().rev().take(MAX_ACKS_PER_START).copied().collect());
    let shared = core.clone();
    core.spawn(async move {
        let sent = stream::iter(unacked).map(|seq| acknowledge(&shared, &session, seq));
        sent.buffer_unordered(PARALLEL_ACKS).collect::<()>().await;
    });
}

/// Stores and publishes everything unfinished, after a pause, in rounds until nothing is left. The pause before each
/// further round is longer. If rounds run already, a call without a pause ends the present pause.
pub(crate) fn spawn_rounds(core: &Arc<Core>, session: &Arc<Session>, mut pause: Duration) {
    if session.is_read_only() || !session.has_work() {
        return;
    }
    if pause.is_zero() {
        session.wake_rounds.notify_one();
    }
    if !session.begin_rounds() {
        return;
    }
    // A shutdown waits for a round, and for none that pauses.
    let mut token = pause.is_zero().then(|| core.tasks.token());
    let mut next = core.config.timeouts.store_retry;
    let (cancel, wake) = (core.cancel.clone(), session.wake_rounds.clone());
    let (core, session) = (Arc::downgrade(core), Arc::downgrade(session));
    tokio::spawn(async move {
        loop {
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                () = wake.notified() => {}
                () = sleep(pause) => {}
            }
            // A pause holds neither client nor session.
            let (Some(core), Some(session)) = (core.upgrade(), session.upgrade()) else { return };
            let _token = token.take().unwrap_or_else(|| core.tasks.token());
            cancel.run_until_cancelled(Box::pin(round(&core, &session))).await;
            session.end_rounds();
            if !session.has_work() || !session.begin_rounds() {
                return;
            }
            (pause, next) = (next, (next * 2).min(MAX_ROUND_PAUSE));
        }
    });
}

async fn round(core: &Arc<Core>, session: &Arc<Session>) {
    if session.is_deleted() {
        return;
    }
    let head = async {
        log_failure(storage::ensure_head_id(session).await, "a blob ID could not be computed");
        publish(core, session).await;
        let offered = head::offer_unconfirmed(core, session).await;
        log_failure(offered, "a head record's indexes were not noted");
    };
    let store = async {
        for (seq, wait) in unstored(core, session) {
            // An author that still has time stores its blob itself. A store that is down is so for all blobs.
            if wait.is_zero() && !store_own(core, session, seq).await {
                return;
            }
        }
    };
    tokio::join!(head, store);
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
    author_until: Instant,
) {
    let turn = session.read(|state| {
        let (turn, _) = state.turn(seq)?;
        Some((turn.link.link_hash(), turn.link.author))
    });
    let Some((link, author)) = turn else { return };
    match reported {
        StoreState::Stored { blob_id, end_epoch } => match storage::ensure_blob_id(session, seq).await {
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
            error => log_failure(error, "a blob ID could not be computed"),
        },
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
    let stored = StoredBlob { end_epoch, paid: None, confirmed_ms: Some(core.now_ms()) };
    let entry = Entry::OfTurn(turn.0, TurnChange::Stored(stored));
    log_failure(session.record_of(turn, vec![entry]).await, "a stored blob was not noted");
}

/// Stores a turn's blob from this client's own text, after checking whether it is there. False if the
/// store could not be reached in a few tries.
async fn store_own(core: &Arc<Core>, session: &Arc<Session>, seq: u64) -> bool {
    let mut pause = PAUSE;
    for left in (0..PUT_TRIES).rev() {
        let Err(error) = try_store(core, session, seq, true).await else { return true };
        tracing::warn!(%error, "a blob was not stored");
        if left == 0 {
            return !matches!(error, ClientError::Store(error) if error.is_retryable());
        }
        sleep(pause).await;
        pause *= 2;
    }
    true
}

/// Looks for a turn's blob in the store, and notes that it is there. If it is not, and its author's time is over, puts
/// it there.
pub(crate) async fn try_store(
    core: &Arc<Core>,
    session: &Arc<Session>,
    seq: u64,
    may_put: bool,
) -> Result<(), ClientError> {
    let _permit = session.puts.lock().await;
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
    if !may_put {
        return storage::check_shards(core, session).await;
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
    let delivered = delivery::deliver(core, session.id, author, &ClientFrame::Note(ack)).await;
    let Some(is_known) = delivered else { return };
    let acked = Entry::OfTurn(seq, TurnChange::Acked { is_moot: !is_known });
    log_failure(session.record_of((seq, link), vec![acked]).await, "an acknowledgement was not noted");
}
