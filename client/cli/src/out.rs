//! The user's output. Foreign text loses its control characters, so that an answer cannot drive the terminal;
//! colour is only for terminals.
//!
//! It goes to standard output and error, line by line, or to the full-screen view, if there is one.

pub(crate) mod inbox;
pub(crate) mod printable;
pub(crate) mod wrap;

use std::{
    io::{self, Write as _},
    sync::Arc,
    time::Duration,
};

use baton_kit::{
    output::kept,
    terminal::{can_redraw, wants_colour},
};
use baton_proto::{
    ids::{NodeId, SessionId},
    record::{FinishReason, Role},
};
use serde_json::{Value, json};

use inbox::{Inbox, ViewMessage};
use printable::acts;
pub(crate) use printable::clean;

use crate::clock::date_time;

/// A number of things: `1 turn`, `2 turns`.
pub(crate) fn count(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// A number of memories.
pub(crate) fn memories(number: u64) -> String {
    if number == 1 { "1 memory".to_owned() } else { format!("{number} memories") }
}

/// The first characters of a text; a cut is marked.
pub(crate) fn beginning(text: &str, most_chars: usize) -> String {
    let mut shown: String = text.chars().take(most_chars).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

/// The reason for an answer's end, for programs.
pub(crate) fn finish_name(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Stop => "stop",
        FinishReason::StopString => "stop_string",
        FinishReason::Length => "length",
        FinishReason::ToolCall => "tool_call",
        FinishReason::None => "none",
    }
}

/// The tone of a remark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// The requested output.
    Plain,
    /// Beside the conversation.
    Note,
    /// Good news.
    Good,
    /// A warning.
    Warn,
    /// An error.
    Bad,
}

/// Larger numbers of a table are times, in milliseconds since the Unix epoch.
const EARLIEST_MS: u64 = 1_000_000_000_000;
/// After this long, a wait is mentioned.
const SLOW: Duration = Duration::from_millis(700);

/// Longest text for a terminal's clipboard: many terminals ignore a sequence of more than 100,000 bytes.
pub(crate) const MAX_COPY_BYTES: usize = 72 * 1024;

/// The output.
#[derive(Debug, Clone)]
pub(crate) struct Out {
    json: bool,
    color: bool,
    /// The full-screen view, which then receives everything but JSON.
    screen: Option<Arc<Inbox>>,
    /// The beginning of a command for the same home; none if the home is about to be removed.
    command: Option<String>,
}

impl Out {
    /// Checks whether there is a terminal.
    pub(crate) fn new(json: bool) -> Self {
        let color = !json && wants_colour(&io::stdout()) && wants_colour(&io::stderr());
        Self { json, color, screen: None, command: Some("baton".to_owned()) }
    }

    /// The same user, at a full-screen view.
    pub(crate) fn on_screen(&self, screen: Arc<Inbox>) -> Self {
        Self { json: false, screen: Some(screen), ..self.clone() }
    }

    /// The same user, with this beginning of later commands.
    #[must_use]
    pub(crate) fn with_command(self, command: Option<String>) -> Self {
        Self { command, ..self }
    }

    /// The command that continues a session; none if the session is about to be removed.
    pub(crate) fn continuation(&self, session: &str) -> Option<String> {
        self.command.as_ref().map(|command| format!("{command} chat -s {session}"))
    }

    /// The full-screen view.
    pub(crate) fn screen(&self) -> Option<&Inbox> {
        self.screen.as_deref()
    }

    /// Waits until the user ends the running work: by Ctrl-C as a signal, or by a key of the full-screen
    /// view. An interrupt while nothing waits reaches the view alone.
    pub(crate) async fn interrupted(&self) {
        match &self.screen {
            Some(screen) => screen.stopped().await,
            // Without a handler, wait for the end of the process.
            None => drop(tokio::signal::ctrl_c().await),
        }
    }

    /// Whether the output is JSON.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// A line of JSON.
    pub(crate) fn value(&self, value: &Value) -> io::Result<()> {
        let mut out = io::stdout().lock();
        kept(writeln!(out, "{value}").and_then(|()| out.flush()))
    }

