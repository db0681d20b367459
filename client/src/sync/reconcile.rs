//! Two devices, one session: merges another device's turns, and keeps the turns that lose a fork as a branch.
//!
//! [`crate::session::fork`] decides which chain wins, by the links alone. The winner is the conversation; the other turns
//! become a branch beside it. Nothing is lost, sent again or paid for twice. Each merge is one list of entries, so a kill
//! leaves the state before or after it.

use std::{collections::HashSet, sync::Arc, time::Duration};

use baton_proto::{
    ErrorCode, SignedObject,
    chain::VerifiedSegment,
    head::{BranchHead, HeadInner, HeadOuter},
    ids::{LinkHash, NodeId},
    receipt::Receipt,
    record::Message,
};

use futures::future::BoxFuture;

use crate::{
    attempt::{self, Events, delivery},
    core::Core,
    error::ClientError,
    event::{DeviceEvent, Fork, RouteOptions, TurnEvent},
    index_status::IndexStatus,
    session::{
        fork::{ChainLink, ForkChain, Merge, merge},
        journal::JournalLocation,
        open_session::Session,
        state::{Branch, Entry, State},
    },
    storage,
    sync::{
        head::{self, FoundHead, HeadStatus, PublishReason},
        transfer, verify,
    },
};

/// Turns beside a session's conversation: they lost a fork, or lie before a gap that a recovery found.
#[derive(Debug, Clone)]
pub struct SessionBranch {
    /// Its name in the session.
    pub name: String,
    /// Whether it lies before a gap: a recovery could not read the turns between it and the conversation.
    pub is_before_gap: bool,
    /// Its turns, oldest first.
    pub turns: Vec<BranchedTurn>,
}

/// A turn of a branch.
#[derive(Debug, Clone)]
pub struct BranchedTurn {
    /// Its position in its chain.
    pub seq: u64,
    /// Its link.
    pub link_hash: LinkHash,
    /// Its messages, with the answer last.
    pub messages: Vec<Message>,
    /// The node that served it.
    pub node: NodeId,
    /// That node's signed claims; absent for another device's turn.
    pub receipt: Option<SignedObject<Receipt>>,
}

/// The outcome of [`SessionHandle::reconcile`](crate::SessionHandle::reconcile).
#[derive(Debug, Clone)]
pub struct ReconcileReport {
    /// The state of this device's head in the index, after the call.
    pub status: HeadStatus,
    /// Merged turns of other devices.
    pub caught_up: u64,
    /// A fork that was found.
    pub fork: Option<Fork>,
    /// State of each head index.
    pub indexes: Vec<IndexStatus>,
}

impl ReconcileReport {
    /// Nothing was merged.
    fn unchanged(status: HeadStatus) -> Self {
        Self { status, caught_up: 0, fork: None, indexes: Vec::new() }
    }

    /// With the outcome of the merge before, of another chain.
    fn after(self, earlier: Option<Self>) -> Self {
        let Some(earlier) = earlier else { return self };
        let unpublished = [self.status, earlier.status].contains(&HeadStatus::Unpublished);
        Self {
            status: if unpublished { HeadStatus::Unpublished } else { self.status },
            caught_up: self.caught_up + earlier.caught_up,
            fork: earlier.fork.or(self.fork),
            ..self
        }
    }
}

/// As [`SessionHandle::reconcile`](crate::SessionHandle::reconcile).
pub(crate) async fn reconcile(
    core: &Arc<Core>,
    session: &Arc<Session>,
    mut on_event: impl FnMut(TurnEvent) + Send,
) -> Result<ReconcileReport, ClientError> {
    let _permit = session.begin()?;
    let merged = match Box::pin(compare_and_merge(core, session, Duration::MAX, &mut on_event)).await {
        // The index lost or withholds the record that it took: ours is published above the one it shows.
        Err(ClientError::Protocol(ErrorCode::RollbackDetected)) => {
            on_event(TurnEvent::Devices(DeviceEvent::ShownLess));
            ReconcileReport::unchanged(HeadStatus::Unpublished)
        }
        merged => merged?,
    };
    storage::ensure_head_id(session).await?;
    let published = head::publish_head(core, session, PublishReason::Head).await;
    if let Err(error) = &published {
        // The merge is done; background work offers the rest again.
        let reason = error.to_string();
        on_event(TurnEvent::Devices(DeviceEvent::NotCompared { reason }));
    }
    let is_current = published.is_ok() && session.read(|state| state.last().is_some());
    let status = if is_current { HeadStatus::Current } else { merged.status };
    Ok(ReconcileReport { status, indexes: session.indexes(|view| view.statuses.clone()), ..merged })
}

