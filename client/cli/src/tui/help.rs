//! The help over the view: the effects of keys and lines. Pure.

use ratatui::{buffer::Buffer, layout::Rect, style::Style};

use super::{draw::put, state::State, wrap};
use crate::dialogue;

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
    let cells = usize::from(width).saturating_sub(4).max(1);
    let lines = rows(cells);
    let height = area.height.min(u16::try_from(lines.len() + 2).unwrap_or(u16::MAX));
    let inner_height = usize::from(height.saturating_sub(2)).max(1);
    *first = (*first).min(lines.len().saturating_sub(inner_height));
    let frame =
        Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    let framed = height > 4;
    let style = state.palette.accent();
    let bar = "─".repeat(usize::from(width).saturating_sub(2));
    for y in 0..height {
        put(buffer, frame, (0, y), &" ".repeat(width.into()), Style::reset());
        if framed {
            put(buffer, frame, (0, y), "│", style);
            put(buffer, frame, (width.saturating_sub(1), y), "│", style);
        }
    }
    if framed {
        put(buffer, frame, (0, 0), &format!("┌{bar}┐"), style);
        put(buffer, frame, (0, height - 1), &format!("└{bar}┘"), style);
        put(buffer, frame, (2, 0), " help ", style);
        if lines.len() > inner_height {
            put(buffer, frame, (2, height - 1), " ↑ ↓ ", style);
        }
    }
    let (left, top) = if framed { (2, 1) } else { (0, 0) };
    let seen = usize::from(height) - 2 * usize::from(top);
    for (y, line) in (top..).zip(lines.iter().skip(*first).take(seen)) {
        put(buffer, frame, (left, y), line, Style::new());
    }
}

/// The rows of the help; explanations are indented below their keys, as far as there is room.
fn rows(cells: usize) -> Vec<String> {
    let mut rows = Vec::new();
    for line in KEYS.lines().chain([""]).chain(dialogue::HELP.lines()) {
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
