//! A client: one session, its keys, its requests, and the verification of every turn.

use baton_keys::{
    exchange::{EphemeralSecret, SUITE, TurnSecret},
    seal::StreamOpener,
    secret::random_bytes,
    session::{RecordIdentity, SessionRoot},
};
use baton_mesh::{Mesh, MeshConfig, MeshHandle, Multiaddr, Reach, TurnStream};
use baton_proto::{
    ErrorCode, SignedBytes, SignedObject, codec,
    commit::{AcceptedTurn, ChainPosition, ExpectedTurn, accept_turn},
    head::{HeadInner, HeadOuter, HeadRecord, SegmentRef, head_period},
    ids::{DeviceId, ExchangeKey, GrantHash, LinkHash, ModelId, NodeId, PayloadHash, SamplingDigest, TurnId},
    limits::{MAX_NODE_FRAME_BYTES, PAYLOAD_VERSION, TURN_AUTH_VERSION},
    link::{BlobRef, Genesis},
    memory::MemoryItem,
    note::{Acknowledgement, TurnNote, TurnNoteKind},
    receipt::ProgressNote,
    record::{Message, RecordKind, Role},
    segment::Segment,
    turn::{
        Grant, GrantedKey, HeadGrant, Payload, ReadBlob, ReadRecord, Sampling, SealedPayload, StoragePolicy,
        TurnAuth, resume_tokens_hash,
    },
    wire::{ClientFrame, Committed, NodeFrame, ReplyEvent, StoreState, TurnRequest, TurnStatus},
};
use tokio::time::{Duration, Instant};
use zeroize::Zeroizing;

use super::{
    now_ms,
    store::{SHARDS, id_of},
};

/// A node as its clients see it.
pub(crate) struct Recipient {
    pub node: NodeId,
    pub model: ModelId,
    pub exchange: ExchangeKey,
    pub addresses: Vec<Multiaddr>,
}

pub(crate) struct Client {
    pub mesh: MeshHandle,
}

/// A session, on the client's side.
pub(crate) struct Session {
    pub root: SessionRoot,
    pub seq: u64,
    pub prev_link: LinkHash,
    pub base: Segment,
    /// The latest blob of each segment, oldest first, with its bytes.
    pub blobs: Vec<(u64, BlobRef, Vec<u8>)>,
    pub identities: Vec<RecordIdentity>,
    pub head_sequence: u64,
}

/// A request, with everything to verify its reply.
pub(crate) struct PreparedTurn {
    pub request: TurnRequest,
    pub auth: SignedObject<TurnAuth>,
    pub payload: Payload,
    pub secret: TurnSecret,
}

/// A reply, read to its end.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub nonce: Option<[u8; 32]>,
    pub events: Vec<ReplyEvent>,
    pub refused: Option<(ErrorCode, u32)>,
    /// Whether the stream's last chunk arrived.
    pub complete: bool,
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        let text = |event: &ReplyEvent| match event {
            ReplyEvent::Tokens { text, .. } => Some(text.clone()),
            _ => None,
        };
        self.events.iter().filter_map(text).collect()
    }

    pub(crate) fn ids(&self) -> Vec<u32> {
        let ids = |event: &ReplyEvent| match event {
            ReplyEvent::Tokens { ids, .. } => Some(ids.clone()),
            _ => None,
        };
        self.events.iter().filter_map(ids).flatten().collect()
    }

    pub(crate) fn committed(&self) -> Option<&Committed> {
        self.events.iter().find_map(|event| match event {
            ReplyEvent::Committed(committed) => Some(committed.as_ref()),
            _ => None,
        })
    }

    pub(crate) fn store(&self) -> Option<StoreState> {
        match self.events.last() {
            Some(ReplyEvent::Store(state)) => Some(*state),
            _ => None,
        }
    }

    /// Progress notes with verified signatures.
    pub(crate) fn notes(&self) -> Vec<SignedObject<ProgressNote>> {
        let note = |event: &ReplyEvent| match event {
            ReplyEvent::Progress(bytes) => Some(SignedObject::verify(bytes.clone()).unwrap()),
            _ => None,
        };
        self.events.iter().filter_map(note).collect()
    }

    /// The code of a refusal or of a failure after Accepted.
    pub(crate) fn code(&self) -> Option<ErrorCode> {
        match (self.refused, self.events.last()) {
            (Some((code, _)), _) => Some(code),
            (None, Some(ReplyEvent::Failed { code, .. })) => Some(*code),
            _ => None,
        }
    }
}

