//! `/openapi.json`: the OpenAPI document of all routes. It tells nothing of this home, so it needs no key.

use std::sync::OnceLock;

use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use serde_json::Value;

/// The document, with a place for the version.
const DOCUMENT: &str = include_str!("openapi.json");

/// The document, as it is served.
fn document() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let mut document: Value = serde_json::from_str(DOCUMENT).unwrap_or_default();
        if let Some(version) = document.pointer_mut("/info/version") {
            *version = env!("CARGO_PKG_VERSION").into();
        }
        document.to_string()
    })
}

/// Serves the document.
pub(crate) async fn show() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], document()).into_response()
}
