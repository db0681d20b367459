//! The code makes the committed known-answer vectors byte for byte, and reads them.

use std::{collections::BTreeSet, fs, path::Path};

use baton_keys::exchange::{EphemeralSecret, ExchangeSecret};
use baton_proto::{
    ErrorCode, Signable, SignedObject, codec,
    embed::{EmbedAnswer, EmbedAuth, EmbedFrame, EmbedReply, EmbedTexts, SealedReply, SealedTexts},
    export::ExportStatement,
    head::{HeadInner, HeadOuter, HeadRecord},
    limits::MAX_OBJECT_BYTES,
    link::Link,
    memory::{MemEnvelope, MemoryItem, RecallHint},
    node_record::{ModelManifest, NodeRecord},
    note::TurnNote,
    receipt::{ProgressNote, Receipt},
    record::{Record, RecordKind, SealedRecord},
    right::{QuotaProof, Right},
    segment::Segment,
    turn::{Grant, Payload, Sampling, SealedPayload, StoragePolicy, TurnAuth},
    wire::{ClientFrame, NodeFrame, ReplyEvent},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::generate::{
    self,
    session::{self, node_exchange, root},
};

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/vectors"))
}

fn load(name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(folder().join(name)).unwrap()).unwrap()
}

fn bytes(value: &Value, name: &str) -> Vec<u8> {
    hex::decode(value[name].as_str().unwrap()).unwrap()
}

fn items<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().unwrap()
}

#[test]
fn committed_vectors_are_what_this_code_makes() {
    let fresh = generate::files();
    for (name, text) in &fresh {
        let committed = fs::read_to_string(folder().join(name)).unwrap();
        let first = committed.lines().zip(text.lines()).position(|(a, b)| a != b);
        assert!(committed == *text, "{name} differs, first at line {first:?}: bytes changed");
    }
    let named: BTreeSet<_> = fresh.iter().map(|(name, _)| (*name).to_owned()).collect();
    let present: BTreeSet<_> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".json"))
        .collect();
    assert_eq!(named, present);
}

/// A value encodes to the bytes that it was decoded from.
fn check_plain<T: Serialize + DeserializeOwned>(body: &[u8], what: &str) {
    let value: T = codec::decode(body, MAX_OBJECT_BYTES).unwrap_or_else(|code| panic!("{what}: {code}"));
    assert_eq!(codec::encode(&value), body, "{what}");
}

/// As [`check_plain`], with its signature. Refuses other versions, and a body beyond the object's limit.
fn check_signed<T: Signable>(vector: &Value) {
    let (body, encoded) = (bytes(vector, "body"), bytes(vector, "encoded"));
    let what = vector["type"].as_str().unwrap();
    let verified =
        SignedObject::<T>::verify_encoded(&encoded).unwrap_or_else(|code| panic!("{what}: {code}"));
    assert_eq!((verified.encode(), &verified.bytes().body), (encoded.clone(), &body), "{what}");
    check_plain::<T>(&body, what);
    let refusal = |encoded: &[u8]| SignedObject::<T>::verify_encoded(encoded).err();
    for version in [0, T::VERSION - 1, T::VERSION + 1, 255] {
        let mut other = encoded.clone();
        other[8] = version;
        assert_eq!(refusal(&other), Some(ErrorCode::UnsupportedVersion), "{what}: version {version}");
    }
    let rebuilt = |body: &[u8]| {
        let length = (body.len() as u64).to_le_bytes();
        [&length[..], body, &encoded[encoded.len() - 64..]].concat()
    };
    assert_eq!(refusal(&rebuilt(&[])), Some(ErrorCode::NonCanonical), "{what}: empty");
    let mut large = body.clone();
    large.resize(T::MAX_BYTES + 1, 0);
    assert_eq!(refusal(&rebuilt(&large)), Some(ErrorCode::FrameTooLarge), "{what}: oversized");
}

