//! The parts that Baton's programs share beside the protocol, most of them around `main`.
//!
//! Each program calls this crate for its arguments, shell completions and manual pages ([`usage`]), for the signals that
//! end it ([`signals`]), for its log ([`log`]), for progress bars ([`progress`]), and for questions
//! ([`prompt`]). [`output`] prints, and quotes the paths of printed commands. [`terminal`] says where escape
//! sequences may go, and [`folders`] where a user's files are. Every `doctor` reports by [`doctor`], and every
//! program reads the options of its stores by [`stores`]. Issuers and holders of grants share their options ([`turn_grant`]).
//! Daemons share their crash policy ([`crash`]) and the reading of their options ([`config`]).
//! Every program refuses empty values of options, names the variable of a refused value, and guesses at mistyped words
//! ([`nearest`]). The embedded store and the relayer, which serve HTTP to other machines, take their listener from here
//! ([`listen`]). The embedded store shares flushes ([`group_commit`]), and keeps entries in a database as a node does
//! ([`entries`]). This crate knows no program, no route and no session.
//!
//! A user without command line, questions or server leaves out the features `program`, `prompt`, `http` or `entries`, with their
//! dependencies.

pub mod clock;
#[cfg(feature = "program")]
pub mod config;
#[cfg(feature = "program")]
pub mod crash;
#[cfg(feature = "program")]
pub mod doctor;
#[cfg(feature = "program")]
mod empty_values;
#[cfg(feature = "program")]
pub mod endpoint;
#[cfg(feature = "entries")]
pub mod entries;
pub mod folders;
pub mod group_commit;
#[cfg(feature = "http")]
pub mod listen;
#[cfg(feature = "program")]
pub mod log;
#[cfg(feature = "program")]
mod manual;
#[cfg(feature = "program")]
pub mod nearest;
pub mod output;
#[cfg(feature = "program")]
pub mod progress;
#[cfg(feature = "prompt")]
pub mod prompt;
pub mod signals;
#[cfg(feature = "program")]
pub mod stores;
pub mod terminal;
#[cfg(feature = "program")]
pub mod turn_grant;
#[cfg(feature = "program")]
pub mod usage;
#[cfg(feature = "program")]
mod variables;
