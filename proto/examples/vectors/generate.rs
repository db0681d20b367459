//! The known-answer vectors: JSON files from fixed secrets and times. The example that writes them and the
//! tests that compare them share this module; no single test uses all of it.
#![allow(dead_code, reason = "each of its users takes a part")]

use baton_keys::{
    SecretSigningKey,
    contexts::{ALL_CONTEXTS, ALL_LABELS, SIV_ENCRYPT, SIV_MAC, TURN_PAYLOAD, TURN_REPLY},
    exchange::{EphemeralSecret, ExchangeSecret, MemorySecret, SUITE, TurnBinding, TurnSecret},
    ids::{BlobSalt, NodeId, SessionId, TurnId},
    owner::sui_address,
    secret::kdf,
    session::{BlobKey, RecordIdentity, RecordKey},
};
use baton_proto::{
    codec,
    head::{HeadOuter, head_period},
    ids::{AuthHash, LinkHash},
    limits::{
        HEAD_INNER_BLOCK, HEAD_OUTER_BLOCK, MAX_RECORD_BUCKET, MIN_RECORD_BUCKET, PAYLOAD_BLOCK, REPLY_BLOCK,
    },
    link::{BranchPoint, Genesis},
    receipt::{commit_input, commit_memory, commit_output, running_hash_start, running_hash_step},
    record::{FinishReason, Message, Role},
    turn::{json_schema_hash, resume_tokens_hash},
    wire::ReplyEvent,
};
use serde::Serialize;
use serde_json::{Map, Value, json};

#[path = "contradiction.rs"]
pub(crate) mod contradiction;
#[path = "embed.rs"]
pub(crate) mod embed;
#[path = "objects.rs"]
pub(crate) mod objects;
#[path = "session.rs"]
pub(crate) mod session;

use crate::harness::Session;

/// Every file: name and text.
pub(crate) fn files() -> Vec<(&'static str, String)> {
    let made = session::make();
    let mut export = serde_json::to_string(&session::export(&made, false)).expect("an export is plain JSON");
    export.push('\n');
    let mut proof = serde_json::to_string(&contradiction::proof()).expect("a proof is plain JSON");
    proof.push('\n');
    vec![
        ("kdf.json", text(kdf_vectors())),
        ("keys.json", text(key_vectors())),
        ("sealing.json", text(sealing_vectors())),
        ("exchange.json", text(exchange_vectors(&made))),
        ("hashes.json", text(hash_vectors())),
        ("objects.json", text(objects::object_vectors(&made))),
        ("frames.json", text(objects::frame_vectors(&made))),
        ("blobs.json", text(blob_vectors(&made))),
        ("embed.json", text(embed::vectors())),
        ("export-20.json", export),
        ("contradiction.json", proof),
    ]
}

/// Sorted keys, whatever the features of the JSON crate, and a final newline.
fn text(value: Value) -> String {
    let mut text = serde_json::to_string_pretty(&sorted(value)).expect("a JSON value prints");
    text.push('\n');
    text
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.into_iter().collect();
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            let ordered: Map<_, _> = entries.into_iter().map(|(name, value)| (name, sorted(value))).collect();
            Value::Object(ordered)
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}

/// An object's fields as JSON, with byte strings (16 bytes at least) in hex.
pub(crate) fn fields(value: &impl Serialize) -> Value {
    hexed(serde_json::to_value(value).expect("wire objects are plain data"))
}

fn hexed(value: Value) -> Value {
    match value {
        Value::Array(items) => {
            let bytes: Option<Vec<u8>> =
                items.iter().map(|item| item.as_u64().and_then(|number| u8::try_from(number).ok())).collect();
            match bytes {
                Some(bytes) if bytes.len() >= 16 => Value::String(hex::encode(bytes)),
                _ => Value::Array(items.into_iter().map(hexed).collect()),
            }
        }
        Value::Object(map) => {
            Value::Object(map.into_iter().map(|(name, value)| (name, hexed(value))).collect())
        }
        other => other,
    }
}

/// Bytes that count up from `first`.
pub(crate) fn counting<const N: usize>(first: u8) -> [u8; N] {
    let mut bytes = [0u8; N];
    for (offset, byte) in bytes.iter_mut().enumerate() {
        *byte = first.wrapping_add(u8::try_from(offset % 256).expect("below 256"));
    }
    bytes
}

