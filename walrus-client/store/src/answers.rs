//! The embedded store's answers, in the shapes of Walrus's daemon.
//!
//! Pure: from results to status, headers and JSON. No internal error text leaves here.

use std::borrow::Cow;

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use baton_proto::ids::BlobId;
use baton_walrus_client::{
    ShardCount, encoded_length,
    wire::{
        AlreadyCertified, BlobObject, ERROR_DOMAIN, ERROR_INFO, ErrorAnswer, ErrorBody, ErrorDetail, EventId,
        NewlyCreated, ResourceOperation, StorageObject, StoreResult, reason,
    },
};

use super::{
    disk::{Object, PurchaseOutcome, Term, made_up_id},
    error::OperationError,
};

/// Walrus bills encoded bytes in units of 1 MiB.
const STORAGE_UNIT_BYTES: u64 = 1024 * 1024;
/// Price of a unit for each epoch. With [`WRITE_PRICE`] it gives the 132,300 of Walrus's published example
/// (63 units, one epoch). This store chose how to divide the sum.
const EPOCH_PRICE: u64 = 100;
/// Price of writing a unit.
const WRITE_PRICE: u64 = 2_000;

/// The domain in Walrus's publisher's answers to a refused token.
const AUTH_DOMAIN: &str = "auth.publisher.walrus.space";

/// A refusal, which becomes an error answer.
#[derive(Debug)]
pub(super) enum Refusal {
    /// Walrus's JSON shape.
    Json {
        status: StatusCode,
        /// Google's name for the status.
        name: &'static str,
        reason: &'static str,
        message: Cow<'static, str>,
        domain: &'static str,
    },
    /// Plain text, as Walrus's extractors and load shedding answer.
    Text { status: StatusCode, message: String },
}

impl Refusal {
    pub(super) fn json(
        status: StatusCode,
        reason: &'static str,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        let (name, message) = (status_name(status), message.into());
        Self::Json { status, name, reason, message, domain: ERROR_DOMAIN }
    }

    /// A refusal of a token.
    pub(super) fn auth(status: StatusCode, reason: &'static str, message: &'static str) -> Self {
        let name =
            if status == StatusCode::BAD_REQUEST { "FAILED_PRECONDITION" } else { status_name(status) };
        Self::Json { status, name, reason, message: message.into(), domain: AUTH_DOMAIN }
    }

    pub(super) fn text(status: StatusCode, message: impl Into<String>) -> Self {
        Self::Text { status, message: message.into() }
    }

    pub(super) fn internal(message: &'static str) -> Self {
        Self::json(StatusCode::INTERNAL_SERVER_ERROR, reason::INTERNAL_ERROR, message)
    }

    pub(super) fn invalid_id() -> Self {
        Self::json(
            StatusCode::BAD_REQUEST,
            reason::INVALID_ID_FORMAT,
            "the identifier in the path is not well formed",
        )
    }

    pub(super) fn too_many() -> Self {
        Self::text(
            StatusCode::TOO_MANY_REQUESTS,
            "the store has too many requests in flight; try again later",
        )
    }
}

/// Google's name for a status, as in the errors of Walrus's daemon.
fn status_name(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 => "INVALID_ARGUMENT",
        401 => "UNAUTHENTICATED",
        403 => "SIZE_EXCEEDED",
        404 => "NOT_FOUND",
        409 => "ALREADY_EXISTS",
        416 => "RANGE_NOT_SATISFIABLE",
        429 => "RESOURCE_EXHAUSTED",
        503 => "UNAVAILABLE",
        504 => "DEADLINE_EXCEEDED",
        _ => "INTERNAL",
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Text { status, message } => (status, message).into_response(),
            Self::Json { status, name, reason, message, domain } => {
                let detail = ErrorDetail {
                    kind: ERROR_INFO.to_owned(),
                    reason: reason.to_owned(),
                    domain: domain.to_owned(),
                    metadata: serde_json::Map::new(),
                };
                let error = ErrorBody {
                    status: name.to_owned(),
                    code: status.as_u16(),
                    message: message.into_owned(),
                    details: vec![detail],
                };
                (status, Json(ErrorAnswer { error })).into_response()
            }
        }
    }
}

