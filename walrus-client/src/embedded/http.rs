//! The embedded store's HTTP interface: Walrus's routes for blobs, and Baton's route for heads.
//!
//! Handlers here only parse, admit and answer; what they decide on is in [`super`] and [`super::disk`].

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, Query, Request, State, rejection::QueryRejection},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, put},
};
use baton_proto::ids::{BlobId, HeadIndexKey, SuiAddress};
use bytes::Bytes;
use futures::StreamExt as _;
use serde::Deserialize;

use super::{
    EmbeddedStore, PutPermits, WriteError, acquire,
    answers::{self, Refusal},
    config::{BODY_TIMEOUT, MAX_DISCARDED_BYTES, MAX_EPOCHS},
    disk::{StoredBlob, Term},
    faults,
};
use crate::{MAX_HEAD_BYTES, wire::reason};

/// As Walrus's aggregator sends it: a blob never changes under its ID.
const CACHE_CONTROL: &str = "public, max-age=86400, stale-while-revalidate=3600";

/// All public routes.
pub(super) fn router(store: EmbeddedStore) -> Router {
    Router::new()
        .route("/status", get(|| async { "OK" }))
        .route("/v1/blobs", put(put_blob))
        .route("/v1/blobs/{id}", get(get_blob))
        .route("/v1/baton/heads", put(put_head))
        .route("/v1/baton/heads/{key}", get(get_head))
        .layer(middleware::from_fn_with_state(store.clone(), faults::inject))
        .layer(middleware::from_fn(allow_any_origin))
        .with_state(store)
}

/// CORS as Walrus's daemon has it: any origin, method and header.
async fn allow_any_origin(request: Request, next: Next) -> Response {
    let any = HeaderValue::from_static("*");
    let preflight = request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if preflight { StatusCode::OK.into_response() } else { next.run(request).await };
    let headers = response.headers_mut();
    if preflight {
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, any.clone());
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, any.clone());
    }
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, any);
    response
}

/// The query of a PUT. A key that is not here is refused.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PutQuery {
    #[serde(default = "one_epoch")]
    epochs: u32,
    #[serde(default)]
    permanent: bool,
    #[serde(default)]
    deletable: bool,
    #[serde(default)]
    force: bool,
    /// There are no resources to reuse here: accepted, as the publisher may find none either.
    #[serde(default, rename = "reuse_resources")]
    _reuse_resources: bool,
    encoding_type: Option<String>,
    quilt_version: Option<String>,
    send_object_to: Option<String>,
    #[serde(default)]
    share: bool,
}

fn one_epoch() -> u32 {
    1
}

impl PutQuery {
    /// Checks what goes beyond the form of each key.
    fn check(&self) -> Result<(), Refusal> {
        let text = |message: &str| Err(Refusal::text(StatusCode::BAD_REQUEST, message));
        if self.encoding_type.as_deref().is_some_and(|kind| kind != "RS2") {
            return text("encoding_type must be RS2");
        }
        if self.quilt_version.as_deref().is_some_and(|version| !matches!(version, "v1" | "V1" | "1")) {
            return text("quilt_version must be V1");
        }
        if let Some(owner) = &self.send_object_to {
            let address = owner.strip_prefix("0x").map(SuiAddress::parse_hex);
            if !matches!(address, Some(Ok(_))) {
                return text("send_object_to must be 0x and 64 hexadecimal characters");
            }
            if self.share {
                return text("send_object_to and share exclude each other");
            }
        }
        let refuse = |reason, message| Err(Refusal::json(StatusCode::BAD_REQUEST, reason, message));
        if self.permanent && self.deletable {
            let message = "a blob cannot be both permanent and deletable";
            return refuse(reason::INVALID_BLOB_PERSISTENCE, message);
        }
        if self.epochs == 0 || self.epochs > MAX_EPOCHS {
            return refuse(reason::MALFORMED_REQUEST, "the number of epochs must be from 1 to 53");
        }
        Ok(())
    }
}

