//! The process's log, and the report of a panic in it.
//!
//! `main` and the daemon call it, once each. Lines go to standard error. Libraries of others log only errors,
//! and with `debug` or `trace` their warnings. So a debug log contains only this program's own messages,
//! which never include conversation text.

use std::io::{self, Write as _};

use baton_kit::{
    crash::{self, Panic, PanicEnd},
    terminal::wants_colour,
};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    Layer as _, Registry, filter::Targets, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use crate::{
    config::{LogFormat, LogLevel},
    journal::JOURNAL_OPENING,
};

/// Threads whose owner catches their panics; such a panic fails one job only.
const CAUGHT_THREADS: [&str; 2] = ["engine-", JOURNAL_OPENING];
/// This project's crates; the log level applies to them.
const OURS: [&str; 5] = ["baton_node", "baton_mesh", "baton_walrus_client", "baton_proto", "baton_keys"];
/// The prefix of all crates of this project. Those outside [`OURS`] log their warnings too.
const PROJECT: &str = "baton_";

/// Starts the log. A second call changes nothing.
pub(crate) fn start(level: LogLevel, format: LogFormat) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let filter = filter(level);
    let lines = fmt::layer().with_writer(io::stderr).with_ansi(wants_colour(&io::stderr()));
    let lines = match format {
        LogFormat::Pretty => lines.with_target(false).boxed(),
        LogFormat::Compact => lines.with_target(false).without_time().boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    // Fails only if a log exists already, as in tests.
    let _ = Registry::default().with(lines.with_filter(filter)).try_init();
}

/// The level of each crate. A warning of a library, such as libp2p's about a missing bootstrap peer, helps no
/// operator: the node's own lines and `doctor` name such causes. So only `debug` and `trace` show it.
fn filter(level: LevelFilter) -> Targets {
    let libraries = if level >= LevelFilter::DEBUG { LevelFilter::WARN } else { LevelFilter::ERROR };
    Targets::new()
        .with_default(libraries)
        .with_target(PROJECT, level.min(LevelFilter::WARN))
        .with_targets(OURS.map(|target| (target, level)))
}

/// Makes a panic in any task end the process with its reason. Engine threads catch their panics, which are
/// only logged.
pub(crate) fn end_on_panic() {
    crash::end_on_panic(|Panic { thread, place, reason }| {
        if tracing::dispatcher::has_been_set() {
            tracing::error!(thread, place, reason, "panic: this is a fault in the program; please report it");
        } else {
            let _ = writeln!(io::stderr(), "baton-node: panic in {thread} at {place}: {reason}");
        }
        match CAUGHT_THREADS.iter().any(|caught| thread.starts_with(caught)) {
            true => PanicEnd::Caught,
            false => PanicEnd::Exit,
        }
    });
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn libraries_log_warnings_only_when_they_are_asked_for() {
        for (level, library, other_crate, own) in [
            (LevelFilter::ERROR, Level::ERROR, Level::ERROR, Level::ERROR),
            (LevelFilter::INFO, Level::ERROR, Level::WARN, Level::INFO),
            (LevelFilter::DEBUG, Level::WARN, Level::WARN, Level::DEBUG),
            (LevelFilter::TRACE, Level::WARN, Level::WARN, Level::TRACE),
        ] {
            let filter = filter(level);
            for (target, most) in
                [("libp2p_kad::behaviour", library), ("baton_models", other_crate), ("baton_node", own)]
            {
                let shown = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE]
                    .into_iter()
                    .filter(|level| filter.would_enable(target, level))
                    .max();
                assert_eq!(shown, Some(most), "{target} at {level}");
            }
        }
    }
}
