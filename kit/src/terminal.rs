//! What a stream of output understands: the one place that asks for a terminal, `TERM` and `NO_COLOR`.

use std::{
    ffi::OsString,
    io::{self, IsTerminal},
};

/// Whether the stream is a terminal that understands escape sequences, as a bar or a spinner needs them.
#[must_use]
pub fn can_redraw(stream: &impl IsTerminal) -> bool {
    let understands = |term: &OsString| !term.is_empty() && term != "dumb";
    stream.is_terminal() && (cfg!(windows) || std::env::var_os("TERM").as_ref().is_some_and(understands))
}

/// Whether to colour: where escape sequences are understood, unless `NO_COLOR` is set.
#[must_use]
pub fn wants_colour(stream: &impl IsTerminal) -> bool {
    can_redraw(stream) && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Colours for people, none for programs.
#[derive(Clone, Copy, Debug)]
pub struct Style(bool);

impl Style {
    /// Colours, or none.
    #[must_use]
    pub const fn new(colours: bool) -> Self {
        Self(colours)
    }

    /// As standard output wants it.
    #[must_use]
    pub fn stdout() -> Self {
        Self(wants_colour(&io::stdout()))
    }

    /// As standard error wants it.
    #[must_use]
    pub fn stderr() -> Self {
        Self(wants_colour(&io::stderr()))
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// A text about an error.
    #[must_use]
    pub fn error(self, text: &str) -> String {
        self.paint("1;31", text)
    }

    /// A good text.
    #[must_use]
    pub fn good(self, text: &str) -> String {
        self.paint("32", text)
    }

    /// A text that warns.
    #[must_use]
    pub fn bad(self, text: &str) -> String {
        self.paint("33", text)
    }

    /// A text that stands out.
    #[must_use]
    pub fn strong(self, text: &str) -> String {
        self.paint("1", text)
    }
}
