//! Quilts: PUT of a form, and GET of patches.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use axum::{
    Json,
    body::Body,
    extract::{FromRequest as _, Multipart, Path, Query, Request, State, rejection::QueryRejection},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use baton_proto::ids::BlobId;
use baton_walrus_client::{
    QuiltError, QuiltIndex, QuiltPatch, QuiltPatchId, quilt,
    quilt::PatchEntry,
    wire::{QUILT_METADATA_FIELD, QuiltPatchItem, QuiltStoreResult, StoredQuiltPatch, reason},
};
use bytes::Bytes;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    super::{
        EmbeddedStore,
        answers::{self, Refusal},
        blocking,
        config::{MAX_QUILT_FIELDS, MAX_QUILT_METADATA_BYTES, QUILT_PATCHES_KIB, QUILTS_KIB},
    },
    bad_path, blob_not_found,
    body::{self, discard_briefly, too_long},
    get::blob_answer,
    put::{PutQuery, admit, announced},
};

const PATCH_IDENTIFIER: HeaderName = HeaderName::from_static("x-quilt-patch-identifier");
/// The tags that become headers of an answer: those that Walrus's aggregator passes by default, except
/// `content-type`, which an answer already has.
const TAG_HEADERS: [HeaderName; 6] = [
    header::AUTHORIZATION,
    header::CONTENT_DISPOSITION,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_LOCATION,
    header::LINK,
];

/// A file of the form.
struct Patch {
    identifier: String,
    tags: BTreeMap<String, String>,
    data: Vec<u8>,
}

/// An item of `_metadata`. Tags that are not strings become their JSON.
#[derive(Debug, Deserialize)]
struct Metadata {
    identifier: String,
    #[serde(default)]
    tags: serde_json::Map<String, serde_json::Value>,
}

fn malformed(message: impl Into<Cow<'static, str>>) -> Refusal {
    Refusal::json(StatusCode::BAD_REQUEST, reason::MALFORMED_REQUEST, message)
}

pub(super) async fn put_quilt(
    State(store): State<EmbeddedStore>,
    query: Result<Query<PutQuery>, QueryRejection>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Refusal> {
    let admitted = match admit(&store, query, &headers, announced(request.body())).await {
        Ok(admitted) => admitted,
        Err(refusal) => {
            discard_briefly(request.into_body()).await;
            return Err(refusal);
        }
    };
    let limit = store.inner.config.max_quilt_bytes;
    let announced = headers.get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(limit);
    // The form, and the patches in it.
    let memory = reserve(&store.inner.quilt_patches, QUILT_PATCHES_KIB, 2 * announced.min(limit) as u64);
    let memory = memory.await.ok_or_else(too_long)?;
    let patches = receive(request, limit).await?;
    let term = admitted.term()?;
    let shards = store.shards();
    let patches = Arc::new(patches);
    let given = patches.clone();
    let length =
        blocking(move || quilt::encoded_length(&borrowed(&given), shards)).await.map_err(refuse_quilt)?;
    if let Some(claim) = &admitted.claim {
        claim.allows_size(length)?;
    }
    let quilt_memory = reserve(&store.inner.quilts, QUILTS_KIB, length).await;
    let quilt_memory =
        quilt_memory.ok_or_else(|| malformed("failed to construct quilt: it would be too large"))?;
    let quilt = blocking(move || quilt::encode(&borrowed(&patches), shards)).await.map_err(refuse_quilt)?;
    drop(memory);
    let (id, stored) = store.store_bytes(&quilt.bytes, term, Some(admitted.permits)).await?;
    drop(quilt_memory);
    let patches = quilt.index.entries.iter().map(|entry| StoredQuiltPatch {
        identifier: entry.identifier.clone(),
        quilt_patch_id: patch_id(id, entry),
    });
    let result = QuiltStoreResult {
        stored_quilt_blobs: patches.collect(),
        blob_store_result: answers::store_result(id, length, stored, term, shards),
    };
    Ok(Json(result).into_response())
}

fn borrowed(patches: &[Patch]) -> Vec<QuiltPatch<'_>> {
    let mut borrowed = Vec::with_capacity(patches.len());
    for Patch { identifier, tags, data } in patches {
        borrowed.push(QuiltPatch { identifier, tags: tags.clone(), data });
    }
    borrowed
}

