//! Whole sessions: recovered from the root and a head record alone, edited, branched.

use baton_keys::session::SessionRoot;
use baton_proto::{
    ErrorCode, SignedObject,
    chain::{HistoryTurn, SessionReader, VerifiedSegment, effective, rebuild_blob},
    head::{HeadOuter, HeadRecord},
    ids::{LinkHash, SessionId},
    link::BranchPoint,
    record::{RecordKind, Role},
};

use crate::support::harness::{N_SHARDS, Script, Session, Store};

/// Reads a whole session from the store, by root and head.
fn read(root: &SessionRoot, outer: &HeadOuter, store: &Store) -> Result<Vec<VerifiedSegment>, ErrorCode> {
    let mut reader = SessionReader::new(root, outer)?;
    while let Some(blob) = reader.need() {
        let bytes = store.get(&blob.digest).ok_or(ErrorCode::BlobUnavailable)?;
        reader.provide(bytes)?;
    }
    reader.finish()
}

#[test]
fn root_and_head_record_alone_give_back_forty_turns() {
    let session = Session::of_short_turns(4, 40);
    let encoded = session.head(40).encode();
    // From here on only the root, the encoded record and the store.
    let root = session.root.clone();
    let head = SignedObject::<HeadRecord>::verify_encoded(&encoded).unwrap();
    let secret = root.head_secret(head.period());
    assert_eq!(head.index_key(), secret.index_key());
    let segments = read(&root, &head.open_outer(&secret.locate_key()).unwrap(), &session.store).unwrap();
    let sizes: Vec<usize> = segments.iter().map(|segment| segment.turns.len()).collect();
    assert_eq!(sizes, [16, 16, 8]);
    let turns: Vec<&HistoryTurn> = segments.iter().flat_map(|segment| &segment.turns).collect();
    for (seq, turn) in turns.iter().enumerate() {
        let record = turn.record.as_ref().unwrap();
        assert_eq!(turn.link.seq, seq as u64);
        assert_eq!(record.messages[0].text, format!("question {seq}"));
        assert_eq!(record.messages[0].role, Role::User);
        assert_eq!(record.answer(), Some(format!("the answer {seq}").as_str()));
    }
    // From these, every stored blob can be rebuilt byte for byte.
    let mut rebuilt = 0;
    for found in &segments {
        for (index, turn) in found.turns.iter().enumerate() {
            let blob = rebuild_blob(&root, &found.segment, &turn.link, index + 1).unwrap();
            let seq = usize::try_from(turn.link.seq).unwrap();
            assert_eq!(blob, session.done[seq].accepted.blob, "turn {seq}");
            rebuilt += 1;
        }
        let beyond = rebuild_blob(&root, &found.segment, &found.turns[0].link, found.turns.len() + 1);
        assert_eq!(beyond.unwrap_err(), ErrorCode::BadSequence);
    }
    assert_eq!(rebuilt, 40);
}

#[test]
fn every_earlier_head_gives_back_exactly_its_prefix() {
    let session = Session::of_short_turns(4, 34);
    for turns in 1..=34 {
        let segments = read(&session.root, &session.head_outer(turns), &session.store).unwrap();
        assert_eq!(segments.iter().map(|segment| segment.turns.len()).sum::<usize>(), turns);
    }
}

#[test]
fn a_lying_head_is_refused_by_the_chain() {
    type Lie = fn(&mut HeadOuter, &Session);
    let session = Session::of_short_turns(4, 20);
    let cases: [(&str, Lie, ErrorCode); 9] = [
        ("seq too low", |h, _| h.seq -= 1, ErrorCode::HeadMismatch),
        ("seq too high", |h, _| h.seq += 1, ErrorCode::HeadMismatch),
        ("another link", |h, _| h.link_hash = LinkHash([1; 32]), ErrorCode::HeadMismatch),
        ("an older blob", |h, s| h.blobs[0].blob = s.done[18].blob, ErrorCode::HeadMismatch),
        ("the closed segment as head", |h, _| h.blobs.rotate_left(1), ErrorCode::HeadMismatch),
        ("another segment number", |h, _| h.blobs[0].segment = 2, ErrorCode::PayloadRejected),
        ("an unknown blob", |h, _| h.blobs[0].blob.digest.0[0] ^= 1, ErrorCode::BlobUnavailable),
        ("another shard count", |h, _| h.n_shards = N_SHARDS + 1, ErrorCode::BadGenesis),
        ("no blob", |h, _| h.blobs.clear(), ErrorCode::BadSequence),
    ];
    for (what, lie, code) in cases {
        let mut outer = session.head_outer(20);
        lie(&mut outer, &session);
        assert_eq!(read(&session.root, &outer, &session.store).unwrap_err(), code, "{what}");
    }
    let mut huge = session.head_outer(20);
    huge.blobs[0].blob.length = u32::MAX;
    let mut reader = SessionReader::new(&session.root, &huge).unwrap();
    assert_eq!(reader.provide(&[]), Err(ErrorCode::BlobTooLarge));
    let other = SessionRoot::from_bytes([1; 32]);
    let got = read(&other, &session.head_outer(20), &session.store);
    assert_eq!(got.unwrap_err(), ErrorCode::PayloadRejected);
}