type Change<'a, T> = Option<Box<dyn FnOnce(&mut T) + 'a>>;

/// Changes to a request before it is sealed and signed.
#[derive(Default)]
pub(crate) struct Changes<'a> {
    pub payload: Change<'a, Payload>,
    pub auth: Change<'a, TurnAuth>,
    pub turn_id: Option<TurnId>,
    pub attempt: u32,
    /// Omits the blobs' locations.
    pub no_locator: bool,
}

impl<'a> Changes<'a> {
    pub(crate) fn auth(change: impl FnOnce(&mut TurnAuth) + 'a) -> Self {
        Self::default().and_auth(change)
    }

    pub(crate) fn and_auth(self, change: impl FnOnce(&mut TurnAuth) + 'a) -> Self {
        Self { auth: Some(Box::new(change)), ..self }
    }

    /// Withdraws the turns from this one on.
    pub(crate) fn tombstone(from: u64) -> Self {
        Self::payload(move |payload| {
            payload.kind = RecordKind::Tombstone;
            payload.supersedes_from = Some(from);
            payload.messages.clear();
        })
    }

    pub(crate) fn payload(change: impl FnOnce(&mut Payload) + 'a) -> Self {
        Self { payload: Some(Box::new(change)), ..Self::default() }
    }
}

impl Session {
    pub(crate) fn new() -> Self {
        let root = SessionRoot::generate();
        let genesis =
            Genesis { session_key: root.signing_key().public_key(), n_shards: SHARDS, branch: None };
        Self {
            seq: 0,
            prev_link: genesis.link_hash(),
            base: Segment::empty(root.session_id(), 0),
            blobs: Vec::new(),
            identities: Vec::new(),
            head_sequence: 0,
            root,
        }
    }

    pub(crate) fn prev_blob(&self) -> Option<BlobRef> {
        self.blobs.last().map(|(_, blob, _)| *blob)
    }

    fn grant(&self, identity: &RecordIdentity, no_locator: bool) -> Grant {
        let record_key = self.root.record_key(identity);
        let blob_key = self.root.blob_key(identity.segment, &record_key.blob_salt());
        let read = |(segment, blob, bytes): &(u64, BlobRef, Vec<u8>)| {
            let salt = baton_proto::segment::blob_salt(bytes).unwrap();
            let key = GrantedKey::of_blob(&self.root.blob_key(*segment, &salt));
            ReadBlob { segment: *segment, blob: (!no_locator).then_some(*blob), author: None, key }
        };
        let blobs: Vec<ReadBlob> = self.blobs.iter().rev().take(9).map(read).collect();
        let oldest = blobs.last().map_or(0, |read| read.segment);
        let readable = self.identities.iter().filter(|identity| identity.segment >= oldest);
        let records = readable
            .map(|identity| ReadRecord {
                seq: identity.seq,
                key: GrantedKey::of_record(&self.root.record_key(identity)),
            })
            .collect();
        Grant {
            segment: identity.segment,
            index: u8::try_from(self.base.entries.len()).unwrap(),
            record_key: GrantedKey::of_record(&record_key),
            blob_key: GrantedKey::of_blob(&blob_key),
            blobs,
            records,
            head: no_locator.then(|| self.head_grant()),
        }
    }

