//! A fixed session of twenty turns over three nodes, made as node and client would make it.
//!
//! It has ordinary turns, an edit, a summary, a tombstone, a tool message, memory and a resumed attempt. A
//! segment ends after turn 16.

use std::collections::BTreeMap;

use baton_keys::{
    SecretSigningKey,
    exchange::{EphemeralSecret, ExchangeSecret, TurnSecret},
    session::{BlobKey, RecordIdentity, RecordKey, SessionRoot},
};
use baton_proto::{
    SignedObject,
    chain::SessionReader,
    check::{AnswerCheck, CheckGap, CheckOrder, CheckVerdict},
    commit::{AcceptedTurn, ChainPosition, ExpectedTurn, accept_turn, seal_turn},
    export::{self, Export, TurnProofs},
    head::{HeadOuter, SegmentRef},
    ids::{BlobId, DeviceId, GrantHash, ModelId, NodeId, PayloadHash, RunningHash, SamplingDigest, TurnId},
    limits::{PAYLOAD_VERSION, TURN_AUTH_VERSION},
    link::{BlobRef, Genesis, blob_digest},
    memory::{MemEnvelope, MemoryItem},
    note::{Acknowledgement, TurnNote, TurnNoteKind},
    receipt::{
        EngineKind, Receipt, ServedContents, Timings, TokenCounts, running_hash_start, running_hashes,
    },
    record::{FinishReason, Message, Record, RecordKind, Role},
    segment::Segment,
    turn::{
        CheckInput, Grant, GrantedKey, Payload, ReadBlob, ReadRecord, ResumePrefix, Sampling, SealedPayload,
        StoragePolicy, TokenBias, TurnAuth, resume_tokens_hash,
    },
    wire::Committed,
};

/// Turns of the fixed session.
pub(crate) const TURNS: u64 = 20;
/// Shard count to which its blob IDs are bound.
pub(crate) const N_SHARDS: u16 = 1000;
/// Issue time of its first turn.
pub(crate) const START_MS: u64 = 1_800_000_000_000;

/// The session's root.
pub(crate) fn root() -> SessionRoot {
    SessionRoot::from_bytes([0x42; 32])
}

/// The key of one of the three nodes.
pub(crate) fn node(number: u64) -> SecretSigningKey {
    SecretSigningKey::from_seed(&[0xa0 + byte(number); 32])
}

/// The exchange secret of one of the three nodes.
pub(crate) fn node_exchange(number: u64) -> ExchangeSecret {
    ExchangeSecret::from_bytes(&[0xb0 + byte(number); 32])
}

/// The relayer that may add memory.
pub(crate) fn relayer() -> SecretSigningKey {
    SecretSigningKey::from_seed(&[0xc0; 32])
}

fn byte(number: u64) -> u8 {
    u8::try_from(number).expect("the numbers of the fixture are small")
}

fn word(number: usize) -> u32 {
    u32::try_from(number).expect("the lengths of the fixture are small")
}

/// The stand-in for a Walrus blob ID: BLAKE3 of the blob's BLAKE3. Real IDs need the erasure coding, which is
/// outside this crate.
pub(crate) fn stand_in_id(blob: &[u8]) -> BlobId {
    BlobId(blake3::hash(&blob_digest(blob).0).into())
}

/// One finished turn.
pub(crate) struct Turn {
    pub auth: SignedObject<TurnAuth>,
    pub payload: Payload,
    pub sealed: SealedPayload,
    pub secret: TurnSecret,
    pub accepted: AcceptedTurn,
    pub committed: Committed,
    pub ack: SignedObject<TurnNote>,
    pub blob: BlobRef,
    pub record_key: RecordKey,
    pub blob_key: BlobKey,
    pub identity: RecordIdentity,
    pub answer: String,
    pub hashes: Vec<RunningHash>,
    pub memory: Option<SignedObject<MemEnvelope>>,
}

/// The fixed session.
pub(crate) struct Session {
    pub turns: Vec<Turn>,
}

/// The script of one turn.
struct Script {
    kind: RecordKind,
    supersedes_from: Option<u64>,
    messages: Vec<Message>,
    answer: String,
    finish: FinishReason,
    attempt: u32,
    resume: Option<(NodeId, Vec<u32>)>,
    memory: Vec<MemoryItem>,
}

/// Pinned system text of every turn.
pub(crate) fn system() -> Vec<Message> {
    vec![Message::new(Role::System, "Answer briefly. Réponds brièvement.")]
}

