//! Blocks of the conversation: turns, and remarks between them; each as rows of a width. Pure.

use std::time::Duration;

use baton_client::TurnEvent;
use baton_proto::ids::{LinkHash, NodeId};
use ratatui::text::{Line, Span};

use super::{
    markdown,
    palette::{ACCENT, DIM, STRONG, of_tone},
    wrap,
};
use crate::{
    out::{Tone, inbox::FinishedTurn, short},
    turn_display,
};

/// Columns by which a turn's text is indented, if there is room.
const INDENT: usize = 2;
/// Smallest width with an indent.
const WIDE_ENOUGH: usize = 24;
/// Most bytes of text shown of a session, so that a few huge turns do not fill the memory with rows.
pub(super) const MAX_BYTES: usize = 2 * 1024 * 1024;
/// Most remarks shown of one turn. Attempts are few, and each makes two or three.
const MAX_PARTS: usize = 200;

/// A part of an answer, in order of arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    /// The node asked.
    Attempt(String),
    Remark(Tone, String),
}

impl Part {
    fn text_len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Attempt(_) | Self::Remark(..) => 0,
        }
    }
}

/// The state of a turn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum AnswerStatus {
    /// The answer is streaming.
    #[default]
    Running,
    /// It was verified.
    Verified(String),
    /// The answer is missing or incomplete.
    Failed {
        /// Whether the message is in the journal; otherwise it is in the input again.
        is_kept: bool,
    },
    /// The user ended it. Its message waits.
    Stopped,
    /// It was given up: nothing waits any more.
    Dropped,
}

/// A turn.
#[derive(Debug, Clone, Default)]
pub(super) struct Turn {
    /// Its link, once it has one.
    pub link: Option<LinkHash>,
    message: String,
    parts: Vec<Part>,
    /// Its state.
    pub status: AnswerStatus,
    /// The remark while it waits in the node's queue.
    waiting: Option<String>,
    /// The node asked, and its model.
    server: Option<(NodeId, String)>,
    /// When the first and the last text arrived.
    text_times: Option<(Duration, Duration)>,
}

impl Turn {
    /// A turn that begins.
    pub(super) fn begin(message: &str) -> Self {
        Self { message: wrap::clean(message), ..Self::default() }
    }

    /// A turn of the journal.
    pub(super) fn from_journal(
        link: LinkHash,
        message: &str,
        notes: &[String],
        answer: &str,
        verified: &str,
    ) -> Self {
        let notes = notes.iter().map(|note| Part::Remark(Tone::Note, wrap::clean(note)));
        let parts = notes.chain([Part::Text(wrap::clean(answer))]).collect();
        let status = AnswerStatus::Verified(wrap::clean_line(verified));
        Self { link: Some(link), parts, status, ..Self::begin(message) }
    }

    /// Bytes of its message and its answer.
    pub(super) fn text_len(&self) -> usize {
        self.message.len() + self.parts.iter().map(Part::text_len).sum::<usize>()
    }

    /// The node asked, with its model.
    pub(super) fn server(&self) -> Option<String> {
        self.server.as_ref().map(|(node, model)| format!("node {} · {model}", short(node)))
    }

    /// Whether the answer still streams.
    pub(super) fn is_running(&self) -> bool {
        self.status == AnswerStatus::Running
    }

    /// Whether it has this text and no answer: then a new attempt replaces it.
    pub(super) fn is_unanswered(&self, message: &str) -> bool {
        matches!(self.status, AnswerStatus::Failed { .. }) && self.message == wrap::clean(message)
    }

    /// Takes an event of the turn.
    pub(super) fn take(&mut self, event: &TurnEvent, now: Duration) {
        let remark = turn_display::remark(event, self.server.as_ref().map(|(node, _)| *node));
        match event {
            TurnEvent::Text(text) => return self.take_text(text, now),
            TurnEvent::Waiting(_) => {
                self.waiting = remark.map(|(_, text)| text);
                return;
            }
            TurnEvent::Restarted => self.parts.retain(|part| !matches!(part, Part::Text(_))),
            TurnEvent::Attempt { node, model, .. } => {
                self.server = Some((*node, wrap::clean_line(model)));
            }
            TurnEvent::Memory(items) => {
                for line in turn_display::memory_lines(items) {
                    self.remark(Tone::Note, &line);
                }
            }
            _ => {}
        }
        self.waiting = None;
        let Some((tone, text)) = remark else { return };
        if matches!(event, TurnEvent::Attempt { .. }) && self.parts.len() < MAX_PARTS {
            self.parts.push(Part::Attempt(wrap::clean_line(&text)));
        } else {
            self.remark(tone, &text);
        }
    }

    fn take_text(&mut self, text: &str, now: Duration) {
        self.waiting = None;
        self.text_times = Some((self.text_times.map_or(now, |(first, _)| first), now));
        let text = wrap::clean(text);
        let held = self.text_len() - self.message.len();
        let is_room = self.parts.len() < MAX_PARTS;
        match self.parts.last_mut() {
            // No accepted answer is longer.
            _ if held + text.len() > MAX_BYTES => {}
            Some(Part::Text(before)) => before.push_str(&text),
            _ if is_room => self.parts.push(Part::Text(text)),
            _ => {}
        }
    }

