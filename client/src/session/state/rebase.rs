//! Turns that another device's turns displaced: kept readable, and replayed after them in their order.
//!
//! Everything here follows from journal entries, so it continues after a crash. The displaced turns wait by
//! number, one at a time is the pending turn, and acceptance takes its number off the list.

use baton_proto::{
    SignedObject,
    chain::{HistoryTurn, effective},
    head::DeviceLease,
    ids::{DeviceId, LinkHash, TurnId},
    link::Link,
    receipt::Receipt,
    record::{Message, RecordKind},
    segment,
    turn::Sampling,
};

use super::{Pending, PendingTurn, State, TurnMeta};
use crate::{
    conflict::DisplacedCount,
    error::StateError,
    event::{DEFAULT_OUTPUT_TOKENS, TurnSettings},
};

/// Replays to follow when searching for a turn whose entries about its replays the journal lost.
const MAX_FOLLOWED: usize = 16;

/// A message to send after the messages before it.
#[derive(Clone)]
pub(crate) struct QueuedMessage {
    /// Names it in the journal.
    pub(crate) number: u64,
    /// The message and its options.
    pub(crate) turn: PendingTurn,
    /// The displaced turn that it replays; none for a message that was never answered.
    pub(crate) of: Option<LinkHash>,
}

/// A turn that is no longer in the chain.
#[derive(Clone)]
pub(crate) struct DisplacedRecord {
    /// Link and text, with its former answer.
    pub(crate) turn: HistoryTurn,
    pub(crate) receipt: Option<SignedObject<Receipt>>,
    pub(crate) fate: DisplacedFate,
}

/// The fate of a displaced turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DisplacedFate {
    /// It waits for its replay here.
    Waits,
    /// It was replayed as this link.
    Replayed(LinkHash),
    /// It is not replayed: the user gave it up, it was already replaced, or it was only useful in its old
    /// position.
    Dropped,
    /// It belongs to another device, which replays it while it has a lease.
    Theirs(Option<DeviceId>),
    /// It is another device's, and the owner took it out of the chain.
    TakenOut,
    /// It lies before a gap of the chain.
    BeforeGap,
}

/// The device that replays a turn once it is displaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TurnOwner {
    /// This device: it wrote the turn.
    This,
    /// Another device with a lease: it wrote the turn.
    Other(DeviceId),
    /// None of the devices with a lease: the turn came with a recovery, an import, or a device that is gone.
    Absent,
}

/// Why another device's turn is displaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DisplacedBy {
    /// By the fork rule.
    Rule,
    /// By the owner's decision.
    Owner,
    /// By a gap of the chain that a recovery found.
    Gap,
}

/// Remaining and dropped turns of a merge of chains.
#[derive(Clone, Default)]
pub(crate) struct Replays {
    waiting: Vec<QueuedMessage>,
    displaced: Vec<DisplacedRecord>,
    /// Number of the next waiting message.
    next: u64,
}

impl Replays {
    /// The waiting messages, in their order.
    pub(crate) fn waiting(&self) -> &[QueuedMessage] {
        &self.waiting
    }

    /// Turns that are no longer in the chain, oldest first.
    pub(crate) fn displaced(&self) -> &[DisplacedRecord] {
        &self.displaced
    }

    /// The displaced turn with this link.
    pub(crate) fn find(&self, link: &LinkHash) -> Option<&DisplacedRecord> {
        self.displaced.iter().find(|displaced| displaced.turn.link.link_hash() == *link)
    }

    fn set_fate(&mut self, link: &LinkHash, fate: DisplacedFate) {
        let found = self.displaced.iter_mut().find(|displaced| displaced.turn.link.link_hash() == *link);
        if let Some(displaced) = found {
            displaced.fate = fate;
        }
    }

    fn numbered(&mut self, turn: PendingTurn, of: Option<LinkHash>) -> QueuedMessage {
        self.next += 1;
        QueuedMessage { number: self.next, turn, of }
    }
}

