//! Colours for people, none for programs.

use std::io;

use baton_command::terminal::wants_colour;

/// Whether to colour.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style(bool);

impl Style {
    pub(super) fn stdout() -> Self {
        Self(wants_colour(&io::stdout()))
    }

    pub(super) fn stderr() -> Self {
        Self(wants_colour(&io::stderr()))
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    pub(super) fn error(self, text: &str) -> String {
        self.paint("1;31", text)
    }

    pub(super) fn good(self, text: &str) -> String {
        self.paint("32", text)
    }

    pub(super) fn bad(self, text: &str) -> String {
        self.paint("33", text)
    }

    pub(super) fn strong(self, text: &str) -> String {
        self.paint("1", text)
    }
}
