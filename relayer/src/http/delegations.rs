//! The owner's delegations: register, list, revoke.

use axum::{Json, extract::State};
use baton_keys::ids::PublicKey;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Admin, ApiError, ApiErrorJson, AppState, Input, Params, api_error::CONFLICT, extract::PathName,
    shapes::Count,
};
use crate::delegation::{DelegationJson, registry::DelegationEntry};
use crate::time;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(register, list)).routes(routes!(revoke))
}

/// A delegation known to the relayer.
#[derive(Debug, Serialize, ToSchema)]
struct KnownJson {
    id: String,
    /// The delegation; null if it was revoked before the relayer saw it.
    delegation: Option<DelegationJson>,
    revoked: bool,
    /// When the relayer first knew of it, RFC 3339.
    since: String,
}

impl From<DelegationEntry> for KnownJson {
    fn from(known: DelegationEntry) -> Self {
        Self {
            id: hex::encode(known.id),
            delegation: known.signed.as_ref().map(DelegationJson::from),
            revoked: known.revoked,
            since: time::format(known.since_ms),
        }
    }
}

/// Delegations.
#[derive(Debug, Serialize, ToSchema)]
struct KnownList {
    /// Delegations, oldest first.
    delegations: Vec<KnownJson>,
}

/// Registers a delegation that the owner signed; its key then needs no x-delegation header.
#[utoipa::path(post, path = "/api/delegations", tag = "delegations", request_body = DelegationJson,
    responses((status = 200, body = Count), (status = 400, body = ApiErrorJson), (status = 409, body = ApiErrorJson)))]
async fn register(
    State(app): State<AppState>,
    Admin(caller): Admin,
    Input(json): Input<DelegationJson>,
) -> Result<Json<Count>, ApiError> {
    caller.unbound()?;
    let signed = json.verify().map_err(|error| ApiError::bad(error.to_string()))?;
    if signed.delegation.owner != caller.owner {
        return Err(ApiError::bad("the delegation is another owner's"));
    }
    if !app.registry().is_for_here(&signed.delegation) {
        return Err(ApiError::bad("the delegation is for another relayer"));
    }
    let now_ms = app.now_ms();
    if signed.delegation.expires_s <= now_ms / 1_000 {
        return Err(ApiError::bad("the delegation has expired"));
    }
    match app.registry().register(signed, now_ms).await? {
        true => Ok(Json(Count { count: 1 })),
        false => {
            Err(ApiError::new(CONFLICT).saying("the delegation was taken back").hinting("sign another one"))
        }
    }
}

/// Lists the owner's delegations known to the relayer.
#[utoipa::path(get, path = "/api/delegations", tag = "delegations", responses((status = 200, body = KnownList)))]
async fn list(State(app): State<AppState>, Admin(caller): Admin) -> Result<Json<KnownList>, ApiError> {
    caller.unbound()?;
    let known = app.registry().list(caller.owner).await?;
    Ok(Json(KnownList { delegations: known.into_iter().map(KnownJson::from).collect() }))
}

/// The delegate.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RevokeQuery {
    /// The delegate's public key, 64 hex characters. Required to revoke a delegation that the relayer has
    /// never seen.
    key: Option<String>,
}

/// Revokes a delegation, immediately and permanently.
#[utoipa::path(delete, path = "/api/delegations/{id}", tag = "delegations",
    params(("id" = String, Path), RevokeQuery),
    responses((status = 200, body = Count), (status = 404, body = ApiErrorJson)))]
async fn revoke(
    State(app): State<AppState>,
    Admin(caller): Admin,
    PathName(id): PathName<String>,
    Params(query): Params<RevokeQuery>,
) -> Result<Json<Count>, ApiError> {
    caller.unbound()?;
    let mut bytes = [0; 16];
    hex::decode_to_slice(&id, &mut bytes).map_err(|_| ApiError::missing("delegation"))?;
    let key = query.key.as_deref().map(PublicKey::parse_hex).transpose();
    let key = key.map_err(|_| ApiError::bad("`key` has 64 hex characters"))?;
    match app.registry().revoke(caller.owner, bytes, key, app.now_ms()).await? {
        true => Ok(Json(Count { count: 1 })),
        false => Err(ApiError::missing("delegation")),
    }
}
