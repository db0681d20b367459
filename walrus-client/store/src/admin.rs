//! Hooks for tests and the testnet's demo that no real store should offer: they change the content of an ID.
//!
//! Two forms: [`Admin`] inside the process, and a router for a store in its own process. The router is never
//! part of the public one, and [`EmbeddedStore::serve_admin`] serves it on loopback only.

use std::time::Duration;

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Path, Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, put},
};
use baton_proto::{
    ids::BlobId,
    store::{BlobStore as _, StoreError},
};
use baton_walrus_client::wire::reason;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{EmbeddedStore, EpochInfo, Usage, answers::Refusal, blocking};

/// Most blobs in one list: some megabytes of JSON.
const MAX_LISTED: usize = 100_000;

/// Hooks for tests, from [`EmbeddedStore::admin`]. Every change is flushed before they return.
#[derive(Debug, Clone)]
pub struct Admin {
    store: EmbeddedStore,
}

/// Counts of one blob's PUTs since the store was opened, lost answers included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PutCounts {
    /// PUTs that were stored or found stored.
    pub puts: u64,
    /// Bought blob objects: more than one means a double payment.
    pub bought: u64,
}

impl EmbeddedStore {
    /// The hooks for tests.
    #[must_use]
    pub fn admin(&self) -> Admin {
        Admin { store: self.clone() }
    }

    /// The hooks for tests as routes:
    /// - GET, PUT and DELETE `/admin/blobs/{id}`, GET `/admin/blobs`;
    /// - PUT `/admin/heads`;
    /// - GET `/admin/usage`;
    /// - GET and PUT `/admin/clock` (`?epochs=` or `?seconds=` move it forward).
    ///
    /// Any client that reaches them can change everything.
    ///
    /// PUT `/admin/heads` skips the expiry and the rule of rising sequence numbers.
    pub fn admin_router(&self) -> Router {
        Router::new()
            .route("/admin/blobs", get(list_blobs))
            .route("/admin/blobs/{id}", get(read_blob).put(replace_blob).delete(remove_blob))
            .route("/admin/heads", put(force_head))
            .route("/admin/clock", get(clock).put(move_clock))
            .route("/admin/usage", get(usage))
            .layer(DefaultBodyLimit::max(self.inner.config.max_put_bytes))
            .with_state(self.admin())
    }
}

impl Admin {
    /// Puts other bytes under an ID, which then no longer matches them. True when the ID was stored before.
    ///
    /// # Errors
    /// [`StoreError`] when the quota or the disk refuses.
    pub async fn replace_blob(&self, id: BlobId, bytes: Vec<u8>) -> Result<bool, StoreError> {
        let inner = self.store.inner.clone();
        let replaced = blocking(move || inner.disk.replace(id, inner.spilled(None, &bytes)?));
        Ok(replaced.await?)
    }

    /// Removes a blob. True when it was stored.
    ///
    /// # Errors
    /// [`StoreError`] when the disk fails.
    pub async fn remove_blob(&self, id: BlobId) -> Result<bool, StoreError> {
        let inner = self.store.inner.clone();
        Ok(blocking(move || inner.disk.remove(id)).await?)
    }

    /// IDs and lengths in bytes of at most 100,000 blobs, damaged ones included.
    ///
    /// # Errors
    /// None: the list is in memory.
    pub async fn list_blobs(&self) -> Result<Vec<(BlobId, u64)>, StoreError> {
        let inner = self.store.inner.clone();
        Ok(blocking(move || inner.disk.list(MAX_LISTED)).await)
    }

    /// Counts of a blob's PUTs since the store was opened.
    #[must_use]
    pub fn put_counts(&self, id: BlobId) -> PutCounts {
        self.store.inner.put_counts().get(&id).copied().unwrap_or_default()
    }

