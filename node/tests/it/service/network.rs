//! A small network in one process for the tests of the turn service. Nodes have real meshes on 127.0.0.1, the
//! store is in memory with faults, and the client uses `baton-proto` alone.

pub(crate) mod client;
pub(crate) mod node;
pub(crate) mod store;

use std::time::{SystemTime, UNIX_EPOCH};

/// Unix time in milliseconds.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis().try_into().unwrap()
}
