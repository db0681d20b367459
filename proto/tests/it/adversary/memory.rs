//! Memory envelopes, receipts' commitments to memory, and resumed answers.

use baton_keys::{
    SecretSigningKey,
    exchange::{EphemeralSecret, ExchangeKeyError, ExchangeSecret, MemorySecret},
    owner::sui_address,
    session::RecordKey,
};
use baton_proto::{
    ErrorCode, SignedBytes, SignedObject, codec,
    ids::{Encapsulation, ExchangeKey, SuiAddress},
    limits::{MAX_HINT_BYTES, MAX_MEMORY_ITEM_BYTES, MAX_MEMORY_ITEMS, MAX_PLACE_BYTES},
    memory::{MemEnvelope, MemoryItem, RecallHint, RecallScope},
    receipt::{Receipt, commit_memory},
    record::Record,
    turn::{Payload, SealedPayload, TurnAuth, resume_tokens_hash},
};

use crate::{
    adversary::fields::{Change, check_changes},
    support::harness::{EPOCH_MS, RequestedTurn, Script, Session},
};

fn item(text: &str) -> MemoryItem {
    MemoryItem { text: text.into(), source: "a chat last week".into(), time_ms: 5 }
}

fn with_memory() -> Script {
    Script { memory: vec![item("likes tea"), item("lives by the sea")], ..Script::turn("hello", "hi there") }
}

fn open(
    requested: &RequestedTurn,
    session: &Session,
    node: usize,
    envelope: &SignedBytes,
) -> Result<usize, ErrorCode> {
    let envelope = SignedObject::<MemEnvelope>::verify(envelope.clone())?;
    envelope.open(&requested.auth, &session.nodes[node].exchange, EPOCH_MS).map(|items| items.len())
}

fn flip(encapsulation: &mut Encapsulation) {
    let mut bytes = *encapsulation.as_bytes();
    bytes[0] ^= 1;
    *encapsulation = Encapsulation::from(bytes);
}

#[test]
fn an_envelope_opens_for_its_turn_its_node_and_its_relayer_only() {
    use ErrorCode::MemUnauthorized;
    let mut session = Session::of_short_turns(9, 2);
    let requested = session.ask(0, &with_memory());
    let honest = requested.envelope.as_ref().unwrap();
    assert_eq!(open(&requested, &session, 0, honest.bytes()), Ok(2));

    // The same items for another turn or node, or for a turn that allows no memory or another relayer.
    let other_turn = session.ask(0, &with_memory());
    assert_eq!(open(&other_turn, &session, 0, honest.bytes()), Err(MemUnauthorized));
    let other_node = session.ask(1, &with_memory());
    assert_eq!(open(&other_node, &session, 1, honest.bytes()), Err(MemUnauthorized));
    assert_eq!(open(&requested, &session, 1, honest.bytes()), Err(MemUnauthorized));
    let no_memory = session.ask(0, &Script::turn("hello", ""));
    assert_eq!(open(&no_memory, &session, 0, honest.bytes()), Err(MemUnauthorized));
    let other_key = SecretSigningKey::from_seed(&[0x55; 32]);
    let forged = MemEnvelope::seal(
        &requested.memory,
        &requested.auth,
        &other_key,
        &session.nodes[0].exchange.public_key(),
        EphemeralSecret::from_bytes(&[5; 64]),
        EPOCH_MS,
    );
    assert_eq!(open(&requested, &session, 0, forged.unwrap().bytes()), Err(MemUnauthorized));

    // Every field, under the old signature and signed again by the relayer itself.
    let cases: [Change<MemEnvelope>; 11] = [
        ("auth_hash", |e| e.auth_hash.0[0] ^= 1, MemUnauthorized),
        ("relayer", |e| e.relayer.0[0] ^= 1, MemUnauthorized),
        ("node", |e| e.node.0[0] ^= 1, MemUnauthorized),
        ("encapsulation", |e| flip(&mut e.encapsulation), MemUnauthorized),
        (
            "a weak encapsulation",
            |e| e.encapsulation = Encapsulation::from([0; Encapsulation::LEN]),
            MemUnauthorized,
        ),
        ("sealed", |e| e.sealed[0] ^= 1, MemUnauthorized),
        ("budget", |e| e.budget_tokens += 1, MemUnauthorized),
        ("issued in the future", |e| e.issued_ms += 30_001, MemUnauthorized),
        ("expired", |e| e.expires_ms = EPOCH_MS - 1, MemUnauthorized),
        ("outlives the authorisation", |e| e.expires_ms += 1, MemUnauthorized),
        (
            "expires before it was issued",
            |e| (e.issued_ms, e.expires_ms) = (EPOCH_MS + 2, EPOCH_MS + 1),
            MemUnauthorized,
        ),
    ];
    for (field, change, code) in cases {
        let mut envelope = MemEnvelope::clone(honest);
        change(&mut envelope);
        let bytes = SignedBytes { body: codec::encode(&envelope), signature: honest.bytes().signature };
        assert_eq!(open(&requested, &session, 0, &bytes), Err(code), "{field}, old signature");
        let bytes = SignedObject::sign(envelope, &session.relayer).bytes().clone();
        assert_eq!(open(&requested, &session, 0, &bytes), Err(code), "{field}, signed again");
    }
}

