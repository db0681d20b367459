//! The JSON of Walrus's HTTP interface, which the embedded store writes and the client reads.
//!
//! Owns the shapes and nothing else. The wire is camelCase also inside the variants, unlike the published
//! OpenAPI. Reading is lenient, since the other side may be another program: unknown fields pass, and fields
//! that the client does not need may be missing. Writing is exact.

use serde::{Deserialize, Serialize};

/// The `@type` of an error's machine-readable detail.
pub const ERROR_INFO: &str = "ErrorInfo";
/// The domain in the errors of Walrus's daemon.
pub const ERROR_DOMAIN: &str = "daemon.walrus.space";

/// Reasons that both sides use, as in Walrus.
pub mod reason {
    /// The request is not well formed.
    pub const MALFORMED_REQUEST: &str = "MALFORMED_REQUEST";
    /// The query asks for a deletable and a permanent blob at once.
    pub const INVALID_BLOB_PERSISTENCE: &str = "INVALID_BLOB_PERSISTENCE";
    /// The query asks for a strict check and for none at once.
    pub const INVALID_CONSISTENCY_CHECK: &str = "INVALID_CONSISTENCY_CHECK";
    /// The byte range is not well formed, or not within the blob.
    pub const INVALID_BYTE_RANGE: &str = "INVALID_BYTE_RANGE";
    /// The identifier is not well formed.
    pub const INVALID_ID_FORMAT: &str = "INVALID_ID_FORMAT";
    /// No blob under that ID.
    pub const BLOB_NOT_FOUND: &str = "BLOB_NOT_FOUND";
    /// No such patch in the quilt.
    pub const QUILT_PATCH_NOT_FOUND: &str = "QUILT_PATCH_NOT_FOUND";
    /// The token's signature is wrong.
    pub const INVALID_SIGNATURE: &str = "INVALID_SIGNATURE";
    /// The token was used for another PUT.
    pub const TOKEN_ALREADY_USED: &str = "TOKEN_ALREADY_USED";
    /// The body is longer than the server accepts.
    pub const BLOB_TOO_LARGE: &str = "BLOB_TOO_LARGE";
    /// The network has blocked the blob.
    pub const FORBIDDEN_BLOB: &str = "FORBIDDEN_BLOB";
    /// The blob exists, and cannot be read now.
    pub const BLOB_UNAVAILABLE: &str = "BLOB_UNAVAILABLE";
    /// Too few storage nodes confirmed the blob.
    pub const INSUFFICIENT_CONFIRMATIONS: &str = "INSUFFICIENT_CONFIRMATIONS";
    /// The server failed.
    pub const INTERNAL_ERROR: &str = "INTERNAL_ERROR";
    /// Baton's own: a head record no newer than the stored one.
    pub const HEAD_SUPERSEDED: &str = "HEAD_SUPERSEDED";
    /// Baton's own: no head record under that key.
    pub const HEAD_NOT_FOUND: &str = "HEAD_NOT_FOUND";
    /// Baton's own: the validator refused the head record.
    pub const INVALID_HEAD: &str = "INVALID_HEAD";
    /// Baton's own: no room for another head record.
    pub const HEAD_INDEX_FULL: &str = "HEAD_INDEX_FULL";
}

/// Answer to a PUT of a blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StoreResult {
    /// The PUT bought a blob object.
    NewlyCreated(Box<NewlyCreated>),
    /// The blob was stored already, for long enough.
    AlreadyCertified(AlreadyCertified),
    /// The network has marked the blob as wrongly encoded.
    MarkedInvalid(MarkedInvalid),
    /// Storing failed after the request was accepted.
    Error(StoreFailure),
}

/// A bought blob object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewlyCreated {
    /// The bought object.
    pub blob_object: BlobObject,
    /// The paid operation.
    #[serde(default)]
    pub resource_operation: Option<ResourceOperation>,
    /// The price, in FROST.
    #[serde(default)]
    pub cost: u64,
    /// Present when the request asked for a shared object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_blob_object: Option<String>,
}

/// A blob object on Walrus's chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BlobObject {
    /// The object's ID: hex after `0x`.
    #[serde(default)]
    pub id: String,
    /// The epoch of the purchase.
    #[serde(default)]
    pub registered_epoch: u64,
    /// The blob ID in its text form.
    pub blob_id: String,
    /// Bytes of the blob.
    #[serde(default)]
    pub size: u64,
    /// The erasure code: `RS2`.
    #[serde(default)]
    pub encoding_type: String,
    /// The epoch since which the blob is certified, if it is.
    #[serde(default)]
    pub certified_epoch: Option<u64>,
    /// The bought storage.
    #[serde(default)]
    pub storage: Option<StorageObject>,
    /// Whether the owner may delete the blob before its end.
    #[serde(default)]
    pub deletable: bool,
}

/// Storage bought for a range of epochs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageObject {
    /// The object's ID: hex after `0x`.
    #[serde(default)]
    pub id: String,
    /// The first epoch.
    #[serde(default)]
    pub start_epoch: u64,
    /// The epoch in which the storage has ended.
    pub end_epoch: u64,
    /// Encoded bytes.
    #[serde(default)]
    pub storage_size: u64,
}

