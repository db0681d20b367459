//! Two devices, one session: merges another device's turns, and replays the turns that they displaced.
//!
//! [`crate::session::fork`] decides which chain wins, by the links alone. The other chain also wins if it holds turns
//! that this device wrote and lost. The rest happens in steps, each journaled before the next:
//! 1. The other device's turns enter the chain in one list of entries.
//! 2. This device's displaced turns wait by number.
//! 3. Each is replayed like any other turn.
//!
//! A merge that costs more than [`crate::conflict`] allows waits for the owner's decision. Until then, nothing is
//! displaced and nothing is published.
//!
//! The next call resumes after a kill between any two steps.

use std::{sync::Arc, time::Duration};

use baton_proto::{
    ErrorCode, SignedObject,
    chain::VerifiedSegment,
    ids::{LinkHash, NodeId},
    limits::MAX_DEVICES,
    link::Link,
    receipt::Receipt,
    record::Message,
};

use crate::{
    attempt::{self, Events, delivery},
    conflict::{ChainConflict, ChainHeads, ChainSide, MAX_REPLAYS_UNASKED},
    core::Core,
    error::ClientError,
    event::{DeviceEvent, ResumeOptions, TurnEvent},
    session::{
        fork::{Chain, ChainLink, Merge, merge},
        journal::JournalLocation,
        open_session::Session,
        state::{DisplacedFate, DisplacedRecord, Entry, PublishedHead, State},
    },
    storage,
    sync::{
        head::{self, FIRST_LOOK, FoundHead, HeadStatus, PublishReason},
        transfer, verify,
    },
};

/// A turn that another device's turn displaced from the chain. It stays readable here.
#[derive(Debug, Clone)]
pub struct DisplacedTurn {
    /// Its former position.
    pub seq: u64,
    /// Its link.
    pub link_hash: LinkHash,
    /// Its messages, with the answer last.
    pub messages: Vec<Message>,
    /// The node that served it.
    pub node: NodeId,
    /// That node's signed claims; absent for another device's turn.
    pub receipt: Option<SignedObject<Receipt>>,
    /// Its fate.
    pub fate: TurnFate,
}

/// The fate of a displaced turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnFate {
    /// It waits for replay.
    Waits,
    /// It was replayed as this turn.
    Replayed {
        /// Its position.
        to: u64,
    },
    /// It is not replayed: given up, or replaced by a later turn.
    Dropped,
    /// It is another device's, which has not replayed it as far as is known here. Once that device's lease is
    /// over, this device does.
    Theirs,
    /// It is another device's, and the owner took it out of the chain.
    TakenOut,
    /// It lies before a gap: a recovery could not read the turns between it and the chain here.
    BeforeGap,
}

/// The permitted extent of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MergeMode {
    /// Merges turns that continue this device's; a fork is an error.
    CatchUp,
    /// Also resolves a fork, as far as that needs no consent.
    ResolveForks,
    /// Resolves the fork between these chains as the owner decided.
    Take(ChainSide, ChainHeads),
}

/// The outcome of a comparison and merge.
pub(crate) struct MergeOutcome {
    pub(crate) status: HeadStatus,
    pub(crate) caught_up: u64,
    pub(crate) fork: Option<(u64, bool)>,
    /// Turns that this device sends again.
    pub(crate) replays: u64,
}

impl MergeOutcome {
    /// Nothing was merged.
    pub(crate) fn unchanged(status: HeadStatus) -> Self {
        Self { status, caught_up: 0, fork: None, replays: 0 }
    }

    /// With the outcome of the merge before, of another chain.
    fn after(self, earlier: Option<Self>) -> Self {
        let Some(earlier) = earlier else { return self };
        let unpublished = [self.status, earlier.status].contains(&HeadStatus::Unpublished);
        Self {
            status: if unpublished { HeadStatus::Unpublished } else { self.status },
            caught_up: self.caught_up + earlier.caught_up,
            fork: earlier.fork.or(self.fork),
            replays: self.replays + earlier.replays,
        }
    }
}

