//! Contradictions: answers that several nodes signed for the same request, and that cannot all be the model's.
//!
//! A node's own engine computes the same bits on every machine. So two receipts for the same model, settings,
//! texts and seed that commit to different answers show that one of both nodes did not compute its answer.
//! The client finds them by decoys: throw-away sessions with the same messages at several nodes. Anyone with
//! a proof checks it from the signed bytes alone, and a holder of the model can compute the answer.
//! This module does no I/O.

use serde::{Deserialize, Serialize};

use crate::{
    error::ErrorCode,
    export::{EVIDENCE_FORMAT, Export, OpenTurn, open},
    ids::{ModelId, NodeId},
    limits::SEGMENT_TURNS,
    receipt::{EngineKind, Receipt},
    record::{FinishReason, Message, RecordKind},
    signed::SignedObject,
    turn::{Grant, GrantedKey, ReadBlob, ReadRecord, Sampling, TurnAuth},
};

/// Most sessions of a proof: the accused node's, and those of its witnesses.
pub const MAX_CONTRADICTION_SESSIONS: usize = 8;
/// Witnesses with the same answer that decide against the accused node. One alone may be the liar.
pub const DECIDING_WITNESSES: usize = 2;

/// A proof: the sessions of nodes that answered the same request, without their roots. The request is the last
/// turn of each session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contradiction {
    /// [`EVIDENCE_FORMAT`].
    pub format: String,
    /// The accused node's session first, then those of the witnesses.
    pub sessions: Vec<Export>,
}

/// The content of a valid proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContradictionReport {
    /// The node whose answer differs from all others.
    pub accused: NodeId,
    /// The nodes with the same answer, in the proof's order.
    pub witnesses: Vec<NodeId>,
    /// The model that all of them claim to have computed.
    pub model: ModelId,
    /// The turn in each session, counted from 0.
    pub seq: u64,
    /// The first byte at which the accused node's answer differs from the first witness's.
    pub differs_at: u64,
}

impl ContradictionReport {
    /// Whether the witnesses decide against the accused node. Otherwise one of both nodes lied, and only the
    /// model can tell which.
    #[must_use]
    pub fn is_decided(&self) -> bool {
        self.witnesses.len() >= DECIDING_WITNESSES
    }
}

/// An answer, as its node signed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignedAnswer<'a> {
    /// Its text.
    pub text: &'a str,
    /// Why it ended.
    pub finish: FinishReason,
    /// Its tokens, by the receipt.
    pub tokens: u32,
}

/// How two answers to the same request relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerComparison {
    /// They are the same.
    Same,
    /// One is the beginning of the other: a node may cut an answer earlier than another, by its own limits of
    /// price and quota.
    Cut,
    /// They cannot both be the model's.
    Different,
}

/// Compares two answers to the same request.
#[must_use]
pub fn compare(one: SignedAnswer<'_>, other: SignedAnswer<'_>) -> AnswerComparison {
    let is_cut = |short: SignedAnswer<'_>, long: SignedAnswer<'_>| {
        short.finish == FinishReason::Length
            && short.tokens < long.tokens
            && long.text.starts_with(short.text)
    };
    if one == other {
        AnswerComparison::Same
    } else if is_cut(one, other) || is_cut(other, one) {
        AnswerComparison::Cut
    } else {
        AnswerComparison::Different
    }
}

impl Contradiction {
    /// A proof from the accused node's session and those of its witnesses.
    #[must_use]
    pub fn new(accused: Export, witnesses: impl IntoIterator<Item = Export>) -> Self {
        let sessions = std::iter::once(accused).chain(witnesses).collect();
        Self { format: EVIDENCE_FORMAT.to_owned(), sessions }
    }

