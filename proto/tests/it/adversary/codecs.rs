//! Every wire type and every entry point for bytes: each value has one encoding, and no bytes cause a panic.

use std::fmt::Debug;

use baton_keys::{
    SecretSigningKey,
    exchange::{EphemeralSecret, ExchangeSecret, TurnSecret},
    ids::BlobSalt,
    session::{BlobKey, SessionRoot},
};
use baton_proto::{
    ErrorCode, SignedBytes, SignedObject, codec,
    embed::{EmbedAnswer, EmbedAuth, EmbedFrame, EmbedReply, EmbedRequest, EmbedTexts},
    export::ExportStatement,
    head::{BranchHead, DeviceLease, HeadInner, HeadOuter, HeadRecord, SegmentRef},
    limits::{
        HEAD_INNER_BLOCK, HEAD_OUTER_BLOCK, MAX_OBJECT_BYTES, MAX_SEGMENT_BUCKET, MIN_SEGMENT_BUCKET,
        PAYLOAD_BLOCK, REPLY_BLOCK,
    },
    link::{BlobRef, BranchPoint, Genesis, Link},
    memory::{MemEnvelope, MemoryItem, RecallHint},
    node_record::{KeyWindow, ModelManifest, ModelOffer, NodeRecord},
    note::TurnNote,
    receipt::{ProgressNote, Receipt},
    record::{Message, Record, SealedRecord},
    right::{QuotaProof, QuotaUse, Right},
    segment::{Entry, Segment, blob_salt},
    turn::{
        Grant, GrantedKey, Payload, ReadBlob, ReadRecord, ResumePrefix, Sampling, SealedPayload, TurnAuth,
    },
    wire::{
        ClientFrame, Committed, InlineBlob, NodeFrame, ReplyEvent, StoreState, TokenBytes, TokenLogprob,
        TurnRequest, TurnStatus,
    },
};
use proptest::prelude::*;
use serde::{Serialize, de::DeserializeOwned};

use crate::support::{
    objects::{RandomValue, SettableSigner, signed},
    source::{Source, full},
};

fn cases(sample: u32) -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(if full() { sample * 32 } else { sample })
    }
}

/// One small change of bytes: a bit, a byte, an insertion, a removal, a cut tail, or a copied run.
fn mutate(source: &mut Source, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        bytes.push(source.bytes::<1>()[0]);
        return;
    }
    let at = source.below(bytes.len());
    match source.below(6) {
        0 => bytes[at] ^= 1 << source.below(8),
        1 => bytes[at] = source.bytes::<1>()[0],
        2 => bytes.insert(at, source.bytes::<1>()[0]),
        3 => drop(bytes.remove(at)),
        4 => bytes.truncate(at),
        _ => {
            let other = source.below(bytes.len());
            bytes[at] = bytes[other];
        }
    }
}

/// Round trip. Each accepted mutation must be the canonical encoding of its value.
fn check_type<T>(source: &mut Source, accepted: &mut usize)
where
    T: RandomValue + Serialize + DeserializeOwned + PartialEq + Debug,
{
    let value = T::random(source);
    let encoded = codec::encode(&value);
    assert_eq!(codec::decode::<T>(&encoded, encoded.len()).as_ref(), Ok(&value));
    if !encoded.is_empty() {
        let short = codec::decode::<T>(&encoded, encoded.len() - 1);
        assert_eq!(short, Err(ErrorCode::FrameTooLarge));
    }
    let longer = [&encoded[..], &[0]].concat();
    assert_eq!(codec::decode::<T>(&longer, MAX_OBJECT_BYTES), Err(ErrorCode::NonCanonical));
    for length in 0..encoded.len() {
        assert_eq!(codec::decode::<T>(&encoded[..length], MAX_OBJECT_BYTES), Err(ErrorCode::NonCanonical));
    }
    let mut mutated = encoded;
    for _ in 0..12 {
        mutate(source, &mut mutated);
        match codec::decode::<T>(&mutated, MAX_OBJECT_BYTES) {
            Ok(value) => {
                assert_eq!(codec::encode(&value), mutated, "{value:?}");
                *accepted += 1;
            }
            Err(code) => assert_eq!(code, ErrorCode::NonCanonical),
        }
    }
}

