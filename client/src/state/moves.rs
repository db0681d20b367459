//! Turns that lost their place to another device's: kept readable, and said again on top of it, in their order.
//!
//! Everything here follows from journal entries, so what a crash interrupts is taken up where it was: the displaced turns
//! wait by number, one of them at a time is the pending turn, and an accepted turn takes its number off the list.

use baton_proto::{
    ErrorCode, Signed,
    chain::{HistoryTurn, effective},
    head::DeviceLease,
    ids::{LinkHash, TurnId},
    link::Link,
    receipt::Receipt,
    record::{Message, RecordKind},
    segment,
};

use super::{Pending, PendingTurn, State, TurnMeta};
use crate::event::DEFAULT_OUTPUT_TOKENS;

/// So many times a turn may have been said again for it to be found where the journal lost its notes of that.
const MAX_FOLLOWED: usize = 16;

/// A message that is to be said once those before it are.
#[derive(Clone)]
pub(crate) struct Waiting {
    /// Names it in the journal.
    pub(crate) number: u64,
    /// What to say.
    pub(crate) turn: PendingTurn,
    /// The displaced turn that it says again; none for a message that was never answered.
    pub(crate) of: Option<LinkHash>,
}

/// A turn that is in the chain no longer.
#[derive(Clone)]
pub(crate) struct Displaced {
    /// Link and text, with the answer that it had.
    pub(crate) turn: HistoryTurn,
    pub(crate) receipt: Option<Signed<Receipt>>,
    pub(crate) fate: Fate,
}

/// What becomes of a displaced turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is to be said again here.
    Waits,
    /// It was said again, as this link.
    Moved(LinkHash),
    /// It is not said again: given up by the user, or replaced or only useful where it stood.
    LeftOut,
    /// It is another device's, which says it again.
    Theirs,
}

/// What the merging of chains left to do, and what it left out.
#[derive(Clone, Default)]
pub(crate) struct Moves {
    waiting: Vec<Waiting>,
    displaced: Vec<Displaced>,
    /// Number of the next message to wait.
    next: u64,
}

impl Moves {
    /// What waits, the first first.
    pub(crate) fn waiting(&self) -> &[Waiting] {
        &self.waiting
    }

    /// Turns that are in the chain no longer, oldest first.
    pub(crate) fn displaced(&self) -> &[Displaced] {
        &self.displaced
    }

    /// The displaced turn with this link.
    pub(crate) fn find(&self, link: &LinkHash) -> Option<&Displaced> {
        self.displaced.iter().find(|displaced| displaced.turn.link.link_hash() == *link)
    }

    fn set_fate(&mut self, link: &LinkHash, fate: Fate) {
        let found = self.displaced.iter_mut().find(|displaced| displaced.turn.link.link_hash() == *link);
        if let Some(displaced) = found {
            displaced.fate = fate;
        }
    }

    fn numbered(&mut self, turn: PendingTurn, of: Option<LinkHash>) -> Waiting {
        self.next += 1;
        Waiting { number: self.next, turn, of }
    }
}