/// A hint is for one authorisation, signed by the key in it; any other use is refused.
#[test]
fn refuses_a_hint_on_another_turn_for_another_relayer_or_changed() {
    use ErrorCode::MemUnauthorized;
    let mut session = Session::new(2);
    let requested = session.ask(0, &with_memory());
    let account = SecretSigningKey::from_seed(&[0x44; 32]);
    let hint = RecallHint {
        version: 1,
        auth_hash: requested.auth.auth_hash(),
        owner: SuiAddress(sui_address(&account.public_key())),
        key: account.public_key(),
        hint: "tea".into(),
        session: Some("s".into()),
        project: None,
        persona: None,
        scope: RecallScope::default(),
    };
    let honest = SignedObject::sign(hint, &account);
    let relayer = session.relayer.public_key();
    let open = |bytes: &SignedBytes, auth: &SignedObject<TurnAuth>, relayer: &baton_proto::ids::PublicKey| {
        SignedObject::<RecallHint>::verify(bytes.clone())?.check_for(auth, relayer)
    };
    assert_eq!(open(honest.bytes(), &requested.auth, &relayer), Ok(()));
    let other_turn = session.ask(0, &with_memory());
    assert_eq!(open(honest.bytes(), &other_turn.auth, &relayer), Err(MemUnauthorized));
    let no_memory = session.ask(0, &Script::turn("hello", ""));
    assert_eq!(open(honest.bytes(), &no_memory.auth, &relayer), Err(MemUnauthorized));
    assert_eq!(open(honest.bytes(), &requested.auth, &account.public_key()), Err(MemUnauthorized));
    check_changes(
        &honest,
        &[
            ("owner", |h| h.owner.0[0] ^= 1, MemUnauthorized),
            ("a long hint", |h| h.hint = "x".repeat(MAX_HINT_BYTES + 1), MemUnauthorized),
            ("a long project", |h| h.project = Some("x".repeat(MAX_PLACE_BYTES + 1)), MemUnauthorized),
        ],
    );
}

/// The relayer's sealed bytes are not a list of items, or not its canonical encoding.
#[test]
fn refuses_sealed_bytes_that_are_no_items_with_one_code() {
    let mut session = Session::of_short_turns(9, 1);
    let requested = session.ask(0, &with_memory());
    let honest = MemEnvelope::clone(requested.envelope.as_ref().unwrap());
    let binding = [honest.auth_hash.0, honest.relayer.0, honest.node.0].concat();
    let binding: [u8; 96] = binding.try_into().unwrap();
    let node_key = session.nodes[0].exchange.public_key();
    let sealed = |bytes: &[u8]| {
        let ephemeral = EphemeralSecret::from_bytes(&[5; 64]);
        let (encapsulation, secret) = MemorySecret::initiate(ephemeral, &node_key, &binding).unwrap();
        let envelope = MemEnvelope { encapsulation, sealed: secret.seal(bytes), ..honest.clone() };
        let signed = SignedObject::sign(envelope, &session.relayer);
        open(&requested, &session, 0, signed.bytes())
    };
    let good = codec::encode(&requested.memory);
    assert_eq!(sealed(&good), Ok(2));
    for (what, bytes) in [
        ("nothing", Vec::new()),
        ("a byte missing", good[..good.len() - 1].to_vec()),
        ("a byte more", [&good[..], &[0]].concat()),
        ("text that is none", vec![0xff; 40]),
    ] {
        assert_eq!(sealed(&bytes), Err(ErrorCode::MemUnauthorized), "{what}");
    }
    let many = codec::encode(&vec![item("short"); MAX_MEMORY_ITEMS + 1]);
    assert_eq!(sealed(&many), Err(ErrorCode::MemUnauthorized));
}

