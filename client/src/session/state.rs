//! The client's state of one session: the entries of its journal, and the state that results from replaying
//! them.
//!
//! Pure: no I/O. [`crate::session::open_session`] applies an entry only after it is in the journal, so memory never runs
//! ahead of the disk.

mod branches;
mod compact;
mod entry;
mod segments;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use baton_keys::session::{RecordIdentity, SessionRoot};
use baton_proto::{
    ErrorCode, SignedObject,
    chain::{HistoryTurn, effective},
    head::{DeviceLease, head_period},
    ids::{BlobDigest, BlobId, LinkHash, ModelId, NodeId, SessionId, TurnId},
    limits::{MAX_CLOCK_SKEW_MS, MAX_LINK_LEAD_MS},
    link::{Genesis, Link},
    memory::MemoryItem,
    note::TurnNote,
    receipt::{ProgressNote, Receipt},
    record::{Message, RecordKind},
    segment::{self, Segment},
    turn::{Sampling, StoragePolicy, TurnAuth, json_schema_hash},
};
use zeroize::Zeroizing;

use crate::session::fork::{ChainLink, ForkChain};

pub(crate) use branches::Branch;
pub(crate) use entry::{
    AttemptChange, AttemptEntry, Entry, OmittedTurns, OrderTerms, PendingTurn, Proof, PublishedHead,
    Purchase, SessionHeader, StorageTerms, StoredBlob, TurnChange, TurnEntry, TurnsBefore,
};

/// Bytes of text estimated per prompt token: fewer than most tokenizers need for most languages.
const PROMPT_BYTES_PER_TOKEN: u64 = 3;

/// Metadata of an accepted turn besides link and record.
#[derive(Clone)]
pub(crate) struct TurnMeta {
    pub(crate) entry: segment::Entry,
    pub(crate) digest: BlobDigest,
    pub(crate) length: u32,
    pub(crate) blob_id: Option<BlobId>,
    pub(crate) accepted_ms: u64,
    pub(crate) auth: Option<SignedObject<TurnAuth>>,
    pub(crate) receipt: Option<SignedObject<Receipt>>,
    pub(crate) ack: Option<SignedObject<TurnNote>>,
    pub(crate) acked: bool,
    pub(crate) stored: bool,
    pub(crate) blob: StoredBlob,
    /// Time of the last renewal if its payment is unknown.
    pub(crate) renewal_doubt_ms: Option<u64>,
    pub(crate) memory: Vec<MemoryItem>,
    /// The signed progress of the nodes that began the answer and did not finish it, oldest first.
    pub(crate) notes: Vec<SignedObject<ProgressNote>>,
    /// Pinned system text that the turn was sent with; unknown in a recovered session.
    pub(crate) system: Option<Arc<Vec<Message>>>,
    /// The sampling and output limit of its request, if this journal has them.
    pub(crate) asked: Option<(Sampling, u32)>,
    /// The tokens of its answer; empty if they are unknown.
    pub(crate) tokens: Vec<u32>,
    /// The storage of its blob that its author was ordered, if this journal has the order.
    pub(crate) ordered: Option<StoragePolicy>,
    /// A second link that its author signed for it.
    pub(crate) signed_twice: Option<SignedObject<Link>>,
}

/// An attempt of the pending turn.
#[derive(Clone)]
pub(crate) struct PendingAttempt {
    pub(crate) auth: SignedObject<TurnAuth>,
    /// The terms that its node's receipt is held to.
    pub(crate) terms: OrderTerms,
    pub(crate) received: String,
    pub(crate) memory: Vec<MemoryItem>,
    /// The node reported that it signed nothing.
    pub(crate) refused: bool,
    /// The client found its reply wrong.
    pub(crate) rejected: bool,
    /// The signed progress of its node.
    pub(crate) note: Option<SignedObject<ProgressNote>>,
}

impl PendingAttempt {
    fn begin(entry: AttemptEntry) -> Result<Self, ErrorCode> {
        Ok(Self {
            auth: SignedObject::of_verified(entry.auth)?,
            terms: entry.terms,
            received: String::new(),
            memory: Vec::new(),
            refused: false,
            rejected: false,
            note: None,
        })
    }