    /// Verifies everything in a proof:
    ///
    /// - each session as an export, in one segment and without its root;
    /// - that each node was given the whole history, no memory, no schema and no beginning of an answer;
    /// - that all requests are the same, and the nodes different ones;
    /// - that the witnesses gave the same answer, and the accused node another.
    ///
    /// # Errors
    /// - [`ErrorCode::UnsupportedVersion`] for another format.
    /// - [`ErrorCode::FrameTooLarge`] for too many sessions, and [`ErrorCode::BadSequence`] for too few.
    /// - The codes of [`crate::export::verify`]; [`ErrorCode::PayloadRejected`] for a session with its root.
    /// - [`ErrorCode::ReceiptMismatch`] for answers that prove nothing.
    pub fn check(&self) -> Result<ContradictionReport, ErrorCode> {
        if self.format != EVIDENCE_FORMAT {
            return Err(ErrorCode::UnsupportedVersion);
        }
        if self.sessions.len() > MAX_CONTRADICTION_SESSIONS {
            return Err(ErrorCode::FrameTooLarge);
        }
        let opened = self.sessions.iter().map(Testimony::open).collect::<Result<Vec<_>, _>>()?;
        let (accused, witnesses) = opened.split_first().ok_or(ErrorCode::BadSequence)?;
        let first = witnesses.first().ok_or(ErrorCode::BadSequence)?;
        let mut nodes: Vec<NodeId> = opened.iter().map(|testimony| testimony.receipt.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let agree = witnesses.iter().all(|witness| {
            witness.is_same_request(accused)
                && compare(witness.answer(), first.answer()) == AnswerComparison::Same
        });
        let differs = compare(accused.answer(), first.answer()) == AnswerComparison::Different;
        if nodes.len() != opened.len() || !agree || !differs {
            return Err(ErrorCode::ReceiptMismatch);
        }
        let (one, other) = (accused.answer().text.as_bytes(), first.answer().text.as_bytes());
        let same = one.iter().zip(other).take_while(|(one, other)| one == other).count();
        Ok(ContradictionReport {
            accused: accused.receipt.node,
            witnesses: witnesses.iter().map(|witness| witness.receipt.node).collect(),
            model: accused.receipt.model,
            seq: accused.receipt.seq,
            differs_at: same as u64,
        })
    }
}

/// The verified last turn of a session, with all that its answer depends on.
struct Testimony {
    turns: Vec<OpenTurn>,
    auth: SignedObject<TurnAuth>,
    receipt: SignedObject<Receipt>,
    system: Vec<Message>,
    sampling: Sampling,
    answer: String,
    finish: FinishReason,
}

impl Testimony {
    fn open(export: &Export) -> Result<Self, ErrorCode> {
        if export.root.is_some() {
            return Err(ErrorCode::PayloadRejected);
        }
        if export.segments.len() != 1 {
            return Err(ErrorCode::BadSequence);
        }
        let turns = open(export)?;
        let last = turns.last().ok_or(ErrorCode::BadSequence)?;
        let missing = ErrorCode::ReceiptMismatch;
        let auth = last.auth.clone().ok_or(missing)?;
        let receipt = last.receipt.clone().ok_or(missing)?;
        let system = last.system.clone().ok_or(missing)?;
        let sampling = last.sampling.clone().ok_or(missing)?;
        let answer = last.record.answer().ok_or(missing)?.to_owned();
        let finish = last.record.finish;
        let plain = turns
            .iter()
            .all(|turn| turn.record.kind == RecordKind::Turn && turn.record.supersedes_from.is_none());
        let bare = receipt.engine == EngineKind::Native
            && receipt.window_from == 0
            && receipt.memory_items == 0
            && auth.memory_from.is_none()
            && auth.resume.is_none()
            && sampling.json_schema.is_none();
        // Without this, a client could withhold a turn from the node, and accuse the node of the difference.
        let granted = whole_grant(export, &turns)?.hash() == auth.grant_hash;
        if !plain || !bare || !granted {
            return Err(ErrorCode::ReceiptMismatch);
        }
        Ok(Self { auth, receipt, system, sampling, answer, finish, turns })
    }

    fn answer(&self) -> SignedAnswer<'_> {
        SignedAnswer { text: &self.answer, finish: self.finish, tokens: self.receipt.tokens.output }
    }

    /// Whether an honest node computes the same answer to both requests.
    fn is_same_request(&self, other: &Self) -> bool {
        let texts = |turns: &[OpenTurn]| -> Vec<Vec<Message>> {
            turns.iter().map(|turn| turn.record.messages.clone()).collect()
        };
        let (Some((ours, earlier)), Some((theirs, other_earlier))) =
            (self.turns.split_last(), other.turns.split_last())
        else {
            return false;
        };
        let new = |turn: &OpenTurn| turn.record.messages.split_last().map(|(_, new)| new.to_vec());
        self.receipt.model == other.receipt.model
            && self.sampling == other.sampling
            && self.auth.max_output_tokens == other.auth.max_output_tokens
            && self.system == other.system
            && texts(earlier) == texts(other_earlier)
            && new(ours) == new(theirs)
    }
}

/// The grant of a session's last turn that shows the node every earlier turn. All of it is in the export.
fn whole_grant(export: &Export, turns: &[OpenTurn]) -> Result<Grant, ErrorCode> {
    let blob_key = |position: usize| {
        let turn = export.turns.get(position).ok_or(ErrorCode::BadSequence)?;
        let key = baton_keys::session::BlobKey::from_bytes(*turn.blob_key.expose());
        Ok::<_, ErrorCode>(GrantedKey::of_blob(&key))
    };
    let (last, earlier) = turns.split_last().ok_or(ErrorCode::BadSequence)?;
    let index = earlier.len();
    if index >= SEGMENT_TURNS {
        return Err(ErrorCode::BadSequence);
    }
    let blobs = match earlier.last() {
        None => Vec::new(),
        Some(before) => vec![ReadBlob {
            segment: 0,
            blob: last.link.prev_blob,
            author: Some(before.link.author),
            key: blob_key(index - 1)?,
        }],
    };
    let read =
        |turn: &OpenTurn| ReadRecord { seq: turn.link.seq, key: GrantedKey::of_record(&turn.record_key) };
    Ok(Grant {
        segment: 0,
        index: u8::try_from(index).map_err(|_| ErrorCode::BadSequence)?,
        record_key: GrantedKey::of_record(&last.record_key),
        blob_key: blob_key(index)?,
        blobs,
        records: earlier.iter().map(read).collect(),
        // The order says where the blob is.
        head: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_answer_contradicts_none_and_any_other_difference_does() {
        let answer = |text, finish, tokens| SignedAnswer { text, finish, tokens };
        let whole = answer("boats float", FinishReason::Stop, 4);
        let cases = [
            (answer("boats float", FinishReason::Stop, 4), AnswerComparison::Same),
            (answer("boats", FinishReason::Length, 2), AnswerComparison::Cut),
            (answer("", FinishReason::Length, 0), AnswerComparison::Cut),
            (answer("boats", FinishReason::Stop, 2), AnswerComparison::Different),
            (answer("boat", FinishReason::Length, 4), AnswerComparison::Different),
            (answer("ships", FinishReason::Length, 2), AnswerComparison::Different),
            (answer("boats float", FinishReason::Stop, 5), AnswerComparison::Different),
            (answer("boats float", FinishReason::StopString, 4), AnswerComparison::Different),
            (answer("boats float ", FinishReason::Stop, 4), AnswerComparison::Different),
        ];
        for (other, expected) in cases {
            assert_eq!(compare(whole, other), expected, "{other:?}");
            assert_eq!(compare(other, whole), expected, "{other:?}");
        }
    }
}
