//! Remembering, and its progress. A memory is durable and searchable when the request is answered. Its job is
//! done once the content is on Walrus too. The item's id names the job.

use baton_memory::{
    api::{MemoryError, RememberRequest, TurnRecord},
    ids::ItemId,
    model::Layer,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    ApiError,
    extract::{namespace, not_blank},
    limits::{MAX_ANALYZE_BYTES, MAX_FACTS},
    operation::{AcceptedAnswer, Call, NoInput},
    shapes::{Count, item_id},
};
use crate::{auth::Caller, delegation::Scope, time};

/// A fact to remember.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FactInput {
    /// The fact, as one self-contained sentence.
    text: String,
    /// Project; the SDK calls it `namespace`. Default: the shared pool of no project.
    #[serde(alias = "namespace")]
    project: Option<String>,
    /// Session that the fact comes from.
    session: Option<String>,
    /// Persona that it is shared with.
    persona: Option<String>,
    /// `profile` (default) or `relationship`.
    #[schema(value_type = Option<String>)]
    layer: Option<Layer>,
    /// When it was said, RFC 3339. Default: now.
    #[serde(default, deserialize_with = "time::optional")]
    #[schema(value_type = Option<String>)]
    occurred_at: Option<u64>,
    /// Whether the fact is intimate. Default: decided by rules.
    intimate: Option<bool>,
    /// Importance, 0 to 1. Default: decided by rules.
    salience: Option<f32>,
    /// At most 256 bytes. A repeated call with the same key takes effect once, even if the memory was
    /// superseded since. Another text is refused. The latest 1,024 keys of an owner are known, until the
    /// memory is edited or deleted.
    idempotency_key: Option<String>,
}

impl FactInput {
    fn read(self, caller: &Caller) -> Result<(RememberRequest, Option<String>), ApiError> {
        not_blank("text", &self.text)?;
        if self.salience.is_some_and(|salience| !(0.0..=1.0).contains(&salience)) {
            return Err(ApiError::bad("`salience` is from 0 to 1"));
        }
        if self.layer == Some(Layer::Episode) {
            return Err(ApiError::bad("`layer` is `profile` or `relationship`"));
        }
        let fact = RememberRequest {
            place: caller.place(self.project, self.session, self.persona)?,
            text: self.text.into(),
            layer: self.layer.unwrap_or(Layer::Profile),
            time_ms: self.occurred_at,
            intimate: self.intimate,
            salience: self.salience,
        };
        Ok((fact, self.idempotency_key))
    }
}

/// A remembered fact. A write-only key learns its id alone.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Accepted)]
pub(super) struct AcceptedJob {
    /// Id of the memory, 32 hex characters.
    id: String,
    /// The same id, as the name of the job.
    job_id: String,
    status: &'static str,
    /// Whether the memory existed already.
    #[serde(skip_serializing_if = "Option::is_none")]
    existed: Option<bool>,
    /// Id of the replaced memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    superseded: Option<String>,
}

pub(super) async fn remember(call: Call, fact: FactInput) -> Result<AcceptedAnswer<AcceptedJob>, ApiError> {
    let fact = fact.read(&call.caller)?;
    let mut remembered = call.memory().remember_once(call.owner(), vec![fact]).await?;
    let one = remembered.pop().ok_or_else(|| ApiError::missing("item"))?;
    // Otherwise a write-only key could probe for existing facts.
    let reads = call.caller.may(Scope::Read);
    Ok(AcceptedAnswer(AcceptedJob {
        id: one.id.to_string(),
        job_id: one.id.to_string(),
        status: "pending",
        existed: reads.then_some(one.existed),
        superseded: one.superseded.filter(|_| reads).map(|id| id.to_string()),
    }))
}

/// The status of a job.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct JobStatus {
    job_id: String,
    /// `pending`, `done` or `not_found`.
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    blob_id: Option<String>,
}

pub(super) async fn status(call: Call, _: NoInput) -> Result<JobStatus, ApiError> {
    let id = item_id(&call.target).map_err(|_| ApiError::missing("job"))?;
    status_of(&call, call.target.clone(), id).await?.ok_or_else(|| ApiError::missing("job"))
}

/// Facts to remember, all or none.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Bulk {
    /// 1 to 100 facts.
    items: Vec<FactInput>,
}

/// Accepted jobs.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BulkAccepted {
    /// Job ids, in the order of the request.
    job_ids: Vec<String>,
    total: usize,
    status: &'static str,
}

