//! The relayer's integration tests, as one binary.

#![expect(clippy::unwrap_used, reason = "a test's helper that fails is a failed test")]

mod command;
mod crash;
mod dispatch;
mod http;
mod links;
mod program;
