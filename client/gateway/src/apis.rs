//! The adapters: each API reads its requests into the inner form, and writes the steps of an answer.

pub(crate) mod agent_tools;
pub(crate) mod anthropic;
pub(crate) mod key_usage;
pub(crate) mod memory_items;
pub(crate) mod ollama;
pub(crate) mod openai;
pub(crate) mod page;

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, header},
    response::Response,
};
use serde_json::Value;

use crate::http::api_error::ApiError;

/// An API of the endpoint, which has a form of its own for errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ApiForm {
    OpenAi,
    Anthropic,
    Ollama,
}

impl ApiForm {
    /// The API of a request.
    pub(crate) fn of(path: &str, headers: &HeaderMap) -> Self {
        if ollama::is_own(path) {
            Self::Ollama
        } else if anthropic::is_own(path, headers) {
            Self::Anthropic
        } else {
            Self::OpenAi
        }
    }

    /// The response in this API's form, if it is an error. `id` names the request.
    pub(crate) fn rewritten(self, mut response: Response, id: &str) -> Response {
        let Some(api_error) = response.extensions_mut().remove::<ApiError>() else { return response };
        let body: Value = match self {
            Self::OpenAi => return response,
            Self::Anthropic => anthropic::error_body(&api_error, Some(id)),
            Self::Ollama => ollama::error_body(&api_error),
        };
        let (mut head, _) = response.into_parts();
        head.headers.remove(header::CONTENT_LENGTH);
        head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Response::from_parts(head, Body::from(body.to_string()))
    }
}
