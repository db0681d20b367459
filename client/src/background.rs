//! Background work after a turn is accepted. All of it is idempotent and resumes at the next start; none of
//! it delays the answer. It does the following:
//! - acknowledges the turn;
//! - computes its blob's ID;
//! - publishes the head;
//! - ensures that the blob is stored;
//! - aborts the attempts that were not accepted.

pub(crate) mod renewal;
mod repair;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use baton_proto::{
    ErrorCode, SignedObject,
    ack::Abort,
    ids::{BlobId, NodeId},
    limits::VERSION,
    store::{PutOptions, StoreError},
    turn::TurnAuth,
    wire::{ClientFrame, NodeFrame, StoreState},
};

use futures::{StreamExt as _, stream};
use tokio::time::sleep_until;

use crate::{
    attempt::ReplyTail,
    client::{Client, shards},
    error::ClientError,
    session::{
        open_session::{AuthorPolicy, Session},
        state::{Entry, Purchase, State},
    },
    sync::head::PublishReason,
};

/// Tries of one acknowledgement or abort before it is left to the next start.
const SEND_TRIES: u32 = 3;
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
/// Longest pause between rounds: a recovered store is used within it, and a store that stays down gets few
/// requests.
const MAX_ROUND_PAUSE: Duration = Duration::from_secs(5 * 60);

