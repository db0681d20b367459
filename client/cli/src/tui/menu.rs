//! The menu of commands, while the input is the beginning of a command. Pure.

use super::state::{Effect, State};
use crate::chat::line::{CommandHelp, commands, name_of};

/// The user's choice in the menu.
#[derive(Debug, Default)]
pub(super) struct Menu {
    /// The input that the choice is for; another input has the first row, and an open menu.
    input: String,
    selected: usize,
    closed: bool,
}

impl State {
    /// The open menu: the commands that begin as the input does, and the selected row.
    pub(super) fn menu(&self) -> Option<(Vec<CommandHelp>, usize)> {
        let text = self.editor.text();
        let is_name = text.starts_with('/') && !text.starts_with("//") && !text.contains(char::is_whitespace);
        let same = self.menu.input == text;
        if !is_name || self.question.is_some() || (same && self.menu.closed) {
            return None;
        }
        let found: Vec<_> = commands().filter(|(name, _)| name.starts_with(text)).collect();
        let last = found.len().checked_sub(1)?;
        Some((found, if same { self.menu.selected.min(last) } else { 0 }))
    }

    /// Selects the next row, or the one before; returns whether the menu is open.
    pub(super) fn step_menu(&mut self, down: bool) -> bool {
        let Some((found, selected)) = self.menu() else { return false };
        let next = if down { selected + 1 } else { selected.saturating_sub(1) };
        let selected = next.min(found.len().saturating_sub(1));
        self.menu = Menu { input: self.editor.text().to_owned(), selected, closed: false };
        true
    }

    /// Closes the menu until the input changes.
    pub(super) fn close_menu(&mut self) {
        self.menu = Menu { input: self.editor.text().to_owned(), selected: 0, closed: true };
    }

    /// Completes the name of the selected command.
    pub(super) fn complete(&mut self) {
        let Some((found, selected)) = self.menu() else { return };
        if let Some((command, _)) = found.get(selected) {
            let gap = if command.contains(' ') { " " } else { "" };
            self.editor.set(format!("{}{gap}", name_of(command)));
        }
    }

    /// Handles Enter: a part of a name becomes the selected command, which runs unless it needs more.
    pub(super) fn enter(&mut self) -> Option<Effect> {
        if let Some((found, selected)) = self.menu()
            && let Some((command, _)) = found.get(selected)
            && name_of(command) != self.editor.text()
        {
            // An argument in brackets may be left out.
            let needs_more = command.split_once(' ').is_some_and(|(_, argument)| !argument.starts_with('['));
            let gap = if needs_more { " " } else { "" };
            self.editor.set(format!("{}{gap}", name_of(command)));
            if needs_more {
                return None;
            }
        }
        self.submit()
    }
}
