//! Remembering, and its progress. A memory is durable and searchable when the request is answered. Its job is
//! done once the content is on Walrus too.

use axum::{Json, extract::State, http::StatusCode};
use baton_memory::{
    api::{JobState, JobView, MemoryError},
    ids::{ItemId, OwnerId},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ACCEPTED, Fact, namespace, not_blank, text};
use crate::delegation::Scope;
use crate::http::{
    ApiError, ApiErrorJson, AppState, Input, Reader, Writer,
    extract::PathName,
    limits::{MAX_ANALYZE_BYTES, MAX_FACTS},
    shapes::item_id,
};
use crate::time;

/// An accepted job.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Accepted)]
pub(in crate::http) struct AcceptedJob {
    job_id: String,
    status: &'static str,
    /// Whether the memory existed already; absent for a write-only key.
    #[serde(skip_serializing_if = "Option::is_none")]
    existed: Option<bool>,
}

/// Remembers a text.
#[utoipa::path(post, path = "/api/remember", tag = "sdk", request_body = Fact,
    responses((status = 202, body = AcceptedJob), (status = 400, body = ApiErrorJson), (status = 401, body = ApiErrorJson),
        (status = 409, body = ApiErrorJson)))]
pub(in crate::http) async fn remember(
    State(app): State<AppState>,
    Writer(caller): Writer,
    Input(fact): Input<Fact>,
) -> Result<(StatusCode, Json<AcceptedJob>), ApiError> {
    let remembered = super::remember(&app, caller.owner, vec![fact.read(&caller)?]).await?;
    let first = remembered.first().ok_or_else(|| ApiError::missing("item"))?;
    let existed = caller.may(Scope::Read).then_some(first.existed);
    let accepted = AcceptedJob { job_id: first.id.to_string(), status: "pending", existed };
    Ok((ACCEPTED, Json(accepted)))
}

/// The status of a job.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct JobStatus {
    job_id: String,
    /// `pending`, `done`, `failed` or `not_found`.
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    blob_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
}

/// Returns the status of one job.
#[utoipa::path(get, path = "/api/remember/{job_id}", tag = "sdk", params(("job_id" = String, Path)),
    responses((status = 200, body = JobStatus), (status = 404, body = ApiErrorJson)))]
pub(in crate::http) async fn status(
    State(app): State<AppState>,
    Reader(caller): Reader,
    PathName(job): PathName<String>,
) -> Result<Json<JobStatus>, ApiError> {
    let missing = || ApiError::missing("job");
    let id = item_id(&job).map_err(|_| missing())?;
    let view = app.memory().get(caller.owner, id).await.map_err(|error| match error {
        MemoryError::NotFound(_) => missing(),
        other => other.into(),
    })?;
    caller.reads(&view)?;
    let state = state_of(&app.memory().jobs_of(caller.owner, vec![id]).await?, id);
    Ok(Json(JobStatus {
        job_id: job,
        status: state,
        owner: Some(caller.owner.to_string()),
        namespace: Some(namespace(view.project.as_deref())),
        blob_id: view.blob_id.clone(),
        error: (state == "failed").then_some("its content could not be stored; the memory itself is kept"),
    }))
}

/// An item's state by its jobs: done once none is left.
fn state_of(jobs: &[JobView], id: ItemId) -> &'static str {
    let of_item = jobs.iter().filter(|job| job.item == Some(id));
    of_item.fold("done", |worst, job| match (worst, job.state) {
        (_, JobState::Pending) | ("pending", _) => "pending",
        (_, JobState::Failed) | ("failed", _) => "failed",
        _ => "done",
    })
}

/// Texts to remember.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::http) struct Bulk {
    /// 1 to 100 texts.
    items: Vec<Fact>,
}

/// Accepted jobs.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct BulkAccepted {
    /// Job ids, in the order of the request.
    job_ids: Vec<String>,
    total: usize,
    status: &'static str,
}

/// Remembers texts, all or none.
#[utoipa::path(post, path = "/api/remember/bulk", tag = "sdk", request_body = Bulk,
    responses((status = 202, body = BulkAccepted), (status = 400, body = ApiErrorJson), (status = 409, body = ApiErrorJson)))]
pub(in crate::http) async fn remember_bulk(
    State(app): State<AppState>,
    Writer(caller): Writer,
    Input(bulk): Input<Bulk>,
) -> Result<(StatusCode, Json<BulkAccepted>), ApiError> {
    let facts = bulk.items.into_iter().map(|fact| fact.read(&caller)).collect::<Result<Vec<_>, _>>()?;
    let remembered = super::remember(&app, caller.owner, facts).await?;
    let job_ids: Vec<_> = remembered.iter().map(|one| one.id.to_string()).collect();
    Ok((ACCEPTED, Json(BulkAccepted { total: job_ids.len(), job_ids, status: "pending" })))
}

