//! Vectors of contradictions: an answer of node 0, which nodes 1 and 2 find to be another one than the model's.

use baton_proto::{
    SignedObject,
    check::{AnswerCheck, CheckOrder, CheckVerdict},
    contradiction::Contradiction,
    ids::{AuthHash, Commitment, ModelId, ReceiptHash, RunningHash, SamplingDigest, SessionId, TurnId},
    limits::RECEIPT_VERSION,
    receipt::{Commitments, EngineKind, Receipt, Timings, TokenCounts},
};

use super::session::node;

/// The token of the answer before which the logits are hashed.
pub(crate) const PROBE: u32 = 5;

/// The receipt of a node for the turn of its own number, with this verdict on node 0's answer.
pub(crate) fn receipt(number: u8, verdict: Option<(ReceiptHash, CheckVerdict)>) -> Receipt {
    let check = |(receipt, verdict)| AnswerCheck { order: CheckOrder { receipt, probe: PROBE }, verdict };
    Receipt {
        version: RECEIPT_VERSION,
        session_id: SessionId([0x51; 32]),
        seq: u64::from(number) + 1,
        turn_id: TurnId([number; 16]),
        attempt: 0,
        auth_hash: AuthHash([number; 32]),
        node: node(number.into()).node_id(),
        model: ModelId([0x4d; 32]),
        engine: EngineKind::Native,
        sampling: SamplingDigest([0x5a; 32]),
        seed: 7,
        window_from: 0,
        tokens: TokenCounts { input: 20, output: 9, ..TokenCounts::default() },
        memory_items: 0,
        commitments: Commitments {
            input: Commitment([0x1c; 32]),
            output: Commitment([0x0c; 32]),
            memory: None,
        },
        running_hash: RunningHash([0x0a; 32]),
        checks: verdict.map(check).into_iter().collect(),
        timings: Timings::default(),
        price: 0,
        time_ms: 1_000,
    }
}

/// Signs a receipt by its node.
pub(crate) fn signed(number: u8, receipt: Receipt) -> SignedObject<Receipt> {
    SignedObject::sign(receipt, &node(number.into()))
}

/// The verdict of nodes that computed.
pub(crate) const DIFFERENT: CheckVerdict = CheckVerdict::Different { token: 3, logits: [0x10; 32] };

/// A proof of these verdicts, by nodes 1, 2 and so on.
pub(crate) fn proof_of(verdicts: &[CheckVerdict]) -> Contradiction {
    let answer = signed(0, receipt(0, None));
    let hash = answer.receipt_hash();
    let receipts: Vec<_> = (1..)
        .zip(verdicts)
        .map(|(number, verdict)| signed(number, receipt(number, Some((hash, *verdict)))))
        .collect();
    Contradiction::new(&answer, &receipts)
}

/// The proof against node 0, by nodes 1 and 2.
pub(crate) fn proof() -> Contradiction {
    proof_of(&[DIFFERENT, DIFFERENT])
}
