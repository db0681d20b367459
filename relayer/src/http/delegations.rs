//! The owner's delegations: register, list, revoke.

use baton_keys::ids::PublicKey;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    ApiError,
    api_error::CONFLICT,
    operation::{Call, NoInput},
    shapes::Count,
};
use crate::{
    delegation::{DelegationJson, registry::DelegationEntry},
    time,
};

/// A delegation known to the relayer.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct KnownJson {
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
pub(super) struct KnownList {
    /// Delegations, oldest first.
    delegations: Vec<KnownJson>,
}

pub(super) async fn register(call: Call, json: DelegationJson) -> Result<Count, ApiError> {
    call.caller.unbound()?;
    let signed = json.verify().map_err(|error| ApiError::bad(error.to_string()))?;
    if signed.delegation.owner != call.owner() {
        return Err(ApiError::bad("the delegation is another owner's"));
    }
    if !call.app.registry().is_for_here(&signed.delegation) {
        return Err(ApiError::bad("the delegation is for another relayer"));
    }
    let now_ms = call.app.now_ms();
    if signed.delegation.expires_s <= now_ms / 1_000 {
        return Err(ApiError::bad("the delegation has expired"));
    }
    match call.app.registry().register(signed, now_ms).await? {
        true => Ok(Count { count: 1 }),
        false => {
            Err(ApiError::new(CONFLICT).saying("the delegation was taken back").hinting("sign another one"))
        }
    }
}

pub(super) async fn list(call: Call, _: NoInput) -> Result<KnownList, ApiError> {
    call.caller.unbound()?;
    let known = call.app.registry().list(call.owner()).await?;
    Ok(KnownList { delegations: known.into_iter().map(KnownJson::from).collect() })
}

/// The delegate.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RevokeQuery {
    /// The delegate's public key, 64 hex characters. Required to revoke a delegation that the relayer has
    /// never seen.
    key: Option<String>,
}

pub(super) async fn revoke(call: Call, query: RevokeQuery) -> Result<Count, ApiError> {
    call.caller.unbound()?;
    let mut bytes = [0; 16];
    hex::decode_to_slice(&call.target, &mut bytes).map_err(|_| ApiError::missing("delegation"))?;
    let key = query.key.as_deref().map(PublicKey::parse_hex).transpose();
    let key = key.map_err(|_| ApiError::bad("`key` has 64 hex characters"))?;
    match call.app.registry().revoke(call.owner(), bytes, key, call.app.now_ms()).await? {
        true => Ok(Count { count: 1 }),
        false => Err(ApiError::missing("delegation")),
    }
}
