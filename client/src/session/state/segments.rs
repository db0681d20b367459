//! Segments and blobs of a session: which turns share a blob, what a blob holds, and how a head record names it.

use baton_proto::{
    ErrorCode,
    chain::{base_after, rebuild_blob},
    head::{HeadOuter, SegmentRef},
    ids::BlobId,
    limits::{MAX_READ_BLOBS, SEGMENT_TURNS},
    link::{BlobRef, Link},
    segment::Segment,
};

use super::State;

impl State {
    /// Where a turn's blob is; none until its ID is computed.
    pub(crate) fn blob_ref(&self, seq: u64) -> Option<BlobRef> {
        let (_, meta) = self.turn(seq)?;
        Some(BlobRef { blob_id: meta.blob_id?, digest: meta.digest, length: meta.length })
    }

    /// The current entries of a segment.
    pub(crate) fn segment(&self, number: u64) -> Segment {
        let last = self.history.last().filter(|last| last.link.segment == number);
        let first = match last {
            Some(last) => segment_start(self.history.len() - 1, &last.link),
            // Segments are runs, so the search begins at the first turn with the number.
            None => self.history.partition_point(|turn| turn.link.segment < number),
        };
        let run = self.history.iter().zip(&self.meta).skip(first).take(SEGMENT_TURNS);
        let entries = run
            .take_while(|(turn, _)| turn.link.segment == number)
            .map(|(_, meta)| meta.entry.clone())
            .collect();
        Segment { entries, ..Segment::empty(self.session_id, number) }
    }

    /// The segment of the next turn, with its entries so far.
    pub(crate) fn base(&self) -> Segment {
        match self.history.last() {
            Some(last) => base_after(self.segment(last.link.segment)),
            None => Segment::empty(self.session_id, 0),
        }
    }

    /// The bytes of the blob as of a turn, rebuilt from this session's own text.
    pub(crate) fn rebuild(&self, seq: u64) -> Result<Vec<u8>, ErrorCode> {
        let (turn, meta) = self.turn(seq).ok_or(ErrorCode::BadSequence)?;
        let segment = self.segment(turn.link.segment);
        let bytes = rebuild_blob(&self.root, &segment, &turn.link, usize::from(turn.link.index) + 1)?;
        let reference = BlobRef { blob_id: BlobId([0; 32]), digest: meta.digest, length: meta.length };
        reference.check(&bytes)?;
        Ok(bytes)
    }

    /// Last turns of the latest segments, newest first, at most `most`.
    pub(crate) fn segment_ends(&self, most: usize) -> Vec<u64> {
        self.next_seq().checked_sub(1).map_or_else(Vec::new, |last| self.segment_ends_until(last, most))
    }

    /// As [`State::segment_ends`], if `last` were the last turn.
    pub(crate) fn segment_ends_until(&self, last: u64, most: usize) -> Vec<u64> {
        let mut ends = Vec::new();
        let mut next = self.index(last);
        while let Some(turn) = next.and_then(|index| self.history.get(index)) {
            if ends.len() == most {
                break;
            }
            ends.push(turn.link.seq);
            next = next.and_then(|index| segment_start(index, &turn.link).checked_sub(1));
        }
        ends
    }

    /// Whether a later turn's blob also holds this turn's entry.
    pub(crate) fn is_superseded(&self, seq: u64) -> bool {
        let next = seq.checked_add(1).and_then(|next| self.turn(next));
        match (self.turn(seq), next) {
            (Some((turn, _)), Some((next, _))) => turn.link.segment == next.link.segment,
            _ => false,
        }
    }

    /// The outer part of the head record; none before the first turn, and until the last blob's ID is
    /// computed.
    pub(crate) fn head_outer(&self) -> Option<HeadOuter> {
        self.head_outer_at(self.next_seq().checked_sub(1)?)
    }

    /// As [`State::head_outer`], if this were the last turn.
    pub(crate) fn head_outer_at(&self, seq: u64) -> Option<HeadOuter> {
        let (turn, _) = self.turn(seq)?;
        let mut blobs = Vec::new();
        for end in self.segment_ends_until(seq, MAX_READ_BLOBS) {
            let (last, _) = self.turn(end)?;
            blobs.push(SegmentRef { segment: last.link.segment, blob: self.blob_ref(end)? });
        }
        // A later recovery may read turns before a gap.
        let before = self.before.iter().flat_map(|before| &before.blobs);
        blobs.extend(before.take(MAX_READ_BLOBS.saturating_sub(blobs.len())));
        Some(HeadOuter {
            n_shards: self.header.n_shards,
            branch: self.header.branch,
            seq: turn.link.seq,
            link_hash: turn.link.link_hash(),
            blobs,
        })
    }
}

/// Index of the first turn in a turn's segment: a log has whole segments, except the last.
fn segment_start(position: usize, link: &Link) -> usize {
    position.saturating_sub(usize::from(link.index))
}
