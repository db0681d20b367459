//! A whole session in memory: a client with a root, nodes with keys, and a store of blobs. Nodes take encoded
//! requests and read their windows like real nodes; the client rebuilds every turn before it accepts.
//!
//! Walrus IDs are opaque to this crate, so the harness names a blob by a hash of its digest.

use std::collections::{BTreeMap, HashMap};

use baton_keys::{
    SecretSigningKey,
    exchange::{EphemeralSecret, ExchangeSecret, SUITE},
    session::{BlobKey, RecordIdentity, RecordKey, SessionRoot},
};
use baton_proto::{
    ErrorCode, SignedObject,
    chain::{Window, WindowReader, base_after},
    codec,
    commit::{AcceptedTurn, ChainPosition, ExpectedTurn, SealedTurn, accept_turn, closes_segment, seal_turn},
    head::{DeviceLease, HeadInner, HeadOuter, HeadRecord, SegmentRef},
    ids::{
        BlobDigest, BlobId, DeviceId, GrantHash, LinkHash, ModelId, NodeId, PayloadHash, SamplingDigest,
        TurnId,
    },
    limits::{MAX_BLOB_BYTES, MAX_FRAME_BYTES, PAYLOAD_VERSION, TURN_AUTH_VERSION},
    link::{BlobRef, BranchPoint, Genesis, blob_digest},
    memory::{MemEnvelope, MemoryItem},
    receipt::{Receipt, ServedContents, TokenCounts, running_hash_step},
    record::{FinishReason, Message, Record, RecordKind, Role},
    segment::Segment,
    turn::{
        CheckInput, Grant, GrantedKey, Payload, ReadBlob, ReadRecord, ResumePrefix, Sampling, SealedPayload,
        StoragePolicy, TurnAuth, resume_tokens_hash,
    },
    wire::{ClientFrame, Committed, TurnRequest},
};

use super::source::Source;

/// The clock of all parties at turn 0, in milliseconds since the Unix epoch.
pub(crate) const EPOCH_MS: u64 = 1_800_000_000_000;
/// Shards of the harness's store.
pub(crate) const N_SHARDS: u16 = 1000;

/// A blob's reference, with the harness's stand-in for its Walrus ID.
pub(crate) fn blob_ref(bytes: &[u8]) -> BlobRef {
    let digest = blob_digest(bytes);
    let length = u32::try_from(bytes.len()).expect("test blobs are small");
    BlobRef { blob_id: BlobId(blake3::hash(&digest.0).into()), digest, length }
}

/// The script of a turn, for both sides.
#[derive(Clone)]
pub(crate) struct Script {
    pub kind: RecordKind,
    pub supersedes_from: Option<u64>,
    pub system: Vec<Message>,
    pub messages: Vec<Message>,
    pub answer: String,
    pub finish: FinishReason,
    pub memory: Vec<MemoryItem>,
    pub resume: Option<(NodeId, Vec<u32>)>,
    pub sampling: Sampling,
    pub checks: Vec<CheckInput>,
}

impl Script {
    /// An ordinary turn.
    pub(crate) fn turn(user: impl Into<String>, answer: impl Into<String>) -> Self {
        Self {
            kind: RecordKind::Turn,
            supersedes_from: None,
            system: vec![Message::new(Role::System, "be brief")],
            messages: vec![Message::new(Role::User, user)],
            answer: answer.into(),
            finish: FinishReason::Stop,
            memory: Vec::new(),
            resume: None,
            sampling: Sampling { seed: 7, ..Sampling::default() },
            checks: Vec::new(),
        }
    }

    /// A record that replaces earlier turns.
    pub(crate) fn superseding(kind: RecordKind, from: u64, answer: &str) -> Self {
        Self { kind, supersedes_from: Some(from), ..Self::turn("", answer) }
    }
}

/// A node with its keys alone: it has no state between turns.
#[derive(Debug)]
pub(crate) struct NodeParty {
    pub signing: SecretSigningKey,
    pub exchange: ExchangeSecret,
}