impl State {
    /// Takes the turns from `at` on out of the chain. Those that this device wrote wait to be said again, before whatever
    /// waited already; so does a message that was not answered, after it.
    pub(super) fn rebase(&mut self, at: u64) -> Result<(), ErrorCode> {
        let from = self.index(at).filter(|from| *from <= self.history.len()).ok_or(ErrorCode::BadSequence)?;
        let turns = self.history.split_off(from);
        let metas = self.meta.split_off(from);
        self.due.all_changed();
        self.record_bytes -= turns.iter().map(|turn| u64::from(turn.link.record_length)).sum::<u64>();
        self.unstored.split_off(&at);
        self.unacked.split_off(&at);
        let counting = effective(&turns);
        let mut again = Vec::new();
        for (position, (turn, meta)) in turns.into_iter().zip(metas).enumerate() {
            let own = meta.auth.as_ref().is_some_and(|auth| auth.device_id == self.opened.device_id);
            let said = said_again(&turn, &meta).filter(|_| own && counting.contains(&position));
            let fate = match (own, &said) {
                (_, Some(_)) => Fate::Waits,
                (true, None) => Fate::LeftOut,
                (false, None) => Fate::Theirs,
            };
            if let Some(said) = said {
                again.push(self.moves.numbered(said, Some(turn.link.link_hash())));
            }
            self.moves.displaced.push(Displaced { turn, receipt: meta.receipt, fate });
        }
        // One that was being said again waits already.
        let pending = self.pending.take().filter(|pending| pending.number.is_none());
        let mut waiting = std::mem::take(&mut self.moves.waiting);
        waiting.extend(pending.map(|pending| self.moves.numbered(pending.turn, None)));
        again.extend(waiting);
        for waits in &mut again {
            waits.turn.follow();
        }
        self.moves.waiting = again;
        Ok(())
    }

    /// A message that is to be said after those that wait.
    pub(super) fn queue(&mut self, mut turn: PendingTurn) {
        turn.follow();
        let waiting = self.moves.numbered(turn, None);
        self.moves.waiting.push(waiting);
    }

    /// Makes what waits under a number the pending turn, under a turn id of its own.
    pub(super) fn begin_waiting(&mut self, number: u64, turn_id: TurnId) -> Result<(), ErrorCode> {
        let waiting = self.moves.waiting.iter_mut().find(|waiting| waiting.number == number);
        let waiting = waiting.ok_or(ErrorCode::BadSequence)?;
        waiting.turn.turn_id = turn_id;
        self.pending =
            Some(Pending { turn: waiting.turn.clone(), attempts: Vec::new(), number: Some(number) });
        Ok(())
    }

    /// What waits under a number is not said.
    pub(super) fn leave_out(&mut self, number: u64) {
        if self.pending.as_ref().is_some_and(|pending| pending.number == Some(number)) {
            self.pending = None;
        }
        if let Some(Some(link)) = self.take_waiting(number) {
            self.moves.set_fate(&link, Fate::LeftOut);
        }
    }

    /// Takes a number off the list, since its turn was accepted as this link; the displaced turn that it says again.
    pub(super) fn said(&mut self, number: u64, link: LinkHash) -> Option<LinkHash> {
        let of = self.take_waiting(number).flatten()?;
        self.moves.set_fate(&of, Fate::Moved(link));
        Some(of)
    }

    /// Takes what waits off the list where the chain has its turn already, as this link: it was answered, and the journal
    /// lost that. The displaced turn that it says again.
    pub(super) fn answered(&mut self, turn_id: &TurnId, link: LinkHash) -> Option<LinkHash> {
        let mut waiting = self.moves.waiting.iter();
        let number = waiting.find(|waiting| self.becomes(&waiting.turn.turn_id, turn_id))?.number;
        self.said(number, link)
    }

    /// Whether a turn with the first id is said under the second one, now or after a few more times.
    fn becomes(&self, first: &TurnId, turn_id: &TurnId) -> bool {
        let ids = std::iter::successors(Some(*first), |id| Some(self.next_turn_id(id)));
        ids.take(MAX_FOLLOWED).any(|id| id == *turn_id)
    }

    fn take_waiting(&mut self, number: u64) -> Option<Option<LinkHash>> {
        let place = self.moves.waiting.iter().position(|waiting| waiting.number == number)?;
        Some(self.moves.waiting.remove(place).of)
    }

    /// Keeps another device's turn that lost, until that device says it again.
    pub(super) fn keep(&mut self, entry: &segment::Entry) -> Result<(), ErrorCode> {
        let link = Signed::<Link>::verify(entry.link.clone())?;
        if self.moves.find(&link.link_hash()).is_some() {
            return Ok(());
        }
        let identity = link.record_identity();
        let record = entry.record.open(&self.root.record_key(&identity), &identity)?;
        let turn = HistoryTurn { link, record: Some(record) };
        self.moves.displaced.push(Displaced { turn, receipt: None, fate: Fate::Theirs });
        Ok(())
    }