/// As [`SessionHandle::publish_over`](crate::SessionHandle::publish_over).
pub(crate) async fn publish_over(core: &Arc<Core>, session: &Arc<Session>) -> Result<(), ClientError> {
    let _permit = session.begin()?;
    storage::ensure_head_id(session).await?;
    head::publish_head(core, session, PublishReason::Over).await?;
    session.indexes(|view| view.note_comparison(&Ok(())));
    Ok(())
}

/// The branches of a session, oldest first. A turn that several have is in the first of them alone.
pub(crate) fn branches(state: &State) -> Vec<SessionBranch> {
    let mut seen = HashSet::new();
    let mut branches: Vec<SessionBranch> = state.branches.iter().filter_map(describe).collect();
    for branch in &mut branches {
        branch.turns.retain(|turn| seen.insert(turn.link_hash));
    }
    branches.retain(|branch| !branch.turns.is_empty());
    branches
}

fn describe(branch: &Branch) -> Option<SessionBranch> {
    let turns = branch.turns.iter().filter_map(|one| {
        let link = &one.turn.link;
        Some(BranchedTurn {
            seq: link.seq,
            link_hash: link.link_hash(),
            messages: one.turn.record.as_ref()?.messages.clone(),
            node: link.author,
            receipt: one.receipt.clone(),
        })
    });
    let turns: Vec<BranchedTurn> = turns.collect();
    let name = name_of(&turns.last()?.link_hash);
    Some(SessionBranch { name, is_before_gap: branch.head.is_none(), turns })
}

/// The name of a branch: the beginning of its last link's hash.
pub(crate) fn name_of(link: &LinkHash) -> String {
    link.to_string().chars().take(8).collect()
}

/// Whether a turn first looks at the head index although no other device is known: the home may be an old
/// copy. A log client is new with every request; if its head is published, it needs no look.
fn is_look_due(core: &Arc<Core>, session: &Session, now_ms: u64) -> bool {
    let is_log_client = matches!(core.journals.location, JournalLocation::Log(_));
    session.indexes(|view| view.is_look_due(now_ms)) && !(is_log_client && session.read(State::is_published))
}

/// Prepares for a turn. Looks at the head index if a look is due, or another device may be writing. An index that is
/// down, or behind, does not delay the turn.
pub(crate) async fn reconcile_before(
    core: &Arc<Core>,
    session: &Arc<Session>,
    route: &RouteOptions,
    events: &mut Events<'_>,
) -> Result<(), ClientError> {
    let now = core.now_ms();
    let wanted = session.indexes(|view| view.diverged) || session.read(|state| state.is_shared(now));
    let wait = match (wanted, is_look_due(core, session, now)) {
        // A turn that another device appended meanwhile becomes a branch, so no turn waits longer for a silent index.
        (true, _) => head::LOOK_WAIT,
        // This device may have lost turns that it wrote: a moment to find out is worth it.
        (false, true) => core.config.timeouts.first_look,
        (false, false) => return Ok(()),
    };
    if !route.reconcile {
        return Ok(());
    }
    match Box::pin(compare_and_merge(core, session, wait, events)).await {
        Ok(_) => Ok(()),
        Err(error @ (ClientError::Deleted | ClientError::TaskEnded | ClientError::Closed)) => Err(error),
        Err(error @ (ClientError::File { .. } | ClientError::Log { .. })) => Err(error),
        Err(error) => {
            let reason = error.to_string();
            events(TurnEvent::Devices(DeviceEvent::NotCompared { reason }));
            Ok(())
        }
    }
}

/// Compares with the head index and merges the turns that are missing here; waits at most `wait` per
/// index. The caller holds the permit to change the chain.
pub(crate) async fn compare_and_merge(
    core: &Arc<Core>,
    session: &Arc<Session>,
    wait: Duration,
    events: &mut Events<'_>,
) -> Result<ReconcileReport, ClientError> {
    let (snapshot, compared) = head::look_and_compare(core, session, wait).await?;
    let outcome = match compared {
        Ok(status) => {
            head::spawn_repair_of_indexes(core, session.id, &snapshot.look);
            ReconcileReport::unchanged(status)
        }
        Err(error) if error.is_divergence() => {
            merge_all(core, session, &snapshot.heads, events).await?.ok_or(error)?
        }
        Err(error) => return Err(error),
    };
    let kept = keep_branches_of(core, session, &snapshot.heads, events).await;
    Ok(ReconcileReport { fork: outcome.fork.or(kept), ..outcome })
}

