//! Operations on whole namespaces: list, restore from Walrus, forget, count.

use axum::{Json, extract::State};
use baton_memory::api::{PlaceView, Stats};
use baton_proto::text::{is_same_name, is_same_place};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use utoipa::{IntoParams, ToSchema};

use super::namespace;
use crate::{
    auth::Caller,
    http::{
        Admin, ApiError, ApiErrorJson, AppState, Input, Params, Reader, Writer,
        api_error::NO_WALRUS,
        extract::{PathName, SHARED},
        limits::{MAX_NAMESPACES, MAX_RESTORE},
        places::forget_chats,
    },
    time,
};

/// A namespace to restore.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::http) struct Restore {
    namespace: Option<String>,
    /// Most blobs to check, up to 1000. Default: 10.
    limit: Option<usize>,
}

/// The result of a restore.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct RestoreAnswer {
    restored: u64,
    skipped: u64,
    total: u64,
    failed: u64,
    truncated: bool,
    namespace: String,
    owner: String,
}

/// Reads a namespace's contents on Walrus again, newest first, and stores unreadable or different contents
/// anew.
#[utoipa::path(post, path = "/api/restore", tag = "sdk", request_body = Restore,
    responses((status = 200, body = RestoreAnswer), (status = 400, body = ApiErrorJson), (status = 501, body = ApiErrorJson)))]
pub(in crate::http) async fn restore(
    State(app): State<AppState>,
    Writer(caller): Writer,
    Input(request): Input<Restore>,
) -> Result<Json<RestoreAnswer>, ApiError> {
    let limit = match request.limit.unwrap_or(10) {
        0 => return Err(ApiError::bad("`limit` is at least 1")),
        limit => limit.min(MAX_RESTORE),
    };
    let project = caller.project(request.namespace)?;
    if !app.memory().keeps_contents() {
        return Err(ApiError::new(NO_WALRUS));
    }
    let restored = app.memory().restore(caller.owner, project.clone(), limit).await?;
    Ok(Json(RestoreAnswer {
        restored: restored.restored,
        skipped: restored.skipped,
        total: restored.total,
        failed: restored.failed,
        truncated: restored.truncated,
        namespace: namespace(project.as_deref()),
        owner: caller.owner.to_string(),
    }))
}

/// A namespace to forget. It is required: there is no default.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::http) struct Forget {
    namespace: String,
}

/// The result of a deletion.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Forgotten)]
pub(in crate::http) struct ForgetReply {
    deleted: u64,
    namespace: String,
    owner: String,
}

/// Deletes everything in a namespace, permanently.
#[utoipa::path(post, path = "/api/forget", tag = "sdk", request_body = Forget,
    responses((status = 200, body = ForgetReply), (status = 400, body = ApiErrorJson)))]
pub(in crate::http) async fn forget(
    State(app): State<AppState>,
    Admin(caller): Admin,
    Input(request): Input<Forget>,
) -> Result<Json<ForgetReply>, ApiError> {
    let project = caller.project(Some(request.namespace))?;
    forget_chats(&app, caller.owner, |session| is_same_place(session.project.as_deref(), project.as_deref()))
        .await?;
    let deleted = app.memory().forget_project(caller.owner, project.clone()).await?;
    let owner = caller.owner.to_string();
    Ok(Json(ForgetReply { deleted, namespace: namespace(project.as_deref()), owner }))
}

/// A namespace to count.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::http) struct StatsQuery {
    namespace: Option<String>,
}

/// Statistics of an owner and of one namespace.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct StatsAnswer {
    owner: String,
    namespace: String,
    /// Number of items in the namespace.
    memory_count: u64,
    /// Bytes of text in the namespace.
    storage_bytes: u64,
    /// Statistics of all memory; absent for a delegate bound to a project.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    all: Option<Stats>,
    quota: Quota,
}

/// The owner's limits.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct Quota {
    /// Most items of the owner.
    max_items: u64,
    /// Number of items left.
    items_left: u64,
    /// Most requests per minute of the owner.
    requests_per_minute: u32,
    /// Most requests per minute of one key.
    key_requests_per_minute: u32,
}

impl Quota {
    pub(in crate::http) fn of(app: &AppState, stats: &Stats) -> Self {
        let limits = &app.inner.limits;
        Self {
            max_items: stats.max_items,
            items_left: stats.max_items.saturating_sub(stats.items),
            requests_per_minute: limits.owner_per_minute,
            key_requests_per_minute: limits.key_per_minute,
        }
    }
}

/// Returns statistics of the owner and of one namespace.
#[utoipa::path(post, path = "/api/stats", tag = "sdk", request_body = StatsQuery,
    responses((status = 200, body = StatsAnswer), (status = 401, body = ApiErrorJson)))]
