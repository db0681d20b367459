//! The branches of a session: turns that a fork left beside its chain, or that lie before a gap of it. They stay as they
//! were, and no device sends them again.
//!
//! Everything here follows from journal entries, so it continues after a crash.

use baton_proto::{
    ErrorCode, SignedObject,
    chain::{HistoryTurn, rebuild_blob},
    head::{BranchHead, DeviceLease, SegmentRef},
    ids::{LinkHash, TurnId},
    limits::MAX_BRANCHES,
    link::Link,
    receipt::Receipt,
    record::RecordKind,
    segment::{self, Segment},
};

use super::{PendingTurn, State};
use crate::event::TurnSettings;

/// Forks that one unanswered message outlives and is still recognised by its turn id.
const MAX_FOLLOWED: usize = 16;

/// Turns beside the chain.
#[derive(Clone)]
pub(crate) struct Branch {
    /// Its end as a head record names it; none for turns before a gap, whose blobs the record names itself.
    pub(crate) head: Option<BranchHead>,
    /// Its turns, oldest first.
    pub(crate) turns: Vec<BranchTurn>,
}

/// A turn of a branch.
#[derive(Clone)]
pub(crate) struct BranchTurn {
    /// Link and text.
    pub(crate) turn: HistoryTurn,
    /// The signed link and the sealed record, as in the blob.
    pub(super) entry: segment::Entry,
    /// Its node's receipt; none for another device's turn.
    pub(crate) receipt: Option<SignedObject<Receipt>>,
}

impl Branch {
    /// Whether it holds the turn with this link.
    fn holds(&self, link: &LinkHash) -> bool {
        self.turns.iter().any(|one| one.turn.link.link_hash() == *link)
    }
}

impl State {
    /// Takes the turns from `at` on out of the chain: they become a branch. An unanswered message stays, to be sent after
    /// the turns that take their place.
    pub(super) fn rebase(&mut self, at: u64) -> Result<(), ErrorCode> {
        let from = self.index(at).filter(|from| *from <= self.history.len());
        // Before the first turn here is another, whatever a snapshot leaves out.
        let from = from.filter(|from| *from > 0 || self.omitted().is_none());
        let from = from.ok_or(ErrorCode::BadSequence)?;
        let head = self.branch_head();
        let turns = self.history.split_off(from);
        let metas = self.meta.split_off(from);
        self.count_effective_turns();
        self.record_bytes -= turns.iter().map(|turn| u64::from(turn.link.record_length)).sum::<u64>();
        self.unstored.split_off(&at);
        self.unacked.split_off(&at);
        if !turns.is_empty() {
            let both = turns.into_iter().zip(metas);
            let turns = both
                .map(|(turn, meta)| BranchTurn { turn, entry: meta.entry, receipt: meta.receipt })
                .collect();
            self.add_branch(Branch { head, turns });
        }
        if let Some(pending) = &mut self.pending {
            // At its old position a node may hold an attempt of it: another turn id is another record key.
            pending.turn.turn_id = self.root.next_turn_id(&self.header.device_id.0, &pending.turn.turn_id);
            pending.turn.follow();
            pending.attempts.clear();
        }
        Ok(())
    }

    /// Begins a branch of another chain's turns, which follow.
    pub(super) fn begin_branch(&mut self, head: Option<BranchHead>) {
        self.branches.push(Branch { head, turns: Vec::new() });
    }

    /// Adds a turn to the branch that was begun last.
    pub(super) fn push_branch_turn(&mut self, entry: segment::Entry) -> Result<(), ErrorCode> {
        let link = SignedObject::<Link>::of_verified(entry.link.clone())?;
        let identity = link.record_identity();
        let record = entry.record.open(&self.root.record_key(&identity), &identity)?;
        let mut branch = self.branches.pop().ok_or(ErrorCode::BadSequence)?;
        branch.turns.push(BranchTurn {
            turn: HistoryTurn { link, record: Some(record) },
            entry,
            receipt: None,
        });
        self.add_branch(branch);
        Ok(())
    }

    /// Adds a branch; it takes the place of branches whose turns it all has.
    fn add_branch(&mut self, branch: Branch) {
        let has_all = |known: &Branch| {
            known.turns.iter().all(|one| branch.holds(&one.turn.link.link_hash())) && !known.turns.is_empty()
        };
        self.branches.retain(|known| !has_all(known));
        self.branches.push(branch);
    }

    /// The end of the chain as a branch would name it; none before the blob ID of the last turn is known.
    fn branch_head(&self) -> Option<BranchHead> {
        let link = &self.history.last()?.link;
        Some(BranchHead {
            seq: link.seq,
            link_hash: link.link_hash(),
            turn_id: link.turn_id,
            attempt: link.attempt,
            author: link.author,
            end: SegmentRef { segment: link.segment, blob: self.blob_ref(link.seq)? },
        })
    }

