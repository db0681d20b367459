//! The session's head in the index: published after each turn, and compared with this device's state. The
//! index is not trusted: the session's own head key signs its record, so at worst the index shows an older
//! one.
//!
//! The client looks before it publishes, so that no device covers another's turns with a head that does not
//! continue them. [`crate::sync::reconcile`] decides how to go on then.

use std::{sync::Arc, time::Duration};

use baton_keys::session::{RecordIdentity, SessionRoot};
use baton_proto::{
    ErrorCode, SignedObject,
    head::{BranchHead, DeviceLease, HeadInner, HeadOuter, HeadRecord, head_period, head_places},
    ids::SessionId,
    limits::{MAX_CLOCK_SKEW_MS, MAX_DEVICES},
    store::StoreError,
};

use tokio::time::{Instant, timeout};

use crate::{
    core::Core,
    error::{ClientError, NO_INDEX_ANSWERS, log_failure},
    index_status::{IndexAnswer, IndexStatus},
    network::heads::HeadLookup,
    session::{
        open_session::Session,
        state::{Entry, PublishedHead, State},
    },
};

/// Lifetime of a head record: a session that rests for a year is still found by its root.
const HEAD_LIFETIME_MS: u64 = 365 * 24 * 3600 * 1000;
/// Duration of a device's lease on the session: for that long, other devices look at the head index before a
/// turn.
const LEASE_MS: u64 = 24 * 3600 * 1000;
/// A lease is noted again only when it has grown by this, not at every look.
const LEASE_STEP_MS: u64 = 3600 * 1000;

/// The head index's state of a session, compared with this device's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadStatus {
    /// It has this device's head.
    Current,
    /// It has an earlier head, because the later head is not published yet.
    Unpublished,
    /// It has no head, and none was published.
    None,
}

/// Why a head record is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PublishReason {
    /// The head moved.
    Head,
    /// Other devices are to learn of this device.
    Lease,
    /// It replaces a head in the index that cannot be continued.
    Over,
    /// The session is deleted.
    Tombstone,
}

/// A head record with both parts opened.
pub(crate) struct FoundHead {
    pub(crate) sequence: u64,
    pub(crate) outer: HeadOuter,
    pub(crate) inner: HeadInner,
}

impl FoundHead {
    fn open(record: &SignedObject<HeadRecord>, root: &SessionRoot) -> Result<Self, ErrorCode> {
        let key = root.head_secret(record.period()).locate_key();
        let (outer, inner) = (record.open_outer(&key)?, record.open_inner(root)?);
        Ok(Self { sequence: record.sequence, outer, inner })
    }

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

    /// Its end as the end of a branch.
    pub(crate) fn branch_head(&self) -> Result<BranchHead, ErrorCode> {
        Ok(BranchHead {
            seq: self.outer.seq,
            link_hash: self.outer.link_hash,
            turn_id: self.inner.turn_id,
            attempt: self.inner.attempt,
            author: self.inner.author,
            end: *self.outer.blobs.first().ok_or(ErrorCode::BadSequence)?,
        })
    }

    /// The entry that records it as the last known head record.
    pub(crate) fn entry(&self) -> Entry {
        let HeadOuter { seq, link_hash, .. } = self.outer;
        Entry::Head(PublishedHead { sequence: self.sequence, seq, link_hash })
    }
}

/// How long a publication, or a turn of a session that another device writes, waits for an index to show its head.
pub(super) const LOOK_WAIT: Duration = Duration::from_secs(2);

/// The result of a look at the head indexes for a session.
#[derive(Default)]
pub(crate) struct HeadSnapshot {
    /// The different records that the indexes show, newest first. Each may end another chain.
    pub(crate) heads: Vec<FoundHead>,
    pub(crate) look: HeadLookup,
}

impl HeadSnapshot {
    fn is_deleted(&self) -> bool {
        self.heads.iter().any(|head| head.inner.tombstone)
    }

    fn devices(&self) -> Vec<DeviceLease> {
        self.heads.iter().flat_map(|head| &head.inner.devices).copied().collect()
    }

