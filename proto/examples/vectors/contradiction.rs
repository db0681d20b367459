//! Vectors of contradictions: the same two messages to three nodes, of which the first gives another answer.

use std::collections::BTreeMap;

use baton_keys::{
    exchange::SUITE,
    session::{BlobKey, RecordIdentity, RecordKey, SessionRoot},
};
use baton_proto::{
    SignedObject,
    chain::SessionReader,
    commit::{ChainPosition, seal_turn},
    contradiction::Contradiction,
    export::{self, Export, ExportScope, TurnProofs},
    head::{HeadOuter, SegmentRef},
    ids::{DeviceId, ModelId, PayloadHash, TurnId},
    limits::{RECEIPT_VERSION, TURN_AUTH_VERSION},
    link::{BlobRef, Genesis},
    receipt::{Commitments, EngineKind, Receipt, Timings, TokenCounts, commit_input, commit_output},
    record::{FinishReason, Message, Record, RecordKind, Role},
    segment::Segment,
    turn::{Grant, GrantedKey, ReadBlob, ReadRecord, Sampling, TurnAuth},
};

use super::session::{N_SHARDS, START_MS, hashes_of, node, node_exchange, stand_in_id};

/// The messages of the decoy.
const MESSAGES: [&str; 2] = ["What is a relay race?", "Who runs first?"];
/// The answers of honest nodes.
const ANSWERS: [&str; 2] = ["A race of teams, one runner after the other.", "The lead-off runner."];
/// The second answer of the accused node.
const OTHER_ANSWER: &str = "The slowest runner.";

/// A session as one node answered it. A change to a field makes a session that proves nothing.
#[derive(Clone)]
pub(crate) struct Decoy {
    /// Number of the node, which also numbers the session's root.
    pub node: u64,
    pub messages: Vec<String>,
    pub answers: Vec<String>,
    pub finish: FinishReason,
    pub system: Vec<Message>,
    pub sampling: Sampling,
    pub kind: RecordKind,
    pub with_root: bool,
    /// Changes the grant, the order and the receipt of the last turn.
    pub grant: fn(&mut Grant),
    pub auth: fn(&mut TurnAuth),
    pub receipt: fn(&mut Receipt),
}

impl Decoy {
    /// An honest session at this node.
    pub(crate) fn at(node: u64) -> Self {
        Self {
            node,
            messages: MESSAGES.map(str::to_owned).to_vec(),
            answers: ANSWERS.map(str::to_owned).to_vec(),
            finish: FinishReason::Stop,
            system: Vec::new(),
            sampling: Sampling { temperature: 0.75, seed: 7, ..Sampling::default() },
            kind: RecordKind::Turn,
            with_root: false,
            grant: |_| {},
            auth: |_| {},
            receipt: |_| {},
        }
    }

    /// A session at this node with another last answer.
    pub(crate) fn lying(node: u64) -> Self {
        let mut decoy = Self::at(node);
        if let Some(last) = decoy.answers.last_mut() {
            OTHER_ANSWER.clone_into(last);
        }
        decoy
    }

    fn root(&self) -> SessionRoot {
        SessionRoot::from_bytes([0x80 + u8::try_from(self.node).expect("few nodes"); 32])
    }

    /// The session's export, without root.
    pub(crate) fn export(&self) -> Export {
        let mut turns: Vec<DecoyTurn> = Vec::new();
        for position in 0..self.messages.len() {
            let turn = self.turn(position, &turns);
            turns.push(turn);
        }
        let root = self.root();
        let last = turns.last().expect("a decoy has turns");
        let head = HeadOuter {
            n_shards: N_SHARDS,
            branch: None,
            seq: last.auth.seq,
            link_hash: last.sealed.link.link_hash(),
            blobs: vec![SegmentRef { segment: 0, blob: last.blob }],
        };
        let mut reader = SessionReader::new(&root, &head).expect("the head names a blob");
        reader.provide(&last.sealed.blob).expect("the decoy verifies");
        let proofs: BTreeMap<u64, TurnProofs> = turns
            .iter()
            .map(|turn| {
                let proofs = TurnProofs {
                    auth: Some(turn.auth.bytes().clone()),
                    receipt: Some(turn.sealed.receipt.bytes().clone()),
                    ack: None,
                    system: Some(self.system.clone()),
                    sampling: Some((&self.sampling).into()),
                };
                (turn.auth.seq, proofs)
            })
            .collect();
        let scope = ExportScope { n_shards: N_SHARDS, branch: None, with_root: self.with_root };
        let segments = reader.finish().expect("the walk reached the genesis");
        export::build(&root, &scope, &segments, &proofs).expect("a verified session exports")
    }

