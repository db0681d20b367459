//! `baton-node status --watch`: repeats the status, in place on a terminal, else a line each time.

use std::{
    io::{self, Write},
    time::Duration,
};

use baton_command::terminal::can_redraw;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{MissedTickBehavior, interval},
};

use super::{
    Exit, Failure,
    ask::{Admin, AskError},
    status::{as_json, describe, one_line},
    style::Style,
    time::{now_ms, utc},
};
use crate::admin::Status;

/// Hides the cursor.
const HIDE: &str = "\x1b[?25l";
/// Shows the cursor again.
const SHOW: &str = "\x1b[?25h";

/// Output format of the watch.
enum Form {
    Json,
    Lines,
    /// In place, with this number of lines on screen.
    Screen(usize),
}

/// Shows the status until an interrupt, or until the reader closes its end.
pub(super) async fn run(admin: &Admin, json: bool, every: u32) -> Result<(), Failure> {
    let failed = |error| Failure::new(Exit::Failure, error);
    let mut form = match (json, can_redraw(&io::stdout())) {
        (true, _) => Form::Json,
        (false, false) => Form::Lines,
        (false, true) => Form::Screen(0),
    };
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut ticks = interval(Duration::from_secs(every.into()));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let on_screen = matches!(form, Form::Screen(_));
    if on_screen {
        let _ = write!(io::stdout(), "{HIDE}");
    }
    loop {
        let shown = tokio::select! {
            biased;
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            shown = async {
                ticks.tick().await;
                show(&mut form, &admin.status().await)
            } => shown,
        };
        // A closed reader is no failure.
        if shown.is_err() {
            break;
        }
    }
    if on_screen {
        let _ = writeln!(io::stdout(), "{SHOW}");
    }
    Ok(())
}

fn show(form: &mut Form, answer: &Result<Status, AskError>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match form {
        Form::Json => match answer {
            Ok(status) => writeln!(out, "{}", as_json(status))?,
            Err(error) => {
                writeln!(out, "{}", serde_json::json!({ "healthy": false, "error": error.to_string() }))?;
            }
        },
        Form::Lines => {
            let line = answer.as_ref().map_or_else(|error| format!("no answer: {error}"), one_line);
            writeln!(out, "{} {line}", utc(now_ms()))?;
        }
        Form::Screen(lines) => {
            let style = Style::stdout();
            let text = match answer {
                Ok(status) => describe(status, style),
                Err(error) => format!("Node      {}", style.bad(&error.to_string())),
            };
            let text = format!("{text}\n\n{}; Ctrl-C ends this", utc(now_ms()));
            *lines = redraw(&mut out, &text, *lines, width())?;
        }
    }
    out.flush()
}

/// Writes a text over the previous one, and returns its number of lines. Cuts each line to the terminal's
/// width, because a wrapped line would take two.
fn redraw(out: &mut impl Write, text: &str, before: usize, width: usize) -> io::Result<usize> {
    if before > 0 {
        write!(out, "\x1b[{before}A\r")?;
    }
    let mut count = 0;
    for line in text.lines() {
        writeln!(out, "{}\x1b[K", cut(line, width))?;
        count += 1;
    }
    write!(out, "\x1b[J")?;
    Ok(count)
}

fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout());
    size.ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(80)
}

/// The first `width` characters of a line. Colour escapes have no width, and the cut leaves no colour
/// switched on.
fn cut(line: &str, width: usize) -> String {
    let (mut kept, mut shown, mut in_escape, mut coloured) = (String::new(), 0, false, false);
    for c in line.chars() {
        if in_escape || c == '\x1b' {
            in_escape = c != 'm';
            coloured = true;
            kept.push(c);
            continue;
        }
        if shown == width {
            if coloured {
                kept.push_str("\x1b[0m");
            }
            break;
        }
        shown += 1;
        kept.push(c);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_drawing_stands_over_the_first_one() {
        let mut out = Vec::new();
        assert_eq!(redraw(&mut out, "one\ntwo\nthree", 0, 80).unwrap(), 3);
        assert_eq!(redraw(&mut out, "four", 3, 80).unwrap(), 1);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "one\x1b[K\ntwo\x1b[K\nthree\x1b[K\n\x1b[J\x1b[3A\rfour\x1b[K\n\x1b[J");
    }

    #[test]
    fn lines_are_cut_by_what_is_seen_of_them() {
        assert_eq!(cut("Node  ready", 4), "Node");
        assert_eq!(cut("\x1b[32mready\x1b[0m, up", 7), "\x1b[32mready\x1b[0m, \x1b[0m");
        assert_eq!(cut("\x1b[32mready", 3), "\x1b[32mrea\x1b[0m");
        assert_eq!(cut("äöü", 2), "äö");
        assert_eq!(cut("short", 80), "short");
    }
}
