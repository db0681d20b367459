//! The real default model, which keeps every core busy. The tests are a binary of their own, so that no test
//! with a time limit runs beside them.
#![expect(clippy::unwrap_used, reason = "a test's helper that fails is a failed test")]

mod injection;
mod native;
#[allow(dead_code, reason = "a part of it is used here")]
#[path = "../cli/harness/process.rs"]
mod process;
mod replay;
