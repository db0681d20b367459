//! The owner's decisions on how its memory is written.

use axum::{Json, extract::State};
use baton_memory::api::{OwnerSettings, SettingsView, WrittenBy};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{Admin, Doors, Fault, FaultJson, Input, Reader};

pub(super) fn routes() -> OpenApiRouter<Doors> {
    OpenApiRouter::new().routes(routes!(get, put))
}

/// Decisions of the owner.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SettingsInput {
    /// Whether nodes of strangers may read exchanges, to find out what to keep of them. They see the words, and not whose
    /// they are; passwords and what is off the record is not shown to them.
    extract_through_nodes: bool,
}

/// Decisions of the owner, and what follows from them here.
#[derive(Debug, Serialize, ToSchema)]
struct SettingsJson {
    /// No unless the owner said yes.
    extract_through_nodes: bool,
    /// Whether this relayer's operator offers nodes at all.
    nodes_offered: bool,
    /// What finds out now what to keep of an exchange: `rules`, `endpoint` (rules and the operator's model) or `nodes` (rules
    /// and a model on nodes of strangers).
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

/// What the owner decided.
#[utoipa::path(get, path = "/v1/memory/settings", tag = "owner",
    responses((status = 200, body = SettingsJson), (status = 403, body = FaultJson)))]
async fn get(State(doors): State<Doors>, Reader(caller): Reader) -> Result<Json<SettingsJson>, Fault> {
    caller.unbound()?;
    Ok(Json(doors.memory().settings(caller.owner).await?.into()))
}

/// Decides anew, from the next exchange on.
#[utoipa::path(put, path = "/v1/memory/settings", tag = "owner", request_body = SettingsInput,
    responses((status = 200, body = SettingsJson), (status = 400, body = FaultJson), (status = 403, body = FaultJson)))]
async fn put(
    State(doors): State<Doors>,
    Admin(caller): Admin,
    Input(input): Input<SettingsInput>,
) -> Result<Json<SettingsJson>, Fault> {
    caller.unbound()?;
    let settings = OwnerSettings { extract_through_nodes: input.extract_through_nodes };
    Ok(Json(doors.memory().change_settings(caller.owner, settings).await?.into()))
}
