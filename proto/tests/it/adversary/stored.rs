//! Stored blobs that the store's operator changed, dropped, doubled, swapped, rolled back or spliced.

use std::sync::LazyLock;

use baton_proto::{
    ErrorCode,
    chain::{Need, SessionReader, WindowReader},
    head::HeadOuter,
    ids::LinkHash,
    link::BlobRef,
    segment::Segment,
    turn::{Grant, GrantedKey, TurnAuth},
};

use crate::{
    adversary::carrier::seal,
    support::{
        harness::{RequestedTurn, Script, Session, blob_ref, read_window},
        source::sampled,
    },
};

/// Twenty turns, and the request of the twenty-first.
pub(super) struct Twenty {
    pub session: Session,
    pub next: RequestedTurn,
}

pub(super) static TWENTY: LazyLock<Twenty> = LazyLock::new(|| {
    let mut session = Session::of_short_turns(1, 20);
    let next = session.ask(session.next_node(), &Script::turn("one more", ""));
    Twenty { session, next }
});

impl Twenty {
    /// The request of the next turn, whose window ends with this turn's blob.
    pub(super) fn request_after(&self, turn: usize) -> &RequestedTurn {
        self.session.done.get(turn + 1).map_or(&self.next, |done| &done.requested)
    }
}

fn reader(auth: &TurnAuth, grant: &Grant) -> WindowReader {
    WindowReader::new(auth, grant.clone(), None).expect("an honest request can be read")
}

/// Every byte of every blob, two patterns each: at the node, at the client, and under the right key with a
/// matching digest.
#[test]
fn refuses_every_changed_byte_of_every_stored_blob() {
    let twenty = &*TWENTY;
    for (turn, done) in twenty.session.done.iter().enumerate() {
        let requested = twenty.request_after(turn);
        let mut node = reader(&requested.auth, &requested.payload.grant);
        let need = node.needs()[0];
        let mut client =
            SessionReader::new(&twenty.session.root, &twenty.session.head_outer(turn + 1)).unwrap();
        let link = &done.accepted.link;
        let mut bytes = done.accepted.blob.clone();
        assert_eq!(need.blob, blob_ref(&bytes));
        for position in sampled(bytes.len(), 160, turn as u64) {
            for pattern in [0x01, 0x80] {
                bytes[position] ^= pattern;
                assert_eq!(node.provide(&need, &bytes), Err(ErrorCode::BlobHashMismatch));
                assert_eq!(client.provide(&bytes), Err(ErrorCode::BlobHashMismatch));
                assert_eq!(
                    Segment::open(&bytes, &done.requested.blob_key, &link.session_id, link.segment),
                    Err(ErrorCode::PayloadRejected),
                    "turn {turn}, byte {position}"
                );
                bytes[position] ^= pattern;
            }
        }
        assert_eq!(node.provide(&need, &bytes), Ok(()), "the need still stands after refusals");
        assert_eq!(client.provide(&bytes), Ok(()));
    }
}

#[test]
fn a_dropped_blob_is_unavailable_and_never_an_empty_history() {
    let twenty = &*TWENTY;
    for turn in 0..20 {
        let requested = twenty.request_after(turn);
        let count = requested.payload.grant.blobs.len();
        for dropped in 0..count {
            let mut node = reader(&requested.auth, &requested.payload.grant);
            for need in node.needs().into_iter().filter(|need| need.index != dropped) {
                node.provide(&need, &twenty.session.store[&need.blob.digest]).unwrap();
            }
            assert_eq!(node.needs().len(), 1);
            assert_eq!(node.finish().unwrap_err(), ErrorCode::BlobUnavailable, "turn {turn}");
        }
    }
    let outer = twenty.session.head_outer(20);
    let untouched = SessionReader::new(&twenty.session.root, &outer).unwrap();
    assert_eq!(untouched.finish().unwrap_err(), ErrorCode::BlobUnavailable);
    let mut half = SessionReader::new(&twenty.session.root, &outer).unwrap();
    half.provide(&twenty.session.done[19].accepted.blob).unwrap();
    assert_eq!(half.finish().unwrap_err(), ErrorCode::BlobUnavailable);
}

