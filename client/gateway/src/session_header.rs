//! The header that names a session, in requests and in responses.

use axum::{
    http::{HeaderName, HeaderValue},
    response::Response,
};
use baton_proto::ids::SessionId;

/// Its name.
pub(super) static SESSION: HeaderName = HeaderName::from_static("x-baton-session");

/// Names the session in a response.
pub(super) fn name_session(response: &mut Response, session: SessionId) {
    if let Ok(value) = HeaderValue::from_str(&session.to_string()) {
        response.headers_mut().insert(SESSION.clone(), value);
    }
}
