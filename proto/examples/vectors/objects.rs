//! Vectors of single objects and frames, each with its fields, its bytes and its hash, if any.

use baton_keys::{
    SecretSigningKey,
    owner::sui_address,
    session::{BlobKey, RecordKey},
};
use baton_proto::{
    ErrorCode, Signable, SignedBytes, SignedObject, codec,
    export::ExportStatement,
    head::{BranchHead, DeviceLease, HeadInner, HeadRecord, SegmentRef},
    ids::{
        AuthHash, BlobDigest, BlobId, DeviceId, FetchProof, LinkHash, ModelId, RightId, SessionId, SuiAddress,
    },
    limits::{MODEL_MANIFEST_VERSION, NODE_RECORD_VERSION, PROGRESS_TOKENS, VERSION},
    link::BranchPoint,
    memory::{RecallHint, RecallScope},
    node_record::{KeyWindow, ModelManifest, ModelOffer, NodeLimits, NodeRecord, StorageOffer},
    note::{TurnNote, TurnNoteKind},
    receipt::{EngineKind, ProgressNote},
    record::RecordKind,
    right::{MemoryAccess, Permissions, QuotaProof, QuotaUse, Right, RightChain, RightScope, TurnQuota},
    turn::{Grant, GrantedKey, HeadGrant, Sampling, StoragePolicy},
    wire::{
        ClientFrame, InlineBlob, NodeFrame, RelayRecall, ReplyEvent, StoreState, TokenBytes, TokenLogprob,
        TurnRequest, TurnStatus,
    },
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::harness::{CompletedTurn, RequestedTurn, Session};

use super::{
    counting, fields, head_of,
    session::{self, START_MS, node, node_exchange, root, running_hashes_of},
};

/// A signed object with its fields, bytes and hash.
pub(crate) fn signed<T: Signable>(name: &str, object: &SignedObject<T>, hash: Option<String>) -> Value {
    let bytes: &SignedBytes = object.bytes();
    json!({
        "type": name,
        "label": T::LABEL.as_str(),
        "signer": object.signer().to_string(),
        "fields": fields(&**object),
        "body": hex::encode(&bytes.body),
        "signature": hex::encode(bytes.signature.0),
        "encoded": hex::encode(object.encode()),
        "hash": hash,
    })
}

/// As [`signed`], for an unsigned object.
pub(crate) fn plain(name: &str, object: &impl Serialize, hash: Option<String>) -> Value {
    json!({
        "type": name,
        "fields": fields(object),
        "body": hex::encode(codec::encode(object)),
        "hash": hash,
    })
}

fn turn(made: &Session, seq: usize) -> &CompletedTurn {
    made.done.get(seq).expect("the session has twenty turns")
}

/// The progress note of the first 32 tokens of turn 2.
pub(crate) fn progress(made: &Session) -> SignedObject<ProgressNote> {
    let turn = turn(made, 2);
    let note = ProgressNote {
        version: VERSION,
        node: turn.requested.auth.audience,
        auth_hash: turn.requested.auth.auth_hash(),
        token_count: PROGRESS_TOKENS,
        running_hash: *running_hashes_of(&turn.requested, &turn.script.answer)
            .get(PROGRESS_TOKENS as usize)
            .expect("turn 2 has a long answer"),
        time_ms: turn.requested.auth.issued_ms + 500,
    };
    SignedObject::sign(note, &node(2))
}

/// The abort of attempt 0 of turn 7.
pub(crate) fn abort(made: &Session) -> SignedObject<TurnNote> {
    let auth = &turn(made, 7).requested.auth;
    let note = TurnNote { attempt: 0, ..TurnNote::of(auth, TurnNoteKind::Abort, auth.issued_ms + 100) };
    SignedObject::sign(note, &root().signing_key())
}

/// The client's statement about the head of an export.
pub(crate) fn export_statement(made: &Session) -> SignedObject<ExportStatement> {
    let head = head_of(made);
    let (session_id, session_key) = (root().session_id(), root().signing_key().public_key());
    let (seq, link_hash) = (head.seq, head.link_hash);
    let statement = ExportStatement { version: VERSION, session_id, session_key, seq, link_hash };
    SignedObject::sign(statement, &root().signing_key())
}

/// The status request for turn 7's second attempt.
fn status(made: &Session) -> SignedObject<TurnNote> {
    let auth = &turn(made, 7).requested.auth;
    let note = TurnNote::of(auth, TurnNoteKind::Status, auth.issued_ms + 200);
    SignedObject::sign(note, &root().signing_key())
}

/// A branch that ends with turn 7.
fn branches(made: &Session) -> Vec<BranchHead> {
    let last = turn(made, 7);
    vec![BranchHead {
        seq: last.accepted.link.seq,
        link_hash: last.accepted.link.link_hash(),
        turn_id: last.accepted.link.turn_id,
        attempt: last.accepted.link.attempt,
        author: last.accepted.link.author,
        end: SegmentRef { segment: last.accepted.link.segment, blob: last.blob },
    }]
}

fn head_inner(made: &Session) -> HeadInner {
    let last = turn(made, 19);
    HeadInner {
        turn_id: last.accepted.link.turn_id,
        attempt: last.accepted.link.attempt,
        author: last.accepted.link.author,
        devices: vec![DeviceLease { device: DeviceId([0xd0; 16]), expires_ms: START_MS + 7_200_000 }],
        branches: branches(made),
        tombstone: false,
    }
}

/// The head record after turn 19.
pub(crate) fn head(made: &Session) -> SignedObject<HeadRecord> {
    HeadRecord::seal(
        &root(),
        &head_of(made),
        &head_inner(made),
        START_MS + 1_200_000,
        START_MS + 1_200_000,
        START_MS + 86_400_000,
    )
}

fn manifest() -> ModelManifest {
    ModelManifest {
        version: MODEL_MANIFEST_VERSION,
        architecture: "llama".to_owned(),
        weights_sha256: counting(0x01),
        tokenizer_hash: counting(0x02),
        template_hash: counting(0x03),
        engine_revision: 1,
    }
}

/// The record of node 0.
pub(crate) fn node_record() -> SignedObject<NodeRecord> {
    let record = NodeRecord {
        version: NODE_RECORD_VERSION,
        node: node(0).node_id(),
        sequence: 3,
        addresses: vec!["/ip4/192.0.2.7/udp/4001/quic-v1".to_owned()],
        keys: vec![KeyWindow {
            key: node_exchange(0).public_key(),
            from_ms: START_MS,
            until_ms: START_MS + 86_400_000,
        }],
        models: [(EngineKind::Proxied, "small"), (EngineKind::Library, "mixed")]
            .map(|(engine, name)| ModelOffer {
                model: if engine == EngineKind::Proxied {
                    manifest().model_id()
                } else {
                    ModelId([0xee; 32])
                },
                name: name.to_owned(),
                engine,
                context_tokens: 4_096,
                input_price: 10,
                output_price: 30,
            })
            .to_vec(),
        limits: NodeLimits { slots: 4, queue: 16, turns_per_minute: 60, max_output_tokens: 2_048 },
        storage: StorageOffer { price: 7, max_epochs: 53, unknown_max_epochs: 5 },
        versions: vec![1],
        software: "baton/0.1.0".to_owned(),
        issued_ms: START_MS,
        expires_ms: START_MS + 3_600_000,
    };
    SignedObject::sign(record, &node(0))
}

/// A hint for turn 5, which has memory, by a separate account.
pub(crate) fn recall_hint(made: &Session) -> SignedObject<RecallHint> {
    let account = SecretSigningKey::from_seed(&counting(0xac));
    let hint = RecallHint {
        version: VERSION,
        auth_hash: turn(made, 5).requested.auth.auth_hash(),
        owner: SuiAddress(sui_address(&account.public_key())),
        key: account.public_key(),
        hint: "harbour café".to_owned(),
        session: Some(root().session_id().to_string()),
        project: Some("boats".to_owned()),
        persona: None,
        scope: RecallScope::NeutralOnly,
    };
    SignedObject::sign(hint, &account)
}

/// An issuer's grant, a narrower one by its holder, a delegation and an invitation.
pub(crate) fn rights() -> [SignedObject<Right>; 4] {
    let (issuer, holder) =
        (SecretSigningKey::from_seed(&counting(0xb0)), SecretSigningKey::from_seed(&counting(0xb1)));
    let day = START_MS..START_MS + 86_400_000;
    let quota =
        TurnQuota { models: Vec::new(), turns_per_hour: 600, tokens_per_hour: 200_000, concurrent: 4 };
    let narrow = TurnQuota { models: vec![manifest().model_id()], turns_per_hour: 60, ..quota.clone() };
    let first = Right {
        id: RightId(counting(0xb2)),
        depth: 3,
        ..Right::new(issuer.public_key(), holder.public_key(), RightScope::Turns(quota), day.clone())
    };
    let first = SignedObject::sign(first, &issuer);
    let second = Right {
        grantor: holder.public_key(),
        id: RightId(counting(0xb3)),
        parent: Some(first.right_hash()),
        holder: SecretSigningKey::from_seed(&counting(0xb4)).public_key(),
        places: [node(0), node(1)].map(|node| node.public_key()).to_vec(),
        scope: RightScope::Turns(narrow),
        depth: 0,
        ..Right::clone(&first)
    };
    let access = MemoryAccess { permissions: Permissions(0b11), project: Some("boats".to_owned()) };
    let delegation = Right {
        id: RightId(counting(0xb5)),
        ..Right::new(issuer.public_key(), holder.public_key(), RightScope::Memory(access), day.clone())
    };
    let invitation = Right {
        id: RightId(counting(0xb6)),
        places: vec![issuer.public_key()],
        ..Right::new(issuer.public_key(), holder.public_key(), RightScope::Ownership, day)
    };
    [
        first,
        SignedObject::sign(second, &holder),
        SignedObject::sign(delegation, &issuer),
        SignedObject::sign(invitation, &issuer),
    ]
}

/// The chain of both grants, and its use for an authorisation.
pub(crate) fn quota_use(auth_hash: AuthHash) -> QuotaUse {
    let [first, second, ..] = rights().map(|right| right.bytes().clone());
    let chain = RightChain::verify_form(&[first, second]).expect("the fixture's grants hold");
    chain.prove(&SecretSigningKey::from_seed(&counting(0xb4)), auth_hash)
}

/// The use of the narrower grant for turn 5.
pub(crate) fn quota_proof(made: &Session) -> SignedObject<QuotaProof> {
    let used = quota_use(turn(made, 5).requested.auth.auth_hash());
    SignedObject::verify(used.proof).expect("the fixture's proof verifies")
}

/// Every object, signed and unsigned.
pub(crate) fn object_vectors(made: &Session) -> Value {
    let link = |seq| {
        let link = &turn(made, seq).accepted.link;
        signed("Link", link, Some(link.link_hash().to_string()))
    };
    let auth = |seq| {
        let auth = &turn(made, seq).requested.auth;
        signed("TurnAuth", auth, Some(auth.auth_hash().to_string()))
    };
    let receipt = |seq| {
        let receipt = &turn(made, seq).accepted.receipt;
        signed("Receipt", receipt, Some(receipt.receipt_hash().to_string()))
    };
    let memory = turn(made, 5).requested.envelope.as_ref().expect("turn 5 has memory");
    let mut objects: Vec<_> = [0, 1, 7, 16].into_iter().flat_map(|seq| [link(seq), auth(seq)]).collect();
    objects.extend([
        auth(5),
        receipt(0),
        receipt(5),
        receipt(7),
        receipt(18),
        signed("ProgressNote", &progress(made), None),
        signed("TurnNote", &session::ack(turn(made, 7)), None),
        signed("TurnNote", &abort(made), None),
        signed("TurnNote", &status(made), None),
        signed("ExportStatement", &export_statement(made), None),
        signed("HeadRecord", &head(made), Some(head(made).index_key().to_string())),
        signed("NodeRecord", &node_record(), None),
        signed("MemEnvelope", memory, None),
        signed("RecallHint", &recall_hint(made), None),
        signed("QuotaProof", &quota_proof(made), None),
    ]);
    objects.extend(rights().iter().map(|right| signed("Right", right, Some(right.right_hash().to_string()))));
    for seq in [0, 3, 9, 12, 18] {
        let turn = turn(made, seq);
        let record = &turn.accepted.record;
        let sealed = record
            .seal(&turn.requested.record_key, &turn.accepted.link.record_identity())
            .expect("the fixture's record seals");
        let mut vector = plain("Record", record, Some(sealed.hash().to_string()));
        vector["record_key"] = json!(hex::encode(turn.requested.record_key.expose()));
        vector["identity"] = json!(hex::encode(turn.accepted.link.record_identity().to_bytes()));
        vector["sealed"] = json!(hex::encode(&sealed.0));
        objects.push(vector);
    }
    for seq in [0, 1, 7, 9, 17] {
        let payload = &turn(made, seq).requested.payload;
        objects.push(plain("Grant", &payload.grant, Some(payload.grant.hash().to_string())));
        objects.push(plain("Payload", payload, None));
    }
    let located = {
        let mut grant = turn(made, 17).requested.payload.grant.clone();
        grant.blobs.iter_mut().for_each(|read| read.blob = None);
        let secret = root().head_secret(baton_proto::head::head_period(START_MS));
        let key = GrantedKey::of_head(&secret.locate_key());
        Grant { head: Some(HeadGrant { index_key: secret.index_key(), key }), ..grant }
    };
    objects.push(plain("Grant", &located, Some(located.hash().to_string())));
    let full = Sampling {
        stop: vec!["END".to_owned(), "終".to_owned()],
        json_schema: Some(counting(0x77)),
        logprobs: 5,
        ..session::sampling(u64::MAX)
    };
    let record_key = RecordKey::from_bytes(counting(0x79));
    for sampling in [Sampling::default(), full] {
        let mut vector = plain("Sampling", &sampling, Some(sampling.digest(&record_key).to_string()));
        vector["record_key"] = json!(hex::encode(record_key.expose()));
        objects.push(vector);
    }
    let branched = {
        let branch =
            Some(BranchPoint { session_id: SessionId(counting(0x70)), link_hash: LinkHash(counting(0x71)) });
        baton_proto::head::HeadOuter { branch, ..head_of(made) }
    };
    let storage =
        StoragePolicy { send_object_to: Some(SuiAddress(counting(0x78))), ..StoragePolicy::default() };
    objects.extend([
        plain("ModelManifest", &manifest(), Some(manifest().model_id().to_string())),
        plain("HeadOuter", &head_of(made), None),
        plain("HeadOuter", &branched, None),
        plain("HeadInner", &head_inner(made), None),
        plain("StoragePolicy", &storage, None),
        plain("MemoryItems", &session::memory_items(), None),
        plain("RecordKind", &RecordKind::Tombstone, None),
    ]);
    json!({ "objects": objects })
}

/// A frame: encoded, and as sent with its length.
pub(crate) fn frame(name: &str, kind: &str, frame: &impl Serialize) -> Value {
    let body = codec::encode(frame);
    let length = u32::try_from(body.len()).expect("frames of the fixture are small");
    json!({
        "type": kind,
        "name": name,
        "fields": fields(frame),
        "body": hex::encode(&body),
        "framed": hex::encode([&length.to_le_bytes()[..], &body].concat()),
    })
}

fn client_frames(made: &Session) -> Vec<(&'static str, ClientFrame)> {
    let request = |seq| {
        let RequestedTurn { auth, sealed, .. } = &turn(made, seq).requested;
        let (auth, payload) = (auth.bytes().clone(), sealed.clone());
        TurnRequest { auth, payload, inline: Vec::new(), memory: None }
    };
    let memory = turn(made, 5).requested.envelope.as_ref().map(|memory| memory.bytes().clone());
    let inline = vec![InlineBlob(counting::<64>(0).to_vec())];
    let full = TurnRequest { inline, memory, ..request(5) };
    vec![
        ("Turn", ClientFrame::Turn(full)),
        ("Relay", ClientFrame::Relay { request: request(0), recall: None }),
        ("Note.Status", ClientFrame::Note(status(made).bytes().clone())),
        ("Note.Ack", ClientFrame::Note(session::ack(turn(made, 7)).bytes().clone())),
        ("Note.Abort", ClientFrame::Note(abort(made).bytes().clone())),
        (
            "FetchBlob",
            ClientFrame::FetchBlob {
                digest: BlobDigest(counting(0x10)),
                proof: FetchProof(BlobKey::from_bytes(counting(0x11)).fetch_proof(&counting(0x10))),
            },
        ),
        ("NodeRecord", ClientFrame::NodeRecord),
        (
            "Relay.Recall",
            ClientFrame::Relay {
                request: request(5),
                recall: Some(RelayRecall {
                    hint: recall_hint(made).bytes().clone(),
                    node_key: node_exchange(2).public_key(),
                }),
            },
        ),
        ("Quota", ClientFrame::Quota(quota_use(turn(made, 5).requested.auth.auth_hash()))),
    ]
}

fn node_frames(made: &Session) -> Vec<(&'static str, NodeFrame)> {
    let committed = || Box::new(turn(made, 1).committed.clone());
    let stored = StoreState::Stored { blob_id: BlobId(counting(0x20)), end_epoch: Some(53) };
    let sealed = |store| NodeFrame::Status(TurnStatus::Sealed { committed: committed(), store });
    vec![
        ("Accepted", NodeFrame::Accepted { nonce: counting(0x30) }),
        ("Chunk", NodeFrame::Chunk(counting::<48>(0x40).to_vec())),
        ("Refused", NodeFrame::Refused { code: ErrorCode::Busy, retry_after_ms: 1_500 }),
        ("Status.Accepted", NodeFrame::Status(TurnStatus::Accepted)),
        ("Status.Sealed.Stored", sealed(stored)),
        ("Status.Sealed.Pending", sealed(StoreState::Pending)),
        ("Status.Sealed.GivenUp", sealed(StoreState::GivenUp)),
        ("Status.Aborted", NodeFrame::Status(TurnStatus::Aborted)),
        ("Done", NodeFrame::Done),
        ("Blob", NodeFrame::Blob(counting::<32>(0x50).to_vec())),
        ("NodeRecord", NodeFrame::NodeRecord(node_record().bytes().clone())),
        ("Memory", NodeFrame::Memory(session::memory_items())),
    ]
}

fn reply_events(made: &Session) -> Vec<(&'static str, ReplyEvent)> {
    let logprob =
        |token, millinats, bytes: &[u8]| TokenLogprob { token, millinats, bytes: TokenBytes(bytes.to_vec()) };
    let tokens = ReplyEvent::Tokens {
        index: 32,
        ids: vec![1, 70_000],
        text: " cork⛵".to_owned(),
        // A word, another one, the first bytes of a character, and a token without text.
        logprobs: vec![
            logprob(1, -125, b" cork"),
            logprob(9, -2_300, b" ship"),
            logprob(70_000, 0, b"\xe2\x9b"),
            logprob(3, i32::MIN, b""),
        ],
    };
    vec![
        ("Waiting", ReplyEvent::Waiting(2)),
        ("Tokens", tokens),
        ("Progress", ReplyEvent::Progress(progress(made).bytes().clone())),
        ("Committed", ReplyEvent::Committed(Box::new(turn(made, 0).committed.clone()))),
        ("Store", ReplyEvent::Store(StoreState::Stored { blob_id: BlobId(counting(0x20)), end_epoch: None })),
        (
            "Failed",
            ReplyEvent::Failed {
                code: ErrorCode::RateLimited,
                retry_after_ms: 30_000,
                reason: "the server takes no more requests".to_owned(),
            },
        ),
        ("Checked", ReplyEvent::Checked(turn(made, 5).accepted.receipt.bytes().clone())),
    ]
}

/// Every frame and every event of a reply.
pub(crate) fn frame_vectors(made: &Session) -> Value {
    let mut frames = Vec::new();
    frames.extend(client_frames(made).iter().map(|(name, body)| frame(name, "ClientFrame", body)));
    frames.extend(node_frames(made).iter().map(|(name, body)| frame(name, "NodeFrame", body)));
    frames.extend(reply_events(made).iter().map(|(name, body)| frame(name, "ReplyEvent", body)));
    json!({ "protocol": baton_proto::wire::TURN_PROTOCOL, "frames": frames })
}
