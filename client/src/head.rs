//! The session's head in the index: published after each turn, and compared with what is known here. The index is not
//! trusted: its record is signed by the session's own head key, so the worst it can do is to show an older one.

use std::sync::{Arc, atomic::Ordering};

use baton_keys::session::{RecordIdentity, SessionRoot, head_index_key};
use baton_proto::{
    ErrorCode, Signed,
    head::{DeviceLease, HeadInner, HeadOuter, HeadRecord},
    store::StoreError,
};

use crate::{
    client::Client,
    error::ClientError,
    session::Session,
    state::{Entry, PublishedHead, State},
};

/// Life of a head record: a session that rests for a year is still found by its root.
const HEAD_LIFETIME_MS: u64 = 365 * 24 * 3600 * 1000;
/// Life of this device's lease on the session; informative until sessions have several writers.
const LEASE_MS: u64 = 24 * 3600 * 1000;

/// What the head index says of a session, compared with what is known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadStatus {
    /// It has the head known here.
    Current,
    /// It has an earlier head, because the later one is not published yet.
    Unpublished,
    /// It has nothing, and nothing was published.
    None,
}

/// A head record with both parts opened.
pub(crate) struct FoundHead {
    pub(crate) sequence: u64,
    pub(crate) outer: HeadOuter,
    pub(crate) inner: HeadInner,
}

impl FoundHead {
    /// Identity of the last turn.
    pub(crate) fn last_identity(&self, root: &SessionRoot) -> Option<RecordIdentity> {
        Some(RecordIdentity {
            session_id: root.session_id(),
            segment: self.outer.blobs.first()?.segment,
            seq: self.outer.seq,
            turn_id: self.inner.turn_id,
            attempt: self.inner.attempt,
            author: self.inner.author,
        })
    }
}

impl Client {
    /// Compares the head index with what is known here.
    ///
    /// # Errors
    /// [`ErrorCode::RollbackDetected`] when it shows an older head than the one published,
    /// [`ErrorCode::ForkDetected`] when it shows another turn in the place of one known here,
    /// [`ClientError::Behind`] when another device went on, [`ClientError::Store`] when it cannot be asked.
    pub async fn check_head(&self, id: baton_proto::ids::SessionId) -> Result<HeadStatus, ClientError> {
        let session = self.opened(id).await?;
        let found = self.resolve(&session.read(|state| state.root.clone())).await?;
        let status = session.read(|state| compare(state, found.as_ref()));
        session.set_trouble(match &status {
            Err(ClientError::Protocol(code)) => Some(*code),
            _ => None,
        });
        status
    }