pub(in crate::http) async fn stats(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Input(query): Input<StatsQuery>,
) -> Result<Json<StatsAnswer>, ApiError> {
    let project = caller.project(query.namespace)?;
    let stats = app.memory().stats(caller.owner).await?;
    let name = namespace(project.as_deref());
    let (memory_count, storage_bytes) = match project {
        None => Some(app.memory().pool(caller.owner, SHARED).await?),
        Some(_) => app
            .memory()
            .projects(caller.owner)
            .await?
            .into_iter()
            .find(|project| is_same_name(&project.name, &name)),
    }
    .map_or((0, 0), |place| (place.items, place.bytes));
    let quota = Quota::of(&app, &stats);
    Ok(Json(StatsAnswer {
        owner: caller.owner.to_string(),
        namespace: name,
        memory_count,
        storage_bytes,
        all: caller.bound_to().is_none().then_some(stats),
        quota,
    }))
}

/// The namespaces to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct NamespaceQuery {
    /// `next_cursor` of the previous page.
    updated_after: Option<String>,
    /// Most namespaces, up to 500. Default: 100.
    limit: Option<usize>,
}

/// A namespace.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct Namespace {
    /// Stable id of the owner's namespace.
    id: String,
    name: String,
    memory_count: u64,
    /// Bytes of text.
    storage_used: u64,
    /// Time of the last write, RFC 3339.
    updated_at: String,
}

/// A page of namespaces, in order of last write.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct Namespaces {
    namespaces: Vec<Namespace>,
    next_cursor: Option<String>,
    has_more: bool,
    snapshot_version: u64,
}

/// Lists namespaces, least recently changed first, so that a client can continue from its last cursor.
#[utoipa::path(get, path = "/v1/owners/{owner}/namespaces", tag = "sdk",
    params(("owner" = String, Path, description = "the account itself"), NamespaceQuery),
    responses((status = 200, body = Namespaces), (status = 404, body = ApiErrorJson)))]
pub(in crate::http) async fn list(
    State(app): State<AppState>,
    Reader(caller): Reader,
    PathName(owner): PathName<String>,
    Params(query): Params<NamespaceQuery>,
) -> Result<Json<Namespaces>, ApiError> {
    // Another owner's namespaces look missing.
    if owner.parse() != Ok(caller.owner) {
        return Err(ApiError::missing("owner"));
    }
    let limit = match query.limit.unwrap_or(100) {
        0 => return Err(ApiError::bad("`limit` is at least 1")),
        limit => limit.min(MAX_NAMESPACES),
    };
    let all = changed(&app, &caller).await?;
    let after = query.updated_after.as_deref().map(cursor).transpose()?;
    let rest: Vec<_> =
        all.into_iter().filter(|place| after.as_ref().is_none_or(|after| key(place) > *after)).collect();
    let has_more = rest.len() > limit;
    let page: Vec<_> = rest.into_iter().take(limit).collect();
    let next_cursor = page.last().map(|place| cursor_of(&key(place))).or(query.updated_after);
    let snapshot_version = page.iter().map(|place| place.updated_ms).max().unwrap_or(0);
    let namespaces = page.into_iter().map(|place| shape(&caller, place)).collect();
    Ok(Json(Namespaces { namespaces, next_cursor, has_more, snapshot_version }))
}

/// All namespaces that the caller may see, least recently changed first.
async fn changed(app: &AppState, caller: &Caller) -> Result<Vec<PlaceView>, ApiError> {
    let mut all = app.memory().projects(caller.owner).await?;
    if let Some(bound) = caller.bound_to() {
        all.retain(|project| is_same_name(&project.name, bound));
    } else {
        let pool = app.memory().pool(caller.owner, SHARED).await?;
        if pool.items > 0 {
            all.push(pool);
        }
    }
    all.sort_by_key(key);
    Ok(all)
}

fn key(place: &PlaceView) -> (u64, String) {
    (place.updated_ms, place.name.clone())
}

fn shape(caller: &Caller, place: PlaceView) -> Namespace {
    let id = Sha256::new().chain_update(caller.owner.0).chain_update(place.name.as_bytes()).finalize();
    Namespace {
        id: hex::encode(id.get(..16).unwrap_or_default()),
        name: place.name,
        memory_count: place.items,
        storage_used: place.bytes,
        updated_at: time::format(place.updated_ms),
    }
}

/// A cursor is the time and the name of the last namespace, so that none of the same millisecond is skipped.
fn cursor_of((updated_ms, name): &(u64, String)) -> String {
    format!("{updated_ms}.{}", hex::encode(name))
}

fn cursor(text: &str) -> Result<(u64, String), ApiError> {
    let read = || {
        let (updated_ms, name) = text.split_once('.')?;
        // Only compared with names: any bytes will do.
        Some((updated_ms.parse().ok()?, String::from_utf8_lossy(&hex::decode(name).ok()?).into_owned()))
    };
    read().ok_or_else(|| ApiError::bad("`updated_after` is a `next_cursor` of this route"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_any_name() {
        let key = (17, "a.b/ü".to_owned());
        assert_eq!(cursor(&cursor_of(&key)).unwrap(), key);
        // An empty name names nothing, and sorts before all others; bytes that are no text sort somewhere.
        for (text, is_cursor) in
            [("", false), ("x", false), ("1.zz", false), ("a.61", false), ("1.", true), ("1.ff", true)]
        {
            assert_eq!(cursor(text).is_ok(), is_cursor, "{text}");
        }
    }
}