    /// The place of the session's head record.
    fn head_grant(&self) -> HeadGrant {
        let secret = self.root.head_secret(head_period(self.head_sequence));
        HeadGrant { index_key: secret.index_key(), key: GrantedKey::of_head(&secret.locate_key()) }
    }

    /// Builds the next turn's request.
    pub(crate) fn prepare(&self, node: &Recipient, text: &str, changes: Changes<'_>) -> PreparedTurn {
        let turn_id = changes.turn_id.unwrap_or_else(|| TurnId(random_bytes()));
        let identity = RecordIdentity {
            session_id: self.root.session_id(),
            segment: self.base.segment,
            seq: self.seq,
            turn_id,
            attempt: changes.attempt,
            author: node.node,
        };
        let mut payload = Payload {
            version: PAYLOAD_VERSION,
            grant: self.grant(&identity, changes.no_locator),
            kind: RecordKind::Turn,
            supersedes_from: None,
            system: vec![Message::new(Role::System, "be brief")],
            messages: vec![Message::new(Role::User, text)],
            sampling: Sampling::default(),
            json_schema: None,
            storage: StoragePolicy::default(),
            resume_tokens: Vec::new(),
            checks: Vec::new(),
        };
        if let Some(change) = changes.payload {
            change(&mut payload);
        }
        let now = now_ms();
        let mut auth = TurnAuth {
            version: TURN_AUTH_VERSION,
            suite: SUITE,
            session_id: self.root.session_id(),
            session_key: self.root.signing_key().public_key(),
            device_id: DeviceId([7; 16]),
            seq: self.seq,
            turn_id,
            attempt: changes.attempt,
            prev_link: self.prev_link,
            prev_blob: payload.grant.blobs.first().and_then(|read| read.blob),
            n_shards: SHARDS,
            branch: None,
            audience: node.node,
            audience_key: node.exchange.id(),
            payload_hash: PayloadHash([0; 32]),
            model: node.model,
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
        let ephemeral = EphemeralSecret::generate();
        let (sealed, secret) =
            SealedPayload::seal(&payload, ephemeral, &node.exchange, &auth.binding()).unwrap();
        auth.payload_hash = sealed.hash();
        if let Some(change) = changes.auth {
            change(&mut auth);
        }
        if let Some(prefix) = auth.resume.as_mut().filter(|prefix| prefix.tokens_hash == [0; 32]) {
            let key = payload.grant.record_key.record_key();
            prefix.tokens_hash = resume_tokens_hash(&key, &payload.resume_tokens);
        }
        let auth = SignedObject::sign(auth, &self.root.signing_key());
        let request =
            TurnRequest { auth: auth.bytes().clone(), payload: sealed, inline: Vec::new(), memory: None };
        PreparedTurn { request, auth, payload, secret }
    }

    /// Rebuilds a turn and makes it the new head.
    pub(crate) fn accept(
        &mut self,
        prepared: &PreparedTurn,
        committed: &Committed,
        answer: &str,
        memory: &[MemoryItem],
    ) -> Result<AcceptedTurn, ErrorCode> {
        let position = ChainPosition { base: &self.base, prev_blob: self.prev_blob() };
        let payload = &prepared.payload;
        let expected = ExpectedTurn {
            auth: &prepared.auth,
            position,
            kind: payload.kind,
            supersedes_from: payload.supersedes_from,
            system: &payload.system,
            messages: &payload.messages,
            sampling: &payload.sampling,
            memory,
        };
        let accepted = accept_turn(&self.root, &expected, committed, answer, u64::MAX)?;
        let blob = BlobRef {
            blob_id: id_of(&accepted.blob),
            digest: accepted.blob_digest,
            length: u32::try_from(accepted.blob.len()).unwrap(),
        };
        let segment = accepted.segment.segment;
        self.blobs.retain(|(number, _, _)| *number != segment);
        self.blobs.push((segment, blob, accepted.blob.clone()));
        self.identities.push(accepted.link.record_identity());
        self.prev_link = accepted.link.link_hash();
        self.seq += 1;
        self.base = baton_proto::chain::base_after(accepted.segment.clone());
        Ok(accepted)
    }

    pub(crate) fn head_outer(&self) -> HeadOuter {
        let reference =
            |(segment, blob, _): &(u64, BlobRef, Vec<u8>)| SegmentRef { segment: *segment, blob: *blob };
        HeadOuter {
            n_shards: SHARDS,
            branch: None,
            seq: self.seq - 1,
            link_hash: self.prev_link,
            blobs: self.blobs.iter().rev().take(9).map(reference).collect(),
        }
    }

    /// The signed head record of the session's state.
    pub(crate) fn head(&mut self) -> Vec<u8> {
        self.head_sequence += 1;
        let last = self.identities.last().unwrap();
        let inner = HeadInner {
            turn_id: last.turn_id,
            attempt: last.attempt,
            author: last.author,
            devices: Vec::new(),
            branches: Vec::new(),
            tombstone: false,
        };
        let now = now_ms();
        let outer = self.head_outer();
        HeadRecord::seal(&self.root, &outer, &inner, self.head_sequence, now, now + 60_000).encode()
    }

    pub(crate) fn status_request(&self, node: &Recipient, prepared: &PreparedTurn) -> SignedBytes {
        self.sign(TurnNote {
            session_id: self.root.session_id(),
            session_key: self.root.signing_key().public_key(),
            node: node.node,
            ..TurnNote::of(&prepared.auth, TurnNoteKind::Status, now_ms())
        })
    }

    pub(crate) fn abort(&self, prepared: &PreparedTurn) -> SignedBytes {
        self.abort_at(prepared, now_ms())
    }

    pub(crate) fn abort_at(&self, prepared: &PreparedTurn, time_ms: u64) -> SignedBytes {
        self.sign(TurnNote::of(&prepared.auth, TurnNoteKind::Abort, time_ms))
    }

    pub(crate) fn ack(&self, accepted: &AcceptedTurn) -> TurnNote {
        let link = &accepted.link;
        TurnNote {
            version: 1,
            session_id: self.root.session_id(),
            session_key: self.root.signing_key().public_key(),
            seq: link.seq,
            turn_id: link.turn_id,
            attempt: link.attempt,
            node: link.author,
            time_ms: now_ms(),
            kind: TurnNoteKind::Ack(Acknowledgement {
                link_hash: link.link_hash(),
                blob_digest: accepted.blob_digest,
                receipt_hash: accepted.receipt.receipt_hash(),
            }),
        }
    }

    pub(crate) fn sign(&self, note: TurnNote) -> SignedBytes {
        SignedObject::sign(note, &self.root.signing_key()).bytes().clone()
    }
}

impl Client {
    pub(crate) async fn start() -> Self {
        let seed = Zeroizing::new(random_bytes());
        // The addresses are local.
        let config = MeshConfig { reach: Some(Reach::Loopback), ..MeshConfig::dialer("baton/test (client)") };
        let (mesh, _) = Mesh::spawn(seed, config).await.unwrap();
        Self { mesh }
    }