impl From<OperationError> for Refusal {
    fn from(error: OperationError) -> Self {
        let invalid_head =
            |message: &'static str| Self::json(StatusCode::BAD_REQUEST, reason::INVALID_HEAD, message);
        match error {
            OperationError::Id(_) => {
                Self::text(StatusCode::PAYLOAD_TOO_LARGE, "too large for the store's number of shards")
            }
            OperationError::InvalidHead(why) => {
                tracing::debug!(why, "a head record was refused");
                invalid_head("the head record is not valid")
            }
            OperationError::ExpiredHead => invalid_head("the head record has expired"),
            OperationError::TokenUsed => Self::auth(
                StatusCode::TOO_MANY_REQUESTS,
                reason::TOKEN_ALREADY_USED,
                "the JWT token was already used",
            ),
            OperationError::TokensFull => {
                tracing::warn!("{error}; a PUT was refused");
                Self::internal("too many tokens are in use")
            }
            OperationError::Superseded => Self::json(
                StatusCode::CONFLICT,
                reason::HEAD_SUPERSEDED,
                "a head record with this or a higher sequence number is stored",
            ),
            OperationError::HeadsFull => {
                Self::json(StatusCode::SERVICE_UNAVAILABLE, reason::HEAD_INDEX_FULL, "the head index is full")
            }
            OperationError::Full { .. } => {
                tracing::warn!(%error, "a blob was refused");
                Self::internal("the storage quota is exhausted")
            }
            OperationError::ObjectsFull => Self::internal("too many objects keep this blob"),
            OperationError::BlobsFull => {
                tracing::warn!(%error, "a blob was refused");
                Self::internal("the store lists as many blobs as it can")
            }
            OperationError::NoRoom(_) => {
                tracing::debug!(%error, "a request failed");
                Self::internal("the store's disk has no room")
            }
            OperationError::File(_) => {
                tracing::error!(%error, "a request failed");
                Self::internal("the store's disk failed")
            }
        }
    }
}

/// The answer to a PUT. `length` is the blob's, which the shard count can encode.
pub(super) fn store_result(
    id: BlobId,
    length: u64,
    stored: PurchaseOutcome,
    term: Term,
    shards: ShardCount,
) -> StoreResult {
    let blob_id = id.to_string();
    match stored {
        PurchaseOutcome::AlreadyCertified(object) => StoreResult::AlreadyCertified(AlreadyCertified {
            blob_id,
            event: Some(EventId {
                tx_digest: base58(&made_up_id("event", id, object.number)),
                event_seq: "0".to_owned(),
            }),
            object: None,
            end_epoch: object.end,
        }),
        PurchaseOutcome::New(object) => {
            let encoded = encoded_length(length, shards).expect("its ID was computed for this shard count");
            let Object { number, registered, end, permanent, .. } = object;
            let epochs_ahead = u64::from(term.epochs);
            let units = encoded.div_ceil(STORAGE_UNIT_BYTES);
            let hex_id = |bytes: [u8; 32]| format!("0x{}", hex::encode(bytes));
            StoreResult::NewlyCreated(Box::new(NewlyCreated {
                blob_object: BlobObject {
                    id: hex_id(object.id(id)),
                    registered_epoch: registered,
                    blob_id,
                    size: length,
                    encoding_type: "RS2".to_owned(),
                    certified_epoch: Some(registered),
                    storage: Some(StorageObject {
                        id: hex_id(made_up_id("storage", id, number)),
                        start_epoch: registered,
                        end_epoch: end,
                        storage_size: encoded,
                    }),
                    deletable: !permanent,
                },
                resource_operation: Some(ResourceOperation::RegisterFromScratch {
                    encoded_length: encoded,
                    epochs_ahead,
                }),
                cost: units * (EPOCH_PRICE * epochs_ahead + WRITE_PRICE),
                shared_blob_object: object.shared_id(id).map(hex_id),
            }))
        }
    }
}

/// Base58 with Bitcoin's alphabet, as Sui prints digests.
#[expect(clippy::indexing_slicing, reason = "each digit is below 58")]
fn base58(bytes: &[u8; 32]) -> String {
    const ALPHABET: &[u8; 58] = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
    let mut digits: Vec<u8> = Vec::with_capacity(44);
    for byte in bytes {
        let mut carry = u32::from(*byte);
        for digit in &mut digits {
            carry += u32::from(*digit) << 8;
            *digit = u8::try_from(carry % 58).expect("below 58");
            carry /= 58;
        }
        while carry > 0 {
            digits.push(u8::try_from(carry % 58).expect("below 58"));
            carry /= 58;
        }
    }
    let zeros = bytes.iter().take_while(|byte| **byte == 0).map(|_| '1');
    zeros.chain(digits.iter().rev().map(|digit| char::from(ALPHABET[usize::from(*digit)]))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_example_costs_what_walrus_says() {
        let term = Term { permanent: true, force: false, share: false, epochs: 1 };
        let object = Object { number: 0, registered: 34, end: 35, permanent: true, shared: false };
        let result =
            store_result(BlobId([1; 32]), 17, PurchaseOutcome::New(object), term, ShardCount::MAINNET);
        let StoreResult::NewlyCreated(created) = result else { panic!("not newly created") };
        assert_eq!(created.cost, 132_300);
        assert_eq!(created.blob_object.storage.map(|storage| storage.storage_size), Some(66_034_000));
    }

    #[test]
    fn base58_matches_known_text() {
        assert_eq!(base58(&[0; 32]), "1".repeat(32));
        let mut one = [0; 32];
        one[31] = 58;
        assert_eq!(base58(&one), format!("{}21", "1".repeat(31)));
        assert_eq!(base58(&[0xff; 32]), "JEKNVnkbo3jma5nREBBJCDoXFVeKkD56V3xKrvRmWxFG");
    }
}
