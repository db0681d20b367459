//! Draws the full-screen view. Every text on the screen was cleaned on arrival, or is cleaned here.

use ratatui::{
    Frame,
    buffer::Buffer,
    layout::{Constraint, Position, Rect},
    style::Style,
    widgets::{Block, Clear, Padding, Widget as _},
};

use super::{
    block::Turn,
    editor::Editor,
    state::{Question, State},
    wrap::{fit, show, width},
};
use crate::{
    clock::age,
    out::{count, short_session},
};

/// Widest box of a question, in cells, with its frame.
const BOX_CELLS: u16 = 60;
/// Rows of that box, with its frame, which a smaller screen leaves out.
const BOX_ROWS: u16 = 4;
/// Most cells of a title in the question before a deletion.
const TITLE_CELLS: usize = 40;
/// The text before the input.
const PROMPT: &str = "› ";
/// Smallest width with the sessions beside the conversation; below it they replace the conversation while
/// focused.
const WIDE: u16 = 90;
/// Cells of that list.
const SIDEBAR: u16 = 34;
/// Most cells of the conversation: longer lines are hard to read.
const COLUMN: u16 = 92;
/// Smallest height with a line between the conversation and the input.
const TALL: u16 = 5;
/// Most rows of the input, as a part of the screen: the conversation stays in sight.
const INPUT_SHARE: u16 = 3;
/// Cells of a command's name in the menu.
const MENU_NAME_CELLS: usize = 16;
/// A menu of fewer cells than this does not align the descriptions.
const NARROW_MENU: usize = 48;
/// The frames that show running work.
const SPINNER: [&str; 8] = ["⠋", "⠙", "⠸", "⢰", "⣠", "⣄", "⡆", "⠇"];
/// Milliseconds for which each frame shows.
const SPIN_MS: u128 = 120;
/// The keys in the last line.
const KEYS: &str = "Enter send · / commands · F1 help";
/// The same while an answer streams.
const BUSY_KEYS: &str = "Esc stop · PgUp scroll · F1 help";

/// Draws the whole view.
pub(super) fn draw(state: &mut State, frame: &mut Frame<'_>) {
    let area = frame.area();
    if area.is_empty() {
        return;
    }
    let [body, status] = split_bottom(area, 1);
    let wide = area.width >= WIDE;
    // An empty list takes its room too: text must not be laid out anew when the first session is listed.
    let listed = state.sidebar.focused || (wide && !state.sidebar.hidden);
    let (list, conversation) = match (listed, wide) {
        (false, _) => (Rect::ZERO, body),
        (true, false) => (body, Rect::ZERO),
        (true, true) => (
            Rect { width: SIDEBAR, ..body },
            Rect { x: body.x + SIDEBAR, width: body.width - SIDEBAR, ..body },
        ),
    };
    draw_sidebar(state, frame.buffer_mut(), list, wide);
    let column = conversation.width.min(COLUMN);
    let margin = (conversation.width - column) / 2;
    let conversation = Rect { x: conversation.x + margin, width: column, ..conversation };
    let cursor = draw_conversation(state, frame.buffer_mut(), conversation);
    let cursor = draw_question(state, frame.buffer_mut(), body).or(cursor);
    draw_status(state, frame.buffer_mut(), status);
    if let Some(cursor) = cursor.filter(|_| !state.sidebar.focused) {
        frame.set_cursor_position(cursor);
    }
}

/// Splits off at most `rows` rows at the bottom; returns the area above first.
fn split_bottom(area: Rect, rows: u16) -> [Rect; 2] {
    let rows = rows.min(area.height);
    let above = Rect { height: area.height - rows, ..area };
    [above, Rect { y: above.bottom(), height: rows, ..area }]
}

/// Puts a line into a row of an area, from this column on; returns the column after it.
fn put(buffer: &mut Buffer, area: Rect, x: u16, y: u16, text: &str, style: Style) -> u16 {
    if x >= area.width || y >= area.height {
        return x;
    }
    let room = usize::from(area.width - x);
    let (end, _) = buffer.set_stringn(area.x + x, area.y + y, show(text), room, style);
    end.saturating_sub(area.x)
}

fn draw_conversation(state: &mut State, buffer: &mut Buffer, area: Rect) -> Option<Position> {
    if area.is_empty() {
        return None;
    }
    let cells = usize::from(area.width).saturating_sub(width(PROMPT) + 1).max(1);
    state.input_cells = cells;
    let most = if area.height < TALL { 1 } else { (area.height / INPUT_SHARE).max(1) };
    let wanted = u16::try_from(state.message().rows(cells).len()).unwrap_or(u16::MAX);
    let [above, input] = split_bottom(area, wanted.min(most));
    let [above, rule] = split_bottom(above, u16::from(area.height + 1 >= TALL));
    let below = draw_pane(state, buffer, above);
    draw_menu(state, buffer, above);
    draw_rule(state, buffer, rule, below);
    draw_input(state, buffer, input, cells)
}

