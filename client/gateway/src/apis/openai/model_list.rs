//! `/v1/models`, which OpenAI's and Anthropic's clients ask alike.

use axum::{Json, extract::Path, http::HeaderMap};
use serde_json::{Value, json};

use crate::{apis::anthropic, http::api_error::ApiError, models, state::Gateway};

/// The list, in the form of the API that asks.
pub(crate) async fn list(gateway: Gateway, headers: HeaderMap) -> Result<Json<Value>, ApiError> {
    let models = models::offered(&gateway).await?;
    if anthropic::is_client(&headers) {
        return Ok(Json(anthropic::list(&models)));
    }
    let data: Vec<Value> = models.iter().map(|(name, entry)| entry.describe(name)).collect();
    Ok(Json(json!({ "object": "list", "data": data })))
}

/// One model by its name.
pub(crate) async fn one(
    gateway: Gateway,
    headers: HeaderMap,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let entry = models::find(&gateway, &name).await?;
    let own = anthropic::is_client(&headers);
    Ok(Json(if own { anthropic::describe(&name, &entry) } else { entry.describe(&name) }))
}
