//! The owner's decisions on how its memory is written.

use axum::{Json, extract::State};
use baton_memory::api::{OwnerSettings, SettingsView, WrittenBy};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{Admin, ApiError, ApiErrorJson, AppState, Input, Reader};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(get, put))
}

/// The owner's settings.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SettingsInput {
    /// Whether third-party nodes may read exchanges, to extract memories from them. They see the words, but
    /// not the owner. They see no passwords and nothing off the record.
    extract_through_nodes: bool,
}

/// The owner's settings, and their effect here.
#[derive(Debug, Serialize, ToSchema)]
struct SettingsJson {
    /// Whether the owner allows it. Default: false.
    extract_through_nodes: bool,
    /// Whether this relayer's operator offers nodes.
    nodes_offered: bool,
    /// Current extractor of memories: `rules`, `endpoint` (rules and the operator's model) or `nodes` (rules
    /// and a model on third-party nodes).
    #[schema(value_type = String)]
    written_by: WrittenBy,
}

impl From<SettingsView> for SettingsJson {
    fn from(view: SettingsView) -> Self {
        Self {
            extract_through_nodes: view.settings.extract_through_nodes,
            nodes_offered: view.nodes_offered,
            written_by: view.written_by,
        }
    }
}

/// Returns the owner's settings.
#[utoipa::path(get, path = "/v1/memory/settings", tag = "owner",
    responses((status = 200, body = SettingsJson), (status = 403, body = ApiErrorJson)))]
async fn get(State(app): State<AppState>, Reader(caller): Reader) -> Result<Json<SettingsJson>, ApiError> {
    caller.unbound()?;
    Ok(Json(app.memory().settings(caller.owner).await?.into()))
}

/// Changes the owner's settings, from the next exchange on.
#[utoipa::path(put, path = "/v1/memory/settings", tag = "owner", request_body = SettingsInput,
    responses((status = 200, body = SettingsJson), (status = 400, body = ApiErrorJson), (status = 403, body = ApiErrorJson)))]
async fn put(
    State(app): State<AppState>,
    Admin(caller): Admin,
    Input(input): Input<SettingsInput>,
) -> Result<Json<SettingsJson>, ApiError> {
    caller.unbound()?;
    let settings = OwnerSettings { extract_through_nodes: input.extract_through_nodes };
    Ok(Json(app.memory().change_settings(caller.owner, settings).await?.into()))
}
