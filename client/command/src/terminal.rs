//! What a stream of output understands: the one place that asks for a terminal, `TERM` and `NO_COLOR`.

use std::io::IsTerminal;

/// Whether the stream is a terminal that understands escape sequences, as a bar or a spinner needs them.
#[must_use]
pub fn can_redraw(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Whether to colour: where escape sequences are understood, unless `NO_COLOR` is set.
#[must_use]
pub fn wants_colour(stream: &impl IsTerminal) -> bool {
    can_redraw(stream) && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
