//! Recall in the SDK's format, answers from memories, embeddings, and the refusal of the manual mode.

use std::time::Duration;

use axum::{Json, extract::State};
use baton_memory::{
    api::{Filters, Hit, RecallRequest},
    extraction::{ModelError, RecalledItem},
    limits::{MAX_PAGE, MAX_QUERY_BYTES},
    model::MemoryScope,
    search::Weights,
};
use baton_models::embed::{EmbedError, EmbedRole};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{not_blank, text};
use crate::{
    auth::Caller,
    http::{
        ApiError, ApiErrorJson, AppState, Input, Reader, Writer,
        api_error::{MODEL, NO_MODEL, UNAVAILABLE, UNSUPPORTED},
        extract::scope_named,
        limits::MAX_ANALYZE_BYTES,
        shapes::distance,
    },
    time,
};

/// Retry time after a language model failed to answer.
const RETRY_MODEL: Duration = Duration::from_secs(5);

/// Weights of the ranking. Default: the relayer's own order.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
pub(in crate::http) struct ScoringWeights {
    /// Weight of the relayer's score. Default: 1.
    semantic: Option<f32>,
    /// Weight of recency. Default: 0.
    recency: Option<f32>,
    /// Half-life of recency, in days. Default: 30.
    recency_half_life_days: Option<f32>,
    /// Weight of the memory's importance. Default: 0.
    importance: Option<f32>,
}

impl ScoringWeights {
    fn check(&self) -> Result<(), ApiError> {
        let weights = [self.semantic, self.recency, self.importance].into_iter().flatten();
        let good = weights.into_iter().all(|weight| (0.0..=1_000.0).contains(&weight));
        let half_life = self.recency_half_life_days.is_none_or(|days| (0.01..=36_500.0).contains(&days));
        if good && half_life {
            return Ok(());
        }
        Err(ApiError::bad("`scoring_weights` are from 0 to 1000, with a half-life of 0.01 to 36500 days"))
    }

    fn sum(&self) -> f32 {
        self.semantic.unwrap_or(1.0) + self.recency.unwrap_or(0.0) + self.importance.unwrap_or(0.0)
    }

    fn read(self) -> Weights {
        let default = Weights::default();
        Weights {
            semantic: self.semantic.unwrap_or(default.semantic),
            recency: self.recency.unwrap_or(default.recency),
            recency_half_life_days: self.recency_half_life_days.unwrap_or(default.recency_half_life_days),
            importance: self.importance.unwrap_or(default.importance),
        }
    }
}

/// A recall request.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::http) struct Recall {
    query: String,
    /// Most results, up to 200. Default: 10.
    limit: Option<usize>,
    namespace: Option<String>,
    /// Only memories below this distance.
    max_distance: Option<f32>,
    scoring_weights: Option<ScoringWeights>,
    /// `relevance` (default), or `recent`: the most relevant memories, newest first.
    sort: Option<String>,
    /// Part of memory to search. Default: `neutral_and_relationship`, without intimate items.
    memory_scope: Option<String>,
    persona: Option<String>,
}

/// A memory in the SDK's format.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct Memory {
    id: String,
    /// Walrus id of the content; empty until stored.
    blob_id: String,
    text: String,
    /// 1 - similarity, or 1 - score without vectors.
    distance: f32,
    score: f32,
    created_at: String,
    kind: &'static str,
}

impl From<Hit> for Memory {
    fn from(mut hit: Hit) -> Self {
        Self {
            id: hit.view.id.to_string(),
            distance: distance(&hit),
            score: hit.score,
            created_at: time::format(hit.view.time_ms),
            kind: hit.view.kind.name(),
            blob_id: hit.view.blob_id.take().unwrap_or_default(),
            text: std::mem::take(&mut hit.view.text.0),
        }
    }
}

/// The result of a recall.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct SdkRecallAnswer {
    results: Vec<Memory>,
    total: usize,
    /// Number of unreadable memories: always 0, since all are here.
    dropped_count: u64,
    /// Kind of search: `full`, `lexical` (words only) or `none`.
    #[schema(value_type = String)]
    mode: Value,
    /// Reason for a search that was not full.
    #[serde(skip_serializing_if = "Option::is_none")]
    degraded: Option<String>,
}

