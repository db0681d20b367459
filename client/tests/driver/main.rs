//! The client against scripted nodes over a real mesh, and a store in memory.
#![expect(clippy::unwrap_used, reason = "a test's helper that fails is a failed test")]

mod answer_options;
mod background;
mod checks;
mod choosing;
mod clocks;
mod damage;
mod devices;
mod embeddings;
mod failures;
mod heads;
mod indexes;
mod limits;
mod linkability;
mod relayer;
mod renewal;
mod stale_copies;
mod storage;
mod takeover;
mod turns;