impl NodeParty {
    /// The node of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        let mut source = Source::new(seed ^ 0x006e_6f64_6500);
        Self {
            signing: SecretSigningKey::from_seed(&source.bytes()),
            exchange: ExchangeSecret::from_bytes(&source.bytes()),
        }
    }

    /// Decodes, verifies and opens a request.
    pub(crate) fn open(&self, frame: &[u8], now_ms: u64) -> Result<(TurnRequest, OpenedRequest), ErrorCode> {
        let ClientFrame::Turn(request) = codec::decode(frame, MAX_FRAME_BYTES)? else {
            return Err(ErrorCode::NonCanonical);
        };
        let auth = SignedObject::<TurnAuth>::verify(request.auth.clone())?;
        if auth.audience != self.signing.node_id() {
            return Err(ErrorCode::WrongAudience);
        }
        auth.check_time(now_ms)?;
        let (payload, _) = request.payload.open(&self.exchange, &auth)?;
        Ok((request, OpenedRequest { auth, payload }))
    }

    /// Serves a turn from an encoded request and the store.
    pub(crate) fn serve(
        &self,
        frame: &[u8],
        store: &Store,
        answer: &str,
        finish: FinishReason,
    ) -> Result<SealedTurn, ErrorCode> {
        let (request, OpenedRequest { auth, payload }) = self.open(frame, EPOCH_MS)?;
        let window = read_window(&auth, &payload.grant, store)?;
        let memory = match request.memory {
            Some(bytes) => {
                SignedObject::<MemEnvelope>::verify(bytes)?.open(&auth, &self.exchange, EPOCH_MS)?
            }
            None => Vec::new(),
        };
        let record =
            Record::of_turn(payload.kind, payload.supersedes_from, &payload.messages, answer, finish);
        let receipt = Self::receipt(&auth, &payload, &window, &memory, &record);
        let position = ChainPosition { base: &window.base, prev_blob: window.prev_blob };
        let sealed = seal_turn(&auth, position, &payload.grant, &record, receipt, &self.signing)?;
        assert_eq!(closes_segment(&auth, position, &record), Ok(sealed.closes_segment));
        Ok(sealed)
    }

    /// An honest receipt; every word of the answer counts as a token.
    fn receipt(
        auth: &SignedObject<TurnAuth>,
        payload: &Payload,
        window: &Window,
        memory: &[MemoryItem],
        record: &Record,
    ) -> Receipt {
        let answer = record.answer().expect("a turn has an answer");
        let first_text = window.turns.iter().find(|turn| turn.record.is_some());
        let window_from = first_text.map_or(auth.seq, |turn| turn.link.seq);
        let contents = ServedContents { window_from, memory, answer, finish: record.finish };
        let base = Receipt::of_turn(auth, payload, &contents);
        let words = u32::try_from(answer.split_whitespace().count()).expect("test answers are short");
        let output = words.min(100) + base.tokens.resumed;
        Receipt {
            tokens: TokenCounts { input: 10, output, ..base.tokens },
            running_hash: (0..output).fold(base.running_hash, |hash, token| running_hash_step(&hash, token)),
            price: 5,
            time_ms: EPOCH_MS + auth.seq,
            ..base
        }
    }
}

/// A request opened by a node.
pub(crate) struct OpenedRequest {
    pub auth: SignedObject<TurnAuth>,
    pub payload: Payload,
}

/// Blobs by their digest.
pub(crate) type Store = HashMap<BlobDigest, Vec<u8>>;

/// Reads a window from the store, like a node.
pub(crate) fn read_window(auth: &TurnAuth, grant: &Grant, store: &Store) -> Result<Window, ErrorCode> {
    let mut reader = WindowReader::new(auth, grant.clone(), None)?;
    for need in reader.needs() {
        if let Some(bytes) = store.get(&need.blob.digest) {
            reader.provide(&need, bytes)?;
        }
    }
    reader.finish()
}

/// A turn that the client requested.
#[derive(Clone)]
pub(crate) struct RequestedTurn {
    pub auth: SignedObject<TurnAuth>,
    pub payload: Payload,
    pub sealed: SealedPayload,
    pub base: Segment,
    pub prev_blob: Option<BlobRef>,
    pub record_key: RecordKey,
    pub blob_key: BlobKey,
    pub memory: Vec<MemoryItem>,
    pub envelope: Option<SignedObject<MemEnvelope>>,
}

