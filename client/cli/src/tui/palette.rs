//! Styles: with colour, or by weight alone for users who want none. Pure.

use ratatui::style::{Color, Modifier, Style};

use super::block::Ink;
use crate::out::Tone;

/// The styles.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Palette {
    color: bool,
}

impl Palette {
    /// With colour or without.
    pub(super) fn new(color: bool) -> Self {
        Self { color }
    }

    fn color(self, color: Color) -> Style {
        if self.color { Style::new().fg(color) } else { Style::new() }
    }

    /// The style of a piece of the conversation.
    pub(super) fn ink(self, ink: Ink) -> Style {
        match ink {
            Ink::Mark => self.accent().add_modifier(Modifier::BOLD),
            Ink::Message => Style::new().add_modifier(Modifier::BOLD),
            Ink::Answer | Ink::Remark(Tone::Plain) => Style::new(),
            Ink::Strong => Style::new().add_modifier(Modifier::BOLD),
            Ink::Emphasis => Style::new().add_modifier(Modifier::ITALIC),
            Ink::Struck => Style::new().add_modifier(Modifier::CROSSED_OUT),
            Ink::Link => Style::new().add_modifier(Modifier::UNDERLINED),
            Ink::Code => self.color(Color::Magenta),
            Ink::Fence | Ink::Quote => self.dim(),
            Ink::Void | Ink::Remark(Tone::Note) => self.dim(),
            Ink::Remark(Tone::Good) => self.color(Color::Green),
            // Without colour a warning must not read as an answer.
            Ink::Remark(Tone::Warn) if !self.color => Style::new().add_modifier(Modifier::BOLD),
            Ink::Remark(Tone::Warn) => self.color(Color::Yellow),
            Ink::Remark(Tone::Bad) => self.color(Color::Red).add_modifier(Modifier::BOLD),
        }
    }

    /// The style of minor text.
    pub(super) fn dim(self) -> Style {
        // A dark colour of its own would be the background in some themes.
        Style::new().add_modifier(Modifier::DIM)
    }

    /// The style of text that a user looks for.
    pub(super) fn accent(self) -> Style {
        self.color(Color::Cyan)
    }

    /// The style of text that needs the user.
    pub(super) fn warn(self) -> Style {
        self.ink(Ink::Remark(Tone::Warn))
    }

    /// The style of good news.
    pub(super) fn good(self) -> Style {
        self.ink(Ink::Remark(Tone::Good))
    }

    /// The style of marked text.
    pub(super) fn marked(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}