/// As [`SessionHandle::publish_over`](crate::SessionHandle::publish_over).
pub(crate) async fn publish_over(core: &Arc<Core>, session: &Arc<Session>) -> Result<(), ClientError> {
    let _permit = session.begin()?;
    storage::ensure_head_id(session).await?;
    head::publish_head(core, session, PublishReason::Over).await?;
    session.indexes(|view| view.note_comparison(&Ok(())));
    Ok(())
}

/// Turns displaced from the chain by another device's, oldest first.
pub(crate) fn displaced(state: &State) -> Vec<DisplacedTurn> {
    state.replays.displaced().iter().filter_map(|one| describe(state, one)).collect()
}

/// Whether a turn first looks at the head index although no other device is known: the home may be an old
/// copy. A log client is new with every request; if its head is published, it needs no look.
fn is_look_due(core: &Arc<Core>, session: &Session, now_ms: u64) -> bool {
    let is_log_client = matches!(core.journals, JournalLocation::Log(_));
    session.indexes(|view| view.is_look_due(now_ms)) && !(is_log_client && session.read(State::is_published))
}

/// Prepares for a turn. Looks at the head index if a look is due, another device may be writing, or
/// replays wait. An index that is down, or behind, does not delay the turn.
pub(crate) async fn reconcile_before(
    core: &Arc<Core>,
    session: &Arc<Session>,
    options: &ResumeOptions,
    events: &mut Events<'_>,
) -> Result<(), ClientError> {
    let now = core.now_ms();
    let wanted = session.indexes(|view| view.diverged)
        || session
            .read(|state| state.is_shared(now) || state.has_waiting_replays() || state.conflict.is_some());
    let wait = match (wanted, is_look_due(core, session, now)) {
        (true, _) => Duration::MAX,
        // This device may have lost turns that it wrote: a moment to find out is worth it.
        (false, true) => FIRST_LOOK,
        (false, false) => return Ok(()),
    };
    if !options.reconcile {
        return Ok(());
    }
    match Box::pin(compare_and_merge(core, session, MergeMode::ResolveForks, wait, events)).await {
        Ok(_) => Ok(()),
        Err(error @ (ClientError::Deleted | ClientError::TaskEnded | ClientError::Closed)) => Err(error),
        Err(error @ (ClientError::File { .. } | ClientError::Log { .. })) => Err(error),
        Err(error @ ClientError::Diverged(_)) => Err(error),
        Err(error) => {
            // Another turn here would make the open conflict larger.
            if let Some(conflict) = session.read(|state| state.conflict.clone()) {
                return Err(ClientError::Diverged(Box::new(conflict)));
            }
            let reason = error.to_string();
            events(TurnEvent::Devices(DeviceEvent::NotCompared { reason }));
            Ok(())
        }
    }
}

/// Appends another device's turns to a session that is a prefix of its chain.
pub(crate) async fn catch_up(core: &Arc<Core>, session: &Arc<Session>) -> Result<(), ClientError> {
    let _permit = session.begin()?;
    if session.read(State::has_open_message) {
        return Err(ClientError::PendingTurn);
    }
    Box::pin(compare_and_merge(core, session, MergeMode::CatchUp, Duration::MAX, &mut |_| {})).await?;
    Ok(())
}

/// Compares with the head index and merges the turns that are missing here; waits at most `wait` per
/// index. The caller holds the permit to change the chain.
pub(crate) async fn compare_and_merge(
    core: &Arc<Core>,
    session: &Arc<Session>,
    mode: MergeMode,
    wait: Duration,
    events: &mut Events<'_>,
) -> Result<MergeOutcome, ClientError> {
    let (snapshot, compared) = head::look_and_compare(core, session, wait).await?;
    match compared {
        Ok(status) => {
            head::spawn_repair_of_indexes(core, session.id, &snapshot.look);
            if status == HeadStatus::Current {
                close_conflict(session).await?;
            }
            if mode != MergeMode::CatchUp {
                replay_for_absent(core, session).await?;
            }
            Ok(MergeOutcome::unchanged(status))
        }
        Err(error) if error.is_divergence() => {
            let mut merged = Err(error);
            for found in &snapshot.heads {
                // The merge of a newer head may have brought this one too.
                if session.read(|state| head::compare_chain(state, found)).is_ok() {
                    continue;
                }
                let outcome = Box::pin(merge_with(core, session, mode, found, events)).await;
                // Turns that cannot be read are still in the way.
                if outcome.as_ref().err().is_none_or(ClientError::is_divergence) {
                    session.indexes(|view| view.note_comparison(&outcome));
                }
                merged = Ok(outcome?.after(merged.ok()));
            }
            merged
        }
        Err(error) => Err(error),
    }
}

