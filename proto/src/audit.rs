//! Audits: another node recomputes a disclosed turn and signs the result.
//!
//! Each audit has its own substream, on which the client sends a [disclosure](crate::disclosure) of that turn alone.
//! The node stores none of it. Also through a circuit relay the substream ends at the node itself, so the request needs no second
//! seal.

use baton_keys::{
    contexts::{AUDIT_REPORT, AUDIT_REQUEST_HASH, SignatureLabel},
    secret::kdf,
};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::{
    codec,
    disclosure::Disclosure,
    error::ErrorCode,
    ids::{AuthHash, ModelId, NodeId, PublicKey, ReceiptHash},
    limits::{
        AUDIT_REQUEST_VERSION, MAX_AUDIT_REQUEST_BYTES, MAX_MEMORY_ITEM_BYTES, MAX_MEMORY_ITEMS,
        MAX_OUTPUT_TOKENS, MAX_SCHEMA_BYTES,
    },
    quota::QuotaUse,
    signed::{Signable, SignedBytes, SignedObject},
};

/// Name of the protocol; it carries the version.
pub const AUDIT_PROTOCOL: &str = "/baton/audit/2";

/// A client's request for an audit, in its encoded form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditRequest {
    /// Format version, [`AUDIT_REQUEST_VERSION`].
    pub version: u8,
    /// Random and new for each request, so no report on it can be older.
    pub nonce: [u8; 32],
    /// The node that makes the audit. It stops another node from passing the report off as its own.
    pub audience: NodeId,
    /// The receipt of the turn.
    pub receipt: ReceiptHash,
    /// The model of the receipt.
    pub model: ModelId,
    /// Number of tokens of the answer, as in the receipt.
    pub tokens: u32,
    /// The inputs of the turn.
    pub disclosure: Disclosure,
}

/// An encoded [`AuditRequest`]. Wiped when dropped.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub struct AuditBytes(#[serde(with = "serde_bytes")] Vec<u8>);

impl std::fmt::Debug for AuditBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AuditBytes({} bytes)", self.0.len())
    }
}

impl AuditBytes {
    /// Encodes a request.
    ///
    /// # Errors
    /// As [`AuditBytes::open`], so that no request is sent which the receiver refuses.
    pub fn new(request: &AuditRequest) -> Result<Self, ErrorCode> {
        request.check()?;
        let bytes = Self(codec::encode_secret(request).to_vec());
        if bytes.0.len() > MAX_AUDIT_REQUEST_BYTES { Err(ErrorCode::FrameTooLarge) } else { Ok(bytes) }
    }

    /// `KDF("audit-request-hash", encoded request)`. The quota proof and the report name it.
    #[must_use]
    pub fn hash(&self) -> AuthHash {
        AuthHash(kdf(AUDIT_REQUEST_HASH, &[&self.0]))
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it is empty; no request is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Decodes the request.
    ///
    /// # Errors
    /// The codes of decoding and [`ErrorCode::UnsupportedVersion`]. [`ErrorCode::FrameTooLarge`] when memory
    /// items, schema or tokens exceed the limits of a turn.
    pub fn open(&self) -> Result<AuditRequest, ErrorCode> {
        let request: AuditRequest = codec::decode(&self.0, MAX_AUDIT_REQUEST_BYTES)?;
        request.check()?;
        Ok(request)
    }
}

impl AuditRequest {
    fn check(&self) -> Result<(), ErrorCode> {
        if self.version != AUDIT_REQUEST_VERSION {
            return Err(ErrorCode::UnsupportedVersion);
        }
        let Disclosure { memory, schema, .. } = &self.disclosure;
        let items = memory.len() <= MAX_MEMORY_ITEMS
            && memory.iter().all(|item| item.source.len().max(item.text.len()) <= MAX_MEMORY_ITEM_BYTES);
        let schema = schema.as_ref().is_none_or(|schema| schema.len() <= MAX_SCHEMA_BYTES);
        if items && schema && self.tokens <= MAX_OUTPUT_TOKENS {
            Ok(())
        } else {
            Err(ErrorCode::FrameTooLarge)
        }
    }
}

/// A client's message, one per substream. The client keeps its side open until the report arrives: to end it
/// is to cancel the audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuditFrame {
    /// Recompute this turn.
    Request {
        /// The [`AuditRequest`].
        request: AuditBytes,
        /// The quota for this request, if any; its proof names the hash of `request`.
        quota: Option<QuotaUse>,
    },
}

