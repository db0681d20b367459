//! A first turn of a fresh session, sent to a running `baton-node` over its own port.

use std::time::{SystemTime, UNIX_EPOCH};

use baton_keys::{
    exchange::{EphemeralSecret, SUITE, TurnSecret},
    seal::StreamOpener,
    secret::random_bytes,
    session::{RecordIdentity, SessionRoot},
};
use baton_mesh::{Mesh, MeshConfig, MeshHandle, Multiaddr, Reach, TurnStream};
use baton_proto::{
    ErrorCode, SignedObject, codec,
    ids::{DeviceId, GrantHash, ModelId, NodeId, PayloadHash, SamplingDigest, TurnId},
    limits::{MAX_NODE_FRAME_BYTES, PAYLOAD_VERSION, TURN_AUTH_VERSION},
    link::Genesis,
    node_record::NodeRecord,
    note::{TurnNote, TurnNoteKind},
    record::{Message, RecordKind, Role},
    turn::{Grant, GrantedKey, Payload, Sampling, SealedPayload, StoragePolicy, TurnAuth},
    wire::{ClientFrame, NodeFrame, ReplyEvent, TurnRequest, TurnStatus},
};
use serde_json::Value;
use tokio::time::{Duration, Instant};
use zeroize::Zeroizing;

/// Shards of the tests' stores.
pub(crate) const SHARDS: u16 = 10;

/// A client of one node.
pub(crate) struct Client {
    mesh: MeshHandle,
    node: NodeId,
    address: Multiaddr,
}

/// A turn in progress.
pub(crate) struct Turn {
    stream: TurnStream,
    secret: TurnSecret,
    auth: SignedObject<TurnAuth>,
    request: TurnRequest,
    root: SessionRoot,
    opener: Option<StreamOpener>,
}

/// The node's reply, up to the end or the break of the stream.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub accepted: bool,
    pub text: String,
    pub committed: bool,
    pub complete: bool,
    /// The code of a refusal or failure.
    pub code: Option<ErrorCode>,
    /// The retry time of a refusal.
    pub retry_after_ms: u32,
}

impl Client {
    /// Connects to the node of this ready event.
    pub(crate) async fn of(ready: &Value) -> Self {
        let seed = Zeroizing::new(random_bytes());
        // The addresses are local.
        let config = MeshConfig { reach: Some(Reach::Loopback), ..MeshConfig::dialer("baton/test (client)") };
        let (mesh, _) = Mesh::spawn(seed, config).await.unwrap();
        let address = ready["listen"][0].as_str().unwrap().parse().unwrap();
        Self { mesh, node: ready["node"].as_str().unwrap().parse().unwrap(), address }
    }

    async fn open(&self, frame: &ClientFrame) -> TurnStream {
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut stream =
            self.mesh.open(self.node, std::slice::from_ref(&self.address), deadline).await.unwrap();
        stream.send_by(&codec::encode(frame), deadline).await.unwrap();
        stream
    }

    /// The node's record, verified.
    pub(crate) async fn record(&self) -> SignedObject<NodeRecord> {
        let mut stream = self.open(&ClientFrame::NodeRecord).await;
        let frame = stream.recv(MAX_NODE_FRAME_BYTES).await.unwrap().expect("an answer");
        match codec::decode(&frame, MAX_NODE_FRAME_BYTES).unwrap() {
            NodeFrame::NodeRecord(record) => SignedObject::verify(record).unwrap(),
            other => panic!("not a record: {other:?}"),
        }
    }

    /// Sends the first turn of a fresh session.
    pub(crate) async fn ask(&self, text: &str) -> Turn {
        let record = self.record().await;
        self.ask_with(&record, text).await
    }

    /// The same with a record that may be outdated.
    pub(crate) async fn ask_with(&self, record: &NodeRecord, text: &str) -> Turn {
        let now = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
        let node_key = record.current_key(now).unwrap();
        let root = SessionRoot::generate();
        let payload = first_payload(&root, self.node, text);
        let mut auth = first_auth(&root, self.node, record.models[0].model, &payload, now);
        auth.audience_key = node_key.id();
        let (sealed, secret) =
            SealedPayload::seal(&payload.1, EphemeralSecret::generate(), node_key, &auth.binding()).unwrap();
        auth.payload_hash = sealed.hash();
        let auth = SignedObject::sign(auth, &root.signing_key());
        let request =
            TurnRequest { auth: auth.bytes().clone(), payload: sealed, inline: Vec::new(), memory: None };
        let stream = self.open(&ClientFrame::Turn(request.clone())).await;
        Turn { stream, secret, auth, request, root, opener: None }
    }

    /// Sends the same request again and reads the answer to its end.
    pub(crate) async fn ask_again(&self, turn: &mut Turn) -> Reply {
        turn.stream = self.open(&ClientFrame::Turn(turn.request.clone())).await;
        turn.finish().await
    }

