//! The Baton inference daemon.

pub mod engine;
pub mod prompt;
