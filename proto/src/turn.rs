//! A client's request for one turn: the signed authorisation and the payload sealed to the node.

use std::ops::RangeInclusive;

use baton_keys::{
    OpenError,
    contexts::{
        AUTH_HASH, GRANT_HASH, JSON_SCHEMA, PAYLOAD_HASH, RESUME_TOKENS, SAMPLING_DIGEST, SignatureLabel,
        TURN_AUTH,
    },
    exchange::{EphemeralSecret, ExchangeKeyError, ExchangeSecret, SUITE, TurnBinding, TurnSecret},
    secret::kdf,
    session::{BlobKey, HeadPartKey, RecordKey, session_id},
};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::{
    check::CheckOrder,
    codec,
    error::ErrorCode,
    ids::{
        AuthHash, DeviceId, Encapsulation, ExchangeKey, ExchangeKeyId, GrantHash, HeadIndexKey, LinkHash,
        ModelId, NodeId, PayloadHash, PublicKey, SamplingDigest, SessionId, SuiAddress, TurnId,
    },
    limits::{
        MAX_CHECKS, MAX_LOGPROBS, MAX_MESSAGES, MAX_OUTPUT_TOKENS, MAX_PAYLOAD_BYTES, MAX_READ_BLOBS,
        MAX_READ_RECORDS, MAX_RESUME_TOKENS, MAX_SCHEMA_BYTES, MAX_STOP_BYTES, MAX_STOP_STRINGS,
        MAX_TOKEN_BIASES, PAYLOAD_BLOCK, PAYLOAD_VERSION, TURN_AUTH_VERSION,
    },
    link::{BlobRef, BranchPoint, Genesis},
    record::{Message, RecordKind, check_supersedes},
    signed::{Signable, SignedBytes, SignedObject, check_order_time},
};

/// The sampling settings. All numbers are finite; the digest of the encoding is signed.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 is greedy; at most 5.
    pub temperature: f32,
    /// Nucleus mass, above 0, at most 1 (off).
    pub top_p: f32,
    /// Candidates kept; 0 is off.
    pub top_k: u32,
    /// Least probability of a candidate, as a part of the likeliest one's; 0 to 1, 0 is off.
    pub min_p: f32,
    /// Above 0, at most 10; 1 is off.
    pub repetition_penalty: f32,
    /// Seed: with the token's position, it alone determines the randomness.
    pub seed: u64,
    /// Texts that end the answer and stay out of it; at most 16, each of at most 256 bytes.
    pub stop: Vec<String>,
    /// [`json_schema_hash`] of the schema that the answer must satisfy.
    pub json_schema: Option<[u8; 32]>,
    /// Alternatives to report for each token; 0 is none, at most 20.
    pub logprobs: u8,
    /// Subtracted from the logit of each token that the answer has; -2 to 2, 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token once for each time that the answer has it; -2 to 2, 0 is off.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens; at most 300, in ascending order of tokens.
    pub token_biases: Vec<TokenBias>,
}

/// A change to the likelihood of a token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenBias {
    /// The token's id in the model's vocabulary.
    pub token: u32,
    /// Added to its logit; -100 to 100.
    pub bias: f32,
}

impl std::fmt::Debug for Sampling {
    /// Omits the stop strings: they are the client's words.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sampling")
            .field("temperature", &self.temperature)
            .field("top_p", &self.top_p)
            .field("top_k", &self.top_k)
            .field("min_p", &self.min_p)
            .field("repetition_penalty", &self.repetition_penalty)
            .field("seed", &self.seed)
            .field("stop", &self.stop.len())
            .field("json_schema", &self.json_schema.is_some())
            .field("logprobs", &self.logprobs)
            .field("presence_penalty", &self.presence_penalty)
            .field("frequency_penalty", &self.frequency_penalty)
            .field("token_biases", &self.token_biases.len())
            .finish()
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
            stop: Vec::new(),
            json_schema: None,
            logprobs: 0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            token_biases: Vec::new(),
        }
    }
}