fn kdf_vectors() -> Value {
    let input = counting::<40>(0);
    let contexts: Vec<_> = ALL_CONTEXTS
        .iter()
        .map(|(name, context)| {
            json!({
                "name": name,
                "context": context.as_str(),
                "input": hex::encode(input),
                "output": hex::encode(kdf(*context, &[&input])),
            })
        })
        .collect();
    let seed = counting::<32>(0x80);
    let key = SecretSigningKey::from_seed(&seed);
    let labels: Vec<_> = ALL_LABELS
        .iter()
        .map(|(name, label)| {
            json!({
                "name": name,
                "label": label.as_str(),
                "message": hex::encode(input),
                "signature": hex::encode(key.sign(*label, &input)),
            })
        })
        .collect();
    json!({
        "contexts": contexts,
        "labels": labels,
        "seed": hex::encode(seed),
        "public_key": key.public_key().to_string(),
        "sui_address": hex::encode(sui_address(&key.public_key())),
    })
}

fn identity() -> RecordIdentity {
    RecordIdentity {
        session_id: session::root().session_id(),
        segment: 2,
        seq: 33,
        turn_id: TurnId(counting(0x30)),
        attempt: 1,
        author: NodeId(counting(0x60)),
    }
}

fn key_vectors() -> Value {
    let root = session::root();
    let identity = identity();
    let record_key = root.record_key(&identity);
    let salt = record_key.blob_salt();
    let period = head_period(session::START_MS);
    let head = root.head_secret(period);
    json!({
        "root": hex::encode(root.expose()),
        "words": *root.to_words(),
        "session_seed": hex::encode(*root.signing_key().expose_seed()),
        "session_key": root.signing_key().public_key().to_string(),
        "session_id": root.session_id().to_string(),
        "head_period": period,
        "head_secret": hex::encode(head.expose()),
        "head_seed": hex::encode(*head.signing_key().expose_seed()),
        "head_key": head.signing_key().public_key().to_string(),
        "head_index_key": head.index_key().to_string(),
        "head_locate_key": hex::encode(head.locate_key().expose()),
        "next_head_index_key": root.head_secret(period + 1).index_key().to_string(),
        "head_inner_key": hex::encode(root.head_inner_key().expose()),
        "journal_key": hex::encode(root.journal_key().expose()),
        "segment_0": hex::encode(root.segment(0).expose()),
        "segment_2": hex::encode(root.segment(2).expose()),
        "identity": {
            "session_id": identity.session_id.to_string(),
            "segment": identity.segment,
            "seq": identity.seq,
            "turn_id": identity.turn_id.to_string(),
            "attempt": identity.attempt,
            "author": identity.author.to_string(),
            "bytes": hex::encode(identity.to_bytes()),
        },
        "record_key": hex::encode(record_key.expose()),
        "blob_salt": salt.to_string(),
        "blob_key": hex::encode(root.blob_key(identity.segment, &salt).expose()),
        "memory_fence": record_key.memory_fence(),
        "commitment_key": hex::encode(*record_key.commitment_key()),
    })
}

fn sealing_vectors() -> Value {
    let key: [u8; 32] = counting(1);
    let identity = identity();
    let mut siv = Vec::new();
    for length in [0usize, 1, 63, 64, 65, 256] {
        let text = vec![0x61; length];
        siv.push(json!({
            "key": hex::encode(key),
            "mac_key": hex::encode(kdf(SIV_MAC, &[&key])),
            "encrypt_key": hex::encode(kdf(SIV_ENCRYPT, &[&key])),
            "associated": hex::encode(identity.to_bytes()),
            "text": hex::encode(&text),
            "sealed": hex::encode(RecordKey::from_bytes(key).seal(&identity, &text)),
        }));
    }
    let salt = BlobSalt(counting(0x50));
    let session_id = SessionId(counting(0x90));
    let pads: Vec<_> = [0usize, 1, 252, 253, 508, 509]
        .iter()
        .map(|length| {
            let bytes = vec![0x62; *length];
            let padded = baton_proto::codec::pad(&bytes, MIN_RECORD_BUCKET, MAX_RECORD_BUCKET)
                .expect("far below the largest bucket");
            json!({ "length": length, "smallest": MIN_RECORD_BUCKET, "padded": hex::encode(&*padded) })
        })
        .collect();
    json!({
        "siv": siv,
        "blob": {
            "key": hex::encode(key),
            "salt": salt.to_string(),
            "session_id": session_id.to_string(),
            "segment": 7,
            "text": hex::encode(b"padded segment"),
            "sealed": hex::encode(BlobKey::from_bytes(key).seal(&salt, &session_id, 7, b"padded segment")),
        },
        "padding": pads,
    })
}

