//! The disclosure of one turn: what a second computation of it needs, and nothing of other turns.
//!
//! The client makes it from its export. It names the turn's order and receipt, and holds the segments of the turn's
//! window with the record keys of the turns in its prompt. Links of other turns in those segments are readable, their
//! records are not: the serving node sees as much. [`Disclosure::open`] verifies all of it.

use std::{fmt, rc::Rc};

use baton_keys::{
    contexts::LINK_HASH,
    session::{BlobKey, RecordKey},
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

use crate::{
    chain::{ChainEnd, HistoryTurn, verify_segment},
    error::ErrorCode,
    export::{self, Export, ExportTurn, OpenTurn},
    ids::LinkHash,
    link::{BlobRef, Link},
    memory::MemoryItem,
    record::{Message, Record},
    segment::Segment,
    signed::{SignedBytes, SignedObject},
    turn::{GrantedKey, Sampling, TurnAuth},
};

/// All inputs that a second computation of a turn needs. Wiped when dropped.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Disclosure {
    /// The signed [`TurnAuth`].
    pub auth: SignedBytes,
    /// The signed [`Receipt`](crate::receipt::Receipt).
    pub receipt: SignedBytes,
    /// The pinned system text.
    pub system: Vec<Message>,
    /// The sampling settings.
    pub sampling: Sampling,
    /// The segments from the first turn of the window on, oldest first. The last one ends with the turn.
    pub segments: Vec<DisclosedSegment>,
    /// The record keys, from the first turn of the window to the turn itself. None for a turn that a later one
    /// superseded.
    pub record_keys: Vec<Option<GrantedKey>>,
    /// The memory items of the turn, in the node's order.
    pub memory: Vec<MemoryItem>,
    /// The JSON schema of the answer, if any.
    pub schema: Option<String>,
}

/// One segment of a disclosure.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DisclosedSegment {
    /// Segment number, from 0.
    pub segment: u64,
    /// The segment's blob.
    #[serde(with = "serde_bytes")]
    pub blob: Vec<u8>,
    /// Opens the blob.
    pub blob_key: GrantedKey,
}

/// A verified disclosure.
#[derive(Clone, Debug)]
pub struct DisclosedTurn {
    /// The turns before it, oldest first, with the records of those in its window.
    pub history: Vec<HistoryTurn>,
    /// The turn, with its authorisation, receipt, system text and sampling settings.
    pub turn: OpenTurn,
}

/// Why a turn of an export cannot be disclosed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DisclosureError {
    /// The export has no such turn.
    #[error("there is no turn {}", .0 + 1)]
    NoTurn(u64),
    /// The export lacks a part of the turn, which the client that began the turn has.
    #[error("its {0} is missing: only the client that began the turn has it")]
    Missing(&'static str),
    /// The export does not verify.
    #[error("the session does not verify: {0}")]
    Invalid(ErrorCode),
}

impl From<ErrorCode> for DisclosureError {
    fn from(code: ErrorCode) -> Self {
        Self::Invalid(code)
    }
}

impl Drop for Disclosure {
    fn drop(&mut self) {
        // The other parts wipe themselves.
        self.schema.zeroize();
        self.sampling.stop.zeroize();
    }
}

impl fmt::Debug for Disclosure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (segments, turns) = (self.segments.len(), self.record_keys.len());
        write!(f, "Disclosure({segments} segments, {turns} turns, {} memory items)", self.memory.len())
    }
}

impl fmt::Debug for DisclosedSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DisclosedSegment({}, {} bytes)", self.segment, self.blob.len())
    }
}