    /// Moves the epochs' clock forward for good, and removes content that then is expired. Heads and tokens
    /// keep their time, since other clocks date them.
    ///
    /// # Errors
    /// [`StoreError`] when the disk fails.
    pub async fn move_clock(&self, forward: Duration) -> Result<EpochInfo, StoreError> {
        let inner = self.store.inner.clone();
        let epoch = blocking(move || inner.disk.move_clock(forward)).await?;
        self.store.collect_expired().await?;
        self.store.inner.clock_moved.notify_waiters();
        Ok(epoch)
    }

    /// Stores a valid head record over any other.
    ///
    /// # Errors
    /// [`StoreError`] when it is too long or invalid, or the disk refuses.
    pub async fn force_head(&self, record: Vec<u8>) -> Result<(), StoreError> {
        self.store.publish_head(record, true).await
    }
}

/// One line of the list of blobs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct BlobListItem {
    blob_id: String,
    size: u64,
}

async fn list_blobs(State(admin): State<Admin>) -> Result<Response, Refusal> {
    let blobs = admin.list_blobs().await?;
    let listed = blobs.into_iter().map(|(id, size)| BlobListItem { blob_id: id.to_string(), size });
    Ok(Json(listed.collect::<Vec<_>>()).into_response())
}

async fn replace_blob(
    State(admin): State<Admin>,
    Path(id): Path<String>,
    bytes: Bytes,
) -> Result<Response, Refusal> {
    let existed = admin.replace_blob(parse_id(&id)?, bytes.into()).await?;
    Ok(Json(serde_json::json!({ "existed": existed })).into_response())
}

/// The stored bytes of an ID, right or wrong, whatever the public routes answer.
async fn read_blob(State(admin): State<Admin>, Path(id): Path<String>) -> Result<Response, Refusal> {
    let limit = admin.store.inner.config.max_put_bytes;
    Ok(admin.store.get(parse_id(&id)?, limit).await?.into_response())
}

async fn remove_blob(State(admin): State<Admin>, Path(id): Path<String>) -> Result<Response, Refusal> {
    if admin.remove_blob(parse_id(&id)?).await? {
        return Ok(Json(serde_json::json!({ "existed": true })).into_response());
    }
    Err(StoreError::NotFound.into())
}

async fn clock(State(admin): State<Admin>) -> Response {
    Json(admin.store.epoch()).into_response()
}

async fn usage(State(admin): State<Admin>) -> Response {
    let Usage { blobs, bytes } = admin.store.usage();
    let collected = admin.store.collected();
    Json(serde_json::json!({ "blobs": blobs, "bytes": bytes, "collected": collected })).into_response()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClockQuery {
    /// Epochs to move forward: 1 moves to the start of the next epoch.
    #[serde(default)]
    epochs: u32,
    #[serde(default)]
    seconds: u64,
}

async fn move_clock(
    State(admin): State<Admin>,
    Query(query): Query<ClockQuery>,
) -> Result<Response, Refusal> {
    let duration = admin.store.inner.config.epoch_duration;
    let to_next = Duration::from_millis(admin.store.epoch().until_next_ms);
    let epochs =
        query.epochs.checked_sub(1).map(|more| to_next.saturating_add(duration.saturating_mul(more)));
    let forward = epochs.unwrap_or_default().saturating_add(Duration::from_secs(query.seconds));
    Ok(Json(admin.move_clock(forward).await?).into_response())
}

async fn force_head(State(admin): State<Admin>, record: Bytes) -> Result<StatusCode, Refusal> {
    admin.force_head(record.into()).await?;
    Ok(StatusCode::OK)
}

fn parse_id(text: &str) -> Result<BlobId, Refusal> {
    text.parse().map_err(|_| Refusal::invalid_id())
}

/// A failed admin request. It serves tests on loopback, so its text is the store's own.
impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        let status = match error {
            StoreError::NotFound => {
                let message = "the blob is not in the store";
                return Self::json(StatusCode::NOT_FOUND, reason::BLOB_NOT_FOUND, message);
            }
            StoreError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            StoreError::Refused { .. } => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::text(status, error.to_string())
    }
}