    fn apply(&mut self, change: AttemptChange) -> Result<(), ErrorCode> {
        match change {
            AttemptChange::Received(text) => self.received.push_str(&text),
            AttemptChange::Memory(items) => self.memory = items,
            AttemptChange::Note(note) => self.note = Some(SignedObject::of_verified(note)?),
            AttemptChange::Ended { is_wrong: false } => self.refused = true,
            AttemptChange::Ended { is_wrong: true } => self.rejected = true,
        }
        Ok(())
    }
}

/// A pending turn with its attempts.
#[derive(Clone)]
pub(crate) struct PendingAttempts {
    pub(crate) turn: PendingTurn,
    pub(crate) attempts: Vec<PendingAttempt>,
}

/// A session's state.
#[derive(Clone)]
pub(crate) struct State {
    pub(crate) root: SessionRoot,
    pub(crate) session_id: SessionId,
    pub(crate) header: SessionHeader,
    pub(crate) system: Arc<Vec<Message>>,
    /// The user's title of the session.
    pub(crate) title: Option<String>,
    /// The turns before the first turn that is here; none if all are here.
    before: Option<Box<TurnsBefore>>,
    /// Accepted turns, oldest first; each with its record.
    pub(crate) history: Vec<HistoryTurn>,
    /// Parallel to `history`.
    pub(crate) meta: Vec<TurnMeta>,
    /// Bytes of all sealed records in `history`.
    record_bytes: u64,
    /// Number of turns in `history` that no later turn replaces.
    pub(crate) effective_turns: u64,
    pub(crate) pending: Option<PendingAttempts>,
    /// JSON schemas of requested answers, by their hashes.
    schemas: HashMap<[u8; 32], String>,
    pub(crate) head: Option<PublishedHead>,
    /// That record, and the names of indexes that have not accepted it yet.
    pub(crate) head_unconfirmed: Option<(Vec<u8>, Vec<String>)>,
    /// Other devices that may write the session.
    pub(crate) leases: Vec<DeviceLease>,
    /// Turns that forks left beside the chain, or that lie before a gap of it.
    pub(crate) branches: Vec<Branch>,
    /// Turns whose blob is not confirmed in the store, without turns that a later blob also holds.
    pub(crate) unstored: BTreeSet<u64>,
    /// Turns whose author lacks the acknowledgement and may still want it.
    pub(crate) unacked: BTreeSet<u64>,
    /// Incomplete bytes at the journal's end, while turns may be missing.
    pub(crate) torn_end: u64,
    /// Whether another device deleted the session.
    pub(crate) deleted_elsewhere: bool,
    /// Whether the indexes lack the head that they acknowledged; then it is published again. In no journal.
    pub(crate) head_missing: bool,
}

impl State {
    /// A session's first state.
    pub(crate) fn new(root: SessionRoot, header: SessionHeader) -> Self {
        let system = Arc::new(header.system.clone());
        Self {
            session_id: root.session_id(),
            root,
            header,
            system,
            title: None,
            before: None,
            history: Vec::new(),
            meta: Vec::new(),
            record_bytes: 0,
            effective_turns: 0,
            pending: None,
            schemas: HashMap::new(),
            head: None,
            head_unconfirmed: None,
            leases: Vec::new(),
            branches: Vec::new(),
            unstored: BTreeSet::new(),
            unacked: BTreeSet::new(),
            torn_end: 0,
            deleted_elsewhere: false,
            head_missing: false,
        }
    }

    /// The state after a journal's entries.
    pub(crate) fn replay(root: SessionRoot, entries: &[Zeroizing<Vec<u8>>]) -> Result<Self, ErrorCode> {
        let (first, rest) = entries.split_first().ok_or(ErrorCode::BadGenesis)?;
        let Entry::Opened(header) = Entry::decode(first)? else { return Err(ErrorCode::BadGenesis) };
        let mut state = Self::new(root, header);
        for entry in rest {
            state.apply(Entry::decode(entry)?)?;
        }
        Ok(state)
    }

    /// Estimated tokens of the pending turn's prompt with the whole session in it. It uses the lengths of the
    /// sealed records, which are padded, so the estimate is rather high.
    pub(crate) fn prompt_tokens(&self) -> u32 {
        let texts =
            |messages: &[Message]| messages.iter().map(|message| message.text.len() as u64).sum::<u64>();
        let new = self.pending.as_ref().map_or(0, |pending| texts(&pending.turn.messages));
        let tokens = (self.record_bytes + new + texts(&self.system)) / PROMPT_BYTES_PER_TOKEN;
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }

    /// When the session was last used: the acceptance of its last turn, or else its creation; milliseconds
    /// since the Unix epoch.
    pub(crate) fn last_used_ms(&self) -> u64 {
        self.meta.last().map_or(self.header.created_ms, |meta| meta.accepted_ms)
    }

    /// Applies one entry, whose signatures were verified before it was sealed ([`Entry::verify_signatures`]).
    pub(crate) fn apply(&mut self, entry: Entry) -> Result<(), ErrorCode> {
        match entry {
            Entry::Opened(header) => {
                if self.next_seq() != 0 {
                    return Err(ErrorCode::BadSequence);
                }
                self.header.n_shards = header.n_shards;
            }
            Entry::Before(before) => {
                if self.next_seq() != 0 {
                    return Err(ErrorCode::BadSequence);
                }
                self.before = Some(before);
                self.count_effective_turns();
            }
            Entry::System(system) => self.system = Arc::new(system),
            Entry::Title(title) => self.title = title,
            Entry::Schema(text) => drop(self.schemas.insert(json_schema_hash(&text), text)),
            Entry::Pending(turn) => self.pending = Some(PendingAttempts { turn, attempts: Vec::new() }),
            Entry::Attempt(entry) => {
                let pending = self.pending.as_mut().ok_or(ErrorCode::BadSequence)?;
                pending.attempts.push(PendingAttempt::begin(entry)?);
            }
            Entry::OfAttempt(attempt, change) => {
                let mut attempts = self.pending.iter_mut().flat_map(|pending| &mut pending.attempts);
                if let Some(attempt) = attempts.find(|known| known.auth.attempt == attempt) {
                    attempt.apply(change)?;
                }
            }
            Entry::Abandoned => self.pending = None,
            Entry::Turn(turn) => self.push_turn(*turn)?,
            Entry::OfTurn(seq, change) => self.apply_to_turn(seq, change)?,
            Entry::Head(head) => {
                self.head = Some(head);
                self.head_missing = false;
                self.head_unconfirmed = None;
            }
            Entry::HeadUnconfirmed { record, names } => {
                self.head_unconfirmed = (!names.is_empty()).then_some((record, names));
            }
            Entry::Leases { devices } => self.leases = devices,
            Entry::Rebase { at } => self.rebase(at)?,
            Entry::Branch { head } => self.begin_branch(head),
            Entry::BranchTurn(entry) => self.push_branch_turn(*entry)?,
            Entry::TornEnd { bytes } => self.torn_end = bytes,
            Entry::DeletedElsewhere => self.deleted_elsewhere = true,
        }
        Ok(())
    }

    fn apply_to_turn(&mut self, seq: u64, change: TurnChange) -> Result<(), ErrorCode> {
        if self.omitted().is_some() && seq < self.first_seq() && !matches!(change, TurnChange::Lost) {
            return Ok(());
        }
        let index = self.index(seq).ok_or(ErrorCode::BadSequence)?;
        let meta = self.meta.get_mut(index).ok_or(ErrorCode::BadSequence)?;
        match change {
            TurnChange::BlobId(id) => meta.blob_id = Some(id),
            TurnChange::Acked { is_moot } => {
                meta.acked |= !is_moot;
                self.unacked.remove(&seq);
            }
            TurnChange::Stored(blob) => {
                meta.stored = true;
                meta.blob.end_epoch = blob.end_epoch.or(meta.blob.end_epoch);
                meta.blob.confirmed_ms = blob.confirmed_ms.or(meta.blob.confirmed_ms);
                if blob.paid.is_some() {
                    (meta.blob.paid, meta.renewal_doubt_ms) = (blob.paid, None);
                }
                self.unstored.remove(&seq);
            }
            TurnChange::Lost => {
                (meta.stored, meta.blob) =
                    (false, StoredBlob { paid: meta.blob.paid, ..StoredBlob::default() });
                if !self.is_superseded(seq) {
                    self.unstored.insert(seq);
                }
            }
            TurnChange::RenewalDoubt(since_ms) => meta.renewal_doubt_ms = since_ms,
            TurnChange::SignedTwice(link) => meta.signed_twice = Some(SignedObject::of_verified(link)?),
        }
        Ok(())
    }

    /// The schema with this hash, if a turn here used it.
    pub(crate) fn schema(&self, hash: &[u8; 32]) -> Option<&str> {
        self.schemas.get(hash).map(String::as_str)
    }

