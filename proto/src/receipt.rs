//! Receipts and progress notes: a node's signed claims about a turn.

use baton_keys::{
    contexts::{PROGRESS, PROGRESS_START, PROGRESS_STEP, RECEIPT, RECEIPT_HASH, SignatureLabel},
    secret::kdf,
    session::RecordKey,
};
use serde::{Deserialize, Serialize};

use crate::{
    check::{AnswerCheck, CheckOrder, CheckVerdict},
    codec,
    error::ErrorCode,
    ids::{
        AuthHash, Commitment, ModelId, NodeId, PublicKey, ReceiptHash, RunningHash, SamplingDigest,
        SessionId, TurnId,
    },
    limits::RECEIPT_VERSION,
    memory::MemoryItem,
    record::{FinishReason, Message},
    signed::{Signable, SignedObject},
    turn::{CheckInput, Payload, TurnAuth, json_schema_hash},
};

/// The kind of engine that produced the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EngineKind {
    /// The node's own engine, on the weights in the manifest.
    Native,
    /// A server behind the node: counts as reported, no exact window, not replayable.
    Proxied,
    /// A test engine that repeats the message; no model.
    Echo,
    /// No engine for turns: the model turns texts into vectors ([`crate::embed`]). In node records only; a
    /// receipt that names it is refused.
    Embedding,
    /// A general library, on the weights in the manifest: exact counts and windows. Its bits differ between
    /// machines, so it is not replayable.
    Library,
}

impl EngineKind {
    /// Its name in commands, status and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Proxied => "proxied",
            Self::Echo => "echo",
            Self::Embedding => "embedding",
            Self::Library => "library",
        }
    }
}

/// Token counts of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenCounts {
    /// Tokens of the whole prompt.
    pub input: u32,
    /// Tokens of the answer, with those of a resume prefix.
    pub output: u32,
    /// Tokens of added memory, within `input`.
    pub memory: u32,
    /// Tokens of the resume prefix, within `output`: supplied by the client, not attested by this node.
    pub resumed: u32,
}

/// Times of a turn in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timings {
    /// From admission to the start of generation.
    pub queue_ms: u32,
    /// Until the end of prompt processing.
    pub prefill_ms: u32,
    /// From admission to the first token.
    pub first_token_ms: u32,
    /// From the first to the last token.
    pub decode_ms: u32,
}

/// Keyed commitments; only a holder of the turn's record key can check or link them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commitments {
    /// To system text, first seq of the window, and new messages.
    pub input: Commitment,
    /// To the answer and its finish reason.
    pub output: Commitment,
    /// To the memory items used; none if there were none.
    pub memory: Option<Commitment>,
}

/// A node's claims about a turn. They do not prove that the model ran; the checks of later turns show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// Format version, 3.
    pub version: u8,
    /// The session.
    pub session_id: SessionId,
    /// Position in the chain.
    pub seq: u64,
    /// The turn.
    pub turn_id: TurnId,
    /// The attempt.
    pub attempt: u32,
    /// Hash of the client's authorisation.
    pub auth_hash: AuthHash,
    /// The node, which signs.
    pub node: NodeId,
    /// The model's manifest hash.
    pub model: ModelId,
    /// The engine that produced the tokens.
    pub engine: EngineKind,
    /// Digest of the sampling settings.
    pub sampling: SamplingDigest,
    /// The seed.
    pub seed: u64,
    /// First seq of the history in the prompt; the turn's own seq if there was none.
    pub window_from: u64,
    /// Token counts.
    pub tokens: TokenCounts,
    /// Number of memory items used.
    pub memory_items: u16,
    /// Keyed commitments.
    pub commitments: Commitments,
    /// Running hash over the answer's tokens; its start without any ids.
    pub running_hash: RunningHash,
    /// The results of the checks that the authorisation orders, in its order.
    pub checks: Vec<AnswerCheck>,
    /// Times.
    pub timings: Timings,
    /// Charged, in millionths of the node's unit.
    pub price: u64,
    /// When, in milliseconds since the Unix epoch, by the node's clock.
    pub time_ms: u64,
}

impl Signable for Receipt {
    const LABEL: SignatureLabel = RECEIPT;
    const VERSION: u8 = RECEIPT_VERSION;
    const BAD_SIGNATURE: ErrorCode = ErrorCode::BadNodeSignature;

    fn signer(&self) -> PublicKey {
        self.node.public_key()
    }

    fn check(&self) -> Result<(), ErrorCode> {
        // An embedding engine serves no turns.
        if self.engine == EngineKind::Embedding { Err(ErrorCode::NonCanonical) } else { Ok(()) }
    }
}

