//! The effects of keys, the mouse and pasted text. Pure.

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseEventKind};

use super::{
    editor::{self, Move},
    state::{Effect, Question, State},
    wrap,
};

/// Rows that one step of the mouse wheel moves.
const WHEEL_ROWS: isize = 3;

impl State {
    /// Handles an event of the terminal.
    pub(super) fn input(&mut self, event: Event) -> Option<Effect> {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => return self.key(key),
            Event::Paste(text) => {
                self.sidebar.focused = false;
                self.type_in(&text);
            }
            Event::Mouse(mouse) if mouse.kind == MouseEventKind::ScrollUp => self.pane.scroll(-WHEEL_ROWS),
            Event::Mouse(mouse) if mouse.kind == MouseEventKind::ScrollDown => self.pane.scroll(WHEEL_ROWS),
            _ => {}
        }
        None
    }

    fn type_in(&mut self, text: &str) {
        if !self.editor.insert(text) {
            self.hint = Some(format!("one message has at most {} KiB", editor::MAX_BYTES / 1024));
        }
    }

    fn key(&mut self, key: KeyEvent) -> Option<Effect> {
        self.hint = None;
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        // Keys with the same effect everywhere.
        match key.code {
            KeyCode::Char('c') if control => return self.interrupt(),
            KeyCode::Char('l') if control => return Some(Effect::Redraw),
            KeyCode::F(1) => {
                self.show_help();
                return None;
            }
            _ => {}
        }
        match (&self.question, key.code) {
            (Some(Question::Deletion(session)), code) => {
                let session = *session;
                self.question = None;
                let here = self.status.session == Some(session);
                return matches!(code, KeyCode::Char('y' | 'Y')).then(|| match here {
                    true => Effect::Act("/delete yes".to_owned()),
                    false => Effect::Delete(session),
                });
            }
            (Some(Question::Title { session, .. }), KeyCode::Enter) => {
                let (session, title) = (*session, wrap::clean_line(self.editor.text()));
                self.close_question();
                return (!title.trim().is_empty()).then_some(Effect::Rename(session, title));
            }
            (Some(_), KeyCode::Esc) => {
                self.close_question();
                return None;
            }
            (Some(_), KeyCode::Tab) => return None,
            _ => {}
        }
        if self.sidebar.focused {
            return self.sidebar_key(key);
        }
        if self.scroll_key(key, control) {
            return None;
        }
        if control && key.code == KeyCode::Char('d') && self.editor.is_empty() {
            return Some(Effect::Leave);
        }
        self.editor_key(key, control)
    }

    /// Ctrl-C: closes a question, or else ends the running work, or else empties the input, or else leaves.
    fn interrupt(&mut self) -> Option<Effect> {
        if self.close_question() {
            return None;
        }
        if self.busy.is_some() {
            return self.stop();
        }
        self.sidebar.focused = false;
        if self.editor.is_empty() {
            return Some(Effect::Leave);
        }
        let text = self.editor.take();
        self.editor.remember(&text);
        None
    }

    fn sidebar_key(&mut self, key: KeyEvent) -> Option<Effect> {
        match key.code {
            KeyCode::Up | KeyCode::Char('k') => self.sidebar.step(-1),
            KeyCode::Down | KeyCode::Char('j') => self.sidebar.step(1),
            KeyCode::PageUp => self.sidebar.step(-10),
            KeyCode::PageDown => self.sidebar.step(10),
            KeyCode::Home => self.sidebar.step(isize::MIN),
            KeyCode::End => self.sidebar.step(isize::MAX),
            KeyCode::Esc | KeyCode::Tab => self.sidebar.focused = false,
            KeyCode::Char('b') if key.modifiers.contains(KeyModifiers::CONTROL) => self.toggle_sidebar(),
            KeyCode::Char('n') => return self.open("/new".to_owned()),
            KeyCode::Char(c @ ('r' | 'd')) => self.ask_about_choice(c == 'r'),
            KeyCode::Enter => {
                let session = self.sidebar.choice()?;
                if Some(session) == self.status.session {
                    self.sidebar.focused = false;
                    return None;
                }
                return self.open(format!("/switch {session}"));
            }
            _ => {}
        }
        None
    }

    /// Asks for a title of the selected session, or whether to delete it.
    fn ask_about_choice(&mut self, title: bool) {
        let Some(session) = self.sidebar.choice() else { return };
        match title {
            _ if self.is_busy() => {}
            true => self.ask_title(session),
            false => self.question = Some(Question::Deletion(session)),
        }
    }

    /// Opens another session, unless something runs in this one.
    fn open(&mut self, line: String) -> Option<Effect> {
        if self.is_busy() {
            return None;
        }
        self.sidebar.focused = false;
        Some(Effect::Act(line))
    }

    fn toggle_sidebar(&mut self) {
        self.sidebar.hidden = !self.sidebar.hidden;
        self.sidebar.focused = false;
    }

    /// Scrolls the conversation or focuses the area beside it; returns whether the key does that.
    fn scroll_key(&mut self, key: KeyEvent, control: bool) -> bool {
        let shift = key.modifiers.contains(KeyModifiers::SHIFT);
        match key.code {
            KeyCode::PageUp => self.pane.scroll_page(-1),
            KeyCode::PageDown => self.pane.scroll_page(1),
            KeyCode::Up if control || shift => self.pane.scroll(-1),
            KeyCode::Down if control || shift => self.pane.scroll(1),
            KeyCode::Home if control => self.pane.scroll(isize::MIN),
            KeyCode::End if control => self.pane.follow(),
            KeyCode::Tab if self.menu().is_some() => self.complete(),
            KeyCode::Tab => self.sidebar.focus(self.status.session),
            KeyCode::Char('b') if control => self.toggle_sidebar(),
            _ => return false,
        }
        true
    }

    fn editor_key(&mut self, key: KeyEvent, control: bool) -> Option<Effect> {
        let alt = key.modifiers.contains(KeyModifiers::ALT);
        let words = control || alt;
        let by = |word: Move, character: Move| if words { word } else { character };
        match key.code {
            KeyCode::Enter if alt || key.modifiers.contains(KeyModifiers::SHIFT) => self.type_in("\n"),
            KeyCode::Enter => return self.enter(),
            KeyCode::Esc if self.busy.is_none() => self.close_menu(),
            KeyCode::Esc => return self.stop(),
            KeyCode::Char('j') if control => self.type_in("\n"),
            KeyCode::Char(c) if control => self.control_key(c),
            KeyCode::Char('b') if alt => self.editor.go(Move::WordLeft),
            KeyCode::Char('f') if alt => self.editor.go(Move::WordRight),
            KeyCode::Char(_) if alt => {}
            KeyCode::Char(c) => self.type_in(c.encode_utf8(&mut [0; 4])),
            KeyCode::Backspace => self.editor.delete(by(Move::WordLeft, Move::Left)),
            KeyCode::Delete => self.editor.delete(by(Move::WordRight, Move::Right)),
            KeyCode::Left => self.editor.go(by(Move::WordLeft, Move::Left)),
            KeyCode::Right => self.editor.go(by(Move::WordRight, Move::Right)),
            KeyCode::Home => self.editor.go(Move::Home),
            KeyCode::End => {
                self.editor.go(Move::End);
                self.pane.follow();
            }
            KeyCode::Up => self.up(),
            KeyCode::Down => self.down(),
            _ => {}
        }
        None
    }

    fn control_key(&mut self, c: char) {
        match c {
            'a' => self.editor.go(Move::Home),
            'e' => self.editor.go(Move::End),
            'd' => self.editor.delete(Move::Right),
            'w' => self.editor.delete(Move::WordLeft),
            'u' => self.editor.delete(Move::Home),
            'k' => self.editor.delete(Move::End),
            _ => {}
        }
    }

    /// A row up; from the first one, to the history.
    fn up(&mut self) {
        let moved = self.step_menu(false) || self.editor.go_row(false, self.input_cells);
        if !moved {
            self.recall(true);
        }
    }

    fn down(&mut self) {
        if !self.step_menu(true) && !self.editor.go_row(true, self.input_cells) {
            self.recall(false);
        }
    }

    /// Shows an entry of the history, without a menu: the next key goes on through the history.
    fn recall(&mut self, older: bool) {
        if self.editor.recall(older) {
            self.close_menu();
        }
    }
}
