//! `/mcp`: the tools over streamable HTTP, behind the same gate as all routes. Without sessions: every
//! message is signed separately or carries an agent's token, and nothing is kept between two.

use std::sync::Arc;

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, header::CONTENT_TYPE, request::Parts},
};
use futures::future::BoxFuture;
use rmcp::{
    model::Extensions,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::never::NeverSessionManager,
    },
};
use serde_json::Value;
use tower::ServiceExt as _;
use utoipa::openapi::{HttpMethod, Paths, ResponseBuilder, path::OperationBuilder};

use super::ApiError;
use crate::{
    auth::Caller,
    mcp::{MemoryBackend, MemoryTools, ToolCall},
};

/// Longest answer of a route as a tool's answer.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// The route `/mcp` over all other routes, before the gate is added.
pub(super) fn router(routes: Router) -> Router {
    // Hosts and origins are not checked: no browser can sign a request for a page.
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .disable_allowed_hosts();
    let tools = MemoryTools::new(Arc::new(LocalRoutes(routes)));
    let service = StreamableHttpService::new(
        move || Ok(tools.clone()),
        Arc::new(NeverSessionManager::default()),
        config,
    );
    Router::new().route_service("/mcp", service)
}

/// Adds `/mcp`, which another crate serves, to the documentation of the routes.
pub(crate) fn describe(paths: &mut Paths) {
    let operation = OperationBuilder::new()
        .tag("agents")
        .summary(Some(
            "Memory's tools for agents: one message of the Model Context Protocol (streamable HTTP, no sessions).",
        ))
        .response("200", ResponseBuilder::new().description("the protocol's answer").build())
        .response("202", ResponseBuilder::new().description("a notification was taken").build())
        .response("401", ResponseBuilder::new().description("the request is not signed, or its token is not valid").build())
        .response("406", ResponseBuilder::new().description("Accept lacks JSON or event streams").build())
        .response("415", ResponseBuilder::new().description("the body is not JSON").build())
        .build();
    paths.add_path_operation("/mcp", vec![HttpMethod::Post], operation);
}

/// Runs tool calls on the relayer's own routes, for the admitted caller.
struct LocalRoutes(Router);

impl MemoryBackend for LocalRoutes {
    fn call<'a>(
        &'a self,
        extensions: &'a Extensions,
        call: ToolCall,
    ) -> BoxFuture<'a, Result<Value, String>> {
        let caller = extensions.get::<Parts>().and_then(|parts| parts.extensions.get::<Caller>()).cloned();
        Box::pin(self.ask(caller, call))
    }
}

impl LocalRoutes {
    async fn ask(&self, caller: Option<Caller>, call: ToolCall) -> Result<Value, String> {
        let caller = caller.ok_or("unauthenticated: the request is not signed")?;
        let body = call.body.as_ref().map(ToString::to_string).unwrap_or_default();
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(call.path_and_query())
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(body))
            .map_err(|_| "bad_request: an argument does not fit into a request")?;
        request.extensions_mut().insert(caller);
        let mut response = match self.0.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        if let Some(error) = response.extensions_mut().remove::<ApiError>() {
            let json = error.json("");
            return Err(format!("{}: {}; {}", json.code, json.message, json.hint));
        }
        let bytes = to_bytes(response.into_body(), MAX_ANSWER_BYTES)
            .await
            .map_err(|_| "too_large: the answer is too long for a tool; ask for less")?;
        serde_json::from_slice(&bytes).map_err(|_| "internal: the answer is not JSON".to_owned())
    }
}
