//! Recall, answers from memories, embeddings, and the refusal of the manual mode.

use std::time::Duration;

use baton_memory::{
    api::{Filters, Recall, RecallRequest},
    extraction::{ModelError, RecalledItem},
    limits::{MAX_PAGE, MAX_QUERY_BYTES},
    model::MemoryScope,
    search::Weights,
};
use baton_models::embed::{EmbedError, EmbedRole};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::{
    ApiError,
    api_error::{MODEL, NO_MODEL, UNAVAILABLE, UNSUPPORTED},
    extract::not_blank,
    limits::MAX_ANALYZE_BYTES,
    operation::{Call, NoAnswer, NoInput},
    shapes::{FilterInput, RecallAnswer, RecallHit, distance},
};

/// Retry time after a language model failed to answer.
const RETRY_MODEL: Duration = Duration::from_secs(5);
/// Default number of items of a recall: a good number for a prompt.
const DEFAULT_HITS: usize = 6;
/// Default number of memories to answer from.
const DEFAULT_ASKED: usize = 5;

/// Weights of the ranking. Default: the relayer's own order.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ScoringWeights {
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
    /// Their form in memory; `None` for weights that are all 0, which order nothing.
    fn read(self) -> Result<Option<Weights>, ApiError> {
        let default = Weights::default();
        let weights = Weights {
            semantic: self.semantic.unwrap_or(default.semantic),
            recency: self.recency.unwrap_or(default.recency),
            recency_half_life_days: self.recency_half_life_days.unwrap_or(default.recency_half_life_days),
            importance: self.importance.unwrap_or(default.importance),
        };
        let parts = [weights.semantic, weights.recency, weights.importance];
        let are_good = parts.iter().all(|weight| (0.0..=1_000.0).contains(weight));
        if !are_good || !(0.01..=36_500.0).contains(&weights.recency_half_life_days) {
            let why = "`scoring_weights` are from 0 to 1000, with a half-life of 0.01 to 36500 days";
            return Err(ApiError::bad(why));
        }
        Ok((parts.iter().sum::<f32>() > 0.0).then_some(weights))
    }
}

/// A recall request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RecallInput {
    /// Text to search for, in the user's words.
    query: String,
    /// Project to search; the SDK calls it `namespace`. Default: the shared pool of no project.
    #[serde(alias = "namespace")]
    project: Option<String>,
    /// Session that asks; its own project applies.
    session: Option<String>,
    /// Persona that asks. Default: the session's persona; any other sees nothing.
    persona: Option<String>,
    /// `full`, `neutral_and_relationship` (default), `relationship_only`, `neutral_only`, `insights_only` or
    /// `none`.
    #[schema(value_type = Option<String>)]
    memory_scope: Option<MemoryScope>,
    /// Most results, up to 200. Default: 6.
    limit: Option<usize>,
    /// Minimum score, 0 to 1.
    threshold: Option<f32>,
    /// Only memories below this distance.
    max_distance: Option<f32>,
    /// Most tokens of all results together.
    budget_tokens: Option<u32>,
    #[serde(default)]
    filters: FilterInput,
    scoring_weights: Option<ScoringWeights>,
    /// `relevance` (default), or `recent`: the most relevant memories, newest first.
    sort: Option<String>,
}

pub(super) async fn recall(call: Call, input: RecallInput) -> Result<RecallAnswer, ApiError> {
    let by_time = match input.sort.as_deref() {
        None | Some("relevance") => false,
        Some("recent") => true,
        Some(_) => return Err(ApiError::bad("`sort` is `relevance` or `recent`")),
    };
    if input.threshold.is_some_and(|least| !(0.0..=1.0).contains(&least)) {
        return Err(ApiError::bad("`threshold` is from 0 to 1"));
    }
    let request = RecallRequest {
        place: call.caller.place(input.project, input.session, input.persona)?,
        scope: input.memory_scope.unwrap_or_default(),
        query: input.query.into(),
        limit: limit(input.limit, DEFAULT_HITS)?,
        threshold: input.threshold,
        budget_tokens: input.budget_tokens,
        filters: call.caller.filters(input.filters.read()?),
        weights: input.scoring_weights.map(ScoringWeights::read).transpose()?.flatten(),
    };
    let mut found = search(&call, request).await?;
    if let Some(most) = input.max_distance {
        found.hits.retain(|hit| distance(hit) < most);
    }
    if by_time {
        found.hits.sort_by_key(|hit| std::cmp::Reverse(hit.view.time_ms));
    }
    Ok(found.into())
}

