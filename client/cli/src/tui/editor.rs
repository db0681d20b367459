//! The input: several lines of text, a cursor between grapheme clusters, and the history of sent lines. Pure;
//! it holds all data in memory alone.

use std::{collections::VecDeque, ops::Range};

use unicode_segmentation::{GraphemeCursor, UnicodeSegmentation as _};

use super::wrap;

/// Longest input: one message. A longer paste is cut.
pub(super) const MAX_BYTES: usize = baton_proto::limits::MAX_MESSAGE_BYTES;
/// Most inputs in the history.
const MAX_HISTORY: usize = 200;
/// Most bytes of all of them, except the last one.
const MAX_HISTORY_BYTES: usize = 4 * MAX_BYTES;

/// A cursor movement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Move {
    /// One character back.
    Left,
    /// One character forward.
    Right,
    /// To the beginning of a word.
    WordLeft,
    /// To the end of a word.
    WordRight,
    /// To the beginning of the line.
    Home,
    /// To the end of the line.
    End,
}

/// The input.
#[derive(Debug, Default)]
pub(super) struct Editor {
    text: String,
    /// Byte position in the text, between two characters.
    cursor: usize,
    /// The column that moves up and down keep.
    column: Option<usize>,
    history: VecDeque<String>,
    /// The shown history entry, from the oldest; `None` for the draft.
    shown: Option<usize>,
    /// The draft from before the history was shown.
    draft: String,
    /// The rows for a width.
    laid: Option<(usize, Vec<Range<usize>>)>,
}

impl Editor {
    /// The text.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Whether the text is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Inserts text at the cursor, as far as there is room; returns whether all of it fit. Drops characters
    /// that act on a terminal.
    pub(super) fn insert(&mut self, text: &str) -> bool {
        let text = crate::out::clean(&text.replace("\r\n", "\n").replace('\r', "\n"));
        let room = MAX_BYTES.saturating_sub(self.text.len()).min(text.len());
        let end = (0..=room).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        let fits = text.get(..end).unwrap_or_default();
        self.text.insert_str(self.cursor, fits);
        self.set_cursor(self.cursor + fits.len());
        self.changed();
        end == text.len()
    }

    /// Takes the whole text out.
    pub(super) fn take(&mut self) -> String {
        self.cursor = 0;
        self.shown = None;
        self.draft.clear();
        self.changed();
        std::mem::take(&mut self.text)
    }

    /// Replaces the whole text.
    pub(super) fn set(&mut self, text: String) {
        self.cursor = text.len();
        self.text = text;
        self.changed();
    }

    /// Adds a sent text to the history.
    pub(super) fn remember(&mut self, text: &str) {
        if !text.trim().is_empty() && self.history.back().is_none_or(|last| last != text) {
            self.history.push_back(text.to_owned());
        }
        let bytes = |history: &VecDeque<String>| history.iter().map(String::len).sum::<usize>();
        while self.history.len() > MAX_HISTORY
            || (self.history.len() > 1 && bytes(&self.history) > MAX_HISTORY_BYTES)
        {
            self.history.pop_front();
        }
    }

    /// Shows the next older or newer entry of the history; returns whether there is one.
    pub(super) fn recall(&mut self, older: bool) -> bool {
        let last = self.history.len();
        let next = match (self.shown, older) {
            (None, true) => last.checked_sub(1),
            (Some(at), true) => at.checked_sub(1),
            (None, false) => None,
            (Some(at), false) => Some(at + 1),
        };
        let Some(next) = next else { return false };
        if self.shown.is_none() {
            self.draft.clone_from(&self.text);
        }
        let text = self.history.get(next).unwrap_or(&self.draft).clone();
        self.set(text);
        self.shown = (next < last).then_some(next);
        true
    }

    /// Moves the cursor.
    pub(super) fn go(&mut self, to: Move) {
        self.cursor = self.target(to);
        self.column = None;
    }