    /// A remark within the turn.
    pub(super) fn remark(&mut self, tone: Tone, text: &str) {
        if self.parts.len() < MAX_PARTS {
            self.parts.push(Part::Remark(tone, wrap::clean(text)));
        }
    }

    /// The turn was accepted. The answer then stands in one piece, below the remarks. These name the nodes
    /// asked, if there was more than one attempt.
    pub(super) fn finish(&mut self, finished: &FinishedTurn) {
        let asked = self.parts.iter().filter(|part| matches!(part, Part::Attempt(_))).count();
        self.parts.retain(|part| match part {
            Part::Text(_) => false,
            Part::Attempt(_) => asked > 1,
            Part::Remark(..) => true,
        });
        self.parts.push(Part::Text(wrap::clean(&finished.text)));
        let (first, last) = self.text_times.unwrap_or_default();
        let measured = speed(finished.tokens, last.saturating_sub(first).as_secs_f64());
        let model = self.server.as_ref().map_or_else(String::new, |(_, model)| format!(" · {model}"));
        let line = format!("{}{model}{measured}", finished.verified);
        self.status = AnswerStatus::Verified(wrap::clean_line(&line));
        self.link = Some(finished.link);
    }

    /// The rows for a width of `cells`.
    fn rows(&self, cells: usize) -> Vec<Line<'static>> {
        let indent = if cells >= WIDE_ENOUGH { INDENT } else { 0 };
        let inner = cells.saturating_sub(indent).max(1);
        let mut rows = Vec::new();
        if !self.message.is_empty() {
            let texts = wrap::rows(&self.message, cells.saturating_sub(INDENT).max(1));
            rows.extend(texts.into_iter().enumerate().map(|(index, text)| {
                let mark = if index == 0 { "› " } else { "  " };
                Line::from(vec![Span::styled(mark, STRONG.patch(ACCENT)), Span::styled(text, STRONG)])
            }));
        }
        let is_void = !matches!(self.status, AnswerStatus::Running | AnswerStatus::Verified(_));
        let mut answer = Vec::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => {
                    let mut lines = markdown::rows(text.trim_matches('\n'), inner);
                    if is_void {
                        // All of an answer that does not count looks alike.
                        lines.iter_mut().flat_map(|line| &mut line.spans).for_each(|span| span.style = DIM);
                    }
                    answer.extend(lines);
                }
                Part::Attempt(text) => answer.extend(remark_rows(Tone::Note, text, inner)),
                Part::Remark(tone, text) => answer.extend(remark_rows(*tone, text, inner)),
            }
        }
        if let Some((tone, text)) = self.last_line() {
            answer.extend(remark_rows(tone, text, inner));
        }
        for mut row in answer {
            row.spans.insert(0, " ".repeat(indent).into());
            rows.push(row);
        }
        rows
    }

    /// The line below the answer.
    fn last_line(&self) -> Option<(Tone, &str)> {
        Some(match &self.status {
            AnswerStatus::Running => (Tone::Note, self.waiting.as_deref()?),
            AnswerStatus::Verified(line) => (Tone::Good, line),
            AnswerStatus::Failed { is_kept: true } => {
                (Tone::Warn, "No answer. The message is kept: /retry or /drop")
            }
            AnswerStatus::Failed { is_kept: false } => {
                (Tone::Warn, "No answer. The message is not kept: it is in the line again.")
            }
            AnswerStatus::Stopped => (
                Tone::Note,
                "Stopped: this is not part of the conversation. /continue takes it up, /edit changes the message.",
            ),
            AnswerStatus::Dropped => (Tone::Note, "Discarded: this is not part of the conversation."),
        })
    }
}

/// The rows of a remark.
fn remark_rows(tone: Tone, text: &str, cells: usize) -> impl Iterator<Item = Line<'static>> {
    wrap::hanging_rows(text, cells).into_iter().map(move |text| Line::from(Span::styled(text, of_tone(tone))))
}

/// An entry of the conversation.
#[derive(Debug, Clone)]
pub(super) enum Content {
    /// A turn.
    Turn(Box<Turn>),
    /// A remark between turns.
    Remark(Tone, String),
    /// A note that there are earlier turns.
    Earlier(String),
}

impl Content {
    /// The entry's turn, if it is one.
    pub(super) fn turn(&self) -> Option<&Turn> {
        match self {
            Self::Turn(turn) => Some(turn),
            Self::Remark(..) | Self::Earlier(_) => None,
        }
    }

    /// The rows for a width of `cells`; before a turn there is an empty row.
    pub(super) fn rows(&self, cells: usize) -> Vec<Line<'static>> {
        match self {
            Self::Turn(turn) => {
                let mut rows = vec![Line::default()];
                rows.extend(turn.rows(cells));
                rows
            }
            Self::Remark(tone, text) => remark_rows(*tone, text, cells).collect(),
            Self::Earlier(text) => remark_rows(Tone::Note, text, cells).collect(),
        }
    }
}

/// Tokens a second without the first one, as a part of a line; empty if not meaningful.
pub(super) fn speed(tokens: u32, seconds: f64) -> String {
    if tokens < 2 || seconds < 0.001 {
        return String::new();
    }
    format!(" · {:.0}/s", f64::from(tokens - 1) / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_is_empty_where_it_is_not_meaningful() {
        assert_eq!(speed(21, 2.0), " · 10/s");
        assert_eq!(speed(1, 2.0), "");
        assert_eq!(speed(50, 0.0), "");
    }
}
