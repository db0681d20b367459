//! `/mcp`: memory's tools for agents, over streamable HTTP without sessions. The relayer runs the tools; this
//! endpoint signs each message for the owner's account.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, StatusCode, header},
    response::{IntoResponse, Response},
};

use crate::{http::api_error::ApiError, keys::Caller, state::Gateway};

/// The header with the protocol's version.
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// Longest version: a date.
const MAX_VERSION_BYTES: usize = 32;

/// Hands a message to memory's tools.
pub(crate) async fn answer(gateway: Gateway, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    if matches!(gateway.caller, Caller::Key(_)) {
        let message = "this address is for the owner's key; a key with a name does not reach it";
        return Err(ApiError::new("owner_only", message));
    }
    let Some(memory) = gateway.config().memory.clone() else {
        let message =
            "this endpoint has no memory; baton serve --memory --relayer https://HOST has its tools";
        return Err(ApiError::new("no_memory", message));
    };
    let version = headers.get(VERSION).and_then(|version| version.to_str().ok());
    let version = version.filter(|version| version.len() <= MAX_VERSION_BYTES);
    let (_slot, body) = gateway.read(body).await?;
    let message = std::str::from_utf8(&body)
        .map_err(|_| ApiError::request("invalid_body", "", "a message is JSON in UTF-8"))?;
    match memory.answer_agent(message, version).await {
        Ok(Some(answer)) => Ok(([(header::CONTENT_TYPE, "application/json")], answer).into_response()),
        Ok(None) => Ok(StatusCode::ACCEPTED.into_response()),
        Err(reason) => Err(ApiError::new("relayer_failed", reason)),
    }
}