    /// Deletes the text between the cursor and the target.
    pub(super) fn delete(&mut self, to: Move) {
        let target = self.target(to);
        let range = self.cursor.min(target)..self.cursor.max(target);
        if range.is_empty() {
            return;
        }
        let start = range.start;
        self.text.drain(range);
        self.set_cursor(start);
        self.changed();
    }

    /// Moves up or down by a row of this many cells; false at the edge.
    pub(super) fn go_row(&mut self, down: bool, cells: usize) -> bool {
        let (row, column) = self.cursor_position(cells);
        let wanted = self.column.unwrap_or(column);
        let next = if down { row.checked_add(1) } else { row.checked_sub(1) };
        let range = next.and_then(|next| self.rows(cells).get(next).cloned());
        let Some(range) = range else { return false };
        let mut at = range.start;
        let mut taken = 0;
        for (offset, grapheme) in self.text.get(range.clone()).unwrap_or_default().grapheme_indices(true) {
            at = range.start + offset;
            let width = wrap::shown(grapheme).1;
            if taken + width > wanted {
                break;
            }
            taken += width;
            at += grapheme.len();
        }
        // The end of a wrapped row is the beginning of the next one.
        let goes_on = at == range.end && self.rows(cells).iter().any(|row| row.start == at && row != &range);
        if goes_on {
            let before = self.text.get(range.start..at).unwrap_or_default();
            at -= before.graphemes(true).next_back().map_or(0, str::len);
        }
        self.cursor = at;
        self.column = Some(wanted);
        true
    }

    /// The rows for a width of `cells`, as ranges of the text.
    pub(super) fn rows(&mut self, cells: usize) -> &[Range<usize>] {
        let stale = self.laid.as_ref().is_none_or(|(width, _)| *width != cells);
        if stale {
            self.laid = Some((cells, wrap::wrap(&self.text, cells)));
        }
        self.laid.as_ref().map_or(&[], |(_, rows)| rows)
    }

    /// The cursor's row and column.
    pub(super) fn cursor_position(&mut self, cells: usize) -> (usize, usize) {
        let cursor = self.cursor;
        let rows = self.rows(cells);
        let row = rows.iter().rposition(|row| row.start <= cursor).unwrap_or(0);
        let start = rows.get(row).map_or(0, |row| row.start);
        (row, wrap::width(self.text.get(start..cursor).unwrap_or_default()))
    }

    fn target(&self, to: Move) -> usize {
        let before = self.text.get(..self.cursor).unwrap_or_default();
        let after = self.text.get(self.cursor..).unwrap_or_default();
        let is_word = |(_, word): &(usize, &str)| word.chars().any(char::is_alphanumeric);
        match to {
            Move::Left => before.grapheme_indices(true).next_back().map_or(0, |(at, _)| at),
            Move::Right => self.cursor + after.graphemes(true).next().map_or(0, str::len),
            Move::WordLeft => before.split_word_bound_indices().rev().find(is_word).map_or(0, |(at, _)| at),
            Move::WordRight => {
                let next = after.split_word_bound_indices().find(is_word);
                next.map_or(self.text.len(), |(at, word)| self.cursor + at + word.len())
            }
            Move::Home => before.rfind('\n').map_or(0, |at| at + 1),
            Move::End => after.find('\n').map_or(self.text.len(), |at| self.cursor + at),
        }
    }

    /// Sets the cursor to a byte, or to the end of the character around it: an insertion or cut may have
    /// joined characters.
    fn set_cursor(&mut self, at: usize) {
        let mut near = GraphemeCursor::new(at, self.text.len(), true);
        // The whole text is available, so the cursor needs no more context; in doubt the text's end is a
        // boundary.
        if near.is_boundary(&self.text, 0) == Ok(true) {
            self.cursor = at;
        } else {
            self.cursor = near.next_boundary(&self.text, 0).ok().flatten().unwrap_or(self.text.len());
        }
    }

    fn changed(&mut self) {
        self.laid = None;
        self.column = None;
    }
}