/// Merges the chain of each of these heads that has turns which are missing here; none if no head has.
pub(crate) async fn merge_all(
    core: &Arc<Core>,
    session: &Arc<Session>,
    heads: &[FoundHead],
    events: &mut Events<'_>,
) -> Result<Option<ReconcileReport>, ClientError> {
    let mut merged = None;
    for found in heads {
        // The merge of a newer head may have brought this one too.
        if session.read(|state| head::compare_chain(state, found)).is_ok() {
            continue;
        }
        // Without its type: the types of callers' futures would else be too deep for the compiler.
        let merge: BoxFuture<'_, _> = Box::pin(merge_with(core, session, found, events));
        let outcome = merge.await;
        // Turns that cannot be read are still in the way.
        if outcome.as_ref().err().is_none_or(ClientError::is_divergence) {
            session.indexes(|view| view.note_comparison(&outcome));
        }
        merged = Some(outcome?.after(merged));
    }
    Ok(merged)
}

/// Fetches and verifies another device's chain, and decides which chain wins.
async fn merge_with(
    core: &Arc<Core>,
    session: &Arc<Session>,
    found: &FoundHead,
    events: &mut Events<'_>,
) -> Result<ReconcileReport, ClientError> {
    session.load_all().await?;
    let root = session.read(|state| state.root.clone());
    let segments = verify::fetch_chain(core, &root, found, Some(session)).await?;
    let ours = session.read(State::chain);
    let theirs = chain_of(&ours, &segments);
    let ends = theirs.first + theirs.links.len() as u64;
    let decided = merge(&ours, &theirs);
    let (at, won) = match decided {
        Merge::Ours => return Ok(ReconcileReport::unchanged(HeadStatus::Current)),
        Merge::Behind { from } => {
            adopt(core, session, &segments, from, Some(found.entry())).await?;
            let new = segments.iter().flat_map(|segment| &segment.turns);
            let new = new.filter(|turn| turn.link.seq >= from);
            let own = session.read(|state| new.filter(|turn| state.is_own(&turn.link.turn_id)).count());
            let turns = ends.saturating_sub(from);
            events(TurnEvent::Devices(DeviceEvent::CaughtUp { turns, own: own as u64 }));
            return Ok(ReconcileReport {
                caught_up: turns,
                ..ReconcileReport::unchanged(HeadStatus::Current)
            });
        }
        Merge::Lose { at } => (at, false),
        Merge::Win { at } => (at, true),
        Merge::TooOld => return Err(ErrorCode::ForkDetected.into()),
    };
    let (fork, caught_up) = if won {
        keep_branch(session, found, &segments, at, Some(found.entry())).await?;
        let turns = ends.saturating_sub(at);
        (Fork { at, won, turns, branch: name_of(&found.outer.link_hash) }, 0)
    } else {
        let branch = session.read(|state| name_of(&state.prev_link()));
        store_end(core, session).await?;
        // Their head is not noted as published: after a crash too, a record that names the branch follows it.
        adopt(core, session, &segments, at, None).await?;
        let turns = ours.first + ours.links.len() as u64 - at;
        (Fork { at, won, turns, branch }, ends.saturating_sub(at))
    };
    events(TurnEvent::Devices(DeviceEvent::Forked(fork.clone())));
    let fork = Some(fork);
    Ok(ReconcileReport { caught_up, fork, ..ReconcileReport::unchanged(HeadStatus::Unpublished) })
}

/// Makes sure that the store has the blob of the last turn, before the turn leaves the chain.
async fn store_end(core: &Arc<Core>, session: &Arc<Session>) -> Result<(), ClientError> {
    storage::ensure_head_id(session).await?;
    let end = session.read(|state| {
        let (turn, meta) = state.last().filter(|(_, meta)| !meta.stored)?;
        Some((turn.link.seq, meta.blob_id?))
    });
    let Some((seq, id)) = end else { return Ok(()) };
    if !storage::is_there(core, id).await? {
        let _permit = session.puts.lock().await;
        storage::put(core, session, seq, id).await?;
    }
    Ok(())
}

