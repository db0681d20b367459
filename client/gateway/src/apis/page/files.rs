//! The files of the chat page. Every client that reaches the port may load them: they hold no secret, and all
//! data needs the key.

use axum::{
    Router,
    http::header,
    response::{IntoResponse, Response},
    routing::get,
};

use crate::{http::document, state::GatewayState};

/// The page loads only its own files and calls only this endpoint; no page may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const PAGE: &str = include_str!("../../page/index.html");
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// A file with its path, which is its path in the folder `page`.
macro_rules! files {
    ($($kind:ident $path:literal,)*) => {
        &[$((concat!("/", $path), $kind, include_str!(concat!("../../page/", $path))),)*]
    };
}

const FILES: &[(&str, &str, &str)] = files![
    STYLE "style/base.css",
    STYLE "style/chat.css",
    STYLE "style/code.css",
    STYLE "style/panels.css",
    SCRIPT "script/api.js",
    SCRIPT "script/chain.js",
    SCRIPT "script/chat.js",
    SCRIPT "script/code.js",
    SCRIPT "script/composer.js",
    SCRIPT "script/dom.js",
    SCRIPT "script/export.js",
    SCRIPT "script/list.js",
    SCRIPT "script/main.js",
    SCRIPT "script/markdown.js",
    SCRIPT "script/memories.js",
    SCRIPT "script/menu.js",
    SCRIPT "script/network.js",
    SCRIPT "script/receipt.js",
    SCRIPT "script/recovery.js",
    SCRIPT "script/session.js",
    SCRIPT "script/settings.js",
    SCRIPT "script/state.js",
    SCRIPT "script/turn.js",
    SCRIPT "script/words.js",
    SCRIPT "vendor/marked.esm.js",
    SCRIPT "vendor/highlight/core.min.js",
    SCRIPT "vendor/highlight/bash.min.js",
    SCRIPT "vendor/highlight/c.min.js",
    SCRIPT "vendor/highlight/cpp.min.js",
    SCRIPT "vendor/highlight/css.min.js",
    SCRIPT "vendor/highlight/diff.min.js",
    SCRIPT "vendor/highlight/go.min.js",
    SCRIPT "vendor/highlight/java.min.js",
    SCRIPT "vendor/highlight/javascript.min.js",
    SCRIPT "vendor/highlight/json.min.js",
    SCRIPT "vendor/highlight/markdown.min.js",
    SCRIPT "vendor/highlight/python.min.js",
    SCRIPT "vendor/highlight/rust.min.js",
    SCRIPT "vendor/highlight/sql.min.js",
    SCRIPT "vendor/highlight/typescript.min.js",
    SCRIPT "vendor/highlight/xml.min.js",
    SCRIPT "vendor/highlight/yaml.min.js",
];

/// The page, at `/` and at the address of every conversation, and its other files.
pub(crate) fn files() -> Router<GatewayState> {
    let page = || get(async || file("text/html; charset=utf-8", PAGE));
    let router =
        Router::new().route("/", page()).route("/c/{id}", page()).route("/openapi.json", get(document::show));
    FILES
        .iter()
        .fold(router, |router, &(path, kind, text)| router.route(path, get(async move || file(kind, text))))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_its_policy_in_its_text_before_any_file_and_no_script_or_style_in_it() {
        let policy = PAGE.find("http-equiv=\"content-security-policy\"").unwrap();
        for file in ["<link rel=\"stylesheet\"", "<script"] {
            assert!(policy < PAGE.find(file).unwrap(), "{file}");
        }
        let own: Vec<&str> = PAGE.split("<script").skip(1).collect();
        assert!(own.iter().all(|script| script.starts_with(" src=\"/")), "{own:?}");
        for inline in ["<style", " style=", " onclick=", " onload=", "javascript:"] {
            assert!(!PAGE.contains(inline), "{inline}");
        }
        // Files of nodes and stores elsewhere are reached from the page as files; the endpoint's header is stricter.
        assert!(PAGE.contains("default-src 'none'; script-src 'self' 'wasm-unsafe-eval'"));
    }
}
