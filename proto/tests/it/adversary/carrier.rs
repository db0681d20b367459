//! The byzantine carrier: the node of a turn holds the blob key. It can change any plaintext byte of its
//! blob, seal the blob again and sign its own link again.
//!
//! The client's rebuild refuses the blob. So does the next honest node, even if the client was fooled.

use std::ops::Range;

use baton_keys::contexts::LINK_HASH;
use baton_proto::{
    ErrorCode, SignedObject, codec,
    ids::LinkHash,
    limits::{MAX_SEGMENT_BUCKET, MIN_SEGMENT_BUCKET},
    link::{Link, blob_digest},
    segment::Segment,
};

use crate::{
    adversary::stored::{TWENTY, read_fooled},
    support::{
        harness::{CompletedTurn, read_window},
        source::{full, sampled},
    },
};

/// A part of a padded segment and the codes with which a reader may refuse its change.
struct Region {
    bytes: Range<usize>,
    /// Its entry.
    entry: Option<usize>,
    codes: &'static [ErrorCode],
}

/// The fields of an encoded link in order: their lengths, and the codes for a change.
fn link_fields(has_prev_blob: bool) -> Vec<(usize, &'static [ErrorCode])> {
    use ErrorCode::{BadGenesis, BadNodeSignature, BadSequence, NonCanonical, UnsupportedVersion};
    const SIGNED: &[ErrorCode] = &[BadNodeSignature];
    let prev_blob = if has_prev_blob { 68 } else { 0 };
    vec![
        (1, &[UnsupportedVersion]),
        (32, SIGNED),
        // A seq below index or segment, or changed to or from 0, is refused before the signature.
        (8, &[BadNodeSignature, BadSequence, BadGenesis]),
        (8, &[BadNodeSignature, BadSequence]),
        (1, &[BadNodeSignature, BadSequence]),
        (16 + 4 + 32, SIGNED),
        (1, &[NonCanonical]),
        (prev_blob, SIGNED),
        (32 + 4 + 32 + 32 + 32 + 8, SIGNED),
    ]
}

/// The layout of a padded segment, computed from the document's description, without the decoder.
fn regions(segment: &Segment, padded: usize) -> Vec<Region> {
    use ErrorCode::{BadNodeSignature, BadSequence, NonCanonical, RecordHashMismatch, UnsupportedVersion};
    let mut regions = Vec::new();
    let mut push = |length: usize, entry: Option<usize>, codes: &'static [ErrorCode]| {
        let at = regions.last().map_or(0, |region: &Region| region.bytes.end);
        regions.push(Region { bytes: at..at + length, entry, codes });
        at + length
    };
    push(4, None, &[NonCanonical]);
    push(1, None, &[UnsupportedVersion]);
    push(32 + 8, None, &[BadSequence]);
    push(8, None, &[NonCanonical]);
    for (index, entry) in segment.entries.iter().enumerate() {
        let index = Some(index);
        push(8, index, &[NonCanonical]);
        let first = index == Some(0) && segment.segment == 0;
        let fields = link_fields(!first);
        assert_eq!(fields.iter().map(|(length, _)| length).sum::<usize>(), entry.link.body.len());
        for (length, codes) in fields {
            push(length, index, codes);
        }
        push(64, index, &[BadNodeSignature]);
        push(8, index, &[NonCanonical]);
        push(entry.record.0.len(), index, &[RecordHashMismatch]);
    }
    let at = push(0, None, &[NonCanonical]);
    push(padded - at, None, &[NonCanonical]);
    regions.retain(|region| !region.bytes.is_empty());
    regions
}

#[derive(Default)]
struct Tally {
    client: usize,
    client_resigned: usize,
    next_node: usize,
    next_node_resigned: usize,
}

/// Seals changed plaintext as this turn's blob, as its node can.
fn seal(done: &CompletedTurn, padded: &[u8]) -> Vec<u8> {
    let link = &done.accepted.link;
    let salt = done.requested.record_key.blob_salt();
    let key = done.requested.payload.grant.blob_key.blob_key();
    [&salt.0[..], &key.seal(&salt, &link.session_id, link.segment, padded)].concat()
}

/// For a change in the link just before the carrier's own, if the bytes still decode. Signs the carrier's
/// link again with the new predecessor; returns it with the blob of both.
fn resign(done: &CompletedTurn, changed: &[u8], entry: usize) -> Option<(SignedObject<Link>, Vec<u8>)> {
    let own = usize::from(done.accepted.link.index);
    if entry + 1 != own {
        return None;
    }
    let encoded = codec::unpad(changed, MIN_SEGMENT_BUCKET).ok()?;
    let mut segment: Segment = codec::decode(encoded, MAX_SEGMENT_BUCKET).ok()?;
    let mut link = done.accepted.link.clone().into_value();
    link.prev_link = LinkHash(segment.entries[entry].link.hash(LINK_HASH));
    let link = SignedObject::sign(link, &TWENTY.session.nodes[done.node].signing);
    segment.entries[own].link = link.bytes().clone();
    let padded = codec::pad(&codec::encode(&segment), MIN_SEGMENT_BUCKET, MAX_SEGMENT_BUCKET).ok()?;
    Some((link, seal(done, &padded)))
}

