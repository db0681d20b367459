//! The parts that Baton's programs share around their `main` function.
//!
//! Each program calls this crate for shell completions and manual pages ([`manual`]), and for the signals that
//! end it ([`signals`]). The embedded store and the relayer, which serve HTTP to other machines, take their
//! listener from here ([`listen`]). This crate knows no program, no route and no session.
//!
//! A user without a command line or a server leaves out the features `manual` or `http`, and their dependencies.

#[cfg(feature = "http")]
pub mod listen;
#[cfg(feature = "manual")]
pub mod manual;
pub mod signals;
