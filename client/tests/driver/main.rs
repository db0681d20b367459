//! The client against scripted nodes over a real mesh, and a store in memory.
#![expect(clippy::unwrap_used, reason = "a test's helper that fails is a failed test")]

mod audits;
mod background;
mod choosing;
mod clocks;
mod damage;
mod devices;
mod embeddings;
mod failures;
mod form;
mod heads;
mod indexes;
mod keeping;
mod limits;
mod older;
mod relayer;
mod renewal;
mod takeover;
mod turns;