impl Sampling {
    /// `KDF("sampling-digest", KDF("commitment", record key) ‖ encoding)`. Keyed, since a relayer sees it and
    /// could guess stop strings.
    #[must_use]
    pub fn digest(&self, key: &RecordKey) -> SamplingDigest {
        SamplingDigest(kdf(SAMPLING_DIGEST, &[&key.commitment_key()[..], &codec::encode_secret(self)]))
    }

    /// Checks that every number is in its range.
    ///
    /// # Errors
    /// [`ErrorCode::PayloadRejected`].
    pub fn check(&self) -> Result<(), ErrorCode> {
        // Comparisons with NaN are false, so NaN is refused too.
        let numbers = in_range(self.temperature, 0.0..=5.0)
            && self.top_p > 0.0
            && self.top_p <= 1.0
            && in_range(self.min_p, 0.0..=1.0)
            && self.repetition_penalty > 0.0
            && self.repetition_penalty <= 10.0
            && self.logprobs <= MAX_LOGPROBS
            && in_range(self.presence_penalty, -2.0..=2.0)
            && in_range(self.frequency_penalty, -2.0..=2.0);
        let stops = self.stop.len() <= MAX_STOP_STRINGS
            && self.stop.iter().all(|stop| !stop.is_empty() && stop.len() <= MAX_STOP_BYTES);
        let biases = self.token_biases.len() <= MAX_TOKEN_BIASES
            && self.token_biases.is_sorted_by(|a, b| a.token < b.token)
            && self.token_biases.iter().all(|bias| in_range(bias.bias, -100.0..=100.0));
        if numbers && stops && biases { Ok(()) } else { Err(ErrorCode::PayloadRejected) }
    }
}

/// Whether a number of [`Sampling`] is in its range. `-0.0` is in none: it would be a second encoding of `0.0`.
#[must_use]
pub fn in_range(value: f32, range: RangeInclusive<f32>) -> bool {
    range.contains(&value) && value.to_bits() != (-0.0f32).to_bits()
}

/// Tokens of an answer that another node began, for the next node to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumePrefix {
    /// The node that made the tokens.
    pub author: NodeId,
    /// The attempt in which it made them.
    pub attempt: u32,
    /// Number of tokens.
    pub token_count: u32,
    /// [`resume_tokens_hash`].
    pub tokens_hash: [u8; 32],
}

/// `KDF("resume-tokens", KDF("commitment", record key) ‖ u32le of each token)`. Keyed, since a relayer sees
/// it and could guess the start of an answer.
#[must_use]
pub fn resume_tokens_hash(key: &RecordKey, tokens: &[u32]) -> [u8; 32] {
    let mut bytes = Zeroizing::new(Vec::with_capacity(tokens.len() * 4));
    bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    kdf(RESUME_TOKENS, &[&key.commitment_key()[..], &bytes])
}

/// `KDF("json-schema", text)`.
#[must_use]
pub fn json_schema_hash(text: &str) -> [u8; 32] {
    kdf(JSON_SCHEMA, &[text.as_bytes()])
}

