//! The store's tests: its folder and damage to it, lifetimes, faults, and its interface over HTTP.
//!
//! Some tests have binaries of their own: they measure or restart their process, or hold hundreds of sockets.
#![expect(clippy::unwrap_used, reason = "a failed step is a failed test, in helpers too")]

mod common;
mod damage;
mod disk;
mod epochs;
mod faults;
mod http;
mod surface;
mod tokens;