    fn turn(&self, position: usize, earlier: &[DecoyTurn]) -> DecoyTurn {
        let (root, is_last) = (self.root(), position + 1 == self.messages.len());
        let base = match earlier.last() {
            None => Segment::empty(root.session_id(), 0),
            Some(before) => before.segment.clone(),
        };
        let mut auth = self.order(position, earlier);
        let identity = RecordIdentity {
            session_id: auth.session_id,
            segment: 0,
            seq: auth.seq,
            turn_id: auth.turn_id,
            attempt: auth.attempt,
            author: auth.audience,
        };
        let record_key = root.record_key(&identity);
        let blob_key = root.blob_key(0, &record_key.blob_salt());
        let mut grant = Grant {
            segment: 0,
            index: u8::try_from(position).expect("few turns"),
            record_key: GrantedKey::of_record(&record_key),
            blob_key: GrantedKey::of_blob(&blob_key),
            blobs: earlier.last().map(DecoyTurn::read_blob).into_iter().collect(),
            records: earlier.iter().map(DecoyTurn::read_record).collect(),
            head: None,
        };
        if is_last {
            (self.grant)(&mut grant);
        }
        auth.grant_hash = grant.hash();
        auth.sampling = self.sampling.digest(&record_key);
        if is_last {
            (self.auth)(&mut auth);
        }
        let auth = SignedObject::sign(auth, &root.signing_key());
        let (message, answer) = (&self.messages[position], &self.answers[position]);
        let new = vec![Message::new(Role::User, message.clone())];
        let finish = if is_last { self.finish } else { FinishReason::Stop };
        let mut receipt = self.claims(&auth, &record_key, &new, (answer, finish));
        if is_last {
            (self.receipt)(&mut receipt);
        }
        let kind = if is_last { self.kind } else { RecordKind::Turn };
        let supersedes = (kind != RecordKind::Turn).then_some(0);
        let record = Record::of_turn(kind, supersedes, &new, answer, finish);
        let position = ChainPosition { base: &base, prev_blob: earlier.last().map(|turn| turn.blob) };
        let keys = (&record_key, &blob_key);
        let sealed =
            seal_turn(&auth, position, keys, &record, receipt, &node(self.node)).expect("the turn seals");
        let length = u32::try_from(sealed.blob.len()).expect("a small blob");
        let blob = BlobRef { blob_id: stand_in_id(&sealed.blob), digest: sealed.blob_digest, length };
        let segment =
            Segment::open(&sealed.blob, &blob_key, &auth.session_id, 0).expect("its own blob opens");
        DecoyTurn { auth, sealed, blob, record_key, blob_key, segment }
    }

    /// The order, without the hashes that need the grant.
    fn order(&self, position: usize, earlier: &[DecoyTurn]) -> TurnAuth {
        let root = self.root();
        let session_key = root.signing_key().public_key();
        let genesis = Genesis { session_key, n_shards: N_SHARDS, branch: None };
        let number = u8::try_from(position).expect("few turns");
        TurnAuth {
            version: TURN_AUTH_VERSION,
            suite: SUITE,
            session_id: root.session_id(),
            session_key,
            device_id: DeviceId([0xd0; 16]),
            seq: position as u64,
            turn_id: TurnId([0x20 + number; 16]),
            attempt: 0,
            prev_link: earlier
                .last()
                .map_or_else(|| genesis.link_hash(), |turn| turn.sealed.link.link_hash()),
            prev_blob: earlier.last().map(|turn| turn.blob),
            n_shards: N_SHARDS,
            branch: None,
            audience: node(self.node).node_id(),
            audience_key: node_exchange(self.node).public_key().id(),
            // No check of an export needs the sealed payload.
            payload_hash: PayloadHash([0; 32]),
            model: ModelId([0x4d; 32]),
            sampling: baton_proto::ids::SamplingDigest([0; 32]),
            max_output_tokens: 2_048,
            max_price: 1_000_000,
            memory_from: None,
            memory_tokens: 0,
            grant_hash: baton_proto::ids::GrantHash([0; 32]),
            resume: None,
            issued_ms: START_MS + position as u64 * 60_000,
            expires_ms: START_MS + position as u64 * 60_000 + 90_000,
        }
    }

    fn claims(
        &self,
        auth: &SignedObject<TurnAuth>,
        key: &RecordKey,
        new: &[Message],
        (answer, finish): (&str, FinishReason),
    ) -> Receipt {
        Receipt {
            version: RECEIPT_VERSION,
            session_id: auth.session_id,
            seq: auth.seq,
            turn_id: auth.turn_id,
            attempt: auth.attempt,
            auth_hash: auth.auth_hash(),
            node: auth.audience,
            model: auth.model,
            engine: EngineKind::Native,
            sampling: auth.sampling,
            seed: self.sampling.seed,
            window_from: 0,
            tokens: TokenCounts {
                input: 40,
                output: u32::try_from(answer.len()).expect("a short answer"),
                memory: 0,
                resumed: 0,
            },
            memory_items: 0,
            commitments: Commitments {
                input: commit_input(key, &self.system, 0, new),
                output: commit_output(key, answer, finish),
                memory: None,
            },
            running_hash: *hashes_of(key, auth, answer).last().expect("the hash of no tokens"),
            timings: Timings { queue_ms: 3, prefill_ms: 40, first_token_ms: 55, decode_ms: 700 },
            price: 12,
            time_ms: auth.issued_ms + 1_000,
        }
    }
}

/// A turn of a decoy.
struct DecoyTurn {
    auth: SignedObject<TurnAuth>,
    sealed: baton_proto::commit::SealedTurn,
    blob: BlobRef,
    record_key: RecordKey,
    blob_key: BlobKey,
    segment: Segment,
}

impl DecoyTurn {
    fn read_blob(&self) -> ReadBlob {
        ReadBlob {
            segment: 0,
            blob: Some(self.blob),
            author: Some(self.auth.audience),
            key: GrantedKey::of_blob(&self.blob_key),
        }
    }

    fn read_record(&self) -> ReadRecord {
        ReadRecord { seq: self.auth.seq, key: GrantedKey::of_record(&self.record_key) }
    }
}

/// The proof against node 0, by nodes 1 and 2.
pub(crate) fn proof() -> Contradiction {
    let proof = Contradiction::new(Decoy::lying(0).export(), [Decoy::at(1).export(), Decoy::at(2).export()]);
    assert!(proof.check().expect("the proof verifies").is_decided());
    proof
}
