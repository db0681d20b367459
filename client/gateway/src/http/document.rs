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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_of_this_version_and_each_operation_has_its_own_name() {
        let document: Value = serde_json::from_str(document()).unwrap();
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
        let paths = document["paths"].as_object().unwrap();
        let operations = paths.values().flat_map(|path| path.as_object().unwrap().values());
        let mut names: Vec<&str> = operations.map(|one| one["operationId"].as_str().unwrap()).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert!(all > 25 && names.len() == all, "{names:?}");
    }
}
