//! `/openapi.json`: the OpenAPI document of all routes. It tells nothing of this home, so it needs no key.

use axum::{
    http::header,
    response::{IntoResponse, Response},
};

/// The document, with a place for the version.
const DOCUMENT: &str = include_str!("openapi.json");

/// Serves the document.
pub(crate) async fn show() -> Response {
    let version = format!("\"version\": {:?}", env!("CARGO_PKG_VERSION"));
    let document = DOCUMENT.replacen("\"version\": \"0\"", &version, 1);
    ([(header::CONTENT_TYPE, "application/json")], document).into_response()
}
