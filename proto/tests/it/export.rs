//! An exported session verifies, and every change in it is noticed.

use std::collections::BTreeMap;

use baton_keys::{SecretSigningKey, session::session_id};
use baton_proto::{
    ErrorCode, SignedObject,
    chain::SessionReader,
    commit::{ChainPosition, seal_turn},
    export::{Export, ExportKey, ExportReport, ExportStatement, TurnProofs, build, verify, verify_each_blob},
    head::{HeadOuter, SegmentRef},
    ids::{BlobId, Commitment, LinkHash, ModelId, SamplingDigest, SessionId},
    limits::{MAX_CLOCK_SKEW_MS, MAX_TURN_MS},
    link::{BranchPoint, Genesis},
    receipt::Receipt,
    record::Record,
    segment::Segment,
    turn::Sampling,
};
use serde_json::Value;

use crate::{
    generate::{
        head_of,
        session::{self, TURNS, node, root, sampling, system},
    },
    harness::{N_SHARDS, blob_ref},
};

fn json(export: &Export) -> Value {
    serde_json::to_value(export).unwrap()
}

/// Parses and verifies; JSON that does not parse counts as refused, without a code.
fn check(value: &Value) -> Result<ExportReport, Option<ErrorCode>> {
    let export: Export = serde_json::from_value(value.clone()).map_err(|_| None)?;
    verify(&export).map_err(Some)
}

#[test]
fn an_export_verifies_with_and_without_root_and_round_trips() {
    let session = session::make();
    for with_root in [false, true] {
        let export = session::export(&session, with_root);
        let parsed: Export = serde_json::from_str(&serde_json::to_string(&export).unwrap()).unwrap();
        assert_eq!(parsed, export);
        let report = verify(&parsed).unwrap();
        assert_eq!(
            report,
            ExportReport {
                head: head_of(&session).link_hash,
                turns: TURNS,
                segments: 2,
                auths_checked: 19,
                receipts_checked: 20,
                inputs_checked: 19,
                acks_checked: 19,
            }
        );
    }
}

#[test]
fn every_blob_is_shown_with_the_id_that_the_chain_names() {
    let mut export = session::export(&session::make(), false);
    // The next link or the export names each.
    export.turns.iter_mut().for_each(|turn| turn.blob_id = None);
    let mut seen = Vec::new();
    verify_each_blob(&export, &mut |blob| {
        assert_eq!(blob.blob_id, Some(blob_ref(blob.bytes).blob_id));
        seen.push((blob.seq, blob.closes_segment));
        Ok(())
    })
    .unwrap();
    let expected: Vec<_> = (0..TURNS).map(|seq| (seq, seq == 15)).collect();
    assert_eq!(seen, expected);
    let refused = verify_each_blob(&export, &mut |_| Err(ErrorCode::BlobIdMismatch));
    assert_eq!(refused, Err(ErrorCode::BlobIdMismatch));
}

/// Paths to every string and number of a JSON value.
fn leaves(value: &Value, path: String, out: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(name, value)| leaves(value, format!("{path}/{name}"), out));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, value)| leaves(value, format!("{path}/{index}"), out));
        }
        Value::Null => {}
        _ => out.push(path),
    }
}

/// Replaces the character at a position by another of the same alphabet.
fn swap_character(text: &str, position: usize) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    characters[position] = match characters[position] {
        '0' => '1',
        'a' => 'b',
        '=' => 'A',
        _ => '0',
    };
    characters.into_iter().collect()
}

#[test]
fn refuses_every_changed_field() {
    let original = json(&session::export(&session::make(), true));
    assert!(check(&original).is_ok());
    let mut paths = Vec::new();
    leaves(&original, String::new(), &mut paths);
    // Per turn: seq, two keys, blob_id, auth, receipt, ack and a system message of role and text.
    assert!(paths.len() > 20 * 8, "{}", paths.len());
    for path in paths {
        let changes: Vec<Value> = match original.pointer(&path).unwrap() {
            Value::Number(number) => vec![(number.as_u64().unwrap() + 1).into()],
            Value::String(text) => {
                let length = text.chars().count();
                let at = [0, length / 2, length - 1];
                at.iter().map(|at| swap_character(text, *at).into()).collect()
            }
            other => panic!("{path}: {other}"),
        };
        for change in changes {
            let mut changed = original.clone();
            *changed.pointer_mut(&path).unwrap() = change;
            assert!(check(&changed).is_err(), "{path}");
        }
    }
}

