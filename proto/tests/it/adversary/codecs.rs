//! Every wire type and every entry point for bytes: each value has one encoding, and no bytes cause a panic.

use baton_keys::{
    exchange::{EphemeralSecret, ExchangeSecret, TurnSecret},
    ids::BlobSalt,
    session::{BlobKey, SessionRoot},
};
use baton_proto::{
    ErrorCode, Signable, SignedBytes, SignedObject, codec,
    embed::{EmbedAnswer, EmbedAuth, EmbedFrame, EmbedReply, EmbedTexts},
    export::ExportStatement,
    head::{HeadInner, HeadOuter, HeadRecord},
    limits::{
        HEAD_INNER_BLOCK, HEAD_OUTER_BLOCK, MAX_OBJECT_BYTES, MAX_SEGMENT_BUCKET, MIN_SEGMENT_BUCKET,
        PAYLOAD_BLOCK, REPLY_BLOCK,
    },
    link::Link,
    memory::{MemEnvelope, MemoryItem, RecallHint},
    node_record::{ModelManifest, NodeRecord},
    note::TurnNote,
    receipt::{ProgressNote, Receipt},
    record::{Message, Record, RecordKind, SealedRecord},
    right::{QuotaProof, Right},
    segment::{Segment, blob_salt},
    turn::{Grant, GrantedKey, Payload, Sampling, SealedPayload, StoragePolicy, TurnAuth},
    wire::{ClientFrame, InlineBlob, NodeFrame, ReplyEvent, TokenBytes, TokenLogprob},
};
use proptest::prelude::*;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    adversary::stored::TWENTY,
    support::source::{Source, full, sampled},
};

type MemoryItems = Vec<MemoryItem>;

/// A type of the vectors.
pub(crate) struct WireType {
    pub(crate) name: &'static str,
    /// Checks an encoding; returns how many of its changes are encodings too.
    pub(crate) check: fn(&[u8], &mut Source) -> usize,
    /// Checks a signed encoding, if the type has one.
    pub(crate) check_signed: Option<fn(&[u8], &mut Source)>,
    /// Decodes any bytes, also as a signed object; says whether they are an encoding.
    pub(crate) read: fn(&[u8]) -> bool,
}

macro_rules! wire_types {
    (signed: $($signed:ident),*; plain: $($plain:ident),*) => {
        /// Every type that travels by itself, or sealed.
        pub(crate) const WIRE_TYPES: &[WireType] = &[
            $(WireType {
                name: stringify!($signed),
                check: check::<$signed>,
                check_signed: Some(check_signed::<$signed>),
                read: |bytes| {
                    drop(SignedObject::<$signed>::verify_encoded(bytes));
                    read::<$signed>(bytes)
                },
            },)*
            $(WireType {
                name: stringify!($plain),
                check: check::<$plain>,
                check_signed: None,
                read: read::<$plain>,
            },)*
        ];
    };
}
wire_types! {
    signed: EmbedAuth, EmbedReply, ExportStatement, HeadRecord, Link, MemEnvelope, NodeRecord, ProgressNote, QuotaProof,
        RecallHint, Receipt, Right, TurnAuth, TurnNote;
    plain: ClientFrame, EmbedAnswer, EmbedFrame, EmbedTexts, Grant, HeadInner, HeadOuter, MemoryItems, ModelManifest,
        NodeFrame, Payload, Record, RecordKind, ReplyEvent, Sampling, Segment, StoragePolicy
}

/// One small change of bytes: a bit, a byte, an insertion, a removal, a cut tail, a copied byte, or a number of extreme size.
fn mutate(source: &mut Source, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        bytes.push(source.bytes::<1>()[0]);
        return;
    }
    let at = source.below(bytes.len());
    match source.below(7) {
        0 => bytes[at] ^= 1 << source.below(8),
        1 => bytes[at] = source.bytes::<1>()[0],
        2 => bytes.insert(at, source.bytes::<1>()[0]),
        3 => drop(bytes.remove(at)),
        4 => bytes.truncate(at),
        5 => bytes[at] = bytes[source.below(bytes.len())],
        _ => {
            let extreme = if source.below(2) == 0 { 0 } else { 0xff };
            bytes.iter_mut().skip(at).take(8).for_each(|byte| *byte = extreme);
        }
    }
}