fn decode_any<T: DeserializeOwned + Serialize>(bytes: &[u8]) {
    if let Ok(value) = codec::decode::<T>(bytes, MAX_OBJECT_BYTES) {
        assert_eq!(codec::encode(&value), bytes);
    }
}

macro_rules! wire_types {
    ($($name:ident),* $(,)?) => {
        const WIRE_TYPES: usize = [$(stringify!($name)),*].len();

        fn check_every_type(source: &mut Source, accepted: &mut usize) {
            $(check_type::<$name>(source, accepted);)*
        }

        fn decode_as_every_type(bytes: &[u8]) {
            $(decode_any::<$name>(bytes);)*
        }
    };
}
wire_types!(
    BlobRef,
    BranchHead,
    BranchPoint,
    ClientFrame,
    Committed,
    DeviceLease,
    EmbedAnswer,
    EmbedAuth,
    EmbedFrame,
    EmbedReply,
    EmbedRequest,
    EmbedTexts,
    Entry,
    ErrorCode,
    Genesis,
    Grant,
    GrantedKey,
    HeadInner,
    HeadOuter,
    HeadRecord,
    InlineBlob,
    KeyWindow,
    Link,
    MemEnvelope,
    MemoryItem,
    Message,
    ModelManifest,
    ModelOffer,
    NodeFrame,
    NodeRecord,
    Payload,
    ProgressNote,
    QuotaProof,
    QuotaUse,
    ReadBlob,
    ReadRecord,
    RecallHint,
    Receipt,
    Record,
    ReplyEvent,
    ResumePrefix,
    Right,
    Sampling,
    SealedPayload,
    SealedRecord,
    Segment,
    SegmentRef,
    SignedBytes,
    StoreState,
    TurnNote,
    TurnAuth,
    TurnRequest,
    TurnStatus,
);

macro_rules! signed_types {
    ($($name:ident),* $(,)?) => {
        fn verify_as_every_type(encoded: &[u8]) {
            $(drop(SignedObject::<$name>::verify_encoded(encoded));)*
        }

        fn check_every_signed_type(source: &mut Source, key: &SecretSigningKey, verified: &mut usize) {
            $(check_signed::<$name>(source, key, verified);)*
        }
    };
}
signed_types!(
    EmbedAuth,
    EmbedReply,
    ExportStatement,
    HeadRecord,
    Link,
    MemEnvelope,
    NodeRecord,
    ProgressNote,
    QuotaProof,
    RecallHint,
    Receipt,
    Right,
    TurnNote,
    TurnAuth
);

