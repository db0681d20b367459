//! The embedded store in its own process: killed, measured for its memory, and without room on its disk.
//!
//! The process is this test program, run again with one of its serving tests.
#![expect(clippy::unwrap_used, reason = "a failed step is a failed test, in helpers too")]

#[path = "../it/common.rs"]
mod common;
#[cfg(target_os = "linux")]
mod full;
mod kills;