/// Bytes after one change, after two, and so on.
fn mutations(bytes: &[u8], source: &mut Source, each: &mut dyn FnMut(&[u8])) {
    for _ in 0..if full() { 640 } else { 20 } {
        let mut mutated = bytes.to_vec();
        for _ in 0..12 {
            mutate(source, &mut mutated);
            each(&mutated);
        }
    }
}

/// A value has one encoding: no shorter and no longer bytes, and each accepted change is that of its own value.
fn check<T: Serialize + DeserializeOwned>(body: &[u8], source: &mut Source) -> usize {
    assert!(read::<T>(body) && !read::<T>(&[body, &[0]].concat()));
    assert_eq!(codec::decode::<T>(body, body.len() - 1).err(), Some(ErrorCode::FrameTooLarge));
    for length in sampled(body.len(), 300, 1) {
        assert!(!read::<T>(&body[..length]), "the first {length} bytes");
    }
    let mut accepted = 0;
    mutations(body, source, &mut |mutated| accepted += usize::from(read::<T>(mutated)));
    accepted
}

/// Whether bytes decode; then they are the encoding of their value.
fn read<T: DeserializeOwned + Serialize>(bytes: &[u8]) -> bool {
    match codec::decode::<T>(bytes, MAX_OBJECT_BYTES) {
        Ok(value) => {
            assert_eq!(codec::encode(&value), bytes);
            true
        }
        Err(code) => {
            assert_eq!(code, ErrorCode::NonCanonical);
            false
        }
    }
}

/// A signed object is refused with every change, with another version, and with a body beyond its limit.
fn check_signed<T: Signable>(encoded: &[u8], source: &mut Source) {
    let refusal = |encoded: &[u8]| SignedObject::<T>::verify_encoded(encoded).err();
    assert_eq!(refusal(encoded), None);
    let SignedBytes { body, signature } = codec::decode(encoded, MAX_OBJECT_BYTES).unwrap();
    let with_body = |body: Vec<u8>| refusal(&codec::encode(&SignedBytes { body, signature }));
    for version in [0, T::VERSION - 1, T::VERSION + 1, 255] {
        let other = [&[version], &body[1..]].concat();
        assert_eq!(with_body(other), Some(ErrorCode::UnsupportedVersion), "version {version}");
    }
    for (length, code) in [
        (0, ErrorCode::NonCanonical),
        (T::MAX_BYTES, ErrorCode::NonCanonical),
        (T::MAX_BYTES + 1, ErrorCode::FrameTooLarge),
    ] {
        let mut other = body.clone();
        other.resize(length, 0);
        assert_eq!(with_body(other), Some(code), "{length} bytes");
    }
    for position in 0..encoded.len() {
        for pattern in [0x01, 0x80] {
            let mut changed = encoded.to_vec();
            changed[position] ^= pattern;
            assert!(refusal(&changed).is_some(), "byte {position}");
        }
    }
    // The object's own rules come before its signature.
    mutations(&body, source, &mut |mutated| {
        assert!(mutated == body || with_body(mutated.to_vec()).is_some())
    });
}