    /// Publishes the session's head, unless there is none yet or it is published already.
    pub(crate) async fn publish_head(
        &self,
        session: &Arc<Session>,
        tombstone: bool,
    ) -> Result<(), ClientError> {
        let _permit = session.heads.acquire().await.map_err(|_| ClientError::TaskEnded)?;
        if !tombstone && session.read(State::is_published) {
            return Ok(());
        }
        // A second round follows a record that is newer by number but not by content.
        for _ in 0..2 {
            if session.deleted.load(Ordering::SeqCst) && !tombstone {
                return Ok(());
            }
            let now = self.now_ms();
            let Some((record, published)) = session.read(|state| next_record(state, tombstone, now)) else {
                return Ok(());
            };
            match self.inner.config.heads.publish(record.encode()).await {
                Ok(()) => {
                    let PublishedHead { sequence, seq, link_hash } = published;
                    return session.record(vec![Entry::Head { sequence, seq, link_hash }]).await;
                }
                Err(StoreError::HeadSuperseded) => self.catch_up(session).await?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(StoreError::HeadSuperseded.into())
    }

    /// Marks a session deleted in the index, from what the index itself has: for one whose journal is damaged.
    pub(crate) async fn bury(&self, root: &SessionRoot) -> Result<(), ClientError> {
        let Some(found) = self.resolve(root).await? else { return Ok(()) };
        if found.inner.tombstone {
            return Ok(());
        }
        let now = self.now_ms();
        let inner = HeadInner { tombstone: true, ..found.inner };
        let sequence = found.sequence.saturating_add(1);
        let expires = now.saturating_add(HEAD_LIFETIME_MS);
        let record = HeadRecord::seal(root, &found.outer, &inner, sequence, now, expires);
        Ok(self.inner.config.heads.publish(record.encode()).await?)
    }

    /// The index holds a record with a higher number: takes its number if it is of the same chain.
    async fn catch_up(&self, session: &Arc<Session>) -> Result<(), ClientError> {
        let root = session.read(|state| state.root.clone());
        let Some(found) = self.resolve(&root).await? else { return Ok(()) };
        let same_chain = session.read(|state| compare_chain(state, &found.outer));
        if let Err(error) = same_chain {
            session.set_trouble(error.code());
            return Err(error);
        }
        let head =
            Entry::Head { sequence: found.sequence, seq: found.outer.seq, link_hash: found.outer.link_hash };
        session.record(vec![head]).await
    }

    /// The record in the index, checked and opened.
    pub(crate) async fn resolve(&self, root: &SessionRoot) -> Result<Option<FoundHead>, ClientError> {
        let key = head_index_key(&root.head_signing_key().public_key());
        let Some(bytes) = self.inner.config.heads.resolve(key).await? else { return Ok(None) };
        let record = Signed::<HeadRecord>::verify_encoded(&bytes)?;
        if record.index_key() != key {
            return Err(ErrorCode::BadSignature.into());
        }
        let (outer, inner) = (record.open_outer(&root.session_id())?, record.open_inner(root)?);
        Ok(Some(FoundHead { sequence: record.sequence, outer, inner }))
    }
}

/// The next head record of a session; none without a turn whose blob ID is known.
fn next_record(state: &State, tombstone: bool, now_ms: u64) -> Option<(Signed<HeadRecord>, PublishedHead)> {
    let outer = state.head_outer()?;
    let (turn, _) = state.last()?;
    let inner = HeadInner {
        turn_id: turn.link.turn_id,
        attempt: turn.link.attempt,
        author: turn.link.author,
        devices: vec![DeviceLease {
            device: state.opened.device_id,
            expires_ms: now_ms.saturating_add(LEASE_MS),
        }],
        tombstone,
    };
    // The time, so that the number does not count turns.
    let sequence = state.head.map_or(now_ms, |head| head.sequence.saturating_add(1).max(now_ms));
    let expires = now_ms.saturating_add(HEAD_LIFETIME_MS);
    let record = HeadRecord::seal(&state.root, &outer, &inner, sequence, now_ms, expires);
    Some((record, PublishedHead { sequence, seq: outer.seq, link_hash: outer.link_hash }))
}

/// Compares what the index shows with what is known.
fn compare(state: &State, found: Option<&FoundHead>) -> Result<HeadStatus, ClientError> {
    let Some(found) = found else {
        // What was published does not vanish by itself before a year is over.
        return match state.head {
            Some(_) => Err(ErrorCode::RollbackDetected.into()),
            None => Ok(HeadStatus::None),
        };
    };
    // A fork explains more than the sequence: two devices publish by their own clocks.
    let forked = compare_chain(state, &found.outer);
    if let Err(ClientError::Protocol(ErrorCode::ForkDetected)) = forked {
        return forked.map(|()| HeadStatus::Current);
    }
    if let Some(known) = state.head
        && (found.sequence < known.sequence || found.outer.seq < known.seq)
    {
        return Err(ErrorCode::RollbackDetected.into());
    }
    if found.inner.tombstone {
        return Err(ClientError::Deleted);
    }
    forked?;
    let ours = state.next_seq().checked_sub(1);
    Ok(if ours == Some(found.outer.seq) { HeadStatus::Current } else { HeadStatus::Unpublished })
}

/// Whether the turn that a head names is one of this chain.
fn compare_chain(state: &State, outer: &HeadOuter) -> Result<(), ClientError> {
    match state.turn(outer.seq) {
        Some((turn, _)) if turn.link.link_hash() == outer.link_hash => Ok(()),
        Some(_) => Err(ErrorCode::ForkDetected.into()),
        // Of a turn that a shorter log left out: its sequence number tells that it is old.
        None if outer.seq < state.first_seq() => Ok(()),
        None => {
            let ours = state.next_seq().saturating_sub(1);
            Err(ClientError::Behind { ours, theirs: outer.seq })
        }
    }
}