impl RequestedTurn {
    /// The position that the turn is appended at.
    pub(crate) fn position(&self) -> ChainPosition<'_> {
        ChainPosition { base: &self.base, prev_blob: self.prev_blob }
    }

    /// The request's encoded frame.
    pub(crate) fn frame(&self) -> Vec<u8> {
        codec::encode(&ClientFrame::Turn(TurnRequest {
            auth: self.auth.bytes().clone(),
            payload: self.sealed.clone(),
            inline: Vec::new(),
            memory: self.envelope.as_ref().map(|envelope| envelope.bytes().clone()),
        }))
    }

    /// The turn with this record and receipt, sealed by a node.
    pub(crate) fn seal(&self, record: &Record, receipt: Receipt, node: &SecretSigningKey) -> SealedTurn {
        seal_turn(&self.auth, self.position(), &self.payload.grant, record, receipt, node)
            .expect("the harness seals turns that fit")
    }

    /// The client's check of the result.
    pub(crate) fn accept(
        &self,
        root: &SessionRoot,
        committed: &Committed,
        answer: &str,
    ) -> Result<AcceptedTurn, ErrorCode> {
        let payload = &self.payload;
        let expected = ExpectedTurn {
            auth: &self.auth,
            position: self.position(),
            kind: payload.kind,
            supersedes_from: payload.supersedes_from,
            system: &payload.system,
            messages: &payload.messages,
            sampling: &payload.sampling,
            memory: &self.memory,
        };
        accept_turn(root, &expected, committed, answer, self.auth.issued_ms)
    }
}

/// A finished turn.
pub(crate) struct CompletedTurn {
    pub script: Script,
    pub requested: RequestedTurn,
    pub committed: Committed,
    pub accepted: AcceptedTurn,
    pub blob: BlobRef,
    pub node: usize,
}

/// A client's session, its nodes and the store.
pub(crate) struct Session {
    pub root: SessionRoot,
    pub nodes: Vec<NodeParty>,
    pub relayer: SecretSigningKey,
    pub store: Store,
    pub done: Vec<CompletedTurn>,
    pub branch: Option<BranchPoint>,
    /// Most records granted to a node, the latest ones.
    pub window_records: usize,
    /// Most blobs granted to a node.
    pub window_blobs: usize,
    base: Segment,
    source: Source,
}

impl Session {
    /// A session without turns, with three nodes.
    pub(crate) fn new(seed: u64) -> Self {
        let mut source = Source::new(seed);
        let root = SessionRoot::from_bytes(source.bytes());
        let relayer = SecretSigningKey::from_seed(&source.bytes());
        Self::of(root, (0..3).map(|node| NodeParty::new(seed * 16 + node)).collect(), relayer, seed)
    }

    /// A session of these parties, without turns.
    pub(crate) fn of(root: SessionRoot, nodes: Vec<NodeParty>, relayer: SecretSigningKey, seed: u64) -> Self {
        Self {
            base: Segment::empty(root.session_id(), 0),
            relayer,
            root,
            nodes,
            store: Store::new(),
            done: Vec::new(),
            branch: None,
            window_records: usize::MAX,
            window_blobs: 9,
            source: Source::new(!seed),
        }
    }

    /// A session of short turns.
    pub(crate) fn of_short_turns(seed: u64, turns: usize) -> Self {
        let mut session = Self::new(seed);
        for turn in 0..turns {
            session.turn(&Script::turn(format!("question {turn}"), format!("the answer {turn}")));
        }
        session
    }

    /// The node that serves the next turn.
    pub(crate) fn next_node(&self) -> usize {
        self.done.len() % self.nodes.len()
    }

    /// The last link's hash, or the genesis.
    pub(crate) fn prev_link(&self) -> LinkHash {
        self.done.last().map_or_else(|| self.genesis().link_hash(), |done| done.accepted.link.link_hash())
    }

    /// What the first link follows.
    pub(crate) fn genesis(&self) -> Genesis {
        let session_key = self.root.signing_key().public_key();
        Genesis { session_key, n_shards: N_SHARDS, branch: self.branch }
    }

    /// The latest blob of each segment, newest first.
    pub(crate) fn segment_refs(&self) -> Vec<SegmentRef> {
        Self::latest(&self.done)
            .map(|done| SegmentRef { segment: done.accepted.link.segment, blob: done.blob })
            .collect()
    }

