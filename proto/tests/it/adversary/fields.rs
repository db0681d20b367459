//! Every field of every signed object, changed one at a time. The change is under the old signature, then
//! signed again by another key, then signed again by the lying author.

use baton_keys::SecretSigningKey;
use baton_proto::{
    ErrorCode, Signable, SignedBytes, SignedObject,
    check::{AnswerCheck, CheckOrder, CheckVerdict},
    codec,
    head::HeadRecord,
    ids::{
        AuthHash, BlobDigest, BlobId, Commitment, GrantHash, LinkHash, ModelId, NodeId, PayloadHash,
        ReceiptHash, RecordHash, SamplingDigest, SessionId, TurnId,
    },
    limits::{MAX_CLOCK_SKEW_MS, MAX_HEAD_LIFETIME_MS, MAX_LINK_LEAD_MS, MAX_OUTPUT_TOKENS},
    link::{BlobRef, BranchPoint, Link, blob_digest},
    note::{Acknowledgement, TurnNote, TurnNoteKind},
    receipt::{EngineKind, Receipt},
    record::{FinishReason, Record},
    segment::Entry,
    turn::{GrantedKey, HeadGrant, ResumePrefix, TurnAuth},
    wire::Committed,
};

use crate::{
    adversary::stored::TWENTY,
    support::{
        harness::{CompletedTurn, EPOCH_MS, read_window},
        source::sampled,
    },
};

