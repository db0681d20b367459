//! Bodies and answers over HTTP, alike for all APIs.

pub(crate) mod api_error;
#[cfg(not(target_family = "wasm"))]
pub(crate) mod document;
pub(crate) mod event_stream;
pub(crate) mod exact;
pub(crate) mod session_header;
