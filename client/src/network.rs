//! Nodes, head indexes and short exchanges with them: who is there, how they did, and whom to ask.
//!
//! Knows nothing of sessions.

pub mod choose;
pub(crate) mod exchange;
pub(crate) mod heads;
pub(crate) mod nodes;
pub(crate) mod quota;
pub(crate) mod reputation;
pub(crate) mod retry;
