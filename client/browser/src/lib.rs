//! The Baton client in a page: keys, sessions and checks are the same code as in the `baton` program.
//!
//! The crate owns the parts for pages alone:
//! - the API for JavaScript (`client`), with its TypeScript declarations,
//! - the gateway's APIs without a server (`endpoint`),
//! - a store over `fetch` (`store`).
//!
//! Nodes are reached by WebRTC or WebSocket, in the mesh crate. Keys stay in the page's memory: a session goes
//! on elsewhere, or after a reload, by its 24 words.

#![cfg(target_family = "wasm")]

mod client;
mod endpoint;
mod store;

pub use client::{BatonClient, BatonSession};
// Named for their features alone.
use getrandom as _;
use getrandom_2 as _;
use getrandom_3 as _;