/// The paid operation. Variants of a real chain are read as [`Self::Other`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ResourceOperation {
    /// Registers a blob with newly bought storage.
    #[serde(rename_all = "camelCase")]
    RegisterFromScratch {
        /// Encoded bytes.
        encoded_length: u64,
        /// Epochs from the present one on.
        epochs_ahead: u64,
    },
    /// Any other operation, unread.
    #[serde(untagged)]
    Other(serde_json::Value),
}

/// A blob that was stored already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AlreadyCertified {
    /// The blob ID in its text form.
    pub blob_id: String,
    /// The event that certified the blob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<EventId>,
    /// Replaces `event` for a deletable blob that the publisher owns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// The epoch in which the blob has ended.
    pub end_epoch: u64,
}

/// An event on Walrus's chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventId {
    /// The digest of the transaction.
    #[serde(default)]
    pub tx_digest: String,
    /// The number of the event in its transaction.
    #[serde(default)]
    pub event_seq: String,
}

/// A blob that the network refuses for good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MarkedInvalid {
    /// The blob ID in its text form.
    pub blob_id: String,
}

/// A failure after the request was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreFailure {
    /// The blob ID in its text form, if it was known.
    #[serde(default)]
    pub blob_id: Option<String>,
    /// The step that failed.
    #[serde(default)]
    pub failure_phase: String,
    /// The reason, for people.
    #[serde(default)]
    pub error_msg: String,
}

/// Answer to a PUT of a quilt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QuiltStoreResult {
    /// The answer for the quilt as a blob.
    pub blob_store_result: StoreResult,
    /// The patches, in the order of the quilt.
    #[serde(default)]
    pub stored_quilt_blobs: Vec<StoredQuiltPatch>,
}

/// A stored patch of a quilt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredQuiltPatch {
    /// The patch's name in the quilt.
    pub identifier: String,
    /// The patch's ID in its text form.
    pub quilt_patch_id: String,
}

/// An item of `GET /v1/quilts/{id}/patches`: snake_case, unlike the rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuiltPatchItem {
    /// The patch's name in the quilt.
    pub identifier: String,
    /// The patch's ID in its text form.
    pub patch_id: String,
    /// The patch's tags.
    #[serde(default)]
    pub tags: std::collections::BTreeMap<String, String>,
}

/// The multipart field with the patches' metadata in a quilt's PUT.
pub const QUILT_METADATA_FIELD: &str = "_metadata";

/// An item of that field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuiltPatchMetadata {
    /// The patch's name in the quilt.
    pub identifier: String,
    /// The patch's tags.
    #[serde(default)]
    pub tags: std::collections::BTreeMap<String, String>,
}

/// The body of `POST /v1alpha/blobs/concat`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConcatBody {
    /// Blob or object IDs in the order of their bytes.
    pub ids: Vec<String>,
}

/// An error answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorAnswer {
    /// The error.
    pub error: ErrorBody,
}

/// The content of an error answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// Google's name for the HTTP status.
    #[serde(default)]
    pub status: String,
    /// The HTTP status.
    #[serde(default)]
    pub code: u16,
    /// The reason, for people.
    #[serde(default)]
    pub message: String,
    /// Details for programs.
    #[serde(default)]
    pub details: Vec<ErrorDetail>,
}

/// A machine-readable detail of an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// The type of the detail: [`ERROR_INFO`].
    #[serde(rename = "@type", default)]
    pub kind: String,
    /// One of the codes in [`reason`], or another.
    #[serde(default)]
    pub reason: String,
    /// The service that raised the error: [`ERROR_DOMAIN`].
    #[serde(default)]
    pub domain: String,
    /// Further values.
    #[serde(default)]
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

impl ErrorAnswer {
    /// The reason code, if there is one.
    pub fn reason(&self) -> Option<&str> {
        self.error.details.iter().map(|detail| detail.reason.as_str()).find(|reason| !reason.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_a_new_blob_as_walrus_does() {
        let text = r#"{"newlyCreated":{"blobObject":{"id":"0x01","registeredEpoch":34,"blobId":"M4hs","size":17,"encodingType":"RS2","certifiedEpoch":34,"storage":{"id":"0x02","startEpoch":34,"endEpoch":35,"storageSize":66034000},"deletable":false},"resourceOperation":{"registerFromScratch":{"encodedLength":66034000,"epochsAhead":1}},"cost":132300}}"#;
        let parsed: StoreResult = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&parsed).unwrap(), text);
    }

    #[test]
    fn reads_the_variants_that_only_walrus_itself_sends() {
        for text in [
            r#"{"alreadyCertified":{"blobId":"a","event":{"txDigest":"d","eventSeq":"0"},"endEpoch":35}}"#,
            r#"{"alreadyCertified":{"blobId":"a","object":"0x1","endEpoch":35}}"#,
            r#"{"markedInvalid":{"blobId":"a","event":{"txDigest":"d","eventSeq":"0"}}}"#,
            r#"{"error":{"blobId":null,"failurePhase":"register","errorMsg":"no gas"}}"#,
            r#"{"newlyCreated":{"blobObject":{"blobId":"a","certifiedEpoch":null},"resourceOperation":{"reuseStorage":{"encodedLength":1}}}}"#,
        ] {
            serde_json::from_str::<StoreResult>(text).expect(text);
        }
        assert!(serde_json::from_str::<StoreResult>(r#"{"stored":true}"#).is_err());
    }
}
