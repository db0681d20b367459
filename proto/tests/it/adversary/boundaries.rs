//! Sizes at their limits:
//!
//! - segments of 15, 16 and 17 turns
//! - segments of 256 KiB, and one byte below and above
//! - records and messages of the largest size, and one more

use baton_keys::SecretSigningKey;
use baton_proto::{
    ErrorCode, SignedObject,
    chain::{ChainEnd, base_after, verify_segment},
    codec,
    commit::ChainPosition,
    ids::SessionId,
    limits::{MAX_BLOB_BYTES, MAX_MESSAGE_BYTES, MAX_MESSAGES, SEGMENT_BYTES},
    link::{Genesis, Link},
    receipt::{Commitments, Receipt, commit_input, commit_output},
    record::{FinishReason, Message, Record, Role, SealedRecord},
    segment::{Entry, Segment},
};

use crate::{
    adversary::stored::TWENTY,
    support::{
        harness::{Script, Session, read_window},
        source::Source,
    },
};

/// A signed chain of one segment, with records of these lengths (nothing opens their content).
fn chain(lengths: &[usize]) -> (Segment, Genesis, ChainEnd) {
    let key = SecretSigningKey::from_seed(&[7; 32]);
    let session = SecretSigningKey::from_seed(&[8; 32]).public_key();
    let genesis = Genesis { session_key: session, n_shards: 10, branch: None };
    let id: SessionId = baton_keys::session::session_id(&session);
    let mut segment = Segment::empty(id, 0);
    let mut end = ChainEnd { seq: 0, link_hash: genesis.link_hash() };
    let mut source = Source::new(1);
    for (index, length) in lengths.iter().enumerate() {
        let record = SealedRecord(source.vec(*length));
        let mut link = Link::clone(&TWENTY.session.done[9].accepted.link);
        (link.author, link.session_id, link.seq) = (key.node_id(), id, index as u64);
        link.index = u8::try_from(index).unwrap();
        link.prev_link = end.link_hash;
        link.prev_blob = link.prev_blob.filter(|_| index > 0);
        link.record_hash = record.hash();
        link.record_length = u32::try_from(*length).unwrap();
        let link = SignedObject::sign(link, &key);
        end = ChainEnd { seq: link.seq, link_hash: link.link_hash() };
        segment.entries.push(Entry { link: link.bytes().clone(), record });
    }
    (segment, genesis, end)
}

/// Exact to the byte: a segment one byte below 256 KiB takes another turn, a segment of 256 KiB does not.
#[test]
fn a_turn_behind_a_full_segment_is_refused_to_the_byte() {
    let (empty, _, _) = chain(&[0]);
    let spare = SEGMENT_BYTES - empty.encoded_len();
    for (first, closed) in [(spare - 1, false), (spare, true), (spare + 1, true)] {
        let (alone, genesis, end) = chain(&[first]);
        assert_eq!(alone.encoded_len(), SEGMENT_BYTES + first - spare);
        assert_eq!(codec::encode(&alone).len(), alone.encoded_len());
        assert_eq!(alone.is_closed(), closed);
        assert!(verify_segment(&alone, &genesis, &end).is_ok());
        assert_eq!(base_after(alone).segment, u64::from(closed));
        let (with_next, genesis, end) = chain(&[first, 100]);
        let got = verify_segment(&with_next, &genesis, &end).map(|links| links.len());
        assert_eq!(got, if closed { Err(ErrorCode::BadSequence) } else { Ok(2) }, "{first}");
    }
}