/// Draws the conversation at the bottom of its area; returns the number of rows below the visible ones.
fn draw_pane(state: &mut State, buffer: &mut Buffer, area: Rect) -> usize {
    if area.is_empty() {
        return 0;
    }
    // A column stays free, so that text does not touch the next area.
    let cells = usize::from(area.width).saturating_sub(1).max(1);
    let palette = state.palette;
    let (rows, below) = state.pane.visible_rows(cells, area.height.into());
    let first = area.height.saturating_sub(u16::try_from(rows.len()).unwrap_or(u16::MAX));
    for (y, row) in (first..).zip(rows) {
        let mut x = 0;
        for (ink, text) in row {
            x = put(buffer, area, x, y, text, palette.ink(*ink));
        }
    }
    below
}

/// The menu of commands, at the bottom of the conversation; it scrolls with the selected one.
fn draw_menu(state: &State, buffer: &mut Buffer, area: Rect) {
    let Some((commands, selected)) = state.menu() else { return };
    let most = usize::from((area.height / 2).max(1).min(area.height));
    let rows = commands.len().min(most);
    let [_, menu] = split_bottom(area, u16::try_from(rows).unwrap_or(0));
    let cells = usize::from(menu.width);
    let first = (selected + 1).saturating_sub(rows);
    let name_cells = if cells < NARROW_MENU { 0 } else { MENU_NAME_CELLS };
    for (y, (index, (name, what))) in (0..).zip(commands.iter().enumerate().skip(first).take(rows)) {
        let line = fit(&format!(" {name:<name_cells$} {what}"), cells);
        // The conversation below must not shine through.
        put(buffer, menu, 0, y, &" ".repeat(cells), Style::reset());
        let gap = " ".repeat(cells.saturating_sub(width(&line)));
        let style = if index == selected { state.palette.marked() } else { Style::new() };
        put(buffer, menu, 0, y, &format!("{line}{gap}"), style);
    }
}

/// The line above the input: running work, and the number of rows below.
fn draw_rule(state: &State, buffer: &mut Buffer, area: Rect, below: usize) {
    let palette = state.palette;
    put(buffer, area, 0, 0, &"─".repeat(area.width.into()), palette.dim());
    let more = if below == 0 { String::new() } else { format!(" ↓ {below} more · End ") };
    let room = usize::from(area.width).saturating_sub(width(&more) + 4);
    if let Some(busy) = &state.busy {
        let spent = state.now.saturating_sub(busy.since);
        let step = usize::try_from(spent.as_millis() / SPIN_MS).unwrap_or(0) % SPINNER.len();
        let spinner = SPINNER.get(step).copied().unwrap_or_default();
        let server = state.pane.running_turn().filter(|_| !busy.stopping).and_then(Turn::server);
        let usual = if busy.stopping { "stopping" } else { busy.what };
        let what = server.unwrap_or_else(|| usual.to_owned());
        let text = format!(" {spinner} {what} · {} s · Esc stops it ", spent.as_secs());
        put(buffer, area, 1, 0, &fit(&text, room), palette.accent());
    }
    let x = usize::from(area.width).saturating_sub(width(&more) + 1);
    if !more.is_empty() && x > 0 {
        put(buffer, area, u16::try_from(x).unwrap_or(0), 0, &more, palette.accent());
    }
}

/// Draws the input, with its end or its cursor in sight; returns the cursor's position.
fn draw_input(state: &mut State, buffer: &mut Buffer, area: Rect, cells: usize) -> Option<Position> {
    if area.is_empty() {
        return None;
    }
    let indent = u16::try_from(width(PROMPT)).unwrap_or(0).min(area.width - 1);
    put(buffer, area, 0, 0, PROMPT, state.palette.accent());
    let text = Rect { x: area.x + indent, width: area.width - indent, ..area };
    if state.message().is_empty() {
        let hint = if state.status.pending && state.busy.is_none() {
            "A message has no answer: /retry or /drop"
        } else {
            "Message, or / for commands"
        };
        put(buffer, text, 0, 0, &fit(hint, text.width.into()), state.palette.dim());
    }
    Some(draw_editor(state.message(), buffer, text, cells))
}

/// Draws a text that the user edits; returns the cursor's position.
fn draw_editor(editor: &mut Editor, buffer: &mut Buffer, area: Rect, cells: usize) -> Position {
    let (row, column) = editor.cursor_position(cells);
    let height = usize::from(area.height);
    // Skips as few rows above as keep the cursor in sight.
    let first = (row + 1).saturating_sub(height);
    let seen: Vec<_> = editor.rows(cells).iter().skip(first).take(height).cloned().collect();
    for (y, range) in (0..).zip(seen) {
        put(buffer, area, 0, y, editor.text().get(range).unwrap_or_default(), Style::new());
    }
    let x = u16::try_from(column).unwrap_or(u16::MAX).min(area.width.saturating_sub(1));
    Position { x: area.x + x, y: area.y + u16::try_from(row - first).unwrap_or(0) }
}