#[test]
fn refuses_unknown_missing_and_duplicate_fields() {
    let original = json(&session::export(&session::make(), false));
    for path in ["", "/head", "/segments/0", "/turns/0", "/turns/0/system/0"] {
        let names: Vec<String> =
            original.pointer(path).unwrap().as_object().unwrap().keys().cloned().collect();
        let mut extra = original.clone();
        extra.pointer_mut(path).unwrap().as_object_mut().unwrap().insert("more".into(), Value::Null);
        assert_eq!(check(&extra), Err(None), "{path}");
        // The only optional field, which is never null.
        let mut null = original.clone();
        if let Some(sampling) = null.pointer_mut(&format!("{path}/sampling")) {
            *sampling = Value::Null;
            assert_eq!(check(&null), Err(None), "{path}");
        }
        for name in names.iter().filter(|name| *name != "sampling") {
            let mut missing = original.clone();
            missing.pointer_mut(path).unwrap().as_object_mut().unwrap().remove(name);
            assert_eq!(check(&missing), Err(None), "{path} {name}");
        }
    }
    let text = serde_json::to_string(&session::export(&session::make(), false)).unwrap();
    let twice = text.replacen("{\"format\":", "{\"n_shards\":1000,\"format\":", 1);
    assert!(serde_json::from_str::<Export>(&twice).is_err());
    let upper =
        text.replacen(&root().session_id().to_string(), &root().session_id().to_string().to_uppercase(), 1);
    assert!(serde_json::from_str::<Export>(&upper).is_err());
}

type Change = fn(&mut Export);

