//! The parts that Baton's programs share beside the protocol, most of them around `main`.
//!
//! Each program calls this crate for shell completions and manual pages ([`manual`]), and for the signals that
//! end it ([`signals`]). The embedded store and the relayer, which serve HTTP to other machines, take their
//! listener from here ([`listen`]). The embedded storages of both share flushes ([`group_commit`]). This
//! crate knows no program, no route and no session.
//!
//! A user without command line or server leaves out the features `manual` or `http`, with their dependencies.

pub mod group_commit;
#[cfg(feature = "http")]
pub mod listen;
#[cfg(feature = "manual")]
pub mod manual;
pub mod signals;
