//! The store's tests: its folder and damage to it, lifetimes, its interface over HTTP, and its port.
//!
//! A store that is killed, measured, or has no room runs in a process of its own: this test program, run again
//! with its serving test.
#![expect(clippy::unwrap_used, reason = "a failed step is a failed test, in helpers too")]

mod common;
mod damage;
mod disk;
mod epochs;
#[cfg(target_os = "linux")]
mod full_disk;
mod http;
mod kills;
mod process;
mod surface;
mod tokens;
