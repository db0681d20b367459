//! Embeddings: texts to vectors, on a substream of their own.
//!
//! The client sends a signed order with the texts sealed to the node. The node returns one sealed and signed
//! reply. There is no session and no history, and nothing is stored.

use baton_keys::{
    OpenError, SecretSigningKey,
    contexts::{EMBED_AUTH, EMBED_AUTH_HASH, EMBED_REPLY, EMBED_TEXTS_HASH, SignatureLabel},
    exchange::{EmbedBinding, EmbedSecret, EphemeralSecret, ExchangeKeyError, ExchangeSecret, SUITE},
    secret::kdf,
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroize as _;

use crate::{
    codec,
    error::ErrorCode,
    ids::{
        AuthHash, EmbedId, Encapsulation, ExchangeKey, ExchangeKeyId, ModelId, NodeId, PayloadHash, PublicKey,
    },
    limits::{
        EMBED_AUTH_VERSION, MAX_EMBED_DIMENSIONS, MAX_EMBED_REPLY_BYTES, MAX_EMBED_SEALED_BYTES,
        MAX_EMBED_TEXT_BYTES, MAX_EMBED_TEXTS, PAYLOAD_BLOCK, VERSION,
    },
    right::QuotaUse,
    signed::{Signable, SignatureBytes, SignedBytes, SignedObject, check_order_time},
};

/// Name of the protocol; it carries the version.
pub const EMBED_PROTOCOL: &str = "/baton/embed/1";

/// The client's signed order, to one node, for the embeddings of some texts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmbedAuth {
    /// Format version, 2.
    pub version: u8,
    /// Cipher suite, 2.
    pub suite: u8,
    /// The key that signs; new for each order, so that no two orders can be linked by it.
    pub client_key: PublicKey,
    /// The request.
    pub request: EmbedId,
    /// The node that may serve it.
    pub audience: NodeId,
    /// The id of the node's exchange key, to which the texts are sealed.
    pub audience_key: ExchangeKeyId,
    /// The embedding model.
    pub model: ModelId,
    /// Hash of the sealed texts.
    pub texts_hash: PayloadHash,
    /// When it was issued, in milliseconds since the Unix epoch.
    pub issued_ms: u64,
    /// When it expires; at most 120 s later.
    pub expires_ms: u64,
}

impl EmbedAuth {
    /// The fields to which the request's keys are bound.
    #[must_use]
    pub fn binding(&self) -> EmbedBinding {
        EmbedBinding {
            suite: self.suite,
            client_key: self.client_key,
            request: self.request,
            model: self.model.0,
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

impl Signable for EmbedAuth {
    const LABEL: SignatureLabel = EMBED_AUTH;
    const BAD_SIGNATURE: ErrorCode = ErrorCode::BadSignature;
    const VERSION: u8 = EMBED_AUTH_VERSION;

    fn signer(&self) -> PublicKey {
        self.client_key
    }

    fn check(&self) -> Result<(), ErrorCode> {
        if self.suite == SUITE { Ok(()) } else { Err(ErrorCode::UnsupportedVersion) }
    }
}

/// The hash of an order whose signature is still unchecked: `KDF("embed-auth-hash", body ‖ signature)`.
#[must_use]
pub fn embed_auth_hash(bytes: &SignedBytes) -> AuthHash {
    AuthHash(bytes.hash(EMBED_AUTH_HASH))
}

impl SignedObject<EmbedAuth> {
    /// `KDF("embed-auth-hash", body ‖ signature)`.
    #[must_use]
    pub fn auth_hash(&self) -> AuthHash {
        embed_auth_hash(self.bytes())
    }
}

/// The texts of a request. Wiped when dropped.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmbedTexts {
    /// Format version, 1.
    pub version: u8,
    /// 1 to 64 texts of at most 8 KiB each.
    pub texts: Vec<String>,
}

impl EmbedTexts {
    /// Makes a request of these texts.
    #[must_use]
    pub fn new(texts: Vec<String>) -> Self {
        Self { version: VERSION, texts }
    }

    /// Checks number and lengths.
    ///
    /// # Errors
    /// [`ErrorCode::UnsupportedVersion`], [`ErrorCode::FrameTooLarge`], [`ErrorCode::PayloadRejected`]
    /// without texts.
    pub fn check(&self) -> Result<(), ErrorCode> {
        if self.version != VERSION {
            return Err(ErrorCode::UnsupportedVersion);
        }
        if self.texts.is_empty() {
            return Err(ErrorCode::PayloadRejected);
        }
        let fits = self.texts.len() <= MAX_EMBED_TEXTS
            && self.texts.iter().all(|text| text.len() <= MAX_EMBED_TEXT_BYTES);
        if fits { Ok(()) } else { Err(ErrorCode::FrameTooLarge) }
    }
}

impl Drop for EmbedTexts {
    fn drop(&mut self) {
        self.texts.zeroize();
    }
}

impl std::fmt::Debug for EmbedTexts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EmbedTexts({})", self.texts.len())
    }
}