    pub(crate) async fn open(&self, node: &Recipient, frame: &ClientFrame) -> TurnStream {
        self.open_raw(node, &codec::encode(frame)).await
    }

    pub(crate) async fn open_raw(&self, node: &Recipient, frame: &[u8]) -> TurnStream {
        self.open_at(node.node, &node.addresses, frame).await
    }

    pub(crate) async fn open_at(&self, node: NodeId, addresses: &[Multiaddr], frame: &[u8]) -> TurnStream {
        let mut stream = self.mesh.open(node, addresses, soon()).await.unwrap();
        stream.send_by(frame, soon()).await.unwrap();
        stream
    }

    pub(crate) async fn ask(&self, node: &Recipient, frame: &ClientFrame) -> NodeFrame {
        let mut stream = self.open(node, frame).await;
        next_frame(&mut stream).await.expect("an answer")
    }

    /// Sends two frames on one stream.
    pub(crate) async fn open_with(
        &self,
        node: &Recipient,
        first: &ClientFrame,
        then: &ClientFrame,
    ) -> TurnStream {
        let mut stream = self.open(node, first).await;
        stream.send_by(&codec::encode(then), soon()).await.unwrap();
        stream
    }

    /// Sends a request, and reads Accepted and the first event.
    pub(crate) async fn begin(&self, node: &Recipient, prepared: &PreparedTurn) -> TurnStream {
        let mut stream = self.open(node, &ClientFrame::Turn(prepared.request.clone())).await;
        for _ in 0..2 {
            next_frame(&mut stream).await.expect("Accepted and an event");
        }
        stream
    }

