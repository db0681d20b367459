//! A value of every wire type with random fields: well-formed, seldom meaningful.

use baton_keys::{SecretSigningKey, exchange::SUITE};
use baton_proto::{
    ErrorCode, Signable, SignedBytes, SignedObject,
    check::{AnswerCheck, CheckGap, CheckOrder, CheckVerdict},
    embed::{
        EmbedAnswer, EmbedAuth, EmbedFrame, EmbedReply, EmbedRequest, EmbedTexts, SealedReply, SealedTexts,
    },
    export::ExportStatement,
    head::{BranchHead, DeviceLease, HeadInner, HeadOuter, HeadRecord, SegmentRef},
    ids::{
        AuthHash, BlobDigest, BlobId, Commitment, DeviceId, EmbedId, Encapsulation, ExchangeKey,
        ExchangeKeyId, FetchProof, GrantHash, HeadIndexKey, LinkHash, ModelId, NodeId, PayloadHash,
        PublicKey, QuotaHash, QuotaSerial, ReceiptHash, RecordHash, RunningHash, SamplingDigest, SessionId,
        SuiAddress, TurnId,
    },
    limits::MAX_CHECKS,
    link::{BlobRef, BranchPoint, Genesis, Link},
    memory::{MemEnvelope, MemoryItem, RecallHint, RecallScope},
    node_record::{KeyWindow, ModelManifest, ModelOffer, NodeLimits, NodeRecord, StorageOffer},
    note::{Acknowledgement, TurnNote, TurnNoteKind},
    quota::{QuotaGrant, QuotaProof, QuotaUse},
    receipt::{Commitments, EngineKind, ProgressNote, Receipt, Timings, TokenCounts},
    record::{FinishReason, Message, Record, RecordKind, Role, SealedRecord},
    segment::{Entry, Segment},
    turn::{
        CheckInput, Grant, GrantedKey, HeadGrant, Payload, ReadBlob, ReadRecord, ResumePrefix, Sampling,
        SealedPayload, StoragePolicy, TokenBias, TurnAuth,
    },
    wire::{
        ClientFrame, Committed, InlineBlob, NodeFrame, RelayRecall, ReplyEvent, StoreState, TokenBytes,
        TokenLogprob, TurnRequest, TurnStatus,
    },
};

use super::source::Source;

/// A type with a random value.
pub(crate) trait RandomValue {
    fn random(source: &mut Source) -> Self;
}

macro_rules! random_arrays {
    ($($name:ident),*) => { $(impl RandomValue for $name {
        fn random(source: &mut Source) -> Self { Self(source.bytes()) }
    })* };
}
random_arrays!(
    AuthHash,
    BlobDigest,
    BlobId,
    Commitment,
    DeviceId,
    EmbedId,
    ExchangeKeyId,
    FetchProof,
    GrantHash,
    HeadIndexKey,
    LinkHash,
    ModelId,
    NodeId,
    PayloadHash,
    PublicKey,
    QuotaHash,
    QuotaSerial,
    ReceiptHash,
    RecordHash,
    RunningHash,
    SamplingDigest,
    SessionId,
    SuiAddress,
    TurnId
);

macro_rules! random_numbers {
    ($($name:ty),*) => { $(impl RandomValue for $name {
        fn random(source: &mut Source) -> Self {
            // Half of the values are extremes and small numbers: limits and wrap-around hide there.
            match source.below(4) {
                0 => <$name>::MAX - <$name>::from_le_bytes(source.bytes()) % 3,
                1 => <$name>::from_le_bytes(source.bytes()) % 20,
                _ => <$name>::from_le_bytes(source.bytes()),
            }
        }
    })* };
}
random_numbers!(u8, u16, u32, u64);

impl RandomValue for i32 {
    fn random(source: &mut Source) -> Self {
        Self::from_le_bytes(u32::random(source).to_le_bytes())
    }
}

macro_rules! random_choices {
    ($($name:ident: [$($variant:ident),*];)*) => { $(impl RandomValue for $name {
        fn random(source: &mut Source) -> Self {
            let all = [$($name::$variant),*];
            all[source.below(all.len())]
        }
    })* };
}
random_choices! {
    Role: [System, User, Assistant, Tool];
    RecordKind: [Turn, Edit, Summary, Tombstone];
    RecallScope: [Full, NeutralAndRelationship, RelationshipOnly, NeutralOnly, InsightsOnly, None];
    FinishReason: [Stop, StopString, Length, ToolCall, None];
    EngineKind: [Native, Proxied, Echo, Library];
    CheckGap: [Window, Memory, Model, Refused];
}