/// Fetches and verifies another device's chain, and decides which chain wins.
async fn merge_with(
    core: &Arc<Core>,
    session: &Arc<Session>,
    mode: MergeMode,
    found: &FoundHead,
    events: &mut Events<'_>,
) -> Result<MergeOutcome, ClientError> {
    let heads = ChainHeads { ours: session.read(State::prev_link), theirs: found.outer.link_hash };
    // A decision about other chains does not count.
    let mode = match mode {
        MergeMode::Take(_, decided) if decided != heads => MergeMode::ResolveForks,
        mode => mode,
    };
    let open = session.read(|state| state.conflict.clone());
    if let Some(conflict) = open.filter(|open| open.heads == heads && !matches!(mode, MergeMode::Take(..))) {
        return Err(wait_for_owner(conflict, events));
    }
    let root = session.read(|state| state.root.clone());
    let segments = verify::fetch_chain(core, &root, found, Some(session)).await?;
    let ours = session.read(State::chain);
    let theirs = chain_of(&ours, &segments);
    let ends = theirs.first + theirs.links.len() as u64;
    let links = || segments.iter().flat_map(|segment| &segment.turns).map(|turn| &turn.link);
    let own = session.read(|state| state.lost_turns(links()));
    let decided = match merge(&ours, &theirs) {
        // No other device holds the turns that this device wrote and lost. They were acknowledged, so the
        // rule does not apply to them.
        Merge::Win { at } if own > 0 => Merge::Lose { at },
        decided => decided,
    };
    let decided = if mode == MergeMode::CatchUp {
        decided
    } else {
        let theirs = Fork { heads, ends, links: links().collect() };
        with_consent(core, session, mode, decided, &theirs, events).await?
    };
    let mut replays = 0;
    let (caught_up, fork) = match decided {
        Merge::Ours => (0, None),
        Merge::Behind { from } => {
            adopt(core, session, found, &segments, from).await?;
            let turns = ends.saturating_sub(from);
            events(TurnEvent::Devices(DeviceEvent::CaughtUp { turns, own }));
            (turns, None)
        }
        Merge::Lose { at } if mode != MergeMode::CatchUp => {
            let turns = ours.first + ours.links.len() as u64 - at;
            replays = session.read(|state| state.displaced_here(at).replays);
            let highest_price = highest_price(core, replays);
            adopt(core, session, found, &segments, at).await?;
            events(TurnEvent::Devices(DeviceEvent::Forked { at, won: false, turns, own, highest_price }));
            (ends.saturating_sub(at), Some((at, false)))
        }
        Merge::Win { at } if mode != MergeMode::CatchUp => {
            keep_displaced_of_others(session, found, &segments, at, mode).await?;
            let turns = ends.saturating_sub(at);
            events(TurnEvent::Devices(DeviceEvent::Forked { at, won: true, turns, own, highest_price: 0 }));
            (0, Some((at, true)))
        }
        Merge::Lose { .. } | Merge::Win { .. } | Merge::TooOld => {
            return Err(ErrorCode::ForkDetected.into());
        }
    };
    let status = if fork.is_some_and(|(_, won)| won) { HeadStatus::Unpublished } else { HeadStatus::Current };
    Ok(MergeOutcome { status, caught_up, fork, replays })
}

/// The chain in the head index, beside the chain here.
struct Fork<'a> {
    heads: ChainHeads,
    /// The position after its last turn.
    ends: u64,
    links: Vec<&'a SignedObject<Link>>,
}

