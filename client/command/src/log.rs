//! The log of a program on standard error.
//!
//! `main` starts it once. A program with formats of its own takes only the rule for colours from here.

use std::io::{self, IsTerminal as _};

pub use tracing_subscriber::EnvFilter;

/// Whether to use colours: on a terminal, unless `NO_COLOR` is set.
#[must_use]
pub fn colour_on_stderr() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

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
    let _ = log.with_ansi(colour_on_stderr()).with_writer(io::stderr).try_init();
}