async fn put_blob(
    State(store): State<EmbeddedStore>,
    query: Result<Query<PutQuery>, QueryRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let Query(query) = query.map_err(|rejection| bad_query(&rejection))?;
    query.check()?;
    let permits = admit_put(&store).await?;
    let body = read_body(&headers, body, store.inner.config.max_put_bytes).await?;
    let length = body.len() as u64;
    let term =
        Term { permanent: query.permanent, force: query.force, end_epoch: store.end_epoch(query.epochs) };
    let (id, stored) = store.store(body, term, Some(permits)).await?;
    let config = &store.inner.config;
    let result = answers::store_result(id, length, stored, term, config.epoch, config.shards, query.share);
    Ok(Json(result).into_response())
}

/// Takes a place among the PUTs: at once, after a wait, or not at all.
async fn admit_put(store: &EmbeddedStore) -> Result<PutPermits, Refusal> {
    let admitted = store.inner.admitted_puts.clone().try_acquire_owned();
    let admitted = admitted.map_err(|_| Refusal::too_many())?;
    let running = acquire(&store.inner.running_puts).await;
    Ok(PutPermits { _admitted: admitted, _running: running })
}

/// Reads a body of at most `limit` bytes within [`BODY_TIMEOUT`].
///
/// A longer one is refused; since a sender that is still writing may never read the refusal, a bounded part
/// of the rest is read and thrown away first.
async fn read_body(headers: &HeaderMap, body: Body, limit: usize) -> Result<Bytes, Refusal> {
    let announced: Option<u64> =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let read = async {
        let mut kept = Vec::new();
        let mut discarded = 0;
        let mut too_large = announced.is_some_and(|length| length > limit as u64);
        let mut stream = body.into_data_stream();
        while let Some(chunk) = stream.next().await {
            let broken = |_| Refusal::text(StatusCode::BAD_REQUEST, "the request body ended early");
            let chunk = chunk.map_err(broken)?;
            too_large |= chunk.len() > limit - kept.len();
            if too_large {
                kept = Vec::new();
                discarded += chunk.len();
                if discarded > MAX_DISCARDED_BYTES {
                    break;
                }
            } else {
                kept.extend_from_slice(&chunk);
            }
        }
        if too_large { Err(too_long()) } else { Ok(Bytes::from(kept)) }
    };
    let late = |_| Refusal::text(StatusCode::REQUEST_TIMEOUT, "the request body took too long");
    tokio::time::timeout(BODY_TIMEOUT, read).await.map_err(late)?
}

/// Reads a body that nobody wants and throws it away, as far as [`read_body`] would.
pub(super) async fn discard(body: Body) {
    let read = async {
        let mut discarded = 0;
        let mut stream = body.into_data_stream();
        while let Some(Ok(chunk)) = stream.next().await {
            discarded += chunk.len();
            if discarded > MAX_DISCARDED_BYTES {
                break;
            }
        }
    };
    // Late or not: what follows is an answer that its sender may read.
    let _ = tokio::time::timeout(BODY_TIMEOUT, read).await;
}

fn too_long() -> Refusal {
    Refusal::text(StatusCode::PAYLOAD_TOO_LARGE, "length limit exceeded")
}

fn bad_query(rejection: &QueryRejection) -> Refusal {
    Refusal::text(StatusCode::BAD_REQUEST, rejection.body_text())
}

impl From<WriteError> for Refusal {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Id(_) => {
                Self::text(StatusCode::PAYLOAD_TOO_LARGE, "too large for the store's number of shards")
            }
            WriteError::Disk(error) => error.into(),
            WriteError::InvalidHead(why) => {
                tracing::debug!(why, "a head record was refused");
                Self::json(StatusCode::BAD_REQUEST, reason::INVALID_HEAD, "the head record is not valid")
            }
            WriteError::ExpiredHead => {
                Self::json(StatusCode::BAD_REQUEST, reason::INVALID_HEAD, "the head record has expired")
            }
        }
    }
}

/// The query of a GET. Both checks are accepted and change nothing: every read here is checked against the
/// stored checksum.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GetQuery {
    #[serde(default)]
    strict_consistency_check: bool,
    #[serde(default)]
    skip_consistency_check: bool,
}

