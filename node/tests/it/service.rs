//! The turn service end to end. The parts: nodes with real meshes on 127.0.0.1, a store with faults, the echo
//! engine. The client verifies every turn byte for byte.

mod charges;
mod damage;
mod embeddings;
mod fairness;
mod faults;
mod journal;
mod kills;
pub(crate) mod network;
mod refusals;
mod storage;
mod turns;
