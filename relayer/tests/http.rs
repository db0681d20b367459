//! The HTTP server as clients see it: real requests over real sockets, on a real memory in a temporary
//! folder.

#![expect(clippy::unwrap_used, reason = "a test's helper that fails is a failed test")]

#[path = "http/harness.rs"]
mod harness;
#[path = "http/limits.rs"]
mod limits;
#[path = "http/mcp.rs"]
mod mcp;
#[path = "http/memory.rs"]
mod memory;
#[path = "http/sdk.rs"]
mod sdk;
#[path = "http/settings.rs"]
mod settings;
#[path = "http/who.rs"]
mod who;