macro_rules! random_structs {
    ($($name:ident { $($field:ident),* })*) => { $(impl RandomValue for $name {
        fn random(source: &mut Source) -> Self { Self { $($field: RandomValue::random(source)),* } }
    })* };
}
random_structs! {
    BlobRef { blob_id, digest, length }
    BranchPoint { session_id, link_hash }
    Genesis { session_key, n_shards, branch }
    Link {
        version, session_id, seq, segment, index, turn_id, attempt, prev_link, prev_blob, record_hash,
        record_length, auth_hash, receipt_hash, author, time_ms
    }
    TurnAuth {
        version, suite, session_id, session_key, device_id, seq, turn_id, attempt, prev_link,
        prev_blob, n_shards, branch, audience, audience_key, payload_hash, model, sampling, max_output_tokens,
        max_price, memory_from, memory_tokens, grant_hash, resume, checks, issued_ms, expires_ms
    }
    ResumePrefix { author, attempt, token_count, tokens_hash }
    Sampling {
        temperature, top_p, top_k, min_p, repetition_penalty, seed, stop, json_schema, logprobs, presence_penalty,
        frequency_penalty, token_biases
    }
    TokenBias { token, bias }
    ReadBlob { segment, blob, author, key }
    ReadRecord { seq, key }
    HeadGrant { index_key, key }
    Grant { segment, index, record_key, blob_key, blobs, records, head }
    StoragePolicy { open_epochs, closed_epochs, send_object_to }
    Payload {
        version, grant, kind, supersedes_from, system, messages, sampling, json_schema, storage, resume_tokens,
        checks
    }
    CheckOrder { receipt, probe }
    CheckInput { receipt, sampling, json_schema, tokens }
    AnswerCheck { order, verdict }
    TurnNote { version, session_id, session_key, seq, turn_id, attempt, node, time_ms, kind }
    Acknowledgement { link_hash, blob_digest, receipt_hash }
    ExportStatement { version, session_id, session_key, seq, link_hash }
    TokenCounts { input, output, memory, resumed }
    Timings { queue_ms, prefill_ms, first_token_ms, decode_ms }
    Commitments { input, output, memory }
    Receipt {
        version, session_id, seq, turn_id, attempt, auth_hash, node, model, engine, sampling, seed,
        window_from, tokens, memory_items, commitments, running_hash, checks, timings, price, time_ms
    }
    ProgressNote { version, node, auth_hash, token_count, running_hash, time_ms }
    TokenLogprob { token, millinats, bytes }
    MemoryItem { text, source, time_ms }
    MemEnvelope {
        version, auth_hash, relayer, node, encapsulation, sealed, budget_tokens, issued_ms, expires_ms
    }
    RecallHint { version, auth_hash, owner, key, hint, session, project, persona, scope }
    QuotaGrant {
        version, grantor, serial, parent, holder, nodes, models, turns_per_hour, tokens_per_hour, concurrent,
        from_ms, until_ms, depth
    }
    QuotaProof { version, holder, grant, auth_hash }
    QuotaUse { chain, proof }
    HeadRecord { version, head_key, sequence, issued_ms, expires_ms, outer, inner }
    SegmentRef { segment, blob }
    HeadOuter { n_shards, branch, seq, link_hash, blobs }
    DeviceLease { device, expires_ms }
    BranchHead { seq, link_hash, turn_id, attempt, author, end }
    HeadInner { turn_id, attempt, author, devices, branches, tombstone }
    KeyWindow { key, from_ms, until_ms }
    ModelManifest { version, architecture, weights_sha256, tokenizer_hash, template_hash, engine_revision }
    ModelOffer { model, name, engine, context_tokens, input_price, output_price }
    NodeLimits { slots, queue, turns_per_minute, max_output_tokens }
    StorageOffer { price, max_epochs, unknown_max_epochs }
    NodeRecord {
        version, node, sequence, addresses, keys, models, limits, storage, versions, software, issued_ms,
        expires_ms
    }
    Message { role, name, call_id, text }
    Record { version, kind, supersedes_from, messages, finish }
    Entry { link, record }
    Segment { version, session_id, segment, entries }
    SignedBytes { body, signature }
    TurnRequest { auth, payload, inline, memory }
    RelayRecall { hint, node_key }
    Committed { link, receipt, blob_digest, blob_length, finish }
    EmbedAuth {
        version, suite, client_key, request, audience, audience_key, model, texts_hash, issued_ms, expires_ms
    }
    EmbedTexts { version, texts }
    EmbedRequest { auth, texts, quota }
    EmbedReply { version, node, auth_hash, model, dimensions, tokens, components }
}