    fn branches(&self) -> Vec<BranchHead> {
        self.heads.iter().flat_map(|head| &head.inner.branches).copied().collect()
    }

    /// The names of the indexes that take no head of this device now: those that did not answer, since they may
    /// have another chain, and those whose chain is not merged here.
    fn closed_indexes(&self, state: &State) -> Vec<String> {
        let unmerged = |sequence: u64| {
            let mut shown = self.heads.iter().filter(|head| head.sequence == sequence);
            shown.any(|head| compare_chain(state, head).is_err())
        };
        let is_closed = |one: &&IndexStatus| match one.shows {
            IndexAnswer::Newest { sequence } | IndexAnswer::Behind { sequence } => unmerged(sequence),
            IndexAnswer::Unavailable { .. } => true,
            IndexAnswer::Nothing | IndexAnswer::Wrong { .. } => false,
        };
        self.look.statuses.iter().filter(is_closed).map(|one| one.name.clone()).collect()
    }
}

/// Publishes this device's head if a look shows that the indexes lack it; returns whether they have it
/// again. [`SessionHandle::check_head`](crate::SessionHandle::check_head) reports the reason if it cannot be published.
pub(crate) async fn publish_missing(core: &Arc<Core>, session: &Arc<Session>) -> bool {
    let compared = look_and_compare(core, session, Duration::MAX).await;
    if compared.is_err() || session.read(State::is_published) {
        return false;
    }
    let published = publish_head(core, session, PublishReason::Head).await;
    let is_published = published.is_ok();
    log_failure(published, "the head record was not published");
    is_published
}

/// Checks whether another device has added turns. An index that is unavailable or behind is no evidence.
///
/// # Errors
/// [`ClientError::Behind`], [`ErrorCode::ForkDetected`].
pub(crate) async fn check_for_newer(core: &Arc<Core>, session: &Arc<Session>) -> Result<(), ClientError> {
    match look_and_compare(core, session, core.config.timeouts.first_look).await {
        Ok((_, Err(error))) if error.is_divergence() => Err(error),
        _ => Ok(()),
    }
}

/// Looks at the head indexes and compares, while this device publishes nothing: a result older than its
/// own record would look like a rollback. Each index has at most `wait`, and a publication under way delays the look
/// by no more.
///
/// # Errors
/// Only those of the look; the result holds the comparison's.
pub(crate) async fn look_and_compare(
    core: &Arc<Core>,
    session: &Arc<Session>,
    wait: Duration,
) -> Result<(HeadSnapshot, Result<HeadStatus, ClientError>), ClientError> {
    let begun = Instant::now();
    let Ok(_permit) = timeout(wait, session.heads.lock()).await else {
        let reason = format!("{NO_INDEX_ANSWERS} yet");
        return Err(StoreError::Unavailable { reason, retry_after: None }.into());
    };
    session.indexes(|view| view.note_look(core.now_ms(), false));
    let snapshot = snapshot(core, session, wait.saturating_sub(begun.elapsed())).await?;
    session.indexes(|view| view.note_look(core.now_ms(), true));
    let status = session.compare(|state| {
        let status = compare(state, &snapshot);
        let lacks = lacks_head(state, &snapshot, &status);
        (status, lacks)
    });
    if status.is_ok() && session.read(|state| state.torn_end > 0) {
        session.note(Entry::TornEnd { bytes: 0 }).await?;
    }
    if matches!(status, Err(ClientError::Deleted)) {
        note_deletion(session).await;
    }
    Ok((snapshot, status))
}

