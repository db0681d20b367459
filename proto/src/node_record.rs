//! Node records: what a node says of itself, signed: exchange keys, models, limits.

use baton_keys::{
    contexts::{MODEL_MANIFEST, NODE_RECORD, SignatureLabel},
    secret::kdf,
};
use serde::{Deserialize, Serialize};

use crate::{
    codec,
    error::ErrorCode,
    ids::{ExchangeKey, ModelId, NodeId, PublicKey},
    limits::{MAX_EXCHANGE_KEY_LIFETIME_MS, MAX_RECORD_LIST, MAX_RECORD_TEXT_BYTES},
    receipt::EngineKind,
    signed::Signable,
};

/// An exchange key and when it may be sealed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyWindow {
    /// The X25519 key.
    pub key: ExchangeKey,
    /// From when, in milliseconds since the Unix epoch.
    pub from_ms: u64,
    /// Until when; at most a day later.
    pub until_ms: u64,
}

/// What a model is: its identity is the hash of this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelManifest {
    /// Format version, 1.
    pub version: u8,
    /// Architecture, as the weights name it, or `proxied:` and the model's name at the server behind the node.
    pub architecture: String,
    /// SHA-256 of the weights file; zero for a proxied model.
    pub weights_sha256: [u8; 32],
    /// BLAKE3 of the tokenizer's canonical description; zero for a proxied model.
    pub tokenizer_hash: [u8; 32],
    /// BLAKE3 of the chat template's text; zero for a proxied model.
    pub template_hash: [u8; 32],
}

impl ModelManifest {
    /// `KDF("model-manifest", encoding)`.
    #[must_use]
    pub fn model_id(&self) -> ModelId {
        ModelId(kdf(MODEL_MANIFEST, &[&codec::encode(self)]))
    }
}

/// A model that a node serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelOffer {
    /// The model's manifest hash.
    pub model: ModelId,
    /// A name for people.
    pub name: String,
    /// What produces the tokens.
    pub engine: EngineKind,
    /// Tokens of context.
    pub context_tokens: u32,
    /// Price of a thousand input tokens, in millionths of the node's unit.
    pub input_price: u64,
    /// Price of a thousand output tokens, in millionths of the node's unit.
    pub output_price: u64,
}

/// A node's own limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLimits {
    /// Turns served at once.
    pub slots: u32,
    /// Turns that may wait.
    pub queue: u32,
    /// Turns a minute from one peer.
    pub turns_per_minute: u32,
    /// Most tokens of an answer.
    pub max_output_tokens: u32,
}

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Format version, 1.
    pub version: u8,
    /// The node, which signs.
    pub node: NodeId,
    /// Rises with every publication.
    pub sequence: u64,
    /// Multiaddresses.
    pub addresses: Vec<String>,
    /// Exchange keys, the current one first.
    pub keys: Vec<KeyWindow>,
    /// Models served.
    pub models: Vec<ModelOffer>,
    /// The node's limits.
    pub limits: NodeLimits,
    /// Session chain versions spoken.
    pub versions: Vec<u8>,
    /// Name and version of the software.
    pub software: String,
    /// When it was issued, in milliseconds since the Unix epoch.
    pub issued_ms: u64,
    /// Until when it holds.
    pub expires_ms: u64,
}

impl Signable for NodeRecord {
    const LABEL: SignatureLabel = NODE_RECORD;
    const BAD_SIGNATURE: ErrorCode = ErrorCode::BadNodeSignature;

    fn version(&self) -> u8 {
        self.version
    }

    fn signer(&self) -> PublicKey {
        self.node.public_key()
    }

    fn check(&self) -> Result<(), ErrorCode> {
        let lists = [self.addresses.len(), self.keys.len(), self.models.len(), self.versions.len()];
        let texts =
            self.addresses.iter().chain(self.models.iter().map(|offer| &offer.name)).chain([&self.software]);
        if lists.iter().any(|length| *length > MAX_RECORD_LIST)
            || texts.into_iter().any(|text| text.len() > MAX_RECORD_TEXT_BYTES)
        {
            return Err(ErrorCode::FrameTooLarge);
        }
        let windows = self.keys.iter().all(|window| {
            window
                .until_ms
                .checked_sub(window.from_ms)
                .is_some_and(|lifetime| lifetime <= MAX_EXCHANGE_KEY_LIFETIME_MS)
        });
        if windows && self.issued_ms < self.expires_ms { Ok(()) } else { Err(ErrorCode::KxExpired) }
    }
}

impl NodeRecord {
    /// The exchange key to seal to now.
    ///
    /// # Errors
    /// [`ErrorCode::KxExpired`] when the record, or every key in it, is out of date.
    pub fn current_key(&self, now_ms: u64) -> Result<ExchangeKey, ErrorCode> {
        if now_ms > self.expires_ms {
            return Err(ErrorCode::KxExpired);
        }
        self.keys
            .iter()
            .find(|window| window.from_ms <= now_ms && now_ms <= window.until_ms)
            .map(|window| window.key)
            .ok_or(ErrorCode::KxExpired)
    }
}