impl State {
    /// Takes the turns from `at` on out of the chain. The waiting list is then, in this order:
    /// 1. displaced turns that this device wrote, or that no device with a lease wrote;
    /// 2. messages that waited already;
    /// 3. an unanswered pending message.
    pub(super) fn rebase(&mut self, at: u64) -> Result<(), StateError> {
        let from = self.index(at).filter(|from| *from <= self.history.len());
        let from = from.ok_or(StateError::UnknownTurn(at))?;
        let turns = self.history.split_off(from);
        let metas = self.meta.split_off(from);
        self.count_effective_turns();
        self.due.all_changed();
        self.record_bytes -= turns.iter().map(|turn| u64::from(turn.link.record_length)).sum::<u64>();
        self.unstored.split_off(&at);
        self.unacked.split_off(&at);
        let counting = effective(&turns);
        let mut again = Vec::new();
        for (position, (turn, meta)) in turns.into_iter().zip(metas).enumerate() {
            let owner = self.owner_of(&turn.link, Some(&meta));
            let asked = AskedTurn::of(&meta);
            let replay = match owner {
                TurnOwner::Other(_) => None,
                TurnOwner::This | TurnOwner::Absent => {
                    replay_of(&turn, asked).filter(|_| counting.contains(&position))
                }
            };
            let fate = match (owner, &replay) {
                (_, Some(_)) => DisplacedFate::Waits,
                (TurnOwner::Other(device), None) => DisplacedFate::Theirs(Some(device)),
                (TurnOwner::This | TurnOwner::Absent, None) => DisplacedFate::Dropped,
            };
            if let Some(replay) = replay {
                again.push(self.replays.numbered(replay, Some(turn.link.link_hash())));
            }
            self.replays.displaced.push(DisplacedRecord { turn, receipt: meta.receipt, fate });
        }
        // A pending replay is in the waiting list already.
        let pending = self.pending.take().filter(|pending| pending.number.is_none());
        let mut waiting = std::mem::take(&mut self.replays.waiting);
        waiting.extend(pending.map(|pending| self.replays.numbered(pending.turn, None)));
        again.extend(waiting);
        for waits in &mut again {
            waits.turn.follow();
        }
        self.replays.waiting = again;
        Ok(())
    }

    /// Adds a message after the waiting messages.
    pub(super) fn queue(&mut self, mut turn: PendingTurn) {
        turn.follow();
        let waiting = self.replays.numbered(turn, None);
        self.replays.waiting.push(waiting);
    }

    /// Replaces the pending turn. The same turn with other settings keeps its number in the list.
    pub(super) fn set_pending(&mut self, turn: PendingTurn) {
        let same = self.pending.take().filter(|pending| pending.turn.turn_id == turn.turn_id);
        let number = same.and_then(|pending| pending.number);
        if let Some(waiting) = self.replays.waiting.iter_mut().find(|waiting| Some(waiting.number) == number)
        {
            waiting.turn = turn.clone();
        }
        self.pending = Some(Pending { turn, attempts: Vec::new(), number });
    }

    /// Makes the waiting message with this number the pending turn, with its own turn id.
    pub(super) fn begin_waiting(&mut self, number: u64, turn_id: TurnId) -> Result<(), StateError> {
        let waiting = self.replays.waiting.iter_mut().find(|waiting| waiting.number == number);
        let waiting = waiting.ok_or(StateError::UnknownMessage(number))?;
        waiting.turn.turn_id = turn_id;
        self.pending =
            Some(Pending { turn: waiting.turn.clone(), attempts: Vec::new(), number: Some(number) });
        Ok(())
    }

    /// Drops the waiting message with this number.
    pub(super) fn drop_waiting(&mut self, number: u64) {
        if self.pending.as_ref().is_some_and(|pending| pending.number == Some(number)) {
            self.pending = None;
        }
        if let Some(Some(link)) = self.take_waiting(number) {
            self.replays.set_fate(&link, DisplacedFate::Dropped);
        }
    }

    /// Takes a number off the list, since its turn was accepted as this link. Returns the displaced turn that
    /// it replays.
    pub(super) fn mark_replayed(&mut self, number: u64, link: LinkHash) -> Option<LinkHash> {
        let of = self.take_waiting(number).flatten()?;
        self.replays.set_fate(&of, DisplacedFate::Replayed(link));
        Some(of)
    }