/// Finds memories.
#[utoipa::path(post, path = "/api/recall", tag = "sdk", request_body = Recall,
    responses((status = 200, body = SdkRecallAnswer), (status = 400, body = ApiErrorJson), (status = 401, body = ApiErrorJson)))]
pub(in crate::http) async fn recall(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Input(request): Input<Recall>,
) -> Result<Json<SdkRecallAnswer>, ApiError> {
    let by_time = match request.sort.as_deref() {
        None | Some("relevance") => false,
        Some("recent") => true,
        Some(_) => return Err(ApiError::bad("`sort` is `relevance` or `recent`")),
    };
    if let Some(weights) = &request.scoring_weights {
        weights.check()?;
    }
    let limit = limit(request.limit, 10)?;
    let scope = scope_named(request.memory_scope.as_deref(), MemoryScope::NeutralAndRelationship)?;
    let search_request = SearchRequest {
        query: request.query,
        namespace: request.namespace,
        persona: request.persona,
        scope,
        // Weights that are all 0 order nothing.
        weights: request.scoring_weights.filter(|weights| weights.sum() > 0.0).map(ScoringWeights::read),
    };
    let found = search(&app, &caller, search_request, limit).await?;
    let mut hits = found.hits;
    if let Some(most) = request.max_distance {
        hits.retain(|hit| distance(hit) < most);
    }
    if by_time {
        hits.sort_by_key(|hit| std::cmp::Reverse(hit.view.time_ms));
    }
    let results: Vec<Memory> = hits.into_iter().map(Memory::from).collect();
    let mode = serde_json::to_value(found.mode).unwrap_or_default();
    Ok(Json(SdkRecallAnswer {
        total: results.len(),
        results,
        dropped_count: 0,
        mode,
        degraded: found.degraded,
    }))
}

struct SearchRequest {
    query: String,
    namespace: Option<String>,
    persona: Option<String>,
    scope: MemoryScope,
    weights: Option<Weights>,
}

async fn search(
    app: &AppState,
    caller: &Caller,
    search: SearchRequest,
    limit: usize,
) -> Result<baton_memory::api::Recall, ApiError> {
    not_blank("query", &search.query)?;
    if search.query.len() > MAX_QUERY_BYTES {
        return Err(ApiError::bad(format!("a query has at most {MAX_QUERY_BYTES} bytes")));
    }
    let request = RecallRequest {
        place: caller.place(search.namespace, None, search.persona)?,
        scope: search.scope,
        query: text(search.query),
        limit,
        threshold: None,
        budget_tokens: None,
        filters: caller.filters(Filters::default()),
        weights: search.weights,
    };
    Ok(app.memory().recall(caller.owner, request).await)
}

fn limit(requested: Option<usize>, default: usize) -> Result<usize, ApiError> {
    match requested.unwrap_or(default) {
        0 => Err(ApiError::bad("`limit` is at least 1")),
        limit => Ok(limit.min(MAX_PAGE)),
    }
}

/// A question to answer.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::http) struct Ask {
    question: String,
    /// Most memories to answer from, up to 200. Default: 5.
    limit: Option<usize>,
    namespace: Option<String>,
}

/// An answer with its source memories.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct Answer {
    answer: String,
    memories_used: usize,
    memories: Vec<Memory>,
}

/// Answers a question from memories, with the operator's language model.
///
/// If no model answers, the response is a 503 that carries the memories.
#[utoipa::path(post, path = "/api/ask", tag = "sdk", request_body = Ask,
    responses((status = 200, body = Answer), (status = 400, body = ApiErrorJson), (status = 503, body = ApiErrorJson)))]
pub(in crate::http) async fn ask(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Input(request): Input<Ask>,
) -> Result<Json<Answer>, ApiError> {
    let limit = limit(request.limit, 5)?;
    let question = text(request.question);
    let search_request = SearchRequest {
        query: question.to_string(),
        namespace: request.namespace,
        persona: None,
        scope: MemoryScope::NeutralAndRelationship,
        weights: None,
    };
    let found = search(&app, &caller, search_request, limit).await?;
    let recalled: Vec<RecalledItem> = found
        .hits
        .iter()
        .map(|hit| RecalledItem { from: hit.view.source(), text: hit.view.text.clone() })
        .collect();
    let memories: Vec<Memory> = found.hits.into_iter().map(Memory::from).collect();
    let with_memories = |error: ApiError, memories: &[Memory]| error.with("memories", json!(memories));
    let Some(writer) = &app.inner.writer else {
        return Err(with_memories(ApiError::new(NO_MODEL), &memories));
    };
    app.inner
        .budgets
        .check_model_call(caller.owner)
        .map_err(|spent| with_memories(spent.into(), &memories))?;
    let writer = writer.for_owner(caller.owner).unwrap_or_else(|| writer.clone());
    match writer.answer(&question, &recalled).await {
        Ok(mut answer) => Ok(Json(Answer {
            answer: std::mem::take(&mut answer.0),
            memories_used: memories.len(),
            memories,
        })),
        Err(error) => {
            tracing::warn!(%error, "a question was not answered");
            let wait = match error {
                ModelError::Busy { retry_after: Some(wait) } => wait,
                _ => RETRY_MODEL,
            };
            let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            Err(with_memories(ApiError::new(MODEL).after_ms(wait_ms), &memories))
        }
    }
}

