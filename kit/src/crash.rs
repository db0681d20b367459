//! The crash policy of programs that hold keys and conversations: a crash reveals its reason, never memory.
//!
//! A program's `main` calls it once, after it has started its log. The words of a panic in the log are the
//! program's own, because only the program knows which texts its panics may quote.

use std::{any::Any, panic, process, thread};

#[cfg(unix)]
use rustix::process::{Resource, Rlimit, setrlimit};

/// Exit code after a panic: a fault in the program.
pub const PANIC_EXIT_CODE: i32 = 101;
/// Maximum length of a panic's reason.
const MAX_REASON_BYTES: usize = 512;

/// Forbids core dumps and, on Linux, reads of the process's memory by other processes of the same user. Both
/// would expose keys and conversations. If the system refuses, the log says so and the process continues.
pub fn forbid_memory_dumps() {
    #[cfg(unix)]
    {
        let none = Rlimit { current: Some(0), maximum: Some(0) };
        if let Err(error) = setrlimit(Resource::Core, none) {
            tracing::warn!(%error, "core dumps could not be switched off");
        }
    }
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{DumpableBehavior, set_dumpable_behavior};
        if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
            tracing::warn!(%error, "the process could not be closed to debuggers");
        }
    }
}

/// A panic, as its program may report it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panic {
    /// Name of the thread.
    pub thread: String,
    /// File, line and column in the source.
    pub place: String,
    /// The message, without a text that a failed slice of a string quotes. Other messages are whole: a
    /// program whose panics may quote a conversation does not report it.
    pub reason: String,
}

/// The end of a panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PanicEnd {
    /// Code above the panic catches it and returns an error.
    Caught,
    /// The process ends with [`PANIC_EXIT_CODE`].
    Exit,
}

/// Makes a panic in any task end the process, after `report` has logged it. A program with a missing task
/// would fail in ways that are hard to explain.
pub fn end_on_panic(report: impl Fn(&Panic) -> PanicEnd + Send + Sync + 'static) {
    panic::set_hook(Box::new(move |info| {
        let panic = Panic {
            thread: thread::current().name().unwrap_or("unnamed").to_owned(),
            place: info.location().map(ToString::to_string).unwrap_or_default(),
            reason: reason(info.payload()),
        };
        if report(&panic) == PanicEnd::Exit {
            process::exit(PANIC_EXIT_CODE);
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
