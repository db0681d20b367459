//! The Baton inference daemon.

pub mod engine;
pub mod journal;
pub mod prompt;
pub mod service;
pub mod turn;
