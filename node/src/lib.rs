//! The Baton inference daemon.

pub mod admin;
pub mod cli;
pub mod config;
pub mod daemon;
pub mod engine;
pub mod identity;
pub mod journal;
pub mod ledger;
pub mod logging;
mod mark;
pub mod metrics;
pub mod models;
pub mod prompt;
pub mod replay;
pub mod service;
pub mod telemetry;
pub mod turn;