    fn push_turn(&mut self, turn: TurnEntry) -> Result<(), ErrorCode> {
        let link = SignedObject::<Link>::of_verified(turn.entry.link.clone())?;
        let seq = link.seq;
        if seq != self.next_seq() || link.prev_link != self.prev_link() {
            return Err(ErrorCode::ChainBroken);
        }
        let identity = link.record_identity();
        let record = turn.entry.record.open(&self.root.record_key(&identity), &identity)?;
        if self.omitted().is_some() && record.supersedes_from.is_some_and(|from| from < self.first_seq()) {
            return Err(ErrorCode::BadSequence);
        }
        let (mut auth, mut receipt, mut ack) = (None, None, None);
        if let Some(proof) = turn.proof {
            auth = Some(SignedObject::of_verified(proof.auth)?);
            receipt = Some(SignedObject::of_verified(proof.receipt)?);
            ack = proof.ack.map(SignedObject::of_verified).transpose()?;
        }
        let notes = auth.as_ref().map_or_else(Vec::new, |auth| self.notes_before(auth));
        // The link names the blob before it, ID included.
        if let (Some(previous), Some(blob)) = (self.meta.last_mut(), link.prev_blob) {
            previous.blob_id = Some(blob.blob_id);
        }
        let pending = if self.answers_pending(&link.turn_id) { self.pending.take() } else { None };
        if self.history.last().is_some_and(|last| last.link.segment == link.segment) {
            self.unstored.remove(&seq.saturating_sub(1));
        }
        self.unstored.insert(seq);
        self.unacked.extend(ack.as_ref().map(|_| seq));
        self.record_bytes += u64::from(link.record_length);
        self.meta.push(TurnMeta {
            entry: turn.entry,
            digest: turn.blob_digest,
            length: turn.blob_length,
            blob_id: None,
            accepted_ms: turn.accepted_ms,
            auth,
            // System text changes only between turns, so the current text is the one that was sent.
            system: receipt.is_some().then(|| self.system.clone()),
            receipt,
            acked: ack.is_none(),
            ack,
            stored: false,
            blob: StoredBlob::default(),
            renewal_doubt_ms: None,
            memory: turn.memory,
            notes,
            asked: pending.map(|pending| (pending.turn.sampling, pending.turn.max_output_tokens)),
            tokens: turn.tokens,
            ordered: turn.ordered,
            signed_twice: None,
        });
        let (kind, supersedes) = (record.kind, record.supersedes_from.is_some());
        self.history.push(HistoryTurn { link, record: Some(record) });
        if supersedes {
            self.count_effective_turns();
        } else if kind != RecordKind::Tombstone {
            self.effective_turns += 1;
        }
        Ok(())
    }

    /// Counts the turns that no later turn replaces: a walk over all of them, since a replaced turn may have
    /// replaced others.
    fn count_effective_turns(&mut self) {
        let omitted = self.omitted().map_or(0, |omitted| omitted.effective);
        self.effective_turns = omitted + effective(&self.history).len() as u64;
    }

    /// The signed progress of the parts that an attempt continued, oldest first.
    fn notes_before(&self, auth: &TurnAuth) -> Vec<SignedObject<ProgressNote>> {
        let mut notes = Vec::new();
        let attempts = self.pending.as_ref().map_or(&[][..], |pending| &pending.attempts);
        let mut before = auth.attempt;
        let mut resume = auth.resume;
        while let Some(prefix) = resume.filter(|prefix| prefix.attempt < before) {
            before = prefix.attempt;
            let author = attempts.iter().find(|attempt| attempt.auth.attempt == before);
            notes.extend(author.and_then(|author| author.note.clone()));
            resume = author.and_then(|author| author.auth.resume);
        }
        notes.reverse();
        notes
    }

    /// Facts about turns that are in the journal and not here; none if all are here.
    pub(crate) fn omitted(&self) -> Option<&OmittedTurns> {
        self.before.as_ref()?.omitted.as_ref()
    }

    /// Whether background work needs turns that are not here.
    pub(crate) fn needs_omitted(&self, terms: StorageTerms, now_ms: u64) -> bool {
        self.omitted().is_some_and(|omitted| now_ms >= omitted.needed_ms || omitted.terms != terms)
    }

