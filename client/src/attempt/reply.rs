//! A reply while it arrives: its text and tokens, the checks of each event, and how long to wait for the next one. Pure:
//! the caller receives and decides.

use std::{sync::Arc, time::Duration};

use baton_proto::{
    ErrorCode, SignedBytes, SignedObject,
    ids::RunningHash,
    limits::MAX_MESSAGE_BYTES,
    memory::MemoryItem,
    receipt::{ProgressNote, running_hash_start, running_hash_step},
    turn::TurnAuth,
};
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::{AttemptContext, pace::TokenPace, request::PreparedAttempt};
use crate::{
    logprobs::Reports,
    network::retry::{AttemptFailure, AttemptStatus, PartialAnswer},
    session::{
        open_session::Session,
        state::{AttemptChange, Entry},
    },
};

/// Most queue reports of a node in one reply. Each restarts the wait for the next event; a queue holds tens
/// of turns, and its positions change as often.
const MAX_WAITING_EVENTS: u32 = 1024;
/// Factor for the patience with a node that no other could replace: asking it again costs it the prompt
/// again.
const LONE_PATIENCE: u32 = 5;

/// A reply while it arrives.
pub(super) struct ArrivingReply {
    pub(super) text: Zeroizing<String>,
    /// Ids of its tokens, including those of another node.
    pub(super) ids: Zeroizing<Vec<u32>>,
    /// Arrival of the last tokens, and duration of the latest ones.
    pub(super) pace: TokenPace,
    /// Text since the last note in the journal.
    pub(super) unnoted: UnnotedText,
    /// Tokens whose ids were reported.
    pub(super) tokens: u32,
    /// Most reported tokens, as signed.
    max_tokens: u32,
    /// The last progress note.
    pub(super) note: Option<SignedObject<ProgressNote>>,
    /// Queue reports so far.
    waited: u32,
    /// When the node admitted the turn.
    pub(super) admitted: Instant,
    /// When the last event arrived.
    pub(super) heard: Instant,
    /// Since when the node's queue ahead of the turn is empty; none while the node reports turns ahead.
    pub(super) turn_came: Option<Instant>,
    /// When the node last said, asked, that it still works on the turn.
    pub(super) runs_at: Option<Instant>,
    /// Running hash after each token; the first is the start.
    pub(super) hashes: Vec<RunningHash>,
    pub(super) memory: Vec<MemoryItem>,
    /// Token probabilities, if requested.
    pub(super) reports: Reports,
}

impl ArrivingReply {
    pub(super) fn new(context: &AttemptContext<'_>, prepared: &PreparedAttempt) -> Self {
        let (auth, now) = (&prepared.auth, Instant::now());
        let mut reply = Self {
            text: Zeroizing::default(),
            ids: Zeroizing::default(),
            pace: TokenPace::default(),
            unnoted: UnnotedText {
                session: context.session.clone(),
                attempt: auth.attempt,
                text: Zeroizing::default(),
            },
            tokens: 0,
            max_tokens: auth.max_output_tokens,
            note: None,
            waited: 0,
            admitted: now,
            heard: now,
            turn_came: None,
            runs_at: None,
            hashes: vec![running_hash_start(&prepared.record_key, &auth.auth_hash())],
            memory: prepared.memory.clone(),
            reports: Reports::new(prepared.turn.sampling.logprobs),
        };
        if let Some(begun) = context.begun.map(|begun| &begun.partial) {
            reply.text.push_str(&begun.text);
            reply.unnoted.text.push_str(&begun.text);
            reply.count(&begun.ids);
            reply.reports.taken.clone_from(&begun.reports);
        }
        reply
    }

    /// The node admitted the turn.
    pub(super) fn admit(&mut self, now: Instant) {
        (self.admitted, self.heard, self.turn_came) = (now, now, Some(now));
    }

    /// The failure, with the part that had arrived.
    pub(super) fn failed(mut self, failure: AttemptFailure) -> AttemptFailure {
        // Text of a reply that was wrong is not shown again.
        if failure.status != AttemptStatus::Lost {
            self.unnoted.clear();
        }
        AttemptFailure {
            partial: Box::new(PartialAnswer { text: self.text, ids: self.ids, reports: self.reports.taken }),
            note: self.note.map(Box::new),
            ..failure
        }
    }

    /// Takes the ids of the next tokens.
    fn count(&mut self, ids: &[u32]) {
        for id in ids {
            let last = self.hashes.last().copied().unwrap_or(RunningHash([0; 32]));
            self.hashes.push(running_hash_step(&last, *id));
        }
        self.tokens += u32::try_from(ids.len()).unwrap_or(u32::MAX);
        self.ids.extend_from_slice(ids);
    }