async fn search(call: &Call, request: RecallRequest) -> Result<Recall, ApiError> {
    not_blank("query", &request.query)?;
    if request.query.len() > MAX_QUERY_BYTES {
        return Err(ApiError::bad(format!("a query has at most {MAX_QUERY_BYTES} bytes")));
    }
    Ok(call.memory().recall(call.owner(), request).await)
}

fn limit(requested: Option<usize>, default: usize) -> Result<usize, ApiError> {
    match requested.unwrap_or(default) {
        0 => Err(ApiError::bad("`limit` is at least 1")),
        limit => Ok(limit.min(MAX_PAGE)),
    }
}

/// A question to answer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Ask {
    question: String,
    /// Most memories to answer from, up to 200. Default: 5.
    limit: Option<usize>,
    /// Project; the SDK calls it `namespace`. Default: the shared pool.
    #[serde(alias = "namespace")]
    project: Option<String>,
}

/// An answer with its source memories.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Answer)]
pub(super) struct AskAnswer {
    answer: String,
    memories_used: usize,
    memories: Vec<RecallHit>,
}

pub(super) async fn ask(call: Call, input: Ask) -> Result<AskAnswer, ApiError> {
    let question = baton_memory::model::Text(input.question);
    let request = RecallRequest {
        place: call.caller.place(input.project, None, None)?,
        query: question.clone(),
        limit: limit(input.limit, DEFAULT_ASKED)?,
        filters: call.caller.filters(Filters::default()),
        ..RecallRequest::default()
    };
    let found = search(&call, request).await?;
    let recalled: Vec<RecalledItem> = found
        .hits
        .iter()
        .map(|hit| RecalledItem { from: hit.view.source(), text: hit.view.text.clone() })
        .collect();
    let memories: Vec<RecallHit> = found.hits.into_iter().map(RecallHit::from).collect();
    let with_memories = |error: ApiError, memories: &[RecallHit]| error.with("memories", json!(memories));
    let Some(writer) = &call.app.inner.config.writer else {
        return Err(with_memories(ApiError::new(NO_MODEL), &memories));
    };
    let budgets = &call.app.inner.config.budgets;
    budgets.check_model_call(call.owner()).map_err(|spent| with_memories(spent.into(), &memories))?;
    let writer = writer.for_owner(call.owner());
    match writer.answer(&question, &recalled).await {
        Ok(mut answer) => {
            Ok(AskAnswer { answer: std::mem::take(&mut answer.0), memories_used: memories.len(), memories })
        }
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
#[serde(deny_unknown_fields)]
pub(super) struct Embed {
    /// Text, at most 64 KiB.
    text: String,
}

/// An embedding vector.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Embedded)]
pub(super) struct EmbedReply {
    vector: Vec<f32>,
    /// Id of the model.
    model: String,
}

pub(super) async fn embed(call: Call, input: Embed) -> Result<EmbedReply, ApiError> {
    not_blank("text", &input.text)?;
    if input.text.len() > MAX_ANALYZE_BYTES {
        return Err(ApiError::bad(format!("`text` has at most {MAX_ANALYZE_BYTES} bytes")));
    }
    let embedder = &call.app.inner.config.embedder;
    let unavailable = |error: Option<EmbedError>| {
        tracing::warn!(error = error.map(|error| error.to_string()), "a text was not embedded");
        ApiError::new(UNAVAILABLE).saying("the embedder did not answer").after_ms(5_000)
    };
    let vectors = embedder.embed(EmbedRole::Document, &[&input.text]).await;
    let vector = vectors.map_err(|error| unavailable(Some(error)))?.pop().ok_or_else(|| unavailable(None))?;
    Ok(EmbedReply { vector, model: embedder.id().to_owned() })
}

pub(super) async fn no_manual(_: Call, _: NoInput) -> Result<NoAnswer, ApiError> {
    Err(ApiError::new(UNSUPPORTED)
        .saying(
            "there is no manual mode: a memory sealed by the client has no keywords and no graph, and a vector of the \
             client's own model cannot be compared with the relayer's",
        )
        .hinting("use /api/remember and /api/recall; contents are sealed at rest under the owner's keys"))
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
        assert!(weights(1.0, 0.5, 30.0).read().unwrap().is_some());
        assert!(weights(0.0, 0.0, 0.01).read().unwrap().is_none());
        for bad in [
            weights(-1.0, 2.0, 30.0),
            weights(f32::NAN, 1.0, 30.0),
            weights(1.0, f32::INFINITY, 30.0),
            weights(1.0, 1.0, 0.0),
            weights(1.0, 1.0, f32::NAN),
        ] {
            assert!(bad.read().is_err(), "{bad:?}");
        }
        assert!(limit(Some(0), 10).is_err());
        assert_eq!(limit(Some(usize::MAX), 10).unwrap(), MAX_PAGE);
    }
}
