//! The code makes the committed known-answer vectors byte for byte, and reads them.

use std::{collections::BTreeSet, fs, path::Path};

use baton_keys::exchange::{EphemeralSecret, ExchangeSecret};
use baton_proto::{
    ErrorCode, SignedBytes, SignedObject, codec,
    embed::{EmbedAuth, SealedReply, SealedTexts},
    limits::MAX_OBJECT_BYTES,
    record::SealedRecord,
    segment::Segment,
    turn::{SealedPayload, TurnAuth},
};
use serde_json::Value;

use crate::{
    adversary::codecs::{WIRE_TYPES, WireType},
    generate::{
        self,
        session::{self, node_exchange, root},
    },
    support::source::Source,
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

fn wire_type(vector: &Value) -> &'static WireType {
    let found = WIRE_TYPES.iter().find(|of_type| of_type.name == vector["type"]);
    found.unwrap_or_else(|| panic!("no check for {}", vector["type"]))
}

/// Checks the body of a vector, and the signed encoding of a signed object; returns how many changes of the body decode.
fn check(vector: &Value) -> usize {
    let of_type = wire_type(vector);
    let (body, mut source) = (bytes(vector, "body"), Source::new(1));
    match of_type.check_signed {
        Some(check_signed) => {
            let encoded = bytes(vector, "encoded");
            let parts: SignedBytes = codec::decode(&encoded, MAX_OBJECT_BYTES).unwrap();
            assert_eq!(parts.body, body, "{}", of_type.name);
            check_signed(&encoded, &mut source);
        }
        None => assert!(vector["encoded"].is_null(), "{}", of_type.name),
    }
    (of_type.check)(&body, &mut source)
}

#[test]
fn every_object_and_frame_has_one_encoding_and_is_refused_with_any_change() {
    let files = ["objects.json", "frames.json", "embed.json"].map(load);
    let (mut objects, mut frames, mut accepted) = (BTreeSet::new(), BTreeSet::new(), 0);
    for vector in files.iter().filter_map(|file| file["objects"].as_array()).flatten() {
        accepted += check(vector);
        objects.insert(vector["type"].as_str().unwrap());
    }
    for vector in files.iter().filter_map(|file| file["frames"].as_array()).flatten() {
        accepted += check(vector);
        let name = vector["name"].as_str().unwrap().split('.').next().unwrap();
        frames.insert((vector["type"].as_str().unwrap(), name));
        let body = bytes(vector, "body");
        let length = u32::try_from(body.len()).unwrap().to_le_bytes();
        assert_eq!(bytes(vector, "framed"), [&length[..], &body].concat());
        // A variant that the frame's type does not have.
        assert!(!(wire_type(vector).read)(&[&[99], &body[1..]].concat()), "{name}");
    }
    assert!(accepted > 0, "some changes decode");
    // Six client frames, eight node frames, seven events; one request for embeddings, and two answers.
    assert_eq!((objects.len(), frames.len()), (25, 6 + 8 + 7 + 3));
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