fn exchange_vectors(made: &Session) -> Value {
    let node = ExchangeSecret::from_bytes(&counting(0x11));
    let node_key = node.public_key();
    let ephemeral: [u8; 64] = counting(0x22);
    let binding = TurnBinding {
        suite: SUITE,
        session_id: session::root().session_id(),
        seq: 5,
        turn_id: TurnId(counting(0x33)),
        attempt: 2,
        session_key: session::root().signing_key().public_key(),
        node: session::node(0).node_id(),
    };
    let (encapsulation, secret) =
        TurnSecret::initiate(EphemeralSecret::from_bytes(&ephemeral), &node_key, &binding)
            .expect("the fixture's key is usable");
    let (nonce, auth_hash) = (counting::<32>(0x44), counting::<32>(0x55));
    let mut sealer = secret.reply_sealer(&nonce, &auth_hash);
    let chunks: Vec<_> = [(&b"first"[..], false), (b"", false), (b"last", true)]
        .iter()
        .map(|(text, last)| {
            json!({ "text": hex::encode(text), "last": last, "sealed": hex::encode(sealer.seal(text, *last)) })
        })
        .collect();
    let memory_binding = counting::<96>(0x66);
    let (memory_encapsulation, memory) =
        MemorySecret::initiate(EphemeralSecret::from_bytes(&counting(0x23)), &node_key, &memory_binding)
            .expect("the fixture's key is usable");
    let mut weak_key = *node_key.as_bytes();
    weak_key[1184..].fill(0);
    let mut unreduced_key = *node_key.as_bytes();
    unreduced_key[..2].fill(0xff);
    let mut weak_encapsulation = *encapsulation.as_bytes();
    weak_encapsulation[1088..].fill(0);
    let first = made.done.first().expect("the session has turns");
    let opened = first.requested.sealed.open(&session::node_exchange(0), &first.requested.auth);
    let (_, first_secret) = opened.expect("the node opens its payload");
    json!({
        "node_secret": hex::encode(*node.expose()),
        "node_key": hex::encode(node_key.as_bytes()),
        "node_key_id": node_key.id().to_string(),
        "ephemeral_secret": hex::encode(ephemeral),
        "encapsulation": hex::encode(encapsulation.as_bytes()),
        "binding": hex::encode(binding.to_bytes()),
        "turn_secret": hex::encode(secret.expose()),
        "payload_key": hex::encode(kdf(TURN_PAYLOAD, &[secret.expose()])),
        "payload": hex::encode(b"payload"),
        "sealed_payload": hex::encode(secret.seal_payload(b"payload")),
        "reply_nonce": hex::encode(nonce),
        "auth_hash": hex::encode(auth_hash),
        "reply_key": hex::encode(kdf(TURN_REPLY, &[secret.expose(), &nonce, &auth_hash])),
        "reply_chunks": chunks,
        "padded": [
            padded("payload", PAYLOAD_BLOCK, &codec::encode(&first.requested.payload)),
            padded("reply event", REPLY_BLOCK, &codec::encode(&ReplyEvent::Waiting(2))),
            padded("reply event", REPLY_BLOCK, &[0x5a; 124]),
            padded("reply event", REPLY_BLOCK, &[0x5a; 125]),
            padded("head outer", HEAD_OUTER_BLOCK, &codec::encode(&head_of(made))),
            padded("head inner", HEAD_INNER_BLOCK, &[]),
        ],
        "memory_ephemeral_secret": hex::encode(counting::<64>(0x23)),
        "memory_encapsulation": hex::encode(memory_encapsulation.as_bytes()),
        "memory_binding": hex::encode(memory_binding),
        "memory_secret": hex::encode(memory.expose()),
        "memory": hex::encode(b"items"),
        "sealed_memory": hex::encode(memory.seal(b"items")),
        "refused_keys": [hex::encode(weak_key), hex::encode(unreduced_key)],
        "refused_encapsulations": [hex::encode(weak_encapsulation)],
        "session_turn_0": {
            "node_secret": hex::encode(*session::node_exchange(0).expose()),
            "sealed_payload": hex::encode(&first.requested.sealed.0),
            "payload_hash": first.requested.sealed.hash().to_string(),
            "turn_secret": hex::encode(first_secret.expose()),
            "payload": hex::encode(codec::encode(&first.requested.payload)),
        },
    })
}