fn check_turn(turn: usize, tally: &mut Tally) {
    let twenty = &*TWENTY;
    let done = &twenty.session.done[turn];
    let next = twenty.request_after(turn);
    let encoded = codec::encode(&done.accepted.segment);
    let honest = codec::pad(&encoded, MIN_SEGMENT_BUCKET, MAX_SEGMENT_BUCKET).unwrap();
    assert_eq!(seal(done, &honest), done.accepted.blob);
    let answer = &done.script.answer;
    for region in regions(&done.accepted.segment, honest.len()) {
        for offset in sampled(region.bytes.len(), 2, turn as u64) {
            let position = region.bytes.start + offset;
            let both: &[u8] = if full() { &[0x01, 0x80] } else { &[if offset == 0 { 0x01 } else { 0x80 }] };
            for pattern in both {
                let mut changed = honest.to_vec();
                changed[position] ^= pattern;
                let blob = seal(done, &changed);
                let mut committed = done.committed.clone();
                committed.blob_digest = blob_digest(&blob);
                let got = done.requested.accept(&twenty.session.root, &committed, answer).unwrap_err();
                assert_eq!(got, ErrorCode::BlobMismatch, "turn {turn}, byte {position}");
                tally.client += 1;
                let got = read_fooled(next, &blob, None).unwrap_err();
                assert!(region.codes.contains(&got), "turn {turn}, byte {position}: {got:?}");
                tally.next_node += 1;
                let Some((link, blob)) = region.entry.and_then(|entry| resign(done, &changed, entry)) else {
                    continue;
                };
                committed.link = link.bytes().clone();
                committed.blob_digest = blob_digest(&blob);
                let got = done.requested.accept(&twenty.session.root, &committed, answer).unwrap_err();
                // A change in the previous record leaves its link unchanged, and so the carrier's own.
                let only_record = link.link_hash() == done.accepted.link.link_hash();
                let code = if only_record { ErrorCode::BlobMismatch } else { ErrorCode::ReceiptMismatch };
                assert_eq!(got, code, "turn {turn}, byte {position}");
                tally.client_resigned += 1;
                let got = read_fooled(next, &blob, Some(link.link_hash())).unwrap_err();
                assert!(region.codes.contains(&got), "turn {turn}, byte {position}: {got:?}");
                tally.next_node_resigned += 1;
            }
        }
    }
}

#[test]
fn every_plaintext_byte_changed_by_the_carrier_is_refused() {
    let mut tally = Tally::default();
    let turns: &[usize] = if full() { &[0, 1, 2, 5, 10, 15, 16, 17, 19] } else { &[0, 2, 15, 16] };
    for turn in turns {
        check_turn(*turn, &mut tally);
    }
    assert!(tally.client_resigned > 0);
    eprintln!(
        "carrier of turns {turns:?}: 0 accepted; refused by the client {} (+{} re-signed), by the next node {} (+{})",
        tally.client, tally.client_resigned, tally.next_node, tally.next_node_resigned
    );
}

/// A carrier holds the read key of a closed segment and can seal that segment again. The first link above it
/// pins the original blob.
#[test]
fn a_closed_segment_sealed_again_is_not_the_one_that_the_chain_names() {
    let twenty = &*TWENTY;
    let closed = &twenty.session.done[15];
    let encoded = codec::encode(&closed.accepted.segment);
    let honest = codec::pad(&encoded, MIN_SEGMENT_BUCKET, MAX_SEGMENT_BUCKET).unwrap();
    let mut refused = 0;
    for region in regions(&closed.accepted.segment, honest.len()) {
        for offset in sampled(region.bytes.len(), 2, 5) {
            let mut changed = honest.to_vec();
            changed[region.bytes.start + offset] ^= 0x80;
            let blob = seal(closed, &changed);
            let fooled = crate::support::harness::blob_ref(&blob);
            let mut grant = twenty.next.payload.grant.clone();
            grant.blobs[1].blob = Some(fooled);
            let mut store = twenty.session.store.clone();
            store.insert(fooled.digest, blob);
            let got = read_window(&twenty.next.auth, &grant, &store).unwrap_err();
            // Content that does not open is refused before the chain checks.
            assert!(got == ErrorCode::ChainBroken || region.codes.contains(&got), "{got:?}");
            refused += 1;
        }
    }
    eprintln!("closed segment sealed again: {refused} refusals");
}
