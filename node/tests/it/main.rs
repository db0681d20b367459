//! The node: its parts (the turn service, the engines, the window, the operator's files), and its program.
#![expect(clippy::unwrap_used, reason = "a test's helper that fails is a failed test")]

mod answer;
mod cli;
mod default_model;
mod deploy_files;
mod engine_echo;
mod engine_library;
mod engine_models;
mod engine_prompt;
mod engine_proxied;
mod process;
mod service;
#[path = "../../engine/tests/it/candle/small.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
#[allow(clippy::cast_possible_truncation, reason = "the numbers of tests are small")]
mod small;
#[path = "../../engine/tests/it/support/mod.rs"]
#[allow(clippy::cast_possible_truncation, reason = "the numbers of tests are small")]
mod support;