    /// Takes a waiting message off the list if the chain already has its turn, as this link. It was answered,
    /// and the journal lost the answer; or it replays this very turn, which another chain still has in its first place.
    /// Returns the displaced turn that it replays.
    pub(super) fn mark_answered(&mut self, turn_id: &TurnId, link: LinkHash) -> Option<LinkHash> {
        let own = self.is_own(turn_id);
        let others: Vec<DeviceId> = self.makers_of(turn_id).collect();
        let answered = |waiting: &&QueuedMessage| {
            let first = &waiting.turn.turn_id;
            first == turn_id
                || (own && (self.becomes(first, turn_id) || self.becomes(turn_id, first)))
                || others.iter().any(|device| {
                    let replays = |origin| self.root.next_turn_id(&device.0, &origin) == *turn_id;
                    self.origins(waiting).into_iter().any(replays)
                })
        };
        let number = self.replays.waiting.iter().find(answered)?.number;
        self.mark_replayed(number, link)
    }

    /// The devices with a lease, of which one made this turn id.
    fn makers_of(&self, turn_id: &TurnId) -> impl Iterator<Item = DeviceId> {
        let made = |lease: &&DeviceLease| self.root.is_turn_of(&lease.device.0, turn_id);
        self.leases.iter().filter(made).map(|lease| lease.device)
    }

    /// The ids of the displaced turns that a waiting message replays, newest first: itself a replay, it has
    /// several.
    fn origins(&self, waiting: &QueuedMessage) -> Vec<TurnId> {
        let mut ids = Vec::new();
        let mut next = waiting.of;
        while let Some(found) =
            next.filter(|_| ids.len() < MAX_FOLLOWED).and_then(|of| self.replays.find(&of))
        {
            ids.push(found.turn.link.turn_id);
            let link = found.turn.link.link_hash();
            let mut displaced = self.replays.displaced.iter();
            let before = displaced.find(|one| one.fate == DisplacedFate::Replayed(link));
            next = before.map(|one| one.turn.link.link_hash());
        }
        ids
    }

    fn owner_of(&self, link: &Link, meta: Option<&TurnMeta>) -> TurnOwner {
        let signed_here =
            |meta: &TurnMeta| meta.auth.as_ref().is_some_and(|auth| auth.device_id == self.header.device_id);
        if meta.is_some_and(signed_here) || self.is_own(&link.turn_id) {
            return TurnOwner::This;
        }
        self.makers_of(&link.turn_id).next().map_or(TurnOwner::Absent, TurnOwner::Other)
    }

    /// The loss of the chain here if its turns from `at` on leave it. The replays are at most as many.
    pub(crate) fn displaced_here(&self, at: u64) -> DisplacedCount {
        let turns = self.history.iter().zip(&self.meta).filter(|(turn, _)| turn.link.seq >= at);
        self.count_displaced(turns.map(|(turn, meta)| self.owner_of(&turn.link, Some(meta))))
    }