/// Sessions across the turn boundary. The harness compares the client's rebuilt blob with the node's at every
/// turn; this test checks the positions and that the windows read.
#[test]
fn fifteen_sixteen_and_seventeen_turns_rebuild_and_read() {
    for turns in [15, 16, 17] {
        let mut session = Session::of_short_turns(11, turns);
        let segments: Vec<u64> = session.segment_refs().iter().map(|found| found.segment).collect();
        assert_eq!(segments, if turns == 17 { vec![1, 0] } else { vec![0] });
        let requested = session.ask(session.next_node(), &Script::turn("next", ""));
        let expected = if turns == 15 { (0, 15) } else { (1, turns - 16) };
        assert_eq!((requested.payload.grant.segment, usize::from(requested.payload.grant.index)), expected);
        let window = read_window(&requested.auth, &requested.payload.grant, &session.store).unwrap();
        assert_eq!(window.turns.len(), turns);
        assert_eq!((window.base.segment, window.base.entries.len()), expected);
        // The position in the grant must equal the position from the chain.
        for (segment, index) in [(expected.0, expected.1 + 1), (expected.0 + 1, expected.1), (9, 0)] {
            let mut grant = requested.payload.grant.clone();
            (grant.segment, grant.index) = (segment, u8::try_from(index).unwrap());
            let got = read_window(&requested.auth, &grant, &session.store);
            assert_eq!(got.unwrap_err(), ErrorCode::BadSequence, "{segment}, {index}");
        }
    }
}

#[test]
fn the_largest_turns_fit_a_blob_and_rebuild() {
    let mut session = Session::new(13);
    // A segment just under its limit, then the largest record: the largest possible blob.
    for _ in 0..3 {
        session.turn(&Script::turn(Source::new(1).text(60_000), "short"));
    }
    let open = session.done.last().unwrap().accepted.segment.encoded_len();
    assert!(open < SEGMENT_BYTES);
    let largest = "x".repeat(MAX_MESSAGE_BYTES);
    let done = session.turn(&Script::turn(largest.clone(), "y".repeat(MAX_MESSAGE_BYTES - 200)));
    assert!(done.accepted.segment.is_closed());
    assert_eq!(done.accepted.blob.len(), MAX_BLOB_BYTES, "the largest bucket");
    let next = session.turn(&Script::turn("on", largest));
    assert_eq!(next.accepted.link.segment, 1);
    let empty = session.turn(&Script::turn("", ""));
    assert_eq!(empty.accepted.record.answer(), Some(""));
    let none = Script { messages: Vec::new(), system: Vec::new(), ..Script::turn("", "unasked") };
    assert_eq!(session.turn(&none).accepted.record.messages.len(), 1);
}

#[test]
fn a_node_refuses_texts_over_their_limits() {
    let mut session = Session::of_short_turns(14, 1);
    let long = "x".repeat(MAX_MESSAGE_BYTES + 1);
    let many = |count| vec![Message::new(Role::User, "x"); count];
    let tool = |name: Option<String>, call_id: Option<String>| {
        let mut message = Message::new(Role::Tool, "x");
        (message.name, message.call_id) = (name, call_id);
        message
    };
    let named = |length: usize| tool(Some("n".repeat(length)), None);
    let called = |length: usize| tool(None, Some("n".repeat(length)));
    let base = Script::turn("hello", "hi");
    let with = |messages| Script { messages, ..base.clone() };
    let cases = [
        ("a message a byte too long", with(vec![Message::new(Role::User, long.clone())])),
        ("a message of 1 MB", with(vec![Message::new(Role::User, "x".repeat(1_000_000))])),
        ("a system text too long", Script { system: vec![Message::new(Role::System, long)], ..base.clone() }),
        ("as many messages as a record has, and an answer", with(many(MAX_MESSAGES))),
        ("one system message too many", Script { system: many(MAX_MESSAGES + 1), ..base.clone() }),
        ("a name too long", with(vec![named(129)])),
        ("a call id too long", with(vec![called(129)])),
        (
            "two messages that together exceed a record",
            with(vec![Message::new(Role::User, "x".repeat(MAX_MESSAGE_BYTES)); 2]),
        ),
    ];
    for (what, script) in cases {
        let got = session.try_turn(&script).map(|_| ());
        assert_eq!(got.unwrap_err(), ErrorCode::FrameTooLarge, "{what}");
    }
    for script in [with(many(MAX_MESSAGES - 1)), with(vec![named(128)]), with(vec![called(128)])] {
        session.turn(&script);
    }
}

