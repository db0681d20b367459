//! The routes of an endpoint.

use axum::{
    Json, Router,
    extract::State,
    http::HeaderMap,
    middleware,
    routing::{get, patch, post},
};
use serde_json::{Value, json};

use crate::{
    apis::{
        agent_tools, anthropic, key_usage, memory_items, ollama,
        openai::{chat, embeddings, model_list, responses},
        page,
    },
    guard,
    state::{Gateway, GatewayState},
};

impl Gateway {
    /// All routes, for a caller with a transport of its own: a page has no listener. A request needs a `host`, such
    /// as `localhost`.
    pub fn router(&self) -> Router {
        let api = Router::new()
            .route("/v1/chat/completions", post(chat::complete))
            .route("/v1/completions", post(chat::complete_text))
            .route("/mcp", post(agent_tools::answer))
            .merge(responses::routes())
            .merge(anthropic::routes())
            .merge(ollama::routes())
            .route("/v1/models", get(model_list::list))
            .route("/v1/models/{*model}", get(model_list::one))
            .route("/v1/embeddings", post(embeddings::create))
            .route("/api/usage", get(key_usage::show))
            .route("/api/memory", get(memory_items::list).delete(memory_items::delete_all))
            .route("/api/memory/{id}", patch(memory_items::edit).delete(memory_items::delete))
            .merge(page::routes())
            .fallback(guard::nothing_here)
            .method_not_allowed_fallback(guard::wrong_method)
            .layer(middleware::from_fn_with_state(self.inner.clone(), guard::admit));
        let by_name = middleware::from_fn_with_state(self.inner.clone(), guard::by_allowed_name);
        let open = Router::new().route("/access", get(access));
        // In a page, they come from the page's own server.
        #[cfg(not(target_family = "wasm"))]
        let open = open.merge(page::files::files());
        api.merge(open.layer(by_name)).with_state(self.inner.clone())
    }
}

/// Whether the caller's key is right, or none is needed. The answer is no error, so that the page can ask for
/// the key before its first request.
async fn access(State(inner): State<GatewayState>, headers: HeaderMap) -> Json<Value> {
    Json(json!({ "admitted": guard::caller(&inner, &headers).is_ok() }))
}
