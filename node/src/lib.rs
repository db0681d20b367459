//! The Baton inference daemon.

pub mod config;
pub mod engine;
pub mod identity;
pub mod prompt;