    /// The loss of another chain if these of its turns leave it. Turns that were displaced here before are
    /// not counted again.
    pub(crate) fn displaced_there<'a>(
        &self,
        links: impl Iterator<Item = &'a SignedObject<Link>>,
    ) -> DisplacedCount {
        let new = links.filter(|link| self.replays.find(&link.link_hash()).is_none());
        let counted = self.count_displaced(new.map(|link| self.owner_of(link, None)));
        DisplacedCount { replays: 0, ..counted }
    }

    fn count_displaced(&self, owners: impl Iterator<Item = TurnOwner>) -> DisplacedCount {
        let mut count = DisplacedCount::default();
        for owner in owners {
            match owner {
                TurnOwner::This => count.replays += 1,
                TurnOwner::Other(_) => count.of_others += 1,
                TurnOwner::Absent => {
                    count.of_others += 1;
                    count.of_absent += 1;
                    count.replays += 1;
                }
            }
        }
        count
    }

    /// Whether a turn with the first id gets the second id, now or after a few more replays.
    fn becomes(&self, first: &TurnId, turn_id: &TurnId) -> bool {
        let ids = std::iter::successors(Some(*first), |id| Some(self.next_turn_id(id)));
        ids.take(MAX_FOLLOWED).any(|id| id == *turn_id)
    }

    /// The turn here that replays another turn of this device, as their ids show. The journal may have lost all else that
    /// connects them.
    pub(crate) fn replay_here(&self, turn_id: &TurnId) -> Option<u64> {
        if !self.is_own(turn_id) {
            return None;
        }
        let ids = std::iter::successors(Some(self.next_turn_id(turn_id)), |id| Some(self.next_turn_id(id)));
        let ids: Vec<TurnId> = ids.take(MAX_FOLLOWED).collect();
        self.history.iter().rev().find(|turn| ids.contains(&turn.link.turn_id)).map(|turn| turn.link.seq)
    }

    fn take_waiting(&mut self, number: u64) -> Option<Option<LinkHash>> {
        let position = self.replays.waiting.iter().position(|waiting| waiting.number == number)?;
        Some(self.replays.waiting.remove(position).of)
    }

    /// Keeps another device's displaced turn readable.
    pub(super) fn keep_displaced(
        &mut self,
        entry: &segment::Entry,
        by: DisplacedBy,
    ) -> Result<(), StateError> {
        let link = SignedObject::<Link>::of_verified(entry.link.clone())?;
        if self.replays.find(&link.link_hash()).is_some() {
            return Ok(());
        }
        let identity = link.record_identity();
        let record = entry.record.open(&self.root.record_key(&identity), &identity)?;
        let fate = match (by, self.owner_of(&link, None)) {
            (DisplacedBy::Owner, _) => DisplacedFate::TakenOut,
            (DisplacedBy::Gap, _) => DisplacedFate::BeforeGap,
            (DisplacedBy::Rule, TurnOwner::Other(device)) => DisplacedFate::Theirs(Some(device)),
            (DisplacedBy::Rule, TurnOwner::This | TurnOwner::Absent) => DisplacedFate::Theirs(None),
        };
        let turn = HistoryTurn { link, record: Some(record) };
        self.replays.displaced.push(DisplacedRecord { turn, receipt: None, fate });
        Ok(())
    }

    /// Makes another device's displaced turn wait for its replay here.
    pub(super) fn replay_for_other(&mut self, link: &LinkHash) {
        let Some(found) = self.replays.find(link) else { return };
        if !matches!(found.fate, DisplacedFate::Theirs(_)) {
            return;
        }
        let asked = AskedTurn { asked: None, max_output_tokens: None, begun_ms: found.turn.link.time_ms };
        let Some(replay) = replay_of(&found.turn, asked) else {
            return self.replays.set_fate(link, DisplacedFate::Dropped);
        };
        let waiting = self.replays.numbered(replay, Some(*link));
        self.replays.waiting.push(waiting);
        self.replays.set_fate(link, DisplacedFate::Waits);
    }

    /// Displaced turns of devices that had a lease and have none now.
    pub(crate) fn left_by_others(&self, now_ms: u64) -> impl Iterator<Item = &DisplacedRecord> {
        let is_present = move |device: Option<DeviceId>| {
            let mut valid = self.leases.iter().filter(move |lease| lease.expires_ms > now_ms);
            valid.any(|lease| device.is_none_or(|device| device == lease.device))
        };
        let is_left = move |one: &&DisplacedRecord| matches!(one.fate, DisplacedFate::Theirs(device) if !is_present(device));
        self.replays.displaced.iter().filter(is_left)
    }

    /// Whether a turn replays a displaced turn of this list, as a device with a lease names its replays.
    pub(crate) fn is_replay_of_displaced(&self, turn_id: &TurnId) -> bool {
        let own = self.is_own(turn_id).then_some(self.header.device_id);
        let makers: Vec<DeviceId> = self.makers_of(turn_id).chain(own).collect();
        let mut displaced = self.replays.displaced.iter().map(|one| one.turn.link.turn_id);
        !makers.is_empty()
            && displaced.any(|origin| {
                makers.iter().any(|device| self.root.next_turn_id(&device.0, &origin) == *turn_id)
            })
    }

    /// The first waiting message, if no turn is pending.
    pub(crate) fn next_waiting(&self) -> Option<&QueuedMessage> {
        if self.pending.is_some() { None } else { self.replays.waiting.first() }
    }

    /// Whether displaced turns wait for replay.
    pub(crate) fn has_waiting_replays(&self) -> bool {
        self.replays.waiting.iter().any(|waiting| waiting.of.is_some())
    }

    /// Whether any message is unanswered or waits for replay.
    pub(crate) fn has_open_message(&self) -> bool {
        self.pending.is_some() || !self.replays.waiting.is_empty()
    }

    /// The displaced turn that the pending turn replays.
    pub(crate) fn pending_displaced(&self) -> Option<&DisplacedRecord> {
        let number = self.pending.as_ref()?.number?;
        let waiting = self.replays.waiting.iter().find(|waiting| waiting.number == number)?;
        self.replays.find(&waiting.of?)
    }

    /// A user's message without an answer: the pending message unless it is a replay, or a waiting message.
    pub(crate) fn unanswered(&self) -> Option<&PendingTurn> {
        let plain = self.pending.as_ref().filter(|pending| pending.number.is_none());
        let waiting = || self.replays.waiting.iter().find(|waiting| waiting.of.is_none());
        plain.map(|pending| &pending.turn).or_else(|| Some(&waiting()?.turn))
    }

    /// Whether there is neither a turn nor a message, and none was lost: nobody looks for such a session.
    pub(crate) fn is_unused(&self) -> bool {
        self.next_seq() == 0
            && !self.has_open_message()
            && self.replays.displaced.is_empty()
            && self.torn_end == 0
            && !self.deleted_elsewhere
    }

    /// Whether there is an unanswered message for which no node was asked.
    pub(crate) fn is_unasked(&self) -> bool {
        let asks = |pending: &Pending| pending.number.is_none() && !pending.attempts.is_empty();
        self.unanswered().is_some() && !self.pending.as_ref().is_some_and(asks)
    }

    /// The number of a waiting unanswered message; none if it is pending.
    pub(crate) fn unanswered_number(&self) -> Option<u64> {
        if self.pending.as_ref().is_some_and(|pending| pending.number.is_none()) {
            return None;
        }
        self.replays.waiting.iter().find(|waiting| waiting.of.is_none()).map(|waiting| waiting.number)
    }

    /// Whether another device may be writing the session.
    pub(crate) fn is_shared(&self, now_ms: u64) -> bool {
        self.leases.iter().any(|lease| lease.expires_ms > now_ms)
    }

    /// The valid leases of other devices, longest first, at most `most`.
    pub(crate) fn leases_of_others(
        &self,
        found: &[DeviceLease],
        most: usize,
        now_ms: u64,
    ) -> Vec<DeviceLease> {
        let mut others: Vec<DeviceLease> = Vec::new();
        for lease in self.leases.iter().chain(found) {
            if lease.device == self.header.device_id || lease.expires_ms <= now_ms {
                continue;
            }
            match others.iter_mut().find(|other| other.device == lease.device) {
                Some(known) => known.expires_ms = known.expires_ms.max(lease.expires_ms),
                None => others.push(*lease),
            }
        }
        others.sort_unstable_by_key(|lease| (std::cmp::Reverse(lease.expires_ms), lease.device));
        others.truncate(most);
        others
    }
}

