//! Portability and erasure: export, import, quota, and the deletion of an owner.

use axum::{
    Json,
    body::Body,
    extract::State,
    http::header::{CONTENT_DISPOSITION, CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use baton_memory::{ids::OwnerId, model::Text};
use bytes::Bytes;
use futures::stream;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Admin, ApiError, ApiErrorJson, AppState, Input, Params, Reader, api_error::CONFLICT, places::PlaceQuery,
    sdk::Quota, shapes::Count,
};

/// Longest line of an import: the longest item, with JSON escapes and its other fields.
const MAX_LINE_BYTES: usize = 4 * 1024 * 1024;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(export))
        .routes(routes!(import))
        .routes(routes!(quota))
        .routes(routes!(erase))
}

/// Exports all memory of the owner, or of one project or session, as JSON lines.
///
/// The lines are a header, the places and items, and a signature over all lines before it. An export of one
/// place names no other place. A delegate gets intimate items only with the scope `intimate`.
#[utoipa::path(get, path = "/v1/memory/export", tag = "owner", params(PlaceQuery),
    responses((status = 200, body = String, content_type = "application/x-ndjson"), (status = 403, body = ApiErrorJson),
        (status = 404, body = ApiErrorJson)))]
async fn export(
    State(app): State<AppState>,
    Admin(caller): Admin,
    Params(query): Params<PlaceQuery>,
) -> Result<Response, ApiError> {
    let everything = query.is_empty() && caller.bound_to().is_none();
    let place = if everything { None } else { Some(query.read(&caller)?) };
    let export = app.memory().export(caller.owner, place, caller.sees_intimate()).await?;
    let lines = export.lines.into_iter().map(|mut line| {
        let mut line = std::mem::take(&mut line.0);
        line.push('\n');
        Ok::<_, std::convert::Infallible>(Bytes::from(line))
    });
    let headers = [
        (CONTENT_TYPE, "application/x-ndjson"),
        (CONTENT_DISPOSITION, "attachment; filename=\"memory.jsonl\""),
    ];
    Ok((headers, Body::from_stream(stream::iter(lines))).into_response())
}

/// The result of an import.
#[derive(Debug, Serialize, ToSchema)]
struct ImportedJson {
    added: u64,
    skipped: u64,
}

/// Imports the lines of an export; existing items are skipped.
///
/// Items keep their authors if the owner's key of this relayer signed the export, or if it ends with the
/// account's own line. That line is `{"endorsement":{"public_key":…,"signature":…}}`, signed over the BLAKE3
/// of all lines before it.
#[utoipa::path(post, path = "/v1/memory/import", tag = "owner",
    request_body(content = String, content_type = "application/x-ndjson"),
    responses((status = 200, body = ImportedJson), (status = 400, body = ApiErrorJson)))]
async fn import(
    State(app): State<AppState>,
    Admin(caller): Admin,
    body: Bytes,
) -> Result<Json<ImportedJson>, ApiError> {
    caller.unbound()?;
    let text = std::str::from_utf8(&body).map_err(|_| ApiError::bad("the body is not UTF-8"))?;
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.iter().any(|line| line.len() > MAX_LINE_BYTES) {
        return Err(ApiError::bad(format!("a line of an import has at most {MAX_LINE_BYTES} bytes")));
    }
    let lines: Vec<Text> = lines.into_iter().map(Text::from).collect();
    let imported = app.memory().import(caller.owner, lines).await?;
    Ok(Json(ImportedJson { added: imported.added, skipped: imported.skipped }))
}

/// Returns the owner's limits, and the number of items left.
#[utoipa::path(get, path = "/v1/memory/quota", tag = "owner", responses((status = 200, body = Quota)))]
async fn quota(State(app): State<AppState>, Reader(caller): Reader) -> Result<Json<Quota>, ApiError> {
    Ok(Json(Quota::of(&app, &app.memory().stats(caller.owner).await?)))
}

/// The owner's confirmation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct EraseInput {
    /// The account id again.
    confirm: String,
}

/// Deletes the owner with all memory and keys; no copy of the database can be read afterwards.
///
/// Only the account key itself may do it.
#[utoipa::path(delete, path = "/v1/memory/owner", tag = "owner", request_body = EraseInput,
    responses((status = 200, body = Count), (status = 403, body = ApiErrorJson)))]
async fn erase(
    State(app): State<AppState>,
    Admin(caller): Admin,
    Input(input): Input<EraseInput>,
) -> Result<Json<Count>, ApiError> {
    if !caller.is_owner() {
        return Err(ApiError::owner_only());
    }
    let why = "`confirm` is the account id whose memory is to be erased";
    let confirmed: OwnerId = input.confirm.parse().map_err(|_| ApiError::bad(why))?;
    if confirmed != caller.owner {
        return Err(ApiError::new(CONFLICT).saying(why));
    }
    app.memory().erase_owner(caller.owner).await?;
    Ok(Json(Count { count: 1 }))
}