    pub(crate) async fn status(
        &self,
        node: &Recipient,
        session: &Session,
        prepared: &PreparedTurn,
    ) -> Result<TurnStatus, ErrorCode> {
        match self.ask(node, &ClientFrame::Note(session.status_request(node, prepared))).await {
            NodeFrame::Status(status) => Ok(status),
            NodeFrame::Refused { code, .. } => Err(code),
            other => panic!("not an answer to a status request: {other:?}"),
        }
    }

    /// Sends a request and reads its reply to the end.
    pub(crate) async fn run(&self, node: &Recipient, prepared: &PreparedTurn) -> Reply {
        let stream = self.open(node, &ClientFrame::Turn(prepared.request.clone())).await;
        read_reply(stream, prepared).await
    }

    /// A whole turn: sent, verified, accepted.
    pub(crate) async fn turn(
        &self,
        node: &Recipient,
        session: &mut Session,
        text: &str,
    ) -> (Reply, AcceptedTurn) {
        let prepared = session.prepare(node, text, Changes::default());
        let reply = self.run(node, &prepared).await;
        let committed = reply.committed().unwrap_or_else(|| panic!("no commit: {reply:?}"));
        let accepted = session.accept(&prepared, committed, &reply.text(), &[]).unwrap();
        (reply, accepted)
    }
}

/// The deadline of a step that takes a moment.
pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

pub(crate) async fn next_frame(stream: &mut TurnStream) -> Option<NodeFrame> {
    let frame = stream.recv_by(MAX_NODE_FRAME_BYTES, soon()).await.ok()??;
    Some(codec::decode(&frame, MAX_NODE_FRAME_BYTES).unwrap())
}

/// Reads a reply frame by frame.
#[derive(Default)]
pub(crate) struct ReplyReader {
    opener: Option<StreamOpener>,
    pub reply: Reply,
}

impl ReplyReader {
    pub(crate) fn take(&mut self, prepared: &PreparedTurn, frame: NodeFrame) {
        let reply = &mut self.reply;
        match frame {
            NodeFrame::Accepted { nonce } => {
                reply.nonce = Some(nonce);
                self.opener = Some(prepared.secret.reply_opener(&nonce, &prepared.auth.auth_hash().0));
            }
            NodeFrame::Chunk(sealed) => {
                let opener = self.opener.as_mut().expect("Accepted comes first");
                let (event, last) = opener.open(&sealed).expect("chunks open in order");
                reply.events.push(ReplyEvent::from_chunk(&event).unwrap());
                reply.complete = last;
            }
            NodeFrame::Refused { code, retry_after_ms } => reply.refused = Some((code, retry_after_ms)),
            other => panic!("not part of a reply: {other:?}"),
        }
    }
}

/// Reads frames until the stream ends.
pub(crate) async fn read_reply(mut stream: TurnStream, prepared: &PreparedTurn) -> Reply {
    let mut reader = ReplyReader::default();
    while let Some(frame) = next_frame(&mut stream).await {
        reader.take(prepared, frame);
    }
    reader.reply
}