    /// How long to wait for the next event. During the answer the pace of the tokens decides. Before the
    /// first token, wait until it is due, or as long as a queue may stand still. A node that says that it works on
    /// the turn gets the same time again.
    pub(super) fn patience(&self, context: &AttemptContext<'_>, now: Instant) -> Duration {
        let idle = context.timeouts.idle;
        let runs = self.runs_at.is_some();
        let least = if context.substitute && !runs { 1 } else { LONE_PATIENCE };
        match (self.pace.stalls_after(context.timeouts.stall), self.turn_came) {
            (Some(stall), _) => stall.saturating_mul(least).min(idle),
            (None, Some(came)) => {
                let since = self.runs_at.map_or(came, |runs_at| runs_at.max(came));
                let due = since + context.first_token.saturating_mul(least).min(idle);
                due.saturating_duration_since(now)
            }
            (None, None) => idle,
        }
    }

    /// Whether a silent node is asked if it still works on the turn. If another node can serve, it is asked once,
    /// before its answer began, and only if no other is likely faster.
    pub(super) fn may_run(&self, context: &AttemptContext<'_>) -> bool {
        let began = self.pace.stalls_after(context.timeouts.stall).is_some();
        !context.substitute || (!began && !context.faster && self.runs_at.is_none())
    }

    /// Takes a queue report. A repeated report that the queue is empty gains no time.
    pub(super) fn waits(&mut self, ahead: u32, now: Instant) -> Result<(), ErrorCode> {
        self.turn_came = if ahead == 0 { self.turn_came.or(Some(now)) } else { None };
        self.waited += 1;
        if self.waited > MAX_WAITING_EVENTS { Err(ErrorCode::FrameTooLarge) } else { Ok(()) }
    }

    /// Takes tokens: none missing, none twice, no more than requested.
    pub(super) fn push(&mut self, index: u32, ids: &[u32], text: &str) -> Result<(), ErrorCode> {
        // An empty event would only keep the reply open.
        if ids.is_empty() && text.is_empty() {
            return Err(ErrorCode::NonCanonical);
        }
        if !ids.is_empty() && index != self.tokens {
            return Err(ErrorCode::StreamTruncated);
        }
        if self.text.len() + text.len() > MAX_MESSAGE_BYTES {
            return Err(ErrorCode::FrameTooLarge);
        }
        let left = self.max_tokens.saturating_sub(self.tokens);
        if u32::try_from(ids.len()).ok().is_none_or(|count| count > left) {
            return Err(ErrorCode::FrameTooLarge);
        }
        self.count(ids);
        self.pace.arrived(Instant::now(), ids.len(), text.len());
        self.text.push_str(text);
        self.unnoted.text.push_str(text);
        Ok(())
    }

    /// Checks that a progress note is from this node, about this turn, covers more tokens than the previous
    /// note, and covers only arrived tokens. An engine without token ids gives nothing to compare.
    pub(super) fn check_note(
        &mut self,
        bytes: SignedBytes,
        auth: &SignedObject<TurnAuth>,
    ) -> Result<(), ErrorCode> {
        let note = SignedObject::<ProgressNote>::verify(bytes)?;
        if note.node != auth.audience || note.auth_hash != auth.auth_hash() {
            return Err(ErrorCode::ReceiptMismatch);
        }
        // Each note may write to the journal, so a node cannot repeat itself.
        let noted = self.note.as_ref().map_or(0, |note| note.token_count);
        if note.token_count <= noted || note.token_count > self.max_tokens {
            return Err(ErrorCode::NonCanonical);
        }
        let arrived = self.hashes.get(note.token_count as usize);
        if self.tokens > 0 && arrived != Some(&note.running_hash) {
            return Err(ErrorCode::ReceiptMismatch);
        }
        self.note = Some(note);
        Ok(())
    }
}

/// The text of one attempt that is in no entry of the journal yet. It reaches the journal even if the caller drops the
/// reply, as when a person stops an answer: a later start shows the part that arrived.
pub(super) struct UnnotedText {
    session: Arc<Session>,
    attempt: u32,
    text: Zeroizing<String>,
}

impl UnnotedText {
    /// The entry with the text, which is then noted; none without a text.
    pub(super) fn take(&mut self) -> Option<Entry> {
        let text = std::mem::take(&mut *self.text);
        (!text.is_empty()).then_some(Entry::OfAttempt(self.attempt, AttemptChange::Received(text)))
    }

    /// Forgets the text: the turn was accepted, or the text is void.
    pub(super) fn clear(&mut self) {
        self.text = Zeroizing::default();
    }
}

impl Drop for UnnotedText {
    fn drop(&mut self) {
        if let Some(entry) = self.take() {
            self.session.note_later(entry);
        }
    }
}