/// Looks at the head indexes, and records their state and the devices.
async fn snapshot(
    core: &Arc<Core>,
    session: &Arc<Session>,
    wait: Duration,
) -> Result<HeadSnapshot, ClientError> {
    let (root, since_ms) = session.read(|state| (state.root.clone(), state.head_since_ms(core.now_ms())));
    let places = head_places(&root, since_ms, core.now_ms());
    let look = core.heads_of(session.id).look(&places, wait).await;
    session.indexes(|view| view.statuses.clone_from(&look.statuses));
    let snapshot = HeadSnapshot { heads: open_all(&look, &root)?, look };
    let is_early = session.read(|state| {
        let heads = snapshot.heads.iter().map(|head| (head.outer.seq, head.outer.link_hash));
        let branches = snapshot.branches().into_iter().map(|head| (head.seq, head.link_hash));
        heads.chain(branches).any(|(seq, link)| seq < state.first_seq() && !state.is_in_branch(&link))
    });
    if is_early {
        session.load_all().await?;
    }
    note_leases(core, session, &snapshot.devices()).await;
    Ok(snapshot)
}

async fn note_leases(core: &Arc<Core>, session: &Arc<Session>, found: &[DeviceLease]) {
    let now = core.now_ms();
    let changed = session.read(|state| {
        let devices = state.leases_of_others(found, MAX_DEVICES - 1, now);
        let is_known = |lease: &DeviceLease| {
            let known = state.leases.iter().find(|known| known.device == lease.device);
            known.is_some_and(|known| known.expires_ms.abs_diff(lease.expires_ms) < LEASE_STEP_MS)
        };
        let same = devices.len() == state.leases.len() && devices.iter().all(is_known);
        (!same).then_some(devices)
    });
    if let Some(devices) = changed {
        log_failure(session.note(Entry::Leases { devices }).await, "the session's devices were not noted");
    }
}

/// Publishes the session's head, unless there is none yet or it is published already. One index that
/// takes it is enough; the others are offered it again later.
///
/// # Errors
/// [`ClientError::Behind`], [`ErrorCode::ForkDetected`] when another device's turns are in the way,
/// [`ClientError::Deleted`], [`ClientError::Store`].
pub(crate) async fn publish_head(
    core: &Arc<Core>,
    session: &Arc<Session>,
    why: PublishReason,
) -> Result<(), ClientError> {
    session.check_writable()?;
    let _permit = session.heads.lock().await;
    if why == PublishReason::Head && session.read(State::is_published) {
        return Ok(());
    }
    let head = session.read(State::prev_link);
    let published = publish_alone(core, session, why).await;
    session.set_unpublished(published.is_err().then_some(head));
    if matches!(published, Err(ClientError::Deleted)) {
        note_deletion(session).await;
    }
    published
}

/// Records that another device deleted the session, so that later listings show it.
async fn note_deletion(session: &Arc<Session>) {
    if session.is_deleted() || session.read(|state| state.deleted_elsewhere) {
        return;
    }
    let noted = session.note(Entry::DeletedElsewhere).await;
    log_failure(noted, "the deletion by another device was not noted");
}

