//! The status page: three files that request only the admin port's own answers.

use axum::{
    Router,
    http::header,
    response::{IntoResponse, Response},
    routing::get,
};

const PAGE: &str = include_str!("page/index.html");
const SCRIPT: &str = include_str!("page/app.js");
const STYLE: &str = include_str!("page/style.css");
/// Allows only its own files and this port; no page may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page's files.
pub(super) fn routes() -> Router {
    Router::new()
        .route("/", get(async || file("text/html; charset=utf-8", PAGE)))
        .route("/app.js", get(async || file("text/javascript; charset=utf-8", SCRIPT)))
        .route("/style.css", get(async || file("text/css; charset=utf-8", STYLE)))
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}