#[test]
fn names_what_is_wrong() {
    use ErrorCode::{
        BadGenesis, BadNodeSignature, BadSequence, BadSignature, BlobHashMismatch, BlobIdMismatch,
        BlobMismatch, HeadMismatch, NonCanonical, PayloadRejected, ReceiptMismatch, SessionIdMismatch,
        UnsupportedVersion,
    };
    fn flip_last(bytes: &mut Option<Vec<u8>>) {
        *bytes.as_mut().unwrap().last_mut().unwrap() ^= 1;
    }
    let cases: &[(&str, Change, ErrorCode)] = &[
        ("format", |e| e.format = "baton-export-v1".into(), UnsupportedVersion),
        ("sampling", |e| e.turns[0].sampling = Some(sampling(9)), ReceiptMismatch),
        ("session id", |e| e.session_id.0[0] ^= 1, SessionIdMismatch),
        ("session key", |e| e.session_key.0[0] ^= 1, SessionIdMismatch),
        ("root", |e| e.root = Some(ExportKey::from_bytes([1; 32])), SessionIdMismatch),
        ("shards", |e| e.n_shards += 1, BadGenesis),
        ("head seq", |e| e.head.seq += 1, HeadMismatch),
        ("head link", |e| e.head.link_hash = LinkHash([0; 32]), HeadMismatch),
        ("no segments", |e| e.segments.clear(), BadGenesis),
        ("first segment dropped", |e| drop(e.segments.remove(0)), BadSequence),
        ("last segment dropped", |e| drop(e.segments.pop()), HeadMismatch),
        ("segments swapped", |e| e.segments.swap(0, 1), BadSequence),
        ("segment renumbered", |e| e.segments[1].segment = 0, BadSequence),
        ("a blob byte", |e| e.segments[0].blob[100] ^= 1, PayloadRejected),
        ("a salt byte", |e| e.segments[0].blob[0] ^= 1, PayloadRejected),
        ("blob cut to its salt", |e| e.segments[0].blob.truncate(15), NonCanonical),
        ("blob key", |e| e.segments[0].blob_key = ExportKey::from_bytes([1; 32]), PayloadRejected),
        ("closed blob id", |e| e.segments[0].blob_id = BlobId([0; 32]), BlobIdMismatch),
        ("head blob id", |e| e.segments[1].blob_id = BlobId([0; 32]), BlobIdMismatch),
        ("turn dropped", |e| drop(e.turns.remove(3)), BadSequence),
        ("last turn dropped", |e| drop(e.turns.pop()), BadSequence),
        ("turn repeated", |e| e.turns.push(e.turns[19].clone()), BadSequence),
        ("turns swapped", |e| e.turns.swap(3, 4), BadSequence),
        ("record key", |e| e.turns[3].record_key = e.turns[4].record_key.clone(), PayloadRejected),
        ("turn's blob key", |e| e.turns[3].blob_key = e.turns[4].blob_key.clone(), BlobHashMismatch),
        ("head's blob key", |e| e.turns[19].blob_key = e.turns[4].blob_key.clone(), BlobMismatch),
        ("turn's blob id", |e| e.turns[3].blob_id = Some(BlobId([0; 32])), BlobIdMismatch),
        ("auth of another turn", |e| e.turns[3].auth = e.turns[5].auth.clone(), ReceiptMismatch),
        ("receipt of another turn", |e| e.turns[3].receipt = e.turns[5].receipt.clone(), ReceiptMismatch),
        ("ack of another turn", |e| e.turns[3].ack = e.turns[5].ack.clone(), ReceiptMismatch),
        ("auth signature", |e| flip_last(&mut e.turns[3].auth), BadSignature),
        ("receipt signature", |e| flip_last(&mut e.turns[3].receipt), BadNodeSignature),
        ("ack signature", |e| flip_last(&mut e.turns[3].ack), BadSignature),
        ("trailing byte", |e| e.turns[3].ack.as_mut().unwrap().push(0), NonCanonical),
        ("system text", |e| e.turns[3].system = Some(Vec::new()), ReceiptMismatch),
    ];
    let export = session::export(&session::make(), false);
    for (name, change, code) in cases {
        let mut changed = export.clone();
        change(&mut changed);
        assert_eq!(verify(&changed), Err(*code), "{name}");
    }
    // With the root, keys that open the data are not enough: they must derive from it.
    let mut changed = session::export(&session::make(), true);
    changed.turns[19].blob_key = changed.turns[4].blob_key.clone();
    assert_eq!(verify(&changed), Err(PayloadRejected));
}

#[test]
fn proofs_that_are_missing_are_counted_not_assumed() {
    let mut export = session::export(&session::make(), false);
    for turn in &mut export.turns {
        (turn.auth, turn.receipt, turn.ack, turn.system) = (None, None, None, None);
    }
    let report = verify(&export).unwrap();
    assert_eq!((report.turns, report.auths_checked, report.receipts_checked), (20, 0, 0));
    assert_eq!((report.acks_checked, report.inputs_checked), (0, 0));
}

/// A session of one turn, with a receipt that its node should not have signed.
fn export_with_receipt(change: fn(&mut Receipt)) -> Export {
    export_of_one_turn(None, change, |_| {})
}