impl Client {
    /// Runs a task that ends with the client.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let cancel = self.inner.cancel.clone();
        self.inner.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = cancel.cancelled() => {}
                () = work => {}
            }
        });
    }

    /// The background work after a turn was accepted; `tail` is where its author reports whether the blob is
    /// stored.
    pub(crate) fn spawn_after_turn(&self, session: Arc<Session>, seq: u64, tail: Option<ReplyTail>) {
        let client = self.clone();
        self.spawn(async move {
            let wait = client.inner.config.timeouts.author_stores;
            let accepted = tokio::time::Instant::now();
            let stored = async {
                let (reported, second) = match tail {
                    Some(tail) => tail.store_state(wait).await,
                    None => (StoreState::Pending, None),
                };
                if let Some(second) = second {
                    client.committed_again(&session, seq, second).await;
                }
                client.after_store_report(&session, seq, reported, accepted + wait).await;
            };
            let known = async {
                if let Err(error) = client.ensure_blob_id(&session, seq).await {
                    tracing::warn!(%error, "a blob ID could not be computed");
                } else if let Err(error) = client.publish_head(&session, PublishReason::Head).await {
                    tracing::warn!(%error, "the head record was not published");
                }
            };
            tokio::join!(Box::pin(client.acknowledge(&session, seq)), Box::pin(known), Box::pin(stored));
            client.spawn_renewal(&session);
            let refused = session.read(|state| state.unstored.contains(&seq));
            if !refused && client.unstored(&session).iter().any(|(_, wait)| wait.is_zero()) {
                // The store may now take a blob that it refused earlier.
                client.spawn_round(&session, AuthorPolicy::Skip);
            } else {
                client.after_round(&session);
            }
        });
    }

    /// Tells the store which blobs were stored just before this program started.
    fn note_lately_stored(&self, session: &Session) {
        let since_ms = self.now_ms().saturating_sub(LATELY_MS);
        let ids: Vec<BlobId> = session.read(|state| {
            let lately = state.meta.iter().rev().take_while(|meta| meta.accepted_ms > since_ms);
            lately.filter(|meta| meta.stored).filter_map(|meta| meta.blob_id).collect()
        });
        ids.into_iter().for_each(|id| self.inner.config.store.note_stored(id));
    }

    /// Resumes the unfinished work of earlier runs.
    pub(crate) fn spawn_background_work(&self, session: Arc<Session>) {
        self.note_lately_stored(&session);
        self.spawn_round(&session, AuthorPolicy::Wait);
        self.spawn_confirmation(&session);
        self.spawn_renewal(&session);
        let unacked: Vec<u64> =
            session.read(|state| state.unacked.iter().rev().take(MAX_ACKS_PER_START).copied().collect());
        if unacked.is_empty() {
            return;
        }
        let client = self.clone();
        self.spawn(async move {
            let sent = stream::iter(unacked).map(|seq| client.acknowledge(&session, seq));
            sent.buffer_unordered(PARALLEL_ACKS).collect::<()>().await;
        });
    }

    /// Stores and publishes everything unfinished, unless a round is running or nothing is left. Repeats in
    /// rounds until the work is complete.
    pub(crate) fn spawn_round(&self, session: &Arc<Session>, authors: AuthorPolicy) {
        // A running round handles the rest when it ends.
        if session.rounds.available_permits() == 0 {
            return;
        }
        let (client, session) = (self.clone(), session.clone());
        self.spawn(async move {
            let Ok(permit) = session.rounds.try_acquire() else { return };
            Box::pin(client.round(&session, authors)).await;
            drop(permit);
            client.after_round(&session);
        });
    }

    /// Plans another round if work is left.
    fn after_round(&self, session: &Arc<Session>) {
        if session.has_work() {
            self.plan_round(session);
        } else {
            session.read(|state| state.signals.planned_rounds.store(0, Ordering::Relaxed));
        }
    }

    /// Starts another round after a pause that grows with each failed round. The pausing task holds neither
    /// client nor session, and ends with the client. It is not counted among the tasks, because a shutdown
    /// need not wait for it.
    fn plan_round(&self, session: &Arc<Session>) {
        let signals = session.read(|state| state.signals.clone());
        if signals.retry_waits.swap(true, Ordering::AcqRel) {
            return;
        }
        let planned = signals.planned_rounds.fetch_add(1, Ordering::Relaxed);
        let pause = round_pause(self.inner.config.timeouts.store_retry, planned);
        let cancel = self.inner.cancel.clone();
        let (inner, session) = (Arc::downgrade(&self.inner), Arc::downgrade(session));
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            signals.retry_waits.store(false, Ordering::Release);
            let (Some(inner), Some(session)) = (inner.upgrade(), session.upgrade()) else { return };
            if session.has_work() {
                Client { inner }.spawn_round(&session, AuthorPolicy::Skip);
            }
        });
    }

    async fn round(&self, session: &Arc<Session>, authors: AuthorPolicy) {
        if session.deleted.load(Ordering::SeqCst) {
            return;
        }
        let head = async {
            if let Err(error) = self.ensure_head_id(session).await {
                tracing::warn!(%error, "a blob ID could not be computed");
            }
            if let Err(error) = self.publish_head(session, PublishReason::Head).await {
                tracing::warn!(%error, "the head record was not published");
            }
            if let Err(error) = self.offer_unconfirmed(session).await {
                tracing::warn!(%error, "a head record's indexes were not noted");
            }
        };
        tokio::join!(head, self.store_unstored(session, authors));
    }

    /// Stores the blobs that only this client may still have, once their author's time is over.
    async fn store_unstored(&self, session: &Arc<Session>, authors: AuthorPolicy) {
        for (seq, wait) in self.unstored(session) {
            match authors {
                AuthorPolicy::Wait => tokio::time::sleep(wait).await,
                AuthorPolicy::Skip if !wait.is_zero() => continue,
                AuthorPolicy::Skip => {}
            }
            if !self.store_own(session, seq).await {
                // The store is down, for the other blobs too.
                return;
            }
        }
    }

    /// Turns whose blob only this client may still have, each with its author's remaining time to store it.
    fn unstored(&self, session: &Session) -> Vec<(u64, Duration)> {
        let now = self.now_ms();
        let wait = u64::try_from(self.inner.config.timeouts.author_stores.as_millis()).unwrap_or(u64::MAX);
        session.read(|state| {
            let left = |seq: &u64| {
                let (_, meta) = state.turn(*seq)?;
                let due_ms = meta.accepted_ms.saturating_add(wait);
                Some((*seq, Duration::from_millis(due_ms.saturating_sub(now))))
            };
            state.unstored.iter().filter_map(left).collect()
        })
    }

    /// Computes and journals the Walrus ID of a turn's blob, unless it is known. Waits for a running
    /// computation.
    pub(crate) async fn ensure_blob_id(
        &self,
        session: &Arc<Session>,
        seq: u64,
    ) -> Result<BlobId, ClientError> {
        let _permit = session.ids.acquire().await.map_err(|_| ClientError::TaskEnded)?;
        if let Some(blob) = session.read(|state| state.blob_ref(seq)) {
            return Ok(blob.blob_id);
        }
        let (bytes, shards) =
            session.read(|state| Ok::<_, ClientError>((state.rebuild(seq)?, shards(state)?)))?;
        let id = tokio::task::spawn_blocking(move || baton_walrus_client::blob_id(&bytes, shards))
            .await
            .map_err(|_| ClientError::TaskEnded)?
            .map_err(|_| ClientError::Protocol(ErrorCode::BlobTooLarge))?;
        session.record(vec![Entry::BlobId { seq, id }]).await?;
        Ok(id)
    }

    /// As [`Client::ensure_blob_id`], for the last turn, if there is one.
    pub(crate) async fn ensure_head_id(&self, session: &Arc<Session>) -> Result<(), ClientError> {
        match session.read(|state| state.next_seq().checked_sub(1)) {
            Some(last) => self.ensure_blob_id(session, last).await.map(|_| ()),
            None => Ok(()),
        }
    }

    /// Acts on the author's last report about storing.
    async fn after_store_report(
        &self,
        session: &Arc<Session>,
        seq: u64,
        reported: StoreState,
        author_until: tokio::time::Instant,
    ) {
        let Some(link) = session.read(|state| state.link_at(seq)) else { return };
        match reported {
            StoreState::Stored { blob_id, end_epoch } => {
                match self.ensure_blob_id(session, seq).await {
                    Ok(ours) if ours == blob_id => {
                        self.inner.config.store.note_stored(blob_id);
                        // The author was asked to store it for this long, and has just done so.
                        let epochs = session.read(|state| self.epochs_of(state, seq));
                        let stored_blob =
                            StoredBlob { end_epoch, epochs: Some(epochs), stored_ms: self.now_ms() };
                        if let Err(error) = session.record_of((seq, link), stored_blob.entries(seq)).await {
                            tracing::warn!(%error, "a stored blob was not noted");
                        }
                        return;
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
        self.store_own(session, seq).await;
    }

    /// Stores a turn's blob from this client's own text, after checking whether it is there. False if the
    /// store could not be reached in a few tries.
    pub(crate) async fn store_own(&self, session: &Arc<Session>, seq: u64) -> bool {
        let mut pause = PAUSE;
        for left in (0..PUT_TRIES).rev() {
            let Err(error) = self.try_store_own(session, seq).await else { return true };
            tracing::warn!(%error, "a blob was not stored");
            if left == 0 {
                return !matches!(error, ClientError::Store(error) if error.is_retryable());
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        true
    }

    async fn try_store_own(&self, session: &Arc<Session>, seq: u64) -> Result<(), ClientError> {
        let signals = session.read(|state| state.signals.clone());
        let _permit = signals.puts.acquire().await.map_err(|_| ClientError::TaskEnded)?;
        // Another task may have stored it, or a later turn's blob may hold it too by now.
        if !session.read(|state| state.unstored.contains(&seq)) {
            return Ok(());
        }
        let id = self.ensure_blob_id(session, seq).await?;
        // Never a blind PUT: the author may have stored it meanwhile.
        let stored_blob = if self.inner.config.store.exists(id).await? {
            self.inner.config.store.note_stored(id);
            StoredBlob { end_epoch: None, epochs: None, stored_ms: self.now_ms() }
        } else {
            self.put(session, seq, id).await?
        };
        session.record(stored_blob.entries(seq)).await
    }

    /// Puts a turn's blob, rebuilt from this client's own text.
    async fn put(&self, session: &Session, seq: u64, id: BlobId) -> Result<StoredBlob, ClientError> {
        let (bytes, epochs) =
            session.read(|state| Ok::<_, ErrorCode>((state.rebuild(seq)?, self.epochs_of(state, seq))))?;
        let send_object_to = self.inner.config.storage.send_object_to;
        let options = PutOptions { epochs, permanent: false, send_object_to };
        let stored_ms = self.now_ms();
        let outcome = self.inner.config.store.put(bytes, options).await?;
        // Under another ID the next node would not find it.
        if outcome.blob_id != id {
            return Err(StoreError::WrongContent.into());
        }
        // Without an end epoch, the PUT's answer was lost and the blob found.
        let epochs = outcome.end_epoch.map(|_| epochs);
        Ok(StoredBlob { end_epoch: outcome.end_epoch, epochs, stored_ms })
    }

    /// Number of epochs for a turn's blob.
    fn epochs_of(&self, state: &State, seq: u64) -> u32 {
        let policy = self.inner.config.storage;
        if is_segment_end(state, seq) { policy.closed_epochs } else { policy.open_epochs }
    }

    /// Sends a turn's acknowledgement until its author has it or does not know the turn, or the tries are
    /// used up.
    async fn acknowledge(&self, session: &Arc<Session>, seq: u64) {
        let found = session.read(|state| {
            let (turn, meta) = state.turn(seq).filter(|_| state.unacked.contains(&seq))?;
            Some((turn.link.author, turn.link.link_hash(), meta.ack.as_ref()?.bytes().clone()))
        });
        let Some((author, link, ack)) = found else { return };
        let entry = match self.deliver(author, &ClientFrame::Ack(ack)).await {
            DeliveryOutcome::Accepted => Entry::Acked { seq },
            DeliveryOutcome::Unknown => Entry::AckMoot { seq },
            DeliveryOutcome::Unanswered => return,
        };
        if let Err(error) = session.record_of((seq, link), vec![entry]).await {
            tracing::warn!(%error, "an acknowledgement was not noted");
        }
    }

    /// Tells nodes that their attempts were not accepted, in the background.
    pub(crate) fn spawn_aborts(
        &self,
        session: &Arc<Session>,
        attempts: Vec<SignedObject<TurnAuth>>,
        accepted: Option<u32>,
    ) {
        let now = self.now_ms();
        for auth in attempts {
            if Some(auth.attempt) == accepted {
                continue;
            }
            let abort = session.read(|state| {
                let signing = state.root.signing_key();
                let abort = Abort {
                    version: VERSION,
                    session_id: state.session_id,
                    session_key: signing.public_key(),
                    seq: auth.seq,
                    turn_id: auth.turn_id,
                    attempt: auth.attempt,
                    time_ms: now,
                };
                SignedObject::sign(abort, &signing)
            });
            let client = self.clone();
            self.spawn(async move {
                client.deliver(auth.audience, &ClientFrame::Abort(abort.bytes().clone())).await;
            });
        }
    }

    /// Sends a frame to a node, with a few tries.
    async fn deliver(&self, node: NodeId, frame: &ClientFrame) -> DeliveryOutcome {
        let mut pause = PAUSE;
        for left in (0..SEND_TRIES).rev() {
            match self.ask(node, frame).await {
                Ok(NodeFrame::Done) => return DeliveryOutcome::Accepted,
                // A node that does not know the turn will not learn it from a repetition.
                Err(crate::network::exchange::ExchangeError::Refused {
                    code: ErrorCode::StatusUnknown,
                    ..
                }) => {
                    return DeliveryOutcome::Unknown;
                }
                Ok(_) | Err(_) => {}
            }
            if left > 0 {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
        }
        DeliveryOutcome::Unanswered
    }
}

/// A blob in the store, and its known duration.
struct StoredBlob {
    end_epoch: Option<u64>,
    /// Paid epochs; none if another party paid, or the store did not say.
    epochs: Option<u32>,
    stored_ms: u64,
}

impl StoredBlob {
    /// Its journal entries.
    fn entries(&self, seq: u64) -> Vec<Entry> {
        let stored = Entry::Stored { seq, end_epoch: self.end_epoch };
        let paid = self.epochs.map(|epochs| Purchase { stored_ms: self.stored_ms, epochs });
        [Some(stored), paid.map(|paid| Entry::Paid { seq, paid })].into_iter().flatten().collect()
    }
}

/// A node's answer to a sent frame.
enum DeliveryOutcome {
    /// It accepted the frame.
    Accepted,
    /// It does not know the turn.
    Unknown,
    /// No answer, or another one.
    Unanswered,
}

/// Pause before the next round, after `planned` unsuccessful ones.
fn round_pause(first: Duration, planned: u32) -> Duration {
    first.saturating_mul(2u32.saturating_pow(planned)).min(MAX_ROUND_PAUSE)
}

/// Whether a turn's blob is its segment's last.
fn is_segment_end(state: &State, seq: u64) -> bool {
    let Some((turn, _)) = state.turn(seq) else { return false };
    !state.is_superseded(seq) && state.segment(turn.link.segment).is_closed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_become_rarer_up_to_a_bound() {
        let pauses = [0, 1, 2, 6, 40].map(|planned| round_pause(Duration::from_secs(5), planned).as_secs());
        assert_eq!(pauses, [5, 10, 20, 300, 300]);
    }
}