impl RandomValue for ExchangeKey {
    fn random(source: &mut Source) -> Self {
        Self::from(source.bytes())
    }
}

impl RandomValue for Encapsulation {
    fn random(source: &mut Source) -> Self {
        Self::from(source.bytes())
    }
}

impl RandomValue for CheckVerdict {
    fn random(source: &mut Source) -> Self {
        match source.below(3) {
            0 => Self::Same { logits: source.bytes() },
            1 => Self::Different { token: u32::random(source), logits: source.bytes() },
            _ => Self::NotComparable(CheckGap::random(source)),
        }
    }
}

impl RandomValue for bool {
    fn random(source: &mut Source) -> Self {
        source.coin()
    }
}

impl RandomValue for f32 {
    fn random(source: &mut Source) -> Self {
        let values = [0.0, -0.0, 0.7, 1.0, 5.0, 1e30, f32::MIN_POSITIVE, f32::INFINITY];
        values[source.below(values.len())]
    }
}

impl RandomValue for [u8; 32] {
    fn random(source: &mut Source) -> Self {
        source.bytes()
    }
}

impl RandomValue for String {
    fn random(source: &mut Source) -> Self {
        let length = source.below(40);
        source.text(length)
    }
}

impl<T: RandomValue> RandomValue for Option<T> {
    fn random(source: &mut Source) -> Self {
        source.coin().then(|| T::random(source))
    }
}

impl<T: RandomValue> RandomValue for Vec<T> {
    fn random(source: &mut Source) -> Self {
        (0..source.below(5)).map(|_| T::random(source)).collect()
    }
}

impl RandomValue for baton_proto::signed::SignatureBytes {
    fn random(source: &mut Source) -> Self {
        Self(source.bytes())
    }
}

impl RandomValue for GrantedKey {
    fn random(source: &mut Source) -> Self {
        Self::of_record(&baton_keys::session::RecordKey::from_bytes(source.bytes()))
    }
}

impl RandomValue for SealedRecord {
    fn random(source: &mut Source) -> Self {
        Self(RandomValue::random(source))
    }
}

impl RandomValue for SealedPayload {
    fn random(source: &mut Source) -> Self {
        Self(RandomValue::random(source))
    }
}

impl RandomValue for TokenBytes {
    fn random(source: &mut Source) -> Self {
        Self(RandomValue::random(source))
    }
}

impl RandomValue for InlineBlob {
    fn random(source: &mut Source) -> Self {
        Self(RandomValue::random(source))
    }
}

impl RandomValue for ErrorCode {
    fn random(source: &mut Source) -> Self {
        Self::WIRE[source.below(Self::WIRE.len())]
    }
}

impl RandomValue for TurnNoteKind {
    fn random(source: &mut Source) -> Self {
        match source.below(3) {
            0 => Self::Ack(RandomValue::random(source)),
            1 => Self::Abort,
            _ => Self::Status,
        }
    }
}

impl RandomValue for ClientFrame {
    fn random(source: &mut Source) -> Self {
        match source.below(6) {
            0 => Self::Turn(RandomValue::random(source)),
            1 => Self::Relay { request: RandomValue::random(source), recall: RandomValue::random(source) },
            2 => Self::Note(RandomValue::random(source)),
            3 => Self::FetchBlob { digest: RandomValue::random(source), proof: RandomValue::random(source) },
            4 => Self::NodeRecord,
            _ => Self::Quota(RandomValue::random(source)),
        }
    }
}

impl RandomValue for SealedTexts {
    fn random(source: &mut Source) -> Self {
        Self(RandomValue::random(source))
    }
}

impl RandomValue for SealedReply {
    fn random(source: &mut Source) -> Self {
        Self(RandomValue::random(source))
    }
}

impl RandomValue for EmbedFrame {
    fn random(source: &mut Source) -> Self {
        Self::Request(RandomValue::random(source))
    }
}

impl RandomValue for EmbedAnswer {
    fn random(source: &mut Source) -> Self {
        if source.coin() {
            Self::Embedded { nonce: source.bytes(), sealed: RandomValue::random(source) }
        } else {
            Self::Refused { code: RandomValue::random(source), retry_after_ms: RandomValue::random(source) }
        }
    }
}