fn check_object(vector: &Value) {
    let (what, body) = (vector["type"].as_str().unwrap(), bytes(vector, "body"));
    match what {
        "Link" => check_signed::<Link>(vector),
        "TurnAuth" => check_signed::<TurnAuth>(vector),
        "Receipt" => check_signed::<Receipt>(vector),
        "ProgressNote" => check_signed::<ProgressNote>(vector),
        "TurnNote" => check_signed::<TurnNote>(vector),
        "ExportStatement" => check_signed::<ExportStatement>(vector),
        "HeadRecord" => check_signed::<HeadRecord>(vector),
        "NodeRecord" => check_signed::<NodeRecord>(vector),
        "MemEnvelope" => check_signed::<MemEnvelope>(vector),
        "RecallHint" => check_signed::<RecallHint>(vector),
        "Right" => check_signed::<Right>(vector),
        "QuotaProof" => check_signed::<QuotaProof>(vector),
        "EmbedAuth" => check_signed::<EmbedAuth>(vector),
        "EmbedReply" => check_signed::<EmbedReply>(vector),
        "Record" => check_plain::<Record>(&body, what),
        "Grant" => check_plain::<Grant>(&body, what),
        "Payload" => check_plain::<Payload>(&body, what),
        "Sampling" => check_plain::<Sampling>(&body, what),
        "ModelManifest" => check_plain::<ModelManifest>(&body, what),
        "HeadOuter" => check_plain::<HeadOuter>(&body, what),
        "HeadInner" => check_plain::<HeadInner>(&body, what),
        "StoragePolicy" => check_plain::<StoragePolicy>(&body, what),
        "MemoryItems" => check_plain::<Vec<MemoryItem>>(&body, what),
        "RecordKind" => check_plain::<RecordKind>(&body, what),
        "EmbedTexts" => check_plain::<EmbedTexts>(&body, what),
        other => panic!("no check for {other}"),
    }
}

/// Also refuses a variant that the frame's type does not have.
fn check_frame(vector: &Value) {
    fn check<T: Serialize + DeserializeOwned>(body: &[u8], name: &str) {
        check_plain::<T>(body, name);
        let unknown = [&[99], &body[1..]].concat();
        let refused = codec::decode::<T>(&unknown, MAX_OBJECT_BYTES).err();
        assert_eq!(refused, Some(ErrorCode::NonCanonical), "{name}: unknown variant");
    }
    let (name, body) = (vector["name"].as_str().unwrap(), bytes(vector, "body"));
    match vector["type"].as_str().unwrap() {
        "ClientFrame" => check::<ClientFrame>(&body, name),
        "NodeFrame" => check::<NodeFrame>(&body, name),
        "ReplyEvent" => check::<ReplyEvent>(&body, name),
        "EmbedFrame" => check::<EmbedFrame>(&body, name),
        "EmbedAnswer" => check::<EmbedAnswer>(&body, name),
        other => panic!("no check for {other}"),
    }
}

#[test]
fn every_object_and_frame_decodes_to_what_encodes_as_it() {
    let (objects, frames, embed) = (load("objects.json"), load("frames.json"), load("embed.json"));
    let mut seen = BTreeSet::new();
    for vector in items(&objects, "objects").iter().chain(items(&embed, "objects")) {
        check_object(vector);
        seen.insert(vector["type"].as_str().unwrap());
    }
    assert_eq!(seen.len(), 25);
    let mut seen = BTreeSet::new();
    for vector in items(&frames, "frames") {
        check_frame(vector);
        let name = vector["name"].as_str().unwrap().split('.').next().unwrap();
        seen.insert((vector["type"].as_str().unwrap(), name));
        let body = bytes(vector, "body");
        let length = u32::try_from(body.len()).unwrap().to_le_bytes();
        assert_eq!(bytes(vector, "framed"), [&length[..], &body].concat());
    }
    // Six client frames, eight node frames, seven events.
    assert_eq!(seen.len(), 6 + 8 + 7);
    items(&embed, "frames").iter().for_each(check_frame);
}

/// The keys of the embedding vectors open the sealed texts and vectors.
#[test]
fn embeddings_of_the_vectors_open() {
    let vectors = load("embed.json");
    let auth = items(&vectors, "objects").iter().find(|vector| vector["type"] == "EmbedAuth").unwrap();
    let auth = SignedObject::<EmbedAuth>::verify_encoded(&bytes(auth, "encoded")).unwrap();
    let node = ExchangeSecret::from_bytes(&bytes(&vectors, "node_secret").try_into().unwrap());
    let sealed = SealedTexts(bytes(&vectors, "sealed_texts"));
    let (texts, secret) = sealed.open(&node, &auth).unwrap();
    assert_eq!(codec::encode(&texts), bytes(&vectors, "texts"));
    let nonce = bytes(&vectors, "reply_nonce").try_into().unwrap();
    let reply = SealedReply(bytes(&vectors, "sealed_reply"));
    let reply = reply.open(&secret, &nonce, &auth, texts.texts.len()).unwrap();
    assert_eq!(reply.vectors().collect::<Vec<_>>(), [[0.6, -0.8], [0.0, 0.0], [1.0, 0.0]]);
}

