//! The small box that asks for a title, or before a deletion. Its text never reaches the message line, so that no
//! title is sent to a node. Pure.

use baton_proto::ids::SessionId;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::{
    buffer::Buffer,
    layout::{Position, Rect},
    style::Style,
};

use super::{
    draw::put,
    editor::{Editor, Move},
    state::{Effect, State},
    wrap,
};

/// Widest box, in cells, with its frame.
const WIDEST: u16 = 60;
/// Rows of the box, with its frame.
const ROWS: u16 = 4;

/// An open question about a session.
#[derive(Debug)]
pub(super) struct Question {
    session: SessionId,
    /// Its present title.
    title: String,
    /// The new title, if it is a question for one; otherwise the session is about to be deleted.
    new_title: Option<Editor>,
}

impl State {
    /// Asks for a title of a session.
    pub(super) fn ask_title(&mut self, session: SessionId) {
        let title = self.sidebar.title_of(session);
        let mut new_title = Editor::default();
        new_title.set(title.clone());
        self.question = Some(Question { session, title, new_title: Some(new_title) });
    }

    /// Asks whether to delete a session.
    pub(super) fn ask_deletion(&mut self, session: SessionId) {
        let title = self.sidebar.title_of(session);
        self.question = Some(Question { session, title, new_title: None });
    }

    /// Takes a pasted text into the open question; false if there is none.
    pub(super) fn paste_into_question(&mut self, text: &str) -> bool {
        let Some(question) = &mut self.question else { return false };
        if let Some(title) = &mut question.new_title {
            title.insert(&wrap::clean_line(text));
        }
        true
    }

    /// Handles a key while a question is open.
    pub(super) fn question_key(&mut self, key: KeyEvent) -> Option<Effect> {
        let question = self.question.as_mut()?;
        let session = question.session;
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        let Some(title) = &mut question.new_title else {
            self.question = None;
            let here = self.status.session == Some(session);
            return match key.code {
                KeyCode::Char('y' | 'Y') if here => Some(Effect::Act("/delete yes".to_owned())),
                KeyCode::Char('y' | 'Y') => Some(Effect::Delete(session)),
                _ => None,
            };
        };
        match key.code {
            KeyCode::Enter => {
                let title = title.take();
                self.question = None;
                return (!title.trim().is_empty()).then_some(Effect::Rename(session, title));
            }
            KeyCode::Esc => self.question = None,
            KeyCode::Char('a') if control => title.go(Move::Home),
            KeyCode::Char('e') if control => title.go(Move::End),
            KeyCode::Char('u') if control => title.delete(Move::Home),
            KeyCode::Char('k') if control => title.delete(Move::End),
            KeyCode::Char('w') if control => title.delete(Move::WordLeft),
            KeyCode::Char(c) if !control => drop(title.insert(c.encode_utf8(&mut [0; 4]))),
            KeyCode::Backspace => title.delete(Move::Left),
            KeyCode::Delete => title.delete(Move::Right),
            KeyCode::Left => title.go(Move::Left),
            KeyCode::Right => title.go(Move::Right),
            KeyCode::Home => title.go(Move::Home),
            KeyCode::End => title.go(Move::End),
            _ => {}
        }
        None
    }
}

/// Draws the open question over an area; returns the position of its cursor.
pub(super) fn draw(state: &mut State, buffer: &mut Buffer, area: Rect) -> Option<Position> {
    let style = state.palette.accent();
    let dim = state.palette.dim();
    let question = state.question.as_mut()?;
    let (width, height) = (area.width.min(WIDEST), area.height.min(ROWS));
    if width < 4 || height == 0 {
        return None;
    }
    let frame =
        Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    let is_framed = height == ROWS;
    for y in 0..height {
        put(buffer, frame, (0, y), &" ".repeat(width.into()), Style::reset());
    }
    let heading = if question.new_title.is_some() { " title " } else { " delete " };
    if is_framed {
        let bar = "─".repeat(usize::from(width) - 2);
        put(buffer, frame, (0, 0), &format!("┌{bar}┐"), style);
        put(buffer, frame, (2, 0), heading, style);
        put(buffer, frame, (0, height - 1), &format!("└{bar}┘"), style);
        for y in 1..height - 1 {
            put(buffer, frame, (0, y), "│", style);
            put(buffer, frame, (width - 1, y), "│", style);
        }
    }
    let (x, y) = if is_framed { (2, 1) } else { (0, 0) };
    let cells = usize::from(width.saturating_sub(2 * x)).max(1);
    match &mut question.new_title {
        Some(title) => {
            // A cell stays free for the cursor.
            let room = cells.saturating_sub(1).max(1);
            let (row, column) = title.cursor_position(room);
            let range = title.rows(room).get(row).cloned().unwrap_or_default();
            put(buffer, frame, (x, y), title.text().get(range).unwrap_or_default(), Style::new());
            put(buffer, frame, (x, y + 1), &wrap::fit("Enter saves · Esc leaves it", cells), dim);
            let column = u16::try_from(column.min(cells - 1)).unwrap_or(0);
            (y < height).then_some(Position { x: frame.x + x + column, y: frame.y + y })
        }
        None => {
            let fixed = wrap::width("Delete \"\"?");
            let title = wrap::fit(&question.title, cells.saturating_sub(fixed));
            put(buffer, frame, (x, y), &wrap::fit(&format!("Delete \"{title}\"?"), cells), Style::new());
            put(buffer, frame, (x, y + 1), &wrap::fit("y deletes · any other key keeps it", cells), dim);
            None
        }
    }
}