/// A session of one turn, perhaps a branch, with a changed receipt and record.
fn export_of_one_turn(
    branch: Option<BranchPoint>,
    change: impl FnOnce(&mut Receipt),
    change_record: fn(&mut Record),
) -> Export {
    let session = session::make();
    let turn = &session.done[0];
    let mut auth = (*turn.requested.auth).clone();
    auth.branch = branch;
    auth.prev_link = auth.genesis().link_hash();
    let auth = SignedObject::sign(auth, &root().signing_key());
    let mut receipt = (*turn.accepted.receipt).clone();
    receipt.auth_hash = auth.auth_hash();
    change(&mut receipt);
    let mut record = turn.accepted.record.clone();
    change_record(&mut record);
    let base = Segment::empty(root().session_id(), 0);
    let position = ChainPosition { base: &base, prev_blob: None };
    let made = seal_turn(&auth, position, &turn.requested.payload.grant, &record, receipt, &node(0)).unwrap();
    let blob = blob_ref(&made.blob);
    let head = HeadOuter {
        n_shards: N_SHARDS,
        branch,
        seq: 0,
        link_hash: made.link.link_hash(),
        blobs: vec![SegmentRef { segment: 0, blob }],
    };
    let mut reader = SessionReader::new(&root(), &head).unwrap();
    reader.provide(&made.blob).unwrap();
    let proofs = TurnProofs {
        auth: Some(auth.bytes().clone()),
        receipt: Some(made.receipt.bytes().clone()),
        ack: None,
        system: Some(system()),
        sampling: None,
    };
    let genesis = Genesis { session_key: root().signing_key().public_key(), n_shards: N_SHARDS, branch };
    build(&root(), &genesis, false, &reader.finish().unwrap(), &BTreeMap::from([(0, proofs)])).unwrap()
}

#[test]
fn refuses_a_link_whose_time_is_far_from_its_order() {
    let auth = session::make().done[0].requested.auth.clone();
    let (issued, expires) = (auth.issued_ms, auth.expires_ms);
    let at = |time_ms: u64| {
        let export = export_of_one_turn(None, |receipt| receipt.time_ms = time_ms, |_| {});
        verify(&export).map(|report| report.turns)
    };
    let (first, last) = (issued - MAX_CLOCK_SKEW_MS, expires + MAX_TURN_MS);
    for time_ms in [first, issued, last] {
        assert_eq!(at(time_ms), Ok(1));
    }
    for time_ms in [0, first - 1, last + 1, u64::MAX] {
        assert_eq!(at(time_ms), Err(ErrorCode::ReceiptMismatch));
    }
}

#[test]
fn a_branch_verifies_and_names_its_parent() {
    let parent = BranchPoint { session_id: SessionId([7; 32]), link_hash: LinkHash([8; 32]) };
    let export = export_of_one_turn(Some(parent), |_| {}, |_| {});
    let report = verify(&export).unwrap();
    assert_eq!((report.turns, report.auths_checked, report.receipts_checked), (1, 1, 1));
    let mut orphan = export.clone();
    orphan.branch = None;
    assert_eq!(verify(&orphan), Err(ErrorCode::BadGenesis));
    let mut adopted = export;
    adopted.branch.as_mut().unwrap().link_hash = LinkHash([9; 32]);
    assert_eq!(verify(&adopted), Err(ErrorCode::BadGenesis));
}

#[test]
fn refuses_a_chain_whose_head_the_session_did_not_sign() {
    let session = session::make();
    let export = session::export(&session, false);
    let key = root().signing_key();
    let state = |change: fn(&mut ExportStatement), key: &SecretSigningKey| {
        let mut statement =
            SignedObject::<ExportStatement>::verify_encoded(&export.head.statement).unwrap().into_value();
        change(&mut statement);
        let mut changed = export.clone();
        changed.head.statement = SignedObject::sign(statement, key).encode();
        verify(&changed).map(|report| report.turns)
    };
    assert_eq!(state(|_| {}, &key), Ok(TURNS));
    // Anyone can invent a session, or its tail, with links of nodes of their own.
    let stranger = SecretSigningKey::from_seed(&[9; 32]);
    assert_eq!(state(|_| {}, &stranger), Err(ErrorCode::BadSignature));
    let own_session = |statement: &mut ExportStatement| {
        statement.session_key = SecretSigningKey::from_seed(&[9; 32]).public_key();
        statement.session_id = session_id(&statement.session_key);
    };
    assert_eq!(state(own_session, &stranger), Err(ErrorCode::HeadMismatch));
    // The client's own statement, about an earlier head.
    assert_eq!(state(|statement| statement.seq = 9, &key), Err(ErrorCode::HeadMismatch));
    assert_eq!(
        state(|statement| statement.link_hash = LinkHash([9; 32]), &key),
        Err(ErrorCode::HeadMismatch)
    );
    // A tail that was cut off: the first segment alone is a whole chain, as an honest, older export has it.
    let mut cut = export.clone();
    cut.segments.truncate(1);
    cut.turns.truncate(16);
    (cut.head.seq, cut.head.link_hash) = (15, session.done[15].accepted.link.link_hash());
    assert_eq!(verify(&cut), Err(ErrorCode::HeadMismatch));
    let mut unsigned = export.clone();
    unsigned.head.statement = Vec::new();
    assert_eq!(verify(&unsigned), Err(ErrorCode::NonCanonical));
    let mut old = json(&export);
    old["head"].as_object_mut().unwrap().remove("statement");
    assert_eq!(check(&old), Err(None));
}