/// Jobs to query.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::http) struct BulkQuery {
    /// At most 100 job ids.
    job_ids: Vec<String>,
}

/// The status of several jobs.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct BulkStatus {
    results: Vec<JobStatus>,
}

/// Returns the status of several jobs.
#[utoipa::path(post, path = "/api/remember/bulk/status", tag = "sdk", request_body = BulkQuery,
    responses((status = 200, body = BulkStatus), (status = 400, body = ApiErrorJson)))]
pub(in crate::http) async fn bulk_status(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Input(query): Input<BulkQuery>,
) -> Result<Json<BulkStatus>, ApiError> {
    if query.job_ids.len() > MAX_FACTS {
        return Err(ApiError::bad(format!("at most {MAX_FACTS} jobs at a time")));
    }
    let ids: Vec<ItemId> = query.job_ids.iter().filter_map(|id| id.parse().ok()).collect();
    let jobs = app.memory().jobs_of(caller.owner, ids).await?;
    let mut results = Vec::with_capacity(query.job_ids.len());
    for job_id in query.job_ids {
        results.push(status_in(&app, &caller, caller.owner, job_id, &jobs).await?);
    }
    Ok(Json(BulkStatus { results }))
}

async fn status_in(
    app: &AppState,
    caller: &crate::auth::Caller,
    owner: OwnerId,
    job_id: String,
    jobs: &[JobView],
) -> Result<JobStatus, ApiError> {
    let bare = |job_id, status, blob_id| JobStatus {
        job_id,
        status,
        owner: None,
        namespace: None,
        blob_id,
        error: None,
    };
    let Ok(id) = job_id.parse::<ItemId>() else { return Ok(bare(job_id, "not_found", None)) };
    match app.memory().get(owner, id).await {
        Ok(view) if caller.reads(&view).is_ok() => Ok(bare(job_id, state_of(jobs, id), view.blob_id.clone())),
        Ok(_) | Err(MemoryError::NotFound(_)) => Ok(bare(job_id, "not_found", None)),
        Err(error) => Err(error.into()),
    }
}

/// A text to extract facts from.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::http) struct Analyze {
    /// At most 64 KiB.
    text: String,
    namespace: Option<String>,
    /// When it was said, RFC 3339. Default: now. Dates in the text stay as written.
    #[serde(default, deserialize_with = "time::optional")]
    #[schema(value_type = Option<String>)]
    occurred_at: Option<u64>,
}

/// An extracted fact.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct AnalyzedFact {
    text: String,
    id: String,
    job_id: String,
    blob_id: String,
}

/// Extracted facts, now remembered.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Analyzed)]
pub(in crate::http) struct AnalyzeReply {
    facts: Vec<AnalyzedFact>,
    fact_count: usize,
    job_ids: Vec<String>,
    status: &'static str,
    owner: String,
}

/// Extracts facts from a text and remembers them.
#[utoipa::path(post, path = "/api/analyze", tag = "sdk", request_body = Analyze,
    responses((status = 202, body = AnalyzeReply), (status = 400, body = ApiErrorJson)))]
pub(in crate::http) async fn analyze(
    State(app): State<AppState>,
    Writer(caller): Writer,
    Input(request): Input<Analyze>,
) -> Result<(StatusCode, Json<AnalyzeReply>), ApiError> {
    not_blank("text", &request.text)?;
    if request.text.len() > MAX_ANALYZE_BYTES {
        return Err(ApiError::bad(format!("`text` has at most {MAX_ANALYZE_BYTES} bytes")));
    }
    let place = caller.place(request.namespace, None, None)?;
    let found = app.memory().analyze(caller.owner, place, text(request.text), request.occurred_at).await?;
    let reads = caller.may(Scope::Read);
    let facts: Vec<_> = found
        .into_iter()
        .map(|(remembered, mut text)| AnalyzedFact {
            text: std::mem::take(&mut text.0),
            id: remembered.id.to_string(),
            job_id: remembered.id.to_string(),
            blob_id: remembered.blob_id.filter(|_| reads).unwrap_or_default(),
        })
        .collect();
    let job_ids = facts.iter().map(|fact| fact.job_id.clone()).collect();
    let owner = caller.owner.to_string();
    Ok((ACCEPTED, Json(AnalyzeReply { fact_count: facts.len(), facts, job_ids, status: "pending", owner })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_done_when_none_of_its_jobs_is_left() {
        let (id, other) = (ItemId([1; 16]), ItemId([2; 16]));
        let job = |item, state| JobView { job: 1, item: Some(item), state, attempts: 1 };
        assert_eq!(state_of(&[], id), "done");
        assert_eq!(state_of(&[job(other, JobState::Pending)], id), "done");
        assert_eq!(state_of(&[job(id, JobState::Done), job(id, JobState::Failed)], id), "failed");
        assert_eq!(state_of(&[job(id, JobState::Failed), job(id, JobState::Pending)], id), "pending");
    }
}
