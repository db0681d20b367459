//! `baton-node` as a program: its commands, and a running node as a process.
#![expect(clippy::unwrap_used, reason = "a test's helper that fails is a failed test")]

mod commands;
mod config;
mod doctor;
mod drain;
mod harness;
mod keys;
mod models;
mod run;
#[path = "../../candle/tests/models/small.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
#[allow(clippy::cast_possible_truncation, reason = "the numbers of tests are small")]
mod small;
#[path = "../../engine/tests/it/support/mod.rs"]
#[allow(clippy::cast_possible_truncation, reason = "the numbers of tests are small")]
mod support;
mod telemetry;
