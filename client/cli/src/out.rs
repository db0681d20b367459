//! The user's output. Foreign text loses its control characters, so that an answer cannot drive the terminal;
//! colour is only for terminals.
//!
//! It goes to standard output and error, line by line, or to the full-screen view, if there is one.

pub(crate) mod inbox;
pub(crate) mod printable;
pub(crate) mod wrap;

use std::{
    io::{self, IsTerminal as _, Write as _},
    sync::Arc,
    time::Duration,
};

use baton_kit::{
    output::kept,
    terminal::{can_redraw, wants_colour},
};
use baton_proto::record::{FinishReason, Role};
use serde_json::{Value, json};

use inbox::{Inbox, ViewMessage};
use printable::acts;
pub(crate) use printable::clean;

use crate::clock::date_time;

/// A number of things: `1 turn`, `2 turns`, `3 memories`.
pub(crate) fn count(number: u64, thing: &str) -> String {
    match (number, thing.strip_suffix('y')) {
        (1, _) => format!("1 {thing}"),
        (_, Some(stem)) => format!("{number} {stem}ies"),
        (_, None) => format!("{number} {thing}s"),
    }
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
    pub(crate) fn table(&self, heading: &[&str], rows: &[Vec<Value>]) -> io::Result<()> {
        columns(heading, rows).iter().try_for_each(|line| self.line(line))
    }

    /// Values as rows: each column has a heading, and the place of its value.
    pub(crate) fn table_of(&self, columns: &[(&str, &str)], values: &[Value]) -> io::Result<()> {
        let headings: Vec<&str> = columns.iter().map(|(heading, _)| *heading).collect();
        let row = |value: &Value| {
            let cells = columns.iter().map(|(_, place)| value.pointer(place).cloned().unwrap_or_default());
            cells.collect()
        };
        self.table(&headings, &values.iter().map(row).collect::<Vec<_>>())
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
        let mut text = clean(text);
        if io::stderr().is_terminal()
            && let Ok((cells @ 1.., _)) = crossterm::terminal::size()
        {
            text = folded(&text, cells.into());
        }
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

/// A value as a cell of a table, without control characters: a time as its date, and an id by its beginning.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            text.chars().take(8).collect()
        }
        Value::String(text) => text.chars().filter(|c| !acts(*c)).collect(),
        value => match (value.as_u64(), value.as_f64()) {
            (Some(ms), _) if ms > EARLIEST_MS => date_time(ms),
            (None, Some(number)) => format!("{number:.2}"),
            _ => value.to_string(),
        },
    }
}

/// Rows as lines of columns.
fn columns(heading: &[&str], rows: &[Vec<Value>]) -> Vec<String> {
    let names = heading.iter().map(ToString::to_string).collect();
    let texts = rows.iter().map(|row| row.iter().map(cell).collect());
    let lines: Vec<Vec<String>> = std::iter::once(names).chain(texts).collect();
    let shape = (0..heading.len()).map(|column| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        let mut values =
            rows.iter().filter_map(|row| row.get(column)).filter(|value| !value.is_null()).peekable();
        let is_number =
            |value: &Value| value.is_number() && value.as_u64().is_none_or(|ms| ms <= EARLIEST_MS);
        let is_right = values.peek().is_some() && values.all(is_number);
        (cells.map(|cell| wrap::width(cell)).max().unwrap_or(0), is_right)
    });
    let shape: Vec<(usize, bool)> = shape.collect();
    let line = |line: &Vec<String>| {
        let cells = line.iter().zip(&shape).map(|(cell, (width, is_right))| {
            let gap = " ".repeat(width - wrap::width(cell));
            if *is_right { format!("{gap}{cell}") } else { format!("{cell}{gap}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    lines.iter().map(line).collect()
}

/// A text as rows of a terminal, which end between words. A command stays on one row if it fits there, so that a person can
/// copy it; a word that fits no row, such as a link, is left to the terminal.
fn folded(text: &str, cells: usize) -> String {
    let mut rows: Vec<String> = Vec::new();
    for line in text.split('\n') {
        let rest = line.trim_start_matches(' ');
        let indent = line.len() - rest.len();
        let mut row = " ".repeat(indent);
        for unit in units(rest, cells.saturating_sub(indent)) {
            if wrap::width(&row) > indent {
                match wrap::width(&row) + 1 + wrap::width(&unit) <= cells {
                    true => row.push(' '),
                    false => rows.push(std::mem::replace(&mut row, " ".repeat(indent))),
                }
            }
            row.push_str(&unit);
        }
        rows.push(row);
    }
    rows.join("\n")
}

/// The words of a line; the words of a command that fits into the cells are one.
fn units(line: &str, cells: usize) -> Vec<String> {
    let mut units: Vec<String> = Vec::new();
    let mut is_command = false;
    for word in line.split(' ') {
        match units.last_mut() {
            Some(unit) if is_command && wrap::width(unit) + 1 + wrap::width(word) <= cells => {
                unit.push(' ');
                unit.push_str(word);
            }
            _ => units.push(word.to_owned()),
        }
        let begins = word == "baton" || word.starts_with("baton-");
        is_command = (is_command || begins) && !word.ends_with([';', ':', ',', '.', ')']);
    }
    units
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

/// Enough of the id of a node or a session to tell it from others; every command accepts it.
pub(crate) fn short(id: &impl ToString) -> String {
    id.to_string().chars().take(8).collect()
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
        for (heading, rows, expected) in [
            (
                ["NODE", "SHARE", "WHY"],
                [json!(["a\x1b[2Jb", 0.05, "good"]), json!(["c", 0.95, null])],
                ["NODE   SHARE  WHY", "a[2Jb   0.05  good", "c       0.95  -"],
            ),
            // Texts of digits, as an id or a title may be, are none of the numbers.
            (
                ["ID", "TITLE", "TURNS"],
                [json!(["14166916", "2026", 12]), json!(["ab", "7", 3])],
                ["ID        TITLE  TURNS", "14166916  2026      12", "ab        7          3"],
            ),
            // Wide letters, and marks without a width.
            (
                ["TITLE", "TURNS", ""],
                [json!(["日本語", 12, ""]), json!(["e\u{301}te\u{301}", 3, "x"])],
                ["TITLE   TURNS", "日本語     12", "e\u{301}te\u{301}         3  x"],
            ),
        ] {
            let rows = rows.map(|row| row.as_array().unwrap().clone());
            assert_eq!(columns(&heading, &rows), expected);
        }
    }

    #[test]
    fn a_remark_is_broken_between_words_and_a_command_or_a_link_is_left_whole() {
        let link = "page: http://127.0.0.1:8788/#key=sk-baton";
        for (text, cells, expected) in [
            ("error: there is no node", 12, "error: there\nis no node"),
            ("error: no\n\n  try: name one", 12, "error: no\n\n  try: name\n  one"),
            ("  try: baton chat -c", 15, "  try:\n  baton chat -c"),
            ("see baton-node status; or wait", 18, "see\nbaton-node status;\nor wait"),
            ("baton chat -c TEXT", 10, "baton chat\n-c TEXT"),
            (link, 20, "page:\nhttp://127.0.0.1:8788/#key=sk-baton"),
        ] {
            assert_eq!(folded(text, cells), expected);
        }
    }

    #[test]
    fn a_turn_names_the_turns_that_it_replaces() {
        assert_eq!(replaces(4, Some(1)), " · replaces turns 2 to 4");
        assert_eq!(replaces(2, Some(1)), " · replaces turn 2");
        assert_eq!(replaces(2, None), "");
    }
}
