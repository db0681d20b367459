//! The Baton inference daemon.

pub mod admin;
pub mod cli;
pub mod config;
mod core;
pub mod daemon;
pub mod engine;
mod failure;
pub mod identity;
pub mod journal;
pub mod ledger;
mod lock;
pub mod logging;
mod mark;
pub mod metrics;
pub mod models;
mod observer;
mod progress;
pub mod prompt;
pub mod replay;
pub mod service;
pub mod telemetry;
pub mod turn;
