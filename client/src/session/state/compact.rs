//! Log compaction and snapshots: the entries that the next turn needs.

use baton_proto::limits::MAX_READ_BLOBS;

use super::{Entry, OmittedTurns, Proof, State, TurnChange, TurnEntry, TurnMeta, TurnsBefore};

/// Number of signed turns that must be exceeded before a log is compacted: checking their signatures is most
/// of the cost of opening it.
const COMPACT_FROM: usize = 16;

impl State {
    /// Entries that rebuild this state as far as the next turn needs it. They hold the segments that a node
    /// may be shown, and the signed objects of the last turn alone. None if that saves little, or work is
    /// pending.
    pub(crate) fn compacted_entries(&self) -> Option<Vec<Entry>> {
        let signed = self.meta.iter().filter(|meta| meta.receipt.is_some()).count();
        let busy = self.pending.is_some() || !self.is_published() || !self.unacked.is_empty();
        if signed <= COMPACT_FROM || busy {
            return None;
        }
        let from = self.needed_from()?;
        Some(self.entries_from(from, None))
    }

    /// Index of the first turn that the next turns need. None if the store lacks an earlier blob: it is rebuilt from
    /// the turns here.
    pub(crate) fn needed_from(&self) -> Option<usize> {
        let oldest_end = *self.segment_ends(MAX_READ_BLOBS).last()?;
        let segment = self.turn(oldest_end)?.0.link.segment;
        let from = self.history.partition_point(|turn| turn.link.segment < segment);
        let first = self.history.get(from)?.link.seq;
        self.unstored.first().is_none_or(|seq| *seq >= first).then_some(from)
    }

    /// Entries that rebuild this state without the turns before an index, with facts about them if others have them.
    pub(crate) fn entries_from(&self, from: usize, omitted: Option<OmittedTurns>) -> Vec<Entry> {
        let mut entries = vec![Entry::Opened(self.header.clone())];
        let is_snapshot = omitted.is_some();
        if let Some(first) = self.history.get(from).filter(|first| first.link.seq > 0 || is_snapshot) {
            let (seq, prev_link) = (first.link.seq, first.link.prev_link);
            let blobs = self.before.iter().flat_map(|before| before.blobs.clone()).collect();
            entries.push(Entry::Before(Box::new(TurnsBefore { seq, prev_link, blobs, omitted })));
        }
        if *self.system != self.header.system {
            entries.push(Entry::System(self.system.to_vec()));
        }
        if self.title.is_some() {
            entries.push(Entry::Title(self.title.clone()));
        }
        for (turn, meta) in self.history.iter().zip(&self.meta).skip(from) {
            let seq = turn.link.seq;
            let is_unacked = self.unacked.contains(&seq);
            let is_signed = is_unacked || seq + 1 == self.next_seq();
            meta.push_entries(seq, (is_signed, is_unacked), &mut entries);
        }
        for branch in &self.branches {
            entries.push(Entry::Branch { head: branch.head });
            entries.extend(branch.turns.iter().map(|turn| Entry::BranchTurn(Box::new(turn.entry.clone()))));
        }
        entries.extend(self.head.map(Entry::Head));
        if let Some((record, names)) = self.head_unconfirmed.clone() {
            entries.push(Entry::HeadUnconfirmed { record, names });
        }
        if !self.leases.is_empty() {
            entries.push(Entry::Leases { devices: self.leases.clone() });
        }
        if self.deleted_elsewhere {
            entries.push(Entry::DeletedElsewhere);
        }
        entries
    }
}

impl TurnMeta {
    /// Adds the entries of this turn, with the signed objects if `is_signed`.
    fn push_entries(&self, seq: u64, (is_signed, is_unacked): (bool, bool), entries: &mut Vec<Entry>) {
        let proof = match (&self.auth, &self.receipt) {
            (Some(auth), Some(receipt)) if is_signed => Some(Proof {
                auth: auth.bytes().clone(),
                receipt: receipt.bytes().clone(),
                ack: self.ack.as_ref().map(|ack| ack.bytes().clone()),
            }),
            _ => None,
        };
        let owes_no_ack = !is_unacked && proof.as_ref().is_some_and(|proof| proof.ack.is_some());
        entries.push(Entry::Turn(Box::new(TurnEntry {
            entry: self.entry.clone(),
            blob_digest: self.digest,
            blob_length: self.length,
            accepted_ms: self.accepted_ms,
            ordered: self.ordered,
            memory: if proof.is_some() { self.memory.clone() } else { Vec::new() },
            tokens: if proof.is_some() { self.tokens.clone() } else { Vec::new() },
            proof,
        })));
        let is_noted = self.stored || self.blob.paid.is_some();
        let changes = [
            self.blob_id.map(TurnChange::BlobId),
            owes_no_ack.then_some(TurnChange::Acked { is_moot: !self.acked }),
            is_noted.then_some(TurnChange::Stored(self.blob)),
            (is_noted && !self.stored).then_some(TurnChange::Lost),
            self.signed_twice.as_ref().map(|link| TurnChange::SignedTwice(link.bytes().clone())),
            self.renewal_doubt_ms.map(|since_ms| TurnChange::RenewalDoubt(Some(since_ms))),
        ];
        entries.extend(changes.into_iter().flatten().map(|change| Entry::OfTurn(seq, change)));
    }
}