    /// Index of a turn in `history`, unless it is older than the turns here.
    fn index(&self, seq: u64) -> Option<usize> {
        usize::try_from(seq.checked_sub(self.first_seq())?).ok()
    }

    /// The first turn that is here: 0 except in a compacted log, a partly recovered session, and after a snapshot.
    pub(crate) fn first_seq(&self) -> u64 {
        self.before.as_ref().map_or(0, |before| before.seq)
    }

    pub(crate) fn turn(&self, seq: u64) -> Option<(&HistoryTurn, &TurnMeta)> {
        let index = self.index(seq)?;
        Some((self.history.get(index)?, self.meta.get(index)?))
    }

    /// Hash of the link of a turn that is here.
    pub(crate) fn link_at(&self, seq: u64) -> Option<LinkHash> {
        Some(self.turn(seq)?.0.link.link_hash())
    }

    /// Position of the next turn.
    pub(crate) fn next_seq(&self) -> u64 {
        self.first_seq() + self.history.len() as u64
    }

    /// The last accepted turn.
    pub(crate) fn last(&self) -> Option<(&HistoryTurn, &TurnMeta)> {
        Some((self.history.last()?, self.meta.last()?))
    }

    /// The model of the last turn. Another one serves the session only if the caller names it.
    pub(crate) fn last_model(&self) -> Option<ModelId> {
        Some(self.meta.last()?.receipt.as_ref()?.model)
    }

    pub(crate) fn genesis(&self) -> Genesis {
        Genesis {
            session_key: self.root.signing_key().public_key(),
            n_shards: self.header.n_shards,
            branch: self.header.branch,
        }
    }

    /// Hash that the next link continues.
    pub(crate) fn prev_link(&self) -> LinkHash {
        match (self.history.last(), &self.before) {
            (Some(last), _) => last.link.link_hash(),
            (None, Some(before)) => before.prev_link,
            (None, None) => self.genesis().link_hash(),
        }
    }

    /// The links that are here.
    pub(crate) fn chain(&self) -> ForkChain {
        let prev = self.history.first().map_or_else(|| self.prev_link(), |first| first.link.prev_link);
        let links = self.history.iter().map(|turn| ChainLink::from(&turn.link)).collect();
        ForkChain { first: self.first_seq(), prev, links }
    }

    /// A time before which no head record of the session can be newer than what is known here: that of the
    /// last known record, or else of the session's beginning.
    pub(crate) fn head_since_ms(&self, now_ms: u64) -> u64 {
        // A sequence of a week to come is of a clock that was wrong.
        let latest = head_period(now_ms.saturating_add(MAX_CLOCK_SKEW_MS));
        if let Some(head) = self.head.filter(|head| head_period(head.sequence) <= latest) {
            return head.sequence;
        }
        let first = self.history.first().map_or(u64::MAX, |turn| turn.link.time_ms);
        self.header.created_ms.min(first).saturating_sub(MAX_LINK_LEAD_MS)
    }

    /// The week in which the head record of the last turn lies, or will lie.
    pub(crate) fn head_period(&self, now_ms: u64) -> u64 {
        let published = self.head.filter(|head| head.link_hash == self.prev_link());
        head_period(published.map_or(now_ms, |head| head.sequence))
    }

    /// Whether this device drew a turn's id: then it wrote the turn, even if its journal lost it.
    pub(crate) fn is_own(&self, turn_id: &TurnId) -> bool {
        self.root.is_turn_of(&self.header.device_id.0, turn_id)
    }

    /// A fresh id for a turn of this device.
    pub(crate) fn draw_turn_id(&self) -> TurnId {
        self.root.draw_turn_id(&self.header.device_id.0)
    }

    /// Whether the head index has the last turn, as far as known; true for an empty session.
    pub(crate) fn is_published(&self) -> bool {
        let Some((turn, _)) = self.last() else { return true };
        if self.head_missing {
            return false;
        }
        self.head.is_some_and(|head| head.link_hash == turn.link.link_hash())
    }

    /// Identity of the next turn's record at a node.
    pub(crate) fn identity(
        &self,
        base: &Segment,
        turn_id: TurnId,
        attempt: u32,
        author: NodeId,
    ) -> RecordIdentity {
        RecordIdentity {
            session_id: self.session_id,
            segment: base.segment,
            seq: self.next_seq(),
            turn_id,
            attempt,
            author,
        }
    }
}
