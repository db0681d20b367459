//! The Baton inference daemon.

pub mod config;