/// The exact limits of a grant's lists.
#[test]
fn a_node_refuses_grants_over_their_limits_or_out_of_order() {
    use baton_proto::turn::{Grant, ReadBlob, ReadRecord, TurnAuth};
    type Change = fn(&mut Grant);
    let mut session = Session::of_short_turns(16, 20);
    let requested = session.ask(0, &Script::turn("next", ""));
    let cases: [(&str, Change, ErrorCode); 9] = [
        ("ten blobs", |g| g.blobs = vec![g.blobs[0].clone(); 10], ErrorCode::FrameTooLarge),
        ("145 records", |g| g.records = vec![g.records[0].clone(); 145], ErrorCode::FrameTooLarge),
        ("no blobs", |g| g.blobs.clear(), ErrorCode::PayloadRejected),
        ("blobs ascending", |g| g.blobs.reverse(), ErrorCode::PayloadRejected),
        ("a blob doubled", |g| g.blobs.insert(0, ReadBlob::clone(&g.blobs[0])), ErrorCode::PayloadRejected),
        ("records descending", |g| g.records.reverse(), ErrorCode::PayloadRejected),
        (
            "a record doubled",
            |g| g.records.insert(0, ReadRecord::clone(&g.records[0])),
            ErrorCode::PayloadRejected,
        ),
        ("a record of this turn", |g| g.records[19].seq = 20, ErrorCode::PayloadRejected),
        ("another head blob", |g| g.blobs[0].blob = g.blobs[1].blob, ErrorCode::PayloadRejected),
    ];
    let check = |requested: &crate::support::harness::RequestedTurn, change: &dyn Fn(&mut Grant)| {
        let mut payload = requested.payload.clone();
        change(&mut payload.grant);
        let auth = TurnAuth { grant_hash: payload.grant.hash(), ..TurnAuth::clone(&requested.auth) };
        payload.check(&auth)
    };
    assert_eq!(check(&requested, &|_| ()), Ok(()));
    for (what, change, code) in cases {
        assert_eq!(check(&requested, &change), Err(code), "{what}");
    }
    // A first turn reads nothing.
    let mut fresh = Session::new(17);
    let first = fresh.ask(0, &Script::turn("hello", ""));
    let (blob, record) =
        (requested.payload.grant.blobs[0].clone(), requested.payload.grant.records[0].clone());
    assert_eq!(check(&first, &|_| ()), Ok(()));
    assert_eq!(check(&first, &|g| g.blobs.push(blob.clone())), Err(ErrorCode::PayloadRejected));
    assert_eq!(check(&first, &|g| g.records.push(record.clone())), Err(ErrorCode::PayloadRejected));
}

