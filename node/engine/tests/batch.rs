//! Requests that share a model: the order of waiting, the freeing of memory, and that sharing changes no bit.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which may panic like the tests themselves")]
#![allow(clippy::cast_possible_truncation, reason = "the numbers of tests are small")]

mod support;

#[path = "batch/bench.rs"]
mod bench;
#[path = "batch/bits.rs"]
mod bits;
#[path = "batch/sharing.rs"]
mod sharing;
#[path = "batch/solo.rs"]
mod solo;
#[path = "batch/threads.rs"]
mod threads;
