//! What the user sees. Text that came from elsewhere is stripped of control characters, so that an answer cannot drive
//! the terminal; colour is only for terminals.

use std::io::{self, IsTerminal as _, Write as _};

use baton_proto::ids::NodeId;

/// A number of things: `1 turn`, `2 turns`.
pub fn count(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// The output.
#[derive(Debug, Clone, Copy)]
pub struct Out {
    json: bool,
    color: bool,
}

impl Out {
    /// Looks whether there is a terminal.
    pub fn new(json: bool, no_color: bool) -> Self {
        Self { json, color: !json && !no_color && io::stdout().is_terminal() && io::stderr().is_terminal() }
    }

    /// Whether the user asked for JSON.
    pub fn json(&self) -> bool {
        self.json
    }

    /// A line of JSON.
    pub fn value(&self, value: &serde_json::Value) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{value}")?;
        out.flush()
    }

    /// A line.
    pub fn line(&self, text: &str) -> io::Result<()> {
        writeln!(io::stdout().lock(), "{text}")
    }

    /// Rows in columns, the first of them the heading. Numbers, and what begins with one, stand to the right.
    pub fn table(&self, rows: &[Vec<String>]) -> io::Result<()> {
        for line in columns(rows) {
            self.line(&line)?;
        }
        Ok(())
    }

    /// Text of a conversation, as it comes.
    pub fn text(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(clean(text).as_bytes())?;
        out.flush()
    }

    /// A remark beside the conversation, to standard error.
    pub fn note(&self, text: &str) {
        self.say("2", text);
    }

    /// A good remark.
    pub fn good(&self, text: &str) {
        self.say("32", text);
    }

    /// A warning.
    pub fn warn(&self, text: &str) {
        self.say("33", text);
    }

    /// An error with its next step; with JSON also as an object on standard output.
    pub fn error(&self, name: &str, message: &str, hint: Option<&str>) {
        self.problem(message, hint);
        if self.json {
            let value = serde_json::json!({ "error": { "name": name, "message": message, "hint": hint } });
            // With the output gone there is nobody left to tell.
            let _ = self.value(&value);
        }
    }

    /// An error on standard error.
    pub fn problem(&self, message: &str, hint: Option<&str>) {
        self.say("31", &format!("error: {message}"));
        if let Some(hint) = hint {
            self.say("2", &format!("  try: {hint}"));
        }
    }

    fn say(&self, code: &str, text: &str) {
        let text = clean(text);
        let line = if self.color { format!("\x1b[{code}m{text}\x1b[0m\n") } else { format!("{text}\n") };
        let _ = io::stderr().lock().write_all(line.as_bytes());
    }
}

/// Rows as lines of columns, without control characters.
fn columns(rows: &[Vec<String>]) -> Vec<String> {
    let printable = |cell: &String| cell.chars().filter(|c| !c.is_control()).collect::<String>();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(printable).collect()).collect();
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let width = |column| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let is_number = |cell: &String| cell.chars().all(|c| c.is_ascii_digit() || ".%-".contains(c));
    // The last column is text, and not filled up.
    let right = |column: usize| column + 1 < count && cells(column).skip(1).all(is_number);
    let shape: Vec<(usize, bool)> = (0..count).map(|column| (width(column), right(column))).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&shape).map(|(cell, (width, right))| {
            if *right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Without control characters, line ends and tabs apart.
pub fn clean(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

/// Enough of a node's id to tell nodes apart.
pub fn short(node: &NodeId) -> String {
    node.to_string().chars().take(8).collect()
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
    fn an_answer_cannot_drive_the_terminal() {
        assert_eq!(clean("a\x1b[2Jb\r\u{9b}31mc\n\td\u{7}"), "a[2Jb31mc\n\td");
    }
}