/// The client's signed order for one attempt at one turn, to one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnAuth {
    /// Format version, 4.
    pub version: u8,
    /// Cipher suite, 2.
    pub suite: u8,
    /// The session.
    pub session_id: SessionId,
    /// The session's public key, which signs; the id is its hash.
    pub session_key: PublicKey,
    /// The client's device.
    pub device_id: DeviceId,
    /// Position of the turn in the chain.
    pub seq: u64,
    /// The turn.
    pub turn_id: TurnId,
    /// The attempt, from 0.
    pub attempt: u32,
    /// The client's newest link, or the genesis.
    pub prev_link: LinkHash,
    /// The client's newest blob. None at seq 0, and when the node must find it through the head index.
    pub prev_blob: Option<BlobRef>,
    /// Shard count of the session's blob IDs.
    pub n_shards: u16,
    /// The parent, if the session is a branch.
    pub branch: Option<BranchPoint>,
    /// The node that may serve this attempt.
    pub audience: NodeId,
    /// The id of the node's exchange key, to which the payload is sealed.
    pub audience_key: ExchangeKeyId,
    /// Hash of the sealed payload.
    pub payload_hash: PayloadHash,
    /// The model for the answer.
    pub model: ModelId,
    /// Digest of the sampling settings.
    pub sampling: SamplingDigest,
    /// Most tokens of the answer.
    pub max_output_tokens: u32,
    /// Highest price of the turn, in millionths of the node's unit.
    pub max_price: u64,
    /// The relayer that may add memory, if any.
    pub memory_from: Option<PublicKey>,
    /// Most tokens of added memory.
    pub memory_tokens: u32,
    /// Hash of the grant in the payload.
    pub grant_hash: GrantHash,
    /// The start of the answer, if another node made it.
    pub resume: Option<ResumePrefix>,
    /// Earlier answers that the node checks; at most [`MAX_CHECKS`], each once.
    pub checks: Vec<CheckOrder>,
    /// When it was issued, in milliseconds since the Unix epoch.
    pub issued_ms: u64,
    /// When it expires; at most 120 s later.
    pub expires_ms: u64,
}

impl TurnAuth {
    /// The genesis, which the session's first link continues.
    #[must_use]
    pub fn genesis(&self) -> Genesis {
        Genesis { session_key: self.session_key, n_shards: self.n_shards, branch: self.branch }
    }

    /// The fields to which the turn's keys are bound.
    #[must_use]
    pub fn binding(&self) -> TurnBinding {
        TurnBinding {
            suite: self.suite,
            session_id: self.session_id,
            seq: self.seq,
            turn_id: self.turn_id,
            attempt: self.attempt,
            session_key: self.session_key,
            node: self.audience,
        }
    }

    /// Whether it may be admitted now.
    ///
    /// # Errors
    /// [`ErrorCode::NotYetValid`], [`ErrorCode::Expired`].
    pub fn check_time(&self, now_ms: u64) -> Result<(), ErrorCode> {
        check_order_time(self.issued_ms, self.expires_ms, now_ms)
    }
}

impl Signable for TurnAuth {
    const LABEL: SignatureLabel = TURN_AUTH;
    const BAD_SIGNATURE: ErrorCode = ErrorCode::BadSignature;
    const VERSION: u8 = TURN_AUTH_VERSION;

    fn signer(&self) -> PublicKey {
        self.session_key
    }

    fn check(&self) -> Result<(), ErrorCode> {
        if self.suite != SUITE {
            return Err(ErrorCode::UnsupportedVersion);
        }
        if session_id(&self.session_key) != self.session_id {
            return Err(ErrorCode::SessionIdMismatch);
        }
        let at_genesis = self.prev_blob.is_none() && self.prev_link == self.genesis().link_hash();
        if self.seq == 0 && !at_genesis {
            return Err(ErrorCode::BadGenesis);
        }
        let mut answers: Vec<_> = self.checks.iter().map(|check| check.receipt).collect();
        answers.sort_unstable();
        answers.dedup();
        if self.checks.len() > MAX_CHECKS || answers.len() < self.checks.len() {
            return Err(ErrorCode::NonCanonical);
        }
        if self.max_output_tokens > MAX_OUTPUT_TOKENS { Err(ErrorCode::QuotaExceeded) } else { Ok(()) }
    }
}

impl SignedObject<TurnAuth> {
    /// `KDF("auth-hash", body ‖ signature)`.
    #[must_use]
    pub fn auth_hash(&self) -> AuthHash {
        AuthHash(self.bytes().hash(AUTH_HASH))
    }
}

/// A key inside a sealed payload. Hand-written code alone serialises it; redacted in `Debug`.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct GrantedKey([u8; 32]);

impl GrantedKey {
    /// Grants a record key.
    #[must_use]
    pub fn of_record(key: &RecordKey) -> Self {
        Self(*key.expose())
    }

