//! The HTTP server as clients see it: real requests over real sockets, on a real memory in a temporary
//! folder.

mod document;
pub(crate) mod harness;
mod limits;
mod mcp;
mod memory;
mod owners;
mod sdk;
mod settings;
mod who;