/// A field's name, its change, and the code for it under a signature that does not fit.
pub(super) type Change<T> = (&'static str, fn(&mut T), ErrorCode);

fn other_key() -> SecretSigningKey {
    SecretSigningKey::from_seed(&[0x55; 32])
}

/// Another key's signature over the object; and the changes that a check before the signature finds, under that one and the
/// old one.
pub(super) fn check_changes<T: Signable + Clone + PartialEq + std::fmt::Debug>(
    honest: &SignedObject<T>,
    changes: &[Change<T>],
) {
    assert_eq!(SignedObject::<T>::verify(honest.bytes().clone()).as_ref(), Ok(honest));
    for (field, change, code) in changes {
        let mut value = T::clone(honest);
        change(&mut value);
        assert_ne!(codec::encode(&value), honest.bytes().body, "{field} was changed");
        let unsigned = SignedBytes { body: codec::encode(&value), signature: honest.bytes().signature };
        assert_eq!(SignedObject::<T>::verify(unsigned).unwrap_err(), *code, "{field}, old signature");
        let forged = SignedObject::sign(value, &other_key()).bytes().clone();
        assert_eq!(SignedObject::<T>::verify(forged).unwrap_err(), *code, "{field}, another key's signature");
    }
    let untouched = SignedObject::sign(T::clone(honest), &other_key()).bytes().clone();
    assert_eq!(SignedObject::<T>::verify(untouched).unwrap_err(), T::BAD_SIGNATURE);
}

const OTHER_BLOB: BlobRef = BlobRef { blob_id: BlobId([1; 32]), digest: BlobDigest([2; 32]), length: 3 };
const OTHER_BRANCH: BranchPoint =
    BranchPoint { session_id: SessionId([1; 32]), link_hash: LinkHash([2; 32]) };
const OTHER_RESUME: ResumePrefix =
    ResumePrefix { author: NodeId([1; 32]), attempt: 0, token_count: 1, tokens_hash: [1; 32] };

const OTHER_CHECK: CheckOrder = CheckOrder { receipt: ReceiptHash([1; 32]), probe: 0 };

#[test]
fn an_authorisation_holds_in_every_field() {
    use ErrorCode::{BadGenesis, NonCanonical, QuotaExceeded, SessionIdMismatch, UnsupportedVersion};
    check_changes(
        &TWENTY.session.done[9].requested.auth,
        &[
            ("suite", |a| a.suite = 1, UnsupportedVersion),
            ("a later suite", |a| a.suite = 3, UnsupportedVersion),
            ("session_id", |a| a.session_id.0[0] ^= 1, SessionIdMismatch),
            ("session_key", |a| a.session_key = other_key().public_key(), SessionIdMismatch),
            ("seq to the genesis", |a| a.seq = 0, BadGenesis),
            ("max_output_tokens", |a| a.max_output_tokens = MAX_OUTPUT_TOKENS + 1, QuotaExceeded),
            ("a check twice", |a| a.checks = vec![OTHER_CHECK; 2], NonCanonical),
        ],
    );
    // Only a first turn pins these before its signature: it starts from the genesis.
    check_changes(
        &TWENTY.session.done[0].requested.auth,
        &[
            ("prev_link", |a| a.prev_link.0[31] ^= 1, BadGenesis),
            ("prev_blob", |a| a.prev_blob = Some(OTHER_BLOB), BadGenesis),
            ("n_shards", |a| a.n_shards += 1, BadGenesis),
            ("branch", |a| a.branch = Some(OTHER_BRANCH), BadGenesis),
        ],
    );
}

/// The session key itself signs again: the changes that still do not fit the payload or the chain.
#[test]
fn an_authorisation_signed_again_does_not_fit_its_payload_or_chain() {
    use ErrorCode::{BadGenesis, HeadMismatch, PayloadRejected};
    let twenty = &*TWENTY;
    let done = &twenty.session.done[9];
    let node = &twenty.session.nodes[done.node];
    let cases: [Change<TurnAuth>; 13] = [
        ("seq", |a| a.seq += 1, PayloadRejected),
        ("turn_id", |a| a.turn_id = TurnId([9; 16]), PayloadRejected),
        ("attempt", |a| a.attempt += 1, PayloadRejected),
        ("prev_blob", |a| a.prev_blob = Some(OTHER_BLOB), PayloadRejected),
        ("no prev_blob", |a| a.prev_blob = None, PayloadRejected),
        ("audience", |a| a.audience = NodeId([9; 32]), PayloadRejected),
        ("payload_hash", |a| a.payload_hash = PayloadHash([9; 32]), PayloadRejected),
        ("sampling", |a| a.sampling = SamplingDigest([9; 32]), PayloadRejected),
        ("grant_hash", |a| a.grant_hash = GrantHash([9; 32]), PayloadRejected),
        ("resume", |a| a.resume = Some(OTHER_RESUME), PayloadRejected),
        ("prev_link", |a| a.prev_link.0[31] ^= 1, HeadMismatch),
        ("n_shards", |a| a.n_shards += 1, BadGenesis),
        ("branch", |a| a.branch = Some(OTHER_BRANCH), BadGenesis),
    ];
    for (field, change, code) in cases {
        let mut value = TurnAuth::clone(&done.requested.auth);
        change(&mut value);
        let auth = SignedObject::sign(value, &twenty.session.root.signing_key());
        let auth = SignedObject::<TurnAuth>::verify(auth.bytes().clone()).unwrap();
        let got = done
            .requested
            .sealed
            .open(&node.exchange, &auth)
            .and_then(|(payload, _)| read_window(&auth, &payload.grant, &twenty.session.store));
        assert_eq!(got.unwrap_err(), code, "{field}");
    }
    // Another client's own session cannot carry our payload either.
    let mut value = TurnAuth::clone(&done.requested.auth);
    value.session_key = other_key().public_key();
    value.session_id = baton_keys::session::session_id(&value.session_key);
    let auth =
        SignedObject::<TurnAuth>::verify(SignedObject::sign(value, &other_key()).bytes().clone()).unwrap();
    assert_eq!(done.requested.sealed.open(&node.exchange, &auth).unwrap_err(), PayloadRejected);
    // Nor can another node open it, nor does a changed payload open under a fitting hash.
    for other in twenty.session.nodes.iter().filter(|other| other.signing.node_id() != auth.audience) {
        let got = done.requested.sealed.open(&other.exchange, &done.requested.auth);
        assert_eq!(got.unwrap_err(), PayloadRejected);
    }
    let length = done.requested.sealed.0.len();
    for position in sampled(length, 400, 11) {
        let mut sealed = done.requested.sealed.clone();
        sealed.0[position] ^= 0x80;
        assert_eq!(sealed.open(&node.exchange, &done.requested.auth).unwrap_err(), PayloadRejected);
        let mut auth = TurnAuth::clone(&done.requested.auth);
        auth.payload_hash = sealed.hash();
        let got = sealed.open(&node.exchange, &auth);
        // RFC 7748: X25519 ignores the top bit of a key, but the derivation covers the key's bytes.
        assert_eq!(got.unwrap_err(), PayloadRejected, "byte {position}");
    }
}

#[test]
fn an_authorisation_is_admitted_in_its_time_only() {
    let auth = TurnAuth::clone(&TWENTY.next.auth);
    let at = |issued_ms: u64, expires_ms: u64, now: u64| {
        TurnAuth { issued_ms, expires_ms, ..auth.clone() }.check_time(now)
    };
    let t = EPOCH_MS;
    assert_eq!(at(t, t + 120_000, t), Ok(()));
    assert_eq!(at(t, t + 120_000, t + 120_000), Ok(()));
    assert_eq!(at(t, t + 120_000, t + 120_001), Err(ErrorCode::Expired));
    assert_eq!(at(t, t + 120_001, t), Err(ErrorCode::Expired));
    assert_eq!(at(t, t - 1, t), Err(ErrorCode::Expired));
    assert_eq!(at(t + 30_000, t + 60_000, t), Ok(()));
    assert_eq!(at(t + 30_001, t + 60_000, t), Err(ErrorCode::NotYetValid));
    assert_eq!(at(0, u64::MAX, t), Err(ErrorCode::Expired));
    assert_eq!(at(u64::MAX, u64::MAX, u64::MAX), Ok(()));
    assert_eq!(at(u64::MAX, 0, 0), Err(ErrorCode::NotYetValid));
}

fn link_changes() -> Vec<Change<Link>> {
    use ErrorCode::{BadGenesis, BadNodeSignature, BadSequence, UnsupportedVersion};
    vec![
        ("version", |l| l.version = 2, UnsupportedVersion),
        ("session_id", |l| l.session_id.0[0] ^= 1, BadNodeSignature),
        ("seq", |l| l.seq += 1, BadNodeSignature),
        ("seq below index", |l| l.seq = 1, BadSequence),
        ("segment", |l| l.segment += 1, BadNodeSignature),
        ("segment above seq", |l| l.segment = 100, BadSequence),
        ("index", |l| l.index -= 1, BadNodeSignature),
        ("index of a 17th turn", |l| l.index = 16, BadSequence),
        ("turn_id", |l| l.turn_id = TurnId([9; 16]), BadNodeSignature),
        ("attempt", |l| l.attempt += 1, BadNodeSignature),
        ("prev_link", |l| l.prev_link.0[0] ^= 1, BadNodeSignature),
        ("prev_blob", |l| l.prev_blob = Some(OTHER_BLOB), BadNodeSignature),
        ("prev_blob's id", |l| l.prev_blob.iter_mut().for_each(|b| b.blob_id.0[0] ^= 1), BadNodeSignature),
        ("no prev_blob", |l| l.prev_blob = None, BadGenesis),
        ("record_hash", |l| l.record_hash = RecordHash([9; 32]), BadNodeSignature),
        ("record_length", |l| l.record_length += 1, BadNodeSignature),
        ("auth_hash", |l| l.auth_hash = AuthHash([9; 32]), BadNodeSignature),
        ("receipt_hash", |l| l.receipt_hash = ReceiptHash([9; 32]), BadNodeSignature),
        ("author", |l| l.author = NodeId([9; 32]), BadNodeSignature),
        ("time_ms", |l| l.time_ms += 1, BadNodeSignature),
    ]
}

/// The client's error when the author lies in one field of its own link and the rest is consistent.
#[test]
fn a_link_holds_in_every_field() {
    let twenty = &*TWENTY;
    let done = &twenty.session.done[9];
    check_changes(&done.accepted.link, &link_changes());
    let own_key = &twenty.session.nodes[done.node].signing;
    for (field, change, code) in link_changes() {
        let mut link = Link::clone(&done.accepted.link);
        change(&mut link);
        let got = accept_relinked(done, link, own_key);
        let expected = match (field, code) {
            // The author decides its own time, so its link with another time is honest.
            ("time_ms", _) => None,
            ("record_hash" | "record_length", _) => Some(ErrorCode::BlobMismatch),
            (_, ErrorCode::BadNodeSignature) if field != "author" => Some(ErrorCode::ReceiptMismatch),
            (_, code) => Some(code),
        };
        assert_eq!(got.err(), expected, "{field}, signed by the author");
    }
    // Another node's valid signature over a link with that node as author.
    let mut link = Link::clone(&done.accepted.link);
    link.author = other_key().node_id();
    assert_eq!(accept_relinked(done, link, &other_key()).unwrap_err(), ErrorCode::ReceiptMismatch);
}

/// Signs the author's link again and offers it to the client, in a blob that holds it.
fn accept_relinked(
    done: &CompletedTurn,
    link: Link,
    key: &SecretSigningKey,
) -> Result<baton_proto::commit::AcceptedTurn, ErrorCode> {
    let link = SignedObject::sign(link, key);
    let record = done.accepted.segment.entries.last().expect("the turn's own entry").record.clone();
    let mut segment = done.requested.base.clone();
    segment.entries.push(Entry { link: link.bytes().clone(), record });
    let blob = segment.seal(&done.requested.blob_key, &done.requested.record_key.blob_salt())?;
    let committed =
        Committed { link: link.bytes().clone(), blob_digest: blob_digest(&blob), ..done.committed.clone() };
    done.requested.accept(&TWENTY.session.root, &committed, &done.script.answer)
}

/// Another node's validly signed link in place of an earlier link breaks the chain; in place of the head's
/// link it is not the head.
#[test]
fn another_nodes_link_does_not_continue_the_chain() {
    let twenty = &*TWENTY;
    let done = &twenty.session.done[9];
    for (index, code) in
        [(0, ErrorCode::ChainBroken), (4, ErrorCode::ChainBroken), (9, ErrorCode::HeadMismatch)]
    {
        let mut segment = done.accepted.segment.clone();
        let mut link =
            SignedObject::<Link>::verify(segment.entries[index].link.clone()).unwrap().into_value();
        link.author = other_key().node_id();
        segment.entries[index].link = SignedObject::sign(link, &other_key()).bytes().clone();
        let blob = segment.seal(&done.requested.blob_key, &done.requested.record_key.blob_salt()).unwrap();
        let got = crate::adversary::stored::read_fooled(twenty.request_after(9), &blob, None);
        assert_eq!(got.unwrap_err(), code, "entry {index}");
    }
}

const UNORDERED_CHECK: AnswerCheck =
    AnswerCheck { order: OTHER_CHECK, verdict: CheckVerdict::Same { logits: [1; 32] } };

fn receipt_changes() -> Vec<Change<Receipt>> {
    use ErrorCode::{BadNodeSignature, UnsupportedVersion};
    vec![
        ("version", |r| r.version = 1, UnsupportedVersion),
        ("session_id", |r| r.session_id.0[0] ^= 1, BadNodeSignature),
        ("seq", |r| r.seq += 1, BadNodeSignature),
        ("turn_id", |r| r.turn_id = TurnId([9; 16]), BadNodeSignature),
        ("attempt", |r| r.attempt += 1, BadNodeSignature),
        ("auth_hash", |r| r.auth_hash = AuthHash([9; 32]), BadNodeSignature),
        ("node", |r| r.node = NodeId([9; 32]), BadNodeSignature),
        ("model", |r| r.model = ModelId([9; 32]), BadNodeSignature),
        ("engine", |r| r.engine = EngineKind::Native, BadNodeSignature),
        ("sampling", |r| r.sampling = SamplingDigest([9; 32]), BadNodeSignature),
        ("seed", |r| r.seed += 1, BadNodeSignature),
        ("window_from", |r| r.window_from += 1, BadNodeSignature),
        ("window_from beyond", |r| r.window_from = 100, BadNodeSignature),
        ("tokens.input", |r| r.tokens.input += 1, BadNodeSignature),
        ("tokens.output", |r| r.tokens.output += 1, BadNodeSignature),
        ("tokens.output above the cap", |r| r.tokens.output = 5000, BadNodeSignature),
        ("tokens.memory above the cap", |r| r.tokens.memory = 513, BadNodeSignature),
        ("tokens.memory of no items", |r| r.tokens.memory = 1, BadNodeSignature),
        ("tokens.resumed", |r| r.tokens.resumed += 1, BadNodeSignature),
        ("memory_items", |r| r.memory_items += 1, BadNodeSignature),
        ("commitments.input", |r| r.commitments.input.0[0] ^= 1, BadNodeSignature),
        ("commitments.output", |r| r.commitments.output.0[0] ^= 1, BadNodeSignature),
        ("commitments.memory", |r| r.commitments.memory = Some(Commitment([9; 32])), BadNodeSignature),
        ("running_hash", |r| r.running_hash.0[0] ^= 1, BadNodeSignature),
        ("running_hash of no tokens", |r| r.tokens.output = 0, BadNodeSignature),
        ("checks", |r| r.checks.push(UNORDERED_CHECK), BadNodeSignature),
        ("timings", |r| r.timings.decode_ms += 1, BadNodeSignature),
        ("price", |r| r.price += 1, BadNodeSignature),
        ("price above the cap", |r| r.price = 1001, BadNodeSignature),
        ("time_ms", |r| r.time_ms += 1, BadNodeSignature),
    ]
}

/// Pure claims of a receipt: the client cannot check them, and the documents say so.
const CLAIMS: [&str; 7] =
    ["engine", "tokens.input", "tokens.output", "running_hash", "timings", "price", "time_ms"];

/// A node that lies in its receipt, with link and blob sealed to match.
#[test]
fn a_receipt_holds_in_every_field_that_the_client_can_check() {
    let twenty = &*TWENTY;
    let done = &twenty.session.done[9];
    check_changes(&done.accepted.receipt, &receipt_changes());
    let own_key = &twenty.session.nodes[done.node].signing;
    let mut claims = 0;
    for (field, change, code) in receipt_changes() {
        let mut receipt = Receipt::clone(&done.accepted.receipt);
        change(&mut receipt);
        let requested = &done.requested;
        let sealed = requested.seal(&done.accepted.record, receipt, own_key);
        let got = requested.accept(&twenty.session.root, &sealed.committed(), &done.script.answer);
        match (field, code) {
            (field, _) if CLAIMS.contains(&field) => {
                claims += 1;
                assert!(got.is_ok(), "{field} is the node's to claim");
            }
            ("version" | "node", code) => assert_eq!(got.unwrap_err(), code, "{field}"),
            _ => assert_eq!(got.unwrap_err(), ErrorCode::ReceiptMismatch, "{field}"),
        }
    }
    assert_eq!(claims, CLAIMS.len());
}

/// A node that dates a turn freely, with link, receipt and blob sealed to match.
#[test]
fn a_link_is_accepted_with_a_time_near_its_order_and_the_clients_clock_only() {
    let twenty = &*TWENTY;
    let done = &twenty.session.done[9];
    let requested = &done.requested;
    let accept = |time_ms| {
        let receipt = Receipt { time_ms, ..Receipt::clone(&done.accepted.receipt) };
        let own_key = &twenty.session.nodes[done.node].signing;
        let sealed = requested.seal(&done.accepted.record, receipt, own_key);
        requested.accept(&twenty.session.root, &sealed.committed(), &done.script.answer).map(|_| ())
    };
    // The harness accepts at its epoch.
    let (first, last) = (requested.auth.issued_ms - MAX_CLOCK_SKEW_MS, EPOCH_MS + MAX_LINK_LEAD_MS);
    for time_ms in [first, requested.auth.issued_ms, last] {
        assert_eq!(accept(time_ms), Ok(()));
    }
    for time_ms in [0, first - 1, last + 1, u64::MAX] {
        assert_eq!(accept(time_ms), Err(ErrorCode::ReceiptMismatch), "{time_ms}");
    }
}

/// The frame around link and receipt is unsigned and needs no signature.
#[test]
fn what_comes_beside_link_and_receipt_is_checked_too() {
    type Tweak = fn(&mut Committed);
    let twenty = &*TWENTY;
    let done = &twenty.session.done[9];
    let root = &twenty.session.root;
    let cases: [(&str, Tweak, ErrorCode); 3] = [
        ("digest", |c| c.blob_digest.0[0] ^= 1, ErrorCode::BlobMismatch),
        ("length", |c| c.blob_length += 1, ErrorCode::BlobMismatch),
        ("finish", |c| c.finish = FinishReason::Length, ErrorCode::ReceiptMismatch),
    ];
    for (what, tweak, code) in cases {
        let mut committed = done.committed.clone();
        tweak(&mut committed);
        let got = done.requested.accept(root, &committed, &done.script.answer);
        assert_eq!(got.unwrap_err(), code, "{what}");
    }
    for answer in ["", "the answer 9 ", "the answer 8"] {
        let got = done.requested.accept(root, &done.committed, answer);
        assert_eq!(got.unwrap_err(), ErrorCode::ReceiptMismatch, "{answer:?}");
    }
    // A node that commits to one answer and seals another.
    let requested = &done.requested;
    let own_key = &twenty.session.nodes[done.node].signing;
    let other = Record::of_turn(
        requested.payload.kind,
        None,
        &requested.payload.messages,
        "lies",
        FinishReason::Stop,
    );
    let receipt = Receipt::clone(&done.accepted.receipt);
    let sealed = requested.seal(&other, receipt, own_key);
    let got = requested.accept(root, &sealed.committed(), &done.script.answer);
    assert_eq!(got.unwrap_err(), ErrorCode::BlobMismatch);
    // Every turn's result, offered for every other turn.
    for (turn, done) in twenty.session.done.iter().enumerate() {
        for (other, foreign) in twenty.session.done.iter().enumerate().filter(|(other, _)| *other != turn) {
            let got = done.requested.accept(root, &foreign.committed, &foreign.script.answer);
            assert_eq!(got.unwrap_err(), ErrorCode::ReceiptMismatch, "{other} for {turn}");
        }
    }
}

fn accepted_of(note: &mut TurnNote) -> &mut Acknowledgement {
    let TurnNoteKind::Ack(accepted) = &mut note.kind else { panic!("not an acknowledgement") };
    accepted
}

#[test]
fn what_a_client_says_afterwards_holds_in_every_field() {
    use ErrorCode::SessionIdMismatch;
    let root = &TWENTY.session.root;
    let key = root.signing_key();
    let link = &TWENTY.session.done[9].accepted.link;
    let accepted = Acknowledgement {
        link_hash: link.link_hash(),
        blob_digest: TWENTY.session.done[9].blob.digest,
        receipt_hash: link.receipt_hash,
    };
    let note = TurnNote {
        version: 1,
        session_id: root.session_id(),
        session_key: key.public_key(),
        seq: 9,
        turn_id: link.turn_id,
        attempt: link.attempt,
        node: link.author,
        time_ms: EPOCH_MS,
        kind: TurnNoteKind::Ack(accepted.clone()),
    };
    assert!(note.accepts(link, accepted.blob_digest));
    let others: [fn(&mut TurnNote); 8] = [
        |n| n.session_id.0[0] ^= 1,
        |n| n.seq += 1,
        |n| n.turn_id.0[0] ^= 1,
        |n| n.attempt += 1,
        |n| n.node.0[0] ^= 1,
        |n| accepted_of(n).link_hash.0[0] ^= 1,
        |n| accepted_of(n).receipt_hash.0[0] ^= 1,
        |n| n.kind = TurnNoteKind::Abort,
    ];
    for change in others {
        let mut other = note.clone();
        change(&mut other);
        assert!(!other.accepts(link, accepted.blob_digest), "{other:?}");
    }
    assert!(!note.accepts(link, BlobDigest([0; 32])));
    check_changes(
        &SignedObject::sign(note, &key),
        &[
            ("session_id", |n| n.session_id.0[0] ^= 1, SessionIdMismatch),
            ("session_key", |n| n.session_key = other_key().public_key(), SessionIdMismatch),
        ],
    );
}

#[test]
fn a_head_record_holds_in_every_field() {
    use ErrorCode::{Expired, PayloadRejected};
    let session = &TWENTY.session;
    let head = session.head(20);
    check_changes(
        &head,
        &[
            ("a life too long", |h| h.expires_ms = h.issued_ms + MAX_HEAD_LIFETIME_MS + 1, Expired),
            ("a negative life", |h| h.expires_ms = h.issued_ms - 1, Expired),
        ],
    );
    // Taken over whole under another head key: another index key, and the parts do not open.
    let taken = SignedObject::sign(
        HeadRecord { head_key: other_key().public_key(), ..HeadRecord::clone(&head) },
        &other_key(),
    );
    let taken = SignedObject::<HeadRecord>::verify(taken.bytes().clone()).unwrap();
    assert_ne!(taken.index_key(), head.index_key());
    let locate = |root: &baton_keys::session::SessionRoot, period| root.head_secret(period).locate_key();
    let key = locate(&session.root, head.period());
    assert_eq!(taken.open_outer(&key).unwrap_err(), PayloadRejected);
    assert_eq!(taken.open_inner(&session.root).unwrap_err(), PayloadRejected);
    // Read by another session.
    let other = baton_keys::session::SessionRoot::from_bytes([1; 32]);
    assert_eq!(head.open_outer(&locate(&other, head.period())).unwrap_err(), PayloadRejected);
    assert_eq!(head.open_inner(&other).unwrap_err(), PayloadRejected);
    assert_eq!(head.open_outer(&key).unwrap(), session.head_outer(20));
    // The locate key opens the outer part and nothing of the inner part.
    let swapped = HeadRecord { outer: head.inner.clone(), ..HeadRecord::clone(&head) };
    assert_eq!(swapped.open_outer(&key).unwrap_err(), PayloadRejected);
}

/// Blobs in an order that no reader can follow, or none, or too many.
#[test]
fn refuses_heads_whose_blobs_are_out_of_order() {
    let session = &TWENTY.session;
    let seal = |outer: &baton_proto::head::HeadOuter| {
        let inner = session.head(20).open_inner(&session.root).unwrap();
        let head = HeadRecord::seal(&session.root, outer, &inner, 1, EPOCH_MS, EPOCH_MS + 1);
        head.open_outer(&session.root.head_secret(head.period()).locate_key())
    };
    let honest = session.head_outer(20);
    assert!(seal(&honest).is_ok());
    let mut none = honest.clone();
    none.blobs.clear();
    let mut ascending = honest.clone();
    ascending.blobs.reverse();
    let mut doubled = honest.clone();
    doubled.blobs.insert(0, doubled.blobs[0]);
    let mut many = honest.clone();
    many.blobs =
        (0..10).rev().map(|segment| baton_proto::head::SegmentRef { segment, blob: OTHER_BLOB }).collect();
    for outer in [none, ascending, doubled, many] {
        assert_eq!(seal(&outer).unwrap_err(), ErrorCode::BadSequence);
    }
}

/// The place of a head record is granted exactly where a blob has no location.
#[test]
fn refuses_a_granted_place_without_need_and_a_need_without_a_place() {
    let next = &TWENTY.next;
    let secret = TWENTY.session.root.head_secret(1);
    let place = HeadGrant { index_key: secret.index_key(), key: GrantedKey::of_head(&secret.locate_key()) };
    let check = |located: bool, head: Option<HeadGrant>| {
        let (mut payload, mut auth) = (next.payload.clone(), TurnAuth::clone(&next.auth));
        if !located {
            payload.grant.blobs.iter_mut().for_each(|read| read.blob = None);
            auth.prev_blob = None;
        }
        payload.grant.head = head;
        auth.grant_hash = payload.grant.hash();
        payload.check(&auth)
    };
    assert_eq!(check(true, None), Ok(()));
    assert_eq!(check(false, Some(place.clone())), Ok(()));
    assert_eq!(check(true, Some(place)), Err(ErrorCode::PayloadRejected));
    assert_eq!(check(false, None), Err(ErrorCode::PayloadRejected));
}
