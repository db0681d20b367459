//! Log compaction: the entries that the next turn needs.

use baton_proto::limits::MAX_READ_BLOBS;

use super::{Entry, Proof, State, TurnEntry, TurnMeta};

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
        let oldest_end = *self.segment_ends(MAX_READ_BLOBS).last()?;
        let segment = self.turn(oldest_end)?.0.link.segment;
        let from = self.history.partition_point(|turn| turn.link.segment < segment);
        let first = self.history.get(from)?;
        // Blobs that the store lacks are rebuilt from this log.
        if self.unstored.first().is_some_and(|seq| *seq < first.link.seq) {
            return None;
        }
        let mut entries = vec![Entry::Opened(self.header.clone())];
        if first.link.seq > 0 {
            entries.push(Entry::Compacted { seq: first.link.seq, prev_link: first.link.prev_link });
        }
        if *self.system != self.header.system {
            entries.push(Entry::System(self.system.to_vec()));
        }
        if self.title.is_some() {
            entries.push(Entry::Title(self.title.clone()));
        }
        for (turn, meta) in self.history.iter().zip(&self.meta).skip(from) {
            let last = turn.link.seq + 1 == self.next_seq();
            meta.push_entries(turn.link.seq, last, &mut entries);
        }
        entries.extend(self.head.map(|head| Entry::Head {
            sequence: head.sequence,
            seq: head.seq,
            link_hash: head.link_hash,
        }));
        if !self.leases.is_empty() {
            entries.push(Entry::Leases { devices: self.leases.clone() });
        }
        if self.deleted_elsewhere {
            entries.push(Entry::DeletedElsewhere);
        }
        Some(entries)
    }
}

impl TurnMeta {
    /// Adds the entries of this turn, with the signed objects if `signed`.
    fn push_entries(&self, seq: u64, signed: bool, entries: &mut Vec<Entry>) {
        let proof = match (&self.auth, &self.receipt) {
            (Some(auth), Some(receipt)) if signed => Some(Proof {
                auth: auth.bytes().clone(),
                receipt: receipt.bytes().clone(),
                ack: self.ack.as_ref().map(|ack| ack.bytes().clone()),
            }),
            _ => None,
        };
        let is_acked = self.acked && proof.as_ref().is_some_and(|proof| proof.ack.is_some());
        entries.push(Entry::Turn(Box::new(TurnEntry {
            entry: self.entry.clone(),
            blob_digest: self.digest,
            blob_length: self.length,
            accepted_ms: self.accepted_ms,
            memory: if proof.is_some() { self.memory.clone() } else { Vec::new() },
            proof,
        })));
        entries.extend(self.blob_id.map(|id| Entry::BlobId { seq, id }));
        entries.extend(is_acked.then_some(Entry::Acked { seq }));
        entries.extend(self.stored.then_some(Entry::Stored { seq, end_epoch: self.end_epoch }));
        entries.extend(self.paid.map(|paid| Entry::Paid { seq, paid }));
        entries.extend(
            self.signed_twice.as_ref().map(|link| Entry::SignedTwice { seq, link: link.bytes().clone() }),
        );
        if self.renewal_doubt_ms.is_some() {
            entries.push(Entry::RenewalDoubt { seq, since_ms: self.renewal_doubt_ms });
        }
    }
}