/// The head after the last turn.
pub(crate) fn head_of(made: &Session) -> HeadOuter {
    made.head_outer(made.done.len())
}

fn padded(what: &str, block: usize, body: &[u8]) -> Value {
    json!({ "what": what, "block": block, "body": hex::encode(body), "padded": hex::encode(&*codec::pad_block(body, block)) })
}

fn hash_vectors() -> Value {
    let session_key = session::root().signing_key().public_key();
    let branch = BranchPoint { session_id: SessionId(counting(0x70)), link_hash: LinkHash(counting(0x71)) };
    let genesis: Vec<_> = [(1000, None), (13, None), (1000, Some(branch))]
        .into_iter()
        .map(|(n_shards, branch)| {
            let genesis = Genesis { session_key, n_shards, branch };
            json!({ "fields": fields(&genesis), "link_hash": genesis.link_hash().to_string() })
        })
        .collect();
    let record_key = RecordKey::from_bytes(counting(3));
    let auth_hash = AuthHash(counting(4));
    let start = running_hash_start(&record_key, &auth_hash);
    let tokens = [0u32, 1, 65_535, u32::MAX];
    let mut running = start;
    let steps: Vec<_> = tokens
        .iter()
        .map(|token| {
            running = running_hash_step(&running, *token);
            json!({ "token": token, "hash": running.to_string() })
        })
        .collect();
    let system = session::system();
    let new = vec![Message::new(Role::User, "What floats?")];
    let items = session::memory_items();
    json!({
        "genesis": genesis,
        "running_hash": {
            "record_key": hex::encode(record_key.expose()),
            "auth_hash": auth_hash.to_string(),
            "start": start.to_string(),
            "steps": steps,
        },
        "resume_tokens": [
            { "tokens": [], "hash": hex::encode(resume_tokens_hash(&record_key, &[])) },
            { "tokens": tokens, "hash": hex::encode(resume_tokens_hash(&record_key, &tokens)) },
        ],
        "fetch_proof": {
            "blob_key": hex::encode(counting::<32>(0x11)),
            "digest": hex::encode(counting::<32>(0x10)),
            "proof": hex::encode(BlobKey::from_bytes(counting(0x11)).fetch_proof(&counting(0x10))),
        },
        "json_schema": { "text": "{\"type\":\"object\"}", "hash": hex::encode(json_schema_hash("{\"type\":\"object\"}")) },
        "commitments": {
            "record_key": hex::encode(record_key.expose()),
            "system": fields(&system),
            "window_from": 3,
            "messages": fields(&new),
            "input": commit_input(&record_key, &system, 3, &new).to_string(),
            "answer": "Cork.",
            "finish": fields(&FinishReason::Stop),
            "output": commit_output(&record_key, "Cork.", FinishReason::Stop).to_string(),
            "items": fields(&items),
            "memory": fields(&commit_memory(&record_key, &items)),
            "no_memory": fields(&commit_memory(&record_key, &[])),
        },
    })
}

/// The blobs after 1, 15, 16 and 17 turns: half-full, closed, and the first of the next segment.
fn blob_vectors(made: &Session) -> Value {
    let blobs: Vec<_> = [1usize, 15, 16, 17]
        .iter()
        .map(|count| {
            let turn = made.done.get(count - 1).expect("the session has twenty turns");
            let segment = &turn.accepted.segment;
            json!({
                "turns": count,
                "session_id": turn.accepted.link.session_id.to_string(),
                "segment": segment.segment,
                "entries": segment.entries.len(),
                "encoded_length": segment.encoded_len(),
                "closed": segment.is_closed(),
                "record_key": hex::encode(turn.requested.record_key.expose()),
                "blob_salt": turn.requested.record_key.blob_salt().to_string(),
                "blob_key": hex::encode(turn.requested.blob_key.expose()),
                "digest": turn.blob.digest.to_string(),
                "length": turn.blob.length,
                "link_hash": turn.accepted.link.link_hash().to_string(),
                "blob": hex::encode(&turn.accepted.blob),
            })
        })
        .collect();
    json!({ "root": hex::encode(session::root().expose()), "blobs": blobs })
}
