//! The Baton inference daemon.

pub mod engine;
pub mod models;
pub mod prompt;