fn refuse_quilt(error: QuiltError) -> Refusal {
    malformed(format!("failed to construct quilt: {error}"))
}

fn patch_id(quilt: BlobId, entry: &PatchEntry) -> String {
    QuiltPatchId { quilt, start: entry.start, end: entry.end }.to_string()
}

/// Waits for this much of a memory of `kib` KiB. `None` when it exceeds the whole memory.
async fn reserve(memory: &Arc<Semaphore>, kib: usize, bytes: u64) -> Option<OwnedSemaphorePermit> {
    let wanted = u32::try_from(bytes.div_ceil(1024)).ok().filter(|wanted| *wanted as usize <= kib)?;
    let permit = memory.clone().acquire_many_owned(wanted).await;
    Some(permit.expect("the store's semaphores are never closed"))
}

/// Reads the form, of at most `limit` bytes in all.
async fn receive(request: Request, limit: usize) -> Result<Vec<Patch>, Refusal> {
    let (parts, body) = request.into_parts();
    let mut bytes = Vec::new();
    body::receive(&parts.headers, body, limit, &mut bytes).await?;
    let form = Multipart::from_request(Request::from_parts(parts, Body::from(bytes)), &()).await;
    read_form(form.map_err(|refused| Refusal::text(refused.status(), refused.body_text()))?).await
}

async fn read_form(mut form: Multipart) -> Result<Vec<Patch>, Refusal> {
    let failed = |_| malformed("failed to parse multipart form");
    let mut patches = Vec::new();
    let mut metadata: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    while let Some(mut field) = form.next_field().await.map_err(failed)? {
        let identifier = field.name().unwrap_or_default().to_owned();
        let is_metadata = identifier == QUILT_METADATA_FIELD;
        let mut data = Vec::new();
        while let Some(chunk) = field.chunk().await.map_err(failed)? {
            if is_metadata && chunk.len() > MAX_QUILT_METADATA_BYTES - data.len() {
                return Err(malformed("the _metadata is too long"));
            }
            data.extend_from_slice(&chunk);
        }
        if is_metadata {
            read_metadata(&data, &mut metadata)?;
        } else if patches.len() < MAX_QUILT_FIELDS {
            patches.push(Patch { identifier, tags: BTreeMap::new(), data });
        } else {
            return Err(malformed("too many files in the form"));
        }
    }
    if patches.is_empty() {
        return Err(malformed("no files provided in multipart form"));
    }
    for patch in &mut patches {
        patch.tags = metadata.get(&patch.identifier).cloned().unwrap_or_default();
    }
    Ok(patches)
}

fn read_metadata(json: &[u8], into: &mut BTreeMap<String, BTreeMap<String, String>>) -> Result<(), Refusal> {
    let items: Vec<Metadata> =
        serde_json::from_slice(json).map_err(|_| malformed("failed to parse multipart form: _metadata"))?;
    for Metadata { identifier, tags } in items {
        let tags = tags.into_iter().map(|(key, value)| match value {
            serde_json::Value::String(text) => (key, text),
            other => (key, other.to_string()),
        });
        if into.insert(identifier, tags.collect()).is_some() {
            return Err(malformed("duplicate identifiers found in _metadata"));
        }
    }
    Ok(())
}

/// A quilt's bytes, with their memory permit.
struct LoadedQuilt {
    bytes: Bytes,
    _memory: OwnedSemaphorePermit,
}

