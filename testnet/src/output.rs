//! Printed output of the commands, and their wait for a signal.

use std::io::Write as _;

use anyhow::{Context as _, anyhow};
use baton_kit::{signals::StopSignals, terminal::wants_colour};
use serde::Serialize;

/// Prints one line on standard output.
pub(crate) fn line(text: &str) {
    baton_kit::output::print_line(text);
}

/// Prints a report on standard output: one line of JSON, or these lines for people.
pub(crate) fn report(
    json: bool,
    report: &impl Serialize,
    lines: impl FnOnce() -> Vec<String>,
) -> anyhow::Result<()> {
    if json {
        line(&serde_json::to_string(report)?);
    } else {
        lines().iter().for_each(|text| line(text));
    }
    Ok(())
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