/// Memory items of turn 5.
pub(crate) fn memory_items() -> Vec<MemoryItem> {
    vec![
        MemoryItem {
            text: "The user's boat is called Rosalind.".to_owned(),
            source: "conversation of 3 May".to_owned(),
            time_ms: START_MS - 86_400_000,
        },
        MemoryItem {
            text: "The user sails on Sundays.".to_owned(),
            source: "note".to_owned(),
            time_ms: START_MS - 3_600_000,
        },
    ]
}

fn tokens_of(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

fn script(seq: u64) -> Script {
    let mut script = Script {
        kind: RecordKind::Turn,
        supersedes_from: None,
        messages: vec![Message::new(Role::User, format!("Question {seq}: what floats? ⛵"))],
        answer: format!("Answer {seq}: wood, cork and, carefully shaped, steel."),
        finish: FinishReason::Stop,
        attempt: 0,
        resume: None,
        memory: Vec::new(),
    };
    match seq {
        2 => script.answer = "A long answer about buoyancy. ".repeat(40),
        3 => script.messages.push(Message {
            role: Role::Tool,
            name: Some("tide_table".to_owned()),
            call_id: Some("call-1".to_owned()),
            text: "{\"high\":\"06:12\"}".to_owned(),
        }),
        5 => script.memory = memory_items(),
        6 => script.finish = FinishReason::Length,
        7 => {
            script.attempt = 1;
            script.resume = Some((node(0).node_id(), tokens_of(&script.answer[..10])));
        }
        9 => (script.kind, script.supersedes_from) = (RecordKind::Edit, Some(8)),
        12 => (script.kind, script.supersedes_from) = (RecordKind::Summary, Some(0)),
        18 => {
            (script.kind, script.supersedes_from) = (RecordKind::Tombstone, Some(17));
            script.messages.clear();
            script.answer.clear();
            script.finish = FinishReason::None;
        }
        _ => {}
    }
    script
}

/// The running hashes of an answer; its bytes are its tokens.
pub(crate) fn hashes_of(key: &RecordKey, auth: &SignedObject<TurnAuth>, answer: &str) -> Vec<RunningHash> {
    running_hashes(running_hash_start(key, &auth.auth_hash()), &tokens_of(answer))
}

impl Session {
    /// Makes the session; the same bytes every time.
    pub(crate) fn make() -> Self {
        let mut session = Self { turns: Vec::new() };
        for seq in 0..TURNS {
            let turn = session.next(seq);
            session.turns.push(turn);
        }
        session
    }

    /// The segment of the next turn.
    fn base(&self) -> Segment {
        match self.turns.last() {
            None => Segment::empty(root().session_id(), 0),
            Some(last) => baton_proto::chain::base_after(last.accepted.segment.clone()),
        }
    }

    fn grant(&self, base: &Segment, record_key: &RecordKey, blob_key: &BlobKey) -> Grant {
        let mut blobs: Vec<ReadBlob> = Vec::new();
        for turn in self.turns.iter().rev() {
            let segment = turn.identity.segment;
            if blobs.iter().all(|read| read.segment != segment) {
                let key = GrantedKey::of_blob(&turn.blob_key);
                blobs.push(ReadBlob {
                    segment,
                    blob: Some(turn.blob),
                    author: Some(turn.identity.author),
                    key,
                });
            }
        }
        let read =
            |turn: &Turn| ReadRecord { seq: turn.identity.seq, key: GrantedKey::of_record(&turn.record_key) };
        Grant {
            segment: base.segment,
            index: byte(base.entries.len() as u64),
            record_key: GrantedKey::of_record(record_key),
            blob_key: GrantedKey::of_blob(blob_key),
            blobs,
            records: self.turns.iter().map(read).collect(),
            head: None,
        }
    }

    fn next(&self, seq: u64) -> Turn {
        let script = script(seq);
        let (number, base) = (seq % 3, self.base());
        let mut auth = self.order(seq, &script);
        let identity = RecordIdentity {
            session_id: auth.session_id,
            segment: base.segment,
            seq,
            turn_id: auth.turn_id,
            attempt: auth.attempt,
            author: auth.audience,
        };
        let record_key = root().record_key(&identity);
        let blob_key = root().blob_key(base.segment, &record_key.blob_salt());
        let payload = Payload {
            version: PAYLOAD_VERSION,
            grant: self.grant(&base, &record_key, &blob_key),
            kind: script.kind,
            supersedes_from: script.supersedes_from,
            system: system(),
            messages: script.messages.clone(),
            sampling: sampling(seq),
            json_schema: None,
            storage: StoragePolicy::default(),
            resume_tokens: script.resume.as_ref().map(|(_, tokens)| tokens.clone()).unwrap_or_default(),
            checks: self.checked(seq).map(Turn::check_input).collect(),
        };
        auth.grant_hash = payload.grant.hash();
        if let Some(prefix) = &mut auth.resume {
            prefix.tokens_hash = resume_tokens_hash(&record_key, &payload.resume_tokens);
        }
        auth.sampling = payload.sampling.digest(&record_key);
        let ephemeral = EphemeralSecret::from_bytes(&[0x10 + byte(seq); 64]);
        let node_key = node_exchange(number).public_key();
        let (sealed, secret) = SealedPayload::seal(&payload, ephemeral, &node_key, &auth.binding())
            .expect("the fixture fits every limit");
        auth.payload_hash = sealed.hash();
        let auth = SignedObject::sign(auth, &root().signing_key());
        let memory = (!script.memory.is_empty()).then(|| {
            let ephemeral = EphemeralSecret::from_bytes(&[0x70; 64]);
            MemEnvelope::seal(&script.memory, &auth, &relayer(), &node_key, ephemeral, auth.issued_ms)
                .expect("the fixture's memory fits")
        });

        let hashes = hashes_of(&record_key, &auth, &script.answer);
        let receipt = receipt(&auth, &script, &payload, &hashes);
        let record = Record::of_turn(
            script.kind,
            script.supersedes_from,
            &script.messages,
            &script.answer,
            script.finish,
        );
        let position = ChainPosition { base: &base, prev_blob: self.turns.last().map(|turn| turn.blob) };
        let made = seal_turn(&auth, position, &payload.grant, &record, receipt, &node(number))
            .expect("the fixture's turn seals");
        let committed = made.committed();
        let expected = ExpectedTurn::from_payload(&auth, position, &payload, &script.memory);
        let accepted = accept_turn(&root(), &expected, &committed, &script.answer, auth.expires_ms)
            .expect("the client accepts the fixture's turn");
        let ack = TurnNoteKind::Ack(Acknowledgement {
            link_hash: accepted.link.link_hash(),
            blob_digest: accepted.blob_digest,
            receipt_hash: accepted.receipt.receipt_hash(),
        });
        let ack = TurnNote::of(&auth, ack, auth.issued_ms + 2_000);
        let blob = BlobRef {
            blob_id: stand_in_id(&accepted.blob),
            digest: accepted.blob_digest,
            length: committed.blob_length,
        };
        Turn {
            ack: SignedObject::sign(ack, &root().signing_key()),
            auth,
            payload,
            sealed,
            secret,
            accepted,
            committed,
            blob,
            record_key,
            blob_key,
            identity,
            answer: script.answer,
            hashes,
            memory,
        }
    }

    /// The turns whose answers a turn has checked: a few have three.
    fn checked(&self, seq: u64) -> impl Iterator<Item = &Turn> {
        let count = if matches!(seq, 5 | 7) { 3 } else { 0 };
        self.turns.iter().rev().take(count)
    }

    /// The authorisation, without the hashes that need the payload.
    fn order(&self, seq: u64, script: &Script) -> TurnAuth {
        let genesis = genesis();
        let last = self.turns.last();
        TurnAuth {
            version: TURN_AUTH_VERSION,
            suite: baton_keys::exchange::SUITE,
            session_id: root().session_id(),
            session_key: genesis.session_key,
            device_id: DeviceId([0xd0; 16]),
            seq,
            turn_id: TurnId([0x20 + byte(seq); 16]),
            attempt: script.attempt,
            prev_link: last.map_or_else(|| genesis.link_hash(), |turn| turn.accepted.link.link_hash()),
            prev_blob: last.map(|turn| turn.blob),
            n_shards: N_SHARDS,
            branch: None,
            audience: node(seq % 3).node_id(),
            audience_key: node_exchange(seq % 3).public_key().id(),
            payload_hash: PayloadHash([0; 32]),
            model: ModelId([0x4d; 32]),
            sampling: SamplingDigest([0; 32]),
            max_output_tokens: 2_048,
            max_price: 1_000_000,
            memory_from: (!script.memory.is_empty()).then(|| relayer().public_key()),
            memory_tokens: if script.memory.is_empty() { 0 } else { 512 },
            grant_hash: GrantHash([0; 32]),
            resume: script.resume.as_ref().map(|(author, tokens)| ResumePrefix {
                author: *author,
                attempt: 0,
                token_count: word(tokens.len()),
                // Filled in below, when the record key exists.
                tokens_hash: [0; 32],
            }),
            checks: self.checked(seq).map(Turn::check_order).collect(),
            issued_ms: START_MS + seq * 60_000,
            expires_ms: START_MS + seq * 60_000 + 90_000,
        }
    }

    /// The head after the last turn: its segment's blob, then the closed segments' last ones.
    pub(crate) fn head(&self) -> HeadOuter {
        let last = self.turns.last().expect("the session has turns");
        let mut blobs: Vec<SegmentRef> = Vec::new();
        for turn in self.turns.iter().rev() {
            let segment = turn.identity.segment;
            if blobs.iter().all(|known| known.segment != segment) {
                blobs.push(SegmentRef { segment, blob: turn.blob });
            }
        }
        HeadOuter {
            n_shards: N_SHARDS,
            branch: None,
            seq: last.identity.seq,
            link_hash: last.accepted.link.link_hash(),
            blobs,
        }
    }

    /// The session as an export, verified from its blobs and the root. Turn 19 has no ack yet; turn 4 lacks
    /// its authorisation and its system text.
    pub(crate) fn export(&self, with_root: bool) -> Export {
        let mut reader = SessionReader::new(&root(), &self.head()).expect("the head names a blob");
        while let Some(need) = reader.need() {
            let turn = self.turns.iter().find(|turn| turn.blob == need).expect("every blob is known");
            reader.provide(&turn.accepted.blob).expect("the fixture verifies");
        }
        let segments = reader.finish().expect("the walk reached the genesis");
        let proofs: BTreeMap<u64, TurnProofs> = self
            .turns
            .iter()
            .map(|turn| {
                let seq = turn.identity.seq;
                let proofs = TurnProofs {
                    auth: (seq != 4).then(|| turn.auth.bytes().clone()),
                    receipt: Some(turn.accepted.receipt.bytes().clone()),
                    ack: (seq != 19).then(|| turn.ack.bytes().clone()),
                    system: (seq != 4).then(system),
                    sampling: (seq % 2 == 0 || seq == 19).then(|| sampling(seq)),
                };
                (seq, proofs)
            })
            .collect();
        export::build(&root(), &genesis(), with_root, &segments, &proofs).expect("a verified session exports")
    }
}

fn genesis() -> Genesis {
    Genesis { session_key: root().signing_key().public_key(), n_shards: N_SHARDS, branch: None }
}

/// A result of each kind.
const VERDICTS: [CheckVerdict; 3] = [
    CheckVerdict::Same { logits: [0x10; 32] },
    CheckVerdict::Different { token: 2, logits: [0x11; 32] },
    CheckVerdict::NotComparable(CheckGap::Memory),
];

fn answer_check((order, verdict): (CheckOrder, CheckVerdict)) -> AnswerCheck {
    AnswerCheck { order, verdict }
}

impl Turn {
    fn check_order(&self) -> CheckOrder {
        CheckOrder { receipt: self.accepted.receipt.receipt_hash(), probe: 1 }
    }

    fn check_input(&self) -> CheckInput {
        CheckInput {
            receipt: self.accepted.receipt.bytes().clone(),
            sampling: self.payload.sampling.clone(),
            json_schema: None,
            tokens: vec![256, 65_536],
        }
    }
}

/// The sampling settings of a turn.
pub(crate) fn sampling(seq: u64) -> Sampling {
    Sampling {
        temperature: 0.75,
        top_p: 0.875,
        top_k: 40,
        min_p: 0.0625,
        repetition_penalty: 1.125,
        seed: seq,
        stop: vec!["END".to_owned()],
        json_schema: None,
        logprobs: 0,
        presence_penalty: 0.5,
        frequency_penalty: -0.25,
        token_biases: vec![TokenBias { token: 7, bias: -100.0 }, TokenBias { token: 300, bias: 1.5 }],
    }
}

fn receipt(
    auth: &SignedObject<TurnAuth>,
    script: &Script,
    payload: &Payload,
    hashes: &[RunningHash],
) -> Receipt {
    let output = word(script.answer.len());
    let memory = if script.memory.is_empty() { 0 } else { 21 };
    // The last turn has a shorter window, over the end of a segment.
    let window_from = if auth.seq + 1 == TURNS { 14 } else { 0 };
    let contents =
        ServedContents { window_from, memory: &script.memory, answer: &script.answer, finish: script.finish };
    let base = Receipt::of_turn(auth, payload, &contents);
    Receipt {
        engine: EngineKind::Native,
        tokens: TokenCounts { input: 100 + memory, output, memory, ..base.tokens },
        running_hash: *hashes.last().expect("the hash of no tokens"),
        checks: auth.checks.iter().copied().zip(VERDICTS).map(answer_check).collect(),
        timings: Timings { queue_ms: 3, prefill_ms: 40, first_token_ms: 55, decode_ms: 700 },
        price: 1_234,
        time_ms: auth.issued_ms + 1_000,
        ..base
    }
}
