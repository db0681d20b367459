//! Evaluation of several indexes' answers.

use std::collections::HashMap;

use baton_keys::session::SessionRoot;
use baton_proto::{
    head::{HeadInner, HeadOuter, SegmentRef, head_places},
    ids::{BlobDigest, BlobId, LinkHash, NodeId, TurnId},
    limits::{HEAD_PERIOD_MS, MAX_HEAD_PERIODS},
    link::BlobRef,
};
use parking_lot::Mutex;

use super::*;

fn record(root: &SessionRoot, sequence: u64, seq: u64) -> SignedObject<HeadRecord> {
    let blob = BlobRef { blob_id: BlobId([1; 32]), digest: BlobDigest([2; 32]), length: 9 };
    let outer = HeadOuter {
        n_shards: 10,
        branch: None,
        seq,
        link_hash: LinkHash([3; 32]),
        blobs: vec![SegmentRef { segment: 0, blob }],
    };
    let inner = HeadInner {
        turn_id: TurnId([4; 16]),
        attempt: 0,
        author: NodeId([5; 32]),
        devices: Vec::new(),
        branches: Vec::new(),
        tombstone: false,
    };
    HeadRecord::seal(root, &outer, &inner, sequence, 1, 2)
}

fn shown(record: &SignedObject<HeadRecord>) -> IndexReply {
    IndexReply::Record(Box::new(record.clone()))
}

fn look(answers: &[IndexReply]) -> HeadLookup {
    judge(answers.iter().enumerate().map(|(place, shown)| (place.to_string(), vec![shown.clone()])).collect())
}

#[test]
fn the_highest_sequence_is_taken_and_who_shows_less_is_named() {
    let root = SessionRoot::generate();
    let (old, new) = (record(&root, 5, 9), record(&root, 8, 3));
    let away = IndexReply::Unavailable("away".to_owned());
    let found =
        look(&[shown(&old), away, shown(&new), IndexReply::Nothing, IndexReply::Wrong(ErrorCode::Expired)]);
    assert_eq!(found.best, Some(new.clone()));
    let shows: Vec<IndexAnswer> = found.statuses.iter().map(|one| one.shows.clone()).collect();
    let expected = [
        IndexAnswer::Behind { sequence: 5 },
        IndexAnswer::Unavailable { reason: "away".to_owned() },
        IndexAnswer::Newest { sequence: 8 },
        IndexAnswer::Nothing,
        IndexAnswer::Wrong { code: ErrorCode::Expired },
    ];
    assert_eq!(shows, expected);
    assert_eq!(found.outdated(), ["0", "3"]);
    assert!(found.is_partial());
    assert!(look(&[shown(&new), shown(&new)]).outdated().is_empty());
}

#[test]
fn two_records_of_one_number_are_ranked_alike_whoever_is_asked_first() {
    let root = SessionRoot::generate();
    let (one, other) = (record(&root, 5, 1), record(&root, 5, 2));
    let best = look(&[shown(&one), shown(&other)]).best;
    assert_eq!(best, look(&[shown(&other), shown(&one)]).best);
    assert_eq!(look(&[shown(&one), shown(&other)]).outdated().len(), 1);
}

#[test]
fn only_a_signed_record_of_the_session_is_one() {
    let (root, other_root) = (SessionRoot::generate(), SessionRoot::generate());
    let key = HeadPlace { period: 0, key: record(&root, 1, 1).index_key() };
    assert!(matches!(read(Ok(Some(record(&root, 1, 1).encode())), key), IndexReply::Record(_)));
    let other = read(Ok(Some(record(&other_root, 9, 9).encode())), key);
    assert!(matches!(other, IndexReply::Wrong(ErrorCode::BadSignature)));
    let mut forged = record(&root, 1, 1).encode();
    if let Some(byte) = forged.get_mut(60) {
        *byte ^= 1;
    }
    assert!(matches!(read(Ok(Some(forged)), key), IndexReply::Wrong(_)));
    assert!(matches!(read(Err(StoreError::NotFound), key), IndexReply::Nothing));
    assert!(matches!(read(Err(StoreError::WrongContent), key), IndexReply::Unavailable(_)));
    // A sequence of another period in this place would rank above all records of the next periods.
    let late = HeadPlace { period: 1, ..key };
    let misplaced = read(Ok(Some(record(&root, 1, 1).encode())), late);
    assert!(matches!(misplaced, IndexReply::Wrong(ErrorCode::BadSequence)));
}

/// An index in memory that counts its look-ups.
#[derive(Default)]
struct CountingIndex {
    heads: HashMap<HeadIndexKey, Vec<u8>>,
    is_down: bool,
    asked: Mutex<Vec<HeadIndexKey>>,
}

impl HeadIndex for CountingIndex {
    fn publish<'a>(&'a self, _: Vec<u8>) -> StoreFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }
    fn resolve<'a>(&'a self, key: HeadIndexKey) -> StoreFuture<'a, Option<Vec<u8>>> {
        self.asked.lock().push(key);
        let found = if self.is_down { Err(unavailable("down")) } else { Ok(self.heads.get(&key).cloned()) };
        Box::pin(async { found })
    }
}

