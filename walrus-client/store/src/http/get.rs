//! GET and HEAD of blobs: whole, a range, and by object.

use axum::{
    body::Body,
    extract::{Path, Query, State, rejection::QueryRejection},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::Response,
};
use baton_proto::ids::BlobId;
use baton_walrus_client::wire::reason;
use serde::Deserialize;

use super::{
    super::{
        EmbeddedStore,
        answers::Refusal,
        range::{ByteRange, parse_range},
    },
    bad_path, bad_query, blob_not_found,
};

/// As Walrus's aggregator sends it: a blob never changes under its ID.
const CACHE_CONTROL: &str = "public, max-age=86400, stale-while-revalidate=3600";

/// The query of a GET. Both checks are accepted and change nothing: every read here is checked against the
/// stored checksums.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GetQuery {
    #[serde(default)]
    strict_consistency_check: bool,
    #[serde(default)]
    skip_consistency_check: bool,
}

/// Refuses a read that asks for both a strict check and no check.
pub(super) fn check_consistency(strict: bool, skip: bool) -> Result<(), Refusal> {
    if strict && skip {
        let message = "the consistency check cannot be both strict and skipped";
        return Err(Refusal::json(StatusCode::BAD_REQUEST, reason::INVALID_CONSISTENCY_CHECK, message));
    }
    Ok(())
}

pub(super) async fn get_blob(
    State(store): State<EmbeddedStore>,
    Path(id): Path<String>,
    query: Result<Query<GetQuery>, QueryRejection>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let id = id.parse().map_err(|_| bad_path("blob_id"))?;
    let Query(query) = query.map_err(|rejection| bad_query(&rejection))?;
    read(&store, id, &query, &method, &headers).await
}

pub(super) async fn get_by_object_id(
    State(store): State<EmbeddedStore>,
    Path(object): Path<String>,
    query: Result<Query<GetQuery>, QueryRejection>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let object = parse_object_id(&object).ok_or_else(|| bad_path("blob_object_id"))?;
    let Query(query) = query.map_err(|rejection| bad_query(&rejection))?;
    let id = store.resolve_object(object).await?.ok_or_else(blob_not_found)?;
    read(&store, id, &query, &method, &headers).await
}

/// An object ID: up to 64 hexadecimal digits, with or without 0x; zeros are added in front.
pub(super) fn parse_object_id(text: &str) -> Option<[u8; 32]> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    if digits.is_empty() || digits.len() > 64 {
        return None;
    }
    hex::decode(format!("{digits:0>64}")).ok()?.try_into().ok()
}

/// The whole blob, or the range in the header.
async fn read(
    store: &EmbeddedStore,
    id: BlobId,
    query: &GetQuery,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Response, Refusal> {
    check_consistency(query.strict_consistency_check, query.skip_consistency_check)?;
    let range = match headers.get(header::RANGE) {
        None => None,
        // Before the blob lookup, as in Walrus.
        Some(value) => Some(parse_range(value.as_bytes()).ok_or_else(not_satisfiable)?),
    };
    let blob = store.open_blob(id).await?.ok_or_else(blob_not_found)?;
    let total = blob.length();
    let etag = id.to_string();
    if is_current(headers, &etag) {
        return Ok(not_modified(&etag, method, headers));
    }
    let Some(range) = range else {
        let body = blob.body(0, total).await?.ok_or_else(blob_not_found)?;
        return Ok(blob_answer(&etag, body, total, method, headers));
    };
    if !range.is_within(total) {
        return Err(not_satisfiable());
    }
    let body = blob.body(range.first, range.length).await?.ok_or_else(blob_not_found)?;
    let mut response = blob_answer(&etag, body, range.length, method, headers);
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    let content_range = format!("bytes {}-{}/{total}", range.first, range.last());
    let content_range = HeaderValue::try_from(content_range).expect("digits are visible ASCII");
    response.headers_mut().insert(header::CONTENT_RANGE, content_range);
    Ok(response)
}

fn not_satisfiable() -> Refusal {
    let message = "the range must be one bytes=first-last within the blob";
    Refusal::json(StatusCode::RANGE_NOT_SATISFIABLE, reason::INVALID_BYTE_RANGE, message)
}

/// The query of a byte range.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RangeQuery {
    start: u64,
    length: u64,
}

pub(super) async fn get_byte_range(
    State(store): State<EmbeddedStore>,
    Path(id): Path<String>,
    query: Result<Query<RangeQuery>, QueryRejection>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let id: BlobId = id.parse().map_err(|_| bad_path("blob_id"))?;
    let Query(RangeQuery { start, length }) = query.map_err(|rejection| bad_query(&rejection))?;
    let invalid = || {
        let message = "the range must have a length, and lie within the blob";
        Refusal::json(StatusCode::BAD_REQUEST, reason::INVALID_BYTE_RANGE, message)
    };
    let range = ByteRange::new(start, length).ok_or_else(invalid)?;
    let blob = store.open_blob(id).await?.ok_or_else(blob_not_found)?;
    if !range.is_within(blob.length()) {
        return Err(invalid());
    }
    // 200 and a tag of its own: it can be cached.
    let etag = format!("{id}-{start}-{length}");
    if is_current(&headers, &etag) {
        return Ok(not_modified(&etag, &method, &headers));
    }
    let body = blob.body(start, length).await?.ok_or_else(blob_not_found)?;
    Ok(blob_answer(&etag, body, length, &method, &headers))
}

/// Whether If-None-Match has this tag: the caller has these bytes. Quoted, as in HTTP, or bare, as Walrus sends
/// it. A patch of a quilt carries the quilt's tag, which does not identify it, so patches do not ask here.
fn is_current(request: &HeaderMap, etag: &str) -> bool {
    let values = request.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).any(|tag| {
        let tag = tag.strip_prefix("W/").unwrap_or(tag);
        let bare = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')).unwrap_or(tag);
        tag == "*" || bare == etag
    })
}

/// 304, with the headers that a 200 would have, and no body.
fn not_modified(etag: &str, method: &Method, request: &HeaderMap) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    add_headers(response.headers_mut(), etag, method, request);
    response.headers_mut().remove(header::CONTENT_TYPE);
    response
}

/// 200 with Walrus's headers. The tag is unquoted, as in Walrus.
pub(super) fn blob_answer(
    etag: &str,
    body: Body,
    length: u64,
    method: &Method,
    request: &HeaderMap,
) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    add_headers(headers, etag, method, request);
    response
}

/// Walrus's headers for every read.
pub(super) fn add_headers(headers: &mut HeaderMap, etag: &str, method: &Method, request: &HeaderMap) {
    headers.insert(header::ETAG, HeaderValue::try_from(etag).expect("base64 and digits are visible ASCII"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(CACHE_CONTROL));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // The requested type, whatever it is: the store does not know better.
    let accepted = request.get(header::ACCEPT).filter(|accept| !accept.as_bytes().contains(&b'*'));
    let sent = request.get(header::CONTENT_TYPE).filter(|_| *method == Method::GET);
    if let Some(kind) = accepted.or(sent) {
        headers.insert(header::CONTENT_TYPE, kind.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_ids_may_be_short_and_bare() {
        let mut one = [0; 32];
        one[31] = 0x1a;
        assert_eq!(parse_object_id("0x1a"), Some(one));
        assert_eq!(parse_object_id("1A"), Some(one));
        assert_eq!(parse_object_id(&format!("0x{}", "ab".repeat(32))), Some([0xab; 32]));
        for text in ["", "0x", "0xg", &"0".repeat(65), "0x0x1"] {
            assert_eq!(parse_object_id(text), None, "{text}");
        }
    }
}