    /// Grants a blob key.
    #[must_use]
    pub fn of_blob(key: &BlobKey) -> Self {
        Self(*key.expose())
    }

    /// Grants the locate key of a period's head records.
    #[must_use]
    pub fn of_head(key: &HeadPartKey) -> Self {
        Self(*key.expose())
    }

    /// The granted locate key.
    #[must_use]
    pub fn head_key(&self) -> HeadPartKey {
        HeadPartKey::from_bytes(self.0)
    }

    /// The granted record key.
    #[must_use]
    pub fn record_key(&self) -> RecordKey {
        RecordKey::from_bytes(self.0)
    }

    /// The granted blob key.
    #[must_use]
    pub fn blob_key(&self) -> BlobKey {
        BlobKey::from_bytes(self.0)
    }
}

impl Serialize for GrantedKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for GrantedKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <[u8; 32]>::deserialize(deserializer).map(Self)
    }
}

impl std::fmt::Debug for GrantedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GrantedKey(redacted)")
    }
}

/// Permission to read one blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadBlob {
    /// Its segment.
    pub segment: u64,
    /// The blob; none when the node must find it through the head index.
    pub blob: Option<BlobRef>,
    /// The node that wrote it and may have it before the store; none if the client does not know.
    pub author: Option<NodeId>,
    /// The blob key.
    pub key: GrantedKey,
}

/// Permission to read one turn's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadRecord {
    /// The turn's position in the chain.
    pub seq: u64,
    /// The record key.
    pub key: GrantedKey,
}

/// Permission to find one period's head record in the index and to open its outer part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadGrant {
    /// Its place in the index.
    pub index_key: HeadIndexKey,
    /// The locate key.
    pub key: GrantedKey,
}

/// The keys of one turn: to write it, and to read its window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Segment of the new turn.
    pub segment: u64,
    /// Position in it.
    pub index: u8,
    /// Seals the new record.
    pub record_key: GrantedKey,
    /// Seals the new blob.
    pub blob_key: GrantedKey,
    /// Blobs to read, newest first: the head's blob, then the last blobs of earlier closed segments.
    pub blobs: Vec<ReadBlob>,
    /// Records to read, oldest first.
    pub records: Vec<ReadRecord>,
    /// The head record that names the blobs. There exactly when a blob has no location.
    pub head: Option<HeadGrant>,
}

impl Grant {
    /// `KDF("grant-hash", encoding)`.
    #[must_use]
    pub fn hash(&self) -> GrantHash {
        GrantHash(kdf(GRANT_HASH, &[&codec::encode_secret(self)]))
    }
}

/// The storage of the turn's blobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoragePolicy {
    /// Epochs for a blob that the next turn supersedes.
    pub open_epochs: u32,
    /// Epochs for a segment's last blob.
    pub closed_epochs: u32,
    /// The owner of the blob object.
    pub send_object_to: Option<SuiAddress>,
}

impl Default for StoragePolicy {
    fn default() -> Self {
        Self { open_epochs: 1, closed_epochs: 5, send_object_to: None }
    }
}

/// The data of an answer that the sealed part of the request adds to the answer's record.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckInput {
    /// The signed [`Receipt`](crate::receipt::Receipt).
    pub receipt: SignedBytes,
    /// The sampling settings of the answer.
    pub sampling: Sampling,
    /// The JSON schema of the hash in these settings; at most 64 KiB.
    pub json_schema: Option<String>,
    /// The tokens of the answer.
    pub tokens: Vec<u32>,
}

impl Drop for CheckInput {
    fn drop(&mut self) {
        self.tokens.zeroize();
        self.json_schema.zeroize();
    }
}

impl std::fmt::Debug for CheckInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CheckInput({} tokens)", self.tokens.len())
    }
}

impl CheckInput {
    fn check(&self) -> Result<(), ErrorCode> {
        let schema = self.json_schema.as_ref().map_or(0, String::len);
        if schema > MAX_SCHEMA_BYTES || self.tokens.len() > MAX_OUTPUT_TOKENS as usize {
            return Err(ErrorCode::FrameTooLarge);
        }
        self.sampling.check()
    }
}

