//! `/api/memory`: the memories of a caller, to see, edit and forget. The relayer has them; a key with a name
//! reaches those of its own project alone.

use std::sync::Arc;

use axum::{Json, body::Body, extract::Path};
use baton_proto::text::is_same_name;
use serde_json::{Value, json};

use crate::{
    form::fields::BodyFields,
    http::api_error::ApiError,
    memory::{GatewayMemory, MemoryFailure, MemoryFilter},
    state::Gateway,
};

/// Most bytes of a query; the relayer takes no longer one.
const MAX_QUERY_BYTES: usize = 4096;

/// The memories that a filter leaves, newest first.
pub(crate) async fn list(gateway: Gateway, input: BodyFields) -> Result<Json<Value>, ApiError> {
    let items = memory_of(&gateway)?.list(&filter(&gateway, input)?).await?;
    Ok(Json(json!({ "items": items })))
}

/// Replaces the text of a memory.
pub(crate) async fn edit(
    gateway: Gateway,
    Path(id): Path<String>,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let (_slot, body) = gateway.read(body).await?;
    let text = BodyFields::of_body(&body)?.some_text("text")?;
    if text.trim().is_empty() {
        return Err(ApiError::value("text", "a memory needs words"));
    }
    let item = memory_of(&gateway)?.edit(gateway.caller.project(), &id, &text).await?;
    Ok(Json(json!(item)))
}

/// Deletes a memory for good.
pub(crate) async fn delete(gateway: Gateway, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    memory_of(&gateway)?.delete(gateway.caller.project(), &id).await?;
    Ok(Json(json!({ "deleted": 1 })))
}

/// Deletes all memories of a kind or project for good. A key with a name may name neither: it means its project.
pub(crate) async fn delete_all(gateway: Gateway, input: BodyFields) -> Result<Json<Value>, ApiError> {
    let memory = memory_of(&gateway)?;
    let filter = filter(&gateway, input)?;
    if filter.query.is_some() {
        return Err(ApiError::value(
            "query",
            "a deletion takes a kind and a project; delete what a query finds by id",
        ));
    }
    if filter.project.is_none() && filter.kind.is_none() {
        return Err(ApiError::value("project", "name a project or a kind to delete"));
    }
    Ok(Json(json!({ "deleted": memory.delete_all(&filter).await? })))
}

/// The memory that a caller may see.
fn memory_of(gateway: &Gateway) -> Result<Arc<dyn GatewayMemory>, ApiError> {
    let memory = gateway.config().memory.clone().filter(|_| gateway.caller.may_use_memory());
    memory.ok_or_else(|| ApiError::new("no_memory", "this endpoint, or this key, has no memory"))
}

fn filter(gateway: &Gateway, mut input: BodyFields) -> Result<MemoryFilter, ApiError> {
    let (query, kind) = (input.text("query")?, input.text("kind")?);
    if query.as_ref().is_some_and(|query| query.len() > MAX_QUERY_BYTES) {
        return Err(ApiError::value("query", format!("query has at most {MAX_QUERY_BYTES} bytes")));
    }
    let given = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
    let (named, own) = (given(input.text("project")?), gateway.caller.project());
    if let (Some(named), Some(own)) = (&named, own)
        && !is_same_name(named, own)
    {
        return Err(ApiError::value("project", "this key sees the memories of its own project alone"));
    }
    let project = own.map(str::to_owned).or(named);
    Ok(MemoryFilter { project, query: given(query), kind: given(kind) })
}

impl From<MemoryFailure> for ApiError {
    fn from(failure: MemoryFailure) -> Self {
        match failure {
            MemoryFailure::Unknown => Self::new("memory_not_found", "there is no such memory"),
            MemoryFailure::Refused(reason) => Self::new("relayer_failed", reason),
        }
    }
}