fn cases(sample: u32) -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(if full() { sample * 32 } else { sample })
    }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn no_bytes_panic_in_any_decoder(bytes in proptest::collection::vec(any::<u8>(), 0..700)) {
        // The same bytes as a body with a correct length and version.
        let mut body = bytes.clone();
        if let Some(first) = body.first_mut() {
            *first = 1;
        }
        let signature = TWENTY.next.auth.bytes().signature;
        let signed = codec::encode(&SignedBytes { body, signature });
        for of_type in WIRE_TYPES {
            (of_type.read)(&bytes);
            (of_type.read)(&signed);
        }
        let _ = codec::unpad(&bytes, 256);
        drop(codec::pad(&bytes, 256, 512));
        let _ = blob_salt(&bytes);
    }

    #[test]
    fn no_ciphertext_panics_or_opens(bytes in proptest::collection::vec(any::<u8>(), 0..1500), seed in any::<u64>()) {
        let mut source = Source::new(seed);
        let root = SessionRoot::from_bytes(source.bytes());
        let key = BlobKey::from_bytes(source.bytes());
        let id = root.session_id();
        prop_assert!(Segment::open(&bytes, &key, &id, source.u64()).is_err());
        let mut link = Link::clone(&TWENTY.session.done[9].accepted.link);
        link.session_id = id;
        let identity = link.record_identity();
        let got = SealedRecord(bytes.clone()).open(&root.record_key(&identity), &identity);
        prop_assert_eq!(got.unwrap_err(), ErrorCode::PayloadRejected);
        let mut auth = TurnAuth::clone(&TWENTY.next.auth);
        let sealed = SealedPayload(bytes.clone());
        let node = ExchangeSecret::from_bytes(&source.bytes());
        prop_assert_eq!(sealed.open(&node, &auth).unwrap_err(), ErrorCode::PayloadRejected);
        auth.payload_hash = sealed.hash();
        prop_assert_eq!(sealed.open(&node, &auth).unwrap_err(), ErrorCode::PayloadRejected);
        let mut head = HeadRecord::clone(&TWENTY.session.head(20));
        head.outer.clone_from(&bytes);
        head.inner.clone_from(&bytes);
        prop_assert_eq!(head.open_outer(&root.head_secret(3).locate_key()).unwrap_err(), ErrorCode::PayloadRejected);
        prop_assert_eq!(head.open_inner(&root).unwrap_err(), ErrorCode::PayloadRejected);
    }

    /// Chosen plaintext under a correct seal, as from a client, a relayer or a device with the right keys.
    #[test]
    fn no_plaintext_panics_behind_a_fitting_seal(
        bytes in proptest::collection::vec(any::<u8>(), 0..900),
        seed in any::<u64>(),
    ) {
        let mut source = Source::new(seed);
        let root = SessionRoot::from_bytes(source.bytes());
        let id = root.session_id();
        let salt = BlobSalt(source.bytes());
        let key = root.blob_key(3, &salt);
        for padded in [bytes.clone(), codec::pad(&bytes, MIN_SEGMENT_BUCKET, MAX_SEGMENT_BUCKET).unwrap().to_vec()] {
            let blob = [&salt.0[..], &key.seal(&salt, &id, 3, &padded)].concat();
            prop_assert!(Segment::open(&blob, &key, &id, 3).is_err());
        }
        let mut link = Link::clone(&TWENTY.session.done[9].accepted.link);
        link.session_id = id;
        let identity = link.record_identity();
        let record_key = root.record_key(&identity);
        drop(SealedRecord(record_key.seal(&identity, &bytes)).open(&record_key, &identity));
        let padded = codec::pad(&bytes, 256, 4096).unwrap();
        drop(SealedRecord(record_key.seal(&identity, &padded)).open(&record_key, &identity));
        let node = ExchangeSecret::from_bytes(&source.bytes());
        let ephemeral = EphemeralSecret::from_bytes(&source.bytes());
        let mut auth = TurnAuth::clone(&TWENTY.next.auth);
        let (encapsulation, secret) =
            TurnSecret::initiate(ephemeral, &node.public_key(), &auth.binding()).unwrap();
        for text in [bytes.clone(), codec::pad_block(&bytes, PAYLOAD_BLOCK).to_vec()] {
            let text = secret.seal_payload(&text);
            let sealed = SealedPayload([&encapsulation.as_bytes()[..], &text].concat());
            auth.payload_hash = sealed.hash();
            prop_assert!(sealed.open(&node, &auth).is_err());
        }
        drop(ReplyEvent::from_chunk(&bytes));
        drop(ReplyEvent::from_chunk(&codec::pad_block(&bytes, REPLY_BLOCK)));
        let mut head = HeadRecord::clone(&TWENTY.session.head(20));
        let locate = root.head_secret(3).locate_key();
        for text in [bytes.clone(), codec::pad_block(&bytes, HEAD_OUTER_BLOCK).to_vec()] {
            head.outer = locate.seal(&head.head_key, &text);
            prop_assert!(head.open_outer(&locate).is_err());
        }
        for text in [bytes.clone(), codec::pad_block(&bytes, HEAD_INNER_BLOCK).to_vec()] {
            head.inner = root.head_inner_key().seal(&head.head_key, &text);
            drop(head.open_inner(&root));
        }
    }
}

