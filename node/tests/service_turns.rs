//! The turn service end to end. The parts: nodes with real meshes on 127.0.0.1, a store with faults, the echo
//! engine. The client verifies every turn byte for byte.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

#[path = "service/audits.rs"]
mod audits;
#[path = "service/damage.rs"]
mod damage;
#[path = "service/embeddings.rs"]
mod embeddings;
#[path = "service/fairness.rs"]
mod fairness;
#[path = "service/faults.rs"]
mod faults;
#[path = "service/journal.rs"]
mod journal;
#[path = "service/overhead.rs"]
mod overhead;
#[path = "service/refusals.rs"]
mod refusals;
mod support;
#[path = "service/turns.rs"]
mod turns;
