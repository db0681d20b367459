//! The owner's delegations: register, list, revoke.

use baton_proto::{ids::RightId, right::RightChain};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    ApiError,
    api_error::CONFLICT,
    operation::{Call, NoInput},
    shapes::Count,
};
use crate::delegation::refusal_reason;

/// A delegation to register.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RegisterInput {
    /// The text of the delegation, which begins with `baton-right-1:`.
    delegation: String,
}

/// A delegation known to the relayer.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct KnownJson {
    id: String,
    /// The text of the delegation; null if it was revoked.
    delegation: Option<String>,
}

/// Delegations.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct KnownList {
    /// Delegations, oldest first, and then the revoked ones.
    delegations: Vec<KnownJson>,
}

pub(super) async fn register(call: Call, input: RegisterInput) -> Result<Count, ApiError> {
    call.caller.unbound()?;
    let chain: RightChain = input
        .delegation
        .parse()
        .map_err(|code| ApiError::bad(format!("the delegation {}", refusal_reason(code))))?;
    match call.app.registry().register(call.owner(), &chain, call.app.now_ms()).await? {
        true => Ok(Count { count: 1 }),
        false => {
            Err(ApiError::new(CONFLICT).saying("the delegation was taken back").hinting("sign another one"))
        }
    }
}

pub(super) async fn list(call: Call, _: NoInput) -> Result<KnownList, ApiError> {
    call.caller.unbound()?;
    let rights = call.app.registry().list(call.owner(), call.app.now_ms()).await?;
    let delegations = rights.chains().filter(|chain| chain.last().memory().is_some());
    let delegations = delegations
        .map(|chain| KnownJson { id: chain.last().id.to_string(), delegation: Some(chain.to_string()) });
    let revoked = rights.revoked.iter().map(|right| KnownJson { id: right.id.to_string(), delegation: None });
    Ok(KnownList { delegations: delegations.chain(revoked).collect() })
}

pub(super) async fn revoke(call: Call, _: NoInput) -> Result<Count, ApiError> {
    call.caller.unbound()?;
    let id = RightId::parse_hex(&call.target).map_err(|_| ApiError::missing("delegation"))?;
    let changed = call.app.registry().revoke(call.owner(), id, call.app.now_ms()).await?;
    Ok(Count { count: changed.into() })
}
