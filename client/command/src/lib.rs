//! The parts that Baton's programs share around their `main` function.
//!
//! Each program calls this crate for shell completions and manual pages ([`manual`]), for the signals that
//! end it ([`signals`]), and for its log ([`log`]). Daemons share their crash policy ([`crash`]) and the
//! reading of their options ([`config`]). This crate knows no program, no network and no session.

pub mod config;
pub mod crash;
pub mod log;
pub mod manual;
pub mod signals;