#[test]
fn a_branch_starts_from_its_own_genesis() {
    let branch = BranchPoint { session_id: SessionId([5; 32]), link_hash: LinkHash([6; 32]) };
    let mut session = Session::new(6);
    session.branch = Some(branch);
    for turn in 0..3 {
        session.turn(&Script::turn(format!("{turn}"), "yes"));
    }
    assert_eq!(read(&session.root, &session.head_outer(3), &session.store).unwrap().len(), 1);
    for other in [None, Some(BranchPoint { link_hash: LinkHash([7; 32]), ..branch })] {
        let outer = HeadOuter { branch: other, ..session.head_outer(3) };
        let got = read(&session.root, &outer, &session.store);
        assert_eq!(got.unwrap_err(), ErrorCode::BadGenesis);
    }
}

/// The kind of a record, and the first seq that it replaces.
type Kind = (RecordKind, Option<u64>);

/// Runs a session of these records; returns the seqs that remain effective.
fn effective_of(records: &[Kind]) -> Vec<u64> {
    let mut session = Session::new(7);
    for (seq, (kind, from)) in records.iter().enumerate() {
        let script = match from {
            None => Script::turn(format!("question {seq}"), "answer"),
            Some(from) => Script::superseding(*kind, *from, "answer"),
        };
        session.turn(&script);
    }
    let segments = read(&session.root, &session.head_outer(records.len()), &session.store).unwrap();
    let turns: Vec<HistoryTurn> = segments.into_iter().flat_map(|segment| segment.turns).collect();
    effective(&turns).into_iter().map(|position| turns[position].link.seq).collect()
}

#[test]
fn edits_summaries_and_tombstones_decide_what_counts() {
    const T: Kind = (RecordKind::Turn, None);
    const fn edit(from: u64) -> Kind {
        (RecordKind::Edit, Some(from))
    }
    const fn summary(from: u64) -> Kind {
        (RecordKind::Summary, Some(from))
    }
    const fn tombstone(from: u64) -> Kind {
        (RecordKind::Tombstone, Some(from))
    }
    #[rustfmt::skip]
    let cases: &[(&str, &[Kind], &[u64])] = &[
        ("turns only", &[T, T, T], &[0, 1, 2]),
        ("an edit of the last", &[T, T, edit(1)], &[0, 2]),
        ("an edit of all", &[T, T, edit(0)], &[2]),
        ("turns after an edit", &[T, T, edit(1), T], &[0, 2, 3]),
        ("an edit of an edit", &[T, T, edit(1), edit(1)], &[0, 3]),
        ("an edit from the edit on: back to before it", &[T, T, edit(1), edit(2)], &[0, 1, 3]),
        ("an edit before an edit", &[T, T, T, edit(2), edit(1)], &[0, 4]),
        ("a summary", &[T, T, T, summary(0), T], &[3, 4]),
        ("a summary of a part", &[T, T, T, summary(1), T], &[0, 3, 4]),
        ("a summary withdrawn", &[T, T, summary(0), tombstone(2)], &[0, 1]),
        ("a tombstone", &[T, T, T, tombstone(1)], &[0]),
        ("a tombstone of all", &[T, T, tombstone(0)], &[]),
        ("turns after a tombstone", &[T, T, tombstone(1), T], &[0, 3]),
        ("a tombstone withdrawn", &[T, T, tombstone(0), tombstone(2)], &[0, 1]),
        ("an edit that undoes a summary", &[T, T, summary(0), T, edit(2)], &[0, 1, 4]),
        ("two summaries", &[T, summary(0), T, summary(1), T], &[0, 3, 4]),
        ("a summary of a summary", &[T, summary(0), T, summary(0), T], &[3, 4]),
    ];
    for (what, records, expected) in cases {
        assert_eq!(effective_of(records), *expected, "{what}");
    }
}

/// An ordinary turn replaces nothing; other kinds replace neither themselves nor a later turn.
#[test]
fn refuses_records_that_supersede_what_they_may_not() {
    let mut session = Session::of_short_turns(8, 3);
    let none = |kind| Script { kind, ..Script::turn("", "") };
    let cases = [
        Script { supersedes_from: Some(0), ..Script::turn("", "") },
        none(RecordKind::Edit),
        none(RecordKind::Summary),
        none(RecordKind::Tombstone),
        Script::superseding(RecordKind::Edit, 3, ""),
        Script::superseding(RecordKind::Summary, u64::MAX, ""),
    ];
    for script in cases {
        let got = session.try_turn(&script).map(|_| ()).unwrap_err();
        assert_eq!(got, ErrorCode::BadSequence, "{:?} from {:?}", script.kind, script.supersedes_from);
    }
    session.turn(&Script::superseding(RecordKind::Edit, 2, "fine"));
}