/// False lengths must fail before any allocation for them.
#[test]
fn lying_lengths_fail_without_allocating() {
    for claim in [u64::MAX, u64::MAX / 2, 1 << 40, 1 << 32, (MAX_OBJECT_BYTES as u64) + 1] {
        let claim = claim.to_le_bytes();
        let body = [&[1u8][..], &[0; 40], &claim].concat();
        let frames = [[&0u32.to_le_bytes()[..], &claim].concat(), [&1u32.to_le_bytes()[..], &claim].concat()];
        assert_eq!(codec::decode::<Segment>(&body, 4096).unwrap_err(), ErrorCode::NonCanonical);
        assert_eq!(codec::decode::<SignedBytes>(&claim, 4096).unwrap_err(), ErrorCode::NonCanonical);
        assert_eq!(codec::decode::<InlineBlob>(&claim, 4096).unwrap_err(), ErrorCode::NonCanonical);
        for frame in frames {
            assert_eq!(codec::decode::<ClientFrame>(&frame, 4096).unwrap_err(), ErrorCode::NonCanonical);
            assert!(codec::decode::<NodeFrame>(&frame, 4096).is_err());
        }
    }
}

/// The debug form of an object, for a log or a failed assertion, has no conversation and no key.
#[test]
fn nothing_secret_shows_in_debug() {
    const WORDS: &str = "the-words-of-a-person";
    let message = Message::new(baton_proto::record::Role::User, WORDS);
    let mut payload = TWENTY.next.payload.clone();
    payload.messages = vec![message.clone()];
    payload.system = vec![message.clone()];
    payload.sampling.stop = vec![WORDS.into()];
    payload.grant.record_key = GrantedKey::of_blob(&BlobKey::from_bytes([0xab; 32]));
    let mut record = TWENTY.session.done[9].accepted.record.clone();
    record.messages = vec![message];
    let item = MemoryItem { text: WORDS.into(), source: WORDS.into(), time_ms: 1 };
    let logprob = TokenLogprob { token: 1, millinats: 0, bytes: TokenBytes(WORDS.into()) };
    let shown_logprob = format!("{logprob:?}");
    let tokens =
        ReplyEvent::Tokens { index: 0, ids: vec![77_777_777], text: WORDS.into(), logprobs: vec![logprob] };
    let shown = [
        shown_logprob,
        format!("{payload:?}"),
        format!("{:?}", payload.sampling),
        format!("{:?}", payload.grant),
        format!("{record:?}"),
        format!("{:?}", NodeFrame::Memory(vec![item])),
        format!("{tokens:?}"),
    ];
    for shown in shown {
        assert!(!shown.contains(WORDS), "{shown}");
        assert!(!shown.contains("77777777"), "{shown}");
        assert!(!shown.contains("171, 171") && !shown.contains("abab"), "{shown}");
    }
}
