//! The Baton inference daemon.

pub mod engine;
pub mod journal;
pub mod models;
pub mod prompt;
pub mod service;
pub mod turn;
