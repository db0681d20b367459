//! The invitation of an owner: presented once, kept by the relayer.

use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{Admin, ApiError, ApiErrorJson, AppState, Input};
use crate::time;

/// The route. The gate lets owners pass to it that are not admitted yet.
pub(super) const PATH: &str = "/v1/memory/invitation";

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(redeem))
}

/// An invitation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Invitation {
    /// The operator's line, which begins with `baton-quota-1:`.
    invitation: String,
}

/// The invited owner.
#[derive(Debug, Serialize, ToSchema)]
struct InvitedOwner {
    /// The account id.
    owner: String,
    /// Until when the invitation counts, RFC 3339.
    until: String,
}

/// Keeps the invitation of the signing account, which is served from then on.
#[utoipa::path(post, path = "/v1/memory/invitation", tag = "owners", request_body = Invitation,
    responses((status = 200, body = InvitedOwner), (status = 400, body = ApiErrorJson), (status = 503, body = ApiErrorJson)))]
async fn redeem(
    State(app): State<AppState>,
    Admin(caller): Admin,
    Input(request): Input<Invitation>,
) -> Result<Json<InvitedOwner>, ApiError> {
    if !caller.is_owner() {
        return Err(ApiError::owner_only());
    }
    let records = app.registry().records();
    let until_ms = app.inner.owners.redeem(caller.owner, &request.invitation, records, app.now_ms()).await?;
    Ok(Json(InvitedOwner { owner: caller.owner.to_string(), until: time::format(until_ms) }))
}