    /// The node's status of a turn.
    pub(crate) async fn status(&self, turn: &Turn) -> Result<TurnStatus, ErrorCode> {
        let note = TurnNote::of(&turn.auth, TurnNoteKind::Status, turn.auth.issued_ms);
        let signed = SignedObject::sign(note, &turn.root.signing_key());
        let mut stream = self.open(&ClientFrame::Note(signed.bytes().clone())).await;
        let frame = stream.recv(MAX_NODE_FRAME_BYTES).await.unwrap().expect("an answer");
        match codec::decode(&frame, MAX_NODE_FRAME_BYTES).unwrap() {
            NodeFrame::Status(status) => Ok(status),
            NodeFrame::Refused { code, .. } => Err(code),
            other => panic!("not an answer to a status request: {other:?}"),
        }
    }
}

fn first_payload(root: &SessionRoot, node: NodeId, text: &str) -> (TurnId, Payload) {
    let turn_id = TurnId(random_bytes());
    let identity = RecordIdentity {
        session_id: root.session_id(),
        segment: 0,
        seq: 0,
        turn_id,
        attempt: 0,
        author: node,
    };
    let record_key = root.record_key(&identity);
    let blob_key = root.blob_key(0, &record_key.blob_salt());
    let grant = Grant {
        segment: 0,
        index: 0,
        record_key: GrantedKey::of_record(&record_key),
        blob_key: GrantedKey::of_blob(&blob_key),
        blobs: Vec::new(),
        records: Vec::new(),
        head: None,
    };
    let payload = Payload {
        version: PAYLOAD_VERSION,
        grant,
        kind: RecordKind::Turn,
        supersedes_from: None,
        system: Vec::new(),
        messages: vec![Message::new(Role::User, text)],
        sampling: Sampling::default(),
        json_schema: None,
        storage: StoragePolicy::default(),
        resume_tokens: Vec::new(),
        checks: Vec::new(),
    };
    (turn_id, payload)
}

fn first_auth(
    root: &SessionRoot,
    node: NodeId,
    model: ModelId,
    (turn_id, payload): &(TurnId, Payload),
    now: u64,
) -> TurnAuth {
    let session_key = root.signing_key().public_key();
    let genesis = Genesis { session_key, n_shards: SHARDS, branch: None };
    let mut auth = TurnAuth {
        version: TURN_AUTH_VERSION,
        suite: SUITE,
        session_id: root.session_id(),
        session_key,
        device_id: DeviceId([7; 16]),
        seq: 0,
        turn_id: *turn_id,
        attempt: 0,
        prev_link: genesis.link_hash(),
        prev_blob: None,
        n_shards: SHARDS,
        branch: None,
        audience: node,
        audience_key: baton_keys::ids::ExchangeKeyId([0; 32]),
        payload_hash: PayloadHash([0; 32]),
        model,
        sampling: SamplingDigest([0; 32]),
        max_output_tokens: 512,
        max_price: 1_000_000,
        memory_from: None,
        memory_tokens: 0,
        grant_hash: GrantHash([0; 32]),
        resume: None,
        checks: Vec::new(),
        issued_ms: now,
        expires_ms: now + 60_000,
    };
    auth.grant_hash = payload.grant.hash();
    auth.sampling = payload.sampling.digest(&payload.grant.record_key.record_key());
    auth
}

impl Turn {
    /// Reads until the predicate holds or the stream ends, whichever comes first.
    pub(crate) async fn read_until(&mut self, enough: impl Fn(&Reply) -> bool) -> Reply {
        let mut reply = Reply::default();
        let deadline = Instant::now() + Duration::from_secs(60);
        while let Ok(Some(frame)) = self.stream.recv_by(MAX_NODE_FRAME_BYTES, deadline).await {
            match codec::decode(&frame, MAX_NODE_FRAME_BYTES).unwrap() {
                NodeFrame::Accepted { nonce } => {
                    self.opener = Some(self.secret.reply_opener(&nonce, &self.auth.auth_hash().0));
                    reply.accepted = true;
                }
                NodeFrame::Chunk(sealed) => {
                    let (event, last) = self.opener.as_mut().unwrap().open(&sealed).unwrap();
                    match ReplyEvent::from_chunk(&event).unwrap() {
                        ReplyEvent::Tokens { text, .. } => reply.text.push_str(&text),
                        ReplyEvent::Committed(_) => reply.committed = true,
                        ReplyEvent::Failed { code, .. } => reply.code = Some(code),
                        _ => {}
                    }
                    reply.complete = last;
                }
                NodeFrame::Refused { code, retry_after_ms } => {
                    reply.code = Some(code);
                    reply.retry_after_ms = retry_after_ms;
                }
                other => panic!("not part of a reply: {other:?}"),
            }
            if enough(&reply) {
                break;
            }
        }
        reply
    }

    /// Reads to the end.
    pub(crate) async fn finish(&mut self) -> Reply {
        self.read_until(|_| false).await
    }
}
