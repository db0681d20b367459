//! The caller of a request, and its rights: which sessions it sees, and how much it may use.

use std::sync::Arc;

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, HeaderName, HeaderValue, request::Parts},
};
use baton_client::{ClientError, SessionHandle};
use baton_proto::{ids::SessionId, text::is_same_place};

use super::{
    NamedKey,
    accounts::Charge,
    usage::{SpentQuota, TokenEstimate},
};
use crate::{ApiError, Gateway, GatewayState, Inner};

/// The caller of a request.
#[derive(Debug, Clone, Default)]
pub(crate) enum Caller {
    /// The home's owner, who sees every session and has no quota.
    #[default]
    Owner,
    /// A program with a key that has a name.
    Key(Arc<NamedKey>),
}

impl Caller {
    /// The project whose sessions it sees; none for all.
    pub(crate) fn project(&self) -> Option<&str> {
        match self {
            Self::Owner => None,
            Self::Key(key) => Some(&key.project),
        }
    }

    /// Whether it may use memory, where the endpoint has any.
    pub(crate) fn may_use_memory(&self) -> bool {
        match self {
            Self::Owner => true,
            Self::Key(key) => key.memory,
        }
    }
}

/// A handler gets the endpoint with the rights of its caller. Without an admitted caller there is none.
impl FromRequestParts<GatewayState> for Gateway {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &GatewayState) -> Result<Self, ApiError> {
        let caller = parts.extensions.get::<Caller>().cloned().ok_or_else(ApiError::key)?;
        Ok(Self { inner: state.clone(), caller })
    }
}

impl Gateway {
    /// A session that the caller may see.
    pub(crate) async fn session(&self, id: SessionId) -> Result<SessionHandle, ApiError> {
        let handle = self.client().session(id);
        if let Some(project) = self.caller.project()
            && !is_same_place(handle.conversation().await?.project.as_deref(), Some(project))
        {
            return Err(ClientError::UnknownSession(id.to_string()).into());
        }
        Ok(handle)
    }

    /// Counts a request of the caller's key as it comes. The owner's are not counted.
    pub(crate) fn count_request(&self) -> Result<(), ApiError> {
        let (Caller::Key(key), Some(keys)) = (&self.caller, &self.config().keys) else { return Ok(()) };
        keys.count_request(key, self.now_s()).map_err(|spent| ApiError::quota(&key.name, spent))
    }

    /// Takes back a counted request that was refused for want of a slot.
    pub(crate) fn uncount_request(&self) {
        if let (Caller::Key(key), Some(keys)) = (&self.caller, &self.config().keys) {
            keys.uncount_request(&key.name, self.now_s());
        }
    }

    /// Holds tokens of the caller's key for a request; none for the owner.
    pub(crate) fn hold_tokens(&self, wanted: TokenEstimate) -> Result<Option<Charge>, ApiError> {
        let (Caller::Key(key), Some(keys)) = (&self.caller, &self.config().keys) else { return Ok(None) };
        let charge = keys.hold(key, wanted, self.now_s());
        charge.map(Some).map_err(|spent| ApiError::quota(&key.name, spent))
    }

    /// The present time, in seconds since the Unix epoch.
    pub(crate) fn now_s(&self) -> u64 {
        self.client().now_ms() / 1000
    }
}

/// Names the rest of a key's quotas in the headers of a response, as OpenAI's API does.
pub(crate) fn name_quotas(headers: &mut HeaderMap, inner: &Inner, caller: &Caller) {
    let (Caller::Key(key), Some(keys)) = (caller, &inner.config.keys) else { return };
    let rest = keys.rest(key, inner.client.now_ms() / 1000);
    let quotas = [
        ("requests", key.quotas.requests_per_hour, rest.requests, rest.next_hour_s),
        ("tokens", key.quotas.tokens_per_day, rest.tokens, rest.next_day_s),
    ];
    for (kind, limit, rest, reset_s) in quotas {
        let (Some(limit), Some(rest)) = (limit, rest) else { continue };
        let values =
            [("limit", limit.to_string()), ("remaining", rest.to_string()), ("reset", format!("{reset_s}s"))];
        for (part, value) in values {
            let name = HeaderName::try_from(format!("x-ratelimit-{part}-{kind}"));
            if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value)) {
                headers.insert(name, value);
            }
        }
    }
}

impl SpentQuota {
    /// Seconds until the quota begins anew.
    pub(crate) fn wait_s(self) -> u64 {
        match self {
            Self::Requests { wait_s, .. } | Self::Tokens { wait_s, .. } => wait_s,
        }
    }
}