impl Disclosure {
    /// Takes what one turn needs out of an export. `memory` holds the items of the turn, and `schema` is the text of its
    /// JSON schema: no export has them.
    ///
    /// # Errors
    /// [`DisclosureError`].
    pub fn of(
        export: &Export,
        seq: u64,
        memory: Vec<MemoryItem>,
        schema: Option<String>,
    ) -> Result<Self, DisclosureError> {
        let mut before = export::open(export)?;
        before.retain(|turn| turn.link.seq <= seq);
        let turn = before.pop().filter(|turn| turn.link.seq == seq).ok_or(DisclosureError::NoTurn(seq))?;
        let missing = DisclosureError::Missing;
        let receipt = turn.receipt.as_ref().ok_or(missing("receipt"))?;
        let auth = turn.auth.as_ref().ok_or(missing("authorisation"))?;
        let history: Vec<HistoryTurn> = before.iter().map(history_turn).collect();
        let mut record_keys = Vec::new();
        for (earlier, is_read) in before.iter().zip(read_turns(&history)) {
            if earlier.link.seq >= receipt.window_from {
                record_keys.push(is_read.then(|| GrantedKey::of_record(&earlier.record_key)));
            }
        }
        record_keys.push(Some(GrantedKey::of_record(&turn.record_key)));
        let first = before.iter().find(|turn| turn.link.seq == receipt.window_from).unwrap_or(&turn);
        let exported =
            export.turns.iter().find(|turn| turn.seq == seq).ok_or(DisclosureError::NoTurn(seq))?;
        Ok(Self {
            auth: auth.bytes().clone(),
            receipt: receipt.bytes().clone(),
            system: turn.system.clone().ok_or(missing("system text"))?,
            sampling: turn.sampling.clone().ok_or(missing("list of sampling settings"))?,
            segments: segments(export, first.link.segment, &turn, exported)?,
            record_keys,
            memory,
            schema,
        })
    }

    /// Verifies the disclosure: signatures, the chain of its links, its records, and the receipt's commitments to them.
    ///
    /// # Errors
    /// The code that names the first violation; [`ErrorCode::PayloadRejected`] when a turn of the window is missing.
    pub fn open(&self) -> Result<DisclosedTurn, ErrorCode> {
        let auth = SignedObject::<TurnAuth>::verify(self.auth.clone())?;
        let mut links = self.verified_links(&auth)?;
        let (segment, link) = links.pop().ok_or(ErrorCode::BadSequence)?;
        let genesis = auth.genesis();
        export::check_auth(&link, &genesis, &auth)?;
        let (last_key, keys) = self.record_keys.split_last().ok_or(ErrorCode::PayloadRejected)?;
        let record_key = last_key.as_ref().ok_or(ErrorCode::PayloadRejected)?.record_key();
        let record = open_record(&segment, &link, &record_key)?;
        let receipt =
            export::check_receipt(&link, &record, &record_key, Some(&self.system), self.receipt.clone())?;
        if !receipt.claims_fit(&auth) {
            return Err(ErrorCode::ReceiptMismatch);
        }
        export::check_sampling(&self.sampling, &record_key, Some(&receipt), Some(&auth))?;
        let window_turns = link.seq.checked_sub(receipt.window_from).ok_or(ErrorCode::ReceiptMismatch)?;
        if keys.len() as u64 != window_turns
            || links.first().is_some_and(|(_, link)| link.seq > receipt.window_from)
        {
            return Err(ErrorCode::PayloadRejected);
        }
        let mut history = Vec::with_capacity(links.len());
        for (segment, link) in links {
            let key =
                link.seq.checked_sub(receipt.window_from).and_then(|at| keys.get(usize::try_from(at).ok()?));
            let record = match key.and_then(Option::as_ref) {
                Some(key) => Some(open_record(&segment, &link, &key.record_key())?),
                None => None,
            };
            history.push(HistoryTurn { link, record });
        }
        let is_whole = history
            .iter()
            .zip(read_turns(&history))
            .all(|(turn, is_read)| !is_read || turn.record.is_some() || turn.link.seq < receipt.window_from);
        if !is_whole || (window_turns > 0 && history.is_empty()) {
            return Err(ErrorCode::PayloadRejected);
        }
        let turn = OpenTurn {
            link,
            record,
            record_key,
            auth: Some(auth),
            receipt: Some(receipt),
            system: Some(self.system.clone()),
            sampling: Some(self.sampling.clone()),
        };
        Ok(DisclosedTurn { history, turn })
    }

