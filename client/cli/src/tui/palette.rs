//! How things look: with colour, or, for who wants none, by weight alone. Pure.

use ratatui::style::{Color, Modifier, Style};

use super::block::Ink;
use crate::out::Tone;

/// The looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Palette {
    color: bool,
}

impl Palette {
    /// With colour or without.
    pub fn new(color: bool) -> Self {
        Self { color }
    }

    fn color(self, color: Color) -> Style {
        if self.color { Style::new().fg(color) } else { Style::new() }
    }

    /// Of a piece of the conversation.
    pub fn ink(self, ink: Ink) -> Style {
        match ink {
            Ink::Mark => self.accent().add_modifier(Modifier::BOLD),
            Ink::Said => Style::new().add_modifier(Modifier::BOLD),
            Ink::Answer | Ink::Remark(Tone::Plain) => Style::new(),
            Ink::Void | Ink::Remark(Tone::Note) => self.dim(),
            Ink::Remark(Tone::Good) => self.color(Color::Green),
            // Without colour a warning must not read as an answer.
            Ink::Remark(Tone::Warn) if !self.color => Style::new().add_modifier(Modifier::BOLD),
            Ink::Remark(Tone::Warn) => self.color(Color::Yellow),
            Ink::Remark(Tone::Bad) => self.color(Color::Red).add_modifier(Modifier::BOLD),
        }
    }

    /// Of what is beside the point.
    pub fn dim(self) -> Style {
        // A dark colour of its own would be the background in some themes.
        Style::new().add_modifier(Modifier::DIM)
    }

    /// Of what is looked for.
    pub fn accent(self) -> Style {
        self.color(Color::Cyan)
    }

    /// Of what needs the user.
    pub fn warn(self) -> Style {
        self.ink(Ink::Remark(Tone::Warn))
    }

    /// Of what is good.
    pub fn good(self) -> Style {
        self.ink(Ink::Remark(Tone::Good))
    }

    /// Of what is marked.
    pub fn marked(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}