/// A correctly signed object passes or fails its own checks; a mutated one is refused.
fn check_signed<T: SettableSigner + Debug>(
    source: &mut Source,
    key: &SecretSigningKey,
    verified: &mut usize,
) {
    let honest = signed::<T>(source, key);
    let encoded = honest.encode();
    match SignedObject::<T>::verify_encoded(&encoded) {
        Ok(again) => {
            assert_eq!(again.bytes(), honest.bytes());
            *verified += 1;
        }
        Err(code) => assert_ne!(code, T::BAD_SIGNATURE, "{honest:?}"),
    }
    let mut mutated = encoded.clone();
    mutate(source, &mut mutated);
    if mutated != encoded {
        assert!(SignedObject::<T>::verify_encoded(&mutated).is_err());
    }
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn every_wire_type_round_trips_and_has_one_encoding(seed in any::<u64>()) {
        let mut accepted = 0;
        check_every_type(&mut Source::new(seed), &mut accepted);
        prop_assert!(accepted > 0, "some mutations of {} types must decode", WIRE_TYPES);
    }

    #[test]
    fn signed_objects_verify_as_they_were_signed(seed in any::<u64>()) {
        let key = SecretSigningKey::from_seed(&[7; 32]);
        let mut verified = 0;
        check_every_signed_type(&mut Source::new(seed), &key, &mut verified);
        prop_assert!(verified > 0);
    }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn no_bytes_panic_in_any_decoder(bytes in proptest::collection::vec(any::<u8>(), 0..700)) {
        decode_as_every_type(&bytes);
        verify_as_every_type(&bytes);
        // The same bytes as a body with a correct length, signature and version.
        let mut body = bytes.clone();
        if let Some(first) = body.first_mut() {
            *first = 1;
        }
        let mut source = Source::new(bytes.len() as u64);
        verify_as_every_type(&codec::encode(&SignedBytes { body, signature: RandomValue::random(&mut source) }));
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
        let mut link = Link::random(&mut source);
        link.session_id = id;
        let identity = link.record_identity();
        let got = SealedRecord(bytes.clone()).open(&root.record_key(&identity), &identity);
        prop_assert_eq!(got.unwrap_err(), ErrorCode::PayloadRejected);
        let mut auth = TurnAuth::random(&mut source);
        let sealed = SealedPayload(bytes.clone());
        let node = ExchangeSecret::from_bytes(&source.bytes());
        prop_assert_eq!(sealed.open(&node, &auth).unwrap_err(), ErrorCode::PayloadRejected);
        auth.payload_hash = sealed.hash();
        prop_assert_eq!(sealed.open(&node, &auth).unwrap_err(), ErrorCode::PayloadRejected);
        let mut head = HeadRecord::random(&mut source);
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
        let mut link = Link::random(&mut source);
        link.session_id = id;
        let identity = link.record_identity();
        let record_key = root.record_key(&identity);
        drop(SealedRecord(record_key.seal(&identity, &bytes)).open(&record_key, &identity));
        let padded = codec::pad(&bytes, 256, 4096).unwrap();
        drop(SealedRecord(record_key.seal(&identity, &padded)).open(&record_key, &identity));
        let node = ExchangeSecret::from_bytes(&source.bytes());
        let ephemeral = EphemeralSecret::from_bytes(&source.bytes());
        let mut auth = TurnAuth::random(&mut source);
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
        let mut head = HeadRecord::random(&mut source);
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

/// The largest objects keep their limits to the byte.
#[test]
fn a_body_over_its_limit_is_refused_before_it_is_decoded() {
    let key = SecretSigningKey::from_seed(&[7; 32]);
    let mut source = Source::new(1);
    let mut head = HeadRecord::random(&mut source);
    head.set_signer(&key);
    (head.issued_ms, head.expires_ms) = (1, 2);
    head.outer.clear();
    head.inner.clear();
    let spare = 4096 - codec::encode(&head).len();
    head.inner = vec![0; spare];
    let fits = SignedObject::sign(head.clone(), &key);
    assert!(SignedObject::<HeadRecord>::verify(fits.bytes().clone()).is_ok());
    assert!(SignedObject::<HeadRecord>::verify_encoded(&fits.encode()).is_ok());
    head.inner.push(0);
    let over = SignedObject::sign(head, &key);
    assert_eq!(
        SignedObject::<HeadRecord>::verify(over.bytes().clone()).unwrap_err(),
        ErrorCode::FrameTooLarge
    );
    assert_eq!(
        SignedObject::<HeadRecord>::verify_encoded(&over.encode()).unwrap_err(),
        ErrorCode::FrameTooLarge
    );
}

/// The debug form of an object, for a log or a failed assertion, has no conversation and no key.
#[test]
fn nothing_secret_shows_in_debug() {
    const WORDS: &str = "the-words-of-a-person";
    let message = Message::new(baton_proto::record::Role::User, WORDS);
    let mut payload = Payload::random(&mut Source::new(1));
    payload.messages = vec![message.clone()];
    payload.system = vec![message.clone()];
    payload.sampling.stop = vec![WORDS.into()];
    payload.grant.record_key = GrantedKey::of_blob(&BlobKey::from_bytes([0xab; 32]));
    let mut record = Record::random(&mut Source::new(1));
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