#[test]
fn a_node_refuses_sampling_out_of_range() {
    use baton_proto::turn::{Sampling, TokenBias};
    type Change = fn(&mut Sampling);
    let cases: [(&str, Change); 27] = [
        ("a negative temperature", |s| s.temperature = -0.1),
        ("a temperature too high", |s| s.temperature = 5.1),
        ("no temperature", |s| s.temperature = f32::NAN),
        ("a temperature of minus zero", |s| s.temperature = -0.0),
        ("a presence of minus zero", |s| s.presence_penalty = -0.0),
        ("a frequency of minus zero", |s| s.frequency_penalty = -0.0),
        ("a bias of minus zero", |s| s.token_biases = vec![TokenBias { token: 1, bias: -0.0 }]),
        ("an infinite temperature", |s| s.temperature = f32::INFINITY),
        ("no mass", |s| s.top_p = 0.0),
        ("too much mass", |s| s.top_p = 1.1),
        ("a negative least probability", |s| s.min_p = -0.1),
        ("too much least probability", |s| s.min_p = 1.1),
        ("mass that is no number", |s| s.top_p = f32::NAN),
        ("no penalty", |s| s.repetition_penalty = 0.0),
        ("a penalty that is no number", |s| s.repetition_penalty = f32::NAN),
        ("too many alternatives", |s| s.logprobs = 21),
        ("a presence too high", |s| s.presence_penalty = 2.1),
        ("a presence that is no number", |s| s.presence_penalty = f32::NAN),
        ("a frequency too low", |s| s.frequency_penalty = -2.1),
        ("a frequency that is no number", |s| s.frequency_penalty = f32::NAN),
        ("a bias too high", |s| s.token_biases = vec![TokenBias { token: 1, bias: 100.5 }]),
        ("a bias that is no number", |s| s.token_biases = vec![TokenBias { token: 1, bias: f32::NAN }]),
        ("a token with two biases", |s| s.token_biases = vec![TokenBias { token: 1, bias: 1.0 }; 2]),
        ("too many biases", |s| {
            s.token_biases = (0..301).map(|token| TokenBias { token, bias: 1.0 }).collect();
        }),
        ("an empty stop string", |s| s.stop.push(String::new())),
        ("a stop string too long", |s| s.stop.push("x".repeat(257))),
        ("too many stop strings", |s| s.stop = vec!["x".into(); 17]),
    ];
    assert_eq!(Sampling::default().check(), Ok(()));
    for (what, change) in cases {
        let mut sampling = Sampling::default();
        change(&mut sampling);
        assert_eq!(sampling.check(), Err(ErrorCode::PayloadRejected), "{what}");
    }
}

/// An honest node must not seal an answer that no reader accepts, and a client must not accept one. Otherwise
/// the session could never be read again.
#[test]
fn an_answer_over_its_limit_is_neither_sealed_nor_accepted() {
    let mut session = Session::of_short_turns(15, 1);
    let answer = "y".repeat(MAX_MESSAGE_BYTES + 1);
    let node = session.next_node();
    let requested = session.ask(node, &Script::turn("hello", ""));
    let served = session.nodes[node].serve(&requested.frame(), &session.store, &answer, FinishReason::Stop);
    assert_eq!(served.map(|_| ()).unwrap_err(), ErrorCode::FrameTooLarge);

    // The byzantine node seals by hand, since the library refuses.
    let short =
        session.nodes[node].serve(&requested.frame(), &session.store, "short", FinishReason::Stop).unwrap();
    let key = &requested.record_key;
    let signing = &session.nodes[node].signing;
    let mut receipt = Receipt::clone(&short.receipt);
    receipt.commitments = Commitments {
        input: commit_input(key, &requested.payload.system, receipt.window_from, &requested.payload.messages),
        output: commit_output(key, &answer, FinishReason::Stop),
        memory: None,
    };
    let receipt = SignedObject::sign(receipt, signing);
    let record = Record::of_turn(
        requested.payload.kind,
        None,
        &requested.payload.messages,
        &answer,
        FinishReason::Stop,
    );
    let mut link = short.link.clone().into_value();
    let sealed = record.seal(key, &link.record_identity()).unwrap();
    link.record_hash = sealed.hash();
    link.record_length = u32::try_from(sealed.0.len()).unwrap();
    link.receipt_hash = receipt.receipt_hash();
    let link = SignedObject::sign(link, signing);
    let ChainPosition { base, .. } = requested.position();
    let mut segment = base.clone();
    segment.entries.push(Entry { link: link.bytes().clone(), record: sealed });
    let blob = segment.seal(&requested.blob_key, &key.blob_salt()).unwrap();
    let mut committed = short.committed();
    committed.link = link.bytes().clone();
    committed.receipt = receipt.bytes().clone();
    committed.blob_digest = baton_proto::link::blob_digest(&blob);
    committed.blob_length = u32::try_from(blob.len()).unwrap();
    let got = requested.accept(&session.root, &committed, &answer).map(|_| ());
    assert_eq!(got.unwrap_err(), ErrorCode::BlobMismatch);
}