async fn load(store: &EmbeddedStore, id: BlobId) -> Result<LoadedQuilt, Refusal> {
    let blob = store.open_blob(id).await?.ok_or_else(blob_not_found)?;
    let too_large = || {
        let message = "the blob size exceeds the maximum allowed size";
        Refusal::json(StatusCode::FORBIDDEN, reason::BLOB_TOO_LARGE, message)
    };
    // The quilt, and a patch of up to its size.
    let memory = reserve(&store.inner.quilts, QUILTS_KIB, 2 * blob.length()).await.ok_or_else(too_large)?;
    let bytes = blob.bytes().await?.ok_or_else(blob_not_found)?;
    Ok(LoadedQuilt { bytes, _memory: memory })
}

pub(super) async fn get_patch(
    State(store): State<EmbeddedStore>,
    Path(id): Path<String>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let QuiltPatchId { quilt, start, end } = id.parse().map_err(|_| bad_path("quilt_patch_id"))?;
    let loaded = load(&store, quilt).await?;
    let shards = store.shards();
    let found = blocking(move || quilt::patch_by_range(&loaded.bytes, shards, start, end)).await;
    let (entry, data) = found.map_err(refuse_patch)?;
    Ok(patch_answer(quilt, &entry, data, &method, &headers))
}

pub(super) async fn get_patch_by_identifier(
    State(store): State<EmbeddedStore>,
    Path((id, identifier)): Path<(String, String)>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let id = id.parse().map_err(|_| bad_path("quilt_id"))?;
    let loaded = load(&store, id).await?;
    let shards = store.shards();
    let (entry, data) = blocking(move || {
        let index = QuiltIndex::decode(&loaded.bytes, shards).map_err(refuse_patch)?;
        let entry = index.find(&identifier).ok_or_else(patch_not_found)?;
        let data = index.patch(&loaded.bytes, entry, shards).map_err(refuse_patch)?;
        Ok::<_, Refusal>((entry.clone(), data))
    })
    .await?;
    Ok(patch_answer(id, &entry, data, &method, &headers))
}

pub(super) async fn list_patches(
    State(store): State<EmbeddedStore>,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    let id: BlobId = id.parse().map_err(|_| bad_path("quilt_id"))?;
    let loaded = load(&store, id).await?;
    let shards = store.shards();
    let index = blocking(move || QuiltIndex::decode(&loaded.bytes, shards)).await.map_err(refuse_patch)?;
    let items = index.entries.into_iter().map(|entry| QuiltPatchItem {
        patch_id: patch_id(id, &entry),
        identifier: entry.identifier,
        tags: entry.tags,
    });
    Ok(Json(items.collect::<Vec<_>>()).into_response())
}

fn patch_not_found() -> Refusal {
    let message = "the requested quilt patch does not exist on Walrus";
    Refusal::json(StatusCode::NOT_FOUND, reason::QUILT_PATCH_NOT_FOUND, message)
}

fn refuse_patch(error: QuiltError) -> Refusal {
    match error {
        QuiltError::UnknownPatch => patch_not_found(),
        // A blob that is no quilt: Walrus has no reason code for it.
        error => {
            tracing::debug!(%error, "a blob that was read as a quilt is none");
            Refusal::internal("the blob is not a quilt")
        }
    }
}

fn patch_answer(
    quilt: BlobId,
    entry: &PatchEntry,
    data: Vec<u8>,
    method: &Method,
    request: &HeaderMap,
) -> Response {
    let length = data.len() as u64;
    // The quilt's tag, as in Walrus: it is not a cache key for patches.
    let mut response = blob_answer(&quilt.to_string(), data.into(), length, method, request);
    let headers = response.headers_mut();
    for name in TAG_HEADERS {
        let tag = entry.tags.iter().find(|(key, _)| key.eq_ignore_ascii_case(name.as_str()));
        if let Some(value) = tag.and_then(|(_, value)| HeaderValue::from_str(value).ok()) {
            headers.insert(name, value);
        }
    }
    if let Ok(identifier) = HeaderValue::from_str(&entry.identifier) {
        headers.insert(PATCH_IDENTIFIER, identifier);
    }
    response
}