pub(super) async fn remember_bulk(call: Call, bulk: Bulk) -> Result<AcceptedAnswer<BulkAccepted>, ApiError> {
    if bulk.items.is_empty() || bulk.items.len() > MAX_FACTS {
        return Err(ApiError::bad(format!("1 to {MAX_FACTS} memories at a time")));
    }
    let facts = bulk.items.into_iter().map(|fact| fact.read(&call.caller)).collect::<Result<Vec<_>, _>>()?;
    let remembered = call.memory().remember_once(call.owner(), facts).await?;
    let job_ids: Vec<_> = remembered.iter().map(|one| one.id.to_string()).collect();
    Ok(AcceptedAnswer(BulkAccepted { total: job_ids.len(), job_ids, status: "pending" }))
}

/// Jobs to query.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BulkQuery {
    /// At most 100 job ids.
    job_ids: Vec<String>,
}

/// The status of several jobs.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BulkStatus {
    results: Vec<JobStatus>,
}

pub(super) async fn bulk_status(call: Call, query: BulkQuery) -> Result<BulkStatus, ApiError> {
    if query.job_ids.len() > MAX_FACTS {
        return Err(ApiError::bad(format!("at most {MAX_FACTS} jobs at a time")));
    }
    let mut results = Vec::with_capacity(query.job_ids.len());
    for job_id in query.job_ids {
        let status = match job_id.parse() {
            Ok(id) => status_of(&call, job_id.clone(), id).await?,
            Err(_) => None,
        };
        let missing = JobStatus { job_id, status: "not_found", owner: None, namespace: None, blob_id: None };
        results.push(status.unwrap_or(missing));
    }
    Ok(BulkStatus { results })
}

/// The status of an item's job; `None` for an item that the caller may not see.
async fn status_of(call: &Call, job_id: String, id: ItemId) -> Result<Option<JobStatus>, ApiError> {
    let view = match call.memory().get(call.owner(), id).await {
        Ok(view) if call.caller.reads(&view).is_ok() => view,
        Ok(_) | Err(MemoryError::NotFound(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let waits = call.memory().waits_for_store(call.owner(), id).await?;
    Ok(Some(JobStatus {
        job_id,
        status: if waits { "pending" } else { "done" },
        owner: Some(call.owner().to_string()),
        namespace: Some(namespace(view.project.as_deref())),
        blob_id: view.blob_id,
    }))
}

/// A text to extract facts from.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Analyze {
    /// At most 64 KiB.
    text: String,
    /// Project; the SDK calls it `namespace`. Default: the shared pool.
    #[serde(alias = "namespace")]
    project: Option<String>,
    /// When it was said, RFC 3339. Default: now. Dates in the text stay as written.
    #[serde(default, deserialize_with = "time::optional")]
    #[schema(value_type = Option<String>)]
    occurred_at: Option<u64>,
}

/// An extracted fact.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AnalyzedFact {
    text: String,
    id: String,
    job_id: String,
    blob_id: String,
}

/// Extracted facts, now remembered.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Analyzed)]
pub(super) struct AnalyzeReply {
    facts: Vec<AnalyzedFact>,
    fact_count: usize,
    job_ids: Vec<String>,
    status: &'static str,
    owner: String,
}

pub(super) async fn analyze(call: Call, input: Analyze) -> Result<AcceptedAnswer<AnalyzeReply>, ApiError> {
    not_blank("text", &input.text)?;
    if input.text.len() > MAX_ANALYZE_BYTES {
        return Err(ApiError::bad(format!("`text` has at most {MAX_ANALYZE_BYTES} bytes")));
    }
    let place = call.caller.place(input.project, None, None)?;
    let found = call.memory().analyze(call.owner(), place, input.text.into(), input.occurred_at).await?;
    let reads = call.caller.may(Scope::Read);
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
    let owner = call.owner().to_string();
    Ok(AcceptedAnswer(AnalyzeReply { fact_count: facts.len(), facts, job_ids, status: "pending", owner }))
}

/// Both sides of an exchange.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TurnInput)]
pub(super) struct TurnRecordInput {
    session: String,
    project: Option<String>,
    persona: Option<String>,
    /// Turn in the session, from 0. Sending it again changes nothing; another text under its number is
    /// refused.
    turn: u64,
    user: String,
    assistant: String,
    /// Time of the exchange, RFC 3339. Default: now.
    #[serde(default, deserialize_with = "time::optional")]
    #[schema(value_type = Option<String>)]
    time: Option<u64>,
}

pub(super) async fn record_turn(call: Call, input: TurnRecordInput) -> Result<Count, ApiError> {
    let turn = TurnRecord {
        place: call.caller.place(input.project, Some(input.session), input.persona)?,
        turn: input.turn,
        user: input.user.into(),
        assistant: input.assistant.into(),
        time_ms: input.time.unwrap_or_else(|| call.app.now_ms()),
    };
    call.memory().record_turn(call.owner(), turn).await?;
    Ok(Count { count: 1 })
}
