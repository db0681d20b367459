//! Standard output of the programs, and the forms of paths and times that they print.
//!
//! A reader that closed its pipe ends nothing and is no failure. Every other failure, such as a full disk, is kept until
//! the program ends, which then reports it: a daemon goes on serving meanwhile.

use std::{
    borrow::Cow,
    fmt::Display,
    io::{self, Write},
    path::Path,
    sync::OnceLock,
};

/// The first failure of standard output in this process.
static FAILURE: OnceLock<(io::ErrorKind, String)> = OnceLock::new();

/// Prints a line on standard output. [`check`] returns a failure.
pub fn print_line(text: impl Display) {
    let mut out = io::stdout().lock();
    // The failure is kept.
    let _ = kept(writeln!(out, "{text}").and_then(|()| out.flush()));
}

/// Keeps the failure of a write to standard output for [`check`], and returns the result.
///
/// # Errors
/// Those of the write.
pub fn kept(written: io::Result<()>) -> io::Result<()> {
    if let Err(error) = &written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        FAILURE.get_or_init(|| (error.kind(), error.to_string()));
    }
    written
}

/// Whether standard output took everything, or its reader closed it; a program asks at its end.
///
/// # Errors
/// The first failure.
pub fn check() -> io::Result<()> {
    match FAILURE.get() {
        None => Ok(()),
        Some((kind, text)) => Err(io::Error::new(*kind, format!("standard output: {text}"))),
    }
}

/// An error and its causes as one text. A cause that the text has already is left out.
pub fn error_chain(messages: impl IntoIterator<Item = impl Display>) -> String {
    messages.into_iter().fold(String::new(), |text, message| {
        let message = message.to_string();
        match text.is_empty() {
            true => message,
            false if text.contains(&message) => text,
            false => format!("{text}: {message}"),
        }
    })
}

/// The innermost cause of an error, of which the outer ones say only what was being done.
pub fn root_cause(mut error: &dyn std::error::Error) -> String {
    while let Some(inner) = error.source() {
        error = inner;
    }
    error.to_string()
}

/// A path as a word of a printed command, which a person pastes into a shell.
#[must_use]
pub fn shell_word(path: &Path) -> String {
    quoted(&path.display().to_string()).into_owned()
}

/// A text as one word of a shell: in quotes where it has a character that a shell may read otherwise.
#[must_use]
pub fn quoted(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:,@%=".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("'{}'", text.replace('\'', r"'\''")))
}

/// A length of time in its largest relevant units.
#[must_use]
pub fn span(seconds: u64) -> String {
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_its_two_largest_units() {
        for (seconds, text) in [(0, "0 s"), (61, "1 min 1 s"), (3_660, "1 h 1 min"), (90_000, "1 d 1 h")] {
            assert_eq!(span(seconds), text);
        }
    }

    #[test]
    fn a_printed_path_is_one_word_for_a_shell() {
        for (text, expected) in [
            ("/home/ann/.config/baton.toml", "/home/ann/.config/baton.toml"),
            ("/tmp/my home", "'/tmp/my home'"),
            ("it's", r"'it'\''s'"),
            ("a\"b$c`d", "'a\"b$c`d'"),
            ("größe", "größe"),
            ("~", "'~'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(text), expected, "{text}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_shell_reads_a_quoted_word_as_the_text() {
        for text in ["plain", "two words", "it's $HOME", "a\"b\\c;d&e|f>g(h)*?[i]", "line\nend", "#x", "!y"] {
            let output = std::process::Command::new("sh")
                .arg("-c")
                .arg(format!("printf %s {}", quoted(text)))
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), text);
        }
    }

    #[test]
    fn a_cause_is_named_once() {
        let whole = "cannot read a: no file; name another";
        assert_eq!(error_chain([whole, "no file"]), whole);
        assert_eq!(error_chain(["no backup", "cannot read a"]), "no backup: cannot read a");
    }

    #[test]
    fn a_closed_pipe_is_no_failure_and_a_full_disk_is_reported() {
        let written = kept(Err(io::ErrorKind::BrokenPipe.into()));
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert!(check().is_ok());
        assert!(kept(Err(io::ErrorKind::StorageFull.into())).is_err());
        let error = check().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().starts_with("standard output: "), "{error}");
    }
}