/// A node's message, one per substream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuditAnswer {
    /// The signed [`AuditReport`].
    Report(SignedBytes),
    /// The request was refused or failed.
    Refused {
        /// The reason.
        code: ErrorCode,
        /// Minimum wait in milliseconds before another try at this node; 0 when the node names none.
        retry_after_ms: u32,
    },
}

/// The result of an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuditVerdict {
    /// The model gives exactly this answer, token by token.
    Same {
        /// Tokens of the answer.
        tokens: u32,
    },
    /// The model gives another answer.
    Different {
        /// The first token with another text, counted from 0; none if the texts agree and only the tokens
        /// differ.
        token: Option<u32>,
    },
    /// The turn cannot be recomputed.
    NotReplayable(AuditGap),
}

/// Why a turn cannot be recomputed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum AuditGap {
    /// The turn has no answer by a model.
    #[error("the turn has no answer of a model")]
    NoAnswer,
    /// The answer came from an engine other than a node's own.
    #[error("the answer came from an engine of which nobody knows what it computes")]
    Engine,
    /// The memory items are missing or are not the receipt's.
    #[error("the memory items are not those of the receipt")]
    Memory,
    /// The JSON schema is missing or is another.
    #[error("the answer follows a JSON schema, and this is not it")]
    Schema,
    /// The engine refuses the request that the receipt describes.
    #[error("the engine refuses what the node was asked")]
    Refused,
}

/// A node's report on an audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditReport {
    /// Format version, 1.
    pub version: u8,
    /// The node that made the audit and signs.
    pub node: NodeId,
    /// Hash of the request.
    pub request: AuthHash,
    /// The receipt of the turn.
    pub receipt: ReceiptHash,
    /// The model that recomputed the turn.
    pub model: ModelId,
    /// The result.
    pub verdict: AuditVerdict,
    /// When, in milliseconds since the Unix epoch, by the node's clock.
    pub made_ms: u64,
}

impl Signable for AuditReport {
    const LABEL: SignatureLabel = AUDIT_REPORT;
    const BAD_SIGNATURE: ErrorCode = ErrorCode::BadNodeSignature;

    fn version(&self) -> u8 {
        self.version
    }

    fn signer(&self) -> PublicKey {
        self.node.public_key()
    }
}

impl AuditReport {
    /// Verifies a report, and checks that it answers this request.
    ///
    /// # Errors
    /// [`ErrorCode::ReceiptMismatch`] when it answers another request, and the codes of
    /// [`SignedObject::verify`].
    pub fn verify(
        bytes: SignedBytes,
        hash: &AuthHash,
        request: &AuditRequest,
    ) -> Result<SignedObject<Self>, ErrorCode> {
        let report = SignedObject::<Self>::verify(bytes)?;
        let fits = report.node == request.audience
            && report.request == *hash
            && report.receipt == request.receipt
            && report.model == request.model;
        if fits { Ok(report) } else { Err(ErrorCode::ReceiptMismatch) }
    }
}

/// Returns the hash of a request and its encoded frame. `quota` gives the quota use for that hash, if any.
///
/// # Errors
/// As [`AuditBytes::new`].
pub fn frame(
    request: &AuditRequest,
    quota: impl FnOnce(AuthHash) -> Option<QuotaUse>,
) -> Result<(AuthHash, Zeroizing<Vec<u8>>), ErrorCode> {
    let request = AuditBytes::new(request)?;
    let hash = request.hash();
    Ok((hash, codec::encode_secret(&AuditFrame::Request { request, quota: quota(hash) })))
}

#[cfg(test)]
mod tests {
    use baton_keys::SecretSigningKey;

    use super::*;
    use crate::{limits::VERSION, memory::MemoryItem, signed::SignatureBytes, turn::Sampling};

    fn item(text: &str) -> MemoryItem {
        MemoryItem { text: text.to_owned(), source: "notes".to_owned(), time_ms: 6 }
    }

    fn unsigned() -> SignedBytes {
        SignedBytes { body: b"{}".to_vec(), signature: SignatureBytes([0; 64]) }
    }

