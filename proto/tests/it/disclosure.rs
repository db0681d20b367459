//! A disclosed turn opens with the turns of its window and no others, and every change in it is noticed.

use std::collections::BTreeSet;

use baton_proto::{
    ErrorCode,
    chain::{HistoryTurn, effective},
    codec,
    disclosure::{Disclosure, DisclosureError},
    export::{Export, ExportMessage, OpenTurn, open},
    limits::MAX_AUDIT_REQUEST_BYTES,
    record::{Message, RecordKind},
    turn::GrantedKey,
};

use crate::generate::session::{Session, TURNS, sampling, system};

fn disclose(export: &Export, seq: u64) -> Disclosure {
    Disclosure::of(export, seq, Vec::new(), None).unwrap()
}

/// The session's export with all parts of every turn.
fn whole(made: &Session) -> Export {
    let mut export = made.export(false);
    for (turn, made) in export.turns.iter_mut().zip(&made.turns) {
        turn.sampling = Some((&sampling(turn.seq)).into());
        turn.auth = Some(made.auth.encode());
        turn.system = Some(system().iter().map(ExportMessage::from).collect());
    }
    export
}

fn last() -> Disclosure {
    disclose(&Session::make().export(false), TURNS - 1)
}

/// The turns whose records an auditor reads for turn `seq`: those that count, and tombstones.
fn read_for(turns: &[OpenTurn], seq: u64, window_from: u64) -> BTreeSet<u64> {
    let history =
        |turn: &OpenTurn| HistoryTurn { link: turn.link.clone(), record: Some(turn.record.clone()) };
    let before: Vec<HistoryTurn> = turns.iter().filter(|turn| turn.link.seq < seq).map(history).collect();
    let mut read: BTreeSet<u64> = effective(&before).iter().map(|at| before[*at].link.seq).collect();
    let tombstones = turns.iter().filter(|turn| turn.record.kind == RecordKind::Tombstone);
    read.extend(tombstones.map(|turn| turn.link.seq).filter(|at| *at < seq));
    read.retain(|at| *at >= window_from);
    read
}

#[test]
fn a_turn_is_disclosed_with_the_records_of_its_window_alone() {
    let made = Session::make();
    let export = whole(&made);
    let turns = open(&export).unwrap();
    for turn in &turns {
        let seq = turn.link.seq;
        let disclosure = disclose(&export, seq);
        let opened = disclosure.open().unwrap();
        assert_eq!(opened.turn.record, turn.record, "turn {seq}");
        assert_eq!(opened.turn.system, turn.system);
        let read = read_for(&turns, seq, turn.receipt.as_ref().unwrap().window_from);
        let shown = opened.history.iter().filter(|earlier| earlier.record.is_some());
        assert_eq!(shown.map(|earlier| earlier.link.seq).collect::<BTreeSet<_>>(), read, "turn {seq}");
        let encoded = codec::encode(&disclosure);
        let holds = |key: &[u8]| encoded.windows(key.len()).any(|part| part == key);
        for other in &made.turns {
            let at = other.identity.seq;
            let is_disclosed = at == seq || read.contains(&at);
            assert_eq!(holds(other.record_key.expose()), is_disclosed, "key of turn {at} for turn {seq}");
        }
        assert_eq!(codec::decode::<Disclosure>(&encoded, MAX_AUDIT_REQUEST_BYTES).unwrap(), disclosure);
    }
    let opened = last().open().unwrap();
    let first = opened.history.first().unwrap().link.seq;
    assert_eq!((last().segments.len(), last().record_keys.len(), first), (2, 6, 0));
}

