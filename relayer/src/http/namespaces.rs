//! Operations on whole namespaces: list, restore from Walrus, forget, count.

use baton_memory::api::{PlaceView, RestoreReport, Stats};
use baton_proto::text::{is_same_name, is_same_place};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;

use super::{
    ApiError,
    api_error::NO_WALRUS,
    extract::{SHARED, namespace},
    limits::{MAX_NAMESPACES, MAX_RESTORE},
    operation::Call,
    places::forget_chats,
};
use crate::time;

/// A namespace to restore.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Restore {
    /// Project; the SDK calls it `namespace`. Default: the shared pool.
    #[serde(alias = "namespace")]
    project: Option<String>,
    /// Most blobs to check, up to 1000. Default: 10.
    limit: Option<usize>,
}

/// The result of a restore.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RestoreAnswer {
    #[serde(flatten)]
    report: RestoreReport,
    namespace: String,
    owner: String,
}

pub(super) async fn restore(call: Call, request: Restore) -> Result<RestoreAnswer, ApiError> {
    let limit = match request.limit.unwrap_or(10) {
        0 => return Err(ApiError::bad("`limit` is at least 1")),
        limit => limit.min(MAX_RESTORE),
    };
    let project = call.caller.project(request.project)?;
    if !call.memory().keeps_contents() {
        return Err(ApiError::new(NO_WALRUS));
    }
    let report = call.memory().restore(call.owner(), project.clone(), limit).await?;
    let owner = call.owner().to_string();
    Ok(RestoreAnswer { report, namespace: namespace(project.as_deref()), owner })
}

/// A namespace to forget. It is required: there is no default.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Forget {
    /// Project, or `default` for the shared pool; the SDK calls it `namespace`.
    #[serde(alias = "namespace")]
    project: String,
}

/// The result of a deletion.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Forgotten)]
pub(super) struct ForgetReply {
    deleted: u64,
    namespace: String,
    owner: String,
}

pub(super) async fn forget(call: Call, request: Forget) -> Result<ForgetReply, ApiError> {
    let project = call.caller.project(Some(request.project))?;
    forget_chats(&call, |session| is_same_place(session.project.as_deref(), project.as_deref())).await?;
    let deleted = call.memory().forget_project(call.owner(), project.clone()).await?;
    let owner = call.owner().to_string();
    Ok(ForgetReply { deleted, namespace: namespace(project.as_deref()), owner })
}

/// A namespace to count.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StatsQuery {
    /// Project; the SDK calls it `namespace`. Default: the shared pool.
    #[serde(alias = "namespace")]
    project: Option<String>,
}

/// Statistics of an owner and of one namespace.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StatsAnswer {
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
pub(super) struct Quota {
    /// Most items of the owner.
    max_items: u64,
    /// Number of items left.
    items_left: u64,
    /// Most requests per minute of the owner.
    requests_per_minute: u32,
}

pub(super) async fn stats(call: Call, query: StatsQuery) -> Result<StatsAnswer, ApiError> {
    let project = call.caller.project(query.project)?;
    let stats = call.memory().stats(call.owner()).await?;
    let name = namespace(project.as_deref());
    let (memory_count, storage_bytes) = match project {
        None => Some(call.memory().pool(call.owner(), SHARED).await?),
        Some(_) => {
            let mut projects = call.memory().projects(call.owner()).await?.into_iter();
            projects.find(|project| is_same_name(&project.name, &name))
        }
    }
    .map_or((0, 0), |place| (place.items, place.bytes));
    let quota = Quota {
        max_items: stats.max_items,
        items_left: stats.max_items.saturating_sub(stats.items),
        requests_per_minute: call.app.inner.config.limits.owner_per_minute,
    };
    Ok(StatsAnswer {
        owner: call.owner().to_string(),
        namespace: name,
        memory_count,
        storage_bytes,
        all: call.caller.bound_to().is_none().then_some(stats),
        quota,
    })
}

/// The namespaces to list.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct NamespaceQuery {
    /// `next_cursor` of the previous page.
    updated_after: Option<String>,
    /// Most namespaces, up to 500. Default: 100.
    limit: Option<usize>,
}

/// A namespace.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Namespace {
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
pub(super) struct Namespaces {
    namespaces: Vec<Namespace>,
    next_cursor: Option<String>,
    has_more: bool,
    snapshot_version: u64,
}

pub(super) async fn list(call: Call, query: NamespaceQuery) -> Result<Namespaces, ApiError> {
    // Another owner's namespaces look missing.
    if call.target.parse() != Ok(call.owner()) {
        return Err(ApiError::missing("owner"));
    }
    let limit = match query.limit.unwrap_or(100) {
        0 => return Err(ApiError::bad("`limit` is at least 1")),
        limit => limit.min(MAX_NAMESPACES),
    };
    let all = changed(&call).await?;
    let after = query.updated_after.as_deref().map(cursor).transpose()?;
    let rest: Vec<_> =
        all.into_iter().filter(|place| after.as_ref().is_none_or(|after| key(place) > *after)).collect();
    let has_more = rest.len() > limit;
    let page: Vec<_> = rest.into_iter().take(limit).collect();
    let next_cursor = page.last().map(|place| cursor_of(&key(place))).or(query.updated_after);
    let snapshot_version = page.iter().map(|place| place.updated_ms).max().unwrap_or(0);
    let namespaces = page.into_iter().map(|place| shape(&call, place)).collect();
    Ok(Namespaces { namespaces, next_cursor, has_more, snapshot_version })
}

/// All namespaces that the caller may see, least recently changed first.
async fn changed(call: &Call) -> Result<Vec<PlaceView>, ApiError> {
    let mut all = call.memory().projects(call.owner()).await?;
    if let Some(bound) = call.caller.bound_to() {
        all.retain(|project| is_same_name(&project.name, bound));
    } else {
        let pool = call.memory().pool(call.owner(), SHARED).await?;
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

fn shape(call: &Call, place: PlaceView) -> Namespace {
    let id = Sha256::new().chain_update(call.owner().0).chain_update(place.name.as_bytes()).finalize();
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
