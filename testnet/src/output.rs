//! Printed output of the commands, and their wait for a signal.

use std::io::Write as _;

use anyhow::{Context as _, anyhow};
use baton_kit::{signals::StopSignals, terminal::wants_colour};
use serde::Serialize;
use serde_json::Value;

/// Prints one line on standard output.
pub(crate) fn line(text: &str) {
    baton_kit::output::print_line(text);
}

/// Prints a report on standard output: one line of JSON, or its fields for people.
pub(crate) fn report(json: bool, report: &impl Serialize) -> anyhow::Result<()> {
    if json {
        line(&serde_json::to_string(report)?);
    } else {
        let mut lines = Vec::new();
        add_fields("", &serde_json::to_value(report)?, &mut lines);
        lines.iter().for_each(|text| line(text));
    }
    Ok(())
}

/// Adds the fields of a value: one a line, but figures that belong together on one line.
fn add_fields(name: &str, value: &Value, lines: &mut Vec<String>) {
    let is_part = |value: &Value| value.is_object() || value.is_array();
    let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match value {
        Value::Object(fields) if name.is_empty() || fields.values().any(is_part) => {
            lines.extend((!name.is_empty()).then(|| format!("{name}:")));
            let indent = if name.is_empty() { "" } else { "  " };
            let depth = name.len() - name.trim_start().len();
            for (field, value) in fields {
                add_fields(&format!("{:depth$}{indent}{field}", ""), value, lines);
            }
        }
        Value::Object(fields) => {
            let figures = fields.iter().map(|(field, value)| format!("{field} {}", shown(value)));
            lines.push(format!("{name}: {}", figures.collect::<Vec<_>>().join(", ")));
        }
        Value::Array(values) if values.iter().any(|value| !value.is_number()) => {
            values.iter().for_each(|value| add_fields(name, value, lines));
        }
        Value::Array(values) => {
            lines.push(format!("{name}: {}", values.iter().map(shown).collect::<Vec<_>>().join(" ")));
        }
        value => lines.push(format!("{name}: {}", shown(value))),
    }
}

/// Prints one line of progress on standard error, dimmed on a terminal.
pub(crate) fn note(text: &str) {
    let mut stderr = std::io::stderr();
    let _ = if wants_colour(&stderr) {
        writeln!(stderr, "\x1b[2m{text}\x1b[0m")
    } else {
        writeln!(stderr, "{text}")
    };
}

/// Listens for the signals that end the command.
pub(crate) fn stop_signals() -> anyhow::Result<StopSignals> {
    StopSignals::listen().context("cannot listen for SIGTERM and Ctrl-C")
}

/// Runs `work` until it is done or a signal comes. A signal drops it, with the processes that it started.
pub(crate) async fn unless_stopped<T>(
    signals: &mut StopSignals,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    signals.unless_stopped(work).await.unwrap_or_else(|| Err(anyhow!("interrupted")))
}

/// Runs the whole work of a command, until it is done or a signal comes.
pub(crate) async fn until_signal<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    unless_stopped(&mut stop_signals()?, work).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_has_a_line_for_each_part() {
        let report = json!({
            "build": "debug", "findings": [{ "seed": 1, "what": "a turn" }], "slow": ["a", "b"], "turns": 3,
            "parts": { "quiet": { "mib": [1.5, 2.0], "turn_ms": { "p50": 1.0, "p99": 2.5 } } },
        });
        let mut lines = Vec::new();
        add_fields("", &report, &mut lines);
        let expected = [
            "build: debug",
            "findings: seed 1, what a turn",
            "slow: a",
            "slow: b",
            "turns: 3",
            "parts:",
            "  quiet:",
            "    mib: 1.5 2.0",
            "    turn_ms: p50 1.0, p99 2.5",
        ];
        assert_eq!(lines, expected);
    }
}