/// The contents of a served turn that its receipt commits to, apart from those of the payload.
#[derive(Debug, Clone, Copy)]
pub struct ServedContents<'a> {
    /// First seq of the history in the prompt; the turn's own seq if there was none.
    pub window_from: u64,
    /// The memory items used, best first.
    pub memory: &'a [MemoryItem],
    /// The answer.
    pub answer: &'a str,
    /// Why the answer ended.
    pub finish: FinishReason,
}

impl Receipt {
    /// The receipt of a turn at the node that it was ordered from. The facts of the computation are still unset: engine,
    /// counts, running hash, checks, timings, price and time.
    #[must_use]
    pub fn of_turn(auth: &SignedObject<TurnAuth>, payload: &Payload, contents: &ServedContents<'_>) -> Self {
        let key = payload.grant.record_key.record_key();
        let ServedContents { window_from, memory, answer, finish } = *contents;
        let auth_hash = auth.auth_hash();
        Self {
            version: RECEIPT_VERSION,
            session_id: auth.session_id,
            seq: auth.seq,
            turn_id: auth.turn_id,
            attempt: auth.attempt,
            auth_hash,
            node: auth.audience,
            model: auth.model,
            engine: EngineKind::Echo,
            sampling: auth.sampling,
            seed: payload.sampling.seed,
            window_from,
            tokens: TokenCounts {
                resumed: auth.resume.map_or(0, |prefix| prefix.token_count),
                ..TokenCounts::default()
            },
            memory_items: u16::try_from(memory.len()).unwrap_or(u16::MAX),
            commitments: Commitments {
                input: commit_input(&key, &payload.system, window_from, &payload.messages),
                output: commit_output(&key, answer, finish),
                memory: commit_memory(&key, memory),
            },
            running_hash: running_hash_start(&key, &auth_hash),
            checks: Vec::new(),
            timings: Timings::default(),
            price: 0,
            time_ms: 0,
        }
    }

    /// Whether the node's claims stay within the client's order.
    #[must_use]
    pub fn claims_fit(&self, auth: &TurnAuth) -> bool {
        self.model == auth.model
            && self.sampling == auth.sampling
            && self.price <= auth.max_price
            && self.tokens.output <= auth.max_output_tokens
            && self.tokens.memory <= auth.memory_tokens
            && (auth.memory_from.is_some() || self.memory_items == 0)
            && (self.memory_items > 0 || self.tokens.memory == 0)
            && self.tokens.resumed == auth.resume.map_or(0, |prefix| prefix.token_count)
            && self.tokens.resumed <= self.tokens.output
            && self.checks.iter().map(|check| check.order).eq(auth.checks.iter().copied())
    }

    /// The receipt of an answer to check, after verifying that the input belongs to the answer of the order, whose record
    /// has this key.
    ///
    /// # Errors
    /// [`ErrorCode::PayloadRejected`] for data of another answer, and the codes of [`SignedObject::verify`].
    pub fn of_check(
        input: &CheckInput,
        order: &CheckOrder,
        key: &RecordKey,
        auth: &TurnAuth,
    ) -> Result<SignedObject<Self>, ErrorCode> {
        let receipt = SignedObject::<Self>::verify(input.receipt.clone())?;
        let start = running_hash_start(key, &receipt.auth_hash);
        let fits = receipt.receipt_hash() == order.receipt
            && receipt.session_id == auth.session_id
            && receipt.seq < auth.seq
            && receipt.engine == EngineKind::Native
            && order.probe < receipt.tokens.output
            && receipt.sampling == input.sampling.digest(key)
            && input.json_schema.as_deref().map(json_schema_hash) == input.sampling.json_schema
            && receipt.matches_tokens(&running_hashes(start, &input.tokens));
        if fits { Ok(receipt) } else { Err(ErrorCode::PayloadRejected) }
    }

    /// The node's verdict on the answer of a receipt, if it was asked for one.
    #[must_use]
    pub fn verdict_on(&self, answer: &ReceiptHash) -> Option<CheckVerdict> {
        self.checks.iter().find(|check| check.order.receipt == *answer).map(|check| check.verdict)
    }