    /// A line.
    pub(crate) fn line(&self, text: &str) -> io::Result<()> {
        if let Some(screen) = self.screen() {
            screen.push(ViewMessage::Remark(Tone::Plain, text.to_owned()));
            return Ok(());
        }
        kept(writeln!(io::stdout().lock(), "{text}"))
    }

    /// Rows in columns under a heading. Columns of numbers are right-aligned.
    pub(crate) fn table(&self, heading: &[&str], rows: Vec<Vec<String>>) -> io::Result<()> {
        let heading = heading.iter().map(ToString::to_string).collect();
        let rows: Vec<Vec<String>> = std::iter::once(heading).chain(rows).collect();
        columns(&rows).iter().try_for_each(|line| self.line(line))
    }

    /// Values as rows: each column has a heading, and the place of its value.
    pub(crate) fn table_of(&self, columns: &[(&str, &str)], values: &[Value]) -> io::Result<()> {
        let headings: Vec<&str> = columns.iter().map(|(heading, _)| *heading).collect();
        let row = |value: &Value| columns.iter().map(|(_, place)| cell(value.pointer(place))).collect();
        self.table(&headings, values.iter().map(row).collect())
    }

    /// An answer: a line of JSON for programs, or else a line of text.
    pub(crate) fn answer(&self, value: &Value, text: &str) -> io::Result<()> {
        if self.json { self.value(value) } else { self.line(text) }
    }

    /// Text of a conversation, as it comes.
    pub(crate) fn text(&self, text: &str) -> io::Result<()> {
        if self.screen.is_some() {
            return self.line(text.trim_end_matches('\n'));
        }
        let mut out = io::stdout().lock();
        kept(out.write_all(clean(text).as_bytes()).and_then(|()| out.flush()))
    }

    /// Copies a text to the clipboard of the terminal by its escape sequence OSC 52; false without a terminal.
    pub(crate) fn copy(&self, text: &str) -> io::Result<bool> {
        use base64::Engine as _;
        if !can_redraw(&io::stdout()) {
            return Ok(false);
        }
        let sequence = format!("\x1b]52;c;{}\x07", base64::engine::general_purpose::STANDARD.encode(text));
        if let Some(screen) = self.screen() {
            screen.push(ViewMessage::Raw(sequence));
        } else {
            let mut out = io::stdout().lock();
            out.write_all(sequence.as_bytes())?;
            out.flush()?;
        }
        Ok(true)
    }

    /// A remark beside the conversation, to standard error.
    pub(crate) fn note(&self, text: &str) {
        self.say(Tone::Note, text);
    }

    /// Lines of light blocks on a dark ground, to standard error. Without colour, the terminal's ground is taken for
    /// dark.
    pub(crate) fn blocks(&self, lines: &[String]) {
        for line in lines {
            let line = if self.color { format!("\x1b[97;40m{line}\x1b[0m\n") } else { format!("{line}\n") };
            let _ = io::stderr().lock().write_all(line.as_bytes());
        }
    }

    /// Does work, and makes a remark if it takes a while.
    pub(crate) async fn while_slow<T>(&self, remark: &str, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        match tokio::time::timeout(SLOW, &mut work).await {
            Ok(done) => done,
            Err(_) => {
                self.note(remark);
                work.await
            }
        }
    }

    /// A good remark.
    pub(crate) fn good(&self, text: &str) {
        self.say(Tone::Good, text);
    }

    /// A warning.
    pub(crate) fn warn(&self, text: &str) {
        self.say(Tone::Warn, text);
    }

    /// An error with its next step; with JSON also as an object on standard output.
    pub(crate) fn error(&self, name: &str, message: &str, hint: Option<&str>) {
        self.say(Tone::Bad, &format!("error: {message}"));
        if let Some(hint) = hint {
            self.say(Tone::Note, &format!("  try: {hint}"));
        }
        if self.json {
            let value = json!({ "error": { "name": name, "message": message, "hint": hint } });
            // Without an output there is no reader to report to.
            let _ = self.value(&value);
        }
    }