/// Which chain stays: by the rule, or as the owner decided about these very chains. A merge that needs the
/// owner's consent is recorded, and refused.
async fn with_consent(
    core: &Arc<Core>,
    session: &Arc<Session>,
    mode: MergeMode,
    by_rule: Merge,
    fork: &Fork<'_>,
    events: &mut Events<'_>,
) -> Result<Merge, ClientError> {
    let (at, wins) = match by_rule {
        Merge::Win { at } => (at, true),
        Merge::Lose { at } => (at, false),
        other => return Ok(other),
    };
    if let MergeMode::Take(side, _) = mode {
        return Ok(match side {
            ChainSide::Ours => Merge::Win { at },
            ChainSide::Theirs => Merge::Lose { at },
        });
    }
    let from_here = fork.links.iter().copied().filter(|link| link.seq >= at);
    let (here, there, next) =
        session.read(|state| (state.displaced_here(at), state.displaced_there(from_here), state.next_seq()));
    let loss = if wins { there } else { here };
    if !loss.needs_consent() {
        return Ok(by_rule);
    }
    let conflict = ChainConflict {
        at,
        ours: next.saturating_sub(at),
        theirs: fork.ends.saturating_sub(at),
        displaced: loss.of_others,
        replays: here.replays,
        highest_price: highest_price(core, here.replays),
        heads: fork.heads,
    };
    session.record(vec![Entry::Conflict(conflict.clone())]).await?;
    Err(wait_for_owner(conflict, events))
}

/// Closes a conflict whose other chain left the indexes.
async fn close_conflict(session: &Arc<Session>) -> Result<(), ClientError> {
    let head = session.read(|state| state.head.filter(|_| state.conflict.is_some()));
    let Some(PublishedHead { sequence, seq, link_hash }) = head else { return Ok(()) };
    session.record(vec![Entry::Head { sequence, seq, link_hash }]).await
}

fn wait_for_owner(conflict: ChainConflict, events: &mut Events<'_>) -> ClientError {
    events(TurnEvent::Devices(DeviceEvent::Diverged(conflict.clone())));
    ClientError::Diverged(Box::new(conflict))
}

/// The most that replays cost, in millionths of the node's unit.
fn highest_price(core: &Arc<Core>, replays: u64) -> u64 {
    replays.saturating_mul(core.config.max_price)
}

/// Makes the displaced turns of devices that are gone wait for their replay here. At most
/// [`MAX_REPLAYS_UNASKED`] replays wait unasked; the other turns follow at a later comparison.
async fn replay_for_absent(core: &Arc<Core>, session: &Arc<Session>) -> Result<(), ClientError> {
    let now = core.now_ms();
    let entries: Vec<Entry> = session.read(|state| {
        let waiting = state.replays.waiting().iter().filter(|waiting| waiting.of.is_some()).count() as u64;
        let room = usize::try_from(MAX_REPLAYS_UNASKED.saturating_sub(waiting)).unwrap_or(usize::MAX);
        let is_missing = |one: &&DisplacedRecord| {
            !state.is_replay_of_displaced(&one.turn.link.turn_id)
                && describe(state, one).is_some_and(|turn| turn.fate == TurnFate::Theirs)
        };
        let left = state.left_by_others(now).filter(is_missing).take(room);
        left.map(|one| Entry::ReplayForOther { link: one.turn.link.link_hash() }).collect()
    });
    if entries.is_empty() { Ok(()) } else { session.record(entries).await }
}

/// Puts another device's turns from `at` on into the chain. This device's turns there, and an unanswered
/// message, wait to follow them.
async fn adopt(
    core: &Arc<Core>,
    session: &Arc<Session>,
    found: &FoundHead,
    segments: &[VerifiedSegment],
    at: u64,
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
        // First, so that a cut-off write leaves a chain that is merely behind. Turns that a device with an
        // ended lease replayed for this device are recognised by its id.
        let (present, all) = session.read(|state| {
            let all = state.leases_of_others(&found.inner.devices, MAX_DEVICES, 0);
            (state.leases.clone(), all)
        });
        entries.splice(0..0, [Entry::Rebase { at }, Entry::Leases { devices: all }]);
        entries.push(Entry::Leases { devices: present });
    }
    entries.push(found.entry());
    record_alone(session, entries).await?;
    delivery::spawn_aborts(core, session, attempts, None);
    Ok(())
}

