//! The process's log and its crash policy: a crash reveals its reason, never memory.
//!
//! `main` and the daemon call it, once each. Lines go to standard error. Libraries log only warnings and
//! errors at every level. So a debug log contains only this program's own messages, which never include
//! conversation text.

use std::{
    any::Any,
    io::{self, IsTerminal as _, Write as _},
    panic,
    process::exit,
    thread,
};

use rustix::process::{Resource, Rlimit, setrlimit};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    Layer as _, Registry, filter::Targets, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use crate::{
    config::{LogFormat, LogLevel},
    journal::JOURNAL_OPENING,
};

/// Exit code after a panic: a bug in the program.
pub const PANIC_EXIT_CODE: i32 = 101;
/// Threads whose owner catches their panics; such a panic fails one job only.
const CAUGHT_THREADS: [&str; 2] = ["engine-", JOURNAL_OPENING];
/// This project's crates; the log level applies to them.
const OURS: [&str; 5] = ["baton_node", "baton_mesh", "baton_walrus_client", "baton_proto", "baton_keys"];
/// Maximum length of a panic's reason in the log.
const MAX_REASON_BYTES: usize = 512;

/// Whether to use colours: on a terminal, unless `NO_COLOR` is set.
#[must_use]
pub fn colour_on_stderr() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Starts the log. A second call changes nothing.
pub fn start(level: LogLevel, format: LogFormat) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let filter = Targets::new()
        .with_default(level.min(LevelFilter::WARN))
        .with_targets(OURS.map(|target| (target, level)));
    let lines = fmt::layer().with_writer(io::stderr).with_ansi(colour_on_stderr());
    let lines = match format {
        LogFormat::Pretty => lines.with_target(false).boxed(),
        LogFormat::Compact => lines.with_target(false).without_time().boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    // Fails only if a log exists already, as in tests.
    let _ = Registry::default().with(lines.with_filter(filter)).try_init();
}

/// Forbids core dumps and, on Linux, reads of the process's memory by the same user's processes. Both would
/// expose keys and conversations. If the system refuses, the log says so and the process continues.
pub fn forbid_memory_dumps() {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    if let Err(error) = setrlimit(Resource::Core, none) {
        tracing::warn!(%error, "core dumps could not be switched off");
    }
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{DumpableBehavior, set_dumpable_behavior};
        if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
            tracing::warn!(%error, "the process could not be closed to debuggers");
        }
    }
}

/// Makes a panic in any task end the process with its reason. A node with a missing task would fail in ways
/// that are hard to explain. Engine threads catch their panics, which are only logged.
pub fn end_on_panic() {
    panic::set_hook(Box::new(|info| {
        let thread = thread::current();
        let name = thread.name().unwrap_or("unnamed");
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let reason = reason(info.payload());
        if tracing::dispatcher::has_been_set() {
            tracing::error!(
                thread = name,
                place,
                reason,
                "panic: this is a fault in the program; please report it"
            );
        } else {
            let _ = writeln!(io::stderr(), "baton-node: panic in {name} at {place}: {reason}");
        }
        if !CAUGHT_THREADS.iter().any(|caught| name.starts_with(caught)) {
            exit(PANIC_EXIT_CODE);
        }
    }));
}

/// The panic's message without quoted text. Failed string slices quote text that may come from a
/// conversation.
fn reason(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    let quotes_text = ["byte index", "byte range", "char boundary", "begin <= end", "slice"];
    let end = match quotes_text.iter().any(|mark| text.contains(mark)) {
        true => text.find(['`', '"', '\'']).unwrap_or(text.len()),
        false => text.len(),
    };
    let end = end.min(text.floor_char_boundary(MAX_REASON_BYTES));
    text.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_a_panic_never_quotes_a_text() {
        let secret = "é my secret";
        for end in [1, 500] {
            let caught = panic::catch_unwind(|| secret[..end].len()).unwrap_err();
            let reason = reason(caught.as_ref());
            assert!(
                !reason.contains("secret") && reason.contains("byte index") || reason.contains("end"),
                "{reason}"
            );
            assert!(!reason.contains("secret"), "{reason}");
        }
        assert_eq!(reason(&"why this `holds`"), "why this `holds`");
        assert_eq!(reason(&"x".repeat(2000)).len(), MAX_REASON_BYTES);
        assert_eq!(reason(&7), "no message");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_dumps_are_forbidden() {
        use rustix::process::{DumpableBehavior, dumpable_behavior, getrlimit};
        forbid_memory_dumps();
        assert_eq!(getrlimit(Resource::Core).current, Some(0));
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
    }
}