/// Texts, padded to a multiple of 1 KiB and sealed to a node: `encapsulation(1120) ‖ ChaCha20-Poly1305`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedTexts(#[serde(with = "serde_bytes")] pub Vec<u8>);

impl std::fmt::Debug for SealedTexts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SealedTexts({} bytes)", self.0.len())
    }
}

impl SealedTexts {
    /// `KDF("embed-texts-hash", sealed bytes)`.
    #[must_use]
    pub fn hash(&self) -> PayloadHash {
        PayloadHash(kdf(EMBED_TEXTS_HASH, &[&self.0]))
    }

    /// Seals texts by a fresh exchange; returns the request's secret for opening the reply.
    ///
    /// # Errors
    /// [`ErrorCode::KxExpired`] when the node's key is unusable; as [`EmbedTexts::check`].
    pub fn seal(
        texts: &EmbedTexts,
        ephemeral: EphemeralSecret,
        node_key: &ExchangeKey,
        binding: &EmbedBinding,
    ) -> Result<(Self, EmbedSecret), ErrorCode> {
        texts.check()?;
        let (encapsulation, secret) = EmbedSecret::initiate(ephemeral, node_key, binding)
            .map_err(|_: ExchangeKeyError| ErrorCode::KxExpired)?;
        let mut sealed = encapsulation.as_bytes().to_vec();
        let padded = codec::pad_block(&codec::encode_secret(texts), PAYLOAD_BLOCK);
        sealed.extend_from_slice(&secret.seal_texts(&padded));
        Ok((Self(sealed), secret))
    }

    /// Opens texts and checks them against their order.
    ///
    /// # Errors
    /// [`ErrorCode::PayloadRejected`] for every failure from which a holder of the wrong key could learn;
    /// [`ErrorCode::FrameTooLarge`]; as [`EmbedTexts::check`].
    pub fn open(
        &self,
        node_secret: &ExchangeSecret,
        auth: &EmbedAuth,
    ) -> Result<(EmbedTexts, EmbedSecret), ErrorCode> {
        if self.0.len() > MAX_EMBED_SEALED_BYTES {
            return Err(ErrorCode::FrameTooLarge);
        }
        if self.hash() != auth.texts_hash {
            return Err(ErrorCode::PayloadRejected);
        }
        let (encapsulation, sealed) = Encapsulation::split(&self.0).ok_or(ErrorCode::PayloadRejected)?;
        let secret = EmbedSecret::respond(node_secret, &encapsulation, &auth.binding())
            .map_err(|_: ExchangeKeyError| ErrorCode::PayloadRejected)?;
        let opened = secret.open_texts(sealed).map_err(|OpenError| ErrorCode::PayloadRejected)?;
        let texts: EmbedTexts =
            codec::decode(codec::unpad_block(&opened, PAYLOAD_BLOCK)?, MAX_EMBED_SEALED_BYTES)?;
        texts.check()?;
        Ok((texts, secret))
    }
}

/// A request for embeddings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmbedRequest {
    /// The signed [`EmbedAuth`].
    pub auth: SignedBytes,
    /// The sealed texts.
    pub texts: SealedTexts,
    /// The quota for this request, if any; its proof names the hash of `auth`.
    pub quota: Option<QuotaUse>,
}

/// A client's message, one per substream. The client keeps its side open until the reply arrives: to end it
/// is to cancel the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EmbedFrame {
    /// Embed these texts.
    Request(EmbedRequest),
}

/// A node's message, one per substream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EmbedAnswer {
    /// The vectors.
    Embedded {
        /// Fresh for every reply.
        nonce: [u8; 32],
        /// The signed [`EmbedReply`], encoded, padded and sealed.
        sealed: SealedReply,
    },
    /// The request was refused or failed.
    Refused {
        /// The reason.
        code: ErrorCode,
        /// Minimum wait in milliseconds before another try at this node; 0 when the node names none.
        retry_after_ms: u32,
    },
}