    /// The last turn of each segment, newest first.
    fn latest(done: &[CompletedTurn]) -> impl Iterator<Item = &CompletedTurn> {
        let latest: BTreeMap<_, _> = done.iter().map(|done| (done.accepted.link.segment, done)).collect();
        latest.into_values().rev()
    }

    fn grant(&self, record_key: &RecordKey, blob_key: &BlobKey) -> Grant {
        let latest = Self::latest(&self.done).take(self.window_blobs);
        let blobs: Vec<ReadBlob> = latest
            .map(|done| ReadBlob {
                segment: done.accepted.link.segment,
                blob: Some(done.blob),
                author: Some(done.accepted.link.author),
                key: GrantedKey::of_blob(&done.requested.blob_key),
            })
            .collect();
        let readable =
            |done: &&CompletedTurn| blobs.iter().any(|read| read.segment == done.accepted.link.segment);
        let mut records: Vec<ReadRecord> = self
            .done
            .iter()
            .filter(readable)
            .rev()
            .take(self.window_records)
            .map(|done| ReadRecord {
                seq: done.accepted.link.seq,
                key: GrantedKey::of_record(&done.requested.record_key),
            })
            .collect();
        records.reverse();
        Grant {
            segment: self.base.segment,
            index: u8::try_from(self.base.entries.len()).expect("a segment has at most 16 turns"),
            record_key: GrantedKey::of_record(record_key),
            blob_key: GrantedKey::of_blob(blob_key),
            blobs,
            records,
            head: None,
        }
    }

    /// Builds the request of the next turn for a node.
    pub(crate) fn ask(&mut self, node: usize, script: &Script) -> RequestedTurn {
        let draft = TurnAuth { turn_id: TurnId(self.source.bytes()), ..self.draft(node, script) };
        let ephemerals = [self.source.bytes(), self.source.bytes()];
        self.request(node, script, draft, ephemerals)
    }

    /// The authorisation of the next turn, without the hashes that need the payload.
    pub(crate) fn draft(&self, node: usize, script: &Script) -> TurnAuth {
        TurnAuth {
            version: TURN_AUTH_VERSION,
            suite: SUITE,
            session_id: self.root.session_id(),
            session_key: self.root.signing_key().public_key(),
            device_id: DeviceId([3; 16]),
            seq: self.done.len() as u64,
            turn_id: TurnId([0; 16]),
            attempt: 0,
            prev_link: self.prev_link(),
            prev_blob: self.done.last().map(|done| done.blob),
            n_shards: N_SHARDS,
            branch: self.branch,
            audience: self.nodes[node].signing.node_id(),
            audience_key: self.nodes[node].exchange.public_key().id(),
            payload_hash: PayloadHash([0; 32]),
            model: ModelId([8; 32]),
            sampling: SamplingDigest([0; 32]),
            max_output_tokens: 4096,
            max_price: 1000,
            memory_from: (!script.memory.is_empty()).then(|| self.relayer.public_key()),
            memory_tokens: 512,
            grant_hash: GrantHash([0; 32]),
            resume: None,
            checks: Vec::new(),
            issued_ms: EPOCH_MS,
            expires_ms: EPOCH_MS + 60_000,
        }
    }

