//! Contradictions: receipts on one answer that cannot all be true.
//!
//! The first receipt is the answer's, and each other one has a verdict on it ([`crate::check`]). A node's own engine
//! computes the same bits on every machine, so nodes that disagree did not all compute. The receipts hold no text
//! and no key: anyone checks them from the signed bytes alone, and a holder of the model and of the session's export
//! can compute the answer. This module does no I/O.

use serde::{Deserialize, Serialize};

use crate::{
    check::{CheckVerdict, Judgement, judge},
    error::ErrorCode,
    export::EVIDENCE_FORMAT,
    ids::{ModelId, NodeId, ReceiptHash},
    receipt::{EngineKind, Receipt},
    signed::SignedObject,
};

/// Most receipts of a proof beside the answer's.
pub const MAX_VERDICTS: usize = 8;

/// A proof.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contradiction {
    /// [`EVIDENCE_FORMAT`].
    pub format: String,
    /// The receipt of the answer.
    pub answer: EncodedReceipt,
    /// The receipts with verdicts on it.
    pub verdicts: Vec<EncodedReceipt>,
}

/// An encoded receipt with its signature; base64 in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EncodedReceipt(#[serde(with = "crate::export::text::base64")] pub Vec<u8>);

/// The content of a valid proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContradictionReport {
    /// The node that gave the answer.
    pub author: NodeId,
    /// The model that all nodes claim to have computed.
    pub model: ModelId,
    /// The turn of the answer, counted from 0.
    pub seq: u64,
    /// The verdicts, in the proof's order.
    pub verdicts: Vec<(NodeId, CheckVerdict)>,
    /// The nodes that agree, in the order of their receipts; none if too few agree.
    pub witnesses: Vec<NodeId>,
    /// The nodes that the witnesses contradict; none if too few agree. Then some of the nodes lied, and only the model
    /// can tell which.
    pub accused: Vec<NodeId>,
}

impl Contradiction {
    /// A proof from the receipt of an answer and those with verdicts on it.
    #[must_use]
    pub fn new<'a>(
        answer: &SignedObject<Receipt>,
        verdicts: impl IntoIterator<Item = &'a SignedObject<Receipt>>,
    ) -> Self {
        let encoded = |receipt: &SignedObject<Receipt>| EncodedReceipt(receipt.encode());
        Self {
            format: EVIDENCE_FORMAT.to_owned(),
            answer: encoded(answer),
            verdicts: verdicts.into_iter().map(encoded).collect(),
        }
    }

    /// Hash of the answer's receipt, as the proof names it; not verified.
    #[must_use]
    pub fn answer_hash(&self) -> ReceiptHash {
        let receipt = SignedObject::<Receipt>::verify_encoded(&self.answer.0);
        receipt.map_or(ReceiptHash([0; 32]), |receipt| receipt.receipt_hash())
    }

    /// Verifies everything in a proof: the signatures, that all receipts are of the same session and model and of native
    /// engines, that the nodes are different ones and were asked for the same probe, and that they contradict each
    /// other.
    ///
    /// # Errors
    /// - [`ErrorCode::UnsupportedVersion`] for another format.
    /// - [`ErrorCode::FrameTooLarge`] for too many receipts, and [`ErrorCode::BadSequence`] for too few.
    /// - The codes of [`SignedObject::verify`].
    /// - [`ErrorCode::ReceiptMismatch`] for receipts that prove nothing.
    pub fn check(&self) -> Result<ContradictionReport, ErrorCode> {
        if self.format != EVIDENCE_FORMAT {
            return Err(ErrorCode::UnsupportedVersion);
        }
        if self.verdicts.len() > MAX_VERDICTS {
            return Err(ErrorCode::FrameTooLarge);
        }
        let answer = SignedObject::<Receipt>::verify_encoded(&self.answer.0)?;
        let hash = answer.receipt_hash();
        let (mut nodes, mut probes, mut verdicts) = (vec![answer.node], Vec::new(), Vec::new());
        for encoded in &self.verdicts {
            let receipt = SignedObject::<Receipt>::verify_encoded(&encoded.0)?;
            let check = receipt.checks.iter().find(|check| check.order.receipt == hash);
            let check = check.ok_or(ErrorCode::ReceiptMismatch)?;
            let fits = receipt.session_id == answer.session_id
                && receipt.model == answer.model
                && receipt.seq > answer.seq
                && receipt.engine == EngineKind::Native
                && answer.engine == EngineKind::Native
                && !matches!(check.verdict, CheckVerdict::NotComparable(_));
            if !fits {
                return Err(ErrorCode::ReceiptMismatch);
            }
            nodes.push(receipt.node);
            probes.push(check.order.probe);
            verdicts.push((receipt.node, check.verdict));
        }
        if verdicts.is_empty() {
            return Err(ErrorCode::BadSequence);
        }
        let count = nodes.len();
        nodes.sort_unstable();
        nodes.dedup();
        probes.dedup();
        let (witnesses, accused) = match judge(answer.node, &verdicts) {
            _ if nodes.len() != count || probes.len() != 1 => return Err(ErrorCode::ReceiptMismatch),
            Judgement::Agreed(_) => return Err(ErrorCode::ReceiptMismatch),
            Judgement::Open => (Vec::new(), Vec::new()),
            Judgement::Decided { witnesses, accused } => (witnesses, accused),
        };
        let (author, model, seq) = (answer.node, answer.model, answer.seq);
        Ok(ContradictionReport { author, model, seq, verdicts, witnesses, accused })
    }
}