    /// The links of all segments, oldest first, each with its segment. They are a chain that ends at the turn.
    fn verified_links(&self, auth: &TurnAuth) -> Result<Vec<LinkInSegment>, ErrorCode> {
        let genesis = auth.genesis();
        let mut end: Option<ChainEnd> = None;
        let mut newest_first = Vec::new();
        let mut named: Option<BlobRef> = None;
        for disclosed in self.segments.iter().rev() {
            let key = disclosed.blob_key.blob_key();
            let segment = Segment::open(&disclosed.blob, &key, &auth.session_id, disclosed.segment)?;
            let at_turn = end.is_none();
            if !at_turn && !segment.is_closed() {
                return Err(ErrorCode::BadSequence);
            }
            let last = segment.entries.last().ok_or(ErrorCode::BadSequence)?;
            let of_turn = || ChainEnd { seq: auth.seq, link_hash: LinkHash(last.link.hash(LINK_HASH)) };
            let links = verify_segment(&segment, &genesis, &end.unwrap_or_else(of_turn))?;
            if let Some(named) = named {
                named.check(&disclosed.blob)?;
            }
            let first = links.first().ok_or(ErrorCode::BadSequence)?;
            named = first.prev_blob;
            // Before the first link of the genesis's segment comes nothing: another segment fails to end there.
            end = Some(ChainEnd { seq: first.seq.wrapping_sub(1), link_hash: first.prev_link });
            let segment = Rc::new(segment);
            newest_first.extend(links.into_iter().rev().map(|link| (segment.clone(), link)));
        }
        newest_first.reverse();
        Ok(newest_first)
    }
}

/// A link, and the segment with its record.
type LinkInSegment = (Rc<Segment>, SignedObject<Link>);

fn history_turn(turn: &OpenTurn) -> HistoryTurn {
    HistoryTurn { link: turn.link.clone(), record: Some(turn.record.clone()) }
}

/// For each turn, whether its record decides what the next turn's prompt holds: no later one supersedes it.
fn read_turns(history: &[HistoryTurn]) -> Vec<bool> {
    let mut superseded_from = u64::MAX;
    let mut newest_first: Vec<bool> = history
        .iter()
        .rev()
        .map(|turn| {
            let is_read = turn.link.seq < superseded_from;
            let from = turn.record.as_ref().filter(|_| is_read).and_then(|record| record.supersedes_from);
            superseded_from = superseded_from.min(from.unwrap_or(u64::MAX));
            is_read
        })
        .collect();
    newest_first.reverse();
    newest_first
}

/// The exported segments from number `first` on, the last one cut after the turn.
fn segments(
    export: &Export,
    first: u64,
    turn: &OpenTurn,
    exported: &ExportTurn,
) -> Result<Vec<DisclosedSegment>, ErrorCode> {
    let mut segments = Vec::new();
    for one in export.segments.iter().filter(|one| (first..=turn.link.segment).contains(&one.segment)) {
        let mut key = BlobKey::from_bytes(*one.blob_key.expose());
        let mut blob = one.blob.clone();
        if one.segment == turn.link.segment {
            let mut segment = Segment::open(&blob, &key, &export.session_id, one.segment)?;
            segment.entries.truncate(usize::from(turn.link.index) + 1);
            key = BlobKey::from_bytes(*exported.blob_key.expose());
            blob = segment.seal(&key, &turn.record_key.blob_salt())?;
        }
        segments.push(DisclosedSegment { segment: one.segment, blob, blob_key: GrantedKey::of_blob(&key) });
    }
    Ok(segments)
}

fn open_record(segment: &Segment, link: &Link, key: &RecordKey) -> Result<Record, ErrorCode> {
    let entry = segment.entries.get(usize::from(link.index)).ok_or(ErrorCode::BadSequence)?;
    entry.record.open(key, &link.record_identity())
}