    /// Whether engine, prompt and price are those of the offer that the client accepted. The price is at most that of
    /// the signed counts, rounded up to a millionth, and that of the blob's storage units. A resume prefix
    /// costs nothing as output.
    #[must_use]
    pub fn fits_terms(&self, terms: &OfferTerms, storage_units: u64) -> bool {
        let generated = self.tokens.output.saturating_sub(self.tokens.resumed);
        let thousandths = u128::from(self.tokens.input) * u128::from(terms.input_price)
            + u128::from(generated) * u128::from(terms.output_price);
        let storage = u128::from(storage_units) * u128::from(terms.storage_price);
        let most = thousandths.div_ceil(1000).saturating_add(storage);
        self.engine == terms.engine
            && self.tokens.input <= terms.context_tokens
            && u128::from(self.price) <= most
    }

    /// Whether the node counted and hashed the answer as the client did, by the [`running_hashes`] of its tokens.
    #[must_use]
    pub fn matches_tokens(&self, hashes: &[RunningHash]) -> bool {
        let tokens = hashes.len().checked_sub(1).and_then(|tokens| u32::try_from(tokens).ok());
        Some(self.tokens.output) == tokens && Some(&self.running_hash) == hashes.last()
    }

    /// Whether an answer without tokens has the running hash of none.
    pub(crate) fn hash_fits_empty_answer(&self, key: &RecordKey) -> bool {
        self.tokens.output > 0 || self.running_hash == running_hash_start(key, &self.auth_hash)
    }
}

/// The terms of an offer to which a client holds a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferTerms {
    /// The kind of engine.
    pub engine: EngineKind,
    /// Tokens of context.
    pub context_tokens: u32,
    /// Price of a thousand input tokens, in millionths of the node's unit.
    pub input_price: u64,
    /// Price of a thousand output tokens, in millionths of the node's unit.
    pub output_price: u64,
    /// Price of a storage unit, in millionths of the node's unit.
    pub storage_price: u64,
}

impl SignedObject<Receipt> {
    /// `KDF("receipt-hash", body ‖ signature)`.
    #[must_use]
    pub fn receipt_hash(&self) -> ReceiptHash {
        ReceiptHash(self.bytes().hash(RECEIPT_HASH))
    }
}

fn commit<T: Serialize>(key: &RecordKey, tag: u8, value: &T) -> Commitment {
    let mut hasher = blake3::Hasher::new_keyed(&key.commitment_key());
    hasher.update(&[tag]);
    hasher.update(&codec::encode_secret(value));
    Commitment(hasher.finalize().into())
}

/// `BLAKE3_keyed(KDF("commitment", record key), 0x01 ‖ encode(system, window_from, messages))`.
#[must_use]
pub fn commit_input(key: &RecordKey, system: &[Message], window_from: u64, new: &[Message]) -> Commitment {
    commit(key, 1, &(system, window_from, new))
}

/// `BLAKE3_keyed(KDF("commitment", record key), 0x02 ‖ encode(answer, finish))`.
#[must_use]
pub fn commit_output(key: &RecordKey, answer: &str, finish: FinishReason) -> Commitment {
    commit(key, 2, &(answer, finish))
}

/// `BLAKE3_keyed(KDF("commitment", record key), 0x03 ‖ encode(items))`, none for no items.
#[must_use]
pub fn commit_memory(key: &RecordKey, items: &[MemoryItem]) -> Option<Commitment> {
    if items.is_empty() { None } else { Some(commit(key, 3, &items)) }
}

/// A signed count of tokens, sent every 32 tokens: the evidence left by a node that dies mid-answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressNote {
    /// Format version, 1.
    pub version: u8,
    /// The node, which signs.
    pub node: NodeId,
    /// Hash of the client's authorisation.
    pub auth_hash: AuthHash,
    /// Tokens of the answer so far, with those of a resume prefix.
    pub token_count: u32,
    /// Running hash over these tokens.
    pub running_hash: RunningHash,
    /// When, in milliseconds since the Unix epoch.
    pub time_ms: u64,
}

impl Signable for ProgressNote {
    const LABEL: SignatureLabel = PROGRESS;
    const BAD_SIGNATURE: ErrorCode = ErrorCode::BadNodeSignature;

    fn signer(&self) -> PublicKey {
        self.node.public_key()
    }
}

/// Start of the running token hash: `KDF("progress-start", KDF("commitment", record key) ‖ auth hash)`.
#[must_use]
pub fn running_hash_start(key: &RecordKey, auth_hash: &AuthHash) -> RunningHash {
    RunningHash(kdf(PROGRESS_START, &[&key.commitment_key()[..], &auth_hash.0]))
}

/// One step: `KDF("progress-step", running hash ‖ u32le(token))`.
#[must_use]
pub fn running_hash_step(hash: &RunningHash, token: u32) -> RunningHash {
    RunningHash(kdf(PROGRESS_STEP, &[&hash.0, &token.to_le_bytes()]))
}

