//! The log of a program on standard error.
//!
//! `main` starts it once.

use std::io;

pub use tracing_subscriber::EnvFilter;

use crate::terminal::wants_colour;

/// The filter of an option for the log: a level, or directives of tracing. A text that is neither counts as
/// the level `fallback`.
#[must_use]
pub fn filter(text: &str, fallback: &str) -> EnvFilter {
    EnvFilter::try_new(text).unwrap_or_else(|_| EnvFilter::new(fallback))
}

/// Starts the log with one line for each event. A second call changes nothing.
pub fn start(filter: EnvFilter) {
    let log = tracing_subscriber::fmt().with_env_filter(filter);
    // Fails only if a log exists already, as in tests.
    let _ = log.with_ansi(wants_colour(&io::stderr())).with_writer(io::stderr).try_init();
}