#[test]
fn refuses_more_memory_than_the_limits() {
    let mut session = Session::of_short_turns(9, 1);
    let requested = session.ask(0, &with_memory());
    let node_key = session.nodes[0].exchange.public_key();
    let seal = |items: &[MemoryItem]| {
        let ephemeral = EphemeralSecret::from_bytes(&[5; 64]);
        MemEnvelope::seal(items, &requested.auth, &session.relayer, &node_key, ephemeral, EPOCH_MS)
    };
    let long = "x".repeat(MAX_MEMORY_ITEM_BYTES);
    assert!(seal(&vec![item("short"); MAX_MEMORY_ITEMS]).is_ok());
    assert_eq!(seal(&vec![item("short"); MAX_MEMORY_ITEMS + 1]).unwrap_err(), ErrorCode::MemUnauthorized);
    assert!(seal(&[item(&long)]).is_ok());
    assert_eq!(seal(&[item(&format!("{long}x"))]).unwrap_err(), ErrorCode::MemUnauthorized);
    assert_eq!(seal(&vec![item(&long); 16]).unwrap_err(), ErrorCode::MemUnauthorized);
    // Keys that the order names, but that are unusable; and a good one that it does not name.
    let mut small_order = *node_key.as_bytes();
    small_order[1184..].fill(0);
    let mut unreduced = *node_key.as_bytes();
    unreduced[..2].fill(0xff);
    for (key, error) in [(small_order, ExchangeKeyError::SmallOrder), (unreduced, ExchangeKeyError::Modulus)]
    {
        let key = ExchangeKey::from(key);
        assert_eq!(key.check(), Err(error));
        let order = TurnAuth { audience_key: key.id(), ..TurnAuth::clone(&requested.auth) };
        let order = SignedObject::sign(order, &session.root.signing_key());
        let got =
            MemEnvelope::seal(&[], &order, &session.relayer, &key, EphemeralSecret::generate(), EPOCH_MS);
        assert_eq!(got.unwrap_err(), ErrorCode::KxExpired);
    }
    let other = ExchangeSecret::from_bytes(&[6; 32]).public_key();
    let ephemeral = EphemeralSecret::generate();
    let got = MemEnvelope::seal(&[], &requested.auth, &session.relayer, &other, ephemeral, EPOCH_MS);
    assert_eq!(got.unwrap_err(), ErrorCode::KxExpired);
}

/// The client knows the items, so it detects which of them the node claims to have used, and any others.
#[test]
fn the_receipt_commits_to_exactly_the_memory_used() {
    let mut session = Session::of_short_turns(9, 2);
    let script = with_memory();
    let node = session.next_node();
    let requested = session.ask(node, &script);
    let served =
        session.nodes[node].serve(&requested.frame(), &session.store, &script.answer, script.finish).unwrap();
    assert_eq!(served.receipt.memory_items, 2);
    let committed = served.committed();
    assert!(requested.accept(&session.root, &committed, &script.answer).is_ok());
    let unsourced = MemoryItem { text: "likes tea".into(), source: "?".into(), time_ms: 5 };
    let changed_memories: [(&str, Vec<MemoryItem>); 5] = [
        ("none", vec![]),
        ("one of two", vec![item("likes tea")]),
        ("another order", vec![item("lives by the sea"), item("likes tea")]),
        ("other words", vec![item("likes tea"), item("lives by the lake")]),
        ("another source", vec![unsourced, item("lives by the sea")]),
    ];
    for (what, memory) in changed_memories {
        let fooled = RequestedTurn { memory, ..requested.clone() };
        let got = fooled.accept(&session.root, &committed, &script.answer);
        assert_eq!(got.unwrap_err(), ErrorCode::ReceiptMismatch, "{what}");
    }
    // With a short budget a node may use a prefix of the items; the commitment covers that prefix alone.
    let longer = RequestedTurn {
        memory: [requested.memory.clone(), vec![item("more")]].concat(),
        ..requested.clone()
    };
    assert!(longer.accept(&session.root, &committed, &script.answer).is_ok());
    // Only a holder of the record key can check or link a commitment.
    let other = session.done[0].requested.record_key.clone();
    assert_ne!(
        commit_memory(&other, &requested.memory),
        commit_memory(&requested.record_key, &requested.memory)
    );
    assert_eq!(commit_memory(&other, &[]), None);
}

