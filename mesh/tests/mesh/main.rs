//! Meshes with real sockets on the loopback interface: turns, refusals, discovery, limits and shutdown.
#![expect(clippy::unwrap_used, reason = "test helpers fail by panicking")]

mod discovery;
mod fixtures;
mod limits;
mod network;
mod refusals;
mod support;
mod turns;
mod webrtc;
mod websocket;
