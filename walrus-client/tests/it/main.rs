//! The crate's tests: blob IDs, quilts, and the HTTP client against the embedded store and scripted servers.
#![expect(clippy::unwrap_used, reason = "a failed step is a failed test, in helpers too")]

mod blob_id;
mod blob_source;
#[path = "../../store/tests/it/common.rs"]
mod common;
mod fuzz_samples;
mod http_common;
mod http_embedded;
mod http_quilts;
mod http_reads;
mod http_store;
mod http_writes;
mod quilt;
