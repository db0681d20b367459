//! The `baton` command as a process, against scripted nodes over a real mesh and a store over HTTP.
#![expect(clippy::unwrap_used, reason = "a test's helper that fails is a failed test")]

mod command;
mod devices;
mod everyday;
mod home;
mod keys;
mod memory;
mod nodes;
mod resume;