/// Puts another device's turns from `at` on into the chain, with a further entry. This device's turns there become a
/// branch.
async fn adopt(
    core: &Arc<Core>,
    session: &Arc<Session>,
    segments: &[VerifiedSegment],
    at: u64,
    further: Option<Entry>,
) -> Result<(), ClientError> {
    let first =
        segments.partition_point(|segment| segment.turns.last().is_none_or(|turn| turn.link.seq < at));
    let (root, displaces, attempts) = session.read(|state| {
        let displaces = state.next_seq() > at || state.pending.is_some();
        (state.root.clone(), displaces, attempt::open_attempts(state))
    });
    let newer = segments.get(first..).unwrap_or_default();
    let mut entries = transfer::entries(&root, newer, &Default::default(), core.now_ms())?;
    entries.retain(|entry| entry.seq().is_none_or(|seq| seq >= at));
    if displaces {
        // First, so that a cut-off write leaves a chain that is merely behind.
        entries.insert(0, Entry::Rebase { at });
    }
    entries.extend(further);
    record_alone(session, entries).await?;
    delivery::spawn_aborts(core, session, attempts, None);
    Ok(())
}

/// Keeps another chain's turns from `at` on as a branch, with a further entry.
async fn keep_branch(
    session: &Arc<Session>,
    found: &FoundHead,
    segments: &[VerifiedSegment],
    at: u64,
    further: Option<Entry>,
) -> Result<(), ClientError> {
    let mut entries = vec![Entry::Branch { head: Some(found.branch_head()?) }];
    for segment in segments {
        let turns = segment.turns.iter().zip(&segment.segment.entries);
        let kept = turns.filter(|(turn, _)| turn.link.seq >= at);
        entries.extend(kept.map(|(_, entry)| Entry::BranchTurn(Box::new(entry.clone()))));
    }
    // The next record of ours must rank above its sequence.
    entries.extend(further);
    record_alone(session, entries).await
}

/// Reads the branches that these heads name and that are unknown here, and returns the last. A branch that cannot be read
/// stays named in the heads, and is tried again at the next look.
pub(crate) async fn keep_branches_of(
    core: &Arc<Core>,
    session: &Arc<Session>,
    heads: &[FoundHead],
    events: &mut Events<'_>,
) -> Option<Fork> {
    let mut last = None;
    for found in heads {
        for branch in &found.inner.branches {
            if session.read(|state| state.knows(branch)) {
                continue;
            }
            let read: BoxFuture<'_, _> = Box::pin(read_branch(core, session, found, branch));
            match read.await {
                Ok(fork) => {
                    events(TurnEvent::Devices(DeviceEvent::Forked(fork.clone())));
                    last = Some(fork);
                }
                Err(error) => tracing::warn!(%error, "a branch cannot be read"),
            }
        }
    }
    last
}

async fn read_branch(
    core: &Arc<Core>,
    session: &Arc<Session>,
    found: &FoundHead,
    branch: &BranchHead,
) -> Result<Fork, ClientError> {
    let BranchHead { seq, link_hash, turn_id, attempt, author, end } = *branch;
    let end = FoundHead {
        sequence: found.sequence,
        outer: HeadOuter { seq, link_hash, blobs: vec![end], ..found.outer.clone() },
        inner: HeadInner { turn_id, attempt, author, ..found.inner.clone() },
    };
    session.load_all().await?;
    let root = session.read(|state| state.root.clone());
    let segments = verify::fetch_chain(core, &root, &end, Some(session)).await?;
    let turns = || segments.iter().flat_map(|segment| &segment.turns);
    let at = session.read(|state| {
        let mut beside = turns().filter(|turn| state.link_at(turn.link.seq) != Some(turn.link.link_hash()));
        beside.next().map(|turn| turn.link.seq)
    });
    let at = at.ok_or(ErrorCode::BadSequence)?;
    keep_branch(session, &end, &segments, at, None).await?;
    let turns = turns().filter(|turn| turn.link.seq >= at).count() as u64;
    Ok(Fork { at, won: true, turns, branch: name_of(&link_hash) })
}

/// Records entries that change the chain, while no background task computes or stores anything by a
/// turn's seq.
async fn record_alone(session: &Arc<Session>, entries: Vec<Entry>) -> Result<(), ClientError> {
    let _heads = session.heads.lock().await;
    let _puts = session.puts.lock().await;
    let _ids = session.ids.lock().await;
    session.record(entries).await
}

/// The links of verified segments, which begin with the genesis, or with the first turn that is here.
fn chain_of(ours: &ForkChain, segments: &[VerifiedSegment]) -> ForkChain {
    let turns = || segments.iter().flat_map(|segment| &segment.turns);
    let prev = turns().next().map_or(ours.prev, |turn| turn.link.prev_link);
    let first = turns().next().map_or(0, |turn| turn.link.seq);
    ForkChain { first, prev, links: turns().map(|turn| ChainLink::from(&turn.link)).collect() }
}
