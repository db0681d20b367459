//! The crate's tests: blob IDs, quilts, the embedded store, and the HTTP client against it and scripted servers.
//!
//! Some tests have binaries of their own: they measure or restart their process, hold hundreds of sockets, or
//! fail when other tests slow them down.
#![expect(clippy::unwrap_used, reason = "a failed step is a failed test, in helpers too")]

mod blob_id;
mod blob_source;
mod common;
mod embedded_damage;
mod embedded_disk;
mod embedded_epochs;
mod embedded_faults;
mod embedded_http;
mod embedded_surface;
mod embedded_tokens;
mod http_common;
mod http_embedded;
mod http_lifetime;
mod http_quilts;
mod http_reads;
mod http_store;
mod http_writes;
mod quilt;