/// The part of a request that only the node may read.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Payload {
    /// Format version, 5.
    pub version: u8,
    /// The keys.
    pub grant: Grant,
    /// The kind of the new record.
    pub kind: RecordKind,
    /// First seq that it replaces.
    pub supersedes_from: Option<u64>,
    /// Pinned system text: travels with every turn, is never cut and never stored.
    pub system: Vec<Message>,
    /// The turn's new messages.
    pub messages: Vec<Message>,
    /// The sampling settings.
    pub sampling: Sampling,
    /// The JSON schema of the hash in the sampling settings; at most 64 KiB.
    pub json_schema: Option<String>,
    /// The storage of the blob.
    pub storage: StoragePolicy,
    /// Tokens of the answer's start, if the authorisation names a resume prefix.
    pub resume_tokens: Vec<u32>,
    /// The data of the answers that the authorisation wants checked, in its order.
    pub checks: Vec<CheckInput>,
}

impl std::fmt::Debug for Payload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Payload({} messages, {} blobs)", self.messages.len(), self.grant.blobs.len())
    }
}

/// A payload, padded to a multiple of 1 KiB and sealed to a node:
/// `encapsulation(1120) ‖ ChaCha20-Poly1305`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedPayload(#[serde(with = "serde_bytes")] pub Vec<u8>);

impl std::fmt::Debug for SealedPayload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SealedPayload({} bytes)", self.0.len())
    }
}

impl SealedPayload {
    /// `KDF("payload-hash", sealed bytes)`.
    #[must_use]
    pub fn hash(&self) -> PayloadHash {
        PayloadHash(kdf(PAYLOAD_HASH, &[&self.0]))
    }

    /// Seals a payload by a fresh exchange; returns the turn's secret for opening the reply.
    ///
    /// # Errors
    /// [`ErrorCode::KxExpired`] when the node's key is unusable, [`ErrorCode::FrameTooLarge`].
    pub fn seal(
        payload: &Payload,
        ephemeral: EphemeralSecret,
        node_key: &ExchangeKey,
        binding: &TurnBinding,
    ) -> Result<(Self, TurnSecret), ErrorCode> {
        let (encapsulation, secret) = TurnSecret::initiate(ephemeral, node_key, binding)
            .map_err(|_: ExchangeKeyError| ErrorCode::KxExpired)?;
        let mut sealed = encapsulation.as_bytes().to_vec();
        let padded = codec::pad_block(&codec::encode_secret(payload), PAYLOAD_BLOCK);
        sealed.extend_from_slice(&secret.seal_payload(&padded));
        if sealed.len() > MAX_PAYLOAD_BYTES {
            return Err(ErrorCode::FrameTooLarge);
        }
        Ok((Self(sealed), secret))
    }

    /// Opens a payload and checks it against its authorisation.
    ///
    /// # Errors
    /// [`ErrorCode::PayloadRejected`] for every failure from which a holder of the wrong key could learn, and
    /// for content that does not fit the authorisation; [`ErrorCode::FrameTooLarge`],
    /// [`ErrorCode::BadSequence`].
    pub fn open(
        &self,
        node_secret: &ExchangeSecret,
        auth: &TurnAuth,
    ) -> Result<(Payload, TurnSecret), ErrorCode> {
        if self.0.len() > MAX_PAYLOAD_BYTES {
            return Err(ErrorCode::FrameTooLarge);
        }
        if self.hash() != auth.payload_hash {
            return Err(ErrorCode::PayloadRejected);
        }
        let (encapsulation, sealed) = Encapsulation::split(&self.0).ok_or(ErrorCode::PayloadRejected)?;
        let secret = TurnSecret::respond(node_secret, &encapsulation, &auth.binding())
            .map_err(|_: ExchangeKeyError| ErrorCode::PayloadRejected)?;
        let opened = secret.open_payload(sealed).map_err(|OpenError| ErrorCode::PayloadRejected)?;
        let payload: Payload = codec::decode(codec::unpad_block(&opened, PAYLOAD_BLOCK)?, MAX_PAYLOAD_BYTES)?;
        payload.check(auth)?;
        Ok((payload, secret))
    }
}

