//! The small box that asks for a title, or before a deletion. Its text never reaches the message line, so that no
//! title is sent to a node. Pure.

use baton_proto::ids::SessionId;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::{
    buffer::Buffer,
    layout::{Position, Rect, Size},
    style::Style,
};

use super::{
    draw::{draw_box, put},
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
    let (style, dim) = (state.palette.accent(), state.palette.dim());
    let question = state.question.as_mut()?;
    let heading = if question.new_title.is_some() { " title " } else { " delete " };
    let inside = draw_box(buffer, area, Size { width: WIDEST, height: ROWS }, heading, style);
    let cells = usize::from(inside.width).max(1);
    match &mut question.new_title {
        Some(title) => {
            // A cell stays free for the cursor.
            let room = cells.saturating_sub(1).max(1);
            let (row, column) = title.cursor_position(room);
            let range = title.rows(room).get(row).cloned().unwrap_or_default();
            put(buffer, inside, 0, 0, title.text().get(range).unwrap_or_default(), Style::new());
            put(buffer, inside, 0, 1, &wrap::fit("Enter saves · Esc leaves it", cells), dim);
            let column = u16::try_from(column.min(cells - 1)).unwrap_or(0);
            (inside.height > 0).then_some(Position { x: inside.x + column, y: inside.y })
        }
        None => {
            let fixed = wrap::width("Delete \"\"?");
            let title = wrap::fit(&question.title, cells.saturating_sub(fixed));
            put(buffer, inside, 0, 0, &wrap::fit(&format!("Delete \"{title}\"?"), cells), Style::new());
            put(buffer, inside, 0, 1, &wrap::fit("y deletes · any other key keeps it", cells), dim);
            None
        }
    }
}
