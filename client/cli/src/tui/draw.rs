//! Draws the full-screen view. Every text on the screen was cleaned on arrival, or is cleaned here.

use ratatui::{
    Frame,
    buffer::Buffer,
    layout::{Constraint, Layout, Position, Rect},
    style::Style,
    text::{Line, Span},
    widgets::{Block, Borders, Clear, List, ListState, Padding, StatefulWidget, Widget as _},
};

use super::{
    block::Turn,
    editor::Editor,
    palette::{ACCENT, DIM, GOOD, SELECTED, WARN, without_colours},
    sidebar::SessionEntry,
    state::{Question, State},
    wrap::{fit, show, width},
};
use crate::{
    clock::age,
    out::{count, short},
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
    let list_cells = match state.sidebar.focused || (wide && !state.sidebar.hidden) {
        true if wide => SIDEBAR,
        true => body.width,
        false => 0,
    };
    let [list, conversation] =
        Layout::horizontal([Constraint::Length(list_cells), Constraint::Min(0)]).areas(body);
    draw_sidebar(state, frame.buffer_mut(), list, wide);
    let conversation = conversation.centered_horizontally(Constraint::Max(COLUMN));
    let cursor = draw_conversation(state, frame.buffer_mut(), conversation);
    let cursor = draw_question(state, frame.buffer_mut(), body).or(cursor);
    draw_status(state, frame.buffer_mut(), status);
    if !state.color {
        without_colours(frame.buffer_mut());
    }
    if let Some(cursor) = cursor.filter(|_| !state.sidebar.focused) {
        frame.set_cursor_position(cursor);
    }
}

/// Splits off at most `rows` rows at the bottom; returns the area above first.
fn split_bottom(area: Rect, rows: u16) -> [Rect; 2] {
    Layout::vertical([Constraint::Min(0), Constraint::Length(rows)]).areas(area)
}

/// Puts clean text into a row of an area, as far as it fits.
fn put<'a>(buffer: &mut Buffer, area: Rect, y: u16, text: impl Into<Line<'a>>) {
    if y < area.height {
        text.into().render(Rect { y: area.y + y, height: 1, ..area }, buffer);
    }
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
    let (rows, below) = state.pane.visible_rows(cells, area.height.into());
    let first = area.height.saturating_sub(u16::try_from(rows.len()).unwrap_or(u16::MAX));
    for (y, row) in (area.y + first..).zip(rows) {
        buffer.set_line(area.x, y, row, area.width);
    }
    below
}

/// The menu of commands, at the bottom of the conversation; it scrolls with the selected one.
fn draw_menu(state: &State, buffer: &mut Buffer, area: Rect) {
    let Some((commands, selected)) = state.menu() else { return };
    let most = (area.height / 2).max(1);
    let [_, menu] = split_bottom(area, u16::try_from(commands.len()).unwrap_or(most).min(most));
    let cells = usize::from(menu.width);
    let name_cells = if cells < NARROW_MENU { 0 } else { MENU_NAME_CELLS };
    let line = |(name, what)| fit(&format!(" {name:<name_cells$} {what}"), cells);
    let list = List::new(commands.into_iter().map(line)).highlight_style(SELECTED);
    // The conversation below must not shine through.
    Clear.render(menu, buffer);
    let mut selected = ListState::default().with_selected(Some(selected));
    StatefulWidget::render(list, menu, buffer, &mut selected);
}

/// The line above the input: running work, and the number of rows below.
fn draw_rule(state: &State, buffer: &mut Buffer, area: Rect, below: usize) {
    let more = if below == 0 { String::new() } else { format!(" ↓ {below} more · End ") };
    let room = usize::from(area.width).saturating_sub(width(&more) + 4);
    let mut rule = Block::new().borders(Borders::TOP).border_style(DIM);
    if let Some(busy) = &state.busy {
        let spent = state.now.saturating_sub(busy.since);
        let step = usize::try_from(spent.as_millis() / SPIN_MS).unwrap_or(0) % SPINNER.len();
        let spinner = SPINNER.get(step).copied().unwrap_or_default();
        let server = state.pane.running_turn().filter(|_| !busy.stopping).and_then(Turn::server);
        let usual = if busy.stopping { "stopping" } else { busy.what };
        let what = server.unwrap_or_else(|| usual.to_owned());
        let text = format!(" {spinner} {what} · {} s · Esc stops it ", spent.as_secs());
        rule = rule.title(Line::from(vec![Span::styled("─", DIM), Span::styled(fit(&text, room), ACCENT)]));
    }
    if !more.is_empty() {
        let more = Line::from(vec![Span::styled(more, ACCENT), Span::styled("─", DIM)]);
        rule = rule.title(more.right_aligned());
    }
    rule.render(area, buffer);
}