/// A fooled client, with all keys, signs for a blob other than its head's.
#[test]
fn a_rolled_back_head_does_not_pass_for_the_one_signed() {
    use ErrorCode::{BadSequence, HeadMismatch, PayloadRejected};
    let session = &TWENTY.session;
    let honest = TWENTY.request_after(9);
    // The blob, whether its own key is granted, the turn of the signed link, and the signed seq.
    let cases = [
        ("an older blob under the newer blob's key", 8, false, None, None, PayloadRejected),
        ("an older blob with its own key", 8, true, None, None, HeadMismatch),
        ("a newer blob with its own key", 10, true, None, None, HeadMismatch),
        ("an older blob and its link, at the newer seq", 8, true, Some(8), None, HeadMismatch),
        ("the right blob, an older link", 9, false, Some(8), None, HeadMismatch),
        ("an older blob, link and seq, but the place of the newer", 8, true, Some(8), Some(9), BadSequence),
        ("the blob of another segment", 16, true, None, None, PayloadRejected),
    ];
    for (what, turn, own_key, link, seq, code) in cases {
        let mut auth = TurnAuth::clone(&honest.auth);
        let mut grant = honest.payload.grant.clone();
        let done = &session.done[turn];
        grant.records.clear();
        grant.blobs[0].blob = Some(done.blob);
        auth.prev_blob = Some(done.blob);
        if own_key {
            grant.blobs[0].key = GrantedKey::of_blob(&done.requested.blob_key);
        }
        if let Some(turn) = link {
            auth.prev_link = session.done[turn].accepted.link.link_hash();
        }
        auth.seq = seq.unwrap_or(auth.seq);
        assert_eq!(read_window(&auth, &grant, &session.store).unwrap_err(), code, "{what}");
    }
}

#[test]
fn refuses_blobs_spliced_from_another_session() {
    let twenty = &*TWENTY;
    let other = Session::of_short_turns(2, 20);
    for turn in 0..20 {
        let requested = twenty.request_after(turn);
        let foreign = &other.done[turn];
        let mut store = twenty.session.store.clone();
        store.insert(foreign.blob.digest, foreign.accepted.blob.clone());
        let mut auth = TurnAuth::clone(&requested.auth);
        let mut grant = requested.payload.grant.clone();
        auth.prev_blob = Some(foreign.blob);
        grant.blobs[0].blob = Some(foreign.blob);
        assert_eq!(read_window(&auth, &grant, &store).unwrap_err(), ErrorCode::PayloadRejected);
        // Also with the foreign key: the seal of a blob covers its position.
        grant.blobs[0].key = GrantedKey::of_blob(&foreign.requested.blob_key);
        assert_eq!(read_window(&auth, &grant, &store).unwrap_err(), ErrorCode::PayloadRejected);
        let mut head = twenty.session.head_outer(turn + 1);
        head.blobs[0].blob = foreign.blob;
        let mut client = SessionReader::new(&twenty.session.root, &head).unwrap();
        assert_eq!(client.provide(&foreign.accepted.blob), Err(ErrorCode::PayloadRejected));
    }
}

/// A blob key's holder can seal any segment; its content must still be the session's own chain.
#[test]
fn refuses_foreign_dropped_doubled_and_reordered_entries_inside_a_blob() {
    type Change = fn(&mut Segment, &Segment);
    let twenty = &*TWENTY;
    let other = Session::of_short_turns(2, 20);
    let requested = twenty.request_after(9);
    let done = &twenty.session.done[9];
    let cases: [(&str, Change, ErrorCode); 13] = [
        ("a foreign first entry", |s, o| s.entries[0] = o.entries[0].clone(), ErrorCode::BadSequence),
        ("a foreign last entry", |s, o| s.entries[9] = o.entries[9].clone(), ErrorCode::BadSequence),
        ("all foreign entries", |s, o| s.entries = o.entries.clone(), ErrorCode::BadSequence),
        ("a foreign session", |s, o| *s = o.clone(), ErrorCode::BadSequence),
        ("the first entry dropped", |s, _| drop(s.entries.remove(0)), ErrorCode::BadSequence),
        ("a middle entry dropped", |s, _| drop(s.entries.remove(4)), ErrorCode::BadSequence),
        ("the last entry dropped", |s, _| drop(s.entries.pop()), ErrorCode::HeadMismatch),
        ("no entries", |s, _| s.entries.clear(), ErrorCode::BadSequence),
        ("an entry doubled", |s, _| s.entries.insert(4, s.entries[4].clone()), ErrorCode::BadSequence),
        ("the last entry doubled", |s, _| s.entries.push(s.entries[9].clone()), ErrorCode::BadSequence),
        ("two entries swapped", |s, _| s.entries.swap(3, 4), ErrorCode::BadSequence),
        (
            "two records swapped",
            |s, _| {
                let record = s.entries[3].record.clone();
                s.entries[3].record = std::mem::replace(&mut s.entries[4].record, record);
            },
            ErrorCode::RecordHashMismatch,
        ),
        ("seventeen entries", |s, _| s.entries.resize(17, s.entries[9].clone()), ErrorCode::BadSequence),
    ];
    for (what, change, code) in cases {
        let mut segment = done.accepted.segment.clone();
        change(&mut segment, &other.done[9].accepted.segment);
        // Sealed for the position that the reader opens, whatever the content claims.
        let encoded = baton_proto::codec::encode(&segment);
        let padded = baton_proto::codec::pad(&encoded, 1024, 1 << 21).unwrap();
        let got = read_fooled(requested, &seal(done, &padded), None);
        assert_eq!(got.unwrap_err(), code, "{what}");
    }
    let untouched = read_fooled(requested, &done.accepted.blob, None).unwrap();
    assert_eq!(untouched.turns.len(), 10);
}