/// The vectors, as the node signs them. Vectors reveal their texts, so they are wiped when dropped.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct EmbedReply {
    /// Format version, 1.
    pub version: u8,
    /// The node, which signs.
    pub node: NodeId,
    /// Hash of the client's order.
    pub auth_hash: AuthHash,
    /// The model's manifest hash.
    pub model: ModelId,
    /// Components of each vector.
    pub dimensions: u32,
    /// For each text in order, the number of its tokens that were embedded.
    pub tokens: Vec<u32>,
    /// The vectors in the order of the texts, one after the other; every component is finite.
    pub components: Vec<f32>,
}

impl EmbedReply {
    /// The vectors, in the order of the texts.
    pub fn vectors(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        // `check` refuses 0, on which `chunks` would panic.
        self.components.chunks((self.dimensions as usize).max(1))
    }
}

impl Drop for EmbedReply {
    fn drop(&mut self) {
        self.components.zeroize();
    }
}

impl std::fmt::Debug for EmbedReply {
    /// Omits the vectors, which reveal the texts.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EmbedReply({} of {} components by {})", self.tokens.len(), self.dimensions, self.node)
    }
}

impl Signable for EmbedReply {
    const LABEL: SignatureLabel = EMBED_REPLY;
    const BAD_SIGNATURE: ErrorCode = ErrorCode::BadNodeSignature;
    const MAX_BYTES: usize = MAX_EMBED_REPLY_BYTES;

    fn signer(&self) -> PublicKey {
        self.node.public_key()
    }

    fn check(&self) -> Result<(), ErrorCode> {
        let dimensions = self.dimensions as usize;
        let counts = (1..=MAX_EMBED_TEXTS).contains(&self.tokens.len())
            && (1..=MAX_EMBED_DIMENSIONS).contains(&dimensions);
        if !counts {
            return Err(ErrorCode::FrameTooLarge);
        }
        let whole = self.components.len() == dimensions * self.tokens.len()
            && self.components.iter().all(|component| component.is_finite());
        if whole { Ok(()) } else { Err(ErrorCode::ReceiptMismatch) }
    }
}

/// A signed reply, encoded, padded to a multiple of 1 KiB and sealed to the client.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedReply(#[serde(with = "serde_bytes")] pub Vec<u8>);

impl std::fmt::Debug for SealedReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SealedReply({} bytes)", self.0.len())
    }
}

impl SealedReply {
    /// Signs a reply with the node's key and seals it under a fresh nonce of the node's. Wipes the
    /// intermediate buffers.
    #[must_use]
    pub fn seal(reply: &EmbedReply, key: &SecretSigningKey, secret: &EmbedSecret, nonce: &[u8; 32]) -> Self {
        let body = codec::encode_secret(reply);
        let signature = SignatureBytes(key.sign(EmbedReply::LABEL, &body));
        let mut signed = SignedBytes { body: body.to_vec(), signature };
        let padded = codec::pad_block(&codec::encode_secret(&signed), PAYLOAD_BLOCK);
        signed.body.zeroize();
        Self(secret.seal_reply(nonce, &reply.auth_hash.0, &padded))
    }

    /// Opens and verifies a reply, and checks that it answers this order with this number of texts.
    ///
    /// # Errors
    /// [`ErrorCode::PayloadRejected`] when it does not open, [`ErrorCode::ReceiptMismatch`] when it answers
    /// another order, and the codes of [`SignedObject::verify`].
    pub fn open(
        &self,
        secret: &EmbedSecret,
        nonce: &[u8; 32],
        auth: &SignedObject<EmbedAuth>,
        texts: usize,
    ) -> Result<EmbedReply, ErrorCode> {
        let auth_hash = auth.auth_hash();
        let opened = secret
            .open_reply(nonce, &auth_hash.0, &self.0)
            .map_err(|OpenError| ErrorCode::PayloadRejected)?;
        let reply = SignedObject::<EmbedReply>::verify_encoded(codec::unpad_block(&opened, PAYLOAD_BLOCK)?)?;
        let fits = reply.node == auth.audience
            && reply.auth_hash == auth_hash
            && reply.model == auth.model
            && reply.tokens.len() == texts;
        if fits { Ok(reply.into_value()) } else { Err(ErrorCode::ReceiptMismatch) }
    }
}