#[test]
fn a_resumed_answer_continues_exactly_the_tokens_signed_for() {
    let mut session = Session::of_short_turns(9, 2);
    let author = session.nodes[2].signing.node_id();
    let tokens = vec![11, 12, 13];
    let script =
        Script { resume: Some((author, tokens.clone())), ..Script::turn("go on", "one two three four") };
    let node = session.next_node();
    let requested = session.ask(node, &script);
    let exchange = &session.nodes[node].exchange;
    assert!(requested.sealed.open(exchange, &requested.auth).is_ok());

    // Other, fewer, more or no tokens in the payload; a prefix without a signature.
    let reseal = |payload: &Payload, auth: &TurnAuth| {
        let ephemeral = EphemeralSecret::from_bytes(&[6; 64]);
        let (sealed, _) =
            SealedPayload::seal(payload, ephemeral, &exchange.public_key(), &auth.binding()).unwrap();
        let mut auth = auth.clone();
        auth.payload_hash = sealed.hash();
        sealed.open(exchange, &SignedObject::sign(auth, &session.root.signing_key())).map(|_| ())
    };
    assert_eq!(reseal(&requested.payload, &requested.auth), Ok(()));
    for wrong in [vec![], vec![11, 12], vec![11, 12, 13, 14], vec![11, 13, 12], vec![11, 12, 14]] {
        let payload = Payload { resume_tokens: wrong.clone(), ..requested.payload.clone() };
        assert_eq!(reseal(&payload, &requested.auth), Err(ErrorCode::PayloadRejected), "{wrong:?}");
    }
    let unsigned = TurnAuth { resume: None, ..TurnAuth::clone(&requested.auth) };
    assert_eq!(reseal(&requested.payload, &unsigned), Err(ErrorCode::PayloadRejected));
    let mut miscounted = TurnAuth::clone(&requested.auth);
    miscounted.resume.as_mut().unwrap().token_count = 2;
    assert_eq!(reseal(&requested.payload, &miscounted), Err(ErrorCode::PayloadRejected));
    let capped = |cap| TurnAuth { max_output_tokens: cap, ..TurnAuth::clone(&requested.auth) };
    assert_eq!(reseal(&requested.payload, &capped(3)), Ok(()));
    assert_eq!(
        reseal(&requested.payload, &capped(2)),
        Err(ErrorCode::PayloadRejected),
        "longer than the answer may be"
    );
    let hash = |key: u8, tokens: &[u32]| resume_tokens_hash(&RecordKey::from_bytes([key; 32]), tokens);
    assert_ne!(hash(1, &[1, 256]), hash(1, &[1, 257]));
    assert_ne!(hash(1, &[1, 256]), hash(2, &[1, 256]), "nobody else can guess the tokens");

    // The receipt must name the prefix's length; the client detects a wrong length.
    let served =
        session.nodes[node].serve(&requested.frame(), &session.store, &script.answer, script.finish).unwrap();
    assert_eq!(served.receipt.tokens.resumed, 3);
    // Nor does it accept a receipt for an answer shorter than its prefix.
    for (output, taken) in [(3, true), (2, false)] {
        let mut receipt = Receipt::clone(&served.receipt);
        receipt.tokens.output = output;
        let record = Record::of_turn(
            script.kind,
            script.supersedes_from,
            &script.messages,
            &script.answer,
            script.finish,
        );
        let claimed = requested.seal(&record, receipt, &session.nodes[node].signing);
        let got = requested.accept(&session.root, &claimed.committed(), &script.answer).map(|_| ());
        let expected = if taken { Ok(()) } else { Err(ErrorCode::ReceiptMismatch) };
        assert_eq!(got, expected, "{output} tokens with 3 of another node");
    }
    session.turn(&script);
}