/// Reads a window whose head blob differs from the blob that an honest client signs for.
pub(super) fn read_fooled(
    requested: &RequestedTurn,
    blob: &[u8],
    prev_link: Option<LinkHash>,
) -> Result<baton_proto::chain::Window, ErrorCode> {
    let mut auth = TurnAuth::clone(&requested.auth);
    let mut grant = requested.payload.grant.clone();
    let fooled: BlobRef = blob_ref(blob);
    auth.prev_blob = Some(fooled);
    auth.prev_link = prev_link.unwrap_or(auth.prev_link);
    grant.blobs[0].blob = Some(fooled);
    let mut reader = WindowReader::new(&auth, grant, None)?;
    for need in reader.needs() {
        if need.index == 0 {
            reader.provide(&need, blob)?;
        } else {
            reader.provide(&need, &TWENTY.session.store[&need.blob.digest])?;
        }
    }
    reader.finish()
}

#[test]
fn a_head_found_by_the_index_must_be_the_one_signed() {
    let twenty = &*TWENTY;
    let session = &twenty.session;
    let mut auth = TurnAuth::clone(&twenty.next.auth);
    let mut grant = twenty.next.payload.grant.clone();
    auth.prev_blob = None;
    grant.blobs.iter_mut().for_each(|read| read.blob = None);
    let start = |outer: Option<&HeadOuter>| WindowReader::new(&auth, grant.clone(), outer);
    assert_eq!(start(None).unwrap_err(), ErrorCode::BlobUnavailable);
    assert_eq!(start(Some(&session.head_outer(20))).unwrap().needs().len(), 2);
    for turns in 1..20 {
        let older = session.head_outer(turns);
        assert_eq!(start(Some(&older)).unwrap_err(), ErrorCode::HeadMismatch, "after {turns} turns");
    }
    let mut lying = session.head_outer(20);
    lying.seq -= 1;
    assert_eq!(start(Some(&lying)).unwrap_err(), ErrorCode::HeadMismatch);
    let mut missing = session.head_outer(20);
    missing.blobs.pop();
    assert_eq!(start(Some(&missing)).unwrap_err(), ErrorCode::BlobUnavailable);
    let mut huge = session.head_outer(20);
    huge.blobs[0].blob.length = u32::MAX;
    assert_eq!(start(Some(&huge)).unwrap_err(), ErrorCode::BlobTooLarge);
    // An index names another blob for the right head: the bytes of another turn, which fail to open.
    let mut swapped = session.head_outer(20);
    swapped.blobs[0].blob = session.done[18].blob;
    let mut reader = start(Some(&swapped)).unwrap();
    let need = reader.needs()[0];
    let bytes = &session.store[&need.blob.digest];
    assert_eq!(reader.provide(&need, bytes), Err(ErrorCode::PayloadRejected));
}

/// A reader checks against its own needs, not against a changed need from the caller.
#[test]
fn a_need_that_was_changed_on_the_way_does_not_loosen_the_check() {
    let twenty = &*TWENTY;
    let mut node = reader(&twenty.next.auth, &twenty.next.payload.grant);
    let honest = node.needs()[0];
    let bytes = &twenty.session.done[18].accepted.blob;
    let swapped = Need { blob: blob_ref(bytes), ..honest };
    assert_eq!(node.provide(&swapped, bytes), Err(ErrorCode::BlobHashMismatch));
    let beyond = Need { index: 9, ..honest };
    let right = &twenty.session.done[19].accepted.blob;
    assert_eq!(node.provide(&beyond, right), Err(ErrorCode::PayloadRejected));
}