/// After its seal opened, a record of another version is refused with its own code.
#[test]
fn sealed_objects_of_another_version_are_refused() {
    let session = session::make();
    let turn = &session.done[1];
    let identity = turn.accepted.link.record_identity();
    let mut record = turn.accepted.record.clone();
    record.version = 2;
    let sealed = record.seal(&turn.requested.record_key, &identity).unwrap();
    assert_eq!(sealed.open(&turn.requested.record_key, &identity).err(), Some(ErrorCode::UnsupportedVersion));

    let mut segment = turn.accepted.segment.clone();
    segment.version = 2;
    let blob = segment.seal(&turn.requested.blob_key, &turn.requested.record_key.blob_salt()).unwrap();
    let opened = Segment::open(&blob, &turn.requested.blob_key, &root().session_id(), 0);
    assert_eq!(opened.err(), Some(ErrorCode::UnsupportedVersion));

    let mut payload = turn.requested.payload.clone();
    payload.version += 1;
    let mut auth = (*turn.requested.auth).clone();
    let (ephemeral, node_key) = (EphemeralSecret::from_bytes(&[9; 64]), node_exchange(1).public_key());
    let (sealed, _) = SealedPayload::seal(&payload, ephemeral, &node_key, &auth.binding()).unwrap();
    auth.payload_hash = sealed.hash();
    assert_eq!(sealed.open(&node_exchange(1), &auth).err(), Some(ErrorCode::UnsupportedVersion));

    auth.suite = 1;
    let signed = SignedObject::sign(auth, &root().signing_key());
    assert_eq!(
        SignedObject::<TurnAuth>::verify(signed.bytes().clone()).err(),
        Some(ErrorCode::UnsupportedVersion)
    );
}

/// The blobs of the vectors open; the segment is closed at exactly sixteen turns.
#[test]
fn blobs_open_with_the_keys_beside_them() {
    let vectors = load("blobs.json");
    let session = root().session_id();
    let mut entries = Vec::new();
    for vector in items(&vectors, "blobs") {
        let key: [u8; 32] = bytes(vector, "blob_key").try_into().unwrap();
        let key = baton_keys::session::BlobKey::from_bytes(key);
        let blob = bytes(vector, "blob");
        let number = vector["segment"].as_u64().unwrap();
        let segment = Segment::open(&blob, &key, &session, number).unwrap();
        assert_eq!(segment.seal(&key, &baton_proto::segment::blob_salt(&blob).unwrap()).unwrap(), blob);
        assert_eq!(segment.encoded_len() as u64, vector["encoded_length"].as_u64().unwrap());
        assert_eq!(segment.is_closed(), vector["closed"].as_bool().unwrap());
        entries.push((number, segment.entries.len()));
        let longer = [&blob[..], &[0]].concat();
        assert_eq!(Segment::open(&longer, &key, &session, number).err(), Some(ErrorCode::PayloadRejected));
        assert_eq!(Segment::open(&blob, &key, &session, number + 1).err(), Some(ErrorCode::PayloadRejected));
    }
    assert_eq!(entries, [(0, 1), (0, 15), (0, 16), (1, 1)]);
}

#[test]
fn sealed_records_of_the_vectors_open() {
    let vectors = load("objects.json");
    let mut opened = 0;
    for vector in items(&vectors, "objects").iter().filter(|vector| vector["type"] == "Record") {
        let key = baton_keys::session::RecordKey::from_bytes(bytes(vector, "record_key").try_into().unwrap());
        let session = session::make();
        let identity = bytes(vector, "identity");
        let mut identities = session.done.iter().map(|turn| turn.accepted.link.record_identity());
        let identity = identities.find(|found| found.to_bytes()[..] == identity[..]).unwrap();
        let record = SealedRecord(bytes(vector, "sealed")).open(&key, &identity).unwrap();
        assert_eq!(codec::encode(&record), bytes(vector, "body"));
        opened += 1;
    }
    assert_eq!(opened, 5);
}
