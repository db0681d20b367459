//! The looks of text: with colour, or by weight alone for users who want none. Pure.

use ratatui::{
    buffer::Buffer,
    style::{Color, Modifier, Style},
};

use crate::out::Tone;

/// The user's text, and bold text and headings of an answer.
pub(super) const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
/// Emphasised text of an answer.
pub(super) const EMPHASIS: Style = Style::new().add_modifier(Modifier::ITALIC);
/// Text of an answer that is struck out.
pub(super) const STRUCK: Style = Style::new().add_modifier(Modifier::CROSSED_OUT);
/// The text of a link.
pub(super) const LINK: Style = Style::new().add_modifier(Modifier::UNDERLINED);
/// Code of an answer.
pub(super) const CODE: Style = Style::new().fg(Color::Magenta);
/// Minor text: frames, quotations, an answer that does not count. A dark colour would be the background in some themes.
pub(super) const DIM: Style = Style::new().add_modifier(Modifier::DIM);
/// Text that a user looks for.
pub(super) const ACCENT: Style = Style::new().fg(Color::Cyan);
/// Selected text.
pub(super) const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);
/// Good news.
pub(super) const GOOD: Style = Style::new().fg(Color::Green);
/// Text that needs the user.
pub(super) const WARN: Style = Style::new().fg(Color::Yellow);

/// The look of a remark.
pub(super) const fn of_tone(tone: Tone) -> Style {
    match tone {
        Tone::Plain => Style::new(),
        Tone::Note => DIM,
        Tone::Good => GOOD,
        Tone::Warn => WARN,
        Tone::Bad => STRONG.fg(Color::Red),
    }
}

/// Removes the colours of a frame.
pub(super) fn without_colours(frame: &mut Buffer) {
    for cell in &mut frame.content {
        // Without colour a warning must not read as an answer.
        if cell.fg == Color::Yellow {
            cell.modifier |= Modifier::BOLD;
        }
        cell.fg = Color::Reset;
    }
}