    /// The branches that the next head record names: those here, and those of the records that it follows. Of more than
    /// a record may name, the newest.
    pub(crate) fn branch_heads(&self, found: &[BranchHead]) -> Vec<BranchHead> {
        let unknown = found.iter().filter(|head| !self.knows(head));
        let known = self.branches.iter().filter_map(|branch| branch.head.as_ref());
        let mut heads: Vec<BranchHead> = Vec::new();
        for head in unknown.chain(known) {
            if heads.iter().all(|other| other.link_hash != head.link_hash) {
                heads.push(*head);
            }
        }
        heads.split_off(heads.len().saturating_sub(MAX_BRANCHES))
    }

    /// Whether a branch here has the turn with this link.
    pub(crate) fn is_in_branch(&self, link: &LinkHash) -> bool {
        self.branches.iter().any(|branch| branch.holds(link))
    }

    /// Whether a branch's turns are here, in the chain or in a branch.
    pub(crate) fn knows(&self, head: &BranchHead) -> bool {
        self.is_in_branch(&head.link_hash) || self.link_at(head.seq) == Some(head.link_hash)
    }

    /// The conversation that ends with a branch: the turns before it, wherever they are, and its own; oldest first.
    pub(crate) fn turns_until_end_of<'a>(&'a self, branch: &'a Branch) -> Vec<&'a HistoryTurn> {
        let beside = || self.branches.iter().flat_map(|branch| &branch.turns).map(|one| &one.turn);
        let mut turns: Vec<&HistoryTurn> = branch.turns.iter().rev().map(|one| &one.turn).collect();
        while let Some(first) = turns.last() {
            let (before, prev) = (first.link.seq.checked_sub(1), first.link.prev_link);
            let Some(before) = before else { break };
            if self.link_at(before) == Some(prev) {
                let here = self.index(before).unwrap_or_default();
                turns.extend(self.history.iter().take(here + 1).rev());
                break;
            }
            let Some(turn) = beside().find(|turn| turn.link.seq == before && turn.link.link_hash() == prev)
            else {
                break;
            };
            turns.push(turn);
        }
        turns.reverse();
        turns
    }

    /// The bytes of a branch's last blob, rebuilt from the text here.
    pub(crate) fn rebuild_branch(&self, head: &BranchHead) -> Result<Vec<u8>, ErrorCode> {
        let ends = |branch: &&Branch| branch.head.is_some_and(|known| known.link_hash == head.link_hash);
        let branch = self.branches.iter().find(ends).ok_or(ErrorCode::BadSequence)?;
        let turns = self.turns_until_end_of(branch);
        let last = turns.last().ok_or(ErrorCode::BadSequence)?;
        let number = head.end.segment;
        let entry_of = |turn: &HistoryTurn| {
            let hash = turn.link.link_hash();
            if self.link_at(turn.link.seq) == Some(hash) {
                return self.turn(turn.link.seq).map(|(_, meta)| meta.entry.clone());
            }
            let mut beside = self.branches.iter().flat_map(|branch| &branch.turns);
            beside.find(|one| one.turn.link.link_hash() == hash).map(|one| one.entry.clone())
        };
        let of_segment = turns.iter().filter(|turn| turn.link.segment == number);
        let entries = of_segment.filter_map(|turn| entry_of(turn)).collect();
        let segment = Segment { entries, ..Segment::empty(self.session_id, number) };
        let bytes = rebuild_blob(&self.root, &segment, &last.link, usize::from(last.link.index) + 1)?;
        head.end.blob.check(&bytes)?;
        Ok(bytes)
    }

    /// Whether a turn answers the unanswered message: under its id, or under an id that it had before a fork.
    pub(super) fn answers_pending(&self, turn_id: &TurnId) -> bool {
        let next = |id: &TurnId| self.root.next_turn_id(&self.header.device_id.0, id);
        let ids = std::iter::successors(Some(*turn_id), |id| Some(next(id)));
        self.pending.as_ref().is_some_and(|pending| {
            pending.turn.turn_id == *turn_id
                || (self.is_own(turn_id) && ids.take(MAX_FOLLOWED).any(|id| id == pending.turn.turn_id))
        })
    }

    /// Whether there is neither a turn nor a message, and none was lost: nobody looks for such a session.
    pub(crate) fn is_unused(&self) -> bool {
        self.next_seq() == 0
            && self.pending.is_none()
            && self.branches.is_empty()
            && self.torn_end == 0
            && !self.deleted_elsewhere
    }

    /// Whether there is an unanswered message for which no node was asked.
    pub(crate) fn is_unasked(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.attempts.is_empty())
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
    fn follow(&mut self) {
        if self.kind == RecordKind::Edit {
            (self.kind, self.supersedes_from) = (RecordKind::Turn, None);
        }
    }
}
