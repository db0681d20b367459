//! The byzantine carrier: the node of a turn holds the blob key. It can change any plaintext byte of its
//! blob, seal the blob again and sign its own link again.
//!
//! The client's rebuild refuses the blob. So does the next honest node, even if the client was fooled.

use baton_keys::contexts::LINK_HASH;
use baton_proto::{
    ErrorCode, SignedObject, codec,
    ids::LinkHash,
    limits::{MAX_SEGMENT_BUCKET, MIN_SEGMENT_BUCKET},
    link::{Link, blob_digest},
    segment::Segment,
    wire::Committed,
};

use crate::{
    adversary::stored::{TWENTY, read_fooled},
    support::{
        harness::{CompletedTurn, blob_ref, read_window},
        source::{full, sampled},
    },
};

/// The plaintext of a turn's blob.
fn padded(done: &CompletedTurn) -> Vec<u8> {
    let encoded = codec::encode(&done.accepted.segment);
    codec::pad(&encoded, MIN_SEGMENT_BUCKET, MAX_SEGMENT_BUCKET).unwrap().to_vec()
}

/// Seals changed plaintext as this turn's blob, as its node can.
pub(super) fn seal(done: &CompletedTurn, padded: &[u8]) -> Vec<u8> {
    let link = &done.accepted.link;
    let salt = done.requested.record_key.blob_salt();
    let key = done.requested.payload.grant.blob_key.blob_key();
    [&salt.0[..], &key.seal(&salt, &link.session_id, link.segment, padded)].concat()
}

/// For a change that still decodes, in an entry before the carrier's own: signs the carrier's link again with
/// the new predecessor; returns it with the blob of both.
fn resign(done: &CompletedTurn, changed: &[u8]) -> Option<(SignedObject<Link>, Vec<u8>)> {
    let own = usize::from(done.accepted.link.index);
    let encoded = codec::unpad(changed, MIN_SEGMENT_BUCKET).ok()?;
    let mut segment: Segment = codec::decode(encoded, MAX_SEGMENT_BUCKET).ok()?;
    let previous = segment.entries.get(own.checked_sub(1)?)?;
    let mut link = done.accepted.link.clone().into_value();
    link.prev_link = LinkHash(previous.link.hash(LINK_HASH));
    let link = SignedObject::sign(link, &TWENTY.session.nodes[done.node].signing);
    segment.entries.get_mut(own)?.link = link.bytes().clone();
    let padded = codec::pad(&codec::encode(&segment), MIN_SEGMENT_BUCKET, MAX_SEGMENT_BUCKET).ok()?;
    Some((link, seal(done, &padded)))
}

#[test]
fn every_plaintext_byte_changed_by_the_carrier_is_refused() {
    let session = &TWENTY.session;
    let mut resigned = 0;
    let turns: &[usize] = if full() { &[0, 1, 2, 5, 10, 15, 16, 17, 19] } else { &[0, 2, 15, 16] };
    for turn in turns {
        let done = &session.done[*turn];
        let next = TWENTY.request_after(*turn);
        let honest = padded(done);
        assert_eq!(seal(done, &honest), done.accepted.blob);
        for position in sampled(honest.len(), 400, *turn as u64) {
            let mut changed = honest.clone();
            changed[position] ^= if position % 2 == 0 { 0x01 } else { 0x80 };
            let blob = seal(done, &changed);
            let mut committed = done.committed.clone();
            committed.blob_digest = blob_digest(&blob);
            let client =
                |committed: &Committed| done.requested.accept(&session.root, committed, &done.script.answer);
            assert_eq!(client(&committed).unwrap_err(), ErrorCode::BlobMismatch, "turn {turn}, {position}");
            assert!(read_fooled(next, &blob, None).is_err(), "turn {turn}, byte {position}");
            let Some((link, blob)) = resign(done, &changed) else { continue };
            committed.link = link.bytes().clone();
            committed.blob_digest = blob_digest(&blob);
            // A change in a record leaves its link unchanged, and so the carrier's own.
            let only_record = link.link_hash() == done.accepted.link.link_hash();
            let code = if only_record { ErrorCode::BlobMismatch } else { ErrorCode::ReceiptMismatch };
            if blob != done.accepted.blob {
                assert_eq!(client(&committed).unwrap_err(), code, "turn {turn}, byte {position}");
                let got = read_fooled(next, &blob, Some(link.link_hash()));
                assert!(got.is_err(), "turn {turn}, byte {position}");
                resigned += 1;
            }
        }
    }
    assert!(resigned > 0);
}

/// A carrier holds the read key of a closed segment and can seal that segment again. The first link above it
/// pins the original blob.
#[test]
fn a_closed_segment_sealed_again_is_not_the_one_that_the_chain_names() {
    let closed = &TWENTY.session.done[15];
    let honest = padded(closed);
    for position in sampled(honest.len(), 100, 5) {
        let mut changed = honest.clone();
        changed[position] ^= 0x80;
        let blob = seal(closed, &changed);
        let fooled = blob_ref(&blob);
        let mut grant = TWENTY.next.payload.grant.clone();
        grant.blobs[1].blob = Some(fooled);
        let mut store = TWENTY.session.store.clone();
        store.insert(fooled.digest, blob);
        assert!(read_window(&TWENTY.next.auth, &grant, &store).is_err(), "byte {position}");
    }
}