    /// A remark, to standard error.
    pub(crate) fn say(&self, tone: Tone, text: &str) {
        if let Some(screen) = self.screen() {
            screen.push(ViewMessage::Remark(tone, text.to_owned()));
            return;
        }
        let text = clean(text);
        let code = match tone {
            Tone::Plain => "0",
            Tone::Note => "2",
            Tone::Good => "32",
            Tone::Warn => "33",
            Tone::Bad => "31",
        };
        let line = if self.color { format!("\x1b[{code}m{text}\x1b[0m\n") } else { format!("{text}\n") };
        let _ = io::stderr().lock().write_all(line.as_bytes());
    }
}

/// A value as a cell of a table: a time as its date, and an id by its beginning.
fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) if text.len() == 64 => text.chars().take(8).collect(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => match (value.as_u64(), value.as_f64()) {
            (Some(ms), _) if ms > EARLIEST_MS => date_time(ms),
            (None, Some(number)) => format!("{number:.2}"),
            _ => value.to_string(),
        },
    }
}

/// Rows as lines of columns, without control characters.
fn columns(rows: &[Vec<String>]) -> Vec<String> {
    let printable = |cell: &String| cell.chars().filter(|c| !acts(*c)).collect::<String>();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(printable).collect()).collect();
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let width = |column| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let is_number = |cell: &String| cell.chars().all(|c| c.is_ascii_digit() || ".%-".contains(c));
    // The last column is text, and not padded; the first names the row, also where an id has digits alone.
    let right = |column: usize| column > 0 && column + 1 < count && cells(column).skip(1).all(is_number);
    let shape: Vec<(usize, bool)> = (0..count).map(|column| (width(column), right(column))).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&shape).map(|(cell, (width, right))| {
            if *right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// The number of a turn for people, who count from 1.
pub(crate) fn turn_number(seq: u64) -> u64 {
    seq.saturating_add(1)
}

/// The turns that a turn in this place replaces, for the line of its number; empty if it replaces none.
pub(crate) fn replaces(seq: u64, from: Option<u64>) -> String {
    match from.map(|from| (turn_number(from), seq)) {
        Some((first, last)) if first < last => format!(" · replaces turns {first} to {last}"),
        Some((first, _)) => format!(" · replaces turn {first}"),
        None => String::new(),
    }
}

/// Enough of a node's id to tell nodes apart.
pub(crate) fn short(node: &NodeId) -> String {
    node.to_string().chars().take(8).collect()
}

/// Enough of a session's id to tell sessions apart; every command accepts it.
pub(crate) fn short_session(session: &SessionId) -> String {
    session.to_string().chars().take(8).collect()
}

/// A message's author, for a reader.
pub(crate) fn role(role: Role) -> &'static str {
    match role {
        Role::System => "system",
        Role::User => "you",
        Role::Assistant => "model",
        Role::Tool => "tool",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_carry_no_control_characters() {
        let row = |cells: &[&str]| cells.iter().map(ToString::to_string).collect::<Vec<_>>();
        let rows =
            [row(&["NODE", "SHARE", "WHY"]), row(&["a\x1b[2Jb", "5.0%", "good"]), row(&["c", "95.0%", ""])];
        assert_eq!(columns(&rows), ["NODE   SHARE  WHY", "a[2Jb   5.0%  good", "c      95.0%"]);
    }

    #[test]
    fn a_turn_names_the_turns_that_it_replaces() {
        assert_eq!(replaces(4, Some(1)), " · replaces turns 2 to 4");
        assert_eq!(replaces(2, Some(1)), " · replaces turn 2");
        assert_eq!(replaces(2, None), "");
    }

    #[test]
    fn an_id_of_digits_alone_stays_at_the_left() {
        let row = |cells: &[&str]| cells.iter().map(ToString::to_string).collect::<Vec<_>>();
        let rows = [row(&["IDENTIFIER", "TURNS", "WHY"]), row(&["14166916", "12", ""])];
        assert_eq!(columns(&rows), ["IDENTIFIER  TURNS  WHY", "14166916       12"]);
    }
}
