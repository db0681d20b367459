//! Several blobs as one body.

use std::io;

use axum::{
    Json,
    body::Body,
    extract::{
        Query, State,
        rejection::{JsonRejection, QueryRejection},
    },
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use baton_proto::ids::BlobId;
use baton_walrus_client::wire::reason;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::{
    super::{EmbeddedStore, answers::Refusal, config::MAX_CONCAT_IDS, error::OperationError},
    bad_query, blob_not_found,
    get::{add_headers, check_consistency, parse_object_id},
};

/// The query of a GET.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConcatQuery {
    ids: String,
    #[serde(default)]
    strict_consistency_check: bool,
    #[serde(default)]
    skip_consistency_check: bool,
}

/// The body of a POST.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConcatBody {
    ids: Vec<String>,
    strict_consistency_check: Option<bool>,
    skip_consistency_check: Option<bool>,
}

pub(super) async fn get_blobs(
    State(store): State<EmbeddedStore>,
    query: Result<Query<ConcatQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let Query(query) = query.map_err(|rejection| bad_query(&rejection))?;
    let ids = query.ids.split(',').map(str::trim).filter(|id| !id.is_empty());
    let ids: Vec<_> = ids.map(str::to_owned).collect();
    check_ids(&ids)?;
    check_consistency(query.strict_consistency_check, query.skip_consistency_check)?;
    concat(store, &ids, &Method::GET, &headers).await
}

pub(super) async fn post_blobs(
    State(store): State<EmbeddedStore>,
    headers: HeaderMap,
    body: Result<Json<ConcatBody>, JsonRejection>,
) -> Result<Response, Refusal> {
    let Json(body) = body.map_err(|refused| Refusal::text(refused.status(), refused.body_text()))?;
    check_ids(&body.ids)?;
    let [strict, skip] =
        [body.strict_consistency_check, body.skip_consistency_check].map(Option::unwrap_or_default);
    check_consistency(strict, skip)?;
    concat(store, &body.ids, &Method::POST, &headers).await
}

fn check_ids(ids: &[String]) -> Result<(), Refusal> {
    let text = |message: &str| Err(Refusal::text(StatusCode::BAD_REQUEST, message));
    match ids.len() {
        0 => text("at least one blob ID or object ID must be provided"),
        1..=MAX_CONCAT_IDS => Ok(()),
        _ => text("too many blob IDs"),
    }
}

/// Finds all blobs, and then sends them in sequence. A blob that is gone or corrupt by then breaks the body.
async fn concat(
    store: EmbeddedStore,
    texts: &[String],
    method: &Method,
    request: &HeaderMap,
) -> Result<Response, Refusal> {
    let mut ids = Vec::with_capacity(texts.len());
    for text in texts {
        let id = resolve(&store, text).await?;
        store.blob_length(id).await?.ok_or_else(blob_not_found)?;
        ids.push(id);
    }
    let bodies = stream::iter(ids).then(move |id| {
        let store = store.clone();
        async move {
            let gone = || io::Error::other("a blob is gone or corrupt");
            let failed = |error: OperationError| io::Error::other(error);
            let blob = store.open_blob(id).await.map_err(failed)?.ok_or_else(gone)?;
            let body = blob.body(0, blob.length()).await.map_err(failed)?.ok_or_else(gone)?;
            Ok::<_, io::Error>(body.into_data_stream().map_err(io::Error::other))
        }
    });
    let mut response = Body::from_stream(bodies.try_flatten()).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    let digest = Sha256::digest(texts.join(",").as_bytes());
    // The same text form as a blob ID's: 32 bytes in base64url.
    add_headers(headers, &BlobId(digest.into()).to_string(), method, request);
    Ok(response)
}

async fn resolve(store: &EmbeddedStore, text: &str) -> Result<BlobId, Refusal> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let Some(object) = parse_object_id(text) else {
        let message = "neither a blob ID nor an object ID";
        return Err(Refusal::json(StatusCode::BAD_REQUEST, reason::INVALID_ID_FORMAT, message));
    };
    store.resolve_object(object).await?.ok_or_else(|| {
        let message = "failed to resolve an object ID to a blob ID";
        Refusal::json(StatusCode::NOT_FOUND, "OBJECT_ID_RESOLUTION_FAILED", message)
    })
}
