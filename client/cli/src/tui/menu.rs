//! The menu of commands, while the input is the beginning of a command. Pure.

use super::state::{Effect, State};
use crate::chat::line::HELP;

/// The user's choice in the menu.
#[derive(Debug, Default)]
pub(super) struct Menu {
    /// The input that the choice is for; another input has the first row, and an open menu.
    input: String,
    selected: usize,
    closed: bool,
}

/// A command, with its description.
type CommandHelp = (&'static str, &'static str);

/// The commands of `/`, from the help.
pub(super) fn commands() -> impl Iterator<Item = CommandHelp> {
    HELP.lines().filter_map(|line| line.split_once("  ")).map(|(name, what)| (name, what.trim()))
}

/// A command's name, without its argument.
fn name_of(command: &str) -> &str {
    command.split_whitespace().next().unwrap_or_default()
}

impl State {
    /// The open menu: the commands that begin as the input does, and the selected row.
    pub(super) fn menu(&self) -> Option<(Vec<CommandHelp>, usize)> {
        let text = self.editor.text();
        let is_name = text.starts_with('/') && !text.starts_with("//") && !text.contains(char::is_whitespace);
        let same = self.menu.input == text;
        if !is_name || (same && self.menu.closed) {
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

    /// Completes the name of a command as far as it is certain, or else to the selected one.
    pub(super) fn complete(&mut self) {
        let Some((found, selected)) = self.menu() else { return };
        let mut names = found.iter().map(|(command, _)| name_of(command));
        let Some(first) = names.next() else { return };
        let common = names.fold(first.len(), |common, other| {
            first.bytes().zip(other.bytes()).take(common).take_while(|(a, b)| a == b).count()
        });
        let certain = first.get(..common).unwrap_or_default();
        if certain.len() > self.editor.text().len() && found.len() > 1 {
            self.editor.set(certain.to_owned());
        } else if let Some((command, _)) = found.get(selected) {
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
