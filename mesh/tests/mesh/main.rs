//! Meshes with real sockets on the loopback interface: turns, refusals, discovery, limits and shutdown.

mod discovery;
mod limits;
mod refusals;
mod support;
mod turns;
