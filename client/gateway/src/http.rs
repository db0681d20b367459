//! Answers over HTTP that all APIs share.

pub(crate) mod api_error;
#[cfg(not(target_family = "wasm"))]
pub(crate) mod document;
pub(crate) mod event_stream;
pub(crate) mod session_header;