/// Draws the input, with its end or its cursor in sight; returns the cursor's position.
fn draw_input(state: &mut State, buffer: &mut Buffer, area: Rect, cells: usize) -> Option<Position> {
    if area.is_empty() {
        return None;
    }
    let indent = u16::try_from(width(PROMPT)).unwrap_or(0).min(area.width - 1);
    put(buffer, area, 0, Span::styled(PROMPT, ACCENT));
    let text = Rect { x: area.x + indent, width: area.width - indent, ..area };
    if state.message().is_empty() {
        let hint = if state.status.pending && state.busy.is_none() {
            "A message has no answer: /retry or /drop"
        } else {
            "Message, or / for commands"
        };
        put(buffer, text, 0, Span::styled(fit(hint, text.width.into()), DIM));
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
        put(buffer, area, y, show(editor.text().get(range).unwrap_or_default()));
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
            let frame = Block::bordered().border_style(ACCENT);
            frame.padding(Padding::horizontal(1)).title(heading)
        }
        _ => Block::new(),
    };
    let inside = frame.inner(area);
    Clear.render(area, buffer);
    frame.render(area, buffer);
    let cells = usize::from(inside.width);
    put(buffer, inside, 1, Span::styled(fit(keys, cells), DIM));
    if let Some(Question::Deletion(session)) = &state.question {
        let title = fit(&state.sidebar.title_of(*session), TITLE_CELLS);
        put(buffer, inside, 0, fit(&format!("Delete \"{title}\"?"), cells));
        return None;
    }
    let line = Rect { height: inside.height.min(1), ..inside };
    // A cell stays free for the cursor.
    let room = cells.saturating_sub(1).max(1);
    (!line.is_empty()).then(|| draw_editor(&mut state.editor, buffer, line, room))
}

fn draw_sidebar(state: &State, buffer: &mut Buffer, mut area: Rect, wide: bool) {
    if area.is_empty() {
        return;
    }
    let sidebar = &state.sidebar;
    if wide {
        // A column stays free, so that the frame does not touch the conversation.
        area.width -= 1;
        let frame = Block::new().borders(Borders::RIGHT).border_style(DIM);
        let inner = frame.inner(area);
        frame.render(area, buffer);
        area = inner;
    }
    let (heading, look) = match sidebar.focused {
        true => ("n new · r name · d delete", ACCENT),
        false => ("Conversations · Tab", DIM),
    };
    put(buffer, area, 0, Span::styled(fit(heading, area.width.into()), look));
    if sidebar.listed.is_empty() {
        put(buffer, area, 1, Span::styled("  none yet", DIM));
    }
    let [_, list] = split_bottom(area, area.height - 1);
    let line = |one: &SessionEntry| {
        let here = state.status.session == Some(one.session);
        let mark = if here { "• " } else { "  " };
        let used = format!(" {}", age(one.used_ms, state.wall_ms));
        let name = if one.title.is_empty() { short(&one.session) } else { one.title.clone() };
        let room = usize::from(list.width).saturating_sub(width(mark) + width(&used));
        let name = fit(&name, room);
        let gap = " ".repeat(room.saturating_sub(width(&name)));
        Line::styled(format!("{mark}{name}{gap}{used}"), if here { ACCENT } else { Style::new() })
    };
    let lines = List::new(sidebar.listed.iter().map(line));
    let lines = lines.highlight_style(if sidebar.focused { SELECTED } else { Style::new() });
    let mut selected = ListState::default().with_selected(Some(sidebar.selected));
    StatefulWidget::render(lines, list, buffer, &mut selected);
}

/// The last line: the session, or the last key's hint.
fn draw_status(state: &State, buffer: &mut Buffer, area: Rect) {
    let cells = usize::from(area.width);
    if let Some(hint) = &state.hint {
        return put(buffer, area, 0, Span::styled(fit(hint, cells), WARN));
    }
    let status = &state.status;
    let id = status.session.as_ref().map(short).unwrap_or_default();
    let mut parts = vec![(id, ACCENT)];
    if status.turns > 0 {
        parts.push((format!("✓ {} verified", count(status.turns, "turn")), GOOD));
    }
    parts.push((count(state.nodes as u64, "node"), DIM));
    if status.pending && state.busy.is_none() {
        parts.push(("1 message not answered".to_owned(), WARN));
    }
    if status.unstored > 0 {
        parts.push((format!("{} not stored yet", count(status.unstored, "turn")), DIM));
    }
    if let Some(trouble) = status.trouble {
        parts.insert(1, (trouble.to_owned(), WARN));
    }
    let mut line = Line::default();
    for (index, (text, look)) in parts.into_iter().enumerate() {
        let gap = if index == 0 { "" } else { " · " };
        if line.width() + width(gap) + width(&text) > cells {
            break;
        }
        line.extend([Span::styled(gap, DIM), Span::styled(text, look)]);
    }
    let keys = if state.busy.is_some() { BUSY_KEYS } else { KEYS };
    if line.width() + 2 + width(keys) <= cells {
        put(buffer, area, 0, Line::from(Span::styled(keys, DIM)).right_aligned());
    }
    put(buffer, area, 0, line);
}