#[test]
fn parts_that_are_missing_are_named_before_anything_is_disclosed() {
    let whole = whole(&Session::make());
    assert_eq!(Disclosure::of(&whole, TURNS, Vec::new(), None), Err(DisclosureError::NoTurn(TURNS)));
    type Removal = fn(&mut baton_proto::export::ExportTurn);
    let cuts: [(&str, Removal); 4] = [
        ("receipt", |turn| turn.receipt = None),
        ("authorisation", |turn| turn.auth = None),
        ("system text", |turn| turn.system = None),
        ("list of sampling settings", |turn| turn.sampling = None),
    ];
    for (part, cut) in cuts {
        let mut export = whole.clone();
        cut(&mut export.turns[3]);
        assert_eq!(Disclosure::of(&export, 3, Vec::new(), None), Err(DisclosureError::Missing(part)));
        disclose(&export, 4);
    }
    let mut forged = whole;
    forged.head.seq -= 1;
    assert_eq!(
        Disclosure::of(&forged, 3, Vec::new(), None),
        Err(DisclosureError::Invalid(ErrorCode::HeadMismatch))
    );
}

#[test]
fn every_wrong_part_is_refused_by_name() {
    use ErrorCode::{BadSequence, BadSignature, HeadMismatch, PayloadRejected, ReceiptMismatch};
    let other = disclose(&whole(&Session::make()), TURNS - 2).auth.clone();
    type Change = Box<dyn FnOnce(&mut Disclosure)>;
    let cases: Vec<(&str, Change, Option<ErrorCode>)> = vec![
        ("another order", Box::new(|it| it.auth.signature.0[0] ^= 1), Some(BadSignature)),
        ("another turn's order", Box::new(move |it| it.auth = other), Some(HeadMismatch)),
        ("a forged receipt", Box::new(|it| it.receipt.signature.0[0] ^= 1), None),
        ("another system text", Box::new(|it| it.system = Vec::<Message>::new()), Some(ReceiptMismatch)),
        ("another seed", Box::new(|it| it.sampling.seed ^= 1), Some(ReceiptMismatch)),
        ("a shorter key list", Box::new(|it| drop(it.record_keys.remove(0))), Some(PayloadRejected)),
        ("a longer key list", Box::new(|it| it.record_keys.insert(0, None)), Some(PayloadRejected)),
        ("a turn of the window hidden", Box::new(|it| it.record_keys[1] = None), Some(PayloadRejected)),
        ("the tombstone hidden", Box::new(|it| it.record_keys[4] = None), Some(PayloadRejected)),
        ("the turn itself hidden", Box::new(|it| it.record_keys[5] = None), Some(PayloadRejected)),
        ("no keys", Box::new(|it| it.record_keys.clear()), Some(PayloadRejected)),
        (
            "the window's first segment gone",
            Box::new(|it| drop(it.segments.remove(0))),
            Some(PayloadRejected),
        ),
        ("the last segment gone", Box::new(|it| drop(it.segments.pop())), None),
        ("no segments", Box::new(|it| it.segments.clear()), Some(BadSequence)),
        ("segments in another order", Box::new(|it| it.segments.reverse()), None),
        ("a segment twice", Box::new(|it| it.segments.insert(0, it.segments[0].clone())), None),
        ("another number", Box::new(|it| it.segments[1].segment += 1), None),
        ("a damaged blob", Box::new(|it| it.segments[0].blob[40] ^= 1), None),
    ];
    for (name, change, code) in cases {
        let mut changed = last();
        change(&mut changed);
        let refused = changed.open().map(drop).unwrap_err();
        assert!(code.is_none_or(|code| code == refused), "{name}: {refused}");
    }
    let mut swapped = last();
    let first: Option<GrantedKey> = swapped.record_keys[0].clone();
    swapped.record_keys[1] = first;
    assert!(swapped.open().is_err(), "a key of another record");
}

#[test]
fn no_flipped_byte_passes() {
    let whole = codec::encode(&last());
    for at in (0..whole.len()).step_by(whole.len() / 400) {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        let opened =
            codec::decode::<Disclosure>(&flipped, MAX_AUDIT_REQUEST_BYTES).map(|it| it.open().map(drop));
        assert!(!matches!(opened, Ok(Ok(()))), "byte {at} of {}", whole.len());
    }
}