    /// The first message that waits, if nothing is pending.
    pub(crate) fn next_waiting(&self) -> Option<&Waiting> {
        if self.pending.is_some() { None } else { self.moves.waiting.first() }
    }

    /// Whether displaced turns wait to be said again.
    pub(crate) fn moves_wait(&self) -> bool {
        self.moves.waiting.iter().any(|waiting| waiting.of.is_some())
    }

    /// Whether any message is not answered, or is to be said again.
    pub(crate) fn has_unsaid(&self) -> bool {
        self.pending.is_some() || !self.moves.waiting.is_empty()
    }

    /// The displaced turn that the pending one says again.
    pub(crate) fn pending_moves(&self) -> Option<&Displaced> {
        let number = self.pending.as_ref()?.number?;
        let waiting = self.moves.waiting.iter().find(|waiting| waiting.number == number)?;
        self.moves.find(&waiting.of?)
    }

    /// A message of the user's that has no answer yet: the pending one, unless that is being said again, or one that waits.
    pub(crate) fn unanswered(&self) -> Option<&PendingTurn> {
        let plain = self.pending.as_ref().filter(|pending| pending.number.is_none());
        let waiting = || self.moves.waiting.iter().find(|waiting| waiting.of.is_none());
        plain.map(|pending| &pending.turn).or_else(|| Some(&waiting()?.turn))
    }

    /// The number under which an unanswered message waits; none where it is simply pending.
    pub(crate) fn unanswered_number(&self) -> Option<u64> {
        if self.pending.as_ref().is_some_and(|pending| pending.number.is_none()) {
            return None;
        }
        self.moves.waiting.iter().find(|waiting| waiting.of.is_none()).map(|waiting| waiting.number)
    }

    /// Whether another device may be writing the session.
    pub(crate) fn is_shared(&self, now_ms: u64) -> bool {
        self.leases.iter().any(|lease| lease.expires_ms > now_ms)
    }

    /// The leases of other devices among these that have not run out, the longest first and at most so many.
    pub(crate) fn leases_of_others(
        &self,
        found: &[DeviceLease],
        most: usize,
        now_ms: u64,
    ) -> Vec<DeviceLease> {
        let mut others: Vec<DeviceLease> = Vec::new();
        for lease in self.leases.iter().chain(found) {
            if lease.device == self.opened.device_id || lease.expires_ms <= now_ms {
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
    /// An edit of turns that others have followed by now becomes what follows them: in their place it would take them
    /// out of the conversation.
    pub(crate) fn follow(&mut self) {
        if self.kind == RecordKind::Edit {
            (self.kind, self.supersedes_from) = (RecordKind::Turn, None);
        }
    }
}

/// What is said when a turn is said again; none for kinds that only have a meaning where they stood.
fn said_again(turn: &HistoryTurn, meta: &TurnMeta) -> Option<PendingTurn> {
    let record = turn.record.as_ref()?;
    if !matches!(record.kind, RecordKind::Turn | RecordKind::Edit) {
        return None;
    }
    let (_, new) = record.messages.split_last()?;
    let messages: Vec<Message> = new.to_vec();
    let (sampling, asked_tokens) = meta.asked.clone().unzip();
    let signed_tokens = meta.auth.as_ref().map(|auth| auth.max_output_tokens);
    Some(PendingTurn {
        // Another one follows from it when it is said.
        turn_id: turn.link.turn_id,
        kind: RecordKind::Turn,
        supersedes_from: None,
        messages,
        sampling: sampling.unwrap_or_default(),
        max_output_tokens: asked_tokens.or(signed_tokens).unwrap_or(DEFAULT_OUTPUT_TOKENS),
        begun_ms: meta.accepted_ms,
    })
}
