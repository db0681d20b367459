//! All integration tests of the crate. They do no network I/O; sessions run whole in memory.
#![expect(clippy::unwrap_used, reason = "helpers of tests: a failure should panic where it happens")]

mod adversary;
mod contradiction;
mod document;
mod export;
#[path = "../../examples/vectors/generate.rs"]
mod generate;
mod purity;
mod support;
mod threats;
mod vectors;

use support::harness;
