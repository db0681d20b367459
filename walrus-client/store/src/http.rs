//! The embedded store's HTTP interface: all routes of Walrus's daemon, and Baton's route for heads.
//!
//! Handlers here only parse, admit and answer; [`super`] and [`super::disk`] do the work.

mod body;
mod concat;
mod get;
mod put;
mod quilt;

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Path, Request, State, rejection::QueryRejection},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, put},
};
use baton_proto::ids::HeadIndexKey;
use baton_walrus_client::{MAX_HEAD_BYTES, SHARDS_HEADER, wire::reason};

use super::{EmbeddedStore, answers::Refusal};

/// Largest body of a concatenation's POST, in bytes: 1,024 IDs are below 80 KB.
const MAX_CONCAT_BODY_BYTES: usize = 128 * 1024;
/// How long a browser may cache the CORS answer, in seconds, as in Walrus.
const CORS_MAX_AGE: &str = "86400";

/// All public routes.
pub(super) fn router(store: EmbeddedStore) -> Router {
    let concat = get(concat::get_blobs).post(concat::post_blobs);
    let walrus = Router::new()
        .route("/v1/blobs", put(put::put_blob))
        // The reader of a body bounds it, by the configured limit.
        .route("/v1/quilts", put(quilt::put_quilt).layer(DefaultBodyLimit::disable()))
        .route("/v1/blobs/{id}", get(get::get_blob))
        .route("/v1/blobs/{id}/byte-range", get(get::get_byte_range))
        .route("/v1/blobs/by-object-id/{id}", get(get::get_by_object_id))
        .route("/v1/blobs/by-quilt-patch-id/{id}", get(quilt::get_patch))
        .route("/v1/blobs/by-quilt-id/{id}/{identifier}", get(quilt::get_patch_by_identifier))
        .route("/v1/quilts/{id}/patches", get(quilt::list_patches))
        .route("/v1alpha/blobs/concat", concat.layer(DefaultBodyLimit::max(MAX_CONCAT_BODY_BYTES)));
    Router::new()
        .route("/status", get(status))
        .route("/v1/api", get(api))
        .route("/v1/baton/heads", put(put_head))
        .route("/v1/baton/heads/{key}", get(get_head))
        .merge(walrus)
        .layer(middleware::from_fn(allow_any_origin))
        .with_state(store)
}

/// CORS as in Walrus's daemon: any origin, method and header.
async fn allow_any_origin(request: Request, next: Next) -> Response {
    let any = HeaderValue::from_static("*");
    let preflight = request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if preflight { StatusCode::OK.into_response() } else { next.run(request).await };
    let headers = response.headers_mut();
    if preflight {
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, any.clone());
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, any.clone());
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(CORS_MAX_AGE));
    }
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, any);
    response
}

/// OK as in Walrus, or 503 with the reason why nothing can be stored: the disk is full or refuses writes.
async fn status(State(store): State<EmbeddedStore>) -> Response {
    match store.write_failure().await {
        None => "OK".into_response(),
        Some(why) => {
            let message = format!("the store serves reads and stores nothing for now: {why}");
            Refusal::text(StatusCode::SERVICE_UNAVAILABLE, message).into_response()
        }
    }
}

/// The description of the interface, with the shard count for those whose settings may differ.
async fn api(State(store): State<EmbeddedStore>) -> Response {
    let shards = store.shards().get().to_string();
    let headers = [(header::CONTENT_TYPE.as_str(), "application/yaml"), (SHARDS_HEADER, &shards)];
    (headers, include_str!("http/api.yaml")).into_response()
}

fn bad_query(rejection: &QueryRejection) -> Refusal {
    Refusal::text(StatusCode::BAD_REQUEST, rejection.body_text())
}

/// An invalid path: refused in plain text, as by Walrus's extractors.
fn bad_path(name: &str) -> Refusal {
    Refusal::text(StatusCode::BAD_REQUEST, format!("Invalid URL: Cannot parse `{name}`"))
}

fn blob_not_found() -> Refusal {
    let message = "the requested blob ID does not exist on Walrus, ensure that it was entered correctly";
    Refusal::json(StatusCode::NOT_FOUND, reason::BLOB_NOT_FOUND, message)
}

async fn put_head(
    State(store): State<EmbeddedStore>,
    headers: HeaderMap,
    body: axum::body::Body,
) -> Result<Response, Refusal> {
    let Ok(_permit) = store.inner.head_writes.clone().try_acquire_owned() else {
        body::discard_briefly(body).await;
        return Err(Refusal::too_many());
    };
    let mut record = Vec::new();
    body::receive(&headers, body, MAX_HEAD_BYTES, &mut record).await?;
    let head = store.store_head(record.into(), false).await?;
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
