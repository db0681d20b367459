//! The Baton inference daemon.
