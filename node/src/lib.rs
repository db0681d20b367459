//! The Baton inference daemon.

pub mod config;
pub mod identity;
