//! Proofs of contradictions: a valid one names the accused node and its witnesses, and everything that an
//! honest node could have signed is refused.

use baton_keys::session::RecordKey;
use baton_proto::{
    ErrorCode,
    contradiction::{Contradiction, ContradictionReport, MAX_CONTRADICTION_SESSIONS},
    export::verify,
    ids::{ModelId, NodeId},
    receipt::{EngineKind, commit_memory},
    record::{FinishReason, Message, RecordKind, Role},
    turn::{GrantedKey, ReadRecord},
};

use crate::generate::{
    contradiction::{Decoy, proof},
    session::{memory_items, node, relayer},
};

fn check(sessions: &[Decoy]) -> Result<ContradictionReport, ErrorCode> {
    let mut exports = sessions.iter().map(Decoy::export);
    let accused = exports.next().unwrap();
    Contradiction::new(accused, exports).check()
}

fn witnesses(report: &ContradictionReport) -> Vec<NodeId> {
    report.witnesses.clone()
}

#[test]
fn a_proof_names_the_accused_node_and_its_witnesses() {
    let report = proof().check().unwrap();
    assert_eq!(report.accused, node(0).node_id());
    assert_eq!(witnesses(&report), [node(1).node_id(), node(2).node_id()]);
    assert_eq!((report.model, report.seq), (ModelId([0x4d; 32]), 1));
    assert_eq!(report.differs_at, 4, "`The ` is common to both");
    assert!(report.is_decided());
    let one = check(&[Decoy::lying(0), Decoy::at(1)]).unwrap();
    assert!(!one.is_decided(), "one witness may be the liar");
    // A node that changed the answer before has other turns, and its turn is the one of that answer.
    let text = serde_json::to_string(&proof()).unwrap();
    let read: Contradiction = serde_json::from_str(&text).unwrap();
    assert_eq!(read, proof());
}

#[test]
fn sessions_that_prove_nothing_are_refused() {
    use ErrorCode::{BadSequence, PayloadRejected, ReceiptMismatch};
    let changed = |change: fn(&mut Decoy)| {
        let mut decoy = Decoy::lying(0);
        change(&mut decoy);
        decoy
    };
    let cases: Vec<(&str, Decoy, ErrorCode)> = vec![
        ("the same answer", Decoy::at(0), ReceiptMismatch),
        ("the same node", Decoy { node: 1, ..Decoy::lying(0) }, ReceiptMismatch),
        (
            "a cut answer",
            changed(|d| {
                d.finish = FinishReason::Length;
                d.answers[1] = "The lead".to_owned();
            }),
            ReceiptMismatch,
        ),
        ("another message", changed(|d| d.messages[1] = "Who runs last?".to_owned()), ReceiptMismatch),
        (
            "another message before",
            changed(|d| d.messages[0] = "What is a race?".to_owned()),
            ReceiptMismatch,
        ),
        ("another answer before", changed(|d| d.answers[0] = "A race.".to_owned()), ReceiptMismatch),
        (
            "more turns",
            changed(|d| {
                d.messages.push("And then?".to_owned());
                d.answers.push("The next.".to_owned());
            }),
            ReceiptMismatch,
        ),
        ("another seed", changed(|d| d.sampling.seed = 8), ReceiptMismatch),
        ("another temperature", changed(|d| d.sampling.temperature = 0.5), ReceiptMismatch),
        ("a schema", changed(|d| d.sampling.json_schema = Some([1; 32])), ReceiptMismatch),
        (
            "a system text",
            changed(|d| d.system = vec![Message::new(Role::System, "Be kind.")]),
            ReceiptMismatch,
        ),
        ("an edit", changed(|d| d.kind = RecordKind::Edit), ReceiptMismatch),
        ("more tokens allowed", changed(|d| d.auth = |auth| auth.max_output_tokens = 4_096), ReceiptMismatch),
        ("a withheld turn", changed(|d| d.grant = |grant| grant.records.clear()), ReceiptMismatch),
        (
            "another turn's key",
            changed(|d| {
                d.grant = |grant| {
                    let key = GrantedKey::of_record(&RecordKey::from_bytes([1; 32]));
                    grant.records = vec![ReadRecord { seq: 0, key }];
                }
            }),
            ReceiptMismatch,
        ),
        (
            "memory allowed",
            changed(|d| d.auth = |auth| auth.memory_from = Some(relayer().public_key())),
            ReceiptMismatch,
        ),
        (
            "memory used",
            changed(|d| {
                d.auth = |auth| (auth.memory_from, auth.memory_tokens) = (Some(relayer().public_key()), 512);
                d.receipt = |receipt| {
                    receipt.memory_items = 2;
                    receipt.commitments.memory =
                        commit_memory(&RecordKey::from_bytes([1; 32]), &memory_items());
                };
            }),
            ReceiptMismatch,
        ),
        (
            "a proxied engine",
            changed(|d| d.receipt = |receipt| receipt.engine = EngineKind::Proxied),
            ReceiptMismatch,
        ),
        ("a shorter window", changed(|d| d.receipt = |receipt| receipt.window_from = 1), ReceiptMismatch),
        ("a root", changed(|d| d.with_root = true), PayloadRejected),
    ];
    for (name, accused, code) in cases {
        assert_eq!(check(&[accused, Decoy::at(1), Decoy::at(2)]).unwrap_err(), code, "{name}");
    }
    // The same holds for a witness.
    for (name, witness) in [
        (
            "another answer",
            Decoy { answers: vec![Decoy::at(2).answers[0].clone(), "Nobody.".to_owned()], ..Decoy::at(2) },
        ),
        ("the accused node's answer", Decoy::lying(2)),
        ("another seed", Decoy { sampling: changed(|d| d.sampling.seed = 8).sampling, ..Decoy::at(2) }),
        ("the other witness", Decoy::at(1)),
    ] {
        let refused = check(&[Decoy::lying(0), Decoy::at(1), witness]);
        assert_eq!(refused.unwrap_err(), ReceiptMismatch, "{name}");
    }
    assert_eq!(check(&[Decoy::lying(0)]).unwrap_err(), BadSequence, "no witness");
    let mut many = proof();
    many.sessions = vec![many.sessions[0].clone(); MAX_CONTRADICTION_SESSIONS + 1];
    assert_eq!(many.check().unwrap_err(), ErrorCode::FrameTooLarge);
    let other = Contradiction { format: "baton-evidence-v1".to_owned(), ..proof() };
    assert_eq!(other.check().unwrap_err(), ErrorCode::UnsupportedVersion);
    let empty = Contradiction { sessions: Vec::new(), ..proof() };
    assert_eq!(empty.check().unwrap_err(), BadSequence);
}

#[test]
fn a_proof_lacks_nothing_that_its_check_needs() {
    for part in ["auth", "receipt", "system", "sampling"] {
        let mut made = proof();
        let last = made.sessions[0].turns.last_mut().unwrap();
        match part {
            "auth" => last.auth = None,
            "receipt" => last.receipt = None,
            "system" => last.system = None,
            _ => last.sampling = None,
        }
        assert!(verify(&made.sessions[0]).is_ok(), "an export may lack it: {part}");
        assert_eq!(made.check().unwrap_err(), ErrorCode::ReceiptMismatch, "{part}");
    }
    let mut forged = proof();
    *forged.sessions[0].turns[1].receipt.as_mut().unwrap().last_mut().unwrap() ^= 1;
    assert_eq!(forged.check().unwrap_err(), ErrorCode::BadNodeSignature);
}
