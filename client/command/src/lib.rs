//! The parts that Baton's programs share around their `main` function.
//!
//! Each program calls this crate for shell completions and manual pages ([`manual`]), and for the signals that
//! end it ([`signals`]). This crate knows no program, no network and no session.

pub mod manual;
pub mod signals;
