//! The JSON of Walrus's HTTP interface, which the embedded store writes and the client reads.
//!
//! Owns the shapes and nothing else. The wire is camelCase also inside the variants, unlike the published
//! OpenAPI. Reading is lenient, since the other side may be another program: unknown fields pass, and fields
//! that the client does not need may be missing. Writing is exact.

use serde::{Deserialize, Serialize};

/// The `@type` of an error's machine-readable detail.
pub(crate) const ERROR_INFO: &str = "ErrorInfo";
/// The domain in the errors of Walrus's daemon.
pub(crate) const ERROR_DOMAIN: &str = "daemon.walrus.space";

/// Reasons that both sides use, as in Walrus.
pub(crate) mod reason {
    pub(crate) const MALFORMED_REQUEST: &str = "MALFORMED_REQUEST";
    pub(crate) const INVALID_BLOB_PERSISTENCE: &str = "INVALID_BLOB_PERSISTENCE";
    pub(crate) const INVALID_CONSISTENCY_CHECK: &str = "INVALID_CONSISTENCY_CHECK";
    pub(crate) const INVALID_BYTE_RANGE: &str = "INVALID_BYTE_RANGE";
    pub(crate) const INVALID_ID_FORMAT: &str = "INVALID_ID_FORMAT";
    pub(crate) const BLOB_NOT_FOUND: &str = "BLOB_NOT_FOUND";
    pub(crate) const QUILT_PATCH_NOT_FOUND: &str = "QUILT_PATCH_NOT_FOUND";
    pub(crate) const INVALID_SIGNATURE: &str = "INVALID_SIGNATURE";
    pub(crate) const TOKEN_ALREADY_USED: &str = "TOKEN_ALREADY_USED";
    pub(crate) const BLOB_TOO_LARGE: &str = "BLOB_TOO_LARGE";
    pub(crate) const FORBIDDEN_BLOB: &str = "FORBIDDEN_BLOB";
    pub(crate) const BLOB_UNAVAILABLE: &str = "BLOB_UNAVAILABLE";
    pub(crate) const INSUFFICIENT_CONFIRMATIONS: &str = "INSUFFICIENT_CONFIRMATIONS";
    pub(crate) const INTERNAL_ERROR: &str = "INTERNAL_ERROR";
    /// Baton's own: a head record no newer than the stored one.
    pub(crate) const HEAD_SUPERSEDED: &str = "HEAD_SUPERSEDED";
    /// Baton's own: no head record under that key.
    pub(crate) const HEAD_NOT_FOUND: &str = "HEAD_NOT_FOUND";
    /// Baton's own: the validator refused the head record.
    pub(crate) const INVALID_HEAD: &str = "INVALID_HEAD";
    /// Baton's own: no room for another head record.
    pub(crate) const HEAD_INDEX_FULL: &str = "HEAD_INDEX_FULL";
}

/// Answer to a PUT of a blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum StoreResult {
    NewlyCreated(Box<NewlyCreated>),
    AlreadyCertified(AlreadyCertified),
    MarkedInvalid(MarkedInvalid),
    Error(StoreFailure),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NewlyCreated {
    pub(crate) blob_object: BlobObject,
    #[serde(default)]
    pub(crate) resource_operation: Option<ResourceOperation>,
    #[serde(default)]
    pub(crate) cost: u64,
    /// Present when the request asked for a shared object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shared_blob_object: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BlobObject {
    #[serde(default)]
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) registered_epoch: u64,
    pub(crate) blob_id: String,
    #[serde(default)]
    pub(crate) size: u64,
    #[serde(default)]
    pub(crate) encoding_type: String,
    #[serde(default)]
    pub(crate) certified_epoch: Option<u64>,
    #[serde(default)]
    pub(crate) storage: Option<StorageObject>,
    #[serde(default)]
    pub(crate) deletable: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StorageObject {
    #[serde(default)]
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) start_epoch: u64,
    pub(crate) end_epoch: u64,
    #[serde(default)]
    pub(crate) storage_size: u64,
}

/// The paid operation. Variants of a real chain are read as [`Self::Other`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ResourceOperation {
    #[serde(rename_all = "camelCase")]
    RegisterFromScratch { encoded_length: u64, epochs_ahead: u64 },
    #[serde(untagged)]
    Other(serde_json::Value),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AlreadyCertified {
    pub(crate) blob_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) event: Option<EventId>,
    /// Replaces `event` for a deletable blob that the publisher owns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) object: Option<String>,
    pub(crate) end_epoch: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventId {
    #[serde(default)]
    pub(crate) tx_digest: String,
    #[serde(default)]
    pub(crate) event_seq: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MarkedInvalid {
    pub(crate) blob_id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoreFailure {
    #[serde(default)]
    pub(crate) blob_id: Option<String>,
    #[serde(default)]
    pub(crate) failure_phase: String,
    #[serde(default)]
    pub(crate) error_msg: String,
}

/// Answer to a PUT of a quilt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct QuiltStoreResult {
    pub(crate) blob_store_result: StoreResult,
    #[serde(default)]
    pub(crate) stored_quilt_blobs: Vec<StoredQuiltPatch>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoredQuiltPatch {
    pub(crate) identifier: String,
    pub(crate) quilt_patch_id: String,
}

/// An item of `GET /v1/quilts/{id}/patches`: snake_case, unlike the rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QuiltPatchItem {
    pub(crate) identifier: String,
    pub(crate) patch_id: String,
    #[serde(default)]
    pub(crate) tags: std::collections::BTreeMap<String, String>,
}

/// The multipart field with the patches' metadata in a quilt's PUT.
pub(crate) const QUILT_METADATA_FIELD: &str = "_metadata";

/// An item of that field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QuiltPatchMetadata {
    pub(crate) identifier: String,
    #[serde(default)]
    pub(crate) tags: std::collections::BTreeMap<String, String>,
}

/// The body of `POST /v1alpha/blobs/concat`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConcatBody {
    pub(crate) ids: Vec<String>,
}

/// An error answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ErrorAnswer {
    pub(crate) error: ErrorBody,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ErrorBody {
    #[serde(default)]
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) code: u16,
    #[serde(default)]
    pub(crate) message: String,
    #[serde(default)]
    pub(crate) details: Vec<ErrorDetail>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ErrorDetail {
    #[serde(rename = "@type", default)]
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) reason: String,
    #[serde(default)]
    pub(crate) domain: String,
    #[serde(default)]
    pub(crate) metadata: serde_json::Map<String, serde_json::Value>,
}

impl ErrorAnswer {
    /// The reason code, if there is one.
    pub(crate) fn reason(&self) -> Option<&str> {
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