async fn get_blob(
    State(store): State<EmbeddedStore>,
    Path(id): Path<String>,
    query: Result<Query<GetQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let Query(query) = query.map_err(|rejection| bad_query(&rejection))?;
    let id: BlobId = id.parse().map_err(|_| Refusal::invalid_id())?;
    if query.strict_consistency_check && query.skip_consistency_check {
        return Err(Refusal::json(
            StatusCode::BAD_REQUEST,
            reason::INVALID_CONSISTENCY_CHECK,
            "the consistency check cannot be both strict and skipped",
        ));
    }
    let blob = store.load(id).await?.ok_or_else(|| {
        Refusal::json(StatusCode::NOT_FOUND, reason::BLOB_NOT_FOUND, "the requested blob is not in the store")
    })?;
    match headers.get(header::RANGE) {
        Some(range) => partial(id, &blob, range),
        None => Ok((blob_headers(id), blob.bytes).into_response()),
    }
}

fn blob_headers(id: BlobId) -> [(HeaderName, HeaderValue); 4] {
    let etag = HeaderValue::from_str(&id.to_string()).expect("base64 is visible ASCII");
    [
        // Unquoted, as Walrus has it.
        (header::ETAG, etag),
        (header::CACHE_CONTROL, HeaderValue::from_static(CACHE_CONTROL)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
    ]
}

fn partial(id: BlobId, blob: &StoredBlob, range: &HeaderValue) -> Result<Response, Refusal> {
    let length = blob.bytes.len();
    let wanted = range.to_str().ok().and_then(parse_range).filter(|(_, last)| *last < length);
    let Some((first, last)) = wanted else {
        return Err(Refusal::json(
            StatusCode::RANGE_NOT_SATISFIABLE,
            reason::INVALID_BYTE_RANGE,
            "the range must be one bytes=first-last within the blob",
        ));
    };
    let content_range = [(header::CONTENT_RANGE, format!("bytes {first}-{last}/{length}"))];
    let bytes = blob.bytes.slice(first..=last);
    Ok((StatusCode::PARTIAL_CONTENT, blob_headers(id), content_range, bytes).into_response())
}

/// `bytes=a-b` with a ≤ b and nothing else: no open end, no suffix, no second range.
fn parse_range(text: &str) -> Option<(usize, usize)> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let number = |digits: &str| {
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if plain { digits.parse::<usize>().ok() } else { None }
    };
    let (first, last) = (number(first)?, number(last)?);
    (first <= last).then_some((first, last))
}

async fn put_head(
    State(store): State<EmbeddedStore>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let permit = store.inner.head_writes.clone().try_acquire_owned();
    let _permit = permit.map_err(|_| Refusal::too_many())?;
    let record = read_body(&headers, body, MAX_HEAD_BYTES).await?;
    let head = store.store_head(record, false).await?;
    Ok(Json(serde_json::json!({ "key": head.key.to_string(), "sequence": head.sequence })).into_response())
}

async fn get_head(State(store): State<EmbeddedStore>, Path(key): Path<String>) -> Result<Response, Refusal> {
    let key = HeadIndexKey::parse_hex(&key).map_err(|_| Refusal::invalid_id())?;
    let record = store.load_head(key).await?.ok_or_else(|| {
        Refusal::json(StatusCode::NOT_FOUND, reason::HEAD_NOT_FOUND, "no head record under this key")
    })?;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        // A head changes with every turn.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    Ok((headers, record).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_closed_range_is_understood() {
        assert_eq!(parse_range("bytes=0-0"), Some((0, 0)));
        assert_eq!(parse_range("bytes=3-10"), Some((3, 10)));
        for text in [
            "bytes=3-",
            "bytes=-3",
            "bytes=3-2",
            "bytes=0-1,3-4",
            "bytes=+1-2",
            "0-1",
            "bytes=a-b",
            "bytes=0-99999999999999999999",
        ] {
            assert_eq!(parse_range(text), None, "{text}");
        }
    }
}