/// Looks with the root alone, and returns the found sequence and the number of look-ups of each index.
async fn look_at(root: &SessionRoot, now_ms: u64, indexes: Vec<CountingIndex>) -> (HeadLookup, Vec<usize>) {
    let indexes: Vec<Arc<CountingIndex>> = indexes.into_iter().map(Arc::new).collect();
    let named = indexes.iter().enumerate();
    let named = named.map(|(place, index)| NamedIndex { name: place.to_string(), index: index.clone() });
    let heads = HeadIndexes::new(named.collect(), Duration::from_secs(1)).unwrap();
    let look = heads.look(&head_places(root, 0, now_ms), Duration::MAX).await;
    (look, indexes.iter().map(|index| index.asked.lock().len()).collect())
}

fn index_of(records: &[&SignedObject<HeadRecord>]) -> CountingIndex {
    let heads = records.iter().map(|record| (record.index_key(), record.encode())).collect();
    CountingIndex { heads, ..CountingIndex::default() }
}

#[tokio::test]
async fn the_root_alone_finds_the_newest_head_in_a_bounded_number_of_lookups() {
    let root = SessionRoot::generate();
    let now = 2_950 * HEAD_PERIOD_MS + HEAD_PERIOD_MS / 2;
    // Weeks of rest, and the look-ups that they cost.
    for (weeks, lookups) in [(0, 2), (1, 2), (2, 10), (9, 10), (10, 18), (52, 58)] {
        let (old, new) = (now - 55 * HEAD_PERIOD_MS, now - weeks * HEAD_PERIOD_MS);
        let (old, new) = (record(&root, old, 1), record(&root, new, 2));
        let (look, asked) = look_at(&root, now, vec![index_of(&[&old, &new])]).await;
        assert_eq!((look.best, asked), (Some(new), vec![lookups]), "{weeks} weeks");
    }
    // A session without a head costs most.
    let (look, asked) = look_at(&root, now, vec![index_of(&[])]).await;
    assert!(look.best.is_none() && asked[0] <= MAX_HEAD_PERIODS, "{asked:?}");
}

#[tokio::test]
async fn an_index_that_lost_the_newest_week_is_named_and_one_that_is_down_is_asked_once() {
    let root = SessionRoot::generate();
    let now = 2_950 * HEAD_PERIOD_MS + HEAD_PERIOD_MS / 2;
    let (old, new) = (record(&root, now - 3 * HEAD_PERIOD_MS, 1), record(&root, now, 2));
    let down = || CountingIndex { is_down: true, ..CountingIndex::default() };
    // One index has the newest week: the others do not hide it.
    let (look, _) = look_at(&root, now, vec![index_of(&[&old]), index_of(&[&old, &new]), down()]).await;
    assert_eq!(look.best, Some(new.clone()));
    assert_eq!(look.outdated(), ["0"]);
    // All indexes that answer lost it: an earlier head is found, and the look is known to be partial.
    let (look, asked) = look_at(&root, now, vec![index_of(&[&old]), down()]).await;
    assert_eq!((look.best.clone(), asked), (Some(old), vec![10, 2]));
    assert!(look.is_partial());
}

/// The names of the indexes that did not take a record.
fn missing(outcome: &PublishOutcome) -> Vec<String> {
    outcome.failed.iter().map(|(name, _)| name.clone()).collect()
}

#[test]
fn one_acceptance_is_enough_unless_an_index_shows_a_newer_record() {
    let down = || Err(unavailable("down"));
    let superseded = || Err(StoreError::HeadSuperseded);
    let refused = || Err(StoreError::Refused { reason: "no".to_owned() });
    let of = |answers: Vec<(Result<(), StoreError>, bool)>| {
        let named = answers.into_iter().enumerate();
        tally(named.map(|(position, (answer, newer))| (position.to_string(), answer, newer)).collect())
    };
    let mixed = of(vec![(Ok(()), false), (down(), false), (refused(), false)]);
    assert_eq!((mixed.result(), missing(&mixed)), (Ok(()), vec!["1".to_owned(), "2".to_owned()]));
    // A claim alone stops nothing while another index takes the record.
    let claimed = of(vec![(Ok(()), false), (superseded(), false)]);
    assert_eq!((claimed.result(), missing(&claimed)), (Ok(()), vec!["1".to_owned()]));
    assert_eq!(of(vec![(Ok(()), false), (superseded(), true)]).result(), Err(StoreError::HeadSuperseded));
    assert_eq!(of(vec![(superseded(), false), (down(), false)]).result(), Err(StoreError::HeadSuperseded));
    assert_eq!(of(vec![(refused(), false), (down(), false)]).result(), down(), "what may pass first");
    assert!(matches!(of(vec![(refused(), false)]).result(), Err(StoreError::Refused { .. })));
}

#[test]
fn there_are_from_one_to_eight_beside_the_dht() {
    for (many, fits) in [(0, false), (1, true), (9, true), (10, false)] {
        let member = NamedIndex { name: "one".to_owned(), index: Arc::new(CountingIndex::default()) };
        assert_eq!(HeadIndexes::new(vec![member; many], Duration::from_secs(1)).is_ok(), fits, "{many}");
    }
}