async fn publish_alone(
    core: &Arc<Core>,
    session: &Arc<Session>,
    why: PublishReason,
) -> Result<(), ClientError> {
    // A second round follows if another device published in between.
    for _ in 0..2 {
        if session.is_deleted() && why != PublishReason::Tombstone {
            return Ok(());
        }
        let (before, closed) = look_before(core, session, why).await?;
        let now = core.now_ms();
        let tombstone = why == PublishReason::Tombstone;
        let next = session.read(|state| next_record(state, tombstone, &before, now));
        let Some((record, published)) = next else { return Ok(()) };
        let record = record.encode();
        let head = Entry::Head(published);
        let heads = core.heads_of(session.id);
        let outcome = heads.offer(&record, |name| !closed.contains(name)).await;
        match outcome.result() {
            Ok(()) => {
                let unconfirmed = Entry::HeadUnconfirmed { names: heads.lacking(&outcome), record };
                return session.record(vec![head, unconfirmed]).await;
            }
            Err(StoreError::HeadSuperseded) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(StoreError::HeadSuperseded.into())
}

/// Checks that the next head continues the newest published head. An index that shows another chain keeps it
/// until that chain is merged here: its name is returned with the look.
async fn look_before(
    core: &Arc<Core>,
    session: &Arc<Session>,
    why: PublishReason,
) -> Result<(HeadSnapshot, Vec<String>), ClientError> {
    let mut closed = Vec::new();
    let snapshot = match snapshot(core, session, LOOK_WAIT).await {
        Ok(snapshot) => snapshot,
        Err(error @ ClientError::Store(_)) => return Err(error),
        // Bytes that are no record belong to no device, and are overwritten.
        Err(_) => return Ok((HeadSnapshot::default(), closed)),
    };
    if matches!(why, PublishReason::Head | PublishReason::Lease) {
        let newest = snapshot.heads.first();
        let (merged, continues) = session.read(|state| {
            closed = snapshot.closed_indexes(state);
            (compare_chains(state, &snapshot), newest.map_or(Ok(()), |newest| compare_chain(state, newest)))
        });
        if merged.is_err() {
            session.indexes(|view| view.note_comparison(&merged));
        }
        continues?;
    }
    if snapshot.is_deleted() && why != PublishReason::Tombstone {
        return Err(ClientError::Deleted);
    }
    Ok((snapshot, closed))
}

/// Offers the last head record again to the indexes that have not accepted it. A later head does not wait for them.
pub(crate) async fn offer_unconfirmed(core: &Arc<Core>, session: &Arc<Session>) -> Result<(), ClientError> {
    let permit = session.heads.lock().await;
    let Some((record, names)) = session.read(|state| state.head_unconfirmed.clone()) else {
        return Ok(());
    };
    let (_, closed) = look_before(core, session, PublishReason::Head).await?;
    drop(permit);
    let (waiting, open): (Vec<_>, Vec<_>) = names.iter().cloned().partition(|name| closed.contains(name));
    let outcome = core.heads_of(session.id).offer(&record, |name| open.contains(name)).await;
    // An index with a newer record no longer needs this record.
    let superseded = |name: &String| outcome.failed.contains(&(name.clone(), StoreError::HeadSuperseded));
    let owed = open.iter().filter(|name| !outcome.taken.contains(name) && !superseded(name));
    let left: Vec<String> = owed.cloned().chain(waiting).collect();
    let _permit = session.heads.lock().await;
    let is_last =
        session.read(|state| state.head_unconfirmed.as_ref().is_some_and(|(last, _)| *last == record));
    if left == names || !is_last {
        return Ok(());
    }
    session.record(vec![Entry::HeadUnconfirmed { record, names: left }]).await
}

/// Offers the newest record, in the background, to indexes that showed less.
pub(crate) fn spawn_repair_of_indexes(core: &Arc<Core>, session: SessionId, look: &HeadLookup) {
    let outdated = look.outdated();
    let Some(newest) = look.best.as_ref().filter(|_| !outdated.is_empty()) else { return };
    let (heads, newest) = (core.heads_of(session), newest.encode());
    core.spawn(async move {
        heads.offer(&newest, |name| outdated.contains(name)).await;
    });
}

/// Announces this device to the index, in the background, after it took the session from there.
pub(crate) fn spawn_lease(core: &Arc<Core>, session: Arc<Session>) {
    let shared = core.clone();
    core.spawn(async move {
        let published = publish_head(&shared, &session, PublishReason::Lease).await;
        log_failure(published, "the head index was not told of this device");
    });
}

/// Marks a session deleted in the index, from the index's own record: for a session with a damaged
/// journal.
pub(crate) async fn publish_tombstone(core: &Arc<Core>, root: &SessionRoot) -> Result<(), ClientError> {
    let Some(found) = resolve_all(core, root).await?.into_iter().next() else { return Ok(()) };
    if found.inner.tombstone {
        return Ok(());
    }
    let now = core.now_ms();
    let inner = HeadInner { tombstone: true, ..found.inner };
    let sequence = next_sequence([found.sequence], now);
    let expires = now.saturating_add(HEAD_LIFETIME_MS);
    let record = HeadRecord::seal(root, &found.outer, &inner, sequence, now, expires);
    Ok(core.heads_of(root.session_id()).offer(&record.encode(), |_| true).await.result()?)
}

/// The records in the indexes, checked and opened, newest first: indexes that lag show earlier ones. None if all indexes
/// answer that they have none.
pub(crate) async fn resolve_all(core: &Arc<Core>, root: &SessionRoot) -> Result<Vec<FoundHead>, ClientError> {
    let places = head_places(root, 0, core.now_ms());
    let look = core.heads_of(root.session_id()).look(&places, Duration::MAX).await;
    let heads = open_all(&look, root)?;
    if heads.is_empty() && look.is_partial() {
        // An index that did not answer may have it.
        return Err(look.no_answer().into());
    }
    Ok(heads)
}

/// The records of a look, opened, newest first; an error if no index answered.
fn open_all(look: &HeadLookup, root: &SessionRoot) -> Result<Vec<FoundHead>, ClientError> {
    if let Some(record) = &look.best {
        let newest = FoundHead::open(record, root)?;
        let older = look.older.iter().filter_map(|record| FoundHead::open(record, root).ok());
        return Ok(std::iter::once(newest).chain(older).collect());
    }
    if look.statuses.iter().any(|one| one.shows.is_answer()) {
        return Ok(Vec::new());
    }
    let wrong = look.statuses.iter().find_map(|one| match one.shows {
        IndexAnswer::Wrong { code } => Some(code),
        _ => None,
    });
    Err(wrong.map_or_else(|| look.no_answer().into(), ClientError::Protocol))
}

/// The next head record of a session, above those that the indexes show; none without a turn whose blob ID is known.
fn next_record(
    state: &State,
    tombstone: bool,
    before: &HeadSnapshot,
    now_ms: u64,
) -> Option<(SignedObject<HeadRecord>, PublishedHead)> {
    let outer = state.head_outer()?;
    let (turn, _) = state.last()?;
    let own = DeviceLease { device: state.header.device_id, expires_ms: now_ms.saturating_add(LEASE_MS) };
    let others = state.leases_of_others(&before.devices(), MAX_DEVICES - 1, now_ms);
    let inner = HeadInner {
        turn_id: turn.link.turn_id,
        attempt: turn.link.attempt,
        author: turn.link.author,
        devices: std::iter::once(own).chain(others).collect(),
        branches: state.branch_heads(&before.branches()),
        tombstone,
    };
    let known = state.head.map(|head| head.sequence);
    let shown = before.heads.first().map(|newest| newest.sequence);
    let sequence = next_sequence(known.into_iter().chain(shown), now_ms);
    let expires = now_ms.saturating_add(HEAD_LIFETIME_MS);
    let record = HeadRecord::seal(&state.root, &outer, &inner, sequence, now_ms, expires);
    Some((record, PublishedHead { sequence, seq: outer.seq, link_hash: outer.link_hash }))
}

/// The sequence after `earlier` ones: the time, so that it does not count turns, or one more than the last. A
/// sequence of a week to come is of a clock that was wrong, and does not count: other devices do not look there.
fn next_sequence(earlier: impl IntoIterator<Item = u64>, now_ms: u64) -> u64 {
    let latest = head_period(now_ms.saturating_add(MAX_CLOCK_SKEW_MS));
    let last = earlier.into_iter().filter(|sequence| head_period(*sequence) <= latest).max();
    last.map_or(now_ms, |last| last.saturating_add(1).max(now_ms))
}

/// Compares the indexes' records with this device's state.
fn compare(state: &State, snapshot: &HeadSnapshot) -> Result<HeadStatus, ClientError> {
    let Some(found) = snapshot.heads.first() else {
        return match state.head {
            // A published head does not expire within a year.
            Some(_) => shows_less(state, &snapshot.look),
            None => no_record(&snapshot.look, HeadStatus::None),
        };
    };
    // No device writes on after a deletion that it sees, so one tombstone is enough.
    if snapshot.is_deleted() {
        return Err(ClientError::Deleted);
    }
    // Missing turns explain more than the sequence: two devices publish by their own clocks.
    compare_chains(state, snapshot)?;
    if state.head.is_some_and(|known| found.sequence < known.sequence) {
        return shows_less(state, &snapshot.look);
    }
    let ours = state.last().map(|(turn, _)| turn.link.link_hash());
    let current = ours == Some(found.outer.link_hash);
    Ok(if current { HeadStatus::Current } else { HeadStatus::Unpublished })
}

/// The result when no index shows the published head: a rollback, if an index that took it answers with less.
/// Indexes that never took it are not to blame: they are offered it again.
fn shows_less(state: &State, look: &HeadLookup) -> Result<HeadStatus, ClientError> {
    let never_took =
        |name: &String| state.head_unconfirmed.as_ref().is_some_and(|(_, names)| names.contains(name));
    let mut answers = look.statuses.iter().filter(|one| one.shows.is_answer()).peekable();
    if answers.peek().is_none() {
        return Err(look.no_answer().into());
    }
    if answers.all(|one| never_took(&one.name)) {
        return no_record(look, HeadStatus::Unpublished);
    }
    Err(ErrorCode::RollbackDetected.into())
}

/// The result without a record to compare with: an index that did not answer may have one.
fn no_record(look: &HeadLookup, status: HeadStatus) -> Result<HeadStatus, ClientError> {
    if look.best.is_none() && look.is_partial() { Err(look.no_answer().into()) } else { Ok(status) }
}

/// Whether the indexes lost this device's head, or have a shorter head above it: only a new record repairs
/// that. An index that never took the record is offered it again instead.
fn lacks_head(state: &State, snapshot: &HeadSnapshot, status: &Result<HeadStatus, ClientError>) -> bool {
    match status {
        Ok(HeadStatus::Unpublished) => {
            let known = state.head.map_or(0, |head| head.sequence);
            snapshot.heads.first().is_some_and(|found| found.sequence >= known)
        }
        Ok(_) => false,
        Err(error) => matches!(error, ClientError::Protocol(ErrorCode::RollbackDetected)),
    }
}

/// Compares the chain of each index's record: a device that reaches other indexes writes its turns there.
fn compare_chains(state: &State, snapshot: &HeadSnapshot) -> Result<(), ClientError> {
    snapshot.heads.iter().try_for_each(|head| compare_chain(state, head))
}

/// Checks that a head names a turn of this chain, or of a branch.
pub(crate) fn compare_chain(state: &State, found: &FoundHead) -> Result<(), ClientError> {
    let outer = &found.outer;
    match state.link_at(outer.seq) {
        Some(link) if link == outer.link_hash => Ok(()),
        _ if state.is_in_branch(&outer.link_hash) => Ok(()),
        Some(_) => Err(ErrorCode::ForkDetected.into()),
        // A turn that a compacted log omits: its sequence number shows that it is old.
        None if outer.seq < state.first_seq() => Ok(()),
        None => {
            let ours = state.next_seq().saturating_sub(1);
            Err(ClientError::Behind { ours, theirs: outer.seq, own: state.is_own(&found.inner.turn_id) })
        }
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::limits::HEAD_PERIOD_MS;

    use super::*;

    #[test]
    fn a_sequence_rises_and_a_wrong_clock_does_not_move_it_to_a_week_to_come() {
        let now = 2_950 * HEAD_PERIOD_MS + 5_000;
        let next = |earlier: &[u64], now_ms| next_sequence(earlier.iter().copied(), now_ms);
        assert_eq!(next(&[], now), now);
        assert_eq!(next(&[0, now], now), now + 1);
        assert_eq!(next(&[now + 3_600_000, 5], now), now + 3_600_001, "another device's clock is ahead");
        assert_eq!(next(&[now + HEAD_PERIOD_MS], now), now);
        assert_eq!(next(&[now + HEAD_PERIOD_MS, now + 7], now), now + 8);
        // Near the end of a week, a clock that is ahead may be in the next one already.
        let end = 2_951 * HEAD_PERIOD_MS;
        assert_eq!(next(&[end + 10], end - 20_000), end + 11);
    }
}