/// Keeps another device's displaced turns readable until that device replays them.
async fn keep_displaced_of_others(
    session: &Arc<Session>,
    found: &FoundHead,
    segments: &[VerifiedSegment],
    at: u64,
    mode: MergeMode,
) -> Result<(), ClientError> {
    let entry = match mode {
        MergeMode::Take(..) => Entry::TakenOut,
        MergeMode::CatchUp | MergeMode::ResolveForks => Entry::OthersTurn,
    };
    let mut entries = Vec::new();
    for segment in segments {
        let lost = segment.turns.iter().zip(&segment.segment.entries);
        let lost = lost.filter(|(turn, _)| turn.link.seq >= at);
        entries.extend(lost.map(|(_, lost)| entry(Box::new(lost.clone()))));
    }
    // The next record of ours must rank above its sequence.
    entries.push(found.entry());
    record_alone(session, entries).await
}

/// Records entries that change the chain, while no background task computes or stores anything by a
/// turn's seq.
async fn record_alone(session: &Arc<Session>, entries: Vec<Entry>) -> Result<(), ClientError> {
    let ended = |_| ClientError::TaskEnded;
    let _heads = session.heads.acquire().await.map_err(ended)?;
    let _puts = session.puts.acquire().await.map_err(ended)?;
    let _ids = session.ids.acquire().await.map_err(ended)?;
    session.record(entries).await
}

fn describe(state: &State, one: &DisplacedRecord) -> Option<DisplacedTurn> {
    let record = one.turn.record.as_ref()?;
    let link_hash = one.turn.link.link_hash();
    let fate = match one.fate {
        DisplacedFate::Waits => TurnFate::Waits,
        DisplacedFate::Dropped => TurnFate::Dropped,
        DisplacedFate::BeforeGap => TurnFate::BeforeGap,
        DisplacedFate::Replayed(to) => {
            position_of_replay(state, to).map_or(TurnFate::Waits, |to| TurnFate::Replayed { to })
        }
        // Another device draws another turn id, so the replay is found by its messages.
        DisplacedFate::Theirs(_) | DisplacedFate::TakenOut => {
            let new = |messages: &[Message]| messages.split_last().map(|(_, new)| new.to_vec());
            let wanted = new(&record.messages);
            let mut later = state.history.iter().filter(|turn| turn.link.seq > one.turn.link.seq);
            let found =
                later.find(|turn| turn.record.as_ref().is_some_and(|record| new(&record.messages) == wanted));
            let unseen =
                if one.fate == DisplacedFate::TakenOut { TurnFate::TakenOut } else { TurnFate::Theirs };
            let found = found.map(|turn| turn.link.seq).or_else(|| state.replay_here(&one.turn.link.turn_id));
            found.map_or(unseen, |to| TurnFate::Replayed { to })
        }
    };
    let messages = record.messages.clone();
    Some(DisplacedTurn {
        seq: one.turn.link.seq,
        link_hash,
        messages,
        node: one.turn.link.author,
        receipt: one.receipt.clone(),
        fate,
    })
}

/// Position of a replayed turn, even after several replays.
fn position_of_replay(state: &State, mut link: LinkHash) -> Option<u64> {
    // Each step goes to a turn that was accepted later.
    for _ in 0..=state.replays.displaced().len() {
        if let Some(turn) = state.history.iter().rev().find(|turn| turn.link.link_hash() == link) {
            return Some(turn.link.seq);
        }
        match state.replays.find(&link)?.fate {
            DisplacedFate::Replayed(next) => link = next,
            DisplacedFate::Waits
            | DisplacedFate::Dropped
            | DisplacedFate::Theirs(_)
            | DisplacedFate::TakenOut
            | DisplacedFate::BeforeGap => return None,
        }
    }
    None
}

/// The links of verified segments, which begin with the genesis, or with the first turn that is here.
fn chain_of(ours: &Chain, segments: &[VerifiedSegment]) -> Chain {
    let turns = || segments.iter().flat_map(|segment| &segment.turns);
    let prev = turns().next().map_or(ours.prev, |turn| turn.link.prev_link);
    let first = turns().next().map_or(0, |turn| turn.link.seq);
    Chain { first, prev, links: turns().map(|turn| ChainLink::from(&turn.link)).collect() }
}