/// Draws the open question in a small box; returns the cursor's position.
fn draw_question(state: &mut State, buffer: &mut Buffer, area: Rect) -> Option<Position> {
    let (heading, keys) = match state.question.as_ref()? {
        Question::Title { .. } => ("─ title ", "Enter saves · Esc leaves it"),
        Question::Deletion(_) => ("─ delete ", "y deletes · any other key keeps it"),
    };
    let area = area.centered(Constraint::Max(BOX_CELLS), Constraint::Max(BOX_ROWS));
    let frame = match area.height {
        BOX_ROWS => {
            let frame = Block::bordered().border_style(state.palette.accent());
            frame.padding(Padding::horizontal(1)).title(heading)
        }
        _ => Block::new(),
    };
    let inside = frame.inner(area);
    Clear.render(area, buffer);
    frame.render(area, buffer);
    let cells = usize::from(inside.width);
    put(buffer, inside, 0, 1, &fit(keys, cells), state.palette.dim());
    if let Some(Question::Deletion(session)) = &state.question {
        let title = fit(&state.sidebar.title_of(*session), TITLE_CELLS);
        put(buffer, inside, 0, 0, &fit(&format!("Delete \"{title}\"?"), cells), Style::new());
        return None;
    }
    let line = Rect { height: inside.height.min(1), ..inside };
    // A cell stays free for the cursor.
    let room = cells.saturating_sub(1).max(1);
    (!line.is_empty()).then(|| draw_editor(&mut state.editor, buffer, line, room))
}

fn draw_sidebar(state: &State, buffer: &mut Buffer, area: Rect, wide: bool) {
    if area.is_empty() {
        return;
    }
    let (palette, sidebar) = (state.palette, &state.sidebar);
    let mut inner = area;
    if wide {
        inner.width -= 2;
        for y in 0..area.height {
            put(buffer, area, area.width - 2, y, "│", palette.dim());
        }
    }
    let heading = if sidebar.focused { "n new · r name · d delete" } else { "Conversations · Tab" };
    let style = if sidebar.focused { palette.accent() } else { palette.dim() };
    put(buffer, inner, 0, 0, &fit(heading, inner.width.into()), style);
    if sidebar.listed().is_empty() {
        put(buffer, inner, 0, 1, "  none yet", palette.dim());
    }
    let rows = usize::from(inner.height).saturating_sub(1);
    let first = (sidebar.selected() + 1).saturating_sub(rows.max(1));
    let listed = sidebar.listed().iter().enumerate().skip(first).take(rows);
    for (y, (index, one)) in (1..).zip(listed) {
        let here = state.status.session == Some(one.session);
        let mark = if here { "• " } else { "  " };
        let used = format!(" {}", age(one.used_ms, state.wall_ms));
        let name = if one.title.is_empty() { short_session(&one.session) } else { one.title.clone() };
        let room = usize::from(inner.width).saturating_sub(width(mark) + width(&used));
        let name = fit(&name, room);
        let gap = " ".repeat(room.saturating_sub(width(&name)));
        let style = match (sidebar.focused && index == sidebar.selected(), here) {
            (true, _) => palette.marked(),
            (false, true) => palette.accent(),
            (false, false) => Style::new(),
        };
        put(buffer, inner, 0, y, &format!("{mark}{name}{gap}{used}"), style);
    }
}

/// The last line: the session, or the last key's hint.
fn draw_status(state: &State, buffer: &mut Buffer, area: Rect) {
    let palette = state.palette;
    let cells = usize::from(area.width);
    if let Some(hint) = &state.hint {
        put(buffer, area, 0, 0, &fit(hint, cells), palette.warn());
        return;
    }
    let status = &state.status;
    let id = status.session.as_ref().map(short_session).unwrap_or_default();
    let mut parts = vec![(id, palette.accent())];
    if status.turns > 0 {
        parts.push((format!("✓ {} verified", count(status.turns, "turn")), palette.good()));
    }
    parts.push((count(state.nodes as u64, "node"), palette.dim()));
    if status.pending && state.busy.is_none() {
        parts.push(("1 message not answered".to_owned(), palette.warn()));
    }
    if status.unstored > 0 {
        parts.push((format!("{} not stored yet", count(status.unstored, "turn")), palette.dim()));
    }
    if let Some(trouble) = status.trouble {
        parts.insert(1, (trouble.to_owned(), palette.warn()));
    }
    let mut x = 0;
    for (index, (text, style)) in parts.iter().enumerate() {
        let gap = if index == 0 { "" } else { " · " };
        if usize::from(x) + width(gap) + width(text) > cells {
            break;
        }
        x = put(buffer, area, x, 0, gap, palette.dim());
        x = put(buffer, area, x, 0, text, *style);
    }
    let keys = if state.busy.is_some() { BUSY_KEYS } else { KEYS };
    if usize::from(x) + 2 + width(keys) <= cells {
        let at = u16::try_from(cells.saturating_sub(width(keys))).unwrap_or(0);
        put(buffer, area, at, 0, keys, palette.dim());
    }
}