impl Payload {
    /// Whether the request is for checks alone: it adds nothing to the session, and its reply is a receipt.
    #[must_use]
    pub fn is_check_only(&self, auth: &TurnAuth) -> bool {
        self.kind == RecordKind::Turn
            && self.messages.is_empty()
            && auth.max_output_tokens == 0
            && !self.checks.is_empty()
    }

    /// Checks the payload's limits, and that the client authorised this payload.
    ///
    /// # Errors
    /// As [`SealedPayload::open`].
    pub fn check(&self, auth: &TurnAuth) -> Result<(), ErrorCode> {
        if self.version != PAYLOAD_VERSION {
            return Err(ErrorCode::UnsupportedVersion);
        }
        let grant = &self.grant;
        let counts = grant.blobs.len() <= MAX_READ_BLOBS
            && grant.records.len() <= MAX_READ_RECORDS
            && self.system.len() <= MAX_MESSAGES
            && self.messages.len() < MAX_MESSAGES
            && self.resume_tokens.len() <= MAX_RESUME_TOKENS;
        if !counts {
            return Err(ErrorCode::FrameTooLarge);
        }
        self.system.iter().chain(&self.messages).try_for_each(Message::check)?;
        self.sampling.check()?;
        self.checks.iter().try_for_each(CheckInput::check)?;
        if self.json_schema.as_ref().is_some_and(|schema| schema.len() > MAX_SCHEMA_BYTES) {
            return Err(ErrorCode::FrameTooLarge);
        }
        let record_key = grant.record_key.record_key();
        check_supersedes(self.kind, self.supersedes_from, auth.seq)?;
        let resumes = match &auth.resume {
            None => self.resume_tokens.is_empty(),
            Some(prefix) => {
                prefix.token_count as usize == self.resume_tokens.len()
                    && prefix.tokens_hash == resume_tokens_hash(&record_key, &self.resume_tokens)
            }
        };
        let schema = self.json_schema.as_deref().map(json_schema_hash) == self.sampling.json_schema;
        let authorised =
            schema && grant.hash() == auth.grant_hash && self.sampling.digest(&record_key) == auth.sampling;
        // A start longer than the whole answer would leave the node nothing to sign.
        let room = self.resume_tokens.len() <= auth.max_output_tokens as usize;
        if !resumes || !room || !authorised || self.checks.len() != auth.checks.len() {
            return Err(ErrorCode::PayloadRejected);
        }
        check_blob_order(grant, auth)
    }
}

/// Checks the blob order: none for a first turn, else the head's blob, then closed segments, newest first.
fn check_blob_order(grant: &Grant, auth: &TurnAuth) -> Result<(), ErrorCode> {
    let Some(first) = grant.blobs.first() else {
        let reads_nothing = auth.seq == 0 && grant.records.is_empty() && grant.head.is_none();
        return if reads_nothing { Ok(()) } else { Err(ErrorCode::PayloadRejected) };
    };
    let descending = grant
        .blobs
        .windows(2)
        .all(|pair| matches!(pair, [a, b] if b.segment.checked_add(1) == Some(a.segment)));
    let ascending = grant.records.windows(2).all(|pair| matches!(pair, [a, b] if a.seq < b.seq));
    let in_range = grant.records.last().is_none_or(|last| last.seq < auth.seq);
    // A place that no blob needs would only tell the node where to look later.
    let located = grant.head.is_some() == grant.blobs.iter().any(|read| read.blob.is_none());
    if auth.seq > 0 && descending && ascending && in_range && located && first.blob == auth.prev_blob {
        Ok(())
    } else {
        Err(ErrorCode::PayloadRejected)
    }
}
