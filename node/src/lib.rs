//! The Baton inference daemon.

pub mod journal;
pub mod service;
pub mod turn;
