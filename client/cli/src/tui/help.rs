//! The help over the view: the effects of keys and lines. Pure.

use ratatui::{
    buffer::Buffer,
    layout::{Rect, Size},
    style::Style,
};

use super::{
    draw::{draw_box, put},
    state::State,
    wrap,
};
use crate::chat::line::HELP;

const KEYS: &str = "\
Enter           sends; Alt-Enter or Ctrl-J begins a new line
Esc, Ctrl-C     end a running answer; its text stays on the screen
Ctrl-C, Ctrl-D  on an empty line leave
PgUp, PgDn      scroll, and so does the mouse; End follows again
Tab             goes to the list of conversations; Ctrl-B hides it
in the list     Enter opens, / filters, n new, r renames, d deletes
in the / menu   Up, Down choose, Tab or Enter takes, Esc closes
Up, Down        earlier lines
Ctrl-A E W U K  to the beginning, the end; cut a word, a line
Ctrl-Y          puts the cut text back
Alt-B, Alt-F    a word back, a word forward
Ctrl-L          redraws the screen
F2              leaves the mouse to the terminal, to select text
F1              opens this help; any key closes it";

/// Widest help, in cells, with its frame.
const WIDEST: u16 = 76;

/// Draws the help over an area.
pub(super) fn draw(state: &mut State, buffer: &mut Buffer, area: Rect) {
    let Some(first) = &mut state.help else { return };
    let width = area.width.min(WIDEST);
    let lines = rows(usize::from(width).saturating_sub(4).max(1));
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
    let heading = if height > area.height { " help ↑ ↓ " } else { " help " };
    let inside = draw_box(buffer, area, Size { width, height }, heading, state.palette.accent());
    let seen = usize::from(inside.height);
    *first = (*first).min(lines.len().saturating_sub(seen));
    for (y, line) in (0..).zip(lines.iter().skip(*first).take(seen)) {
        put(buffer, inside, 0, y, line, Style::new());
    }
}

/// The rows of the help; explanations are indented below their keys, as far as there is room.
fn rows(cells: usize) -> Vec<String> {
    let mut rows = Vec::new();
    for line in KEYS.lines().chain([""]).chain(HELP.lines()) {
        let indent = line.find("  ").map_or(0, |_| 16).min(cells / 3);
        let mut wrapped = wrap::rows(line, cells).into_iter();
        rows.extend(wrapped.next());
        let rest = wrapped.collect::<Vec<_>>().join(" ");
        if !rest.is_empty() {
            let rest = wrap::rows(&rest, cells - indent).into_iter();
            rows.extend(rest.map(|text| format!("{}{text}", " ".repeat(indent))));
        }
    }
    rows
}