    fn request() -> AuditRequest {
        AuditRequest {
            version: AUDIT_REQUEST_VERSION,
            nonce: [1; 32],
            audience: NodeId(SecretSigningKey::from_seed(&[2; 32]).public_key().0),
            receipt: ReceiptHash([3; 32]),
            model: ModelId([4; 32]),
            tokens: 5,
            disclosure: Disclosure {
                auth: unsigned(),
                receipt: unsigned(),
                system: Vec::new(),
                sampling: Sampling::default(),
                segments: Vec::new(),
                record_keys: Vec::new(),
                memory: vec![item("likes boats")],
                schema: None,
            },
        }
    }

    fn report(request: &AuditRequest, hash: AuthHash) -> AuditReport {
        let verdict = AuditVerdict::Different { token: Some(7) };
        let AuditRequest { audience: node, receipt, model, .. } = *request;
        AuditReport { version: VERSION, node, request: hash, receipt, model, verdict, made_ms: 8 }
    }

    #[test]
    fn a_request_round_trips_and_every_bound_holds() {
        let good = request();
        assert_eq!(AuditBytes::new(&good).unwrap().open().as_ref(), Ok(&good));
        let refused = |change: fn(&mut AuditRequest)| {
            let mut bad = request();
            change(&mut bad);
            let bytes = AuditBytes(codec::encode(&bad));
            assert_eq!(AuditBytes::new(&bad), bytes.open().map(|_| bytes));
            AuditBytes::new(&bad).err()
        };
        assert_eq!(refused(|bad| bad.version = 1), Some(ErrorCode::UnsupportedVersion));
        assert_eq!(refused(|bad| bad.tokens = MAX_OUTPUT_TOKENS + 1), Some(ErrorCode::FrameTooLarge));
        assert_eq!(
            refused(|bad| bad.disclosure.schema = Some("x".repeat(MAX_SCHEMA_BYTES + 1))),
            Some(ErrorCode::FrameTooLarge)
        );
        let mut long = request();
        long.disclosure.memory = vec![item(&"x".repeat(MAX_MEMORY_ITEM_BYTES + 1))];
        assert_eq!(AuditBytes::new(&long).err(), Some(ErrorCode::FrameTooLarge));
        let mut many = request();
        many.disclosure.memory = vec![item("likes boats"); MAX_MEMORY_ITEMS + 1];
        assert_eq!(AuditBytes::new(&many).err(), Some(ErrorCode::FrameTooLarge));
        let mut huge = request();
        huge.disclosure.auth.body = vec![0; MAX_AUDIT_REQUEST_BYTES];
        assert_eq!(AuditBytes::new(&huge).err(), Some(ErrorCode::FrameTooLarge));
    }

    #[test]
    fn a_report_is_for_one_request_of_one_node() {
        let (key, request) = (SecretSigningKey::from_seed(&[2; 32]), request());
        let hash = AuditBytes::new(&request).unwrap().hash();
        let check = |report: AuditReport, key: &SecretSigningKey| {
            AuditReport::verify(SignedObject::sign(report, key).bytes().clone(), &hash, &request).err()
        };
        assert_eq!(check(report(&request, hash), &key), None);
        let other = SecretSigningKey::from_seed(&[9; 32]);
        let by_other = AuditReport { node: NodeId(other.public_key().0), ..report(&request, hash) };
        assert_eq!(check(by_other, &other), Some(ErrorCode::ReceiptMismatch));
        for changed in [
            AuditReport { request: AuthHash([0; 32]), ..report(&request, hash) },
            AuditReport { receipt: ReceiptHash([0; 32]), ..report(&request, hash) },
            AuditReport { model: ModelId([0; 32]), ..report(&request, hash) },
        ] {
            assert_eq!(check(changed, &key), Some(ErrorCode::ReceiptMismatch));
        }
        assert_eq!(
            check(AuditReport { version: 2, ..report(&request, hash) }, &key),
            Some(ErrorCode::UnsupportedVersion)
        );
        let mut forged = SignedObject::sign(report(&request, hash), &key).bytes().clone();
        forged.signature.0[0] ^= 1;
        assert_eq!(AuditReport::verify(forged, &hash, &request).err(), Some(ErrorCode::BadNodeSignature));
    }

    #[test]
    fn nothing_of_a_disclosure_is_printed() {
        let text = format!("{:?} {:?}", request(), AuditBytes::new(&request()));
        assert!(!text.contains("boats") && !text.contains("{}"), "{text}");
    }
}
