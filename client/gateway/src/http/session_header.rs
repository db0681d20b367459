//! The header that names a session, in requests and in responses.

use axum::{
    http::{HeaderMap, HeaderName, HeaderValue},
    response::Response,
};
use baton_proto::ids::SessionId;

use crate::http::api_error::ApiError;

/// Its name.
static SESSION: HeaderName = HeaderName::from_static("x-baton-session");

/// The session that a request names.
pub(crate) fn named_session(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let name = headers.get(&SESSION).map(|name| name.to_str().map(str::to_owned)).transpose();
    name.map_err(|_| ApiError::value("session", "x-baton-session is not text"))
}

/// Names the session in a response.
pub(crate) fn name_session(response: &mut Response, session: SessionId) {
    if let Ok(value) = HeaderValue::from_str(&session.to_string()) {
        response.headers_mut().insert(SESSION.clone(), value);
    }
}