/// A text to embed.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::http) struct Embed {
    /// Text, at most 64 KiB.
    text: String,
}

/// An embedding vector.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Embedded)]
pub(in crate::http) struct EmbedReply {
    vector: Vec<f32>,
    /// Id of the model.
    model: String,
}

/// Embeds a text, and stores nothing.
#[utoipa::path(post, path = "/api/embed", tag = "sdk", request_body = Embed,
    responses((status = 200, body = EmbedReply), (status = 400, body = ApiErrorJson), (status = 503, body = ApiErrorJson)))]
pub(in crate::http) async fn embed(
    State(app): State<AppState>,
    _caller: Reader,
    Input(request): Input<Embed>,
) -> Result<Json<EmbedReply>, ApiError> {
    not_blank("text", &request.text)?;
    if request.text.len() > MAX_ANALYZE_BYTES {
        return Err(ApiError::bad(format!("`text` has at most {MAX_ANALYZE_BYTES} bytes")));
    }
    let embedder = &app.inner.embedder;
    let unavailable = |error: Option<EmbedError>| {
        tracing::warn!(error = error.map(|error| error.to_string()), "a text was not embedded");
        ApiError::new(UNAVAILABLE).saying("the embedder did not answer").after_ms(5_000)
    };
    let vectors = embedder.embed(EmbedRole::Document, &[&request.text]).await;
    let vector = vectors.map_err(|error| unavailable(Some(error)))?.pop().ok_or_else(|| unavailable(None))?;
    Ok(Json(EmbedReply { vector, model: embedder.id().to_owned() }))
}

/// Always refused: there is no manual mode.
///
/// A memory that the relayer cannot read has no keywords, windows or graph. A vector of the client's own
/// model cannot be compared with others. Use sealed mode over libp2p for text that the relayer must not read.
#[utoipa::path(post, path = "/api/remember/manual", tag = "sdk", request_body = Object,
    responses((status = 501, body = ApiErrorJson)))]
pub(in crate::http) async fn remember_manual(_caller: Writer) -> ApiError {
    no_manual()
}

/// Always refused, like `/api/remember/manual`.
#[utoipa::path(post, path = "/api/recall/manual", tag = "sdk", request_body = Object,
    responses((status = 501, body = ApiErrorJson)))]
pub(in crate::http) async fn recall_manual(_caller: Reader) -> ApiError {
    no_manual()
}

fn no_manual() -> ApiError {
    ApiError::new(UNSUPPORTED)
        .saying(
            "there is no manual mode: a memory sealed by the client has no keywords and no graph, and a vector of the \
             client's own model cannot be compared with the relayer's",
        )
        .hinting("use /api/remember and /api/recall; contents are sealed at rest under the owner's keys")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_checked() {
        let weights = |semantic, recency, days| ScoringWeights {
            semantic: Some(semantic),
            recency: Some(recency),
            recency_half_life_days: Some(days),
            importance: None,
        };
        assert!(weights(1.0, 0.5, 30.0).check().is_ok());
        assert!(weights(0.0, 0.0, 0.01).check().is_ok());
        for bad in [
            weights(-1.0, 2.0, 30.0),
            weights(f32::NAN, 1.0, 30.0),
            weights(1.0, f32::INFINITY, 30.0),
            weights(1.0, 1.0, 0.0),
            weights(1.0, 1.0, f32::NAN),
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        assert!(limit(Some(0), 10).is_err());
        assert_eq!(limit(Some(usize::MAX), 10).unwrap(), MAX_PAGE);
    }
}