impl RandomValue for StoreState {
    fn random(source: &mut Source) -> Self {
        match source.below(3) {
            0 => {
                Self::Stored { blob_id: RandomValue::random(source), end_epoch: RandomValue::random(source) }
            }
            1 => Self::Pending,
            _ => Self::GivenUp,
        }
    }
}

impl RandomValue for TurnStatus {
    fn random(source: &mut Source) -> Self {
        match source.below(3) {
            0 => Self::Accepted,
            1 => Self::Sealed {
                committed: Box::new(RandomValue::random(source)),
                store: RandomValue::random(source),
            },
            _ => Self::Aborted,
        }
    }
}

impl RandomValue for NodeFrame {
    fn random(source: &mut Source) -> Self {
        match source.below(8) {
            0 => Self::Accepted { nonce: source.bytes() },
            1 => Self::Chunk(RandomValue::random(source)),
            2 => Self::Refused {
                code: RandomValue::random(source),
                retry_after_ms: RandomValue::random(source),
            },
            3 => Self::Status(RandomValue::random(source)),
            4 => Self::Done,
            5 => Self::Blob(RandomValue::random(source)),
            6 => Self::NodeRecord(RandomValue::random(source)),
            _ => Self::Memory(RandomValue::random(source)),
        }
    }
}

impl RandomValue for ReplyEvent {
    fn random(source: &mut Source) -> Self {
        match source.below(7) {
            0 => Self::Waiting(RandomValue::random(source)),
            1 => Self::Tokens {
                index: RandomValue::random(source),
                ids: RandomValue::random(source),
                text: RandomValue::random(source),
                logprobs: RandomValue::random(source),
            },
            2 => Self::Progress(RandomValue::random(source)),
            3 => Self::Committed(Box::new(RandomValue::random(source))),
            4 => Self::Store(RandomValue::random(source)),
            5 => Self::Checked(RandomValue::random(source)),
            _ => Self::Failed {
                code: RandomValue::random(source),
                retry_after_ms: RandomValue::random(source),
                reason: RandomValue::random(source),
            },
        }
    }
}

/// A signed type with a settable signer, so that its own checks are reached.
pub(crate) trait SettableSigner: Signable + RandomValue {
    fn set_signer(&mut self, key: &SecretSigningKey);
}

macro_rules! settable_signers {
    ($($name:ident: |$value:ident, $key:ident| $body:block)*) => { $(impl SettableSigner for $name {
        fn set_signer(&mut self, $key: &SecretSigningKey) {
            let $value = self;
            $value.version = <$name as Signable>::VERSION;
            $body
        }
    })* };
}
settable_signers! {
    Link: |link, key| { link.author = key.node_id(); }
    Receipt: |receipt, key| { receipt.node = key.node_id(); }
    ProgressNote: |note, key| { note.node = key.node_id(); }
    NodeRecord: |record, key| { record.node = key.node_id(); }
    HeadRecord: |record, key| { record.head_key = key.public_key(); }
    MemEnvelope: |envelope, key| { envelope.relayer = key.public_key(); }
    RecallHint: |hint, key| { hint.key = key.public_key(); }
    QuotaGrant: |grant, key| { grant.grantor = key.public_key(); }
    QuotaProof: |proof, key| { proof.holder = key.public_key(); }
    EmbedAuth: |auth, key| { auth.suite = SUITE; auth.client_key = key.public_key(); }
    EmbedReply: |reply, key| {
        reply.node = key.node_id();
        reply.dimensions = 2;
        reply.tokens.resize(3, 7);
        reply.components = vec![0.5; 6];
    }
    TurnAuth: |auth, key| {
        auth.suite = SUITE;
        auth.session_key = key.public_key();
        auth.session_id = baton_keys::session::session_id(&auth.session_key);
        auth.checks.truncate(MAX_CHECKS);
    }
    TurnNote: |note, key| {
        note.session_key = key.public_key();
        note.session_id = baton_keys::session::session_id(&note.session_key);
    }
    ExportStatement: |statement, key| {
        statement.session_key = key.public_key();
        statement.session_id = baton_keys::session::session_id(&statement.session_key);
    }
}

/// An object that its own signer signed; all other fields are arbitrary.
pub(crate) fn signed<T: SettableSigner>(source: &mut Source, key: &SecretSigningKey) -> SignedObject<T> {
    let mut value = T::random(source);
    value.set_signer(key);
    SignedObject::sign(value, key)
}
