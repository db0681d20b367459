//! What is left to do once a turn is accepted: acknowledge it, compute its blob's ID, publish the head, see that the blob
//! is stored, abort the attempts that were not accepted. All of it is idempotent, and taken up again at the next
//! start; none of it holds up the answer.

use std::{sync::Arc, time::Duration};

use baton_proto::{
    ErrorCode, Signed,
    ack::Abort,
    ids::{BlobId, NodeId},
    limits::{MAX_BLOB_BYTES, VERSION},
    store::{PutOptions, StoreError},
    turn::TurnAuth,
    wire::{ClientFrame, NodeFrame, StoreState},
};

use crate::{
    attempt::Rest,
    client::{Client, shards},
    error::ClientError,
    session::Session,
    state::Entry,
};

/// Tries of one acknowledgement or abort before it is left to the next start.
const SEND_TRIES: u32 = 3;
/// Tries of one store before it is left to the next start.
const PUT_TRIES: u32 = 3;
/// First pause between tries.
const PAUSE: Duration = Duration::from_millis(500);
/// Acknowledgements sent again in one round; older ones wait for the next.
const MAX_ACKS_PER_ROUND: usize = 32;

impl Client {
    /// Runs a task that ends with the client.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let cancel = self.inner.cancel.clone();
        self.inner.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = cancel.cancelled() => {}
                () = work => {}
            }
        });
    }

    /// The duties after a turn was accepted; `rest` is where its author says whether the blob is stored.
    pub(crate) fn spawn_after_turn(&self, session: Arc<Session>, seq: u64, rest: Option<Rest>) {
        let client = self.clone();
        self.spawn(async move {
            let wait = client.inner.config.timeouts.author_stores;
            let accepted = tokio::time::Instant::now();
            let stored = async {
                let said = match rest {
                    Some(rest) => rest.store_state(wait).await,
                    None => StoreState::Pending,
                };
                client.after_store_word(&session, seq, said, accepted + wait).await;
            };
            let known = async {
                if let Err(error) = client.ensure_blob_id(&session, seq).await {
                    tracing::warn!(%error, "a blob ID could not be computed");
                } else if let Err(error) = client.publish_head(&session, false).await {
                    tracing::warn!(%error, "the head record was not published");
                }
            };
            tokio::join!(Box::pin(client.acknowledge(&session, seq)), Box::pin(known), Box::pin(stored));
            // What the store did not take earlier may be taken now.
            if client.unstored(&session).iter().any(|(_, wait)| wait.is_zero()) {
                client.spawn_duties(session);
            }
        });
    }

    /// What earlier runs of the program left undone.
    pub(crate) fn spawn_duties(&self, session: Arc<Session>) {
        let client = self.clone();
        self.spawn(async move {
            let Ok(_permit) = session.duties.try_acquire() else { return };
            if let Err(error) = client.ensure_head_id(&session).await {
                tracing::warn!(%error, "a blob ID could not be computed");
            }
            let unpublished = session.read(|state| {
                state.last().is_some_and(|(turn, _)| {
                    state.head.is_none_or(|head| head.link_hash != turn.link.link_hash())
                })
            });
            if unpublished && let Err(error) = client.publish_head(&session, false).await {
                tracing::warn!(%error, "the head record was not published");
            }
            let unacked: Vec<u64> = session.read(|state| {
                let turns = state.history.iter().zip(&state.meta).rev();
                turns
                    .filter(|(_, meta)| !meta.acked)
                    .take(MAX_ACKS_PER_ROUND)
                    .map(|(turn, _)| turn.link.seq)
                    .collect()
            });
            for seq in unacked {
                client.acknowledge(&session, seq).await;
            }
            for (seq, wait) in client.unstored(&session) {
                tokio::time::sleep(wait).await;
                if !session.read(|state| state.is_superseded(seq)) {
                    client.store_own(&session, seq).await;
                }
            }
        });
    }

    /// Turns whose blob only this client may still have, each with the time that its author still has to store it.
    fn unstored(&self, session: &Session) -> Vec<(u64, Duration)> {
        let now = self.now_ms();
        let wait = u64::try_from(self.inner.config.timeouts.author_stores.as_millis()).unwrap_or(u64::MAX);
        session.read(|state| {
            let left = |seq: u64| {
                let (_, meta) =
                    state.turn(seq).filter(|(_, meta)| !meta.stored && !state.is_superseded(seq))?;
                let due_ms = meta.accepted_ms.saturating_add(wait);
                Some((seq, Duration::from_millis(due_ms.saturating_sub(now))))
            };
            (0..state.next_seq()).filter_map(left).collect()
        })
    }

    /// Computes and journals the Walrus ID of a turn's blob, unless it is known. Waits for a computation under way.
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

    /// Acts on the author's last word about storing.
    async fn after_store_word(
        &self,
        session: &Arc<Session>,
        seq: u64,
        said: StoreState,
        author_until: tokio::time::Instant,
    ) {
        match said {
            StoreState::Stored { blob_id, end_epoch } => {
                match self.ensure_blob_id(session, seq).await {
                    Ok(ours) if ours == blob_id => {
                        if let Err(error) = session.record(vec![Entry::Stored { seq, end_epoch }]).await {
                            tracing::warn!(%error, "a stored blob was not noted");
                        }
                        return;
                    }
                    // Under another ID the next node would not find it.
                    Ok(_) => tracing::warn!("a node named another blob ID than its blob has"),
                    Err(error) => tracing::warn!(%error, "a blob ID could not be computed"),
                }
            }
            StoreState::Pending => tokio::time::sleep_until(author_until).await,
            StoreState::GivenUp => {}
        }
        // The author had its minute, gave up, or was wrong.
        if !session.read(|state| state.is_superseded(seq)) {
            self.store_own(session, seq).await;
        }
    }

    /// Stores a turn's blob from this client's own text, after a look whether it is there.
    pub(crate) async fn store_own(&self, session: &Arc<Session>, seq: u64) {
        let mut pause = PAUSE;
        for _ in 0..PUT_TRIES {
            match self.try_store_own(session, seq).await {
                Ok(()) => return,
                Err(error) => tracing::warn!(%error, "a blob was not stored"),
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }

    async fn try_store_own(&self, session: &Arc<Session>, seq: u64) -> Result<(), ClientError> {
        let id = self.ensure_blob_id(session, seq).await?;
        let store = &self.inner.config.store;
        // Never a blind PUT: the author may have stored it meanwhile.
        let end_epoch = if store.exists(id).await? {
            None
        } else {
            let (bytes, closed) = session
                .read(|state| Ok::<_, ErrorCode>((state.rebuild(seq)?, is_segment_end(state, seq))))?;
            let policy = self.inner.config.storage;
            let epochs = if closed { policy.closed_epochs } else { policy.open_epochs };
            let options = PutOptions { epochs, permanent: false, send_object_to: policy.send_object_to };
            let outcome = store.put(bytes, options).await?;
            if outcome.blob_id != id {
                return Err(StoreError::WrongContent.into());
            }
            outcome.end_epoch
        };
        session.record(vec![Entry::Stored { seq, end_epoch }]).await
    }

    /// A node could not get the history: looks at the store's copies of what the next turn reads, and puts the
    /// client's own back where they are gone or wrong.
    pub(crate) async fn repair(&self, session: &Arc<Session>) {
        let ends = session.read(|state| state.segment_ends(baton_proto::limits::MAX_READ_BLOBS));
        for seq in ends {
            let Some(blob) = session.read(|state| state.blob_ref(seq)) else { continue };
            let found = self.inner.config.store.get(blob.blob_id, MAX_BLOB_BYTES).await;
            if found.is_ok_and(|bytes| blob.check(&bytes).is_ok()) {
                continue;
            }
            if let Err(error) = session.record(vec![Entry::Lost { seq }]).await {
                tracing::warn!(%error, "a lost blob was not noted");
            }
            if let Err(error) = self.put_back(session, seq).await {
                tracing::warn!(%error, "a lost blob was not put back");
            }
        }
    }

    /// Puts a blob without a probe first, because a read just showed that it is not there as it should be.
    pub(crate) async fn put_back(&self, session: &Arc<Session>, seq: u64) -> Result<(), ClientError> {
        let bytes = session.read(|state| state.rebuild(seq))?;
        let closed = session.read(|state| is_segment_end(state, seq));
        let policy = self.inner.config.storage;
        let epochs = if closed { policy.closed_epochs } else { policy.open_epochs };
        let options = PutOptions { epochs, permanent: false, send_object_to: policy.send_object_to };
        let outcome = self.inner.config.store.put(bytes, options).await?;
        session.record(vec![Entry::Stored { seq, end_epoch: outcome.end_epoch }]).await
    }

    /// Sends a turn's acknowledgement until its author has it, or a few tries failed.
    async fn acknowledge(&self, session: &Arc<Session>, seq: u64) {
        let found = session.read(|state| {
            let (turn, meta) = state.turn(seq)?;
            let ack = meta.ack.as_ref().filter(|_| !meta.acked)?;
            Some((turn.link.author, ack.bytes().clone()))
        });
        let Some((author, ack)) = found else { return };
        if self.tell(author, &ClientFrame::Ack(ack)).await
            && let Err(error) = session.record(vec![Entry::Acked { seq }]).await
        {
            tracing::warn!(%error, "an acknowledgement was not noted");
        }
    }

    /// Tells nodes that their attempts were not accepted, in the background.
    pub(crate) fn spawn_aborts(
        &self,
        session: &Arc<Session>,
        attempts: Vec<Signed<TurnAuth>>,
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
                Signed::sign(abort, &signing)
            });
            let client = self.clone();
            self.spawn(async move {
                client.tell(auth.audience, &ClientFrame::Abort(abort.bytes().clone())).await;
            });
        }
    }

    /// Tells a node something, with a few tries; whether it said that it took it.
    async fn tell(&self, node: NodeId, frame: &ClientFrame) -> bool {
        let mut pause = PAUSE;
        for _ in 0..SEND_TRIES {
            match self.ask(node, frame).await {
                Ok(NodeFrame::Done) => return true,
                // A node that knows nothing of the turn will not learn it from a repetition.
                Err(crate::exchange::ExchangeError::Refused { code: ErrorCode::StatusUnknown, .. }) => {
                    return false;
                }
                Ok(_) | Err(_) => {}
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        false
    }
}

/// Whether a turn's blob is its segment's last.
fn is_segment_end(state: &crate::state::State, seq: u64) -> bool {
    let Some((turn, _)) = state.turn(seq) else { return false };
    !state.is_superseded(seq) && state.segment(turn.link.segment).is_closed()
}