/// The running hashes of an answer: the start, then one after each token.
#[must_use]
pub fn running_hashes(start: RunningHash, tokens: &[u32]) -> Vec<RunningHash> {
    let steps = tokens.iter().scan(start, |hash, token| {
        *hash = running_hash_step(hash, *token);
        Some(*hash)
    });
    std::iter::once(start).chain(steps).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_and_the_last_hash_bind_every_token() {
        let key = RecordKey::from_bytes([1; 32]);
        let start = running_hash_start(&key, &AuthHash([3; 32]));
        let tokens: Vec<u32> = (0..70).collect();
        let hashes = running_hashes(start, &tokens);
        let of = |output: u32, running_hash| Receipt {
            tokens: TokenCounts { output, ..TokenCounts::default() },
            running_hash,
            ..receipt()
        };
        let good = of(70, hashes[70]);
        assert!(good.matches_tokens(&hashes));
        assert!(!of(69, hashes[70]).matches_tokens(&hashes) && !of(70, hashes[69]).matches_tokens(&hashes));
        assert!(!good.matches_tokens(&hashes[..70]) && !good.matches_tokens(&[]));
        for position in 0..tokens.len() {
            let mut changed = tokens.clone();
            changed[position] ^= 1;
            assert!(!good.matches_tokens(&running_hashes(start, &changed)), "token {position}");
        }
        let none = of(0, start);
        assert!(none.matches_tokens(&hashes[..1]) && none.hash_fits_empty_answer(&key));
        assert!(!of(0, hashes[1]).hash_fits_empty_answer(&key) && good.hash_fits_empty_answer(&key));
    }

    #[test]
    fn a_price_is_at_most_that_of_the_counts_and_a_prompt_fits_the_context() {
        let engine = EngineKind::Native;
        let terms =
            OfferTerms { engine, context_tokens: 1000, input_price: 3, output_price: 50, storage_price: 0 };
        let fits = |input, output, resumed, price| {
            let tokens = TokenCounts { input, output, memory: 0, resumed };
            Receipt { tokens, price, ..receipt() }.fits_terms(&terms, 65)
        };
        // 100 * 3 + 40 * 50 = 2,300 thousandths, so at most 3 millionths.
        assert!(fits(100, 40, 0, 0) && fits(100, 40, 0, 3));
        assert!(!fits(100, 40, 0, 4));
        // Ten of the tokens came from another node: 1,800 thousandths.
        assert!(fits(100, 40, 10, 2) && !fits(100, 40, 10, 3));
        assert!(fits(1000, 0, 0, 0) && !fits(1001, 0, 0, 0));
        let other = OfferTerms { engine: EngineKind::Proxied, ..terms };
        assert!(!Receipt { price: 0, ..receipt() }.fits_terms(&other, 65), "another engine");
        let free = OfferTerms { input_price: 0, output_price: 0, ..terms };
        assert!(!Receipt { price: 1, ..receipt() }.fits_terms(&free, 65));
        let stored = OfferTerms { storage_price: 2, ..free };
        assert!(Receipt { price: 130, ..receipt() }.fits_terms(&stored, 65));
        assert!(!Receipt { price: 131, ..receipt() }.fits_terms(&stored, 65), "for more than was stored");
        let most = u64::MAX;
        let dear = OfferTerms { input_price: most, output_price: most, storage_price: most, ..terms };
        let tokens = TokenCounts { output: u32::MAX, ..TokenCounts::default() };
        assert!(Receipt { price: u64::MAX, tokens, ..receipt() }.fits_terms(&dear, most), "no overflow");
    }

    fn receipt() -> Receipt {
        Receipt {
            version: RECEIPT_VERSION,
            session_id: SessionId([1; 32]),
            seq: 0,
            turn_id: TurnId([2; 16]),
            attempt: 0,
            auth_hash: AuthHash([3; 32]),
            node: NodeId([4; 32]),
            model: ModelId([5; 32]),
            engine: EngineKind::Native,
            sampling: SamplingDigest([6; 32]),
            seed: 0,
            window_from: 0,
            tokens: TokenCounts { input: 10, output: 10, ..TokenCounts::default() },
            memory_items: 0,
            commitments: Commitments {
                input: Commitment([7; 32]),
                output: Commitment([8; 32]),
                memory: None,
            },
            running_hash: RunningHash([9; 32]),
            checks: Vec::new(),
            timings: Timings::default(),
            price: 0,
            time_ms: 0,
        }
    }
}
