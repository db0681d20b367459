//! Proofs of contradictions: a valid one names the accused nodes and the witnesses, and receipts that honest nodes
//! could have signed are refused.

use baton_proto::{
    ErrorCode,
    check::{CheckGap, CheckVerdict},
    contradiction::{Contradiction, MAX_VERDICTS},
    ids::{ModelId, NodeId, SessionId},
    receipt::{EngineKind, Receipt},
};

use crate::generate::{
    contradiction::{DIFFERENT, PROBE, proof, proof_of, receipt, signed},
    session::node,
};

const SAME: CheckVerdict = CheckVerdict::Same { logits: [0x10; 32] };

fn nodes(numbers: &[u64]) -> Vec<NodeId> {
    numbers.iter().map(|number| node(*number).node_id()).collect()
}

#[test]
fn a_proof_names_the_accused_nodes_and_the_witnesses() {
    let report = proof().check().unwrap();
    assert_eq!((report.author, report.seq, report.model), (nodes(&[0])[0], 1, ModelId([0x4d; 32])));
    assert_eq!(report.verdicts.len(), 2);
    for (verdicts, witnesses, accused) in [
        (&[DIFFERENT, DIFFERENT][..], &[1, 2][..], &[0][..]),
        (&[DIFFERENT, SAME, SAME], &[2, 3], &[1]),
        (&[SAME, DIFFERENT, SAME], &[1, 3], &[2]),
        (&[DIFFERENT], &[], &[]),
        (&[DIFFERENT, SAME], &[], &[]),
        (&[SAME, CheckVerdict::Same { logits: [0; 32] }], &[], &[]),
    ] {
        let report = proof_of(verdicts).check().unwrap();
        assert_eq!((report.witnesses, report.accused), (nodes(witnesses), nodes(accused)), "{verdicts:?}");
    }
    let text = serde_json::to_string(&proof()).unwrap();
    assert_eq!(serde_json::from_str::<Contradiction>(&text).unwrap(), proof());
}

#[test]
fn receipts_that_prove_nothing_are_refused() {
    type Change = fn(&mut Receipt);
    use ErrorCode::{BadNodeSignature, BadSequence, FrameTooLarge, ReceiptMismatch, UnsupportedVersion};
    for verdicts in [&[SAME][..], &[SAME, SAME], &[CheckVerdict::NotComparable(CheckGap::Window), DIFFERENT]]
    {
        assert_eq!(proof_of(verdicts).check(), Err(ReceiptMismatch), "{verdicts:?}");
    }
    assert_eq!(proof_of(&[]).check(), Err(BadSequence));
    assert_eq!(proof_of(&[DIFFERENT; MAX_VERDICTS + 1]).check(), Err(FrameTooLarge));
    let answer = signed(0, receipt(0, None));
    let verdict = Some((answer.receipt_hash(), DIFFERENT));
    let with = |number: u8, change: fn(&mut Receipt)| {
        let mut changed = receipt(number, verdict);
        change(&mut changed);
        Contradiction::new(&answer, &[signed(1, receipt(1, verdict)), signed(number, changed)]).check()
    };
    assert!(with(2, |_| ()).is_ok());
    let cases: [(&str, Change); 7] = [
        ("another session", |r| r.session_id = SessionId([9; 32])),
        ("another model", |r| r.model = ModelId([9; 32])),
        ("another engine", |r| r.engine = EngineKind::Library),
        ("an earlier turn", |r| r.seq = 1),
        ("another answer", |r| r.checks[0].order.receipt.0[0] ^= 1),
        ("another probe", |r| r.checks[0].order.probe = PROBE + 1),
        ("no verdict", |r| r.checks.clear()),
    ];
    for (what, change) in cases {
        assert_eq!(with(2, change), Err(ReceiptMismatch), "{what}");
    }
    assert_eq!(with(1, |r| r.seq = 9), Err(ReceiptMismatch), "a node twice");
    assert_eq!(with(0, |r| r.seq = 9), Err(ReceiptMismatch), "the author on itself");
    let mut other = Contradiction { format: "baton-evidence-v2".to_owned(), ..proof() };
    assert_eq!(other.check(), Err(UnsupportedVersion));
    other = proof();
    *other.verdicts[0].0.last_mut().unwrap() ^= 1;
    assert_eq!(other.check(), Err(BadNodeSignature));
}