#[test]
fn refuses_sampling_settings_that_were_not_ordered_and_shards_of_no_network() {
    let mut export = session::export(&session::make(), false);
    let turn = export.turns.iter_mut().find(|turn| turn.auth.is_some() && turn.sampling.is_some()).unwrap();
    // Without the receipt, the authorisation alone knows the settings.
    turn.receipt = None;
    assert!(verify(&export).is_ok());
    let turn = export.turns.iter_mut().find(|turn| turn.receipt.is_none()).unwrap();
    turn.sampling = Some(Sampling { temperature: 0.5, ..sampling(turn.seq) });
    assert_eq!(verify(&export), Err(ErrorCode::ReceiptMismatch));
    for n_shards in [0, 1, 3, 2049, u16::MAX] {
        let mut export = session::export(&session::make(), false);
        export.n_shards = n_shards;
        assert_eq!(verify(&export), Err(ErrorCode::BadGenesis), "{n_shards}");
    }
}

type Lie = fn(&mut Receipt);

#[test]
fn refuses_a_signed_receipt_that_claims_what_was_not_ordered() {
    assert!(verify(&export_with_receipt(|_| {})).is_ok());
    let lies: &[(&str, Lie)] = &[
        ("session", |r| r.session_id.0[0] ^= 1),
        ("seq", |r| r.seq = 1),
        ("turn", |r| r.turn_id.0[0] ^= 1),
        ("attempt", |r| r.attempt = 1),
        ("auth", |r| r.auth_hash.0[0] ^= 1),
        ("model", |r| r.model = ModelId([0; 32])),
        ("sampling", |r| r.sampling = SamplingDigest([0; 32])),
        ("window", |r| r.window_from = 1),
        ("output over the cap", |r| r.tokens.output = 2_049),
        ("memory over the cap", |r| r.tokens.memory = 1),
        ("resumed", |r| r.tokens.resumed = 1),
        ("price over the cap", |r| r.price = 1_000_001),
        ("memory items", |r| r.memory_items = 1),
        ("memory commitment", |r| r.commitments.memory = Some(Commitment([0; 32]))),
        ("memory not ordered", |r| {
            r.memory_items = 1;
            r.commitments.memory = Some(Commitment([0; 32]));
        }),
        ("output commitment", |r| r.commitments.output = Commitment([0; 32])),
        ("input commitment", |r| r.commitments.input = Commitment([0; 32])),
        ("hash of nothing", |r| r.tokens.output = 0),
    ];
    for (name, lie) in lies {
        assert_eq!(verify(&export_with_receipt(*lie)), Err(ErrorCode::ReceiptMismatch), "{name}");
    }
    // An answer carries nothing beside its text.
    let name = |record: &mut Record| record.messages.last_mut().unwrap().name = Some("hidden".to_owned());
    let call = |record: &mut Record| record.messages.last_mut().unwrap().call_id = Some("hidden".to_owned());
    for change in [name, call] {
        assert_eq!(verify(&export_of_one_turn(None, |_| {}, change)), Err(ErrorCode::ReceiptMismatch));
    }
}

#[test]
fn debug_shows_no_key_and_no_text() {
    let export = session::export(&session::make(), true);
    let shown = format!("{export:?}");
    assert!(!shown.contains(&"66, ".repeat(4)) && !shown.contains("Answer briefly"));
    assert_eq!(format!("{:?}", export.root.unwrap()), "ExportKey(redacted)");
}