    /// Seals and signs a request. `ephemerals` are the secrets of the payload and of the memory.
    pub(crate) fn request(
        &self,
        node: usize,
        script: &Script,
        mut auth: TurnAuth,
        ephemerals: [[u8; 64]; 2],
    ) -> RequestedTurn {
        let identity = RecordIdentity {
            session_id: auth.session_id,
            segment: self.base.segment,
            seq: auth.seq,
            turn_id: auth.turn_id,
            attempt: auth.attempt,
            author: auth.audience,
        };
        let record_key = self.root.record_key(&identity);
        let blob_key = self.root.blob_key(identity.segment, &record_key.blob_salt());
        let payload = Payload {
            version: PAYLOAD_VERSION,
            grant: self.grant(&record_key, &blob_key),
            kind: script.kind,
            supersedes_from: script.supersedes_from,
            system: script.system.clone(),
            messages: script.messages.clone(),
            sampling: script.sampling.clone(),
            json_schema: None,
            storage: StoragePolicy::default(),
            resume_tokens: script.resume.as_ref().map(|(_, tokens)| tokens.clone()).unwrap_or_default(),
            checks: script.checks.clone(),
        };
        auth.sampling = payload.sampling.digest(&record_key);
        auth.grant_hash = payload.grant.hash();
        auth.resume = script.resume.as_ref().map(|(author, tokens)| ResumePrefix {
            author: *author,
            attempt: 0,
            token_count: u32::try_from(tokens.len()).expect("test prefixes are short"),
            tokens_hash: resume_tokens_hash(&record_key, tokens),
        });
        let [ephemeral, of_memory] = ephemerals.map(|bytes| EphemeralSecret::from_bytes(&bytes));
        let node_key = self.nodes[node].exchange.public_key();
        let (sealed, _) = SealedPayload::seal(&payload, ephemeral, &node_key, &auth.binding())
            .expect("the harness asks for payloads that fit");
        auth.payload_hash = sealed.hash();
        let auth = SignedObject::sign(auth, &self.root.signing_key());
        let envelope = (!script.memory.is_empty()).then(|| {
            MemEnvelope::seal(&script.memory, &auth, &self.relayer, &node_key, of_memory, auth.issued_ms)
                .expect("the harness asks for memory that fits")
        });
        RequestedTurn {
            auth,
            payload,
            sealed,
            base: self.base.clone(),
            prev_blob: self.done.last().map(|done| done.blob),
            record_key,
            blob_key,
            memory: script.memory.clone(),
            envelope,
        }
    }

    /// One whole turn; panics if an honest turn is refused.
    pub(crate) fn turn(&mut self, script: &Script) -> &CompletedTurn {
        self.try_turn(script).expect("an honest turn is served and accepted")
    }

    /// One whole turn.
    pub(crate) fn try_turn(&mut self, script: &Script) -> Result<&CompletedTurn, ErrorCode> {
        let node = self.next_node();
        let requested = self.ask(node, script);
        let served =
            self.nodes[node].serve(&requested.frame(), &self.store, &script.answer, script.finish)?;
        self.complete(node, script, requested, &served)
    }

    /// Accepts a turn that a node has sealed.
    pub(crate) fn complete(
        &mut self,
        node: usize,
        script: &Script,
        requested: RequestedTurn,
        served: &SealedTurn,
    ) -> Result<&CompletedTurn, ErrorCode> {
        let committed = served.committed();
        let accepted = requested.accept(&self.root, &committed, &script.answer)?;
        assert_eq!(accepted.blob, served.blob, "the rebuilt blob is the node's, byte for byte");
        assert_eq!(accepted.segment.is_closed(), served.closes_segment);
        assert!(accepted.blob.len() <= MAX_BLOB_BYTES);
        let blob = blob_ref(&accepted.blob);
        self.store.insert(blob.digest, accepted.blob.clone());
        self.base = base_after(accepted.segment.clone());
        self.done.push(CompletedTurn { script: script.clone(), requested, committed, accepted, blob, node });
        Ok(self.done.last().expect("a turn was just pushed"))
    }

    /// The outer part of the head record after `turns` turns, at least one.
    pub(crate) fn head_outer(&self, turns: usize) -> HeadOuter {
        let last = &self.done[turns - 1];
        let blobs = Self::latest(&self.done[..turns])
            .take(9)
            .map(|done| SegmentRef { segment: done.accepted.link.segment, blob: done.blob })
            .collect();
        HeadOuter {
            n_shards: N_SHARDS,
            branch: self.branch,
            seq: last.accepted.link.seq,
            link_hash: last.accepted.link.link_hash(),
            blobs,
        }
    }

    /// The signed head record after `turns` turns.
    pub(crate) fn head(&self, turns: usize) -> SignedObject<HeadRecord> {
        let last = &self.done[turns - 1].accepted.link;
        let inner = HeadInner {
            turn_id: last.turn_id,
            attempt: last.attempt,
            author: last.author,
            devices: vec![DeviceLease { device: DeviceId([3; 16]), expires_ms: EPOCH_MS + 1000 }],
            branches: Vec::new(),
            tombstone: false,
        };
        let outer = self.head_outer(turns);
        HeadRecord::seal(&self.root, &outer, &inner, turns as u64, EPOCH_MS, EPOCH_MS + 1_000_000)
    }
}