impl PendingTurn {
    /// The settings with which it was begun.
    pub(crate) fn settings(&self) -> TurnSettings {
        TurnSettings {
            supersedes_from: self.supersedes_from,
            sampling: self.sampling.clone(),
            max_output_tokens: self.max_output_tokens,
            model: self.model.clone(),
        }
    }

    /// Turns an edit into a plain turn once other turns follow its target: in its old place it would remove
    /// them from the conversation.
    pub(crate) fn follow(&mut self) {
        if self.kind == RecordKind::Edit {
            (self.kind, self.supersedes_from) = (RecordKind::Turn, None);
        }
    }
}

/// The known part of a displaced turn's request.
struct AskedTurn {
    asked: Option<(Sampling, u32)>,
    max_output_tokens: Option<u32>,
    begun_ms: u64,
}

impl AskedTurn {
    fn of(meta: &TurnMeta) -> Self {
        Self {
            asked: meta.asked.clone(),
            max_output_tokens: meta.auth.as_ref().map(|auth| auth.max_output_tokens),
            begun_ms: meta.accepted_ms,
        }
    }
}

/// The replay of a displaced turn; none for kinds that only have a meaning in their old position.
fn replay_of(turn: &HistoryTurn, asked: AskedTurn) -> Option<PendingTurn> {
    let record = turn.record.as_ref()?;
    if !matches!(record.kind, RecordKind::Turn | RecordKind::Edit) {
        return None;
    }
    let (_, new) = record.messages.split_last()?;
    let messages: Vec<Message> = new.to_vec();
    let (sampling, asked_tokens) = asked.asked.unzip();
    Some(PendingTurn {
        // The replay gets an id that follows from this one.
        turn_id: turn.link.turn_id,
        kind: RecordKind::Turn,
        supersedes_from: None,
        messages,
        sampling: sampling.unwrap_or_default(),
        max_output_tokens: asked_tokens.or(asked.max_output_tokens).unwrap_or(DEFAULT_OUTPUT_TOKENS),
        model: None,
        begun_ms: asked.begun_ms,
    })
}
